"""Small Delta tables are written anew in one transaction, with the result of a MERGE."""

from pathlib import Path
from typing import Any

import pytest
from merge_directories import Directory, merge_into, read_table, table_path
from merge_notes import ONE, delete, insert, update
from merge_oracle import Change
from py4j.java_gateway import JVMView  # type: ignore[import-untyped]  # it has no annotations
from pyspark.sql import SparkSession

from pgcdc_cli.spark.pgcdc_merge import delta_rewrite
from pgcdc_cli.spark.pgcdc_merge.delta_rewrite import Rewriting

FIRST = [insert(10, 1), insert(11, 2), insert(12, 3), insert(13, 4)]
MOVE = Change("U", 26, 0, {"id": "9", "note": "moved"}, {"id": "4"})
SECOND = [
    update(20, 1, None),
    delete(21, 2),
    insert(22, 5),
    delete(22, 7),
    insert(23, 6),
    delete(24, 6),
    MOVE,
]
NONE = -1


@pytest.fixture(autouse=True)
def small_tables(monkeypatch: pytest.MonkeyPatch) -> None:
    """Treat tables as small with `--long`, too, which turns that off for other tests."""
    monkeypatch.setattr(delta_rewrite, "SMALL", 1 << 20)


def operations(spark: SparkSession, warehouse: Path) -> list[str]:
    history = spark.sql(f"DESCRIBE HISTORY delta.`{table_path(warehouse, ONE)}`").orderBy("version")
    return [row["operation"] for row in history.collect()]


@pytest.mark.parametrize(
    "extras",
    [
        *(pytest.param(extras, marks=pytest.mark.long) for extras in ({}, {"metadata": True})),
        {"metadata": True, "soft_delete": True},
    ],
)
def test_rows_and_counts_are_those_of_a_merge(
    spark: SparkSession,
    directory: Directory,
    warehouse: Path,
    monkeypatch: pytest.MonkeyPatch,
    extras: dict[str, Any],
) -> None:
    found, used = [], []
    for small in (delta_rewrite.SMALL, NONE):
        monkeypatch.setattr(delta_rewrite, "SMALL", small)
        lake = warehouse / str(small)
        one = Directory(directory.path / str(small), directory.encoding)
        one.segment([(ONE, FIRST)])
        assert merge_into(spark, one, lake, **extras)["error"] is None
        one.segment([(ONE, SECOND)])
        table = merge_into(spark, one, lake, **extras)["tables"][0]
        rows = read_table(spark, lake, ONE).orderBy("id").collect()
        found.append((rows, [table[name] for name in ("inserted", "updated", "deleted", "problem")]))
        used.append(operations(spark, lake)[-1])
    assert used == ["WRITE", "MERGE"]
    assert found[0] == found[1]


def test_it_takes_a_fraction_of_the_jobs(
    spark: SparkSession, directory: Directory, warehouse: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    scheduler, jobs = spark.sparkContext._jsc.sc().dagScheduler(), []
    for lsn, small in ((10, NONE), (20, NONE), (30, delta_rewrite.SMALL)):
        monkeypatch.setattr(delta_rewrite, "SMALL", small)
        directory.segment([(ONE, [insert(lsn, lsn), update(lsn + 1, lsn, "changed")])])
        before = scheduler.numTotalJobs()
        assert merge_into(spark, directory, warehouse)["error"] is None
        jobs.append(scheduler.numTotalJobs() - before)
    assert jobs[2] < jobs[1] - 3


@pytest.mark.parametrize("lake", ["delta", pytest.param("iceberg", marks=pytest.mark.long)])
def test_a_later_merge_makes_java_search_its_jars_for_no_package(
    spark: SparkSession, directory: Directory, warehouse: Path, lake: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nor for a class whose package isn't named: PySpark's `jvm.functions`, with each column."""
    directory.segment([(ONE, FIRST)])
    merge_into(spark, directory, warehouse, format=lake)
    directory.segment([(ONE, SECOND)])
    ask, asked = JVMView.__getattr__, []

    def look_up(jvm: JVMView, name: str) -> Any:
        asked.append(name)
        return ask(jvm, name)

    monkeypatch.setattr(JVMView, "__getattr__", look_up)
    assert merge_into(spark, directory, warehouse, format=lake)["error"] is None
    # By this one PySpark converts errors, here of tables that are looked for.
    assert [name for name in asked if "." not in name and name != "py4j"] == []


def test_a_table_may_become_empty_and_fill_again(
    spark: SparkSession, directory: Directory, warehouse: Path
) -> None:
    for changes in (FIRST, [delete(20 + at, at) for at in (1, 2, 3, 4)], [delete(30, 1)], [insert(40, 5)]):
        directory.segment([(ONE, changes)])
        table = merge_into(spark, directory, warehouse)["tables"][0]
        assert table["problem"] is None
    assert [row["id"] for row in read_table(spark, warehouse, ONE).collect()] == [5]
    assert table["inserted"] == 1


def test_a_table_that_asks_more_of_a_commit_is_merged_into(
    spark: SparkSession, directory: Directory, warehouse: Path
) -> None:
    """Here, a change data feed."""
    directory.segment([(ONE, FIRST)])
    merge_into(spark, directory, warehouse)
    name = f"delta.`{table_path(warehouse, ONE)}`"
    spark.sql(f"ALTER TABLE {name} SET TBLPROPERTIES ('delta.enableChangeDataFeed' = 'true')")
    directory.segment([(ONE, SECOND)])
    assert merge_into(spark, directory, warehouse)["error"] is None
    assert operations(spark, warehouse)[-1] == "MERGE"


def test_what_another_program_writes_meanwhile_stays_and_is_told_of(
    spark: SparkSession, directory: Directory, warehouse: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    directory.segment([(ONE, FIRST)])
    merge_into(spark, directory, warehouse)
    commit = Rewriting.commit

    def late(self: Rewriting, *arguments: Any) -> int:
        spark.sql(f"INSERT INTO delta.`{table_path(warehouse, ONE)}` VALUES (100, 'theirs')")
        return commit(self, *arguments)

    directory.segment([(ONE, SECOND)])
    with monkeypatch.context() as patch:
        patch.setattr(Rewriting, "commit", late)
        refused = merge_into(spark, directory, warehouse)
    assert "wrote it at the same time" in refused["error"]["message"]
    again = merge_into(spark, directory, warehouse)
    assert "was changed by another program" in again["error"]["message"]
    assert {row["id"] for row in read_table(spark, warehouse, ONE).collect()} == {1, 2, 3, 4, 100}
