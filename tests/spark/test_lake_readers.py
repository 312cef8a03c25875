"""Other readers than Spark see the same values in the tables, or refuse to read them."""

from collections.abc import Callable
from itertools import product
from pathlib import Path

import lake_readers
import pytest
from lake_readers import ICEBERG_READERS, READERS, REFUSALS, Readers
from merge_directories import FORMATS, Directory, merge_into, read_table, table_path
from merge_histories import INT4, TEXT, pg_type, table_schema
from merge_oracle import Change, delete, insert, update
from pyspark.sql import SparkSession
from test_merge_types import CASES

from pgcdc_cli.changes.table import TableSchema
from pgcdc_cli.spark.pgcdc_merge.job import LAKES
from pgcdc_cli.spark.pgcdc_merge.lake import new_session
from pgcdc_cli.types.pg_type import PgType

INT8 = 20
ID = {"id": pg_type(INT4)}
NOTE = {"note": pg_type(TEXT)}
ODD = {"Mixed Case": pg_type(TEXT), "semi;colon": pg_type(TEXT)}
MANY = [insert(10 + number, id=str(number), note=f"n{number}") for number in range(40)]
SOME = [update(100, id="3", note="changed"), delete(110, id="4"), insert(120, id="99", note="new")]

Steps = list[tuple[dict[str, PgType], list[Change]]]
"""Segments, each as the table's columns and its changes."""


def every_type() -> Steps:
    """Make a column of each type, and as many rows as the type with most values has."""
    columns = {**ID, **{f"c_{number}": case.type for number, case in enumerate(CASES.values())}}
    values = [list(case.values) for case in CASES.values()]
    rows = [
        {f"c_{number}": some[row] if row < len(some) else None for number, some in enumerate(values)}
        for row in range(max(map(len, values)))
    ]
    return [(columns, [insert(10 + number, id=str(number), **row) for number, row in enumerate(rows)])]


TABLES: dict[str, Steps] = {
    "inserted": [({**ID, **NOTE}, MANY)],
    "updated and deleted": [({**ID, **NOTE}, MANY), ({**ID, **NOTE}, SOME)],
    "every type, limits": every_type(),
    "a wider column": [
        ({**ID, "n": pg_type(INT4)}, [insert(10, id="1", n="7"), insert(20, id="2", n="8")]),
        ({**ID, "n": pg_type(INT8)}, [update(40, id="1", n=str(2**62))]),
    ],
    "a column dropped": [({**ID, **NOTE}, MANY), (ID, [insert(200, id="100")])],
    "a column renamed": [
        ({**ID, **NOTE}, MANY),
        ({**ID, "remark": pg_type(TEXT)}, [insert(200, id="100", remark="r")]),
    ],
}

MODES = dict.fromkeys(TABLES, "merge") | {"a changelog": "changelog"}
TABLES["a changelog"] = TABLES["updated and deleted"]


def merged(
    spark: SparkSession, folder: Path, name: str, readers: str | None, lake: str = "delta"
) -> tuple[TableSchema, Path]:
    directory, warehouse = Directory(folder / "in", FORMATS["jsonl"]), folder / "wh"
    for number, (columns, changes) in enumerate(TABLES[name]):
        table = table_schema("notes", columns, ("id",))
        directory.segment([(table, changes)])
        readers = readers if number == 0 else None
        merge_into(spark, directory, warehouse, mode=MODES[name], readers=readers, format=lake)
    return table, warehouse


def changelog_of(path: Path) -> Path:
    return path.with_name(path.name + ".changelog")


def verdicts(readers: Readers, path: Path, expected: lake_readers.Rows) -> dict[str, str]:
    return {name: verdict(read, path, expected) for name, read in readers.items()}


def verdict(read: Callable[[str], lake_readers.Rows], path: Path, expected: lake_readers.Rows) -> str:
    try:
        found = read(str(path))
    except REFUSALS:
        return "refused"
    return "right" if found == expected else "wrong"


USUAL = {
    ("updated and deleted", "any"),
    ("updated and deleted", "modern"),
    ("every type, limits", "any"),
    ("a wider column", "any"),
    ("a column renamed", "any"),
}
USUAL_ICEBERG = {"updated and deleted"}
EACH = [
    pytest.param(*each, marks=() if each in USUAL else pytest.mark.long)
    for each in product(TABLES, ("any", "modern"))
]


@pytest.mark.parametrize(("name", "readers"), EACH)
def test_others_read_what_spark_reads(spark, tmp_path, name, readers):
    """The results for each case are a row of the table in docs/spark.md."""
    table, warehouse = merged(spark, tmp_path, name, readers)
    expected = lake_readers.spark(read_table(spark, warehouse, table, mode=MODES[name]))
    path = table_path(warehouse, table)
    found = verdicts(READERS, changelog_of(path) if MODES[name] == "changelog" else path, expected)
    print("|", name, "|", readers, "|", " | ".join(found.values()), "|")
    assert expected
    assert set(found.values()) == {"right"} if readers == "any" else "wrong" not in found.values()


@pytest.mark.parametrize(
    "name",
    [pytest.param(name, marks=() if name in USUAL_ICEBERG else pytest.mark.long) for name in TABLES],
)
def test_others_read_what_spark_reads_of_iceberg(spark, tmp_path, monkeypatch, name):
    """The results for each case are a row of the second table in docs/spark.md."""
    # polars has another planner, which is a package of its own, and warns without it.
    monkeypatch.setenv("POLARS_ICEBERG_PLANNER", "pyiceberg")
    table, warehouse = merged(spark, tmp_path, name, None, "iceberg")
    expected = lake_readers.spark(read_table(spark, warehouse, table, "iceberg", MODES[name]))
    path = table_path(warehouse, table)
    found = verdicts(ICEBERG_READERS, changelog_of(path) if MODES[name] == "changelog" else path, expected)
    print("|", name, "|", " | ".join(found.values()), "|")
    assert expected
    assert set(found.values()) == {"right"}


def test_a_table_for_modern_readers_has_any_name(spark, tmp_path):
    """A reader without column mapping refuses the table, rather than read NULL."""
    directory, warehouse = Directory(tmp_path / "in", FORMATS["jsonl"]), tmp_path / "wh"
    table = table_schema("notes", {**ID, **ODD}, ("id",))
    for number, columns in enumerate((ID, {**ID, **ODD})):
        row = dict.fromkeys(columns, "x") | {"id": str(number)}
        directory.segment([(table_schema("notes", columns, ("id",)), [insert(10 + number, **row)])])
        assert not merge_into(spark, directory, warehouse, readers=None if number else "modern")["error"]
    expected = lake_readers.spark(read_table(spark, warehouse, table))
    assert expected == [
        {"id": 0, "Mixed Case": None, "semi;colon": None},
        {"id": 1, "Mixed Case": "x", "semi;colon": "x"},
    ]
    path = table_path(warehouse, table)
    assert "wrong" not in verdicts(READERS, path, expected).values()


@pytest.mark.parametrize("when", ["at first", "later"])
def test_a_name_that_not_every_reader_finds_is_refused_unless_asked_for(spark, tmp_path, when):
    """A reader without column mapping would find NULL in every column of such a table."""
    directory, warehouse = Directory(tmp_path / "in", FORMATS["jsonl"]), tmp_path / "wh"
    if when == "later":
        directory.segment([(table_schema("notes", ID, ("id",)), [insert(5, id="0")])])
        assert not merge_into(spark, directory, warehouse)["error"]
    table = table_schema("notes", {**ID, **ODD}, ("id",))
    directory.segment([(table, [insert(10, id="1", **{"Mixed Case": "a", "semi;colon": "b"})])])
    (problem,) = (one["problem"] for one in merge_into(spark, directory, warehouse)["tables"])
    assert 'column "Mixed Case" has a character in its name' in problem


@pytest.mark.long
@pytest.mark.parametrize("name", ["updated and deleted", "a wider column"])
def test_a_table_is_converted_there_and_back(spark, tmp_path, name):
    table, warehouse = merged(spark, tmp_path, name, "modern")
    path, directory = table_path(warehouse, table), Directory(tmp_path / "in", FORMATS["jsonl"])
    expected = lake_readers.spark(read_table(spark, warehouse, table))
    for readers, allowed in (("any", {"right"}), ("modern", {"right", "refused"}), ("any", {"right"})):
        summary = merge_into(spark, directory, warehouse, readers=readers)
        assert (summary["error"], summary["warnings"]) == (None, [])
        assert set(verdicts(READERS, path, expected).values()) <= allowed


ODD_NAMES = ["OrderLines", "Order Lines", "~ and %", "注文", "a/b", "notes.changelog"]


@pytest.mark.parametrize("lake", ["delta", pytest.param("iceberg", marks=pytest.mark.long)])
def test_folders_are_called_as_their_tables_are(spark, tmp_path, lake):
    """Each table is opened by its path, beside others with similar names."""
    directory, warehouse = Directory(tmp_path / "in", FORMATS["jsonl"]), tmp_path / "wh"
    names = [*ODD_NAMES, "orderlines", "notes"]
    tables = [table_schema(name, ID, ("id",), oid=17000 + at) for at, name in enumerate(names)]
    first = [(table, [insert(10, id=str(at))]) for at, table in enumerate(tables)]
    second = [(table, [insert(200, id=str(100 + at))]) for at, table in enumerate(tables)]
    for changes in (first, second):
        directory.segment(changes)
        summary = merge_into(spark, directory, warehouse, mode="both", format=lake)
        assert (summary["error"], len(summary["tables"])) == (None, 2 * len(names))
    for at, name in enumerate(names):
        (row,) = [
            one for one in summary["tables"] if one["table"] == f"public.{name}" and one["mode"] == "merge"
        ]
        if lake == "delta":
            found = READERS["deltalake, QueryBuilder"](row["path"].removeprefix("file:"))
        else:
            made = LAKES[lake](f"file:{warehouse}")
            found = lake_readers.spark(made.open(new_session(spark, made), row["path"]).read())
        assert [one["id"] for one in found] == [at, 100 + at]
    folders = {path.name for path in (warehouse / "public").iterdir()}
    assert {"OrderLines", "Order Lines", "注文", "a~2Fb", "notes~2Echangelog", "notes.changelog"} <= folders
    assert not [folder for folder in folders if folder.startswith("orderlines") and "~~" not in folder]
