"""One table of one range: read, fold, check, commit."""

from dataclasses import dataclass

from pyspark.sql import DataFrame, Row, SparkSession
from pyspark.sql import functions as F  # noqa: N812 - PySpark's own habit

from .delta import Commit, DeltaTable, Mark
from .errors import MergeError
from .fold import after, fold, is_lost, lacking, needs_lineage, with_lineage
from .plan import TableFiles, key_columns
from .rows import old_columns, read_rows
from .segments import TableVersion

_HINT = "take a new snapshot into a new directory and warehouse"


@dataclass(frozen=True)
class Merged:
    """What became of a table: its commit, and how many of the values written did not fit their type."""

    commit: Commit
    unfit: int


def merge_table(
    session: SparkSession, directory: str, work: TableFiles, target: DeltaTable, mark: Mark
) -> Merged:
    """Merge a table's files in one commit; a MergeError leaves the table as it was."""
    version = work.version
    rows = _without_metadata(read_rows(session, directory, work.files, dict(work.versions)), version)
    folded = fold(rows, version).persist()
    facts = _facts(folded, version, has_target=target.exists)
    has_target = target.exists and facts["truncate"] is None
    if facts["truncate"] is not None:
        folded.unpersist()
        rows = after(rows, facts["truncate"])
        folded = fold(rows, version).persist()
        facts = _facts(folded, version, has_target=False)
    _check(folded, version, facts, has_target=has_target)
    complete = folded
    if facts["lineage"]:
        complete = with_lineage(folded, rows, version, target.read() if has_target else None).persist()
        _check_values(complete, version, has_target=has_target)
    write = target.merge if has_target else target.replace
    try:
        return Merged(write(complete, version, mark), facts["unfit"] or 0)
    finally:
        complete.unpersist()
        folded.unpersist()


def _without_metadata(rows: DataFrame, version: TableVersion) -> DataFrame:
    """Leave out what is for changelogs only."""
    olds = [f"o{place}" for place in old_columns(version)]
    return rows.drop("lsn", "xid", "commit_ts", "has_old", *olds)


def _facts(folded: DataFrame, version: TableVersion, *, has_target: bool) -> Row:
    """Look at all folded rows once; `lost` is final unless there is `lineage` to follow."""
    keys = F.array(*(F.col(f"k{number}").isNull() for number in range(len(version.key or ()))))
    row = F.col("truncate").isNull()
    lineage = needs_lineage(version)
    found = folded.agg(
        F.max("truncate").alias("truncate"),
        F.sum(F.when(row & ~F.col("dead"), F.col("unfit"))).alias("unfit"),
        F.bool_or(row & F.array_contains(keys, F.lit(True))).alias("no_key"),
        F.bool_or(row & lineage).alias("lineage"),
        F.bool_or(row & ~lineage & is_lost(version, has_target=has_target)).alias("lost"),
    ).first()
    assert found is not None
    return found


def _check(folded: DataFrame, version: TableVersion, facts: Row, *, has_target: bool) -> None:
    if facts["no_key"]:
        names = ", ".join(column.name for column in key_columns(version))
        raise MergeError(
            f'could not merge "{version.display}": a value of its key ({names}) is NULL, or not in its type',
            "a key can't hold infinity, NaN, or years before 1 or beyond 9999: change the row's key",
        )
    if facts["lost"]:
        _check_values(folded.where(~needs_lineage(version)), version, has_target=has_target)


def _check_values(folded: DataFrame, version: TableVersion, *, has_target: bool) -> None:
    """Raise a MergeError that names the first row with a value that nothing has."""
    row = folded.where(is_lost(version, has_target=has_target)).first()
    if row is not None:
        raise _missing(version, row)


def _missing(version: TableVersion, row: Row) -> MergeError:
    column = next(place for place in lacking(version) if row[f"l{place}"])
    key = [row[f"k{number}"] for number in range(len(version.key or ()))]
    return missing_value(version, column, ", ".join(map(str, key)))


def missing_value(version: TableVersion, column: int, key: str) -> MergeError:
    """Say that neither the changes nor the table have a value that an update did not send."""
    names = ", ".join(column.name for column in key_columns(version))
    return MergeError(
        f'could not merge "{version.display}": column "{version.columns[column].name}" of the row ({names}) ='
        f" ({key}) was not sent (unchanged TOAST), and nothing before it has the value",
        _HINT,
    )
