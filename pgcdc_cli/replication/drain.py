"""Room for a server on the same machine to go on while we decode.

A Unix socket's buffer counts what each of its messages occupies in the kernel, and a walsender flushes every
row by itself: the buffer is full after some 250 rows, and the server waits until most of it is read. So while
the data thread is busy a thread reads for it, into libpq's buffer. TCP's buffers are large enough.
"""

import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager

from pgcdc_cli.replication.copy_both import CopyBoth

_NAP = 0.0001
"""Seconds between reads: less than it takes a server to fill the buffer."""


class Drain:
    """A thread that reads ahead while `running`, under the lock of the connection."""

    def __init__(self, copy: CopyBoth, lock: threading.Lock) -> None:
        self._copy = copy
        self._lock = lock
        self._busy = threading.Event()
        self._rounds = threading.Semaphore(0)
        self._closed = False
        self._thread = threading.Thread(target=self._run, name="pgcdc-drain", daemon=True)
        self._thread.start()

    @contextmanager
    def running(self) -> Iterator[None]:
        """Read ahead while the caller does something else."""
        self._busy.set()
        self._rounds.release()
        try:
            yield
        finally:
            self._busy.clear()

    def stop(self) -> None:
        self._closed = True
        self._rounds.release()
        self._thread.join()

    def _run(self) -> None:
        while True:
            self._rounds.acquire()
            if self._closed:
                return
            while self._step():
                time.sleep(_NAP)

    def _step(self) -> bool:
        with self._lock:
            return self._busy.is_set() and self._copy.read_ahead()
