"""Segments of every kind: many, small, empty, mixed; and a key that changes in the middle of one."""

from pathlib import Path

import pytest
from merge_directories import FORMATS, Directory, merge_into, merged_rows, table_path
from merge_histories import INT4, TEXT, pg_type, table_schema
from merge_oracle import Change, Row, fold
from pyspark.sql import SparkSession

NUMERIC = 1700
COLUMNS = {"id": pg_type(INT4), "code": pg_type(INT4), "note": pg_type(TEXT)}
MANY = 60


def row(id_: int, code: int, note: str | None) -> Row:
    return {"id": str(id_), "code": str(code), "note": note}


def test_many_small_segments_and_empty_ones(spark: SparkSession, tmp_path: Path) -> None:
    """Some changes lack a value that an earlier segment has."""
    table = table_schema("t", COLUMNS, ("id",))
    directory = Directory(tmp_path / "in", FORMATS["jsonl"])
    everything: list[Change] = []
    for number in range(MANY):
        toast = frozenset({"note"} if number > 9 and number % 7 == 0 else ())
        new = row(number % 9, number, None if toast else f"note {number}")
        some = [Change("I" if number < 9 else "U", number + 1, 0, new, unchanged=toast)]
        directory.encoding = FORMATS[["jsonl", "arrow", "jsonl.zst", "debezium"][number % 4]]
        directory.segment([] if number % 10 == 9 else [(table, some)])
        everything += [] if number % 10 == 9 else some
    summary = merge_into(spark, directory, tmp_path / "wh")
    assert (summary["error"], summary["segment"]) == (None, MANY)
    assert merged_rows(spark, tmp_path / "wh", table) == fold(everything, ("id",))
    directory.segment([])
    summary = merge_into(spark, directory, tmp_path / "wh")
    assert (summary["error"], summary["segment"], summary["tables"][0]["segment"]) == (
        None,
        MANY + 1,
        MANY + 1,
    )


@pytest.mark.parametrize(("encoding", "runs"), [("jsonl", 1), ("debezium", 2)])
def test_a_range_is_cut_where_the_key_changes(
    spark: SparkSession, tmp_path: Path, encoding: str, runs: int
) -> None:
    """Unchanged TOAST values are found by the rows' keys, before and after the cut."""
    toast = frozenset({"note"})
    by_id, by_code = table_schema("t", COLUMNS, ("id",)), table_schema("t", COLUMNS, ("code",))
    directory = Directory(tmp_path / "in", FORMATS[encoding])
    directory.segment([(by_id, [Change("I", n, 0, row(n, n * 10, f"long {n}")) for n in (1, 2, 3, 4)])])
    if runs > 1:
        assert merge_into(spark, directory, tmp_path / "wh")["error"] is None
    before = [
        Change("U", 10, 0, row(11, 10, None), {"id": "1"}, unchanged=toast),
        Change("D", 20, 0, old={"id": "2"}),
    ]
    after = [
        Change("U", 30, 0, row(3, 31, None), {"code": "30"}, unchanged=toast),
        Change("U", 40, 0, row(12, 10, None), unchanged=toast),
        Change("D", 50, 0, old={"code": "40"}),
        Change("I", 60, 0, row(5, 50, "new")),
    ]
    directory.segment([(by_id, before), (by_code, after)])
    summary = merge_into(spark, directory, tmp_path / "wh")
    assert summary["error"] is None
    expected = {("10",): row(12, 10, "long 1"), ("31",): row(3, 31, "long 3"), ("50",): row(5, 50, "new")}
    assert merged_rows(spark, tmp_path / "wh", by_code) == expected
    directory.segment([(by_code, [Change("U", 70, 0, row(7, 51, "newer"), {"code": "50"})])])
    assert merge_into(spark, directory, tmp_path / "wh")["error"] is None
    expected = {**expected, ("51",): row(7, 51, "newer")}
    del expected["50",]
    assert merged_rows(spark, tmp_path / "wh", by_code) == expected


def test_a_value_that_nothing_has_stops_a_range_that_is_cut(spark: SparkSession, tmp_path: Path) -> None:
    """Also of a type whose NULL in the lake may stand for a value."""
    columns = {"id": pg_type(INT4), "code": pg_type(INT4), "amount": pg_type(NUMERIC, (5 << 16 | 2) + 4)}
    by_id, by_code = (table_schema("t", columns, (key,)) for key in ("id", "code"))
    directory = Directory(tmp_path / "in", FORMATS["jsonl"])
    directory.segment([(by_id, [Change("I", 10, 0, {"id": "1", "code": "10", "amount": "1.5"})])])
    unknown = {"id": "2", "code": "20", "amount": None}
    directory.segment([(by_code, [Change("U", 20, 0, unknown, unchanged=frozenset({"amount"}))])])
    (result,) = merge_into(spark, directory, tmp_path / "wh")["tables"]
    assert '"amount" of the row (code) = (20) was not sent (unchanged TOAST)' in result["problem"]
    assert not table_path(tmp_path / "wh", by_code).exists()


def test_snapshot_rows_come_before_changes_at_their_lsn(spark: SparkSession, tmp_path: Path) -> None:
    """Whatever their sequence numbers; also across segments in one run."""
    table = table_schema("t", COLUMNS, ("id",))
    snapshot = [Change("R", 10, 7 + n, row(n, n, "old")) for n in (1, 2, 3)]
    changes = [
        Change("U", 10, 0, row(1, 10, None), unchanged=frozenset({"note"})),
        Change("D", 10, 1, old={"id": "2"}),
        Change("U", 10, 2, row(30, 3, "moved"), {"id": "3"}),
    ]
    directory = Directory(tmp_path / "in", FORMATS["arrow"])
    directory.segment([(table, snapshot)])
    directory.encoding = FORMATS["jsonl"]
    directory.segment([(table, changes)])
    assert merge_into(spark, directory, tmp_path / "wh")["error"] is None
    assert merged_rows(spark, tmp_path / "wh", table) == {
        ("1",): row(1, 10, "old"),
        ("30",): row(30, 3, "moved"),
    }
