"""Peeking at a slot takes nothing from it."""

import os
import subprocess
from concurrent.futures import ThreadPoolExecutor

import psycopg
import pytest
from debian_server import DebianServer
from processes import PGCDC, shown_on, stream_command, wait_until
from servers import Database
from stream_runs import numbers, stream

from pgcdc_cli.replication.failures import PUBLICATION_HINT

CHOOSE = "name the publication with which the slot is read: --publication NAME"


@pytest.fixture
def slot(database):
    """A slot with three transactions of one row each."""
    database.execute("CREATE TABLE t (a int PRIMARY KEY)")
    database.execute("CREATE PUBLICATION pub FOR TABLE t")
    slot = database.create_slot()
    for row in (1, 2, 3):
        database.execute("INSERT INTO t VALUES (%s)", (row,))
    return slot


def left(database):
    """The database's slots and their positions."""
    query = "SELECT slot_name, confirmed_flush_lsn::text FROM pg_replication_slots WHERE database = %s"
    return database.execute(query, (database.name,)).fetchall()


def on_a_terminal(*arguments):
    """Run with a terminal as standard output only; return status, its content, and standard error."""
    ours, theirs = os.openpty()
    process = subprocess.Popen(
        arguments, stdout=theirs, stderr=subprocess.PIPE, env={**os.environ, "NO_COLOR": "1"}
    )
    os.close(theirs)
    printed = shown_on(ours)
    _, errors = process.communicate()
    return process.returncode, printed.decode(), errors.decode()


def test_on_a_terminal_nothing_is_taken_and_it_says_so(database, slot):
    before = left(database)
    status, printed, errors = on_a_terminal(*stream_command(database.uri, slot, "--endpos", "now"))
    assert (status, printed.count("INSERT")) == (0, 3)
    assert errors == f'pgcdc: nothing is consumed from slot "{slot}": -f - consumes what it prints\n'
    assert left(database) == before


def test_on_a_terminal_it_says_so_once_however_often_it_connects(database, slot):
    """Each connection needs a copy of its own, and nothing is printed again."""
    lose = """
        SELECT pg_terminate_backend(pid)
        FROM pg_stat_replication JOIN pg_replication_slots ON pid = active_pid
        WHERE temporary AND database = %s AND state = 'streaming'
    """
    with ThreadPoolExecutor(1) as terminal:
        running = terminal.submit(on_a_terminal, *stream_command(database.uri, slot, "--max-transactions", 4))
        wait_until(lambda: database.execute(lose, (database.name,)).fetchone())
        database.execute("INSERT INTO t VALUES (4)")
        status, printed, errors = running.result()
    assert (status, printed.count("INSERT")) == (0, 4)
    assert (errors.count("trying again"), errors.count("nothing is consumed")) == (1, 1)


def test_on_a_terminal_nothing_is_said_of_a_slot_that_is_not_there(database, slot):
    status, _, errors = on_a_terminal(*stream_command(database.uri, f"{slot}_x", "--endpos", "now"))
    assert status == 5
    assert errors.startswith(f'pgcdc: error: could not find slot "{slot}_x"\n')


def test_on_a_terminal_a_dash_takes(database, slot):
    before = left(database)
    status, printed, errors = on_a_terminal(*stream_command(database.uri, slot, "--endpos", "now", "-f", "-"))
    assert (status, printed.count("INSERT"), errors) == (0, 3, "")
    assert left(database) != before


def test_a_pipe_takes_unless_told_otherwise(database, slot):
    before = left(database)
    peeked = stream(database.uri, slot, "--peek", "--endpos", "now")
    assert (peeked.returncode, peeked.stdout.count('"op":"I"')) == (0, 3)
    assert left(database) == before
    taken = stream(database.uri, slot, "--endpos", "now")
    assert (taken.stdout, taken.stderr) == (peeked.stdout, "")
    assert left(database) != before


def test_what_somebody_else_reads_can_be_looked_at(database, slot, follow, tmp_path):
    following = follow(database.uri, slot, tmp_path / "out")
    reader = "SELECT active_pid FROM pg_replication_slots WHERE slot_name = %s"
    wait_until(lambda: database.execute(reader, (slot,)).fetchone()[0])
    assert stream(database.uri, slot, "--peek", "--endpos", "now").returncode == 0
    assert following.stop() == (0, "")


def test_a_connector_that_only_looks_makes_neither_slot_nor_publication(database, slot):
    before = left(database)
    connector = ("--peek", "--format", "debezium", "-c", "topic.prefix=s", "--endpos", "now")
    no_slot = stream(database.uri, f"{slot}_x", *connector)
    line = stream_command(database.uri, slot, *connector, publications=("later",))
    no_publication = subprocess.run(line, capture_output=True, check=False)
    assert (no_slot.returncode, no_publication.returncode) == (5, 7)
    assert left(database) == before
    assert database.execute("SELECT pubname FROM pg_publication").fetchall() == [("pub",)]
    seen = stream(database.uri, slot, *connector)
    assert (seen.returncode, seen.stdout.count('"op":"r"')) == (0, 3)
    assert left(database) == before


def test_errors_of_a_peek_name_the_slot_and_not_its_copy(database, slot):
    began = stream(database.uri, slot, "--peek", "-o", "nonsense=1")
    assert began.stderr.startswith(
        f'pgcdc: error: could not start streaming from slot "{slot}": unrecognized'
    )
    database.execute("ALTER PUBLICATION pub SET TABLE t WHERE (1 / (a - 4) < 9)")
    database.execute("INSERT INTO t VALUES (4)")
    went_on = stream(database.uri, slot, "--peek", "--endpos", "now")
    assert went_on.stderr.startswith(f'pgcdc: error: could not receive from slot "{slot}": division by zero')


@pytest.mark.parametrize("target", [["-f", "out"], ["-D", "out"]])
def test_there_is_nothing_to_keep_of_a_peek(target):
    run = stream("dbname=none", "none", "--peek", *target)
    assert run.returncode == 2
    assert "--peek prints to standard output: it excludes -f FILE and -D" in run.stderr


def peek(database, slot, *arguments):
    line = [*PGCDC, "slot", "peek", slot, "-d", database.uri, *arguments]
    return subprocess.run(line, capture_output=True, text=True, check=False)


def test_slot_peek_prints_the_next_transactions_and_takes_nothing(database, slot):
    before = left(database)
    run = peek(database, slot)
    assert (run.returncode, run.stdout.count("INSERT")) == (0, 3)
    assert peek(database, slot, "--limit", "2").stdout.count("INSERT") == 2
    for form in (["--format", "jsonl"], ["--json"]):
        assert peek(database, slot, *form).stdout.count('"op":"I"') == 3
    assert left(database) == before


def test_slot_peek_prints_the_plugin_s_own_messages(database, slot):
    before = left(database)
    line = [*PGCDC, "slot", "peek", slot, "-d", database.uri, "--format", "raw"]
    peeked = subprocess.run(line, capture_output=True, check=False)
    assert (peeked.returncode, peeked.stderr, peeked.stdout[:1]) == (0, b"", b"B")
    assert b"public\0t\0" in peeked.stdout
    assert left(database) == before


def test_slot_peek_from_another_database_names_the_slot_s(database, slot):
    line = [*PGCDC, "slot", "peek", slot, "-d", database.server.uri("template1")]
    run = subprocess.run(line, capture_output=True, text=True, check=False)
    assert (run.returncode, run.stdout) == (7, "")
    assert run.stderr == (
        f'pgcdc: error: could not peek at slot "{slot}": this database has no publication\n'
        f"hint: the slot's are in database {database.name}: choose it with -d, or create one with:"
        " pgcdc publication create NAME\n"
    )


@pytest.mark.parametrize("moment", ["before", "after"])
def test_slot_peek_of_publications_that_do_not_go_together_says_what_to_do(database, moment):
    """They have different columns of a table, or one is newer than the slot's changes."""
    database.execute("CREATE TABLE t (a int PRIMARY KEY, b int); CREATE PUBLICATION pub FOR TABLE t")
    create = "CREATE PUBLICATION other FOR TABLE t (a)"
    if moment == "before":
        database.execute(create)
    slot = database.create_slot()
    database.execute("INSERT INTO t VALUES (1, 2)")
    if moment == "after":
        database.execute(create)
    every = peek(database, slot)
    assert (every.returncode, every.stderr.splitlines()[-1]) == (7, f"hint: {CHOOSE}")
    one = peek(database, slot, "--publication", "pub")
    assert (one.returncode, one.stdout.count("INSERT")) == (0, 1)


def test_slot_peek_of_the_only_publication_says_that_it_came_too_late(database):
    database.execute("CREATE TABLE t (a int PRIMARY KEY)")
    slot = database.create_slot()
    database.execute("INSERT INTO t VALUES (1); CREATE PUBLICATION pub FOR TABLE t")
    run = peek(database, slot)
    assert (run.returncode, run.stderr.splitlines()[-1]) == (7, f"hint: {PUBLICATION_HINT}")


def test_a_two_phase_slot_can_be_looked_at(database18, tmp_path):
    """A prepared transaction comes at its end, as from any other slot."""
    database18.execute("CREATE TABLE t (a int PRIMARY KEY); CREATE PUBLICATION pub FOR TABLE t")
    slot = database18.create_slot(two_phase=True)
    for row, end in ((1, "COMMIT PREPARED"), (2, "ROLLBACK PREPARED"), (3, None)):
        with psycopg.connect(database18.uri, autocommit=True) as session:
            session.execute(f"BEGIN; INSERT INTO t VALUES ({row}); PREPARE TRANSACTION '{slot}{row}'")
        if end is not None:
            database18.execute(f"{end} '{slot}{row}'")
    before = left(database18)
    looked = peek(database18, slot, "--format", "jsonl")
    assert (looked.returncode, looked.stderr, numbers(looked.stdout)) == (0, "", [1])
    assert numbers(stream(database18.uri, slot, "--peek", "--endpos", "now").stdout) == [1]
    database18.execute(f"COMMIT PREPARED '{slot}3'")
    assert numbers(peek(database18, slot, "--format", "jsonl").stdout) == [1, 3]
    assert left(database18) == before
    out = tmp_path / "out"
    assert stream(database18.uri, slot, "-f", str(out), "--endpos", "now").returncode == 0
    assert numbers(out.read_text()) == [1, 3]


def test_slot_peek_of_no_slot(database):
    run = peek(database, "nix")
    assert (run.returncode, run.stdout) == (5, "")
    assert 'could not find slot "nix"' in run.stderr


@pytest.mark.skipif(DebianServer.missing() is not None, reason=DebianServer.missing() or "")
def test_slot_peek_prints_other_plugins_as_they_write():
    server = DebianServer()
    try:
        database = Database(server)
        database.execute("CREATE TABLE t (a int)")
        slot = database.create_slot(plugin="test_decoding")
        database.execute("INSERT INTO t VALUES (7)")
        before = left(database)
        run = peek(database, slot)
        assert run.returncode == 0
        assert "table public.t: INSERT: a[integer]:7\n" in run.stdout
        assert left(database) == before
        database.execute("CREATE TABLE s (a text)")
        database.execute(r"INSERT INTO s VALUES (E'\x1b]0;title\x07')")
        status, printed, _ = on_a_terminal(*PGCDC, "slot", "peek", slot, "-d", database.uri)
        assert status == 0
        assert r"table public.s: INSERT: a[text]:'\u001b]0;title\u0007'" in printed
        database.drop()
    finally:
        server.stop()
