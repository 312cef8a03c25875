"""Values as Debezium writes them, column by column, compared with simple Python for one value at a time."""

import base64
import datetime as dt
import json
import math
import re
import struct
from dataclasses import replace
from decimal import Decimal

import pytest
from debezium_tools import OIDS, numeric
from hypothesis import given, settings
from hypothesis import strategies as st

from pgcdc_cli.changes.table import ColumnFacts, TableColumn
from pgcdc_cli.formats.debezium.connector_config import ConnectorConfig
from pgcdc_cli.formats.debezium.types.kind import convert_together
from pgcdc_cli.formats.debezium.types.registry import field_for
from pgcdc_cli.types import kernels
from pgcdc_cli.types.pg_type import builtin

EPOCH = dt.datetime(1970, 1, 1, tzinfo=dt.UTC)
MANY = settings(deadline=None, max_examples=200)


def field(
    kind: str,
    typmod: int = -1,
    default: str | None = None,
    *,
    not_null: bool = False,
    snapshot: bool = False,
    **modes: str,
):
    config = ConnectorConfig(topic_prefix="srv", **modes)
    type_ = builtin(OIDS[kind], typmod)
    column = TableColumn.of("v", type_, in_replica_identity=False)
    column = replace(column, declared=kind, not_null=not_null)
    return field_for(column, ColumnFacts(default), config, snapshot=snapshot)


def tokens(kind: str, texts: list[str | None], typmod: int = -1, **modes: str) -> list[str | None]:
    found = field(kind, typmod, **modes).to_json(kernels.binary(texts)).to_pylist()
    return [None if token is None else token.decode() for token in found]


@MANY
@given(st.lists(st.one_of(st.none(), st.floats(allow_nan=False, allow_infinity=False)), max_size=8))
def test_doubles_are_javas_and_the_same_number(values):
    texts = [None if value is None else repr(value).replace("inf", "Infinity") for value in values]
    for value, token in zip(values, tokens("float8", texts), strict=True):
        assert (token is None) == (value is None)
        if token is not None:
            assert re.fullmatch(r"-?\d+\.\d+(E-?\d+)?", token)
            assert ("E" in token) == (value != 0 and not 1e-3 <= abs(value) < 1e7)
            assert float(token) == value
            assert math.copysign(1, float(token)) == math.copysign(1, value)


@pytest.mark.parametrize(
    ("text", "token"),
    [
        ("NaN", '"NaN"'),
        ("-Infinity", '"-Infinity"'),
        ("5e-324", "4.9E-324"),
        ("1e+20", "1.0E20"),
        ("-0", "-0.0"),
    ],
)
def test_unusual_doubles(text, token):
    assert tokens("float8", [text, None, "1.5"]) == [token, None, "1.5"]


@MANY
@given(st.lists(st.one_of(st.none(), st.integers(-(10**12) + 1, 10**12 - 1)), min_size=1, max_size=8))
def test_a_decimal_is_its_unscaled_value_in_as_few_bytes_as_hold_it(values):
    texts = [None if value is None else f"{Decimal(value).scaleb(-2):.2f}" for value in values]
    for value, token in zip(values, tokens("numeric", texts, numeric(12, 2)), strict=True):
        if value is None:
            assert token is None
            continue
        octets = base64.b64decode(json.loads(token))
        assert int.from_bytes(octets, "big", signed=True) == value
        shortest = (value + (value < 0)).bit_length() // 8 + 1
        assert len(octets) == shortest


@MANY
@given(st.decimals(allow_nan=False, allow_infinity=False, places=30).filter(lambda d: abs(d) < 10**20))
def test_a_decimal_without_precision_has_a_scale_of_its_own(value):
    [token] = tokens("numeric", [f"{value:f}"])
    found = json.loads(token)
    unscaled = int.from_bytes(base64.b64decode(found["value"]), "big", signed=True)
    digits = tuple(map(int, str(abs(unscaled))))
    assert Decimal((unscaled < 0, digits, -found["scale"])) == value
    assert found["scale"] == 0 or unscaled % 10


NUMERICS = st.one_of(
    st.sampled_from([None, "0", "0.000", "-0.50", "100", "99999999999999999", "-0.00000000000000001", "NaN"]),
    st.sampled_from(
        [
            "1.50",
            "20.00",
            "0.001",
            "0.0009",
            "9999999.99",
            "10000000.01",
            "1.12345678901234567",
            "0.1000000000000000055",
            "99999999999999999.99",
        ]
    ),
    st.from_regex(r"-?(0|[1-9]\d{0,19})(\.\d{1,20})?", fullmatch=True),
    st.from_regex(r"-?(0|[1-9]\d{0,16})\.\d{2}", fullmatch=True),
)


@pytest.mark.parametrize(
    ("mode", "typmod"),
    [
        ("double", -1),
        *(("precise", typmod) for typmod in (-1, numeric(30, 2), numeric(4, 17))),
    ],
)
@MANY
@given(texts=st.lists(NUMERICS, max_size=8))
def test_decimals_are_the_same_at_once_and_one_by_one(mode, typmod, texts):
    each = field("numeric", typmod, decimal_handling_mode=mode).to_json.each
    alone = [None if text is None else each(text) for text in texts]
    found = tokens("numeric", texts, typmod, decimal_handling_mode=mode)
    assert found == [None if one is None else one.decode() for one in alone]


@pytest.mark.parametrize(("mode", "token"), [("string", '"NAN"'), ("double", '"NaN"'), ("precise", None)])
def test_a_numeric_that_is_no_number(mode, token):
    assert tokens("numeric", ["NaN", "1.5"], decimal_handling_mode=mode)[0] == token


@MANY
@given(st.lists(st.one_of(st.none(), st.text(max_size=6)), max_size=6))
def test_text_is_escaped_as_jackson_does(values):
    values = [None if value is None else value.replace("\0", "") for value in values]
    values = [value if value is None else value.encode("utf-8", "ignore").decode() for value in values]
    for value, token in zip(values, tokens("text", values), strict=True):
        if value is not None:
            assert json.loads(token) == value
            assert all(ord(character) < 0x10000 for character in token)
            assert token == re.sub(r"\\u[0-9a-fA-F]{4}", lambda match: "\\u" + match[0][2:].upper(), token)


@MANY
@given(
    st.lists(st.datetimes(timezones=st.just(dt.UTC)), min_size=1, max_size=6),
    st.sampled_from([-1, 0, 3, 6]),
)
def test_timestamps_are_counted_or_written_by_their_precision(moments, typmod):
    digits = 6 if typmod < 0 else typmod
    cut = [m.replace(microsecond=m.microsecond // 10 ** (6 - digits) * 10 ** (6 - digits)) for m in moments]
    texts = [
        m.replace(tzinfo=None).isoformat(" ").rstrip("0")
        if m.microsecond
        else m.replace(tzinfo=None).isoformat(" ")
        for m in cut
    ]
    micros = [(moment - EPOCH) // dt.timedelta(microseconds=1) for moment in cut]
    counted = [value // 1000 if 0 <= typmod <= 3 else value for value in micros]
    assert tokens("timestamp", texts, typmod) == [str(value) for value in counted]
    for moment, token in zip(
        cut, tokens("timestamptz", [f"{text}+00" for text in texts], typmod), strict=True
    ):
        fraction = f".{moment.microsecond:06}"[: digits + 1] if digits else ""
        assert token == f'"{moment.replace(tzinfo=None, microsecond=0).isoformat()}{fraction}Z"'


ZONED = st.builds(
    "{}{}+00{}".format,
    st.sampled_from(
        ["2026-01-02 03:04:05", "0000-01-02 03:04:05", "20260-01-02 03:04:05", "2026-01-02 24:00:00"]
    ),
    st.sampled_from(["", ".6", ".06", ".678901", ".6789012"]),
    st.sampled_from(["", " BC", ":30", ":00"]),
)


@MANY
@given(
    texts=st.lists(st.none() | ZONED | st.sampled_from(["infinity", "-infinity"]), max_size=5),
    digits=st.sampled_from([-1, 6]),
)
def test_moments_with_a_time_zone_are_the_same_at_once_and_one_by_one(texts, digits):
    each = field("timestamptz", digits).to_json.each
    alone = [None if text is None else each(text).decode() for text in texts]
    assert tokens("timestamptz", texts, digits) == alone


OLD_DAYS = st.sampled_from(
    [
        *("0044-03-15 BC", "4713-01-01 BC", "0001-01-01", "1500-02-28", "1500-02-29", "1500-03-01"),
        *("1582-10-04", "1582-10-05", "1582-10-14", "1582-10-15", "1582-12-31", "1583-01-01"),
        *("2026-01-02", "10000-01-01", "infinity", "-infinity"),
    ]
)


@pytest.mark.parametrize("kind", ["date", "timestamp", "timestamptz"])
@pytest.mark.parametrize("mode", ["adaptive", "isostring"])
@MANY
@given(days=st.lists(st.none() | OLD_DAYS, max_size=4))
def test_moments_in_snapshots_are_the_same_at_once_and_one_by_one(kind, mode, days):
    """In the Julian calendar, which the driver has before 1582."""

    def text(day: str | None) -> str | None:
        if day is None or "infinity" in day or kind == "date":
            return day
        zone, (date, _, era) = "+00" * (kind == "timestamptz"), day.partition(" BC")
        return f"{date} 01:02:03.5{zone}{era}"

    texts = list(map(text, days))
    to_json = field(kind, snapshot=True, debezium_version="3.4", time_precision_mode=mode).to_json
    alone = [None if one is None else to_json.each(one) for one in texts]
    assert to_json(kernels.binary(texts)).to_pylist() == alone


SEVERAL = st.integers(0, 3).flatmap(
    lambda rows: st.lists(
        st.none()
        | st.tuples(
            st.sampled_from(["text", "numeric", "int4"]),
            st.lists(st.sampled_from([None, "1", "-20", "3" * 40_000]), min_size=rows, max_size=rows),
        ),
        max_size=6,
    )
)


@MANY
@given(SEVERAL)
def test_columns_of_one_type_are_converted_together_as_each_alone(columns):
    to_jsons = [field(kind or "text").to_json for kind, _ in (column or (None, None) for column in columns)]
    values = [None if column is None else kernels.binary(column[1]) for column in columns]
    alone = [None if one is None else to_json(one) for to_json, one in zip(to_jsons, values, strict=True)]
    assert convert_together(to_jsons, values) == alone


def test_columns_of_one_type_have_one_converter():
    assert field("timestamptz", 3).to_json is field("timestamptz", 3).to_json
    assert field("timestamptz", 3).to_json is not field("timestamptz", 6).to_json


@MANY
@given(st.lists(st.one_of(st.none(), st.dates()), max_size=6))
def test_dates_are_days(days):
    expected = [None if day is None else str((day - EPOCH.date()).days) for day in days]
    assert tokens("date", [None if day is None else day.isoformat() for day in days]) == expected


@pytest.mark.parametrize(
    ("text", "micros"),
    [("24:00:00", 86_400_000_000), ("00:00:00.000001", 1), ("23:59:59.999999", 86_399_999_999)],
)
def test_times_up_to_the_end_of_the_day(text, micros):
    assert tokens("time", [text]) == [str(micros)]
    assert tokens("time", [text], time_precision_mode="connect") == [str(micros // 1000)]


@pytest.mark.parametrize(
    ("kind", "typmod", "text", "iso", "nanos"),
    [
        ("date", -1, "2024-02-29", '"2024-02-29Z"', "19782"),
        ("date", -1, "0044-03-15 BC", '"-0043-03-15Z"', "-735160"),
        ("time", 3, "12:34:56.7", '"12:34:56.7Z"', "45296700000000"),
        ("time", -1, "24:00:00", '"00:00:00Z"', "86400000000000"),
        ("timestamp", 0, "2024-02-29 12:34:56", '"2024-02-29T12:34:56Z"', "1709210096000000000"),
        ("timestamp", -1, "12345-06-07 08:09:10.11", '"+12345-06-07T08:09:10.11Z"', "-4624416776661929088"),
        ("timestamp", -1, "infinity", '"+294247-01-10T04:00:25.2Z"', "-29575808000"),
        ("time[]", -1, "{12:34:56.789012,24:00:00}", '["12:34:56.789Z","00:00:00Z"]', "[45296789000000,0]"),
    ],
)
def test_newer_modes_write_iso_or_nanoseconds_whatever_the_precision(kind, typmod, text, iso, nanos):
    newer = {"debezium_version": "3.4"}
    assert tokens(kind, [text, None], typmod, time_precision_mode="isostring", **newer) == [iso, None]
    assert tokens(kind, [text, None], typmod, time_precision_mode="nanoseconds", **newer) == [nanos, None]


@pytest.mark.parametrize("text", ["05:24:48", "05:06:24", "23:24:24.5"])
def test_iso_times_of_a_few_rows_are_those_of_a_column(text):
    kind = field("time", debezium_version="3.4", time_precision_mode="isostring")
    assert kind.to_json.each(text) == b'"%sZ"' % text.encode()
    assert tokens("time", [text], debezium_version="3.4", time_precision_mode="isostring") == [f'"{text}Z"']


def test_iso_text_of_a_column_that_has_only_years_bc():
    newer = {"debezium_version": "3.4", "time_precision_mode": "isostring"}
    assert tokens("timestamp", ["0044-03-15 01:02:03 BC"], **newer) == ['"-0043-03-15T01:02:03Z"']


@pytest.mark.parametrize("odd", ["NaN", "1", "-1.5", "123456789012345678.90", "0.123"])
def test_a_decimal_is_written_alike_whatever_else_its_column_has(odd):
    usual = ["-0.05", "12345.67", None, "0.00"]
    typmod = (30 << 16 | 2) + 4
    among, alone = tokens("numeric", [*usual, odd], typmod), tokens("numeric", [odd], typmod)
    assert among == tokens("numeric", usual, typmod) + alone


@MANY
@given(st.text("01", max_size=70))
def test_bits_are_little_endian_without_zero_bytes_at_the_end(text):
    [token] = tokens("varbit", [text])
    octets = base64.b64decode(json.loads(token))
    assert int.from_bytes(octets, "little") == int(f"0{text}", 2)
    assert not octets.endswith(b"\0")


@pytest.mark.parametrize(
    ("text", "micros", "iso"),
    [
        ("1 year 2 mons 3 days 04:05:06.789012", 37_091_106_789_012, "P1Y2M3DT4H5M6.789012S"),
        ("-1 years -2 mons +3 days -04:05:06.789", -36_572_706_789_000, "P-1Y-2M3DT-4H-5M-6.789S"),
        ("-00:00:01", -1_000_000, "P0Y0M0DT0H0M-1S"),
        ("00:00:00", 0, "P0Y0M0DT0H0M0S"),
    ],
)
def test_intervals(text, micros, iso):
    assert tokens("interval", [text]) == [str(micros)]
    assert tokens("interval", [text], interval_handling_mode="string") == [f'"{iso}"']


@pytest.mark.parametrize(
    ("text", "token"),
    [
        ("10:00:00+02", '"08:00:00Z"'),
        ("00:30:00.500+01", '"23:30:00.5Z"'),
        ("23:00:00-03:30", '"02:30:00Z"'),
        ("10:00:00-00:19:32", '"10:19:32Z"'),
    ],
)
def test_times_with_a_zone_are_utc(text, token):
    assert tokens("timetz", [text]) == [token]


@pytest.mark.parametrize(
    ("mode", "token"),
    [("bytes", '"+/8="'), ("base64", '"+/8="'), ("base64-url-safe", '"-_8="'), ("hex", '"fbff"')],
)
def test_bytes_by_their_mode(mode, token):
    assert tokens("bytea", ["\\xfbff", None], binary_handling_mode=mode) == [token, None]


def test_a_point_is_a_struct_with_its_well_known_binary():
    [token] = tokens("point", ["(1.5,-2)"])
    found = json.loads(token)
    assert (found["x"], found["y"], found["srid"]) == (1.5, -2.0, None)
    assert struct.unpack("<BIdd", base64.b64decode(found["wkb"])) == (1, 1, 1.5, -2.0)


@pytest.mark.parametrize(
    ("kind", "text", "token"),
    [
        ("int4[]", "{1,NULL,-3}", "[1,null,-3]"),
        ("int4[]", "{}", "[]"),
        ("int4[]", "{{1,2},{3,4}}", "[null,null]"),
        ("text[]", '{a,"b, \\"c\\"",NULL,"NULL"}', '["a","b, \\"c\\"",null,"NULL"]'),
        ("time[]", "{10:11:12.123456}", "[36672123000]"),
        ("bit[]", "{1010,0001}", None),
    ],
)
def test_arrays(kind, text, token):
    assert tokens(kind, [None, text]) == [None, token]


@pytest.mark.parametrize(
    ("kind", "expression", "token"),
    [
        ("int4", "7", b"7"),
        ("int4", "'-5'::integer", b"-5"),
        ("int4", "(1 + 1)", None),
        ("int8", "nextval('s'::regclass)", b"0"),
        ("text", "'it''s'::text", b'"it"'),
        ("text", "('a'::text || 'b'::text)", b'"a"'),
        ("text", "NULL::text", None),
        ("bool", "true", b"true"),
        ("float8", "'-25000000000'::numeric", b"-2.5E10"),
        ("date", "CURRENT_DATE", b"0"),
        ("timestamptz", "now()", b'"1970-01-01T00:00:00.000000Z"'),
        ("uuid", "gen_random_uuid()", b'"00000000-0000-0000-0000-000000000000"'),
        ("jsonb", "'{\"a\": 1}'::jsonb", b'"{\\"a\\": 1}"'),
        ("int4[]", "'{}'::integer[]", None),
        ("inet", "'10.0.0.1'::inet", None),
    ],
)
def test_a_default_is_a_literal_or_stands_for_a_function(kind, expression, token):
    found = field(kind, default=expression)
    assert found.schema.get("default") == token
    assert found.null == (token or b"null")


@pytest.mark.parametrize(
    ("kind", "zero"),
    [
        ("int4", b"0"),
        ("text", b'""'),
        ("bool", b"false"),
        ("int4[]", b"[]"),
        ("timestamptz", b'"1970-01-01T00:00:00Z"'),
    ],
)
def test_what_may_not_be_null_has_a_zero_where_nothing_was_sent(kind, zero):
    assert (field(kind).absent, field(kind, not_null=True).absent) == (b"null", zero)


@pytest.mark.parametrize("kind", ["tsvector", "pg_lsn", "circle"])
def test_unknown_types_are_left_out_unless_they_are_asked_for(kind):
    assert field(kind) is None
    assert field(kind, include_unknown_datatypes=True).schema["type"] == "bytes"


@pytest.mark.parametrize(
    ("kind", "text", "token"),
    [
        # java.sql.Date: days that the calendar reform left out are shifted, and the era is dropped.
        ("date[]", '{1582-10-05,1582-10-14,"0044-03-15 BC"}', "[-141427,-141418,-703383]"),
        ("date[]", "{infinity}", "[-622191234]"),
        # java.sql.Timestamp: dates before 1582 are in the Julian calendar.
        ("timestamp[]", '{"1500-03-01 01:02:03.5"}', "[-14825804276500000]"),
        ("timestamptz[]", '{"1582-10-14 01:02:03.5+00"}', '["1582-10-24T01:02:03.500000Z"]'),
        ("timestamptz[]", '{"0044-03-15 01:02:03.5+00 BC"}', '["0044-03-15T01:02:03.500000Z"]'),
        ("time[]", "{24:00:00}", "[0]"),
        # The driver can't read NaN in an array.
        ("numeric[]", "{1,NaN}", None),
        ("int8[]", "[0:1]={5,6}", "[5,6]"),
        ("timestamptz[]", "{}", "[]"),
    ],
)
def test_what_the_driver_makes_of_elements(kind, text, token):
    assert tokens(kind, [text]) == [token]


def test_times_in_arrays_are_in_microseconds_and_lost_where_they_would_be_in_milliseconds():
    found = field("time[]", 3)
    assert found.schema["items"]["name"] == "io.debezium.time.MicroTime"
    assert tokens("time[]", ["{10:11:12.125}", "{NULL}"], 3) == [None, "[null]"]
    in_micros = tokens("time[]", ["{10:11:12.125}"], 3, time_precision_mode="adaptive_time_microseconds")
    assert in_micros == ["[36672125000]"]


def test_bits_of_length_one_are_booleans_varying_ones_too():
    assert field("varbit", 1).schema["type"] == "boolean"
    assert tokens("varbit", ["1", "0", ""], 1) == ["true", "false", None]


SIGNED = st.integers(-(10**6), 10**6)
INTERVALS = st.one_of(
    st.sampled_from([None, "infinity", "-infinity", "00:00:00", "-00:00:00.000001", "178000000 years"]),
    st.sampled_from(["99999999:59:59.999", "-1 mons +1 day", "100000 years", "2562047788:00:54.775807"]),
    st.builds(
        lambda years, days, clock: f"{years} years -1 mons {days:+} days {clock}",
        SIGNED,
        SIGNED,
        st.from_regex(r"[+-]?\d{2,9}:[0-5]\d:[0-5]\d(\.\d{1,6})?", fullmatch=True),
    ),
)
CLOCKS = st.from_regex(r"-?\d{2,9}:[0-5]\d:[0-5]\d(\.\d{1,6})?", fullmatch=True)


@pytest.mark.parametrize("mode", ["numeric", "string"])
@MANY
@given(texts=st.lists(INTERVALS, max_size=8) | st.lists(CLOCKS, max_size=3))
def test_intervals_are_the_same_at_once_and_one_by_one(mode, texts):
    each = field("interval", interval_handling_mode=mode).to_json.each
    alone = [None if text is None else each(text) for text in texts]
    found = tokens("interval", texts, interval_handling_mode=mode)
    assert found == [None if one is None else one.decode() for one in alone]


@pytest.mark.parametrize("mode", ["bytes", "base64", "base64-url-safe", "hex"])
@MANY
@given(values=st.lists(st.none() | st.binary(max_size=9), max_size=8))
def test_bytea_is_the_same_at_once_and_one_by_one(mode, values):
    texts = [None if value is None else "\\x" + value.hex() for value in values]
    each = field("bytea", binary_handling_mode=mode).to_json.each
    alone = [None if text is None else each(text).decode() for text in texts]
    assert tokens("bytea", texts, binary_handling_mode=mode) == alone


@MANY
@given(
    st.lists(
        st.none() | st.text(st.sampled_from('a"\\\n\x01\x1f\x7fé\u2028\uffff😀'), max_size=5), max_size=8
    )
)
def test_strings_are_jacksons_at_once_and_one_by_one(texts):
    """Java escapes what JSON requires, with upper-case digits, and characters of two UTF-16 units."""
    found, each = tokens("text", texts), field("text").to_json.each
    assert found == [None if text is None else each(text).decode() for text in texts]
    for text, token in zip(texts, found, strict=True):
        if text is not None:
            pairs = [f"\\u{unit:04X}" for unit in (0xD83D, 0xDE00)]
            expected = json.dumps(text, ensure_ascii=False).replace("\\u001f", "\\u001F")
            assert token == expected.replace("😀", "".join(pairs))


def test_intervals_are_added_up_in_floating_point():
    assert tokens("interval", ["99999999:59:59.999"]) == ["359999999999999040"]


@pytest.mark.parametrize(
    ("kind", "text", "token"),
    [
        ("float4", "16777217", "1.6777216E7"),
        ("float4", "1.23456792e+08", "1.23456792E8"),
        ("float4", "1.06e+10", "1.05999995E10"),
        ("float4", "1.17549435e-38", "1.17549435E-38"),
        ("float8", "1.362e+22", "1.3619999999999999E22"),
        ("float8", "2e+23", "1.9999999999999998E23"),
        ("float8", "5.536980072350542e+18", "5.5369800723505418E18"),
        ("float8", "2.9802322387695312e-08", "2.9802322387695312E-8"),
    ],
)
def test_floats_have_the_digits_of_java_17_which_are_not_always_the_fewest(kind, text, token):
    assert tokens(kind, [text]) == [token]


@pytest.mark.parametrize("mode", ["precise", "string"])
def test_a_decimal_may_have_as_many_digits_as_the_server_allows(mode):
    [token] = tokens("numeric", ["9" * 100_000], decimal_handling_mode=mode)
    assert len(token) > 50_000


def test_decimals_may_be_numbers():
    modes = {"value_converter_decimal_format": "numeric"}
    assert tokens("numeric", ["1.50", "-0.01"], numeric(5, 2), **modes) == ["1.50", "-0.01"]
    assert tokens("numeric", ["0.0000000001"], numeric(12, 10), **modes) == ["1E-10"]


@pytest.mark.parametrize(
    ("kind", "typmod", "mode", "zero"),
    [
        ("numeric", numeric(6, 3), "string", '"0.000"'),
        ("numeric", -1, "string", '"0"'),
        ("point", -1, "precise", '{"x":0.0,"y":0.0,"wkb":"AQEAAAAAAAAAAAAAAAAAAAAAAAAA","srid":null}'),
    ],
)
def test_what_stands_for_a_required_value_that_was_not_sent(kind, typmod, mode, zero):
    assert field(kind, typmod, not_null=True, decimal_handling_mode=mode).absent.decode() == zero


def test_names_come_out_where_unknown_types_do():
    assert tokens("name", ["n"]) == [None]
    assert tokens("name", ["n"], include_unknown_datatypes=True) == ['"n"']


@pytest.mark.parametrize(
    ("kind", "typmod", "modes", "can_be"),
    [
        ("numeric", numeric(15, 2), {"decimal_handling_mode": "double"}, True),
        ("numeric", numeric(16, 2), {"decimal_handling_mode": "double"}, False),
        ("numeric", numeric(2, 5), {"decimal_handling_mode": "double"}, False),
        ("numeric", numeric(5, -2), {"decimal_handling_mode": "string"}, False),
        ("numeric", numeric(5, -2), {}, False),
        ("timestamp", 3, {"time_precision_mode": "connect"}, True),
        ("timestamp", 4, {"time_precision_mode": "connect"}, False),
        ("time", -1, {"time_precision_mode": "connect"}, False),
        ("timestamp", 0, {"debezium_version": "3.4", "time_precision_mode": "nanoseconds"}, False),
        ("bit", 9, {}, True),
        ("varbit", 9, {}, False),
    ],
)
def test_what_can_be_read_back_from_events(kind, typmod, modes, can_be):
    """A table is only made of events from which every value can be read back."""
    assert (field(kind, typmod, **modes).form["form"] is not None) == can_be


@pytest.mark.parametrize(
    ("precision", "scale", "loses"), [(38, 0, False), (39, 0, True), (2, 5, True), (5, 5, False)]
)
def test_a_nan_is_lost_unless_the_tables_decimal_could_not_hold_it_either(precision, scale, loses):
    assert (field("numeric", numeric(precision, scale)).loss is not None) == loses
