"""The control table, WAREHOUSE/_pgcdc, and the lock of a warehouse.

One row for each table and one for all of them (`table` is empty), which also holds the planned range: it is
written before the first table and the rest after the last, so that a planned segment beyond the merged one
is a run that did not come to its end. Readers who want tables that agree read the versions it names.
"""

import datetime as dt
import fcntl
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict, dataclass, replace
from pathlib import Path

from pyspark.sql import SparkSession

from .delta import DeltaTable
from .errors import MergeError
from .files import join

NAME = "_pgcdc"
ALL = ""
_SCHEMA = (
    "stream_id string, `table` string, path string, planned_segment bigint, segment bigint, lsn string,"
    " version bigint, inserted bigint, updated bigint, deleted bigint, unfit bigint, problem string,"
    " merged_at timestamp"
)


@dataclass(frozen=True)
class ControlRow:
    """How far a table (or all tables) is merged, and what the last run that changed it did."""

    stream_id: str
    table: str
    path: str | None = None
    planned_segment: int | None = None
    segment: int = 0
    lsn: str = "0/0"
    version: int | None = None
    inserted: int = 0
    updated: int = 0
    deleted: int = 0
    unfit: int = 0
    problem: str | None = None
    merged_at: dt.datetime | None = None


class Control:
    """The control table of a warehouse."""

    def __init__(self, spark: SparkSession, warehouse: str) -> None:
        self._spark = spark
        self._path = join(warehouse, NAME)
        self.rows: dict[str, ControlRow] = self._read()

    def _read(self) -> dict[str, ControlRow]:
        if not DeltaTable(self._spark, self._path).exists:
            return {}
        found = self._spark.read.format("delta").load(self._path).collect()
        return {row["table"]: ControlRow(**row.asDict()) for row in found}

    def of(self, table: str) -> ControlRow | None:
        """Return a table's row; None if no run has met it."""
        return self.rows.get(table)

    @property
    def all(self) -> ControlRow | None:
        return self.rows.get(ALL)

    def plan(self, stream_id: str, segment: int) -> None:
        """Say up to which segment this run will merge, before it does."""
        row = self.all or ControlRow(stream_id, ALL)
        self._write({**self.rows, ALL: replace(row, planned_segment=segment)})

    def finish(self, rows: Mapping[str, ControlRow]) -> None:
        """Say what the run did."""
        self._write({**self.rows, **rows})

    def _write(self, rows: dict[str, ControlRow]) -> None:
        values = [tuple(asdict(row).values()) for row in rows.values()]
        frame = self._spark.createDataFrame(values, _SCHEMA).coalesce(1)
        frame.write.format("delta").mode("overwrite").save(self._path)
        self.rows = rows


@contextmanager
def locked(warehouse: str) -> Iterator[None]:
    """Keep a second merge out, on local file systems; elsewhere Delta refuses the later commit."""
    if not warehouse.startswith("file:"):
        yield
        return
    directory = Path(warehouse.removeprefix("file:"))
    directory.mkdir(parents=True, exist_ok=True)
    with (directory / f"{NAME}.lock").open("w", encoding="utf-8") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            raise MergeError(
                f'could not merge into "{directory}": another merge is under way', "wait for it to end"
            ) from error
        yield
