"""Fold a table's changes into one row for each key that they touch.

A change is one event, or two if an update changed the key: the delete of the old key (half 0), then the
insert of the new one (half 1). The events of a key, in order, form lifetimes of rows. A lifetime begins with
an insert, with a snapshot row, or with a row that arrives from another key (these are its origin); or the
target already had the row when the range began (no origin). It ends where the next one begins. A key's newest
event decides what becomes of it. If the newest event lacks a value (unchanged TOAST), it is the newest one in
the lifetime; else, if the row came from another key, the value that the row had when it left that key, and so
on; else the target's. The target has the table's columns, named as by `rows.new_value`.

| column | type | meaning |
|---|---|---|
| key | as the column's | see `rows.key_value` |
| dead | boolean | no row is left under this key |
| the row | as the column's | see `rows.new_value` |
| what it lacks | boolean | the value is not among the changes, see `rows.unsent` |
| origin | struct(moved, position) | how the newest lifetime began; NULL: with the target's row of this key |
| truncate | struct | position of the last truncate, in a row of its own, whose key is NULL |
| unfit | int | values of the row that became NULL since their types can't hold them |
| change_lsn, change_ts | bigint, timestamp | commit LSN and time of the newest change, for `--metadata` |
| deleted | boolean | with `--soft-delete`: the row was deleted |
"""

from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from functools import reduce

from pyspark.sql import Column as Expression
from pyspark.sql import DataFrame, Row, Window
from pyspark.sql import functions as F  # noqa: N812 - PySpark's own habit

from .column_types import LakeColumn
from .rows import key_pairs, key_values, new_value, old_columns, old_value, unsent
from .table_version import TableVersion, with_all_columns

PREFIX = "_pgcdc_"
LSN, COMMIT_TS, DELETED = "_pgcdc_lsn", "_pgcdc_commit_ts", "_pgcdc_deleted"

_OF_EVENTS = ("newest", "position", "half", "moved")
"""Columns of events that folded rows don't have."""


@dataclass(frozen=True)
class Extras:
    """Columns of a merged table in addition to the source's.

    `missing_is_null`: a value that neither the changes nor the table have is written as NULL; without it, it
    stops the merge.
    """

    metadata: bool = False
    soft_delete: bool = False
    missing_is_null: bool = False

    @property
    def columns(self) -> dict[str, str]:
        """Their values by name, as SQL over folded rows."""
        metadata = {LSN: "change_lsn", COMMIT_TS: "change_ts"} if self.metadata else {}
        return metadata | ({DELETED: "deleted"} if self.soft_delete else {})

    def version(self, version: TableVersion) -> TableVersion:
        """Adapt a table's version for the fold: with soft deletes, any value may be missing."""
        return with_all_columns(version, may_be_unsent=True) if self.soft_delete else version

    def prepared(self, rows: DataFrame, version: TableVersion) -> DataFrame:
        """Keep of the rows' metadata only what the table gets."""
        if self.metadata:
            lsn, commit_ts = F.col("position.commit_lsn"), F.col("commit_ts")
            rows = rows.withColumns({"change_lsn": lsn, "change_ts": commit_ts})
        return rows.drop("lsn", "xid", "commit_ts", "has_old", *map(old_value, old_columns(version)))

    def null_is_missing(self, column: LakeColumn) -> bool:
        """Whether NULL in the table means that a value is missing: unchanged TOAST is never NULL."""
        return not (column.bounded or self.soft_delete)


def persisted(frame: DataFrame, frames: ExitStack) -> DataFrame:
    """Keep a frame's rows once they are computed, until `frames` are closed."""
    frame = frame.persist()
    frames.callback(frame.unpersist)
    return frame


def checkpointed(frame: DataFrame, frames: ExitStack) -> DataFrame:
    """Compute a frame's rows, with which further plans begin, and keep them until `frames` are closed."""
    frame = frame.localCheckpoint()
    rows = frame._jdf.logicalPlan().rdd()  # noqa: SLF001 - PySpark leaves this to Java's garbage collector
    frames.callback(rows.unpersist, False)
    return frame


def fold(rows: DataFrame, version: TableVersion) -> DataFrame:
    """Fold rows of `rows.read_rows`."""
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
    # The event that leaves a key has the new key among its values.
    keys = {new: F.when(F.col("dead"), F.col(old)).otherwise(F.col(new)) for old, new in key_pairs(version)}
    folded = folded.withColumns({**keys, "dead": F.lit(False)}).drop(*_OF_EVENTS)
    folded = _without_flags(folded, version, F.col("deleted") & F.col("origin").isNotNull() & ~_arrived())
    unknown = F.col("deleted") & F.col("origin").isNull() & lacks_value(version)
    return folded if has_target else folded.where(~unknown)


def last_truncate(rows: DataFrame) -> Row | None:
    """Find the last truncate: its `position` and, with metadata, `change_lsn` and `micros`."""
    wanted: list[Expression] = [F.col("position")]
    if "change_ts" in rows.columns:
        wanted += [F.col("change_lsn"), F.unix_micros("change_ts").alias("micros")]
    found: Row | None = rows.where("op = 'T'").select(*wanted).orderBy(F.desc("position")).first()
    return found


def after(rows: DataFrame, truncate: Row) -> DataFrame:
    """Keep the changes after a truncate, given by its position."""
    return rows.where(F.col("position") > _position(truncate))


def _position(position: Row) -> Expression:
    commit_lsn, change, seq = position
    return F.struct(F.lit(commit_lsn).cast("bigint"), F.lit(change), F.lit(seq).cast("bigint"))


def lacks_value(version: TableVersion) -> Expression:
    """Whether a folded row lacks a value."""
    flags = [F.col(unsent(index)) for index in version.maybe_unsent]
    return ~F.col("dead") & reduce(Expression.__or__, flags, F.lit(False))


def needs_lineage(version: TableVersion) -> Expression:
    """Whether a folded row lacks a value and came from another key."""
    return lacks_value(version) & _arrived()


def is_lost(version: TableVersion, *, has_target: bool) -> Expression:
    """Whether a folded row lacks a value that can't be found: inserted without it, or without a target."""
    return lacks_value(version) & (F.col("origin").isNotNull() | F.lit(not has_target))


def _arrived() -> Expression:
    """Whether a row came from another key."""
    return F.coalesce(F.col("origin.moved"), F.lit(False))


def _newest(rows: DataFrame, version: TableVersion) -> DataFrame:
    """Return each key's last event, if no other matters; Spark drops most of the others early."""
    latest = Window.partitionBy(*key_values(version)).orderBy(F.desc("position"), F.desc("half"))
    halved = _halved(rows, version).withColumn("newest", F.row_number().over(latest)).where("newest = 1")
    position = halved.schema["position"].dataType.simpleString()
    origin = {"origin": F.lit(None).cast(f"struct<moved: boolean, position: {position}>")}
    return halved.withColumns({**origin, **_outcome()}).drop("op")


def _outcome() -> dict[str, Expression]:
    """Compute whether an event ends its row, or all rows."""
    return {"dead": F.col("half") == 0, "truncate": F.when(F.col("op") == "T", F.col("position"))}


def _events(rows: DataFrame, version: TableVersion) -> DataFrame:
    """Add to each event what is known of its row by then; `newest` marks a key's last event."""
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
            # Unchanged TOAST is never NULL; an earlier NULL is from a time when the column didn't exist yet.
            lacks[flag] |= F.col(flag) & value.isNull()
    return seen.withColumns({**values, **lacks, **_outcome()}).drop("op", *known)


def _halved(rows: DataFrame, version: TableVersion) -> DataFrame:
    """Split changes into events; `key` becomes each event's own key."""
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
    """Name the column for what is known of a value."""
    return f"known_{index}"


def _knowledge(index: int, begins: Expression) -> Expression:
    """Compute what an event says of a column: its value or, if a lifetime begins, that there is none."""
    sent = (F.col("half") == 1) & ~F.col(unsent(index))
    return F.when(sent | begins, F.struct(sent.alias("sent"), F.col(new_value(index)).alias("value")))


def with_lineage(
    folded: DataFrame,
    rows: DataFrame,
    version: TableVersion,
    target: DataFrame | None,
    extras: Extras,
    frames: ExitStack,
) -> DataFrame:
    """Fill in values that rows from other keys lack: along their keys, then from the target.

    The target is None if its rows don't count. Rows that lack a value even then keep their origin.
    """
    need = needs_lineage(version)
    departures = _departures(_events(rows, version), version, frames)
    chased = folded.where(need).join(departures, F.col("origin.position") == F.col("from.position"), "left")
    filled = _filled(chased, version)
    if target is not None:
        filled = _filled_from_target(filled, version, target, extras)
    return folded.where(~need).unionByName(filled.select(*folded.columns))


def _first_key(ordinal: int) -> str:
    """Name the field for a value of the key that a moved row has in the target."""
    return f"first_key_{ordinal}"


def _departures(events: DataFrame, version: TableVersion, frames: ExitStack) -> DataFrame:
    """Collect what each row had when it left a key, as `from`: position, origin, values, and its first key.

    Rows that had come from yet another key are followed back, twice as far in each round.
    """
    fields = ["position", "origin"]
    fields += [name(index) for index in version.maybe_unsent for name in (new_value, unsent)]
    keys = [F.col(name).alias(_first_key(ordinal)) for ordinal, name in enumerate(key_values(version))]
    left = events.where("moved AND half = 0").select(F.struct(*fields, *keys).alias("from"))
    left = persisted(left, frames)
    while not left.where("from.origin.moved").isEmpty():
        earlier = left.withColumnRenamed("from", "earlier")
        follows = F.col("from.origin.position") == F.col("earlier.position")
        joined = left.join(earlier, F.col("from.origin.moved") & follows, "left")
        left = checkpointed(joined.select(_further_back(version).alias("from")), frames)
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
        # A row without departure was inserted: nothing is known of a value that it lacks.
        lacks[flag] = F.col(flag) & F.coalesce(F.col(f"from.{flag}"), F.lit(True))
    # withColumns computes all of these from the previous values.
    return chased.withColumns({**values, **lacks})


def _filled_from_target(
    filled: DataFrame, version: TableVersion, target: DataFrame, extras: Extras
) -> DataFrame:
    """Take values that are still unknown from the target, under the row's key when the range began."""
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
    """Name the column for a value of the target."""
    return f"target_{index}"


def _beside_target(
    rows: DataFrame, version: TableVersion, target: DataFrame, keys: Sequence[str], were_there: Expression
) -> DataFrame:
    """Join the target's values, by these columns of its key, to rows that existed when the range began."""
    read = sorted({*(version.key or ()), *version.maybe_unsent})
    values = [F.col(new_value(index)).alias(_target_value(index)) for index in read]
    pairs = zip(keys, version.key or (), strict=True)
    same = [F.col(name) == F.col(_target_value(index)) for name, index in pairs]
    found = target.select(*values, F.lit(True).alias("found"))
    return rows.join(found, reduce(Expression.__and__, same) & were_there, "left")


def _target_lacks(version: TableVersion, index: int, extras: Extras) -> Expression:
    """Whether the joined target has no value for a row."""
    missing = F.col("found").isNull()
    if extras.null_is_missing(version.columns[index]):
        missing |= F.col(_target_value(index)).isNull()
    return missing


def count_missing(folded: DataFrame, version: TableVersion, target: DataFrame | None, extras: Extras) -> int:
    """Count the values that can't be found; the target is None if its rows don't count."""
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
    """Clear the flags of rows that didn't exist when the range began: the target has none of their values."""
    return _without_flags(folded, version, F.col("origin").isNotNull())


def with_deleted_as_they_are(folded: DataFrame, version: TableVersion) -> DataFrame:
    """Clear the flags of deleted rows that began in the range, so that missing values become NULL."""
    return _without_flags(folded, version, F.col("deleted") & F.col("origin").isNotNull())


def _without_flags(folded: DataFrame, version: TableVersion, rows: Expression) -> DataFrame:
    """Clear the flags of missing values for these rows."""
    return folded.withColumns({unsent(index): F.col(unsent(index)) & ~rows for index in version.maybe_unsent})
