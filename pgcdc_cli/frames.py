"""CopyData frames of the streaming replication protocol, in which each of the plugin's messages comes.

PostgreSQL manual, "Streaming Replication Protocol": `w` XLogData (start LSN, end LSN, send time and one
message of the plugin), `k` primary keepalive, `r` standby status update. Times in frames and messages are
microseconds since 2000-01-01 UTC; in pgcdc, since 1970-01-01 UTC.
"""

import struct
from collections.abc import Sequence
from dataclasses import dataclass, replace

from pgcdc_cli.errors import UndecodableError
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

_KEEPALIVE = struct.Struct(">cqqB")
_STANDBY_STATUS = struct.Struct(">cqqqqB")


def xlogdata_start(frame: bytes) -> Lsn:
    """Read the start LSN of an XLogData frame: where its WAL record begins."""
    return Lsn.from_bytes(frame[START_LSN], "big")


def largest_start(frames: Sequence[bytes]) -> Lsn:
    """Return the largest start LSN of one or more XLogData frames."""
    return Lsn.from_bytes(max([frame[START_LSN] for frame in frames]), "big")


@dataclass(frozen=True, slots=True)
class Keepalive:
    """A primary keepalive without its send time; `wal_end` is the current end of WAL on the server."""

    wal_end: Lsn
    reply_requested: bool

    def after(self, earlier: "Keepalive | None") -> "Keepalive":
        """Merge with an earlier keepalive: this position, and a reply if either requests one."""
        asked = earlier is not None and earlier.reply_requested
        return replace(self, reply_requested=True) if asked else self


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
