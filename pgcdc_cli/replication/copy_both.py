"""CopyData frames on a libpq connection in COPY BOTH mode: take, wait, read ahead, end the stream.

libpq documentation, "Functions Associated with the COPY Command". While frames are taken nothing blocks but
`wait`; errors are psycopg's, but for one that `end` was told of. On a Unix socket, whose buffer is small, a
thread reads ahead into libpq's while the data thread is busy: a server that can't send waits for us.
"""

import select
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from fcntl import ioctl
from termios import FIONREAD

import psycopg
from psycopg.errors import error_from_result
from psycopg.pq import DiagnosticField, ExecStatus
from psycopg.pq.abc import PGconn, PGresult

from pgcdc_cli.errors import PgcdcError
from pgcdc_cli.frames import XLOGDATA, XLOGDATA_HEADER, Keepalive, Received, read_keepalive
from pgcdc_cli.large_copies import PIECE, joined

_READ_BYTES = 2 << 20
"""Bytes of frames that end one read, even if they are fewer than asked for: wide rows need no more memory."""

_TRICKLE = 64
"""Frames of one read below which the next one can wait: a server that flushes each message wakes us often."""

_WAITING = 8 << 10
"""Bytes that are there to be read and are worth it, however few frames the last read brought: wide rows."""

_LONGEST_READ = 0.1
"""Seconds of one read of a message that isn't whole yet: whoever else needs the connection waits for that."""

_CHUNK = 256
"""Frames between looks at how many bytes they have."""

_FIRST_BUFFER, _LARGEST_BUFFER = 16 << 10, 4 << 20
"""libpq's input buffer at first (`pqMakeEmptyPGconn`), and as far as reading ahead may grow it."""

_PAUSE = 0.01
"""Seconds without reading: a walsender in mid-transaction then blocks, and only then reads our messages."""

_LONGEST_PAUSE = 0.25

_READ_AHEAD_PAUSE = 0.0001
"""Seconds between two reads ahead: less than it takes a server to fill the buffer."""


class CopyBoth:
    """The frames of one connection. Callers let one thread at a time in here, `wait` excepted."""

    def __init__(self, pgconn: PGconn) -> None:
        self._pgconn = pgconn
        self._finishing = False
        self._failure: psycopg.OperationalError | None = None
        self._frames: list[bytes] = []
        self._ended: psycopg.Error | PgcdcError | None = None
        self._left = 0
        self._buffer = _FIRST_BUFFER
        self._may_be_full = False
        self._ahead = 0
        self._readable = select.poll()
        self._readable.register(pgconn.socket, select.POLLIN)

    def wait(self, timeout: float) -> bool:
        """Wait up to `timeout` seconds for something to arrive; True if it may have."""
        return bool(self._readable.poll(max(0.0, timeout) * 1000))

    def take(self, limit: int) -> Received:
        """Take up to `limit` XLogData frames of what has arrived, and the last keepalive among them.

        An error waits until what came before it is taken: if it comes at each start, that never comes again.
        """
        if self._ended is not None:
            raise self._ended
        self._frames = []
        try:
            received = self._take(self._frames, limit)
        except psycopg.Error as error:
            self.end(error)
        if self._ended is None:
            return received
        if not self._left:
            raise self._ended
        return Received(self._frames[: self._left], None)

    def end(self, error: psycopg.Error | PgcdcError) -> None:
        """Let nothing be taken of what comes after this moment: then `error` is raised."""
        if self._ended is None:
            self._ended, self._left = error, len(self._frames)

    def _take(self, frames: list[bytes], limit: int) -> Received:
        keepalive: Keepalive | None = None
        consumed, room, until = False, _READ_BYTES, time.monotonic() + _LONGEST_READ
        while room > 0 and len(frames) < limit:
            before = len(frames)
            size, keepalive = self._take_some(frames, min(limit - before, _CHUNK), keepalive)
            room -= sum(map(len, frames[before:]))
            if size < 0:
                self._end()
                return Received(frames, keepalive, closed=True)
            if size > 0:
                continue
            if consumed and self._is_enough(len(frames) - before, until):
                break
            self._may_be_full = False
            self._ahead = 0
            self._consume()
            consumed = True
        return Received(frames, keepalive)

    def _is_enough(self, found: int, until: float) -> bool:
        """Say whether what comes next can wait, of which the last look found so many frames."""
        trickles = found < _TRICKLE and self._arrived() < _WAITING
        return trickles or time.monotonic() > until

    def _take_some(
        self, frames: list[bytes], count: int, keepalive: Keepalive | None
    ) -> tuple[int, Keepalive | None]:
        """Append up to `count` frames. Gives libpq's last size (0: nothing is there, -1: the copy ended)."""
        append, get = frames.append, self._pgconn.get_copy_data
        size = 1
        for _ in range(count):
            size, data = get(1)
            if size >= XLOGDATA_HEADER and data[0] == XLOGDATA:
                append(bytes(data) if size <= PIECE else joined([data]))
            elif size > 0:
                keepalive = read_keepalive(bytes(data)).after(keepalive)
            else:
                break
        return size, keepalive

    def read_ahead(self) -> bool:
        """Read what has arrived into libpq's buffer; False if no more can be. A failure waits for `take`.

        libpq reads until nothing is there or its buffer is full, and doubles a full one (`pqReadData` in
        fe-misc.c). As it doesn't tell, one behind which more is waiting counts as full; and where each read
        takes all that is there, what was there is counted.
        """
        if self._ahead >= _LARGEST_BUFFER or (self._may_be_full and self._buffer >= _LARGEST_BUFFER):
            return False
        try:
            if arrived := self._arrived():
                self._ahead += arrived
                self._buffer *= 2 if self._may_be_full else 1
                self._pgconn.consume_input()
                self._may_be_full = self._arrived() > 0
        except psycopg.OperationalError as failure:
            self._failure = self._failure or failure
            return False
        return True

    def _arrived(self) -> int:
        return int.from_bytes(ioctl(self._pgconn.socket, FIONREAD, bytes(4)), sys.byteorder)

    def _consume(self) -> None:
        try:
            if self._failure is not None:
                raise self._failure
            self._pgconn.consume_input()
        except psycopg.OperationalError as error:
            raise self._last_words() or error from None

    def _last_words(self) -> psycopg.Error | None:
        """Why the server closed the connection, if it said so before."""
        try:
            while self._pgconn.get_copy_data(1)[0] > 0:
                pass
            result = self._pgconn.get_result()
        except psycopg.Error:
            return None
        if result is None or result.status != ExecStatus.FATAL_ERROR:
            return None
        return _error(result)

    def _end(self) -> None:
        """Return if the copy was ended by CopyDone; raise if by an error, or by a server that shuts down."""
        if self._pgconn.is_busy():
            return
        result = self._pgconn.get_result()
        if result is None or result.status == ExecStatus.COPY_IN:
            return
        if result.status == ExecStatus.FATAL_ERROR:
            raise _error(result)
        if not self._finishing:
            raise psycopg.OperationalError("the server is shutting down")

    def finish(self, timeout: float, patience: float) -> bool:
        """Send CopyDone and read until the server's, for up to `timeout` seconds. False if none came.

        `patience` is for how long nothing at all may come.
        """
        deadline, silent_at, pause = time.monotonic() + timeout, time.monotonic() + patience, _PAUSE
        self._finishing = True
        self._pgconn.put_copy_end()
        while time.monotonic() < min(deadline, silent_at):
            self._pgconn.flush()
            received = self._take([], 1 << 20)
            if not received.empty:
                silent_at = time.monotonic() + patience
            if received.closed:
                self._await_command_end(min(deadline, time.monotonic() + 1))
                return True
            if received.frames:
                time.sleep(pause)
                pause = min(2 * pause, _LONGEST_PAUSE)
            elif received.keepalive is None:
                self.wait(min(0.1, deadline - time.monotonic()))
        return False

    def _await_command_end(self, deadline: float) -> None:
        """Let the server release the slot; in mid-transaction it does so only when we disconnect."""
        while self._pgconn.is_busy() and self.wait(deadline - time.monotonic()):
            self._consume()


def _error(result: PGresult) -> psycopg.Error:
    """Make an error of a result; one without an SQLSTATE is libpq's own: the connection was lost."""
    if result.error_field(DiagnosticField.SQLSTATE) is None:
        return psycopg.OperationalError(result.get_error_message())
    return error_from_result(result)


class ReadAhead:
    """A thread that reads ahead while `running`, under the lock of the connection."""

    def __init__(self, copy: CopyBoth, lock: threading.Lock) -> None:
        self._copy = copy
        self._lock = lock
        self._busy = threading.Event()
        self._rounds = threading.Semaphore(0)
        self._closed = False
        self._thread = threading.Thread(target=self._run, name="pgcdc-read-ahead", daemon=True)
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
                time.sleep(_READ_AHEAD_PAUSE)

    def _step(self) -> bool:
        with self._lock:
            return self._busy.is_set() and self._copy.read_ahead()
