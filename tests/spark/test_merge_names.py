"""Names from the source are data to Spark: none leaves the warehouse, and none ends a statement."""

from pathlib import Path

import pytest
from merge_directories import Directory, merge_into, read_table
from merge_histories import INT4, TEXT, pg_type, table_schema
from merge_oracle import insert, update
from pyspark.sql import SparkSession

NAMES = ["../../up", "`; DROP TABLE x; -- '\"\\", "%s {0}\n\x1b[31m"]


@pytest.mark.parametrize("lake", ["delta", pytest.param("iceberg", marks=pytest.mark.long)])
def test_hostile_tables_and_columns(
    spark: SparkSession, directory: Directory, warehouse: Path, lake: str
) -> None:
    """Created, then merged into; only modern readers take such columns of Delta tables."""
    columns = {"id": pg_type(INT4), **{name: pg_type(TEXT) for name in NAMES}}
    tables = [table_schema(name, columns, ("id",), schema=name[::-1]) for name in NAMES]
    first = insert(10, id="1", **dict.fromkeys(NAMES, "a"))
    second = update(20, id="1", **dict.fromkeys(NAMES, "b"))
    for change in (first, second):
        directory.segment([(table, [change]) for table in tables])
        summary = merge_into(spark, directory, warehouse, format=lake, mode="both", readers="modern")
        assert (summary["error"], summary["warnings"]) == (None, [])
    for table in tables:
        (row,) = read_table(spark, warehouse, table, lake).collect()
        assert row.asDict() == {"id": 1, **dict.fromkeys(NAMES, "b")}
        assert read_table(spark, warehouse, table, lake, "changelog").count() == 2
    assert {path.name for path in warehouse.parent.iterdir()} == {"in", "wh"}
