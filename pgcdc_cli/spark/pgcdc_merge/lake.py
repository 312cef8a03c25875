"""What the merge asks of a table format: where tables are, how far they are merged, and one commit a range.

A commit carries its mark, in the same commit: whatever is killed when, a range is in a table once or not yet.
Each table is written through a Spark session of its own, so that tables can be merged at the same time.
"""

import json
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import ClassVar, Protocol, TypeAlias

from pyspark.sql import Column as Expression
from pyspark.sql import DataFrame, SparkSession

SETTINGS = {
    "spark.sql.session.timeZone": "UTC",
    "spark.sql.caseSensitive": "true",
    "spark.sql.ansi.enabled": "true",
    "spark.sql.json.enableExactStringParsing": "true",
    "spark.sql.variant.allowDuplicateKeys": "true",
    "spark.sql.parquet.datetimeRebaseModeInWrite": "CORRECTED",
    # By default Spark writes INT96, of which others read nanoseconds: those of the year 1 are in 1754 then.
    "spark.sql.parquet.outputTimestampType": "TIMESTAMP_MICROS",
    # By default ten thousand tasks list files, which takes minutes where there are few cores.
    "spark.sql.sources.parallelPartitionDiscovery.parallelism": "32",
}
"""What every session has."""

STATIC = {
    # By default each expression takes note of the Python line that made it: thousands of calls of the JVM.
    "spark.python.sql.dataFrameDebugging.enabled": "false",
}
"""What Spark has from its beginning."""

_PLAIN = {
    "spark.sql.shuffle.partitions": "1",
    "spark.sql.adaptive.enabled": "false",
    "spark.sql.codegen.wholeStage": "false",
    "spark.sql.codegen.factoryMode": "NO_CODEGEN",
    "spark.databricks.delta.optimizeWrite.enabled": "false",
}
"""For few rows it takes longest to compile plans, to plan each stage anew, and to divide one task's work."""

UNKNOWN = -1
"""No table's version."""

CONTROL = "_pgcdc"
"""Where the control table is."""

_CONFLICTS = re.compile(
    r"\bConcurrent\w*Exception\b|DELTA_CONCURRENT_|DELTA_METADATA_CHANGED|DELTA_PROTOCOL_CHANGED"
    r"|ValidationException|CommitFailedException|AlreadyExistsException"
)
"""What Delta and Iceberg raise where another has written the table."""


NamedTypes: TypeAlias = Sequence[tuple[str, str]]
"""Columns' names, and their types as `DataType.simpleString` writes them."""


@dataclass(frozen=True)
class CommitMark:
    """How far a table is merged: what a commit says of itself.

    `gone` is the OID of one whose rows another's replace in the same range.
    """

    stream_id: str
    table: str
    mode: str
    segment: int
    lsn: str
    gone: int | None = None

    @property
    def app_id(self) -> str:
        gone = "" if self.gone is None else f":{self.gone}"
        return f"pgcdc:{self.stream_id}:{self.table}:{self.mode}{gone}"

    @property
    def metadata(self) -> str:
        position = {
            "stream_id": self.stream_id,
            "table": self.table,
            "mode": self.mode,
            "segment": self.segment,
            "lsn": self.lsn,
            **({} if self.gone is None else {"oid": self.gone}),
        }
        return json.dumps({"pgcdc": position})


@dataclass(frozen=True)
class TableCommit:
    """A finished commit: the table's version, and rows inserted, updated and deleted."""

    version: int
    inserted: int
    updated: int
    deleted: int


class LakeTable(Protocol):
    """A table, which needn't exist yet; it is written through a session of its own.

    `name` is what it is called in SQL, `version` what `VERSION AS OF` takes (None where there is no table).
    `rescales` says whether a decimal column can get a larger scale.
    """

    rescales: ClassVar[bool]
    name: str
    version: int | None

    @property
    def exists(self) -> bool: ...

    @property
    def size(self) -> int:
        """Bytes in its files; 0 where there is no table."""
        ...

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
        """Return names and types, as `DataType.simpleString` writes them."""
        ...

    def alter(self, added: NamedTypes, widened: NamedTypes, struct: str | None = None) -> None:
        """Add and widen columns, in commits of their own: a run that dies after one goes on from there.

        Added columns are NULL. With `struct`, that column's members are changed, too.
        """
        ...

    def fill(self, values: Mapping[str, Expression]) -> None:
        """Add columns that have a value in all rows, in a commit of its own, which writes them anew."""
        ...

    def read(self, version: int | None = None) -> DataFrame:
        """Read its rows, as they are or as they were at a version."""
        ...

    def version_of(self, app_id: str) -> int:
        """Give the version that the last commit of this name made; a MergeError if there is none of late."""
        ...

    def replace(self, rows: DataFrame, mark: CommitMark | None) -> TableCommit:
        """Write rows in place of whatever there is, also where they have other columns; creates the table.

        Without a mark, the version is UNKNOWN where another commit may have come in between.
        """
        ...

    def append(self, rows: DataFrame, mark: CommitMark) -> TableCommit:
        """Add rows; creates the table."""
        ...

    def merge(self, statement: str, mark: CommitMark, changed: int) -> TableCommit:
        """Run a MERGE statement on it, whose source has so many rows."""
        ...

    def rewrite(self, made: Callable[[DataFrame], DataFrame], mark: CommitMark | None) -> int | None:
        """Write in place of its rows what is made of them, in one commit; returns the version.

        None, and nothing is written, where that isn't the quickest way.
        """
        ...

    def note(self, name: str, value: str) -> None:
        """Give it a property, in a commit that leaves its rows alone."""
        ...

    def noted(self, name: str) -> str | None:
        """Return a property; None where it has none."""
        ...

    def convert(self, readers: str) -> int:
        """Let it ask no more of a reader than that, and no less; returns the version after it."""
        ...

    def compact(self) -> int:
        """Write its small files together; returns the version after it."""
        ...

    def expire(self, hours: int) -> None:
        """Remove what only versions older than that need."""
        ...


class Lake(Protocol):
    """A table format, and the warehouse in which its tables are.

    `title` is the format's name; `class_file` is there if its jars are; `trace` is a folder that its
    control table's folder has. `extensions` are settings that the first session needs from its beginning.
    """

    title: ClassVar[str]
    class_file: ClassVar[str]
    trace: ClassVar[str]
    extensions: ClassVar[Mapping[str, str]]

    @property
    def catalog(self) -> str | None:
        """Name the catalog that its tables have names in."""
        ...

    def location(self, schema: str, table: str, mode: str, mark: str = "") -> str:
        """Return where a new table is to be: what `open` and the control table know it by.

        `mark` tells it from another whose name some file systems take for the same.
        """
        ...

    def known_location(self, path: str) -> str:
        """Return where a table is of which the control table has this: the warehouse may have moved."""
        ...

    @property
    def control_location(self) -> str: ...

    @property
    def settings(self) -> Mapping[str, str]:
        """Settings that each session needs."""
        ...

    def open(self, session: SparkSession, location: str) -> LakeTable: ...

    def publish(self, session: SparkSession, path: str, schema: str, table: str, mode: str) -> str | None:
        """Give the table at a path its name in the catalog, if there is one; says why it can't have it."""
        ...


def new_session(spark: SparkSession, lake: Lake) -> SparkSession:
    """A session whose settings and views are its own."""
    session = spark.newSession()
    for name, value in {**SETTINGS, **lake.settings}.items():
        session.conf.set(name, value)
    return session


def plan_plainly(session: SparkSession) -> None:
    """Have a session take the plainest plans, which suit few rows and a small table."""
    for name, value in _PLAIN.items():
        session.conf.set(name, value)


def alterations(
    table: str, properties: Mapping[str, str], added: NamedTypes, widened: NamedTypes, struct: str | None
) -> Iterator[str]:
    """Give the statements that set properties, and add and widen columns."""
    if properties:
        pairs = ", ".join(f"'{name}' = '{value}'" for name, value in properties.items())
        yield f"ALTER TABLE {table} SET TBLPROPERTIES ({pairs})"
    for prefix in ["", *([f"{quoted(struct)}."] if struct else [])]:
        if added:
            columns = ", ".join(f"{prefix}{quoted(name)} {spark}" for name, spark in added)
            yield f"ALTER TABLE {table} ADD COLUMNS ({columns})"
        for name, spark in widened:
            yield f"ALTER TABLE {table} ALTER COLUMN {prefix}{quoted(name)} TYPE {spark}"


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
