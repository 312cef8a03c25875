"""The run: from the directory's manifest to the control table."""

import datetime as dt
import re
import time
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass, replace
from typing import Any

from py4j.protocol import Py4JJavaError  # type: ignore[import-untyped]  # it has no annotations
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession

from .control import ALL, Control, ControlRow, locked
from .delta import MISSING_VALUE, DeltaTable, Mark
from .errors import MergeError
from .files import Files
from .plan import TableFiles, check_keyed, check_source, check_target, check_versions, table_files
from .segments import FORMAT_VERSION, Segment, read_manifest, read_schemas, verify
from .table import Merged, merge_table, missing_value

EXTENSIONS = {
    "spark.sql.extensions": "io.delta.sql.DeltaSparkSessionExtension",
    "spark.sql.catalog.spark_catalog": "org.apache.spark.sql.delta.catalog.DeltaCatalog",
}
"""What Delta needs from the beginning of the first session."""

SETTINGS = {
    "spark.sql.session.timeZone": "UTC",
    "spark.sql.caseSensitive": "true",
    "spark.sql.ansi.enabled": "true",
    "spark.sql.json.enableExactStringParsing": "true",
    "spark.sql.variant.allowDuplicateKeys": "true",
    "spark.sql.parquet.datetimeRebaseModeInWrite": "CORRECTED",
    # One partition reads the log of a table of any size that a merge of this kind meets; fifty cost seconds.
    "spark.databricks.delta.snapshotPartitions": "1",
}
"""What every session has; Delta reads a table's log in whichever is active."""

AT_ONCE = 4
"""Tables merged at the same time."""

_MISSING = re.compile(rf"{MISSING_VALUE} (\d+) \((.*?)\) {MISSING_VALUE}", re.DOTALL)


@dataclass(frozen=True)
class Options:
    """See `--help` of merge.py."""

    input: str
    warehouse: str
    skip_keyless: bool = False


@dataclass(frozen=True)
class Problem:
    """Why a table was left where it was."""

    message: str
    hint: str
    keyless: bool = False


def merge(spark: SparkSession, options: Options) -> dict[str, Any]:
    """Merge every finished segment that isn't merged; returns the summary.

    Raises a MergeError where nothing could be merged at all.
    """
    return _Run(spark, options).run()


class _Run:
    def __init__(self, spark: SparkSession, options: Options) -> None:
        self._spark = spark
        self._options = options
        self._files = Files(spark)
        self._input = self._files.qualify(options.input)
        self._warehouse = self._files.qualify(options.warehouse)
        self._started = time.monotonic()
        self._changed: dict[str, ControlRow] = {}
        self._problems: dict[str, Problem] = {}

    def run(self) -> dict[str, Any]:
        segments = read_manifest(self._files, self._input)
        if not segments:
            return self._summary(None, {})
        with locked(self._warehouse):
            control = Control(_session(self._spark), self._warehouse)
            stream_id = check_source(segments, control)
            for last in _ranges(segments, control):
                self._merge_up_to(last, segments, control, stream_id)
            return self._summary(control.all, control.rows)

    def _merge_up_to(
        self, last: Segment, segments: Sequence[Segment], control: Control, stream_id: str
    ) -> None:
        """Merge the tables that have files up to a segment, each from its own mark."""
        wanted = [segment for segment in segments if segment.number <= last.number]
        schemas = {file.schema for segment in wanted for file in segment.files}
        versions = read_schemas(self._files, self._input, schemas)
        works = table_files(wanted, versions, control, self._warehouse)
        ready = [work for work in works if self._is_ready(work)]
        if not ready and control.all is not None and control.all.segment == last.number:
            return
        verify(self._files, self._input, [file for work in ready for file in work.files])
        control.plan(stream_id, last.number)
        mark = Mark(stream_id, "", last.number, last.end_lsn)
        with ThreadPoolExecutor(AT_ONCE) as pool:
            found = list(pool.map(lambda work: self._merge_one(work, replace(mark, table=work.table)), ready))
        merged = {row.table: row for row in found if row is not None}
        self._changed |= merged
        behind = {work.table: self._row_of_problem(work, segments[0], stream_id) for work in works}
        caught_up = {
            table: replace(row, segment=last.number, lsn=last.end_lsn) for table, row in control.rows.items()
        }
        everything = ControlRow(
            stream_id, ALL, None, last.number, last.number, last.end_lsn, merged_at=_now()
        )
        control.finish({**caught_up, **behind, **merged, ALL: everything})

    def _row_of_problem(self, work: TableFiles, first: Segment, stream_id: str) -> ControlRow:
        """Keep a table's place, and say why it stays there."""
        row = work.row or ControlRow(stream_id, work.table, work.path, segment=first.number - 1)
        problem = self._problems.get(work.table)
        return replace(row, problem=None if problem is None else problem.message)

    def _is_ready(self, work: TableFiles) -> bool:
        """Note a problem that shows before any file is read."""
        try:
            check_keyed(work)
        except MergeError as error:
            self._problems[work.table] = Problem(error.message, error.hint, keyless=True)
            return False
        return True

    def _merge_one(self, work: TableFiles, mark: Mark) -> ControlRow | None:
        """Merge a table and say so; None, and a problem, if it could not be."""
        try:
            return self._merged(work, mark)
        except MergeError as error:
            self._problems[work.table] = Problem(error.message, error.hint)
        except (PySparkException, Py4JJavaError) as error:
            self._problems[work.table] = _explain(work, error)
        return None

    def _merged(self, work: TableFiles, mark: Mark) -> ControlRow:
        check_versions(work)
        session = _session(self._spark)
        target = DeltaTable(session, work.path)
        check_target(work, target)
        done = target.merged_segment(mark.app_id)
        waiting = [file for file in work.files if file.segment > done]
        row = ControlRow(mark.stream_id, mark.table, work.path, None, mark.segment, mark.lsn, target.version)
        if not waiting:
            # An earlier run came this far, but not to the control table.
            return replace(row, merged_at=_now())
        result: Merged = merge_table(session, self._input, replace(work, files=waiting), target, mark)
        counts = asdict(result.commit)
        return replace(row, **counts, unfit=result.unfit, merged_at=_now())

    def _summary(self, everything: ControlRow | None, rows: Mapping[str, ControlRow]) -> dict[str, Any]:
        tables = [self._table_summary(row) for table, row in sorted(rows.items()) if table != ALL]
        failed = [problem for problem in self._problems.values() if not self._is_skipped(problem)]
        warned = self._problems.values() if len(failed) != 1 else set(self._problems.values()) - set(failed)
        return {
            "format_version": FORMAT_VERSION,
            "segment": 0 if everything is None else everything.segment,
            "lsn": "0/0" if everything is None else everything.lsn,
            "tables": tables,
            "warnings": [f"{problem.message}; {problem.hint}" for problem in warned],
            "error": _error(failed),
            "seconds": round(time.monotonic() - self._started, 3),
        }

    def _is_skipped(self, problem: Problem) -> bool:
        return problem.keyless and self._options.skip_keyless

    def _table_summary(self, row: ControlRow) -> dict[str, Any]:
        done = self._changed.get(row.table)
        problem = self._problems.get(row.table)
        return {
            "table": row.table,
            "path": row.path,
            "segment": row.segment,
            "lsn": row.lsn,
            "version": row.version,
            "inserted": done.inserted if done else 0,
            "updated": done.updated if done else 0,
            "deleted": done.deleted if done else 0,
            "unfit": done.unfit if done else 0,
            "problem": None if problem is None else problem.message,
            "hint": None if problem is None else problem.hint,
        }


def _error(failed: Sequence[Problem]) -> dict[str, str] | None:
    if not failed:
        return None
    if len(failed) == 1:
        return {"message": failed[0].message, "hint": failed[0].hint}
    return {
        "message": f"could not merge {len(failed)} tables: the warnings say why",
        "hint": "all other tables are merged; these wait where they were for another run",
    }


def _ranges(segments: Sequence[Segment], control: Control) -> Iterator[Segment]:
    """Yield where the ranges to merge end: an unfinished run's first, unchanged, then the newest."""
    newest, everything = segments[-1], control.all
    if everything is None:
        yield newest
        return
    planned = everything.planned_segment or 0
    yield from (s for s in segments if everything.segment < s.number == planned < newest.number)
    if newest.number >= everything.segment:
        yield newest


def _session(spark: SparkSession) -> SparkSession:
    """A session whose settings and views are its own, so that tables can be merged at the same time."""
    session = spark.newSession()
    for name, value in SETTINGS.items():
        session.conf.set(name, value)
    return session


def _now() -> dt.datetime:
    return dt.datetime.now(dt.UTC)


def _explain(work: TableFiles, error: Exception) -> Problem:
    text = str(error)
    missing = _MISSING.search(text)
    if missing is not None:
        told = missing_value(work.version, int(missing[1]), missing[2])
        return Problem(told.message, told.hint)
    if "Concurrent" in text:
        return Problem(
            f'could not merge "{work.table}": another merge wrote it at the same time', "wait for it to end"
        )
    first = next((line for line in text.splitlines() if line.strip()), type(error).__name__)
    return Problem(
        f'could not merge "{work.table}": {first.strip()[:300]}', "Spark's output says more: add --verbose"
    )
