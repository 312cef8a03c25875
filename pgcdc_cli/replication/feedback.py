"""Standby status updates: the positions that are reported to the server, in time however busy we are.

PostgreSQL manual, "Streaming Replication Protocol".
"""

import select
import threading
import time
from typing import Any

import psycopg

from pgcdc_cli.frames import standby_status
from pgcdc_cli.lsn import Lsn
from pgcdc_cli.replication.failures import server_failure
from pgcdc_cli.replication.frame_source import FrameSource

_UNSENT_WAIT = 0.1
"""Seconds until another attempt to send on a socket that takes nothing."""


class Feedback:
    """The positions to report to the server, and a thread that sends them when an update is due.

    It only needs to send: a walsender reads updates even while its own sending is blocked. Positions never
    decrease. `flush_lsn`, the only one ever reported as flushed, is the position below which everything is
    durable. Every update requests a keepalive, so that a silent server is known to be lost.
    """

    def __init__(self, frames: FrameSource[Any], lock: threading.Lock, start: Lsn, interval: float) -> None:
        self.frames = frames
        self._lock = lock
        self._written = self.flush_lsn = start
        self._interval = interval
        self._due = time.monotonic() + interval
        self._unsent = False
        self._stop = threading.Event()
        self._failure: Exception | None = None
        self._writable = select.poll()
        self._writable.register(frames.socket, select.POLLOUT)
        self._thread = threading.Thread(target=self._run, name="pgcdc-feedback", daemon=True)
        self._thread.start()

    def confirm(self, written: Lsn, flushed: Lsn) -> None:
        """Set the positions for the next update; positions never decrease."""
        with self._lock:
            self.flush_lsn = max(self.flush_lsn, flushed)
            self._written = max(self._written, written, self.flush_lsn)

    def check(self) -> None:
        """Raise, in the data thread, the error that ended the feedback thread."""
        if isinstance(self._failure, psycopg.Error):
            raise server_failure("send a status update", self._failure) from self._failure
        if self._failure is not None:
            raise self._failure

    def reply(self) -> None:
        """Send an update now, since the server asked for it. The caller holds the lock."""
        self._due = 0.0
        self.send_if_due()

    def send_if_due(self) -> None:
        """Send an update if one is due. The caller holds the lock."""
        if self._due <= time.monotonic() and not self._unsent:
            self._due = time.monotonic() + self._interval
            self._put()
        if self._unsent and self._writable.poll(0):
            # Only if writable: otherwise PQflush reads into libpq's buffer, which nobody may be emptying.
            self._unsent = not self.frames.flush()

    def finish(self) -> None:
        """End the thread and put the last update. The caller doesn't hold the lock."""
        self.stop()
        with self._lock:
            self._put()

    def stop(self) -> None:
        self._stop.set()
        self._thread.join()

    def _put(self) -> None:
        update = standby_status(self._written, self.flush_lsn, time.time_ns() // 1000, reply=True)
        self._unsent = True
        if not self.frames.put_copy_data(update):
            self._due = 0.0

    def _run(self) -> None:
        while not self._stop.is_set():
            try:
                with self._lock:
                    self.send_if_due()
                    wait = _UNSENT_WAIT if self._unsent else self._due - time.monotonic()
            except Exception as failure:  # noqa: BLE001 -- `check` raises it in the data thread
                self._failure = failure
                return
            self._stop.wait(max(0.0, wait) if wait < threading.TIMEOUT_MAX else None)
