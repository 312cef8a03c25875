"""The comparison finds planted differences, names them exactly, and reports no others."""

from datetime import UTC, date, datetime
from decimal import Decimal
from uuid import UUID

import pyarrow as pa
import pytest
from deltalake import write_deltalake

from pgcdc_cli.demo.comparison import compare

COLUMNS = [
    # name, declaration, value in SQL, Arrow type and value in the copy, a wrong value
    ("id", "bigint", "7", pa.int64(), 7, 8),
    ("tenant", "uuid", f"'{UUID(int=5)}'", pa.string(), str(UUID(int=5)), str(UUID(int=6))),
    ("small", "smallint", "-3", pa.int16(), -3, None),
    ("plain", "int", "null", pa.int32(), None, 0),
    ("flag", "boolean", "true", pa.bool_(), True, False),
    ("single", "real", "0.1", pa.float32(), 0.1, 0.1000001),
    ("singles", "real[]", "'{0.1,NULL}'", pa.list_(pa.float32()), [0.1, None], [0.1, 0.2]),
    ("double", "float8", "'NaN'", pa.float64(), float("nan"), float("inf")),
    ("price", "numeric(12,2)", "1.10", pa.decimal128(12, 2), Decimal("1.10"), Decimal("1.11")),
    ("any", "numeric", "1.100", pa.string(), "1.100", "1.1"),
    ("wide", "numeric(60,2)", "1", pa.string(), "1.00", "1"),
    ("bytes", "bytea", r"'\x00ff'", pa.binary(), b"\x00\xff", b"\x00"),
    ("words", "text", "'naïve 🫖'", pa.string(), "naïve 🫖", "naive 🫖"),
    ("padded", "char(4)", "'ab'", pa.string(), "ab  ", "ab"),
    ("empty", "varchar(9)", "''", pa.string(), "", None),
    ("day", "date", "'2024-02-29'", pa.date32(), date(2024, 2, 29), date(2024, 3, 1)),
    ("never", "date", "'infinity'", pa.date32(), None, date(9999, 12, 31)),
    (
        "at",
        "timestamptz",
        "'2024-01-02 03:04:05.678901+02'",
        pa.timestamp("us", "UTC"),
        datetime(2024, 1, 2, 1, 4, 5, 678901, UTC),
        datetime(2024, 1, 2, 1, 4, 5, 678900, UTC),
    ),
    (
        "past",
        "timestamptz",
        "'0044-03-15 12:00 BC'",
        pa.timestamp("us", "UTC"),
        None,
        datetime(44, 3, 15, tzinfo=UTC),
    ),
    (
        "local",
        "timestamp",
        "'2024-01-02 03:04:05'",
        pa.timestamp("us"),
        datetime(2024, 1, 2, 3, 4, 5),  # noqa: DTZ001  a timestamp without time zone
        datetime(2024, 1, 2, 4, 4, 5),  # noqa: DTZ001  likewise
    ),
    ("clock", "time", "'24:00'", pa.string(), "24:00:00", "00:00:00"),
    ("span", "interval", "'1 day 2 hours'", pa.string(), "1 day 02:00:00", "26:00:00"),
    ("address", "inet", "'10.0.0.1/8'", pa.string(), "10.0.0.1/8", "10.0.0.1"),
    ("host", "inet", "'10.0.0.1'", pa.string(), "10.0.0.1", "10.0.0.1/32"),
    (
        "hosts",
        "inet[]",
        "'{10.0.0.1,NULL}'",
        pa.list_(pa.string()),
        ["10.0.0.1", None],
        ["10.0.0.1/32", None],
    ),
    (
        "doc",
        "jsonb",
        """'{"b": 1.10, "a": null}'""",
        pa.string(),
        '{"a": null, "b": 1.10}',
        '{"a": null, "b": 1.1}',
    ),
    ("mood", "mood", "'so so'", pa.string(), "so so", "good"),
    ("bounds", "int4range", "'[1,3)'", pa.string(), "[1,3)", "[1,2]"),
    ("sizes", "int[]", "'{1,NULL,3}'", pa.list_(pa.int32()), [1, None, 3], [1, 3]),
    ("tags", "text[]", "'{a,NULL,\"\"}'", pa.list_(pa.string()), ["a", None, ""], ["a", "", ""]),
    ("moods", "mood[]", "'{good}'", pa.list_(pa.string()), ["good"], []),
    ("none", "text[]", "null", pa.list_(pa.string()), None, []),
]
NAMES = [name for name, *_ in COLUMNS]


@pytest.fixture
def source(database18):
    database18.execute("CREATE TYPE mood AS ENUM ('good', 'so so')")
    declarations = ", ".join(f'"{name}" {type_}' for name, type_, *_ in COLUMNS)
    database18.execute(f"CREATE TABLE source ({declarations}, PRIMARY KEY (tenant, id))")
    database18.execute(f"INSERT INTO source VALUES ({', '.join(value for _, _, value, *_ in COLUMNS)})")
    return database18.connection


def write_copy(path, rows):
    schema = pa.schema([(name, type_) for name, _, _, type_, *_ in COLUMNS])
    write_deltalake(path, pa.Table.from_pylist(rows, schema))


def shown(value):
    return repr(value) if isinstance(value, str | bytes | list) else str(value)


def good_row():
    return {name: good for name, _, _, _, good, _ in COLUMNS}


def test_equal_tables_are_equal(source, tmp_path):
    write_copy(tmp_path, [good_row()])
    result = compare(source, "public.source", tmp_path)
    assert (result.source_rows, result.copy_rows, result.differences) == (1, 1, [])


@pytest.mark.parametrize("column", COLUMNS[2:], ids=NAMES[2:])
def test_a_wrong_value_is_named_with_key_column_and_both_values(source, tmp_path, column):
    name, _, _, type_, good, wrong = column
    write_copy(tmp_path, [good_row() | {name: wrong}])
    (difference,) = compare(source, "public.source", tmp_path).differences
    wanted, found = pa.array([good, wrong], type_).to_pylist()
    assert difference == (
        f"tenant={UUID(int=5)}, id=7, column {name}:"
        f" {shown(wanted)} in the source, {shown(found)} in the copy"
    )


def test_missing_and_surplus_rows_are_named(source, tmp_path):
    write_copy(tmp_path, [good_row() | {"id": 8}])
    assert sorted(compare(source, "public.source", tmp_path).differences) == [
        f"tenant={UUID(int=5)}, id=7: the row is missing from the copy",
        f"tenant={UUID(int=5)}, id=8: the row is in the copy only",
    ]


def test_a_row_that_is_there_twice_is_a_difference(source, tmp_path):
    write_copy(tmp_path, [good_row(), good_row()])
    assert compare(source, "public.source", tmp_path).differences == ["1 keys occur twice"]


def test_differences_are_told_up_to_a_limit(source, tmp_path):
    write_copy(tmp_path, [good_row() | {"id": number} for number in range(100, 200)])
    assert len(compare(source, "public.source", tmp_path, limit=3).differences) == 3


def test_a_table_that_was_never_merged_is_a_difference(source, tmp_path):
    assert compare(source, "public.source", tmp_path).differences == [
        f"there is no Delta table in {tmp_path}"
    ]


def test_columns_that_differ_are_named(source, tmp_path):
    write_deltalake(tmp_path, pa.table({"id": [7]}))
    (difference,) = compare(source, "public.source", tmp_path).differences
    assert difference.startswith("columns are id, not id, tenant, small")
