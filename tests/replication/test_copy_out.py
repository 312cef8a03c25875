"""Rows of a COPY, read from the socket many at a time, are those that the server sent."""

import socket
import threading
from contextlib import closing
from itertools import pairwise
from types import SimpleNamespace

import numpy as np
import psycopg
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pgcdc_cli.errors import ErrorKind, PgcdcError
from pgcdc_cli.replication import copy_text as copy_text_module
from pgcdc_cli.replication.backend_messages import HEAD
from pgcdc_cli.replication.copy_out import BYTES, ROWS, Framing, rows_from_socket
from pgcdc_cli.replication.copy_text import GAP, TextRows, copy_text

SIZES = st.sampled_from([0, 1, 4, 5, 6, 7, 8, 88, 95, 250, 2555, 2556, 2557, 2811])
"""Sizes whose message length, 5 bytes more, often contains a tab, a newline or a `d`."""

rows = st.builds(lambda size, byte: byte * size + b"\n", SIZES, st.sampled_from([b"d", b"x", b"\t", b"\0"]))
READY = b"Z\0\0\0\5T"
BEGIN, END = b"H\0\0\0\7\0\0\0", b"c\0\0\0\4C\0\0\0\x0bCOPY 1\0" + READY


def message(content: bytes, tag: bytes = b"d") -> bytes:
    return tag + (len(content) + 4).to_bytes(4) + content


@given(st.lists(rows, max_size=30), rows, st.integers(0, 3000), st.sampled_from([b"N", b"c", b"d"]))
def test_all_whole_rows_before_anything_else_are_found(before, last, cut, tag):
    data = b"".join(map(message, before)) + message(last, tag)[:cut]
    whole = [*before, last] if tag == b"d" and cut >= HEAD + len(last) else before
    edges = TextRows().find_rows(np.frombuffer(data, np.uint8))
    assert [data[start:end] for start, end in pairwise(edges)] == list(map(message, whole))


def behind_gaps(some: list[bytes]) -> bytes:
    return b"".join(GAP + row for row in some)


def taken(sent: bytes, pieces: int = 1 << 16, framing: Framing | None = None) -> list[bytes]:
    """Send this in pieces to a client that asks for it, and close; return the chunks it reads."""
    server, client = socket.socketpair()

    def send() -> None:
        assert server.recv(100) == b"Q\0\0\0\x09COPY\0"
        for at in range(0, len(sent), pieces):
            server.sendall(sent[at : at + pieces])
        server.shutdown(socket.SHUT_WR)

    with server, client:
        sender = threading.Thread(target=send)
        sender.start()
        try:
            asking = SimpleNamespace(socket=client.fileno())
            chunks = rows_from_socket(asking, b"COPY", framing or TextRows(), lambda: False)
            return [data[edges[0] : edges[-1]].tobytes() for data, edges in chunks]
        finally:
            sender.join()


@given(st.lists(rows, max_size=30), st.integers(40, 3000))
def test_rows_are_found_however_they_come_and_whatever_is_between(some, pieces):
    notice = message(b"SNOTICE\0Mone\ntwo\nthree\0\0", b"N")
    sent = BEGIN + notice.join(map(message, some)) + notice + END
    assert b"".join(taken(sent, pieces)) == b"".join(map(message, some))


def test_a_row_may_be_larger_than_a_chunk_and_chunks_have_no_more_rows_than_they_may():
    some = [b"a\n", b"b" * 2 * BYTES + b"\n", *[b"\n"] * (ROWS + 1)]
    chunks = taken(BEGIN + b"".join(map(message, some)) + END)
    assert b"".join(chunks) == b"".join(map(message, some))
    assert max(chunk.count(b"\n") for chunk in chunks) <= ROWS


def test_an_error_is_the_server_s():
    error = message(b"SERROR\0VERROR\0C57014\0Mcanceling statement\0Dby hand\0\0", b"E")
    with pytest.raises(psycopg.Error, match="canceling statement") as raised:
        taken(BEGIN + message(b"1\n") + error + READY)
    assert raised.value.sqlstate == "57014"
    assert raised.value.diag.message_detail == "by hand"


def test_a_lost_connection_is_an_error():
    with pytest.raises(psycopg.OperationalError, match="closed the connection unexpectedly"):
        taken(BEGIN + message(b"1\n"))


def test_what_is_no_line_is_refused_rather_than_left_out():
    with pytest.raises(PgcdcError, match="one is not a row") as raised:
        taken(BEGIN + message(b"1\n") + message(b"two") + END)
    assert raised.value.kind is ErrorKind.PROTOCOL


def test_a_stop_ends_the_wait_for_rows():
    server, client = socket.socketpair()
    with server, client:
        server.sendall(BEGIN + message(b"1\n"))
        stop = iter([False, False, False, True])
        asking = SimpleNamespace(socket=client.fileno())
        [(data, edges)] = rows_from_socket(asking, b"COPY", TextRows(), lambda: next(stop, True))
        assert data[edges[0] : edges[-1]].tobytes() == message(b"1\n")


QUERY = b"COPY (SELECT g, repeat('x', g) FROM generate_series(1, 3000) g) TO STDOUT"


@pytest.fixture(params=[False, True], ids=["plain", "encrypted"])
def way(request, monkeypatch) -> None:
    """Read from the socket, or row by row from libpq, as if the connection were encrypted."""
    monkeypatch.setattr(copy_text_module, "is_encrypted", lambda _: request.param)


@pytest.mark.usefixtures("way")
def test_the_connection_is_as_it_was_before(database):
    with psycopg.connect(database.uri, autocommit=True) as connection:
        connection.execute("BEGIN")
        for _ in range(2):
            chunks = list(copy_text(connection.pgconn, QUERY, 2, lambda: False))
            rows = [(b"%d" % g, b"x" * g) for g in range(1, 3001)]
            columns = (map(pa.Array.to_pylist, columns) for _, columns in chunks)
            assert [row for some in columns for row in zip(*some, strict=True)] == rows
            assert sum(size for size, _ in chunks) == len(behind_gaps([b"%b\t%b\n" % row for row in rows]))
        assert connection.execute("SELECT count(*) FROM pg_class WHERE false").fetchall() == [(0,)]
        assert connection.info.transaction_status == psycopg.pq.TransactionStatus.INTRANS


@pytest.mark.usefixtures("way")
def test_an_error_in_the_midst_of_rows_is_the_server_s(database):
    query = b"COPY (SELECT 1 / (20000 - g) FROM generate_series(1, 20000) g) TO STDOUT"
    with closing(psycopg.connect(database.uri, autocommit=True)) as connection:
        with pytest.raises(psycopg.Error, match="division by zero") as raised:
            list(copy_text(connection.pgconn, query, 1, lambda: False))
        assert raised.value.sqlstate == "22012"


@pytest.mark.usefixtures("way")
def test_who_looks_at_no_more_rows_waits_for_none(database):
    """This query would go on sending rows for hours."""
    query = b"COPY (SELECT g, pg_sleep(0.01) FROM generate_series(1, 1000000) g) TO STDOUT"
    with closing(psycopg.connect(database.uri, autocommit=True)) as connection:
        chunks = copy_text(connection.pgconn, query, 2, lambda: False)
        _, (numbers, _) = next(chunks)
        assert numbers[0].as_py() == b"1"
        chunks.close()
