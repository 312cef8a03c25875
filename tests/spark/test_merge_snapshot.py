"""A directory of `pgcdc snapshot` becomes the tables that the server had."""

import subprocess
from decimal import Decimal
from pathlib import Path

import pytest
from merge_directories import read_table
from merge_workload import tables_in
from processes import PGCDC, stream_command
from pyspark.sql import DataFrame, SparkSession
from servers import new_slot_name

from pgcdc_cli.spark.pgcdc_merge.job import merge
from pgcdc_cli.spark.pgcdc_merge.options import MergeOptions


@pytest.mark.long
@pytest.mark.parametrize("form", ["arrow", "jsonl"])
def test_the_rows_of_a_snapshot_are_a_table(spark: SparkSession, database18, tmp_path: Path, form: str):
    database18.execute("CREATE TABLE t (a int PRIMARY KEY, b text)")
    database18.execute("INSERT INTO t SELECT g, 'row ' || g FROM generate_series(1, 300) g")
    line = [*PGCDC, "snapshot", "-d", database18.uri, "--table", "public.t", "-D", str(tmp_path / "in")]
    subprocess.run([*line, "--format", form], check=True)
    summary = merge(spark, MergeOptions(str(tmp_path / "in"), str(tmp_path / "wh")))
    assert (summary["error"], summary["warnings"]) == (None, [])
    rows = read_table(spark, tmp_path / "wh", tables_in(tmp_path / "in")["public.t"], "delta").collect()
    assert sorted(map(tuple, rows)) == [(g, f"row {g}") for g in range(1, 301)]


@pytest.mark.parametrize(
    ("form", "lake", "mode"),
    [
        (("--format", "arrow"), "delta", "merge"),
        pytest.param(("--compression", "zstd"), "iceberg", "both", marks=pytest.mark.long),
        pytest.param(
            ("--format", "debezium", "-c", "topic.prefix=shop", "-c", "decimal.handling.mode=string"),
            "delta",
            "both",
            marks=pytest.mark.long,
        ),
    ],
    ids=["arrow", "jsonl", "debezium"],
)
def test_a_table_without_rows_is_an_empty_table_which_changes_fill(
    spark: SparkSession, database18, tmp_path: Path, form: tuple[str, ...], lake: str, mode: str
):
    """One without a key is an empty changelog."""
    database18.execute("CREATE TABLE t (a int PRIMARY KEY, b numeric(9,2)); CREATE TABLE keyless (c text)")
    database18.execute("CREATE PUBLICATION pub FOR TABLE t, keyless")
    line = [*stream_command(database18.uri, new_slot_name(), "-D", tmp_path / "in"), "--endpos", "now"]
    line += [*form, "--snapshot", "initial"]
    options = MergeOptions(str(tmp_path / "in"), str(tmp_path / "wh"), format=lake, mode=mode)

    def held(table: str, mode: str) -> DataFrame:
        return read_table(spark, tmp_path / "wh", tables_in(tmp_path / "in")[f"public.{table}"], lake, mode)

    for rows in ([], [(1, Decimal("2.50"))]):
        for row in rows:
            database18.execute("INSERT INTO t VALUES (%s, %s)", row)
        subprocess.run(line, check=True)
        summary = merge(spark, options)
        assert (summary["error"], {one["problem"] for one in summary["tables"]}) == (None, {None})
        assert held("t", "merge").dtypes == [("a", "int"), ("b", "decimal(9,2)")]
        assert held("keyless", "changelog").select("c").isEmpty()
        assert list(map(tuple, held("t", "merge").collect())) == rows
        assert mode == "merge" or held("t", "changelog").count() == len(rows)


@pytest.mark.long
def test_rows_that_are_read_again_replace_those_that_the_table_has(
    spark: SparkSession, database18, tmp_path: Path
):
    database18.execute(
        "CREATE TABLE t (a int PRIMARY KEY, b text, c text); CREATE PUBLICATION pub FOR TABLE t"
    )
    database18.execute("INSERT INTO t SELECT g, 'row ' || g, 'same' FROM generate_series(1, 9) g")
    slot = new_slot_name()
    line = [*stream_command(database18.uri, slot, "-D", tmp_path / "in"), "--endpos", "now"]
    subprocess.run([*line, "--snapshot", "initial"], check=True)
    summary = merge(spark, MergeOptions(str(tmp_path / "in"), str(tmp_path / "wh")))
    assert (summary["error"], summary["warnings"]) == (None, [])
    # What nobody streams: this is what reading it again is for.
    database18.execute("ALTER PUBLICATION pub DROP TABLE t")
    database18.execute("UPDATE t SET b = 'unseen' WHERE a > 5; INSERT INTO t VALUES (10, 'unseen', 'new')")
    database18.execute("DELETE FROM t WHERE a = 1")
    database18.execute("ALTER PUBLICATION pub ADD TABLE t")
    database18.execute("UPDATE t SET c = 'seen' WHERE a = 9")
    subprocess.run([*line, "--resnapshot", "public.t"], check=True)
    summary = merge(spark, MergeOptions(str(tmp_path / "in"), str(tmp_path / "wh")))
    assert (summary["error"], summary["warnings"]) == (None, [])
    rows = read_table(spark, tmp_path / "wh", tables_in(tmp_path / "in")["public.t"], "delta").collect()
    source = database18.execute("SELECT * FROM t").fetchall()
    # A row that went meanwhile stays: no row says that it is gone.
    assert sorted(map(tuple, rows)) == sorted([(1, "row 1", "same"), *source])
