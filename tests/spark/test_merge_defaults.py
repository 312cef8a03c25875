"""A new column's default: PostgreSQL gives it to old rows without sending them, and so does the merge."""

from pathlib import Path
from typing import Any

import pytest
from merge_directories import read_table
from merge_workload import Reader, rows_of, tables_in
from pyspark.sql import DataFrame, SparkSession
from test_merge_servers import texts

from pgcdc_cli.spark.pgcdc_merge.control import ControlTable
from pgcdc_cli.spark.pgcdc_merge.job import merge
from pgcdc_cli.spark.pgcdc_merge.options import MergeOptions
from pgcdc_cli.spark.warehouse import read_record

SETUP = """
CREATE TYPE mood AS ENUM ('sad', 'glad');
CREATE DOMAIN amount AS int DEFAULT 7 CHECK (VALUE > 0);
CREATE DOMAIN bare AS int CHECK (VALUE > 0);
CREATE TABLE plain (id int PRIMARY KEY, note text);
CREATE TABLE twice (id int PRIMARY KEY, note text);
CREATE TABLE computed (id int PRIMARY KEY, note text, n int);
INSERT INTO plain SELECT g, 'old' FROM generate_series(1, 4) g;
INSERT INTO twice SELECT g, 'old' FROM generate_series(1, 4) g;
INSERT INTO computed SELECT g, 'old', g FROM generate_series(1, 4) g
"""
PLAIN = {
    "an_int": "int NOT NULL DEFAULT 5",
    "a_text": """text DEFAULT 'it''s "x" {,}\\ ä'""",
    "a_numeric": "numeric(10,2) DEFAULT 1.5",
    "digits": "numeric DEFAULT 12345678901234567890.10",
    "a_flag": "boolean DEFAULT true",
    "bytes": "bytea DEFAULT '\\x00ff'",
    "a_time": "timestamptz DEFAULT now()",
    "a_day": "date DEFAULT '2020-02-29'",
    "body": """jsonb DEFAULT '{"a": [1, null, "x"]}'""",
    "numbers": "int[] DEFAULT '{1,NULL}'",
    "mood": "mood DEFAULT 'glad'",
    "corners": "box DEFAULT '(2,3),(0,1)'",
    "boxes": "box[] DEFAULT '{(2,3),(0,1)}'",
}
ALTER = [
    *(f"ALTER TABLE plain ADD {name} {kind}" for name, kind in PLAIN.items()),
    "ALTER TABLE plain ALTER an_int DROP DEFAULT",
    "UPDATE plain SET note = 'new' WHERE id = 1",
    "ALTER TABLE twice ADD first int DEFAULT 1",
    "UPDATE twice SET note = 'new', first = 7 WHERE id = 1",
    "ALTER TABLE twice ADD second text DEFAULT 'two'",
    "DELETE FROM twice WHERE id = 2",
    "ALTER TABLE computed ADD volatile float8 DEFAULT random()",
    "ALTER TABLE computed ADD counted int GENERATED ALWAYS AS IDENTITY",
    "ALTER TABLE computed ADD of_its_type amount",
    "ALTER TABLE computed ADD of_none bare",
    "ALTER TABLE computed RENAME note TO remark",
    "ALTER TABLE computed ALTER n TYPE bigint USING n * 2",
    "UPDATE computed SET remark = 'new' WHERE id = 1",
]
COMPUTED = ["volatile", "counted", "of_its_type", "n"]
REMEDY = 'UPDATE "public"."computed" SET "{0}" = "{0}"'


def changed(warning: str) -> str:
    return warning.rpartition(" = ")[2].strip('"')


@pytest.mark.parametrize("lake", ["delta", pytest.param("iceberg", marks=pytest.mark.long)])
def test_old_rows_have_the_default_of_a_new_column(
    spark: SparkSession, tmp_path: Path, database18: Any, lake: str
) -> None:
    """Added between two merges or within one; where the server computed it, a warning has the remedy."""
    database18.execute("CREATE PUBLICATION p FOR ALL TABLES")
    reader = Reader(database18.uri, tmp_path / "in", "jsonl", database18.create_slot())

    def streamed(*statements: str) -> None:
        for statement in statements:
            database18.execute(statement)
        reader.up_to_now()

    def merged(warehouse: str) -> list[str]:
        summary = merge(spark, MergeOptions(str(tmp_path / "in"), str(tmp_path / warehouse), format=lake))
        assert summary["error"] is None, summary
        return sorted(summary["warnings"])

    def read(warehouse: str, name: str) -> DataFrame:
        table = tables_in(tmp_path / "in")[f"public.{name}"]
        return read_table(spark, tmp_path / warehouse, table, lake)

    streamed(*SETUP.split(";\n"))
    assert merged("often") == []
    streamed(*ALTER)
    for warehouse in ("often", "once"):
        warnings = merged(warehouse)
        assert sorted(map(changed, warnings)) == sorted(COMPUTED), warehouse
        assert all(REMEDY.format(changed(warning)) in warning for warning in warnings)
        added = read(warehouse, "plain").select(*PLAIN)
        assert (added.count(), added.distinct().count()) == (4, 1), warehouse
        assert None not in list(added.first() or [None])
        assert texts(read(warehouse, "twice")) == rows_of(database18.connection, "public.twice"), warehouse
    assert {row.table: row.warning is not None for row in read_record(str(tmp_path / "often")) or []} == {
        "": False,
        "public.computed": True,
        "public.plain": False,
        "public.twice": False,
    }
    streamed(REMEDY.format("id"))
    assert merged("often") == []
    columns = ["id", "remark", "n", "counted", "of_its_type", "of_none"]
    found = read("often", "computed").select(*columns)
    wanted = database18.connection.execute(f"SELECT {', '.join(columns)} FROM computed").fetchall()
    assert sorted(map(tuple, found.collect())) == sorted(wanted)
    assert all(row.warning is None for row in read_record(str(tmp_path / "often")) or [])


@pytest.mark.parametrize("lake", ["delta", pytest.param("iceberg", marks=pytest.mark.long)])
def test_a_run_that_ends_behind_its_commit_leaves_no_warning_of_what_it_wrote(
    spark: SparkSession, tmp_path: Path, database18: Any, monkeypatch: pytest.MonkeyPatch, lake: str
) -> None:
    """As by SIGKILL: the next run finds the range in the table, and no count of the rows written."""
    database18.execute("CREATE PUBLICATION p FOR ALL TABLES")
    reader = Reader(database18.uri, tmp_path / "in", "jsonl", database18.create_slot())
    options = MergeOptions(str(tmp_path / "in"), str(tmp_path / "wh"), format=lake)

    def warnings_after(statement: str) -> list[str | None]:
        """Merge what a statement changes in two runs, the first of which ends before it records anything."""
        database18.execute(statement)
        reader.up_to_now()
        with monkeypatch.context() as killed:
            killed.setattr(ControlTable, "finish", lambda *_: 1 / 0)
            with pytest.raises(ZeroDivisionError):
                merge(spark, options)
        summary = merge(spark, options)
        assert (summary["error"], [one["inserted"] for one in summary["tables"]]) == (None, [0])
        return [row.warning for row in read_record(str(tmp_path / "wh")) or [] if row.table]

    database18.execute("CREATE TABLE t (id int PRIMARY KEY); INSERT INTO t VALUES (1), (2), (3)")
    assert warnings_after("DELETE FROM t WHERE id = 3") == [None]
    (added,) = warnings_after("ALTER TABLE t ADD n float8 DEFAULT random(); UPDATE t SET n = 1 WHERE id = 1")
    assert added is not None
    assert added.startswith('"public.t" has the new column "n"')
    assert warnings_after("UPDATE t SET n = 2 WHERE id = 1; INSERT INTO t VALUES (3, 3), (4, 4)") == [added]
    assert warnings_after("UPDATE t SET n = n WHERE id <> 4; DELETE FROM t WHERE id = 4") == [None]
    found = read_table(spark, tmp_path / "wh", tables_in(tmp_path / "in")["public.t"], lake)
    assert sorted(map(tuple, found.collect())) == sorted(database18.execute("SELECT * FROM t").fetchall())
