"""The frames of a stream as libpq returns them, one by one: over an encrypted connection only libpq can read.

libpq manual, "Functions Associated with the COPY Command". `socket_frames.py` is for other connections.
"""

import select
import time

import psycopg
from psycopg.errors import error_from_result
from psycopg.pq import DiagnosticField, ExecStatus
from psycopg.pq.abc import PGconn, PGresult

from pgcdc_cli.errors import PgcdcError
from pgcdc_cli.frames import XLOGDATA, XLOGDATA_HEADER, Frames, Keepalive, Received, read_keepalive
from pgcdc_cli.large_copies import PIECE, joined

_READ_BYTES = 2 << 20
"""Bytes of frames that end one read, however few they are: so wide rows take no more memory."""

_TRICKLE = 64
"""Frames of one read below which the next can wait: a server that flushes each message wakes us often."""

_LONGEST_READ = 0.1
"""Seconds of one read, at most, while a large message is incomplete: the feedback thread waits meanwhile."""

_CHUNK = 256
"""Frames taken before their bytes are counted."""


class LibpqFrames:
    """The frames of a connection for which libpq has begun the copy. Only one thread at a time may use it.

    `wait` is an exception. Raises psycopg.Error, UndecodableError, or the error that was given to `end`.
    """

    def __init__(self, pgconn: PGconn) -> None:
        self._pgconn = pgconn
        self._finishing = False
        self._frames: list[bytes] = []
        self._ended: psycopg.Error | PgcdcError | None = None
        self._left = 0
        self._readable = select.poll()
        self._readable.register(pgconn.socket, select.POLLIN)

    @property
    def socket(self) -> int:
        return self._pgconn.socket

    def put_copy_data(self, buffer: bytes, /) -> int:
        """Take a message to be sent, as PQputCopyData does: 0 if there is no room for it."""
        return self._pgconn.put_copy_data(buffer)

    def flush(self) -> int:
        """Send what the socket takes, as PQflush does: 1 if something is left."""
        return self._pgconn.flush()

    def wait(self, timeout: float) -> bool:
        """Wait up to `timeout` seconds for something to arrive; true if it may have."""
        return bool(self._readable.poll(max(0.0, timeout) * 1000))

    def take(self, limit: int) -> Received:
        """Take up to `limit` XLogData frames that have arrived, and the last keepalive among them.

        An error is raised only after the frames before it were returned: if it recurs at every start, they
        would never get through otherwise.
        """
        if self._ended is not None:
            raise self._ended
        self._frames = []
        keepalive, closed = None, False
        try:
            keepalive, closed = self._take(limit)
        except (psycopg.Error, PgcdcError) as error:
            self.end(error)
        if self._ended is None:
            return Received(Frames.of(self._frames), keepalive, closed)
        if not self._left:
            raise self._ended
        return Received(Frames.of(self._frames[: self._left]), None)

    def end(self, error: psycopg.Error | PgcdcError) -> None:
        """Stop here: return the frames taken so far, then raise `error`."""
        if self._ended is None:
            self._ended, self._left = error, len(self._frames)

    def _take(self, limit: int) -> tuple[Keepalive | None, bool]:
        """Take frames. Returns the last keepalive, and whether the server's CopyDone came."""
        keepalive: Keepalive | None = None
        consumed, room, until = False, _READ_BYTES, time.monotonic() + _LONGEST_READ
        while room > 0 and len(self._frames) < limit:
            before = len(self._frames)
            size, keepalive = self._take_some(min(limit - before, _CHUNK), keepalive)
            room -= sum(map(len, self._frames[before:]))
            if size < 0:
                self._end()
                return keepalive, True
            if size > 0:
                continue
            trickles = len(self._frames) - before < _TRICKLE
            if consumed and (trickles or time.monotonic() > until):
                break
            self._consume()
            consumed = True
        return keepalive, False

    def _take_some(self, count: int, keepalive: Keepalive | None) -> tuple[int, Keepalive | None]:
        """Take up to `count` frames. Returns libpq's last size (0: nothing to take, -1: the copy ended)."""
        append, get = self._frames.append, self._pgconn.get_copy_data
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

    def _consume(self) -> None:
        try:
            self._pgconn.consume_input()
        except psycopg.OperationalError as error:
            raise self._last_words() or error from None

    def _last_words(self) -> psycopg.Error | None:
        """Return the error with which the server closed the connection, if it sent one."""
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
        """Return if CopyDone ended the copy; raise if an error did, or the server's shutdown."""
        if self._pgconn.is_busy():
            return
        result = self._pgconn.get_result()
        if result is None or result.status == ExecStatus.COPY_IN:
            return
        if result.status == ExecStatus.FATAL_ERROR:
            raise _error(result)
        if not self._finishing:
            raise psycopg.OperationalError("the server is shutting down")

    def put_copy_end(self) -> None:
        """Take CopyDone to be sent: no more is wanted."""
        self._finishing, self._ended = True, None
        self._pgconn.put_copy_end()

    def await_command_end(self, deadline: float) -> None:
        """Wait until the server has ended the command, but not beyond `deadline`."""
        while self._pgconn.is_busy() and self.wait(deadline - time.monotonic()):
            self._consume()

    def close(self) -> None:
        """Leave the connection to libpq."""


def _error(result: PGresult) -> psycopg.Error:
    """Make an error from a result; without an SQLSTATE it is libpq's own: the connection was lost."""
    if result.error_field(DiagnosticField.SQLSTATE) is None:
        return psycopg.OperationalError(result.get_error_message())
    return error_from_result(result)
