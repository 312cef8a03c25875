"""Standby status updates: when they are due, what they report, and the thread that sends them in time.

One lock guards the connection. The data thread holds it only while it takes what has arrived, and then sends
an update if one is due. However long it decodes or waits for a disk, the feedback thread sends updates before
`wal_sender_timeout` expires. It only needs to send: a walsender reads updates even while its own sending is
blocked.

Rules: positions never decrease; the flushed position is what `confirm` declared durable, never more; every
update requests a keepalive, so that a silent server is known to be lost.
"""

import select
import struct
import threading
import time

import psycopg
from psycopg.pq.abc import PGconn

from pgcdc_cli.frames import POSTGRES_EPOCH
from pgcdc_cli.lsn import Lsn
from pgcdc_cli.replication.failures import server_failure

NEVER = float("inf")

_UNSENT_WAIT = 0.1
"""Seconds until another attempt to send on a socket that takes nothing."""

_STANDBY_STATUS = struct.Struct(">cqqqqB")


def update_interval(status_interval: float, wal_sender_timeout: float) -> float:
    """Return the seconds between updates: `status_interval`, but at most a third of the sender's timeout.

    0 means no limit for either. A third, so that one update may be late.
    """
    return min(status_interval or NEVER, wal_sender_timeout / 3 or NEVER)


class Feedback:
    """The positions to report to the server, and the thread that sends them."""

    def __init__(self, pgconn: PGconn, lock: threading.Lock, start: Lsn, interval: float) -> None:
        self._pgconn = pgconn
        self._lock = lock
        self._written = self._flushed = start
        self._interval = interval
        self._due = time.monotonic() + interval
        self._unsent = False
        self._stop = threading.Event()
        self._failure: Exception | None = None
        self._writable = select.poll()
        self._writable.register(pgconn.socket, select.POLLOUT)
        self._thread = threading.Thread(target=self._run, name="pgcdc-feedback", daemon=True)
        self._thread.start()

    @property
    def flush_lsn(self) -> Lsn:
        """The position below which everything is durable: the only one ever reported as flushed."""
        return self._flushed

    def confirm(self, written: Lsn, flushed: Lsn) -> None:
        """Set the positions for the next update; positions never decrease."""
        with self._lock:
            self._flushed = max(self._flushed, flushed)
            self._written = max(self._written, written, self._flushed)

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
            self._unsent = self._pgconn.flush() == 1

    def finish(self) -> None:
        """End the thread and put the last update into libpq's buffer. The caller doesn't hold the lock."""
        self.stop()
        with self._lock:
            self._put()

    def stop(self) -> None:
        self._stop.set()
        self._thread.join()

    def _put(self) -> None:
        update = standby_status(self._written, self.flush_lsn, time.time_ns() // 1000, reply=True)
        self._unsent = True
        if not self._pgconn.put_copy_data(update):
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


def standby_status(written: Lsn, flushed: Lsn, send_time: int, *, reply: bool) -> bytes:
    """Build a standby status update; `reply` requests a keepalive from the server.

    The applied position is the flushed one. `send_time` is in microseconds since 1970-01-01 UTC.
    """
    return _STANDBY_STATUS.pack(b"r", written, flushed, flushed, send_time - POSTGRES_EPOCH, reply)
