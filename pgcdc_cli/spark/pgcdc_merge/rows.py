"""Read one table's segment files as rows of one shape, whatever their format and version.

| column | type | meaning |
|---|---|---|
| op | string | I, U, D, T or R |
| position | struct(commit_lsn, change, seq) | place in history; snapshot rows (change false) come first |
| new_0, new_1, ... | as `LakeColumn.spark` | the new row; all NULL if there is none |
| unsent_0, unsent_1, ... | boolean | the value was not sent (unchanged TOAST); if the column allows that |
| key_0, key_1, ... | as the column's | the old row's key, by ordinal; NULL if it wasn't sent |
| moved | boolean | an update that changed the key; or what may be a half of one: a delete, or an insert |
| unfit | int | how many values of the new row became NULL since their types can't hold them |
| lsn, xid, commit_ts | bigint, bigint, timestamp | of the change; xid is NULL in snapshots |
| has_old | boolean | an old row was sent |
| old_0, old_3, ... | as the column's | the old row's columns that `old_columns` lists |

Except in key_N, the numbers are the columns' indexes in the table's version. Other modules don't use these
names: they call the functions below.
"""

import json
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import reduce
from typing import TypeAlias

from pyspark.sql import Column as Expression
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812 - PySpark's own habit

from . import debezium_segments
from .column_types import BACKSLASH, QUOTE, LakeColumn, from_text, in_range, same_text
from .hadoop_files import escaped
from .lake import quoted
from .segments import ChangeFile, parsed_json, read_json, struct_of_texts
from .table_version import TableVersion

Value: TypeAlias = tuple[Expression, Expression]
"""A value of a lake table's type, and whether there was one (it is also NULL if it doesn't fit)."""

ValueOf: TypeAlias = Callable[[str, int], Value]
"""Returns the value of a column, by its index, in an image, `new` or `old`."""

_METADATA = ("op", "position", "moved", "unfit", "lsn", "xid", "commit_ts", "has_old")


def new_value(index: int) -> str:
    """Name the column for the new row's value of a table's column."""
    return f"new_{index}"


def unsent(index: int) -> str:
    """Name the column that marks a value that the new row lacks."""
    return f"unsent_{index}"


def old_value(index: int) -> str:
    """Name the column for the old row's value of a table's column."""
    return f"old_{index}"


def key_value(ordinal: int) -> str:
    """Name the column for a value of the old row's key."""
    return f"key_{ordinal}"


def key_values(version: TableVersion) -> list[str]:
    """Name all columns of the old row's key."""
    return [key_value(ordinal) for ordinal in range(len(version.key or ()))]


def key_pairs(version: TableVersion) -> list[tuple[str, str]]:
    """Name the columns of the old row's key, each with the new row's column."""
    return [(key_value(ordinal), new_value(index)) for ordinal, index in enumerate(version.key or ())]


def old_columns(version: TableVersion) -> list[int]:
    """List the columns whose old values are needed: the key, and those that an update may lack."""
    needed = set(version.key or ())
    needed |= {
        index for index, column in enumerate(version.columns) if column.may_be_unsent and column.in_old
    }
    return sorted(needed)


def read_rows(
    session: SparkSession,
    directory: str,
    files: Sequence[ChangeFile],
    versions: Mapping[str, TableVersion],
    goal: TableVersion,
) -> DataFrame:
    """Read the files of one table, of any version, as rows with the goal's columns."""
    groups: dict[tuple[str, str], list[str]] = {}
    for file in files:
        groups.setdefault((file.format, file.schema), []).append(f"{directory}/{file.path}")
    frames = []
    for (kind, schema), paths in sorted(groups.items()):
        version = versions[schema]
        frames.append(_conformed(_READERS[kind](session, paths, version), version, goal))
    return reduce(DataFrame.unionByName, frames)


def with_unsent_columns(rows: DataFrame, version: TableVersion) -> TableVersion:
    """Describe a table of which only those values may be missing that some of its rows lack."""
    flags = [F.when(F.col(unsent(index)), F.lit(index)) for index in version.maybe_unsent]
    lacking = rows.select(F.explode(F.array_compact(F.array(*flags))).alias("index")).distinct().collect()
    found = {row["index"] for row in lacking}
    columns = enumerate(version.columns)
    return replace(
        version, columns=tuple(replace(column, may_be_unsent=index in found) for index, column in columns)
    )


def _conformed(rows: DataFrame, version: TableVersion, goal: TableVersion) -> DataFrame:
    """Convert a version's rows to the goal's columns."""
    indexes = {version.in_lake(column.name): index for index, column in enumerate(version.columns)}
    olds, old_goals = old_columns(version), old_columns(goal)
    values, flags, old_values = [], [], []
    for index, column in enumerate(goal.columns):
        mine = indexes.get(column.name)
        nothing = F.lit(None).cast(column.spark)
        if column.name in version.later:
            known = from_text(F.lit(version.later[column.name]), column.spark, column.delimiter)
            nothing = F.when(F.col("op").isin("I", "U", "R"), known)
        value = nothing if mine is None else F.col(new_value(mine)).cast(column.spark)
        value = same_text(value, column) if index in (goal.key or ()) else value
        values.append(value.alias(new_value(index)))
        if column.may_be_unsent:
            flag = F.lit(False)
            if mine is not None and version.columns[mine].may_be_unsent:
                flag = F.col(unsent(mine))
            flags.append(flag.alias(unsent(index)))
        if index in old_goals:
            sent = F.col(old_value(mine)).cast(column.spark) if mine is not None and mine in olds else nothing
            old_values.append(sent.alias(old_value(index)))
    keys = [
        same_text(key.cast(column.spark), column).alias(name)
        for name, column, key in zip(key_values(goal), goal.key_columns, _keys_of(version, goal), strict=True)
    ]
    return rows.select(*_METADATA, *values, *flags, *keys, *old_values)


def _keys_of(version: TableVersion, goal: TableVersion) -> Iterator[Expression]:
    """Find a version's values of the goal's key; a column that its key doesn't have is NULL."""
    names = [version.in_lake(column.name) for column in version.key_columns]
    for column in goal.key_columns:
        known = column.name in names
        yield F.col(key_value(names.index(column.name))) if known else F.lit(None)


def _shaped(
    rows: DataFrame, version: TableVersion, value: ValueOf, unsent_of: Callable[[int], Expression]
) -> DataFrame:
    """Convert the rows of a format's reader to the common shape.

    They have op, lsn, commit_lsn, seq, xid, commit_ts, old (NULL if none was sent), and what `value` and
    `unsent_of` use.
    """
    values: list[Expression] = []
    flags: list[Expression] = []
    unfit: list[Expression] = []
    has_old = F.col("old").isNotNull()
    for index, column in enumerate(version.columns):
        new, given = value("new", index)
        if column.may_be_unsent:
            lacks = unsent_of(index)
            new = F.when(~lacks, new)
            given &= ~lacks
            if column.in_old:
                new = F.when(lacks & has_old, value("old", index)[0]).otherwise(new)
                lacks &= ~has_old
            flags.append(lacks.alias(unsent(index)))
        if column.bounded:
            unfit.append((given & new.isNull()).cast("int"))
        values.append(new.alias(new_value(index)))
    old = {index: value("old", index)[0] for index in old_columns(version)}
    position = F.struct("commit_lsn", (F.col("op") != "R").alias("change"), "seq").alias("position")
    count = reduce(Expression.__add__, unfit, F.lit(0)).alias("unfit")
    keys = [old[index].alias(key_value(ordinal)) for ordinal, index in enumerate(version.key or ())]
    olds = [expression.alias(old_value(index)) for index, expression in old.items()]
    metadata = ("op", position, count, "lsn", "xid", "commit_ts", has_old.alias("has_old"))
    shaped = rows.select(*metadata, *values, *flags, *keys, *olds)
    return shaped.withColumn("moved", _moved(version))


def _moved(version: TableVersion) -> Expression:
    differs = [~F.col(old).eqNullSafe(F.col(new)) for old, new in key_pairs(version)]
    return (F.col("op") == "U") & F.col("has_old") & reduce(Expression.__or__, differs, F.lit(False))


def _is_listed(version: TableVersion) -> Callable[[int], Expression]:
    """Make `unsent_of` for formats that list columns in `unchanged`."""

    def unsent_of(index: int) -> Expression:
        return F.coalesce(F.array_contains("unchanged", version.columns[index].name), F.lit(False))

    return unsent_of


def _read_arrow(session: SparkSession, paths: list[str], version: TableVersion) -> DataFrame:
    from .arrow_segments import read_arrow, value_column  # noqa: PLC0415 - JSON lines do without pyarrow

    def value(image: str, index: int) -> Value:
        column, typed = version.columns[index], F.col(value_column(image, index))
        if not column.bounded and column.spark != "string":
            return typed, typed.isNotNull()
        text = F.col("unfit").getItem(column.name if image == "new" else f"_old.{column.name}")
        either = F.coalesce(typed, from_text(text, column.spark, column.delimiter))
        return in_range(either, column.spark), typed.isNotNull() | text.isNotNull()

    rows = read_arrow(session, paths, version.columns, old_columns(version))
    return _shaped(rows, version, value, _is_listed(version))


def _read_debezium(session: SparkSession, paths: list[str], version: TableVersion) -> DataFrame:
    def value(image: str, index: int) -> Value:
        return debezium_segments.value(version, image, index)

    def unsent_of(index: int) -> Expression:
        return debezium_segments.is_placeholder(version, index)

    rows = debezium_segments.read_events(session, escaped(paths), version, old_columns(version))
    return _with_possible_moves(_shaped(rows, version, value, unsent_of), version)


def _with_possible_moves(rows: DataFrame, version: TableVersion) -> DataFrame:
    """Mark what may be half of a changed key: every delete, and a create that lacks a value."""
    flags = [F.col(unsent(index)) for index, column in enumerate(version.columns) if column.may_be_unsent]
    lacks = reduce(Expression.__or__, flags, F.lit(False))
    half = (F.col("op") == "D") | ((F.col("op") == "I") & lacks)
    return rows.withColumn("moved", F.col("moved") | half)


_JSON_METADATA = (
    "op string, lsn string, commit_lsn string, seq bigint, xid bigint, ts string, key string,"
    " unchanged array<string>, json_null array<string>"
)


def _read_jsonl(session: SparkSession, paths: list[str], version: TableVersion) -> DataFrame:
    columns = version.columns
    new = struct_of_texts(column.name for column in columns)
    old = struct_of_texts(columns[index].name for index in old_columns(version))
    schema = f"{_JSON_METADATA}, new {new}, old {old}"
    files = escaped(paths)
    lines = _with_json_strings(session, read_json(session, files, schema), files, version)

    def value(image: str, index: int) -> Value:
        column = columns[index]
        text = _json_text(image, column)
        return from_text(text, column.spark, column.delimiter), text.isNotNull()

    typed = {name: _lsn(F.col(name)) for name in ("lsn", "commit_lsn")}
    typed["commit_ts"] = F.col("ts").cast("timestamp")
    return _shaped(lines.withColumns(typed), version, value, _is_listed(version))


def _json_text(image: str, column: LakeColumn) -> Expression:
    text = F.col(image).getField(column.name)
    if not column.is_json:
        return text
    path = f"{image}.{column.name}"
    string = F.get(F.filter("json_string", lambda one: one["path"] == path), F.lit(0))["text"]
    return F.when(F.array_contains("json_null", path), "null").otherwise(F.coalesce(string, text))


def _lsn(text: Expression) -> Expression:
    """Convert `XXXXXXXX/XXXXXXXX` to a number."""
    high, low = F.substring_index(text, "/", 1), F.substring_index(text, "/", -1)
    return F.conv(F.concat(high, F.lpad(low, 8, "0")), 16, 10).cast("bigint")


_JSON_STRINGS = "array<struct<path: string, text: string>>"
_LINE_KEY = ["op", "commit_lsn", "seq", "key"]


def _with_json_strings(
    session: SparkSession, lines: DataFrame, files: list[str], version: TableVersion
) -> DataFrame:
    """Add `json_string`: the JSON values that are strings, each with its `path` as `new.NAME`; NULL for none.

    Values of json and jsonb are embedded in their line, and Spark returns their exact text, except for a
    string, which it returns without quotes and escapes: the string "1" looks like the number 1. Such values
    are rare. So lines that may have one are searched for in the text, and read again only if there are any.
    """
    names = [column.name for column in version.columns if column.is_json]
    if not names or _texts(session, files).where(_may_have("value", names)).isEmpty():
        return lines.withColumn("json_string", F.lit(None).cast(_JSON_STRINGS))
    schema = "op string, commit_lsn string, seq bigint, key string, new string, old string"
    strings = [_json_string(image, name) for image in ("new", "old") for name in names]
    found = (
        read_json(session, files, schema)
        .where(_may_have("new", names) | _may_have("old", names))
        .select(F.struct(*_LINE_KEY).alias("line"), F.array_compact(F.array(*strings)).alias("json_string"))
    )
    # The key of a table without one is NULL.
    same = F.col("line").eqNullSafe(F.struct(*_LINE_KEY))
    return lines.join(found.where(F.size("json_string") > 0), same, "left").drop("line")


def _texts(session: SparkSession, files: list[str]) -> DataFrame:
    return session.read.option("lineSep", "\n").text(files)


def _may_have(text: str, names: list[str]) -> Expression:
    """Whether a member with one of these names is a string; it may also be a nested object's member."""
    starts = [f"{_json_name(name)}:{first}" for name in names for first in ('"', " ", "\t")]
    tests = [F.coalesce(F.col(text), F.lit("")).contains(start) for start in starts]
    return reduce(Expression.__or__, tests)


def _json_string(image: str, name: str) -> Expression:
    """Return a JSON value's text and path if it is a string."""
    member = parsed_json(F.col(image), f"{quoted(name)} variant").getField(name)
    text = parsed_json(F.col(image), f"{quoted(name)} string").getField(name)
    parts = F.split(_masked(F.col(image)), re.escape(_masked_name(name)) + r':[ \t]*"')
    # A nested member of the same name with another value is a different one.
    written = F.filter(
        F.transform(F.slice(parts, F.lit(2), F.size(parts)), _unmasked_string),
        lambda one: parsed_json(F.concat(F.lit("["), one, F.lit("]")), "array<string>")[0] == text,
    )
    found = F.struct(F.lit(f"{image}.{name}").alias("path"), F.get(written, F.lit(0)).alias("text"))
    return F.when(F.schema_of_variant(member) == "STRING", found)


def _masked(json_text: Expression) -> Expression:
    """Mask escaped backslashes and quotation marks, so that any other quote begins or ends a string."""
    plain = F.replace(json_text, F.lit("\\\\"), F.lit(BACKSLASH))
    return F.replace(plain, F.lit('\\"'), F.lit(QUOTE))


def _masked_name(name: str) -> str:
    return _json_name(name).replace("\\\\", BACKSLASH).replace('\\"', QUOTE)


def _unmasked_string(part: Expression) -> Expression:
    """Return the string up to the first quotation mark, unmasked and quoted."""
    inside = F.substring_index(part, '"', 1)
    text = F.replace(F.replace(inside, F.lit(QUOTE), F.lit('\\"')), F.lit(BACKSLASH), F.lit("\\\\"))
    return F.concat(F.lit('"'), text, F.lit('"'))


def _json_name(name: str) -> str:
    return json.dumps(name, ensure_ascii=False)


_READERS = {"jsonl": _read_jsonl, "arrow": _read_arrow, "debezium": _read_debezium}
