"""Slots and publications that are dropped or invalidated: what was not written is never confirmed."""

import re
import signal

import psycopg
import pytest
from processes import wait_until
from servers import VERSIONS, wait_until_free
from stream_runs import NOW, SMALL, delivers, end_of_log, in_directory, insert, refused, stream


@pytest.mark.parametrize("version", VERSIONS)
def test_an_invalidated_slot(own_server, tmp_path, version):
    server = own_server(
        version, {"max_slot_wal_keep_size": "1MB", "min_wal_size": "32MB", "max_wal_size": "32MB"}
    )
    with psycopg.connect(server.uri(), autocommit=True) as admin:
        admin.execute(SMALL)
        admin.execute("SELECT pg_create_logical_replication_slot('s', 'pgoutput')")
        assert delivers(server.uri(), "s", tmp_path / "out") == []
        for _ in range(4):
            admin.execute("INSERT INTO other VALUES (1)")
            admin.execute("SELECT pg_switch_wal()")
        admin.execute("CHECKPOINT")
        [status] = admin.execute("SELECT wal_status FROM pg_replication_slots").fetchone()
    assert status == "lost"
    creates = ("--create-slot", "--accept-gap")
    for out, more in (("out", ()), ("out", creates), ("new", ()), ("new", creates)):
        run = stream(server.uri(), "s", "-D", str(tmp_path / out), *NOW, *more)
        hint = "its changes are lost: drop it, and start over, with a snapshot, in another directory or file"
        refused(run, 6, 'stream slot "s": invalidated (wal_removed)', hint)


def test_a_slot_dropped_while_it_was_read(source, tmp_path, follow):
    slot = source.create_slot()
    following = follow(source.uri, slot, tmp_path / "out")
    insert(source, 1, 1)
    wait_until(lambda: following.rows() == [1])
    following.process.send_signal(signal.SIGSTOP)
    source.execute(
        "SELECT pg_terminate_backend(active_pid) FROM pg_replication_slots WHERE slot_name = %s", (slot,)
    )
    wait_until_free(source, slot)
    source.drop_slot(slot)
    status, errors = following.stop(signal.SIGCONT)
    assert status == 5
    assert errors.splitlines()[-2] == f'pgcdc: error: could not find slot "{slot}"'


def test_a_publication_dropped_while_it_was_read(database, tmp_path, follow):
    database.execute(SMALL)
    slot = database.create_slot()
    following = follow(database.uri, slot, tmp_path / "out", "-F", "0.1")
    insert(database, 1, 1)
    wait_until(lambda: following.rows() == [1])
    database.execute("DROP PUBLICATION pub")
    insert(database, 2, 2)
    status, errors = following.wait()
    assert status == 7
    assert re.fullmatch("pgcdc: error: could not .*pub.*\nhint: .*\n", errors)
    assert database.confirmed(slot) < end_of_log(database)
    assert following.rows() == [1]


def test_what_was_published_before_the_publication_was_dropped_is_delivered(database, tmp_path):
    """A slot that is older than the publication never gets past changes made while there was none."""
    database.execute(SMALL)
    slot, out = database.create_slot(), tmp_path / "out"
    insert(database, 1, 1)
    database.execute("DROP PUBLICATION pub")
    insert(database, 2, 2)
    database.execute("CREATE PUBLICATION pub FOR TABLE t")
    for _ in range(2):
        failed = stream(database.uri, slot, "-D", str(out), *NOW)
        assert failed.returncode == 7
        assert in_directory(out) == [1]
