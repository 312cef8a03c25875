"""A table is its OID: one that is dropped and recreated, renamed or swapped is merged as what it is."""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from merge_directories import Directory, merge_into, merged_rows, read_table, table_path
from merge_histories import INT4, NUMERIC, TEXT, pg_type, table_schema
from merge_notes import COLUMNS, ONE, TWO, delete, insert
from merge_oracle import Change
from merge_workload import Reader, rows_of, tables_in
from pyspark.sql import SparkSession
from test_merge_servers import texts

from pgcdc_cli.changes.table import ColumnFacts, ReplicaIdentity, TableFacts
from pgcdc_cli.spark.pgcdc_merge import table_range
from pgcdc_cli.spark.pgcdc_merge.control import ControlRow, ControlTable, Former, ModeProgress
from pgcdc_cli.spark.pgcdc_merge.delta import DeltaTable
from pgcdc_cli.spark.pgcdc_merge.job import merge
from pgcdc_cli.spark.pgcdc_merge.merge_errors import MergeError
from pgcdc_cli.spark.pgcdc_merge.options import MergeOptions
from pgcdc_cli.spark.pgcdc_merge.plan import check_followed
from pgcdc_cli.spark.pgcdc_merge.segments import ChangeFile, FinishedSegment
from pgcdc_cli.spark.pgcdc_merge.table_range import KeptRows, Sightings, TableRange, kept_rows, remembered
from pgcdc_cli.spark.warehouse import read_record

SETUP = """
CREATE TABLE orders (id int PRIMARY KEY, note text);
CREATE TABLE renamed (id int PRIMARY KEY, note text);
CREATE TABLE anew (id int PRIMARY KEY, note text);
CREATE TABLE blue (id int PRIMARY KEY, note text);
CREATE TABLE green (id int PRIMARY KEY, note text);
INSERT INTO orders SELECT g, 'old' FROM generate_series(1, 5) g;
INSERT INTO renamed SELECT g, 'old' FROM generate_series(1, 5) g;
INSERT INTO anew SELECT g, 'old' FROM generate_series(1, 5) g;
INSERT INTO blue SELECT g, 'blue' FROM generate_series(1, 5) g;
INSERT INTO green SELECT g, 'green' FROM generate_series(1, 3) g
"""
SWAP = """
BEGIN;
CREATE TABLE orders_new (LIKE orders INCLUDING ALL);
INSERT INTO orders_new SELECT id + 10, note || ' new' FROM orders;
ALTER TABLE orders RENAME TO orders_old;
ALTER TABLE orders_new RENAME TO orders;
UPDATE orders SET note = 'now' WHERE id = (SELECT min(id) FROM orders);
COMMIT
"""
RENAME = """
ALTER TABLE renamed RENAME TO other;
UPDATE other SET note = 'new' WHERE id < 3;
DELETE FROM other WHERE id = 4
"""
ANEW = "DROP TABLE anew; CREATE TABLE anew (code text PRIMARY KEY, n int); INSERT INTO anew VALUES ('a', 1)"
TURN = """
BEGIN;
ALTER TABLE blue RENAME TO spare;
ALTER TABLE green RENAME TO blue;
ALTER TABLE spare RENAME TO green;
INSERT INTO blue VALUES (90, 'now blue') ON CONFLICT (id) DO UPDATE SET note = 'blue again';
DELETE FROM green WHERE id = (SELECT min(id) FROM green);
COMMIT
"""


def compare(spark: SparkSession, database: Any, path: Path, lake: str) -> None:
    """Compare every table of the server with the lake's table for it."""
    tables = database.connection.execute("SELECT tablename FROM pg_tables WHERE schemaname = 'public'")
    described = tables_in(path / "in")
    for name in [f"public.{name}" for (name,) in tables]:
        rows = texts(read_table(spark, path / "wh", described[name], lake))
        assert rows == rows_of(database.connection, name), name


@pytest.mark.parametrize("lake", ["delta", pytest.param("iceberg", marks=pytest.mark.long)])
def test_tables_are_followed_under_other_names(
    spark: SparkSession, tmp_path: Path, database18: Any, lake: str
) -> None:
    """Within one segment, over several segments in one run, and from one run to the next."""
    database18.execute("CREATE PUBLICATION p FOR ALL TABLES")
    reader = Reader(database18.uri, tmp_path / "in", "jsonl", database18.create_slot())
    options = MergeOptions(str(tmp_path / "in"), str(tmp_path / "wh"), format=lake)

    def merged(*rounds: str) -> dict[str, Any]:
        for statements in rounds:
            for statement in statements.split(";"):
                database18.execute(statement)
            reader.up_to_now()
        summary = merge(spark, options)
        assert summary["error"] is None, summary
        compare(spark, database18, tmp_path, lake)
        return summary

    merged(SETUP)
    summary = merged(
        f"{SWAP}; UPDATE orders_old SET note = 'late' WHERE id = 1; {RENAME}; {ANEW}; {TURN}",
        f"DROP TABLE orders_old; {SWAP}; DELETE FROM orders_old WHERE id = 12; {ANEW}; DROP TABLE anew;"
        f" CREATE TABLE anew (id int PRIMARY KEY, note text); INSERT INTO anew VALUES (1, 'third'); {TURN}",
    )
    assert summary["warnings"] == []
    merged(f"{TURN}; DELETE FROM orders_old WHERE id = 13; INSERT INTO other VALUES (90, 'last')")
    record = {row.table: row for row in read_record(str(tmp_path / "wh")) or []}
    gone = 'it is called "public.other" now, and these are its earlier rows'
    assert (record["public.renamed"].warning, record["public.other"].warning) == (gone, None)


def test_names_that_are_swapped_between_changes_are_followed(
    spark: SparkSession, tmp_path: Path, database18: Any
) -> None:
    """All in one segment, of which the manifest tells which name each table had last."""
    for name in ("blue", "green"):
        database18.execute(f"CREATE TABLE {name} (id int PRIMARY KEY, note text)")
    database18.execute("CREATE PUBLICATION p FOR ALL TABLES")
    reader = Reader(database18.uri, tmp_path / "in", "jsonl", database18.create_slot())
    for statement in ["INSERT INTO blue VALUES (1)", "INSERT INTO green VALUES (2)", *TURN.split(";")]:
        database18.execute(statement)
    database18.execute("INSERT INTO blue VALUES (3); INSERT INTO green VALUES (4)")
    reader.up_to_now()
    assert merge(spark, MergeOptions(str(tmp_path / "in"), str(tmp_path / "wh")))["error"] is None
    compare(spark, database18, tmp_path, "delta")


def died(*_: Any, **__: Any) -> None:
    raise KeyboardInterrupt


def dying(commit: Callable[..., Any]) -> Callable[..., Any]:
    """Wrap a method that commits, so that the run dies right after a table's commit."""

    def committed(table: DeltaTable, rows: Any, mark: Any, *more: Any) -> Any:
        result = commit(table, rows, mark, *more)
        return result if mark is None or result is None else died()

    return committed


def test_a_run_that_dies_while_a_name_changes_hands_goes_on(
    spark: SparkSession, directory: Directory, warehouse: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """After each of its commits: with the old table's last changes, and with the new one's rows."""
    new, late = (table_schema(name, COLUMNS, ("id",), oid=77) for name in ("one", "late"))
    old = table_schema("away", COLUMNS, ("id",), oid=ONE.oid)
    directory.segment([(ONE, [insert(10, 1), insert(20, 2)])])
    merge_into(spark, directory, warehouse)
    directory.segment([(ONE, [delete(30, 1)]), (new, [insert(40, 3)])])
    for _ in range(2):
        with monkeypatch.context() as patch:
            patch.setattr(DeltaTable, "replace", dying(DeltaTable.replace))
            patch.setattr(DeltaTable, "merge", dying(DeltaTable.merge))
            patch.setattr(DeltaTable, "rewrite", dying(DeltaTable.rewrite))
            with pytest.raises(KeyboardInterrupt):
                merge_into(spark, directory, warehouse)
    summary = merge_into(spark, directory, warehouse)
    assert (summary["error"], summary["segment"]) == (None, 2)
    assert merged_rows(spark, warehouse, new) == {("3",): {"id": "3", "note": "new"}}
    directory.segment([(old, [insert(50, 4)]), (late, [insert(60, 5)])])
    assert merge_into(spark, directory, warehouse)["error"] is None
    assert sorted(merged_rows(spark, warehouse, old)) == [("2",), ("4",)]
    assert sorted(merged_rows(spark, warehouse, late)) == [("3",), ("5",)]
    assert len(read_table(spark, warehouse, ONE).collect()) == 1


@pytest.mark.parametrize(
    ("lake", "killed"),
    [
        ("delta", True),
        ("iceberg", True),
        *(pytest.param(lake, False, marks=pytest.mark.long) for lake in ("delta", "iceberg")),
    ],
)
def test_a_new_table_that_is_behind_holds_up_no_later_run(
    spark: SparkSession,
    directory: Directory,
    warehouse: Path,
    monkeypatch: pytest.MonkeyPatch,
    lake: str,
    killed: bool,
) -> None:
    """The old table's last changes are in the lake then, and the next run, to a later segment, finds them.

    The new table is stopped, then allowed in a run that dies before the control table; or it lacks a value.
    """
    wide = table_schema("one", {**COLUMNS, "more": pg_type(TEXT)}, ("id",), oid=ONE.oid)
    new = table_schema("one", COLUMNS, ("id",), oid=77)
    away = replace(wide, name="away")

    def merged(**options: Any) -> tuple[int, bool]:
        summary = merge_into(spark, directory, warehouse, format=lake, **options)
        return summary["segment"], summary["error"] is None

    directory.segment([(wide, [insert(10, 1)]), (TWO, [insert(10, 1)])])
    assert merged() == (1, True)
    last = insert(30, 7) if killed else Change("U", 30, 0, {"id": "7"}, unchanged=frozenset({"note"}))
    directory.segment([(wide, [insert(20, 2)]), (new, [last])])
    assert merged(recreated="stop" if killed else "follow") == (2, False)
    if killed:
        with monkeypatch.context() as patch:
            patch.setattr(ControlTable, "finish", died)
            with pytest.raises(KeyboardInterrupt):
                merged()
    directory.segment([(TWO, [insert(40, 2)])])
    assert merged() == (3, killed)
    assert len(merged_rows(spark, warehouse, TWO, lake)) == 2
    assert merged(missing_toast="null") == (3, True)
    assert sorted(merged_rows(spark, warehouse, new, lake)) == [("7",)]
    directory.segment([(away, [insert(50, 4)])])
    assert merged() == (4, True)
    assert sorted(merged_rows(spark, warehouse, away, lake)) == [("1",), ("2",), ("4",)]


def test_a_value_of_a_table_that_is_gone_stops_nothing(
    spark: SparkSession, directory: Directory, warehouse: Path
) -> None:
    """Dropping the table may have been the remedy."""
    columns = {"id": pg_type(INT4), "n": pg_type(NUMERIC)}
    old, new = (table_schema("t", columns, ("id",), oid=oid) for oid in (11, 12))
    directory.segment([(old, [Change("I", 10, 0, {"id": "1", "n": "1.5"})])])
    assert merge_into(spark, directory, warehouse, decimal="38,18")["error"] is None
    anew = Change("I", 30, 0, {"id": "3", "n": "2"})
    directory.segment([(old, [Change("I", 20, 0, {"id": "2", "n": "NaN"})]), (new, [anew])])
    assert merge_into(spark, directory, warehouse, decimal="38,18")["error"] is None
    assert [tuple(row) for row in read_table(spark, warehouse, new).collect()] == [(3, 2)]


def test_another_table_under_a_name_replaces_its_rows_or_stops(
    spark: SparkSession, directory: Directory, warehouse: Path
) -> None:
    """Of a table that a publication lists, some rows may never have been sent: a warning says so."""
    facts = TableFacts(("id",), None, {name: ColumnFacts() for name in COLUMNS})
    listed = table_schema("one", COLUMNS, ("id",), oid=77)
    whole = table_schema("two", {"id": pg_type(TEXT)}, ("id",), oid=78)
    directory.segment([(ONE, [insert(10, 1)]), (TWO, [insert(10, 1)])])
    merge_into(spark, directory, warehouse)
    forget_identities(spark, warehouse)
    directory.segment(
        [
            (replace(listed, facts=replace(facts, listed=True)), [insert(20, 2)]),
            (replace(whole, facts=replace(facts, listed=False)), [Change("I", 20, 0, {"id": "x"})]),
        ]
    )
    problems = [
        table["problem"] for table in merge_into(spark, directory, warehouse, recreated="stop")["tables"]
    ]
    assert [
        f"its OID was {one.oid}, and is {oid}, see" in problem
        for one, oid, problem in zip((ONE, TWO), (77, 78), problems, strict=True)
    ] == [True, True]
    summary = merge_into(spark, directory, warehouse)
    (warning,) = summary["warnings"]
    assert warning.startswith('"public.one" is not the same table as before')
    assert warning.endswith('are missing; to have them sent: UPDATE "public"."one" SET "id" = "id"')
    directory.segment([(listed, [insert(30, 3)])])
    assert merge_into(spark, directory, warehouse)["warnings"] == []
    record = {row.table: row.warning for row in read_record(str(warehouse)) or []}
    assert record == {"": None, "public.one": warning, "public.two": None}
    assert sorted(merged_rows(spark, warehouse, listed)) == [("2",), ("3",)]
    assert [tuple(row) for row in read_table(spark, warehouse, whole).collect()] == [("x",)]


def forget_identities(spark: SparkSession, warehouse: Path) -> None:
    """Take from the control table what it didn't have before pgcdc recorded OIDs."""
    control = spark.read.format("delta").load(str(warehouse / "_pgcdc"))
    writer = control.drop("oid", "warning", "former").write.format("delta").mode("overwrite")
    writer.option("overwriteSchema", "true").save(str(warehouse / "_pgcdc"))


def test_what_was_put_aside_is_found_again_however_long_that_took() -> None:
    """Segments that were merged whole may be gone by then, but not those that a table still needs."""
    first = FinishedSegment(90, "5f1d", "0/90", ())
    file = ChangeFile(99, "public.away", "", "jsonl", 1, 1, 0, "")
    row = ControlRow(
        "5f1d", "public.one", path="wh/one", version=7, segment=98, oid=77, former=(Former(1, 4, 5),)
    )
    progress = ModeProgress({row.key: row}, "merge")
    kept = kept_rows(progress, Sightings())
    assert kept == {
        77: KeptRows("public.one", "wh/one", 7, 98, current=True),
        1: KeptRows("public.one", "wh/one", 4, 5, current=False),
    }
    work = TableRange("public.away", "wh/away", None, [file], {}, oid=1, base=kept[1])
    check_followed(work, first)
    for behind in (
        replace(work, row=ControlRow("5f1d", "public.away", segment=80)),
        replace(work, base=replace(kept[1], current=True)),
    ):
        with pytest.raises(MergeError, match=r"segments \d+ to 89 are neither here nor merged into it"):
            check_followed(behind, first)


@pytest.mark.parametrize("merged", [True, pytest.param(False, marks=pytest.mark.long)])
def test_a_table_that_is_gone_without_a_key_stops_nothing(
    spark: SparkSession, directory: Directory, warehouse: Path, merged: bool
) -> None:
    """It may live on under another name: it isn't merged there from a part of its rows."""
    keyless = table_schema("one", COLUMNS, None, ReplicaIdentity.FULL, oid=ONE.oid)
    anew = table_schema("one", COLUMNS, ("id",), oid=77)
    away = table_schema("away", COLUMNS, ("id",), oid=ONE.oid)
    directory.segment([(ONE if merged else TWO, [insert(10, 1)])])
    assert merge_into(spark, directory, warehouse)["error"] is None
    directory.segment([(keyless, [insert(20, 2), insert(21, 3)]), (anew, [insert(30, 4)])])
    summary = merge_into(spark, directory, warehouse)
    assert (summary["error"], summary["segment"]) == (None, 2)
    assert sorted(merged_rows(spark, warehouse, anew)) == [("4",)]
    directory.segment([(away, [insert(40, 5)])])
    for first, why in ((1, "its key changed from () to (id)"), (3, "segments 1 to 2, which have them")):
        summary = merge_into(spark, begun_at(directory, first), warehouse)
        assert why in summary["error"]["message"]
        assert not table_path(warehouse, away).exists()


def test_tables_that_had_a_name_in_turn_have_their_rows_under_their_own(
    spark: SparkSession, directory: Directory, warehouse: Path
) -> None:
    """All of them came in one range, the first one of the name; its segment is gone by then."""
    oids = ONE.oid, 77, 78
    directory.segment([(replace(ONE, oid=oid), [insert(10 + oid, 1)]) for oid in oids])
    assert merge_into(spark, directory, warehouse)["error"] is None
    renamed = [replace(ONE, oid=oid, name=name) for oid, name in zip(oids, ("first", "second"), strict=False)]
    directory.segment([(table, [insert(100, 2)]) for table in renamed])
    assert merge_into(spark, begun_at(directory, 2), warehouse)["error"] is None
    for table in renamed:
        assert sorted(merged_rows(spark, warehouse, table)) == [("1",), ("2",)]
    assert sorted(merged_rows(spark, warehouse, replace(ONE, oid=78))) == [("1",)]


def test_a_part_of_a_tables_rows_is_not_put_aside_as_its_rows(
    spark: SparkSession, directory: Directory, warehouse: Path
) -> None:
    """It lost its key and its name; then it has another one for a while, and a third."""
    keyless = table_schema("one", COLUMNS, None, ReplicaIdentity.FULL, oid=ONE.oid)
    anew, away, third = (replace(ONE, oid=77), replace(ONE, name="away"), replace(ONE, name="third"))
    for segment in (
        [(ONE, [insert(10, 1)])],
        [(keyless, [insert(20, 2)]), (anew, [insert(30, 3)])],
        [(away, [insert(40, 4)]), (replace(away, oid=88), [insert(50, 5)])],
    ):
        directory.segment(segment)
        begun_at(directory, 3 if len(directory.lines) == 3 else 1)
        assert merge_into(spark, directory, warehouse)["error"] is None
    directory.segment([(third, [insert(60, 6)])])
    assert "segments 1 to 2, which have them" in merge_into(spark, directory, warehouse)["error"]["message"]
    assert not table_path(warehouse, third).exists()


@pytest.mark.parametrize(
    ("mode", "key"), [("both", ("id",)), pytest.param("merge", None, marks=pytest.mark.long)]
)
def test_a_changelog_remembers_each_table_of_its_name_that_had_no_key(
    spark: SparkSession, directory: Directory, warehouse: Path, mode: str, key: tuple[str] | None
) -> None:
    """One that has another name and a key by now isn't merged there from a part of its rows."""
    old, new = (table_schema("one", COLUMNS, None, ReplicaIdentity.FULL, oid=oid) for oid in (77, 78))
    away = table_schema("away", COLUMNS, ("id",), oid=77)
    after = table_schema("one", COLUMNS, key, ReplicaIdentity.FULL, oid=79)
    for number, table in enumerate((old, new, after)):
        directory.segment([(table, [insert(10 + number, 1)])])
        assert merge_into(spark, begun_at(directory, number + 1), warehouse, mode=mode)["error"] is None
    directory.segment([(away, [insert(40, 2)]), (TWO, [insert(40, 3)])])
    summary = merge_into(spark, begun_at(directory, 4), warehouse, mode=mode)
    assert summary["error"]["message"].startswith('could not merge "public.away": it had no key before')
    assert sorted(merged_rows(spark, warehouse, TWO)) == [("3",)]


def begun_at(directory: Directory, first: int) -> Directory:
    """Remove the segments before `first`, as if they had been merged."""
    directory.lines = [line for line in directory.lines if line["segment"] >= first]
    directory.write_manifest()
    return directory


def test_removed_files_stop_only_the_table_that_needs_them_again(
    spark: SparkSession, directory: Directory, warehouse: Path
) -> None:
    keyless = table_schema("one", COLUMNS, None, ReplicaIdentity.FULL, oid=ONE.oid)
    directory.segment(
        [(keyless, [insert(10, 1)]), (table_schema("one", COLUMNS, ("id",), oid=77), [insert(20, 2)])]
    )
    assert merge_into(spark, directory, warehouse)["error"] is None
    for file in directory.lines[0]["files"]:
        (directory.path / file["path"]).unlink()
    directory.segment([(replace(ONE, name="away"), [insert(30, 3)]), (TWO, [insert(30, 4)])])
    summary = merge_into(spark, directory, warehouse)
    assert [one["table"] for one in summary["tables"] if one["problem"]] == ["public.away"]
    assert summary["error"]["message"].endswith('"public.one/000001-000000000000000A-1.jsonl" is missing')
    assert summary["error"]["hint"].startswith("restore it from a copy, or merge into a new warehouse")
    assert sorted(merged_rows(spark, warehouse, TWO)) == [("4",)]


def test_the_oldest_of_many_tables_that_had_a_name_is_not_merged_as_a_new_one(
    spark: SparkSession, directory: Directory, warehouse: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(table_range, "_REMEMBERED", 1)
    for number, oid in enumerate((ONE.oid, 77, 78)):
        directory.segment([(replace(ONE, oid=oid), [insert(10 * number + 10, number)])])
        assert merge_into(spark, directory, warehouse)["error"] is None
    directory.segment([(replace(ONE, name="away"), [insert(40, 9)])])
    whole = list(directory.lines)
    summary = merge_into(spark, begun_at(directory, 4), warehouse)
    assert summary["error"]["message"].startswith(
        'could not merge "public.away": its earlier rows are no longer'
    )
    directory.lines = whole
    directory.write_manifest()
    assert merge_into(spark, directory, warehouse)["error"] is None
    assert sorted(merged_rows(spark, warehouse, replace(ONE, name="away"))) == [("0",), ("9",)]


def test_an_oid_that_is_put_aside_again_is_among_the_newest() -> None:
    former = remembered([Former(oid, oid, oid) for oid in range(1, 9)], 100)
    former = remembered([*former, Former(1, 9, 9), Former(9, 10, 10)], 100)
    assert former[0] == Former(2, None, 2)
    assert [(one.oid, one.version) for one in former[1:]] == [*((n, n) for n in range(3, 9)), (1, 9), (9, 10)]
    assert remembered(former, 1)[0] == Former(2, None, 2)
    # One whose rows were never there takes no other's place.
    former = remembered([*former, Former(11, None, 11)], 100)
    assert [one.oid for one in former if one.version is None] == [2, 11]
