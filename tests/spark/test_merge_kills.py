"""Exactly once under SIGKILL: whatever is killed when, tables and changelogs are as if nothing had happened.

Kills are aimed at commits: a run is killed just after the n-th file of a table's log has appeared, so that
every step of a run is met, or a moment later at random. `--kills 1000` kills twenty runs of each format.
"""

import os
import random
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from merge_directories import FORMATS, Directory, merge_into, merged_rows, read_table
from merge_histories import INT4, TEXT, pg_type, table_schema
from merge_oracle import Change, fold
from pyspark.sql import SparkSession
from spark_cluster import QUICK

COMMITS = {"delta": "**/_delta_log/*.json", "iceberg": "**/metadata/*.metadata.json"}
PER_RUN = 8
"""Two tables, twice (merge and changelog), and the control table before and after each mode."""


ONE, TWO = (
    table_schema(name, {"id": pg_type(INT4), "note": pg_type(TEXT)}, ("id",)) for name in ("one", "two")
)


def changes(number: int, pick: random.Random) -> list[Change]:
    """Changes of one segment: new rows, and older ones updated or deleted."""
    first = number * 10
    row = {"id": str(pick.randrange(first + 1)), "note": f"changed in {number}"}
    made = [Change("I", first + n + 1, 0, {"id": str(first + n), "note": "new"}) for n in range(8)]
    return [
        *made,
        Change("U", first + 9, 0, row),
        Change("D", first + 10, 0, old={"id": str(first + pick.randrange(8))}),
    ]


@pytest.mark.timeout(3600)
@pytest.mark.parametrize("lake", ["delta", "iceberg"])
def test_killed_at_any_moment_nothing_is_lost_or_twice(
    spark: SparkSession, tmp_path: Path, request: pytest.FixtureRequest, lake: str
) -> None:
    kills = max(request.config.getoption("--kills") // 50, 1)
    pick = random.Random(f"{lake} {kills}")
    directory, warehouse = Directory(tmp_path / "in", FORMATS["jsonl"]), tmp_path / "wh"
    history: dict[str, list[Change]] = {ONE.name: [], TWO.name: []}
    for number in range(kills + 1):
        some = [(table, changes(number, pick)) for table in (ONE, TWO)]
        for table, made in some:
            history[table.name] += made
        directory.segment(some)
        if number < kills:
            run_and_kill(directory.path, warehouse, lake, pick)
        if number == kills or pick.random() < 0.3:
            finish(spark, directory, warehouse, lake)
    finish(spark, directory, warehouse, lake)
    for table in (ONE, TWO):
        made = history[table.name]
        assert merged_rows(spark, warehouse, table, lake) == fold(made, ("id",))
        logged = read_table(spark, warehouse, table, lake, "changelog")
        places = [(row["_pgcdc_op"], row["_pgcdc_lsn"], row["_pgcdc_seq"]) for row in logged.collect()]
        assert sorted(places) == sorted((c.op, c.commit_lsn, c.seq) for c in made)


def finish(spark: SparkSession, directory: Directory, warehouse: Path, lake: str) -> None:
    summary = merge_into(spark, directory, warehouse, format=lake, mode="both")
    assert summary["error"] is None
    assert summary["segment"] == len(directory.lines)


def run_and_kill(directory: Path, warehouse: Path, lake: str, pick: random.Random) -> None:
    """Start a merge, wait for one of its commits, and kill all of it, its Java or its Python."""
    line = [sys.executable, "-m", "pgcdc_cli", "spark-submit", "--master", "local[2]", "--format", lake]
    line += ["--input", str(directory), "--warehouse", str(warehouse), "--mode", "both"]
    line += ["--", "--conf", f"spark.driver.extraJavaOptions={QUICK}"]
    target, victim = (
        len(commits(warehouse, lake)) + pick.randrange(PER_RUN + 1),
        pick.choice(["all", "java", "job"]),
    )
    with (directory.parent / "said").open("ab") as said:
        process = subprocess.Popen(line, start_new_session=True, stdout=said, stderr=said)
    while process.poll() is None and len(commits(warehouse, lake)) < target:
        time.sleep(0.002)
    time.sleep(pick.choice([0, pick.random() * 0.2]))
    kill(process.pid, victim)
    process.wait(timeout=120)
    kill(process.pid, "all")
    while any(belongs(found, process.pid, "all") for found in processes()):
        time.sleep(0.01)  # the last of them to die holds the warehouse's lock until then


def commits(warehouse: Path, lake: str) -> list[Path]:
    return [path for path in warehouse.glob(COMMITS[lake]) if not path.name.startswith(".")]


def processes() -> list[Path]:
    return [path for path in Path("/proc").iterdir() if path.name.isdecimal()]


def kill(group: int, victim: str) -> None:
    """Kill processes of a group: all, or those of Java or of the job's Python."""
    if victim != "all":
        for process in processes():
            if belongs(process, group, victim):
                os.kill(int(process.name), signal.SIGKILL)
        return
    try:
        os.killpg(group, signal.SIGKILL)
    except ProcessLookupError:
        return


def belongs(process: Path, group: int, victim: str) -> bool:
    """Say whether a process that isn't dead yet is such a one."""
    try:
        state, _, its_group = (process / "stat").read_text().rpartition(")")[2].split()[:3]
        line = (process / "cmdline").read_bytes()
    except OSError:
        return False
    kinds = {
        "all": True,
        "java": b"SparkSubmit" in line,
        "job": b"merge.py" in line and b"SparkSubmit" not in line,
    }
    return int(its_group) == group and state != "Z" and kinds[victim]
