"""Iceberg tables: their state, and one snapshot per range of segments.

A snapshot's summary carries its mark: `pgcdc.id`, which is `pgcdc:<stream_id>:<table>:<mode>`, and
`pgcdc.segment`, the range's last segment. MERGE and DataFrame writes keep these properties; DELETE and
TRUNCATE statements don't, so neither is used. A table is written from the snapshot in which its mark was
looked for: if another merge commits in between, Iceberg refuses the commit.
"""

import datetime as dt
import re
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass
from typing import Any, ClassVar

from pyspark.sql import Column as Expression
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812 - PySpark's own habit

from .folder_names import folder_name
from .java_classes import java_class
from .lake import CONTROL, UNKNOWN, CommitMark, NamedTypes, TableCommit, alterations, literal, quoted
from .merge_errors import MergeError
from .options import ANY, CHANGELOG

_CATALOG = "pgcdc"
_PROPERTY = "spark.sql.iceberg.snapshot-property."
_ID, _SEGMENT, _POSITION = "pgcdc.id", "pgcdc.segment", "pgcdc.position"
_FOLLOWS = "pgcdc.follows"
_COUNTS = "spark.merge-into.num-target-rows-"
_ATOMIC = ("file:", "hdfs:")
"""File systems with an atomic rename, which Iceberg's Hadoop catalog requires."""

_IDENTIFIER = re.compile("`(?:[^`]|``)*`")

_PROPERTIES = {"format-version": "2", "write.merge.mode": "merge-on-read"}
"""With merge-on-read, a merge of few rows writes these rows and position deletes, instead of whole files."""

_VARIANTS = {"format-version": "3"}


@dataclass(frozen=True)
class IcebergLake:
    """Tables at WAREHOUSE/schema/table, changelogs at WAREHOUSE/schema/table.changelog; or in a catalog.

    Without `catalog` it is Iceberg's Hadoop catalog, whose tables have their names' locations. `readers` has
    no effect.
    """

    title: ClassVar[str] = "Iceberg"
    class_file: ClassVar[str] = "org/apache/iceberg/spark/SparkCatalog.class"
    trace: ClassVar[str] = "control"
    # Its metadata columns, which it finds by name (Iceberg's class MetadataColumns).
    reserved: ClassVar[frozenset[str]] = frozenset(
        {"_file", "_pos", "_deleted", "_spec_id", "_partition", "_row_id", "_last_updated_sequence_number"}
    )
    extensions: ClassVar[Mapping[str, str]] = {
        "spark.sql.extensions": "org.apache.iceberg.spark.extensions.IcebergSparkSessionExtensions"
    }

    warehouse: str
    catalog: str | None = None
    readers: str = ANY

    def __post_init__(self) -> None:
        if self.catalog is None and not self.warehouse.startswith(_ATOMIC):
            raise MergeError(
                f'could not keep Iceberg tables in "{self.warehouse}": its file system can\'t rename'
                " atomically, so one of two merges at once could be lost",
                "name a catalog that you configured: --catalog NAME -- --conf spark.sql.catalog.NAME=...",
            )

    def location(self, schema: str, table: str, mode: str, mark: str = "") -> str:
        if self.catalog is None:
            suffix = f".{CHANGELOG}" if mode == CHANGELOG else ""
            return self._name(folder_name(schema), folder_name(table) + mark + suffix)
        return self._name(schema, table + ("_changelog" if mode == CHANGELOG else ""))

    def known_location(self, path: str) -> str:
        return path

    def _name(self, *parts: str) -> str:
        return ".".join(map(quoted, (self.catalog or _CATALOG, *parts)))

    @property
    def control_location(self) -> str:
        return self._name(CONTROL, "control")

    @property
    def settings(self) -> Mapping[str, str]:
        if self.catalog is not None:
            return {}
        name = f"spark.sql.catalog.{_CATALOG}"
        return {
            name: "org.apache.iceberg.spark.SparkCatalog",
            f"{name}.type": "hadoop",
            f"{name}.warehouse": self.warehouse,
        }

    def open(self, session: SparkSession, location: str) -> "IcebergTable":
        return IcebergTable(session, location)

    def publish(self, session: SparkSession, path: str, schema: str, table: str, mode: str) -> str | None:
        """Do nothing: tables have names from the beginning."""


class IcebergTable:
    """The table of a name, which may not exist yet; it is written through a session of its own."""

    rescales: ClassVar[bool] = False

    def __init__(self, session: SparkSession, name: str) -> None:
        self._session = session
        self.name = name
        self._table: Any = self._load() if session.catalog.tableExists(name) else None
        newest = None if self._table is None else self._table.currentSnapshot()
        self.version: int | None = None if newest is None else int(newest.snapshotId())

    def _load(self) -> Any:  # noqa: ANN401 - Java's
        """Load the table from the session's catalog, which caches it: statements see this state."""
        # SQL has no quick way to a table's snapshots.
        util = java_class(self._session, "org.apache.iceberg.spark.Spark3Util")
        return util.loadIcebergTable(self._session._jsparkSession, self.name)  # noqa: SLF001

    @property
    def exists(self) -> bool:
        return self._table is not None

    @property
    def size(self) -> int:
        newest = None if self._table is None else self._table.currentSnapshot()
        return 0 if newest is None else int(newest.summary().get("total-files-size") or 0)

    def _ancestors(self) -> Iterator[Any]:
        """Yield the current snapshot and its ancestors, newest first."""
        snapshot = None if self._table is None else self._table.currentSnapshot()
        while snapshot is not None:
            yield snapshot
            parent = snapshot.parentId() or snapshot.summary().get(_FOLLOWS)
            snapshot = None if parent is None else self._table.snapshot(int(parent))

    def was_set_back(self, version: int) -> bool:
        if self._table is None:
            return True
        if self._table.snapshot(version) is None:
            # The snapshot has expired, unless this is another table.
            return self._table.properties().get(_ID) is None
        return all(int(snapshot.snapshotId()) != version for snapshot in self._ancestors())

    def written_since(self, version: int) -> str | None:
        for snapshot in self._ancestors():
            if int(snapshot.snapshotId()) == version:
                break
            if snapshot.operation() != "replace" and snapshot.summary().get(_ID) is None:
                return f"{snapshot.operation()} (snapshot {snapshot.snapshotId()})"
        return None

    def merged_segment(self, app_id: str) -> int:
        for snapshot in self._ancestors():
            summary = snapshot.summary()
            if summary.get(_ID) == app_id:
                return int(summary.get(_SEGMENT))
        return 0

    def stored_type(self, spark: str) -> str:
        return spark.replace("smallint", "int")

    def columns(self) -> list[tuple[str, str]]:
        return [(field.name, field.dataType.simpleString()) for field in self.read().schema]

    def alter(self, added: NamedTypes, widened: NamedTypes, struct: str | None = None) -> None:
        variants = [quoted(name) for name, spark in added if spark == "variant"]
        with self._snapshot_properties({_ID: "pgcdc:columns"}):
            for statement in alterations(
                self.name, self._variants() if variants else {}, added, widened, struct
            ):
                self._session.sql(statement)
            if variants:
                # Iceberg can't read variant columns that its newest snapshot's schema doesn't have.
                nulls = ", ".join(f"CAST(NULL AS variant) AS {name}" for name in variants)
                self._session.sql(f"INSERT INTO {self.name} BY NAME SELECT {nulls} WHERE false")

    def fill(self, values: Mapping[str, Expression]) -> None:
        with self._snapshot_properties({_ID: "pgcdc:columns"}), self._following():
            self._replacing(self.read().withColumns(dict(values)), None).replace()
        self._table = self._load()

    def read(self, version: int | None = None) -> DataFrame:
        if version is None:
            return self._session.table(self.name)
        return self._session.sql(f"SELECT * FROM {self.name} VERSION AS OF {version}")  # noqa: S608 - it is quoted

    def version_of(self, app_id: str) -> int:
        for snapshot in self._ancestors():
            if snapshot.summary().get(_ID) == app_id:
                return int(snapshot.snapshotId())
        raise MergeError(f'could not read "{self.name}": the commit of "{app_id}" is not there', "run again")

    def replace(self, rows: DataFrame, mark: CommitMark | None) -> TableCommit:
        removed = self.read().count() if self.exists and mark is not None else 0
        anew = self.exists and self._differs(rows)
        with self._marked(mark), self._following() if anew else nullcontext():
            if anew:
                self._replacing(rows, mark).replace()
            elif self.exists:
                self._checked_writer(rows).overwrite(F.lit(True))
            else:
                self._create(rows, mark)
        found, summary = self._find_commit(mark)
        known = mark is not None or self._table.currentSnapshot().parentId() == self.version
        return TableCommit(found if known else UNKNOWN, int(summary.get("added-records", 0)), 0, removed)

    def append(self, rows: DataFrame, mark: CommitMark) -> TableCommit:
        with self._marked(mark):
            if self.exists:
                # No row matches this condition, unless another merge has written this range.
                self._checked_writer(rows).overwrite(F.col("_pgcdc_segment") >= mark.segment)
            else:
                self._create(rows, mark)
        found, summary = self._find_commit(mark)
        return TableCommit(found, int(summary.get("added-records", 0)), 0, 0)

    def merge(self, statement: str, mark: CommitMark, changed: int) -> TableCommit:  # noqa: ARG002 - a property says how
        with self._marked(mark):
            self._session.sql(statement)
        found, summary = self._find_commit(mark)
        counts = (int(summary.get(_COUNTS + what, 0)) for what in ("inserted", "updated", "deleted"))
        return TableCommit(found, *counts)

    def rewrite(self, made: Callable[[DataFrame], DataFrame], mark: CommitMark | None) -> int | None:  # noqa: ARG002 - a MERGE is quick
        return None

    def note(self, name: str, value: str) -> None:
        self._session.sql(f"ALTER TABLE {self.name} SET TBLPROPERTIES ({literal(name)} = {literal(value)})")

    def noted(self, name: str) -> str | None:
        found = None if self._table is None else self._table.properties().get(name)
        return None if found is None else str(found)

    def convert(self, readers: str) -> int:  # noqa: ARG002 - they are the same for all
        return self._find_commit(None)[0]

    def compact(self) -> int:
        self._call(
            "rewrite_data_files", "options => map('min-input-files', '2', 'delete-file-threshold', '1')"
        )
        return self._find_commit(None)[0]

    def expire(self, hours: int) -> None:
        before = dt.datetime.now(dt.UTC) - dt.timedelta(hours=hours)
        self._call(
            "expire_snapshots", f"older_than => TIMESTAMP '{before:%Y-%m-%d %H:%M:%S.%f}'", "retain_last => 1"
        )

    def _call(self, procedure: str, *arguments: str) -> None:
        catalog = _IDENTIFIER.findall(self.name)[0]
        given = ", ".join([f"table => {literal(self.name)}", *arguments])
        self._session.sql(f"CALL {catalog}.system.{procedure}({given})").collect()

    def _create(self, rows: DataFrame, mark: CommitMark | None) -> None:
        namespace = ".".join(_IDENTIFIER.findall(self.name)[:-1])
        self._session.sql(f"CREATE NAMESPACE IF NOT EXISTS {namespace}")
        self._described(rows, mark, _PROPERTIES | (_VARIANTS if _has_variant(rows) else {})).create()

    def _replacing(self, rows: DataFrame, mark: CommitMark | None) -> Any:  # noqa: ANN401 - as below
        """Make a writer that replaces the columns; the table's properties, maybe the user's, are kept."""
        return self._described(rows, mark, self._variants() if _has_variant(rows) else {})

    def _variants(self) -> Mapping[str, str]:
        """Return the properties that variants need; the format version must not be lowered."""
        # No property holds it.
        version = int(java_class(self._session, "org.apache.iceberg.TableUtil").formatVersion(self._table))
        return _VARIANTS if version < int(_VARIANTS["format-version"]) else {}

    def _described(self, rows: DataFrame, mark: CommitMark | None, properties: Mapping[str, str]) -> Any:  # noqa: ANN401 - as below
        """Make a writer with the rows' columns, these properties and the mark's."""
        writer = rows.writeTo(self.name).using("iceberg")
        marked = {} if mark is None else {_ID: mark.app_id}
        for name, value in {**properties, **marked}.items():
            writer = writer.tableProperty(name, value)
        return writer

    def _differs(self, rows: DataFrame) -> bool:
        """Whether rows have other columns than the table."""
        new = {(field.name, self.stored_type(field.dataType.simpleString())) for field in rows.schema}
        return new != set(self.columns())

    def _following(self) -> AbstractContextManager[None]:
        """Record which snapshot the next one follows; after replacing a table, it has no parent."""
        return (
            nullcontext()
            if self.version is None
            else self._snapshot_properties({_FOLLOWS: str(self.version)})
        )

    def _checked_writer(self, rows: DataFrame) -> Any:  # noqa: ANN401 - DataFrameWriterV2 is not exported
        """Make a writer that is valid only for the snapshot that was opened."""
        writer = rows.writeTo(self.name).option("isolation-level", "serializable")
        return (
            writer if self.version is None else writer.option("validate-from-snapshot-id", str(self.version))
        )

    def _marked(self, mark: CommitMark | None) -> AbstractContextManager[None]:
        if mark is None:
            return nullcontext()
        properties = {_ID: mark.app_id, _SEGMENT: str(mark.segment), _POSITION: mark.metadata}
        return self._snapshot_properties(properties)

    @contextmanager
    def _snapshot_properties(self, properties: Mapping[str, str]) -> Iterator[None]:
        """Set properties of the snapshots that are made meanwhile."""
        for name, value in properties.items():
            self._session.conf.set(_PROPERTY + name, value)
        try:
            yield
        finally:
            for name in properties:
                self._session.conf.unset(_PROPERTY + name)

    def _find_commit(self, mark: CommitMark | None) -> tuple[int, Mapping[str, str]]:
        """Find the commit just made, or without a mark the newest; others (such as compaction) may follow."""
        self._table = self._load()
        self._table.refresh()
        for snapshot in self._ancestors():
            summary = dict(snapshot.summary())
            if mark is None or summary.get(_POSITION) == mark.metadata:
                return int(snapshot.snapshotId()), summary
        raise MergeError(
            f'could not merge "{mark and mark.table}": its commit is not there', "another merge: run again"
        )


def _has_variant(rows: DataFrame) -> bool:
    return any(field.dataType.simpleString() == "variant" for field in rows.schema)
