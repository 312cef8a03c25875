"""Each value is sent as the server's text, and the result must be what the server says about it."""

from decimal import Decimal

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pgcdc_cli.types.pg_type import PgType, builtin, json_kind
from pgcdc_cli.types.to_arrow import arrow_type, numeric_precision, to_arrow

EPOCH = "extract(epoch FROM v) * 1000000"
MICROS = pa.timestamp("us")
MICROS_UTC = pa.timestamp("us", "UTC")
DAYS = "v - '1970-01-01'::date"

# name, Arrow type, an expression that the server evaluates, values
FITTING = [
    ("bool", pa.bool_(), "v", ["t", "f"]),
    ("int2", pa.int16(), "v", ["-32768", "0", "32767"]),
    ("int4", pa.int32(), "v", ["-2147483648", "-1", "2147483647"]),
    ("int8", pa.int64(), "v", ["-9223372036854775808", "9223372036854775807"]),
    ("oid", pa.int64(), "v", ["0", "4294967295"]),
    ("xid", pa.int64(), "v::text::int8", ["3", "4294967295"]),
    ("cid", pa.int64(), "v::text::int8", ["0", "4294967295"]),
    ("float4", pa.float32(), "v", ["0", "-0", "3.4028235e+38", "1e-45", "NaN", "-Infinity"]),
    ("float8", pa.float64(), "v", ["0.1", "1.7976931348623157e+308", "1e+20", "NaN", "Infinity"]),
    ("numeric(12,2)", pa.decimal128(12, 2), "v", ["0", "-0.01", "9999999999.99", "1.5"]),
    ("numeric(38,38)", pa.decimal128(38, 38), "v", ["0", "-0." + "9" * 38, "0." + "0" * 37 + "1"]),
    ("numeric(38,0)", pa.decimal128(38, 0), "v", ["9" * 38, "-" + "9" * 38]),
    ("bytea", pa.binary(), "v", ["\\x", "\\x00ff5c78", "\\x" + "ab" * 5000]),
    ("date", pa.date32(), DAYS, ["2024-02-29", "1970-01-01", "1969-12-31", "0001-01-01", "9999-12-31"]),
    ("date", pa.date32(), DAYS, ["0044-03-15 BC", "4714-11-24 BC", "0001-12-31 BC", "10000-01-01"]),
    ("date", pa.date32(), DAYS, ["5874897-12-31"]),
    ("timestamp", MICROS, EPOCH, ["2024-02-29 23:59:59.999999", "1969-12-31 23:59:59.5"]),
    ("timestamp", MICROS, EPOCH, ["4714-11-24 00:00:00 BC", "12345-06-07 08:09:10.1"]),
    ("timestamp", MICROS, EPOCH, ["0001-01-01 00:00:00", "294246-12-31 23:59:59"]),
    ("timestamptz", MICROS_UTC, EPOCH, ["2024-02-29 23:59:59.999999+00", "2024-01-01 00:00+05:30"]),
    ("timestamptz", MICROS_UTC, EPOCH, ["4714-11-24 00:00+00 BC", "0005-02-28 12:00:00.000001+00 BC"]),
    ("time", pa.time64("us"), EPOCH, ["00:00:00", "23:59:59.999999", "03:04:05.5"]),
]  # fmt: skip


def storage(values: pa.Array) -> list:
    """Days and microseconds as integers, because Python's dates end with year 9999."""
    if pa.types.is_date(values.type):
        return values.cast(pa.int32()).to_pylist()
    if pa.types.is_temporal(values.type):
        return values.cast(pa.int64()).to_pylist()
    return values.to_pylist()


def expected_array(said: list, arrow: pa.DataType) -> list:
    if arrow == pa.float32():
        return [float(np.float32(value)) for value in said]
    return said


def same(ours, theirs) -> bool:
    return ours == theirs or (ours != ours and theirs != theirs)  # noqa: PLR0124 - NaN


@pytest.mark.parametrize("case", FITTING, ids=lambda case: case[0])
def test_a_value_that_fits_is_what_the_server_says(oracle, convert, case):
    name, arrow, expression, literals = case
    texts = [oracle.text(name, literal) for literal in literals]
    values, unfit = convert(oracle.type(name), [*texts, None])
    assert values.type == arrow
    assert not any(unfit)
    said = expected_array([oracle.ask(expression, name, literal) for literal in literals], arrow)
    *ours, last = storage(values)
    assert last is None
    assert all(map(same, ours, said)), (ours, said)


def test_a_double_keeps_every_bit(oracle, convert):
    texts = ["0.1", "1.7976931348623157e+308", "5e-324", "-0"]
    values, _ = convert(builtin(701, -1), [oracle.text("float8", text) for text in texts])
    assert [value.hex() for value in values.to_pylist()] == [float(text).hex() for text in texts]


UNFIT = [
    ("numeric(5,2)", ["NaN"], "1.50"),
    ("date", ["infinity", "-infinity"], "2024-01-01"),
    ("timestamp", ["infinity", "-infinity", "294276-12-31 23:59:59.999999"], "2024-01-01 00:00:00"),
    ("timestamptz", ["infinity", "-infinity", "294276-12-31 23:59:59.999999+00"], "2024-01-01 00:00:00+00"),
    ("time", ["24:00:00"], "03:04:05"),
]


@pytest.mark.parametrize(("name", "literals", "fitting"), UNFIT)
def test_a_value_that_does_not_fit_is_null_and_marked(oracle, convert, name, literals, fitting):
    texts = [oracle.text(name, literal) for literal in literals]
    values, unfit = convert(oracle.type(name), [fitting, *texts, None, fitting])
    assert unfit == [False, *([True] * len(texts)), False, False]
    assert values.null_count == len(texts) + 1
    assert values[0] == values[-1]
    assert values[0].as_py() is not None


TEXTS = [
    ("numeric", ["NaN", "Infinity", "1e-1000", "1" + "0" * 500, "1.500"]),
    ("numeric(39,2)", ["1.50"]),
    ("numeric(5,-2)", ["12300"]),
    ("numeric(3,5)", ["0.00123"]),
    ("text", ["", "NULL", "null", 'a "b" \\ \n\t', "é🎉", "\x7f"]),
    ("char(5)", ["ab"]),
    ("varchar(5)", ["ab "]),
    ("name", ["n"]),
    ('"char"', ["a"]),
    ("timetz", ["24:00:00+00", "03:04:05.5+05:30"]),
    ("interval", ["1 year 2 mons -3 days 04:05:06.7", "00:00:00"]),
    ("inet", ["10.1.2.3/8", "::1"]),
    ("cidr", ["10.0.0.0/8"]),
    ("macaddr", ["08:00:2b:01:02:03"]),
    ("macaddr8", ["08:00:2b:01:02:03:04:05"]),
    ("bit(3)", ["101"]),
    ("varbit", ["", "10101"]),
    ("money", ["-1234.56"]),
    ("uuid", ["a0eebc99-9c0b-4ef8-bb6d-6bb9bd380a11"]),
    ("json", ['{"a": 1,\n "a": 2}', "1e400", '"\\ud800"', " null "]),
    ("jsonb", ['{"a": [1, null]}', "null"]),
    ("point", ["(1,2)"]),
    ("box", ["(1,1),(0,0)"]),
    ("circle", ["<(1,2),3>"]),
    ("polygon", ["((0,0),(1,1))"]),
    ("int4range", ["empty", "[1,5)"]),
    ("tstzrange", ["[2024-01-01 00:00+00,)"]),
    ("int4multirange", ["{[1,2),[5,6)}"]),
    ("tsvector", ["'a':1 'b c':2"]),
    ("tsquery", ["'a' & 'b'"]),
    ("pg_lsn", ["16/B374D848"]),
    ("xid8", ["18446744073709551615"]),
    ("tid", ["(0,1)"]),
    ("int2vector", ["1 2 3"]),
    ("jsonpath", ["$.a"]),
    ("regclass", ["pg_class"]),
]


@pytest.mark.parametrize(("name", "literals"), TEXTS)
def test_any_other_value_is_the_servers_text(oracle, convert, name, literals):
    texts = [oracle.text(name, literal) for literal in literals]
    values, unfit = convert(oracle.type(name), [*texts, None])
    assert values.type == pa.string()
    assert values.to_pylist() == [*texts, None]
    assert not any(unfit)


@pytest.mark.parametrize(
    ("declared", "expected"),
    [
        ("12,2", (12, 2)),
        ("5,-2", (5, -2)),
        ("3,5", (3, 5)),
        ("1000,1000", (1000, 1000)),
        ("9,-1000", (9, -1000)),
    ],
)
def test_numerics_precision_and_scale_are_what_was_declared(oracle, declared, expected):
    assert numeric_precision(oracle.type(f"numeric({declared})").typmod) == expected


def test_numeric_without_precision_has_none():
    assert numeric_precision(-1) is None


def test_a_type_with_a_built_in_types_name_is_not_taken_for_it():
    assert arrow_type(PgType(16384, -1, "date", "other")) == pa.string()
    assert json_kind(PgType(16384, -1, "int4", "enum")) == "string"


@pytest.mark.parametrize(
    ("oid", "text"), [(23, "x"), (23, "2147483648"), (16, "maybe"), (17, "abc"), (17, "\\x0g")]
)
def test_what_the_server_would_never_print_is_unfit_not_lost(convert, oid, text):
    values, unfit = convert(builtin(oid, -1), [text, None])
    assert values.null_count == 2
    assert unfit == [True, False]


@settings(deadline=None, max_examples=300)
@given(st.lists(st.one_of(st.none(), st.binary(max_size=40)), max_size=20), st.data())
def test_bytea_comes_back_from_its_hex_form(values, data):
    wire = pa.array([None if v is None else b"\\x" + v.hex().encode() for v in values], pa.binary())
    start = data.draw(st.integers(0, len(values)))
    decoded, unfit = to_arrow(builtin(17, -1), wire[start:])
    assert unfit is None
    assert decoded.to_pylist() == values[start:]


@settings(deadline=None, max_examples=300)
@given(st.lists(st.sampled_from([None, "NaN", "-999.99", "0.01", "7.50"]), max_size=20))
def test_decimals_with_nan_between_them(values):
    wire = pa.array([None if v is None else str(v).encode() for v in values], pa.binary())
    decoded, unfit = to_arrow(builtin(1700, (5 << 16 | 2) + 4), wire)
    assert decoded.to_pylist() == [None if v in (None, "NaN") else Decimal(v) for v in values]
    assert (unfit is None) == ("NaN" not in values)
