"""A column type that is a table feature in Delta comes to tables that exist already."""

from pathlib import Path

import pytest
from merge_directories import Directory, merge_into, read_table
from merge_histories import INT4, pg_type, table_schema
from merge_oracle import insert
from pyspark.sql import SparkSession

ID = {"id": pg_type(INT4)}
TIMESTAMP = {"at": pg_type(1114)}


@pytest.mark.parametrize("lake", ["delta", pytest.param("iceberg", marks=pytest.mark.long)])
def test_a_timestamp_without_time_zone_comes_later(
    spark: SparkSession, directory: Directory, warehouse: Path, lake: str
) -> None:
    """In a column that is added, and in a table that is dropped and created again; in changelogs, too."""
    before = [table_schema(name, ID, ("id",)) for name in ("added", "again")]
    after = [table_schema(one.name, ID | TIMESTAMP, ("id",)) for one in before]
    after[1] = table_schema("again", ID | TIMESTAMP, ("id",), oid=7)
    directory.segment([(table, [insert(10, id="1")]) for table in before])
    assert merge_into(spark, directory, warehouse, format=lake, mode="both")["error"] is None
    directory.segment([(table, [insert(20, id="2", at="2024-01-01 00:00:00.5")]) for table in after])
    summary = merge_into(spark, directory, warehouse, format=lake, mode="both")
    assert summary["error"] is None, summary
    rows = [read_table(spark, warehouse, table, lake).selectExpr("id", "string(at)") for table in after]
    new = (2, "2024-01-01 00:00:00.5")
    assert [sorted(map(tuple, found.collect())) for found in rows] == [[(1, None), new], [new]]
    logged = read_table(spark, warehouse, after[0], lake, "changelog").select("id", "_pgcdc_old.at")
    assert sorted(map(tuple, logged.collect())) == [(1, None), (2, None)]
