"""The frame that each of a plugin's messages comes in, and what its times count from.

PostgreSQL manual, "Streaming Replication Protocol": an XLogData frame is `w`, start LSN, end LSN, send time,
then one message of the plugin. Times on the wire, the messages' too, are microseconds since 2000-01-01 UTC.
"""

from pgcdc_cli.lsn import Lsn

XLOGDATA_HEADER = 25
"""Bytes before the plugin's message."""

START_LSN = slice(1, 9)
MESSAGE_TAG = slice(XLOGDATA_HEADER, XLOGDATA_HEADER + 1)
"""Where in a frame they are."""

POSTGRES_EPOCH = 946_684_800_000_000
"""2000-01-01 00:00 UTC in microseconds since 1970-01-01."""


def xlogdata_start(frame: bytes) -> Lsn:
    """Read where the log record of an XLogData frame begins."""
    return Lsn.from_bytes(frame[START_LSN], "big")
