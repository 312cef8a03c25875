"""What a record tells of the stream around it: the commit before it, and its number in its transaction."""

from collections.abc import Sequence
from dataclasses import dataclass, field, replace

import numpy as np

from pgcdc_cli.formats.debezium.counting import Changes, Orders, Sums, count
from pgcdc_cli.formats.debezium.record import Places, previous_part
from pgcdc_cli.formats.stamps import INVALID_XID
from pgcdc_cli.pgoutput.changes import Int64s, Marks, Slice, Stamp, Stamps
from pgcdc_cli.types import kernels

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
        lone = Stamps.of([message.stamp for message in part.messages if not message.transactional])
        index = np.append(stamps.index[commit], lone.index)
        order = np.argsort(index)
        self._commits = index[order]
        self._ends = np.append(before.last_commit, np.append(stamps.lsn[commit], lone.lsn)[order])
        self._before = before
        last_time = int(stamps.commit_ts[-1]) if len(stamps) else before.last_time
        self.after = Progress(int(self._ends[-1]), last_time, before.events)

    def count(self, changes: Sequence[Changes]) -> tuple[list[Orders], Sums]:
        """Number the events of changes in their transactions, for each in turn, and sum them up."""
        orders, sums = count(changes, self.marks.stamps.index, self._before.events)
        self.after = replace(self.after, events=sums.of(len(self.marks)))
        return orders, sums

    def places(
        self, stamps: Stamps, orders: Orders | None, *, snapshot: kernels.Part = b"false", few: bool = False
    ) -> Places:
        """Say where rows stand."""
        ends = self._ends[np.searchsorted(self._commits, stamps.index, side="left")]
        return Places(stamps, previous_part(ends, few=few), orders, snapshot, few)

    def place(self, stamp: Stamp, orders: Orders | None = None) -> Places:
        """Say where a message or truncate stands; a message outside of transactions is a commit itself."""
        stamps = one(stamp, self._time_before(stamp))
        end = self._ends[np.searchsorted(self._commits, stamps.index, side="right")]
        return Places(stamps, previous_part(end), orders)

    def _time_before(self, stamp: Stamp) -> int:
        stamps = self.marks.stamps
        marks_before = int(np.searchsorted(stamps.index, stamp.index))
        return int(stamps.commit_ts[marks_before - 1]) if marks_before else self._before.last_time or 0


def _marks(part: Slice) -> Marks:
    """Put a slice's marks together; which servers they came from is not told."""
    stamps = [marks.stamps for marks in part.marks]

    def column(name: str) -> Int64s:
        return np.concatenate([np.empty(0, np.int64), *(getattr(some, name) for some in stamps)])

    index, lsn, commit_lsn, commit_ts, xid, seq = map(column, _COLUMNS)
    kinds = np.concatenate([np.empty(0, "U1"), *(marks.kinds for marks in part.marks)])
    return Marks(kinds, Stamps(index, lsn, commit_lsn, commit_ts, xid, seq))


def one(stamp: Stamp, time: int) -> Stamps:
    """Make arrays of one element; `time` stands in for a commit time that isn't there."""
    commit_ts = time if stamp.commit_ts is None else stamp.commit_ts
    values = (stamp.index, stamp.lsn, stamp.commit_lsn, commit_ts, stamp.xid or INVALID_XID, stamp.seq)
    index, lsn, commit_lsn, micros, xid, seq = (np.array([value], np.int64) for value in values)
    return Stamps(index, lsn, commit_lsn, micros, xid, seq)
