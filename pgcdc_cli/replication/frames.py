"""CopyData frames of the streaming replication protocol.

PostgreSQL manual, "Streaming Replication Protocol": `w` XLogData, `k` primary keepalive, `r` standby status
update. Timestamps on the wire are microseconds since 2000-01-01 UTC; here, since 1970-01-01.
"""

from dataclasses import dataclass

from pgcdc_cli.lsn import Lsn

XLOGDATA_HEADER = 25
"""Bytes before the plugin's message: `w`, start LSN, end LSN, send time."""


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
