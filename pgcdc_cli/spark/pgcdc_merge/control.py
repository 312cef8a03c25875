"""The control table, WAREHOUSE/_pgcdc, and the lock of a warehouse.

For each mode there is one row for each table and one for all of them (`table` is empty). The planned range is
a property of the table, and at first in that row: it is written before the first table and the rows after the
last, so that a planned segment beyond the merged one is a run that did not come to its end. Readers who want
tables that agree read the versions it names. What it says is also in WAREHOUSE/_pgcdc.json, written last, for
who has no Spark at hand.
"""

import datetime as dt
import fcntl
import json
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, TextIO, TypeVar

from py4j.protocol import Py4JJavaError  # type: ignore[import-untyped]  # it has no annotations
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812 - PySpark's own habit

from .lake import CONTROL, Lake, LakeTable, is_conflict, plan_plainly
from .merge_errors import MergeError, cause_of
from .options import MERGE
from .segments import HadoopFiles, join

ALL = ""
RECORD = f"{CONTROL}.json"
_PLANNED = "pgcdc.planned."
"""Begins the name of the table's property, one for each mode, that has the planned segment."""

_SCHEMA = (
    "stream_id string, `table` string, mode string, path string, planned_segment bigint, segment bigint,"
    " lsn string, version bigint, inserted bigint, updated bigint, deleted bigint, unfit bigint,"
    " keyless boolean, problem string, merged_at timestamp, oid bigint, warning string,"
    " former array<struct<oid: bigint, version: bigint, segment: bigint>>, keyed_by array<string>,"
    " columns array<struct<name: string, position: int, type: string>>"
)

_RESTORE = "restore it from a copy, or remove it: the tables know themselves what they have"
_CONFIGURED = "see to the catalog's settings (-- --conf spark.sql.catalog.NAME...)"

NOBODY = 0
"""The OID of a lake table whose table has another name now."""

TableMode = tuple[str, str]
"""A table and a mode."""

Written = TypeVar("Written")


@dataclass(frozen=True)
class Former:
    """An OID that had a lake table's name: the last version with its rows, and the segment they were at."""

    oid: int
    version: int
    segment: int


@dataclass(frozen=True)
class KnownColumn:
    """A lake table's column: its number in the source's table, and its type there; None where unknown."""

    name: str
    position: int | None
    type: str | None


@dataclass(frozen=True)
class ControlRow:
    """How far a table (or all tables) is merged, and what the last run that changed it did.

    `keyless` marks the changelog of a table that can't be merged since it has no key. `oid` is the source
    table's, whose rows it has (None where an earlier pgcdc merged it), `former` are those whose rows it had.
    `warning` says what its rows may lack. `keyed_by` are the columns of the key that its rows were found by
    last (None where an earlier pgcdc merged it), `columns` what is known of all its columns.
    """

    stream_id: str
    table: str
    mode: str = MERGE
    path: str | None = None
    planned_segment: int | None = None
    segment: int = 0
    lsn: str = "0/0"
    version: int | None = None
    inserted: int = 0
    updated: int = 0
    deleted: int = 0
    unfit: int = 0
    keyless: bool = False
    problem: str | None = None
    merged_at: dt.datetime | None = None
    oid: int | None = None
    warning: str | None = None
    former: tuple[Former, ...] = ()
    keyed_by: tuple[str, ...] | None = None
    columns: tuple[KnownColumn, ...] = ()

    @property
    def key(self) -> TableMode:
        return self.table, self.mode

    def to_json(self) -> dict[str, Any]:
        changed: dict[str, Any] = {
            "merged_at": self.merged_at and self.merged_at.isoformat(),
            "former": [asdict(one) for one in self.former],
            "keyed_by": self.keyed_by and list(self.keyed_by),
            "columns": [asdict(one) for one in self.columns],
        }
        return {**asdict(self), **changed}

    def caught_up(self, segment: int, lsn: str) -> "ControlRow":
        """Move a table that has no changes up to a segment."""
        return self if self.segment >= segment else replace(self, segment=segment, lsn=lsn)


@dataclass(frozen=True)
class ModeProgress:
    """How far the tables are in one mode."""

    rows: Mapping[TableMode, ControlRow]
    mode: str

    def of(self, table: str) -> ControlRow | None:
        """Return a table's row; None if no run has met it."""
        return self.rows.get((table, self.mode))

    @property
    def all(self) -> ControlRow | None:
        return self.rows.get((ALL, self.mode))


class ControlTable:
    """The control table of a warehouse, through a session of its own."""

    def __init__(self, spark: SparkSession, lake: Lake, warehouse: str) -> None:
        plan_plainly(spark)
        self._spark = spark
        self._lake = lake
        self._record = join(warehouse, RECORD)
        self._version: int | None = None
        self.rows: dict[TableMode, ControlRow] = {}
        self.refresh()

    def refresh(self) -> None:
        """Read the rows, unless the table's version is the one that was read or written here last."""
        try:
            table = self._open()
            if not table.exists or table.version != self._version:
                self.rows = _rows(table) if table.exists else {}
            self._version = table.version
        except (PySparkException, Py4JJavaError, TypeError) as error:
            raise MergeError(
                f'could not read the control table "{self._lake.control_location}": {cause_of(error)}',
                _RESTORE if self._lake.catalog is None else f"{_CONFIGURED}; if they are right, {_RESTORE}",
            ) from error

    def _open(self) -> LakeTable:
        return self._lake.open(self._spark, self._lake.control_location)

    def progress(self, mode: str) -> ModeProgress:
        return ModeProgress(self.rows, mode)

    def plan(self, stream_id: str, mode: str, segment: int) -> None:
        """Say up to which segment this run will merge, before it does."""
        row = self.progress(mode).all
        if row is None:
            new = ControlRow(stream_id, ALL, mode, planned_segment=segment)
            self._write({**self.rows, new.key: new})
        else:
            # It takes a fraction of what writing rows does.
            self._commit(lambda table: table.note(_PLANNED + mode, str(segment)))

    def finish(self, rows: Mapping[TableMode, ControlRow]) -> None:
        """Say what the run did."""
        self._write({**self.rows, **rows})
        self.keep_record()

    def keep_record(self) -> None:
        """Write the record, unless it is there and says what the control table says."""
        rows = [row.to_json() for row in self.rows.values()]
        content = json.dumps({"format_version": 1, "rows": rows}).encode() + b"\n"
        files = HadoopFiles(self._spark)
        if rows and files.read(self._record) != content:
            files.write(self._record, content)

    def _frame(self, rows: Mapping[TableMode, ControlRow]) -> DataFrame:
        """Make a data frame, by JSON: out of Python's own values it would need Python on the executors."""
        text = F.lit(json.dumps([row.to_json() for row in rows.values()]))
        one = self._spark.range(0, 1, 1, 1)
        return one.select(F.inline(F.from_json(text, f"array<struct<{_SCHEMA}>>", {"mode": "FAILFAST"})))

    def _write(self, rows: dict[TableMode, ControlRow]) -> None:
        commit = self._commit(lambda table: table.replace(self._frame(rows), None))
        self.rows, self._version = rows, commit.version

    def _commit(self, write: Callable[[LakeTable], Written]) -> Written:
        """Write the table; a MergeError if another merge does, too."""
        try:
            return write(self._open())
        except (PySparkException, Py4JJavaError) as error:
            if not is_conflict(error):
                raise
            raise MergeError(
                f'could not write "{self._lake.control_location}": another merge wrote it at the same time',
                "wait for it to end, and run again",
                locked=True,
            ) from error


def _rows(table: LakeTable) -> dict[TableMode, ControlRow]:
    """Read a control table."""
    found = [_row(**row.asDict()) for row in table.read().collect()]
    return {row.key: row if row.table else _planned(row, table) for row in found}


def _planned(row: ControlRow, table: LakeTable) -> ControlRow:
    """Have a row of all tables say what is planned, where that isn't merged."""
    segment = int(table.noted(_PLANNED + row.mode) or 0)
    return replace(row, planned_segment=segment) if segment > row.segment else row


def _row(
    *,
    merged_at: dt.datetime | None,
    former: list[tuple[int, int, int]] | None = None,
    keyed_by: list[str] | None = None,
    columns: list[tuple[str, int | None, str | None]] | None = None,
    **values: Any,  # noqa: ANN401 - of several types
) -> ControlRow:
    before = tuple(Former(*one) for one in former or ())
    key = None if keyed_by is None else tuple(keyed_by)
    # PySpark gives the driver's local time, without a zone.
    merged_at = merged_at and merged_at.astimezone(dt.UTC)
    known = tuple(KnownColumn(*one) for one in columns or ())
    return ControlRow(**values, merged_at=merged_at, former=before, keyed_by=key, columns=known)


@contextmanager
def locked(warehouse: str) -> Iterator[None]:
    """Keep a second merge out, on local file systems; elsewhere the table format refuses the later commit."""
    if not warehouse.startswith("file:"):
        yield
        return
    directory = Path(warehouse.removeprefix("file:"))
    with _lock_file(directory) as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            raise MergeError(
                f'could not merge into "{directory}": another merge is under way',
                "wait for it to end",
                locked=True,
            ) from error
        yield


def _lock_file(directory: Path) -> TextIO:
    try:
        directory.mkdir(parents=True, exist_ok=True)
        return (directory / f"{CONTROL}.lock").open("w", encoding="utf-8")
    except OSError as error:
        raise MergeError(
            f'could not write to "{directory}": {error.strerror}',
            "give --warehouse a directory that this user can write to",
        ) from error
