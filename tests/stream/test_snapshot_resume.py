"""An interrupted snapshot goes on: complete tables are kept, the others are read again."""

import json
import random
import signal
import subprocess
import sys
import time
from pathlib import Path

import psycopg
import pyarrow as pa
import pytest
from processes import PGCDC, stream_command, wait_until
from row_changes import COLUMNS, folded_rows, row_changes, source_rows
from segments import contents, manifest
from servers import new_slot_name
from sink_tools import make_table
from stream_runs import FORMATS, NOW, Load, checkpoint, refused, stream
from stream_runs import TABLES as LOADED
from test_stream_snapshot import KILLED, killed_at, slots_of
from warm_process import run_warm

from pgcdc_cli.changes.selection import TableStarts
from pgcdc_cli.changes.slice import ChangeBatch, FullImage, Slice, Stamp, Stamps, TruncateChange
from pgcdc_cli.lsn import Lsn

INITIAL = ("--snapshot", "initial")
OFTEN = ("-F", "0.001")
"""Fsync so often that the end of each table is durable at once."""

TABLES = """
CREATE TABLE accounts (id bigint PRIMARY KEY, balance numeric(12,2));
CREATE TABLE books (id bigint PRIMARY KEY, balance numeric(12,2));
CREATE TABLE coins (id bigint PRIMARY KEY, balance numeric(12,2));
INSERT INTO accounts SELECT g, g FROM generate_series(1, 9) g;
INSERT INTO books SELECT g, g FROM generate_series(1, 9) g;
INSERT INTO coins SELECT g, g FROM generate_series(1, 9) g;
CREATE PUBLICATION pub FOR TABLE accounts, books, coins;
"""
NAMES = ("accounts", "books", "coins")


@pytest.fixture
def slot() -> str:
    return new_slot_name()


@pytest.fixture
def shop(any_database):
    any_database.execute(TABLES)
    return any_database


@pytest.fixture
def shop18(database18):
    database18.execute(TABLES)
    return database18


def change_all(database, number: int) -> None:
    """Make changes that tables read again have in their rows, and that kept ones get from the stream."""
    for name in NAMES:
        database.execute(f"INSERT INTO {name} VALUES ({number * 100}, 1), ({number * 100 + 1}, 1)")
        database.execute(f"UPDATE {name} SET balance = balance + 1000 WHERE id > 5")
        database.execute(f"DELETE FROM {name} WHERE id = {number}")
    database.execute(
        "BEGIN; UPDATE accounts SET balance = 7 WHERE id = 9; DELETE FROM books WHERE id = 8; COMMIT"
    )


def killed(database, slot: str, out: Path, *arguments: str) -> None:
    """Run until the first table is durable, then kill the run."""
    command = stream_command(database.uri, slot, "-D", out, *OFTEN, *arguments)[len(PGCDC) :]
    line = [sys.executable, "-c", KILLED, "sink", "_make_durable", "after", *command]
    assert subprocess.run(line, check=False, timeout=60).returncode == -signal.SIGKILL
    wait_until(lambda: slots_of(database) == [slot])


def folded(out: Path, table: str) -> dict[int, int]:
    """The balances by key; fails on rows that come twice, and on changes of unknown rows."""
    found: dict[int, int] = {}
    for change in row_changes(out, f"public.{table}"):
        if change.op in {"R", "I"}:
            assert change.after["id"] not in found
        else:
            del found[change.before["id"]]
        if change.op != "D":
            found[change.after["id"]] = int(float(change.after["balance"]))
    return found


def source(database, table: str) -> dict[int, int]:
    return dict(database.execute(f"SELECT id, balance::int FROM {table}").fetchall())


def operations(out: Path, table: str) -> str:
    return "".join(change.op for change in row_changes(out, f"public.{table}"))


@pytest.mark.parametrize(("form", "kills"), [("jsonl", 1), ("jsonl", 3), ("arrow", 2), ("debezium", 2)])
def test_whole_tables_are_kept_and_all_is_the_source(shop, tmp_path, slot, form, kills):
    out = tmp_path / "out"
    for number in range(1, kills + 1):
        killed(shop, slot, out, *FORMATS[form], *INITIAL)
        assert len(checkpoint(out)["read"]) == number
        assert not manifest(out)
        change_all(shop, number)
    ended = stream(shop.uri, slot, "-D", str(out), *FORMATS[form], *INITIAL, *NOW)
    assert (ended.returncode, ended.stderr) == (0, "")
    for table in NAMES:
        assert folded(out, table) == source(shop, table)
    assert operations(out, "accounts").startswith("R" * 9 + "I")
    assert set(operations(out, NAMES[-1]) if kills < 3 else "R") == {"R"}
    assert slots_of(shop) == [slot]
    assert "read" not in checkpoint(out)
    assert not list(out.rglob("*.partial"))


def test_no_segment_ends_before_all_tables_are_as_of_one_moment(shop18, tmp_path, slot):
    out = tmp_path / "out"
    killed(shop18, slot, out, *INITIAL)
    change_all(shop18, 1)
    only = stream(shop18.uri, slot, "-D", str(out), "--snapshot", "only", "--rotate-size", "1kB")
    assert (only.returncode, only.stderr) == (0, "")
    segment = manifest(out)[0]
    assert {file["table"] for file in segment["files"]} == {f"public.{name}" for name in NAMES}
    for table in NAMES:
        assert folded(out, table) == source(shop18, table)


def test_the_last_commit_of_a_segment_may_be_that_of_rows_that_came_before_others(shop18, tmp_path, slot):
    """The changes of the table that was kept are older than the rows of those that were read again."""
    out, in_one_file = tmp_path / "out", ("--layout", "stream")
    killed(shop18, slot, out, *INITIAL, *in_one_file)
    change_all(shop18, 1)
    only = stream(shop18.uri, slot, "-D", str(out), "--snapshot", "only", *in_one_file)
    assert (only.returncode, only.stderr) == (0, "")
    commits = [Lsn.parse(json.loads(line)["commit_lsn"]) for line in contents(out)[None]]
    assert commits[-1] < max(commits)
    [segment] = manifest(out)
    assert segment["first_commit_lsn"] == str(min(commits))
    assert segment["last_commit_lsn"] == str(max(commits))


def test_without_its_slot_a_snapshot_does_not_go_on(shop18, tmp_path, slot):
    out = tmp_path / "out"
    killed(shop18, slot, out, *INITIAL)
    begun = checkpoint(out)["creating"]
    shop18.execute("DELETE FROM coins")
    [(to,)] = shop18.execute(
        "SELECT end_lsn::text FROM pg_replication_slot_advance(%s, pg_current_wal_lsn())", (slot,)
    ).fetchall()
    hint = "later changes in the tables that are read are lost: start over in another directory or file"
    run = stream(shop18.uri, slot, "-D", str(out), *INITIAL, *NOW)
    refused(run, 6, f'continue with the snapshot of {begun}: slot "{slot}" is at {to}', hint)
    shop18.drop_slot(slot)
    run = stream(shop18.uri, slot, "-D", str(out), *INITIAL, *NOW)
    refused(run, 5, f'continue with the snapshot: slot "{slot}" is gone', hint)


def test_the_slot_of_a_snapshot_that_goes_on_later_shows_no_gap_unless_it_is_gone(shop18, tmp_path, slot):
    out = tmp_path / "out"
    killed(shop18, slot, out, *INITIAL)
    status = [*PGCDC, "status", str(out), "-d", shop18.uri]
    shown = run_warm(status)
    assert (shown.returncode, shown.stderr) == (0, "")
    shop18.drop_slot(slot)
    shown = run_warm(status)
    assert shown.returncode == 5
    assert f'could not find slot "{slot}", which the checkpoint names' in shown.stderr


def test_a_truncate_before_a_table_was_read_anew_is_no_news(shop18, tmp_path, slot):
    out = tmp_path / "out"
    killed(shop18, slot, out, *INITIAL)
    shop18.execute(
        "TRUNCATE accounts, books; INSERT INTO books VALUES (1, 1); INSERT INTO accounts VALUES (1, 1)"
    )
    assert stream(shop18.uri, slot, "-D", str(out), *INITIAL, *NOW).returncode == 0
    assert operations(out, "accounts") == "R" * 9 + "TI"
    assert operations(out, "books") == "R"


def test_deletes_before_a_table_was_found_empty_are_no_news(shop18, tmp_path, slot):
    out = tmp_path / "out"
    killed(shop18, slot, out, *INITIAL)
    shop18.execute("DELETE FROM coins")
    assert stream(shop18.uri, slot, "-D", str(out), *INITIAL, *NOW).returncode == 0
    assert operations(out, "coins") == ""


def test_changes_of_a_table_that_another_has_replaced_before_it_was_read_are_no_news(shop18, tmp_path, slot):
    out = tmp_path / "out"
    shop18.execute("DROP PUBLICATION pub; CREATE PUBLICATION pub FOR ALL TABLES; CREATE TABLE empty ()")
    killed(shop18, slot, out, *INITIAL)
    change_all(shop18, 1)
    shop18.execute("INSERT INTO empty DEFAULT VALUES")
    shop18.execute("TRUNCATE coins; INSERT INTO coins VALUES (7, 7); DROP TABLE coins, books")
    shop18.execute("CREATE TABLE coins (id bigint PRIMARY KEY, balance int); INSERT INTO coins VALUES (1, 2)")
    assert stream(shop18.uri, slot, "-D", str(out), *INITIAL, *NOW).returncode == 0
    assert operations(out, "coins") == "R"
    assert folded(out, "coins") == source(shop18, "coins")
    assert folded(out, "accounts") == source(shop18, "accounts")
    assert operations(out, "books") == ""
    assert operations(out, "empty") == "I"


def test_a_table_that_a_connector_s_lists_left_out_meanwhile_is_read_again(shop18, tmp_path, slot):
    """The filtered publication lacked it as soon as a run had these lists, even if it was killed at once."""
    out = tmp_path / "out"
    filtered = (*FORMATS["debezium"], *INITIAL, "-c", "publication.autocreate.mode=filtered")
    killed(shop18, slot, out, *filtered)
    assert len(checkpoint(out)["read"]) == 1
    without = (*filtered, "-c", "table.exclude.list=public.accounts")
    killed_at("catalog alter_publication after", shop18, slot, out, *without)
    change_all(shop18, 1)
    assert stream(shop18.uri, slot, "-D", str(out), *filtered, *NOW).returncode == 0
    newest = {
        one.after["id"]: one.after["balance"] for one in row_changes(out, "public.accounts") if one.after
    }
    now = source(shop18, "accounts")
    assert {key: int(float(newest[key])) for key in now} == now
    assert folded(out, "coins") == source(shop18, "coins")


BUSY = "SELECT count(*) FROM pg_replication_slots WHERE active AND database = current_database()"


@pytest.mark.long
@pytest.mark.parametrize("seed", range(4))
def test_killed_again_and_again_under_load_it_is_the_source(database18, tmp_path, slot, seed):
    """The first kill comes when a table is complete, the others at any moment of the large one after it."""
    database18.execute(LOADED)
    database18.execute("INSERT INTO accounts SELECT g, 'o', g FROM generate_series(20000, 40000) g")
    filler = "SELECT gen_random_uuid(), 't', repeat('x', 300) FROM generate_series(1, 100000) g"
    database18.execute(f"INSERT INTO documents {filler}")
    out, chance = tmp_path / "out", random.Random(seed)
    command = stream_command(database18.uri, slot, "-D", out, *OFTEN, *INITIAL, "--snapshot-workers", 3)
    load = Load(database18.uri, seed)
    load.start()
    try:
        killed(database18, slot, out, *INITIAL)
        assert checkpoint(out)["read"]
        for _ in range(5):
            with subprocess.Popen(command) as run:
                time.sleep(0.5 + chance.random())
                run.kill()
            wait_until(lambda: database18.execute(BUSY).fetchone() == (0,))
    finally:
        load.stop()
    ended = stream(database18.uri, slot, "-D", str(out), *INITIAL, *NOW)
    assert (ended.returncode, ended.stderr) == (0, "")
    for table in COLUMNS:
        assert folded_rows(out, table) == source_rows(database18, table)


FAILS_ONCE = """
import sys
import psycopg
from pgcdc_cli.cli.app import main
from pgcdc_cli.stream.snapshot.snapshot_session import SnapshotSession

copy, calls = SnapshotSession.copy, []

def failing(self, *arguments, **options):
    calls.append(self)
    if len(calls) == 3:
        raise psycopg.OperationalError("gone")
    return copy(self, *arguments, **options)

SnapshotSession.copy = failing
sys.exit(main())
"""


def test_a_lost_connection_is_gone_on_from_in_the_same_run(shop18, tmp_path, slot):
    out = tmp_path / "out"
    command = stream_command(shop18.uri, slot, "-D", out, *INITIAL, *NOW, "--snapshot-workers", 1)
    line = [sys.executable, "-c", FAILS_ONCE, *command[len(PGCDC) :], "-v"]
    ended = subprocess.run(line, capture_output=True, text=True, check=True, timeout=60)
    lost = 'could not read the rows of table "public.coins": gone; trying again'
    assert lost in ended.stderr
    stamps = [json.loads(contents(out)[f"public.{name}"][0])["commit_lsn"] for name in NAMES]
    assert stamps[0] < stamps[1] == stamps[2]
    for name in NAMES:
        assert folded(out, name) == source(shop18, name)
        assert operations(out, name) == "R" * 9


def ended_early(database, slot: str, out: Path, *arguments: str) -> None:
    """Run until the third table is to be read, which fails."""
    command = stream_command(database.uri, slot, "-D", out, *OFTEN, *INITIAL, *arguments, "--no-loop")
    line = [sys.executable, "-c", FAILS_ONCE, *command[len(PGCDC) :], "--snapshot-workers", "1"]
    ended = subprocess.run(line, capture_output=True, text=True, check=False, timeout=60)
    assert (ended.returncode, "public.coins" in ended.stderr) == (3, True), ended.stderr


def waits_for(database, transaction: psycopg.Connection) -> bool:
    """Whether another session waits for the end of a transaction."""
    xid = transaction.execute("SELECT pg_current_xact_id()::text").fetchone()
    query = "SELECT EXISTS (SELECT FROM pg_locks WHERE NOT granted AND transactionid = %s::xid)"
    return bool(database.execute(query, xid).fetchone()[0])


def test_what_was_prepared_before_a_table_is_read_and_committed_later_is_not_left_out(shop18, tmp_path, slot):
    """The PREPARE comes before the position as of which the table is read, though its rows lack the changes.

    To create a slot, the server waits for all transactions that are open, and then once more for those that
    began meanwhile, but not for later ones.
    """
    out, options = tmp_path / "out", ("--two-phase-at", "prepare", "--layout", "stream")
    ended_early(shop18, slot, out, *options)
    command = stream_command(shop18.uri, slot, "-D", out, *INITIAL, *options, *NOW)
    with psycopg.connect(shop18.uri) as first, psycopg.connect(shop18.uri) as second:
        first.execute("SELECT pg_current_xact_id()")
        with subprocess.Popen(command) as run:
            wait_until(lambda: waits_for(shop18, first))
            second.execute("SELECT pg_current_xact_id()")
            first.rollback()
            wait_until(lambda: waits_for(shop18, second))
            shop18.execute(f"BEGIN; INSERT INTO coins VALUES (100, 1); PREPARE TRANSACTION '{slot}'")
            second.rollback()
    assert run.returncode == 0
    shop18.execute(f"COMMIT PREPARED '{slot}'")
    assert stream(shop18.uri, slot, "-D", str(out), *INITIAL, *options, *NOW).returncode == 0
    lines = map(json.loads, contents(out)[None])
    found = [line["new"]["id"] for line in lines if line.get("table") == "coins"]
    assert found == [*range(1, 10), 100]


def test_the_snapshot_of_a_slot_that_others_made_begins_anew(shop18, tmp_path, slot):
    """A later run couldn't tell whether that slot still has all changes since the first table was read."""
    shop18.create_slot(slot)
    ended_early(shop18, slot, tmp_path / "out", *FORMATS["debezium"])
    ended = stream(shop18.uri, slot, "-D", str(tmp_path / "out"), *FORMATS["debezium"], *NOW)
    assert (ended.returncode, ended.stderr) == (0, "")
    for name in NAMES:
        assert operations(tmp_path / "out", name) == "R" * 9


def test_a_snapshot_at_each_start_has_all_tables_even_if_the_last_one_went_on(shop18, tmp_path, slot):
    """The stream may not have come to the position as of which the last one read some of them."""
    out, always = tmp_path / "out", (*FORMATS["debezium"], "-c", "snapshot.mode=always")
    killed(shop18, slot, out, *always)
    killed_at("slot close before", shop18, slot, out, *always)
    assert len(checkpoint(out)["read"]) == 3
    ended = stream(shop18.uri, slot, "-D", str(out), *always, *NOW)
    assert (ended.returncode, ended.stderr) == (0, "")
    for name in NAMES:
        assert operations(out, name) == "R" * 18


def test_a_snapshot_that_begins_anew_is_as_of_its_own_position(shop18, tmp_path, slot):
    """The position that a killed run recorded is that of a slot which isn't there."""
    out = tmp_path / "out"
    killed_at("slot keep_slot before", shop18, slot, out, *INITIAL)
    killed_at("slot close before", shop18, slot, out, *INITIAL)
    ended = stream(shop18.uri, slot, "-D", str(out), *INITIAL, *NOW)
    assert (ended.returncode, ended.stderr) == (0, "")
    for name in NAMES:
        assert operations(out, name) == "R" * 9


def test_a_commit_at_the_position_as_of_which_a_table_was_read_is_not_in_its_rows():
    """A slot's position is that of the next record, which is the first that its snapshot doesn't see."""
    table = make_table("t")
    stamps = [Stamp(0, Lsn(commit), Lsn(commit), 0, 7, 0) for commit in (99, 100)]
    image = FullImage((pa.array([b"1", b"2"], pa.binary()),), (None,))
    inserts = ChangeBatch(table, "I", Stamps.of(stamps), image, None)
    truncates = tuple(TruncateChange(table, stamp, cascade=False, restart_identity=False) for stamp in stamps)
    left = TableStarts({table.oid: Lsn(100)}).without_read(Slice(None, (inserts,), truncates))
    assert [batch.stamps.commit_lsn.tolist() for batch in left.changes] == [[100]]
    assert [one.stamp.commit_lsn for one in left.truncates] == [100]
