"""CopyData frames of the streaming replication protocol.

PostgreSQL manual, "Streaming Replication Protocol": `w` XLogData, `k` primary keepalive, `r` standby status
update. Timestamps on the wire are microseconds since 2000-01-01 UTC; here, since 1970-01-01.
"""

import struct
from dataclasses import dataclass

from pgcdc_cli.errors import UndecodableError
from pgcdc_cli.lsn import Lsn

XLOGDATA_HEADER = 25
"""Bytes before the plugin's message: `w`, start LSN, end LSN, send time."""

XLOGDATA = ord("w")
KEEPALIVE = ord("k")
POSTGRES_EPOCH = 946_684_800_000_000
"""2000-01-01 00:00 UTC in microseconds since 1970-01-01."""

_KEEPALIVE = struct.Struct(">cqqB")
_STANDBY_STATUS = struct.Struct(">cqqqqB")


@dataclass(frozen=True, slots=True)
class Keepalive:
    wal_end: Lsn
    send_time: int
    reply_requested: bool


@dataclass(frozen=True, slots=True)
class Received:
    """What had arrived: whole XLogData frames (header included) in order, then perhaps one keepalive.

    A keepalive ends a batch, so that its position is handled after the frames before it and before those
    that follow.
    """

    frames: list[bytes]
    keepalive: Keepalive | None
    closed: bool = False
    """The server sent CopyDone: nothing follows."""

    @property
    def empty(self) -> bool:
        """Nothing had arrived."""
        return not self.frames and self.keepalive is None and not self.closed


def xlogdata_start(frame: bytes) -> Lsn:
    """Read where the log record of an XLogData frame begins."""
    return Lsn.from_bytes(frame[1:9], "big")


def read_keepalive(frame: bytes) -> Keepalive:
    """Read any frame that is no whole XLogData header; UndecodableError unless it is a keepalive."""
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
    _, wal_end, send_time, reply_requested = _KEEPALIVE.unpack(frame)
    if wal_end < 0:
        raise UndecodableError("could not read keepalive: its WAL end has the sign bit set", frame)
    return Keepalive(Lsn(wal_end), send_time + POSTGRES_EPOCH, bool(reply_requested))


def standby_status(written: Lsn, flushed: Lsn, send_time: int, *, reply: bool) -> bytes:
    """Build a standby status update; applied is flushed. `reply` asks the server for a keepalive."""
    return _STANDBY_STATUS.pack(b"r", written, flushed, flushed, send_time - POSTGRES_EPOCH, reply)
