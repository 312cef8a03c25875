"""Status updates: what they say, when they are sent, and that a busy data thread never delays them."""

import socket
import threading
import time
from contextlib import suppress

import psycopg
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from processes import wait_until
from psycopg.conninfo import make_conninfo
from scripted_walsender import keepalive, xlogdata

from pgcdc_cli.errors import ErrorKind, PgcdcError
from pgcdc_cli.lsn import Lsn
from pgcdc_cli.replication.connection import ReplicationConnection, update_interval
from pgcdc_cli.replication.copy_both import NEVER, Feedback

OPTIONS = {"proto_version": "1", "publication_names": '"p"'}


def impatient(database, timeout="4s") -> str:
    return make_conninfo(database.uri, options=f"-c wal_sender_timeout={timeout}")


def reader_pid(database, slot) -> int | None:
    query = "SELECT active_pid FROM pg_replication_slots WHERE slot_name = %s"
    return database.execute(query, (slot,)).fetchone()[0]


@pytest.mark.parametrize(
    ("status", "timeout", "expected"),
    [(10, 60, 10), (10, 6, 2), (0, 60, 20), (5, 0, 5), (0, 0, NEVER)],
)
def test_updates_come_at_the_smaller_of_status_interval_and_a_third_of_the_timeout(status, timeout, expected):
    assert update_interval(status, timeout) == expected


@pytest.fixture(params=[False, True], ids=["socket", "libpq"])
def connected(walsender, request):
    """A function that starts streaming from a scripted walsender; returns the walsender and the stream."""
    opened = []

    def connect(status_interval=1000.0, wal_receiver_timeout=60.0, lsn=0, **options):
        server = walsender(encrypted=request.param, **options)
        connection = ReplicationConnection(
            server.uri, status_interval=status_interval, wal_receiver_timeout=wal_receiver_timeout
        )
        opened.append(connection)
        return server, connection.start("s", Lsn(lsn), OPTIONS.items())

    yield connect
    for connection in opened:
        connection.close()


def test_the_first_update_says_where_the_slot_is_and_never_zero(connected):
    server, stream = connected(confirmed="0/123", status_interval=0.05)
    server.send(xlogdata(0x200, b"B"))
    while stream.receive(10, 1.0).empty:
        pass
    assert {(written, flushed) for _, written, flushed in server.wait_for(3)} == {(0x123, 0x123)}


def test_the_first_update_says_where_the_stream_began_if_that_is_later(connected):
    server, _ = connected(confirmed="0/123", lsn=0x456, status_interval=0.05)
    assert server.wait_for(1)[0][1:] == (0x456, 0x456)


def test_a_request_is_answered_at_once_with_what_is_durable(connected):
    """Without the request the first update would come after a thousand seconds."""
    server, stream = connected()
    stream.confirm(Lsn(0x900), Lsn(0x500))
    server.send(xlogdata(0x950, b"B") + keepalive(0xA00, reply=True))
    stream.receive(10, 5.0)
    assert server.wait_for(1)[0][1:] == (0x900, 0x500)


def test_a_request_is_answered_once(connected):
    server, stream = connected()
    server.send(keepalive(0xA00, reply=True))
    while stream.receive(10, 1.0).keepalive is None:
        pass
    assert [stream.receive(10, 0.2).empty for _ in range(2)] == [True, True]
    assert len(server.wait_for(1)) == 1


def test_a_keepalive_without_a_request_is_not_answered(connected):
    server, stream = connected()
    server.send(keepalive(0xA00))
    while stream.receive(10, 1.0).keepalive is None:
        pass
    stream.confirm(Lsn(0x900), Lsn(0x500))
    server.send(keepalive(0xB00, reply=True))
    stream.receive(10, 5.0)
    assert server.wait_for(1)[0][1:] == (0x900, 0x500)


def test_confirming_waits_for_the_next_update(connected):
    server, stream = connected()
    stream.confirm(Lsn(0x500), Lsn(0x500))
    stream.confirm(Lsn(0x600), Lsn(0x600))
    server.send(keepalive(0xA00, reply=True))
    stream.receive(10, 5.0)
    assert server.wait_for(1)[0][1:] == (0x600, 0x600)


def test_finish_sends_what_was_confirmed_last_and_then_copydone(connected):
    server, stream = connected()
    stream.confirm(Lsn(0x700), Lsn(0x600))
    assert stream.finish()
    assert server.statuses()[-1][1:] == (0x700, 0x600)
    assert server.heard[-1][1] == b"c"


def test_nothing_is_sent_behind_copydone(connected):
    server, stream = connected(status_interval=0.01)
    server.reading.clear()
    stream.finish(timeout=0.5)
    server.reading.set()
    wait_until(lambda: b"c" in [tag for _, tag, _ in server.heard])
    stream.stop()
    assert server.heard[-1][1] == b"c"


def test_no_update_is_sent_where_there_is_no_interval(connected):
    server, stream = connected(status_interval=0)
    stream.receive(10, 0.3)
    assert server.statuses() == []


def test_updates_go_on_at_a_third_of_the_timeout_while_the_data_thread_is_busy(connected):
    server, _ = connected(status_interval=1000, wal_sender_timeout=600)
    assert len(server.wait_for(9)) >= 9


def test_a_data_thread_that_never_lets_go_of_the_lock_for_long_sends_too(connected):
    server, stream = connected(status_interval=0.1)
    stop = threading.Event()
    flood = threading.Thread(
        target=lambda: [server.send(xlogdata(1, b"x" * 50) * 500) for _ in iter(stop.is_set, True)]
    )
    flood.start()
    deadline = time.monotonic() + 30
    while len(server.statuses()) < 10:
        assert time.monotonic() < deadline, "in the time of 300 updates"
        stream.receive(8192, 1.0)
    stop.set()
    while not stream.receive(8192, 0.5).empty:
        pass
    flood.join()


def test_a_wire_that_takes_nothing_blocks_nobody_and_updates_go_on_afterwards(connected):
    server, stream = connected(status_interval=0.01)
    server.reading.clear()
    fill_the_wire(server, stream)
    assert stream.receive(10, 0.1).empty
    stream.confirm(Lsn(0x800), Lsn(0x800))
    server.reading.set()
    wait_until(lambda: server.statuses()[-1:] and server.statuses()[-1][1:] == (0x800, 0x800))


def fill_the_wire(server, stream) -> None:
    """Send updates until nobody reads them, and none has gone out for half a second."""
    feedback = stream._feedback
    full_since = None
    while full_since is None or time.monotonic() - full_since < 0.5:
        with stream._lock:
            feedback.reply()
            full = feedback._unsent and server.idle.is_set()
            full_since = (full_since or time.monotonic()) if full else None


def test_an_error_in_the_feedback_thread_reaches_the_data_thread(connected, monkeypatch):
    _, stream = connected(status_interval=0.05)
    monkeypatch.setattr(stream._feedback, "_put", lambda: 1 / 0)
    stream._feedback._thread.join(5)
    with pytest.raises(ZeroDivisionError):
        stream.receive(10, 1.0)


def test_a_lost_connection_found_by_the_feedback_thread_is_worth_another_try(connected, monkeypatch):
    def lost() -> None:
        raise psycopg.OperationalError("no connection to the server")

    _, stream = connected(status_interval=0.05)
    monkeypatch.setattr(stream._feedback, "_put", lost)
    stream._feedback._thread.join(5)
    with pytest.raises(PgcdcError, match="could not send a status update: no connection") as caught:
        stream.receive(10, 1.0)
    assert caught.value.kind is ErrorKind.CONNECTION


class RecordingWire:
    """The part of a FrameSource that Feedback uses; some sends are refused, some are not flushed at once.

    `most` is the largest number of updates that waited at the same time.
    """

    def __init__(self, end, moods=()) -> None:
        self.socket = end.fileno()
        self.moods = iter(moods)
        self.sent = []
        self.waiting = self.most = self.flushes = 0

    def put_copy_data(self, update):
        mood = next(self.moods, "take")
        if mood == "refuse":
            return False
        self.sent.append((int.from_bytes(update[1:9], "big"), int.from_bytes(update[9:17], "big")))
        self.waiting += 1
        self.most = max(self.most, self.waiting)
        return True

    def flush(self):
        self.flushes += 1
        if next(self.moods, "take") == "hold":
            return False
        self.waiting = 0
        return True


@settings(deadline=None, max_examples=60)
@given(
    start=st.integers(1, 1000),
    confirms=st.lists(st.tuples(st.integers(0, 2000), st.integers(0, 2000)), max_size=20),
    moods=st.lists(st.sampled_from(["take", "take", "refuse", "hold"]), max_size=40),
)
def test_positions_never_go_down_are_never_zero_and_never_beyond_what_is_durable(start, confirms, moods):
    """Nor do updates pile up in libpq while the wire takes none."""
    ours, theirs = socket.socketpair()
    with ours, theirs:
        wire = RecordingWire(ours, moods)
        lock = threading.Lock()
        feedback = Feedback(wire, lock, Lsn(start), NEVER)
        durable = start
        for written, flushed in confirms:
            feedback.confirm(Lsn(written), Lsn(flushed))
            durable = max(durable, flushed)
            with lock:
                feedback.reply()
            assert feedback.flush_lsn == durable
            assert all(0 < f <= durable and f <= w for w, f in wire.sent)
        assert wire.most <= 1
        wire.moods = iter(())
        feedback.finish()
        assert wire.sent == sorted(wire.sent)
        assert [f for _, f in wire.sent] == sorted(f for _, f in wire.sent)
        assert wire.sent[-1][1] == durable


def test_an_update_that_libpq_refused_does_not_wait_for_the_next_interval():
    ours, theirs = socket.socketpair()
    with ours, theirs:
        wire, lock = RecordingWire(ours, ["refuse"]), threading.Lock()
        feedback = Feedback(wire, lock, Lsn(1), NEVER)
        with lock:
            feedback.reply()
            assert not wire.sent
            feedback.send_if_due()
        assert wire.sent == [(1, 1)]
        feedback.stop()


def test_a_full_wire_is_not_flushed():
    """PQflush would read into libpq's buffer meanwhile, which nobody may be emptying."""
    ours, theirs = socket.socketpair()
    with ours, theirs:
        ours.setblocking(False)
        with suppress(BlockingIOError):
            while ours.send(b"x" * 4096):
                pass
        wire, lock = RecordingWire(ours), threading.Lock()
        feedback = Feedback(wire, lock, Lsn(1), NEVER)
        with lock:
            feedback.reply()
        assert (wire.sent, wire.flushes) == ([(1, 1)], 0)
        feedback.stop()


def test_the_connection_outlives_a_data_thread_that_is_blocked(database, table, stream):
    one = stream(impatient(database), table, status_interval=1000).start()
    pid = reader_pid(database, table)
    time.sleep(9)
    database.execute("INSERT INTO t VALUES (1)")
    assert one.read(commits=1).tags == "BRIC"
    assert reader_pid(database, table) == pid


def test_it_does_so_while_the_server_has_much_to_send_that_nobody_reads(database, table, stream):
    database.execute("INSERT INTO t SELECT g, repeat('x', 200) FROM generate_series(1, 150000) g")
    one = stream(impatient(database), table, status_interval=1000).start()
    pid = reader_pid(database, table)
    one.frames += one.stream.receive(10, 1.0).frames
    time.sleep(9)
    assert one.read(commits=1).tags == "BR" + "I" * 150_000 + "C"
    assert reader_pid(database, table) == pid


def test_without_the_feedback_thread_the_server_would_give_up(database, table, stream):
    one = stream(impatient(database, "1s"), table, status_interval=1000).start()
    one.stream._feedback.stop()
    wait_until(lambda: reader_pid(database, table) is None)
    with pytest.raises(PgcdcError) as caught:
        one.read(commits=1)
    assert caught.value.kind is ErrorKind.CONNECTION


def test_the_slot_is_never_beyond_what_was_confirmed(database, table, stream):
    one = stream(database.uri, table, status_interval=0.02).start()
    start = database.confirmed(table)
    for number in range(1, 6):
        database.execute("INSERT INTO t VALUES (%s)", (number,))
        one.read(commits=number)
        time.sleep(0.15)
        assert database.confirmed(table) == (start if number == 1 else Lsn(one.commit_ends[-2]))
        one.stream.confirm(Lsn(one.commit_ends[-1]), Lsn(one.commit_ends[-1]))
        wait_until(lambda: database.confirmed(table) == one.commit_ends[-1])


def test_confirming_less_than_before_takes_nothing_back(database, table, stream):
    database.execute("INSERT INTO t VALUES (1)")
    one = stream(database.uri, table).start().read(commits=1)
    end = Lsn(one.commit_ends[0])
    one.stream.confirm(end, end)
    one.stream.confirm(Lsn(1), Lsn(1))
    assert one.stream.finish()
    assert database.confirmed(table) == end


def test_starting_without_a_position_takes_nothing_back_either(database, table, stream):
    start = database.confirmed(table)
    database.execute("SELECT pg_replication_slot_advance(%s, pg_current_wal_lsn())", (table,))
    advanced = database.confirmed(table)
    assert advanced >= start
    one = stream(database.uri, table).start()
    assert one.stream.finish()
    assert database.confirmed(table) == advanced
