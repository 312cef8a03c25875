"""One record: topic, key, value, headers; its source block and, on request, its transaction block."""

from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum
from functools import lru_cache
from typing import TypeAlias, cast

from pgcdc_cli.formats.debezium.config import ConnectorConfig
from pgcdc_cli.formats.debezium.counting import Orders
from pgcdc_cli.formats.debezium.tables import EventTable
from pgcdc_cli.formats.debezium.types.kind import token
from pgcdc_cli.formats.jsonobject import joined
from pgcdc_cli.formats.lines import Lines
from pgcdc_cli.formats.stamps import integer_text
from pgcdc_cli.pgoutput.changes import Int64s, Stamps
from pgcdc_cli.types import kernels

Part: TypeAlias = "kernels.Part | list[bytes]"
"""What lines are put together from: a constant, or a text per row, as a column or, of a few, in a list."""

_name = lru_cache(1024)(token)
VERSIONS = {"2.5": b"2.5.4.Final", "3.4": b"3.4.3.Final"}
NONE: Sequence[Part] = (b"null",)


class RecordKind(Enum):
    """A change is one event, or, where its key changes, the first and the second of two."""

    ONE = 0
    FIRST_OF_TWO = 1
    SECOND_OF_TWO = 2


@dataclass(frozen=True, slots=True, eq=False)
class Context:
    """What all records of a run share."""

    config: ConnectorConfig
    database: str
    values_only: bool
    run_id: str

    @property
    def newer(self) -> bool:
        """The envelope of Debezium 3.4."""
        return self.config.debezium_version != "2.5"

    def source(self) -> list[Part]:
        """Begin the source block, up to the commit's time."""
        version, name = VERSIONS[self.config.debezium_version], _name(self.config.topic_prefix)
        return [b'{"version":"%s","connector":"postgresql","name":%s,"ts_ms":' % (version, name)]

    def headers(self, more: Sequence[Part] = ()) -> Sequence[Part]:
        """Build the headers' object; `more` are members, each followed by a comma."""
        members = list(more)
        if self.newer:
            members += [self._context_headers()]
        if not members:
            return (b"{}",)
        last = members.pop()
        assert isinstance(last, bytes)
        return (b"{", *members, last.removesuffix(b","), b"}")

    def _context_headers(self) -> bytes:
        names = ("connectorLogicalName", "taskId", "connectorName", "runId")
        values = (self.config.topic_prefix, "0", "postgresql", self.run_id)
        form = b'"__debezium.context.%s":%s,'
        if self.config.key_converter_schemas_enable:
            form = b'"__debezium.context.%s":{"schema":{"type":"string","optional":false},"payload":%s},'
        return b"".join(
            form % (name.encode(), token(value)) for name, value in zip(names, values, strict=True)
        )


@dataclass(frozen=True, slots=True, eq=False)
class Places:
    """Where n changes stand: `previous` is the sequence's first part; `orders` are there if they are told.

    `few` says that what differs among rows is written one by one.
    """

    stamps: Stamps
    previous: Part
    orders: Orders | None = None
    snapshot: kernels.Part = b"false"
    few: bool = False

    def transaction(self, kind: RecordKind) -> Sequence[Part]:
        """Give the transaction block."""
        if self.orders is None:
            return NONE
        more = int(kind is RecordKind.SECOND_OF_TWO)
        orders = (self.orders.total, self.orders.table)
        total, table = (digits(order + more, few=self.few) for order in orders)
        xid, lsn = (digits(column, few=self.few) for column in (self.stamps.xid, self.stamps.lsn))
        identity = (b'{"id":"', xid, b":", lsn)
        return (*identity, b'","total_order":', total, b',"data_collection_order":', table, b"}")


class Record:
    """The records of one batch's rows."""

    def __init__(
        self, context: Context, table: EventTable, names: tuple[str, str], places: Places, now: int
    ) -> None:
        """`names` are schema and table; `now` is the time of handling in nanoseconds since 1970."""
        self._context = context
        self._table = table
        self._source = source_parts(context, names, places)
        self._places = places
        self._now = now

    @property
    def few(self) -> bool:
        """Whether the rows are written one by one."""
        return self._places.few

    def parts(
        self,
        operation: str,
        key: Sequence[Part],
        *,
        before: Sequence[Part] = NONE,
        after: Sequence[Part] = NONE,
        headers: Sequence[Part] = (),
        kind: RecordKind = RecordKind.ONE,
    ) -> Sequence[Part]:
        """Give what, joined row by row, is a record's line."""
        table, transaction = self._table, self._places.transaction(kind)
        end = envelope_end(self._context, operation, transaction, self._now)
        value = [table.value_head, b'{"before":', *before, b',"after":', *after, b',"source":', *self._source]
        value += [b",", *end, b"}", table.value_tail]
        return self._line(key, value, headers)

    def tombstone(self, key: Sequence[Part], *, headers: Sequence[Part] = ()) -> Sequence[Part]:
        """Give the parts of a record without a value; none where only values are written."""
        return () if self._context.values_only else self._line(key, NONE, headers)

    def header(self, name: str, key: Sequence[Part]) -> Sequence[Part]:
        """Give a header that holds another record's key."""
        return (token(name) + b":", *key, b",")

    def _line(self, key: Sequence[Part], value: Sequence[Part], headers: Sequence[Part]) -> Sequence[Part]:
        told = self._context.headers(headers)
        return record_line(self._context, self._table.topic, key, value, told)


def record_line(
    context: Context,
    topic: bytes,
    key: Sequence[Part],
    value: Sequence[Part],
    headers: Sequence[Part] = (b"{}",),
) -> Sequence[Part]:
    """Give the parts of one line; only those of rows have headers."""
    if context.values_only:
        return (*value, b"\n")
    begin = b'{"topic":' + topic + b',"key":'
    return (begin, *key, b',"value":', *value, b',"headers":', *headers, b"}\n")


def envelope_end(context: Context, operation: str, transaction: Sequence[Part], now: int) -> Sequence[Part]:
    """Give the members of a row's value behind `source`."""
    handled = b'"ts_ms":%d' % (now // 1_000_000)
    op = b'"op":"%s",' % operation.encode()
    if context.newer:
        handled += b',"ts_us":%d,"ts_ns":%d' % (now // 1000, now)
        return (b'"transaction":', *transaction, b"," + op + handled)
    return (op + handled + b',"transaction":', *transaction)


def source_parts(context: Context, names: tuple[str, str], places: Places) -> Sequence[Part]:
    """Give the source block of n changes."""
    stamps, few = places.stamps, places.few
    lsn = digits(stamps.lsn, few=few)
    millis = digits(stamps.commit_ts // 1000, few=few)
    xid = digits(stamps.xid, few=few, zero=b"null")
    snapshot, database = places.snapshot, _name(context.database)
    parts: list[Part] = [*context.source(), millis, b',"snapshot":']
    # "false" is the field's default: the connector leaves it null.
    replaced = context.config.value_converter_replace_null_with_default
    plain = snapshot == b"false" and not replaced
    parts += [b"null"] if plain else [b'"', snapshot, b'"']
    parts += [b',"db":' + database]
    parts += [b',"sequence":"[', places.previous, b',\\"', lsn, b'\\"]"']
    if context.newer:
        micros = digits(stamps.commit_ts, few=few)
        parts += [b',"ts_us":', micros, b',"ts_ns":', micros, b"000"]
    schema, table = map(_name, names)
    parts += [b',"schema":%s,"table":%s,"txId":' % (schema, table), xid, b',"lsn":', lsn, b',"xmin":null}']
    return parts


def digits(values: Int64s, *, few: bool = False, zero: bytes = b"0") -> Part:
    """Write decimal numbers: once where all rows share one, and one by one of a few."""
    if (values == values[0]).all():
        return b"%d" % values[0] if values[0] else zero
    if few:
        return [b"%d" % value if value else zero for value in values.tolist()]
    texts = integer_text(values)
    return texts if zero == b"0" else kernels.replace_where(texts, values == 0, zero)


def previous_part(ends: Int64s, *, few: bool = False) -> Part:
    """Build the first part of `sequence`: the previous commit's end LSN in quotes, null where that is -1."""
    if (ends == ends[0]).all():
        return _previous(int(ends[0]))
    if few:
        return list(map(_previous, ends.tolist()))
    texts = kernels.join([b'\\"', integer_text(ends), b'\\"'])
    return kernels.replace_where(texts, ends < 0, b"null") if (ends < 0).any() else texts


def _previous(end: int) -> bytes:
    return b"null" if end < 0 else b'\\"%d\\"' % end


def lines_of(parts: Sequence[Part], rows: int) -> Lines:
    """Put lines together, row by row."""
    kinds = set(map(type, parts))
    if not kinds <= {bytes, list}:
        assert list not in kinds, "all rows are written one by one, or none"
        return kernels.as_binary(joined(cast("Sequence[kernels.Part]", parts)))
    if kinds == {bytes}:
        return [b"".join(cast("Sequence[bytes]", parts))] * rows
    texts = [[part] * rows if isinstance(part, bytes) else part for part in parts]
    return [b"".join(row) for row in zip(*texts, strict=True)]
