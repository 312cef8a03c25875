"""CopyData frames of the streaming replication protocol, in which each of the plugin's messages comes.

PostgreSQL manual, "Streaming Replication Protocol": `w` XLogData (start LSN, end LSN, send time and one
message of the plugin), `k` primary keepalive, `r` standby status update. Times in frames and messages are
microseconds since 2000-01-01 UTC; in pgcdc, since 1970-01-01 UTC.
"""

import struct
from bisect import bisect
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import accumulate
from typing import NamedTuple, overload

from pgcdc_cli.errors import UndecodableError
from pgcdc_cli.large_copies import joined
from pgcdc_cli.lsn import Lsn

POSTGRES_EPOCH = 946_684_800_000_000
"""2000-01-01 00:00 UTC in microseconds since 1970-01-01."""

XLOGDATA = ord("w")
KEEPALIVE = ord("k")

XLOGDATA_HEADER = 25
"""Bytes of an XLogData frame before the plugin's message."""

START_LSN = slice(1, 9)
MESSAGE_TAG = slice(XLOGDATA_HEADER, XLOGDATA_HEADER + 1)
"""Where in an XLogData frame the start LSN and the message's tag are."""

PADDING = bytes(8)
"""What follows frames or messages in memory, so that a 64-bit integer can be read at each of their bytes."""

_KEEPALIVE = struct.Struct(">cqqB")
_STANDBY_STATUS = struct.Struct(">cqqqqB")


def xlogdata_start(frame: bytes) -> Lsn:
    """Read the start LSN of an XLogData frame: where its WAL record begins."""
    return Lsn.from_bytes(frame[START_LSN], "big")


class Run(NamedTuple):
    """XLogData frames that are next to each other in `data`, `gap` bytes apart, with `PADDING` behind them.

    Frame i begins at `starts[i]`, and the last one ends at `end`.
    """

    data: bytes
    starts: list[int]
    end: int
    gap: int

    @property
    def size(self) -> int:
        """Bytes from the beginning of the first frame to the end of the last."""
        return self.end - self.starts[0]

    def bounds(self) -> Iterator[tuple[int, int]]:
        """Yield where each frame begins and ends."""
        ends = [start - self.gap for start in self.starts[1:]]
        return zip(self.starts, [*ends, self.end], strict=True)

    def end_of(self, number: int) -> int:
        return self.end if number + 1 == len(self.starts) else self.starts[number + 1] - self.gap

    def cut(self, start: int, stop: int) -> "Run":
        """Return a run with some of the frames, at least one, and the same data."""
        return self._replace(starts=self.starts[start:stop], end=self.end_of(stop - 1))


class Frames(Sequence[bytes]):
    """XLogData frames in order, as they came: they are not copied one by one."""

    __slots__ = ("_counts", "runs")

    def __init__(self, runs: Iterable[Run] = ()) -> None:
        self.runs = tuple(runs)
        self._counts = [0]
        for run in self.runs:
            self._counts.append(self._counts[-1] + len(run.starts))

    @classmethod
    def of(cls, frames: Sequence[bytes]) -> "Frames":
        """Take frames of any kind of sequence."""
        if isinstance(frames, Frames):
            return frames
        if not frames:
            return cls()
        *starts, end = accumulate(map(len, frames), initial=0)
        return cls([Run(joined([*frames, PADDING]), starts, end, gap=0)])

    def __len__(self) -> int:
        return self._counts[-1]

    def __iter__(self) -> Iterator[bytes]:
        return iter([run.data[start:end] for run in self.runs for start, end in run.bounds()])

    @overload
    def __getitem__(self, number: int) -> bytes: ...
    @overload
    def __getitem__(self, number: slice) -> "Frames": ...
    def __getitem__(self, number: int | slice) -> "bytes | Frames":
        if isinstance(number, slice):
            start, stop, _ = number.indices(len(self))
            return Frames(self._between(start, stop))
        run, at = self._find(number)
        return run.data[run.starts[at] : run.end_of(at)]

    def __add__(self, later: "Frames") -> "Frames":
        return Frames(self.runs + later.runs) if self.runs else later

    def _between(self, start: int, stop: int) -> Iterator[Run]:
        for run, before in zip(self.runs, self._counts, strict=False):
            first, last = max(start - before, 0), min(stop - before, len(run.starts))
            if first < last:
                yield run if last - first == len(run.starts) else run.cut(first, last)

    def _find(self, number: int) -> tuple[Run, int]:
        """Return the run that a frame is in, and its number there."""
        at = range(len(self))[number]
        place = bisect(self._counts, at) - 1
        return self.runs[place], at - self._counts[place]

    def tag(self, number: int) -> bytes:
        """Return the tag of a frame's message, however large the frame is; empty if there is no message."""
        run, at = self._find(number)
        start = run.starts[at]
        return run.data[start + MESSAGE_TAG.start : min(start + MESSAGE_TAG.stop, run.end_of(at))]

    def tags(self) -> bytes:
        """Return the tag of each frame's message; a frame without a message has some other byte."""
        return bytes([run.data[start + MESSAGE_TAG.start] for run in self.runs for start in run.starts])

    def sizes(self) -> list[int]:
        """Return the size of each frame, in bytes."""
        return [end - start for run in self.runs for start, end in run.bounds()]

    def messages(self) -> list[bytes]:
        """Copy the plugin's messages."""
        return [run.data[start + XLOGDATA_HEADER : end] for run in self.runs for start, end in run.bounds()]

    @property
    def size(self) -> int:
        """Bytes that the frames take in memory."""
        return sum(run.size for run in self.runs)

    @property
    def largest_start(self) -> Lsn:
        """The largest start LSN of one or more frames."""
        lsns = [
            run.data[at + START_LSN.start : at + START_LSN.stop] for run in self.runs for at in run.starts
        ]
        return Lsn.from_bytes(max(lsns), "big")


@dataclass(frozen=True, slots=True)
class Keepalive:
    """A primary keepalive without its send time; `wal_end` is the current end of WAL on the server."""

    wal_end: Lsn
    reply_requested: bool

    def after(self, earlier: "Keepalive | None") -> "Keepalive":
        """Merge with an earlier keepalive: this position, and a reply if either requests one."""
        asked = earlier is not None and earlier.reply_requested
        return replace(self, reply_requested=True) if asked else self


@dataclass(frozen=True, slots=True)
class Received:
    """A batch of received frames: whole XLogData frames (header included) in order, and the last keepalive.

    A keepalive doesn't end a batch: a walsender that has caught up sends one after each commit
    (`WalSndWaitForWal` in walsender.c). Everything before its position is in these frames, in earlier ones,
    or in a transaction that is still open after them. It requests a reply if any keepalive of the batch did.
    """

    frames: Frames
    keepalive: Keepalive | None
    closed: bool = False
    """The server sent CopyDone: nothing follows."""

    def followed_by(self, later: "Received") -> "Received":
        """Join two batches that were received one after the other."""
        keepalive = later.keepalive and later.keepalive.after(self.keepalive)
        return Received(self.frames + later.frames, keepalive or self.keepalive, later.closed)

    @property
    def empty(self) -> bool:
        """Whether nothing was received."""
        return not self.frames and self.keepalive is None and not self.closed


def read_keepalive(frame: bytes) -> Keepalive:
    """Read a keepalive. Raises UndecodableError for any other frame, such as XLogData that is cut short."""
    if not frame or frame[0] not in (XLOGDATA, KEEPALIVE):
        raise UndecodableError(f"could not read a frame: unknown type {frame[:1]!r}", frame)
    if frame[0] == XLOGDATA:
        raise UndecodableError(
            f"could not read XLogData: {XLOGDATA_HEADER} bytes expected, got {len(frame)}", frame
        )
    if len(frame) != _KEEPALIVE.size:
        raise UndecodableError(
            f"could not read keepalive: {_KEEPALIVE.size} bytes expected, got {len(frame)}", frame
        )
    _, wal_end, _, reply_requested = _KEEPALIVE.unpack(frame)
    if wal_end < 0:
        raise UndecodableError("could not read keepalive: its WAL end has the sign bit set", frame)
    return Keepalive(Lsn(wal_end), bool(reply_requested))


def standby_status(written: Lsn, flushed: Lsn, send_time: int, *, reply: bool) -> bytes:
    """Build a standby status update; `reply` requests a keepalive from the server.

    The applied position is the flushed one. `send_time` is in microseconds since 1970-01-01 UTC.
    """
    return _STANDBY_STATUS.pack(b"r", written, flushed, flushed, send_time - POSTGRES_EPOCH, reply)
