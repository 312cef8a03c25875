"""JSON lines, and in them the JSON values that are strings.

A json or jsonb column stands embedded in its line, and Spark gives its exact text, except for a string: that
comes without quotes and escapes, so that the string "1" looks like the number 1. Such values are rare: lines
that may have one are looked for in the text and, only where there are any, read a second time.
"""

import json
from functools import reduce

from pyspark.sql import Column as Expression
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812 - PySpark's own habit

from .segments import TableVersion

_ROW = ["op", "commit_lsn", "seq", "key"]


def read_json(session: SparkSession, paths: list[str], schema: str) -> DataFrame:
    """Read JSON lines; a string in the schema gets the exact text of whatever stands there."""
    reader = session.read.option("mode", "FAILFAST").option("lineSep", "\n")
    return reader.schema(schema).json(paths)


def with_json_strings(
    session: SparkSession, lines: DataFrame, paths: list[str], version: TableVersion
) -> DataFrame:
    """Add `json_string`: which values are strings, as `new.NAME` and `old.NAME`; NULL where none is."""
    names = [column.name for column in version.columns if column.is_json]
    if not names or _texts(session, paths).where(_may_have("value", names)).isEmpty():
        return lines.withColumn("json_string", F.lit(None).cast("array<string>"))
    images = read_json(
        session, paths, "op string, commit_lsn string, seq bigint, key string, new string, old string"
    )
    places = [_place_of_string(image, name) for image in ("new", "old") for name in names]
    found = images.where(_may_have("new", names) | _may_have("old", names)).select(
        F.struct(*_ROW).alias("row"), F.array_compact(F.array(*places)).alias("json_string")
    )
    # A table without a key has NULL for it.
    same = F.col("row").eqNullSafe(F.struct(*_ROW))
    return lines.join(found.where(F.size("json_string") > 0), same, "left").drop("row")


def _texts(session: SparkSession, paths: list[str]) -> DataFrame:
    return session.read.option("lineSep", "\n").text(paths)


def _may_have(text: str, names: list[str]) -> Expression:
    """Whether a member of one of these names is a string: it can be one of a nested object, too."""
    tests = [F.coalesce(F.col(text), F.lit("")).contains(f'{_quoted(name)}:"') for name in names]
    return reduce(Expression.__or__, tests)


def _place_of_string(image: str, name: str) -> Expression:
    member = F.try_variant_get(F.try_parse_json(F.col(image)), f"$[{_quoted(name)}]", "variant")
    return F.when(F.schema_of_variant(member) == "STRING", f"{image}.{name}")


def _quoted(name: str) -> str:
    return json.dumps(name, ensure_ascii=False)
