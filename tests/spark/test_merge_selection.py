"""What was streamed with `--table` and `--exclude-column` merges as any other directory."""

import subprocess
from pathlib import Path
from typing import Any

import pytest
from processes import stream_command
from pyspark.sql import SparkSession

from pgcdc_cli.spark.pgcdc_merge.job import merge
from pgcdc_cli.spark.pgcdc_merge.options import MergeOptions

CONNECTOR = ("-c", "topic.prefix=p", "-c", "snapshot.mode=never")


@pytest.mark.parametrize("form", ["jsonl", pytest.param("arrow", marks=pytest.mark.long), "debezium"])
def test_tables_have_the_columns_that_were_left(
    spark: SparkSession, tmp_path: Path, warehouse: Path, database18: Any, form: str
) -> None:
    database18.execute(
        "CREATE TABLE orders (id int PRIMARY KEY, customer text, note text); CREATE TABLE audit (id int);"
        "ALTER TABLE orders REPLICA IDENTITY FULL; CREATE PUBLICATION pub FOR ALL TABLES"
    )
    slot = database18.create_slot()
    database18.execute(
        "INSERT INTO audit VALUES (1); INSERT INTO orders VALUES (1, 'a', 'x'), (2, 'b', 'y'), (3, 'c', 'z');"
        "UPDATE orders SET note = 'w' WHERE id = 2; DELETE FROM orders WHERE id = 3"
    )
    out = tmp_path / "out"
    chosen = ("--table", "*.orders", "--exclude-column", "*.*.customer", "--exclude-column", "*.*.id")
    more = CONNECTOR if form == "debezium" else ()
    line = stream_command(
        database18.uri, slot, "-D", str(out), "--endpos", "now", "--format", form, *chosen, *more
    )
    subprocess.run(line, check=True, timeout=60)
    merge(spark, MergeOptions(str(out), str(warehouse)))
    orders = spark.read.format("delta").load(str(warehouse / "public" / "orders"))
    assert sorted(map(tuple, orders.select("id", "note").collect())) == [(1, "x"), (2, "w")]
    assert "customer" not in orders.columns
    assert not (warehouse / "public" / "audit").exists()
