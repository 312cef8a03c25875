"""Typed values become the text again that PostgreSQL printed."""

from decimal import Decimal

import pyarrow as pa
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from pgcdc_cli.reader.arrow_reader import pg_texts
from pgcdc_cli.types.pg_type import builtin
from pgcdc_cli.types.to_arrow import arrow_type, to_arrow

OIDS = {
    "bool": 16,
    "bytea": 17,
    "int8": 20,
    "text": 25,
    "float4": 700,
    "float8": 701,
    "date": 1082,
    "time": 1083,
    "timestamp": 1114,
    "timestamptz": 1184,
    "text[]": 1009,
    "int4[]": 1007,
    "timestamptz[]": 1185,
    "bytea[]": 1001,
    "bool[]": 1000,
    "float8[]": 1022,
    "date[]": 1182,
    "box[]": 1020,
}


DAYS = (-2_440_588, 2_145_042_905)
"""4713-01-01 BC and 5874897-12-31, the limits of PostgreSQL's dates, in days since 1970."""


def printed_again(name, texts):
    """Convert texts to the typed column and back; None if the type can't represent the value."""
    pg_type = builtin(OIDS[name], -1)
    typed = to_arrow(
        pg_type, pa.array([None if text is None else text.encode() for text in texts], pa.binary())
    )
    assert typed.values.type == arrow_type(pg_type)
    return texts_of(typed.values, pg_type)


def texts_of(column, pg_type):
    return [None if text is None else text.decode() for text in pg_texts(column, pg_type).to_pylist()]


def as_the_server_prints(database, name, values):
    rows = database.execute(f"SELECT unnest(%s::text[])::{name}::text", (list(values),)).fetchall()
    return [text for (text,) in rows]


@pytest.fixture
def utc(database18):
    database18.execute(
        "SET TimeZone = 'UTC'; SET DateStyle = ISO; SET extra_float_digits = 3; SET bytea_output = hex"
    )
    return database18


@pytest.mark.parametrize(
    ("name", "values"),
    [
        ("bytea", ["", "\\x00ff", "abc"]),
        ("int8", ["0", "-9223372036854775808", "9223372036854775807"]),
        ("text", ["", "a", "NULL", 'é"\\\n']),
        (
            "float8",
            [
                "0",
                "-0",
                "1",
                "0.1",
                "1e14",
                "999999999999999",
                "1e15",
                "123456789012345678",
                "1.5e300",
                "0.0001",
                "0.00001",
                "-1.5e-7",
                "5e-324",
                "1.7976931348623157e308",
                "NaN",
                "Infinity",
                "-Infinity",
                "100",
                "120.5",
            ],
        ),
        (
            "float4",
            [
                "0",
                "1",
                "0.1",
                "100000",
                "999999",
                "1e6",
                "1234567",
                "3.4028235e38",
                "1e-45",
                "0.0001",
                "1e-5",
            ],
        ),
        (
            "date",
            ["1970-01-01", "0001-01-01", "0001-12-31 BC", "4713-01-01 BC", "5874897-12-31", "2000-02-29"],
        ),
        ("time", ["00:00", "23:59:59.999999", "12:30:00.5"]),
        (
            "timestamp",
            [
                "2026-01-02 03:04:05.678901",
                "0044-03-15 10:00 BC",
                "294246-12-31 23:59:59.999999",
                "1969-12-31",
            ],
        ),
        ("timestamptz", ["2026-01-02 03:04:05.1+02", "0001-01-01 00:00+00 BC", "10000-01-01"]),
        ("text[]", ["{}", '{a,"a b",NULL,"NULL","null","","x,y","q\\"\\\\","{}"}', '{"\t","\v","é"}', None]),
        ("int4[]", ["{1,NULL,-3}"]),
        ("timestamptz[]", ["{2026-01-02 03:04:05+00,NULL}"]),
        ("bytea[]", ['{"\\\\x00ff","\\\\x"}']),
        ("bool[]", ["{t,f,NULL}"]),
        ("float8[]", ["{1,1e15,NaN,-0.5}"]),
        ("date[]", ["{2026-01-02,0044-03-15 BC}"]),
        ("box[]", ["{(1,1),(0,0);(2,2),(0,0)}"]),
    ],
)
def test_what_the_server_prints_is_printed_again(utc, name, values):
    texts = as_the_server_prints(utc, name, values)
    assert printed_again(name, texts) == texts


@settings(deadline=None)
@given(st.lists(st.floats(width=64)))
def test_every_float_is_read_back_as_itself(values):
    texts = printed_again(
        "float8", [repr(value).replace("inf", "Infinity").replace("nan", "NaN") for value in values]
    )
    assert [repr(float(text)) for text in texts] == [repr(value) for value in values]


elements = st.none() | st.text(st.characters(exclude_characters="\0", exclude_categories=["Cs"]), max_size=5)


@settings(deadline=None)
@given(st.lists(st.none() | st.lists(elements, max_size=5), max_size=5))
@example([["NULL", "", None, "{", "\v"]])
def test_every_list_is_read_back_as_itself(lists):
    column = pa.array(lists, pa.list_(pa.string()))
    texts = texts_of(column, builtin(OIDS["text[]"], -1))
    wire = pa.array([None if text is None else text.encode() for text in texts], pa.binary())
    assert to_arrow(builtin(OIDS["text[]"], -1), wire).values.to_pylist() == lists


@settings(deadline=None)
@given(st.integers(-(2**62), 2**62))
def test_every_moment_is_read_back_as_itself(micros):
    column = pa.array([micros], pa.int64()).cast(pa.timestamp("us"))
    pg_type = builtin(OIDS["timestamp"], -1)
    [text] = texts_of(column, pg_type)
    wire = pa.array([text.encode()], pa.binary())
    assert to_arrow(pg_type, wire).values.cast(pa.int64()).to_pylist() == [micros]


@settings(deadline=None)
@given(st.integers(*DAYS))
def test_every_day_is_read_back_as_itself(days):
    column = pa.array([days], pa.int32()).cast(pa.date32())
    pg_type = builtin(OIDS["date"], -1)
    assert to_arrow(pg_type, pg_texts(column, pg_type)).values.cast(pa.int32()).to_pylist() == [days]


def test_a_small_decimal_has_no_exponent():
    """Which is how Python prints it."""
    some = pa.array([Decimal("1E-10"), Decimal(-12), None], pa.decimal128(12, 10))
    assert pg_texts(some, None).to_pylist() == [b"0.0000000001", b"-12.0000000000", None]
