"""Values that are PostgreSQL's text until they are written, and errors of values that stop a commit.

Whether such a value fits is checked only when it is written: one that doesn't fit stops the merge of its
table, but not if a later change has replaced it. Spark's only means for that is an error with a text, which
is searched for in the error that Spark then reports.
"""

import json
import re
from collections.abc import Iterator
from contextlib import contextmanager

from pyspark.sql import Column as Expression
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812 - PySpark's own habit

from .column_types import LakeColumn, from_text, same_text, without_zeros
from .lake import SETTINGS, literal
from .merge_errors import MergeError
from .rows import key_pairs, key_values, new_value, old_value
from .table_version import TableVersion

_DUPLICATES = "spark.sql.variant.allowDuplicateKeys"
_SHOWN = 60
"""Most characters of a value that an error shows."""

_NOT_EXACT = r"[0-9]{39}|[0-9.]{40}|[0-9][eE][+-]?[0-9]{3}"
"""Numbers that a variant, which has decimals of 38 digits and doubles, may not hold exactly."""

_MISSING, _UNFIT = "pgcdc-missing-value", "pgcdc-unfit-value"
_STRING = r'"(?:[^"\\]|\\.)*"'
_MISSING_FOUND = re.compile(rf"{_MISSING} ({_STRING}) \((.*?)\) {_MISSING}", re.DOTALL)
_UNFIT_FOUND = re.compile(rf"{_UNFIT} (\[.*?\]) {_UNFIT}", re.DOTALL)


def typed_for_table(session: SparkSession, folded: DataFrame, version: TableVersion) -> DataFrame:
    """Convert folded rows to the lake table's types; a value that doesn't fit is an error when written."""
    if not any(column.late for column in version.columns):
        return folded
    names = key_values(version)
    key = F.concat_ws(", ", *(F.col(name).cast("string") for name in names))
    values = {new_value(index): column for index, column in enumerate(version.columns) if column.late}
    with _no_duplicate_keys(session):
        typed = {
            name: F.when(~F.col("dead"), _typed(F.col(name), column, key)) for name, column in values.items()
        }
        # A key that doesn't fit can't be in the table, so deleting it does nothing.
        keys = zip(names, version.key_columns, strict=True)
        typed |= {name: _fitting(F.col(name), column) for name, column in keys if column.late}
        return folded.withColumns(typed)


def typed_for_changelog(session: SparkSession, rows: DataFrame, version: TableVersion) -> DataFrame:
    """Convert a changelog's rows, including the old rows, to the lake table's types."""
    late = [index for index, column in enumerate(version.columns) if column.late]
    if not late:
        return rows
    key = F.concat_ws(
        ", ",
        *(F.coalesce(*(F.col(name).cast("string") for name in pair)) for pair in key_pairs(version)),
    )
    names = {name(index): version.columns[index] for index in late for name in (new_value, old_value)}
    with _no_duplicate_keys(session):
        return rows.withColumns(
            {name: _typed(F.col(name), column, key) for name, column in names.items() if name in rows.columns}
        )


@contextmanager
def _no_duplicate_keys(session: SparkSession) -> Iterator[None]:
    """Refuse duplicate keys in parsed variants; Spark reads the setting when an expression gets a plan."""
    session.conf.set(_DUPLICATES, "false")
    try:
        yield
    finally:
        session.conf.set(_DUPLICATES, SETTINGS[_DUPLICATES])


def known_value(text: str, column: LakeColumn) -> Expression:
    """Convert PostgreSQL's text to the lake table's type; NULL if that can't hold it."""
    value = from_text(F.lit(text), column.spark, column.delimiter)
    return _fitting(value, column) if column.late else value


def as_text(value: Expression, column: LakeColumn) -> Expression:
    """Convert from the lake table's type back to the type that values have until they are written."""
    if not column.late:
        return value
    text = F.to_json(value) if column.lake == "variant" else value.cast(column.spark)
    return same_text(text, column)


def _typed(text: Expression, column: LakeColumn, key: Expression) -> Expression:
    """Convert; an error if the type doesn't hold the value exactly."""
    shown = F.array_join(text, ",", "NULL") if column.lake.startswith("array") else text
    start = F.substr(shown, F.lit(1), F.lit(_SHOWN))
    unfit = _raise_unfit(column.name, column.lake, key, start)
    return F.when(text.isNotNull(), F.coalesce(_fitting(text, column), unfit))


def _fitting(text: Expression, column: LakeColumn) -> Expression:
    """Convert; NULL if the type doesn't hold the value exactly."""
    if column.lake == "variant":
        return F.when(~_has_long_number(text), F.try_parse_json(text))
    if column.lake.startswith("array"):
        element = column.lake.removeprefix("array<")[:-1]
        values = F.transform(text, lambda item: from_text(without_zeros(item), element))
        return F.when(F.size(F.array_compact(values)) == F.size(F.array_compact(text)), values)
    return from_text(without_zeros(text), column.lake)


def _has_long_number(text: Expression) -> Expression:
    """Whether there may be such a number outside of strings; the simple search is fast, and comes first."""
    plain = F.replace(F.replace(text, F.lit("\\\\"), F.lit("")), F.lit('\\"'), F.lit(""))
    outside = F.regexp_replace(plain, '"[^"]*"', "")
    return F.when(text.rlike(_NOT_EXACT), outside.rlike(_NOT_EXACT)).otherwise(F.lit(False))


def raise_missing(column: str, keys: list[str]) -> str:
    """Write SQL that raises the error for a missing value; `keys` are SQL expressions."""
    name = json.dumps(column, ensure_ascii=False)
    start, end = literal(f"{_MISSING} {name} ("), literal(f") {_MISSING}")
    shown = ", ".join(f"CAST({key} AS STRING)" for key in keys)
    return f"raise_error(concat({start}, concat_ws(', ', {shown}), {end}))"


def _raise_unfit(column: str, lake: str, key: Expression, value: Expression) -> Expression:
    """Raise the error for a value that does not fit the column's type in the lake table."""
    found = F.to_json(F.array(F.lit(column), F.lit(lake), key, value))
    return F.raise_error(F.concat(F.lit(f"{_UNFIT} "), found, F.lit(f" {_UNFIT}")))


def error_of_value(version: TableVersion, text: str) -> MergeError | None:
    """Find the value in an error that Spark reports; None for any other error."""
    missing, unfit = _MISSING_FOUND.search(text), _UNFIT_FOUND.search(text)
    if missing is not None:
        return missing_value(version, json.loads(missing[1]), missing[2])
    return None if unfit is None else _unfit_value(version, *json.loads(unfit[1]))


def missing_value(version: TableVersion, column: str, key: str) -> MergeError:
    """Make the error for a value that an update did not send, and that neither changes nor table have."""
    return MergeError(
        f'could not merge "{version.display}": column "{column}" of {_row(version, key)}'
        " was not sent (unchanged TOAST), and no earlier change has its value",
        "take a new snapshot into a new directory and warehouse, or let it be NULL: --missing-toast null",
    )


def _unfit_value(version: TableVersion, column: str, lake: str, key: str, value: str) -> MergeError:
    if lake == "variant":
        why = "a variant has no duplicate keys, and only numbers of up to 38 digits"
        remedy = "leave out --variant"
    else:
        why = f"{lake} doesn't hold that exactly"
        remedy = "give a wider --decimal; as none holds NaN or infinity, for these leave it out"
    return MergeError(
        f'could not merge "{version.display}": column "{column}" of {_row(version, key)} is {value}: {why}',
        f"change the value at the source and stream again, or {remedy}, with a new warehouse",
    )


def _row(version: TableVersion, key: str) -> str:
    return f"the row ({version.key_names}) = ({key})" if version.key else "a row"
