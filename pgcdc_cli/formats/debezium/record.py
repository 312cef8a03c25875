"""One record: topic, key, value and headers, with its source block and, on request, its transaction block."""

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
"""Fragments that, joined row by row, are lines, or a part of them."""

_name = lru_cache(1024)(token)
VERSIONS = {"2.5": b"2.5.4.Final", "3.4": b"3.4.3.Final"}
NONE: Fragments = (b"null",)
Tokens: TypeAlias = tuple[Fragment, ...]
"""One JSON token per column: a constant, or one per row."""
Rows: TypeAlias = "tuple[Tokens | None, Tokens | None]"
"""The old and the new row of a change; None for a row that it doesn't have."""


@dataclass(frozen=True, slots=True, eq=False)
class RunContext:
    """What all records of a run have in common."""

    config: ConnectorConfig
    database: str
    values_only: bool
    run_id: str

    @property
    def newer(self) -> bool:
        """Whether the envelope is Debezium 3.4's."""
        return self.config.debezium_version != "2.5"

    def source(self) -> dict[str, Fragments]:
        """Make the first members of the source block, before `ts_ms`."""
        version, name = VERSIONS[self.config.debezium_version], _name(self.config.topic_prefix)
        return {"version": (b'"%s"' % version,), "connector": (b'"postgresql"',), "name": (name,)}

    def headers(self, more: Fragments = (), added: Fragments = ()) -> Fragments:
        """Write the headers' object.

        `more` are further headers, `added` those of a message transform; each ends with a comma.
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
    """A change's first event, counted from 1: in its transaction, and among its table's events there."""

    total: Int64s
    table: Int64s


@dataclass(frozen=True, slots=True, eq=False)
class Positions:
    """Positions of n changes in the stream; `orders` is None if they are not written.

    `ends` are the end LSNs of the commits before them, -1 for none.
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
        """First element of `sequence`: the end LSN of the previous commit."""
        ends = self.ends
        if (ends == ends[0]).all():
            return previous_commit(int(ends[0]))
        texts = kernels.join([b'\\"', integer_text(ends), b'\\"'])
        return kernels.replace_where(texts, ends < 0, b"null") if (ends < 0).any() else texts

    def numbers(self, second: bool) -> tuple[Fragment, Fragment] | None:
        """Write the events' numbers in the transaction, and among their table's events there.

        A changed key is two events; `second` is for the second one.
        """
        if self.orders is None:
            return None
        return _digits(self.orders.total + second), _digits(self.orders.table + second)


class Variable(bytes):
    """The name of a value that differs from row to row, in its place in a template."""


class Variables:
    """`Positions` as variables of a template; `numbered` if the events' numbers are written."""

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
    """The time at which a change was processed, since 1970, in three units."""

    ts_ms: bytes
    ts_us: bytes
    ts_ns: bytes


HANDLED = Handled(Variable(b"ts_ms"), Variable(b"ts_us"), Variable(b"ts_ns"))
"""`Handled` as variables of a template."""


def handled(now: int) -> Handled:
    """Convert a time in nanoseconds since 1970."""
    return Handled(b"%d" % (now // 1_000_000), b"%d" % (now // 1000), b"%d" % now)


class RowRecords:
    """Writes the records of one batch's rows."""

    def __init__(
        self,
        context: RunContext,
        table: EventTable,
        names: tuple[str, str],
        positions: Positions | Variables,
        handled: Handled,
    ) -> None:
        """`names` are schema and table; `handled` is the result of the function with that name."""
        self.context = context
        self.table = table
        self.source = source_members(context, names, positions)
        self.positions = positions
        self.handled = handled

    def event(
        self, operation: str, key: Fragments, rows: Rows, *, headers: Fragments = (), second: bool = False
    ) -> Fragments:
        """Write the record of a change."""
        table = self.table
        before, after = (NONE if row is None else row_object(table, row) for row in rows)
        transaction = transaction_block(self.positions, second=second)
        end = _envelope_end(self.context, operation, transaction, self.handled)
        source = source_block(self.context, self.source)
        value = [table.value_head, b'{"before":', *before, b',"after":', *after, b',"source":', *source]
        value += [b",", *end, b"}", table.value_tail]
        return record_line(self.context, table.topic, key, value, self.context.headers(headers))

    def tombstone(self, key: Fragments, *, headers: Fragments = ()) -> Fragments:
        """Write a record without a value; nothing if only values are written."""
        if self.context.values_only:
            return ()
        return record_line(self.context, self.table.topic, key, NONE, self.context.headers(headers))


def key_header(name: str, key: Fragments) -> Fragments:
    """Write a header that holds another record's key."""
    return (token(name) + b":", *key, b",")


def row_object(table: EventTable, tokens: Tokens) -> Fragments:
    """Write a row as an object."""
    return json_object([(column.label, value) for column, value in zip(table.columns, tokens, strict=False)])


def json_object(members: Sequence[tuple[bytes, Fragment]]) -> Fragments:
    """Write an object; each member's label includes the colon."""
    fragments: list[Fragment] = [b"{"]
    for number, (label, value) in enumerate(members):
        fragments += [b"," + label if number else label, value]
    return (*fragments, b"}")


def record_line(
    context: RunContext,
    topic: Fragment,
    key: Fragments,
    value: Fragments,
    headers: Fragments,
) -> Fragments:
    """Write a record's line."""
    if context.values_only:
        return (*value, b"\n")
    begin = (b'{"topic":', topic, b',"key":')
    return (*begin, *key, b',"value":', *value, b',"headers":', *headers, b"}\n")


def _envelope_end(context: RunContext, operation: str, transaction: Fragments, handled: Handled) -> Fragments:
    """Write the members after `source` of a row's value."""
    op = b'"op":"%s",' % operation.encode()
    millis = (b'"ts_ms":', handled.ts_ms)
    if context.newer:
        finer = (b',"ts_us":', handled.ts_us, b',"ts_ns":', handled.ts_ns)
        return (b'"transaction":', *transaction, b"," + op, *millis, *finer)
    return (op, *millis, b',"transaction":', *transaction)


def transaction_block(positions: Positions | Variables, *, second: bool = False) -> Fragments:
    """Write the transaction block; null if events are not numbered."""
    members = transaction_members(positions, second=second)
    return NONE if members is None else _block(members)


def transaction_members(positions: Positions | Variables, *, second: bool) -> dict[str, Fragments] | None:
    """Make the members of the transaction block; None if events are not numbered."""
    numbers = positions.numbers(second)
    if numbers is None:
        return None
    total, of_table = numbers
    identity = (b'"', positions.xid, b":", positions.lsn, b'"')
    return {"id": identity, "total_order": (total,), "data_collection_order": (of_table,)}


def source_block(context: RunContext, members: Mapping[str, Fragments]) -> Fragments:
    """Write the source block of n changes from its members."""
    if context.config.value_converter_replace_null_with_default and members["snapshot"] == NONE:
        members = {**members, "snapshot": (b'"false"',)}
    return _block(members)


def source_members(
    context: RunContext, names: tuple[str, str], positions: Positions | Variables
) -> dict[str, Fragments]:
    """Make the members of the source block of n changes."""
    lsn, snapshot = positions.lsn, positions.snapshot
    schema, table = map(_name, names)
    members = context.source() | {
        "ts_ms": (positions.millis,),
        # "false" is the field's default: the connector leaves the field null.
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
    """Write decimal numbers; a single constant if all are equal."""
    if (values == values[0]).all():
        return b"%d" % values[0] if values[0] else zero
    texts = integer_text(values)
    return texts if zero == b"0" else kernels.replace_where(texts, values == 0, zero)


def previous_commit(end: int) -> bytes:
    """Write the first element of `sequence`: the previous commit's end LSN in quotes, or null for -1."""
    return b"null" if end < 0 else b'\\"%d\\"' % end


def lines_of(fragments: Fragments, rows: int) -> Lines:
    """Join lines row by row."""
    if all(isinstance(fragment, bytes) for fragment in fragments):
        return [b"".join(cast("Sequence[bytes]", fragments))] * rows
    return kernels.as_binary(joined(fragments))
