"""The control table, WAREHOUSE/_pgcdc, and the lock of a warehouse.

For each mode it has one row per table, and one for all tables (its `table` is empty). The planned range is a
property of the control table; before there is a row for all tables, it is in that row. It is written before
the first table is merged, and the rows after the last one: so a planned segment beyond the merged one means
that a run did not finish. Readers who need tables of one state read the versions that it names. Its content
is also in WAREHOUSE/_pgcdc.json, written last, for readers without Spark.
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

from .hadoop_files import HadoopFiles, join
from .lake import CONTROL, Lake, LakeTable, is_conflict, plan_plainly
from .merge_errors import WRITABLE, MergeError, cause_of
from .options import MERGE

ALL = ""
RECORD = f"{CONTROL}.json"
_PLANNED = "pgcdc.planned."
"""Prefix of the table's properties, one per mode, that hold the planned segment."""

_SCHEMA = (
    "stream_id string, `table` string, mode string, path string, planned_segment bigint, segment bigint,"
    " lsn string, version bigint, inserted bigint, updated bigint, deleted bigint, unfit bigint,"
    " keyless boolean, problem string, merged_at timestamp, oid bigint, warning string,"
    " former array<struct<oid: bigint, version: bigint, segment: bigint>>, keyed_by array<string>,"
    " columns array<struct<name: string, position: int, type: string, converted: boolean>>"
)

_RESTORE = "restore it from a copy, or remove it: the tables themselves know what they have"
_CONFIGURED = "check the catalog's settings (-- --conf spark.sql.catalog.NAME...)"

NOBODY = 0
"""No table's OID: of a lake table whose source table has another name now, and of a changelog's range."""

TableMode = tuple[str, str]
"""A table's name and a mode."""

Written = TypeVar("Written")


@dataclass(frozen=True)
class Former:
    """An OID that had a lake table's name: the last version with its rows, and their segment.

    The version is None if its rows can't be found any more, or could not be merged.
    """

    oid: int
    version: int | None
    segment: int


@dataclass(frozen=True)
class KnownColumn:
    """A lake table's column: its position in the source table, and its type there; None if unknown.

    `converted`: rows may have values from before the source converted them to that type.
    """

    name: str
    position: int | None
    type: str | None
    converted: bool = False


@dataclass(frozen=True)
class ControlRow:
    """How far a table (or all tables) is merged, and what the last run that changed it did.

    `keyless` marks the changelog of a table that can't be merged since it has no key. `oid` is the OID of the
    source table whose rows it has (None if an earlier pgcdc merged it); `former` are those whose rows it had,
    or of a changelog's, those with rows from before they had a key. `warning` says what its rows may lack.
    `keyed_by` is the key by which its rows were matched last (None if an earlier pgcdc merged it), `columns`
    what is known of its columns.
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
        """Mark a table that has no changes up to a segment as merged up to it."""
        return self if self.segment >= segment else replace(self, segment=segment, lsn=lsn)


@dataclass(frozen=True)
class ModeProgress:
    """How far the tables are merged in one mode."""

    rows: Mapping[TableMode, ControlRow]
    mode: str

    def of(self, table: str) -> ControlRow | None:
        """Return a table's row; None if no run has seen it."""
        return self.rows.get((table, self.mode))

    @property
    def all(self) -> ControlRow | None:
        return self.rows.get((ALL, self.mode))


class ControlTable:
    """The control table of a warehouse; it has a Spark session of its own."""

    def __init__(self, spark: SparkSession, lake: Lake, warehouse: str) -> None:
        plan_plainly(spark)
        self._spark = spark
        self._lake = lake
        self._record = join(warehouse, RECORD)
        self._version: int | None = None
        self.rows: dict[TableMode, ControlRow] = {}
        self.refresh()

    def refresh(self) -> None:
        """Read the rows, unless the table still has the version that was last read or written here."""
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
        """Record up to which segment this run will merge, before it does."""
        row = self.progress(mode).all
        if row is None:
            new = ControlRow(stream_id, ALL, mode, planned_segment=segment)
            self._write({**self.rows, new.key: new})
        else:
            # Setting a property takes a fraction of the time of writing rows.
            self._commit(lambda table: table.note(_PLANNED + mode, str(segment)))

    def finish(self, rows: Mapping[TableMode, ControlRow]) -> None:
        """Record what the run did."""
        self._write({**self.rows, **rows})
        self.keep_record()

    def keep_record(self) -> None:
        """Write the JSON record, unless it already has the control table's content."""
        rows = [row.to_json() for row in self.rows.values()]
        content = json.dumps({"format_version": 1, "rows": rows}).encode() + b"\n"
        files = HadoopFiles(self._spark)
        if rows and files.read(self._record) != content:
            files.write(self._record, content)

    def _frame(self, rows: Mapping[TableMode, ControlRow]) -> DataFrame:
        """Make a DataFrame from JSON; from Python values it would need Python on the executors."""
        text = F.lit(json.dumps([row.to_json() for row in rows.values()]))
        one = self._spark.range(0, 1, 1, 1)
        return one.select(F.inline(F.from_json(text, f"array<struct<{_SCHEMA}>>", {"mode": "FAILFAST"})))

    def _write(self, rows: dict[TableMode, ControlRow]) -> None:
        commit = self._commit(lambda table: table.replace(self._frame(rows), None))
        self.rows, self._version = rows, commit.version

    def _commit(self, write: Callable[[LakeTable], Written]) -> Written:
        """Write the table. Raises MergeError if another merge writes it at the same time."""
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
    """Set the planned segment of a row for all tables, if it isn't merged yet."""
    segment = int(table.noted(_PLANNED + row.mode) or 0)
    return replace(row, planned_segment=segment) if segment > row.segment else row


def _row(
    *,
    merged_at: dt.datetime | None,
    former: list[tuple[int, int | None, int]] | None = None,
    keyed_by: list[str] | None = None,
    columns: list[tuple[Any, ...]] | None = None,
    **values: Any,  # noqa: ANN401 - of several types
) -> ControlRow:
    before = tuple(Former(*one) for one in former or ())
    key = None if keyed_by is None else tuple(keyed_by)
    # PySpark returns local time without a time zone.
    merged_at = merged_at and merged_at.astimezone(dt.UTC)
    known = tuple(KnownColumn(*one) for one in columns or ())
    return ControlRow(**values, merged_at=merged_at, former=before, keyed_by=key, columns=known)


@contextmanager
def locked(warehouse: str) -> Iterator[None]:
    """Lock out a second merge on local file systems; elsewhere the table format refuses the later commit."""
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
            WRITABLE,
        ) from error
