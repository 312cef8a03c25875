"""Delta tables: what is there, and one commit for each range of segments.

A commit carries its mark: the transaction identifier `pgcdc:<stream_id>:<table>:merge` with the range's last
segment as version, which Delta refuses to go back behind, and the position as the commit's user metadata.
"""

import json
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812 - PySpark's own habit

from .errors import MergeError
from .fold import lacking
from .segments import TableVersion

_TXN_APP = "spark.databricks.delta.write.txnAppId"
_TXN_VERSION = "spark.databricks.delta.write.txnVersion"
_METADATA = "spark.databricks.delta.commitInfo.userMetadata"
_UNUSUAL = frozenset(" ,;{}()\n\t=")
"""Delta stores columns with these in their names only under other, physical names (column mapping)."""

_RECENT_COMMITS = 20


@dataclass(frozen=True)
class Mark:
    """How far a table is merged: what a commit says of itself."""

    stream_id: str
    table: str
    segment: int
    lsn: str

    @property
    def app_id(self) -> str:
        return f"pgcdc:{self.stream_id}:{self.table}:merge"

    @property
    def metadata(self) -> str:
        position = {
            "stream_id": self.stream_id,
            "table": self.table,
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


class DeltaTable:
    """The table at a path, which needn't exist yet; it is written through a session of its own."""

    def __init__(self, session: SparkSession, path: str) -> None:
        self._session = session
        self.path = path
        # SQL has no way to a table's transaction marks.
        jvm: Any = session._jvm  # noqa: SLF001
        log = jvm.org.apache.spark.sql.delta.DeltaLog.forTable(session._jsparkSession, path)  # noqa: SLF001
        nothing = jvm.scala.Option.empty()
        self._snapshot = log.update(False, nothing, nothing)
        self.version = int(self._snapshot.version())

    @property
    def exists(self) -> bool:
        return self.version >= 0

    def merged_segment(self, app_id: str) -> int:
        """Return the last segment that is merged into it; 0 for none."""
        found = self._snapshot.transactions().get(app_id)
        return int(found.get()) if found.isDefined() else 0

    def columns(self) -> list[tuple[str, str]]:
        """Return names and types, as `Column.spark`."""
        schema = self._session.read.format("delta").load(self.path).schema
        return [(field.name, field.dataType.simpleString()) for field in schema]

    def read(self) -> DataFrame:
        """Read it with its columns named n0, n1, ..."""
        rows = self._session.read.format("delta").load(self.path)
        return rows.toDF(*(f"n{place}" for place in range(len(rows.columns))))

    def replace(self, folded: DataFrame, version: TableVersion, mark: Mark) -> Commit:
        """Write the folded rows in place of whatever there is; creates the table."""
        removed = self.read().count() if self.exists else 0
        names = [column.name for column in version.columns]
        rows = folded.where("NOT dead").select(
            *(F.col(f"n{place}").alias(name) for place, name in enumerate(names))
        )
        writer = rows.write.format("delta").mode("overwrite")
        if not self.exists and any(_UNUSUAL & set(name) for name in names):
            writer = writer.option("delta.columnMapping.mode", "name")
        with self._marked(mark):
            writer.save(self.path)
        found, metrics = self._commit(mark)
        return Commit(found, metrics.get("numOutputRows", 0), 0, removed)

    def merge(self, folded: DataFrame, version: TableVersion, mark: Mark) -> Commit:
        """Insert, update and delete as the folded rows say, in one commit."""
        folded.createOrReplaceTempView("folded")
        with self._marked(mark):
            self._session.sql(_merge_statement(self.path, version))
        found, metrics = self._commit(mark)
        counts = (metrics.get(f"numTargetRows{what}", 0) for what in ("Inserted", "Updated", "Deleted"))
        return Commit(found, *counts)

    @contextmanager
    def _marked(self, mark: Mark) -> Iterator[None]:
        settings = {_TXN_APP: mark.app_id, _TXN_VERSION: str(mark.segment), _METADATA: mark.metadata}
        for name, value in settings.items():
            self._session.conf.set(name, value)
        try:
            yield
        finally:
            for name in settings:
                self._session.conf.unset(name)

    def _commit(self, mark: Mark) -> tuple[int, dict[str, int]]:
        """Find the commit just made; others (OPTIMIZE, ...) may have followed."""
        place = _quoted(self.path)
        history = self._session.sql(f"DESCRIBE HISTORY delta.{place} LIMIT {_RECENT_COMMITS}")
        ours = history.where(F.col("userMetadata") == mark.metadata).orderBy(F.desc("version"))
        row = ours.select("version", "operationMetrics").first()
        if row is None:
            raise MergeError(
                f'could not merge "{mark.table}": its commit up to segment {mark.segment} is not there',
                "another merge may have written it: run again",
            )
        return row[0], {name: int(value) for name, value in (row[1] or {}).items()}


def _merge_statement(path: str, version: TableVersion) -> str:
    names = [_quoted(column.name) for column in version.columns]
    may_lack = set(lacking(version))
    keys = " AND ".join(f"t.{names[place]} = s.k{number}" for number, place in enumerate(version.key or ()))
    kept = [
        f"t.{name} = " + (f"IF(s.l{place}, t.{name}, s.n{place})" if place in may_lack else f"s.n{place}")
        for place, name in enumerate(names)
    ]
    new = [_checked(version, place) if place in may_lack else f"s.n{place}" for place in range(len(names))]
    return f"""
        MERGE INTO delta.{_quoted(path)} t USING folded s ON {keys}
        WHEN MATCHED AND s.dead THEN DELETE
        WHEN MATCHED THEN UPDATE SET {", ".join(kept)}
        WHEN NOT MATCHED AND NOT s.dead THEN INSERT ({", ".join(names)}) VALUES ({", ".join(new)})
    """  # noqa: S608 - names are quoted


def _checked(version: TableVersion, place: int) -> str:
    """Stop the merge where neither the changes nor the table have a value."""
    keys: Sequence[str] = [f"CAST(s.k{number} AS STRING)" for number in range(len(version.key or ()))]
    start, end = _literal(f"{MISSING_VALUE} {place} ("), _literal(f") {MISSING_VALUE}")
    text = f"concat({start}, concat_ws(', ', {', '.join(keys)}), {end})"
    return f"IF(s.l{place}, raise_error({text}), s.n{place})"


MISSING_VALUE = "pgcdc-missing-value"
"""Begins and ends the message of the error that such a merge raises: column's place, key in parentheses."""


def _quoted(name: str) -> str:
    return "`" + name.replace("`", "``") + "`"


def _literal(text: str) -> str:
    return "'" + text.replace("\\", "\\\\").replace("'", "\\'") + "'"
