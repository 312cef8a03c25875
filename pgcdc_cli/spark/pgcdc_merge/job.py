"""The run: from the directory's manifest to the control table, then maintenance (`maintenance.py`).

Each table is merged from its own mark, in a thread and a session of its own. An error of one table doesn't
stop the others: it becomes the table's problem in the summary.
"""

import datetime as dt
import time
import traceback
from collections.abc import Mapping, Sequence
from contextlib import nullcontext
from dataclasses import asdict, dataclass, replace
from typing import Any

from py4j.protocol import Py4JJavaError  # type: ignore[import-untyped]  # it has no annotations
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession

from .column_types import Choices
from .control import ALL, ControlRow, ControlTable, Former, TableMode, locked
from .delta import DeltaLake
from .fold import Extras
from .hadoop_files import HadoopFiles, join
from .iceberg import IcebergLake
from .java_classes import keep_what_expressions_need
from .lake import (
    CONTROL,
    CommitMark,
    Lake,
    LakeTable,
    at_once,
    is_conflict,
    new_session,
    plan_plainly,
)
from .maintenance import Maintenance
from .merge_errors import MergeError, cause_of, hint_for
from .merge_table import MergedRange, MergeTarget, append_changes, changes_every_row, merge_table
from .options import ANY, CHANGELOG, MERGE, STOP, MergeOptions
from .plan import (
    OpenedRange,
    check_fits,
    check_followed,
    check_keyed,
    check_same,
    check_source,
    left_behind,
    merged_before,
    open_range,
    range_ends,
)
from .schema_evolution import ANEW
from .segments import FinishedSegment, read_manifest, verify
from .summary import Summary, TableListener
from .table_range import PlannedRange, TableRange, former_rows, remembered, table_ranges
from .table_version import read_schemas
from .values import error_of_value

LAKES: Mapping[str, type[DeltaLake | IcebergLake]] = {"delta": DeltaLake, "iceberg": IcebergLake}
"""The table formats, by name."""

FEW_ROWS, FEW_BYTES = 10_000, 8 << 20
"""With at most so many changes, and table files of at most so many bytes, merges use plain plans."""


@dataclass(frozen=True)
class Task:
    """A table's files, and the mode; `keyless`: a changelog, since the table has no key."""

    work: TableRange
    mode: str
    keyless: bool = False

    @property
    def key(self) -> TableMode:
        return self.work.table, self.mode

    @property
    def ranges(self) -> tuple[TableRange, ...]:
        """All ranges that are merged under the table's name, in this order."""
        return *(one for one in self.work.gone if one.may_be_put_aside), self.work


@dataclass
class Kept:
    """State that a merge passes to the next one in the same Spark application."""

    control: ControlTable | None = None


def merge(
    spark: SparkSession,
    options: MergeOptions,
    listener: TableListener = lambda _: None,
    kept: Kept | None = None,
) -> dict[str, Any]:
    """Merge every finished segment that isn't merged yet; return the summary.

    `kept` is the state of the previous merge into the same warehouse. Raises MergeError if nothing could be
    merged at all.
    """
    try:
        return _MergeRun(spark, options, listener).run(kept or Kept())
    except (PySparkException, Py4JJavaError) as error:
        cause = cause_of(error)
        message = f'could not merge "{options.input}" into "{options.warehouse}": {cause}'
        raise MergeError(message, hint_for(cause)) from error


class _MergeRun:
    def __init__(self, spark: SparkSession, options: MergeOptions, listener: TableListener) -> None:
        keep_what_expressions_need(spark)
        self._spark = spark
        self._options = options
        self._extras = _extras(options)
        self._files = HadoopFiles(spark)
        self._input = self._files.qualify(options.input)
        self._warehouse = self._files.qualify(options.warehouse)
        self._lake = _open_lake(options, self._files, self._warehouse)
        self._summary = Summary(options, time.monotonic(), listener)

    def run(self, kept: Kept) -> dict[str, Any]:
        segments = read_manifest(self._files, self._input)
        if not segments:
            return self._summary.content({})
        with nullcontext() if self._options.dry_run else locked(self._warehouse):
            control = kept.control = self._control(kept.control)
            for mode in self._options.modes:
                stream_id = check_source(segments, control.progress(mode))
                for last in range_ends(segments, control.progress(mode).all, self._options.until):
                    wanted = [segment for segment in segments if segment.number <= last.number]
                    self._merge_range(wanted, control, stream_id, mode)
            if not self._options.dry_run:
                control.keep_record()
                location = self._lake.control_location
                Maintenance(self._options, self._open, location, self._summary).run(control)
            return self._summary.content(control.rows)

    def _control(self, known: ControlTable | None) -> ControlTable:
        if known is None:
            return ControlTable(self._session(), self._lake, self._warehouse)
        known.refresh()
        return known

    def _merge_range(
        self, segments: Sequence[FinishedSegment], control: ControlTable, stream_id: str, mode: str
    ) -> None:
        """Merge the tables that have files in the segments, each from its own mark."""
        first, last = segments[0], segments[-1]
        tasks = self._tasks(segments, control, mode)
        ready = [task for task in tasks if self._is_ready(task, first, control)]
        everything = control.progress(mode).all
        if not ready and everything is not None and everything.segment >= last.number:
            return
        needed = [file for task in ready for work in task.ranges for file in (*work.files, *work.losses)]
        verify(self._files, self._input, list(dict.fromkeys(needed)))
        mark = CommitMark(stream_id, "", mode, last.number, last.end_lsn)
        if self._options.dry_run:
            self._rehearse(ready, mark)
            return
        control.plan(stream_id, mode, last.number)
        self._summary.begin(len(ready))
        results = at_once(lambda task: self._merge_one(task, mark), ready)
        merged = {row.key: row for row, _ in results if row is not None}
        self._summary.changed |= merged
        plans = {task.key: plan for task, (_, plan) in zip(ready, results, strict=True)}
        unmerged = {
            task.key: self._row_of_unmerged(task, plans.get(task.key), first, stream_id) for task in tasks
        }
        unchanged = {
            key: row.caught_up(last.number, last.end_lsn)
            for key, row in control.rows.items()
            if (row.mode == mode or (row.keyless and mode == MERGE)) and row.segment >= first.number - 1
        }
        renamed = left_behind([task.work for task in tasks], merged, unchanged)
        done = everything or ControlRow(stream_id, ALL, mode)
        done = replace(done.caught_up(last.number, last.end_lsn), planned_segment=None, merged_at=_now())
        # If a table has several rows, the last counts: tables have caught up, but those whose rows are under
        # another name now only if they were merged there, and those with changes only if these were merged.
        control.finish({**unchanged, **renamed, **unmerged, **merged, done.key: done})

    def _tasks(self, segments: Sequence[FinishedSegment], control: ControlTable, mode: str) -> list[Task]:
        """List the tables with something to merge, including those that aren't selected."""
        schemas = {file.schema for segment in segments for file in segment.files}
        versions = read_schemas(self._files, self._input, schemas, _choices(self._options))

        def found_in(mode: str) -> list[TableRange]:
            return table_ranges(segments, versions, control.progress(mode), self._lake)

        found = [Task(work, mode) for work in found_in(mode)]
        keyless = {task.work.table for task in found if mode == MERGE and task.work.never_had_a_key}
        for table in filter(self._options.selects, sorted(keyless)):
            self._summary.warn_of_keyless(table)
        found = [task for task in found if task.work.table not in keyless]
        if CHANGELOG in self._options.modes:
            return found
        logged = [work for work in found_in(CHANGELOG) if work.table in keyless]
        return found + [Task(work, CHANGELOG, keyless=True) for work in logged]

    def _is_ready(self, task: Task, first: FinishedSegment, control: ControlTable) -> bool:
        """Check for problems that are known before any file is read, and record them."""
        if not self._options.selects(task.work.table):
            return False
        try:
            check_followed(task.work, first)
            if task.work.forgotten:
                # Its files may have been removed, though their lines are still in the manifest.
                verify(self._files, self._input, task.work.files, f"restore it from a copy, or {ANEW}")
            if task.mode == MERGE:
                check_keyed(task.work, control.rows)
            if self._options.recreated == STOP:
                check_same(task.work)
        except MergeError as error:
            self._summary.problems[task.key] = error
            return False
        return True

    def _rehearse(self, tasks: Sequence[Task], mark: CommitMark) -> None:
        """Check what can be checked without writing, and record what would be merged."""
        for task in tasks:
            try:
                own = replace(mark, table=task.work.table, mode=task.mode)
                opened = self._opened(task.work, self._session_for(task.work), own)
                check_fits(opened, self._extras)
            except MergeError as error:
                self._summary.problems[task.key] = error
            else:
                self._summary.plan(task.key, task.work.path, mark.segment, opened.waiting.work)

    def _row_of_unmerged(
        self, task: Task, plan: PlannedRange | None, first: FinishedSegment, stream_id: str
    ) -> ControlRow:
        """Make the control row of a table that stays as it was, with its problem, if it has one."""
        work, problem = task.work, self._summary.problems.get(task.key)
        new = ControlRow(stream_id, work.table, task.mode, work.path, segment=first.number - 1)
        row = work.row or new
        return replace(
            row,
            keyless=task.keyless,
            problem=None if problem is None else problem.message,
            # Columns may have been added nevertheless.
            warning=row.warning if plan is None else self._summary.lasting_warning(plan, all_written=False),
        )

    def _merge_one(self, task: Task, mark: CommitMark) -> tuple[ControlRow | None, PlannedRange | None]:
        """Merge a table and report it; return its control row, and what was planned.

        If it could not be merged, record the problem, and return no row; or no plan either, if it didn't get
        that far.
        """
        row = plan = None
        own = replace(mark, table=task.work.table, mode=task.mode)
        try:
            session = self._session_for(task.work)
            gone = [self._merge_gone(one, own) for one in task.work.gone]
            opened = self._opened(task.work, session, own)
            plan = opened.plan
            row = self._merged(task, session, opened, gone)
        except MergeError as error:
            self._summary.problems[task.key] = error
        except (PySparkException, Py4JJavaError) as error:
            self._summary.problems[task.key] = _explain(task.work, error)
        except Exception as error:  # noqa: BLE001 - whatever it is, the other tables are merged
            traceback.print_exc()
            self._summary.problems[task.key] = _explain(task.work, error)
        self._summary.done(task.key, row, self._summary.problems.get(task.key))
        return row, plan

    def _merged(
        self, task: Task, session: SparkSession, opened: OpenedRange, gone: Sequence[Former]
    ) -> ControlRow:
        """Merge what is waiting, and return the table's control row."""
        check_fits(opened, self._extras)
        mark = opened.mark
        row = ControlRow(
            mark.stream_id,
            mark.table,
            mark.mode,
            task.work.path,
            segment=mark.segment,
            lsn=mark.lsn,
            version=opened.target.version,
            keyless=task.keyless,
            oid=task.work.version.oid,
            former=remembered(
                [*former_rows(task.work.row, opened.plan.work.held), *task.work.keyless_oids, *gone],
                task.work.oid,
            ),
            keyed_by=task.work.keyed_by,
            columns=opened.plan.columns,
        )
        # Without waiting files: an earlier run merged them, but did not write the control table.
        if opened.waiting.work.files:
            result = self._written(session, opened)
            row = replace(row, **asdict(result.commit), unfit=result.unfit)
            self._summary.missing[task.key] = result.missing
        warned = task.work.row is not None and task.work.row.warning is not None
        all_written = warned and self._has_written_all(session, opened, row)
        warning = self._summary.lasting_warning(opened.plan, all_written=all_written)
        if warning is None:
            row = replace(row, columns=tuple(replace(one, converted=False) for one in row.columns))
        version = task.work.version
        unnamed = self._lake.publish(session, task.work.path, version.schema, version.name, task.mode)
        if unnamed is not None:
            self._summary.warn(unnamed)
        return replace(row, warning=warning, merged_at=_now())

    def _has_written_all(self, session: SparkSession, opened: OpenedRange, row: ControlRow) -> bool:
        """Whether every row of a table is from this range; those that were only copied aren't.

        An earlier run may have written them, and ended before it recorded their number.
        """
        recorded = bool(opened.waiting.work.files)
        changes = opened.waiting if recorded else opened.plan
        if opened.base is not None or len(changes.spans) > 1:
            return False
        rows = self._lake.open(session, changes.work.path).read()
        if recorded:
            return row.inserted + row.updated >= rows.count()
        return row.mode == MERGE and changes_every_row(session, self._input, changes, self._extras, rows)

    def _merge_gone(self, work: TableRange, mark: CommitMark) -> Former:
        """Merge a table that had the name before, in a commit of its own, so that its rows can be found.

        If it can't be merged it is left out, since it no longer exists under this name.
        """
        left_out = Former(work.oid, None, mark.segment)
        if not work.may_be_put_aside:
            return left_out
        session, own = self._session_for(work), replace(mark, gone=work.oid)
        try:
            found = merged_before(work, self._lake.open(session, work.path), own, mark)
            if found is not None:
                return found
            opened = self._opened(work, session, own)
            check_fits(opened, self._extras)
            return Former(work.oid, self._written(session, opened).commit.version, mark.segment)
        except MergeError:
            return left_out
        except (PySparkException, Py4JJavaError) as error:
            if error_of_value(work.version, str(error)) is None:
                raise
            return left_out

    def _written(self, session: SparkSession, opened: OpenedRange) -> MergedRange:
        if opened.mark.mode == CHANGELOG:
            return append_changes(session, self._input, opened.waiting, opened.target, opened.mark)
        target = MergeTarget(opened.target, self._extras, opened.mark, opened.base)
        return merge_table(session, self._input, opened.waiting, target)

    def _opened(self, work: TableRange, session: SparkSession, mark: CommitMark) -> OpenedRange:
        """Open a range, and warn of what its rows will lack, also if it turns out not to fit."""
        opened = open_range(session, self._lake, work, mark, self._extras)
        self._summary.warn_of_rows(opened.plan)
        return opened

    def _open(self, location: str) -> LakeTable:
        return self._lake.open(self._session(), location)

    def _session(self) -> SparkSession:
        return new_session(self._spark, self._lake)

    def _session_for(self, work: TableRange) -> SparkSession:
        """Make a session for a table: with plain plans if there are few changes in a small table."""
        session = self._session()
        if sum(file.rows for file in work.files) > FEW_ROWS:
            return session
        plan_plainly(session)
        # Spark may read a table's log to find its size, which takes plans, too.
        return session if self._lake.open(session, work.path).size <= FEW_BYTES else self._session()


def _open_lake(options: MergeOptions, files: HadoopFiles, warehouse: str) -> Lake:
    """Make the lake of the chosen format. Raises MergeError if the warehouse has another format."""
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
