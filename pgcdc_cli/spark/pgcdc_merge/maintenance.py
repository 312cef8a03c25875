"""Maintenance of tables after a merge: for other readers, compaction, and old versions."""

from collections.abc import Callable
from dataclasses import replace

from py4j.protocol import Py4JJavaError  # type: ignore[import-untyped]  # it has no annotations
from pyspark.errors import PySparkException

from .control import ALL, ControlRow, ControlTable
from .lake import LakeTable, at_once
from .merge_errors import MergeError, cause_of
from .options import MergeOptions
from .summary import Summary


class Maintenance:
    """Maintains the tables of a warehouse as the options ask; `open_table` opens one by its location."""

    def __init__(
        self,
        options: MergeOptions,
        open_table: Callable[[str], LakeTable],
        control_location: str,
        summary: Summary,
    ) -> None:
        self._options = options
        self._open = open_table
        self._control_location = control_location
        self._summary = summary

    def run(self, control: ControlTable) -> None:
        """Convert, compact and expire tables as the options ask; failures become warnings.

        This comes after the control table's last write: that holds what the marks of removed versions said.
        The versions after compaction are recorded before anything is removed, so that recorded versions can
        always be read.
        """
        if self._options.readers is not None:
            wanted = [row for row in control.rows.values() if self._is_wanted(row)]
            self._record(control, wanted, at_once(self._converted, wanted))
        rows = [row for row in control.rows.values() if self._is_kept_up(row)]
        if self._options.compact:
            self._record(control, rows, at_once(self._compacted, rows))
        if self._options.retain is not None and rows:
            at_once(self._expire, [self._control_location, *(str(row.path) for row in rows)])

    def _record(self, control: ControlTable, before: list[ControlRow], rows: list[ControlRow]) -> None:
        """Write changed rows to the control table, and to the summary."""
        if before != rows:
            control.finish({row.key: row for row in rows})
        changed = self._summary.changed
        changed |= {row.key: row for row in rows if row.key in changed}

    def _is_kept_up(self, row: ControlRow) -> bool:
        """Whether to maintain a row's table: with --follow, only if this merge changed it."""
        return self._is_wanted(row) and (self._options.follow is None or row.key in self._summary.changed)

    def _is_wanted(self, row: ControlRow) -> bool:
        """Whether a row is of a selected table that exists."""
        selected = row.table != ALL and self._options.selects(row.table)
        return selected and row.path is not None and row.version is not None

    def _converted(self, row: ControlRow) -> ControlRow:
        assert self._options.readers is not None
        try:
            table = self._untouched(row)
            return row if table is None else replace(row, version=table.convert(self._options.readers))
        except MergeError as error:
            self._summary.warn(error.message)
        except (PySparkException, Py4JJavaError) as error:
            self._summary.warn(f'could not convert "{row.table}": {cause_of(error)}')
        return row

    def _untouched(self, row: ControlRow) -> LakeTable | None:
        """Open a table; None if others changed it, since the next merge must find it unchanged."""
        table = self._open(str(row.path))
        touched = row.version is None or table.was_set_back(row.version) or table.written_since(row.version)
        return None if touched else table

    def _compacted(self, row: ControlRow) -> ControlRow:
        try:
            table = self._untouched(row)
            return row if table is None else replace(row, version=table.compact())
        except (PySparkException, Py4JJavaError) as error:
            self._summary.warn(f'could not compact "{row.table}": {cause_of(error)}')
            return row

    def _expire(self, location: str) -> None:
        assert self._options.retain is not None
        try:
            self._open(location).expire(self._options.retain)
        except (PySparkException, Py4JJavaError) as error:
            self._summary.warn(f'could not remove old versions of "{location}": {cause_of(error)}')
