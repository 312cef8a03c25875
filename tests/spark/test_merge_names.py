"""Names from the source are only data to Spark: none leads out of the warehouse, none ends a statement."""

from pathlib import Path

import pytest
from merge_directories import Directory, merge_into, read_table, table_path
from merge_histories import INT4, TEXT, pg_type, table_schema
from merge_oracle import insert, update
from pyspark.sql import SparkSession

NAMES = ["../../up", "`; DROP TABLE x; -- '\"\\", "%s {0}\n\x1b[31m"]


@pytest.mark.parametrize("lake", ["delta", pytest.param("iceberg", marks=pytest.mark.long)])
def test_hostile_tables_and_columns(
    spark: SparkSession, directory: Directory, warehouse: Path, lake: str
) -> None:
    """Tables are created, then merged into; of Delta's readers only modern ones take such columns."""
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


def test_a_column_may_be_called_much_like_the_jobs_own(
    spark: SparkSession, directory: Directory, warehouse: Path
) -> None:
    """But not like the columns from which the job learns with what options a table was made."""
    like, same = (
        table_schema(name, {"id": pg_type(INT4), name: pg_type(TEXT)}, ("id",))
        for name in ("_pgcdc_note", "_pgcdc_deleted")
    )
    for number in (1, 2):
        some = [insert(10 * number, id=str(number), **{like.name: "a"})]
        directory.segment([(like, some), (same, [insert(10 * number, id="1", **{same.name: "a"})])])
        problems = {one["table"]: one["problem"] for one in merge_into(spark, directory, warehouse)["tables"]}
        assert problems["public._pgcdc_note"] is None
        assert "has a name that this job uses itself" in problems["public._pgcdc_deleted"]
    rows = read_table(spark, warehouse, like).orderBy("id").collect()
    assert [tuple(row) for row in rows] == [(1, "a"), (2, "a")]


def test_a_column_that_iceberg_has_itself_is_refused(
    spark: SparkSession, directory: Directory, warehouse: Path
) -> None:
    names = [
        "_file",
        "_pos",
        "_deleted",
        "_spec_id",
        "_partition",
        "_row_id",
        "_last_updated_sequence_number",
    ]
    tables = [table_schema(f"t{name}", {"id": pg_type(INT4), name: pg_type(TEXT)}, ("id",)) for name in names]
    directory.segment([(table, [insert(10, id="1")]) for table in tables])
    for _ in range(2):
        summary = merge_into(spark, directory, warehouse, format="iceberg")
        problems = {one["table"]: one["problem"] for one in summary["tables"]}
        for name in names:
            assert f'"{name}" has a name that Iceberg uses itself' in problems[f"public.t{name}"]
        # A column that is gone by then is among the changes nevertheless.
        directory.segment([(table_schema("t_pos", {"id": pg_type(INT4)}, ("id",)), [insert(20, id="2")])])
    assert merge_into(spark, directory, warehouse.with_name("delta"))["error"] is None


def test_names_that_read_the_same_are_of_two_tables(
    spark: SparkSession, directory: Directory, warehouse: Path
) -> None:
    """Whether both come in one run, or the one whose name sorts first comes later."""
    columns = {"id": pg_type(INT4), "note": pg_type(TEXT)}
    names = [("a", "b.c"), ("a.b", "c"), ("x", "y.z"), ("x.y", "z")]
    tables = [
        table_schema(name, columns, ("id",), schema=schema, oid=oid)
        for oid, (schema, name) in enumerate(names, 11)
    ]
    for number, some in enumerate([tables[1:], tables]):
        change = [[insert(number + 1, id=str(number), note=table.schema)] for table in some]
        directory.segment(list(zip(some, change, strict=True)))
        assert merge_into(spark, directory, warehouse, mode="both")["error"] is None
    for table in tables:
        path = str(table_path(warehouse, table))
        found = sorted(tuple(row) for row in spark.read.format("delta").load(path).collect())
        assert found == [(n, table.schema) for n in range(table is tables[0], 2)]
        assert spark.read.format("delta").load(f"{path}.changelog").count() == len(found)
