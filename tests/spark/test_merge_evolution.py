"""Columns come, go and grow: the tables follow, and what can't be followed stops its table."""

from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from merge_directories import FORMATS, Directory, merge_into, read_table
from merge_histories import INT4, NUMERIC, TEXT, numeric, pg_type, table_schema
from merge_oracle import Change, Row, delete, insert, update
from pyspark.sql import SparkSession

from pgcdc_cli.changes.table import ColumnFacts, TableFacts, TableSchema
from pgcdc_cli.spark.pgcdc_merge.column_types import keeps_values
from pgcdc_cli.spark.warehouse import read_record
from pgcdc_cli.types.pg_type import PgType

INT2, INT8, FLOAT4, FLOAT8 = 21, 20, 700, 701
BPCHAR, VARCHAR, TIMESTAMP, REGCLASS = 1042, 1043, 1114, 2205
ID = {"id": pg_type(INT4)}
NOTE = {"note": pg_type(TEXT)}
TOAST = frozenset({"note"})


class Step(NamedTuple):
    """A table before and after ALTER TABLE, its changes before and after, and the expected rows by id."""

    before: dict[str, PgType]
    after: dict[str, PgType]
    first: list[Change]
    second: list[Change]
    rows: dict[str, Row]


STEPS = {
    "added": Step(
        {**ID, **NOTE},
        {**ID, "more": pg_type(INT4), **NOTE},
        [insert(10, id="1", note="a"), insert(20, id="2", note="b"), insert(30, id="3", note="c")],
        [
            update(40, id="1", unsent="note", more="7"),
            update(50, {"id": "2"}, id="4", unsent="note", more=None),
            insert(60, id="5", note="e", more="9"),
        ],
        {
            "1": {"note": "a", "more": "7"},
            "3": {"note": "c", "more": None},
            "4": {"note": "b", "more": None},
            "5": {"note": "e", "more": "9"},
        },
    ),
    "dropped": Step(
        {**ID, "gone": pg_type(TEXT), **NOTE},
        {**ID, **NOTE},
        [insert(10, id="1", gone="x", note="a"), insert(20, id="2", gone="y", note="b")],
        [update(40, id="1", unsent="note"), insert(50, id="3", note="c")],
        {
            "1": {"gone": None, "note": "a"},
            "2": {"gone": "y", "note": "b"},
            "3": {"gone": None, "note": "c"},
        },
    ),
    "renamed": Step(
        {**ID, "old": pg_type(TEXT)},
        {**ID, "new": pg_type(TEXT)},
        [insert(10, id="1", old="x"), insert(20, id="2", old="y")],
        [update(40, id="1", new="x")],
        {"1": {"old": None, "new": "x"}, "2": {"old": "y", "new": None}},
    ),
    "widened": Step(
        {**ID, "n": pg_type(INT2), "f": pg_type(FLOAT4)},
        {**ID, "n": pg_type(INT8), "f": pg_type(FLOAT8)},
        [insert(10, id="1", n="-32768", f="1.5"), insert(20, id="2", n="7", f="-2")],
        [update(40, id="1", n=str(2**62), f="1e+300")],
        {"1": {"n": str(2**62), "f": "1.0E300"}, "2": {"n": "7", "f": "-2.0"}},
    ),
    "digits": Step(
        {**ID, "d": numeric(5, 2)},
        {**ID, "d": numeric(12, 4)},
        [insert(10, id="1", d="999.99"), insert(20, id="2", d="-0.01")],
        [update(40, id="1", d="12345678.9999")],
        {"1": {"d": "12345678.9999"}, "2": {"d": "-0.0100"}},
    ),
    "moved": Step(
        {**ID, "a": pg_type(TEXT), "b": pg_type(INT4)},
        {"b": pg_type(INT4), **ID, "a": pg_type(TEXT)},
        [insert(10, id="1", a="a", b="1"), insert(20, id="2", a="b", b="2")],
        [update(40, id="1", unsent="a", b="3")],
        {"1": {"a": "a", "b": "3"}, "2": {"a": "b", "b": "2"}},
    ),
}


def rows_by_id(spark: SparkSession, warehouse: Path, table: TableSchema, lake: str) -> dict[str, Row]:
    frame = read_table(spark, warehouse, table, lake)
    texts = frame.selectExpr(*(f"CAST(`{name}` AS STRING)" for name in frame.columns)).collect()
    rows = [dict(zip(frame.columns, row, strict=True)) for row in texts]
    return {str(row.pop("id")): row for row in rows}


@pytest.mark.parametrize(
    ("encodings", "runs", "lake"),
    [
        (("jsonl", "arrow"), 2, "iceberg"),
        (("arrow", "debezium"), 1, "delta"),
        pytest.param(("debezium", "jsonl.zst"), 2, "delta", marks=pytest.mark.long),
    ],
)
def test_tables_follow_their_columns(
    spark: SparkSession, tmp_path: Path, encodings: tuple[str, str], runs: int, lake: str
) -> None:
    """In one run, or in a run for each segment; only Iceberg can't change a decimal's scale."""
    before = {name: table_schema(name, step.before, ("id",)) for name, step in STEPS.items()}
    after = {name: table_schema(name, step.after, ("id",)) for name, step in STEPS.items()}
    directory = Directory(tmp_path / "in", FORMATS[encodings[0]])
    directory.segment([(before[name], step.first) for name, step in STEPS.items()])
    if runs > 1:
        assert merge_into(spark, directory, tmp_path / "wh", format=lake)["error"] is None
    directory.encoding = FORMATS[encodings[1]]
    directory.segment([(after[name], step.second) for name, step in STEPS.items()])
    summary = merge_into(spark, directory, tmp_path / "wh", format=lake)
    problems = {table["table"]: table["problem"] for table in summary["tables"] if table["problem"]}
    warned = {warning.split('"')[1] for warning in summary["warnings"]}
    wider = {"public.widened", *(() if lake == "iceberg" else ("public.digits",))}
    assert warned == {"public.added", "public.renamed", *wider}
    if lake == "iceberg":
        assert "from decimal(5,2) to decimal(12,4), which Iceberg can't follow" in problems["public.digits"]
    assert list(problems) == (["public.digits"] if lake == "iceberg" else [])
    for name, step in STEPS.items():
        if f"public.{name}" not in problems:
            assert rows_by_id(spark, tmp_path / "wh", after[name], lake) == step.rows, name


def test_a_new_column_that_has_no_default_is_exact(spark: SparkSession, tmp_path: Path) -> None:
    """No warning, unlike for a column that may be a renamed one; the changelog gets the column, too."""
    before, after = ({**ID, **NOTE}, {**ID, **NOTE, "more": pg_type(TEXT)})
    directory = Directory(tmp_path / "in", FORMATS["jsonl"])
    directory.segment([(table_schema("t", before, ("id",)), [insert(10, id="1", note="a")])])
    merge_into(spark, directory, tmp_path / "wh", mode="both")
    table = table_schema("t", after, ("id",))
    facts = TableFacts(("id",), None, {name: ColumnFacts(position=1) for name in after})
    directory.segment([(replace(table, facts=facts), [insert(20, id="2", note="b", more="c")])])
    summary = merge_into(spark, directory, tmp_path / "wh", mode="both")
    assert (summary["error"], summary["warnings"]) == (None, [])
    assert rows_by_id(spark, tmp_path / "wh", table, "delta") == {
        "1": {"note": "a", "more": None},
        "2": {"note": "b", "more": "c"},
    }
    log = read_table(spark, tmp_path / "wh", table, mode="changelog")
    assert sorted(tuple(row) for row in log.select("id", "note", "more").collect()) == [
        (1, "a", None),
        (2, "b", "c"),
    ]
    assert "more" in log.select("_pgcdc_old.*").columns
    renamed = table_schema("t", {**before, "other": pg_type(TEXT)}, ("id",))
    facts = TableFacts(("id",), None, {name: ColumnFacts(position=1) for name in (*before, "other")})
    directory.segment([(replace(renamed, facts=facts), [insert(30, id="3", note="c", other="d")])])
    (warning,) = merge_into(spark, directory, tmp_path / "wh", mode="both")["warnings"]
    assert '"public.t" has the new column "other": it is NULL in rows that have not changed' in warning


def test_what_cannot_be_followed_stops_its_table(spark: SparkSession, tmp_path: Path) -> None:
    """The error has the column, the schema file and a remedy, in one run as in two."""
    text, int4, int8 = pg_type(TEXT), pg_type(INT4), pg_type(INT8)
    steps: dict[str, tuple[dict[str, PgType], dict[str, PgType], Any, str]] = {
        "narrower": (
            {"v": int8},
            {"v": int4},
            "2",
            'its column "v" changed from bigint to int, which doesn\'t hold',
        ),
        "other": (
            {"v": int4},
            {"v": text},
            "2",
            'its column "v" changed from int to string, which doesn\'t hold',
        ),
        "digits": (
            {"v": numeric(5, 2)},
            {"v": numeric(5, 3)},
            "2.000",
            'its column "v" changed from decimal(5,2) to decimal(5,3), which doesn\'t hold',
        ),
        "case": ({"v": text}, {"V": text}, "2", 'the columns "v" and "V" differ in case only'),
    }
    before = {name: table_schema(name, {**ID, **old}, ("id",)) for name, (old, _, _, _) in steps.items()}
    after = {name: table_schema(name, {**ID, **new}, ("id",)) for name, (_, new, _, _) in steps.items()}
    renamed = (
        table_schema("toast", {**ID, "old": text}, ("id",)),
        table_schema("toast", {**ID, "v": text}, ("id",)),
    )
    unsent = [update(40, id="1", unsent="v")]

    def second(directory: Directory) -> None:
        changes = [
            (after[name], [update(40, id="1", **{next(iter(new)): value})])
            for name, (_, new, value, _) in steps.items()
        ]
        directory.segment([*changes, (renamed[1], unsent)])

    def first(directory: Directory) -> None:
        tables: list[tuple[TableSchema, list[Change]]] = [
            (t, [insert(10, id="1", v="1")]) for t in before.values()
        ]
        directory.segment([*tables, (renamed[0], [insert(10, id="1", old="long")])])

    for runs in (1, 2):
        directory = Directory(tmp_path / f"in{runs}", FORMATS["jsonl"])
        first(directory)
        if runs == 2:
            assert merge_into(spark, directory, tmp_path / "wh2")["error"] is None
        second(directory)
        summary = merge_into(spark, directory, tmp_path / f"wh{runs}")
        problems = {t["table"].removeprefix("public."): (t["problem"], t["hint"]) for t in summary["tables"]}
        for name, (_, _, _, message) in steps.items():
            problem, hint = problems.pop(name)
            assert f'could not merge "public.{name}": {message}' in problem
            assert name == "case" or ('see "schemas/' in problem and "change its type back, or merge" in hint)
        assert 'column "v" of the row (id) = (1) was not sent (unchanged TOAST)' in problems.pop("toast")[0]
        assert problems == {}


CONVERTED = {
    "blanks": (pg_type(BPCHAR, 8), pg_type(TEXT), ("1   ", "1")),
    "longer": (pg_type(BPCHAR, 8), pg_type(BPCHAR, 10), ("1   ", "1     ")),
    "rounded": (pg_type(TIMESTAMP), pg_type(TIMESTAMP, 0), ("2024-01-01 00:00:00.4", "2024-01-01 00:00:00")),
    "scaled": (numeric(40, 1), numeric(40, 2), ("1.5", "1.50")),
    "named": (pg_type(REGCLASS), pg_type(TEXT), ("public.t", "t")),
}
"""Types of a key before and after ALTER TABLE, by which PostgreSQL writes a value otherwise."""

SAME = {
    "int": (pg_type(INT4), pg_type(INT8), ("1", "1")),
    "digits": (numeric(5, 2), numeric(7, 3), ("1.50", "1.500")),
    "text": (pg_type(VARCHAR, 9), pg_type(TEXT), ("x", "x")),
    "shorter": (pg_type(VARCHAR, 9), pg_type(VARCHAR, 6), ("x", "x")),
    "limited": (pg_type(TEXT), pg_type(VARCHAR, 6), ("x", "x")),
    "default": (pg_type(TIMESTAMP), pg_type(TIMESTAMP, 6), ("2024-01-01 00:00:00", "2024-01-01 00:00:00")),
    "precise": (pg_type(TIMESTAMP, 0), pg_type(TIMESTAMP, 3), ("2024-01-01 00:00:00", "2024-01-01 00:00:00")),
}
"""The same where a value is found again."""


MOOD, OTHER = (PgType(oid, -1, "mood", "enum") for oid in (16390, 16400))

DECIMALS = {
    "scaled": (numeric(40, 1), numeric(40, 2), ("1.5", "1.50"), True),
    "longer": (numeric(9, 1), numeric(40, 2), ("1.5", "1.50"), True),
    "rounded": (numeric(40, 2), numeric(40, 1), ("1.25", "1.3"), False),
    "limited": (pg_type(NUMERIC), numeric(40, 1), ("1.25", "1.3"), False),
    "renamed": (MOOD, replace(MOOD, name="feeling"), ("glad", "glad"), True),
    "another": (MOOD, replace(OTHER, name="feeling"), ("glad", "glad"), False),
    "replaced": (MOOD, OTHER, ("glad", "happy"), False),
}
"""The same with --decimal, and for enums; and whether a value is found again."""


@pytest.mark.parametrize("runs", [pytest.param(1, marks=pytest.mark.long), 2])
def test_a_key_of_equal_values_is_found_whatever_its_type_is_called(
    spark: SparkSession, directory: Directory, warehouse: Path, runs: int
) -> None:
    tables = [
        (table_schema(name, {"id": old}, ("id",)), table_schema(name, {"id": new}, ("id",)), values, found)
        for name, (old, new, values, found) in DECIMALS.items()
    ]
    directory.segment([(before, [insert(10, id=values[0])]) for before, _, values, _ in tables])
    if runs == 2:
        assert merge_into(spark, directory, warehouse, decimal="38,9")["error"] is None
    directory.segment([(after, [delete(20, id=values[1])]) for _, after, values, _ in tables])
    summary = merge_into(spark, directory, warehouse, decimal="38,9")
    problems = {one["table"]: one["problem"] for one in summary["tables"]}
    assert {table.display: problems[table.display] is None for _, table, _, _ in tables} == {
        table.display: found for _, table, _, found in tables
    }
    for table in (after for _, after, _, found in tables if found):
        assert read_table(spark, warehouse, table).isEmpty()
    assert not any("public.renamed" in warning for warning in summary["warnings"])


@pytest.mark.parametrize("runs", [pytest.param(1, marks=pytest.mark.long), 2])
def test_a_key_that_got_a_type_with_other_values_stops_its_table(
    spark: SparkSession, directory: Directory, warehouse: Path, runs: int
) -> None:
    """Its rows would be there twice, and be deleted no more."""
    tables = {**CONVERTED, **SAME}
    before = {name: table_schema(name, {"id": old}, ("id",)) for name, (old, _, _) in tables.items()}
    after = {name: table_schema(name, {"id": new}, ("id",)) for name, (_, new, _) in tables.items()}
    directory.segment([(before[name], [insert(10, id=one[2][0])]) for name, one in tables.items()])
    if runs == 2:
        assert merge_into(spark, directory, warehouse)["error"] is None
    directory.segment([(after[name], [delete(20, id=one[2][1])]) for name, one in tables.items()])
    found = {one["table"]: one["problem"] for one in merge_into(spark, directory, warehouse)["tables"]}
    for name in CONVERTED:
        assert 'column "id" of its key has another type now' in found[f"public.{name}"]
    for name in SAME:
        assert found[f"public.{name}"] is None
        assert read_table(spark, warehouse, after[name]).isEmpty()


def test_a_type_whose_oid_an_earlier_pgcdc_did_not_record_is_known_by_its_name() -> None:
    assert keeps_values("mood", "mood#16390")
    assert not keeps_values("mood", "feeling#16390")


@pytest.mark.parametrize(
    ("first", "runs"),
    [("key", 1), ("type", 1), pytest.param("type", 3, marks=pytest.mark.long), ("written", 4)],
)
def test_a_converted_column_stops_a_table_of_which_it_is_the_key_from_then_on(
    spark: SparkSession, directory: Directory, warehouse: Path, first: str, runs: int
) -> None:
    """Unless it left the key before, or every row was written since."""
    blanks, text = ({**ID, "code": pg_type(BPCHAR, 8)}, {**ID, "code": pg_type(TEXT)})
    before = table_schema("t", blanks, ("code",) if first == "key" else ("id",))
    between = table_schema("t", blanks if first == "key" else text, ("id",))
    after = table_schema("t", text, ("id",) if first == "key" else ("code",))
    steps = [
        (before, [insert(10, id="1", code="a   ")]),
        (between, [insert(20, id="2", code="b   " if first == "key" else "b")]),
        (between, [update(30, id="1", code="a"), update(40, id="2", code="b")]),
        (after, [insert(50, id="3", code="c")]),
    ]
    for step in steps if first == "written" else [*steps[:2], steps[3]]:
        directory.segment([step])
        if runs > 1:
            summary = merge_into(spark, directory, warehouse)
    problem = (summary if runs > 1 else merge_into(spark, directory, warehouse))["tables"][0]["problem"]
    assert problem is None if first != "type" else "has another type now" in problem


class Rekeyed(NamedTuple):
    """A table before and after its key changed, its changes before and after, and the error, if any."""

    before: TableSchema
    after: TableSchema
    first: list[Change]
    second: list[Change]
    problem: str | None


def rekeyed() -> dict[str, Rekeyed]:
    text = pg_type(TEXT)
    first = [insert(10, id="1", note="a"), insert(20, id="2", note="b")]
    return {
        "renamed": Rekeyed(
            table_schema("renamed", {**ID, **NOTE}, ("id",)),
            table_schema("renamed", {"order_id": pg_type(INT4), **NOTE}, ("order_id",)),
            first,
            [update(40, order_id="1", note="A")],
            "its key is (order_id) now, and rows from before have no value in",
        ),
        "added": Rekeyed(
            table_schema("added", {**ID, **NOTE}, ("id",)),
            table_schema("added", {**ID, **NOTE, "uid": text}, ("uid",)),
            first,
            [update(40, id="1", note="A", uid="x")],
            "its key is (uid) now, and rows from before have no value in",
        ),
        "other": Rekeyed(
            table_schema("other", {**ID, **NOTE}, ("id",)),
            table_schema("other", {**ID, **NOTE}, ("note",)),
            first,
            [update(40, id="7", note="a")],
            None,
        ),
    }


@pytest.mark.parametrize("runs", [pytest.param(1, marks=pytest.mark.long), 2])
def test_rows_that_another_key_does_not_find_stop_their_table(
    spark: SparkSession, tmp_path: Path, runs: int
) -> None:
    cases = rekeyed()
    directory, warehouse = Directory(tmp_path / "in", FORMATS["jsonl"]), tmp_path / "wh"
    directory.segment([(case.before, case.first) for case in cases.values()])
    if runs == 2:
        assert merge_into(spark, directory, warehouse)["error"] is None
    directory.segment([(case.after, case.second) for case in cases.values()])
    for _ in range(2):
        summary = merge_into(spark, directory, warehouse)
    problems = {table["table"].removeprefix("public."): table["problem"] for table in summary["tables"]}
    for name, case in cases.items():
        assert (case.problem or "None") in str(problems.get(name))
    found = {row["note"]: row["id"] for row in read_table(spark, warehouse, cases["other"].after).collect()}
    assert found == {"a": 7, "b": 2}
    if runs == 2:
        rows = read_table(spark, warehouse, cases["renamed"].before).collect()
        assert {row["id"]: row["note"] for row in rows} == {1: "a", 2: "b"}


def test_a_column_that_came_before_it_was_the_key_has_to_be_filled(
    spark: SparkSession, tmp_path: Path
) -> None:
    """The key is compared with that of the last run: looking at all rows each time would take long."""
    columns = {**ID, **NOTE, "uid": pg_type(TEXT)}
    steps = [
        (
            table_schema("t", {**ID, **NOTE}, ("id",)),
            [insert(10, id="1", note="a"), insert(20, id="2", note="b")],
        ),
        (table_schema("t", columns, ("id",)), [update(40, id="1", note="a", uid="x")]),
        (table_schema("t", columns, ("uid",)), [update(50, id="1", note="A", uid="x")]),
    ]
    directory, warehouse = Directory(tmp_path / "in", FORMATS["jsonl"]), tmp_path / "wh"
    for step in steps:
        directory.segment([step])
        summary = merge_into(spark, directory, warehouse)
    assert 'rows from before have no value in "uid"' in summary["tables"][0]["problem"]
    directory = Directory(tmp_path / "filled", FORMATS["jsonl"])
    for table, changes in (*steps[:2], (steps[1][0], [update(45, id="2", note="b", uid="y")]), steps[2]):
        directory.segment([(table, changes)])
        summary = merge_into(spark, directory, tmp_path / "wh2")
    assert summary["error"] is None
    assert {(r["id"], r["note"]) for r in read_table(spark, tmp_path / "wh2", steps[2][0]).collect()} == {
        (1, "A"),
        (2, "b"),
    }


def test_deleted_rows_that_are_kept_stop_another_key_in_the_next_run(
    spark: SparkSession, tmp_path: Path
) -> None:
    columns = {**ID, **NOTE}
    before, after = table_schema("t", columns, ("id",)), table_schema("t", columns, ("note",))
    directory, warehouse = Directory(tmp_path / "in", FORMATS["jsonl"]), tmp_path / "wh"
    directory.segment(
        [(before, [insert(10, id="1", note="a"), delete(20, id="1"), insert(30, id="2", note="a")])]
    )
    assert merge_into(spark, directory, warehouse, soft_delete=True)["error"] is None
    directory.segment([(after, [update(40, id="3", note="a")])])
    [table] = merge_into(spark, directory, warehouse, soft_delete=True)["tables"]
    assert "deleted rows are kept by their old key" in table["problem"]


def warning_of(warehouse: Path) -> str | None:
    [warning] = [row.warning for row in read_record(str(warehouse)) or [] if row.table]
    return warning


def test_what_rows_lack_is_known_until_all_are_written(spark: SparkSession, tmp_path: Path) -> None:
    """Also where a failed merge had added the column, and where rows were only copied for another key."""
    wide = {**ID, **NOTE, "more": pg_type(TEXT)}
    steps = [
        (
            table_schema("t", {**ID, **NOTE}, ("id",)),
            [insert(10, id="1", note="a"), insert(20, id="2", note="b")],
        ),
        (table_schema("t", wide, ("id",)), [update(40, id="9", unsent="note", more="x")]),
        (table_schema("t", wide, ("id",)), [update(50, id="9", note="c", more="x")]),
        (table_schema("t", wide, ("note",)), [update(60, id="9", note="c", more="y")]),
    ]
    directory, warehouse = Directory(tmp_path / "in", FORMATS["jsonl"]), tmp_path / "wh"
    warnings = []
    for number, step in enumerate(steps):
        directory.segment([step])
        missing = "stop" if number < 2 else "null"
        problem = merge_into(spark, directory, warehouse, missing_toast=missing)["error"]
        assert (problem is not None) == (number == 1)
        warnings.append(warning_of(warehouse))
    assert warnings[0] is None
    assert all('the new column "more"' in str(warning) for warning in warnings[1:])
    every = [
        update(70 + number, id=key, note=note, more="z")
        for number, (key, note) in enumerate(["1a", "2b", "9c"])
    ]
    directory.segment([(steps[-1][0], every)])
    assert merge_into(spark, directory, warehouse)["error"] is None
    assert warning_of(warehouse) is None
