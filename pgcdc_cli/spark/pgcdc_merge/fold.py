"""Many changes of a table into one row for each key that they touch.

A change is one event, or two where an update changed the key: the delete of the old key (half 0), then the
insert of the new one (half 1). The events of a key, in order, form spells: from an insert, a snapshot row or
the arrival of a row from another key (origin), or from the row that the target had when the range began (no
origin), to the next of these. The newest event of a key says what becomes of it. A value that it lacks
(unchanged TOAST) is the newest one in its spell; else, where the row came from another key, what the row had
when it left that key, and so on; else the target's.

| column | type | meaning |
|---|---|---|
| k0, k1, ... | as the column's | the key |
| dead | boolean | nothing is left under this key |
| n0, n1, ... | as the column's | the row |
| l0, l1, ... | boolean | the value is not among the changes; only for columns that may lack it |
| origin | struct(moved, pos) | how the newest spell began; NULL if with the target's row under this key |
| truncate | struct | where the last truncate is, in the one row that is no key's; all keys are NULL there |
| unfit | int | values of the row that became NULL since they don't fit |
"""

from dataclasses import dataclass
from functools import reduce

from pyspark.sql import Column as Expression
from pyspark.sql import DataFrame, Row, Window
from pyspark.sql import functions as F  # noqa: N812 - PySpark's own habit

from .lake import LakeTable
from .merge_errors import MergeError
from .rows import old_columns
from .segments import TableVersion, with_all


def lacking(version: TableVersion) -> list[int]:
    """Places of the columns that an update may come without; the key always comes."""
    key = version.key or ()
    return [place for place, column in enumerate(version.columns) if column.may_lack and place not in key]


def after(rows: DataFrame, truncate: Row) -> DataFrame:
    """Keep what came after a truncate, given as its `pos`."""
    commit_lsn, change, seq = truncate
    place = F.struct(F.lit(commit_lsn).cast("bigint"), F.lit(change), F.lit(seq).cast("bigint"))
    return rows.where(F.col("pos") > place)


def fold(rows: DataFrame, version: TableVersion) -> DataFrame:
    """Fold rows as `rows.read_rows` gives them."""
    found = events(rows, version).where("newest") if lacking(version) else _newest(rows, version)
    return found.drop("newest", "pos", "half", "moved")


def _newest(rows: DataFrame, version: TableVersion) -> DataFrame:
    """Give each key's last event, where nothing is lacking and no other matters: Spark drops most early."""
    keys = [f"k{number}" for number in range(len(version.key or ()))]
    latest = Window.partitionBy(*keys).orderBy(F.desc("pos"), F.desc("half"))
    halved = _halved(rows, version).withColumn("newest", F.row_number().over(latest)).where("newest = 1")
    pos = halved.schema["pos"].dataType.simpleString()
    origin = {"origin": F.lit(None).cast(f"struct<moved: boolean, pos: {pos}>")}
    return halved.withColumns({**origin, **_outcome()}).drop("op")


def _outcome() -> dict[str, Expression]:
    """Say of an event whether it ends a row, or all."""
    return {"dead": F.col("half") == 0, "truncate": F.when(F.col("op") == "T", F.col("pos"))}


def events(rows: DataFrame, version: TableVersion) -> DataFrame:
    """Give each event what is known of its row by then; `newest` marks a key's last."""
    keys = [f"k{number}" for number in range(len(version.key or ()))]
    by_key = Window.partitionBy(*keys).orderBy("pos", "half")
    so_far = by_key.rowsBetween(Window.unboundedPreceding, Window.currentRow)

    halved = _halved(rows, version)
    arrives = F.col("moved") & (F.col("half") == 1)
    begins = F.col("op").isin("I", "R") | arrives
    origin = F.when(begins, F.struct(arrives.alias("moved"), "pos"))
    known = {place: _known(place, begins) for place in lacking(version)}
    spelled = halved.select(
        *halved.columns,
        F.last(origin, ignorenulls=True).over(so_far).alias("origin"),
        F.lead(F.lit(1)).over(by_key).isNull().alias("newest"),
        *(F.last(cell, ignorenulls=True).over(so_far).alias(f"c{place}") for place, cell in known.items()),
    )
    values = {f"n{place}": F.col(f"c{place}.value") for place in known}
    lacks = {f"l{place}": ~F.coalesce(F.col(f"c{place}.sent"), F.lit(False)) for place in known}
    for place in known:
        if not version.columns[place].bounded:
            # What was not sent is never NULL: a NULL before it is of a time when the column wasn't there.
            lacks[f"l{place}"] |= F.col(f"l{place}") & F.col(f"c{place}.value").isNull()
    return spelled.withColumns({**values, **lacks, **_outcome()}).drop(
        "op", *(f"c{place}" for place in known)
    )


def _halved(rows: DataFrame, version: TableVersion) -> DataFrame:
    """Make events of changes; k0, k1, ... become the event's key."""
    old, new = F.lit(0), F.lit(1)
    halves = (
        F.when(F.col("op") == "D", F.array(old))
        .when((F.col("op") == "U") & F.col("moved"), F.array(old, new))
        .otherwise(F.array(new))
    )
    exploded = rows.withColumn("half", F.explode(halves))
    keys = {
        f"k{number}": F.when(F.col("half") == 0, F.col(f"k{number}")).otherwise(F.col(f"n{place}"))
        for number, place in enumerate(version.key or ())
    }
    return exploded.withColumns(keys)


def _known(place: int, begins: Expression) -> Expression:
    """Describe what an event says of a column: a value or, where a spell begins, that there is none."""
    sent = (F.col("half") == 1) & ~F.col(f"l{place}")
    return F.when(sent | begins, F.struct(sent.alias("sent"), F.col(f"n{place}").alias("value")))


def lacks_any(version: TableVersion) -> Expression:
    """Whether there is a folded row that lacks a value."""
    flags = [F.col(f"l{place}") for place in lacking(version)]
    return ~F.col("dead") & reduce(Expression.__or__, flags, F.lit(False))


def needs_lineage(version: TableVersion) -> Expression:
    """Whether a folded row lacks a value and came from another key."""
    return lacks_any(version) & F.coalesce(F.col("origin.moved"), F.lit(False))


def is_lost(version: TableVersion, *, has_target: bool) -> Expression:
    """Whether a folded row lacks a value that nothing has: it was inserted so, or there is no target."""
    return lacks_any(version) & (F.col("origin").isNotNull() | F.lit(not has_target))


def with_lineage(
    folded: DataFrame,
    rows: DataFrame,
    version: TableVersion,
    target: DataFrame | None,
    *,
    null_is_missing: bool,
) -> DataFrame:
    """Fill what rows lack that came from another key: along their keys, then from the target.

    `target` has the table's columns as n0, n1, ...; None if nothing of it counts. `null_is_missing` says that
    only what is never NULL is not sent. Rows that still lack a value afterwards keep their origin.
    """
    need = needs_lineage(version)
    departures = _departures(events(rows, version), version)
    chased = folded.where(need).join(departures, F.col("origin.pos") == F.col("from.pos"), "left")
    filled = _filled(chased, version)
    if target is not None:
        filled = _from_target(filled, version, target, null_is_missing=null_is_missing)
    return folded.where(~need).unionByName(filled.select(*folded.columns))


def _departures(all_events: DataFrame, version: TableVersion) -> DataFrame:
    """Gather what each row had when it left a key, as `from`: {pos, origin, n, l, s (the key in the target)}.

    Rows that had come from yet another key are followed back, twice as far in each round.
    """
    fields = ["pos", "origin"]
    fields += [f"{kind}{place}" for place in lacking(version) for kind in "nl"]
    keys = [F.col(f"k{number}").alias(f"s{number}") for number in range(len(version.key or ()))]
    left = all_events.where("moved AND half = 0").select(F.struct(*fields, *keys).alias("from")).persist()
    while not left.where("from.origin.moved").isEmpty():
        earlier = left.withColumnRenamed("from", "earlier")
        joined = left.join(
            earlier, F.col("from.origin.moved") & (F.col("from.origin.pos") == F.col("earlier.pos")), "left"
        )
        left = joined.select(_further_back(version).alias("from")).localCheckpoint()
    return left


def _further_back(version: TableVersion) -> Expression:
    there = F.col("earlier").isNotNull()

    def either(name: str) -> Expression:
        return F.when(there, F.col(f"earlier.{name}")).otherwise(F.col(f"from.{name}")).alias(name)

    pairs = [pair for place in lacking(version) for pair in _one_further_back(place)]
    keys = [either(f"s{number}") for number in range(len(version.key or ()))]
    return F.struct(F.col("from.pos").alias("pos"), either("origin"), *pairs, *keys)


def _one_further_back(place: int) -> list[Expression]:
    lacks = F.col(f"from.l{place}") & F.coalesce(F.col(f"earlier.l{place}"), F.lit(True))
    value = F.when(F.col(f"from.l{place}"), F.col(f"earlier.n{place}")).otherwise(F.col(f"from.n{place}"))
    return [value.alias(f"n{place}"), lacks.alias(f"l{place}")]


def _filled(chased: DataFrame, version: TableVersion) -> DataFrame:
    values = {
        f"n{place}": F.when(F.col(f"l{place}"), F.col(f"from.n{place}")).otherwise(F.col(f"n{place}"))
        for place in lacking(version)
    }
    # Nothing is known of a row that came from nowhere: of an insert that lacks a value.
    lacks = {
        f"l{place}": F.col(f"l{place}") & F.coalesce(F.col(f"from.l{place}"), F.lit(True))
        for place in lacking(version)
    }
    # Spark computes all of these from the values before.
    return chased.withColumns({**values, **lacks})


def _from_target(
    filled: DataFrame, version: TableVersion, target: DataFrame, *, null_is_missing: bool
) -> DataFrame:
    """Take what is still lacking from the target, under the key that the row had when the range began."""
    key = version.key or ()
    columns = [F.col(f"n{place}").alias(f"t{place}") for place in sorted({*key, *lacking(version)})]
    kept = target.select(*columns, F.lit(True).alias("found"))
    same = [F.col(f"from.s{number}") == F.col(f"t{place}") for number, place in enumerate(key)]
    from_there = F.col("from.origin").isNull()
    joined = filled.join(kept, reduce(Expression.__and__, same) & from_there, "left")
    values, lacks = {}, {}
    for place in lacking(version):
        missed = F.col("found").isNull()
        if null_is_missing and not version.columns[place].bounded:
            missed |= F.col(f"t{place}").isNull()
        values[f"n{place}"] = F.when(F.col(f"l{place}") & ~missed, F.col(f"t{place}")).otherwise(
            F.col(f"n{place}")
        )
        lacks[f"l{place}"] = F.col(f"l{place}") & missed
    return joined.withColumns({**values, **lacks})


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


def count_missing(folded: DataFrame, version: TableVersion, known: DataFrame | None, extras: Extras) -> int:
    """Count them; `known` has the table's columns as n0, n1, ..., None if nothing of it counts."""
    if not lacking(version):
        return 0
    rows = folded.where(lacks_any(version))
    if extras.soft_delete:
        rows = rows.where("NOT deleted")
    nothing: dict[int, Expression] = dict.fromkeys(lacking(version), F.lit(True))
    if known is not None:
        rows = _with_known(rows, version, known)
        for place in nothing:
            kept = version.columns[place].bounded or extras.soft_delete
            unknown = F.lit(False) if kept else F.col(f"t{place}").isNull()
            nothing[place] = F.col("found").isNull() | unknown
    cells = (F.when(F.col(f"l{place}") & none, 1).otherwise(0) for place, none in nothing.items())
    found = rows.agg(F.sum(reduce(Expression.__add__, cells)).alias("missing")).first()
    return 0 if found is None else found["missing"] or 0


def _with_known(rows: DataFrame, version: TableVersion, known: DataFrame) -> DataFrame:
    """Add the table's values, as t0, t1, ..., to rows that were there when the range began."""
    key = version.key or ()
    columns = [F.col(f"n{place}").alias(f"t{place}") for place in sorted({*key, *lacking(version)})]
    same = [F.col(f"k{number}") == F.col(f"t{place}") for number, place in enumerate(key)]
    were_there = F.col("origin").isNull()
    kept = known.select(*columns, F.lit(True).alias("found"))
    return rows.join(kept, reduce(Expression.__and__, same) & were_there, "left")


def as_null(folded: DataFrame, version: TableVersion) -> DataFrame:
    """Take nothing from the table for rows that were not there when the range began."""
    there = F.col("origin").isNull()
    return folded.withColumns({f"l{place}": F.col(f"l{place}") & there for place in lacking(version)})
