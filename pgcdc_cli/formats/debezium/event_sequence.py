"""What a record says of the stream before it: the commit, and the events of its transaction so far."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

import numpy as np

from pgcdc_cli.changes.slice import Boundaries, Slice, Stamp, Stamps
from pgcdc_cli.formats.debezium.record import EventOrders, Positions
from pgcdc_cli.types.kernels import Fragment, Int64s

_NO_COMMIT = -1
MESSAGE_COLLECTION = (
    "io.debezium.connector.postgresql.LogicalDecodingMessageMonitor$LogicalDecodingMessageId@0"
)
"""What 3.4 calls the collection of a logical decoding message, each of which is another by its address."""
_STAMPS = ("index", "lsn", "commit_lsn", "commit_ts", "xid", "seq")


@dataclass(frozen=True, slots=True, eq=False)
class EventCounts:
    """n changes of one table, by its name: where they stand in the stream, and how many events each is."""

    table: str
    index: Int64s
    counts: Int64s


@dataclass(frozen=True, slots=True, eq=False)
class TransactionCounts:
    """How many events of which table each transaction has, in the order of the tables' first events there.

    The arrays have an element for each transaction and table with an event: the transaction's number (a
    transaction is what stands between one begin or end and the next), the table's in `names`, the events.
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


@dataclass(frozen=True, slots=True)
class EventSequenceState:
    """What is known at the end of a slice.

    `last_commit` is the end LSN of the last commit (or -1), `last_time` the last transaction's commit time in
    microseconds; `events` are the open transaction's so far, by table.
    """

    last_commit: int = _NO_COMMIT
    last_time: int | None = None
    events: dict[str, int] = field(default_factory=dict)


class EventSequence:
    """The order of commits in one slice, and of events in its transactions."""

    def __init__(self, slice_: Slice, before: EventSequenceState) -> None:
        self.boundaries = _boundaries(slice_)
        stamps, commit = self.boundaries.stamps, self.boundaries.kinds == "C"
        self._commits, ends = _with_messages(stamps.index[commit], stamps.lsn[commit], slice_)
        self._ends = np.concatenate([[before.last_commit], ends])
        self._before = before
        last_time = int(stamps.commit_ts[-1]) if len(stamps) else before.last_time
        self.after = EventSequenceState(int(self._ends[-1]), last_time, before.events)

    def count(self, changes: Sequence[EventCounts]) -> tuple[list[EventOrders], TransactionCounts]:
        """Number the events of changes in their transactions, for each in turn, and sum them up."""
        orders, counts = _number(changes, self.boundaries.stamps.index, self._before.events)
        self.after = replace(self.after, events=counts.of(len(self.boundaries)))
        return orders, counts

    def positions(self, stamps: Stamps, orders: EventOrders | None, snapshot: Fragment) -> Positions:
        """Say where rows stand."""
        ends = self._ends[np.searchsorted(self._commits, stamps.index, side="left")]
        return Positions(stamps, ends, orders, snapshot)

    def position(self, stamp: Stamp, orders: EventOrders | None = None) -> Positions:
        """Say where a message or truncate stands; a message outside of transactions is a commit itself."""
        if stamp.commit_ts is None:
            stamp = replace(stamp, commit_ts=self._time_before(stamp))
        stamps = Stamps.of([stamp])
        ends = self._ends[np.searchsorted(self._commits, stamps.index, side="right")]
        return Positions(stamps, ends, orders)

    def _time_before(self, stamp: Stamp) -> int:
        stamps = self.boundaries.stamps
        before = int(np.searchsorted(stamps.index, stamp.index))
        return int(stamps.commit_ts[before - 1]) if before else self._before.last_time or 0


def _with_messages(commits: Int64s, ends: Int64s, slice_: Slice) -> tuple[Int64s, Int64s]:
    """Add the messages outside of transactions, which are commits themselves, to those of a slice."""
    stamps = [message.stamp for message in slice_.messages if not message.transactional]
    if not stamps:
        return commits, ends
    lone = Stamps.of(stamps)
    index = np.append(commits, lone.index)
    order = np.argsort(index)
    return index[order], np.append(ends, lone.lsn)[order]


def _boundaries(slice_: Slice) -> Boundaries:
    """Put a slice's begins and commits together; which servers they came from, events don't say."""
    if len(slice_.boundaries) == 1:
        return slice_.boundaries[0]
    stamps = [some.stamps for some in slice_.boundaries]

    def column(name: str) -> Int64s:
        return np.concatenate([np.empty(0, np.int64), *(getattr(one, name) for one in stamps)])

    index, lsn, commit_lsn, commit_ts, xid, seq = map(column, _STAMPS)
    kinds = np.concatenate([np.empty(0, "U1"), *(some.kinds for some in slice_.boundaries)])
    return Boundaries(kinds, Stamps(index, lsn, commit_lsn, commit_ts, xid, seq))


def _number(
    changes: Sequence[EventCounts], boundaries: Int64s, before: Mapping[str, int]
) -> tuple[list[EventOrders], TransactionCounts]:
    """Number the events of changes, for each in turn, and sum them up.

    `boundaries` are where transactions begin and end, ascending, and `before` are the events by table that
    the first one had before the slice.
    """
    counted = [_before(table, events) for table, events in before.items()] + list(changes)
    names = list(dict.fromkeys(one.table for one in counted))
    sizes = [len(one.index) for one in counted]
    tables = np.repeat(np.array([names.index(one.table) for one in counted], np.int64), sizes)
    index, counts = _joined([one.index for one in counted]), _joined([one.counts for one in counted])
    order = np.argsort(index, kind="stable")
    transaction = np.searchsorted(boundaries, index[order])
    group = transaction * len(names) + tables[order]
    by_group = np.argsort(group, kind="stable")
    grouped = order[by_group]
    total, of_table = np.empty_like(counts), np.empty_like(counts)
    total[order] = _numbers(counts[order], transaction)
    of_table[grouped] = _numbers(counts[grouped], group[by_group])
    cuts = np.cumsum(sizes)
    orders = list(map(EventOrders, np.split(total, cuts), np.split(of_table, cuts)))
    return orders[len(before) : -1], _sums(names, group[by_group], counts[grouped], by_group)


def _before(table: str, events: int) -> EventCounts:
    return EventCounts(table, np.array([-1], np.int64), np.array([events], np.int64))


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


def _sums(names: Sequence[str], groups: Int64s, counts: Int64s, index: Int64s) -> TransactionCounts:
    """Sum up the rows of each group, which stand together; `index` is theirs in the stream."""
    some = counts > 0
    groups, counts, index = groups[some], counts[some], index[some]
    first = _firsts(groups)
    order = np.argsort(index[first])
    transaction, table = np.divmod(groups[first][order], len(names) or 1)
    events = np.add.reduceat(counts, first)[order] if len(first) else counts
    return TransactionCounts(names, transaction, table, events)
