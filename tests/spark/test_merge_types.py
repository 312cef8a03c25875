"""Each PostgreSQL type at its limits, from every kind of file: the same value in the same Spark type."""

import math
from dataclasses import replace
from decimal import Decimal
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from merge_directories import FORMATS, Directory, merge_into, merged_rows, table_path
from merge_histories import numeric, pg_type, table_schema
from merge_oracle import Change
from pyspark.sql import SparkSession

from pgcdc_cli.changes.table import ReplicaIdentity, TableSchema
from pgcdc_cli.types.pg_type import PgType

NAN = float("nan")
INFINITY = float("inf")
SEVERAL_DIMENSIONS = 2


class Case(NamedTuple):
    """A column: its Spark type, and by wire text the value in Spark (as text for dates and timestamps)."""

    type: PgType
    spark: str
    values: dict[str, Any]


ENUM = PgType(99_000, -1, "mood", "enum")
OWN = PgType(99_001, -1, "ghstore", "other")
ENUMS = PgType(99_002, -1, "mood[]", "array", ENUM)
OWNS = PgType(99_003, -1, "ghstore[]", "array", OWN)
FAR = {"infinity": None, "-infinity": None}

CASES = {
    "bool": Case(pg_type(16), "boolean", {"t": True, "f": False}),
    "int2": Case(pg_type(21), "smallint", {"-32768": -32768, "32767": 32767}),
    "int4": Case(pg_type(23), "int", {"-2147483648": -(2**31), "2147483647": 2**31 - 1}),
    "int8": Case(pg_type(20), "bigint", {"-9223372036854775808": -(2**63), "9223372036854775807": 2**63 - 1}),
    "float4": Case(
        pg_type(700), "float", {"NaN": NAN, "-Infinity": -INFINITY, "1.5": 1.5, "1e-45": 2.0**-149}
    ),
    "float8": Case(
        pg_type(701),
        "double",
        {
            "NaN": NAN,
            "Infinity": INFINITY,
            "1.7976931348623157e+308": 1.7976931348623157e308,
            "5e-324": 5e-324,
        },
    ),
    "money_like": Case(
        numeric(38, 4),
        "decimal(38,4)",
        {"NaN": None, "9" * 34 + ".9999": Decimal("9" * 34 + ".9999"), "-0.0001": Decimal("-0.0001")},
    ),
    "wide": Case(numeric(39, 2), "string", {"9" * 37 + ".10": "9" * 37 + ".10", "NaN": "NaN"}),
    "tens": Case(numeric(3, -2), "string", {"12300": "12300"}),
    "any_numeric": Case(pg_type(1700), "string", {"NaN": "NaN", "1.50": "1.50", "Infinity": "Infinity"}),
    "bytea": Case(pg_type(17), "binary", {"\\x": b"", "\\x00ff5c": b"\x00\xff\\"}),
    "text": Case(
        pg_type(25), "string", {"": "", "\\N\r\n\t\"'{}é😀\u2028": "\\N\r\n\t\"'{}é😀\u2028", "NULL": "NULL"}
    ),
    "bpchar": Case(pg_type(1042, 7), "string", {"a  ": "a  "}),
    "date": Case(
        pg_type(1082),
        "date",
        {
            **FAR,
            "0001-01-01": "0001-01-01",
            "9999-12-31": "9999-12-31",
            "1582-10-10": "1582-10-10",
            "0044-03-15 BC": None,
            "12345-01-01": None,
        },
    ),
    "timestamp": Case(
        pg_type(1114),
        "timestamp_ntz",
        {
            **FAR,
            "0001-01-01 00:00:00": "0001-01-01 00:00:00",
            "9999-12-31 23:59:59.999999": "9999-12-31 23:59:59.999999",
            "1582-10-10 12:30:00.5": "1582-10-10 12:30:00.5",
            "0044-03-15 00:00:00 BC": None,
            "10000-01-01 00:00:00": None,
        },
    ),
    "timestamptz": Case(
        pg_type(1184),
        "timestamp",
        {
            **FAR,
            "0001-01-01 00:00:00+00": "0001-01-01 00:00:00",
            "9999-12-31 23:59:59.999999+00": "9999-12-31 23:59:59.999999",
            "2026-03-29 01:30:00.000001+00": "2026-03-29 01:30:00.000001",
            "0044-03-15 00:00:00+00 BC": None,
        },
    ),
    "time": Case(
        pg_type(1083),
        "string",
        {"24:00:00": "24:00:00", "00:00:00": "00:00:00", "01:02:03.45": "01:02:03.45"},
    ),
    "interval": Case(pg_type(1186), "string", {"-1 years -2 mons +3 days": "-1 years -2 mons +3 days"}),
    "oid": Case(pg_type(26), "string", {"4294967295": "4294967295"}),
    "uuid": Case(
        pg_type(2950),
        "string",
        {"00000000-0000-0000-0000-0000000000ff": "00000000-0000-0000-0000-0000000000ff"},
    ),
    "inet": Case(pg_type(869), "string", {"::1/128": "::1/128"}),
    "range": Case(pg_type(3904), "string", {"[1,5)": "[1,5)", "empty": "empty"}),
    "enum": Case(ENUM, "string", {'so "so"': 'so "so"'}),
    "own": Case(OWN, "string", {'"a"=>"1"': '"a"=>"1"'}),
    "json": Case(
        pg_type(114),
        "string",
        {
            '{"a":  1.10, "a": 2}': '{"a":  1.10, "a": 2}',
            '{\n "json": "x"}': None,
            "null": "null",
            '"text"': '"text"',
        },
    ),
    "jsonb": Case(
        pg_type(3802),
        "string",
        {
            value: value
            for value in (
                "null",
                "1e400",
                "0.1000",
                "true",
                '"true"',
                '"1"',
                '"{}"',
                '""',
                '"\\"q\\\\ \\n\\t é"',
                '{"jsonb": "nested"}',
                '[1, "x", null]',
                "12345678901234567890.1234567890",
            )
        },
    ),
    "int4s": Case(
        pg_type(1007),
        "array<int>",
        {"{}": [], "{1,NULL,-3}": [1, None, -3], "[0:1]={1,2}": None, "{{1},{2}}": None},
    ),
    "texts": Case(
        pg_type(1009),
        "array<string>",
        {
            '{a,"b c","",NULL,"NULL","q\\"\\\\","{x}","two\nlines",é}': [
                "a",
                "b c",
                "",
                None,
                "NULL",
                'q"\\',
                "{x}",
                "two\nlines",
                "é",
            ]
        },
    ),
    "bools": Case(pg_type(1000), "array<boolean>", {"{t,f,NULL}": [True, False, None]}),
    "numerics": Case(
        replace(pg_type(1231), element=numeric(5, 2), typmod=(5 << 16 | 2) + 4),
        "array<decimal(5,2)>",
        {"{1.50,NULL}": [Decimal("1.50"), None], "{1.50,NaN}": None},
    ),
    "byteas": Case(pg_type(1001), "array<binary>", {'{"\\\\x00ff"}': [b"\x00\xff"]}),
    "times": Case(
        pg_type(1183), "array<string>", {"{10:00:00,NULL}": ["10:00:00", None], "{24:00:00}": ["24:00:00"]}
    ),
    "boxes": Case(
        pg_type(1020), "array<string>", {"{(1,1),(0,0);(2,2),(0,0)}": ["(1,1),(0,0)", "(2,2),(0,0)"]}
    ),
    "enums": Case(ENUMS, "array<string>", {'{sad,"so so"}': ["sad", "so so"]}),
    "owns": Case(OWNS, "string", {'{"a=>1"}': '{"a=>1"}'}),
}
# A line break between JSON's tokens becomes a blank in JSON lines, and stays in Arrow.
CASES["json"].values['{\n "json": "x"}'] = {"jsonl": '{  "json": "x"}', "arrow": '{\n "json": "x"}'}

MATRIX = {"{{1,2},{3,4}}": "{{1,2},{3,4}}", "{1,NULL}": "{1,NULL}", "{}": "{}"}


IN_NO_EVENT = {"tens", "boxes", "owns", "times"}
"""Debezium's events have no exact form of these, nor of arrays with several dimensions, or with NaN."""


def cases(encoding: str) -> dict[str, Case]:
    """Select the cases that a format can hold."""
    if not encoding.startswith("debezium"):
        return CASES
    kept = {name: case for name, case in CASES.items() if name not in IN_NO_EVENT}
    lost = ("{{", "[0:", "{1.50,NaN")
    return {
        name: case._replace(values={t: v for t, v in case.values.items() if not t.startswith(lost)})
        for name, case in kept.items()
    }


def types_table(name: str, cases: dict[str, Case]) -> TableSchema:
    columns = {"id": pg_type(23), **{case: described.type for case, described in cases.items()}}
    return table_schema(name.replace("+", "_").replace(".", "_"), columns, ("id",))


def type_changes(cases: dict[str, Case]) -> list[Change]:
    """Make one row for each value of the column with most, and one more; shorter columns end in NULL."""
    longest = max(len(case.values) for case in cases.values())
    rows = []
    for number in range(longest + 1):
        row: dict[str, str | None] = {"id": str(number)}
        for name, case in cases.items():
            row[name] = dict(enumerate(case.values)).get(number)
        rows.append(Change("I", 10, number, row))
    return rows


def same(found: object, wanted: object) -> bool:
    if isinstance(found, float) and isinstance(wanted, float) and math.isnan(wanted):
        return math.isnan(found)
    return type(found) is type(wanted) and found == wanted


def test_types_at_their_limits(spark: SparkSession, tmp_path: Path) -> None:
    directory = Directory(tmp_path / "in", FORMATS["jsonl"])
    tables = {name: types_table(name, cases(name)) for name in FORMATS}
    matrix = {
        name: table_schema(
            f"matrix_{name}", {"id": pg_type(23), "m": pg_type(1007)}, ("id",), dimensions=SEVERAL_DIMENSIONS
        )
        for name in ("jsonl", "arrow")
    }
    squares = [Change("I", 10, n, {"id": str(n), "m": text}) for n, text in enumerate(MATRIX)]
    for name, encoding in FORMATS.items():
        directory.encoding = encoding
        more = [(matrix[name], squares)] if name in matrix else []
        directory.segment([(tables[name], type_changes(cases(name))), *more])
    summary = merge_into(spark, directory, tmp_path / "wh")
    assert (summary["error"], summary["warnings"]) == (None, [])
    wrong = []
    for name, table in tables.items():
        frame = spark.read.format("delta").load(str(table_path(tmp_path / "wh", table))).orderBy("id")
        assert {f.name: f.dataType.simpleString() for f in frame.schema} == {
            "id": "int",
            **{case: described.spark for case, described in cases(name).items()},
        }
        temporal = [
            case
            for case, described in cases(name).items()
            if described.spark.startswith(("date", "timestamp"))
        ]
        texts = frame.select(
            *(frame[c].cast("string").alias(c) if c in temporal else frame[c] for c in frame.columns)
        )
        for number, row in enumerate(texts.collect()):
            for case, described in cases(name).items():
                wanted = dict(enumerate(described.values.values())).get(number)
                if isinstance(wanted, dict):
                    wanted = wanted["jsonl" if name.startswith("jsonl") else "arrow"]
                if not same(row[case], wanted):
                    wrong.append((name, case, list(described.values)[number : number + 1], row[case], wanted))
    assert wrong == []
    unfit = {table["table"]: table["unfit"] for table in summary["tables"]}
    for name, table in tables.items():
        values = [value for case in cases(name).values() for value in case.values.values()]
        assert unfit[table.display] == values.count(None)
    for table in matrix.values():
        rows = merged_rows(spark, tmp_path / "wh", table)
        assert [rows[key]["m"] for key in sorted(rows)] == list(MATRIX)


@pytest.mark.parametrize(
    "encoding", [*(pytest.param(one, marks=pytest.mark.long) for one in ("jsonl", "debezium")), "arrow"]
)
def test_names_are_any_that_postgresql_allows(spark: SparkSession, tmp_path: Path, encoding: str) -> None:
    columns = {
        'Kéy "1"': pg_type(23),
        "back`tick": pg_type(25),
        "a.b": pg_type(3802),
        "per cent %": pg_type(25),
        "_x": pg_type(25),
    }
    tables = [
        table_schema(name, columns, ('Kéy "1"',), ReplicaIdentity.FULL, schema=schema)
        for schema, name in [
            ("Größe", "Ta ble/1"),
            ("_pgcdc", "[a-z]*"),
            ("größe", "ta ble/1"),
            ("..", "日本"),
        ]
    ]
    row: dict[str, str | None] = {
        'Kéy "1"': "1",
        "back`tick": "b",
        "a.b": '"s"',
        "per cent %": "p",
        "_x": None,
    }
    moved = {**row, 'Kéy "1"': "2", "a.b": None}
    changes = [
        Change("I", 10, 0, row),
        Change("U", 20, 0, moved, row, old_full=True, unchanged=frozenset({"a.b"})),
    ]
    directory = Directory(tmp_path / "in [x]", FORMATS[encoding])
    directory.segment([(table, changes) for table in tables])
    summary = merge_into(spark, directory, tmp_path / "wh", readers="modern")
    assert summary["error"] is None, summary["warnings"]
    for table in tables:
        assert merged_rows(spark, tmp_path / "wh", table) == {("2",): {**moved, "a.b": '"s"'}}


def test_a_key_that_does_not_fit_its_type_stops_its_table(spark: SparkSession, tmp_path: Path) -> None:
    table = table_schema("dated", {"day": pg_type(1082)}, ("day",))
    directory = Directory(tmp_path / "in", FORMATS["arrow"])
    directory.segment(
        [(table, [Change("I", 10, n, {"day": day}) for n, day in enumerate(["infinity", "2026-01-01"])])]
    )
    summary = merge_into(spark, directory, tmp_path / "wh")
    assert summary["error"]["message"] == (
        'could not merge "public.dated": a value of its key (day) is NULL, or not in its type'
    )
