"""A json value keeps its text as written, where the lake's column is text."""

from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from merge_directories import read_table
from merge_workload import Reader, tables_in
from pyspark.sql import SparkSession

from pgcdc_cli.spark.pgcdc_merge.job import merge
from pgcdc_cli.spark.pgcdc_merge.options import MergeOptions

TEXTS = [
    r'"\u0041\/b"',
    r'"A/b"',
    r'"\\\"\\\\\" \u00e4 ä \ud83d\ude00 😀 \t\u0009"',
    r'"\"body\":\"x"',
    '""',
    '"1"',
    "1",
    "1.50",
    "1E+2",
    "null",
    "[]",
    r'{"body":"\u0041", "in\"side": {"body": "x"}, "x":  [ "\/" ]}',
]
BLANKS = [' "\\/" ', ' "x"', "\n 1", " null ", ' {"a": 1}\n']
"""Values with whitespace around them, which JSON lines drop."""


OTHERS = [pytest.param(encoding, marks=pytest.mark.long) for encoding in ("arrow", "debezium")]


@pytest.mark.parametrize("encoding", ["jsonl", *OTHERS])
def test_json_has_its_own_text(spark: SparkSession, tmp_path: Path, database18: Any, encoding: str) -> None:
    """Also in a column with a quotation mark in its name, and beside jsonb and other json."""
    database18.execute(
        'CREATE TABLE t (id int PRIMARY KEY, before text, "a""\\b" json, body json, normal jsonb, after text)'
    )
    database18.execute("ALTER TABLE t REPLICA IDENTITY FULL")
    database18.execute("CREATE PUBLICATION p FOR ALL TABLES")
    reader = Reader(database18.uri, tmp_path / "in", encoding, database18.create_slot())
    reader_options = MergeOptions(str(tmp_path / "in"), str(tmp_path / "wh"))
    for number, text in enumerate([*TEXTS, *BLANKS]):
        row = (number, text, text, None if number % 3 == 0 else text, "null" if number % 2 else text, text)
        database18.execute("INSERT INTO t VALUES (%s, %s, %s, %s, %s, %s)", row)
    reader.up_to_now()

    def compare() -> None:
        summary = merge(spark, reader_options)
        assert (summary["error"], summary["warnings"]) == (None, [])
        found = read_table(spark, tmp_path / "wh", tables_in(reader.path)["public.t"])
        names = ["id", "before", 'a"\\b', "body", "normal", "after"]
        trimmed = "btrim({}::text, E' \\n')" if encoding == "jsonl" else "{}::text"
        json = ", ".join(map(trimmed.format, ['"a""\\b"', "body", "normal"]))
        query = f"SELECT id, before, {json}, after FROM t"
        wanted = Counter(database18.execute(query).fetchall())
        assert (
            Counter(tuple(row) for row in found.select(*(f"`{name}`" for name in names)).collect()) == wanted
        )

    compare()
    database18.execute("UPDATE t SET before = after || 'x' WHERE id < 6")
    reader.up_to_now()
    compare()
