"""What masks, filters and skipped operations do to events.

The expected events are from a real Debezium 2.5.4, see in tests/golden_more `types_mask*`,
`structure_skipped*`, `structure_key_left_out`, `structure_nothing_included` and `structure_message_topic`.
"""

import hashlib
from dataclasses import replace
from typing import Any

import pytest
from batches import Stream, change, full, key_only, stamp, table
from debezium_tools import records, started

from pgcdc_cli.changes.slice import MessageChange, TransactionBoundary, TruncateChange
from pgcdc_cli.changes.table import ColumnFacts, TableFacts, TableSchema
from pgcdc_cli.errors import PgcdcError
from pgcdc_cli.formats.debezium.connector_config import ConnectorConfig
from pgcdc_cli.formats.debezium.properties import connector_config

TYPES = {"id": "text", "name": "text", "note": "text", "number": "int4"}


def config(**more: str) -> ConnectorConfig:
    return connector_config({"topic.prefix": "srv", "key.converter.schemas.enable": "false", **more})


@pytest.fixture
def people() -> TableSchema:
    schema = table(TYPES, name="people")
    facts = TableFacts(("id",), None, {name: ColumnFacts() for name in TYPES})
    required = tuple(replace(c, not_null=c.name in {"id", "name"}) for c in schema.columns)
    return replace(schema, columns=required, facts=facts)


def after(schema: TableSchema, row: list[str | None], **properties: str) -> dict[str, Any]:
    [found] = records(Stream(changes=[change(schema, "I", [1], [row])]), config(**properties))
    return found["value"]["payload"]["after"]


def parameters(schema: TableSchema, **properties: str) -> dict[str, Any]:
    stream = Stream(changes=[change(schema, "I", [1], [["1", "a", "b", "2"]])])
    [found] = records(stream, config(**properties))
    row = found["value"]["schema"]["fields"][1]["fields"]
    return {field["field"]: field.get("parameters") for field in row}


ROW = ["k", "hellö", None, "7"]


def test_a_mask_stands_for_nulls_too_and_leaves_numbers_alone(people):
    masked = {"column.mask.with.3.chars": "public.people.(name|note|number)"}
    assert after(people, ROW, **masked) == {"id": "k", "name": "***", "note": "***", "number": 7}


def test_a_mask_is_told_by_the_schema_even_where_it_does_nothing(people):
    found = parameters(people, **{"column.mask.with.3.chars": "public.people.(name|number)"})
    assert found == {"id": None, "name": {"masked": "true"}, "note": None, "number": {"masked": "true"}}


def test_a_mask_hides_what_the_server_did_not_send(people):
    stream = Stream(changes=[change(people, "D", [1], old=key_only([["k", None, None, None]], people))])
    deleted, _ = records(stream, config(**{"column.mask.with.2.chars": ".*.name,.*.note"}))
    assert deleted["value"]["payload"]["before"] == {"id": "k", "name": "**", "note": "**", "number": None}


def test_the_key_is_never_masked(people):
    old = full([["one", "a", "b", "1"]])
    stream = Stream(changes=[change(people, "U", [1], [["two", "a", "b", "1"]], old)])
    found = records(stream, config(**{"column.mask.with.3.chars": "public.people.id"}))
    assert [record["key"] for record in found] == [{"id": "one"}, {"id": "one"}, {"id": "two"}]
    assert found[2]["value"]["payload"]["after"]["id"] == "***"
    assert found[2]["headers"] == {"__debezium.oldkey": {"id": "one"}}


def test_the_older_hash_is_of_the_serialised_string(people):
    """`ObjectOutputStream` writes a header, the tag of a short string, its length, its bytes."""
    text = "hellö".encode()
    serialised = b"\xac\xed\x00\x05\x74" + len(text).to_bytes(2, "big") + text
    found = after(people, ROW, **{"column.mask.hash.SHA-256.with.salt.pepper": ".*.name"})
    assert found["name"] == hashlib.sha256(b"pepper" + serialised).hexdigest()
    newer = after(people, ROW, **{"column.mask.hash.v2.SHA-256.with.salt.pepper": ".*.(name|note)"})
    assert newer["name"] == hashlib.sha256(b"pepper" + text).hexdigest()
    assert newer["note"] is None


@pytest.mark.parametrize(
    ("names", "digest"),
    [
        (("SHA-512/256", "sha512/256"), "b701e6b0cb8b275e23acb74f76d872e1c5a06e71fc1c77b806d9931b700069f2"),
        (("SHA-512/224", "SHA512/224"), "ee4de5d1396d9219ce893aa993cbbfccbf70555cc3cde5d249a95669"),
        (("SHA-256", "SHA256"), "a6832b95168dc247d8395dab2d18f2ba5b7b1d92824acba4d4b9b7c72c2740be"),
        (("SHA-224", "SHA224"), "8da25eb340b55f784b4b219da627b7ae249dae829bfc8e2326f33a1a"),
    ],
)
def test_an_algorithm_has_the_names_that_java_knows_it_by(people, names, digest):
    for name in names:
        found = after(people, ["k", "x", None, "7"], **{f"column.mask.hash.{name}.with.salt.s": ".*.name"})
        assert found["name"] == digest


@pytest.mark.parametrize(
    ("size", "head"), [(65_535, b"\x74\xff\xff"), (65_536, b"\x7c" + b"\0\0\0\0\0\1\0\0")]
)
def test_the_older_hash_of_a_long_string_is_of_what_java_serialises_it_as(people, size, head):
    text = "x" * size
    found = after(people, ["k", text, None, "7"], **{"column.mask.hash.MD5.with.salt.s": ".*.name"})
    serialised = b"\xac\xed\0\5" + head + text.encode()
    assert found["name"] == hashlib.md5(b"s" + serialised, usedforsecurity=False).hexdigest()


def test_the_older_hash_has_two_surrogates_for_a_character_beyond_16_bits(people):
    """Java's modified UTF-8 writes each of them in three bytes."""
    found = after(people, ["k", "😀", None, "7"], **{"column.mask.hash.MD5.with.salt.s": ".*.name"})
    serialised = b"\xac\xed\0\5\x74\0\6\xed\xa0\xbd\xed\xb8\x80"
    assert found["name"] == hashlib.md5(b"s" + serialised, usedforsecurity=False).hexdigest()


def test_a_hash_is_cut_to_the_columns_length():
    short = table({"id": "varchar"}, name="short")
    short = replace(
        short, columns=(replace(short.columns[0], type=replace(short.columns[0].type, typmod=9)),)
    )
    found = after(short, ["x"], **{"column.mask.hash.v2.MD5.with.salt.s": ".*.id"})
    assert found["id"] == hashlib.md5(b"sx", usedforsecurity=False).hexdigest()[:5]


def test_truncation_cuts_text_and_says_so_wherever_the_length_allows(people):
    cut = {"column.truncate.to.4.chars": "public.people.*"}
    assert after(people, ROW, **cut) == {"id": "k", "name": "hell", "note": None, "number": 7}
    assert parameters(people, **cut)["number"] == {"truncateLength": "4"}
    assert parameters(people, **{"column.truncate.to.10.chars": "public.people.*"})["number"] is None


def test_newer_versions_cut_bytes_too_and_to_nothing(people):
    files = table({"id": "text", "content": "bytea", "flags": "varbit"}, name="files")
    row, cut = ["k", "\\x010203", "11111111"], {"column.truncate.to.2.chars": "public.files.*"}
    whole = {"id": "k", "content": "AQID", "flags": "/w=="}
    assert after(files, row, **cut) == whole
    assert after(files, row, **cut, **NEWER) == whole | {"content": "AQI="}
    assert after(people, ROW, **{"column.truncate.to.0.chars": ".*.name"}, **NEWER)["name"] == ""


def test_one_rule_is_followed_truncation_first_then_masks_then_types(people):
    properties = {
        "column.mask.hash.v2.MD5.with.salt.s": ".*.people.*",
        "column.propagate.source.type": ".*.note,.*.name",
        "column.mask.with.2.chars": ".*.name,.*.id",
        "column.truncate.to.1.chars": ".*.id",
    }
    found = after(people, ["kk", "a", "b", "2"], **properties)
    assert (found["id"], found["name"], found["note"]) == ("k", "**", "b")
    told = parameters(people, **properties)
    assert told["note"]["__debezium.source.column.type"] == "TEXT"
    assert told["number"] == {"masked": "true"}


NEWER = {"debezium.version": "3.4"}


@pytest.mark.parametrize("name", ["column.truncate.to.0.chars", "column.mask.hash.ROT13.with.salt.x"])
def test_a_mask_that_is_none_is_refused(name):
    with pytest.raises(PgcdcError):
        config(**{name: ".*"})


def test_types_are_matched_behind_schema_and_table(people):
    told = parameters(people, **{"datatype.propagate.source.type": "public.people.INT4,text"})
    assert [name for name, found in told.items() if found] == ["number"]


def test_a_column_that_is_left_out_stays_in_the_key_as_an_optional_one(people):
    settings = config(**{"column.exclude.list": "public.people.id", "key.converter.schemas.enable": "true"})
    [found] = records(Stream(changes=[change(people, "I", [1], [ROW])]), settings)
    assert found["key"]["payload"] == {"id": "k"}
    assert found["key"]["schema"]["fields"] == [{"type": "string", "optional": True, "field": "id"}]
    assert "id" not in found["value"]["payload"]["after"]


def test_a_snapshot_reads_left_out_columns_of_the_key_only_where_all_are_left_out(people):
    stream = Stream(changes=[change(people, "R", [1], [ROW])])
    [part] = records(stream, config(**{"column.exclude.list": "public.people.id"}))
    [none] = records(stream, config(**{"column.include.list": "public.others.id"}))
    assert (part["key"]["id"], none["key"]["id"], none["value"]["payload"]["after"]) == ("", "k", {})


def test_a_default_replaces_nulls_of_keys_as_the_keys_converter_says(people):
    columns = tuple(replace(c, not_null=False) for c in people.columns)
    facts = TableFacts(None, ("note",), {name: ColumnFacts("'q'::text") for name in TYPES})
    settings = config(**{"key.converter.replace.null.with.default": "false"})
    row = change(replace(people, columns=columns, facts=facts), "I", [1], [ROW])
    [found] = records(Stream(changes=[row]), settings)
    assert (found["key"]["note"], found["value"]["payload"]["after"]["note"]) == (None, "q")


def operations(stream: Stream, skipped: str) -> list[Any]:
    settings = config(
        **{
            "skipped.operations": skipped,
            "provide.transaction.metadata": "true",
            "value.converter.schemas.enable": "false",
        }
    )
    return [record["value"] for record in records(stream, settings)]


@pytest.mark.parametrize(
    ("skipped", "expected"),
    [
        ("c", [("u", 1), ("d", 2)]),
        ("d", [("u", 1), ("c", 2)]),
        ("u", [("d", 1), ("c", 2)]),
        ("u,d", [("c", 1)]),
        ("c,u,d", []),
    ],
)
def test_a_changed_key_is_a_delete_and_a_create_to_what_is_skipped(people, skipped, expected):
    old = full([["a", "x", None, "1"], ["b", "x", None, "1"]])
    new = [["a", "y", None, "1"], ["c", "x", None, "1"]]
    marks = [TransactionBoundary("B", stamp(0)), TransactionBoundary("C", stamp(3))]
    found = operations(Stream(changes=[change(people, "U", [1, 2], new, old)], marks=marks), skipped)
    events = [value for value in found if value and "op" in value]
    assert [(value["op"], value["transaction"]["total_order"]) for value in events] == expected
    end = found[-1]
    assert end["event_count"] == len(expected)
    assert bool(end["data_collections"]) == bool(expected)


def test_truncates_are_numbered_in_their_transaction(people):
    marks = [TransactionBoundary("B", stamp(0)), TransactionBoundary("C", stamp(3))]
    truncate = TruncateChange(people, stamp(2), cascade=False, restart_identity=False)
    row = change(people, "I", [1], [ROW])
    found = operations(Stream(changes=[row], truncates=[truncate], marks=marks), "none")
    assert [value["transaction"]["total_order"] for value in found if "op" in value] == [1, 2]
    assert found[-1]["event_count"] == 2


def test_without_replacing_nulls_the_default_of_source_snapshot_is_null(people):
    settings = config(**{"value.converter.replace.null.with.default": "false"})
    [found] = records(Stream(changes=[change(people, "I", [1], [ROW])]), settings)
    assert found["value"]["payload"]["source"]["snapshot"] is None


def test_messages_have_a_dot_in_their_topic_whatever_the_delimiter():
    message = MessageChange(stamp(1), transactional=True, prefix="p", content=b"x")
    [found] = records(Stream(messages=[message]), config(**{"topic.delimiter": "-"}))
    assert found["topic"] == "srv.message"


def test_a_character_beyond_the_basic_plane_may_be_cut_in_two(people):
    cut = {"column.truncate.to.2.chars": "public.people.name"}
    stream = Stream(changes=[change(people, "I", [1], [["k", "a😀b", None, "7"]])])
    [piece] = started(config(**cut)).encode(stream.slice()).pieces
    assert b'"name":"a\\uD83D"' in bytes(piece.data)
