"""A loss or change on the server ends the run with its own exit status, or is written correctly.

There is never a silent gap.
"""

import signal

import psycopg
import pytest
from processes import wait_until
from stream_runs import SMALL, Following, delivers, insert, stream


@pytest.fixture(scope="module")
def strict(own_server):
    """A server that keeps little of its log for a slot."""
    settings = {"max_slot_wal_keep_size": "1MB", "min_wal_size": "32MB", "max_wal_size": "32MB"}
    return own_server(18, settings)


@pytest.fixture
def admin(strict):
    """A session on the server, with the tables of `SMALL` and slot s."""
    with psycopg.connect(strict.uri(), autocommit=True) as admin:
        admin.execute(SMALL)
        admin.execute("SELECT pg_create_logical_replication_slot('s', 'pgoutput')")
        yield admin
        admin.execute("SELECT pg_drop_replication_slot('s')")
        admin.execute("DROP PUBLICATION pub; DROP TABLE t, other")


def wal_status(admin) -> str:
    return admin.execute("SELECT wal_status FROM pg_replication_slots").fetchone()[0]


def test_a_slot_invalidated_by_size_while_it_was_read(strict, admin, tmp_path, tell):
    """Its reader is stopped; the server ends the connection, and on the next one the slot is lost."""
    run = Following(strict.uri(), "s", tmp_path / "out.jsonl", "-F", "0.1")
    try:
        insert(admin, 1, 1)
        wait_until(lambda: run.rows() == [1])
        run.process.send_signal(signal.SIGSTOP)
        for number in range(2, 9):
            insert(admin, number, number)
            admin.execute("SELECT pg_switch_wal()")
        wait_until(lambda: admin.execute("CHECKPOINT") and wal_status(admin) == "lost", pause=0.2)
        run.process.send_signal(signal.SIGCONT)
        status, errors = run.wait()
    finally:
        run.process.kill()
        run.process.communicate()
    assert status == 6, errors
    assert errors.splitlines()[-2].endswith("invalidated (wal_removed)"), errors
    assert errors.splitlines()[-1].startswith("hint: its changes are lost")
    assert run.rows() == list(range(1, len(run.rows()) + 1)), "a gap"
    tell("a slot lost while it was read", {"invalidated by size": 1})


def test_a_slot_invalidated_by_idleness(strict, admin, tmp_path, tell):
    out = tmp_path / "out"
    insert(admin, 1, 1)
    assert delivers(strict.uri(), "s", out) == [1]
    insert(admin, 2, 2)
    admin.execute("ALTER SYSTEM SET idle_replication_slot_timeout = '1s'")
    admin.execute("SELECT pg_reload_conf()")
    try:
        wait_until(lambda: admin.execute("CHECKPOINT") and wal_status(admin) == "lost", pause=0.5)
    finally:
        admin.execute("ALTER SYSTEM RESET idle_replication_slot_timeout")
        admin.execute("SELECT pg_reload_conf()")
    run = stream(strict.uri(), "s", "-D", str(out), "--endpos", "now")
    assert run.returncode == 6, run.stderr
    assert "invalidated (idle_timeout)" in run.stderr
    tell("a slot lost while nobody read it", {"invalidated by idleness": 1})


def rows(source, low: int, high: int) -> None:
    source.execute("INSERT INTO t (a) SELECT generate_series(%s::int, %s)", (low, high))


def change_everything(source) -> None:
    rows(source, 1, 3)
    source.execute("ALTER TABLE t ADD c int DEFAULT 7")
    rows(source, 4, 5)
    with source.connection.transaction():
        rows(source, 6, 3000)
        source.execute("ALTER TABLE t DROP b, ADD d text")
        rows(source, 3001, 6000)
        source.execute("ALTER TABLE t RENAME d TO b")
        rows(source, 6001, 6002)
    source.execute("ALTER PUBLICATION pub ADD TABLE other")
    source.execute("INSERT INTO other VALUES (6003)")
    source.execute("ALTER PUBLICATION pub DROP TABLE t")
    rows(source, 6004, 6004)
    source.execute("ALTER PUBLICATION pub ADD TABLE t")
    source.execute("ALTER PUBLICATION pub DROP TABLE other")
    rows(source, 6005, 6005)


@pytest.mark.parametrize("streaming", ["off", "on"])
def test_tables_and_columns_come_and_go_in_mid_stream(database18, tmp_path, streaming, tell):
    """Between and inside of transactions, and in the publication, too."""
    source = database18
    source.execute(SMALL)
    slot, path = source.create_slot(), tmp_path / "out.jsonl"
    uri = f"{source.uri}&options=-c%20logical_decoding_work_mem%3D64kB"
    run = Following(uri, slot, path, "-F", "0.1", "--streaming", streaming)
    try:
        change_everything(source)
        wait_until(lambda: run.process.poll() is not None or run.rows()[-1:] == [6005])
        assert run.stop() == (0, "")
    finally:
        run.process.kill()
        run.process.communicate()
    assert run.rows() == [*range(1, 6004), 6005]
    tell(f"tables and columns that come and go, streaming {streaming}", {"rows": 6004})
