"""Segment files of one table as rows of one shape, whatever their format.

| column | type | meaning |
|---|---|---|
| op | string | I, U, D, T or R |
| pos | struct(commit_lsn, change, seq) | place in history; snapshot rows (change false) come first |
| n0, n1, ... | as `Column.spark` | the new row; all NULL where there is none |
| l0, l1, ... | boolean | the value was not sent (unchanged TOAST); only for columns that may lack it |
| k0, k1, ... | as the column's | the old row's key, one for each key column; NULL where it wasn't sent |
| moved | boolean | an update that changed the key; or what may be a half of one: a delete, or an insert |
| unfit | int | how many values of the new row became NULL since their type can't hold them |
| lsn, xid, commit_ts | bigint, bigint, timestamp | of the change; xid is NULL in snapshots |
| has_old | boolean | an old row was sent |
| o0, o3, ... | as the column's | the old row, of the columns that `old_columns` lists |
"""

from collections.abc import Callable, Mapping, Sequence
from functools import reduce

from pyspark.sql import Column as Expression
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812 - PySpark's own habit

from . import debezium_segments
from .column_types import Column, from_text, in_range
from .json_strings import read_json, with_json_strings
from .schema_evolution import conform
from .segments import DataFile, TableVersion, escaped

Value = tuple[Expression, Expression]
"""A value of a lake table's type, and whether there was one (or NULL because it doesn't fit)."""

_META = (
    "op string, lsn string, commit_lsn string, seq bigint, xid bigint, ts string, key string,"
    " unchanged array<string>, json_null array<string>"
)


def read_rows(
    session: SparkSession,
    directory: str,
    files: Sequence[DataFile],
    versions: Mapping[str, TableVersion],
    goal: TableVersion,
) -> DataFrame:
    """Read the files of one table, of whatever version, as rows of the goal's columns."""
    groups: dict[tuple[str, str], list[str]] = {}
    for file in files:
        groups.setdefault((file.format, file.schema), []).append(f"{directory}/{file.path}")
    parts = []
    for (kind, schema), paths in sorted(groups.items()):
        version = versions[schema]
        rows = _READERS[kind](session, paths, version)
        parts.append(conform(rows, version, goal, (old_columns(version), old_columns(goal))))
    return reduce(DataFrame.unionByName, parts)


def old_columns(version: TableVersion) -> list[int]:
    """List the columns whose old values matter: the key, and what an update may lack but the old row has."""
    needed = set(version.key or ())
    needed |= {place for place, column in enumerate(version.columns) if column.may_lack and column.in_old}
    return sorted(needed)


def _read_jsonl(session: SparkSession, paths: list[str], version: TableVersion) -> DataFrame:
    columns, old = version.columns, old_columns(version)
    images = f"new {_struct(columns)}, old {_struct([columns[place] for place in old])}"
    places = escaped(paths)
    lines = with_json_strings(session, read_json(session, places, f"{_META}, {images}"), places, version)

    def value(image: str, column: Column) -> Value:
        text = _json_text(image, column)
        return from_text(text, column.spark, column.delimiter), text.isNotNull()

    typed = {name: _lsn(F.col(name)) for name in ("lsn", "commit_lsn")}
    typed["commit_ts"] = F.col("ts").cast("timestamp")
    return _shape(lines.withColumns(typed), version, value)


def _struct(columns: Sequence[Column]) -> str:
    """A schema of strings: Spark copies the exact text of whatever stands there."""
    fields = ", ".join(f"`{column.name.replace('`', '``')}`: string" for column in columns)
    return f"struct<{fields}>"


def _json_text(image: str, column: Column) -> Expression:
    text = F.col(image).getField(column.name)
    if not column.is_json:
        return text
    place = f"{image}.{column.name}"
    quoted = F.to_json(F.array(text))
    return (
        F.when(F.array_contains("json_null", place), "null")
        .when(F.array_contains("json_string", place), F.substr(quoted, F.lit(2), F.length(quoted) - 2))
        .otherwise(text)
    )


def _lsn(text: Expression) -> Expression:
    """Convert `XXXXXXXX/XXXXXXXX` to a number."""
    high, low = F.substring_index(text, "/", 1), F.substring_index(text, "/", -1)
    return F.conv(F.concat(high, F.lpad(low, 8, "0")), 16, 10).cast("bigint")


def _read_debezium(session: SparkSession, paths: list[str], version: TableVersion) -> DataFrame:
    rows = debezium_segments.read_events(session, escaped(paths), version, old_columns(version))
    places = {column.name: place for place, column in enumerate(version.columns)}

    def value(image: str, column: Column) -> Value:
        place = places[column.name]
        return debezium_segments.value(version, image, place), debezium_segments.text(
            version, image, place
        ).isNotNull()

    def unsent(column: Column) -> Expression:
        return debezium_segments.unsent(version, places[column.name])

    return debezium_segments.halves_of_moves(_shape(rows, version, value, unsent), version.columns)


def _read_arrow(session: SparkSession, paths: list[str], version: TableVersion) -> DataFrame:
    from .arrow_segments import read_arrow  # noqa: PLC0415 - JSON lines do without pyarrow

    rows = read_arrow(session, paths, version.columns, old_columns(version))
    places = {column.name: place for place, column in enumerate(version.columns)}

    def value(image: str, column: Column) -> Value:
        typed = F.col(f"{image}{places[column.name]}")
        if not column.bounded and column.spark != "string":
            return typed, typed.isNotNull()
        text = F.col("unfit").getItem(column.name if image == "new" else f"_old.{column.name}")
        either = F.coalesce(typed, from_text(text, column.spark, column.delimiter))
        return in_range(either, column.spark), typed.isNotNull() | text.isNotNull()

    return _shape(rows, version, value)


def _listed(column: Column) -> Expression:
    """Whether a column's name is in `unchanged`."""
    return F.coalesce(F.array_contains("unchanged", column.name), F.lit(False))


def _shape(
    rows: DataFrame,
    version: TableVersion,
    value: Callable[[str, Column], Value],
    unsent_of: Callable[[Column], Expression] = _listed,
) -> DataFrame:
    """Bring what a format's reader gives into the shape.

    It gives op, lsn, commit_lsn, seq, xid, commit_ts, old (NULL if none was sent), and what `value` and
    `unsent_of` look at.
    """
    news: list[Expression] = []
    lacks: list[Expression] = []
    unfit: list[Expression] = []
    has_old = F.col("old").isNotNull()
    for place, column in enumerate(version.columns):
        new, given = value("new", column)
        if column.may_lack:
            unsent = unsent_of(column)
            new = F.when(~unsent, new)
            given &= ~unsent
            if column.in_old:
                new = F.when(unsent & has_old, value("old", column)[0]).otherwise(new)
                unsent &= ~has_old
            lacks.append(unsent.alias(f"l{place}"))
        if column.bounded:
            unfit.append((given & new.isNull()).cast("int"))
        news.append(new.alias(f"n{place}"))
    before = {place: value("old", version.columns[place])[0] for place in old_columns(version)}
    pos = F.struct("commit_lsn", (F.col("op") != "R").alias("change"), "seq").alias("pos")
    count = reduce(Expression.__add__, unfit, F.lit(0)).alias("unfit")
    keys = [before[place].alias(f"k{number}") for number, place in enumerate(version.key or ())]
    olds = [old.alias(f"o{place}") for place, old in before.items()]
    meta = ("lsn", "xid", "commit_ts", has_old.alias("has_old"))
    shaped = rows.select("op", pos, count, *news, *lacks, *keys, *meta, *olds)
    return shaped.withColumn("moved", _moved(version))


def _moved(version: TableVersion) -> Expression:
    pairs = enumerate(version.key or ())
    differs = [~F.col(f"k{number}").eqNullSafe(F.col(f"n{place}")) for number, place in pairs]
    return (F.col("op") == "U") & F.col("has_old") & reduce(Expression.__or__, differs, F.lit(False))


_READERS = {"jsonl": _read_jsonl, "arrow": _read_arrow, "debezium": _read_debezium}
