"""Events of an outbox, made by the transform `EventRouter`: cases that captured workloads don't contain."""

import json
import logging
from dataclasses import replace

import hypothesis
import pytest
from batches import Stream, change, full, table
from debezium_tools import records, started
from hypothesis import strategies as st

from pgcdc_cli.changes.table import ColumnFacts, TableFacts
from pgcdc_cli.errors import ErrorKind, PgcdcError
from pgcdc_cli.formats import encoded_rows as few
from pgcdc_cli.formats.debezium import transformed_records
from pgcdc_cli.formats.debezium.connector_config import EventRouter
from pgcdc_cli.formats.debezium.outbox import Expansion, columnar
from pgcdc_cli.formats.debezium.properties import connector_config
from pgcdc_cli.formats.debezium.types.kind import NULL
from pgcdc_cli.formats.debezium.types.texts import JSONB
from pgcdc_cli.formats.debezium.unwrapped import by_distinct
from pgcdc_cli.types import kernels

PLAIN = {
    "topic.prefix": "srv",
    "key.converter.schemas.enable": "false",
    "value.converter.schemas.enable": "false",
    "transforms": "outbox",
    "transforms.outbox.type": "io.debezium.transforms.outbox.EventRouter",
}


def config(properties=(), **own):
    own = {name.replace("_", "."): value for name, value in own.items()}
    return connector_config(PLAIN | dict(properties) | {f"transforms.outbox.{n}": v for n, v in own.items()})


@pytest.fixture
def outbox():
    columns = dict.fromkeys(("id", "aggregatetype", "aggregateid", "type", "payload"), "text")
    schema = table(columns | {"version": "int4"}, name="outbox")
    facts = {name: ColumnFacts() for name in (*columns, "version")}
    return replace(schema, facts=TableFacts(("id",), None, facts))


ROWS = [
    ["1", "order", "a", "t", '{"n": 1, "deep": [{"x": null}, {"y": 1.5}]}', "3"],
    ["2", 'or"der', "b", "t", '{"n": "\\u00e9"}', "3"],
    ["3", None, None, None, None, None],
    ["4", "order", "d", "t", " \t", "4"],
    ["5", "order", "e", "t", "plain %s", None],
]


@pytest.fixture
def stream(outbox):
    return Stream(changes=[change(outbox, "I", [1, 2, 3, 4, 5], ROWS)])


@pytest.mark.parametrize("schemas", ["false", "true"])
@pytest.mark.parametrize(
    "own",
    [
        {},
        {"route.tombstone.on.empty.payload": "true", "table.expand.json.payload": "true"},
        {
            "table.fields.additional.placement": "type:envelope,version:header:v",
            "table.field.event.schema.version": "version",
            "table.expand.json.payload": "true",
            "table.json.payload.null.behavior": "optional_bytes",
        },
    ],
)
def test_a_few_rows_have_the_bytes_of_many(stream, monkeypatch, schemas, own):
    settings = config({f"{which}.converter.schemas.enable": schemas for which in ("key", "value")}, **own)

    def written():
        return [bytes(piece.data) for piece in started(settings).encode(stream.slice()).pieces]

    one_by_one = written()
    assert all(json.loads(line) for line in one_by_one[0].splitlines())
    monkeypatch.setattr(few, "FEW_ROWS", 0)
    assert written() == one_by_one


def test_a_schema_has_no_version_where_the_row_has_none(outbox):
    outbox.facts.columns["version"] = ColumnFacts("7")
    own = {
        "table.field.event.schema.version": "version",
        "table.fields.additional.placement": "type:envelope",
    }
    settings = config({"value.converter.schemas.enable": "true"}, **own)
    rows = Stream(changes=[change(outbox, "I", [1, 5], [ROWS[0], ROWS[4]])])
    schemas = [record["value"]["schema"] for record in records(rows, settings)]
    assert [schema.get("version") for schema in schemas] == [3, None]
    assert "version" not in schemas[1]


def test_a_key_is_written_as_the_keys_converter_says():
    columns = dict.fromkeys(("id", "aggregatetype"), "text")
    outbox = table(columns | dict.fromkeys(("aggregateid", "payload"), "money"), name="outbox")
    rows = Stream(changes=[change(outbox, "I", [1], [["1", "order", "$1.50", "$1.50"]])])
    [record] = records(rows, config({"value.converter.decimal.format": "numeric"}))
    assert (record["key"], record["value"]) == ("AJY=", 1.5)
    [record] = records(rows, config({"key.converter.decimal.format": "numeric"}))
    assert (record["key"], record["value"]) == (1.5, "AJY=")


def test_topics_are_what_the_replacement_makes_of_the_route(stream):
    own = {"route.topic.regex": '(?<one>o)(r)("?).*', "route.topic.replacement": r"\$${one}-$2$12$3"}
    found = [record["topic"] for record in records(stream, config(**own))]
    assert found == ["$o-ro2", '$o-ro2"', "", "$o-ro2", "$o-ro2"]


def test_a_group_in_the_replacement_ends_before_digits_that_make_it_another():
    own = {"route.topic.regex": "(.*)", "route.topic.replacement": "$1" + "0" * 5000}
    [router] = config(**own).transforms
    assert isinstance(router, EventRouter)
    assert router.topic("orders") == "orders" + "0" * 5000


@pytest.mark.parametrize(("payload", "value"), [(" \t\x1f", None), ("\u00a0", "\u00a0")])
def test_a_payload_of_what_java_trims_is_a_tombstone_if_that_is_asked_for(outbox, payload, value):
    stream = Stream(changes=[change(outbox, "I", [1], [["1", "order", "a", "t", payload, "3"]])])
    [found] = records(stream, config(**{"route.tombstone.on.empty.payload": "true"}))
    assert found["value"] == value


@pytest.mark.parametrize("level", ["warn", "error"])
def test_other_changes_than_inserts_are_left_out_and_updates_are_said_once(outbox, caplog, level):
    transformed_records._refuse.cache_clear()
    whole = full(ROWS[:1])
    changes = [change(outbox, "D", [2], old=whole), *(change(outbox, "U", [i], ROWS[:1]) for i in (3, 4))]
    with caplog.at_level(logging.WARNING, "pgcdc"):
        assert records(Stream(changes=changes), config(debezium_op_invalid_behavior=level)) == []
    [said] = caplog.records
    assert "srv.public.outbox" in said.message
    assert said.levelname == {"warn": "WARNING", "error": "ERROR"}[level]


def test_an_update_is_the_end_where_that_is_asked_for(outbox):
    updates = Stream(changes=[change(outbox, "U", [1], ROWS[:1])])
    with pytest.raises(PgcdcError, match=r"an update of .srv\.public\.outbox") as error:
        records(updates, config(debezium_op_invalid_behavior="fatal"))
    assert error.value.kind is ErrorKind.USAGE


@pytest.mark.parametrize(
    ("own", "reason"),
    [
        ({"table.field.event.payload": "body"}, '"srv.public.outbox": it has no column "body"'),
        ({"table.field.event.timestamp": "at"}, 'no column "at"'),
        ({"table.fields.additional.placement": "nosuch:header"}, 'no column "nosuch"'),
        ({"route.by.field": "version"}, '"version" is not text'),
        (
            {
                "table.field.event.schema.version": "type",
                "table.fields.additional.placement": "id:envelope",
            },
            '"type" is not an integer',
        ),
    ],
)
def test_a_table_that_is_no_outbox_is_a_usage_error(stream, own, reason):
    with pytest.raises(PgcdcError) as error:
        records(stream, config({"value.converter.schemas.enable": "true"}, **own))
    assert error.value.kind is ErrorKind.USAGE
    assert reason in error.value.message


@pytest.mark.parametrize(
    ("own", "reason"),
    [
        ({"table.fields.additional.placement": "a:body"}, '"a:body" is not COLUMN:header'),
        ({"table.fields.additional.placement": "a"}, '"a" is not'),
        ({"table.fields.additional.placement": "a:envelope:payload"}, 'makes "payload" twice'),
        ({"table.fields.additional.placement": "a:envelope:n,b:envelope:n"}, 'makes "n" twice'),
        ({"route.topic.regex": "("}, "be used as a regular expression"),
        ({"route.topic.replacement": "${other}"}, "a group that is not in"),
        ({"route.topic.replacement": "$7"}, "a group that is not in"),
        ({"debezium.op.invalid.behavior": "ignore"}, "warn, error, fatal"),
        (
            {"route.tombstone.on.empty.payload": "true", "table.fields.additional.placement": "a:envelope"},
            "together with a column that is placed in the envelope",
        ),
    ],
)
def test_what_is_not_supported_is_a_usage_error_that_names_it(own, reason):
    with pytest.raises(PgcdcError) as error:
        config(**own)
    assert error.value.kind is ErrorKind.USAGE
    assert reason in error.value.message


@pytest.mark.parametrize(
    "text",
    ["[1]", "1", " {}", '{"a"', '{"a": [1, "x"]}', '{"a": [1, 2147483648]}', '{"a": [[]]}', '{"a": [null]}',
     '{"a": NaN}', '{"a": 1e999}', '{"a": 9223372036854775808}', '{"a": [{"b": 1}, {"b": "x"}]}',
     '{"": 1}', '{"a": {"": 1}}', '{"a": [{"": 1}]}', '{"a": ' * 5000 + "1" + "}" * 5000],
    ids=lambda text: text[:40],
)  # fmt: skip
def test_what_no_schema_describes_stays_text(text):
    assert Expansion("payload", nulls=False, unnamed="").expand(text) is None


@pytest.mark.parametrize(
    ("number", "type_"),
    [(-(2**31), "int32"), (-(2**31) - 1, "int64"), (2**31, "int64"), (-(2**63), "int64")],
)
def test_a_number_has_the_smallest_type_that_holds_it(number, type_):
    schema, token = Expansion("payload", nulls=False, unnamed="").expand(f'{{"a": {number}}}')
    assert (schema["fields"][0]["type"], token.decode()) == (type_, f'{{"a":{number}}}')


@pytest.mark.parametrize("text", ['{"a":[{"b":null},{"b":1}]}', '{"a":[{"b":1},{"b":null}]}'])
def test_a_null_has_the_type_that_the_member_has_elsewhere_in_the_array(text):
    schema, token = Expansion("payload", nulls=True, unnamed="").expand(text)
    [member] = schema["fields"][0]["items"]["fields"]
    assert (member["type"], token.decode()) == ("int32", text)


@pytest.mark.parametrize("text", ['{"a": 1} x', '{"a": 1}{"b": 2}', '{"": null, "a": 1}', '{"": [], "a": 1}'])
def test_what_follows_an_object_or_is_left_out_does_not_keep_it_from_being_expanded(text):
    _, token = Expansion("payload", nulls=False, unnamed="").expand(text)
    assert token == b'{"a":1}'


def test_a_member_without_a_name_keeps_its_null_from_being_expanded():
    assert Expansion("payload", nulls=True, unnamed="").expand('{"": null}') is None


ODD_NUMBERS = [
    "0",
    "-1",
    "0.0",
    "1.0",
    "1.50",
    "20.00",
    "0.001",
    "0.0001",
    "-0.00012",
    "9999999.5",
    "10000000.5",
]
ODD_NUMBERS += [
    "2147483648",
    "9223372036854775808",
    "1.2345678",
    "1.12345678901234567",
    "0.1000000000000000055",
]
NUMBERS = st.integers(-(10**20), 10**20).map(str) | st.sampled_from(ODD_NUMBERS)
TEXTS = st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\0"), max_size=6)
TEXTS = TEXTS.map(lambda text: json.dumps(text, ensure_ascii=False))
TEXTS |= st.sampled_from(['": 1.0,"', '"a, b: c"', '"null"', '"é"', '"😀"', '"{{{"', '"\\u0001"'])
MEMBERS = st.recursive(
    st.one_of(NUMBERS, TEXTS, st.sampled_from(["true", "false", "null"])),
    lambda inner: st.one_of(st.lists(inner, max_size=3), st.dictionaries(TEXTS, inner, max_size=3)),
    max_leaves=8,
)


def printed(value):
    """Print as jsonb_out does, except for the order of members."""
    if isinstance(value, dict):
        return "{" + ", ".join(f"{name}: {printed(member)}" for name, member in value.items()) + "}"
    return "[" + ", ".join(map(printed, value)) + "]" if isinstance(value, list) else value


@hypothesis.given(
    st.lists(st.dictionaries(TEXTS, MEMBERS, max_size=4).map(printed) | st.none()), st.booleans()
)
@hypothesis.example(['{"": 1}', '{"a": ""}', '{"a": {"": true}}'], False)
@hypothesis.example([f'{{"n": {number}}}' for number in ODD_NUMBERS], True)
@hypothesis.example(['{"a": 1.50, "b": 1}'], True)
@hypothesis.example(['{"a": ' * 120 + "1" + "}" * 120, '{"a": 1}'], True)
@hypothesis.example(['{"a": ' * 700 + "1" + "}" * 700, '{"a": 1}'], True)
def test_jsonb_is_expanded_as_a_column_as_it_is_one_by_one(payloads, nulls):
    expansion = Expansion("payload", nulls=nulls, unnamed="")

    def expanded(found):
        parts = None if found == NULL else expansion.expand(json.loads(found))
        return found if parts is None else parts[1]

    one_by_one = by_distinct(JSONB, expanded)
    values = kernels.binary(payloads)
    assert columnar(one_by_one, nulls=nulls)(values).to_pylist() == one_by_one(values).to_pylist()
