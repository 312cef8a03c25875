"""The run: from the directory's manifest to the control table, then upkeep; and what it says of itself.

Each table is merged from its own mark, in a session and a thread of its own. What can't be done for one holds
up no other: it becomes the table's problem in the summary.
"""

import datetime as dt
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import nullcontext
from dataclasses import asdict, dataclass, field, replace
from typing import Any, TypeVar

from py4j.protocol import Py4JJavaError  # type: ignore[import-untyped]  # it has no annotations
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession

from .changelog import append_changes
from .column_types import Choices
from .control import ALL, ControlRow, ControlTable, TableMode, locked
from .delta import DeltaLake
from .fold import Extras
from .iceberg import IcebergLake
from .lake import CONTROL, CommitMark, Lake, LakeTable, is_conflict, new_session
from .merge_errors import MergeError, cause_of, hint_for
from .merge_table import MergedRange, MergeTarget, merge_table
from .options import ANY, CHANGELOG, FORMAT_VERSION, MERGE, MergeOptions, parse_lsn
from .plan import (
    TableRange,
    check_extras,
    check_followed,
    check_keyed,
    check_names,
    check_own,
    check_source,
    check_versions,
    planned,
    table_ranges,
)
from .segments import FinishedSegment, HadoopFiles, join, read_manifest, read_schemas, verify
from .values import error_of_value

LAKES: Mapping[str, type[DeltaLake | IcebergLake]] = {"delta": DeltaLake, "iceberg": IcebergLake}
"""The table formats, by their names on the command line."""

AT_ONCE = 4
"""Tables merged at the same time."""

Item = TypeVar("Item")
Result = TypeVar("Result")

TableListener = Callable[[Mapping[str, Any]], None]
"""Gets what became of each table, once it is done."""


@dataclass(frozen=True)
class Task:
    """A table's files, and what is made of them; `keyless` if it is a changelog for want of a key."""

    work: TableRange
    mode: str
    keyless: bool = False

    @property
    def key(self) -> TableMode:
        return self.work.table, self.mode


def merge(
    spark: SparkSession, options: MergeOptions, listener: TableListener = lambda _: None
) -> dict[str, Any]:
    """Merge every finished segment that isn't merged; returns the summary.

    Raises a MergeError where nothing could be merged at all.
    """
    try:
        return _MergeRun(spark, options, listener).run()
    except (PySparkException, Py4JJavaError) as error:
        cause = cause_of(error)
        message = f'could not merge "{options.input}" into "{options.warehouse}": {cause}'
        raise MergeError(message, hint_for(cause)) from error


class _MergeRun:
    def __init__(self, spark: SparkSession, options: MergeOptions, listener: TableListener) -> None:
        self._spark = spark
        self._options = options
        self._extras = _extras(options)
        self._files = HadoopFiles(spark)
        self._input = self._files.qualify(options.input)
        self._warehouse = self._files.qualify(options.warehouse)
        self._lake = _open_lake(options, self._files, self._warehouse)
        self._summary = Summary(options, time.monotonic(), listener)

    def run(self) -> dict[str, Any]:
        segments = read_manifest(self._files, self._input)
        if not segments:
            return self._summary.content({})
        with nullcontext() if self._options.dry_run else locked(self._warehouse):
            control = ControlTable(self._session(), self._lake, self._warehouse)
            for mode in self._options.modes:
                stream_id = check_source(segments, control.progress(mode))
                for last in _ranges(segments, control.progress(mode).all, self._options.until):
                    wanted = [segment for segment in segments if segment.number <= last.number]
                    self._merge_range(wanted, control, stream_id, mode)
            if not self._options.dry_run:
                control.keep_record()
                self._maintain(control)
            return self._summary.content(control.rows)

    def _merge_range(
        self, segments: Sequence[FinishedSegment], control: ControlTable, stream_id: str, mode: str
    ) -> None:
        """Merge the tables that have files in segments, each from its own mark."""
        first, last = segments[0], segments[-1]
        tasks = self._tasks(segments, control, mode)
        ready = [task for task in tasks if self._is_ready(task, first)]
        everything = control.progress(mode).all
        if not ready and everything is not None and everything.segment >= last.number:
            return
        needed = [file for task in ready for file in (*task.work.files, *task.work.losses)]
        verify(self._files, self._input, list(dict.fromkeys(needed)))
        mark = CommitMark(stream_id, "", mode, last.number, last.end_lsn)
        if self._options.dry_run:
            self._rehearse(ready, mark)
            return
        control.plan(stream_id, mode, last.number)
        self._summary.begin(len(ready))
        found = _at_once(lambda task: self._merge_one(task, mark), ready)
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

    def _tasks(self, segments: Sequence[FinishedSegment], control: ControlTable, mode: str) -> list[Task]:
        """List the tables that have something to merge, the unselected ones too."""
        schemas = {file.schema for segment in segments for file in segment.files}
        versions = read_schemas(self._files, self._input, schemas, _choices(self._options))

        def works(mode: str) -> list[TableRange]:
            return table_ranges(segments, versions, control.progress(mode), self._lake)

        found = [Task(work, mode) for work in works(mode)]
        keyless = {task.work.table for task in found if mode == MERGE and _never_had_a_key(task.work)}
        for table in filter(self._options.selects, sorted(keyless)):
            self._summary.warn_of_keyless(table)
        found = [task for task in found if task.work.table not in keyless]
        if CHANGELOG in self._options.modes:
            return found
        logged = [Task(work, CHANGELOG, keyless=True) for work in works(CHANGELOG) if work.table in keyless]
        return found + logged

    def _is_ready(self, task: Task, first: FinishedSegment) -> bool:
        """Note a problem that shows before any file is read."""
        if not self._options.selects(task.work.table):
            return False
        try:
            check_followed(task.work, first)
            if task.mode == MERGE:
                check_keyed(task.work)
        except MergeError as error:
            self._summary.problems[task.key] = error
            return False
        return True

    def _rehearse(self, tasks: Sequence[Task], mark: CommitMark) -> None:
        """Check what can be checked without writing, and note what would be done."""
        for task in tasks:
            try:
                waiting, _ = self._opened(task, self._session(), mark)
            except MergeError as error:
                self._summary.problems[task.key] = error
            else:
                self._summary.plan(task.key, task.work.path, mark.segment, waiting)

    def _row_of_problem(self, task: Task, first: FinishedSegment, stream_id: str) -> ControlRow:
        """Leave a table where it was, and say why."""
        work, problem = task.work, self._summary.problems.get(task.key)
        new = ControlRow(stream_id, work.table, task.mode, work.path, segment=first.number - 1)
        message = None if problem is None else problem.message
        return replace(work.row or new, keyless=task.keyless, problem=message)

    def _merge_one(self, task: Task, mark: CommitMark) -> ControlRow | None:
        """Merge a table and report it; None, and a problem, if it could not be."""
        row = None
        try:
            row = self._merged(task, replace(mark, table=task.work.table, mode=task.mode))
        except MergeError as error:
            self._summary.problems[task.key] = error
        except (PySparkException, Py4JJavaError) as error:
            self._summary.problems[task.key] = _explain(task.work, error)
        problem = self._summary.problems.get(task.key)
        self._summary.done(task.key, row, problem)
        return row

    def _merged(self, task: Task, mark: CommitMark) -> ControlRow:
        session = self._session()
        waiting, target = self._opened(task, session, mark)
        row = ControlRow(
            mark.stream_id,
            mark.table,
            mark.mode,
            task.work.path,
            segment=mark.segment,
            lsn=mark.lsn,
            version=target.version,
            keyless=task.keyless,
        )
        # Without waiting files, an earlier run came this far, but not to the control table.
        if waiting.files:
            result = self._written(task, session, waiting, target, mark)
            row = replace(row, **asdict(result.commit), unfit=result.unfit)
            self._summary.missing[task.key] = result.missing
        version = task.work.version
        self._lake.publish(session, task.work.path, version.schema, version.name, task.mode)
        return replace(row, merged_at=_now())

    def _written(
        self, task: Task, session: SparkSession, work: TableRange, table: LakeTable, mark: CommitMark
    ) -> MergedRange:
        if task.mode == CHANGELOG:
            return append_changes(session, self._input, work, table, mark)
        return merge_table(session, self._input, work, MergeTarget(table, self._extras, mark))

    def _opened(self, task: Task, session: SparkSession, mark: CommitMark) -> tuple[TableRange, LakeTable]:
        """Open the lake table and see that the changes fit it; returns the files that it doesn't have yet."""
        work, extras = task.work, self._extras
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

    def _maintain(self, control: ControlTable) -> None:
        """Convert all tables, and keep up those that the run changed, if asked; what fails is a warning.

        It follows the control table's last word, which then holds what the marks of removed versions said.
        The versions after compaction are recorded before anything is removed, so that recorded ones can
        always be read.
        """
        if self._options.readers is not None:
            self._convert(control)
        rows = [row for row in self._summary.changed.values() if row.path is not None]
        if self._options.compact and rows:
            compacted = {row.key: row for row in _at_once(self._compacted, rows)}
            control.finish(compacted)
            self._summary.changed |= compacted
        if self._options.retain is not None and rows:
            _at_once(self._expire, [self._lake.control_location, *(str(row.path) for row in rows)])

    def _convert(self, control: ControlTable) -> None:
        wanted = [row for row in control.rows.values() if self._is_wanted(row)]
        converted = {row.key: row for row in _at_once(self._converted, wanted)}
        if converted != {row.key: row for row in wanted}:
            control.finish(converted)
        changed = self._summary.changed
        changed |= {key: row for key, row in converted.items() if key in changed}

    def _is_wanted(self, row: ControlRow) -> bool:
        """Say whether a row is of a table that there is, and of those to merge."""
        selected = row.table != ALL and self._options.selects(row.table)
        return selected and row.path is not None and row.version is not None

    def _converted(self, row: ControlRow) -> ControlRow:
        assert self._options.readers is not None
        try:
            return replace(row, version=self._open(str(row.path)).convert(self._options.readers))
        except MergeError as error:
            self._summary.warn(error.message)
        except (PySparkException, Py4JJavaError) as error:
            self._summary.warn(f'could not convert "{row.table}": {cause_of(error)}')
        return row

    def _compacted(self, row: ControlRow) -> ControlRow:
        try:
            return replace(row, version=self._open(str(row.path)).compact())
        except (PySparkException, Py4JJavaError) as error:
            self._summary.warn(f'could not compact "{row.table}": {cause_of(error)}')
            return row

    def _expire(self, location: str) -> None:
        assert self._options.retain is not None
        try:
            self._open(location).expire(self._options.retain)
        except (PySparkException, Py4JJavaError) as error:
            self._summary.warn(f'could not remove old versions of "{location}": {cause_of(error)}')

    def _open(self, location: str) -> LakeTable:
        return self._lake.open(self._session(), location)

    def _session(self) -> SparkSession:
        return new_session(self._spark, self._lake)


def _at_once(work: Callable[[Item], Result], items: Iterable[Item]) -> list[Result]:
    with ThreadPoolExecutor(AT_ONCE) as pool:
        return list(pool.map(work, items))


def _never_had_a_key(work: TableRange) -> bool:
    return work.version.key is None and (work.row is None or work.row.version is None)


def _ranges(
    segments: Sequence[FinishedSegment], done: ControlRow | None, until: int | None
) -> Iterator[FinishedSegment]:
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


def _open_lake(options: MergeOptions, files: HadoopFiles, warehouse: str) -> Lake:
    """Make the lake of a format; a MergeError if the warehouse is another's."""
    for name, lake in LAKES.items():
        if name != options.format and files.exists(join(warehouse, CONTROL, lake.trace)):
            raise MergeError(
                f'could not merge into "{warehouse}": its tables are {lake.title}\'s',
                f"add --format {name}, or merge into a new warehouse",
            )
    return LAKES[options.format](warehouse, options.catalog, options.readers or ANY)


def _extras(options: MergeOptions) -> Extras:
    return Extras(options.metadata, options.soft_delete, missing_is_null=options.missing_toast == "null")


def _choices(options: MergeOptions) -> Choices:
    decimal = "string" if options.decimal is None else f"decimal({options.decimal})"
    return Choices(options.infinity == "string", decimal, options.variant)


def _now() -> dt.datetime:
    return dt.datetime.now(dt.UTC)


def _explain(work: TableRange, error: Exception) -> MergeError:
    stopped = error_of_value(work.version, str(error))
    if stopped is not None:
        return stopped
    if is_conflict(error):
        return MergeError(
            f'could not merge "{work.table}": another merge wrote it at the same time', "wait for it to end"
        )
    cause = cause_of(error)
    return MergeError(f'could not merge "{work.table}": {cause}', hint_for(cause))


@dataclass
class Summary:
    """Gathers what becomes of each table and mode; `started` is `time.monotonic()`'s.

    `missing` are values that nothing had, and that are NULL.
    """

    options: MergeOptions
    started: float
    listener: TableListener
    changed: dict[TableMode, ControlRow] = field(default_factory=dict)
    problems: dict[TableMode, MergeError] = field(default_factory=dict)
    missing: dict[TableMode, int] = field(default_factory=dict)
    _planned: dict[TableMode, dict[str, Any]] = field(default_factory=dict)
    _warnings: dict[str, str] = field(default_factory=dict)
    _one_at_a_time: threading.Lock = field(default_factory=threading.Lock)
    _finished: int = 0
    _of: int = 0

    def begin(self, tables: int) -> None:
        """Begin to count the tables of a range."""
        self._finished, self._of = 0, tables

    def done(self, key: TableMode, row: ControlRow | None, problem: MergeError | None) -> None:
        """Report a table; called by each table's thread."""
        with self._one_at_a_time:
            self._finished += 1
            counts = (row.inserted, row.updated, row.deleted) if row else (0, 0, 0)
            content = dict(zip(("inserted", "updated", "deleted"), counts, strict=True))
            which = {"table": key[0], "mode": key[1], "done": self._finished, "of": self._of}
            self.listener({**which, **content, "problem": None if problem is None else problem.message})

    def warn_of_keyless(self, table: str) -> None:
        self._warnings[table] = (
            f'"{table}" has no key, so that it can\'t be merged: it gets a changelog;'
            f" ALTER TABLE {table} ADD PRIMARY KEY (...) for more"
        )

    def warn(self, warning: str) -> None:
        self._warnings[warning] = warning

    def plan(self, key: TableMode, path: str, segment: int, work: TableRange) -> None:
        """Note what a run would merge."""
        numbers = [file.segment for file in work.files]
        self._planned[key] = {
            "path": path,
            "first_segment": min(numbers, default=segment),
            "last_segment": segment,
            "files": len(numbers),
            "rows": sum(file.rows for file in work.files),
            "bytes": sum(file.bytes for file in work.files),
        }

    def warn_of_new_columns(self, work: TableRange) -> None:
        """Warn of columns that are not NULL everywhere where the lake table has nothing else."""
        for name in work.goal.unknown:
            self._warnings[f"{work.table}.{name}"] = (
                f'"{work.table}" has the new column "{name}": it is NULL in rows that have not changed since,'
                " also where the source has a value (a default, or that of a renamed column)"
            )

    def content(self, rows: Mapping[TableMode, ControlRow]) -> dict[str, Any]:
        """Put it all together, with the control table's rows."""
        options, first_mode = self.options, self.options.modes[0]
        everything = rows.get((ALL, first_mode))
        keys = {row.key for row in rows.values() if row.mode in options.modes or row.keyless}
        keys |= {*self._planned, *self.problems}
        tables = [key for key in sorted(keys) if key[0] != ALL and options.selects(key[0])]
        failed = list(self.problems.values())
        problems = [f"{problem.message}; {problem.hint}" for problem in failed if len(failed) > 1]
        content = {
            "format_version": FORMAT_VERSION,
            "mode": options.mode,
            "segment": 0 if everything is None else everything.segment,
            "lsn": "0/0" if everything is None else everything.lsn,
            "tables": [self._table(key, rows.get(key)) for key in tables],
            "warnings": [*self._warnings.values(), *problems],
            "unmatched": options.unmatched({table for table, _ in tables}),
            "error": _error(failed),
            "seconds": round(time.monotonic() - self.started, 3),
        }
        return content | ({"dry_run": True} if options.dry_run else {})

    def _table(self, key: TableMode, row: ControlRow | None) -> dict[str, Any]:
        done, problem, planned = self.changed.get(key), self.problems.get(key), self._planned.get(key)
        content = {
            "table": key[0],
            "mode": key[1],
            "path": planned["path"] if row is None and planned else row and row.path,
            "segment": row.segment if row else 0,
            "lsn": row.lsn if row else "0/0",
            "version": row and row.version,
            "inserted": done.inserted if done else 0,
            "updated": done.updated if done else 0,
            "deleted": done.deleted if done else 0,
            "unfit": done.unfit if done else 0,
            "missing": self.missing.get(key, 0),
            "problem": None if problem is None else problem.message,
            "hint": None if problem is None else problem.hint,
        }
        return content | ({"plan": planned} if self.options.dry_run else {})


def _error(failed: Sequence[MergeError]) -> dict[str, Any] | None:
    if not failed:
        return None
    if len(failed) == 1:
        return {"message": failed[0].message, "hint": failed[0].hint, "locked": False}
    return {
        "message": f"could not merge {len(failed)} tables: the warnings say why",
        "hint": "all other tables are merged; these wait where they were for another run",
        "locked": False,
    }
