"""What COPY ... TO STDOUT sends: rows as they come, many at a time.

libpq documentation, "Functions Associated with the COPY Command". The server sends each row by itself, and
nothing but taking it is done per row.
"""

import select
from collections.abc import Iterator

from psycopg.errors import error_from_result
from psycopg.pq import ExecStatus
from psycopg.pq.abc import PGconn, PGresult

ROWS, BYTES = 8192, 1 << 20
"""What ends a chunk; one row alone may be larger."""


def copy_out(pgconn: PGconn, statement: bytes) -> Iterator[bytes]:
    """Yield the rows in chunks of whole ones, none of them empty; raises psycopg.Error."""
    pgconn.send_query(statement)
    readable = select.poll()
    readable.register(pgconn.socket, select.POLLIN)
    result = _result(pgconn, readable)
    if result is not None and result.status == ExecStatus.COPY_OUT:
        yield from _chunks(pgconn, readable)
        result = _result(pgconn, readable)
    while result is not None:
        if result.status != ExecStatus.COMMAND_OK:
            raise error_from_result(result)
        result = _result(pgconn, readable)


def _chunks(pgconn: PGconn, readable: select.poll) -> Iterator[bytes]:
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
            elif size == 0:
                _wait(pgconn, readable)
            else:
                break
        if rows:
            yield b"".join(rows)
            rows.clear()


def _result(pgconn: PGconn, readable: select.poll) -> PGresult | None:
    while pgconn.is_busy():
        _wait(pgconn, readable)
    return pgconn.get_result()


def _wait(pgconn: PGconn, readable: select.poll) -> None:
    readable.poll()
    pgconn.consume_input()
