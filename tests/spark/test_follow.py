"""`spark-submit --follow`: one Spark that keeps running, and merges whenever segments are finished."""

import os
import signal
import subprocess
import threading
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

import pytest
from executables import executable
from merge_directories import Directory, merge_into, merged_rows
from merge_histories import TEXT, pg_type, table_schema
from merge_notes import COLUMNS, ONE, TWO, insert
from merge_oracle import Change, update
from processes import wait_until
from pyspark.sql import SparkSession
from test_spark_command import SUMMARY, command

from pgcdc_cli.spark.launch import FollowControl
from pgcdc_cli.spark.pgcdc_merge import job
from pgcdc_cli.spark.pgcdc_merge.control import locked
from pgcdc_cli.spark.pgcdc_merge.job import Kept, merge
from pgcdc_cli.spark.pgcdc_merge.main import Launcher, follow
from pgcdc_cli.spark.pgcdc_merge.options import MergeOptions
from pgcdc_cli.spark.warehouse import read_record

RARELY = 3600.0


@contextmanager
def following(
    spark: SparkSession, directory: Directory, warehouse: Path, interval: float
) -> Iterator[tuple[FollowControl, list[dict[str, Any]]]]:
    """Follow a directory; yield what controls the loop, and the summaries so far."""
    summaries = list[dict[str, Any]]()
    options = MergeOptions(str(directory.path), str(warehouse), follow=interval)
    with closing(FollowControl()) as control, closing(Launcher(control.path)) as launcher:
        arguments = (spark, options, launcher, summaries.append, lambda _: None)
        thread = threading.Thread(target=follow, args=arguments)
        thread.start()
        try:
            yield control, summaries
        finally:
            control.stop()
            thread.join(120)
        assert not thread.is_alive()


def test_segments_are_merged_as_they_come(spark: SparkSession, directory: Directory, warehouse: Path) -> None:
    """The loop waits for the first segment and for another merge; one table's error stops no other."""
    broken = table_schema("two", {**COLUMNS, "ID": pg_type(TEXT)}, ("id",), oid=TWO.oid)
    with following(spark, directory, warehouse, 0.1) as (_, summaries):
        directory.segment([(ONE, [insert(10, 1)]), (TWO, [insert(10, 1)])])
        wait_until(lambda: summaries)
        with locked(f"file:{warehouse}"):
            directory.segment([(ONE, [insert(20, 2)]), (broken, [Change("T", 20, 0)])])
        wait_until(lambda: len(summaries) > 1)
        assert {row.segment for row in read_record(str(warehouse)) or [] if row.table != "public.two"} == {2}
    assert [summary["segment"] for summary in summaries] == [1, 2]
    assert "differ in case only" in summaries[1]["error"]["message"]
    assert sorted(merged_rows(spark, warehouse, ONE)) == [("1",), ("2",)]
    assert sorted(merged_rows(spark, warehouse, TWO)) == [("1",)]


def test_it_looks_at_once_when_it_is_asked_to(
    spark: SparkSession, directory: Directory, warehouse: Path
) -> None:
    directory.segment([(ONE, [insert(10, 1)])])
    with following(spark, directory, warehouse, RARELY) as (control, summaries):
        wait_until(lambda: summaries)
        directory.segment([(ONE, [insert(20, 2)])])
        wait_until(lambda: control.look() or len(summaries) > 1, pause=1)
    assert summaries[-1]["segment"] == 2


def test_its_temporary_file_may_be_cleared_away(
    spark: SparkSession, directory: Directory, warehouse: Path
) -> None:
    """As systems do with old files: the loop goes on, looks when asked to, and ends."""
    directory.segment([(ONE, [insert(10, 1)])])
    with following(spark, directory, warehouse, RARELY) as (control, summaries):
        wait_until(lambda: summaries)
        Path(control.path).unlink()
        directory.segment([(ONE, [insert(20, 2)])])
        wait_until(lambda: control.look() or len(summaries) > 1, pause=1)
    assert summaries[-1]["segment"] == 2


def test_few_rows_and_a_small_table_take_few_jobs(
    spark: SparkSession, directory: Directory, warehouse: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With Spark's adaptive execution each stage is a job, planned by the result of the one before."""
    scheduler = spark.sparkContext._jsc.sc().dagScheduler()
    jobs = []
    for lsn, few in ((10, 0), (20, 0), (30, 10)):
        monkeypatch.setattr(job, "FEW_ROWS", few)
        directory.segment([(ONE, [insert(lsn, lsn)])])
        before = scheduler.numTotalJobs()
        assert merge_into(spark, directory, warehouse)["error"] is None
        jobs.append(scheduler.numTotalJobs() - before)
    assert jobs[2] < jobs[1]
    assert sorted(merged_rows(spark, warehouse, ONE)) == [("10",), ("20",), ("30",)]


@pytest.mark.parametrize("lake", ["delta", "iceberg"])
def test_merges_keep_no_rows_in_memory(
    spark: SparkSession, directory: Directory, warehouse: Path, lake: str
) -> None:
    """Neither a merge that follows rows from key to key, nor one that a missing value stops."""
    plans = spark._jsparkSession.sharedState().cacheManager()
    assert plans.isEmpty()

    def kept() -> set[int]:
        """Numbers of RDDs that are kept; Delta keeps states of tables, too."""
        found = spark.sparkContext._jsc.getPersistentRDDs().items()
        return {number for number, rdd in found if not str(rdd.name()).startswith("Delta Table State")}

    keys = [update(20 + id_, {"id": f"{id_}"}, id=f"{id_ + 1}", unsent="note") for id_ in range(1, 64)]
    lost = update(140, id="9", unsent="note")
    for changes in ([insert(10, 1)], keys, [lost]):
        directory.segment([(ONE, changes)])
        before = kept()
        merge_into(spark, directory, warehouse, format=lake)
        assert kept() <= before
        assert plans.isEmpty()
    assert merged_rows(spark, warehouse, ONE, lake) == {("64",): {"id": "64", "note": "new"}}


@pytest.mark.parametrize("lake", ["delta", "iceberg"])
def test_the_control_table_is_read_again_only_where_another_merge_wrote_it(
    spark: SparkSession, directory: Directory, warehouse: Path, monkeypatch: pytest.MonkeyPatch, lake: str
) -> None:
    """The next merge in the same Spark session knows what the one before wrote."""
    options, kept = MergeOptions(str(directory.path), str(warehouse), format=lake), Kept()
    directory.segment([(ONE, [insert(10, 1)])])
    assert merge(spark, options, kept=kept)["error"] is None
    with monkeypatch.context() as patch:
        patch.setattr("pgcdc_cli.spark.pgcdc_merge.control._rows", lambda _: pytest.fail("it was read"))
        directory.segment([(ONE, [insert(20, 2)])])
        assert merge(spark, options, kept=kept)["error"] is None
    directory.segment([(ONE, [insert(30, 3)])])
    assert merge_into(spark, directory, warehouse, format=lake)["error"] is None
    directory.segment([(TWO, [insert(40, 4)])])
    assert merge(spark, options, kept=kept)["error"] is None
    assert [row.segment for row in read_record(str(warehouse)) or []] == [4, 4, 4]
    assert sorted(merged_rows(spark, warehouse, ONE, lake)) == [("1",), ("2",), ("3",)]


@pytest.fixture
def spark_home(tmp_path: Path) -> Path:
    """A Spark that reports three merges, and runs until its launcher lets it go."""
    (tmp_path / "in").mkdir()
    said = tmp_path / "summary"
    text = str(SUMMARY).replace("'", '"').replace("None", "null")
    said.write_text(text + "\n" + text.replace('"segment": 2', '"segment": 3') + "\n" + text + "\n")
    wait = 'for last; do :; done; flock -s "$last" true'
    executable(
        tmp_path / "spark" / "bin" / "spark-submit",
        f"echo $* $JDK_JAVA_OPTIONS > {tmp_path}/trace; cat {said}; {wait}",
    )
    return tmp_path / "spark"


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_one_line_a_merge_until_a_signal_ends_it(spark_home: Path, number: signal.Signals) -> None:
    """The signal goes to the whole group, as from a terminal. Even a mistyped directory is waited for."""
    line = command(spark_home, "--follow", "--readers", "any")
    piped = subprocess.PIPE
    with subprocess.Popen(**line, stdout=piped, stderr=piped, text=True, start_new_session=True) as running:
        assert running.stdout is not None
        assert running.stderr is not None
        said = [running.stdout.readline(), running.stdout.readline()]
        os.killpg(running.pid, number)
        said += running.stdout.readlines()
        assert running.stderr.read() == (
            'pgcdc: there is no finished segment in "in" yet: waiting for the first one\n'
        )
    assert running.returncode == 0
    assert [text.partition(":")[0] for text in said] == [
        "merged 2 tables up to segment 2, LSN 0/1C",
        "merged 2 tables up to segment 3, LSN 0/1C",
        "merged 2 tables up to segment 2, LSN 0/1C",
    ]
    trace = (spark_home.parent / "trace").read_text()
    assert "--readers=any --follow=1.0" in trace
    assert " -XX:Tier4CompileThreshold" in trace


def test_quiet_says_nothing_of_merges(spark_home: Path) -> None:
    spark = spark_home / "bin" / "spark-submit"
    executable(spark, f"cat {spark_home.parent}/summary; echo stopped >&2; exit 1")
    ran = subprocess.run(**command(spark_home, "--follow", "-q"), capture_output=True, text=True, check=False)
    assert (ran.returncode, ran.stdout) == (14, "")


def test_what_makes_no_sense_for_one_that_stays(spark_home: Path) -> None:
    refused = subprocess.run(
        **command(spark_home, "--follow", "5s", "--if-new"), capture_output=True, text=True, check=False
    )
    assert refused.returncode == 2
    assert "--follow: leave out --if-new, --dry-run and --until" in refused.stderr
