"""Exactly once, whatever happens to a run; and nothing at all from a directory that isn't what it claims."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from merge_directories import Directory, merge_into, merged_rows, table_path
from merge_histories import INT4, TEXT, pg_type, table_schema
from merge_notes import COLUMNS, ONE, TWO, delete, insert, update
from merge_oracle import Change, fold
from merge_oracle import insert as insert_row
from merge_oracle import update as update_row
from pyspark.sql import SparkSession

from pgcdc_cli.changes.table import TableSchema
from pgcdc_cli.spark.pgcdc_merge import job, merge_table
from pgcdc_cli.spark.pgcdc_merge.control import ControlTable, locked
from pgcdc_cli.spark.pgcdc_merge.delta import DeltaLake
from pgcdc_cli.spark.pgcdc_merge.merge_errors import MergeError
from pgcdc_cli.spark.warehouse import read_record

BPCHAR = 1042
FIRST = [insert(10, 1), insert(20, 2), update(30, 1, "changed")]
SECOND = [delete(40, 1), insert(50, 3), update(60, 2, None)]


def segments_of_commits(spark: SparkSession, warehouse: Path, table: TableSchema) -> list[int]:
    """Read the segment from each of the table's commits, oldest first."""
    history = spark.sql(f"DESCRIBE HISTORY delta.`{table_path(warehouse, table)}`").orderBy("version")
    return [json.loads(row["userMetadata"])["pgcdc"]["segment"] for row in history.collect()]


def test_each_range_is_committed_once(spark: SparkSession, directory: Directory, warehouse: Path) -> None:
    directory.segment([(ONE, FIRST), (TWO, FIRST)])
    first = merge_into(spark, directory, warehouse)
    assert [(t["table"], t["segment"], t["inserted"]) for t in first["tables"]] == [
        ("public.one", 1, 2),
        ("public.two", 1, 2),
    ]
    old_manifest = (directory.path / "manifest.jsonl").read_bytes()
    directory.segment([(ONE, SECOND)])
    second = merge_into(spark, directory, warehouse)
    assert {(t["table"], t["inserted"], t["updated"], t["deleted"]) for t in second["tables"]} == {
        ("public.one", 1, 1, 1),
        ("public.two", 0, 0, 0),
    }
    control = spark.read.format("delta").load(str(warehouse / "_pgcdc")).orderBy("table").collect()
    assert {row["mode"] for row in control} == {"merge"}
    assert [(r["table"], r["segment"], r["lsn"], r["version"]) for r in control] == [
        ("", 2, "0/44", None),
        ("public.one", 2, "0/44", 1),
        ("public.two", 2, "0/44", 0),
    ]

    again = merge_into(spark, directory, warehouse)
    assert (again["segment"], again["lsn"], again["error"]) == (2, "0/44", None)
    (directory.path / "manifest.jsonl").write_bytes(old_manifest)
    replayed = merge_into(spark, directory, warehouse)
    assert (replayed["segment"], replayed["error"]) == (2, None)

    assert merged_rows(spark, warehouse, ONE) == fold(FIRST + SECOND, ("id",))
    assert segments_of_commits(spark, warehouse, ONE) == [1, 2]
    assert segments_of_commits(spark, warehouse, TWO) == [1]


def test_a_run_that_died_between_tables_is_finished_first(
    spark: SparkSession, directory: Directory, warehouse: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    directory.segment([(ONE, FIRST), (TWO, FIRST)])
    merge_table = job.merge_table

    def dying(session: Any, path: str, plan: Any, *rest: Any) -> Any:
        if plan.work.table == "public.two":
            raise KeyboardInterrupt
        return merge_table(session, path, plan, *rest)

    with monkeypatch.context() as patch:
        patch.setattr(job, "merge_table", dying)
        patch.setattr("pgcdc_cli.spark.pgcdc_merge.lake.AT_ONCE", 1)
        with pytest.raises(KeyboardInterrupt):
            merge_into(spark, directory, warehouse)
    control = ControlTable(spark, DeltaLake(str(warehouse)), str(warehouse)).progress("merge").all
    assert control is not None
    assert (control.planned_segment, control.segment) == (1, 0)
    assert segments_of_commits(spark, warehouse, ONE) == [1]

    directory.segment([(ONE, SECOND), (TWO, SECOND)])
    assert merge_into(spark, directory, warehouse)["error"] is None
    for table in (ONE, TWO):
        assert merged_rows(spark, warehouse, table) == fold(FIRST + SECOND, ("id",))
        assert segments_of_commits(spark, warehouse, table) == [1, 2]


@pytest.mark.parametrize("lake", ["delta", "iceberg"])
def test_a_later_run_that_died_is_finished_before_what_came_since(
    spark: SparkSession, directory: Directory, warehouse: Path, monkeypatch: pytest.MonkeyPatch, lake: str
) -> None:
    """The range that it planned is in the control table, and is merged before newer segments."""
    directory.segment([(ONE, FIRST)])
    assert merge_into(spark, directory, warehouse, format=lake)["error"] is None
    directory.segment([(ONE, SECOND)])
    with monkeypatch.context() as patch:
        patch.setattr(job, "merge_table", dying)
        with pytest.raises(KeyboardInterrupt):
            merge_into(spark, directory, warehouse, format=lake)
    directory.segment([(ONE, [update(70, 3, "last")])])
    with pytest.raises(MergeError, match="has begun to merge up to segment 2"):
        merge_into(spark, directory, warehouse, format=lake, until=FIRST[-1].commit_lsn + 8)
    assert merge_into(spark, directory, warehouse, format=lake)["segment"] == 3
    assert merged_rows(spark, warehouse, ONE, lake)["3",]["note"] == "last"


def dying(*_: object) -> None:
    raise KeyboardInterrupt


def test_a_run_that_died_before_the_control_table_commits_nothing_twice(
    spark: SparkSession, directory: Directory, warehouse: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    directory.segment([(ONE, [*FIRST, delete(35, 2)])])
    with monkeypatch.context() as patch:
        patch.setattr(ControlTable, "finish", lambda *_: pytest.fail("died"))
        with pytest.raises(pytest.fail.Exception):
            merge_into(spark, directory, warehouse)
    directory.segment([(ONE, [update(40, 1, "last")])])
    summary = merge_into(spark, directory, warehouse)
    assert (summary["error"], summary["tables"][0]["updated"]) == (None, 1)
    assert segments_of_commits(spark, warehouse, ONE) == [1, 2]
    assert merged_rows(spark, warehouse, ONE) == {("1",): {"id": "1", "note": "last"}}


@pytest.mark.parametrize("dies_in", ["the table", "the control table"])
@pytest.mark.parametrize("lake", ["delta", pytest.param("iceberg", marks=pytest.mark.long)])
def test_what_rows_lack_is_known_even_if_the_run_that_found_it_died(
    spark: SparkSession,
    directory: Directory,
    warehouse: Path,
    monkeypatch: pytest.MonkeyPatch,
    lake: str,
    dies_in: str,
) -> None:
    """It had changed the columns, or had merged all, and the next run finds these tables as they are."""
    narrow = {"id": COLUMNS["id"]}
    wide, short = {**narrow, "more": pg_type(TEXT)}, {**narrow, "note": pg_type(BPCHAR, 8)}
    added, first = (table_schema(name, narrow, ("id",)) for name in ("added", "first"))
    retyped = table_schema("retyped", short, ("id",))
    old = [insert_row(10, id="1"), insert_row(20, id="2")]
    noted = [insert(10, 1, "a   "), insert(20, 2, "b   ")]
    directory.segment([(added, old), (retyped, noted)])
    assert merge_into(spark, directory, warehouse, format=lake)["warnings"] == []
    new = [update_row(40, id="1", more="x")]
    later = [(table_schema(name, wide, ("id",)), new) for name in ("added", "first")]
    text = (table_schema("retyped", COLUMNS, ("id",)), [update(40, 1, "c")])
    directory.segment([(first, old), *later, text])
    with monkeypatch.context() as patch:
        if dies_in == "the table":
            patch.setattr(merge_table, "_fold_range", dying)
        else:
            patch.setattr(ControlTable, "finish", dying)
        with pytest.raises(KeyboardInterrupt):
            merge_into(spark, directory, warehouse, format=lake)
    summary = merge_into(spark, directory, warehouse, format=lake)
    assert summary["error"] is None
    assert sorted(warning.partition(": ")[0] for warning in summary["warnings"]) == [
        '"public.added" has the new column "more"',
        '"public.first" has the new column "more"',
        '"public.retyped" has another type in column "note"',
    ]
    lasting = [row.warning for row in read_record(str(warehouse)) or [] if row.warning is not None]
    assert sorted(lasting) == sorted(summary["warnings"])


def test_a_table_that_was_set_back_is_left_alone(
    spark: SparkSession, directory: Directory, warehouse: Path
) -> None:
    directory.segment([(ONE, FIRST)])
    merge_into(spark, directory, warehouse)
    table_path(warehouse, ONE).rename(warehouse / "elsewhere")
    directory.segment([(ONE, SECOND)])
    summary = merge_into(spark, directory, warehouse)
    assert "is gone, but was at version 0 when it was last merged" in summary["error"]["message"]
    assert not table_path(warehouse, ONE).exists()


def cut_short(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:-1])


def flip_a_bit(path: Path) -> None:
    data = bytearray(path.read_bytes())
    data[-3] ^= 1
    path.write_bytes(data)


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        (Path.unlink, "is missing"),
        (cut_short, "bytes, not"),
        (flip_a_bit, "has the checksum"),
    ],
)
def test_a_damaged_file_stops_the_run_before_anything_is_written(
    spark: SparkSession, directory: Directory, warehouse: Path, damage: Callable[[Path], None], message: str
) -> None:
    directory.segment([(ONE, FIRST), (TWO, FIRST)])
    damage(next((directory.path / "public.two").iterdir()))
    with pytest.raises(MergeError, match=f'could not merge segment 1: "public.two/.*{message}'):
        merge_into(spark, directory, warehouse)
    assert [path.name for path in warehouse.iterdir()] == ["_pgcdc.lock"]


def edited(directory: Directory, **changes: Any) -> None:
    directory.lines[-1] |= changes
    directory.write_manifest()


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"segment": 3}, "segment 3 follows segment 1"),
        ({"stream_id": "other"}, "could not merge segment 2: it is of stream other"),
        ({"format_version": 2}, "line 2 is damaged: its format version is 2"),
        ({"files": [{"table": "x"}]}, "line 2 is damaged"),
        (
            {"files": [{"table": None, "path": "000002.jsonl", "format": "jsonl", "schema": None}]},
            '"000002.jsonl": it holds all tables in one file',
        ),
        (
            {"files": [{"table": None, "path": "a", "format": "wal2json", "schema": None}]},
            "its format is wal2json",
        ),
        (
            {"files": [{"table": "public.one", "path": "a", "format": "wal2json", "schema": "s"}]},
            "its format is wal2json",
        ),
        (
            {"files": [{"table": "public.one", "path": "a", "format": "debezium", "schema": None}]},
            "its format is debezium",
        ),
        (
            {
                "files": [
                    {
                        "table": "x",
                        "path": "a",
                        "format": "jsonl",
                        "rows": 1,
                        "bytes": 1,
                        "crc32": 1,
                        "schema": "s/1",
                    }
                ]
            },
            's/1": there is no such file',
        ),
    ],
)
def test_a_manifest_that_makes_no_sense_stops_the_run(
    spark: SparkSession, directory: Directory, warehouse: Path, changes: dict[str, Any], message: str
) -> None:
    directory.segment([(ONE, FIRST)])
    directory.segment([(ONE, SECOND)])
    edited(directory, **changes)
    with pytest.raises(MergeError) as caught:
        merge_into(spark, directory, warehouse)
    assert message in caught.value.message
    assert not (warehouse / "public").exists()


def test_segments_that_are_gone_are_a_gap(spark: SparkSession, directory: Directory, warehouse: Path) -> None:
    directory.segment([(ONE, FIRST)])
    directory.segment([(ONE, SECOND)])
    directory.lines.pop(0)
    directory.write_manifest()
    with pytest.raises(MergeError, match="could not merge segment 2: 1 to 1 are neither here nor merged"):
        merge_into(spark, directory, warehouse)


def test_a_segment_that_is_being_written_is_none(
    spark: SparkSession, directory: Directory, warehouse: Path
) -> None:
    with pytest.raises(MergeError, match=r'could not read ".*manifest.jsonl": there is no such file'):
        merge_into(spark, directory, warehouse)
    directory.segment([(ONE, FIRST)])
    manifest = directory.path / "manifest.jsonl"
    manifest.write_bytes(manifest.read_bytes()[:-1])
    summary = merge_into(spark, directory, warehouse)
    assert (summary["segment"], summary["tables"], summary["error"]) == (0, [], None)


def test_a_warehouse_that_cannot_be_written_to(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with (
        pytest.raises(MergeError, match=r'could not write to ".*/file/warehouse": Not a directory'),
        locked(f"file:{tmp_path}/file/warehouse"),
    ):
        pass


def test_a_second_merge_stops(spark: SparkSession, directory: Directory, warehouse: Path) -> None:
    directory.segment([(ONE, FIRST)])
    with (
        locked(f"file:{warehouse}"),
        pytest.raises(MergeError, match=r"could not merge into .*: another merge is under way"),
    ):
        merge_into(spark, directory, warehouse)


def test_tables_that_cannot_be_merged_hold_up_no_other(
    spark: SparkSession, directory: Directory, warehouse: Path
) -> None:
    """Each reports its reason, and stays where it was."""
    cased = table_schema("cased", {**COLUMNS, "ID": pg_type(TEXT)}, ("id",))
    changed = {
        "retyped": table_schema("retyped", {**COLUMNS, "note": pg_type(INT4)}, ("id",)),
        "anew": table_schema("anew", COLUMNS, ("id",), oid=99),
    }
    truncate = Change("T", 15, 0)
    tables = [cased, *(table_schema(name, COLUMNS, ("id",)) for name in changed)]
    directory.segment([(ONE, FIRST), *((table, [truncate]) for table in tables)])
    directory.segment([(ONE, SECOND), *((table, [Change("T", 45, 0)]) for table in changed.values())])

    summary = merge_into(spark, directory, warehouse, recreated="stop")
    problems = {table["table"]: table["problem"] for table in summary["tables"]}
    assert problems.pop("public.one") is None
    messages = {
        "cased": 'the columns "id" and "ID" differ in case only',
        "retyped": 'its column "note" changed from string to int',
        "anew": "it is not the same table as before, but was dropped and recreated, or renamed: its OID",
    }
    for name, reason in messages.items():
        assert reason in problems.pop(f"public.{name}")
    assert problems == {}
    assert summary["error"]["message"] == "could not merge 3 tables: the warnings say why"
    assert len(summary["warnings"]) == 3
    assert merged_rows(spark, warehouse, ONE) == fold(FIRST + SECOND, ("id",))
    assert sorted(path.name for path in (warehouse / "public").iterdir()) == ["one"]


def test_a_value_that_was_never_sent_stops_its_table(
    spark: SparkSession, directory: Directory, warehouse: Path
) -> None:
    """Not among the changes, along a changed key, nor in the table: it never silently becomes NULL."""
    toast = frozenset({"note"})
    names = ["inserted", "again", "astray", "moved", "orphan", "truncated", "found"]
    tables = {name: table_schema(name, COLUMNS, ("id",)) for name in names}
    directory.segment([(table, [insert(10, 1, "long")]) for table in tables.values()])
    merge_into(spark, directory, warehouse)
    unsent = Change("U", 40, 0, {"id": "2", "note": None}, unchanged=toast)
    arrival = Change("I", 30, 0, {"id": "2", "note": None}, unchanged=toast)
    anew = Change("I", 40, 0, {"id": "1", "note": None}, unchanged=toast)
    moved = Change("U", 50, 0, {"id": "3", "note": None}, {"id": "2"}, unchanged=toast)
    away = Change("U", 50, 0, {"id": "3", "note": None}, {"id": "1"}, unchanged=toast)
    back = Change("U", 60, 0, {"id": "5", "note": None}, {"id": "1"}, unchanged=toast)
    directory.segment(
        [
            (tables["inserted"], [arrival]),
            (tables["again"], [delete(30, 1), anew]),
            (tables["astray"], [delete(30, 1), anew, away]),
            (tables["moved"], [arrival, moved]),
            (tables["orphan"], [unsent]),
            (tables["truncated"], [Change("T", 20, 0), back]),
            (tables["found"], [back]),
        ]
    )
    summary = merge_into(spark, directory, warehouse)
    problems = {table["table"].removeprefix("public."): table["problem"] for table in summary["tables"]}
    assert problems.pop("found") is None
    for name, key in {
        "inserted": 2,
        "again": 1,
        "astray": 3,
        "moved": 3,
        "orphan": 2,
        "truncated": 5,
    }.items():
        assert problems[name] == (
            f'could not merge "public.{name}": column "note" of the row (id) = ({key}) was not sent'
            " (unchanged TOAST), and no earlier change has its value"
        )
        assert merged_rows(spark, warehouse, tables[name]) == {("1",): {"id": "1", "note": "long"}}
    assert merged_rows(spark, warehouse, tables["found"]) == {("5",): {"id": "5", "note": "long"}}
