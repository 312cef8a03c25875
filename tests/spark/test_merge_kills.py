"""Exactly once under SIGKILL: whenever a merge is killed, tables and changelogs end as without the kill.

A run is killed at a chosen step: once its commits have reached a number, once the next commit's files exist,
or a random moment later. The step it was in is read from the warehouse afterwards. `--kills 1000` kills
twenty runs of each kind.
"""

import contextlib
import itertools
import json
import os
import random
import signal
import subprocess
import time
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import NamedTuple

import pytest
from kills import Hits
from merge_directories import FORMATS, Directory, merge_into, merged_rows, read_table
from merge_histories import History, random_history
from merge_oracle import fold
from processes import PGCDC
from pyspark.sql import SparkSession
from spark_cluster import QUICK

from pgcdc_cli.changes.table import ReplicaIdentity
from pgcdc_cli.spark.pgcdc_merge.control import ControlTable
from pgcdc_cli.spark.pgcdc_merge.delta import DeltaLake
from pgcdc_cli.spark.pgcdc_merge.iceberg import IcebergLake
from pgcdc_cli.spark.pgcdc_merge.lake import CommitMark, new_session
from pgcdc_cli.spark.pgcdc_merge.options import CHANGELOG, MERGE

MODES = {"merge": [MERGE], "changelog": [CHANGELOG], "both": [MERGE, CHANGELOG]}
LAKES = {"delta": DeltaLake, "iceberg": IcebergLake}
COMMITS = {"delta": "_delta_log/*.json", "iceberg": "metadata/v*.metadata.json"}

PLANNED, SOME, ALL = "planned, no table merged", "one table merged", "both tables merged, not recorded"
WRITING, RECORDED = "files written, not committed", "recorded, not in the record for others"
UNPLANNED, BETWEEN, DONE = "nothing planned", "one mode done", "all done"
"""The steps in which a run can be killed. The record is `_pgcdc.json`, a summary of the control table."""

WHOLE = 4
"""Commits of a range in one mode: its plan, two tables, and its result."""

TRIES = 3
"""Attempts to hit a step: two tables can be committed at almost the same time."""


class Aim(NamedTuple):
    """Kill once a mode has this many commits; for `WRITING`, once the next one has files."""

    step: str
    commits: int
    mode: int = 0


AIMS = [Aim(ALL, 3), Aim(SOME, 2), Aim(WRITING, 1), Aim(RECORDED, 4), Aim(PLANNED, 1)]
"""The steps to kill a run in, the most delicate first."""


def aims(modes: int) -> Iterator[Aim]:
    """Repeat all steps of a run for ever, in each mode."""
    every = [aim._replace(mode=mode) for aim in AIMS for mode in reversed(range(modes))]
    return itertools.cycle(every)


DEFAULT = [("delta", "both", "jsonl"), ("iceberg", "merge", "debezium")]
KINDS = [
    pytest.param(*kind, marks=[] if kind in DEFAULT else pytest.mark.long)
    for kind in itertools.product(LAKES, MODES, ("jsonl", "debezium"))
]


@pytest.mark.timeout(7200)
@pytest.mark.parametrize(("lake", "mode", "encoding"), KINDS)
def test_killed_at_any_moment_nothing_is_lost_or_twice(  # noqa: PLR0917 - fixtures and parameters
    spark: SparkSession,
    tmp_path: Path,
    request: pytest.FixtureRequest,
    record_property: Callable[[str, object], None],
    lake: str,
    mode: str,
    encoding: str,
) -> None:
    kills, hits = max(request.config.getoption("--kills") // 50, 1), Hits()
    pick = random.Random(f"{lake} {mode} {encoding} {kills}")
    source = Source(tmp_path / "in", encoding)
    warehouse = Warehouse(spark, tmp_path / "wh", lake, mode)
    source.add_segment()
    warehouse.finish(source)
    for aim in itertools.islice(aims(len(MODES[mode])), kills):
        hits.aimed[aim.step] += 1
        for _ in range(TRIES):
            source.add_segment()
            warehouse.run_and_kill(source, aim, pick)
            found = warehouse.found(source)
            hits.update(found)
            if pick.random() < 0.3:
                warehouse.finish(source)
            if aim.step in found:
                break
    record_property("hits", dict(hits))
    print(hits)
    source.add_segment()
    warehouse.finish(source)
    warehouse.check(source)
    assert hits.enough(), hits


class Source:
    """A stream's segments of two tables: the second has unchanged TOAST values, which the merge looks up.

    So the second takes longer to merge; and merging changes into its rows twice is an error.
    """

    def __init__(self, path: Path, encoding: str) -> None:
        self.directory = Directory(path, FORMATS[encoding])
        self.tables = [
            random_history(name, ("a", "b"), ReplicaIdentity.DEFAULT, spaces=1, toasts=toasts)
            for name, toasts in (("one", False), ("two", True))
        ]

    def add_segment(self) -> None:
        """Add a segment with some more transactions of both tables."""
        some = []
        for history in self.tables:
            before = len(history.changes) if self.directory.lines else 0
            history.grow(10)
            some.append((history.table, history.changes[before:]))
        self.directory.segment(some)

    @property
    def last(self) -> int:
        return len(self.directory.lines)


class Warehouse:
    """A warehouse, written by runs that are killed and by runs that aren't."""

    def __init__(self, spark: SparkSession, path: Path, lake: str, mode: str) -> None:
        self._spark, self._path, self._format, self._mode = spark, path, lake, mode
        self._modes = MODES[mode]
        self._began = 0
        self._unfinished = (0, 0)

    def finish(self, source: Source) -> None:
        summary = merge_into(self._spark, source.directory, self._path, format=self._format, mode=self._mode)
        assert summary["error"] is None
        assert summary["segment"] == source.last
        self._unfinished = (0, 0)

    def check(self, source: Source) -> None:
        """Compare tables with the oracle's, and changelogs with those of a run that was not killed."""
        assert self.found(source) == {DONE}
        if MERGE in self._modes:
            for history in source.tables:
                found = merged_rows(self._spark, self._path, history.table, self._format)
                assert found == fold(history.changes, history.key)
        if CHANGELOG in self._modes:
            whole = Warehouse(self._spark, self._path.with_name("whole"), self._format, CHANGELOG)
            whole.finish(source)
            for history in source.tables:
                assert self._logged(history) == whole._logged(history)

    def _logged(self, history: History) -> Counter[str]:
        """Count the equal rows of a changelog, without the column for their segment."""
        frame = read_table(self._spark, self._path, history.table, self._format, CHANGELOG)
        return Counter(map(str, frame.drop("_pgcdc_segment").collect()))

    def run_and_kill(self, source: Source, aim: Aim, pick: random.Random) -> None:
        """Start a merge, wait until it reaches the aim, and kill all of it, its Java or its Python."""
        line = [*PGCDC, "spark-submit", "--master", "local[2]"]
        line += ["--format", self._format, "--mode", self._mode]
        line += ["--input", str(source.directory.path), "--warehouse", str(self._path)]
        line += ["--", "--conf", f"spark.driver.extraJavaOptions={QUICK}"]
        wanted, said = self._commits_at(aim), self._path.with_name("said")
        self._began = time.time_ns()
        with said.open("wb") as output:
            process = subprocess.Popen(line, start_new_session=True, stdout=output, stderr=output)
        while process.poll() is None and not self._is_at(aim, wanted):
            time.sleep(0.002)
        if aim.step in {PLANNED, WRITING}:
            time.sleep(pick.choice([0, pick.random() * 0.2]))
        assert process.poll() is None, f"it had ended before it was killed: {said.read_text()}"
        os.killpg(process.pid, signal.SIGSTOP)
        assert kill(process.pid, pick.choice(["all", "java", "job"])), "nothing was left to kill"
        os.killpg(process.pid, signal.SIGCONT)
        process.wait(timeout=120)
        kill(process.pid, "all")
        while any(belongs(found, process.pid, "all") for found in processes()):
            time.sleep(0.01)  # the last of them to die holds the warehouse's lock until then

    def _commits_at(self, aim: Aim) -> int:
        """Count the commits at the aim: an unfinished range is finished before the new one."""
        mode, left = self._unfinished
        return len(self._commits()) + aim.mode * WHOLE + aim.commits + (left if mode <= aim.mode else 0)

    def _commits(self) -> list[Path]:
        names = COMMITS[self._format]
        return [*self._path.glob(f"*/{names}"), *self._path.glob(f"*/*/{names}")]

    def _is_at(self, aim: Aim, wanted: int) -> bool:
        return len(self._commits()) >= wanted and (aim.step != WRITING or self._is_writing())

    def _is_writing(self) -> bool:
        """Tell whether the run wrote a table's data files after the table's last commit."""
        for table in self._path.glob("public/*"):
            commits = [path.stat().st_mtime_ns for path in table.glob(COMMITS[self._format])]
            data = [path for path in table.rglob("*.parquet") if path.parent.name != "_delta_log"]
            if any(path.stat().st_mtime_ns > max([self._began, *commits]) for path in data):
                return True
        return False

    def found(self, source: Source) -> set[str]:
        """Find from the warehouse in which steps a run was killed."""
        warehouse = f"file:{self._path}"
        lake = LAKES[self._format](warehouse)
        session = new_session(self._spark, lake)
        control = ControlTable(session, lake, warehouse)
        rows = [control.progress(mode).all for mode in self._modes]
        writing = {WRITING} if self._is_writing() else set()
        for number, row in enumerate(rows):
            if row is not None and row.planned_segment is not None:
                segments = merged_segments(session, lake, source, self._modes[number])
                merged = sum(segment >= row.planned_segment for segment in segments)
                self._unfinished = number, WHOLE - merged
                return writing | {(PLANNED, SOME, ALL)[merged]}
        self._unfinished = (0, 0)
        if self._record() != [row.to_json() for row in control.rows.values()]:
            return {RECORDED}
        behind = [row is None or row.segment < source.last for row in rows]
        return {UNPLANNED if all(behind) else BETWEEN if any(behind) else DONE}

    def _record(self) -> list[object]:
        record = self._path / "_pgcdc.json"
        return json.loads(record.read_bytes())["rows"] if record.exists() else []


def merged_segments(
    session: SparkSession, lake: DeltaLake | IcebergLake, source: Source, mode: str
) -> list[int]:
    """Read from its commits the last segment merged into each table."""
    found = []
    for table in (history.table for history in source.tables):
        mark = CommitMark(source.directory.stream_id, table.display, mode, 0, "")
        target = lake.open(session, lake.location(table.schema, table.name, mode))
        found.append(target.merged_segment(mark.app_id))
    return found


def processes() -> list[Path]:
    return [path for path in Path("/proc").iterdir() if path.name.isdecimal()]


def kill(group: int, victim: str) -> int:
    """Kill a process group, or its Java or job's Python only; return the number of processes."""
    found = [process for process in processes() if belongs(process, group, victim)]
    for process in found:
        with contextlib.suppress(ProcessLookupError):
            os.kill(int(process.name), signal.SIGKILL)
    return len(found)


def belongs(process: Path, group: int, victim: str) -> bool:
    """Tell whether a process is such a victim of a group, and not dead yet."""
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
