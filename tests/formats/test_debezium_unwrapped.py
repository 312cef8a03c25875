"""Rows as `ExtractNewRecordState` takes them out of events: cases that captured workloads don't contain."""

import json
import logging
from dataclasses import replace

import pytest
from batches import UNCHANGED, Stream, change, full, key_only, stamp, table
from debezium_tools import records, started

from pgcdc_cli.changes.slice import TruncateChange
from pgcdc_cli.changes.table import ColumnFacts, TableFacts
from pgcdc_cli.errors import ErrorKind, PgcdcError
from pgcdc_cli.formats import encoded_rows as few
from pgcdc_cli.formats.debezium import debezium_format, record
from pgcdc_cli.formats.debezium.debezium_format import DebeziumFormat
from pgcdc_cli.formats.debezium.properties import connector_config
from pgcdc_cli.lsn import Lsn

PLAIN = {
    "topic.prefix": "srv",
    "key.converter.schemas.enable": "false",
    "value.converter.schemas.enable": "false",
    "transforms": "unwrap",
    "transforms.unwrap.type": "io.debezium.transforms.ExtractNewRecordState",
}
TOPICS = "org.apache.kafka.connect.transforms.predicates.TopicNameMatches"
ROUTER = "org.apache.kafka.connect.transforms.RegexRouter"
ROUTED = {
    "transforms": "unwrap,route",
    "transforms.route.type": ROUTER,
    "transforms.route.regex": r"([^.]+)\.([^.]+)\.([^.]+)",
    "transforms.route.replacement": "lake_$3",
}
EVERYTHING = {
    "delete.tombstone.handling.mode": "rewrite-with-tombstone",
    "add.fields": "op,ts_ms,source.lsn,source.sequence,table,id,snapshot",
    "add.headers": "op,ts_ms,txId,schema",
    "route.by.field": "region",
}


def config(properties=(), **own):
    own = {name.replace("_", "."): value for name, value in own.items()}
    return connector_config(PLAIN | dict(properties) | {f"transforms.unwrap.{n}": v for n, v in own.items()})


@pytest.fixture
def items():
    schema = table({"id": "int4", "name": "text", "region": "text"}, name="items")
    columns = {"id": ColumnFacts(), "name": ColumnFacts("'none'::text"), "region": ColumnFacts()}
    return replace(schema, facts=TableFacts(("id",), None, columns))


@pytest.fixture
def stream(items):
    rows = [["1", 'a "b" %s é', "north"], ["2", None, None], ["3", UNCHANGED, " \t "], ["4", "", UNCHANGED]]
    whole = full([["5", "x", "south"], ["6", None, None]])
    return Stream(
        changes=[
            change(items, "I", [1, 2, 3, 4], rows),
            change(items, "U", [5, 6, 7, 8], rows),
            change(items, "D", [9, 10], old=whole),
            change(items, "D", [11], old=key_only([["7", None, None]], items)),
        ]
    )


@pytest.mark.parametrize("version", ["2.5", "3.4"])
@pytest.mark.parametrize("schemas", ["false", "true"])
@pytest.mark.parametrize("own", [EVERYTHING, {"delete.tombstone.handling.mode": "tombstone"}])
def test_a_few_rows_have_the_bytes_of_many(stream, monkeypatch, version, schemas, own):
    converters = {f"{which}.converter.schemas.enable": schemas for which in ("key", "value")}
    settings = config({**converters, "debezium.version": version}, **own)
    monkeypatch.setattr(debezium_format, "handled", lambda _: record.Handled(b"1", b"2", b"3"))

    def written():
        encoding = started(settings)
        encoding._context = replace(encoding._context, run_id="run")
        return [bytes(piece.data) for piece in encoding.encode(stream.slice()).pieces]

    one_by_one = written()
    monkeypatch.setattr(few, "FEW_ROWS", 0)
    assert written() == one_by_one
    assert one_by_one[0].count(b"\n") == (14 if own is EVERYTHING else 11)


def test_a_rows_topic_is_its_fields_value_unless_that_is_null_or_blank(stream):
    """Of a deleted row, too; its tombstone's is the table's."""
    mode = {"delete.tombstone.handling.mode": "rewrite-with-tombstone"}
    topics = [one["topic"] for one in records(stream, config(route_by_field="region", **mode))]
    table_topic = "srv.public.items"
    rows = ["north", table_topic, table_topic, "__debezium_unavailable_value"]
    assert topics == [*rows, *rows, "south", *[table_topic] * 5]


@pytest.mark.parametrize(("fills", "topic"), [("true", "west"), ("false", "srv.public.items")])
def test_a_default_is_the_topic_of_a_row_that_has_null_only_where_it_replaces_that(items, fills, topic):
    """A deleted row's is the table's in any case: its event has the null."""
    facts = replace(items.facts, columns=items.facts.columns | {"region": ColumnFacts("'west'::text")})
    items, row = replace(items, facts=facts), [["1", "a", None]]
    stream = Stream(changes=[change(items, "I", [1], row), change(items, "D", [2], old=full(row))])
    mode = {"delete.tombstone.handling.mode": "rewrite", "replace.null.with.default": fills}
    found = records(stream, config({"debezium.version": "3.4"}, route_by_field="region", **mode))
    assert [one["topic"] for one in found] == [topic, "srv.public.items"]


@pytest.mark.parametrize("rows", [2, 40])
def test_deletes_without_a_key_and_a_value_are_as_many_lines_as_rows(rows):
    """These lines differ in nothing but the time of processing."""
    keyless = replace(table({"v": "text"}, key=None), facts=TableFacts((), None, {"v": ColumnFacts()}))
    deletes = change(keyless, "D", list(range(1, rows + 1)), old=full([["x"]] * rows))
    found = records(Stream(changes=[deletes]), config(delete_handling_mode="none", add_headers="ts_ms"))
    assert [(one["key"], one["value"], list(one["headers"])) for one in found] == [
        (None, None, ["__ts_ms"])
    ] * rows


@pytest.mark.parametrize(
    ("version", "property_", "mode", "has_schema"),
    [
        ("2.5", "delete.handling.mode", "none", True),
        ("2.5", "delete.tombstone.handling.mode", "tombstone", True),
        ("3.4", "delete.tombstone.handling.mode", "tombstone", True),
        ("3.4", "delete.tombstone.handling.mode", "delete-to-tombstone", False),
    ],
)
def test_a_deleted_row_without_a_value_has_its_schema_all_the_same(
    items, version, property_, mode, has_schema
):
    """The row's own, without the fields that the transform adds."""
    settings = {"value.converter.schemas.enable": "true", "debezium.version": version}
    stream = Stream(changes=[change(items, "D", [1], old=key_only([["1", None, None]], items))])
    [found] = records(stream, config(settings, **{property_: mode, "add.fields": "op"}))
    value = found["value"]
    if not has_schema:
        assert value is None
        return
    assert value["payload"] is None
    assert [field["field"] for field in value["schema"]["fields"]] == ["id", "name", "region"]


def test_a_rewritten_row_has_its_default_whatever_the_converter_does(items):
    inserts = Stream(changes=[change(items, "I", [1], [["1", None, None]])])
    kept = {"value.converter.replace.null.with.default": "false"}
    for modes, name in (({}, None), ({"delete.handling.mode": "rewrite"}, "none")):
        [found] = records(inserts, config(kept, **modes))
        assert found["value"]["name"] == name


def test_values_alone_leave_out_deletes_without_a_value(stream):
    for mode, lines in (("none", 8), ("rewrite", 11)):
        [piece] = (
            started(config(delete_handling_mode=mode, drop_tombstones="false"), values_only=True)
            .encode(stream.slice())
            .pieces
        )
        assert bytes(piece.data).count(b"\n") == lines
        assert b"null\n" not in bytes(piece.data)


def test_truncates_have_no_record_and_count_all_the_same(items):
    truncate = TruncateChange(items, stamp(1), cascade=False, restart_identity=False)
    stream = Stream(truncates=[truncate], changes=[change(items, "I", [2], [["1", "a", "b"]])])
    counted = {"skipped.operations": "none", "provide.transaction.metadata": "true"}
    [found] = records(stream, config(counted, add_fields="total_order"))
    assert found["value"]["__total_order"] == 2


def test_a_transform_is_for_topics_that_its_predicate_finds(stream):
    named = {"transforms.unwrap.predicate": "p", "predicates": "p"}
    named["predicates.p.type"] = "org.apache.kafka.connect.transforms.predicates.TopicNameMatches"
    for pattern, negate, unwrapped in (
        ("srv.*", "false", True),
        ("SRV.*", "false", False),
        ("srv", "false", False),
        ("srv", "true", True),
    ):
        properties = named | {"predicates.p.pattern": pattern, "transforms.unwrap.negate": negate}
        assert ("source" not in records(stream, config(properties))[0]["value"]) == unwrapped


@pytest.mark.parametrize("names", ["unwrap,route", "route,unwrap", "route"])
def test_topics_are_renamed_before_or_behind_another_transform_and_schemas_are_not(stream, names):
    properties = ROUTED | {"transforms": names, "value.converter.schemas.enable": "true"}
    found = records(stream, config(properties, drop_tombstones="false"))
    assert {one["topic"] for one in found} == {"lake_items"}
    assert any(one["value"] is None for one in found)
    kept = {one["value"]["schema"]["name"] for one in found if one["value"] is not None}
    assert kept == {"srv.public.items.Value" if "unwrap" in names else "srv.public.items.Envelope"}


def test_a_topic_that_matches_only_in_part_keeps_its_name(stream):
    partly = {"transforms.route.regex": r"srv\.public", "transforms.route.replacement": "x"}
    found = records(stream, config(ROUTED | partly))
    assert {one["topic"] for one in found} == {"srv.public.items"}


def test_a_predicate_sees_the_name_that_the_transforms_before_it_gave(stream):
    named = {"transforms.unwrap.predicate": "p", "predicates": "p", "predicates.p.pattern": "lake_items"}
    for names, unwrapped in (("route,unwrap", True), ("unwrap,route", False)):
        properties = ROUTED | named | {"predicates.p.type": TOPICS, "transforms": names}
        assert ("source" not in records(stream, config(properties))[0]["value"]) == unwrapped


def test_heartbeats_are_renamed_too():
    pattern = {
        "transforms.route.regex": r"__debezium-heartbeat\.(.*)",
        "transforms.route.replacement": "beat-$1",
    }
    [line] = started(config(ROUTED | pattern)).heartbeat(Lsn(1)).pieces
    assert json.loads(bytes(line.data))["topic"] == "beat-srv"


def test_a_topic_that_is_taken_from_a_row_is_not_renamed(stream):
    with pytest.raises(PgcdcError, match="several transforms apply"):
        records(stream, config(ROUTED, route_by_field="region"))
    before = records(stream, config(ROUTED | {"transforms": "route,unwrap"}, route_by_field="region"))
    topics = {one["topic"] for one in before}
    assert {"north", "lake_items"} < topics
    assert "srv.public.items" not in topics


def test_a_table_is_transformed_once(stream):
    twice = {"transforms": "unwrap,more", "transforms.more.type": PLAIN["transforms.unwrap.type"]}
    with pytest.raises(PgcdcError, match=r"srv\.public\.items.*several") as error:
        records(stream, config(twice))
    assert error.value.kind is ErrorKind.USAGE


@pytest.mark.parametrize(
    ("own", "reason"),
    [
        ({"route_by_field": "nosuch"}, 'it has no column "nosuch"'),
        ({"route_by_field": "id"}, 'its column "id" is not text'),
        ({"add_fields": "source.lsn:name", "add_fields_prefix": ""}, 'the field "name" to "srv.public.items'),
    ],
)
def test_what_does_not_fit_a_table_is_a_usage_error(stream, own, reason):
    with pytest.raises(PgcdcError) as error:
        records(stream, config(**own))
    assert error.value.kind is ErrorKind.USAGE
    assert reason in error.value.message


@pytest.mark.parametrize(
    ("properties", "reason"),
    [
        ({"transforms.unwrap.type": "io.debezium.transforms.ByLogicalTableRouter"}, "ByLogicalTableRouter"),
        ({"transforms": "unwrap,route", "transforms.route.type": ROUTER}, "route.regex"),
        (ROUTED | {"transforms.route.replacement": "$4"}, "names a group that is not in regex"),
        ({"transforms": "unwrap,other"}, "without transforms.other.type"),
        ({"transforms.unwrap.add.fields": "before.id"}, "before.id"),
        ({"transforms.unwrap.add.fields": "source"}, '"source" is not a plain member'),
        ({"transforms.unwrap.add.fields": "op,source.op:op"}, '"__op" twice'),
        ({"transforms.unwrap.add.headers": "op:a:b"}, "MEMBER:NAME"),
        ({"transforms.unwrap.delete.handling.mode": "keep"}, "drop, none, rewrite"),
        ({"transforms.unwrap.delete.tombstone.handling.mode": "delete-to-tombstone"}, "3.4"),
        ({"transforms.unwrap.drop.tombstones": "maybe"}, "true nor false"),
        ({"transforms.unwrap.predicate": "p"}, "predicates.p.type"),
    ],
)
def test_what_is_not_supported_is_a_usage_error_that_names_it(properties, reason):
    with pytest.raises(PgcdcError) as error:
        config(properties)
    assert error.value.kind is ErrorKind.USAGE
    assert reason in error.value.message


def test_what_has_no_effect_is_a_warning(caplog):
    older = {"debezium.version": "3.4", "transforms.unwrap.drop.tombstones": "false"}
    with caplog.at_level(logging.WARNING, "pgcdc"):
        config(older | {"transforms.other.type": "x", "transforms.unwrap.add.field": "op"})
    other, *unknown = caplog.messages
    assert "transforms.other.type" in other
    assert sorted(message.split('"')[1] for message in unknown) == [
        "transforms.unwrap.add.field",
        "transforms.unwrap.drop.tombstones",
    ]


def test_a_directory_of_a_version_without_transforms_goes_on():
    plain = {name: value for name, value in PLAIN.items() if not name.startswith("transforms")}
    before = connector_config(plain)
    assert before.fingerprint == "ef7f234fe7e2f2a3"
    assert config().fingerprint != before.fingerprint
    assert config(add_fields="op").fingerprint != config().fingerprint


def test_schema_files_say_that_rows_alone_are_not_for_the_merge(stream):
    encoding = DebeziumFormat(config())
    encoding.restart("shop", None)
    [described] = encoding.encode(stream.slice()).tables
    assert [column["form"] for column in described.events["columns"].values()] == [None] * 3
