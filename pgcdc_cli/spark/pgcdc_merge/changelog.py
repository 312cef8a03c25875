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
from .merge_table import MergedRange
from .rows import new_value, old_columns, old_value, read_rows, unsent
from .segments import TableVersion, with_all_columns
from .table_range import TableRange
from .values import typed_for_changelog

OLD = "_pgcdc_old"


def append_changes(
    session: SparkSession, directory: str, work: TableRange, target: LakeTable, mark: CommitMark
) -> MergedRange:
    """Append a table's changes in one commit."""
    versions = {
        path: with_all_columns(version, may_be_unsent=True) for path, version in work.versions.items()
    }
    check_losses(session, directory, work.losses, work.version)
    target.alter(work.goal.added, work.goal.widened, OLD)
    goal = with_all_columns(work.goal.version, may_be_unsent=True)
    rows = read_rows(session, directory, work.files, versions, goal)
    commit = target.append(_changes(typed_for_changelog(session, rows, goal), goal, mark.segment), mark)
    return MergedRange(commit)


def _changes(rows: DataFrame, version: TableVersion, segment: int) -> DataFrame:
    """Describe each change by one row."""
    sent = old_columns(version)
    values, olds, names = [], [], []
    for index, column in enumerate(version.columns):
        old = F.col(old_value(index)) if index in sent else F.lit(None).cast(column.lake)
        value = F.when(F.col("op") == "D", old).otherwise(F.col(new_value(index)))
        values.append(value.alias(column.name))
        olds.append(old.alias(column.name))
        names.append(F.when(F.col(unsent(index)), F.lit(column.name)))
    return rows.select(
        F.col("op").alias("_pgcdc_op"),
        F.col("position.commit_lsn").alias("_pgcdc_lsn"),
        F.col("position.seq").alias("_pgcdc_seq"),
        F.col("commit_ts").alias("_pgcdc_commit_ts"),
        F.col("xid").alias("_pgcdc_xid"),
        F.col("lsn").alias("_pgcdc_change_lsn"),
        F.lit(segment).cast("bigint").alias("_pgcdc_segment"),
        F.array_compact(F.array(*names)).alias("_pgcdc_unchanged"),
        *values,
        F.when(F.col("has_old"), F.struct(*olds)).alias(OLD),
    )
