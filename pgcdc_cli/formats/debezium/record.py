"""One record: topic, key, value, headers; its source block and, on request, its transaction block."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from enum import Enum
from functools import lru_cache
from typing import NamedTuple, Self, cast

import numpy as np

from pgcdc_cli.changes.slice import Boundaries, Slice, Stamp, Stamps
from pgcdc_cli.formats.debezium.connector_config import ConnectorConfig
from pgcdc_cli.formats.debezium.event_table import EventTable
from pgcdc_cli.formats.debezium.types.kind import token
from pgcdc_cli.formats.json_object import joined
from pgcdc_cli.formats.lines import Lines
from pgcdc_cli.formats.stamps import INVALID_XID, integer_text
from pgcdc_cli.types import kernels
from pgcdc_cli.types.kernels import Fragment, Int64s


@dataclass(frozen=True, slots=True, eq=False)
class Changes:
    """n changes of one table, by its name: where they stand in the stream, and how many events each is."""

    table: str
    index: Int64s
    counts: Int64s


class Orders(NamedTuple):
    """A change's first event, counted from 1: in its transaction, and among its table's there."""

    total: Int64s
    table: Int64s


@dataclass(frozen=True, slots=True, eq=False)
class Sums:
    """How many events of which table each transaction has, in the order of the tables' first events there.

    The arrays have an element for each transaction and table with an event: the transaction's number (a
    transaction is what stands before a mark and behind the one before), the table's in `names`, the events.
    """

    names: Sequence[str]
    transaction: Int64s
    table: Int64s
    events: Int64s

    def of(self, transaction: int) -> dict[str, int]:
        """Give one transaction's by the tables' names."""
        chosen = self.transaction == transaction
        tables = [self.names[table] for table in self.table[chosen].tolist()]
        return dict(zip(tables, self.events[chosen].tolist(), strict=True))


def count(changes: Sequence[Changes], marks: Int64s, before: Mapping[str, int]) -> tuple[list[Orders], Sums]:
    """Number the events of changes, for each in turn, and sum them up.

    `marks` are where transactions begin and end, ascending, and `before` are the events by table that the
    first one had before the slice.
    """
    parts = [_before(table, events) for table, events in before.items()] + list(changes)
    names = list(dict.fromkeys(part.table for part in parts))
    sizes = [len(part.index) for part in parts]
    tables = np.repeat(np.array([names.index(part.table) for part in parts], np.int64), sizes)
    index, counts = _joined([part.index for part in parts]), _joined([part.counts for part in parts])
    order = np.argsort(index, kind="stable")
    transaction = np.searchsorted(marks, index[order])
    group = transaction * len(names) + tables[order]
    by_group = np.argsort(group, kind="stable")
    grouped = order[by_group]
    total, of_table = np.empty_like(counts), np.empty_like(counts)
    total[order] = _numbers(counts[order], transaction)
    of_table[grouped] = _numbers(counts[grouped], group[by_group])
    cuts = np.cumsum(sizes)
    orders = list(map(Orders, np.split(total, cuts), np.split(of_table, cuts)))
    return orders[len(before) : -1], _sums(names, group[by_group], counts[grouped], by_group)


def _before(table: str, events: int) -> Changes:
    return Changes(table, np.array([-1], np.int64), np.array([events], np.int64))


def _joined(columns: Sequence[Int64s]) -> Int64s:
    return np.concatenate([np.empty(0, np.int64), *columns])


def _numbers(counts: Int64s, groups: Int64s) -> Int64s:
    """Number each row's first event in its group, where the rows of a group stand together."""
    before = np.cumsum(counts) - counts
    first = _firsts(groups)
    numbers: Int64s = before - np.repeat(before[first], np.diff(first, append=len(groups))) + 1
    return numbers


def _firsts(groups: Int64s) -> Int64s:
    return np.flatnonzero(np.diff(groups, prepend=-1))


def _sums(names: Sequence[str], groups: Int64s, counts: Int64s, places: Int64s) -> Sums:
    """Sum up the rows of each group, which stand together; `places` are theirs in the stream."""
    some = counts > 0
    groups, counts, places = groups[some], counts[some], places[some]
    first = _firsts(groups)
    order = np.argsort(places[first])
    transaction, table = np.divmod(groups[first][order], len(names) or 1)
    return Sums(names, transaction, table, np.add.reduceat(counts, first)[order] if len(first) else counts)


_name = lru_cache(1024)(token)
VERSIONS = {"2.5": b"2.5.4.Final", "3.4": b"3.4.3.Final"}
NONE: Sequence[Fragment] = (b"null",)


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

    def source(self) -> list[Fragment]:
        """Begin the source block, up to the commit's time."""
        version, name = VERSIONS[self.config.debezium_version], _name(self.config.topic_prefix)
        return [b'{"version":"%s","connector":"postgresql","name":%s,"ts_ms":' % (version, name)]

    def headers(self, more: Sequence[Fragment] = ()) -> Sequence[Fragment]:
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
    """Where n changes stand; `orders` are there if they are told.

    `ends` are where the commits before them end, -1 for none.
    """

    stamps: Stamps
    ends: Int64s
    orders: Orders | None = None
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
        """The sequence's first part."""
        ends = self.ends
        if (ends == ends[0]).all():
            return previous_part(int(ends[0]))
        texts = kernels.join([b'\\"', integer_text(ends), b'\\"'])
        return kernels.replace_where(texts, ends < 0, b"null") if (ends < 0).any() else texts

    def numbers(self, kind: RecordKind) -> tuple[Fragment, Fragment] | None:
        """Give the events' numbers in the transaction, and among their table's there."""
        if self.orders is None:
            return None
        more = int(kind is RecordKind.SECOND_OF_TWO)
        return _digits(self.orders.total + more), _digits(self.orders.table + more)


class Slot(bytes):
    """The name of what differs among rows, where it goes in a template."""


class Slots:
    """Where changes stand, as slots: `Places` for a template. `numbered` if their orders are told."""

    lsn = Slot(b"lsn")
    millis = Slot(b"millis")
    micros = Slot(b"micros")
    xid = Slot(b"xid")
    xid_or_null = Slot(b"xid_or_null")
    previous = Slot(b"previous")
    snapshot = b"false"

    def __init__(self, *, numbered: bool) -> None:
        self._numbered = numbered

    def numbers(self, _kind: RecordKind) -> tuple[Fragment, Fragment] | None:
        return (Slot(b"total"), Slot(b"of_table")) if self._numbered else None


class Template(NamedTuple):
    """A line, in the form that `%` takes, and the slots in it in their order."""

    form: bytes
    slots: tuple[bytes, ...]

    @classmethod
    def of(cls, parts: Sequence[Fragment]) -> Self:
        """Put constants and slots together."""
        texts = cast("Sequence[bytes]", parts)
        forms = [b"%b" if isinstance(text, Slot) else text.replace(b"%", b"%%") for text in texts]
        return cls(b"".join(forms), tuple(text for text in texts if isinstance(text, Slot)))

    def lines(self, texts: Mapping[bytes, Iterable[bytes]], rows: int) -> list[bytes]:
        """Fill in each slot's texts, of which there is one a row, or more than that."""
        columns = [texts[slot] for slot in self.slots]
        return (
            [self.form % row for row in zip(*columns, strict=False)] if columns else [self.form % ()] * rows
        )


class Record:
    """The records of one batch's rows."""

    def __init__(
        self,
        context: Context,
        table: EventTable,
        names: tuple[str, str],
        places: Places | Slots,
        handled: bytes,
    ) -> None:
        """`names` are schema and table; `handled` is what the function of that name gives."""
        self._context = context
        self._table = table
        self._source = source_parts(context, names, places)
        self._places = places
        self._handled = handled

    def parts(
        self,
        operation: str,
        key: Sequence[Fragment],
        *,
        before: Sequence[Fragment] = NONE,
        after: Sequence[Fragment] = NONE,
        headers: Sequence[Fragment] = (),
        kind: RecordKind = RecordKind.ONE,
    ) -> Sequence[Fragment]:
        """Give what, joined row by row, is a record's line."""
        table, transaction = self._table, _transaction(self._places, kind)
        end = _envelope_end(self._context, operation, transaction, self._handled)
        value = [table.value_head, b'{"before":', *before, b',"after":', *after, b',"source":', *self._source]
        value += [b",", *end, b"}", table.value_tail]
        return self._line(key, value, headers)

    def tombstone(self, key: Sequence[Fragment], *, headers: Sequence[Fragment] = ()) -> Sequence[Fragment]:
        """Give the parts of a record without a value; none where only values are written."""
        return () if self._context.values_only else self._line(key, NONE, headers)

    def header(self, name: str, key: Sequence[Fragment]) -> Sequence[Fragment]:
        """Give a header that holds another record's key."""
        return (token(name) + b":", *key, b",")

    def _line(
        self, key: Sequence[Fragment], value: Sequence[Fragment], headers: Sequence[Fragment]
    ) -> Sequence[Fragment]:
        told = self._context.headers(headers)
        return record_line(self._context, self._table.topic, key, value, told)


def record_line(
    context: Context,
    topic: bytes,
    key: Sequence[Fragment],
    value: Sequence[Fragment],
    headers: Sequence[Fragment] = (b"{}",),
) -> Sequence[Fragment]:
    """Give the parts of one line; only those of rows have headers."""
    if context.values_only:
        return (*value, b"\n")
    begin = b'{"topic":' + topic + b',"key":'
    return (begin, *key, b',"value":', *value, b',"headers":', *headers, b"}\n")


def handled(context: Context, now: int) -> bytes:
    """Say when a change was handled, in nanoseconds since 1970."""
    millis = b'"ts_ms":%d' % (now // 1_000_000)
    return millis + b',"ts_us":%d,"ts_ns":%d' % (now // 1000, now) if context.newer else millis


def _envelope_end(
    context: Context, operation: str, transaction: Sequence[Fragment], handled: bytes
) -> Sequence[Fragment]:
    """Give the members of a row's value behind `source`."""
    op = b'"op":"%s",' % operation.encode()
    if context.newer:
        return (b'"transaction":', *transaction, b"," + op, handled)
    return (op, handled, b',"transaction":', *transaction)


def _transaction(places: Places | Slots, kind: RecordKind) -> Sequence[Fragment]:
    """Give the transaction block."""
    numbers = places.numbers(kind)
    if numbers is None:
        return NONE
    total, of_table = numbers
    identity = (b'{"id":"', places.xid, b":", places.lsn)
    return (*identity, b'","total_order":', total, b',"data_collection_order":', of_table, b"}")


def source_parts(context: Context, names: tuple[str, str], places: Places | Slots) -> Sequence[Fragment]:
    """Give the source block of n changes."""
    lsn, snapshot, database = places.lsn, places.snapshot, _name(context.database)
    parts: list[Fragment] = [*context.source(), places.millis, b',"snapshot":']
    # "false" is the field's default: the connector leaves it null.
    replaced = context.config.value_converter_replace_null_with_default
    plain = snapshot == b"false" and not replaced
    parts += [b"null"] if plain else [b'"', snapshot, b'"']
    parts += [b',"db":' + database]
    parts += [b',"sequence":"[', places.previous, b',\\"', lsn, b'\\"]"']
    if context.newer:
        micros = places.micros
        parts += [b',"ts_us":', micros, b',"ts_ns":', micros, b"000"]
    schema, table = map(_name, names)
    parts += [
        b',"schema":%s,"table":%s,"txId":' % (schema, table),
        places.xid_or_null,
        b',"lsn":',
        lsn,
        b',"xmin":null}',
    ]
    return parts


def _digits(values: Int64s, *, zero: bytes = b"0") -> Fragment:
    """Write decimal numbers: once where all rows share one."""
    if (values == values[0]).all():
        return b"%d" % values[0] if values[0] else zero
    texts = integer_text(values)
    return texts if zero == b"0" else kernels.replace_where(texts, values == 0, zero)


def previous_part(end: int) -> bytes:
    """Build the first part of `sequence`: the previous commit's end LSN in quotes, null where that is -1."""
    return b"null" if end < 0 else b'\\"%d\\"' % end


def lines_of(parts: Sequence[Fragment], rows: int) -> Lines:
    """Put lines together, row by row."""
    if all(isinstance(part, bytes) for part in parts):
        return [b"".join(cast("Sequence[bytes]", parts))] * rows
    return kernels.as_binary(joined(parts))


NO_COMMIT = -1
_COLUMNS = ("index", "lsn", "commit_lsn", "commit_ts", "xid", "seq")


@dataclass(frozen=True, slots=True)
class Progress:
    """What is known at the end of a slice.

    `last_commit` is the end LSN of the last commit (or -1), `last_time` the last transaction's commit time in
    microseconds; `events` are the open transaction's so far, by table.
    """

    last_commit: int = NO_COMMIT
    last_time: int | None = None
    events: dict[str, int] = field(default_factory=dict)


class Timeline:
    """The order of commits in one slice, and of events in its transactions."""

    def __init__(self, part: Slice, before: Progress) -> None:
        self.marks = _marks(part)
        stamps, commit = self.marks.stamps, self.marks.kinds == "C"
        self._commits, ends = _with_messages(stamps.index[commit], stamps.lsn[commit], part)
        self._ends = np.concatenate([[before.last_commit], ends])
        self._before = before
        last_time = int(stamps.commit_ts[-1]) if len(stamps) else before.last_time
        self.after = Progress(int(self._ends[-1]), last_time, before.events)

    def count(self, changes: Sequence[Changes]) -> tuple[list[Orders], Sums]:
        """Number the events of changes in their transactions, for each in turn, and sum them up."""
        orders, sums = count(changes, self.marks.stamps.index, self._before.events)
        self.after = replace(self.after, events=sums.of(len(self.marks)))
        return orders, sums

    def places(self, stamps: Stamps, orders: Orders | None, snapshot: kernels.Fragment) -> Places:
        """Say where rows stand."""
        ends = self._ends[np.searchsorted(self._commits, stamps.index, side="left")]
        return Places(stamps, ends, orders, snapshot)

    def place(self, stamp: Stamp, orders: Orders | None = None) -> Places:
        """Say where a message or truncate stands; a message outside of transactions is a commit itself."""
        stamps = one(stamp, self._time_before(stamp))
        ends = self._ends[np.searchsorted(self._commits, stamps.index, side="right")]
        return Places(stamps, ends, orders)

    def _time_before(self, stamp: Stamp) -> int:
        stamps = self.marks.stamps
        marks_before = int(np.searchsorted(stamps.index, stamp.index))
        return int(stamps.commit_ts[marks_before - 1]) if marks_before else self._before.last_time or 0


def _with_messages(commits: Int64s, ends: Int64s, part: Slice) -> tuple[Int64s, Int64s]:
    """Add the messages outside of transactions, which are commits themselves, to those of a slice."""
    stamps = [message.stamp for message in part.messages if not message.transactional]
    if not stamps:
        return commits, ends
    lone = Stamps.of(stamps)
    index = np.append(commits, lone.index)
    order = np.argsort(index)
    return index[order], np.append(ends, lone.lsn)[order]


def _marks(part: Slice) -> Boundaries:
    """Put a slice's marks together; which servers they came from is not told."""
    if len(part.boundaries) == 1:
        return part.boundaries[0]
    stamps = [marks.stamps for marks in part.boundaries]

    def column(name: str) -> Int64s:
        return np.concatenate([np.empty(0, np.int64), *(getattr(some, name) for some in stamps)])

    index, lsn, commit_lsn, commit_ts, xid, seq = map(column, _COLUMNS)
    kinds = np.concatenate([np.empty(0, "U1"), *(marks.kinds for marks in part.boundaries)])
    return Boundaries(kinds, Stamps(index, lsn, commit_lsn, commit_ts, xid, seq))


def one(stamp: Stamp, time: int) -> Stamps:
    """Make arrays of one element; `time` stands in for a commit time that isn't there."""
    commit_ts = time if stamp.commit_ts is None else stamp.commit_ts
    values = (stamp.index, stamp.lsn, stamp.commit_lsn, commit_ts, stamp.xid or INVALID_XID, stamp.seq)
    index, lsn, commit_lsn, micros, xid, seq = (np.array([value], np.int64) for value in values)
    return Stamps(index, lsn, commit_lsn, micros, xid, seq)
