"""Two merges at once, and queries during a merge: nothing is merged twice, no query sees half of a run."""

import contextlib
from pathlib import Path
from typing import Any

import pytest
from merge_directories import Directory, merge_into, merged_rows, read_table
from merge_notes import ONE, TWO, delete, insert
from merge_oracle import fold
from pyspark.sql import SparkSession

from pgcdc_cli.spark.pgcdc_merge import job
from pgcdc_cli.spark.pgcdc_merge.control import ControlTable
from pgcdc_cli.spark.pgcdc_merge.delta import DeltaTable
from pgcdc_cli.spark.pgcdc_merge.lake import CommitMark, is_conflict
from pgcdc_cli.spark.pgcdc_merge.merge_errors import MergeError
from pgcdc_cli.spark.warehouse import read_record
from pgcdc_cli.stream_status import as_of

FIRST = [insert(10, 1), insert(20, 2)]
SECOND = [delete(40, 1), insert(50, 3)]


def recorded_ids(spark: SparkSession, warehouse: Path) -> dict[str, list[int]]:
    """Query tables at their recorded versions, as the manual says."""
    queries = {row.table: as_of(row) for row in read_record(str(warehouse)) or () if row.table}
    return {
        table: sorted(row["id"] for row in spark.sql(query).collect())
        for table, query in queries.items()
        if query
    }


@pytest.mark.parametrize("dies_in", [pytest.param("merge_table", marks=pytest.mark.long), "finish"])
def test_recorded_versions_never_show_half_a_run(
    spark: SparkSession, directory: Directory, warehouse: Path, monkeypatch: pytest.MonkeyPatch, dies_in: str
) -> None:
    """What a run committed that died shows only once another run has ended."""
    directory.segment([(ONE, FIRST), (TWO, FIRST)])
    merge_into(spark, directory, warehouse)
    directory.segment([(ONE, SECOND), (TWO, SECOND)])
    merge_table = job.merge_table

    def dying(session: Any, path: str, plan: Any, *rest: Any) -> Any:
        if plan.work.table == "public.two":
            raise KeyboardInterrupt
        return merge_table(session, path, plan, *rest)

    def died(*_: Any) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr("pgcdc_cli.spark.pgcdc_merge.lake.AT_ONCE", 1)
        patch.setattr(
            job if dies_in == "merge_table" else ControlTable,
            dies_in,
            dying if dies_in == "merge_table" else died,
        )
        with pytest.raises(KeyboardInterrupt):
            merge_into(spark, directory, warehouse)
    assert set(merged_rows(spark, warehouse, ONE)) == {("2",), ("3",)}
    assert recorded_ids(spark, warehouse) == {"public.one": [1, 2], "public.two": [1, 2]}
    merge_into(spark, directory, warehouse)
    assert recorded_ids(spark, warehouse) == {"public.one": [2, 3], "public.two": [2, 3]}


@pytest.mark.parametrize(
    ("step", "mode"),
    [("merge_table", "merge"), pytest.param("append_changes", "changelog", marks=pytest.mark.long)],
)
def test_a_merge_that_is_overtaken_commits_nothing_twice(
    spark: SparkSession,
    directory: Directory,
    warehouse: Path,
    monkeypatch: pytest.MonkeyPatch,
    step: str,
    mode: str,
) -> None:
    """As on a file system without locks: another merge commits between the first's plan and its commit."""
    directory.segment([(ONE, FIRST)])
    merge_into(spark, directory, warehouse, mode=mode)
    directory.segment([(ONE, SECOND)])
    real, third = getattr(job, step), [insert(70, 1), delete(80, 2)]

    def overtaken(*arguments: Any) -> Any:
        monkeypatch.setattr(job, step, real)
        directory.segment([(ONE, third)])
        assert merge_into(spark, directory, warehouse, mode=mode)["error"] is None
        return real(*arguments)

    monkeypatch.setattr(job, "locked", lambda _: job.nullcontext())
    monkeypatch.setattr(job, step, overtaken)
    with contextlib.suppress(MergeError):
        merge_into(spark, directory, warehouse, mode=mode)
    assert merge_into(spark, directory, warehouse, mode=mode)["error"] is None
    everything = FIRST + SECOND + third
    if mode == "merge":
        assert merged_rows(spark, warehouse, ONE) == fold(everything, ("id",))
    else:
        log = read_table(spark, warehouse, ONE, mode=mode).collect()
        assert sorted(row["_pgcdc_lsn"] for row in log) == [change.commit_lsn for change in everything]


def test_a_commit_right_after_ours_is_not_taken_for_it(
    spark: SparkSession, directory: Directory, warehouse: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    directory.segment([(ONE, FIRST)])
    merge_into(spark, directory, warehouse, readers="modern")
    directory.segment([(ONE, SECOND)])
    real = DeltaTable._find_commit

    def late(table: DeltaTable, mark: CommitMark) -> Any:
        spark.sql(f"OPTIMIZE {table.name}")
        return real(table, mark)

    monkeypatch.setattr(DeltaTable, "_find_commit", late)
    (result,) = merge_into(spark, directory, warehouse)["tables"]
    assert (result["version"], result["inserted"], result["deleted"]) == (1, 1, 1)
    assert spark.sql(f"DESCRIBE HISTORY delta.`{result['path']}`").count() == 3


def test_another_merge_is_blamed_for_conflicts_only() -> None:
    conflicts = ["io.delta.exceptions.ConcurrentAppendException: ...", "[DELTA_CONCURRENT_WRITE] ..."]
    others = ["OutOfMemoryError\n\tat java.util.concurrent.ConcurrentHashMap.get", "ParseException"]
    assert [is_conflict(RuntimeError(text)) for text in conflicts + others] == [True, True, False, False]
