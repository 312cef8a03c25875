"""CopyData frames of the streaming replication protocol, in which each of the plugin's messages comes.

PostgreSQL manual, "Streaming Replication Protocol": `w` XLogData (start LSN, end LSN, send time and one
message of the plugin), `k` primary keepalive (`replication/copy_both.py`), `r` standby status update
(`replication/feedback.py`). Times in frames and messages are microseconds since 2000-01-01 UTC; in pgcdc,
since 1970-01-01 UTC.
"""

from collections.abc import Sequence

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


def xlogdata_start(frame: bytes) -> Lsn:
    """Read the start LSN of an XLogData frame: where its WAL record begins."""
    return Lsn.from_bytes(frame[START_LSN], "big")


def largest_start(frames: Sequence[bytes]) -> Lsn:
    """Return the largest start LSN of one or more XLogData frames."""
    return Lsn.from_bytes(max([frame[START_LSN] for frame in frames]), "big")
