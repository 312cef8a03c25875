"""What a run says of itself: one JSON object."""

import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from .control import ALL, ControlRow, Key
from .options import Options
from .plan import TableFiles
from .segments import FORMAT_VERSION

Report = Callable[[Mapping[str, Any]], None]
"""Is told of each table that is done."""


@dataclass(frozen=True)
class Problem:
    """Why a table was left where it was."""

    message: str
    hint: str


@dataclass
class Summary:
    """Gathers what becomes of each table and mode; `started` is `time.monotonic()`'s.

    `missing` are values that nothing had, and that are NULL.
    """

    options: Options
    started: float
    tell: Report
    changed: dict[Key, ControlRow] = field(default_factory=dict)
    problems: dict[Key, Problem] = field(default_factory=dict)
    missing: dict[Key, int] = field(default_factory=dict)
    _planned: dict[Key, dict[str, Any]] = field(default_factory=dict)
    _warnings: dict[str, str] = field(default_factory=dict)
    _telling: threading.Lock = field(default_factory=threading.Lock)
    _finished: int = 0
    _of: int = 0

    def begin(self, tables: int) -> None:
        """Begin to count the tables of a range."""
        self._finished, self._of = 0, tables

    def done(self, key: Key, row: ControlRow | None, problem: Problem | None) -> None:
        """Tell of a table; called by each table's thread."""
        with self._telling:
            self._finished += 1
            counts = (row.inserted, row.updated, row.deleted) if row else (0, 0, 0)
            content = dict(zip(("inserted", "updated", "deleted"), counts, strict=True))
            place = {"table": key[0], "mode": key[1], "done": self._finished, "of": self._of}
            self.tell({**place, **content, "problem": None if problem is None else problem.message})

    def warn_of_keyless(self, table: str) -> None:
        self._warnings[table] = (
            f'"{table}" has no key, so that it can\'t be merged: it gets a changelog;'
            f" ALTER TABLE {table} ADD PRIMARY KEY (...) for more"
        )

    def warn(self, warning: str) -> None:
        self._warnings[warning] = warning

    def plan(self, key: Key, path: str, segment: int, work: TableFiles) -> None:
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

    def warn_of_new_columns(self, work: TableFiles) -> None:
        """Tell of columns that are not NULL everywhere where the lake table has nothing else."""
        for name in work.goal.unknown:
            self._warnings[f"{work.table}.{name}"] = (
                f'"{work.table}" has the new column "{name}": it is NULL in rows that have not changed since,'
                " also where the source has a value (a default, or that of a renamed column)"
            )

    def content(self, rows: Mapping[Key, ControlRow]) -> dict[str, Any]:
        """Put it all together, with the control table's rows."""
        options, first_mode = self.options, self.options.modes[0]
        everything = rows.get((ALL, first_mode))
        keys = {row.key for row in rows.values() if row.mode in options.modes or row.keyless}
        keys |= {*self._planned, *self.problems}
        tables = [key for key in sorted(keys) if key[0] != ALL and options.selects(key[0])]
        failed = list(self.problems.values())
        told = [f"{problem.message}; {problem.hint}" for problem in failed if len(failed) > 1]
        content = {
            "format_version": FORMAT_VERSION,
            "mode": options.mode,
            "segment": 0 if everything is None else everything.segment,
            "lsn": "0/0" if everything is None else everything.lsn,
            "tables": [self._table(key, rows.get(key)) for key in tables],
            "warnings": [*self._warnings.values(), *self._unmatched(tables), *told],
            "error": _error(failed),
            "seconds": round(time.monotonic() - self.started, 3),
        }
        return content | ({"dry_run": True} if options.dry_run else {})

    def _unmatched(self, tables: Sequence[Key]) -> list[str]:
        return ["no table that has changes fits --table"] if self.options.tables and not tables else []

    def _table(self, key: Key, row: ControlRow | None) -> dict[str, Any]:
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


def _error(failed: Sequence[Problem]) -> dict[str, Any] | None:
    if not failed:
        return None
    if len(failed) == 1:
        return {"message": failed[0].message, "hint": failed[0].hint, "locked": False}
    return {
        "message": f"could not merge {len(failed)} tables: the warnings say why",
        "hint": "all other tables are merged; these wait where they were for another run",
        "locked": False,
    }
