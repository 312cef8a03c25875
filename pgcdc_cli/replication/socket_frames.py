"""The frames of a stream, read many at a time from the connection's socket itself.

libpq returns frames one by one, which takes longer than to decode narrow rows. So START_REPLICATION is sent
here, and what the server answers is read here. libpq is idle meanwhile, and its state stays valid. Over an
encrypted connection only libpq can read (`libpq_frames.py`). PostgreSQL manual, "Message Formats" and
"Streaming Replication Protocol".
"""

import os
import select
import socket
import struct
import time
from collections.abc import Callable

import psycopg
from psycopg.errors import Diagnostic
from psycopg.pq.abc import PGconn

from pgcdc_cli.errors import PgcdcError
from pgcdc_cli.frames import (
    PADDING,
    XLOGDATA,
    XLOGDATA_HEADER,
    Frames,
    Keepalive,
    Received,
    Run,
    read_keepalive,
)
from pgcdc_cli.large_copies import joined
from pgcdc_cli.replication.failures import error_response, response_fields

_HEAD = 5
"""Bytes before a message's content: its tag, and an Int32 length, which includes itself."""

_COPY_DATA, _COPY_DONE, _COPY_BOTH, _COMPLETE, _ERROR, _NOTICE, _READY = _HANDLED = b"dcWCENZ"
_KNOWN = _HANDLED + b"AS"
"""Tags that may come; NotificationResponse and ParameterStatus are of no interest."""

_LONGEST = (1 << 31) - 1
"""The largest length of a message."""

_FRAME_HEAD = struct.Struct(">BIB")
"""The head of a CopyData message, and its content's first byte."""

_BUFFER = 2 << 20
"""Bytes read at a time, at most, unless one message is larger."""

_READ_BYTES = 2 << 20
"""Bytes of frames that end one read, however few they are: so wide rows take no more memory."""

_WAITING = 8 << 10
"""Bytes below which the next can wait: a server that flushes each message wakes us often."""

_LONGEST_READ = 0.1
"""Seconds of one read, at most, while a large message is incomplete: the feedback thread waits meanwhile."""

_TICK = 0.1
"""Seconds of one wait for the answer to START_REPLICATION, while it may not be sent yet."""


class SocketFrames:
    """The frames of a connection that isn't encrypted, and is idle. Only one thread at a time may use it.

    `wait` is an exception. `encoding` is Python's name for the client encoding; `on_notice` is called in
    order: after the frames before a notice, before those after it. Raises psycopg.Error, UndecodableError, or
    the error that was given to `end`.
    """

    def __init__(self, pgconn: PGconn, encoding: str, on_notice: Callable[[Diagnostic], None]) -> None:
        self._wire = socket.socket(fileno=os.dup(pgconn.socket))
        self._wire.setblocking(False)
        self._encoding = encoding
        self._on_notice = on_notice
        self._buffer = bytearray(_BUFFER)
        self._begin = self._filled = 0
        self._unsent = b""
        self._copying = self._copied = self._ready = self._finishing = False
        self._keepalive: Keepalive | None = None
        self._ended: psycopg.Error | PgcdcError | None = None
        self._readable = select.poll()
        self._readable.register(self._wire, select.POLLIN)

    @property
    def on_unix_socket(self) -> bool:
        return self._wire.family == socket.AF_UNIX

    @property
    def socket(self) -> int:
        return self._wire.fileno()

    def start(self, command: bytes) -> None:
        """Send a command that begins a copy in both directions, and wait until it has begun."""
        self._put(b"Q", command + b"\0")
        refusal: psycopg.DatabaseError | None = None
        while not (self._copying or self._ready):
            self.flush()
            try:
                if not self._next_message() and not self._receive():
                    self.wait(_TICK)
            except psycopg.OperationalError as lost:
                raise refusal or lost from None
            except psycopg.DatabaseError as error:
                refusal = error
        if refusal is not None:
            raise refusal

    def put_copy_data(self, buffer: bytes, /) -> int:
        """Take a message to be sent."""
        self._put(b"d", buffer)
        return 1

    def put_copy_end(self) -> None:
        """Take CopyDone to be sent: no more is wanted."""
        self._finishing, self._ended = True, None
        self._put(b"c", b"")

    def _put(self, tag: bytes, content: bytes) -> None:
        self._unsent += tag + (len(content) + 4).to_bytes(4) + content

    def flush(self) -> int:
        """Send what the socket takes; 1 if something is left. Reading tells why a connection was lost."""
        try:
            while self._unsent:
                self._unsent = self._unsent[self._wire.send(self._unsent) :]
        except BlockingIOError:
            return 1
        except OSError:
            self._unsent = b""
        return 0

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
        self._keepalive = None
        runs: list[Run] = []
        try:
            self._take(runs, limit)
        except (psycopg.Error, PgcdcError) as error:
            self.end(error)
        if self._ended is None:
            return Received(Frames(runs), self._keepalive, self._copied)
        if not runs:
            raise self._ended
        return Received(Frames(runs), None)

    def end(self, error: psycopg.Error | PgcdcError) -> None:
        """Stop here: return the frames taken so far, then raise `error`."""
        self._ended = self._ended or error

    def _take(self, runs: list[Run], limit: int) -> None:
        room, trickles, until = _READ_BYTES, False, time.monotonic() + _LONGEST_READ
        while limit > 0 and room > 0 and not self._copied and self._ended is None:
            run = self._next_run(limit)
            if run is not None:
                runs.append(run)
                limit -= len(run.starts)
                room -= run.size
            elif not self._next_message():
                if trickles or time.monotonic() > until:
                    break
                trickles = self._receive() < _WAITING

    def _next_run(self, limit: int) -> Run | None:
        """Take the XLogData frames at the beginning of the buffer, up to any other or incomplete message."""
        buffer, head, begin, at = self._buffer, _FRAME_HEAD.unpack_from, self._begin, self._begin
        starts: list[int] = []
        append, last = starts.append, self._filled - _HEAD - XLOGDATA_HEADER
        while at <= last and limit:
            tag, size, kind = head(buffer, at)
            end = at + size + 1
            if tag != _COPY_DATA or kind != XLOGDATA or end > self._filled or size < XLOGDATA_HEADER + 4:
                break
            append(at - begin + _HEAD)
            at, limit = end, limit - 1
        if not starts:
            return None
        self._begin = at
        with memoryview(buffer) as view:
            data = joined([view[begin:at], PADDING])
        return Run(data, starts, at - begin, gap=_HEAD)

    def _next_message(self) -> bool:
        """Handle a message that is no XLogData frame; false if there is none, or not all of it."""
        waiting = self._filled - self._begin
        if waiting < _HEAD:
            return False
        tag, length = struct.unpack_from(">BI", self._buffer, self._begin)
        self._check_head(tag, length)
        if waiting <= length:
            self._make_room(length + 1)
            return False
        content = bytes(self._buffer[self._begin + _HEAD : self._begin + 1 + length])
        self._begin += length + 1
        self._handle(tag, content)
        return True

    def _handle(self, tag: int, content: bytes) -> None:
        if tag == _COPY_DATA and self._copied:
            return  # a walsender may go on with its transaction
        if tag == _COPY_DATA:
            self._keepalive = read_keepalive(content).after(self._keepalive)
        elif tag == _ERROR:
            raise error_response(content, self._encoding)
        elif tag == _NOTICE:
            self._on_notice(Diagnostic(response_fields(content), self._encoding))
        elif tag == _COMPLETE and not self._finishing:
            raise psycopg.OperationalError("the server is shutting down")
        self._copying |= tag == _COPY_BOTH
        self._copied |= tag == _COPY_DONE
        self._ready |= tag == _READY

    def _check_head(self, tag: int, length: int) -> None:
        if tag not in _KNOWN or not 4 <= length <= _LONGEST:
            raise psycopg.OperationalError(
                f"lost synchronization with server: got message type {chr(tag)!r}, length {length}"
            )

    def _make_room(self, size: int) -> None:
        """Make the buffer large enough for a message of so many bytes, of which the beginning has come."""
        if size > len(self._buffer):
            begun = self._buffer[self._begin : self._filled]
            self._buffer = bytearray(size)
            self._buffer[: len(begun)] = begun
            self._begin, self._filled = 0, len(begun)

    def _receive(self) -> int:
        """Read what has arrived, as far as there is room for it; returns the number of bytes."""
        if self._begin == self._filled:
            self._begin = self._filled = 0
            if len(self._buffer) > _BUFFER:
                self._buffer = bytearray(_BUFFER)
        elif self._filled == len(self._buffer):
            begun = self._buffer[self._begin : self._filled]
            self._buffer[: len(begun)] = begun
            self._begin, self._filled = 0, len(begun)
        if self._filled == len(self._buffer):
            return 0
        try:
            with memoryview(self._buffer) as view:
                size = self._wire.recv_into(view[self._filled :])
        except BlockingIOError:
            return 0
        except OSError as error:
            raise psycopg.OperationalError(f"could not receive data from server: {error.strerror}") from error
        if not size:
            raise psycopg.OperationalError("server closed the connection unexpectedly")
        self._filled += size
        return size

    def read_ahead(self) -> int | None:
        """Read what has arrived into the buffer; None if it has no room for more. `take` raises errors.

        Returns how many bytes had arrived.
        """
        if self._ended is not None or self._filled - self._begin == len(self._buffer):
            return None
        try:
            return self._receive()
        except psycopg.OperationalError:
            return None

    def await_command_end(self, deadline: float) -> None:
        """Wait until the server has ended the command, but not beyond `deadline`."""
        while not self._ready and (self._next_message() or self.wait(deadline - time.monotonic())):
            self._receive()

    def close(self) -> None:
        """Leave the connection to libpq."""
        self._wire.close()
