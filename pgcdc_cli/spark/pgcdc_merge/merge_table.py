"""Merge one range into one table by key, or append it to a changelog, with SQL common to Delta and Iceberg.

A merge reads, folds, checks and commits. A changelog has every change, with one append per range:

| column | type | meaning |
|---|---|---|
| _pgcdc_op | string | I, U, D, T (truncate) or R (snapshot row) |
| _pgcdc_lsn, _pgcdc_seq | bigint | commit LSN and number in the transaction: the change's place in history |
| _pgcdc_commit_ts | timestamp | commit time |
| _pgcdc_xid | bigint | the transaction's xid; NULL for snapshot rows |
| _pgcdc_change_lsn | bigint | the change's own LSN |
| _pgcdc_segment | bigint | the last segment of the range that it came with |
| _pgcdc_unchanged | array of string | columns whose value was not sent (unchanged TOAST): they are NULL |
| the table's columns | | the new row; for a delete the old one, as far as it was sent |
| _pgcdc_old | struct | the old row, as far as it was sent; NULL if it wasn't; not there without columns |
"""

from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass

from pyspark.sql import Column as Expression
from pyspark.sql import DataFrame, Observation, Row, SparkSession
from pyspark.sql import functions as F  # noqa: N812 - PySpark's own habit

from .debezium_segments import check_losses
from .fold import (
    COMMIT_TS,
    DELETED,
    LSN,
    Extras,
    after,
    checkpointed,
    count_missing,
    fold,
    fold_softly,
    is_lost,
    last_truncate,
    needs_lineage,
    persisted,
    with_deleted_as_they_are,
    with_lineage,
    with_missing_as_null,
)
from .lake import CommitMark, LakeTable, TableCommit, quoted
from .merge_errors import MergeError
from .plan import changed_key_of_deleted, check_has_key
from .rows import (
    key_values,
    new_value,
    old_columns,
    old_value,
    read_rows,
    unsent,
    with_unsent_columns,
)
from .schema_evolution import ANEW, Goal
from .table_range import PlannedRange
from .table_version import TableVersion, with_all_columns
from .values import as_text, known_value, missing_value, raise_missing, typed_for_changelog, typed_for_table

_VIEW = "folded"
"""Temporary view that a MERGE statement reads."""

_FEW_COLUMNS = 16
"""Of more columns that may lack values, those that do are found first; a plan for all would take longer."""


@dataclass(frozen=True)
class MergeTarget:
    """Target of a range: the lake table, its extra columns, the commit's mark.

    `base` are the rows to start from, if these aren't the lake table's.
    """

    table: LakeTable
    extras: Extras
    mark: CommitMark
    base: DataFrame | None = None


@dataclass(frozen=True)
class MergedRange:
    """The result for a table: its commit, and the numbers of values that pgcdc made NULL.

    `unfit` ones did not fit their type; `missing` ones were neither sent nor found.
    """

    commit: TableCommit
    unfit: int = 0
    missing: int = 0


@dataclass(frozen=True)
class _FoldedRange:
    """A range as one row per key (`keys` of them); `has_target`: the target's earlier rows count."""

    rows: DataFrame
    keys: int
    version: TableVersion
    has_target: bool
    unfit: int
    missing: int
    truncate: Row | None


def merge_table(
    session: SparkSession, directory: str, plan: PlannedRange, target: MergeTarget
) -> MergedRange:
    """Merge a table's files in one commit; if it raises MergeError, the table is as before."""
    for version in {version.display: version for version in plan.work.versions.values()}.values():
        check_losses(session, directory, plan.work.losses, version)
    spans = plan.spans
    before = _adapt_table(plan, target)
    if len(spans) > 1 or (plan.rewrites and before is not None):
        return _write_anew(session, directory, spans, target, before)
    with ExitStack() as frames:
        folded = _fold_range(session, directory, plan, target.extras, before, frames)
        return MergedRange(_commit(folded, target), folded.unfit, folded.missing)


def changes_every_row(
    session: SparkSession, directory: str, plan: PlannedRange, extras: Extras, rows: DataFrame
) -> bool:
    """Whether a range has a change of each of a table's rows."""
    version = extras.version(plan.goal.version)
    versions = {path: extras.version(one) for path, one in plan.work.versions.items()}
    changes = extras.prepared(read_rows(session, directory, plan.work.files, versions, version), version)
    keys = typed_for_table(session, fold(changes, version), version)
    return rows.alias("t").join(keys.alias("s"), F.expr(_same_key(version)), "left_anti").isEmpty()


def _adapt_table(plan: PlannedRange, target: MergeTarget) -> DataFrame | None:
    """Give the lake table the columns of a range's goal; return the rows to start from, with these."""
    goal = plan.goal
    if plan.rewrites:
        return None if target.base is None else _brought_to(target.base, goal, target.extras)
    if not target.table.exists:
        return None
    filled = _filled(goal, target.extras)
    target.table.alter([(name, kind) for name, kind in goal.added if name not in filled], goal.widened)
    if filled:
        target.table.fill(filled)
    return target.table.read()


def _filled(goal: Goal, extras: Extras) -> dict[str, Expression]:
    """Return the values that earlier rows get in added columns, by column name."""
    columns = {column.name: column for column in goal.version.columns}
    values = {
        name: known_value(text, columns[name]).cast(columns[name].lake) for name, text in goal.missing.items()
    }
    if extras.soft_delete:
        values = {name: F.when(~F.col(DELETED), value) for name, value in values.items()}
    return values


def _commit(folded: _FoldedRange, target: MergeTarget) -> TableCommit:
    extras = target.extras
    if not folded.has_target:
        return target.table.replace(_table_rows(folded.rows, folded.version, extras), target.mark)
    if folded.truncate is None:
        seen = Observation()
        version = target.table.rewrite(lambda rows: _rewritten(rows, folded, extras, seen), target.mark)
        if version is not None:
            return TableCommit(version, **seen.get)
    folded.rows.createOrReplaceTempView(_VIEW)
    statement = _merge_statement(target.table.name, folded.version, extras, folded.truncate)
    return target.table.merge(statement, target.mark, folded.keys)


def _rewritten(before: DataFrame, folded: _FoldedRange, extras: Extras, seen: Observation) -> DataFrame:
    """Compute the rows that a merge would leave; count the changed ones in `seen`."""
    matched = f"s.dead IS NOT NULL AND {_is_found(folded.version)}"
    unknown = _is_unknown(folded.version, extras)
    becomes = {
        "inserted": f"s.dead IS NOT NULL AND NOT {_is_found(folded.version)} AND NOT {unknown}",
        "updated": f"{matched} AND NOT s.dead",
        "deleted": f"{matched} AND s.dead",
    }
    counts = (F.count_if(F.expr(rows)).alias(name) for name, rows in becomes.items())
    return _merged_rows(_side_by_side(before, folded).observe(seen, *counts), folded, extras)


def _brought_to(rows: DataFrame, goal: Goal, extras: Extras) -> DataFrame:
    """Convert rows from elsewhere to a table's columns."""
    rows = rows.withColumns(_filled(goal, extras))
    have = set(rows.columns)
    values = [
        (F.col(quoted(column.name)) if column.name in have else F.lit(None))
        .cast(column.lake)
        .alias(column.name)
        for column in goal.version.columns
    ]
    return rows.select(*values, *extras.columns)


def _write_anew(
    session: SparkSession,
    directory: str,
    spans: Sequence[PlannedRange],
    target: MergeTarget,
    state: DataFrame | None,
) -> MergedRange:
    """Merge a range into rows, span by span if its key changes, and rewrite the table in one commit."""
    version = spans[-1].work.version
    if target.extras.soft_delete and len(spans) > 1:
        raise changed_key_of_deleted(version)
    unfit = missing = 0
    for number, span in enumerate(spans):
        if number and state is not None:
            check_has_key(span.goal.version, state)
        with ExitStack() as frames:
            folded = _fold_range(session, directory, span, target.extras, state, frames)
            if state is None or not folded.has_target:
                state = _table_rows(folded.rows, folded.version, target.extras)
            else:
                state = _merged_rows(_side_by_side(state, folded), folded, target.extras)
            state = state.localCheckpoint()
        unfit, missing = unfit + folded.unfit, missing + folded.missing
    assert state is not None
    return MergedRange(target.table.replace(state, target.mark), unfit, missing)


def _fold_range(
    session: SparkSession,
    directory: str,
    plan: PlannedRange,
    extras: Extras,
    before: DataFrame | None,
    frames: ExitStack,
) -> _FoldedRange:
    """Fold a range's rows, and take all values that they lack from the table's earlier rows.

    What the result needs until it is committed is released with `frames`.
    """
    version = extras.version(plan.goal.version)
    versions = {path: extras.version(one) for path, one in plan.work.versions.items()}
    rows = read_rows(session, directory, plan.work.files, versions, version)
    if len(version.maybe_unsent) > _FEW_COLUMNS and not extras.soft_delete:
        version = with_unsent_columns(rows, version)
        rows = read_rows(session, directory, plan.work.files, versions, version)
    rows = extras.prepared(rows, version)
    truncate = last_truncate(rows) if extras.soft_delete else None
    exists = before is not None
    if extras.soft_delete:
        folded = persisted(fold_softly(rows, version, truncate, has_target=exists), frames)
    else:
        folded = persisted(fold(rows, version), frames)
    facts = _facts(folded, version, has_target=exists)
    if facts["truncate"] is not None:
        folded.unpersist()
        before, rows = None, after(rows, facts["truncate"])
        folded = persisted(fold(rows, version), frames)
        facts = _facts(folded, version, has_target=False)
    _check(folded, version, facts, extras, has_target=before is not None)
    known = None if before is None else _known_rows(before, version)
    complete, missing = folded, 0
    if facts["lineage"]:
        complete = _with_lineage(folded, rows, version, known, extras, frames)
    if extras.missing_is_null:
        missing = count_missing(complete, version, known, extras)
        complete = with_missing_as_null(complete, version)
    typed = typed_for_table(session, complete, version)
    keys, unfit = facts["keys"], facts["unfit"] or 0
    return _FoldedRange(typed, keys, version, before is not None, unfit, missing, truncate)


def _with_lineage(
    folded: DataFrame,
    rows: DataFrame,
    version: TableVersion,
    known: DataFrame | None,
    extras: Extras,
    frames: ExitStack,
) -> DataFrame:
    complete = with_lineage(folded, rows, version, known, extras, frames)
    if extras.soft_delete:
        complete = with_deleted_as_they_are(complete, version)
    # Spark would renew a persisted plan that reads the table once that is written, and keep it for good.
    complete = checkpointed(complete, frames)
    if not extras.missing_is_null:
        _check_values(complete, version, has_target=known is not None)
    return complete


def _known_rows(rows: DataFrame, version: TableVersion) -> DataFrame:
    """Rename a table's columns to those of new rows."""
    columns = enumerate(version.columns)
    return rows.select(
        *(as_text(F.col(quoted(column.name)), column).alias(new_value(index)) for index, column in columns)
    )


def _facts(folded: DataFrame, version: TableVersion, *, has_target: bool) -> Row:
    """Aggregate all folded rows once; `lost` is final unless there is `lineage` to follow."""
    nulls = F.array(*(F.col(name).isNull() for name in key_values(version)))
    row = F.col("truncate").isNull()
    lineage = needs_lineage(version)
    found = folded.agg(
        F.count("*").alias("keys"),
        F.max("truncate").alias("truncate"),
        F.sum(F.when(row & ~F.col("dead"), F.col("unfit"))).alias("unfit"),
        F.bool_or(row & F.array_contains(nulls, F.lit(True))).alias("no_key"),
        F.bool_or(row & lineage).alias("lineage"),
        F.bool_or(row & ~lineage & is_lost(version, has_target=has_target)).alias("lost"),
    ).first()
    assert found is not None
    return found


def _check(folded: DataFrame, version: TableVersion, facts: Row, extras: Extras, *, has_target: bool) -> None:
    if facts["no_key"]:
        raise MergeError(
            f'could not merge "{version.display}": a value of its key ({version.key_names}) is NULL,'
            " or not in its type",
            "for infinity, and years before 1 or beyond 9999, merge with --infinity string into a new"
            " warehouse; for NaN, change the key's type to numeric, and for NULL the replica identity of the"
            f" partition that pgcdc doctor names, and {ANEW}",
        )
    if facts["lost"] and not extras.missing_is_null:
        _check_values(folded.where(~needs_lineage(version)), version, has_target=has_target)


def _check_values(folded: DataFrame, version: TableVersion, *, has_target: bool) -> None:
    """Raise MergeError for the first row with a value that can't be found."""
    row = folded.where(is_lost(version, has_target=has_target)).first()
    if row is not None:
        index = next(index for index in version.maybe_unsent if row[unsent(index)])
        key = ", ".join(str(row[name]) for name in key_values(version))
        raise missing_value(version, version.columns[index].name, key)


def _table_rows(folded: DataFrame, version: TableVersion, extras: Extras) -> DataFrame:
    """Convert folded rows to a table's rows, if there is no table yet."""
    values = [F.col(new_value(index)).alias(column.name) for index, column in enumerate(version.columns)]
    more = [F.col(value).alias(name) for name, value in extras.columns.items()]
    return folded.where("NOT dead").select(*values, *more)


def _side_by_side(before: DataFrame, folded: _FoldedRange) -> DataFrame:
    """Join a table's rows, as `t`, and folded ones, as `s`."""
    same = F.expr(_same_key(folded.version))
    return before.alias("t").join(folded.rows.alias("s"), same, "full_outer")


def _is_found(version: TableVersion) -> str:
    """Whether the join found a row of the table."""
    return f"t.{quoted(version.key_columns[0].name)} IS NOT NULL"


def _merged_rows(joined: DataFrame, folded: _FoldedRange, extras: Extras) -> DataFrame:
    """Compute the rows that a merge would leave in a table."""
    version, found = folded.version, _is_found(folded.version)
    values = {column.name: f"s.{new_value(index)}" for index, column in enumerate(version.columns)}
    for index in version.maybe_unsent:
        kept = f"IF({found}, {_kept(version, index, extras)}, {_missing(version, index, extras)})"
        values[version.columns[index].name] = _unless_sent(index, kept)
    values |= {name: f"s.{value}" for name, value in extras.columns.items()}
    left = joined.where(f"s.dead IS NULL OR NOT (s.dead OR ({_is_unknown(version, extras)} AND NOT {found}))")
    marked = _marks_of_truncate(extras, folded.truncate)
    old = {name: f"t.{quoted(name)}" for name in values}
    old |= {name: f"IF(t.{DELETED}, t.{name}, {value})" for name, value in marked.items()}
    chosen = {name: f"IF(s.dead IS NULL, {old[name]}, {new})" for name, new in values.items()}
    return left.select(*(F.expr(value).alias(name) for name, value in chosen.items()))


def _merge_statement(target: str, version: TableVersion, extras: Extras, truncate: Row | None) -> str:
    """Write the MERGE statement for folded rows; with `--soft-delete`, a truncate marks all others."""
    names = [quoted(column.name) for column in version.columns]
    updated = {name: f"s.{new_value(index)}" for index, name in enumerate(names)}
    inserted = dict(updated)
    for index in version.maybe_unsent:
        updated[names[index]] = _unless_sent(index, _kept(version, index, extras))
        inserted[names[index]] = _unless_sent(index, _missing(version, index, extras))
    more = {name: f"s.{value}" for name, value in extras.columns.items()}
    inserted |= more
    return f"""
        MERGE INTO {target} t USING {_VIEW} s ON {_same_key(version)}
        WHEN MATCHED AND s.dead THEN DELETE
        WHEN MATCHED THEN UPDATE SET {_assignments(updated | more)}
        WHEN NOT MATCHED AND NOT {_is_unknown(version, extras)} THEN
            INSERT ({", ".join(inserted)}) VALUES ({", ".join(inserted.values())})
        {_marking_the_rest(extras, truncate)}
    """  # noqa: S608 - names are quoted


def _same_key(version: TableVersion) -> str:
    names = zip(version.key_columns, key_values(version), strict=True)
    return " AND ".join(f"t.{quoted(column.name)} = s.{name}" for column, name in names)


def _assignments(values: Mapping[str, str]) -> str:
    return ", ".join(f"t.{name} = {value}" for name, value in values.items())


def _is_unknown(version: TableVersion, extras: Extras) -> str:
    """Whether a folded row must not be inserted: it is deleted, and not all of its values are known."""
    flags = [f"s.{unsent(index)}" for index in version.maybe_unsent]
    if not extras.soft_delete or not flags:
        return "s.dead"
    return f"(s.deleted AND ({' OR '.join(flags)}))"


def _marks_of_truncate(extras: Extras, truncate: Row | None) -> dict[str, str]:
    """Return, as SQL, the values with which a truncate marks the table's rows as deleted."""
    if truncate is None:
        return {}
    values = {DELETED: "true"}
    if extras.metadata:
        values |= {LSN: str(truncate["change_lsn"]), COMMIT_TS: f"timestamp_micros({truncate['micros']})"}
    return values


def _marking_the_rest(extras: Extras, truncate: Row | None) -> str:
    values = _marks_of_truncate(extras, truncate)
    if not values:
        return ""
    return f"WHEN NOT MATCHED BY SOURCE AND NOT t.{DELETED} THEN UPDATE SET {_assignments(values)}"


def _unless_sent(index: int, otherwise: str) -> str:
    return f"IF(s.{unsent(index)}, {otherwise}, s.{new_value(index)})"


def _kept(version: TableVersion, index: int, extras: Extras) -> str:
    """Keep the table's value, unless it is a NULL that means a missing value."""
    name = f"t.{quoted(version.columns[index].name)}"
    if not extras.null_is_missing(version.columns[index]):
        return name
    return f"coalesce({name}, {_missing(version, index, extras)})"


def _missing(version: TableVersion, index: int, extras: Extras) -> str:
    """Stop the merge for a value that neither the changes nor the table have."""
    if extras.missing_is_null:
        return "NULL"
    return raise_missing(version.columns[index].name, [f"s.{name}" for name in key_values(version)])


OLD = "_pgcdc_old"


def append_changes(
    session: SparkSession, directory: str, plan: PlannedRange, target: LakeTable, mark: CommitMark
) -> MergedRange:
    """Append a table's changes in one commit."""
    versions = {
        path: with_all_columns(version, may_be_unsent=True) for path, version in plan.work.versions.items()
    }
    check_losses(session, directory, plan.work.losses, plan.work.version)
    _alter_changelog(target, plan.goal)
    goal = with_all_columns(plan.goal.version, may_be_unsent=True)
    seen = Observation()
    rows = read_rows(session, directory, plan.work.files, versions, goal)
    rows = rows.observe(seen, F.sum("unfit").alias("unfit"))
    commit = target.append(_changes(typed_for_changelog(session, rows, goal), goal, mark.segment), mark)
    return MergedRange(commit, seen.get["unfit"] or 0)


def _alter_changelog(target: LakeTable, goal: Goal) -> None:
    """Add and widen columns, also in the old rows, for which there is no column before the first of these."""
    if not goal.added or OLD in dict(target.columns()):
        target.alter(goal.added, goal.widened, OLD)
        return
    members = ", ".join(f"{quoted(name)}: {kind}" for name, kind in goal.added)
    target.alter([*goal.added, (OLD, f"struct<{members}>")], ())


def _changes(rows: DataFrame, version: TableVersion, segment: int) -> DataFrame:
    """Convert each change to a row of the changelog."""
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
        F.array_compact(F.array(*names).cast("array<string>")).alias("_pgcdc_unchanged"),
        *values,
        # No table format stores a struct without fields.
        *([F.when(F.col("has_old"), F.struct(*olds)).alias(OLD)] if olds else []),
    )
