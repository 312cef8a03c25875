"""A batch of messages in one buffer, and the transaction of each.

Everything is computed for all messages at once: big-endian integers are gathered from the buffer,
transactions are found, and which of them are wanted. Transaction t of a batch is the one after its t-th
Begin; number 0 is the one that was open before the batch, if any. This module knows protocol 1 only: streamed
and prepared transactions are converted to it when they commit (`transactions.py`).
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import accumulate
from typing import NamedTuple

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from pgcdc_cli.changes.origin import Origin
from pgcdc_cli.changes.spool import SpoolChunk
from pgcdc_cli.errors import UndecodableError
from pgcdc_cli.frames import PADDING, POSTGRES_EPOCH, START_LSN, XLOGDATA_HEADER, Frames, Run
from pgcdc_cli.large_copies import joined
from pgcdc_cli.lsn import Lsn
from pgcdc_cli.pgoutput.decode import BEGIN, COMMIT, LATEST_WIRE_TIME, decode
from pgcdc_cli.pgoutput.messages import Commit, Message, Tag
from pgcdc_cli.types import kernels
from pgcdc_cli.types.database_text import STRICT, DatabaseText
from pgcdc_cli.types.kernels import Booleans, Int64s

LARGEST = 2**31 - 1
"""Bytes in one buffer: Arrow's binary offsets have 32 bits. So has CopyData's length: no frame is larger."""

SMALLEST_BATCH, LARGEST_BATCH = 1 << 13, 1 << 16
"""Messages decoded at once, at most: enough to outweigh the cost of a batch, few enough to stay in cache.

If many tables share a batch, each table in it has a cost, too, and larger batches are better.
"""

MESSAGE_BYTES = 384
"""The average size in bytes up to which a batch is filled; fewer messages are enough if they are larger."""


@dataclass(frozen=True, slots=True, eq=False)
class MessageBuffer:
    """n messages: message i is `data[starts[i]:ends[i]]`.

    `lsn` is its frame's start LSN, `head` its first eight bytes (a short message's include what follows it,
    the last one's zeros). `words[p]` is the big-endian 64-bit integer at byte p. `text` is the encoding of
    names.
    """

    data: bytes
    arrow: pa.Buffer
    words: Int64s
    starts: Int64s
    ends: Int64s
    lsn: Int64s
    head: Int64s
    text: DatabaseText = STRICT

    @classmethod
    def join(cls, frames: Sequence[bytes], text: DatabaseText = STRICT) -> "Iterator[MessageBuffer]":
        """Join frames into as few buffers as `LARGEST` allows.

        Raises UndecodableError for a frame without a message, or an LSN with the sign bit set.
        """
        runs: list[Run] = []
        size = 0
        for run in Frames.of(frames).runs:
            size += run.size
            if runs and size > LARGEST:
                yield cls._join(runs, text)
                runs, size = [], run.size
            runs.append(run)
        if runs:
            yield cls._join(runs, text)

    @classmethod
    def _join(cls, runs: Sequence[Run], text: DatabaseText) -> "MessageBuffer":
        data, starts, ends = _joined(runs)
        _check_sizes(data, starts, ends)
        words = _words(data)
        lsn = _native(words[starts + START_LSN.start])
        _check_lsns(data, starts, ends, lsn)
        starts += XLOGDATA_HEADER
        return cls(data, pa.py_buffer(data), words, starts, ends, lsn, _native(words[starts]), text)

    @classmethod
    def of(cls, chunk: SpoolChunk, text: DatabaseText = STRICT) -> "MessageBuffer":
        """Wrap the messages of a spool, which have no frame headers."""
        data, words = chunk.data, _words(chunk.data)
        ends = chunk.offset + np.cumsum(chunk.sizes)
        starts = ends - chunk.sizes
        return cls(data, pa.py_buffer(data), words, starts, ends, chunk.lsn, _native(words[starts]), text)

    def select(self, which: "slice | Booleans") -> "MessageBuffer":
        """Return a buffer with some of the messages, and the same data."""
        starts, ends, lsn, head = (column[which] for column in (self.starts, self.ends, self.lsn, self.head))
        return replace(self, starts=starts, ends=ends, lsn=lsn, head=head)

    def __len__(self) -> int:
        return len(self.starts)

    @property
    def tags(self) -> Int64s:
        return self.head >> 56 & 0xFF

    @property
    def int32(self) -> Int64s:
        """The 32-bit integer after each tag: a row's relation OID, or the xid within a streamed block."""
        return self.head >> 24 & 0xFFFFFFFF

    def title(self, number: int) -> str:
        """Return the manual's name for a message's kind."""
        return Tag(self.message(number)[0]).title

    def message(self, number: int) -> bytes:
        return self.data[int(self.starts[number]) : int(self.ends[number])]

    def decode(self, number: int, *, in_stream: bool = False, streaming_parallel: bool = False) -> Message:
        """Decode one message as the function `decode` does; an error names its LSN."""
        try:
            return decode(
                self.message(number),
                in_stream=in_stream,
                streaming_parallel=streaming_parallel,
                text=self.text,
            )
        except UndecodableError as error:
            raise self.error(number, error.message, error.remedy) from None

    def sizes(self, numbers: Int64s) -> Int64s:
        return self.ends[numbers] - self.starts[numbers]

    def field(self, numbers: Int64s, offset: int) -> Int64s:
        """Gather the 64-bit integer at `offset` of each message; meaningless if the message is shorter."""
        return self.int64(np.minimum(self.starts[numbers] + offset, len(self.words) - 1))

    def int64(self, positions: Int64s) -> Int64s:
        return _native(self.words[positions])

    def pack(self, starts: Int64s, ends: Int64s) -> pa.BinaryArray:
        """Copy n values out of the buffer into an array."""
        return kernels.pack(self.arrow, starts, ends)

    def error(self, number: int, message: str, remedy: str | None = None) -> UndecodableError:
        """Make an error about one message that names its LSN."""
        # Relation and Type messages have LSN 0, and precede the change that has one.
        later = self.lsn[number:]
        lsn = int(later[np.argmax(later > 0)])
        return UndecodableError(f"{message} (LSN {Lsn(lsn)})", self.message(number), remedy=remedy)


def _words(data: bytes) -> Int64s:
    return kernels.at_each_byte(data, "i8")


def tag_mask(*tags: Tag) -> NDArray[np.bool_]:
    """Make an array of 256 flags: which bytes are one of these tags."""
    found = np.zeros(256, np.bool_)
    found[list(tags)] = True
    return found


IS_ROW = tag_mask(Tag.INSERT, Tag.UPDATE, Tag.DELETE)


def _native(values: NDArray[np.int64]) -> Int64s:
    """Convert to this machine's byte order."""
    return values.astype(np.int64)


def _joined(runs: Sequence[Run]) -> tuple[bytes, Int64s, Int64s]:
    """Return the data of all runs, and where each frame begins and ends in it."""
    if len(runs) == 1:
        return runs[0].data, *_bounds(runs[0], 0)
    places = list(accumulate((run.size for run in runs), initial=0))
    bounds = [_bounds(run, place - run.starts[0]) for run, place in zip(runs, places, strict=False)]
    starts, ends = map(np.concatenate, zip(*bounds, strict=True))
    parts = [memoryview(run.data)[run.starts[0] : run.end] for run in runs]
    return joined([*parts, PADDING]), starts, ends


def _bounds(run: Run, shift: int) -> tuple[Int64s, Int64s]:
    starts = np.array(run.starts, np.int64) + shift
    return starts, np.append(starts[1:] - run.gap, run.end + shift)


def _check_sizes(data: bytes, starts: Int64s, ends: Int64s) -> None:
    for number in np.flatnonzero(ends - starts <= XLOGDATA_HEADER)[:1].tolist():
        short = data[starts[number] : ends[number]]
        wanted = XLOGDATA_HEADER + 1
        raise UndecodableError(
            f"could not decode XLogData frame: it wants {wanted} bytes or more, has {len(short)}", short
        )


def _check_lsns(data: bytes, starts: Int64s, ends: Int64s, lsn: Int64s) -> None:
    for number in np.flatnonzero(lsn < 0)[:1].tolist():
        position = Lsn(int(lsn[number]) + 2**64)
        raise UndecodableError(
            f"could not decode XLogData frame: start LSN at byte 1 is {position}, with the sign bit set",
            data[starts[number] : ends[number]],
        )


_SMALLEST_MESSAGE = 15
_INSIDE, _OUTSIDE = 1, 2

_ALLOWED = np.zeros(256, np.int8)
"""By tag: whether it may be inside of a transaction, outside, both or (0) neither."""
_ALLOWED[[Tag.COMMIT, Tag.INSERT, Tag.UPDATE, Tag.DELETE, Tag.TRUNCATE, Tag.MESSAGE]] = _INSIDE
_ALLOWED[Tag.BEGIN] = _OUTSIDE
_ALLOWED[[Tag.RELATION, Tag.TYPE, Tag.ORIGIN]] = _INSIDE | _OUTSIDE


class OpenTransaction(NamedTuple):
    """A transaction whose Commit has not come yet; `seq` is that of its next change."""

    commit_lsn: int
    commit_ts: int
    xid: int
    seq: int
    origin: Origin | None = None


class DecodeLimits(NamedTuple):
    """The part of the stream that is wanted; `transactions` is the number of transactions to go, 1 or more.

    Transactions with a commit LSN below `skip_before`, and non-transactional messages up to and including it,
    are dropped whole. A transaction is wanted if its final LSN is below `until`, a non-transactional message
    if its LSN is not beyond it.
    """

    skip_before: Lsn
    until: Lsn | None = None
    transactions: int | None = None

    def less(self, transactions: int) -> "DecodeLimits":
        """Subtract transactions that have ended."""
        if self.transactions is None:
            return self
        return self._replace(transactions=self.transactions - transactions)


class State(NamedTuple):
    """The state between two batches; `ended`: a limit is reached, and nothing more is wanted."""

    limits: DecodeLimits
    open: OpenTransaction | None = None
    ended: bool = False


class _Begins(NamedTuple):
    """All Begin messages of a batch: their message numbers, their fields, and which are well formed."""

    at: Int64s
    final_lsn: Int64s
    time: Int64s
    xid: Int64s
    valid: Booleans


class _Commits(NamedTuple):
    """All Commit messages of a batch."""

    at: Int64s
    commit_lsn: Int64s
    end_lsn: Int64s
    valid: Booleans


class _Nontransactional(NamedTuple):
    """All non-transactional logical decoding messages of a batch; each counts as a transaction."""

    at: Int64s
    lsn: Int64s
    valid: Booleans


class _BoundaryMessages(NamedTuple):
    """Every message that begins or ends a transaction."""

    begins: _Begins
    commits: _Commits
    nontransactional: _Nontransactional


class _Membership(NamedTuple):
    """Each message's transaction, as in `BatchTransactions`.

    `inside[i]` says whether a transaction is open before message i; the last of its n + 1 elements, whether
    one is open after the batch.
    """

    inside: Booleans
    number: Int64s
    commit_lsn: Int64s
    commit_ts: Int64s
    xid: Int64s


@dataclass(frozen=True, slots=True, eq=False)
class BatchTransactions:
    """The messages of a batch up to the end of what is wanted; the rest is ignored.

    The first six arrays have one element per message. `number` is the number of its transaction, and
    `commit_lsn`, `commit_ts` and `xid` are that transaction's (for a non-transactional message its own LSN, 0
    and 0; outside of transactions they are meaningless). `wanted` is false in transactions that are skipped.
    `begins` are the message numbers of Begins, `ends` those of the messages that end a wanted transaction.
    `open`: a transaction is open after the last message.
    """

    tags: Int64s
    number: Int64s
    commit_lsn: Int64s
    commit_ts: Int64s
    xid: Int64s
    wanted: Booleans
    begins: Int64s
    ends: Int64s
    commits: _Commits
    open: bool
    ended: bool

    def __len__(self) -> int:
        return len(self.tags)

    def end_lsn(self, ends: Int64s) -> Int64s:
        """Return the end LSNs of the transactions that these messages end."""
        found = self.commit_lsn[ends]
        is_commit = self.tags[ends] == Tag.COMMIT
        found[is_commit] = self.commits.end_lsn[np.searchsorted(self.commits.at, ends[is_commit])]
        return found

    def next_state(self, before: State, next_seq: int, origins: Mapping[int, Origin]) -> State:
        """Return the state after the batch.

        `next_seq` belongs to the next change of the transaction that is open then; `origins` are by
        transaction number.
        """
        limits = before.limits.less(len(self.ends))
        return State(limits, self._left_open(next_seq, origins), self.ended)

    def _left_open(self, next_seq: int, origins: Mapping[int, Origin]) -> OpenTransaction | None:
        if not self.open:
            return None
        commit_lsn, commit_ts, xid, number = (
            int(column[-1]) for column in (self.commit_lsn, self.commit_ts, self.xid, self.number)
        )
        return OpenTransaction(commit_lsn, commit_ts, xid, next_seq, origins.get(number))


def find_transactions(buffer: MessageBuffer, state: State) -> BatchTransactions:
    """Find the transaction of each message, up to the end of what is wanted.

    Raises UndecodableError for a message up to there that is malformed or in the wrong place.
    """
    tags, limits = buffer.tags, state.limits
    bounds = _BoundaryMessages(_begins(buffer, tags), _commits(buffer, tags), _nontransactional(buffer, tags))
    member = _membership(tags, bounds, state.open)
    valid = _valid(tags, bounds, member)
    wanted = _wanted(bounds, member, limits.skip_before)
    ends = np.sort(np.append(bounds.commits.at, bounds.nontransactional.at))
    ends = ends[valid[ends] & wanted[ends]]
    stops = _stops(bounds, valid, ends, limits)
    stop = int(stops.min()) if len(stops) else len(buffer)
    for number in np.flatnonzero(~valid[:stop])[:1].tolist():
        raise _misplaced(buffer, number, inside=bool(member.inside[number]))
    return BatchTransactions(
        tags=tags[:stop],
        number=member.number[:stop],
        commit_lsn=member.commit_lsn[:stop],
        commit_ts=member.commit_ts[:stop],
        xid=member.xid[:stop],
        wanted=wanted[:stop],
        begins=bounds.begins.at[bounds.begins.at < stop],
        ends=ends[ends < stop],
        commits=bounds.commits,
        open=bool(member.inside[stop]),
        ended=len(stops) > 0,
    )


def _begins(buffer: MessageBuffer, tags: Int64s) -> _Begins:
    at = np.flatnonzero(tags == Tag.BEGIN)
    final_lsn, time = buffer.field(at, 1), buffer.field(at, 9)
    xid = buffer.field(at, 17) >> 32 & 0xFFFFFFFF
    valid = (buffer.sizes(at) == BEGIN.size) & (final_lsn >= 0) & (time <= LATEST_WIRE_TIME)
    return _Begins(at, final_lsn, time, xid, valid)


def _commits(buffer: MessageBuffer, tags: Int64s) -> _Commits:
    at = np.flatnonzero(tags == Tag.COMMIT)
    commit_lsn, end_lsn = buffer.field(at, 2), buffer.field(at, 10)
    valid = (buffer.sizes(at) == COMMIT.size) & (end_lsn >= 0)
    valid &= (buffer.head[at] >> 48 & 0xFF == 0) & (buffer.field(at, 18) <= LATEST_WIRE_TIME)
    return _Commits(at, commit_lsn, end_lsn, valid)


def _nontransactional(buffer: MessageBuffer, tags: Int64s) -> _Nontransactional:
    at = np.flatnonzero((tags == Tag.MESSAGE) & (buffer.head >> 48 & 1 == 0))
    lsn = buffer.field(at, 2)
    return _Nontransactional(at, lsn, (buffer.sizes(at) >= _SMALLEST_MESSAGE) & (lsn >= 0))


def _membership(tags: Int64s, bounds: _BoundaryMessages, before: OpenTransaction | None) -> _Membership:
    """Find the transaction of each message."""
    first = before or OpenTransaction(0, 0, 0, 0)
    begins, alone = bounds.begins, bounds.nontransactional
    number = np.cumsum(tags == Tag.BEGIN)
    opened = number - np.cumsum(tags == Tag.COMMIT)
    inside = np.append(0, opened) + (before is not None) == 1
    commit_lsn = np.append(first.commit_lsn, begins.final_lsn)[number]
    commit_ts = np.append(first.commit_ts, begins.time + POSTGRES_EPOCH)[number]
    xid = np.append(first.xid, begins.xid)[number]
    commit_lsn[alone.at], commit_ts[alone.at], xid[alone.at] = alone.lsn, 0, 0
    return _Membership(inside, number, commit_lsn, commit_ts, xid)


def _valid(tags: Int64s, bounds: _BoundaryMessages, member: _Membership) -> Booleans:
    """Find the messages that are well formed and in place; right up to the first that isn't."""
    begins, commits, alone = bounds
    allowed = _ALLOWED[tags]
    allowed[alone.at] = _OUTSIDE
    valid: Booleans = allowed & np.where(member.inside[:-1], _INSIDE, _OUTSIDE) != 0
    valid[begins.at] &= begins.valid
    valid[commits.at] &= commits.valid & (commits.commit_lsn == member.commit_lsn[commits.at])
    valid[alone.at] &= alone.valid
    return valid


def _wanted(bounds: _BoundaryMessages, member: _Membership, skip_before: Lsn) -> Booleans:
    """Find the messages of transactions that aren't skipped."""
    wanted: Booleans = member.commit_lsn >= skip_before
    alone = bounds.nontransactional
    wanted[alone.at] = alone.lsn > skip_before
    return wanted


def _stops(bounds: _BoundaryMessages, valid: Booleans, ends: Int64s, limits: DecodeLimits) -> Int64s:
    """Find the messages before which to stop; the first of them counts."""
    stops = np.empty(0, np.int64)
    if limits.until is not None:
        stops = _stops_at(bounds, valid, limits.until)
    if limits.transactions is not None:
        stops = np.append(stops, ends[limits.transactions - 1 :][:1] + 1)
    return stops


def _stops_at(bounds: _BoundaryMessages, valid: Booleans, until: Lsn) -> Int64s:
    """Stop before each transaction that ends beyond `until`, and after each that reaches it."""
    begins, commits, alone = bounds
    before = np.append(begins.at[begins.final_lsn >= until], alone.at[alone.lsn > until])
    after = np.append(commits.at[commits.end_lsn >= until], alone.at[alone.lsn == until])
    return np.append(before[valid[before]], after[valid[after]] + 1)


def _misplaced(buffer: MessageBuffer, number: int, *, inside: bool) -> UndecodableError:
    message = buffer.decode(number)
    if not _ALLOWED[buffer.tags[number]]:
        reason = "it belongs to a streamed or prepared transaction"
    elif isinstance(message, Commit) and inside:
        reason = f"its commit LSN {message.commit_lsn} is not the final LSN of the transaction's Begin"
    elif inside:
        reason = "it is inside another transaction"
    else:
        reason = "it is outside any transaction"
    return buffer.error(number, f"could not assemble {buffer.title(number)} message: {reason}")
