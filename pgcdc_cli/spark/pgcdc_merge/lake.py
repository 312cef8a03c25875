"""What the merge asks of a table format: where tables are, how far they are merged, and one commit a range.

A commit carries its mark, in the same commit: whatever is killed when, a range is in a table once or not yet.
"""

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Protocol

from pyspark.sql import DataFrame, SparkSession

CONTROL = "_pgcdc"
"""Where the control table is."""

_CONFLICTS = re.compile(
    r"\bConcurrent\w*Exception\b|DELTA_CONCURRENT_"
    r"|ValidationException|CommitFailedException|AlreadyExistsException"
)
"""What Delta and Iceberg raise where another has written the table."""


@dataclass(frozen=True)
class Mark:
    """How far a table is merged: what a commit says of itself."""

    stream_id: str
    table: str
    mode: str
    segment: int
    lsn: str

    @property
    def app_id(self) -> str:
        return f"pgcdc:{self.stream_id}:{self.table}:{self.mode}"

    @property
    def metadata(self) -> str:
        position = {
            "stream_id": self.stream_id,
            "table": self.table,
            "mode": self.mode,
            "segment": self.segment,
            "lsn": self.lsn,
        }
        return json.dumps({"pgcdc": position})


@dataclass(frozen=True)
class Commit:
    """A finished commit: the table's version, and rows inserted, updated and deleted."""

    version: int
    inserted: int
    updated: int
    deleted: int


class LakeTable(Protocol):
    """A table, which needn't exist yet; it is written through a session of its own.

    `name` is what it is called in SQL, `version` what `VERSION AS OF` takes (None where there is no table).
    """

    name: str
    version: int | None

    @property
    def exists(self) -> bool: ...

    def was_set_back(self, version: int) -> bool:
        """Say whether the table is no longer what followed from a version."""
        ...

    def written_since(self, version: int) -> str | None:
        """Say what others did to its rows since a version; None for nothing."""
        ...

    def merged_segment(self, app_id: str) -> int:
        """Return the last segment that is merged into it; 0 for none."""
        ...

    def stored_type(self, spark: str) -> str:
        """Say as which type the format keeps a column."""
        ...

    def columns(self) -> list[tuple[str, str]]:
        """Return names and types, as `Column.spark`."""
        ...

    def read(self) -> DataFrame: ...

    def replace(self, rows: DataFrame, mark: Mark | None) -> Commit:
        """Write rows in place of whatever there is; creates the table."""
        ...

    def append(self, rows: DataFrame, mark: Mark) -> Commit:
        """Add rows; creates the table."""
        ...

    def merge(self, statement: str, mark: Mark, changed: int) -> Commit:
        """Run a MERGE statement on it, whose source has so many rows."""
        ...

    def compact(self) -> int:
        """Write its small files together; returns the version after it."""
        ...

    def expire(self, hours: int) -> None:
        """Remove what only versions older than that need."""
        ...


class Lake(Protocol):
    """A table format, and the warehouse in which its tables are."""

    def place(self, schema: str, table: str, mode: str) -> str:
        """Return where a table is: what `open` and the control table know it by."""
        ...

    @property
    def control_place(self) -> str: ...

    @property
    def settings(self) -> Mapping[str, str]:
        """Settings that each session needs."""
        ...

    def open(self, session: SparkSession, place: str) -> LakeTable: ...

    def publish(self, session: SparkSession, schema: str, table: str, mode: str) -> None:
        """Give a table its name in the catalog, if there is one."""
        ...


def is_conflict(error: Exception) -> bool:
    """Say whether a commit was refused since another had come before it."""
    return _CONFLICTS.search(str(error)) is not None


def is_ours(metadata: str | None) -> bool:
    """Say whether a commit carries a mark."""
    return metadata is not None and metadata.startswith('{"pgcdc"')


def quoted(name: str) -> str:
    """Quote an identifier for SQL."""
    return "`" + name.replace("`", "``") + "`"


def literal(text: str) -> str:
    """Quote a string for SQL."""
    return "'" + text.replace("\\", "\\\\").replace("'", "\\'") + "'"
