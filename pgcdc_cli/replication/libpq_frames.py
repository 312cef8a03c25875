"""The frames of a stream as libpq returns them, one by one: over an encrypted connection only libpq can read.

libpq manual, "Functions Associated with the COPY Command". `socket_frames.py` is for other connections.
"""

import time
from collections.abc import Sequence

import psycopg
from psycopg.errors import error_from_result
from psycopg.pq import DiagnosticField, ExecStatus
from psycopg.pq.abc import PGconn, PGresult

from pgcdc_cli.frames import XLOGDATA, XLOGDATA_HEADER, Frames, read_keepalive
from pgcdc_cli.large_copies import PIECE, joined
from pgcdc_cli.replication.frame_source import LONGEST_READ, READ_BYTES, FrameSource


class LibpqFrames(FrameSource[bytes]):
    """The frames of a connection for which libpq has begun the copy."""

    def __init__(self, pgconn: PGconn) -> None:
        super().__init__(pgconn.socket)
        self._pgconn = pgconn
        self._lost: psycopg.OperationalError | None = None

    def put_copy_data(self, message: bytes) -> bool:
        return self._pgconn.put_copy_data(message) == 1

    def flush(self) -> bool:
        return self._pgconn.flush() == 0

    def _frames(self, parts: Sequence[bytes]) -> Frames:
        return Frames.of(parts)

    def _take(self, limit: int) -> None:
        """Take frames until nothing more comes: libpq reads one TLS record at a time, often one frame."""
        append, get = self._taken.append, self._pgconn.get_copy_data
        room, consumed, until = READ_BYTES, False, time.monotonic() + LONGEST_READ
        while room > 0 and limit > 0:
            size, data = get(1)
            if size > 0:
                consumed = False
            if size >= XLOGDATA_HEADER and data[0] == XLOGDATA:
                append(bytes(data) if size <= PIECE else joined([data]))
                room, limit = room - size, limit - 1
            elif size > 0:
                self._keepalive = read_keepalive(bytes(data)).after(self._keepalive)
            elif size < 0:
                self._read_result()
                self._copied = True
                return
            elif self._lost is not None:
                raise self._lost
            elif (consumed and not self.wait(0)) or time.monotonic() > until:
                break
            else:
                self._consume()
                consumed = True

    def _consume(self) -> None:
        """Read what has arrived; the end of the connection may come together with frames and last words."""
        try:
            self._pgconn.consume_input()
        except psycopg.OperationalError as error:
            self._lost = error

    def _read_result(self) -> None:
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

    def _put_copy_done(self) -> None:
        self._pgconn.put_copy_end()

    def await_command_end(self, deadline: float) -> None:
        """Wait until the server has ended the command, but not beyond `deadline`."""
        while self._lost is None and self._pgconn.is_busy() and self.wait(deadline - time.monotonic()):
            self._consume()

    def close(self) -> None:
        """Leave the connection to libpq."""


def _error(result: PGresult) -> psycopg.Error:
    """Make an error from a result; without an SQLSTATE it is libpq's own: the connection was lost."""
    if result.error_field(DiagnosticField.SQLSTATE) is None:
        return psycopg.OperationalError(result.get_error_message())
    return error_from_result(result)
