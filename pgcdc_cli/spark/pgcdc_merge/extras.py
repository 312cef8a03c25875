"""What lake tables hold beside the source's columns, if asked: `--metadata` and `--soft-delete`.

| column | type | meaning |
|---|---|---|
| _pgcdc_lsn | bigint | commit LSN of the last change to the row |
| _pgcdc_commit_ts | timestamp | when it was committed |
| _pgcdc_deleted | boolean | the row is deleted; its values are those it had last |

Where deleted rows are kept, a delete is taken for an update that lacks all values but the key's: they are
looked for as those of unchanged TOAST columns are.
"""

from dataclasses import dataclass

from pyspark.sql import Column as Expression
from pyspark.sql import DataFrame, Row
from pyspark.sql import functions as F  # noqa: N812 - PySpark's own habit

from .errors import MergeError
from .fold import events, lacking, lacks_any
from .lake import LakeTable
from .rows import old_columns
from .segments import TableVersion, with_all

PREFIX = "_pgcdc_"
LSN, COMMIT_TS, DELETED = "_pgcdc_lsn", "_pgcdc_commit_ts", "_pgcdc_deleted"


@dataclass(frozen=True)
class Extras:
    """Which of them a merged table has; `missing_is_null` is what becomes of a value that nothing has."""

    metadata: bool = False
    soft_delete: bool = False
    missing_is_null: bool = False

    @property
    def columns(self) -> dict[str, str]:
        """Give their values by name, as SQL over folded rows."""
        metadata = {LSN: "change_lsn", COMMIT_TS: "change_ts"} if self.metadata else {}
        return metadata | ({DELETED: "deleted"} if self.soft_delete else {})

    def version(self, version: TableVersion) -> TableVersion:
        """Describe a table as the fold has to see it."""
        return with_all(version, may_lack=True) if self.soft_delete else version

    def prepared(self, rows: DataFrame, version: TableVersion) -> DataFrame:
        """Keep of the rows' metadata what the table gets."""
        if self.metadata:
            rows = rows.withColumns({"change_lsn": F.col("pos.commit_lsn"), "change_ts": F.col("commit_ts")})
        olds = [f"o{place}" for place in old_columns(version)]
        return rows.drop("lsn", "xid", "commit_ts", "has_old", *olds)


def check_names(table: str, version: TableVersion) -> None:
    """Raise a MergeError if a column of the source has a name of ours."""
    taken = [column.name for column in version.columns if column.name.lower().startswith(PREFIX)]
    if taken:
        raise MergeError(
            f'could not merge "{table}": its column "{taken[0]}" has a name that this job uses itself',
            f'ALTER TABLE {table} RENAME COLUMN "{taken[0]}" TO ...',
        )


def check_extras(table: str, target: LakeTable, extras: Extras) -> None:
    """Raise a MergeError if the lake table was made with other extra columns."""
    if not target.exists:
        return
    have = {name for name, _ in target.columns() if name in (LSN, COMMIT_TS, DELETED)}
    for option, name in (("--metadata", LSN), ("--soft-delete", DELETED)):
        if (name in have) != (name in extras.columns):
            how, remedy = ("with", f"add {option}") if name in have else ("without", f"leave out {option}")
            raise MergeError(
                f'could not merge "{table}": it was made {how} {option}',
                f"{remedy}, or merge into a new warehouse",
            )


def last_truncate(rows: DataFrame) -> Row | None:
    """Find the last truncate: `pos` and, with metadata, `change_lsn` and `micros`."""
    wanted: list[Expression] = [F.col("pos")]
    if "change_ts" in rows.columns:
        wanted += [F.col("change_lsn"), F.unix_micros("change_ts").alias("micros")]
    found: Row | None = rows.where("op = 'T'").select(*wanted).orderBy(F.desc("pos")).first()
    return found


def fold_softly(
    rows: DataFrame, version: TableVersion, truncate: Row | None, *, has_target: bool
) -> DataFrame:
    """Fold rows so that deleted ones stay, with `deleted` true; no row is `dead` then."""
    newest = events(rows, version).where("newest AND truncate IS NULL")
    folded = newest.withColumn("deleted", F.col("dead") | _came_before(truncate))
    if truncate is not None and "micros" in truncate:
        fell = F.col("deleted") & ~F.col("dead")
        when = {
            "change_lsn": F.lit(truncate["change_lsn"]),
            "change_ts": F.timestamp_micros(F.lit(truncate["micros"])),
        }
        folded = folded.withColumns({n: F.when(fell, value).otherwise(F.col(n)) for n, value in when.items()})
    # What left a key has the new one among its values.
    keys = {
        f"n{place}": F.when(F.col("dead"), F.col(f"k{number}")).otherwise(F.col(f"n{place}"))
        for number, place in enumerate(version.key or ())
    }
    folded = folded.withColumns({**keys, "dead": F.lit(False)}).drop("newest", "pos", "half", "moved")
    moved = F.coalesce(F.col("origin.moved"), F.lit(False))
    folded = _without_flags(folded, version, F.col("deleted") & F.col("origin").isNotNull() & ~moved)
    unknown = F.col("deleted") & F.col("origin").isNull() & lacks_any(version)
    return folded if has_target else folded.where(~unknown)


def _came_before(truncate: Row | None) -> Expression:
    if truncate is None:
        return F.lit(False)
    commit_lsn, change, seq = truncate["pos"]
    return F.col("pos") < F.struct(F.lit(commit_lsn).cast("bigint"), F.lit(change), F.lit(seq).cast("bigint"))


def forgiven(folded: DataFrame, version: TableVersion) -> DataFrame:
    """Let values of deleted rows be NULL that nothing has."""
    return _without_flags(folded, version, F.col("deleted") & F.col("origin").isNotNull())


def _without_flags(folded: DataFrame, version: TableVersion, which: Expression) -> DataFrame:
    return folded.withColumns({f"l{place}": F.col(f"l{place}") & ~which for place in lacking(version)})
