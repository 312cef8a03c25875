"""The run: from the directory's manifest to the control table."""

import datetime as dt
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import nullcontext
from dataclasses import asdict, dataclass, replace
from typing import Any

from py4j.protocol import Py4JJavaError  # type: ignore[import-untyped]  # it has no annotations
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession

from .changelog import append_changes
from .control import ALL, Control, ControlRow, Key, locked
from .errors import MergeError
from .extras import check_extras, check_names
from .files import Files
from .formats import open_lake
from .lake import CHANGELOG, MERGE, LakeTable, Mark, is_conflict
from .options import Options, parse_lsn
from .plan import TableFiles, check_followed, check_own, check_source, check_versions, planned, table_files
from .raised import stopped_by
from .reasons import hint, reason
from .segments import Segment, read_manifest, read_schemas, verify
from .sessions import AT_ONCE, new_session
from .summary import Problem, Report, Summary
from .table import Merged, Target, merge_table
from .upkeep import Upkeep, maintain


@dataclass(frozen=True)
class Task:
    """A table's files, and what is made of them; `keyless` if it is a changelog for want of a key."""

    work: TableFiles
    mode: str
    keyless: bool = False

    @property
    def key(self) -> Key:
        return self.work.table, self.mode


def merge(spark: SparkSession, options: Options, report: Report = lambda _: None) -> dict[str, Any]:
    """Merge every finished segment that isn't merged; returns the summary.

    Raises a MergeError where nothing could be merged at all.
    """
    try:
        return _Run(spark, options, report).run()
    except (PySparkException, Py4JJavaError) as error:
        why = reason(error)
        told = f'could not merge "{options.input}" into "{options.warehouse}": {why}'
        raise MergeError(told, hint(why)) from error


class _Run:
    def __init__(self, spark: SparkSession, options: Options, report: Report) -> None:
        self._spark = spark
        self._options = options
        self._files = Files(spark)
        self._input = self._files.qualify(options.input)
        self._warehouse = self._files.qualify(options.warehouse)
        self._lake = open_lake(options.format, self._files, self._warehouse, options.catalog)
        self._summary = Summary(options, time.monotonic(), report)

    def run(self) -> dict[str, Any]:
        segments = read_manifest(self._files, self._input)
        if not segments:
            return self._summary.content({})
        with nullcontext() if self._options.dry_run else locked(self._warehouse):
            control = Control(new_session(self._spark, self._lake), self._lake, self._warehouse)
            for mode in self._options.modes:
                stream_id = check_source(segments, control.progress(mode))
                for last in _ranges(segments, control.progress(mode).all, self._options.until):
                    wanted = [segment for segment in segments if segment.number <= last.number]
                    self._merge_range(wanted, control, stream_id, mode)
            if not self._options.dry_run:
                control.keep_record()
                maintain(Upkeep(self._spark, self._lake, self._options), control, self._summary)
            return self._summary.content(control.rows)

    def _merge_range(self, segments: Sequence[Segment], control: Control, stream_id: str, mode: str) -> None:
        """Merge the tables that have files in segments, each from its own mark."""
        first, last = segments[0], segments[-1]
        tasks = self._tasks(segments, control, mode)
        ready = [task for task in tasks if self._is_ready(task, first)]
        everything = control.progress(mode).all
        if not ready and everything is not None and everything.segment >= last.number:
            return
        needed = [file for task in ready for file in (*task.work.files, *task.work.losses)]
        verify(self._files, self._input, list(dict.fromkeys(needed)))
        mark = Mark(stream_id, "", mode, last.number, last.end_lsn)
        if self._options.dry_run:
            self._rehearse(ready, mark)
            return
        control.plan(stream_id, mode, last.number)
        self._summary.begin(len(ready))
        with ThreadPoolExecutor(AT_ONCE) as pool:
            found = list(pool.map(lambda task: self._merge_one(task, mark), ready))
        merged = {row.key: row for row in found if row is not None}
        self._summary.changed |= merged
        waiting = {task.key: self._row_of_problem(task, first, stream_id) for task in tasks}
        moved = {
            key: row.caught_up(last.number, last.end_lsn)
            for key, row in control.rows.items()
            if row.mode == mode or (row.keyless and mode == MERGE)
        }
        done = everything or ControlRow(stream_id, ALL, mode)
        done = replace(done.caught_up(last.number, last.end_lsn), planned_segment=None, merged_at=_now())
        control.finish({**moved, **waiting, **merged, done.key: done})

    def _tasks(self, segments: Sequence[Segment], control: Control, mode: str) -> list[Task]:
        """List the tables that have something to merge, the unselected ones too."""
        schemas = {file.schema for segment in segments for file in segment.files}
        versions = read_schemas(self._files, self._input, schemas, self._options.choices)

        def works(mode: str) -> list[TableFiles]:
            def place(schema: str, name: str) -> str:
                return self._lake.place(schema, name, mode)

            return table_files(segments, versions, control.progress(mode), place)

        found = [Task(work, mode) for work in works(mode)]
        keyless = {task.work.table for task in found if mode == MERGE and _never_had_a_key(task.work)}
        for table in filter(self._options.selects, sorted(keyless)):
            self._summary.warn_of_keyless(table)
        found = [task for task in found if task.work.table not in keyless]
        if CHANGELOG in self._options.modes:
            return found
        logged = [Task(work, CHANGELOG, keyless=True) for work in works(CHANGELOG) if work.table in keyless]
        return found + logged

    def _is_ready(self, task: Task, first: Segment) -> bool:
        """Note a problem that shows before any file is read."""
        if not self._options.selects(task.work.table):
            return False
        try:
            check_followed(task.work, first)
            if task.mode == MERGE:
                check_keyed(task.work)
        except MergeError as error:
            self._summary.problems[task.key] = Problem(error.message, error.hint)
            return False
        return True

    def _rehearse(self, tasks: Sequence[Task], mark: Mark) -> None:
        """Check what can be checked without writing, and note what would be done."""
        for task in tasks:
            try:
                waiting, _ = self._opened(task, new_session(self._spark, self._lake), mark)
            except MergeError as error:
                self._summary.problems[task.key] = Problem(error.message, error.hint)
            else:
                self._summary.plan(task.key, task.work.path, mark.segment, waiting)

    def _row_of_problem(self, task: Task, first: Segment, stream_id: str) -> ControlRow:
        """Keep a table's place, and say why it stays there."""
        work, problem = task.work, self._summary.problems.get(task.key)
        new = ControlRow(stream_id, work.table, task.mode, work.path, segment=first.number - 1)
        message = None if problem is None else problem.message
        return replace(work.row or new, keyless=task.keyless, problem=message)

    def _merge_one(self, task: Task, mark: Mark) -> ControlRow | None:
        """Merge a table and say so; None, and a problem, if it could not be."""
        row = None
        try:
            row = self._merged(task, replace(mark, table=task.work.table, mode=task.mode))
        except MergeError as error:
            self._summary.problems[task.key] = Problem(error.message, error.hint)
        except (PySparkException, Py4JJavaError) as error:
            self._summary.problems[task.key] = _explain(task.work, error)
        problem = self._summary.problems.get(task.key)
        self._summary.done(task.key, row, problem)
        return row

    def _merged(self, task: Task, mark: Mark) -> ControlRow:
        session = new_session(self._spark, self._lake)
        waiting, target = self._opened(task, session, mark)
        row = ControlRow(
            mark.stream_id,
            mark.table,
            mark.mode,
            task.work.path,
            None,
            mark.segment,
            mark.lsn,
            target.version,
        )
        row = replace(row, keyless=task.keyless)
        # Without waiting files, an earlier run came this far, but not to the control table.
        if waiting.files:
            result = self._written(task, session, waiting, target, mark)
            row = replace(row, **asdict(result.commit), unfit=result.unfit)
            self._summary.missing[task.key] = result.missing
        version = task.work.version
        self._lake.publish(session, version.schema, version.name, task.mode)
        return replace(row, merged_at=_now())

    def _written(
        self, task: Task, session: SparkSession, work: TableFiles, table: LakeTable, mark: Mark
    ) -> Merged:
        if task.mode == CHANGELOG:
            return append_changes(session, self._input, work, table, mark)
        return merge_table(session, self._input, work, Target(table, self._options.extras, mark))

    def _opened(self, task: Task, session: SparkSession, mark: Mark) -> tuple[TableFiles, LakeTable]:
        """Open the lake table and see that the changes fit it; returns the files that it doesn't have yet."""
        work, extras = task.work, self._options.extras
        check_versions(work)
        if task.mode == CHANGELOG or extras.columns:
            check_names(work.table, work.version)
        target = self._lake.open(session, work.path)
        work = planned(work, target)
        self._summary.warn_of_new_columns(work)
        if task.mode == MERGE:
            check_extras(work.table, target, extras)
        done = target.merged_segment(replace(mark, table=work.table, mode=task.mode).app_id)
        check_own(work, target, done)
        return replace(work, files=[file for file in work.files if file.segment > done]), target


def _never_had_a_key(work: TableFiles) -> bool:
    return work.version.key is None and (work.row is None or work.row.version is None)


def check_keyed(work: TableFiles) -> None:
    """Raise a MergeError for a table that lost its key."""
    if work.version.key is None:
        raise MergeError(
            f'could not merge "{work.table}": it has no key any more, see "{work.version.path}"',
            f"ALTER TABLE {work.table} ADD PRIMARY KEY (...), or keep it as a changelog: --mode changelog",
        )


def _ranges(segments: Sequence[Segment], done: ControlRow | None, until: int | None) -> Iterator[Segment]:
    """Yield where the ranges to merge end: an unfinished run's first, unchanged, then the newest wanted."""
    wanted = [segment for segment in segments if until is None or parse_lsn(segment.end_lsn) <= until]
    planned = 0 if done is None else done.planned_segment or 0
    unfinished = [s for s in segments if s.number == planned and done is not None and s.number > done.segment]
    if unfinished and until is not None and unfinished[0] not in wanted:
        raise MergeError(
            f"could not end the merge there: a run that was interrupted has begun to merge up to segment"
            f" {planned}, {unfinished[0].end_lsn}",
            "run it once without --until, or with one that isn't before that",
        )
    yield from unfinished
    if wanted and wanted[-1] not in unfinished:
        yield wanted[-1]


def _now() -> dt.datetime:
    return dt.datetime.now(dt.UTC)


def _explain(work: TableFiles, error: Exception) -> Problem:
    told = stopped_by(work.version, str(error))
    if told is not None:
        return Problem(told.message, told.hint)
    if is_conflict(error):
        return Problem(
            f'could not merge "{work.table}": another merge wrote it at the same time', "wait for it to end"
        )
    why = reason(error)
    return Problem(f'could not merge "{work.table}": {why}', hint(why))
