"""Changelogs: every change to a table, one append for each range.

| column | type | meaning |
|---|---|---|
| _pgcdc_op | string | I, U, D, T (truncate) or R (snapshot row) |
| _pgcdc_lsn, _pgcdc_seq | bigint | commit LSN and number in the transaction: the change's place in history |
| _pgcdc_commit_ts | timestamp | when it was committed |
| _pgcdc_xid | bigint | its transaction; NULL for snapshot rows |
| _pgcdc_change_lsn | bigint | where the change itself is in the log |
| _pgcdc_segment | bigint | the last segment of the range that brought it |
| _pgcdc_unchanged | array of string | columns whose value was not sent (unchanged TOAST): they are NULL |
| the table's columns | | the new row; of a delete the old one, as far as it was sent |
| _pgcdc_old | struct | the old row, as far as it was sent; NULL if it wasn't |
"""

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812 - PySpark's own habit

from .debezium_segments import check_losses
from .lake import CommitMark, LakeTable
from .merge_table import Merged
from .plan import TableFiles
from .rows import old_columns, read_rows
from .segments import TableVersion, with_all
from .values import logged

OLD = "_pgcdc_old"


def append_changes(
    session: SparkSession, directory: str, work: TableFiles, target: LakeTable, mark: CommitMark
) -> Merged:
    """Append a table's changes in one commit."""
    versions = {path: with_all(version, may_lack=True) for path, version in work.versions.items()}
    check_losses(session, directory, work.losses, work.version)
    target.alter(work.goal.added, work.goal.widened, OLD)
    goal = with_all(work.goal.version, may_lack=True)
    rows = read_rows(session, directory, work.files, versions, goal)
    commit = target.append(_changes(logged(session, rows, goal), goal, mark.segment), mark)
    return Merged(commit)


def _changes(rows: DataFrame, version: TableVersion, segment: int) -> DataFrame:
    """Describe each change by one row."""
    olds = set(old_columns(version))
    deleted = F.col("op") == "D"
    before = {
        place: F.col(f"o{place}") if place in olds else F.lit(None).cast(column.lake)
        for place, column in enumerate(version.columns)
    }
    names = list(enumerate(column.name for column in version.columns))
    unsent = F.array_compact(F.array(*(F.when(F.col(f"l{place}"), F.lit(name)) for place, name in names)))
    values = [
        F.when(deleted, before[place]).otherwise(F.col(f"n{place}")).alias(name) for place, name in names
    ]
    old = F.struct(*(before[place].alias(name) for place, name in names))
    return rows.select(
        F.col("op").alias("_pgcdc_op"),
        F.col("pos.commit_lsn").alias("_pgcdc_lsn"),
        F.col("pos.seq").alias("_pgcdc_seq"),
        F.col("commit_ts").alias("_pgcdc_commit_ts"),
        F.col("xid").alias("_pgcdc_xid"),
        F.col("lsn").alias("_pgcdc_change_lsn"),
        F.lit(segment).cast("bigint").alias("_pgcdc_segment"),
        unsent.alias("_pgcdc_unchanged"),
        *values,
        F.when(F.col("has_old"), old).alias(OLD),
    )
