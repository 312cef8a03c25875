"""What a record tells of the stream around it: the commit before it, and its number in its transaction."""

from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from typing import NamedTuple

import numpy as np

from pgcdc_cli.formats.debezium.record import Places, RecordKind, previous_part
from pgcdc_cli.formats.stamps import INVALID_XID, integer_text
from pgcdc_cli.pgoutput.changes import Int64s, Slice, Stamp, Stamps, TransactionMark, TruncateChange
from pgcdc_cli.table import TableSchema
from pgcdc_cli.types.kernels import Part

NO_COMMIT = -1
_NO_BLOCK = dict.fromkeys(RecordKind, (b"null",))


@dataclass(frozen=True, slots=True)
class Progress:
    """What is known at the end of a slice.

    `last_commit` is the end LSN of the last commit (or -1), `last_time` the last transaction's commit time in
    microseconds; `events` are the open transaction's so far, by table.
    """

    last_commit: int = NO_COMMIT
    last_time: int | None = None
    events: dict[str, int] = field(default_factory=dict)


class Orders(NamedTuple):
    """A change's first event, counted from 1: in its transaction, and among its table's there."""

    total: Int64s
    table: Int64s


@dataclass(frozen=True, slots=True, eq=False)
class Changes:
    """n changes of one table in a slice, or its truncate; `counts` says how many events each is."""

    index: Int64s
    table: TableSchema
    counts: Int64s
    truncates: bool = False


class Timeline:
    """The order of commits and events in one slice."""

    def __init__(self, part: Slice, before: Progress) -> None:
        self._before = before
        commits = [(mark.stamp.index, int(mark.stamp.lsn)) for mark in part.marks if mark.kind == "C"]
        commits += [(m.stamp.index, int(m.stamp.lsn)) for m in part.messages if not m.transactional]
        commits.sort()
        self._commits = np.array([index for index, _ in commits], np.int64)
        self._ends = np.array([before.last_commit, *(end for _, end in commits)], np.int64)
        self._marks = part.marks
        self._orders: dict[int, Orders] = {}
        self._truncates: dict[tuple[int, str], Orders] = {}
        self.finished: list[tuple[TransactionMark, dict[str, int]]] = []
        last_time = part.marks[-1].stamp.commit_ts if part.marks else before.last_time
        self.after = Progress(int(self._ends[-1]), last_time, before.events)

    def count(self, changes: Iterable[Changes]) -> None:
        """Number the events of each transaction, for `transactions` and the rows' transaction blocks."""
        parts = list(changes)
        events = dict(self._before.events)
        walk = sorted(
            [(int(i), number, row) for number, part in enumerate(parts) for row, i in enumerate(part.index)]
            + [(mark.stamp.index, -1, number) for number, mark in enumerate(self._marks)]
        )
        orders = [(np.zeros(len(p.index), np.int64), np.zeros(len(p.index), np.int64)) for p in parts]
        for _, number, row in walk:
            if number < 0:
                mark = self._marks[row]
                self.finished.append((mark, events))
                events = {}
                continue
            name, count = parts[number].table.display, int(parts[number].counts[row])
            orders[number][0][row] = sum(events.values()) + 1
            orders[number][1][row] = events.get(name, 0) + 1
            if count:
                events[name] = events.get(name, 0) + count
        for part, order in zip(parts, orders, strict=True):
            self._orders[id(part.index)] = Orders(*order)
            if part.truncates:
                self._truncates[int(part.index[0]), part.table.display] = Orders(*order)
        self.after = Progress(self.after.last_commit, self.after.last_time, events)

    def places(self, stamps: Stamps, *, snapshot: Part = b"false") -> Places:
        """Say where rows stand."""
        ends = self._ends[np.searchsorted(self._commits, stamps.index, side="left")]
        orders = self._orders.get(id(stamps.index))
        block = _NO_BLOCK if orders is None else _blocks(stamps, orders)
        return Places(stamps, previous_part(ends), block, snapshot)

    def truncate(self, change: TruncateChange) -> Places:
        """Say where a truncate stands."""
        places = self.place(change.stamp)
        orders = self._truncates.get((change.stamp.index, change.table.display))
        return places if orders is None else replace(places, transaction=_blocks(places.stamps, orders))

    def place(self, stamp: Stamp) -> Places:
        """Say where a message or truncate stands; a message outside of transactions is a commit itself."""
        stamps = one(stamp, self._time_before(stamp))
        end = self._ends[np.searchsorted(self._commits, stamps.index, side="right")]
        return Places(stamps, previous_part(end), _NO_BLOCK)

    def _time_before(self, stamp: Stamp) -> int:
        times = [m.stamp.commit_ts for m in self._marks if m.stamp.index < stamp.index]
        return (times[-1] if times else self._before.last_time) or 0


def one(stamp: Stamp, time: int) -> Stamps:
    """Make arrays of one element; `time` stands in for a commit time that isn't there."""
    commit_ts = time if stamp.commit_ts is None else stamp.commit_ts
    values = (stamp.index, stamp.lsn, stamp.commit_lsn, commit_ts, stamp.xid or INVALID_XID, stamp.seq)
    index, lsn, commit_lsn, micros, xid, seq = (np.array([value], np.int64) for value in values)
    return Stamps(index, lsn, commit_lsn, micros, xid, seq)


def _blocks(stamps: Stamps, orders: Orders) -> dict[RecordKind, tuple[Part, ...]]:
    ids: tuple[Part, ...] = (b'{"id":"', integer_text(stamps.xid), b":", integer_text(stamps.lsn))
    first = _block(ids, orders, 0)
    return {
        RecordKind.ONE: first,
        RecordKind.FIRST_OF_TWO: first,
        RecordKind.SECOND_OF_TWO: _block(ids, orders, 1),
    }


def _block(ids: tuple[Part, ...], orders: Orders, more: int) -> tuple[Part, ...]:
    total, table = integer_text(orders.total + more), integer_text(orders.table + more)
    return (*ids, b'","total_order":', total, b',"data_collection_order":', table, b"}")
