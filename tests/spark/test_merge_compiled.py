"""Every kind of statement with compiled plans, as users run them; other tests interpret theirs."""

from collections.abc import Iterator
from pathlib import Path

import pytest
from merge_directories import FORMATS, Directory, merge_into, read_table
from merge_histories import INT4, TEXT, pg_type, table_schema
from merge_oracle import delete, insert, update
from pyspark.sql import SparkSession

from pgcdc_cli.spark.pgcdc_merge.lake import SETTINGS

INT2, INT8 = 21, 20

COMPILED = {
    "spark.sql.codegen.wholeStage": "true",
    "spark.sql.codegen.factoryMode": "CODEGEN_ONLY",
    "spark.sql.codegen.fallback": "false",
}
"""Spark's defaults, except that a plan that can't be compiled is an error rather than interpreted."""

NARROW = {"id": pg_type(INT4), "n": pg_type(INT2), "note": pg_type(TEXT)}
WIDE = {"id": pg_type(INT4), "n": pg_type(INT8), "note": pg_type(TEXT), "more": pg_type(TEXT)}

STEPS = [
    (
        "jsonl",
        table_schema("t", NARROW, ("id",)),
        "both",
        [insert(10, id="1", n="7", note="a"), insert(20, id="2", n="8", note="b")],
    ),
    (
        "arrow",
        table_schema("t", WIDE, ("id",)),
        "both",
        [
            update(30, id="1", n=str(2**40), more="m", unsent="note"),
            delete(40, id="2"),
            insert(50, id="3", n="9", note=None, more=None),
        ],
    ),
    (
        "debezium",
        table_schema("t", WIDE, ("id", "n")),
        "merge",
        [update(60, {"id": "3", "n": "9"}, id="4", n="10", note="d", more="x")],
    ),
]
"""Segments: the format, the table, the mode, and the changes."""


@pytest.fixture
def compiled(spark: SparkSession, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Compile the plans of a test's merges, and check that some were."""
    for name, value in COMPILED.items():
        monkeypatch.setitem(SETTINGS, name, value)
    monkeypatch.setattr("pgcdc_cli.spark.pgcdc_merge.job.FEW_ROWS", 0)
    assert spark._jvm is not None
    count = spark._jvm.org.apache.spark.metrics.source.CodegenMetrics.METRIC_COMPILATION_TIME().getCount
    before = count()
    yield
    assert count() > before


@pytest.mark.timeout(1200)
@pytest.mark.usefixtures("compiled")
@pytest.mark.parametrize("lake", ["delta", pytest.param("iceberg", marks=pytest.mark.long)])
def test_tables_are_created_appended_to_altered_merged_into_and_replaced(
    spark: SparkSession, directory: Directory, warehouse: Path, lake: str
) -> None:
    """From files of each format; the last changes the key, for which the table is written anew."""
    for encoding, table, mode, changes in STEPS:
        directory.encoding = FORMATS[encoding]
        directory.segment([(table, changes)])
        summary = merge_into(spark, directory, warehouse, format=lake, mode=mode)
        assert (summary["error"], [one["problem"] for one in summary["tables"] if one["problem"]]) == (
            None,
            [],
        )
    rows = read_table(spark, warehouse, table, lake).collect()
    assert sorted(map(tuple, rows)) == [(1, 2**40, "a", "m"), (4, 10, "d", "x")]
    log = read_table(spark, warehouse, table, lake, "changelog").orderBy("_pgcdc_lsn").collect()
    assert [(row["_pgcdc_op"], row["id"], row["n"]) for row in log] == [
        ("I", 1, 7),
        ("I", 2, 8),
        ("U", 1, 2**40),
        ("D", 2, None),
        ("I", 3, 9),
    ]
