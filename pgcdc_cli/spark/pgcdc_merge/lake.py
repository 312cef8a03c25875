"""What the merge requires of a table format: where tables are, how far they are merged, one commit per range.

A commit contains its own mark: so whenever a run is killed, a range is in a table exactly once, or not yet.
Each table is written through a Spark session of its own, so that tables can be merged at the same time.
"""

import json
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import ClassVar, Protocol, TypeAlias, TypeVar

from pyspark.sql import Column as Expression
from pyspark.sql import DataFrame, SparkSession

SETTINGS = {
    "spark.sql.session.timeZone": "UTC",
    "spark.sql.caseSensitive": "true",
    "spark.sql.ansi.enabled": "true",
    "spark.sql.json.enableExactStringParsing": "true",
    "spark.sql.variant.allowDuplicateKeys": "true",
    "spark.sql.parquet.datetimeRebaseModeInWrite": "CORRECTED",
    # Spark's default is INT96, which others read as nanoseconds: the year 1 becomes 1754 then.
    "spark.sql.parquet.outputTimestampType": "TIMESTAMP_MICROS",
    # By default ten thousand tasks list files, which takes minutes with few cores.
    "spark.sql.sources.parallelPartitionDiscovery.parallelism": "32",
}
"""Settings of every session."""

STATIC = {
    # By default each expression records the Python line that made it: thousands of calls to the JVM.
    "spark.python.sql.dataFrameDebugging.enabled": "false",
}
"""Settings of the Spark application."""

_PLAIN = {
    "spark.sql.shuffle.partitions": "1",
    "spark.sql.adaptive.enabled": "false",
    "spark.sql.codegen.wholeStage": "false",
    "spark.sql.codegen.factoryMode": "NO_CODEGEN",
    "spark.databricks.delta.optimizeWrite.enabled": "false",
}
"""For few rows, compiling plans, planning each stage again, and splitting work take the most time."""

UNKNOWN = -1
"""Stands for an unknown version; no table has it."""

CONTROL = "_pgcdc"
"""Folder or namespace of the control table."""

AT_ONCE = 4
"""Number of tables that are written at the same time."""

_CONFLICTS = re.compile(
    r"\bConcurrent\w*Exception\b|DELTA_CONCURRENT_|DELTA_METADATA_CHANGED|DELTA_PROTOCOL_CHANGED"
    r"|ValidationException|CommitFailedException|AlreadyExistsException"
)
"""Errors of Delta and Iceberg if another writer changed the table."""


Item = TypeVar("Item")
Result = TypeVar("Result")

NamedTypes: TypeAlias = Sequence[tuple[str, str]]
"""Column names, with types as written by `DataType.simpleString`."""


@dataclass(frozen=True)
class CommitMark:
    """How far a table is merged, as recorded in the commit.

    `gone` is the OID of a table whose rows are replaced by another's within the same range.
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
    """A finished commit: the table's new version, and the numbers of rows inserted, updated and deleted."""

    version: int
    inserted: int
    updated: int
    deleted: int


class LakeTable(Protocol):
    """A table, which may not exist yet; it is written through a session of its own.

    `name` is its name in SQL, `version` a value for `VERSION AS OF` (None if there is no table). `rescales`:
    a decimal column can get a larger scale.
    """

    rescales: ClassVar[bool]
    name: str
    version: int | None

    @property
    def exists(self) -> bool: ...

    @property
    def size(self) -> int:
        """Bytes of its files; 0 if there is no table."""
        ...

    def was_set_back(self, version: int) -> bool:
        """Whether the table's current state does not descend from a version."""
        ...

    def written_since(self, version: int) -> str | None:
        """Describe what others did to its rows since a version; None if nothing."""
        ...

    def merged_segment(self, app_id: str) -> int:
        """Return the last segment that is merged into it; 0 if there is none."""
        ...

    def stored_type(self, spark: str) -> str:
        """Return the type in which the format stores a Spark type."""
        ...

    def columns(self) -> list[tuple[str, str]]:
        """Return the columns' names, with types as written by `DataType.simpleString`."""
        ...

    def alter(self, added: NamedTypes, widened: NamedTypes, struct: str | None = None) -> None:
        """Add and widen columns, in commits of their own; a run that dies in between continues from there.

        Added columns are NULL. With `struct`, that column's fields are changed, too.
        """
        ...

    def fill(self, values: Mapping[str, Expression]) -> None:
        """Add columns that have a value in all rows, in a commit of its own, which rewrites all rows."""
        ...

    def read(self, version: int | None = None) -> DataFrame:
        """Read its rows, now or at a version."""
        ...

    def version_of(self, app_id: str) -> int:
        """Return the version of the last commit with this mark. Raises MergeError if no recent one has it."""
        ...

    def replace(self, rows: DataFrame, mark: CommitMark | None) -> TableCommit:
        """Replace all rows, even by rows with other columns; creates the table if needed.

        Without a mark, the version is UNKNOWN if another commit may have been made in between.
        """
        ...

    def append(self, rows: DataFrame, mark: CommitMark) -> TableCommit:
        """Append rows; creates the table if needed."""
        ...

    def merge(self, statement: str, mark: CommitMark, changed: int) -> TableCommit:
        """Run a MERGE statement on it; its source has `changed` rows."""
        ...

    def rewrite(self, made: Callable[[DataFrame], DataFrame], mark: CommitMark | None) -> int | None:
        """Replace its rows by what `made` makes of them, in one commit; return the version.

        Return None, without writing anything, if that isn't the fastest way.
        """
        ...

    def note(self, name: str, value: str) -> None:
        """Set a property, in a commit that leaves its rows alone."""
        ...

    def noted(self, name: str) -> str | None:
        """Return a property; None if it isn't set."""
        ...

    def convert(self, readers: str) -> int:
        """Make it require exactly the features of these readers; return the version after that."""
        ...

    def compact(self) -> int:
        """Combine small files; return the version after that."""
        ...

    def expire(self, hours: int) -> None:
        """Remove files and snapshots that only older versions need."""
        ...


class Lake(Protocol):
    """A table format, and the warehouse of its tables.

    `title` is the format's name; `class_file` is a class in its jars; `trace` is a folder inside its control
    table's folder. `reserved` are names that its tables' columns can't have. `extensions` are settings that
    the first session needs from its start.
    """

    title: ClassVar[str]
    class_file: ClassVar[str]
    trace: ClassVar[str]
    reserved: ClassVar[frozenset[str]]
    extensions: ClassVar[Mapping[str, str]]

    @property
    def catalog(self) -> str | None:
        """Name of the catalog in which its tables have names; None for none."""
        ...

    def location(self, schema: str, table: str, mode: str, mark: str = "") -> str:
        """Choose a new table's location, the one for `open` and the control table.

        `mark` distinguishes it from another table whose name is the same for some file systems.
        """
        ...

    def known_location(self, path: str) -> str:
        """Return the location of a table in the control table: the warehouse may have been moved."""
        ...

    @property
    def control_location(self) -> str: ...

    @property
    def settings(self) -> Mapping[str, str]:
        """Settings of each session."""
        ...

    def open(self, session: SparkSession, location: str) -> LakeTable: ...

    def publish(self, session: SparkSession, path: str, schema: str, table: str, mode: str) -> str | None:
        """Register the table at a path in the catalog, if there is one; return a warning if that fails."""
        ...


def new_session(spark: SparkSession, lake: Lake) -> SparkSession:
    """Make a session with settings and views of its own."""
    session = spark.newSession()
    for name, value in {**SETTINGS, **lake.settings}.items():
        session.conf.set(name, value)
    return session


def plan_plainly(session: SparkSession) -> None:
    """Set up a session for the simplest plans, which suit few rows and a small table."""
    for name, value in _PLAIN.items():
        session.conf.set(name, value)


def alterations(
    table: str, properties: Mapping[str, str], added: NamedTypes, widened: NamedTypes, struct: str | None
) -> Iterator[str]:
    """Yield the statements that set properties, and add and widen columns, and fields of `struct` with them.

    A run that goes on after a killed one looks at the columns alone: so their fields come no later.
    """
    prefixes = [*([f"{quoted(struct)}."] if struct else []), ""]
    if properties:
        pairs = ", ".join(f"'{name}' = '{value}'" for name, value in properties.items())
        yield f"ALTER TABLE {table} SET TBLPROPERTIES ({pairs})"
    if added:
        columns = [f"{prefix}{quoted(name)} {spark}" for prefix in prefixes for name, spark in added]
        yield f"ALTER TABLE {table} ADD COLUMNS ({', '.join(columns)})"
    for name, spark in widened:
        for prefix in prefixes:
            yield f"ALTER TABLE {table} ALTER COLUMN {prefix}{quoted(name)} TYPE {spark}"


def is_conflict(error: Exception) -> bool:
    """Whether a commit was refused since another one was made before it."""
    return _CONFLICTS.search(str(error)) is not None


def is_ours(metadata: str | None) -> bool:
    """Whether a commit is one of pgcdc's."""
    return metadata is not None and metadata.startswith('{"pgcdc"')


def quoted(name: str) -> str:
    """Quote an identifier for SQL."""
    return "`" + name.replace("`", "``") + "`"


def literal(text: str) -> str:
    """Quote a string for SQL."""
    return "'" + text.replace("\\", "\\\\").replace("'", "\\'") + "'"


def at_once(work: Callable[[Item], Result], items: Iterable[Item]) -> list[Result]:
    """Do the same with many tables, with some at the same time."""
    with ThreadPoolExecutor(AT_ONCE) as pool:
        return list(pool.map(work, items))
