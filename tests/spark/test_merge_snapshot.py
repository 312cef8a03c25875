"""A directory of `pgcdc snapshot` becomes the tables that the server had."""

import subprocess
from pathlib import Path

import pytest
from merge_directories import read_table
from merge_workload import tables_in
from processes import PGCDC
from pyspark.sql import SparkSession

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
