"""`pgcdc slot advance`, `copy` and `alter` against real servers."""

import json
import os
import subprocess

import psycopg
import pytest
from processes import PGCDC, wait_until
from servers import Database, remove
from standbys import replayed, standby, synchronize

from pgcdc_cli.errors import ErrorKind
from pgcdc_cli.lsn import Lsn
from pgcdc_cli.replication.connection import ReplicationConnection


@pytest.fixture
def slot(database):
    """A slot that has a transaction to send."""
    slot = database.create_slot()
    database.execute("CREATE TABLE t (a int)")
    return slot


def log_end(database):
    """The end of the log as far as it is written; the insert position may be beyond that."""
    return database.execute("SELECT pg_current_wal_lsn()::text").fetchone()[0]


def insert_position(database):
    return database.execute("SELECT pg_current_wal_insert_lsn()::text").fetchone()[0]


def test_advance_goes_to_a_position_or_to_the_end(database, pgcdc, slot):
    middle = log_end(database)
    database.execute("INSERT INTO t VALUES (1)")
    for _ in range(2):
        ran = pgcdc("slot", "advance", slot, "-d", database.uri, "--to", middle, "--yes")
        assert (ran.status, ran.out, ran.err) == (0, f"{slot} {middle}\n", "")
    ran = pgcdc("slot", "advance", slot, "-d", database.uri, "--to", "now", "--yes")
    assert (ran.status, ran.out) == (0, f"{slot} {database.confirmed(slot)}\n")
    assert str(database.confirmed(slot)) != middle


def test_advance_never_goes_back(database, refused, slot):
    at = database.confirmed(slot)
    refused(
        *("slot", "advance", slot, "-d", database.uri, "--to", "0/10", "--yes"),
        status=2,
        error=f'could not advance slot "{slot}" to 0/10: it is already at {at}',
        hint="a slot only moves forward: what is confirmed may be gone",
    )


def test_advance_goes_nowhere_for_a_position_beyond_the_log(database, pgcdc, slot):
    at = database.confirmed(slot)
    ran = pgcdc("slot", "advance", slot, "-d", database.uri, "--to", "FFFF/0", "--yes")
    error, hint = ran.err.splitlines()
    reason, _, end = error.rpartition(" ")
    assert (ran.status, ran.out) == (2, "")
    assert reason == (
        f'pgcdc: error: could not advance slot "{slot}" to FFFF/0: the server\'s WAL ends before that, at'
    )
    assert hint == "hint: --to now goes to its end"
    assert at < Lsn.parse(end) <= Lsn.parse(insert_position(database))
    assert database.confirmed(slot) == at


def test_advance_without_a_terminal_wants_to_be_told(database, refused, slot):
    at = database.confirmed(slot)
    refused(
        *("slot", "advance", slot, "-d", database.uri, "--to", "now"),
        status=2,
        error="could not ask: standard input is not a terminal",
        hint="add --yes if you are sure",
    )
    assert database.confirmed(slot) == at


def test_what_somebody_reads_is_neither_advanced_nor_altered(database, pgcdc, slot):
    database.execute("CREATE PUBLICATION p")
    with ReplicationConnection(database.uri) as reader:
        reader.start(slot, Lsn(0), {"proto_version": "1", "publication_names": "p"}.items())
        ran = pgcdc("slot", "advance", slot, "-d", database.uri, "--to", "now", "--yes")
        assert (ran.status, ran.out) == (5, "")
        assert ran.err.splitlines()[1] == f"hint: stop what is reading it: see pgcdc slot show {slot}"
        if database.server.version >= 17:
            assert pgcdc("slot", "alter", slot, "-d", database.uri, "--failover").status == 5
    reading = "SELECT active FROM pg_replication_slots WHERE slot_name = %s"
    wait_until(lambda: not database.execute(reading, (slot,)).fetchone()[0])


def test_a_copy_goes_on_from_the_same_point(database, pgcdc, slot):
    ran = pgcdc("slot", "copy", slot, f"{slot}_2", "-d", database.uri)
    assert (ran.status, ran.out, ran.err) == (0, f"{slot}_2 {database.confirmed(slot)}\n", "")
    assert database.confirmed(f"{slot}_2") == database.confirmed(slot)
    assert pgcdc("slot", "copy", slot, f"{slot}_2", "-d", database.uri).status == 5
    missing = pgcdc("slot", "copy", "nix", f"{slot}_3", "-d", database.uri)
    assert (missing.status, missing.err.splitlines()[1]) == (
        5,
        "hint: see which exist with: pgcdc slot list",
    )


def shown(database, pgcdc, slot):
    slot = json.loads(pgcdc("slot", "show", slot, "-d", database.uri, "--json").out)
    return slot["failover"], slot["two_phase"]


def test_alter_changes_what_the_server_can(database, pgcdc, refused, slot):
    if database.server.version >= 18:
        assert pgcdc("slot", "alter", slot, "-d", database.uri, "--failover").status == 0
        assert shown(database, pgcdc, slot) == (True, False)
        line = ("slot", "alter", slot, "-d", database.uri, "--no-failover", "--two-phase")
        assert pgcdc(*line).status == 0
        assert shown(database, pgcdc, slot) == (False, True)
        return
    for option, what, since in [("--failover", "failover", 17), ("--no-two-phase", "two-phase", 18)]:
        refused(
            *("slot", "alter", slot, "-d", database.uri, option),
            status=2,
            error=f'could not alter slot "{slot}": changing {what} of a slot needs PostgreSQL {since}',
            hint="create another slot with it, and read the old one to its end first",
        )


def test_two_phase_is_enabled_later_for_pgoutput_only(database18, refused):
    """For another plugin, the server would leave out what is prepared already."""
    slot = f"physical_{database18.name}"
    database18.execute("SELECT pg_create_physical_replication_slot(%s)", (slot,))
    refused(
        *("slot", "alter", slot, "-d", database18.uri, "--two-phase"),
        status=2,
        error=f'could not alter slot "{slot}": two-phase can be enabled later only for pgoutput',
        hint="create another slot with --two-phase, and read the old one to its end first",
    )
    database18.execute("SELECT pg_drop_replication_slot(%s)", (slot,))


@pytest.fixture
def physical(database):
    """A physical slot that retains WAL."""
    slot = f"physical_{database.name}"
    database.execute("SELECT pg_create_physical_replication_slot(%s, true)", (slot,))
    yield slot
    database.drop_slot(slot)


def test_a_physical_slot_is_advanced_from_where_it_is(database, pgcdc, refused, physical):
    position = "SELECT restart_lsn::text FROM pg_replication_slots WHERE slot_name = %s"
    [at] = database.execute(position, (physical,)).fetchone()
    line = ("slot", "advance", physical, "-d", database.uri, "--yes", "--to")
    refused(
        *(*line, "0/10"),
        status=2,
        error=f'could not advance slot "{physical}" to 0/10: it is already at {at}',
        hint="a slot only moves forward: what is confirmed may be gone",
    )
    database.execute("CREATE TABLE t (a int)")
    assert pgcdc(*line, "now").status == 0
    assert database.execute(position, (physical,)).fetchone() != (at,)


def test_a_physical_slot_is_not_copied(database, refused, physical):
    refused(
        *("slot", "copy", physical, f"{physical}_2", "-d", database.uri),
        status=2,
        error=f'could not copy slot "{physical}" to "{physical}_2": it is a physical slot',
        hint="SELECT pg_copy_physical_replication_slot(...) copies it",
    )


@pytest.fixture
def synchronized(own_server):
    """A standby that has a copy of its primary's slot `s`."""
    primary = own_server()
    with psycopg.connect(primary.uri(), autocommit=True) as there:
        there.execute("SELECT pg_create_physical_replication_slot('standby')")
        follower = standby(primary, {"primary_slot_name": "standby", "hot_standby_feedback": "on"})
        replayed(follower, primary)
        there.execute("SELECT pg_create_logical_replication_slot('s', 'pgoutput', false, false, true)")
    try:
        synchronize(primary, follower)
        yield follower
    finally:
        remove(follower)


def test_a_standby_s_copy_of_a_slot_is_changed_on_the_primary_until_it_is_promoted(
    synchronized, pgcdc, refused
):
    """Nothing is lost, and nobody should start over."""
    there = ("-d", synchronized.uri())
    changes = (("advance", "--to", "now", "--yes"), ("alter", "--no-failover"))
    for command, *options in changes:
        refused(
            *("slot", command, "s", *options, *there),
            status=2,
            error=f'could not {command} slot "s": this standby is synchronizing it from the primary',
            hint=f"{command} it on the primary: the standby has a copy of it",
        )
    assert "synced         yes\n" in pgcdc("slot", "show", "s", *there).out
    # A copy of the copy is the standby's own.
    assert pgcdc("slot", "copy", "s", "own", *there).status == 0
    assert pgcdc("slot", "advance", "own", "--to", "now", "--yes", *there).status == 0
    synchronized.pg_ctl("promote")
    assert "synced         no\n" in pgcdc("slot", "show", "s", *there).out
    for command, *options in changes:
        assert pgcdc("slot", command, "s", *options, *there).status == 0


def test_a_slot_that_is_lost_is_not_altered(own_server, refused):
    database = Database(own_server(18, {"max_slot_wal_keep_size": "8MB"}))
    slot = database.create_slot()
    for _ in range(24):
        database.execute("SELECT pg_logical_emit_message(false, 'x', repeat('x', 1048576))")
    database.execute("CHECKPOINT")
    refused(
        *("slot", "alter", slot, "-d", database.uri, "--failover"),
        status=6,
        error=f'could not alter slot "{slot}": invalidated (wal_removed)',
        hint=ErrorKind.SLOT_INVALIDATED.rule.hint,
    )
    database.connection.close()


def test_alter_wants_something_to_change(database, pgcdc, slot):
    ran = pgcdc("slot", "alter", slot, "-d", database.uri)
    assert ran.status == 2
    assert "nothing to change" in ran.err


@pytest.mark.parametrize(
    ("answer", "moved"), [(b"y\n", True), (b"Yes\n", True), (b"no\n", False), (b"\n", False)]
)
def test_advance_asks_whoever_is_at_a_terminal(database18, answer, moved):
    slot = database18.create_slot()
    at = database18.confirmed(slot)
    database18.execute("CREATE TABLE t (a int)")
    keyboard, terminal = os.openpty()
    os.write(keyboard, answer)
    line = [*PGCDC, "slot", "advance", slot, "-d", database18.uri, "--to", "now"]
    run = subprocess.run(line, stdin=terminal, capture_output=True, text=True, check=False)
    os.close(keyboard)
    os.close(terminal)
    assert f'Skip the changes of slot "{slot}" from {at} to now for ever? [y/N]' in run.stderr
    assert (run.returncode == 0, database18.confirmed(slot) != at) == (moved, moved)
