"""One table of one range: read, fold, check, commit, in SQL that Delta and Iceberg share."""

from collections.abc import Sequence
from dataclasses import dataclass

from pyspark.sql import DataFrame, Row, SparkSession
from pyspark.sql import functions as F  # noqa: N812 - PySpark's own habit

from .column_types import Column
from .debezium_segments import check_losses
from .fold import (
    COMMIT_TS,
    DELETED,
    LSN,
    Extras,
    after,
    as_null,
    count_missing,
    fold,
    fold_softly,
    forgiven,
    is_lost,
    lacking,
    last_truncate,
    needs_lineage,
    with_lineage,
)
from .lake import CommitMark, LakeTable, TableCommit, quoted
from .merge_errors import MergeError
from .plan import TableFiles, key_columns
from .rows import read_rows
from .schema_evolution import ANEW
from .segments import TableVersion
from .values import as_text, missing_value, raise_missing, written

SOURCE = "folded"
"""The name of the view that a merge statement reads."""


def table_rows(folded: DataFrame, version: TableVersion, extras: Extras) -> DataFrame:
    """Make of folded rows a table's rows, where there is no table yet."""
    values = [F.col(f"n{place}").alias(column.name) for place, column in enumerate(version.columns)]
    more = [F.col(value).alias(name) for name, value in extras.columns.items()]
    return folded.where("NOT dead").select(*values, *more)


def merge_statement(target: str, version: TableVersion, extras: Extras, truncate: Row | None) -> str:
    """Insert, update and delete as the folded rows say; with `--soft-delete`, a truncate marks all others."""
    names = [quoted(column.name) for column in version.columns]
    may_lack = set(lacking(version))
    keys = " AND ".join(f"t.{names[place]} = s.k{number}" for number, place in enumerate(version.key or ()))
    kept = {
        name: f"IF(s.l{place}, {_kept(version, place, extras)}, s.n{place})"
        if place in may_lack
        else f"s.n{place}"
        for place, name in enumerate(names)
    }
    new = {
        name: _checked(version, place, extras) if place in may_lack else f"s.n{place}"
        for place, name in enumerate(names)
    }
    more = {name: f"s.{value}" for name, value in extras.columns.items()}
    new |= more
    return f"""
        MERGE INTO {target} t USING {SOURCE} s ON {keys}
        WHEN MATCHED AND s.dead THEN DELETE
        WHEN MATCHED THEN UPDATE SET {_assignments(kept | more)}
        WHEN NOT MATCHED AND NOT {_nothing(version, extras)} THEN
            INSERT ({", ".join(new)}) VALUES ({", ".join(new.values())})
        {_marking_the_rest(extras, truncate)}
    """  # noqa: S608 - names are quoted


def applied(before: DataFrame, folded: DataFrame, version: TableVersion, extras: Extras) -> DataFrame:
    """Give the rows that merging would leave in a table."""
    keys = [f"t.{quoted(column.name)} = s.k{n}" for n, column in enumerate(_key(version))]
    joined = before.alias("t").join(folded.alias("s"), F.expr(" AND ".join(keys)), "full_outer")
    found = f"t.{quoted(_key(version)[0].name)} IS NOT NULL"
    values = {column.name: f"s.n{place}" for place, column in enumerate(version.columns)}
    for place in lacking(version):
        kept = f"IF({found}, {_kept(version, place, extras)}, {_missing(version, place, extras)})"
        values[version.columns[place].name] = f"IF(s.l{place}, {kept}, s.n{place})"
    values |= {name: f"s.{value}" for name, value in extras.columns.items()}
    left = joined.where("s.dead IS NULL OR NOT s.dead")
    chosen = {name: f"IF(s.dead IS NULL, t.{quoted(name)}, {new})" for name, new in values.items()}
    return left.select(*(F.expr(value).alias(name) for name, value in chosen.items()))


def _key(version: TableVersion) -> list[Column]:
    return [version.columns[place] for place in version.key or ()]


def _assignments(values: dict[str, str]) -> str:
    return ", ".join(f"t.{name} = {value}" for name, value in values.items())


def _nothing(version: TableVersion, extras: Extras) -> str:
    """Whether a folded row is none to insert: deleted, and unknown to the changes."""
    flags = [f"s.l{place}" for place in lacking(version)]
    if not extras.soft_delete or not flags:
        return "s.dead"
    return f"(s.deleted AND ({' OR '.join(flags)}))"


def _marking_the_rest(extras: Extras, truncate: Row | None) -> str:
    if truncate is None:
        return ""
    marks = {DELETED: "true"}
    if extras.metadata:
        marks |= {LSN: str(truncate["change_lsn"]), COMMIT_TS: f"timestamp_micros({truncate['micros']})"}
    return f"WHEN NOT MATCHED BY SOURCE AND NOT t.{DELETED} THEN UPDATE SET {_assignments(marks)}"


def _kept(version: TableVersion, place: int, extras: Extras) -> str:
    """Keep the table's value. Unchanged TOAST is never NULL: where that is there, the value is missing."""
    name = f"t.{quoted(version.columns[place].name)}"
    if version.columns[place].bounded or extras.soft_delete:
        return name
    return f"coalesce({name}, {_missing(version, place, extras)})"


def _checked(version: TableVersion, place: int, extras: Extras) -> str:
    """Stop the merge where neither the changes nor the table have a value."""
    return f"IF(s.l{place}, {_missing(version, place, extras)}, s.n{place})"


def _missing(version: TableVersion, place: int, extras: Extras) -> str:
    if extras.missing_is_null:
        return "NULL"
    return raise_missing(
        version.columns[place].name, [f"s.k{number}" for number in range(len(version.key or ()))]
    )


@dataclass(frozen=True)
class Merged:
    """What became of a table: its commit, and how many values are NULL for a reason of ours.

    `unfit` did not fit their type; `missing` were neither sent nor there.
    """

    commit: TableCommit
    unfit: int = 0
    missing: int = 0


@dataclass(frozen=True)
class Target:
    """Where a range goes: the lake table, its extra columns, and the commit's mark."""

    table: LakeTable
    extras: Extras
    mark: CommitMark


@dataclass(frozen=True)
class _Folded:
    """A range as one row for each key, `keys` of them; `has_target` says whether rows from before count."""

    rows: DataFrame
    keys: int
    version: TableVersion
    has_target: bool
    unfit: int
    missing: int
    truncate: Row | None
    persisted: Sequence[DataFrame]

    def release(self) -> None:
        for frame in self.persisted:
            frame.unpersist()


def merge_table(session: SparkSession, directory: str, work: TableFiles, target: Target) -> Merged:
    """Merge a table's files in one commit; a MergeError leaves the table as it was."""
    check_losses(session, directory, work.losses, work.version)
    target.table.alter(work.goal.added, work.goal.widened)
    before = target.table.read() if target.table.exists else None
    spans = work.spans
    if len(spans) > 1:
        return _merge_spans(session, directory, spans, target)
    folded = _fold_range(session, directory, work, target.extras, before)
    try:
        return Merged(_commit(folded, target), folded.unfit, folded.missing)
    finally:
        folded.release()


def _commit(folded: _Folded, target: Target) -> TableCommit:
    extras = target.extras
    if not folded.has_target:
        return target.table.replace(table_rows(folded.rows, folded.version, extras), target.mark)
    folded.rows.createOrReplaceTempView(SOURCE)
    statement = merge_statement(target.table.name, folded.version, extras, folded.truncate)
    return target.table.merge(statement, target.mark, folded.keys)


def _merge_spans(
    session: SparkSession, directory: str, spans: Sequence[TableFiles], target: Target
) -> Merged:
    """Merge a range in which the key changes, span by span, in one commit that writes the table anew."""
    version = spans[-1].version
    if target.extras.soft_delete:
        raise MergeError(
            f'could not merge "{version.display}": its key changed, see "{version.path}", and deleted rows'
            " are kept by their old key",
            f"leave out --soft-delete, or {ANEW}",
        )
    state = target.table.read() if target.table.exists else None
    unfit = missing = 0
    for span in spans:
        folded = _fold_range(session, directory, span, target.extras, state)
        if state is None or not folded.has_target:
            state = table_rows(folded.rows, folded.version, target.extras)
        else:
            state = applied(state, folded.rows, folded.version, target.extras)
        state = state.localCheckpoint()
        folded.release()
        unfit, missing = unfit + folded.unfit, missing + folded.missing
    assert state is not None
    return Merged(target.table.replace(state, target.mark), unfit, missing)


def _fold_range(
    session: SparkSession, directory: str, work: TableFiles, extras: Extras, before: DataFrame | None
) -> _Folded:
    exists = before is not None
    version = extras.version(work.goal.version)
    versions = {path: extras.version(one) for path, one in work.versions.items()}
    rows = extras.prepared(read_rows(session, directory, work.files, versions, version), version)
    truncate = last_truncate(rows) if extras.soft_delete else None
    folded = (
        fold_softly(rows, version, truncate, has_target=exists) if extras.soft_delete else fold(rows, version)
    ).persist()
    facts = _facts(folded, version, has_target=exists)
    has_target = exists and facts["truncate"] is None
    if facts["truncate"] is not None:
        folded.unpersist()
        rows = after(rows, facts["truncate"])
        folded = fold(rows, version).persist()
        facts = _facts(folded, version, has_target=False)
    _check(folded, version, facts, extras, has_target=has_target)
    complete, missing = folded, 0
    known = None if before is None or not has_target else _numbered(before, version)
    if facts["lineage"]:
        strict = not extras.soft_delete
        complete = with_lineage(folded, rows, version, known, null_is_missing=strict)
        complete = (forgiven(complete, version) if extras.soft_delete else complete).persist()
        if not extras.missing_is_null:
            _check_values(complete, version, has_target=has_target)
    persisted = (complete, folded)
    if extras.missing_is_null:
        missing = count_missing(complete, version, known, extras)
        complete = as_null(complete, version)
    complete = written(session, complete, version)
    unfit = facts["unfit"] or 0
    return _Folded(complete, facts["keys"], version, has_target, unfit, missing, truncate, persisted)


def _numbered(rows: DataFrame, version: TableVersion) -> DataFrame:
    """Name a table's columns n0, n1, ..."""
    return rows.select(
        *(
            as_text(F.col(quoted(column.name)), column).alias(f"n{place}")
            for place, column in enumerate(version.columns)
        )
    )


def _facts(folded: DataFrame, version: TableVersion, *, has_target: bool) -> Row:
    """Look at all folded rows once; `lost` is final unless there is `lineage` to follow."""
    keys = F.array(*(F.col(f"k{number}").isNull() for number in range(len(version.key or ()))))
    row = F.col("truncate").isNull()
    lineage = needs_lineage(version)
    found = folded.agg(
        F.count("*").alias("keys"),
        F.max("truncate").alias("truncate"),
        F.sum(F.when(row & ~F.col("dead"), F.col("unfit"))).alias("unfit"),
        F.bool_or(row & F.array_contains(keys, F.lit(True))).alias("no_key"),
        F.bool_or(row & lineage).alias("lineage"),
        F.bool_or(row & ~lineage & is_lost(version, has_target=has_target)).alias("lost"),
    ).first()
    assert found is not None
    return found


def _check(folded: DataFrame, version: TableVersion, facts: Row, extras: Extras, *, has_target: bool) -> None:
    if facts["no_key"]:
        names = ", ".join(column.name for column in key_columns(version))
        raise MergeError(
            f'could not merge "{version.display}": a value of its key ({names}) is NULL, or not in its type',
            "a key can't hold infinity, NaN, or years before 1 or beyond 9999: change the row's key, or if it"
            " isn't NaN, merge with --infinity string into a new warehouse",
        )
    if facts["lost"] and not extras.missing_is_null:
        _check_values(folded.where(~needs_lineage(version)), version, has_target=has_target)


def _check_values(folded: DataFrame, version: TableVersion, *, has_target: bool) -> None:
    """Raise a MergeError that names the first row with a value that nothing has."""
    row = folded.where(is_lost(version, has_target=has_target)).first()
    if row is not None:
        raise _missing_error(version, row)


def _missing_error(version: TableVersion, row: Row) -> MergeError:
    column = next(place for place in lacking(version) if row[f"l{place}"])
    key = [row[f"k{number}"] for number in range(len(version.key or ()))]
    return missing_value(version, version.columns[column].name, ", ".join(map(str, key)))
