"""How a run begins: with a slot, at a position, from a checkpoint; and how it stays connected."""

import json
import os
import re
import signal
import subprocess
from pathlib import Path

import psycopg
import pytest
from processes import stream_command, wait_until
from psycopg.conninfo import make_conninfo
from servers import being_created, new_slot_name, wait_until_free
from stream_runs import (
    NOW,
    SMALL,
    end_of_log,
    in_directory,
    insert,
    numbers,
    position,
    stream,
    taken,
)

from pgcdc_cli.lsn import Lsn


def slots(database) -> list[str]:
    found = database.execute(
        "SELECT slot_name FROM pg_replication_slots WHERE database = %s", (database.name,)
    )
    return [name for (name,) in found.fetchall()]


def test_a_slot_is_made_before_the_first_change(source, tmp_path, follow):
    name = f"made_{source.name}"
    following = follow(source.uri, name, tmp_path / "out", "--create-slot")
    # The server lists a slot before it knows where the slot begins.
    begun = "SELECT 1 FROM pg_replication_slots WHERE slot_name = %s AND confirmed_flush_lsn IS NOT NULL"
    wait_until(lambda: source.execute(begun, (name,)).fetchall())
    insert(source, 1, 3)
    wait_until(lambda: following.rows() == [1, 2, 3])
    assert following.stop() == (0, "")
    again = stream(source.uri, name, "-f", str(tmp_path / "out"), "--create-slot", "--if-not-exists", *NOW)
    assert (again.returncode, again.stderr) == (0, "")
    twice = stream(source.uri, name, "-f", str(tmp_path / "out"), "--create-slot", *NOW)
    assert twice.returncode == 5
    assert twice.stderr == (
        f'pgcdc: error: could not create slot "{name}": replication slot "{name}" already exists\n'
        "hint: leave out --create-slot: there is a checkpoint, and a slot to go on with\n"
    )
    assert following.rows() == [1, 2, 3]


@pytest.mark.parametrize("where", ["-f", "-D"])
def test_a_run_that_made_its_slot_goes_on_with_it_on_another_connection(source, tmp_path, follow, where):
    slot, out = f"made_{source.name}", tmp_path / "out"
    following = follow(source.uri, slot, out, where, str(out), "--create-slot", "-F", "0.1")
    wait_until(lambda: slots(source) and position(source, slot) and taken(source, slot))
    insert(source, 1, 1)
    source.execute(
        "SELECT pg_terminate_backend(active_pid) FROM pg_replication_slots WHERE slot_name = %s", (slot,)
    )
    insert(source, 2, 2)
    written = end_of_log(source)
    wait_until(lambda: taken(source, slot) >= written)
    status, errors = following.stop()
    assert (status, "connected again" in errors) == (0, True)
    assert (in_directory(out) if where == "-D" else following.rows()) == [1, 2]


def test_a_run_that_finds_nothing_takes_one_connection(source, tmp_path):
    """The walsender's: to that no limit of a role applies."""
    slot, role = source.create_slot(), f"alone_{source.name}"
    source.execute(f"CREATE ROLE {role} LOGIN REPLICATION CONNECTION LIMIT 0")
    try:
        run = stream(make_conninfo(source.uri, user=role), slot, "-D", str(tmp_path / "out"), *NOW)
        assert (run.returncode, run.stderr) == (0, "")
    finally:
        source.execute(f"DROP ROLE {role}")


@pytest.mark.parametrize(
    "options",
    [
        ("--table", "public.*"),
        ("--format", "debezium", "-c", "topic.prefix=x", "-c", "snapshot.mode=never"),
    ],
    ids=["patterns", "publication.autocreate.mode"],
)
def test_rows_from_before_an_alter_table_have_the_columns_of_that_time(database18, tmp_path, options):
    """A walsender that opened the table before it began to decode would take its present columns."""
    database18.execute(
        "CREATE TABLE t (a int PRIMARY KEY, b text, c int); ALTER TABLE t REPLICA IDENTITY FULL;"
        "CREATE PUBLICATION pub FOR TABLE t WHERE (a > 0)"
    )
    slot = database18.create_slot()
    database18.execute("INSERT INTO t VALUES (1, 'kept', 2)")
    database18.execute("ALTER TABLE t DROP b, ADD d int DEFAULT 3")
    out = tmp_path / "out"
    run = stream(database18.uri, slot, "-f", str(out), *options, *NOW)
    assert (run.returncode, run.stderr) == (0, "")
    [record] = map(json.loads, out.read_text().splitlines())
    row = record["value"]["payload"]["after"] if "value" in record else record["new"]
    assert row == {"a": 1, "b": "kept", "c": 2}


def test_a_login_trigger_does_not_change_the_columns_of_the_tables_that_it_opens(database18, tmp_path):
    """It runs in the walsender, too."""
    database18.execute(
        "CREATE TABLE logins (a int); CREATE PUBLICATION pub FOR TABLE logins;"
        "CREATE FUNCTION note() RETURNS event_trigger LANGUAGE plpgsql"
        " AS 'BEGIN INSERT INTO public.logins VALUES (2); END';"
        "CREATE EVENT TRIGGER on_login ON login EXECUTE FUNCTION note();"
        "ALTER EVENT TRIGGER on_login ENABLE ALWAYS"
    )
    slot, out = database18.create_slot(), tmp_path / "out"
    database18.execute("INSERT INTO logins VALUES (1); ALTER TABLE logins ADD b int DEFAULT 3")
    run = stream(database18.uri, slot, "-f", str(out), *NOW)
    assert (run.returncode, run.stderr) == (0, "")
    first, *_ = map(json.loads, out.read_text().splitlines())
    assert first["new"] == {"a": 1}


def test_no_slot_is_left_behind_by_a_run_that_cannot_begin(database, tmp_path):
    """A slot older than its publication could never be read."""
    run = stream(database.uri, f"made_{database.name}", "--create-slot", "-D", str(tmp_path / "out"), *NOW)
    assert run.returncode == 7
    (tmp_path / "data").write_text("somebody else's")
    run = stream(database.uri, f"made_{database.name}", "--create-slot", "-f", str(tmp_path / "data"), *NOW)
    assert run.returncode == 10
    assert (tmp_path / "data").read_text() == "somebody else's"
    assert slots(database) == []


def test_a_slot_that_cannot_be_made_yet_does_not_outlast_a_signal(source, tmp_path, follow):
    """Before it creates a slot the server waits for all open transactions."""
    with psycopg.connect(source.uri) as other:
        other.execute("SELECT txid_current()")
        following = follow(source.uri, f"made_{source.name}", tmp_path / "out", "--create-slot")
        wait_until(lambda: slots(source))
        # `other` is still open, so the run still waits.
        assert following.stop(signal.SIGINT) == (0, "")
        wait_until(lambda: not slots(source))


@pytest.mark.parametrize("create", [(), ("--create-slot", "--if-not-exists")])
def test_a_slot_that_another_process_is_creating_is_waited_for(source, tmp_path, follow, create):
    """Its position isn't known before."""
    slot = new_slot_name()
    with being_created(source, slot) as pid:
        following = follow(source.uri, slot, tmp_path / "out", *create)
        waits = f'could not stream slot "{slot}": process {pid} is still creating it; trying again\n'
        assert following.process.stderr.readline() == f"pgcdc: warning: {waits}"
    insert(source, 1, 1)
    wait_until(lambda: following.rows() == [1])
    assert following.stop()[0] == 0


def end_of(out: str) -> str:
    return json.loads(Path(f"{out}.checkpoint").read_text())["end_lsn"]


def test_a_new_slot_does_not_hide_a_gap(source, tmp_path):
    slot, out = source.create_slot(), str(tmp_path / "out")
    insert(source, 1, 1)
    assert stream(source.uri, slot, "-f", out, *NOW).returncode == 0
    source.execute("SELECT pg_drop_replication_slot(%s)", (slot,))
    insert(source, 2, 2)
    run = stream(source.uri, slot, "-f", out, "--create-slot", *NOW)
    assert run.returncode == 5
    assert re.fullmatch(
        rf'pgcdc: error: could not continue from [0-9A-F/]+: slot "{slot}" is gone\n'
        "hint: changes in between are lost: --accept-gap continues without them\n",
        run.stderr,
    )
    assert slots(source) == []
    ended = end_of(out)
    run = stream(source.uri, slot, "-f", out, "--create-slot", "--accept-gap", *NOW)
    warning = (
        f"pgcdc: warning: there is a gap: the output ends at {ended}, the slot continues at [0-9A-F/]+\n"
    )
    assert run.returncode == 0
    assert re.fullmatch(warning, run.stderr)
    insert(source, 3, 3)
    run = stream(source.uri, slot, "-f", out, "--accept-gap", *NOW)
    assert (run.returncode, run.stderr) == (0, "")
    assert numbers((tmp_path / "out").read_text()) == [1, 3]


def test_a_file_without_rows_may_be_removed_between_two_runs(source, tmp_path):
    slot, out = source.create_slot(), tmp_path / "out"
    assert stream(source.uri, slot, "-f", str(out), *NOW).returncode == 0
    out.unlink()
    insert(source, 1, 1)
    run = stream(source.uri, slot, "-f", str(out), *NOW)
    assert (run.returncode, run.stderr) == (0, "")
    assert numbers(out.read_text()) == [1]


def test_a_stream_goes_on_without_a_file_that_was_removed_as_the_hint_says(source, tmp_path):
    slot, out = source.create_slot(), tmp_path / "out"
    insert(source, 1, 1)
    assert stream(source.uri, slot, "-f", str(out), *NOW).returncode == 0
    out.unlink()
    insert(source, 2, 2)
    run = stream(source.uri, slot, "-f", str(out), *NOW)
    remedy = re.search(
        "if it is gone for good, remove (.+), and run again, with (--startpos) (.+)\n", run.stderr
    )
    assert (run.returncode, remedy[1]) == (10, "out.checkpoint")
    (tmp_path / remedy[1]).unlink()
    run = stream(source.uri, slot, "-f", str(out), remedy[2], remedy[3], *NOW)
    assert (run.returncode, run.stderr) == (0, "")
    assert numbers(out.read_text()) == [2]


def test_a_start_position_skips_what_was_before(source, tmp_path):
    slot = source.create_slot()
    insert(source, 1, 2)
    middle = str(end_of_log(source))
    insert(source, 3, 4)
    copy = source.copy_slot(slot)
    assert numbers(stream(source.uri, slot, "-I", middle, *NOW).stdout) == [3, 4]
    early = stream(source.uri, slot, "-I", "0/1", *NOW)
    assert early.returncode == 0
    assert re.fullmatch(
        "pgcdc: warning: could not start at 0/1: the slot is already at [0-9A-F/]+\n", early.stderr
    )
    out = tmp_path / "out"
    assert stream(source.uri, copy, "-D", str(out), "-I", middle, *NOW).returncode == 0
    assert in_directory(out) == [3, 4]
    again = stream(source.uri, copy, "-D", str(out), "-I", middle, *NOW)
    assert again.returncode == 2
    assert re.fullmatch(
        f"pgcdc: error: could not start at {middle}: there is a checkpoint, at [0-9A-F/]+\n"
        "hint: leave out -I/--startpos, or write to another directory or file\n",
        again.stderr,
    )


def test_a_start_before_the_slot_leaves_no_gap(source, tmp_path):
    """The output begins where the slot is, even if the run ends before anything comes."""
    slot, out = source.create_slot(), str(tmp_path / "out")
    run = stream(source.uri, slot, "-D", out, "-I", "0/1", "--endpos", "0/1")
    assert (run.returncode, "could not start at 0/1: the slot is already at" in run.stderr) == (0, True)
    run = stream(source.uri, slot, "-D", out, *NOW)
    assert (run.returncode, run.stderr) == (0, "")


def test_a_role_that_may_replicate_needs_no_rights_on_tables(source):
    slot = source.create_slot()
    insert(source, 1, 2)
    role = f"r_{source.name}"
    source.execute(f"CREATE ROLE {role} LOGIN REPLICATION")
    try:
        run = stream(source.server.uri(source.name, role), slot, *NOW)
    finally:
        source.execute(f"DROP ROLE {role}")
    assert (run.returncode, run.stderr) == (0, "")
    assert numbers(run.stdout) == [1, 2]


def test_another_database_of_the_same_server(source, tmp_path):
    slot = source.create_slot()
    with psycopg.connect(source.uri, autocommit=True) as admin:
        admin.execute(f"CREATE DATABASE {source.name}_2")
    try:
        uri = source.server.uri(f"{source.name}_2")
        with psycopg.connect(uri, autocommit=True) as other:
            other.execute(SMALL)
        run = stream(uri, slot, "-D", str(tmp_path / "out"), *NOW)
    finally:
        source.execute(f"DROP DATABASE {source.name}_2 WITH (FORCE)")
    assert run.returncode == 2
    assert run.stderr == (
        f'pgcdc: error: could not stream slot "{slot}": it belongs to database "{source.name}",'
        f' not "{source.name}_2"\n'
        f"hint: with -d {source.name} it can be read\n"
    )


def test_a_slot_of_a_database_whose_name_a_shell_would_split(source, tmp_path):
    slot, name = new_slot_name(), f"{source.name} b"
    source.execute(f'CREATE DATABASE "{name}"')
    with psycopg.connect(source.uri, dbname=name, autocommit=True) as other:
        other.execute("SELECT pg_create_logical_replication_slot(%s, 'pgoutput')", (slot,))
    try:
        run = stream(source.uri, slot, "-D", str(tmp_path / "out"), *NOW)
    finally:
        source.drop_slot(slot)
        source.execute(f'DROP DATABASE "{name}"')
    assert run.stderr.endswith(f"\nhint: with -d '{name}' it can be read\n")


def test_idle_tables_on_a_busy_server_do_not_hold_its_log(source, tmp_path, follow):
    slot = source.create_slot()
    follow(source.uri, slot, tmp_path / "out", "-D", str(tmp_path / "out"))
    for _ in range(3):
        source.execute("INSERT INTO other SELECT generate_series(1, 1000)")
        target = end_of_log(source)
        source.execute("SELECT pg_logical_emit_message(false, 'more', '')")
        wait_until(lambda target=target: Lsn.parse(position(source, slot)) >= target)
    assert not list((tmp_path / "out").glob("public.*"))


def test_nothing_is_confirmed_between_rotations_if_so_wanted(source, tmp_path, follow):
    slot, first = source.create_slot(), Lsn.parse("FFFFFFFF/0")
    out = tmp_path / "out"
    following = follow(source.uri, slot, out, "-D", str(out), "-F", "0", "--layout", "stream")
    for low in (1, 11):
        insert(source, low, low + 9)
        written = end_of_log(source)
        wait_until(lambda written=written: taken(source, slot) >= written)
        # The checkpoint follows the WAL as long as there is nothing to make durable, and then stays.
        first = min(first, written)
        assert Lsn.parse(position(source, slot)) < first
    assert following.stop() == (0, "")
    # A run that a signal ends doesn't wait for long until the server has taken note of the end.
    wait_until(lambda: Lsn.parse(position(source, slot)) >= first)
    assert len(next(iter(out.glob("0*.jsonl"))).read_text().splitlines()) == 20


@pytest.mark.parametrize("limit", ["--max-time", "--idle-timeout"])
def test_a_limit_of_time_does_not_hide_that_there_is_no_server(tmp_path, limit):
    run = stream(f"host={tmp_path} dbname=d", "s", limit, "500ms")
    assert run.returncode == 3
    assert run.stderr.startswith("pgcdc: error: could not connect to the server: ")


def test_a_slot_of_a_run_that_was_killed_is_free_in_a_moment(source, tmp_path, follow):
    slot = source.create_slot()
    following = follow(source.uri, slot, tmp_path / "one")
    insert(source, 1, 1)
    wait_until(lambda: following.rows() == [1])
    following.process.kill()
    following.process.wait()
    wait_until_free(source, slot)
    run = stream(source.uri, slot, "-f", str(tmp_path / "one"), *NOW)
    assert (run.returncode, run.stderr) == (0, "")
    assert following.rows() == [1]


def test_the_processor_rests_while_nothing_happens(source, tmp_path):
    slot = source.create_slot()
    line = stream_command(source.uri, slot, "-D", str(tmp_path / "out"))

    def seconds(idle: str) -> float:
        process = subprocess.Popen([*line, "--idle-timeout", idle])
        _, status, usage = os.wait4(process.pid, 0)
        process.returncode = os.waitstatus_to_exitcode(status)
        assert process.returncode == 0
        return usage.ru_utime + usage.ru_stime

    # Processor time, which hardly depends on other load: a run that never rests would take all four seconds.
    assert seconds("4s") - seconds("10ms") < 4 / 2
