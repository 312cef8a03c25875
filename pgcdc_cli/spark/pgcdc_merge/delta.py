"""Delta tables: their state, and one commit per range of segments.

A commit carries its mark: the transaction identifier `pgcdc:<stream_id>:<table>:<mode>` (Delta's `txn`
action), with the range's last segment as version, so that Delta refuses an earlier one; and the position as
user metadata.

Tables for any reader use no table feature that readers must support: no deletion vectors, so a merge copies
each file in which a row changes; no type widening, so a wider column means a rewrite; no column mapping, so
some column names are refused. Tables for modern readers are recognised by their deletion vectors.
"""

import json
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass
from typing import Any, ClassVar

from pyspark.errors import PySparkException
from pyspark.sql import Column as Expression
from pyspark.sql import DataFrame, DataFrameWriter, SparkSession
from pyspark.sql import functions as F  # noqa: N812 - PySpark's own habit

from .delta_rewrite import rewriting
from .folder_names import folder_name
from .hadoop_files import HadoopFiles, join
from .java_classes import java_class
from .lake import CONTROL, UNKNOWN, CommitMark, NamedTypes, TableCommit, alterations, is_ours, literal, quoted
from .merge_errors import MergeError, cause_of
from .options import ANY, CHANGELOG, MERGE, MODERN

_TXN_APP = "spark.databricks.delta.write.txnAppId"
_TXN_VERSION = "spark.databricks.delta.write.txnVersion"
_METADATA = "spark.databricks.delta.commitInfo.userMetadata"
_COLUMNS_CHANGED = json.dumps({"pgcdc": "columns"})
"""User metadata of a commit that changes columns, but no rows."""

_MAPPING = "delta.columnMapping.mode"
_UNUSUAL = frozenset(" ,;{}()\n\t=")
"""Characters in column names that Delta can only store with column mapping, under physical names.

Readers without support for it find NULL in all columns.
"""

_MERGE_SETTINGS = {
    "spark.databricks.delta.merge.materializeSource": "none",
    "spark.databricks.delta.merge.failSourceCachedAfterMaterialization": "false",
}
"""Folded rows are persisted, and deterministic if computed again, so Delta needs no copy of them."""

_DELETION_VECTORS, _TYPE_WIDENING = "delta.enableDeletionVectors", "delta.enableTypeWidening"
_FEATURES = {_DELETION_VECTORS: "deletionVectors", _TYPE_WIDENING: "typeWidening"}
"""Table features that only newer readers support, by the property that enables each."""

_NTZ = "timestampNtz"
"""The only feature of a column type that an existing table doesn't get by itself."""

_MERGED_PROPERTIES = {"delta.autoOptimize.optimizeWrite": "true"}
"""Makes a merge of few rows into many write few files."""

_MANY = 100_000
_COPYING = {
    "spark.databricks.delta.merge.deletionVectors.persistent": "false",
    "spark.databricks.delta.optimizeWrite.enabled": "false",
}
"""A merge of many rows, and of most of a table's, rewrites files, without a shuffle to make them larger."""

_RECENT_COMMITS = 20

_HARMLESS = frozenset(
    {
        *("OPTIMIZE", "VACUUM START", "VACUUM END", "REORG", "COMPUTE STATS", "CLUSTER BY"),
        *("SET TBLPROPERTIES", "UNSET TBLPROPERTIES", "ADD COLUMNS", "CHANGE COLUMN", "CHANGE COLUMNS"),
        *("UPGRADE PROTOCOL", "ADD CONSTRAINT", "DROP CONSTRAINT", "SET TABLE COMMENT"),
        *("DROP FEATURE", "Deletion Vector Tombstones", "Empty Commit"),
    }
)
"""Operations that leave all rows as they are."""


@dataclass(frozen=True)
class DeltaLake:
    """Tables at WAREHOUSE/schema/table, changelogs at WAREHOUSE/schema/table.changelog.

    With `catalog` they also have a name there. `readers` says which features new tables may require.
    """

    title: ClassVar[str] = "Delta"
    class_file: ClassVar[str] = "org/apache/spark/sql/delta/DeltaLog.class"
    trace: ClassVar[str] = "_delta_log"
    reserved: ClassVar[frozenset[str]] = frozenset()
    extensions: ClassVar[Mapping[str, str]] = {
        "spark.sql.extensions": "io.delta.sql.DeltaSparkSessionExtension",
        "spark.sql.catalog.spark_catalog": "org.apache.spark.sql.delta.catalog.DeltaCatalog",
        # One partition is enough for the log of tables of any usual size; the default of fifty takes seconds.
        # It must be set in every session, since direct access to a log uses another one.
        "spark.databricks.delta.snapshotPartitions": "1",
    }

    warehouse: str
    catalog: str | None = None
    readers: str = ANY

    def location(self, schema: str, table: str, mode: str, mark: str = "") -> str:
        suffix = f".{CHANGELOG}" if mode == CHANGELOG else ""
        return join(self.warehouse, folder_name(schema), folder_name(table) + mark + suffix)

    def known_location(self, path: str) -> str:
        return join(self.warehouse, *path.split("/")[-2:])

    @property
    def control_location(self) -> str:
        return join(self.warehouse, CONTROL)

    @property
    def settings(self) -> Mapping[str, str]:
        return _MERGE_SETTINGS

    def open(self, session: SparkSession, location: str) -> "DeltaTable":
        return DeltaTable(session, location, self.readers)

    def publish(self, session: SparkSession, path: str, schema: str, table: str, mode: str) -> str | None:
        if self.catalog is None:
            return None
        namespace = f"{quoted(self.catalog)}.{quoted(schema)}"
        name = f"{namespace}.{quoted(table + ('_changelog' if mode == CHANGELOG else ''))}"
        try:
            session.sql(f"CREATE NAMESPACE IF NOT EXISTS {namespace}")
            session.sql(f"CREATE TABLE IF NOT EXISTS {name} USING delta LOCATION {literal(path)}")
            # The changelog of `orders` and the table `orders_changelog` have the same name.
            shared = mode == CHANGELOG or table.endswith("_changelog")
            if shared and _location(session, name) != path:
                return f'could not give "{schema}.{table}" its name in the catalog: {name} is something else'
        except PySparkException as error:
            if error.getCondition() != "INVALID_SCHEMA_OR_RELATION_NAME":
                raise
            return f'could not give "{schema}.{table}" its name in the catalog: {cause_of(error)}'
        return None


def _location(session: SparkSession, name: str) -> str | None:
    """Find where the files of a catalog's table are; None for a view, or if they are gone."""
    try:
        found = session.sql(f"DESCRIBE DETAIL {name}").first()
    except PySparkException:
        return None
    return None if found is None else str(found["location"])


class DeltaTable:
    """The table at a path, which may not exist yet; it is written through a session of its own.

    `readers` applies to a new table.
    """

    rescales: ClassVar[bool] = True

    def __init__(self, session: SparkSession, path: str, readers: str) -> None:
        self._session = session
        self._path = path
        self._readers = readers
        self.name = f"delta.{quoted(path)}"
        # If a log's checksum is missing (after a killed run), Delta reads the log in the thread's active
        # session.
        theirs = session._jsparkSession  # noqa: SLF001 - SQL gives no access to transaction identifiers
        java_class(session, "org.apache.spark.sql.SparkSession").setActiveSession(theirs)
        self._log = java_class(session, "org.apache.spark.sql.delta.DeltaLog").forTable(theirs, path)
        self._nothing = java_class(session, "scala.Option").empty()
        self._snapshot = self._update()
        found = int(self._snapshot.version())
        self.version: int | None = None if found < 0 else found

    def _update(self) -> Any:  # noqa: ANN401 - Java's
        return self._log.update(False, self._nothing, self._nothing)

    @property
    def exists(self) -> bool:
        return self.version is not None

    @property
    def size(self) -> int:
        # Without the checksum (after a killed run), Delta has to read the log for it.
        known = self._snapshot.checksumOpt()
        return int(known.get().tableSizeBytes() if known.isDefined() else self._snapshot.sizeInBytes())

    def was_set_back(self, version: int) -> bool:
        return self.version is None or self.version < version

    def written_since(self, version: int) -> str | None:
        if version == self.version:
            return None
        commits = self._session.sql(f"DESCRIBE HISTORY {self.name}").where(F.col("version") > version)
        wanted = commits.select("version", "operation", "operationParameters", "userMetadata")
        restored = self.version
        for number, operation, parameters, metadata in wanted.orderBy(F.desc("version")).collect():
            # Commits undone by RESTORE don't matter, except merges: their marks are still in the table.
            undone = restored is not None and number > restored
            harmless = undone or is_ours(metadata) or operation in _HARMLESS
            if operation == "RESTORE" and not undone and int(parameters.get("version") or -1) >= version:
                restored = int(parameters["version"])
            elif not harmless or (undone and is_ours(metadata)):
                return f"{operation} (version {number})"
        return None

    def merged_segment(self, app_id: str) -> int:
        known = self._snapshot.checksumOpt()
        if not known.isDefined() or not known.get().setTransactions().isDefined():
            found = self._snapshot.transactions().get(app_id)
            return int(found.get()) if found.isDefined() else 0
        marks = known.get().setTransactions().get()
        found = (marks.apply(number) for number in range(marks.size()))
        return next((int(one.version()) for one in found if one.appId() == app_id), 0)

    def stored_type(self, spark: str) -> str:
        return spark

    def columns(self) -> list[tuple[str, str]]:
        return [(field.name, field.dataType.simpleString()) for field in self.read().schema]

    def alter(self, added: NamedTypes, widened: NamedTypes, struct: str | None = None) -> None:
        widens = any(map(self._is_on, _FEATURES))
        properties = {_TYPE_WIDENING: "true"} if widened and widens else {}
        properties |= self._mapping([name for name, _ in added], modern=widens)
        properties |= self._needed_by(spark for _, spark in added)
        for statement in alterations(self.name, properties, added, widened if widens else (), struct):
            self._session.sql(statement)
        if widened and not widens:
            self._rewrite(widened, struct)

    def fill(self, values: Mapping[str, Expression]) -> None:
        self._allow_names([*values])
        self._overwrite(self.read().withColumns(dict(values)))

    def _rewrite(self, widened: NamedTypes, struct: str | None) -> None:
        """Rewrite all rows with wider columns."""
        rows = self.read()
        for name, spark in widened:
            rows = rows.withColumn(name, F.col(quoted(name)).cast(spark))
            if struct is not None:
                member = F.col(f"{quoted(struct)}.{quoted(name)}").cast(spark)
                rows = rows.withColumn(struct, F.col(quoted(struct)).withField(quoted(name), member))
        self._overwrite(rows)

    def _overwrite(self, rows: DataFrame) -> None:
        """Rewrite all rows in one commit that changes nothing but columns."""
        with self._set({_METADATA: _COLUMNS_CHANGED}):
            writer = rows.write.format("delta").mode("overwrite").option("overwriteSchema", "true")
            writer.save(self._path)

    def _mapping(self, names: Sequence[str], *, modern: bool) -> dict[str, str]:
        """Return the property that these column names need. Raises MergeError if the table can't have it."""
        unusual = [name for name in names if _UNUSUAL & set(name)]
        if unusual and not modern and self._property(_MAPPING) is None:
            raise MergeError(
                f'could not write "{self._path}": column "{unusual[0]}" has a character in its name that'
                " Delta stores only in a way that not every reader knows",
                "add --readers modern, or rename the column",
            )
        return {_MAPPING: "name"} if unusual else {}

    def _property(self, name: str) -> str | None:
        found = self._snapshot.metadata().configuration().get(name)
        return str(found.get()) if found.isDefined() else None

    def _is_on(self, name: str) -> bool:
        return self._property(name) == "true"

    def note(self, name: str, value: str) -> None:
        self._alter(f"SET TBLPROPERTIES ({literal(name)} = {literal(value)})")

    def noted(self, name: str) -> str | None:
        return self._property(name)

    def convert(self, readers: str) -> int:
        if readers == ANY and any(_UNUSUAL & set(name) for name, _ in self.columns()):
            raise MergeError(
                f'could not convert "{self._path}": names of its columns need column mapping',
                "rename the columns, and merge into a new warehouse",
            )
        if readers == MODERN and not self._is_on(_DELETION_VECTORS):
            self._alter(f"SET TBLPROPERTIES ('{_DELETION_VECTORS}' = 'true')")
        for name, feature in _FEATURES.items() if readers == ANY else ():
            if self._is_on(name):
                self._alter(f"SET TBLPROPERTIES ('{name}' = 'false')")
            if self._has(feature):
                self._alter(f"DROP FEATURE {feature}")
        return int(self._update().version())

    def _alter(self, what: str) -> None:
        self._session.sql(f"ALTER TABLE {self.name} {what}")

    def _has(self, feature: str) -> bool:
        return feature in str(self._update().protocol().readerAndWriterFeatureNames())

    def read(self, version: int | None = None) -> DataFrame:
        reader = self._session.read.format("delta")
        return (reader if version is None else reader.option("versionAsOf", version)).load(self._path)

    def version_of(self, app_id: str) -> int:
        for version in self._recent():
            if any(transaction["appId"] == app_id for transaction in self._actions(version, "txn")):
                return version
        raise MergeError(f'could not read "{self._path}": the commit of "{app_id}" is not there', "run again")

    def replace(self, rows: DataFrame, mark: CommitMark | None) -> TableCommit:
        if mark is None and self.exists and not self._differs(rows):
            version = self.rewrite(lambda _: rows, mark)
            if version is not None:
                return TableCommit(version, 0, 0, 0)
        removed = self.read().count() if self.exists and mark is not None else 0
        found, metrics = self._write(rows, "overwrite", mark)
        return TableCommit(found, metrics.get("numOutputRows", 0), 0, removed)

    def append(self, rows: DataFrame, mark: CommitMark) -> TableCommit:
        found, metrics = self._write(rows, "append", mark)
        return TableCommit(found, metrics.get("numOutputRows", 0), 0, 0)

    def merge(self, statement: str, mark: CommitMark, changed: int) -> TableCommit:
        if changed >= _MANY and 2 * changed >= self.read().count():
            for name, value in _COPYING.items():
                self._session.conf.set(name, value)
        with self._marked(mark):
            self._session.sql(statement)
        found, metrics = self._find_commit(mark)
        counts = (metrics.get(f"numTargetRows{what}", 0) for what in ("Inserted", "Updated", "Deleted"))
        return TableCommit(found, *counts)

    def rewrite(self, made: Callable[[DataFrame], DataFrame], mark: CommitMark | None) -> int | None:
        # Columns may have been changed since the table was opened.
        same = int(self._update().version()) == self.version
        found = rewriting(self._session, self._log, self._snapshot) if same else None
        if found is None:
            return None
        with self._set({} if mark is None else {_METADATA: mark.metadata}):
            return found.commit(made(found.rows), mark)

    def compact(self) -> int:
        self._session.sql(f"OPTIMIZE {self.name}")
        return int(self._update().version())

    def expire(self, hours: int) -> None:
        self._session.conf.set("spark.databricks.delta.retentionDurationCheck.enabled", "false")
        self._session.sql(f"VACUUM {self.name} RETAIN {hours} HOURS")

    def _write(self, rows: DataFrame, how: str, mark: CommitMark | None) -> tuple[int, dict[str, int]]:
        writer: DataFrameWriter = rows.write.format("delta").mode(how)
        if not self.exists:
            properties = _MERGED_PROPERTIES if mark is not None and mark.mode == MERGE else {}
            modern = mark is not None and self._readers == MODERN
            properties = properties | ({_DELETION_VECTORS: "true"} if modern else {})
            writer = writer.options(**properties, **self._mapping(rows.columns, modern=modern))
        elif how == "overwrite" and self._differs(rows):
            self._allow_names(rows.columns)
            self._allow_types(field.dataType.simpleString() for field in rows.schema)
            writer = writer.option("overwriteSchema", "true")
        with self._marked(mark):
            writer.save(self._path)
        return (self._next_version(), {}) if mark is None else self._find_commit(mark)

    def _next_version(self) -> int:
        """Return the newest version if it is the next one; otherwise UNKNOWN: other commits were made."""
        newest, before = int(self._update().version()), UNKNOWN if self.version is None else self.version
        return newest if newest == before + 1 else UNKNOWN

    def _differs(self, rows: DataFrame) -> bool:
        """Whether rows have other columns than the table."""
        return {(field.name, field.dataType.simpleString()) for field in rows.schema} != set(self.columns())

    def _allow_names(self, names: Sequence[str]) -> None:
        """Enable column mapping if new column names need it."""
        modern = any(map(self._is_on, _FEATURES))
        if self._property(_MAPPING) is None and self._mapping(names, modern=modern):
            self._alter(f"SET TBLPROPERTIES ('{_MAPPING}' = 'name')")

    def _allow_types(self, types: Iterable[str]) -> None:
        """Enable the feature that new column types need."""
        if self._needed_by(types):
            self._alter(f"SET TBLPROPERTIES ('delta.feature.{_NTZ}' = 'supported')")

    def _needed_by(self, types: Iterable[str]) -> dict[str, str]:
        """Return the property that these column types need."""
        lacks = any("timestamp_ntz" in spark for spark in types) and not self._has(_NTZ)
        return {f"delta.feature.{_NTZ}": "supported"} if lacks else {}

    def _marked(self, mark: CommitMark | None) -> AbstractContextManager[None]:
        if mark is None:
            return nullcontext()
        return self._set({_TXN_APP: mark.app_id, _TXN_VERSION: str(mark.segment), _METADATA: mark.metadata})

    @contextmanager
    def _set(self, settings: Mapping[str, str]) -> Iterator[None]:
        """Set these settings in the session for a while."""
        for name, value in settings.items():
            self._session.conf.set(name, value)
        try:
            yield
        finally:
            for name in settings:
                self._session.conf.unset(name)

    def _find_commit(self, mark: CommitMark) -> tuple[int, dict[str, int]]:
        """Find the commit just made; others (such as OPTIMIZE) may have followed."""
        for version in self._recent():
            for info in self._actions(version, "commitInfo"):
                if info.get("userMetadata") == mark.metadata:
                    return version, {name: int(value) for name, value in info["operationMetrics"].items()}
        raise MergeError(
            f'could not merge "{mark.table}": its commit up to segment {mark.segment} is not there',
            "another merge may have written it: run again",
        )

    def _recent(self) -> range:
        """Versions of the last commits, newest first."""
        newest = int(self._update().version())
        return range(newest, max(newest - _RECENT_COMMITS, -1), -1)

    def _actions(self, version: int, kind: str) -> list[dict[str, Any]]:
        """Read a commit's actions of one kind from the log; DESCRIBE HISTORY takes several Spark jobs."""
        path = join(self._path, "_delta_log", f"{version:020}.json")
        content = HadoopFiles(self._session).read(path) or b""
        start = f'{{"{kind}"'.encode()
        return [json.loads(line)[kind] for line in content.splitlines() if line.startswith(start)]
