"""Names are data: none leaves the directory, ends a statement, or controls a terminal."""

import json
import os
import subprocess
from pathlib import Path
from typing import Any

import pytest
from processes import PGCDC, stream_command
from psycopg import sql
from segments import contents
from warm_process import run_warm

NAMES = [
    "..",
    "../../up",
    "/etc/passwd",
    "a/b",
    "a\\b",
    "it's",
    'say "this"',
    '"; DROP TABLE victim; --',
    "'; DROP TABLE victim; --",
    "$(touch owned)",
    "`touch owned`",
    "%s %(a)s {0} {a}",
    "two\nlines\r",
    "\x1b]0;owned\x07\x1b[2J",
    "\u202egnp.exe",
    ".hidden",
    "-rf",
    "*",
    "_messages",
    "checkpoint.json",
]
"""Names that are hard to handle; NUL is the one character that no name can have."""


@pytest.fixture
def hostile(database18):
    """A database whose schemas, tables and columns have these names."""
    execute = database18.execute
    execute("CREATE TABLE victim (a int)")
    for name in NAMES:
        table = sql.Identifier(name, name[::-1])
        execute(sql.SQL("CREATE SCHEMA {}").format(sql.Identifier(name)))
        columns = {"table": table, "key": sql.Identifier(name), "other": sql.Identifier(name[::-1] + "2")}
        execute(sql.SQL("CREATE TABLE {table} ({key} int PRIMARY KEY, {other} text)").format(**columns))
        execute(sql.SQL("INSERT INTO {} VALUES (1, 'before')").format(table))
    yield database18
    assert execute("SELECT count(*) FROM victim").fetchone() == (0,)


def change(database) -> None:
    for name in NAMES:
        database.execute(
            sql.SQL("INSERT INTO {} VALUES (2, 'after')").format(sql.Identifier(name, name[::-1]))
        )


def run(folder: Path, *line: str, status: int = 0) -> str:
    """Run a command whose messages must have no control characters; return its output."""
    environment = {**os.environ, "LC_ALL": "C.UTF-8"}
    ran = run_warm(line, cwd=folder, env=environment)
    assert ran.returncode == status, ran.stderr
    assert ran.stderr.replace("\n", "").isprintable()
    return ran.stdout


def pgcdc(database, folder: Path, command: str, *arguments: str, status: int = 0) -> str:
    return run(folder, *PGCDC, *command.split(), "-d", database.uri, *arguments, status=status)


@pytest.mark.parametrize("form", ["jsonl", "arrow", "debezium", "wal2json"])
@pytest.mark.parametrize("publication", ['"; DROP TABLE victim; --', "it's, \x1b[31m'\\ all\n"])
def test_rows_of_hostile_tables_stay_in_the_directory(hostile, tmp_path, form, publication):
    """With Debezium events a snapshot is read, too, by statements with these names."""
    work = tmp_path / "work"
    work.mkdir()
    pgcdc(hostile, work, "publication create", "--all-tables", "--", publication)
    more = ["--create-slot", "--if-not-exists", "-D", "out", "--format", form, "--endpos", "now"]
    more += ["-c", "topic.prefix=srv", "-c", "snapshot.mode=initial"] if form == "debezium" else []
    more += ["--wal2json-option", "include-transaction=false"] if form == "wal2json" else []
    slot = f"hostile_{hostile.name}"
    run(work, *stream_command(hostile.uri, slot, *more, publications=[publication]))
    change(hostile)
    run(work, *stream_command(hostile.uri, slot, *more, publications=[publication]))
    assert [path.name for path in tmp_path.iterdir()] == ["work"]
    assert [path.name for path in work.iterdir()] == ["out"]
    lines = [json.loads(line) for line in (work / "out" / "manifest.jsonl").read_text().splitlines()]
    files = [(file["table"], work / "out" / file["path"]) for line in lines for file in line["files"]]
    assert {path.resolve().is_relative_to(work / "out") for _, path in files} == {True}
    tables = {f"{name}.{name[::-1]}" for name in NAMES}
    # A snapshot leaves an empty file of a table without rows, too.
    empty = {"public.victim"} if form == "debezium" else set()
    assert {table for table, _ in files} == tables | empty
    if form in {"jsonl", "wal2json"}:
        found = [json.loads(line) for lines in contents(work / "out").values() for line in lines]
        assert {(row["schema"], row["table"]) for row in found} == {(name, name[::-1]) for name in NAMES}
        rows = [list(image(row).items()) for row in found]
        assert sorted(rows) == sorted([(name, 2), (name[::-1] + "2", "after")] for name in NAMES)
    if form == "jsonl":
        shown = run(work, *PGCDC, "show", "out", "--format", "pretty")
        assert shown.replace("\n", "").isprintable()
        assert shown.count("INSERT") == len(NAMES)
        assert run(work, *PGCDC, "status", "out")


def image(row: dict[str, Any]) -> dict[str, object]:
    """Return a new row's values by name, from JSON lines or wal2json's lines."""
    return row["new"] if "new" in row else {column["name"]: column["value"] for column in row["columns"]}


@pytest.mark.parametrize("name", [name for name in NAMES if "DROP" in name or "\x1b" in name or "-" in name])
def test_a_hostile_slot_or_publication_is_a_name_and_nothing_else(hostile, tmp_path, name):
    """The server accepts none of them for a slot, and each for a publication."""
    pgcdc(hostile, tmp_path, "slot create", "--", name, status=2)
    pgcdc(hostile, tmp_path, "slot drop", "--", name, status=5)
    pgcdc(hostile, tmp_path, "publication create", "--table", "victim", "--", name)
    pgcdc(hostile, tmp_path, "publication show", "--", name)
    pgcdc(hostile, tmp_path, "publication drop", "--", name)
    assert list(tmp_path.iterdir()) == []


def test_folders_are_named_in_utf8_whatever_the_locale(database18, tmp_path):
    """The locale is ASCII, in place of Latin-1, which may not be installed."""
    database18.execute('CREATE TABLE "Käse 日本" (a int PRIMARY KEY)')
    database18.execute("CREATE PUBLICATION pub FOR ALL TABLES")
    slot = database18.create_slot()
    database18.execute('INSERT INTO "Käse 日本" VALUES (1)')
    line = stream_command(database18.uri, slot, "-D", tmp_path / "out", "--endpos", "now")
    environment = os.environ | {"LC_ALL": "C", "PYTHONCOERCECLOCALE": "0", "PYTHONUTF8": "0"}
    ran = subprocess.run(line, env=environment, capture_output=True, text=True, check=False)
    assert (ran.returncode, ran.stderr) == (0, "")
    assert len(contents(tmp_path / "out")["public.Käse 日本"]) == 1
