"""One record: topic, key, value, headers; its source block and, on request, its transaction block."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import NamedTuple, TypeAlias, cast

from pgcdc_cli.changes.slice import Stamps
from pgcdc_cli.formats.debezium.connector_config import ConnectorConfig
from pgcdc_cli.formats.debezium.event_table import EventTable
from pgcdc_cli.formats.debezium.types.kind import token
from pgcdc_cli.formats.encoded_rows import Lines
from pgcdc_cli.formats.json_text import integer_text, joined
from pgcdc_cli.types import kernels
from pgcdc_cli.types.kernels import Fragment, Int64s

Fragments: TypeAlias = Sequence[Fragment]
"""What, joined row by row, are lines, or a part of them."""

_name = lru_cache(1024)(token)
VERSIONS = {"2.5": b"2.5.4.Final", "3.4": b"3.4.3.Final"}
NONE: Fragments = (b"null",)
Tokens: TypeAlias = tuple[Fragment, ...]
"""One JSON token a column: a constant or one per row."""
Rows: TypeAlias = "tuple[Tokens | None, Tokens | None]"
"""The old and the new row of a change."""


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

    def source(self) -> dict[str, Fragments]:
        """Begin the source block, up to the commit's time."""
        version, name = VERSIONS[self.config.debezium_version], _name(self.config.topic_prefix)
        return {"version": (b'"%s"' % version,), "connector": (b'"postgresql"',), "name": (name,)}

    def headers(self, more: Fragments = (), added: Fragments = ()) -> Fragments:
        """Build the headers' object.

        `more` are further ones, `added` those of a message transform; each is followed by a comma.
        """
        named = self.newer and self.config.extended_headers_enabled
        members = [*more, *([self._context_headers()] if named else ()), *added]
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


class Handled(NamedTuple):
    """When a change was handled, since 1970 in each unit."""

    ts_ms: bytes
    ts_us: bytes
    ts_ns: bytes


HANDLED = Handled(Variable(b"ts_ms"), Variable(b"ts_us"), Variable(b"ts_ns"))
"""For a template."""


def handled(now: int) -> Handled:
    """Say when a change was handled, from nanoseconds."""
    return Handled(b"%d" % (now // 1_000_000), b"%d" % (now // 1000), b"%d" % now)


class RowRecords:
    """The records of one batch's rows."""

    def __init__(
        self,
        context: RunContext,
        table: EventTable,
        names: tuple[str, str],
        positions: Positions | Variables,
        handled: Handled,
    ) -> None:
        """`names` are schema and table; `handled` is what the function of that name gives."""
        self.context = context
        self.table = table
        self.source = source_members(context, names, positions)
        self.positions = positions
        self.handled = handled

    def event(
        self, operation: str, key: Fragments, rows: Rows, *, headers: Fragments = (), second: bool = False
    ) -> Fragments:
        """Give the record of a change."""
        table = self.table
        before, after = (NONE if row is None else row_object(table, row) for row in rows)
        transaction = transaction_block(self.positions, second=second)
        end = _envelope_end(self.context, operation, transaction, self.handled)
        source = source_block(self.context, self.source)
        value = [table.value_head, b'{"before":', *before, b',"after":', *after, b',"source":', *source]
        value += [b",", *end, b"}", table.value_tail]
        return self.line(table.topic, key, value, self.context.headers(headers))

    def tombstone(self, key: Fragments, *, headers: Fragments = ()) -> Fragments:
        """Give a record without a value; nothing where only values are written."""
        if self.context.values_only:
            return ()
        return self.line(self.table.topic, key, NONE, self.context.headers(headers))

    def line(self, topic: Fragment, key: Fragments, value: Fragments, headers: Fragments) -> Fragments:
        """Give a record's line."""
        return record_line(self.context, topic, key, value, headers)


def key_header(name: str, key: Fragments) -> Fragments:
    """Give a header that holds another record's key."""
    return (token(name) + b":", *key, b",")


def row_object(table: EventTable, tokens: Tokens) -> Fragments:
    """Give a row as an object."""
    return json_object([(column.label, value) for column, value in zip(table.columns, tokens, strict=False)])


def json_object(members: Sequence[tuple[bytes, Fragment]]) -> Fragments:
    """Give an object; each member's label ends with its colon."""
    fragments: list[Fragment] = [b"{"]
    for number, (label, value) in enumerate(members):
        fragments += [b"," + label if number else label, value]
    return (*fragments, b"}")


def record_line(
    context: RunContext,
    topic: Fragment,
    key: Fragments,
    value: Fragments,
    headers: Fragments = (b"{}",),
) -> Fragments:
    """Give a record's line."""
    if context.values_only:
        return (*value, b"\n")
    begin = (b'{"topic":', topic, b',"key":')
    return (*begin, *key, b',"value":', *value, b',"headers":', *headers, b"}\n")


def _envelope_end(context: RunContext, operation: str, transaction: Fragments, handled: Handled) -> Fragments:
    """Give the members of a row's value behind `source`."""
    op = b'"op":"%s",' % operation.encode()
    millis = (b'"ts_ms":', handled.ts_ms)
    if context.newer:
        finer = (b',"ts_us":', handled.ts_us, b',"ts_ns":', handled.ts_ns)
        return (b'"transaction":', *transaction, b"," + op, *millis, *finer)
    return (op, *millis, b',"transaction":', *transaction)


def transaction_block(positions: Positions | Variables, *, second: bool = False) -> Fragments:
    """Give the transaction block."""
    members = transaction_members(positions, second=second)
    return NONE if members is None else _block(members)


def transaction_members(positions: Positions | Variables, *, second: bool) -> dict[str, Fragments] | None:
    """Give the members of the transaction block; None where there is none."""
    numbers = positions.numbers(second)
    if numbers is None:
        return None
    total, of_table = numbers
    identity = (b'"', positions.xid, b":", positions.lsn, b'"')
    return {"id": identity, "total_order": (total,), "data_collection_order": (of_table,)}


def source_block(context: RunContext, members: Mapping[str, Fragments]) -> Fragments:
    """Give the source block of n changes of its members."""
    if context.config.value_converter_replace_null_with_default and members["snapshot"] == NONE:
        members = {**members, "snapshot": (b'"false"',)}
    return _block(members)


def source_members(
    context: RunContext, names: tuple[str, str], positions: Positions | Variables
) -> dict[str, Fragments]:
    """Give the members of the source block of n changes."""
    lsn, snapshot = positions.lsn, positions.snapshot
    schema, table = map(_name, names)
    members = context.source() | {
        "ts_ms": (positions.millis,),
        # "false" is the field's default: the connector leaves it null.
        "snapshot": NONE if snapshot == b"false" else (b'"', snapshot, b'"'),
        "db": (_name(context.database),),
        "sequence": (b'"[', positions.previous, b',\\"', lsn, b'\\"]"'),
    }
    if context.newer:
        micros = positions.micros
        members |= {"ts_us": (micros,), "ts_ns": (micros,) if micros == b"0" else (micros, b"000")}
    return members | {
        "schema": (schema,),
        "table": (table,),
        "txId": (positions.xid_or_null,),
        "lsn": (lsn,),
        "xmin": NONE,
    }


def _block(members: Mapping[str, Fragments]) -> Fragments:
    fragments: list[Fragment] = []
    for name, value in members.items():
        fragments += [b'%s"%s":' % (b"," if fragments else b"{", name.encode()), *value]
    return (*fragments, b"}")


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
