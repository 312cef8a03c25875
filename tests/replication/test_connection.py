"""Commands and streams on real servers."""

import threading
import time
import uuid

import pytest
from psycopg.conninfo import make_conninfo
from scripted_walsender import xlogdata

from pgcdc_cli.errors import ErrorKind, PgcdcError
from pgcdc_cli.lsn import Lsn
from pgcdc_cli.replication.connection import ReplicationConnection


@pytest.fixture
def connection(database):
    with ReplicationConnection(database.uri) as connection:
        yield connection


def current_lsn(database) -> Lsn:
    return Lsn.parse(database.execute("SELECT pg_current_wal_lsn()::text").fetchone()[0])


def new_name() -> str:
    return f"s_{uuid.uuid4().hex[:12]}"


def test_the_server_identifies_itself(database, connection):
    identity = connection.identify_system()
    system_id = database.execute("SELECT system_identifier::text FROM pg_control_system()").fetchone()[0]
    assert (identity.system_id, identity.timeline, identity.database) == (system_id, 1, database.name)
    assert 0 < identity.wal_position <= current_lsn(database)
    assert connection.server_version // 10000 == database.server.version


def test_settings_are_shown_as_the_server_prints_them(connection):
    assert connection.show("wal_level") == "logical"
    assert connection.show("TimeZone") == "UTC"
    with pytest.raises(PgcdcError, match='could not show "no such thing"'):
        connection.show("no such thing")


def test_a_new_slot_has_a_name_and_a_consistent_point(database, connection):
    name = new_name()
    before = current_lsn(database)
    created, point = connection.create_slot(name)
    assert created == name
    assert before <= point <= current_lsn(database)
    assert database.confirmed(name) == point
    connection.drop_slot(name)
    assert database.execute("SELECT FROM pg_replication_slots WHERE slot_name = %s", (name,)).fetchall() == []


def test_slots_are_made_as_asked(database, connection):
    two_phase, temporary = new_name(), new_name()
    connection.create_slot(two_phase, two_phase=True)
    connection.create_slot(temporary, temporary=True)
    rows = database.execute(
        "SELECT slot_name, temporary, two_phase, plugin FROM pg_replication_slots WHERE database = %s",
        (database.name,),
    )
    assert sorted(rows) == sorted(
        [(two_phase, False, True, "pgoutput"), (temporary, True, False, "pgoutput")]
    )


def test_a_failover_slot_needs_17(database, connection):
    if database.server.version < 17:
        with pytest.raises(PgcdcError, match="failover slots need PostgreSQL 17") as caught:
            connection.create_slot(new_name(), failover=True)
        assert caught.value.kind is ErrorKind.USAGE
    else:
        name, _ = connection.create_slot(new_name(), failover=True)
        query = "SELECT failover FROM pg_replication_slots WHERE slot_name = %s"
        assert database.execute(query, (name,)).fetchone() == (True,)


def test_a_slot_that_is_there_is_not_made_again(database, connection):
    slot = database.create_slot()
    with pytest.raises(PgcdcError, match=f'could not create slot "{slot}": .*already exists') as caught:
        connection.create_slot(slot)
    assert caught.value.kind is ErrorKind.SLOT_EXISTS


@pytest.mark.parametrize(("name", "plugin"), [("Bad Name", "pgoutput"), ("good_name", "no_such_plugin")])
def test_a_bad_slot_name_or_plugin_is_a_usage_error(connection, name, plugin):
    with pytest.raises(PgcdcError, match="could not create slot") as caught:
        connection.create_slot(name, plugin)
    assert caught.value.kind is ErrorKind.USAGE


def test_dropping_what_is_not_there_says_so(connection):
    with pytest.raises(PgcdcError, match=r'could not drop slot "nix": .*does not exist') as caught:
        connection.drop_slot("nix")
    assert caught.value.kind is ErrorKind.SLOT_MISSING


def test_dropping_a_slot_in_use_fails_or_waits_as_asked(database, table, stream):
    reader = stream(database.uri, table).start()
    with ReplicationConnection(database.uri) as other:
        with pytest.raises(PgcdcError, match="is active for PID") as caught:
            other.drop_slot(table)
        assert caught.value.kind is ErrorKind.SLOT_ACTIVE
        waiting = threading.Thread(target=other.drop_slot, args=(table,), kwargs={"wait": True})
        waiting.start()
        waiting.join(0.3)
        assert waiting.is_alive()
        reader.connection.close()
        waiting.join()


def test_a_stream_gives_the_frames_in_order(database, table, stream):
    with database.connection.transaction():
        database.execute("INSERT INTO t SELECT g, g FROM generate_series(1, 1000) g")
        database.execute("UPDATE t SET v = 'x' WHERE id = 1")
    database.execute("DELETE FROM t WHERE id = 2")
    tags = stream(database.uri, table).start().read(commits=2).tags
    assert tags == "BR" + "I" * 1000 + "UC" + "BDC"


@pytest.mark.parametrize("limit", [1, 7, 8192])
def test_a_batch_has_no_more_frames_than_asked_for(database, table, stream, limit):
    database.execute("INSERT INTO t SELECT g FROM generate_series(1, 100) g")
    one = stream(database.uri, table).start()
    while "C" not in one.tags:
        received = one.stream.receive(limit, 1.0)
        assert len(received.frames) <= limit
        one.frames += received.frames
    assert one.tags == "BR" + "I" * 100 + "C"


def test_a_value_larger_than_any_buffer_comes_whole(database, table, stream):
    database.execute("INSERT INTO t VALUES (1, repeat('x', 30000000))")
    frames = stream(database.uri, table).start().read(commits=1).frames
    assert [len(f) > 30_000_000 for f in frames] == [False, False, True, False]


def test_wide_rows_end_a_batch_early(database, table, stream):
    database.execute("INSERT INTO t SELECT g, repeat('x', 1000000) FROM generate_series(1, 60) g")
    one = stream(database.uri, table).start()
    sizes = []
    while "C" not in one.tags:
        received = one.stream.receive(8192, 1.0)
        sizes.append(sum(map(len, received.frames)))
        one.frames += received.frames
    assert sum(sizes) > 60_000_000
    assert max(sizes) < 20_000_000


def test_an_idle_stream_waits_as_long_as_asked_and_no_longer(database, table, stream):
    """The duration is the promise here; up to a hundred times as long is fine on a busy machine."""
    asked = 0.3
    one = stream(database.uri, table).start().read_to(0)
    began = time.monotonic()
    while not one.stream.receive(10, asked).empty:
        began = time.monotonic()
    assert 0.9 * asked < time.monotonic() - began < 100 * asked


def test_frames_end_a_wait(walsender):
    """Nothing else could: this walsender sends no keepalives, and the wait would last for days."""
    server, sent = walsender(), xlogdata(1, b"B")
    with ReplicationConnection(server.uri, status_interval=1000) as connection:
        stream = connection.start("s", Lsn(0), {"proto_version": "1", "publication_names": '"p"'}.items())
        timer = threading.Timer(0.5, server.send, (sent,))
        timer.start()
        assert len(stream.receive(10, 1_000_000.0).frames) == 1
        timer.join()


def test_finishing_leaves_the_slot_where_it_was_confirmed_and_sends_nothing_twice(database, table, stream):
    database.execute("INSERT INTO t VALUES (1)")
    database.execute("INSERT INTO t VALUES (2)")
    first = stream(database.uri, table, status_interval=1000).start().read(commits=2)
    end = Lsn(first.commit_ends[-1])
    first.stream.confirm(end, end)
    assert first.stream.finish()
    assert database.confirmed(table) == end
    first.connection.close()
    database.execute("INSERT INTO t VALUES (3)")
    second = stream(database.uri, table, lsn=end).start().read(commits=1)
    assert second.tags == "BRIC"


def test_what_is_not_confirmed_comes_again(database, table, stream):
    database.execute("INSERT INTO t VALUES (1)")
    database.execute("INSERT INTO t VALUES (2)")
    first = stream(database.uri, table).start().read(commits=2)
    end = Lsn(first.commit_ends[0])
    first.stream.confirm(Lsn(first.commit_ends[1]), end)
    assert first.stream.finish()
    assert database.confirmed(table) == end
    first.connection.close()
    assert stream(database.uri, table).start().read(commits=1).tags == "BRIC"


def test_the_slot_is_free_as_soon_as_the_stream_is_finished(database, table, stream):
    for _ in range(5):
        one = stream(database.uri, table).start()
        assert one.stream.finish()
        one.connection.close()


def test_finishing_in_the_middle_of_a_transaction_leaves_its_rest_unread(
    database, table, stream, monkeypatch
):
    """A row filter makes the server slower than its reader: unless that pauses, all of the rest comes."""
    database.execute("ALTER PUBLICATION p SET TABLE t WHERE (length(repeat(v, 2000)) > 0)")
    database.execute("INSERT INTO t VALUES (0, 'x')")
    database.execute("INSERT INTO t SELECT g, repeat('x', 25) FROM generate_series(1, 10000) g")
    one = stream(database.uri, table).start().read(commits=1)
    while len(one.frames) < 1000:
        one.frames += one.stream.receive(1000, 1.0).frames
    end = Lsn(one.commit_ends[0])
    one.stream.confirm(end, end)
    take, unread = one.stream._frames.take, []
    monkeypatch.setattr(
        one.stream._frames, "take", lambda limit: unread.append(received := take(limit)) or received
    )
    assert one.stream.finish(timeout=60)
    one.frames += [frame for received in unread for frame in received.frames]
    assert one.commit_ends == [end]
    assert database.confirmed(table) == end


def test_a_stream_begins_where_it_is_told(database, table, stream):
    database.execute("INSERT INTO t VALUES (1)")
    between = current_lsn(database)
    database.execute("INSERT INTO t VALUES (2)")
    assert stream(database.uri, table, lsn=between).start().read_to(current_lsn(database)).tags == "BRIC"


@pytest.mark.parametrize("encrypted", [False, True])
def test_a_stream_does_not_begin_beyond_where_it_is_told(database, table, stream, monkeypatch, encrypted):
    """Another process may move the slot until the moment in which the stream begins."""
    one = stream(database.uri, table, lsn=database.confirmed(table))
    looked = one.connection._before_start()
    monkeypatch.setattr(one.connection, "_before_start", lambda: looked._replace(encrypted=encrypted))
    database.execute("INSERT INTO t VALUES (1)")
    database.execute("SELECT pg_replication_slot_advance(%s, pg_current_wal_lsn())", (table,))
    with pytest.raises(PgcdcError) as caught:
        one.start()
    assert caught.value.kind is ErrorKind.SLOT_ACTIVE
    moved = f"another process has moved it to {database.confirmed(table)}"
    assert caught.value.message == f'could not start streaming from slot "{table}" at {one.lsn}: {moved}'
    one.connection.close()
    again = stream(database.uri, table, lsn=database.confirmed(table)).start()
    database.execute("INSERT INTO t VALUES (2)")
    assert again.read(commits=1).tags == "BRIC"


def test_a_copy_begins_where_its_slot_was_by_then(database, table, stream):
    """To look at a slot is no harm while another process reads it."""
    one = stream(database.uri, table, lsn=database.confirmed(table))
    database.execute("INSERT INTO t VALUES (1)")
    database.execute("SELECT pg_replication_slot_advance(%s, pg_current_wal_lsn())", (table,))
    one.slot = one.connection.temporary_copy(table)
    one.start()
    database.execute("INSERT INTO t VALUES (2)")
    assert one.read(commits=1).tags == "BRIC"


def test_options_reach_the_plugin(database, table, stream):
    one = stream(database.uri, table)
    one.options["messages"] = "true"
    one.start()
    database.execute("SELECT pg_logical_emit_message(true, 'prefix', 'content')")
    assert one.read(commits=1).tags == "BMC"


def test_names_that_need_quotes_work(database, stream):
    database.execute("CREATE TABLE q (id int PRIMARY KEY)")
    database.execute('CREATE PUBLICATION "a ""b"", c\'s" FOR TABLE q')
    slot = database.create_slot()
    database.execute("INSERT INTO q VALUES (1)")
    one = stream(database.uri, slot)
    one.options["publication_names"] = '"a ""b"", c\'s"'
    assert one.start().read(commits=1).tags == "BRIC"


def test_the_server_sees_who_reads(database, table, stream):
    stream(database.uri, table).start()
    named = stream(make_conninfo(database.uri, application_name="mine"), database.create_slot()).start()
    named.read_to(0)
    names = database.execute(
        "SELECT application_name FROM pg_stat_replication r"
        " JOIN pg_replication_slots s ON r.pid = s.active_pid WHERE s.database = %s ORDER BY 1",
        (database.name,),
    ).fetchall()
    assert names == [("mine",), ("pgcdc",)]


def test_a_promoted_standby_tells_where_the_timelines_part(own_server):
    server = own_server(18)
    assert timeline_history(server) == (1, [])
    (server.data / "standby.signal").touch()
    with (server.data / "postgresql.conf").open("a") as conf:
        conf.write("restore_command = 'false'\n")
    server.pg_ctl("restart")
    server.pg_ctl("promote")
    timeline, history = timeline_history(server)
    assert timeline == 2
    assert [t for t, _ in history] == [1]
    assert history[0][1] > 0


def timeline_history(server) -> tuple[int, list[tuple[int, Lsn]]]:
    with ReplicationConnection(server.uri()) as connection:
        timeline = connection.identify_system().timeline
        return timeline, connection.timeline_history(timeline)
