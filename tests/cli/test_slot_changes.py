"""`pgcdc slot advance`, `copy` and `alter` against real servers."""

import json
import os
import subprocess

import psycopg
import pytest
from debian_server import DebianServer
from processes import PGCDC, wait_until
from servers import Database, being_created, new_slot_name, remove, started
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


def test_advance_goes_to_the_very_end(database, pgcdc, slot):
    assert pgcdc("slot", "advance", slot, "-d", database.uri, "--to", log_end(database), "--yes").status == 0


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


def test_a_copy_of_a_temporary_slot_stays(database, pgcdc):
    database.execute("SELECT pg_create_logical_replication_slot('passing', 'pgoutput', true)")
    assert pgcdc("slot", "copy", "passing", f"of_{database.name}", "-d", database.uri).status == 0
    database.drop_slot("passing")
    assert "temporary      no\n" in pgcdc("slot", "show", f"of_{database.name}", "-d", database.uri).out


def test_a_slot_of_another_database_is_copied_there(database, pgcdc, refused):
    """Here, the server would make a slot of this database, with its changes."""
    elsewhere = Database(database.server)
    slot, copy = elsewhere.create_slot(), f"of_{elsewhere.name}"
    refused(
        *("slot", "copy", slot, copy, "-d", database.uri),
        status=2,
        error=f'could not copy slot "{slot}" to "{copy}": it belongs to database "{elsewhere.name}"',
        hint=f"with -d {elsewhere.name} it can be copied",
    )
    assert pgcdc("slot", "copy", slot, copy, "-d", elsewhere.uri).status == 0
    elsewhere.drop()


@pytest.mark.parametrize(
    ("doing", "command", "more"),
    [
        ('create slot "{}"', "create", ["--if-not-exists"]),
        ('copy slot "{}" to "other"', "copy", ["other"]),
        ('stream slot "{}"', "peek", ["--publication", "p"]),
    ],
)
def test_a_slot_that_is_still_being_created_is_not_used_yet(database, refused, doing, command, more):
    """It has no position, and is gone if that is interrupted."""
    database.execute("CREATE PUBLICATION p")
    slot = new_slot_name()
    with being_created(database, slot) as pid:
        refused(
            *("slot", command, slot, *more, "-d", database.uri),
            status=5,
            error=f"could not {doing.format(slot)}: process {pid} is still creating it",
            hint="run again once it is created; the server waits until all earlier transactions that write"
            " have ended",
        )


def test_a_slot_of_another_database_is_advanced_there_if_not_here(database, pgcdc, refused):
    """Before PostgreSQL 17 the server refuses it; nothing of the slot is lost."""
    elsewhere = Database(database.server)
    slot = elsewhere.create_slot()
    line = ("slot", "advance", slot, "--to", "now", "--yes", "-d")
    if database.server.version < 17:
        refused(
            *(*line, database.uri),
            status=2,
            error=f'could not advance slot "{slot}": it belongs to database "{elsewhere.name}"',
            hint=f"with -d {elsewhere.name} it can be advanced",
        )
    else:
        assert pgcdc(*line, database.uri).status == 0
    assert pgcdc(*line, elsewhere.uri).status == 0
    elsewhere.drop()


def shown(database, pgcdc, slot):
    slot = json.loads(pgcdc("slot", "show", slot, "-d", database.uri, "--json").out)
    return slot["failover"], slot["two_phase"]


def test_alter_changes_what_the_server_can(database, pgcdc, refused, slot):
    line = ("slot", "alter", slot, "-d", database.uri)
    if database.server.version >= 17:
        assert pgcdc(*line, "--failover").status == 0
        assert shown(database, pgcdc, slot) == (True, False)
    else:
        refused(
            *(*line, "--failover"),
            status=2,
            error=f'could not alter slot "{slot}": failover slots need PostgreSQL 17',
            hint="leave it out: older servers copy no slots to their standbys",
        )
    if database.server.version >= 18:
        assert pgcdc(*line, "--no-failover", "--two-phase").status == 0
        assert shown(database, pgcdc, slot) == (False, True)
        return
    for option, how in (("--two-phase", "with"), ("--no-two-phase", "without")):
        refused(
            *(*line, option),
            status=2,
            error=f'could not alter slot "{slot}": changing two-phase of a slot needs PostgreSQL 18',
            hint=f"create another slot {how} it, and read the old one to its end first",
        )


def test_two_phase_is_enabled_later_for_pgoutput_only(refused):
    """For another plugin, the server would leave out what is prepared already."""
    reason = DebianServer.missing("test_decoding")
    if reason is not None:
        pytest.skip(reason)
    server = DebianServer()
    try:
        database = Database(server)
        slot = database.create_slot(plugin="test_decoding")
        refused(
            *("slot", "alter", slot, "-d", database.uri, "--two-phase"),
            status=2,
            error=f'could not alter slot "{slot}": two-phase can be enabled later only for pgoutput',
            hint="create another slot with --two-phase, and read the old one to its end first",
        )
        refused(
            *("slot", "alter", slot, "-d", database.uri, "--no-two-phase"),
            status=2,
            error=f'could not alter slot "{slot}": changing two-phase of a slot needs PostgreSQL 18',
            hint="create another slot without it, and read the old one to its end first",
        )
        database.connection.close()
    finally:
        server.stop()


def test_of_another_database_s_slot_either_all_or_nothing_is_altered(database18, pgcdc, refused):
    """The server enables two-phase for a reader, which has to be in the slot's database."""
    elsewhere = Database(database18.server)
    slot = elsewhere.create_slot()
    refused(
        *("slot", "alter", slot, "-d", database18.uri, "--failover", "--two-phase"),
        status=2,
        error=f'could not alter slot "{slot}": two-phase is enabled only in its own database',
        hint=f"with -d {elsewhere.name} it can be enabled",
    )
    assert shown(database18, pgcdc, slot) == (False, False)
    assert pgcdc("slot", "alter", slot, "-d", database18.uri, "--failover", "--no-two-phase").status == 0
    assert pgcdc("slot", "alter", slot, "-d", elsewhere.uri, "--two-phase").status == 0
    assert shown(database18, pgcdc, slot) == (True, True)
    elsewhere.drop()


@pytest.mark.parametrize("option", ["--failover", "--two-phase"])
def test_a_physical_slot_has_nothing_to_alter(database, refused, physical, option):
    refused(
        *("slot", "alter", physical, "-d", database.uri, option),
        status=2,
        error=f'could not alter slot "{physical}": it is a physical slot',
        hint="failover and two-phase are properties of logical slots",
    )


@pytest.mark.parametrize("command", [("advance", "--to", "now", "--yes"), ("copy", "other")])
@pytest.mark.parametrize("managed", [False, True])
def test_who_may_not_use_slots_is_told_the_right(own_server, pgcdc, command, managed):
    """On a managed service it is that of a role."""
    database = Database(own_server(16))
    slot, (name, *options) = database.create_slot(), command
    database.execute("CREATE ROLE reader LOGIN")
    right = 'ALTER ROLE "reader" REPLICATION'
    if managed:
        database.execute("CREATE ROLE rds_replication")
        right = 'GRANT "rds_replication" TO "reader"'
    uri = database.server.uri(database.name, user="reader")
    ran = pgcdc("slot", name, slot, *options, "-d", uri)
    assert (ran.status, ran.err.splitlines()[1]) == (4, f"hint: it needs: {right}")
    database.execute(right)
    if not managed:
        assert pgcdc("slot", name, slot, *options, "-d", uri).status == 0
    database.connection.close()


def test_who_may_use_slots_is_not_told_to_get_the_right(database18, pgcdc):
    """It lacks another one."""
    slot, role = database18.create_slot(), f"r_{database18.name}"
    database18.execute(f"CREATE ROLE {role} LOGIN REPLICATION")
    database18.execute("REVOKE EXECUTE ON FUNCTION pg_replication_slot_advance FROM PUBLIC")
    uri = database18.server.uri(database18.name, user=role)
    ran = pgcdc("slot", "advance", slot, "--to", "now", "--yes", "-d", uri)
    assert (ran.status, ran.err.splitlines()[1]) == (4, f"hint: {ErrorKind.RIGHTS.rule.hint}")
    database18.execute(f"DROP ROLE {role}")


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


def test_a_physical_slot_that_nobody_used_has_no_position(database, refused):
    """Nothing of it is lost, and nobody should start over."""
    slot = f"unused_{database.name}"
    database.execute("SELECT pg_create_physical_replication_slot(%s)", (slot,))
    refused(
        *("slot", "advance", slot, "-d", database.uri, "--yes", "--to", "now"),
        status=2,
        error=f'could not advance slot "{slot}": it has no position yet, and retains no WAL',
        hint="a physical slot gets its position from its first reader, such as a standby",
    )
    database.drop_slot(slot)


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
    changes = (
        ("advance", "--to", "now", "--yes"),
        ("alter", "--no-failover"),
        ("create", "--if-not-exists"),
    )
    for command, *options in changes:
        refused(
            *("slot", command, "s", *options, *there),
            status=5,
            error=f'could not {command} slot "s": this standby is synchronizing it from the primary',
            hint=f"{command} it on the primary: the standby has a copy of it",
        )
    assert "synced         yes\n" in pgcdc("slot", "show", "s", *there).out
    local = pgcdc("slot", "create", "local", "--failover", *there)
    assert local.status == 2
    assert local.err.splitlines() == [
        'pgcdc: error: could not create slot "local": a standby\'s own slots have no failover',
        "hint: do so on the primary, whose slots a standby copies if sync_replication_slots is on",
    ]
    # A copy of the copy is the standby's own.
    assert pgcdc("slot", "copy", "s", "own", *there).status == 0
    assert pgcdc("slot", "advance", "own", "--to", "now", "--yes", *there).status == 0
    altered = pgcdc("slot", "alter", "own", "--failover", *there)
    assert (altered.status, altered.err.splitlines()[1]) == (2, local.err.splitlines()[1])
    assert pgcdc("slot", "alter", "own", "--no-failover", *there).status == 0
    synchronized.pg_ctl("promote")
    assert "synced         no\n" in pgcdc("slot", "show", "s", *there).out
    for command, *options in changes:
        assert pgcdc("slot", command, "s", *options, *there).status == 0


@pytest.fixture(scope="module")
def lost():
    """A database with a slot `s` that has lost WAL."""
    with started(18, {"max_slot_wal_keep_size": "8MB"}) as server:
        database = Database(server)
        database.create_slot("s")
        for _ in range(24):
            database.execute("SELECT pg_logical_emit_message(false, 'x', repeat('x', 1048576))")
        database.execute("CHECKPOINT")
        yield database
        database.connection.close()


@pytest.mark.parametrize(
    ("command", "doing"),
    [
        (("alter", "s", "--failover"), "alter"),
        (("advance", "s", "--to", "now", "--yes"), "advance"),
        (("copy", "s", "other"), "copy"),
        (("create", "s", "--if-not-exists"), "create"),
    ],
)
def test_a_slot_that_is_lost_is_of_no_use(lost, refused, command, doing):
    refused(
        *("slot", *command, "-d", lost.uri),
        status=6,
        error=f'could not {doing} slot "s": invalidated (wal_removed)',
        hint=ErrorKind.SLOT_INVALIDATED.rule.hint,
    )


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
