"""Folded rows into a lake table, as SQL that Delta and Iceberg share."""

from pyspark.sql import DataFrame, Row
from pyspark.sql import functions as F  # noqa: N812 - PySpark's own habit

from .columns import Column
from .extras import COMMIT_TS, DELETED, LSN, Extras
from .fold import lacking
from .lake import quoted
from .raised import raise_missing
from .segments import TableVersion

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
