"""The frames of a stream, read many at a time from the connection's socket itself.

libpq returns frames one by one, which takes longer than to decode narrow rows. So START_REPLICATION is sent
here, and what the server answers is read here. libpq is idle meanwhile, and its state stays valid. Over an
encrypted connection only libpq can read (`libpq_frames.py`). PostgreSQL manual, "Message Formats" and
"Streaming Replication Protocol".
"""

import os
import socket
import struct
import time
from collections.abc import Callable, Sequence

import psycopg
from psycopg.errors import Diagnostic
from psycopg.pq.abc import PGconn

from pgcdc_cli.frames import PADDING, XLOGDATA, XLOGDATA_HEADER, Frames, Run, read_keepalive
from pgcdc_cli.large_copies import joined
from pgcdc_cli.replication.backend_messages import (
    COMMAND_COMPLETE,
    COPY_BOTH,
    COPY_DATA,
    COPY_DONE,
    ERROR,
    HEAD,
    LONGEST,
    NOTICE,
    READY,
    error_response,
    frontend_message,
    query,
    response_fields,
)
from pgcdc_cli.replication.frame_source import LONGEST_READ, READ_BYTES, FrameSource

_KNOWN = bytes([COPY_DATA, COPY_DONE, COPY_BOTH, COMMAND_COMPLETE, ERROR, NOTICE, READY]) + b"AS"
"""Tags that may come; NotificationResponse and ParameterStatus are of no interest."""

_FRAME_HEAD = struct.Struct(">BIB")
"""The head of a CopyData message, and its content's first byte."""

_BUFFER = 2 << 20
"""Bytes read at a time, at most, unless one message is larger."""

_WAITING = 8 << 10
"""Bytes below which the next can wait: a server that flushes each message wakes us often."""

_TICK = 0.1
"""Seconds of one wait for the answer to START_REPLICATION, while it may not be sent yet."""


class SocketFrames(FrameSource[Run]):
    """The frames of a connection that isn't encrypted, and is idle.

    `encoding` is Python's name for the client encoding; `on_notice` is called in order: after the frames
    before a notice, before those after it.
    """

    def __init__(self, pgconn: PGconn, encoding: str, on_notice: Callable[[Diagnostic], None]) -> None:
        self._wire = socket.socket(fileno=os.dup(pgconn.socket))
        self._wire.setblocking(False)
        super().__init__(self._wire.fileno())
        self._encoding = encoding
        self._on_notice = on_notice
        self._buffer = bytearray(_BUFFER)
        self._begin = self._filled = 0
        self._unsent = b""
        self._copying = self._ready = False

    @property
    def on_unix_socket(self) -> bool:
        return self._wire.family == socket.AF_UNIX

    def start(self, command: bytes) -> None:
        """Send a command that begins a copy in both directions, and wait until it has begun."""
        self._unsent += query(command)
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

    def put_copy_data(self, message: bytes) -> bool:
        self._unsent += frontend_message(COPY_DATA, message)
        return True

    def _put_copy_done(self) -> None:
        self._unsent += frontend_message(COPY_DONE)

    def flush(self) -> bool:
        """Send what the socket takes; false if something is left. Reading tells why a connection was lost."""
        try:
            while self._unsent:
                self._unsent = self._unsent[self._wire.send(self._unsent) :]
        except BlockingIOError:
            return False
        except OSError:
            self._unsent = b""
        return True

    def _frames(self, parts: Sequence[Run]) -> Frames:
        return Frames(parts)

    def _take(self, limit: int) -> None:
        room, trickles, until = READ_BYTES, False, time.monotonic() + LONGEST_READ
        while limit > 0 and room > 0 and not self._copied:
            run = self._next_run(limit)
            if run is not None:
                self._taken.append(run)
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
        append, last = starts.append, self._filled - HEAD - XLOGDATA_HEADER
        while at <= last and limit:
            tag, size, kind = head(buffer, at)
            end = at + size + 1
            if tag != COPY_DATA or kind != XLOGDATA or end > self._filled or size < XLOGDATA_HEADER + 4:
                break
            append(at - begin + HEAD)
            at, limit = end, limit - 1
        if not starts:
            return None
        self._begin = at
        with memoryview(buffer) as view:
            data = joined([view[begin:at], PADDING])
        return Run(data, starts, at - begin, gap=HEAD)

    def _next_message(self) -> bool:
        """Handle a message that is no XLogData frame; false if there is none, or not all of it."""
        waiting = self._filled - self._begin
        if waiting < HEAD:
            return False
        tag, length = struct.unpack_from(">BI", self._buffer, self._begin)
        self._check_head(tag, length)
        if waiting <= length:
            self._make_room(length + 1)
            return False
        content = bytes(self._buffer[self._begin + HEAD : self._begin + 1 + length])
        self._begin += length + 1
        self._handle(tag, content)
        return True

    def _handle(self, tag: int, content: bytes) -> None:
        if tag == COPY_DATA and self._copied:
            return  # a walsender may go on with its transaction
        if tag == COPY_DATA:
            self._keepalive = read_keepalive(content).after(self._keepalive)
        elif tag == ERROR:
            raise error_response(content, self._encoding)
        elif tag == NOTICE:
            self._on_notice(Diagnostic(response_fields(content), self._encoding))
        elif tag == COMMAND_COMPLETE and not self._finishing:
            raise psycopg.OperationalError("the server is shutting down")
        self._copying |= tag == COPY_BOTH
        self._copied |= tag == COPY_DONE
        self._ready |= tag == READY

    def _check_head(self, tag: int, length: int) -> None:
        if tag not in _KNOWN or not 4 <= length <= LONGEST:
            raise psycopg.OperationalError(
                f"lost synchronization with server: got message type {chr(tag)!r}, length {length}"
            )

    def _make_room(self, size: int) -> None:
        """Make the buffer large enough for a message of so many bytes, of which the beginning has come."""
        if size > len(self._buffer):
            self._move_to(bytearray(size))

    def _move_to(self, buffer: bytearray) -> None:
        """Move what was received and not yet taken to the beginning of a buffer."""
        begun = self._buffer[self._begin : self._filled]
        buffer[: len(begun)] = begun
        self._buffer, self._begin, self._filled = buffer, 0, len(begun)

    def _receive(self) -> int:
        """Read what has arrived, as far as there is room, of which there is some; returns how many bytes."""
        if self._begin == self._filled:
            self._begin = self._filled = 0
            if len(self._buffer) > _BUFFER:
                self._buffer = bytearray(_BUFFER)
        elif self._filled == len(self._buffer):
            self._move_to(self._buffer)
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
        if self._filled - self._begin == len(self._buffer):
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
        """Leave the connection to libpq, and free memory at once: garbage is collected only much later."""
        self._wire.close()
        self._buffer, self._begin, self._filled = bytearray(), 0, 0
        self._taken.clear()
