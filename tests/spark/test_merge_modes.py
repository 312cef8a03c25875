"""Options of a merge: how far, which tables, rows or history, and what is kept of deleted rows."""

from collections.abc import Iterator, Sequence
from itertools import count, islice
from pathlib import Path
from typing import Any

import pytest
from merge_directories import FORMATS, Directory, merge_into, merged_rows, read_table, table_path
from merge_histories import DATE, INT4, INT8, TEXT, History, pg_type, random_history, table_schema
from merge_notes import COLUMNS, ONE, TWO, delete, insert
from merge_oracle import Change, Row, fold
from pyspark.sql import SparkSession

from pgcdc_cli.changes.table import ReplicaIdentity, TableSchema
from pgcdc_cli.spark.pgcdc_merge.lake import alterations
from pgcdc_cli.spark.pgcdc_merge.merge_errors import MergeError
from pgcdc_cli.spark.pgcdc_merge.options import parse_lsn

KEYLESS = table_schema("keyless", COLUMNS, None, ReplicaIdentity.FULL)


def tables_of(summary: dict[str, Any]) -> dict[tuple[str, str], int]:
    return {(table["table"], table["mode"]): table["segment"] for table in summary["tables"]}


def logged(spark: SparkSession, warehouse: Path, table: TableSchema) -> list[dict[str, Any]]:
    path = table_path(warehouse, table)
    frame = spark.read.format("delta").load(f"{path}.changelog").orderBy("_pgcdc_lsn", "_pgcdc_seq")
    return [row.asDict(recursive=True) for row in frame.collect()]


ROW = {"id": "1", "note": "new"}


def test_until_and_table_leave_the_rest_for_another_run(
    spark: SparkSession, directory: Directory, warehouse: Path
) -> None:
    """Each table continues from where it is, whichever was merged before."""
    directory.segment([(ONE, [insert(10, 1)]), (TWO, [insert(11, 1)])])
    directory.segment([(ONE, [insert(20, 2)]), (TWO, [insert(21, 2)])])
    directory.segment([(ONE, [insert(30, 3)])])
    first = merge_into(spark, directory, warehouse, until=parse_lsn("0/1D"))
    assert (first["segment"], first["lsn"]) == (2, "0/1D")
    assert first["tables"][0]["inserted"] == 2
    nothing = merge_into(spark, directory, warehouse, until=parse_lsn("0/12"))
    assert (nothing["segment"], nothing["error"]) == (2, None)

    directory.segment([(ONE, [insert(40, 4)]), (TWO, [insert(41, 4)])])
    second = merge_into(spark, directory, warehouse, tables=["*.o?e"])
    assert tables_of(second) == {("public.one", "merge"): 4}
    assert len(merged_rows(spark, warehouse, TWO)) == 2
    assert second["unmatched"] == []
    none = merge_into(spark, directory, warehouse, tables=["shop.*", "*.two"], dry_run=True)
    assert none["unmatched"] == ["shop.*"]
    third = merge_into(spark, directory, warehouse)
    assert tables_of(third) == {("public.one", "merge"): 4, ("public.two", "merge"): 4}
    assert len(merged_rows(spark, warehouse, ONE)) == 4
    assert len(merged_rows(spark, warehouse, TWO)) == 3


@pytest.mark.parametrize("why", ["problem", pytest.param("unselected", marks=pytest.mark.long)])
def test_a_table_that_was_behind_when_its_segments_went_is_not_merged_later(
    spark: SparkSession, directory: Directory, warehouse: Path, why: str
) -> None:
    """Not even if it has no changes in the next run."""
    directory.segment([(ONE, [insert(10, 1)]), (TWO, [insert(10, 1)])])
    merge_into(spark, directory, warehouse)
    lost = Change("U", 20, 1, {"id": "9"}, unchanged=frozenset({"note"}))
    directory.segment([(ONE, [insert(20, 2), *([lost] if why == "problem" else [])]), (TWO, [insert(20, 2)])])
    merge_into(spark, directory, warehouse, tables=[] if why == "problem" else ["public.two"])
    directory.segment([(TWO, [insert(30, 3)])])
    directory.lines = directory.lines[2:]
    directory.write_manifest()
    merge_into(spark, directory, warehouse)
    directory.segment([(ONE, [insert(40, 4)])])
    message = merge_into(spark, directory, warehouse)["error"]["message"]
    assert message == 'could not merge "public.one": segments 2 to 2 are neither here nor merged into it'
    assert sorted(merged_rows(spark, warehouse, ONE)) == [("1",)]


def test_a_table_whose_segments_are_gone_is_not_merged(
    spark: SparkSession, directory: Directory, warehouse: Path
) -> None:
    directory.segment([(ONE, [insert(10, 1)]), (TWO, [insert(11, 1)])])
    directory.segment([(ONE, [insert(20, 2)]), (TWO, [insert(21, 2)])])
    merge_into(spark, directory, warehouse, tables=["public.one"])
    directory.segment([(TWO, [insert(31, 3)])])
    directory.lines.pop(0)
    directory.write_manifest()
    summary = merge_into(spark, directory, warehouse)
    assert summary["error"]["message"] == (
        'could not merge "public.two": segments 1 to 1 are neither here nor merged into it'
    )
    assert not table_path(warehouse, TWO).exists()


@pytest.mark.parametrize("mode", [pytest.param("merge", marks=pytest.mark.long), "both"])
def test_a_table_that_gets_a_key_after_its_segments_are_gone_is_not_merged(
    spark: SparkSession, directory: Directory, warehouse: Path, mode: str
) -> None:
    """Its older rows are in no segment; those of a table that was created anew with a key all are."""
    before = table_schema("anew", COLUMNS, None, ReplicaIdentity.FULL, oid=7)
    directory.segment([(KEYLESS, [insert(10, 1)]), (before, [insert(11, 1)])])
    assert merge_into(spark, directory, warehouse, mode=mode)["error"] is None
    keyed, anew = (table_schema(name, COLUMNS, ("id",)) for name in ("keyless", "anew"))
    directory.segment([(keyed, [insert(20, 2)]), (anew, [insert(21, 2)])])
    directory.lines.pop(0)
    directory.write_manifest()
    for number in range(2):
        directory.segment([(keyed, [insert(30 + number, 3 + number)])])
        summary = merge_into(spark, directory, warehouse, mode=mode)
        assert summary["error"]["message"].startswith(
            'could not merge "public.keyless": it had no key before, and rows that it had then are only in'
        )
        assert len(merged_rows(spark, warehouse, anew)) == 1
    assert not table_path(warehouse, keyed).exists()


def test_a_dry_run_tells_and_writes_nothing(
    spark: SparkSession, directory: Directory, warehouse: Path
) -> None:
    directory.segment([(ONE, [insert(10, 1), insert(11, 2)]), (KEYLESS, [insert(12, 1)])])
    directory.segment([(ONE, [delete(20, 1)])])
    summary = merge_into(spark, directory, warehouse, dry_run=True)
    assert not warehouse.exists()
    assert (summary["dry_run"], summary["segment"], summary["error"]) == (True, 0, None)
    plans = {(table["table"], table["mode"]): table["plan"] for table in summary["tables"]}
    one = plans["public.one", "merge"]
    assert (one["first_segment"], one["last_segment"], one["files"], one["rows"]) == (1, 2, 2, 3)
    assert one["path"] == f"file:{warehouse}/public/one"
    assert one["bytes"] == sum(path.stat().st_size for path in directory.path.glob("public.one/*"))
    assert plans["public.keyless", "changelog"]["files"] == 1
    assert "has no key" in summary["warnings"][0]

    merge_into(spark, directory, warehouse)
    again = merge_into(spark, directory, warehouse, dry_run=True)
    assert [table["plan"] for table in again["tables"]] == [None, None]
    assert again["segment"] == 2


def test_a_table_without_a_key_gets_a_changelog(
    spark: SparkSession, directory: Directory, warehouse: Path
) -> None:
    old = {"id": "1", "note": "new"}
    update_all = Change("U", 20, 0, {"id": "1", "note": "b"}, old, old_full=True)
    directory.segment([(KEYLESS, [insert(10, 1), update_all]), (ONE, [insert(11, 1)])])
    directory.segment([(KEYLESS, [Change("D", 30, 0, old={"id": "1", "note": "b"}, old_full=True)])])
    directory.segment([(ONE, [delete(40, 1)])])
    summary = merge_into(spark, directory, warehouse)
    assert summary["error"] is None
    (warning,) = summary["warnings"]
    assert warning == (
        '"public.keyless" has no key, so it can\'t be merged: it only gets a changelog;'
        " ALTER TABLE public.keyless ADD PRIMARY KEY (...) for more"
    )
    assert tables_of(summary) == {("public.keyless", "changelog"): 3, ("public.one", "merge"): 3}
    assert [
        (row["_pgcdc_op"], row["id"], row["note"], row["_pgcdc_old"])
        for row in logged(spark, warehouse, KEYLESS)
    ] == [
        ("I", 1, "new", None),
        ("U", 1, "b", {"id": 1, "note": "new"}),
        ("D", 1, "b", {"id": 1, "note": "b"}),
    ]
    assert len(merge_into(spark, directory, warehouse, mode="both")["warnings"]) == 1
    assert len(logged(spark, warehouse, KEYLESS)) == 3


@pytest.mark.parametrize(("lake", "encoding"), [("delta", "jsonl"), ("iceberg", "arrow")])
def test_a_table_without_columns_gets_a_changelog_too(
    spark: SparkSession, tmp_path: Path, warehouse: Path, lake: str, encoding: str
) -> None:
    """Old rows are in it from the first column on."""
    bare, wide = (
        table_schema("bare", columns, None, ReplicaIdentity.FULL) for columns in ({}, {"a": pg_type(TEXT)})
    )
    directory = Directory(tmp_path / "in", FORMATS[encoding])
    for number in (0, 10):
        directory.segment([(bare, [Change("I", 10 + number, 0, {}), Change("D", 11 + number, 0, old={})])])
        assert merge_into(spark, directory, warehouse, format=lake)["error"] is None
    directory.segment([(wide, [Change("U", 30, 0, {"a": "x"}, {"a": None}, old_full=True)])])
    assert merge_into(spark, directory, warehouse, format=lake)["error"] is None
    rows = read_table(spark, warehouse, wide, lake, "changelog").orderBy("_pgcdc_lsn").collect()
    assert [(row["_pgcdc_op"], row["_pgcdc_unchanged"], row["a"], row["_pgcdc_old"]) for row in rows] == [
        *[(op, [], None, None) for op in "IDID"],
        ("U", [], "x", (None,)),
    ]


def test_a_changelog_is_every_change_once(spark: SparkSession, directory: Directory, warehouse: Path) -> None:
    """In two ranges, each merged twice, from files of two formats, with merged tables beside it."""
    history = random_history("logged", ("a", "b"), ReplicaIdentity.DEFAULT, spaces=2, truncates=True)
    half = len(history.changes) // 2
    for encoding, part in (("jsonl", history.changes[:half]), ("arrow", history.changes[half:])):
        directory.encoding = FORMATS[encoding]
        directory.segment([(history.table, part)])
        merge_into(spark, directory, warehouse, mode="changelog")
        merge_into(spark, directory, warehouse, mode="both")
    rows = logged(spark, warehouse, history.table)
    ordered = sorted(history.changes, key=lambda change: (change.commit_lsn, change.seq))
    assert [(row["_pgcdc_op"], row["_pgcdc_lsn"], row["_pgcdc_seq"]) for row in rows] == [
        (c.op, c.commit_lsn, c.seq) for c in ordered
    ]
    for row, change in zip(rows, ordered, strict=True):
        image = change.old if change.op == "D" else change.new
        assert row["a"] == (None if image is None else int(image["a"] or 0))
        assert row["doc"] == (image or {}).get("doc")
        assert set(row["_pgcdc_unchanged"]) == set(change.unchanged)
        assert (row["_pgcdc_old"] is None) == (change.old is None)
        assert row["_pgcdc_commit_ts"].timestamp() == 0
    assert merged_rows(spark, warehouse, history.table) == fold(history.changes, history.key)


@pytest.mark.parametrize("lake", ["delta", "iceberg"])
def test_a_changelog_counts_the_values_that_its_types_can_not_hold(
    spark: SparkSession, directory: Directory, warehouse: Path, lake: str
) -> None:
    """Those of each run's new rows, whatever became of them later."""
    dated = table_schema("dated", {"id": pg_type(INT4), "day": pg_type(DATE)}, ("id",), ReplicaIdentity.FULL)
    never, some_day = ({"id": "1", "day": day} for day in ("infinity", "2026-01-01"))

    def counts() -> dict[str, int]:
        summary = merge_into(spark, directory, warehouse, format=lake, mode="both")
        return {one["mode"]: one["unfit"] for one in summary["tables"]}

    other = {"id": "2", "day": "-infinity"}
    directory.segment([(dated, [Change("I", 10, 0, never), Change("I", 11, 0, other)])])
    assert counts() == {"changelog": 2, "merge": 2}
    directory.segment([(dated, [Change("U", 20, 0, some_day, never, old_full=True)])])
    directory.segment([(dated, [Change("U", 30, 0, never, some_day, old_full=True), delete(31, 2)])])
    directory.segment([(dated, [Change("U", 40, 0, some_day, never, old_full=True)])])
    assert counts() == {"changelog": 1, "merge": 0}


def soft_fold(
    changes: Sequence[Change], key: Sequence[str]
) -> dict[tuple[str | None, ...], tuple[Row, bool, int]]:
    """Compute every row that ever was: its last values, whether it is deleted, its last commit LSN."""
    rows: dict[tuple[str | None, ...], tuple[Row, bool, int]] = {}
    for change in sorted(changes, key=lambda c: (c.commit_lsn, c.op != "R", c.seq)):
        lsn = change.commit_lsn
        if change.op == "T":
            alive = {at: row for at, (row, deleted, _) in rows.items() if not deleted}
            rows |= {at: (row, True, lsn) for at, row in alive.items()}
            continue
        before: Row = {}
        if change.op in "UD":
            image = {**(change.new or {}), **(change.old or {})}
            at = tuple(image[name] for name in key)
            before = rows[at][0]
            rows[at] = (before, True, lsn)
        if change.new is not None:
            row = {name: before[name] if name in change.unchanged else v for name, v in change.new.items()}
            rows[tuple(row[name] for name in key)] = (row, False, lsn)
    return rows


@pytest.mark.parametrize(("lake", "options"), [("delta", {"readers": "modern"}), ("iceberg", {})])
def test_a_changelog_whose_columns_were_changed_in_part_goes_on(
    spark: SparkSession,
    directory: Directory,
    warehouse: Path,
    monkeypatch: pytest.MonkeyPatch,
    lake: str,
    options: dict[str, Any],
) -> None:
    """A run is stopped after each of the statements in turn: one table for each."""
    stops = count()

    def stopping(*arguments: Any) -> Iterator[str]:
        yield from islice(alterations(*arguments), next(stops))
        raise RuntimeError("stopped")

    narrow, wide = {"n": pg_type(INT4)}, {"n": pg_type(INT8), "added": pg_type(TEXT)}
    names = [f"t{number}" for number in range(5)]
    old, new = (
        [table_schema(name, columns, None, ReplicaIdentity.FULL) for name in names]
        for columns in (narrow, wide)
    )
    directory.segment([(table, [Change("I", 10, 0, {"n": "1"})]) for table in old])
    assert merge_into(spark, directory, warehouse, format=lake, **options)["error"] is None
    row = {"n": "5000000000", "added": "x"}
    directory.segment([(table, [Change("D", 20, 0, old=row, old_full=True)]) for table in new])
    with monkeypatch.context() as patch:
        patch.setattr(f"pgcdc_cli.spark.pgcdc_merge.{lake}.alterations", stopping)
        stopped = merge_into(spark, directory, warehouse, format=lake, **options)
    assert all("stopped" in table["problem"] for table in stopped["tables"])
    assert merge_into(spark, directory, warehouse, format=lake, **options)["error"] is None
    for table in new:
        log = read_table(spark, warehouse, table, lake, "changelog").where("_pgcdc_op = 'D'")
        assert [tuple(one["_pgcdc_old"]) for one in log.collect()] == [(5000000000, "x")]


def test_a_changelog_goes_on_when_the_key_changes(
    spark: SparkSession, directory: Directory, warehouse: Path
) -> None:
    keyless = table_schema("first", COLUMNS, None, ReplicaIdentity.FULL)
    changed = {
        "first": (
            keyless,
            table_schema("first", COLUMNS, ("id",)),
            Change("D", 15, 0, old=ROW, old_full=True),
        ),
        "wider": (
            table_schema("wider", COLUMNS, ("id",)),
            table_schema("wider", COLUMNS, ("note", "id")),
            delete(15, 1),
        ),
    }
    for before, after, gone in changed.values():
        directory.segment([(before, [insert(10, 1), gone]), (after, [Change("D", 20, 0, old=ROW)])])
    assert merge_into(spark, directory, warehouse, mode="changelog")["error"] is None
    olds = {}
    for name, (before, _, _) in changed.items():
        found = [row["_pgcdc_old"] for row in logged(spark, warehouse, before)]
        olds[name] = [row and tuple(row.values()) for row in found]
    assert olds == {"first": [None, (1, "new"), (1, None)], "wider": [None, (1, None), (1, "new")]}


@pytest.mark.parametrize("cuts", [pytest.param(1, marks=pytest.mark.long), 2])
def test_deleted_rows_stay_with_their_last_values(
    spark: SparkSession, tmp_path: Path, warehouse: Path, cuts: int
) -> None:
    """However the changes are cut into ranges: deleted, moved or truncated, with unchanged TOAST values."""
    default, full = ReplicaIdentity.DEFAULT, ReplicaIdentity.FULL
    history = (
        random_history("softly", ("b", "a"), full, spaces=5)
        if cuts == 1
        else random_history("softtruncated", ("a", "b"), default, spaces=2, truncates=True)
    )
    directory = Directory(tmp_path / "in", FORMATS["jsonl"])
    for part in range(cuts):
        directory.segment([(history.table, history.parts(cuts)[part])])
        summary = merge_into(spark, directory, warehouse, soft_delete=True, metadata=True)
        assert summary["error"] is None
    expected = soft_fold(history.changes, history.key)
    assert any(deleted for _, deleted, _ in expected.values())
    assert soft_rows(spark, warehouse, history) == expected


def soft_rows(spark: SparkSession, warehouse: Path, history: History) -> dict[tuple[str | None, ...], Any]:
    frame = spark.read.format("delta").load(str(table_path(warehouse, history.table)))
    names = [column.name for column in history.table.columns]
    assert frame.columns == [*names, "_pgcdc_lsn", "_pgcdc_commit_ts", "_pgcdc_deleted"]
    assert frame.where("_pgcdc_commit_ts != TIMESTAMP '1970-01-01'").isEmpty()
    texts = frame.selectExpr(*(f"CAST({name} AS STRING)" for name in names), "_pgcdc_deleted", "_pgcdc_lsn")
    found = {}
    for *values, deleted, lsn in texts.collect():
        row = dict(zip(names, values, strict=True))
        found[tuple(row[name] for name in history.key)] = (row, deleted, lsn)
    return found


def test_a_delete_of_a_row_that_was_never_there_is_none(
    spark: SparkSession, directory: Directory, warehouse: Path
) -> None:
    directory.segment([(ONE, [insert(10, 1), delete(11, 7)])])
    merge_into(spark, directory, warehouse, soft_delete=True)
    directory.segment([(ONE, [delete(20, 8), delete(21, 1)])])
    merge_into(spark, directory, warehouse, soft_delete=True)
    rows = spark.read.format("delta").load(str(table_path(warehouse, ONE))).collect()
    assert [tuple(row) for row in rows] == [(1, "new", True)]


def test_extra_columns_are_for_a_tables_whole_life(
    spark: SparkSession, directory: Directory, warehouse: Path
) -> None:
    taken = table_schema("taken", {"id": pg_type(INT4), "_PGCDC_lsn": pg_type(INT4)}, ("id",))
    directory.segment([(ONE, [insert(10, 1)])])
    merge_into(spark, directory, warehouse, metadata=True)
    directory.segment([(ONE, [insert(20, 2)]), (taken, [Change("T", 21, 0)])])
    without = merge_into(spark, directory, warehouse, tables=["public.one"])
    assert without["error"]["message"] == 'could not merge "public.one": it was made with --metadata'
    other = merge_into(spark, directory, warehouse, metadata=True, soft_delete=True)
    found = [table["problem"] for table in other["tables"]]
    assert found[0] == 'could not merge "public.one": it was made without --soft-delete'
    assert 'its column "_PGCDC_lsn" has a name that this job uses itself' in found[1]


def test_an_unfinished_range_is_finished_before_anything_else(
    spark: SparkSession, directory: Directory, warehouse: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    directory.segment([(ONE, [insert(10, 1)])])
    directory.segment([(ONE, [insert(20, 2)])])
    with monkeypatch.context() as patch:
        patch.setattr(
            "pgcdc_cli.spark.pgcdc_merge.control.ControlTable.finish", lambda *_: pytest.fail("died")
        )
        with pytest.raises(pytest.fail.Exception):
            merge_into(spark, directory, warehouse)
    with pytest.raises(MergeError, match=r"has begun to merge up to segment 2, 0/1C"):
        merge_into(spark, directory, warehouse, until=parse_lsn("0/12"))
    assert merge_into(spark, directory, warehouse, until=parse_lsn("0/1C"))["segment"] == 2
