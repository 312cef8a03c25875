"""`--snapshot`: the existing rows, then every change after them; none lost, none twice."""

import json
import re
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import psycopg
import pytest
import scale
from processes import PGCDC, stream_command, wait_until
from row_changes import COLUMNS, folded_rows, row_changes, source_rows
from segments import contents, manifest
from servers import Database, new_slot_name
from standbys import replayed
from stream_runs import (
    FORMATS,
    NOW,
    SMALL,
    TABLES,
    Load,
    checkpoint,
    in_directory,
    insert,
    numbers,
    refused,
    repeating,
    stream,
)
from warm_process import run_warm

from pgcdc_cli.cli.running import ProgressLine
from pgcdc_cli.lsn import Lsn
from pgcdc_cli.replication.connection import ReplicationConnection
from pgcdc_cli.stream.settings import RunTotals

INITIAL = ("--snapshot", "initial")


@pytest.fixture
def slot() -> str:
    return new_slot_name()


@pytest.mark.parametrize("seed", range(scale.factor))
@pytest.mark.parametrize("form", FORMATS)
def test_snapshot_and_stream_are_the_source_under_load(any_database, tmp_path, slot, form, seed):
    """Every row of every table, with all values, and none of them twice."""
    any_database.execute(TABLES)
    any_database.execute("INSERT INTO accounts SELECT g, 'owner', g FROM generate_series(1, 30000, 3) g")
    command = stream_command(any_database.uri, slot, "-D", tmp_path / "out", *FORMATS[form], *INITIAL)
    load = Load(any_database.uri, seed)
    load.start()
    try:
        wait_until(lambda: load.transactions > 20)
        with subprocess.Popen([*command, "-F", "0.1"]) as run:
            wait_until(lambda: manifest(tmp_path / "out") or settled(tmp_path / "out"))
            seen = load.transactions
            wait_until(lambda: load.transactions > seen + 20)
            run.send_signal(signal.SIGTERM)
        assert run.returncode == 0
    finally:
        load.stop()
    subprocess.run([*command, *NOW], check=True)
    for table in COLUMNS:
        assert folded_rows(tmp_path / "out", table) == source_rows(any_database, table)


def settled(out: Path) -> bool:
    """Whether the stream has begun."""
    return checkpoint(out)["end_lsn"] not in {None, "0/0"}


@pytest.fixture
def filled(source):
    """A database whose table t takes a moment to read."""
    insert(source, 1, 60000)
    return source


def slots_of(database) -> list[str]:
    query = "SELECT slot_name FROM pg_replication_slots WHERE database = %s ORDER BY 1"
    return [name for (name,) in database.execute(query, (database.name,)).fetchall()]


KILLED = """
import os, signal, sys
from pgcdc_cli.catalog import Catalog
from pgcdc_cli.cli.app import main
from pgcdc_cli.sinks.checkpointed_sink import CheckpointedSink
from pgcdc_cli.stream.snapshot.initial_snapshot import SlotSnapshot
from pgcdc_cli.stream.snapshot.snapshot_session import SnapshotSession

owner, name, when = sys.argv.pop(1), sys.argv.pop(1), sys.argv.pop(1)
owners = {"sink": CheckpointedSink, "slot": SlotSnapshot, "session": SnapshotSession, "catalog": Catalog}
owner = owners[owner]
step = getattr(owner, name)

def killed(*arguments, **more):
    if when == "after":
        step(*arguments, **more)
    os.kill(os.getpid(), signal.SIGKILL)

setattr(owner, name, killed)
sys.exit(main())
"""
STEPS = {
    "before anything is durable": "sink start before",
    "before the snapshot": "sink start after",
    "when it is exported": "slot __init__ after",
    "while rows are read": "session copy before",
    "when all rows are read": "sink creating before",
    "before the slot is made": "slot keep_slot before",
    "when the slot is made": "slot keep_slot after",
    "when the stream has begun": "sink new_spools after",
}


def killed_at(step: str, database, slot: str, out: Path, *arguments: str) -> None:
    command = stream_command(database.uri, slot, "-D", out, *arguments)[len(PGCDC) :]
    run = subprocess.run([sys.executable, "-c", KILLED, *step.split(), *command], check=False, timeout=60)
    assert run.returncode == -signal.SIGKILL
    wait_until(lambda: not set(slots_of(database)) - {slot})


PUBLISHED_LATER = """
import sys
import psycopg
from pgcdc_cli.cli.app import main
from pgcdc_cli.stream.snapshot.initial_snapshot import SlotSnapshot

export = SlotSnapshot._export
uri = sys.argv.pop(1)

def exported_before(*arguments):
    found = export(*arguments)
    with psycopg.connect(uri, autocommit=True) as connection:
        connection.execute("DELETE FROM other WHERE a = 1; INSERT INTO other VALUES (2)")
        connection.execute("ALTER PUBLICATION pub ADD TABLE other")
    SlotSnapshot._export = export
    return found

SlotSnapshot._export = exported_before
sys.exit(main())
"""


def test_a_table_that_is_published_right_after_the_snapshot_has_all_its_rows(filled, tmp_path, slot):
    filled.execute("INSERT INTO other VALUES (1)")
    command = stream_command(filled.uri, slot, "-D", tmp_path / "out", *INITIAL, *NOW)[len(PGCDC) :]
    line = [sys.executable, "-c", PUBLISHED_LATER, filled.uri, *command]
    ended = subprocess.run(line, capture_output=True, text=True, check=True, timeout=60)
    assert "a publication was changed since the snapshot; trying again" in ended.stderr
    [line] = contents(tmp_path / "out")["public.other"]
    assert (json.loads(line)["op"], json.loads(line)["new"]) == ("R", {"a": 2})


@pytest.mark.parametrize("step", STEPS)
def test_a_run_killed_at_any_step_begins_anew_and_doubles_nothing(filled, tmp_path, slot, step):
    out = tmp_path / "out"
    killed_at(STEPS[step], filled, slot, out, *INITIAL)
    insert(filled, 60001, 60002)
    ended = stream(filled.uri, slot, "-D", str(out), *INITIAL, *NOW)
    assert ended.returncode == 0, ended.stderr
    assert in_directory(out) == list(range(1, 60003))
    assert slots_of(filled) == [slot]
    assert not list(out.rglob("*.partial"))
    assert "creating" not in checkpoint(out)


def test_a_slot_that_someone_made_since_a_kill_is_never_dropped(filled, tmp_path, slot):
    out = tmp_path / "out"
    killed_at(STEPS["before the slot is made"], filled, slot, out, *INITIAL)
    filled.create_slot(slot)
    assert stream(filled.uri, slot, "-D", str(out), *INITIAL, *NOW).returncode == 5
    assert slots_of(filled) == [slot]


def test_without_its_snapshot_a_stream_does_not_go_on(filled, tmp_path, slot):
    out = tmp_path / "out"
    killed_at(STEPS["when the slot is made"], filled, slot, out, *INITIAL)
    run = stream(filled.uri, slot, "-D", str(out), *NOW)
    hint = (
        "continue with --snapshot initial (a connector's snapshot.mode=initial), which completes it; or write"
        " to another directory or file"
    )
    refused(run, 2, "continue: the snapshot that the stream begins with was not finished", hint)


def test_a_slot_that_is_there_already_is_refused(filled, tmp_path, slot):
    filled.create_slot(slot)
    out = tmp_path / "out"
    run = stream(filled.uri, slot, "-D", str(out), *INITIAL, *NOW)
    hint = (
        "read the rows while it streams, with --resnapshot '*.*' in place of --snapshot; or drop it, and the"
        f" snapshot recreates it: pgcdc slot drop {slot}; or do without: --snapshot never"
    )
    refused(run, 5, f'take a snapshot for slot "{slot}": it already exists', hint)
    assert slots_of(filled) == [slot]
    insert(filled, 60001, 60002)
    again = stream(filled.uri, slot, "-D", str(out), "--resnapshot", "*.*", *NOW)
    assert (again.returncode, again.stderr) == (0, "")
    assert sorted(set(in_directory(out))) == list(range(1, 60003))


@pytest.mark.parametrize("name", ["Two words", "a" * 64])
def test_a_slot_s_name_is_looked_at_before_rows_are_read(filled, tmp_path, name):
    """The server checks or truncates it only when it creates the slot, after a table was read."""
    out = tmp_path / "out"
    hint = "a slot's name has lower case letters, digits and underscores, 63 at most"
    for how in (INITIAL, ("--create-slot",)):
        run = stream(filled.uri, name, "-D", str(out), *how, *NOW)
        refused(run, 2, f'create slot "{name}": that is not a valid name for a slot', hint)
    assert stream(filled.uri, "fit_" + filled.name, "-D", str(out), *INITIAL, *NOW).returncode == 0
    assert in_directory(out) == list(range(1, 60001))


def test_status_says_how_far_a_snapshot_is(filled, tmp_path, slot):
    """A slot that doesn't exist yet is not a lost one."""
    out = tmp_path / "out"
    killed_at(STEPS["while rows are read"], filled, slot, out, *INITIAL)
    assert status(out, filled) == ("in progress, 0 tables are complete", None)
    killed_at("sink _make_durable after", filled, slot, out, *INITIAL, "-F", "0.001")
    assert status(out, filled) == ("in progress, 1 table is complete", slot)
    assert stream(filled.uri, slot, "-D", str(out), *INITIAL, *NOW).returncode == 0
    assert status(out, filled) == (None, slot)


def status(out: Path, database) -> tuple[str | None, str | None]:
    """What `pgcdc status` prints about the snapshot, and the slot that it finds."""
    line = [*PGCDC, "status", str(out), "-d", database.uri]
    text, content = (
        subprocess.run([*line, *more], capture_output=True, text=True, check=True).stdout
        for more in ((), ("--json",))
    )
    said = [words.split(maxsplit=1)[1] for words in text.splitlines() if words.startswith("snapshot ")]
    slot = json.loads(content)["slot"]
    assert bool(said) == (json.loads(content)["checkpoint"]["snapshot"] is not None)
    return (said or [None])[0], slot and slot["name"]


def test_a_slot_too_few_is_told_before_rows_are_read(own_server, tmp_path):
    database = Database(own_server(18, {"max_replication_slots": "1"}))
    database.execute(SMALL)
    run = stream(database.uri, "s", "-D", str(tmp_path / "out"), *INITIAL)
    hint = "raise max_replication_slots, or drop a slot that is not in use: pgcdc slot list"
    refused(run, 2, 'create slot "s": the server has no free slot besides the snapshot\'s', hint)
    database.drop()


MANY_TABLES = """
DO $$ BEGIN
    FOR number IN 1..900 LOOP
        EXECUTE format('CREATE TABLE %I (a int)', 't' || number);
        COMMIT;
    END LOOP;
END $$
"""


def test_more_tables_than_can_be_locked_are_answered_with_the_setting(own_server, tmp_path):
    few = ("max_connections", "max_wal_senders", "max_prepared_transactions", "max_worker_processes")
    server = own_server(18, {"max_locks_per_transaction": "10", **dict.fromkeys(few, "6")})
    with psycopg.connect(server.uri(), autocommit=True) as admin:
        admin.execute(MANY_TABLES)
        admin.execute("CREATE PUBLICATION pub FOR ALL TABLES")
    run = run_warm([*PGCDC, "snapshot", "-d", server.uri(), "--table", "public.*"])
    *_, reason, hint = run.stderr.splitlines()
    assert (run.returncode, run.stdout) == (3, "")
    assert reason.endswith(": out of shared memory")
    remedy = "raise max_locks_per_transaction, and restart the server: a snapshot locks all of its tables"
    assert hint == f"hint: {remedy}"
    # Others may let go of theirs, so a stream tries again; meanwhile it says what helps.
    line = stream_command(server.uri(), "s", "-D", tmp_path / "out", *INITIAL)
    with subprocess.Popen(line, stderr=subprocess.PIPE, text=True) as process:
        warning = process.stderr.readline()
        process.terminate()
    assert warning.endswith(f": out of shared memory; trying again; {remedy}\n")
    assert process.returncode == 0


def test_all_is_done_on_one_of_several_servers(filled, servers, tmp_path, slot):
    hosts = f"/nowhere,{servers[18].socket_directory}"
    uri = f"host={hosts} dbname={filled.name} user=postgres"
    run = stream(uri, slot, "-D", str(tmp_path / "out"), *INITIAL, *NOW)
    assert (run.returncode, len(in_directory(tmp_path / "out"))) == (0, 60000), run.stderr


@pytest.fixture
def logged(database18) -> Iterator[None]:
    """Have the primary log its running transactions again and again, for which slots on a standby wait."""
    with repeating(database18.uri, "SELECT pg_log_standby_snapshot()", 0.1):
        yield


@pytest.mark.usefixtures("logged")
@pytest.mark.parametrize("form", FORMATS)
def test_a_stream_from_a_standby_begins_with_its_rows(source, servers, standby18, tmp_path, slot, form):
    insert(source, 1, 3)
    replayed(standby18, servers[18])
    command = (standby18.uri(source.name), slot, "-D", str(tmp_path / "out"), *FORMATS[form], *INITIAL, *NOW)
    for number in (4, 5):
        run = stream(*command)
        assert (run.returncode, run.stderr) == (0, "")
        insert(source, number, number)
        replayed(standby18, servers[18])
    found = [(change.op, change.after["a"]) for change in row_changes(tmp_path / "out", "public.t")]
    assert found == [("R", 1), ("R", 2), ("R", 3), ("I", 4)]


def test_what_a_slot_waits_for_is_said(source, standby18, servers, caplog, monkeypatch):
    """The server doesn't tell, however long it takes."""
    monkeypatch.setattr("pgcdc_cli.replication.session.QUIET", 0.1)
    replayed(standby18, servers[18])
    with psycopg.connect(source.uri) as other:
        other.execute("INSERT INTO t VALUES (1)")
        with making_a_slot(source.uri):
            wait_until(lambda: "pg_stat_activity" in caplog.text)
            other.rollback()
    with making_a_slot(standby18.uri(source.name)):
        wait_until(lambda: "SELECT pg_log_standby_snapshot()" in caplog.text)
        source.execute("SELECT pg_log_standby_snapshot()")
    caplog.clear()
    monkeypatch.setattr("pgcdc_cli.replication.session.QUIET", 10)
    with making_a_slot(source.uri):
        pass
    assert caplog.text == ""


@contextmanager
def making_a_slot(uri: str) -> Iterator[None]:
    """Create a slot in the background, and wait for it at the end."""
    with ReplicationConnection(uri) as making:
        thread = threading.Thread(
            target=making.create_slot, args=[new_slot_name()], kwargs={"temporary": True}, daemon=True
        )
        thread.start()
        yield
        thread.join()


@pytest.mark.parametrize("create", [(), ("--create-slot",)])
def test_what_a_pipe_got_of_a_snapshot_is_not_asked_for_again(source, slot, create):
    """A pipe has no checkpoint: only the run itself knows that the rows are written."""
    insert(source, 1, 3)
    command = stream_command(source.uri, slot, *INITIAL, *create)
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as run:
        try:
            found = [run.stdout.readline() for _ in range(3)]
            end = (
                "SELECT pg_terminate_backend(pid, 9000) FROM pg_replication_slots JOIN pg_stat_replication"
                " ON pid = active_pid WHERE slot_name = %s AND state = 'streaming'"
            )
            wait_until(lambda: source.execute(end, (slot,)).fetchone())
            insert(source, 4, 5)
            found += [run.stdout.readline() for _ in range(2)]
            run.terminate()
            rest, errors = run.communicate(timeout=60)
        finally:
            run.kill()
    assert (numbers("".join(found)), rest, run.returncode) == ([1, 2, 3, 4, 5], "", 0), errors
    assert "trying again" in errors


def test_only_ends_with_the_rows_and_leaves_the_slot(filled, tmp_path, slot):
    out = tmp_path / "out"
    only = stream(filled.uri, slot, "-D", str(out), "--snapshot", "only")
    assert only.returncode == 0, only.stderr
    insert(filled, 60001, 60001)
    assert stream(filled.uri, slot, "-D", str(out), "--snapshot", "only").returncode == 0
    assert in_directory(out) == list(range(1, 60001))
    assert stream(filled.uri, slot, "-D", str(out), *NOW).returncode == 0
    assert in_directory(out) == list(range(1, 60002))


def test_one_signal_ends_the_wait_for_rows(source, proxy18, tmp_path, slot):
    """Rows received before are dropped."""
    source.execute("INSERT INTO t SELECT g, repeat('x', 100000) FROM generate_series(1, 300) g")
    reading = (
        "SELECT count(*) > 0 FROM pg_stat_activity WHERE query ~ '^COPY' AND datname = current_database()"
    )
    command = stream_command(proxy18.uri(source.name), slot, "-D", tmp_path / "out", *INITIAL)
    proxy18.delay(0.05)
    with subprocess.Popen(command) as run:
        wait_until(lambda: source.execute(reading).fetchall() == [(1,)])
        proxy18.stall()
        run.send_signal(signal.SIGINT)
        assert run.wait(30) == 0
    assert not contents(tmp_path / "out")


@pytest.mark.parametrize(
    ("how", "status"),
    [(INITIAL, 12), pytest.param(("--resnapshot", "public.t"), 0, marks=pytest.mark.long)],
    ids=["snapshot", "resnapshot"],
)
def test_rows_that_come_slowly_do_not_outlast_the_time_given(source, proxy18, tmp_path, slot, how, status):
    """Rows received until then are dropped, and the next run reads them."""
    source.execute("INSERT INTO t SELECT g, repeat('x', 100000) FROM generate_series(1, 400) g")
    if how != INITIAL:
        source.create_slot(slot)
    out = ("-D", str(tmp_path / "out"), *how)
    proxy18.delay(0.05)
    ended = stream(proxy18.uri(source.name), slot, *out, "--max-time", "3s")
    assert (ended.returncode, in_directory(tmp_path / "out")) == (status, []), ended.stderr
    assert ("time is up" in ended.stderr) == (status == 12)
    assert stream(source.uri, slot, *out, *NOW).returncode == 0
    assert in_directory(tmp_path / "out") == list(range(1, 401))


def test_progress_says_how_much_of_a_snapshot_came(capsys, monkeypatch):
    line = ProgressLine(shown=True)
    now = time.monotonic()
    monkeypatch.setattr(time, "monotonic", lambda: now + 60)
    line(RunTotals(rows=60000, snapshot_bytes=5_400_000))
    assert re.fullmatch(r"pgcdc: 1,000 rows/s; snapshot: 60,000 rows, 5.\d MB\n", capsys.readouterr().err)


@pytest.mark.parametrize(
    ("expected", "rest"),
    [(75000, "of about 75,000 rows, 5.1 MB, 15 s left"), (50000, "of about 50,000 rows, 5.1 MB"),
     (900000, "of about 900,000 rows, 5.1 MB, 14 min left")],
)  # fmt: skip
def test_progress_says_how_much_is_to_come_where_that_is_known(capsys, monkeypatch, expected, rest):
    line = ProgressLine(shown=True)
    now = time.monotonic()
    monkeypatch.setattr(time, "monotonic", lambda: now + 60)
    line(RunTotals(rows=60000, snapshot_bytes=5_400_000, snapshot_rows=expected))
    assert capsys.readouterr().err == f"pgcdc: 1,000 rows/s; snapshot: 60,000 {rest}\n"


def test_progress_says_that_a_large_transaction_comes(capsys, monkeypatch):
    line = ProgressLine(shown=True)
    now = time.monotonic()
    monkeypatch.setattr(time, "monotonic", lambda: now + 60)
    line(RunTotals(spooled=47 << 20, wal_end=Lsn(1 << 20)))
    expected = "47.0 MB of large transactions spooled, lag 1.0 MB, durable to 0/0; 0 rows in 0 transactions"
    assert capsys.readouterr().err == f"pgcdc: {expected}\n"
    line(RunTotals(rows=60_000, spooled=47 << 20, durable_lsn=Lsn(1 << 20)))
    monkeypatch.setattr(time, "monotonic", lambda: now + 120)
    line(RunTotals(rows=60_000, spooled=47 << 20, durable_lsn=Lsn(1 << 20)))
    assert capsys.readouterr().err.startswith("pgcdc: 1,000 rows/s, lag 0 bytes, ")
    line.end(RunTotals(spooled=47 << 20, durable_lsn=Lsn(1 << 20)))
    assert capsys.readouterr().err.startswith("pgcdc: lag 0 bytes, durable to 0/100000; ")


def test_the_last_line_has_a_rate_only_if_there_is_one(capsys, monkeypatch):
    now = time.monotonic()
    for rows, begin in ((59, ""), (60_000, "1,000 rows/s, ")):
        monkeypatch.setattr(time, "monotonic", lambda: now)
        line = ProgressLine(shown=True)
        monkeypatch.setattr(time, "monotonic", lambda: now + 60)
        line.end(RunTotals(rows=rows, transactions=1, durable_lsn=Lsn(1 << 20)))
        expected = f"{begin}lag 0 bytes, durable to 0/100000; {rows:,} rows in 1 transaction"
        assert capsys.readouterr().err == f"pgcdc: {expected}\n"


def test_about_how_many_rows_are_to_come_is_what_analyze_found(source, tmp_path):
    line = [*PGCDC, "snapshot", "-d", source.uri, "--table", "public.t", "--progress"]
    insert(source, 1, 500)
    source.execute("ANALYZE t")
    for number, (more, known) in enumerate({(): True, ("--where", "true"): False}.items()):
        out = ("-D", str(tmp_path / str(number)))
        run = subprocess.run([*line, *out, *more], capture_output=True, text=True, check=True)
        assert ("snapshot: 500 of about 500 rows" in run.stderr) == known


def test_the_last_line_is_the_stream_s(filled, tmp_path, slot):
    run = stream(filled.uri, slot, "-D", str(tmp_path / "out"), "--snapshot", "only", "--progress")
    *_, last = run.stderr.splitlines()
    end = checkpoint(tmp_path / "out")["end_lsn"]
    assert last.endswith(f"lag 0 bytes, durable to {end}; 60,000 rows in 0 transactions")


@pytest.mark.parametrize(
    ("arguments", "reason"),
    [
        ("--snapshot some", '--snapshot: "some" is not one of "never", "initial", "only"'),
        ("--snapshot initial -I 0/1", "--snapshot begins where the snapshot is: it excludes -I/--startpos"),
        ("--snapshot only --peek", "--snapshot only makes a slot, and --peek only looks: use -f - or -D"),
        (
            "--snapshot initial --format raw -f x",
            "--snapshot: raw output is what the plugin sends, which has no rows of tables",
        ),
        (
            "--snapshot initial --format debezium -c topic.prefix=t -c snapshot.mode=always",
            "--snapshot initial contradicts snapshot.mode=always",
        ),
        (
            "--snapshot never --format debezium -c topic.prefix=t -c snapshot.mode=initial",
            "--snapshot never contradicts snapshot.mode=initial",
        ),
    ],
)
def test_what_a_snapshot_does_not_go_with(arguments, reason):
    run = stream("host=/nowhere dbname=never_asked", "s", *arguments.split())
    refused(run, 2, f"read the command line: {reason}", "see pgcdc stream --help")


def test_a_table_that_others_rewrite_all_the_time_is_read_all_the_same(source, tmp_path, slot):
    with repeating(source.uri, "TRUNCATE t"):
        run = stream(source.uri, slot, "-D", str(tmp_path / "out"), *INITIAL, *NOW, "--max-time", "100s")
    assert run.returncode == 0, run.stderr
