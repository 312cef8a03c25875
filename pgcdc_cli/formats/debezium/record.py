"""One record: topic, key, value, headers; its source block and, on request, its transaction block."""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import NamedTuple, TypeAlias, cast

from pgcdc_cli.changes.slice import Stamps
from pgcdc_cli.formats.debezium.connector_config import ConnectorConfig
from pgcdc_cli.formats.debezium.event_table import EventTable
from pgcdc_cli.formats.debezium.types.kind import token
from pgcdc_cli.formats.json_object import joined
from pgcdc_cli.formats.lines import Lines
from pgcdc_cli.formats.stamps import integer_text
from pgcdc_cli.types import kernels
from pgcdc_cli.types.kernels import Fragment, Int64s

Fragments: TypeAlias = Sequence[Fragment]
"""What, joined row by row, are lines, or a part of them."""

_name = lru_cache(1024)(token)
VERSIONS = {"2.5": b"2.5.4.Final", "3.4": b"3.4.3.Final"}
NONE: Fragments = (b"null",)


@dataclass(frozen=True, slots=True, eq=False)
class RunContext:
    """What all records of a run share."""

    config: ConnectorConfig
    database: str
    values_only: bool
    run_id: str

    @property
    def newer(self) -> bool:
        """The envelope of Debezium 3.4."""
        return self.config.debezium_version != "2.5"

    def source(self) -> list[Fragment]:
        """Begin the source block, up to the commit's time."""
        version, name = VERSIONS[self.config.debezium_version], _name(self.config.topic_prefix)
        return [b'{"version":"%s","connector":"postgresql","name":%s,"ts_ms":' % (version, name)]

    def headers(self, more: Fragments = ()) -> Fragments:
        """Build the headers' object; `more` are further ones, each followed by a comma."""
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


class EventOrders(NamedTuple):
    """A change's first event, counted from 1: in its transaction, and among its table's there."""

    total: Int64s
    table: Int64s


@dataclass(frozen=True, slots=True, eq=False)
class Positions:
    """Where n changes stand; `orders` are there if they are written.

    `ends` are where the commits before them end, -1 for none.
    """

    stamps: Stamps
    ends: Int64s
    orders: EventOrders | None = None
    snapshot: Fragment = b"false"

    @property
    def lsn(self) -> Fragment:
        return _digits(self.stamps.lsn)

    @property
    def millis(self) -> Fragment:
        return _digits(self.stamps.commit_ts // 1000)

    @property
    def micros(self) -> Fragment:
        return _digits(self.stamps.commit_ts)

    @property
    def xid(self) -> Fragment:
        return _digits(self.stamps.xid)

    @property
    def xid_or_null(self) -> Fragment:
        return _digits(self.stamps.xid, zero=b"null")

    @property
    def previous(self) -> Fragment:
        """What `sequence` begins with."""
        ends = self.ends
        if (ends == ends[0]).all():
            return previous_commit(int(ends[0]))
        texts = kernels.join([b'\\"', integer_text(ends), b'\\"'])
        return kernels.replace_where(texts, ends < 0, b"null") if (ends < 0).any() else texts

    def numbers(self, second: bool) -> tuple[Fragment, Fragment] | None:
        """Give the events' numbers in the transaction, and among their table's there.

        `second` ones are those of a changed key, which is two events.
        """
        if self.orders is None:
            return None
        return _digits(self.orders.total + second), _digits(self.orders.table + second)


class Variable(bytes):
    """The name of what differs among rows, where it goes in a template."""


class Variables:
    """`Positions` for a template, as variables; `numbered` if their orders are written."""

    lsn = Variable(b"lsn")
    millis = Variable(b"millis")
    micros = Variable(b"micros")
    xid = Variable(b"xid")
    xid_or_null = Variable(b"xid_or_null")
    previous = Variable(b"previous")
    snapshot = b"false"

    def __init__(self, *, numbered: bool) -> None:
        self._numbered = numbered

    def numbers(self, _second: bool) -> tuple[Fragment, Fragment] | None:
        return (Variable(b"total"), Variable(b"of_table")) if self._numbered else None


class RowRecords:
    """The records of one batch's rows."""

    def __init__(
        self,
        context: RunContext,
        table: EventTable,
        names: tuple[str, str],
        positions: Positions | Variables,
        handled: bytes,
    ) -> None:
        """`names` are schema and table; `handled` is what the function of that name gives."""
        self._context = context
        self._table = table
        self._source = source_block(context, names, positions)
        self._positions = positions
        self._handled = handled

    def event(
        self,
        operation: str,
        key: Fragments,
        *,
        before: Fragments = NONE,
        after: Fragments = NONE,
        headers: Fragments = (),
        second: bool = False,
    ) -> Fragments:
        """Give the record of a change."""
        table, transaction = self._table, _transaction(self._positions, second=second)
        end = _envelope_end(self._context, operation, transaction, self._handled)
        value = [table.value_head, b'{"before":', *before, b',"after":', *after, b',"source":', *self._source]
        value += [b",", *end, b"}", table.value_tail]
        return self._line(key, value, headers)

    def tombstone(self, key: Fragments, *, headers: Fragments = ()) -> Fragments:
        """Give a record without a value; nothing where only values are written."""
        return () if self._context.values_only else self._line(key, NONE, headers)

    def header(self, name: str, key: Fragments) -> Fragments:
        """Give a header that holds another record's key."""
        return (token(name) + b":", *key, b",")

    def _line(self, key: Fragments, value: Fragments, headers: Fragments) -> Fragments:
        line_headers = self._context.headers(headers)
        return record_line(self._context, self._table.topic, key, value, line_headers)


def record_line(
    context: RunContext,
    topic: bytes,
    key: Fragments,
    value: Fragments,
    headers: Fragments = (b"{}",),
) -> Fragments:
    """Give a record's line; only those of rows have headers."""
    if context.values_only:
        return (*value, b"\n")
    begin = b'{"topic":' + topic + b',"key":'
    return (begin, *key, b',"value":', *value, b',"headers":', *headers, b"}\n")


def handled(context: RunContext, now: int) -> bytes:
    """Say when a change was handled, in nanoseconds since 1970."""
    millis = b'"ts_ms":%d' % (now // 1_000_000)
    return millis + b',"ts_us":%d,"ts_ns":%d' % (now // 1000, now) if context.newer else millis


def _envelope_end(context: RunContext, operation: str, transaction: Fragments, handled: bytes) -> Fragments:
    """Give the members of a row's value behind `source`."""
    op = b'"op":"%s",' % operation.encode()
    if context.newer:
        return (b'"transaction":', *transaction, b"," + op, handled)
    return (op, handled, b',"transaction":', *transaction)


def _transaction(positions: Positions | Variables, *, second: bool) -> Fragments:
    """Give the transaction block."""
    numbers = positions.numbers(second)
    if numbers is None:
        return NONE
    total, of_table = numbers
    identity = (b'{"id":"', positions.xid, b":", positions.lsn)
    return (*identity, b'","total_order":', total, b',"data_collection_order":', of_table, b"}")


def source_block(context: RunContext, names: tuple[str, str], positions: Positions | Variables) -> Fragments:
    """Give the source block of n changes."""
    lsn, snapshot, database = positions.lsn, positions.snapshot, _name(context.database)
    block: list[Fragment] = [*context.source(), positions.millis, b',"snapshot":']
    # "false" is the field's default: the connector leaves it null.
    replaced = context.config.value_converter_replace_null_with_default
    plain = snapshot == b"false" and not replaced
    block += [b"null"] if plain else [b'"', snapshot, b'"']
    block += [b',"db":' + database]
    block += [b',"sequence":"[', positions.previous, b',\\"', lsn, b'\\"]"']
    if context.newer:
        micros = positions.micros
        block += [b',"ts_us":', micros, b',"ts_ns":', micros, b"000"]
    schema, table = map(_name, names)
    block += [
        b',"schema":%s,"table":%s,"txId":' % (schema, table),
        positions.xid_or_null,
        b',"lsn":',
        lsn,
        b',"xmin":null}',
    ]
    return block


def _digits(values: Int64s, *, zero: bytes = b"0") -> Fragment:
    """Write decimal numbers: once where all rows share one."""
    if (values == values[0]).all():
        return b"%d" % values[0] if values[0] else zero
    texts = integer_text(values)
    return texts if zero == b"0" else kernels.replace_where(texts, values == 0, zero)


def previous_commit(end: int) -> bytes:
    """Write what `sequence` begins with: the previous commit's end LSN in quotes, null where that is -1."""
    return b"null" if end < 0 else b'\\"%d\\"' % end


def lines_of(fragments: Fragments, rows: int) -> Lines:
    """Put lines together, row by row."""
    if all(isinstance(fragment, bytes) for fragment in fragments):
        return [b"".join(cast("Sequence[bytes]", fragments))] * rows
    return kernels.as_binary(joined(fragments))
