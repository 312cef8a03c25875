"""A column is its attribute number, and its name may become another's: the lake follows."""

import shutil
from collections import Counter
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from merge_directories import Directory, merge_into, read_table
from merge_histories import INT4, TEXT, pg_type, table_schema
from merge_oracle import delete, update
from merge_oracle import insert as insert_row
from merge_workload import LONG, Reader, rows_of, tables_in
from pyspark.sql import SparkSession
from test_merge_servers import Rows, texts

from pgcdc_cli.changes.table import ColumnFacts, TableFacts, TableSchema
from pgcdc_cli.spark.pgcdc_merge.job import merge
from pgcdc_cli.spark.pgcdc_merge.options import MergeOptions
from pgcdc_cli.spark.warehouse import read_record

COLUMNS = {
    "again": "id int PRIMARY KEY, note text, a int",
    "with_default": "id int PRIMARY KEY, a text, b int",
    "swapped": "id int PRIMARY KEY, a text, b text",
    "renamed": "id int PRIMARY KEY, old text, n int",
    "keyed": "id int PRIMARY KEY, note text",
    "pair": "a int, b int, note text, PRIMARY KEY (a, b)",
    "retyped": "id int PRIMARY KEY, a int, b int",
    "taken": "id int PRIMARY KEY, a text, b text",
}
VALUES = {
    "again": "g, 'old', g",
    "with_default": "g, 'old', g",
    "swapped": "g, 'a' || g, 'b' || g",
    "renamed": f"g, {LONG}, g",
    "keyed": "g, 'old'",
    "pair": "g, 10 * g, 'old'",
    "retyped": "g, g, g",
    "taken": "g, 'a' || g, 'b' || g",
}
CHANGES = {
    "again": ["ALTER TABLE again DROP a", "ALTER TABLE again ADD a int"],
    "with_default": [
        "ALTER TABLE with_default DROP a",
        "ALTER TABLE with_default ADD a text DEFAULT 'new'",
        "DELETE FROM with_default WHERE id = 3",
    ],
    "swapped": [
        "BEGIN",
        "ALTER TABLE swapped RENAME a TO t",
        "ALTER TABLE swapped RENAME b TO a",
        "ALTER TABLE swapped RENAME t TO b",
        "COMMIT",
        "UPDATE swapped SET a = 'changed' WHERE id = 2",
    ],
    "renamed": ["ALTER TABLE renamed RENAME old TO new", "UPDATE renamed SET n = 0 WHERE id = 2"],
    "keyed": ["ALTER TABLE keyed RENAME id TO uid", "DELETE FROM keyed WHERE uid = 2"],
    "pair": [
        "ALTER TABLE pair RENAME a TO t",
        "ALTER TABLE pair RENAME b TO a",
        "ALTER TABLE pair RENAME t TO b",
        "UPDATE pair SET note = 'changed' WHERE a = 20",
    ],
    "retyped": ["ALTER TABLE retyped DROP a", "ALTER TABLE retyped ADD a text"],
    "taken": ["ALTER TABLE taken DROP a", "ALTER TABLE taken RENAME b TO a"],
}


LATER = {**VALUES, "with_default": "g, g, 'later'", "taken": "g, 'later'"}


def insert(table: str, values: str, first: int) -> str:
    return f"INSERT INTO {table} SELECT {values} FROM generate_series({first}, {first + 3}) g"


def held(spark: SparkSession, database: Any, directory: Path, warehouse: Path, lake: str) -> dict[str, Rows]:
    """Read from the lake the columns that the server's tables have."""
    found = {}
    for name in COLUMNS:
        rows = database.connection.execute(f"SELECT * FROM {name}")
        table = tables_in(directory)[f"public.{name}"]
        frame = read_table(spark, warehouse, table, lake)
        found[name] = texts(frame.select(*(f"`{column.name}`" for column in rows.description)))
    return found


def wanted(database: Any) -> dict[str, Rows]:
    return {name: Counter(rows_of(database.connection, name)) for name in COLUMNS}


@pytest.mark.parametrize("lake", ["delta", pytest.param("iceberg", marks=pytest.mark.long)])
def test_columns_are_followed_by_what_they_are(
    spark: SparkSession, tmp_path: Path, database18: Any, lake: str
) -> None:
    """Dropped and added again, renamed, swapped, within a run and between two: without an UPDATE of a row."""
    for name, columns in COLUMNS.items():
        database18.execute(f"CREATE TABLE {name} ({columns})")
    database18.execute("ALTER TABLE renamed ALTER old SET STORAGE EXTERNAL")
    database18.execute("CREATE PUBLICATION p FOR ALL TABLES")
    reader = Reader(database18.uri, tmp_path / "in", "jsonl", database18.create_slot())

    def merged(warehouse: str) -> None:
        options = MergeOptions(str(tmp_path / "in"), str(tmp_path / warehouse), format=lake)
        summary = merge(spark, options)
        assert (summary["error"], summary["warnings"]) == (None, []), summary
        assert held(spark, database18, reader.path, tmp_path / warehouse, lake) == wanted(database18)

    for name in COLUMNS:
        database18.execute(insert(name, VALUES[name], 1))
    reader.up_to_now()
    merged("often")
    for name, statements in CHANGES.items():
        for statement in statements:
            database18.execute(statement)
        database18.execute(insert(name, LATER[name], 10))
    reader.up_to_now()
    merged("often")
    merged("once")
    merged("often")
    assert all(row.warning is None for row in read_record(str(tmp_path / "often")) or [])


def test_names_that_are_others_by_now_are_warned_of(
    spark: SparkSession, tmp_path: Path, database18: Any
) -> None:
    """A stream that lags reads a later catalog; columns come in the order of their attribute numbers."""
    database18.execute('CREATE TABLE "Swapped" (id int PRIMARY KEY, a text, b text)')
    database18.execute("CREATE PUBLICATION p FOR ALL TABLES")
    reader = Reader(database18.uri, tmp_path / "in", "jsonl", database18.create_slot())
    for statement in [insert("swapped", VALUES["swapped"], 1), *CHANGES["swapped"]]:
        database18.execute(statement.replace("swapped", '"Swapped"'))
    reader.up_to_now()

    def warnings() -> list[str]:
        return merge(spark, MergeOptions(str(reader.path), str(tmp_path / "wh")))["warnings"]

    [found] = warnings()
    assert found.startswith('"public.Swapped" has columns in another order: "a", "b" have changed names')
    assert """to have them sent: pgcdc stream --resnapshot 'public."Swapped"'""" in found
    database18.execute('UPDATE "Swapped" SET a = a')
    reader.up_to_now()
    assert warnings() == []
    assert all(row.warning is None for row in read_record(str(tmp_path / "wh")) or [])
    table = tables_in(reader.path)["public.Swapped"]
    rows = texts(read_table(spark, tmp_path / "wh", table).select("id", "b", "a"))
    assert rows == rows_of(database18.connection, "public.Swapped")


TYPES = {
    "blanks": ("char(4)", "text", True),
    "more_blanks": ("char(2)", "char(4)", True),
    "normal": ("json", "jsonb", True),
    "masked": ("inet", "text", True),
    "rounded": ("timestamp", "timestamp(0)", True),
    "zoned": ("tstzrange", "text", True),
    "found": ("regclass", "text", True),
    "replaced": ("mood", "more.mood USING replaced::text::more.mood", True),
    "of_arrays": ("char(2)[]", "text[]", True),
    "longer": ("varchar(3)", "varchar(10)", False),
    "free": ("varchar(3)", "text", False),
    "bounded": ("text", "text", False),
    "printed": ("json", "text", False),
    "finer": ("time(0)", "time(3)", False),
    "labels": ("mood", "text", False),
    "of_arrays_too": ("varchar(2)[]", "text[]", False),
}
"""By column: its types before and after, and whether PostgreSQL prints its values differently after it.

The text of some types depends on the session: the stream has the time zone UTC, and an empty search path.
"""
OLD = {
    "normal": '{"a":1}',
    "masked": "10.0.0.1",
    "rounded": "2020-02-03 04:05:06.7",
    "zoned": "[2020-02-03,)",
    "found": "t",
    "of_arrays": "{x}",
    "printed": '{"a":1}',
    "finer": "04:05:06",
    "of_arrays_too": "{x}",
}


def shown(name: str) -> str:
    """SQL that prints a column as its type's output function does: a cast to text strips char's blanks."""
    return f"format('%s', {name})"


@pytest.mark.parametrize("runs", [pytest.param(1, marks=pytest.mark.long), 2])
def test_values_that_another_type_has_otherwise_are_warned_of(
    spark: SparkSession, tmp_path: Path, database18: Any, runs: int
) -> None:
    """Only where the column's type in the lake stays the same."""
    columns = ", ".join(f"{name} {before}" for name, (before, _, _) in TYPES.items())
    values = ", ".join(f"'{OLD.get(name, 'x')}'" for name in TYPES)
    database18.execute(
        "CREATE SCHEMA more; CREATE TYPE more.mood AS ENUM ('x'); CREATE TYPE mood AS ENUM ('x')"
    )
    database18.execute(f"CREATE TABLE t (id int PRIMARY KEY, {columns})")
    database18.execute("CREATE PUBLICATION p FOR ALL TABLES")
    reader = Reader(database18.uri, tmp_path / "in", "jsonl", database18.create_slot())
    database18.execute(f"INSERT INTO t VALUES (1, {values}), (2, {values})")
    reader.up_to_now()

    def merged() -> list[str]:
        summary = merge(spark, MergeOptions(str(reader.path), str(tmp_path / "wh")))
        assert summary["error"] is None, summary
        return [warning.split('"')[3] for warning in summary["warnings"]]

    def compare(kept: list[str]) -> None:
        frame = read_table(spark, tmp_path / "wh", tables_in(reader.path)["public.t"])
        rows = database18.execute(f"SELECT {', '.join(map(shown, kept))} FROM t").fetchall()
        assert texts(frame.select(*kept)) == Counter(rows)

    scalar = {name: kind for name, kind in TYPES.items() if not kind[0].endswith("[]")}
    if runs == 2:
        assert merged() == []
    database18.execute("SET TimeZone = 'Asia/Tokyo'")
    for name, (_, after, _) in TYPES.items():
        database18.execute(f"ALTER TABLE t ALTER {name} TYPE {after}")
    database18.execute("UPDATE t SET id = 3 WHERE id = 1")
    reader.up_to_now()
    converted = [name for name, (_, _, converted) in TYPES.items() if converted]
    assert sorted(merged()) == sorted(converted)
    compare(["id", *(name for name, (_, _, converted) in scalar.items() if not converted)])
    [row] = [row for row in read_record(str(tmp_path / "wh")) or [] if row.table]
    assert row.warning is not None
    database18.execute("UPDATE t SET id = id")
    reader.up_to_now()
    assert merged() == []
    compare(["id", *scalar])


def placed(table: TableSchema, *numbers: int) -> TableSchema:
    """Add the attribute numbers that the catalog has for a table's columns."""
    positions = zip(table.columns, numbers, strict=True)
    facts = {column.name: ColumnFacts(position=number) for column, number in positions}
    return replace(table, facts=TableFacts(table.key, None, facts))


def swapped_types() -> tuple[TableSchema, TableSchema]:
    before = table_schema("t", {"id": pg_type(INT4), "a": pg_type(INT4), "b": pg_type(TEXT)}, ("id",))
    after = table_schema("t", {"id": pg_type(INT4), "b": pg_type(INT4), "a": pg_type(TEXT)}, ("id",))
    return placed(before, 1, 2, 3), placed(after, 1, 2, 3)


def test_what_a_lake_table_has_is_not_renamed_again(
    spark: SparkSession, directory: Directory, warehouse: Path, tmp_path: Path
) -> None:
    """After a run that was killed before the control table knew of it, and where no control table is left."""
    before, after = swapped_types()
    first = [insert_row(10, id="1", a="1", b="x"), insert_row(11, id="2", a="2", b="y")]
    directory.segment([(before, first)])
    assert merge_into(spark, directory, warehouse)["error"] is None
    shutil.copytree(warehouse / "_pgcdc", tmp_path / "control")
    changed = update(20, id="1", a="3", b="x"), update(21, id="1", b="4", a="x")
    directory.segment([(before, [changed[0]]), (after, [changed[1]])])
    assert merge_into(spark, directory, warehouse)["error"] is None
    shutil.rmtree(warehouse / "_pgcdc")
    shutil.copytree(tmp_path / "control", warehouse / "_pgcdc")
    assert merge_into(spark, directory, warehouse)["error"] is None
    directory.segment([(after, [insert_row(30, id="3", b="5", a="z")])])
    shutil.rmtree(warehouse / "_pgcdc")
    (warehouse / "_pgcdc.json").unlink()
    assert merge_into(spark, directory, warehouse)["error"] is None
    rows = read_table(spark, warehouse, after).select("id", "b", "a").collect()
    assert sorted(map(tuple, rows)) == [(1, 4, "x"), (2, 2, "y"), (3, 5, "z")]


def test_columns_of_an_earlier_control_table_are_those_of_their_names(
    spark: SparkSession, directory: Directory, warehouse: Path
) -> None:
    """A table and its columns are renamed after a merge that didn't record attribute numbers."""
    before, after = swapped_types()
    after = replace(after, name="renamed")
    directory.segment([(before, [insert_row(10, id="1", a="1", b="x"), delete(11, id="2")])])
    options = {"soft_delete": True, "metadata": True}
    assert merge_into(spark, directory, warehouse, **options)["error"] is None
    control = spark.read.format("delta").load(f"{warehouse}/_pgcdc").drop("columns", "keyed_by")
    writer = control.localCheckpoint().write.format("delta").mode("overwrite")
    writer.option("overwriteSchema", "true").save(f"{warehouse}/_pgcdc")
    directory.segment([(before, [insert_row(20, id="2", a="2", b="y")])])
    assert merge_into(spark, directory, warehouse, **options)["error"] is None
    directory.segment([(after, [insert_row(30, id="3", b="3", a="z"), delete(31, id="1")])])
    assert merge_into(spark, directory, warehouse, **options)["error"] is None
    rows = read_table(spark, warehouse, after).select("id", "b", "a", "_pgcdc_deleted").collect()
    assert sorted(map(tuple, rows)) == [(1, 1, "x", True), (2, 2, "y", False), (3, 3, "z", False)]


def test_doubtful_columns_keep_their_values(
    spark: SparkSession, directory: Directory, warehouse: Path
) -> None:
    """The lake knows the attribute numbers, the changes don't have them."""
    texts_of = {"id": pg_type(INT4), "a": pg_type(TEXT), "b": pg_type(TEXT)}
    before = placed(table_schema("t", texts_of, ("id",)), 1, 2, 3)
    after = table_schema("t", {name: texts_of[name] for name in ("id", "b", "a")}, ("id",))
    directory.segment([(before, [insert_row(10, id="1", a="1", b="x")])])
    assert merge_into(spark, directory, warehouse)["warnings"] == []
    for number in (2, 3):
        directory.segment([(after, [insert_row(10 * number, id=str(number), b="x", a="1")])])
        warnings = merge_into(spark, directory, warehouse)["warnings"]
        assert len(warnings) == (number == 2)
    rows = read_table(spark, warehouse, after).select("id", "a", "b").collect()
    assert sorted(map(tuple, rows)) == [(1, "1", "x"), (2, "1", "x"), (3, "1", "x")]
    [row] = [row for row in read_record(str(warehouse)) or [] if row.table]
    assert "columns in another order" in str(row.warning)


def test_a_column_that_was_not_published_before_is_warned_of(
    spark: SparkSession, tmp_path: Path, database18: Any
) -> None:
    """Its values in earlier rows were never sent, whatever default it was added with."""
    database18.execute("CREATE TABLE wider (id int PRIMARY KEY, a text, b text)")
    database18.execute("CREATE TABLE back (id int PRIMARY KEY, a text, b text)")
    database18.execute("CREATE PUBLICATION p FOR TABLE wider (id, a), back")
    reader = Reader(database18.uri, tmp_path / "in", "jsonl", database18.create_slot())

    def merged(columns: str, key: int) -> list[str]:
        for table in ("wider", "back"):
            database18.execute(f"INSERT INTO {table} VALUES ({key}, 'a', 'b')")
        reader.up_to_now()
        summary = merge(spark, MergeOptions(str(reader.path), str(tmp_path / "wh")))
        assert summary["error"] is None, summary
        database18.execute(f"ALTER PUBLICATION p SET TABLE {columns}")
        return [warning.partition(":")[0] for warning in summary["warnings"]]

    database18.execute("INSERT INTO wider VALUES (0, 'a', 'b'); ALTER TABLE wider ADD c int DEFAULT 5")
    assert merged("wider, back (id, a)", 1) == []
    database18.execute("UPDATE wider SET c = 6 WHERE id = 0")
    found = merged("wider, back", 2)
    assert sorted(found) == [f'"public.wider" has the new column "{name}"' for name in "bc"]
    assert merged("wider, back", 3) == ['"public.back" has the new column "b"']
    held = {
        name: read_table(spark, tmp_path / "wh", tables_in(reader.path)[f"public.{name}"])
        for name in ("wider", "back")
    }
    assert texts(held["wider"].where("c IS NULL AND b IS NULL").select("id")) == Counter([("1",)])
    assert texts(held["back"].where("b IS NULL").select("id")) == Counter([("2",)])
    for name in ("wider", "back"):
        database18.execute(f"UPDATE {name} SET a = a")
    assert merged("wider, back", 4) == []
    assert all(row.warning is None for row in read_record(str(tmp_path / "wh")) or [])


def test_a_column_whose_name_is_anothers_by_now_is_known_by_its_neighbors(
    spark: SparkSession, tmp_path: Path, database18: Any
) -> None:
    """A stream that lags finds the name with another type; only one number fits between those around it."""
    database18.execute("CREATE TABLE t (id int PRIMARY KEY, b int, doc text)")
    database18.execute("CREATE PUBLICATION p FOR ALL TABLES")
    reader = Reader(database18.uri, tmp_path / "in", "jsonl", database18.create_slot())
    database18.execute("INSERT INTO t VALUES (1, 5, 'd'), (2, 6, 'e')")
    database18.execute("ALTER TABLE t RENAME b TO n; ALTER TABLE t ADD b text DEFAULT 'new'")
    database18.execute("UPDATE t SET n = 7 WHERE id = 2")
    reader.up_to_now()
    summary = merge(spark, MergeOptions(str(reader.path), str(tmp_path / "wh")))
    assert (summary["error"], summary["warnings"]) == (None, [])
    rows = texts(read_table(spark, tmp_path / "wh", tables_in(reader.path)["public.t"]))
    assert rows == Counter([("1", "5", "d", "new"), ("2", "7", "e", "new")])
