"""Many changes of a table into one row for each key that they touch.

A change is one event, or two where an update changed the key: the delete of the old key (half 0), then the
insert of the new one (half 1). The events of a key, in order, form lifetimes of rows: from an insert, a
snapshot row or the arrival of a row from another key (origin), or from the row that the target had when the
range began (no origin), to the next of these. The newest event of a key says what becomes of it. A value that
it lacks (unchanged TOAST) is the newest one in its lifetime; else, where the row came from another key, what
the row had when it left that key, and so on; else the target's, which has the table's columns as
`rows.new_value` names them.

| column | type | meaning |
|---|---|---|
| key | as the column's | see `rows.key_value` |
| dead | boolean | nothing is left under this key |
| the row | as the column's | see `rows.new_value` |
| what it lacks | boolean | the value is not among the changes, see `rows.unsent`; only where that may be |
| origin | struct(moved, position) | how the newest lifetime began; NULL: with the target's row of this key |
| truncate | struct | where the last truncate is, in the one row that is no key's: its key is NULL |
| unfit | int | values of the row that became NULL since they don't fit |
| change_lsn, change_ts | bigint, timestamp | commit LSN and time of the newest change, for `--metadata` |
| deleted | boolean | with `--soft-delete`: the row was deleted |
"""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import reduce

from pyspark.sql import Column as Expression
from pyspark.sql import DataFrame, Row, Window
from pyspark.sql import functions as F  # noqa: N812 - PySpark's own habit

from .column_types import LakeColumn
from .rows import key_pairs, key_values, new_value, old_columns, old_value, unsent
from .segments import TableVersion, with_all_columns

PREFIX = "_pgcdc_"
LSN, COMMIT_TS, DELETED = "_pgcdc_lsn", "_pgcdc_commit_ts", "_pgcdc_deleted"

_OF_EVENTS = ("newest", "position", "half", "moved")
"""What folded rows don't have of events."""


@dataclass(frozen=True)
class Extras:
    """What a merged table has beside the source's columns.

    `missing_is_null`: a value that neither the changes nor the table have is written as NULL; else it stops
    the merge.
    """

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
        return with_all_columns(version, may_be_unsent=True) if self.soft_delete else version

    def prepared(self, rows: DataFrame, version: TableVersion) -> DataFrame:
        """Keep of the rows' metadata what the table gets."""
        if self.metadata:
            lsn, commit_ts = F.col("position.commit_lsn"), F.col("commit_ts")
            rows = rows.withColumns({"change_lsn": lsn, "change_ts": commit_ts})
        return rows.drop("lsn", "xid", "commit_ts", "has_old", *map(old_value, old_columns(version)))

    def null_is_missing(self, column: LakeColumn) -> bool:
        """Say whether a table's NULL means that a value is missing, as unchanged TOAST is never NULL."""
        return not (column.bounded or self.soft_delete)


def fold(rows: DataFrame, version: TableVersion) -> DataFrame:
    """Fold rows as `rows.read_rows` gives them."""
    found = _events(rows, version).where("newest") if version.maybe_unsent else _newest(rows, version)
    return found.drop(*_OF_EVENTS)


def fold_softly(
    rows: DataFrame, version: TableVersion, truncate: Row | None, *, has_target: bool
) -> DataFrame:
    """Fold rows so that deleted ones stay, with `deleted` true; no row is `dead` then."""
    newest = _events(rows, version).where("newest AND truncate IS NULL")
    before = F.lit(False) if truncate is None else F.col("position") < _position(truncate["position"])
    folded = newest.withColumn("deleted", F.col("dead") | before)
    if truncate is not None and "micros" in truncate:
        truncated = F.col("deleted") & ~F.col("dead")
        when = {
            "change_lsn": F.lit(truncate["change_lsn"]),
            "change_ts": F.timestamp_micros(F.lit(truncate["micros"])),
        }
        folded = folded.withColumns(
            {name: F.when(truncated, value).otherwise(F.col(name)) for name, value in when.items()}
        )
    # What left a key has the new one among its values.
    keys = {new: F.when(F.col("dead"), F.col(old)).otherwise(F.col(new)) for old, new in key_pairs(version)}
    folded = folded.withColumns({**keys, "dead": F.lit(False)}).drop(*_OF_EVENTS)
    folded = _without_flags(folded, version, F.col("deleted") & F.col("origin").isNotNull() & ~_arrived())
    unknown = F.col("deleted") & F.col("origin").isNull() & lacks_value(version)
    return folded if has_target else folded.where(~unknown)


def last_truncate(rows: DataFrame) -> Row | None:
    """Find the last truncate: `position` and, with metadata, `change_lsn` and `micros`."""
    wanted: list[Expression] = [F.col("position")]
    if "change_ts" in rows.columns:
        wanted += [F.col("change_lsn"), F.unix_micros("change_ts").alias("micros")]
    found: Row | None = rows.where("op = 'T'").select(*wanted).orderBy(F.desc("position")).first()
    return found


def after(rows: DataFrame, truncate: Row) -> DataFrame:
    """Keep what came after a truncate, given as its position."""
    return rows.where(F.col("position") > _position(truncate))


def _position(position: Row) -> Expression:
    commit_lsn, change, seq = position
    return F.struct(F.lit(commit_lsn).cast("bigint"), F.lit(change), F.lit(seq).cast("bigint"))


def lacks_value(version: TableVersion) -> Expression:
    """Whether there is a folded row that lacks a value."""
    flags = [F.col(unsent(index)) for index in version.maybe_unsent]
    return ~F.col("dead") & reduce(Expression.__or__, flags, F.lit(False))


def needs_lineage(version: TableVersion) -> Expression:
    """Whether a folded row lacks a value and came from another key."""
    return lacks_value(version) & _arrived()


def is_lost(version: TableVersion, *, has_target: bool) -> Expression:
    """Whether a folded row lacks a value that nothing has: it was inserted so, or there is no target."""
    return lacks_value(version) & (F.col("origin").isNotNull() | F.lit(not has_target))


def _arrived() -> Expression:
    """Whether a row came from another key."""
    return F.coalesce(F.col("origin.moved"), F.lit(False))


def _newest(rows: DataFrame, version: TableVersion) -> DataFrame:
    """Give each key's last event, where no other matters: Spark drops most early."""
    latest = Window.partitionBy(*key_values(version)).orderBy(F.desc("position"), F.desc("half"))
    halved = _halved(rows, version).withColumn("newest", F.row_number().over(latest)).where("newest = 1")
    position = halved.schema["position"].dataType.simpleString()
    origin = {"origin": F.lit(None).cast(f"struct<moved: boolean, position: {position}>")}
    return halved.withColumns({**origin, **_outcome()}).drop("op")


def _outcome() -> dict[str, Expression]:
    """Say of an event whether it ends a row, or all."""
    return {"dead": F.col("half") == 0, "truncate": F.when(F.col("op") == "T", F.col("position"))}


def _events(rows: DataFrame, version: TableVersion) -> DataFrame:
    """Give each event what is known of its row by then; `newest` marks a key's last."""
    by_key = Window.partitionBy(*key_values(version)).orderBy("position", "half")
    so_far = by_key.rowsBetween(Window.unboundedPreceding, Window.currentRow)
    halved = _halved(rows, version)
    arrives = F.col("moved") & (F.col("half") == 1)
    begins = F.col("op").isin("I", "R") | arrives
    origin = F.when(begins, F.struct(arrives.alias("moved"), "position"))
    known = {_known(index): _knowledge(index, begins) for index in version.maybe_unsent}
    seen = halved.select(
        *halved.columns,
        F.last(origin, ignorenulls=True).over(so_far).alias("origin"),
        F.lead(F.lit(1)).over(by_key).isNull().alias("newest"),
        *(F.last(cell, ignorenulls=True).over(so_far).alias(name) for name, cell in known.items()),
    )
    values, lacks = {}, {}
    for index in version.maybe_unsent:
        value, flag = F.col(f"{_known(index)}.value"), unsent(index)
        values[new_value(index)] = value
        lacks[flag] = ~F.coalesce(F.col(f"{_known(index)}.sent"), F.lit(False))
        if not version.columns[index].bounded:
            # What was not sent is never NULL: a NULL before it is of a time when the column wasn't there.
            lacks[flag] |= F.col(flag) & value.isNull()
    return seen.withColumns({**values, **lacks, **_outcome()}).drop("op", *known)


def _halved(rows: DataFrame, version: TableVersion) -> DataFrame:
    """Make events of changes; their key becomes the event's."""
    old, new = F.lit(0), F.lit(1)
    halves = (
        F.when(F.col("op") == "D", F.array(old))
        .when((F.col("op") == "U") & F.col("moved"), F.array(old, new))
        .otherwise(F.array(new))
    )
    exploded = rows.withColumn("half", F.explode(halves))
    keys = {
        before: F.when(F.col("half") == 0, F.col(before)).otherwise(F.col(then))
        for before, then in key_pairs(version)
    }
    return exploded.withColumns(keys)


def _known(index: int) -> str:
    """Name the column that holds what is known of a value."""
    return f"known_{index}"


def _knowledge(index: int, begins: Expression) -> Expression:
    """Describe what an event says of a column: a value or, where a lifetime begins, that there is none."""
    sent = (F.col("half") == 1) & ~F.col(unsent(index))
    return F.when(sent | begins, F.struct(sent.alias("sent"), F.col(new_value(index)).alias("value")))


def with_lineage(
    folded: DataFrame, rows: DataFrame, version: TableVersion, target: DataFrame | None, extras: Extras
) -> DataFrame:
    """Fill what rows lack that came from another key: along their keys, then from the target.

    The target is None if nothing of it counts. Rows that still lack a value afterwards keep their origin.
    """
    need = needs_lineage(version)
    departures = _departures(_events(rows, version), version)
    chased = folded.where(need).join(departures, F.col("origin.position") == F.col("from.position"), "left")
    filled = _filled(chased, version)
    if target is not None:
        filled = _filled_from_target(filled, version, target, extras)
    return folded.where(~need).unionByName(filled.select(*folded.columns))


def _first_key(ordinal: int) -> str:
    """Name the field that holds a value of the key under which the target has a row that moved."""
    return f"first_key_{ordinal}"


def _departures(events: DataFrame, version: TableVersion) -> DataFrame:
    """Gather what each row had when it left a key, as `from`: position, origin, values, and its first key.

    Rows that had come from yet another key are followed back, twice as far in each round.
    """
    fields = ["position", "origin"]
    fields += [name(index) for index in version.maybe_unsent for name in (new_value, unsent)]
    keys = [F.col(name).alias(_first_key(ordinal)) for ordinal, name in enumerate(key_values(version))]
    left = events.where("moved AND half = 0").select(F.struct(*fields, *keys).alias("from")).persist()
    while not left.where("from.origin.moved").isEmpty():
        earlier = left.withColumnRenamed("from", "earlier")
        follows = F.col("from.origin.position") == F.col("earlier.position")
        joined = left.join(earlier, F.col("from.origin.moved") & follows, "left")
        left = joined.select(_further_back(version).alias("from")).localCheckpoint()
    return left


def _further_back(version: TableVersion) -> Expression:
    there = F.col("earlier").isNotNull()

    def either(name: str) -> Expression:
        return F.when(there, F.col(f"earlier.{name}")).otherwise(F.col(f"from.{name}")).alias(name)

    pairs = [pair for index in version.maybe_unsent for pair in _one_further_back(index)]
    keys = [either(_first_key(ordinal)) for ordinal in range(len(version.key or ()))]
    return F.struct(F.col("from.position").alias("position"), either("origin"), *pairs, *keys)


def _one_further_back(index: int) -> list[Expression]:
    value, flag = new_value(index), unsent(index)
    lacks = F.col(f"from.{flag}") & F.coalesce(F.col(f"earlier.{flag}"), F.lit(True))
    either = F.when(F.col(f"from.{flag}"), F.col(f"earlier.{value}")).otherwise(F.col(f"from.{value}"))
    return [either.alias(value), lacks.alias(flag)]


def _filled(chased: DataFrame, version: TableVersion) -> DataFrame:
    values, lacks = {}, {}
    for index in version.maybe_unsent:
        value, flag = new_value(index), unsent(index)
        values[value] = F.when(F.col(flag), F.col(f"from.{value}")).otherwise(F.col(value))
        # Nothing is known of a row that came from nowhere: of an insert that lacks a value.
        lacks[flag] = F.col(flag) & F.coalesce(F.col(f"from.{flag}"), F.lit(True))
    # Spark computes all of these from the values before.
    return chased.withColumns({**values, **lacks})


def _filled_from_target(
    filled: DataFrame, version: TableVersion, target: DataFrame, extras: Extras
) -> DataFrame:
    """Take what is still not known from the target, under the key that the row had when the range began."""
    keys = [f"from.{_first_key(ordinal)}" for ordinal in range(len(version.key or ()))]
    joined = _beside_target(filled, version, target, keys, F.col("from.origin").isNull())
    values, lacks = {}, {}
    for index in version.maybe_unsent:
        value, flag, missing = new_value(index), unsent(index), _target_lacks(version, index, extras)
        theirs = F.col(_target_value(index))
        values[value] = F.when(F.col(flag) & ~missing, theirs).otherwise(F.col(value))
        lacks[flag] = F.col(flag) & missing
    return joined.withColumns({**values, **lacks})


def _target_value(index: int) -> str:
    """Name the column that holds the target's value."""
    return f"target_{index}"


def _beside_target(
    rows: DataFrame, version: TableVersion, target: DataFrame, keys: Sequence[str], were_there: Expression
) -> DataFrame:
    """Add the target's values, by these names of its key, to rows that were there when the range began."""
    read = sorted({*(version.key or ()), *version.maybe_unsent})
    values = [F.col(new_value(index)).alias(_target_value(index)) for index in read]
    pairs = zip(keys, version.key or (), strict=True)
    same = [F.col(name) == F.col(_target_value(index)) for name, index in pairs]
    found = target.select(*values, F.lit(True).alias("found"))
    return rows.join(found, reduce(Expression.__and__, same) & were_there, "left")


def _target_lacks(version: TableVersion, index: int, extras: Extras) -> Expression:
    """Whether the target, beside a row, has no value for it."""
    missing = F.col("found").isNull()
    if extras.null_is_missing(version.columns[index]):
        missing |= F.col(_target_value(index)).isNull()
    return missing


def count_missing(folded: DataFrame, version: TableVersion, target: DataFrame | None, extras: Extras) -> int:
    """Count the values that nothing has; the target is None if nothing of it counts."""
    if not version.maybe_unsent:
        return 0
    rows = folded.where(lacks_value(version))
    if extras.soft_delete:
        rows = rows.where("NOT deleted")
    lacks = [F.col(unsent(index)) for index in version.maybe_unsent]
    if target is not None:
        rows = _beside_target(rows, version, target, key_values(version), F.col("origin").isNull())
        lacks = [
            F.col(unsent(index)) & _target_lacks(version, index, extras) for index in version.maybe_unsent
        ]
    cells = (F.when(one, 1).otherwise(0) for one in lacks)
    found = rows.agg(F.sum(reduce(Expression.__add__, cells)).alias("missing")).first()
    return 0 if found is None else found["missing"] or 0


def with_missing_as_null(folded: DataFrame, version: TableVersion) -> DataFrame:
    """Take nothing from the target for rows that were not there when the range began."""
    return _without_flags(folded, version, F.col("origin").isNotNull())


def with_deleted_as_they_are(folded: DataFrame, version: TableVersion) -> DataFrame:
    """Let values of deleted rows be NULL that nothing has."""
    return _without_flags(folded, version, F.col("deleted") & F.col("origin").isNotNull())


def _without_flags(folded: DataFrame, version: TableVersion, rows: Expression) -> DataFrame:
    """Say that these rows lack nothing."""
    return folded.withColumns({unsent(index): F.col(unsent(index)) & ~rows for index in version.maybe_unsent})
