"""The summary of a run: each table's result, and why some were not merged."""

import re
import shlex
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from .control import ALL, ControlRow, TableMode
from .merge_errors import MergeError
from .options import FORMAT_VERSION, MergeOptions
from .table_range import PlannedRange, TableRange

TableListener = Callable[[Mapping[str, Any]], None]
"""Called with each table's result."""

_PLAIN = re.compile("[a-z_][a-z0-9_]*")
"""Names that a pattern of tables matches as they are."""


@dataclass
class Summary:
    """Collects the results by table and mode; `started` is a time of `time.monotonic()`.

    `missing` counts values that were not found, and are NULL.
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
        """Start counting the tables of a range."""
        self._finished, self._of = 0, tables

    def done(self, key: TableMode, row: ControlRow | None, problem: MergeError | None) -> None:
        """Report a table's result; called by the table's thread."""
        with self._one_at_a_time:
            self._finished += 1
            counts = (row.inserted, row.updated, row.deleted) if row else (0, 0, 0)
            content = dict(zip(("inserted", "updated", "deleted"), counts, strict=True))
            which = {"table": key[0], "mode": key[1], "done": self._finished, "of": self._of}
            self.listener({**which, **content, "problem": None if problem is None else problem.message})

    def warn_of_keyless(self, table: str) -> None:
        self._warnings[table] = (
            f'"{table}" has no key, so it can\'t be merged: it only gets a changelog;'
            f" ALTER TABLE {table} ADD PRIMARY KEY (...) for more"
        )

    def warn(self, warning: str) -> None:
        self._warnings[warning] = warning

    def plan(self, key: TableMode, path: str, segment: int, work: TableRange) -> None:
        """Record what a dry run would merge."""
        numbers = [file.segment for file in work.files]
        self._planned[key] = {
            "path": path,
            "first_segment": min(numbers, default=segment),
            "last_segment": segment,
            "files": len(numbers),
            "rows": sum(file.rows for file in work.files),
            "bytes": sum(file.bytes for file in work.files),
        }

    def warn_of_rows(self, plan: PlannedRange) -> None:
        """Warn about values and rows that the table may lack."""
        for warning in _lacks(plan):
            self.warn(warning)

    def lasting_warning(self, plan: PlannedRange, *, all_written: bool) -> str | None:
        """Say what the table may lack, now or, unless all rows were written, since an earlier run.

        None if it lacks nothing.
        """
        row = plan.work.row
        before = None if plan.work.anew or all_written or row is None else row.warning
        new = [warning for warning in _lacks(plan) if before is None or warning not in before]
        return "; ".join([*([before] if before else []), *new]) or None

    def content(self, rows: Mapping[TableMode, ControlRow]) -> dict[str, Any]:
        """Make the summary's JSON object, with the control table's rows."""
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


def _lacks(plan: PlannedRange) -> list[str]:
    """List what the table may lack: values of columns, and rows from before it was published."""
    work, goal = plan.work, plan.goal
    new = [
        f'"{work.table}" has the new column "{name}": it is NULL in rows that have not changed since, even'
        " if the source has a value (a default that it computed, that of a renamed column, or one from before"
        f" the column was published); to have them sent: {_touch(work, name)}"
        for name in goal.unknown
    ]
    new += [
        f'"{work.table}" has another type in column "{name}": rows that have not changed since have their'
        " old values, which aren't the source's if it converted them (with USING, or of another length); to"
        f" have them sent: {_touch(work, name)}"
        for name in goal.retyped
    ]
    if goal.doubtful:
        names = ", ".join(f'"{name}"' for name in goal.doubtful)
        new.append(
            f'"{work.table}" has columns in another order: {names} have changed names, or were dropped and'
            " added again, and which was which can no longer be known: rows that have not changed since may"
            f" have another's value; to have them sent: pgcdc stream --resnapshot {_pattern(work)}"
        )
    if work.lacks_rows:
        new.append(
            f'"{work.table}" is not the same table as before, and its rows replaced the others: those that it'
            " had before it was published are missing; to have them sent:"
            f" {_touch(work, work.version.key_columns[0].name)}"
        )
    return new


def _touch(work: TableRange, column: str) -> str:
    """Make the statement that has all rows sent again."""
    schema, table, same = map(_identifier, (work.version.schema, work.version.name, column))
    return f"UPDATE {schema}.{table} SET {same} = {same}"  # noqa: S608 - it is shown, not run


def _identifier(name: str) -> str:
    return '"' + name.replace('"', '""') + '"'


def _pattern(work: TableRange) -> str:
    """Write a table's name as a pattern for the shell, with quotes if PostgreSQL would change it without."""
    parts = (work.version.schema, work.version.name)
    return shlex.quote(".".join(part if _PLAIN.fullmatch(part) else _identifier(part) for part in parts))


def _error(failed: Sequence[MergeError]) -> dict[str, Any] | None:
    if not failed:
        return None
    if len(failed) == 1:
        return {"message": failed[0].message, "hint": failed[0].hint, "locked": False}
    return {
        "message": f"could not merge {len(failed)} tables: the warnings say why",
        "hint": "all other tables are merged; these stay as they were until another run",
        "locked": False,
    }
