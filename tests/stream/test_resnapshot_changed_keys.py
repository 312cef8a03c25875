"""A key that changes while `--resnapshot` reads: that of a row, which may be missed, or of the table."""

import json
import signal
from pathlib import Path

import psycopg
import pytest
from processes import wait_until
from resnapshot_runs import OFTEN, Resnapshots, killed_half_way, read_meanwhile, source
from segments import manifest
from stream_runs import FORMATS, checkpoint, end_of_log

from pgcdc_cli.lsn import Lsn


def test_a_row_whose_key_came_to_where_all_is_read_is_read_once_more(database18, tmp_path):
    runs = killed_half_way(database18, tmp_path / "out")
    # The stream sends these rows without the unchanged TOAST value.
    database18.execute("UPDATE items SET kind = 'a', id = -id WHERE kind = 'it''s \\2' AND id > 200")
    database18.execute("ALTER TABLE items ADD COLUMN more int DEFAULT 7")
    database18.execute("UPDATE items SET kind = 'b', id = -id WHERE kind = 'it''s \\1' AND id > 290")
    runs.end()
    assert runs.folded() == source(database18)
    assert {("a", -299), ("b", -298)} <= runs.keys_read()
    assert manifest(runs.out)[-1]["end_lsn"] == checkpoint(runs.out)["end_lsn"]


def test_a_row_is_read_once_more_even_if_the_stream_lacks_a_part_of_its_key(database18, tmp_path):
    """That is unchanged TOAST, too; the old key has it."""
    runs = killed_half_way(
        database18,
        tmp_path / "out",
        "ALTER TABLE items ALTER kind SET STORAGE EXTERNAL",
        "UPDATE items SET kind = repeat('z', 2400)",
    )
    database18.execute("UPDATE items SET id = -id WHERE id = 300")
    runs.end()
    assert ("z" * 2400, -300) in runs.keys_read()
    # The table is not begun anew.
    assert len(runs.rows_read()) in {300, 301}


def test_a_row_that_moved_is_not_forgotten_by_a_run_that_is_killed(database18, tmp_path, follow):
    """The checkpoint is behind its change, and has its key."""
    runs = killed_half_way(database18, tmp_path / "out")
    database18.execute("UPDATE items SET kind = 'a' WHERE id = 299")
    end = end_of_log(database18)
    with psycopg.connect(runs.uri) as locking:
        locking.execute("LOCK TABLE items")
        run = follow(runs.uri, runs.slot, runs.out, *runs.options)
        wait_until(lambda: Lsn.parse(checkpoint(runs.out)["end_lsn"]) >= end)
        run.stop(signal.SIGKILL)
    runs.end()
    assert runs.folded() == source(database18)


def test_a_row_whose_key_has_a_name_is_read_once_more_though_others_have_that_name(database18, tmp_path):
    """The stream sends the name, which then means another row, or none."""
    database18.execute(
        "CREATE TABLE one (); CREATE TABLE items (id regclass, n int, doc text, PRIMARY KEY (id, n));"
        "ALTER TABLE items ALTER doc SET STORAGE EXTERNAL;"
        "INSERT INTO items SELECT 'one', g, repeat('d', 9999) FROM generate_series(1, 120) g;"
        "CREATE PUBLICATION pub FOR TABLE items"
    )
    runs = Resnapshots(database18, tmp_path / "out", *OFTEN)
    runs.is_killed_after(2)
    database18.execute("UPDATE items SET n = -n WHERE n = 120; ALTER TABLE one RENAME TO other")
    database18.execute("CREATE TABLE one ()")
    runs.end()
    assert -120 in [row["n"] for row in runs.rows_read()]


def test_a_row_that_a_filter_lets_in_where_all_is_read_is_read_once_more(database18, tmp_path):
    """The stream inserts it without the unchanged TOAST value."""
    runs = killed_half_way(
        database18,
        tmp_path / "out",
        "INSERT INTO items SELECT 'a', -g, g, repeat(md5(g::text), 80) FROM generate_series(1, 2) g;"
        "ALTER PUBLICATION pub SET TABLE items WHERE (id > 0), other",
    )
    database18.execute("UPDATE items SET id = -id WHERE id = -1")
    runs.end()
    assert runs.folded() == {key: row for key, row in source(database18).items() if key[1] > 0}


def test_a_row_that_moves_while_the_stream_is_behind_is_not_missed(database18, tmp_path):
    """The stream is waited for after each chunk that is newer, so the row's new key is known in time."""
    statement = "UPDATE items SET kind = 'a', id = -id WHERE kind = 'it''s \\2' AND id > 290"
    runs = read_meanwhile(database18, tmp_path / "out", statement)
    assert runs.folded() == source(database18)
    assert ("a", -299) in runs.keys_read()


def test_a_row_moves_to_where_all_is_read_while_its_key_has_another_name(database18, tmp_path):
    """The stream can't tell where it is then, so the table is begun anew."""
    runs = killed_half_way(database18, tmp_path / "out")
    database18.execute("ALTER TABLE items RENAME id TO number")
    database18.execute("UPDATE items SET kind = 'a', number = -number WHERE number = 299")
    database18.execute("ALTER TABLE items RENAME number TO id")
    runs.end()
    assert runs.keys_read() >= source(database18).keys()


@pytest.mark.long
def test_a_table_of_which_too_many_rows_moved_is_begun_anew(database18, tmp_path, monkeypatch):
    """A checkpoint must not grow by the keys of all of them."""
    runs = killed_half_way(database18, tmp_path / "out")
    for low, high in [(150, 160), (200, 250)]:
        database18.execute(f"UPDATE items SET kind = 'a' WHERE id > {low} AND id <= {high}")
    monkeypatch.setenv("MOST_MOVED", "20")
    runs.end()
    assert runs.folded() == source(database18)
    assert len(runs.rows_read()) == 150 + 300


@pytest.mark.parametrize(
    ("before", "after", "value"),
    [
        ("int", "text", "g"),
        ('text COLLATE "en-x-icu"', 'text COLLATE "C"', "CASE WHEN g % 2 = 0 THEN 'a' ELSE 'B' END || g"),
    ],
)
def test_a_key_that_gets_another_order_is_read_from_its_first_row(database15, tmp_path, before, after, value):
    """What came after the last row read, and comes before it now, would be left out."""
    database15.execute(
        f"CREATE TABLE items (id {before} PRIMARY KEY); CREATE PUBLICATION pub FOR TABLE items;"
        f"INSERT INTO items SELECT {value} FROM generate_series(1, 1200) g"
    )
    runs = Resnapshots(database15, tmp_path / "out", *OFTEN)
    runs.is_killed_after(4)
    database15.execute(f"ALTER TABLE items ALTER id TYPE {after}")
    runs.end()
    read = {str(row["id"]) for row in runs.rows_read()}
    assert read == {id_ for (id_,) in database15.execute("SELECT id FROM items")}


SWAP = """
    ALTER TYPE kind RENAME VALUE 'a' TO 'c'; ALTER TYPE kind RENAME VALUE 'b' TO 'a';
    ALTER TYPE kind RENAME VALUE 'c' TO 'b'
"""

RENAMES = {
    "renamed": ("kind", "'b'", "ALTER TYPE kind RENAME VALUE 'b' TO 'c'"),
    "swapped": ("kind", "a_or_b", SWAP),
    "swapped in a domain": ("known_kind", "a_or_b", SWAP),
    "swapped in a row": ("of_kind", "ROW(a_or_b)::of_kind", SWAP),
    "swapped in a range": ("kinds", "kinds(a_or_b, a_or_b, '[]')", SWAP),
    "in an array": ("kind[]", "ARRAY[a_or_b]", SWAP),
    "in a row": ("pair", "ROW('one.named', 1)::pair", "ALTER TABLE one.named RENAME TO other"),
}


def read_beside(database, out: Path, rename: str, *, while_it_runs: bool) -> Resnapshots:
    """Read the table with statements after its first chunk, in the same run or before the next one."""
    database.execute("VACUUM items")
    runs = Resnapshots(database, out, *OFTEN)
    if while_it_runs:
        runs.end(statements=rename, step=2)
    else:
        runs.is_killed_after(2)
        database.execute(rename)
        runs.end()
    return runs


@pytest.mark.parametrize("which", RENAMES)
@pytest.mark.parametrize("while_it_runs", [False, True])
def test_a_key_with_a_name_that_is_renamed_is_read_from_its_first_row(
    database18, tmp_path, which, while_it_runs
):
    """The last row read is known by its text, which then means nothing any more, or something else."""
    key, value, rename = RENAMES[which]
    database18.execute(
        "CREATE TYPE kind AS ENUM ('a', 'b'); CREATE SCHEMA one; CREATE TABLE one.named ();"
        "CREATE DOMAIN some_kind AS kind; CREATE DOMAIN known_kind AS some_kind;"
        "CREATE TYPE of_kind AS (kind kind); CREATE TYPE kinds AS RANGE (subtype = kind);"
        "CREATE TYPE pair AS (name regclass, n int);"
        f"CREATE TABLE items (id {key}, n int, PRIMARY KEY (id, n));"
        f"INSERT INTO items SELECT {value}, g FROM generate_series(1, 120) g,"
        " LATERAL (SELECT CASE WHEN g <= 60 THEN 'a'::kind ELSE 'b' END) half (a_or_b);"
        "CREATE PUBLICATION pub FOR TABLE items"
    )
    runs = read_beside(database18, tmp_path / "out", rename, while_it_runs=while_it_runs)
    assert runs.progress["stage"] == "done"
    read = [row["n"] for row in runs.rows_read()]
    begun = read.index(1, 1)
    assert read[begun:] == list(range(1, 121))


@pytest.mark.parametrize(("key", "value"), [("regclass", "{}"), ("regclass[]", "ARRAY[{}]"), ("known", "{}")])
@pytest.mark.parametrize("while_it_runs", [False, True])
def test_a_key_whose_names_are_given_to_other_objects_is_read_on_where_it_was(
    database18, tmp_path, key, value, while_it_runs
):
    """Their OIDs, by which they are ordered, stay the same."""
    one_or_other = value.format("CASE WHEN g <= 110 THEN 'one'::regclass ELSE 'other' END")
    database18.execute(
        "CREATE DOMAIN known AS regclass; CREATE TABLE one (); CREATE TABLE other ();"
        f"CREATE TABLE items (id {key}, n int, PRIMARY KEY (id, n));"
        f"INSERT INTO items SELECT {one_or_other}, g FROM generate_series(1, 120) g;"
        "CREATE PUBLICATION pub FOR TABLE items"
    )
    rename = "ALTER TABLE one RENAME TO a; ALTER TABLE other RENAME TO one; ALTER TABLE a RENAME TO other"
    runs = read_beside(database18, tmp_path / "out", rename, while_it_runs=while_it_runs)
    assert [row["n"] for row in runs.rows_read()] == list(range(1, 121))


def test_a_loss_is_reported_though_the_rows_in_which_it_was_found_are_taken_back(database18, tmp_path):
    """The row that moved is read, then the last row's key is unknown, and the table is begun anew."""
    database18.execute(
        "CREATE TABLE one (); CREATE TABLE other (); CREATE TYPE pair AS (name regclass, n int);"
        "CREATE TABLE items (id pair, n int, doc text[], PRIMARY KEY (id, n));"
        "ALTER TABLE items ALTER doc SET STORAGE EXTERNAL;"
        "INSERT INTO items SELECT ROW('other', 1)::pair, g FROM generate_series(1, 120) g;"
        "UPDATE items SET doc = ARRAY[ARRAY[repeat('d', 9999)]] WHERE n = 120;"
        "CREATE PUBLICATION pub FOR TABLE items"
    )
    runs = Resnapshots(database18, tmp_path / "out", *FORMATS["debezium"], *OFTEN)
    runs.is_killed_after(2)
    database18.execute("UPDATE items SET id = ROW('one', 1) WHERE n = 120; ALTER TABLE other RENAME TO third")
    runs.end()
    found = [line for file in runs.out.glob("_losses/*") for line in file.read_text().splitlines()]
    assert [json.loads(line)["column"] for line in found].count("doc") == 1
