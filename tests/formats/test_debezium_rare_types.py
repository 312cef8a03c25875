"""Rare types, as a real Debezium 2.5.4 writes them."""

import base64
import json
from dataclasses import replace

import pytest
from batches import Stream, change, table
from debezium_tools import OIDS, numeric, records
from hypothesis import given, settings
from hypothesis import strategies as st

from pgcdc_cli.changes.table import ColumnFacts, TableColumn
from pgcdc_cli.formats.debezium.connector_config import ConnectorConfig
from pgcdc_cli.formats.debezium.types.kind import Field, single_token
from pgcdc_cli.formats.debezium.types.registry import field_for
from pgcdc_cli.types import kernels
from pgcdc_cli.types.pg_type import PgType, builtin

HSTORE = PgType(20001, -1, "hstore", "other")
CITEXT = PgType(20002, -1, "citext", "other")


def of_type(type_: PgType | str, declared: str = "", default: str | None = None, **modes) -> Field | None:
    found = builtin(OIDS[type_], -1) if isinstance(type_, str) else type_
    column = TableColumn.of("v", found, in_replica_identity=False)
    column = replace(column, declared=declared or found.name)
    return field_for(column, ColumnFacts(default), ConnectorConfig(topic_prefix="srv", **modes))


def shown(field: Field | None, *texts: str) -> list[str]:
    assert field is not None
    return [token.decode() for token in kernels.as_binary(field.to_json(kernels.binary(texts))).to_pylist()]


def array_of(element: PgType, oid: int) -> PgType:
    return PgType(oid, -1, f"{element.name}[]", "array", element)


@pytest.mark.parametrize(
    ("element", "declared"),
    [(CITEXT, "email[]"), (CITEXT, 'other."E mail"[]'), (builtin(600, -1), "place[]")],
)
def test_arrays_of_domains_are_unknown_whatever_the_domain_is_over(element, declared):
    type_ = array_of(element, 20010)
    assert of_type(type_, declared) is None
    known = of_type(type_, declared, include_unknown_datatypes=True)
    assert known.schema["items"] == {"type": "bytes", "optional": False}
    # The element's own text (1,2), not as the driver prints points: (1.0,2.0).
    assert shown(known, '{"(1,2)"}') == ['["KDEsMik="]']


def test_arrays_of_an_extensions_type_are_known():
    field = of_type(array_of(CITEXT, 20010), "citext[]")
    assert shown(field, "{A,b}") == ['["A","b"]']


@pytest.mark.parametrize(
    ("name", "text", "written"),
    [
        (
            "vector",
            "[0.1,1e-45,3.4028235e+38,-0,1.2345679e+08]",
            "[0.1,1.0E-45,3.4028235E38,-0.0,1.2345679E8]",
        ),
        ("halfvec", "[65504,0.099975586,5.9604645e-08]", "[65504.0,0.099975586,5.9604645E-8]"),
        ("sparsevec", "{1:1.5,3:-1e-07}/5", '{"dimensions":5,"vector":[[1,1.5],[3,-1.0E-7]]}'),
        ("sparsevec", "{}/32767", '{"dimensions":32767,"vector":[]}'),
        ("sparsevec", "{1:1}/32768", None),
    ],
)
def test_vectors_of_pgvector_are_known_in_newer_versions(name, text, written):
    """By column and one by one, as a real Debezium 3.4.3 writes them."""
    type_ = PgType(20003, -1, name, "other")
    field = of_type(type_, debezium_version="3.4")
    column = field.to_json(kernels.binary([text, None, text])).to_pylist()
    expected = None if written is None else written.encode()
    assert column == [expected, None, expected]
    assert single_token(field.to_json, text.encode()) == expected
    assert of_type(type_) is None
    unknown = of_type(type_, include_unknown_datatypes=True)
    assert shown(unknown, text) == [f'"{base64.b64encode(text.encode()).decode()}"']


def test_vectors_are_arrays_without_elements():
    assert of_type("int2vector").schema["items"] == {"type": "int16", "optional": False}
    assert shown(of_type("oidvector"), "1 2") == ["[]"]
    arrays = of_type("int2vector[]")
    assert arrays.to_json(kernels.binary(['{"1 2"}', "{}"])).to_pylist() == [None, b"[]"]


@pytest.mark.parametrize("kind", ["refcursor[]", "money[]", "xml[]"])
def test_some_arrays_are_left_out_even_where_unknown_types_are_not(kind):
    assert of_type(kind, include_unknown_datatypes=True) is None


@pytest.mark.parametrize(
    ("kind", "text", "written"),
    [
        ("uuid[]", "{{NULL}}", '["[Ljava.lang.String;@0"]'),
        (array_of(PgType(20020, -1, "mood", "enum"), 20021), "{{a},{b}}", '["J","J"]'),
        (array_of(CITEXT, 20010), "{{a},{b}}", "[null,null]"),
        ("numeric[]", "{{1},{2}}", "[null,null]"),
        ("numeric[]", "{{1},{NaN}}", None),
        ("xid[]", "{{1}}", None),
        ("text[]", r"""{{"\"{"},{"{"}}""", '["J","J"]'),
    ],
)
def test_an_array_within_an_array_is_null_or_the_address_of_an_object(kind, text, written):
    """By column and one by one."""
    to_json = of_type(kind, include_unknown_datatypes=True).to_json
    expected = written and written.replace('"J"', '"[Ljava.lang.String;@0"').encode()
    assert to_json(kernels.binary([text, "{}", text])).to_pylist() == [expected, b"[]", expected]
    assert single_token(to_json, text.encode()) == expected


BOX = f'"{base64.b64encode(b"(2.0,2.0),(1.0,1.0)").decode()}"'
LTREE = PgType(20004, -1, "ltree", "other")
NEWER_ISO = {"debezium_version": "3.4", "time_precision_mode": "isostring"}


@pytest.mark.parametrize(
    ("kind", "modes", "text", "written"),
    [
        ("int8[]", {}, "[-1:0]={5,6}", "[5,6]"),
        ("numeric[]", {}, "{1,NaN}", None),
        ("xid[]", {}, "{1,NULL}", None),
        (array_of(LTREE, 20030), {}, "{a.b,NULL}", None),
        (
            "box[]",
            {},
            "{(2,2),(1,1);(4,4),(3,3)}",
            '["KDIuMCwyLjApLCgxLjAsMS4wKQ==","KDQuMCw0LjApLCgzLjAsMy4wKQ=="]',
        ),
        ("time[]", NEWER_ISO, "{10:11:12.0001}", '["10:11:12Z"]'),
    ],
)
def test_what_the_driver_makes_of_arrays_by_column_and_one_by_one(kind, modes, text, written):
    field = of_type(kind, include_unknown_datatypes=True, **modes)
    expected = written and written.encode()
    assert field.to_json(kernels.binary([text, "{}", text])).to_pylist() == [expected, b"[]", expected]
    assert single_token(field.to_json, text.encode()) == expected


def literals(*elements: str) -> st.SearchStrategy[list[str | None]]:
    """Arrays of these elements, as the server prints them, and some that are null or have two dimensions."""
    one = st.lists(st.sampled_from(elements), max_size=4).map(",".join).map("{{{}}}".format)
    return st.lists(st.none() | one | st.just(f"{{{{{elements[0]}}}}}") | st.just(f"[0:0]={{{elements[0]}}}"))


@pytest.mark.parametrize(
    ("kind", "texts"),
    [
        ("int4[]", literals("0", "-12", "NULL", "2147483647")),
        ("text[]", literals("a", "NULL", '""', '"NULL"', '"b, c"', '"{"', "é", "[")),
        ("text[]", literals("a", '"\\""', '"\\\\"', '"\n"', '"😀"')),
        ("varchar[]", literals("ab", "NULL") | st.lists(st.none() | st.just('{a,"b c"}'))),
    ],
)
@settings(deadline=None, max_examples=100)
@given(data=st.data())
def test_arrays_are_the_same_at_once_and_one_by_one(kind, texts, data):
    column, to_json = data.draw(texts), of_type(kind).to_json
    alone = [None if text is None else to_json.each(text) for text in column]
    assert to_json(kernels.binary(column)).to_pylist() == alone
    for token in filter(None, alone):
        assert isinstance(json.loads(token), list)


def test_times_with_a_zone_lose_their_fraction_in_arrays_only():
    assert shown(of_type("timetz"), "10:11:12.5+01") == ['"09:11:12.5Z"']
    assert shown(of_type("timetz[]"), "{10:11:12.5+01}") == ['["09:11:12Z"]']


def test_the_beginning_of_time_is_the_drivers_constant_in_arrays():
    field = of_type("timestamptz[]")
    assert shown(field, "{infinity,-infinity}") == ['["infinity","+292269055-12-02T23:00:00.000000Z"]']


def test_the_json_in_an_hstores_text_has_no_escapes_but_those_of_json():
    field = of_type(HSTORE)
    assert json.loads(shown(field, '"k"=>"😀\x01\\""')[0]) == '{"k":"😀\\u0001\\""}'


@pytest.mark.parametrize(
    ("keys", "order"), [("jklmnopqrstu", "pqrstujklmno"), ("jklmnopqrstuv", "jklmnopqrstuv")]
)
def test_an_hstores_keys_have_the_order_of_a_hash_map_which_grows_beyond_twelve(keys, order):
    [found] = shown(of_type(HSTORE, hstore_handling_mode="map"), ", ".join(f'"{key}"=>"1"' for key in keys))
    assert "".join(json.loads(found)) == order


def test_an_hstore_that_may_not_be_null_is_empty_where_it_is_not_sent():
    column = replace(TableColumn.of("v", HSTORE, in_replica_identity=False), not_null=True)
    assert field_for(column, None, ConnectorConfig(topic_prefix="srv")).absent == b'"{}"'


@pytest.mark.parametrize(
    ("mode", "zero"), [("string", b'"0.000"'), ("double", b"0.0"), ("precise", b'"AA=="')]
)
def test_money_that_may_not_be_null_is_zero_where_it_is_not_sent(mode, zero):
    """As 3.4.3 writes it; 2.5.4 stops."""
    column = replace(
        TableColumn.of("v", builtin(OIDS["money"], -1), in_replica_identity=False), not_null=True
    )
    config = ConnectorConfig(topic_prefix="srv", money_fraction_digits=3, decimal_handling_mode=mode)
    assert field_for(column, None, config).absent == zero


def test_placeholders_of_arrays_are_of_signed_bytes_as_javas():
    placeholder = {"unavailable_value_placeholder": "ü"}
    assert of_type("int4[]", **placeholder).unavailable == b"[-61,-68]"


def test_days_in_connect_mode_have_no_placeholder_in_arrays():
    assert json.loads(of_type("date[]").unavailable)[:2] == [95, 95]
    assert of_type("date[]", time_precision_mode="connect").unavailable == b"null"


@pytest.mark.parametrize(
    ("digits", "values"),
    [
        (0, [2, -1, 92233720368547758]),
        (3, [1500, -500, 92233720368547758070]),
        (30, [15 * 10**29, -5 * 10**29, 9223372036854775807 * 10**28]),
    ],
)
def test_money_is_rounded_to_the_digits_that_the_configuration_has(digits, values):
    field = of_type("money", money_fraction_digits=digits)
    octets = shown(field, "$1.50", "-$0.50", "$92,233,720,368,547,758.07")
    found = [int.from_bytes(base64.b64decode(token), "big", signed=True) for token in octets]
    assert found == values


@pytest.mark.parametrize(
    ("digits", "printed", "amount"),
    [
        (2, "1.234,50 €", "1234.50"),
        (2, "-7,00 €", "-7.00"),
        (2, "1\u202f234\u202f567,89 €", "1234567.89"),
        (2, "CHF- 1\u2019234.50", "-1234.50"),
        (2, "kr. 7,00", "7.00"),
        (2, "(12.345.678,90 Kč)", "-12345678.90"),
        (2, "￥1,235", "1235"),
        (2, "￥1,234,567", "1234567"),
        (2, "د.ت. 1,234.500", "1234.500"),
        (2, "د.ت. 7.000", "7.000"),
        (3, "7,000 Lekë", "7.000"),
        (0, "1.235 ₫", "1235"),
        (0, "￥7", "7"),
    ],
)
def test_money_is_read_as_any_locale_prints_it(digits, printed, amount):
    field = of_type("money", money_fraction_digits=digits, decimal_handling_mode="string")
    assert shown(field, printed) == [f'"{amount}"']
    column = TableColumn.of("v", builtin(OIDS["money"], -1), in_replica_identity=False)
    config = ConnectorConfig(topic_prefix="srv", money_fraction_digits=digits, decimal_handling_mode="double")
    read = field_for(column, None, config, snapshot=True)
    assert [float(one) for one in shown(read, printed)] == [float(amount)]


def test_an_intervals_seconds_went_through_floating_point():
    in_words = of_type("interval", interval_handling_mode="string")
    found = shown(in_words, "-00:06:13.601235", "-06:03:01.999999", "00:00:01.5", "00:00:10")
    assert found == [
        '"P0Y0M0DT0H-6M-13.601234999S"',
        '"P0Y0M0DT-6H-3M-1.999998999S"',
        '"P0Y0M0DT0H0M1.5S"',
        '"P0Y0M0DT0H0M10S"',
    ]


def test_an_interval_too_long_to_be_counted_is_the_longest_that_can_be():
    found = shown(of_type("interval"), "178000000 years", "-178000000 years")
    assert found == ["9223372036854775807", "-9223372036854775808"]


def test_an_infinite_interval_has_no_parts():
    assert shown(of_type("interval"), "infinity", "-infinity") == ["0", "0"]
    in_words = of_type("interval", interval_handling_mode="string")
    assert shown(in_words, "infinity") == ['"P0Y0M0DT0H0M0S"']
    assert "infinity" in in_words.loss.pattern


def test_a_key_of_types_that_are_left_out_is_empty_but_there():
    schema = table({"id": "tsvector", "n": "int4"})
    stream = Stream(changes=[change(schema, "I", [1], [["a", "1"]])])
    [found] = records(stream, ConnectorConfig(topic_prefix="srv"))
    key = found["key"]
    assert key["payload"] == {}
    assert key["schema"]["name"] == "srv.public.orders.Key"


@pytest.mark.parametrize(
    ("kind", "default", "token"),
    [
        (
            "timestamptz",
            "'2020-02-29 10:11:12'::timestamp without time zone",
            b'"2020-02-29T10:11:12.000000Z"',
        ),
        ("timestamptz", "'2020-02-29'::date", b'"2020-02-29T00:00:00.000000Z"'),
        ("timestamptz", "'0044-03-15 00:00:00 BC'::timestamp", b'"-0043-03-15T00:00:00.000000Z"'),
        ("timestamp", "'2020-02-29'::date", b"1582934400000000"),
        ("timestamp", "'2020-02-29 10:11:12.5+00'::timestamp with time zone", b"1582971072500000"),
        ("time", "('10:11'::text)::time without time zone", b"36660000000"),
    ],
)
def test_defaults_of_another_temporal_type_are_read_as_moments_of_utc(kind, default, token):
    assert of_type(kind, default=default).schema["default"] == token


@pytest.mark.parametrize(
    ("literal", "digits", "shown_as"),
    [
        ("2020-02-29 10:11:12.5-11", 0, "2020-02-29T21:11:12.5Z"),
        ("2020-02-29 10:11:12.120400+00", 0, "2020-02-29T10:11:12.1204Z"),
        ("2020-02-29 10:11:12.120400+00", 3, "2020-02-29T10:11:12.120Z"),
        ("2020-02-29 10:11:12.120400+00", 1, "2020-02-29T10:11:12.1Z"),
        ("2020-02-29 10:11:12.5+00", 3, "2020-02-29T10:11:12.500Z"),
        ("2020-02-29 10:11:12+00", 0, "2020-02-29T10:11:12Z"),
        ("2020-02-29 10:11:12.000+00", 0, "2020-02-29T10:11:12Z"),
    ],
)
def test_a_default_keeps_more_digits_than_its_column_has_only_where_that_has_none(literal, digits, shown_as):
    field = of_type(builtin(OIDS["timestamptz"], digits), default=f"'{literal}'::timestamp with time zone")
    assert json.loads(field.schema["default"]) == shown_as


def test_a_default_may_have_more_digits_than_pythons_decimals():
    type_, whole = builtin(OIDS["numeric"], numeric(66, 14)), 4 * "8165161584"
    field = of_type(type_, default=f"{whole}.19385920921", decimal_handling_mode="string")
    assert json.loads(field.schema["default"]) == f"{whole}.19385920921000"
