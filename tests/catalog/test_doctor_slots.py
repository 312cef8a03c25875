"""What the doctor finds in slots is fixed by what it prints."""

import contextlib

import psycopg
import pytest
from doctor_findings import KEY, finding_of, findings, mend, problems, publish
from processes import wait_until
from psycopg.conninfo import make_conninfo
from psycopg.pq import ExecStatus
from servers import Database, new_slot_name


def alter_system(database, name, value):
    database.execute(f"ALTER SYSTEM SET {name} = '{value}'")
    database.execute("SELECT pg_reload_conf()")
    wait_until(lambda: database.execute(f"SHOW {name}").fetchone() == (value,))


def test_a_missing_slot(database):
    name = new_slot_name()
    mend(database, "slot-missing", slot=name)
    finding = finding_of(database, "slot-missing", slot=f"{name}x")
    assert finding.advice == f'or did you mean "{name}"?'


def test_slots_of_another_kind_or_database(database):
    name = new_slot_name()
    other = Database(database.server)
    try:
        finding = finding_of(other, "slot-kind", slot=database.create_slot())
        assert (finding.level, finding.advice) == ("error", f"connect to that database: -d {database.name}")
        # Nobody should create a publication here because of that.
        missing = finding_of(other, "publication-missing", "p", slot=finding.subject)
        there = f"the slot is of another database, and its publications are there: -d {database.name}"
        assert (missing.statements, missing.advice) == ((), there)
        database.execute("SELECT pg_create_physical_replication_slot(%s)", (name,))
        assert ("slot-kind", "error", name) in problems(database, slot=name)
    finally:
        database.execute("SELECT pg_drop_replication_slot(%s)", (name,))
        other.drop()


def test_a_slots_database_is_named_as_a_shell_takes_it(database):
    name, slot = f"{database.name} b", new_slot_name()
    database.execute(f'CREATE DATABASE "{name}"')
    with psycopg.connect(database.uri, dbname=name, autocommit=True) as other:
        other.execute("SELECT pg_create_logical_replication_slot(%s, 'pgoutput')", (slot,))
    try:
        finding = finding_of(database, "slot-kind", slot=slot)
        assert finding.advice == f"connect to that database: -d '{name}'"
    finally:
        database.drop_slot(slot)
        database.execute(f'DROP DATABASE "{name}"')


def test_without_a_name_it_says_which_slots_can_be_streamed(database):
    slot = database.create_slot()
    other = database.create_slot(two_phase=True)
    found = [(one.level, one.subject) for one in findings(database) if one.check == "slot-kind"]
    assert sorted(found) == sorted([("ok", slot), ("ok", other)])


def test_slots_that_are_invalidated_when_idle(own_database):
    database = own_database(idle_replication_slot_timeout="1s")
    slot = database.create_slot()
    assert ("idle-slot-timeout", "warning", None) in problems(database)
    wait_until(lambda: ("slot-idle", "error", slot) in problems(database))
    mend(database, "slot-idle")
    assert problems(database, slot=slot) == [("publication-missing", "warning", None)]
    alter_system(database, "idle_replication_slot_timeout", "1h")
    assert "slot-idle" not in str(problems(database))
    assert mend(database, "idle-slot-timeout").advice == "or run pgcdc stream more often than that"
    alter_system(database, "idle_replication_slot_timeout", "1s")
    wait_until(lambda: ("slot-idle", "error", slot) in problems(database))
    database.execute("CHECKPOINT")
    assert ("slot-lost", "error", slot) in problems(database)
    assert "slot-idle" not in str(problems(database))


def write_log(database, megabytes):
    for _ in range(megabytes):
        database.execute("SELECT pg_logical_emit_message(false, 'x', repeat('x', 1048576))")


def test_a_slot_that_nobody_reads(own_database):
    database = own_database(max_wal_size="32MB", min_wal_size="32MB")
    slot = database.create_slot()
    write_log(database, 40)
    finding = finding_of(database, "slot-inactive")
    assert (finding.level, finding.subject, finding.statements) == ("warning", slot, ())
    wait_until(lambda: advanced(database, slot) and "slot-inactive" not in str(problems(database)))


def advanced(database, slot):
    """Advance a slot; its restart_lsn moves to a record of running transactions, as CHECKPOINT writes it."""
    database.execute("CHECKPOINT")
    return database.execute("SELECT pg_replication_slot_advance(%s, pg_current_wal_lsn())", (slot,))


def test_a_slot_near_the_limit_beyond_it_and_lost(own_database):
    database = own_database(max_slot_wal_keep_size="32MB")
    slot = database.create_slot()
    write_log(database, 24)
    assert mend(database, "slot-near-limit").subject == slot
    alter_system(database, "max_slot_wal_keep_size", "8MB")
    assert mend(database, "slot-unreserved").subject == slot
    alter_system(database, "max_slot_wal_keep_size", "8MB")
    wait_until(lambda: checkpointed(database, slot) == "lost")
    assert "slot-kind" not in [one.check for one in findings(database, slot=slot)]
    finding = mend(database, "slot-lost")
    assert finding.message == f'slot "{slot}" is invalidated (wal_removed): its changes are lost'


def checkpointed(database, slot):
    """Write a checkpoint, and return the slot's state after it; the checkpointer learns of a setting late."""
    database.execute("CHECKPOINT")
    status = "SELECT wal_status FROM pg_replication_slots WHERE slot_name = %s"
    return database.execute(status, (slot,)).fetchone()[0]


@pytest.mark.parametrize("flags", [(False, False), (True, False), (False, True), (True, True)])
def test_a_lost_slot_is_recreated_with_its_flags(own_database, flags):
    database, slot = own_database(max_slot_wal_keep_size="8MB"), new_slot_name()
    create = "SELECT pg_create_logical_replication_slot(%s, 'pgoutput', false, %s, %s)"
    database.execute(create, (slot, *flags))
    write_log(database, 24)
    database.execute("CHECKPOINT")
    mend(database, "slot-lost")
    kept = "SELECT two_phase, failover FROM pg_replication_slots WHERE slot_name = %s"
    assert database.execute(kept, (slot,)).fetchone() == flags


def test_transactions_that_were_spilled(database):
    publish(database, f"CREATE TABLE t ({KEY}, a text)")
    slot = database.create_slot()
    database.execute("SET logical_decoding_work_mem = '64kB'")
    database.execute("INSERT INTO t SELECT i, repeat('x', 100) FROM generate_series(1, 5000) i")
    decode = "SELECT count(*) FROM pg_logical_slot_peek_binary_changes(%s, NULL, NULL, %s, '1', %s, 'p')"
    database.execute(decode, (slot, "proto_version", "publication_names"))
    finding = finding_of(database, "slot-spilled")
    assert (finding.level, finding.subject) == ("ok", slot)
    assert finding.message.startswith(f'slot "{slot}": 1 MB were spilled to the server\'s disk to send 1 MB;')


def test_failover_slots_that_run_ahead_of_the_standbys(own_database):
    database, slot = own_database(), new_slot_name()
    standbys = new_slot_name(), new_slot_name()
    for copy in standbys:
        database.execute("SELECT pg_create_physical_replication_slot(%s, true)", (copy,))
    create = "SELECT pg_create_logical_replication_slot(%s, 'pgoutput', false, false, true)"
    database.execute(create, (slot,))
    finding = finding_of(database, "slot-failover", slot=slot)
    assert "may be ahead of the standbys" in finding.message
    assert (finding.statements, finding.advice[:14]) == ((), "name the slots")
    [position] = database.execute("SELECT pg_current_wal_lsn()::text").fetchone()
    receiver = make_conninfo(database.server.uri(), replication="true")
    with contextlib.closing(psycopg.connect(receiver, autocommit=True)) as connected:
        start = f"START_REPLICATION SLOT {standbys[0]} PHYSICAL {position}"
        assert connected.pgconn.exec_(start.encode()).status == ExecStatus.COPY_BOTH
        finding = mend(database, "slot-failover", slot=slot)
        assert standbys[1] not in finding.statements[0]
    wait_until(lambda: ("slot-failover", "warning", slot) in problems(database, slot=slot))
    finding = finding_of(database, "slot-failover", slot=slot)
    assert f'standbys that are not connected, with slots "{standbys[0]}": nothing is sent' in finding.message
