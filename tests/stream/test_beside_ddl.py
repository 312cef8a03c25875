"""Snapshots and questions of the catalog while others create, alter, and drop tables."""

import json
import subprocess

import psycopg
import pytest
from processes import PGCDC, wait_until
from segments import contents
from servers import Database, new_slot_name
from stream_runs import NOW, repeating, stream

TABLES = """
CREATE TABLE root (a int PRIMARY KEY) PARTITION BY RANGE (a);
CREATE TABLE leaf PARTITION OF root FOR VALUES FROM (0) TO (9);
CREATE TABLE kept (a int PRIMARY KEY, b int);
CREATE TABLE locked (a int PRIMARY KEY);
INSERT INTO root VALUES (1), (2); INSERT INTO kept VALUES (3, 3); INSERT INTO locked VALUES (4);
CREATE PUBLICATION pub FOR ALL TABLES;
"""
ALL = {("leaf", 1), ("leaf", 2), ("kept", 3), ("locked", 4)}
WITHOUT_LOCKED = ALL - {("locked", 4)}


def beside(
    database: Database, held: str, meanwhile: str, *arguments: str
) -> subprocess.CompletedProcess[str]:
    """Run pgcdc while a transaction has executed `held`; it commits once pgcdc waits for its lock."""
    command = [*PGCDC, *arguments, "-d", database.uri]
    with psycopg.connect(database.uri) as other:
        other.execute(held)
        with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as run:
            waiting = (
                "SELECT FROM pg_locks WHERE NOT granted AND database ="
                " (SELECT oid FROM pg_database WHERE datname = current_database())"
            )
            wait_until(lambda: database.execute(waiting).fetchone() is not None or run.poll() is not None)
            database.execute(meanwhile)
            other.commit()
            printed, said = run.communicate(timeout=60)
    return subprocess.CompletedProcess(command, run.returncode, printed, said)


def rows(printed: str) -> set[tuple[str, int]]:
    return {(change["table"], change["new"]["a"]) for change in map(json.loads, printed.splitlines())}


@pytest.mark.parametrize(
    ("held", "meanwhile", "found"),
    [
        ("LOCK TABLE locked", "ALTER TABLE root DETACH PARTITION leaf", ALL),
        ("LOCK TABLE locked", "ALTER TABLE kept ALTER b TYPE bigint", ALL),
        ("LOCK TABLE locked", "ALTER TABLE kept RENAME b TO c", ALL),
        ("LOCK TABLE locked", "ALTER TABLE kept RENAME TO k", ALL - {("kept", 3)} | {("k", 3)}),
        ("TRUNCATE locked", "SELECT 1", WITHOUT_LOCKED),
        (
            "DROP TABLE locked; CREATE TABLE locked (a) AS VALUES (5)",
            "SELECT 1",
            WITHOUT_LOCKED | {("locked", 5)},
        ),
    ],
)
def test_a_snapshot_is_as_of_a_moment_at_which_no_table_was_changed_before_it_was_locked(
    any_database, held, meanwhile, found
):
    any_database.execute(TABLES)
    run = beside(any_database, held, meanwhile, "snapshot", "--table", "public.*")
    assert (run.returncode, run.stderr) == (0, "")
    names = {("leaf", one) for one in (1, 2)} if "DETACH" in meanwhile else {("root", one) for one in (1, 2)}
    assert rows(run.stdout) == {one for one in found if one[0] != "leaf"} | names


@pytest.mark.parametrize("arguments", [["snapshot"], ["stream", "-f", "-", "--snapshot", "only", "-S"]])
def test_a_partition_that_is_attached_while_rows_are_read_is_not_read_as_a_part_of_its_root(
    any_database, arguments
):
    """The root didn't have its rows at the snapshot's moment, and changes in between aren't the root's."""
    any_database.execute("CREATE TABLE first (a int PRIMARY KEY, b text)")
    any_database.execute("INSERT INTO first SELECT g, repeat('x', 1000) FROM generate_series(1, 60000) g")
    any_database.execute(
        TABLES.replace("FOR ALL TABLES", "FOR TABLE first, root WITH (publish_via_partition_root)")
    )
    any_database.execute("CREATE TABLE more (LIKE root); INSERT INTO more VALUES (9)")
    slot = [new_slot_name()] if arguments[-1] == "-S" else []
    line = [
        *PGCDC,
        *arguments,
        *slot,
        "-d",
        any_database.uri,
        "--publication",
        "pub",
        "--snapshot-workers",
        "1",
    ]
    with subprocess.Popen(line, stdout=subprocess.PIPE, stderr=subprocess.PIPE, bufsize=0) as run:
        begun = run.stdout.read(1)
        any_database.execute("ALTER TABLE root ATTACH PARTITION more FOR VALUES FROM (9) TO (10)")
        printed, said = run.communicate(timeout=60)
    assert (run.returncode, said) == (0, b"")
    found = rows((begun + printed).decode())
    assert {one for one in found if one[0] != "first"} == {("root", 1), ("root", 2)}


DROPPED = 'pgcdc: warning: table "public.locked" was dropped a moment ago: none of its rows are read\n'


@pytest.mark.parametrize("arguments", [("--table", "public.*"), ("--table", "public.*", "--where", "a > 0")])
def test_a_table_that_was_dropped_before_it_was_locked_is_left_out(database18, arguments):
    database18.execute(TABLES)
    run = beside(database18, "DROP TABLE locked", "SELECT 1", "snapshot", *arguments)
    assert (run.returncode, run.stderr) == (0, DROPPED)
    assert rows(run.stdout) == {("root", 1), ("root", 2), ("kept", 3)}


@pytest.mark.parametrize("arguments", ["snapshot", "doctor", "doctor --role somebody"])
def test_a_question_that_meets_a_table_that_is_gone_is_asked_again(any_database, arguments):
    """The server's function that lists published tables opens each of them, from PostgreSQL 16 on."""
    any_database.execute(TABLES)
    run = beside(any_database, "DROP TABLE locked", "SELECT 1", *arguments.split(), "--publication", "pub")
    assert run.returncode == 0
    assert run.stderr in {"", DROPPED}


def test_a_table_that_is_rewritten_all_the_time_is_read_again_over_one_connection(database18, tmp_path):
    database18.execute(TABLES)
    database18.execute("INSERT INTO kept SELECT g FROM generate_series(10, 9999) g")
    slot, out = database18.create_slot(), tmp_path / "out"
    arguments = ("--resnapshot", "public.kept", *NOW, "--max-time", "30s")
    with repeating(database18.uri, "VACUUM FULL kept"):
        run = stream(database18.uri, slot, "-D", str(out), *arguments)
    assert (run.returncode, run.stderr) == (0, "")
    [rows] = contents(out).values()
    assert len(rows) == 9991
