"""Small files, old versions, and names in a catalog."""

import json
from pathlib import Path

import pytest
from merge_directories import Directory, merge_into, read_table, table_path
from merge_histories import INT4, pg_type, table_schema
from merge_oracle import Change, delete
from pyspark.sql import SparkSession

from pgcdc_cli.spark.pgcdc_merge import delta
from pgcdc_cli.spark.pgcdc_merge.iceberg import IcebergLake
from pgcdc_cli.spark.warehouse import read_record
from pgcdc_cli.stream_status import as_of

ONE = table_schema("One", {"id": pg_type(INT4)}, ("id",), schema="Shop")
SEGMENTS = 3


def insert(number: int) -> Change:
    return Change("I", number * 10, 0, {"id": str(number)})


@pytest.mark.parametrize("lake", ["delta", pytest.param("iceberg", marks=pytest.mark.long)])
def test_compaction_and_retention_keep_what_is_recorded(
    spark: SparkSession, tmp_path: Path, directory: Directory, lake: str
) -> None:
    """One data file is left, the recorded version reads it, and nothing is merged twice because of it.

    The run that compacts has nothing to merge, like one beside a run with `--follow`.
    """
    warehouse = tmp_path / "wh"
    for number in range(1, SEGMENTS + 1):
        directory.segment([(ONE, [insert(number)])])
        summary = merge_into(spark, directory, warehouse, format=lake)
        assert (summary["error"], summary["warnings"]) == (None, [])
    summary = merge_into(spark, directory, warehouse, format=lake, compact=True, retain=0)
    assert (summary["error"], summary["warnings"]) == (None, [])
    kept = [path for path in table_path(warehouse, ONE).rglob("*.parquet") if "_delta_log" not in path.parts]
    assert len(kept) == 1
    (record,) = (row for row in read_record(str(warehouse)) or [] if row.table)
    assert record.version == summary["tables"][0]["version"]
    query = as_of(record)
    assert query is not None
    session = read_table(spark, warehouse, ONE, lake).sparkSession
    assert sorted(row["id"] for row in session.sql(query).collect()) == [1, 2, 3]
    directory.segment([(ONE, [insert(4)])])
    assert merge_into(spark, directory, warehouse, format=lake)["tables"][0]["inserted"] == 1
    assert read_table(spark, warehouse, ONE, lake).count() == SEGMENTS + 1


def test_a_merge_of_few_rows_leaves_the_files_of_all_others(
    spark: SparkSession, tmp_path: Path, directory: Directory
) -> None:
    """Delta marks the old rows as deleted; compaction rewrites files in which many rows are marked."""
    warehouse = tmp_path / "wh"
    directory.segment([(ONE, [insert(number) for number in range(50)])])
    merge_into(spark, directory, warehouse, readers="modern")
    whole = set(read_table(spark, warehouse, ONE).inputFiles())
    directory.segment([(ONE, [delete(1000 + n, id=str(n)) for n in range(7)])])
    merge_into(spark, directory, warehouse)
    assert set(read_table(spark, warehouse, ONE).inputFiles()) == whole
    directory.segment([(ONE, [insert(200)])])
    merge_into(spark, directory, warehouse, compact=True)
    merged = read_table(spark, warehouse, ONE)
    assert whole.isdisjoint(merged.inputFiles())
    assert sorted(row["id"] for row in merged.collect()) == [*range(7, 50), 200]


@pytest.mark.long
def test_a_merge_of_most_rows_writes_the_files_anew(
    spark: SparkSession, directory: Directory, warehouse: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also files in which rows were marked before."""
    monkeypatch.setattr(delta, "_MANY", 30)
    directory.segment([(ONE, [insert(number) for number in range(50)])])
    merge_into(spark, directory, warehouse, readers="modern")
    marks = []
    for first, last in ((0, 7), (7, 36), (36, 37)):
        directory.segment([(ONE, [delete(1000 + n, id=str(n)) for n in range(first, last)])])
        assert merge_into(spark, directory, warehouse)["tables"][0]["deleted"] == last - first
        marks.append(len(list(table_path(warehouse, ONE).glob("*.bin"))))
    directory.segment([(ONE, [delete(2000 + n, id=str(n)) for n in range(10, 49)])])
    merge_into(spark, directory, warehouse)
    marks.append(len(list(table_path(warehouse, ONE).glob("*.bin"))))
    assert marks == [1, 2, 3, 3]
    assert [row["id"] for row in read_table(spark, warehouse, ONE).collect()] == [49]


def test_delta_tables_have_names_in_a_catalog(
    spark: SparkSession, tmp_path: Path, directory: Directory
) -> None:
    for number in (1, 2):
        directory.segment([(ONE, [insert(number)])])
        summary = merge_into(spark, directory, tmp_path / "wh", catalog="spark_catalog", mode="both")
        assert summary["error"] is None
    try:
        assert spark.table("spark_catalog.`Shop`.`One`").count() == 2
        assert spark.table("spark_catalog.`Shop`.`One_changelog`").count() == 2
    finally:
        spark.sql("DROP NAMESPACE IF EXISTS spark_catalog.`Shop` CASCADE")


def test_a_changelog_that_shares_its_name_with_a_table_is_told_of(
    spark: SparkSession, warehouse: Path, directory: Directory
) -> None:
    """The one that is merged second has no name then, now and later."""
    other = table_schema(f"{ONE.name}_changelog", {"id": pg_type(INT4)}, ("id",), schema=ONE.schema)
    try:
        for number in (1, 2):
            directory.segment([(ONE, [insert(number)]), (other, [insert(number)])])
            summary = merge_into(spark, directory, warehouse, catalog="spark_catalog", mode="both")
            (warning,) = summary["warnings"]
            assert warning.startswith('could not give "Shop.One" its name in the catalog: ')
            assert warning.endswith("`One_changelog` is something else")
        assert spark.table("spark_catalog.`Shop`.`One_changelog`").columns == ["id"]
        # A catalog that can't describe it, as after the warehouse was moved, is no error of a merged table.
        moved = warehouse.rename(warehouse.with_name("moved"))
        directory.segment([(ONE, [insert(3)])])
        summary = merge_into(spark, directory, moved, catalog="spark_catalog", mode="changelog")
        assert (summary["error"], len(summary["warnings"])) == (None, 1)
    finally:
        spark.sql("DROP NAMESPACE IF EXISTS spark_catalog.`Shop` CASCADE")


def test_a_name_that_the_catalog_does_not_take_is_told_of(
    spark: SparkSession, warehouse: Path, directory: Directory
) -> None:
    """The table is merged nevertheless."""
    table = table_schema("Käse 1", {"id": pg_type(INT4)}, ("id",))
    for number in (1, 2):
        directory.segment([(table, [insert(number)])])
        summary = merge_into(spark, directory, warehouse, catalog="spark_catalog")
        assert (summary["segment"], summary["error"]) == (number, None)
        (warning,) = summary["warnings"]
        assert warning.startswith('could not give "public.Käse 1" its name in the catalog: [INVALID_')
    assert read_table(spark, warehouse, table).count() == 2
    spark.sql("DROP NAMESPACE IF EXISTS spark_catalog.public CASCADE")


def test_iceberg_tables_live_in_the_catalog(
    spark: SparkSession, tmp_path: Path, directory: Directory
) -> None:
    """The warehouse holds what pgcdc itself needs to know."""
    for number in (1, 2):
        directory.segment([(ONE, [insert(number)])])
        summary = merge_into(spark, directory, tmp_path / "wh", format="iceberg", catalog="shop", mode="both")
        assert summary["error"] is None
    assert [t["path"] for t in summary["tables"]] == ["`shop`.`Shop`.`One_changelog`", "`shop`.`Shop`.`One`"]
    assert spark.table("shop.`Shop`.`One`").count() == 2
    assert spark.table("shop.`Shop`.`One_changelog`").count() == 2
    control = IcebergLake(f"file:{tmp_path}/wh", "shop").control_location
    assert spark.table(control).where("`table` = 'Shop.One' AND mode = 'merge'").count() == 1
    assert sorted(path.name for path in (tmp_path / "wh").iterdir()) == ["_pgcdc.json", "_pgcdc.lock"]
    record = json.loads((tmp_path / "wh" / "_pgcdc.json").read_text())
    assert {row["segment"] for row in record["rows"]} == {2}
