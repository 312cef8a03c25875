"""Segments and tables in HDFS, merged by executors on YARN, as docs/spark.md describes."""

from collections.abc import Iterator
from pathlib import Path

import pytest
from hadoop_cluster import HadoopCluster, hadoop_cluster
from merge_commands import MergeCommand
from merge_directories import FORMATS, Directory
from merge_histories import History, random_history
from merge_oracle import Key, Row, fold
from processes import wait_until
from pyspark.sql import DataFrame, SparkSession

from pgcdc_cli.changes.table import ReplicaIdentity
from pgcdc_cli.spark.pgcdc_merge.job import LAKES
from pgcdc_cli.spark.pgcdc_merge.lake import new_session

TABLE = "Käse 日本"
pytestmark = [pytest.mark.timeout(1800), pytest.mark.long]


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[HadoopCluster]:
    with hadoop_cluster(tmp_path_factory.mktemp("hadoop")) as cluster:
        yield cluster


@pytest.fixture
def history() -> History:
    return random_history(TABLE, ("a", "b"), ReplicaIdentity.DEFAULT, spaces=4)


def on_yarn(cluster: HadoopCluster, folder: Path, lake: str) -> MergeCommand:
    options = ("--master", "yarn", "--format", lake, "--mode", "both")
    return MergeCommand(
        f"hdfs:///{folder.name}/in",
        f"hdfs:///{folder.name}/wh",
        folder,
        options,
        cluster.extra,
        cluster.environment,
    )


def grow(cluster: HadoopCluster, directory: Directory, history: History) -> None:
    """Add a segment to the directory, and copy the directory to HDFS."""
    before = len(history.changes) if directory.lines else 0
    history.grow(10)
    directory.segment([(history.table, history.changes[before:])])
    cluster.upload(directory.path, f"/{directory.path.parent.name}/in")


def read(spark: SparkSession, cluster: HadoopCluster, folder: Path, lake: str, mode: str) -> DataFrame:
    found = LAKES[lake](f"{cluster.url}/{folder.name}/wh")
    return found.open(new_session(spark, found), found.location("public", TABLE, mode)).read()


def check_table(merged: DataFrame, history: History) -> None:
    texts = merged.selectExpr(*(f"CAST(`{name}` AS STRING)" for name in merged.columns))
    rows = [dict(zip(merged.columns, row, strict=True)) for row in texts.collect()]
    table: dict[Key, Row] = {tuple(row[name] for name in history.key): row for row in rows}
    assert (table, len(rows)) == (fold(history.changes, history.key), len(table))


def check_changelog(logged: DataFrame, history: History) -> None:
    """Check that each change is there once; Debezium has two events where a key changes."""
    positions = [tuple(row) for row in logged.select("_pgcdc_lsn", "_pgcdc_seq").collect()]
    assert sorted(positions) == sorted((change.commit_lsn, change.seq) for change in history.changes)


@pytest.mark.parametrize("lake", LAKES)
def test_every_format_is_merged_there(
    spark: SparkSession, cluster: HadoopCluster, tmp_path: Path, history: History, lake: str
) -> None:
    directory = Directory(tmp_path / "in", FORMATS["jsonl"])
    for encoding in ("jsonl", "debezium.zst", "arrow+zstd"):
        directory.encoding = FORMATS[encoding]
        grow(cluster, directory, history)
    assert on_yarn(cluster, tmp_path, lake).run()["segment"] == 3
    check_table(read(spark, cluster, tmp_path, lake, "merge"), history)


@pytest.mark.parametrize("lake", LAKES)
def test_a_driver_that_is_killed(
    spark: SparkSession, cluster: HadoopCluster, tmp_path: Path, history: History, lake: str
) -> None:
    """Whenever it is killed, the next run goes on from there."""
    directory, kills = Directory(tmp_path / "in", FORMATS["jsonl"]), 0
    warehouse, command = f"/{tmp_path.name}/wh", on_yarn(cluster, tmp_path, lake)
    for more in (2, 7, 12):
        grow(cluster, directory, history)
        wanted = cluster.count(warehouse) + more
        kills += command.run_and_kill(lambda: cluster.count(warehouse) >= wanted)  # noqa: B023 - at once
    assert kills >= 2
    assert command.run()["segment"] == 3
    check_table(read(spark, cluster, tmp_path, lake, "merge"), history)
    check_changelog(read(spark, cluster, tmp_path, lake, "changelog"), history)


@pytest.mark.parametrize("lake", LAKES)
def test_a_worker_that_is_killed(
    spark: SparkSession, cluster: HadoopCluster, tmp_path: Path, history: History, lake: str
) -> None:
    """YARN starts another: this run merges everything, or the next one if a step can't be repeated."""
    directory = Directory(tmp_path / "in", FORMATS["jsonl"])
    grow(cluster, directory, history)
    command = on_yarn(cluster, tmp_path, lake)
    with command.running() as run:
        wait_until(lambda: run.poll() is not None or cluster.count(f"/{tmp_path.name}/wh") >= 2, 600)
        assert cluster.kill_executor()
        status = run.wait(600)
    if status:
        command.run()
    check_table(read(spark, cluster, tmp_path, lake, "merge"), history)
    check_changelog(read(spark, cluster, tmp_path, lake, "changelog"), history)
