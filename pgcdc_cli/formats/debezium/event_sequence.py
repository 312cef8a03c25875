"""A record's place in the stream: the previous commit, and the events of its transaction so far."""

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
"""3.4's name of a logical decoding message's collection: each message is one, told apart by its address."""
_STAMPS = ("index", "lsn", "commit_lsn", "commit_ts", "xid", "seq")


@dataclass(frozen=True, slots=True, eq=False)
class EventCounts:
    """n changes of one table, given by name: their places in the stream, and how many events each makes."""

    table: str
    index: Int64s
    counts: Int64s


@dataclass(frozen=True, slots=True, eq=False)
class TransactionCounts:
    """Each transaction's number of events per table, ordered by the table's first event in it.

    The arrays have an element for each transaction and table with events: the transaction's number in the
    slice (a begin or an end starts the next one), the table's index in `names`, and the number of events.
    """

    names: Sequence[str]
    transaction: Int64s
    table: Int64s
    events: Int64s

    def of(self, transaction: int) -> dict[str, int]:
        """Return one transaction's numbers of events by table name."""
        chosen = self.transaction == transaction
        tables = [self.names[table] for table in self.table[chosen].tolist()]
        return dict(zip(tables, self.events[chosen].tolist(), strict=True))


@dataclass(frozen=True, slots=True)
class EventSequenceState:
    """The state at the end of a slice.

    `last_commit` is the end LSN of the last commit (-1 for none), `last_time` the last transaction's commit
    time in microseconds; `events` are the open transaction's so far, by table.
    """

    last_commit: int = _NO_COMMIT
    last_time: int | None = None
    events: dict[str, int] = field(default_factory=dict)


class EventSequence:
    """The order of the commits in one slice, and of the events in its transactions."""

    def __init__(self, slice_: Slice, before: EventSequenceState) -> None:
        self.boundaries = _boundaries(slice_)
        stamps, commit = self.boundaries.stamps, self.boundaries.kinds == "C"
        self._commits, ends = _with_messages(stamps.index[commit], stamps.lsn[commit], slice_)
        self._ends = np.concatenate([[before.last_commit], ends])
        self._before = before
        last_time = int(stamps.commit_ts[-1]) if len(stamps) else before.last_time
        self.after = EventSequenceState(int(self._ends[-1]), last_time, before.events)

    def count(self, changes: Sequence[EventCounts]) -> tuple[list[EventOrders], TransactionCounts]:
        """Number each change's events within their transactions, and sum them up by table."""
        orders, counts = _number(changes, self.boundaries.stamps.index, self._before.events)
        self.after = replace(self.after, events=counts.of(len(self.boundaries)))
        return orders, counts

    def positions(self, stamps: Stamps, orders: EventOrders | None, snapshot: Fragment) -> Positions:
        """Determine the positions of rows."""
        ends = self._ends[np.searchsorted(self._commits, stamps.index, side="left")]
        return Positions(stamps, ends, orders, snapshot)

    def position(self, stamp: Stamp, orders: EventOrders | None = None) -> Positions:
        """Determine a message's or truncate's position; a message outside of transactions is a commit."""
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
    """Add to a slice's commits the messages outside of transactions, which count as commits."""
    stamps = [message.stamp for message in slice_.messages if not message.transactional]
    if not stamps:
        return commits, ends
    lone = Stamps.of(stamps)
    index = np.append(commits, lone.index)
    order = np.argsort(index)
    return index[order], np.append(ends, lone.lsn)[order]


def _boundaries(slice_: Slice) -> Boundaries:
    """Concatenate a slice's begins and commits, without their origins, which events don't contain."""
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
    """Number each change's events within their transactions, and sum them up by table.

    `boundaries` are the places of begins and ends, ascending; `before` are the events by table that the
    first transaction had before this slice.
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
    """Number each row's first event within its group; a group's rows must be adjacent."""
    before = np.cumsum(counts) - counts
    first = _firsts(groups)
    numbers: Int64s = before - np.repeat(before[first], np.diff(first, append=len(groups))) + 1
    return numbers


def _firsts(groups: Int64s) -> Int64s:
    return np.flatnonzero(np.diff(groups, prepend=-1))


def _sums(names: Sequence[str], groups: Int64s, counts: Int64s, index: Int64s) -> TransactionCounts:
    """Sum up the counts of each group, whose rows must be adjacent; `index` are their places."""
    some = counts > 0
    groups, counts, index = groups[some], counts[some], index[some]
    first = _firsts(groups)
    order = np.argsort(index[first])
    transaction, table = np.divmod(groups[first][order], len(names) or 1)
    events = np.add.reduceat(counts, first)[order] if len(first) else counts
    return TransactionCounts(names, transaction, table, events)
