"""Heartbeat records: what says that the stream lives, though nothing that is wanted changes."""

import time
from dataclasses import replace

from pgcdc_cli.formats.base import EncodedSlice, Restartable
from pgcdc_cli.lsn import Lsn
from pgcdc_cli.pgoutput.changes import Edge


class Heartbeats:
    """Those of one run, where the format has any; `interval` is in seconds, 0 for none."""

    def __init__(self, encoding: Restartable | None, interval: float) -> None:
        self._encoding = encoding
        self._interval = interval
        self._beaten = time.monotonic()

    def due(self, edge_lsn: Lsn) -> EncodedSlice | None:
        """Give one if it is time to, which is to be written at this edge."""
        now = time.monotonic()
        due = self._interval > 0 and now - self._beaten >= self._interval
        if not due or self._encoding is None:
            return None
        self._beaten = now
        return replace(self._encoding.heartbeat(edge_lsn), edge=Edge(Lsn(0), edge_lsn, 0))
