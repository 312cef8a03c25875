"""Read the rows of COPY ... TO STDOUT, many at a time.

libpq returns rows one by one, which alone takes longer than the server needs to send them. So this module
reads the connection's socket itself, and finds all rows in what has arrived at once. libpq is idle meanwhile,
and its state stays valid. Over an encrypted connection only libpq can read; then taking the rows is the one
thing done per row. PostgreSQL manual, "Message Formats" and "COPY Operations"; libpq manual, "Functions
Associated with the COPY Command".

`copy_text.py` and `copy_binary.py` find the rows of each format, and divide them into columns.
"""

import os
import select
import socket
from collections.abc import Callable, Collection, Iterator
from typing import ClassVar, Protocol

import numpy as np
import psycopg
from numpy.typing import NDArray
from psycopg.errors import error_from_result
from psycopg.pq import ExecStatus
from psycopg.pq.abc import PGconn, PGresult

from pgcdc_cli.errors import ErrorKind, PgcdcError
from pgcdc_cli.replication.backend_messages import (
    COPY_DATA,
    ERROR,
    HEAD,
    LONGEST,
    READY,
    error_response,
    query,
)
from pgcdc_cli.types import kernels
from pgcdc_cli.types.kernels import Int64s

ROWS, BYTES = 16384, 1 << 20
"""The size of a chunk, at most; a single row may be larger. It stays in a cache, with what is made of it."""

TICK = 0.25
"""Seconds of silence after which the rows received so far are yielded, and `stopped` is asked."""

_LAST_MESSAGE = b"Z\0\0\0\5"
"""ReadyForQuery without its last byte, the transaction status."""

_ENCRYPTED_BY_GSSAPI = (
    b"SELECT encrypted FROM pg_catalog.pg_stat_gssapi WHERE pid = pg_catalog.pg_backend_pid()"
)


class Framing(Protocol):
    """Finds the rows of a COPY; `others` are the other contents that its CopyData messages may have."""

    others: ClassVar[Collection[bytes]]

    def find_rows(self, data: NDArray[np.uint8]) -> Int64s:
        """Find the rows at the beginning of `data`, up to an incomplete one or a message of another kind.

        Returns the start of the first row's message, and the end of each row's.
        """
        ...


def is_encrypted(pgconn: PGconn) -> bool:
    """Whether only libpq can read what the connection receives."""
    return pgconn.ssl_in_use or pgconn.exec_(_ENCRYPTED_BY_GSSAPI).get_value(0, 0) == b"t"


def rows_from_socket(
    pgconn: PGconn, statement: bytes, framing: Framing, stopped: Callable[[], bool]
) -> Iterator[tuple[NDArray[np.uint8], Int64s]]:
    """Yield chunks of one or more whole rows: bytes, and the edges of messages in them, as `find_rows` does.

    The connection must be idle, and not encrypted. The next chunk overwrites the last one's memory. Ends
    early once `stopped`. Raises psycopg.Error, and PROTOCOL. After an error or a stop the connection can't be
    used any more.
    """
    try:
        with socket.socket(fileno=os.dup(pgconn.socket)) as wire:
            # The copy shares its flags with libpq's socket, which is non-blocking, too.
            wire.settimeout(TICK)
            wire.sendall(query(statement))
            # With a timeout Python would ask each time before whether there is something.
            wire.setblocking(False)
            yield from _rows(_Incoming(wire, stopped), framing)
    except OSError as error:
        raise psycopg.OperationalError(str(error)) from error


class _Incoming:
    """What was received from a socket. The buffer has room for a chunk, or for the largest message so far."""

    def __init__(self, wire: socket.socket, stopped: Callable[[], bool]) -> None:
        self._wire = wire
        self._stopped = stopped
        self._readable = select.poll()
        self._readable.register(wire, select.POLLIN)
        self._buffer = np.empty(BYTES, np.uint8)
        self._kept = 0

    def receive(self) -> NDArray[np.uint8]:
        """Receive, after what was kept, until the buffer is full or nothing else comes; empty if stopped."""
        filled, view = self._kept, memoryview(self._buffer.data)
        while filled < len(view):
            size = self._receive_into(view[filled:], wait=filled == self._kept)
            filled += size
            if not size or view[filled - 6 : filled - 1] == _LAST_MESSAGE:
                break
        return self._buffer[: 0 if filled == self._kept else filled]

    def _receive_into(self, view: memoryview, *, wait: bool) -> int:
        while not self._stopped():
            try:
                size = self._wire.recv_into(view)
            except BlockingIOError:
                if not self._readable.poll(TICK * 1000) and not wait:
                    return 0
            else:
                if not size and wait:
                    raise psycopg.OperationalError("server closed the connection unexpectedly")
                return size
        return 0

    def keep(self, begun: NDArray[np.uint8]) -> None:
        """Keep the beginning of a message, in front of what is received next.

        Raises PROTOCOL for one of 2**31 bytes or more: no server sends that.
        """
        needed = size_of(begun) if len(begun) >= HEAD else HEAD
        if needed > LONGEST:
            raise undecodable(f"a message has {needed} bytes")
        begun = begun.copy()
        if needed > len(self._buffer):
            self._buffer = np.empty(needed, np.uint8)
        self._buffer[: len(begun)] = begun
        self._kept = len(begun)


def _rows(incoming: _Incoming, framing: Framing) -> Iterator[tuple[NDArray[np.uint8], Int64s]]:
    tag = None
    while tag != READY and len(data := incoming.receive()):
        while len(data):
            edges = framing.find_rows(data)
            for start in range(0, len(edges) - 1, ROWS):
                yield data, edges[start : start + ROWS + 1]
            data = data[edges[-1] :]
            size = size_of(data) if len(data) >= HEAD else HEAD
            if len(data) < size:
                break
            tag = int(data[0])
            if tag == ERROR:
                raise error_response(data[HEAD:size].tobytes())
            if tag == COPY_DATA and data[HEAD:size].tobytes() not in framing.others:
                raise undecodable("one is not a row")
            data = data[size:]
        incoming.keep(data)


def lengths_at(data: NDArray[np.uint8]) -> NDArray[np.uint32]:
    """View `data` as the lengths of messages, one that would begin at each byte."""
    return kernels.at_each_byte(data[1:], "u4")


def undecodable(reason: str) -> PgcdcError:
    """Make the error for rows that can't be decoded."""
    return PgcdcError(ErrorKind.PROTOCOL, f"could not decode the rows of a COPY: {reason}")


def size_of(message: NDArray[np.uint8]) -> int:
    """Return the size in bytes of a message, given its head."""
    return 1 + int.from_bytes(message[1:HEAD].tobytes())


def rows_from_libpq(pgconn: PGconn, statement: bytes, stopped: Callable[[], bool]) -> Iterator[list[bytes]]:
    """Yield some whole rows at a time, as libpq returns them. The rest is as for `rows_from_socket`."""
    pgconn.send_query(statement)
    wait = _Wait(pgconn, stopped)
    result = _result(pgconn, wait)
    if result is not None and result.status == ExecStatus.COPY_OUT:
        yield from _chunks_from_libpq(pgconn, wait)
        result = _result(pgconn, wait)
    while result is not None:
        if result.status != ExecStatus.COMMAND_OK:
            raise error_from_result(result)
        result = _result(pgconn, wait)


class _Wait:
    """Waits up to `TICK` seconds for something to arrive; false if stopped. `in_vain`: nothing arrived."""

    def __init__(self, pgconn: PGconn, stopped: Callable[[], bool]) -> None:
        self._pgconn = pgconn
        self._stopped = stopped
        self.in_vain = False
        self._readable = select.poll()
        self._readable.register(pgconn.socket, select.POLLIN)

    def __call__(self) -> bool:
        self.in_vain = not self._readable.poll(TICK * 1000)
        self._pgconn.consume_input()
        return not self._stopped()


def _chunks_from_libpq(pgconn: PGconn, wait: _Wait) -> Iterator[list[bytes]]:
    get, size = pgconn.get_copy_data, 0
    while size >= 0:
        rows, room = list[bytes](), BYTES
        append = rows.append
        while room > 0 and len(rows) < ROWS:
            size, row = get(1)
            if size > 0:
                append(bytes(row))
                room -= size
            elif size < 0 or not wait():
                size = -1
                break
            elif wait.in_vain:
                break
        if rows:
            yield rows


def _result(pgconn: PGconn, wait: _Wait) -> PGresult | None:
    while pgconn.is_busy():
        if not wait():
            return None
    return pgconn.get_result()
