"""What COPY ... TO STDOUT sends: rows as they come, many at a time.

Where the connection is encrypted, libpq gives them one by one, and nothing but taking them is done per row:
libpq documentation, "Functions Associated with the COPY Command".
"""

import select
from collections.abc import Callable, Iterator
from typing import TypeVar

from psycopg.errors import error_from_result
from psycopg.pq import ExecStatus
from psycopg.pq.abc import PGconn, PGresult

from pgcdc_cli.replication.copy_rows import BYTES, ROWS, TICK, rows_from_socket

Read = TypeVar("Read")

_ENCRYPTED_BY_GSSAPI = (
    b"SELECT encrypted FROM pg_catalog.pg_stat_gssapi WHERE pid = pg_catalog.pg_backend_pid()"
)


def copy_out(
    pgconn: PGconn, statement: bytes, read: Callable[[memoryview], Read], stopped: Callable[[], bool]
) -> Iterator[Read]:
    """Yield what `read` makes of chunks of whole rows, none of them empty.

    Once `stopped` they end early. Raises psycopg.Error, and what `read` does. After that, or a stop, the
    connection is of no more use.
    """
    take = _rows_from_libpq if _encrypted(pgconn) else rows_from_socket
    yield from map(read, take(pgconn, statement, stopped))


def _encrypted(pgconn: PGconn) -> bool:
    return pgconn.ssl_in_use or pgconn.exec_(_ENCRYPTED_BY_GSSAPI).get_value(0, 0) == b"t"


def _rows_from_libpq(pgconn: PGconn, statement: bytes, stopped: Callable[[], bool]) -> Iterator[memoryview]:
    pgconn.send_query(statement)
    wait = _Wait(pgconn, stopped)
    result = _result(pgconn, wait)
    if result is not None and result.status == ExecStatus.COPY_OUT:
        yield from _chunks(pgconn, wait)
        result = _result(pgconn, wait)
    while result is not None:
        if result.status != ExecStatus.COMMAND_OK:
            raise error_from_result(result)
        result = _result(pgconn, wait)


class _Wait:
    """Waits a while for something to arrive; false if stopped. `in_vain` says that nothing did."""

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


def _chunks(pgconn: PGconn, wait: _Wait) -> Iterator[memoryview]:
    rows: list[bytes] = []
    append, get = rows.append, pgconn.get_copy_data
    size = room = 0
    while size >= 0:
        room = BYTES
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
            yield memoryview(b"".join(rows))
            rows.clear()


def _result(pgconn: PGconn, wait: _Wait) -> PGresult | None:
    while pgconn.is_busy():
        if not wait():
            return None
    return pgconn.get_result()
