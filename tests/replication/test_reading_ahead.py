"""While a batch is decoded, more is read from the server, up to a limit; the output is the same."""

import os
import signal
import time
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from pgcdc_cli.errors import ErrorKind, PgcdcError
from pgcdc_cli.frames import MESSAGE_TAG, XLOGDATA_HEADER
from pgcdc_cli.lsn import Lsn
from pgcdc_cli.replication.connection import ReplicationConnection
from pgcdc_cli.replication.copy_both import ReplicationStream

OPTIONS = {"proto_version": "1", "publication_names": "p"}
ROWS = 20_000


@pytest.fixture
def slot(database):
    database.execute("CREATE TABLE t (id int PRIMARY KEY, body text)")
    database.execute("CREATE PUBLICATION p FOR TABLE t")
    slot = database.create_slot()
    database.execute("INSERT INTO t SELECT g, repeat('x', 400) FROM generate_series(1, %s) g", (ROWS,))
    return slot


@contextmanager
def streaming(uri: str, slot: str, *, status_interval: float = 10.0) -> Iterator[ReplicationStream]:
    with ReplicationConnection(uri, status_interval=status_interval) as connection:
        yield connection.start(slot, Lsn(0), OPTIONS.items())


def inserts(stream: ReplicationStream, *, busy: float = 0.0) -> list[bytes]:
    """The messages of all rows; after each batch the caller is busy for so many seconds."""
    messages: list[bytes] = []
    while len(messages) < ROWS:
        received = stream.receive(1000, 10.0)
        messages += [frame[XLOGDATA_HEADER:] for frame in received.frames if frame[MESSAGE_TAG] == b"I"]
        with stream.reading_ahead():
            time.sleep(busy)
    return messages


def test_what_was_read_ahead_comes_in_the_servers_order(database, slot):
    twin = database.copy_slot(slot)
    with streaming(database.uri, slot) as stream:
        calm = inserts(stream)
    with streaming(database.uri, twin) as stream:
        assert inserts(stream, busy=0.01) == calm


def walsender(database, slot: str) -> int:
    query = "SELECT active_pid FROM pg_replication_slots WHERE slot_name = %s"
    return database.execute(query, (slot,)).fetchone()[0]


@contextmanager
def stopped(pid: int) -> Iterator[None]:
    os.kill(pid, signal.SIGSTOP)
    try:
        yield
    finally:
        os.kill(pid, signal.SIGCONT)


def wait_until_the_server_waits(database, slot: str) -> None:
    """Wait until the walsender has had no room to write for half a second."""
    query = (
        "SELECT wait_event FROM pg_stat_activity JOIN pg_replication_slots ON pid = active_pid"
        " WHERE slot_name = %s"
    )
    waited, deadline = 0, time.monotonic() + 60
    while waited < 25:
        assert time.monotonic() < deadline
        waited = waited + 1 if database.execute(query, (slot,)).fetchone() == ("WalSenderWriteData",) else 0
        time.sleep(0.02)


@pytest.mark.usefixtures("slot")
@pytest.mark.parametrize(("rows", "size"), [(200_000, 100), (200, 400_000)])
def test_a_server_goes_on_while_the_caller_is_busy_but_not_for_ever(database, rows, size):
    slot = database.create_slot()
    insert = "INSERT INTO t SELECT -g, repeat('x', %s) FROM generate_series(1, %s) g"
    database.execute(insert, (size, rows))
    with streaming(database.uri, slot) as stream:
        with stream.reading_ahead():
            wait_until_the_server_waits(database, slot)
        with stopped(walsender(database, slot)):
            arrived = 0
            while not (received := stream.receive(rows, 0.1)).empty:
                arrived += sum(map(len, received.frames))
        assert 1 << 20 < arrived < 9 << 20


def terminate(database, slot: str) -> None:
    database.execute("SELECT pg_terminate_backend(%s)", (walsender(database, slot),))


def test_a_nap_lets_the_server_send_more_than_a_unix_sockets_buffer_holds(database, slot):
    """The buffer has room for some 280 frames, however small they are."""
    with streaming(database.uri, slot) as stream:
        wait_until_the_server_waits(database, slot)
        stream.nap(1.0)
        with stopped(walsender(database, slot)):
            assert len(stream.receive(ROWS, 0.0).frames) > 1000


def test_a_connection_that_is_lost_during_a_nap_fails_at_the_next_receive(database, slot):
    with streaming(database.uri, slot) as stream:
        stream.receive(ROWS, 10.0)
        terminate(database, slot)
        stream.nap(1.0)
        with pytest.raises(PgcdcError) as failure:
            inserts(stream)
        assert failure.value.kind in {ErrorKind.NOT_READY, ErrorKind.CONNECTION}


@pytest.mark.parametrize("status_interval", [10.0, 0.05], ids=["found by us", "found by the feedback thread"])
def test_a_connection_that_is_lost_meanwhile_fails_at_the_next_receive(database, slot, status_interval):
    with streaming(database.uri, slot, status_interval=status_interval) as stream:
        assert not stream.receive(1, 10.0).closed
        with stream.reading_ahead():
            terminate(database, slot)
            time.sleep(0.5)
        with pytest.raises(PgcdcError) as failure:
            inserts(stream)
        # The server says why, but the system may drop that if data is sent to the closed connection.
        assert failure.value.kind in {ErrorKind.NOT_READY, ErrorKind.CONNECTION}


def test_over_tcp_the_kernel_has_room_enough(database, slot, proxy):
    with streaming(proxy.uri(database.name), slot) as stream:
        assert len(inserts(stream)) == ROWS
