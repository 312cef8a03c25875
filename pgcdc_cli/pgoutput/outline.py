"""Where transactions begin and end in a batch, and whether every message may stand where it does.

All of it is computed for all messages at once. Transaction t of a batch is the one after its t-th Begin;
number 0 is the one that was open before the batch, if any.
"""

from typing import NamedTuple

import numpy as np

from pgcdc_cli.errors import UndecodableError
from pgcdc_cli.lsn import Lsn
from pgcdc_cli.pgoutput.changes import Int64s, Mask
from pgcdc_cli.pgoutput.decode import LATEST_WIRE_TIME, POSTGRES_EPOCH
from pgcdc_cli.pgoutput.messages import Commit, Origin, Tag
from pgcdc_cli.pgoutput.wire import Wire

_BEGIN_SIZE = 21
_COMMIT_SIZE = 26
_SMALLEST_MESSAGE = 15
_INSIDE, _OUTSIDE = 1, 2

_PLACE = np.zeros(256, np.int8)
"""By tag: may it stand inside of a transaction, outside, both or (0) neither."""
_PLACE[[Tag.COMMIT, Tag.INSERT, Tag.UPDATE, Tag.DELETE, Tag.TRUNCATE, Tag.MESSAGE]] = _INSIDE
_PLACE[Tag.BEGIN] = _OUTSIDE
_PLACE[[Tag.RELATION, Tag.TYPE, Tag.ORIGIN]] = _INSIDE | _OUTSIDE


class OpenTransaction(NamedTuple):
    """A transaction whose Commit has not come yet; `seq` is its next change's."""

    commit_lsn: int
    commit_ts: int
    xid: int
    seq: int
    origin: Origin | None = None


class Limits(NamedTuple):
    """What of the stream is wanted; `transactions` is how many more."""

    skip_before: Lsn
    until: Lsn | None
    transactions: int | None


class _Begins:
    """All Begin messages of a batch."""

    def __init__(self, wire: Wire, tags: Int64s) -> None:
        self.at = np.flatnonzero(tags == Tag.BEGIN)
        self.final_lsn = wire.field(self.at, 1)
        self.time = wire.field(self.at, 9)
        self.xid = wire.field(self.at, 17) >> 32 & 0xFFFFFFFF
        self.good = (wire.sizes(self.at) == _BEGIN_SIZE) & (self.final_lsn >= 0)
        self.good &= self.time <= LATEST_WIRE_TIME


class _Commits:
    """All Commit messages of a batch."""

    def __init__(self, wire: Wire, tags: Int64s) -> None:
        self.at = np.flatnonzero(tags == Tag.COMMIT)
        self.commit_lsn = wire.field(self.at, 2)
        self.end_lsn = wire.field(self.at, 10)
        self.good = (wire.sizes(self.at) == _COMMIT_SIZE) & (self.end_lsn >= 0)
        self.good &= (wire.head[self.at] >> 48 & 0xFF == 0) & (wire.field(self.at, 18) <= LATEST_WIRE_TIME)


class _Lone:
    """All non-transactional logical messages of a batch: each a transaction of its own."""

    def __init__(self, wire: Wire, tags: Int64s) -> None:
        self.at = np.flatnonzero((tags == Tag.MESSAGE) & (wire.head >> 48 & 1 == 0))
        self.lsn = wire.field(self.at, 2)
        self.good = (wire.sizes(self.at) >= _SMALLEST_MESSAGE) & (self.lsn >= 0)


class Outline:
    """The messages of a batch up to `stop`, the end of what is wanted; what follows it is not looked at.

    The other arrays have one element a message of the whole batch. `transaction` is the number of its
    transaction, and `commit_lsn`, `commit_ts` and `xid` are that one's (for a non-transactional message its
    own LSN, 0 and 0; outside of transactions they mean nothing). `kept` is false in transactions that are
    skipped. `begins` are the Begin messages, `edges` those that end a kept transaction.
    """

    def __init__(self, wire: Wire, before: OpenTransaction | None, limits: Limits) -> None:
        """Raise UndecodableError for a message before `stop` that is malformed or out of place."""
        self.tags = wire.tags
        self._begins, self._commits = _Begins(wire, self.tags), _Commits(wire, self.tags)
        self._lone = _Lone(wire, self.tags)
        self._place(before)
        self._good = self._find_good()
        self.kept = self._find_kept(limits.skip_before)
        edges = self._find_edges()
        stops = self._find_stops(limits, edges)
        self.ended = len(stops) > 0
        self.stop = int(stops.min()) if self.ended else len(wire)
        self.edges = edges[edges < self.stop]
        bad = np.flatnonzero(~self._good[: self.stop])
        if len(bad):
            raise _misplaced(wire, int(bad[0]), inside=bool(self._inside[bad[0]]))

    @property
    def begins(self) -> Int64s:
        return self._begins.at

    def open_at_stop(self) -> bool:
        """Whether a transaction is open behind the last message that is wanted."""
        return bool(self._inside[self.stop])

    def end_lsn(self, number: int) -> int:
        """Where the transaction ends that this message (one of `edges`) ends."""
        if self.tags[number] == Tag.COMMIT:
            return int(self.ends_of_commits(np.array([number]))[0])
        return int(self.commit_lsn[number])

    def ends_of_commits(self, numbers: Int64s) -> Int64s:
        """Where the transactions end that these Commit messages end."""
        ends: Int64s = self._commits.end_lsn[np.searchsorted(self._commits.at, numbers)]
        return ends

    def _place(self, before: OpenTransaction | None) -> None:
        """Say for each message which transaction it belongs to."""
        first = before or OpenTransaction(0, 0, 0, 0)
        begin, commit = self.tags == Tag.BEGIN, self.tags == Tag.COMMIT
        self.transaction = np.cumsum(begin)
        opened = self.transaction - np.cumsum(commit)
        self._inside = np.append(0, opened) + (before is not None) == 1
        self.commit_lsn = np.append(first.commit_lsn, self._begins.final_lsn)[self.transaction]
        self.commit_ts = np.append(first.commit_ts, self._begins.time + POSTGRES_EPOCH)[self.transaction]
        self.xid = np.append(first.xid, self._begins.xid)[self.transaction]
        lone = self._lone
        self.commit_lsn[lone.at], self.commit_ts[lone.at], self.xid[lone.at] = lone.lsn, 0, 0

    def _find_good(self) -> Mask:
        """Tell the messages that are well formed and in place; right up to the first that is not."""
        begins, commits, lone = self._begins, self._commits, self._lone
        place = _PLACE[self.tags]
        place[lone.at] = _OUTSIDE
        good: Mask = place & np.where(self._inside[:-1], _INSIDE, _OUTSIDE) != 0
        good[begins.at] &= begins.good
        good[commits.at] &= commits.good & (commits.commit_lsn == self.commit_lsn[commits.at])
        good[lone.at] &= lone.good
        return good

    def _find_kept(self, skip_before: Lsn) -> Mask:
        kept: Mask = self.commit_lsn >= skip_before
        kept[self._lone.at] = self._lone.lsn > skip_before
        return kept

    def _find_edges(self) -> Int64s:
        edges = np.sort(np.append(self._commits.at, self._lone.at))
        return edges[self._good[edges] & self.kept[edges]]

    def _find_stops(self, limits: Limits, edges: Int64s) -> Int64s:
        """Find the places at any of which to stop."""
        stops = np.empty(0, np.int64)
        if limits.until is not None:
            stops = self._reaching(limits.until)
        if limits.transactions is not None:
            stops = np.append(stops, edges[limits.transactions - 1 :][:1] + 1)
        return stops

    def _reaching(self, until: Lsn) -> Int64s:
        """Stop before each transaction that ends beyond `until`, and behind each that reaches it."""
        begins, commits, lone = self._begins, self._commits, self._lone
        before = np.append(begins.at[begins.final_lsn >= until], lone.at[lone.lsn > until])
        behind = np.append(commits.at[commits.end_lsn >= until], lone.at[lone.lsn == until])
        return np.append(before[self._good[before]], behind[self._good[behind]] + 1)


def _misplaced(wire: Wire, number: int, *, inside: bool) -> UndecodableError:
    message = wire.decode(number)
    tag = Tag(wire.message(number)[0])
    if not _PLACE[tag]:
        reason = "it belongs to a streamed or prepared transaction"
    elif isinstance(message, Commit) and inside:
        reason = f"its commit LSN {message.commit_lsn} is not the final LSN of the transaction's Begin"
    elif inside:
        reason = "it is inside of another transaction"
    else:
        reason = "it is outside of any transaction"
    return wire.error(number, f"could not assemble {tag.title} message: {reason}")
