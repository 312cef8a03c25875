"""Rewrite a small Delta table in one transaction of Delta's own.

MERGE and other statements find a table's files with Spark: a dozen jobs and plans, however few rows there
are. For a table of few files, Delta has all of them in the checksum of the newest commit, and checks a
transaction against concurrent commits without a job.
"""

import time
from dataclasses import dataclass
from typing import Any

from py4j.protocol import Py4JError  # type: ignore[import-untyped]  # it has no annotations
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812 - PySpark's own habit

from .java_classes import java_class
from .lake import CommitMark, quoted

_DELTA = "org.apache.spark.sql.delta"

SMALL = 1 << 20
"""Bytes: tables up to this size are rewritten when merged into."""

_LEGACY = 2
"""The last writer protocol without features that demand more of a commit (checks, change data files)."""

_KNOWN = frozenset({"appendOnly", "invariants", "timestampNtz", "variantType"})
"""Table features that affect only column types, not commits."""


@dataclass(frozen=True)
class Rewriting:
    """A table's snapshot and its rows; `operation` is the operation shown in the table's history."""

    session: SparkSession
    log: Any
    snapshot: Any
    files: Any
    operation: Any
    rows: DataFrame

    def commit(self, rows: DataFrame, mark: CommitMark | None) -> int:
        """Replace the snapshot's rows by rows of the same columns; return the new version.

        Delta refuses it if another commit has changed the table since the snapshot.
        """
        option = java_class(self.session, "scala.Option")
        transaction = self.log.startTransaction(option.empty(), option.apply(self.snapshot))
        transaction.readWholeTable()
        # A transaction doesn't check the column types of the files that it writes.
        fields = self.rows.schema.fields
        typed = rows.select(*(F.col(quoted(one.name)).cast(one.dataType).alias(one.name) for one in fields))
        convert = java_class(self.session, "scala.jdk.javaapi.CollectionConverters")
        written = transaction.writeFiles(typed._jdf)  # noqa: SLF001 - SQL has no transactions
        done = java_class(self.session, "java.util.ArrayList")(convert.asJava(written))
        for file in convert.asJava(self.files):
            done.add(file.remove())
        if mark is not None:
            marked = java_class(self.session, f"{_DELTA}.actions.SetTransaction")
            done.add(marked(mark.app_id, mark.segment, option.apply(int(time.time() * 1000))))
        return int(transaction.commit(convert.asScala(done).toSeq(), self.operation))


def rewriting(session: SparkSession, log: Any, snapshot: Any) -> Rewriting | None:  # noqa: ANN401 - Java's
    """Prepare to rewrite a table; None if it isn't small, or has features that demand more of a commit."""
    checksum = snapshot.checksumOpt()
    if not checksum.isDefined() or not checksum.get().allFiles().isDefined():
        return None
    found = checksum.get()
    if found.tableSizeBytes() > SMALL or not _is_plain(found.protocol()):
        return None
    nothing = java_class(session, "scala.Option").empty()
    files = found.allFiles().get()
    try:
        mode = java_class(session, "org.apache.spark.sql.SaveMode").Overwrite
        operation = java_class(session, f"{_DELTA}.DeltaOperations$Write")(mode, *[nothing] * 8)
        before = log.createDataFrame(snapshot, files, False, nothing)
    except Py4JError:
        # The user may have another version of Delta.
        return None
    return Rewriting(session, log, snapshot, files, operation, DataFrame(before, session))


def _is_plain(protocol: Any) -> bool:  # noqa: ANN401 - Java's
    names = protocol.readerAndWriterFeatureNames().mkString(",")
    features = set(filter(None, names.split(",")))
    return features <= _KNOWN and (bool(features) or protocol.minWriterVersion() <= _LEGACY)
