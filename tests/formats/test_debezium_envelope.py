"""Debezium's records around a row's values: keys, headers, tombstones, source and transaction blocks."""

import json
import re
from dataclasses import replace
from typing import Any

import pytest
from batches import UNCHANGED, Stream, change, full, key_only, stamp, table
from debezium_tools import lines, started

from pgcdc_cli.changes.slice import MessageChange, TransactionBoundary, TruncateChange
from pgcdc_cli.changes.table import ColumnFacts, TableFacts, TableSchema
from pgcdc_cli.formats.debezium.connector_config import ConnectorConfig
from pgcdc_cli.lsn import Lsn

PLAIN = ConnectorConfig(
    topic_prefix="srv", key_converter_schemas_enable=False, value_converter_schemas_enable=False
)
END = 0x1A2B430
"""End LSN of the commits below."""


@pytest.fixture
def items() -> TableSchema:
    schema = table({"id": "int4", "name": "text"}, name="items")
    columns = {name: ColumnFacts() for name in ("id", "name")}
    required = (replace(schema.columns[0], not_null=True), schema.columns[1])
    return replace(schema, columns=required, facts=TableFacts(("id",), None, columns))


def records(stream: Stream, config: ConnectorConfig = PLAIN) -> list[dict[str, Any]]:
    return lines(started(config).encode(stream.slice()))


def begin(index: int) -> TransactionBoundary:
    return TransactionBoundary("B", stamp(index))


def commit(index: int, end: int = END) -> TransactionBoundary:
    return TransactionBoundary("C", stamp(index, lsn=end))


def test_an_insert_is_one_line_byte_for_byte(items: TableSchema) -> None:
    stream = Stream(changes=[change(items, "I", [1], [["1", 'a "b" é']])])
    [piece] = started(PLAIN).encode(stream.slice()).pieces
    handled = rb'"ts_ms":\d{13},"transaction"'
    assert re.sub(handled, b'"ts_ms":NOW,"transaction"', bytes(piece.data)).decode() == (
        '{"topic":"srv.public.items","key":{"id":1},"value":{"before":null,'
        '"after":{"id":1,"name":"a \\"b\\" é"},'
        '"source":{"version":"2.5.4.Final","connector":"postgresql","name":"srv","ts_ms":1767323045678,'
        '"snapshot":"false","db":"shop","sequence":"[null,\\"27439120\\"]","schema":"public","table":"items",'
        '"txId":771,"lsn":27439120,"xmin":null},"op":"c","ts_ms":NOW,"transaction":null},"headers":{}}\n'
    )


def test_percent_signs_in_names_stand_as_they_are() -> None:
    odd = table({"%d": "int4", "a%%b%": "text"}, ("%d",), name="50%b")
    [found] = records(Stream(changes=[change(odd, "I", [1], [["1", "x"]])]))
    assert (found["topic"], found["key"]) == ("srv.public.50_b", {"%d": 1})
    assert (found["value"]["source"]["table"], found["value"]["after"]) == ("50%b", {"%d": 1, "a%%b%": "x"})


def test_a_delete_is_followed_by_its_tombstone(items: TableSchema) -> None:
    old = key_only([["1", None], ["2", None]], items)
    stream = Stream(changes=[change(items, "D", [1, 2], old=old)])
    found = records(stream)
    assert [(r["key"]["id"], r["value"] and r["value"]["op"]) for r in found] == [
        (1, "d"), (1, None), (2, "d"), (2, None),
    ]  # fmt: skip
    assert found[0]["value"]["before"] == {"id": 1, "name": None}
    without = records(stream, replace(PLAIN, tombstones_on_delete=False))
    assert [r["value"]["op"] for r in without] == ["d", "d"]


def test_only_a_key_that_changes_makes_three_records(items: TableSchema) -> None:
    old = full([["1", "a"], ["2", "b"]])
    stream = Stream(changes=[change(items, "U", [1, 2], [["1", "A"], ["20", "b"]], old)])
    plain, deleted, tombstone, created = records(stream)
    assert (plain["value"]["op"], plain["headers"]) == ("u", {})
    assert (deleted["value"]["op"], deleted["value"]["after"]) == ("d", None)
    assert deleted["key"] == tombstone["key"] == {"id": 2}
    assert deleted["headers"] == tombstone["headers"] == {"__debezium.newkey": {"id": 20}}
    assert (created["value"]["op"], created["value"]["before"]) == ("c", None)
    assert (created["key"], created["headers"]) == ({"id": 20}, {"__debezium.oldkey": {"id": 2}})
    assert deleted["value"]["source"] == created["value"]["source"]


def test_the_key_is_the_primary_key_even_where_the_old_row_lacks_it(items: TableSchema) -> None:
    by_name = tuple(replace(c, in_replica_identity=c.name == "name") for c in items.columns)
    indexed = replace(items, columns=by_name)
    stream = Stream(changes=[change(indexed, "D", [1], old=key_only([["1", "a"]], indexed))])
    deleted, _ = records(stream)
    assert (deleted["key"], deleted["value"]["before"]) == ({"id": 0}, {"id": 0, "name": "a"})


@pytest.mark.parametrize(("version", "key"), [("2.5", {"id": 1, "name": "a"}), ("3.4", {"id": 1})])
def test_included_columns_of_the_primary_key_are_a_part_of_it_in_old_versions(
    items: TableSchema, version: str, key: dict[str, Any]
) -> None:
    """As the versions of pgjdbc have it that they use: 42.6.1, and 42.7.7."""
    assert items.facts is not None
    covering = replace(items, facts=replace(items.facts, primary_key=("id", "name"), included=1))
    stream = Stream(changes=[change(covering, "I", [1], [["1", "a"]])])
    [created] = records(stream, replace(PLAIN, debezium_version=version))
    assert created["key"] == key


def test_sequence_names_the_commit_before_also_over_slices_and_restarts(items: TableSchema) -> None:
    first = Stream(changes=[change(items, "I", [1, 3], [["1", "a"], ["2", "b"]])], marks=[commit(2)])
    second = Stream(changes=[change(items, "I", [1], [["3", "c"]])])
    encoding = started(PLAIN)
    found = lines(encoding.encode(first.slice())) + lines(encoding.encode(second.slice()))
    before = [json.loads(r["value"]["source"]["sequence"])[0] for r in found]
    assert before == [None, str(END), str(END)]
    again = lines(started(PLAIN, END).encode(second.slice()))
    assert again[0]["value"]["source"] == found[-1]["value"]["source"]


def test_transactions_are_counted_over_slices(items: TableSchema) -> None:
    encoding = started(replace(PLAIN, provide_transaction_metadata=True))
    first = Stream(changes=[change(items, "I", [1], [["1", "a"]])], marks=[begin(0)])
    moved = change(items, "U", [0], [["2", "a"]], full([["1", "a"]]))
    second = Stream(changes=[moved], marks=[commit(1)])
    start, created = lines(encoding.encode(first.slice()))
    assert (start["topic"], start["value"]["status"], start["value"]["event_count"]) == (
        "srv.transaction", "BEGIN", None,
    )  # fmt: skip
    deleted, _, again, end = lines(encoding.encode(second.slice()))
    orders = [r["value"]["transaction"]["total_order"] for r in (created, deleted, again)]
    assert orders == [1, 2, 3]
    assert end["value"]["event_count"] == 3
    assert end["value"]["data_collections"] == [{"data_collection": "public.items", "event_count": 3}]
    assert end["key"] == {"id": f"771:{END}"}


def test_a_message_outside_of_transactions_counts_as_a_commit(items: TableSchema) -> None:
    message = MessageChange(stamp(1, xid=None, lsn=500), transactional=False, prefix="p", content=b"hi")
    stream = Stream(changes=[change(items, "I", [2], [["1", "a"]])], messages=[message])
    said, row = records(stream)
    assert (said["topic"], said["key"]) == ("srv.message", {"prefix": "p"})
    assert said["value"]["message"] == {"prefix": "p", "content": "aGk="}
    assert said["value"]["source"]["txId"] is None
    assert json.loads(row["value"]["source"]["sequence"])[0] == "500"


def test_truncates_are_skipped_unless_asked_for(items: TableSchema) -> None:
    stream = Stream(truncates=[TruncateChange(items, stamp(1), cascade=False, restart_identity=False)])
    assert records(stream) == []
    [found] = records(stream, replace(PLAIN, skipped_operations=()))
    value = found["value"]
    assert (found["key"], value["op"], value["before"], value["after"]) == (None, "t", None, None)


def test_values_alone_come_without_tombstones(items: TableSchema) -> None:
    stream = Stream(changes=[change(items, "D", [1], old=key_only([["1", None]], items))])
    [value] = lines(started(PLAIN, values_only=True).encode(stream.slice()))
    assert list(value) == ["before", "after", "source", "op", "ts_ms", "transaction"]


def test_the_newer_envelope_has_its_own_order_and_headers(items: TableSchema) -> None:
    stream = Stream(changes=[change(items, "I", [1], [["1", "a"]])])
    [found] = records(stream, replace(PLAIN, debezium_version="3.4"))
    assert list(found["value"]) == [
        "before", "after", "source", "transaction", "op", "ts_ms", "ts_us", "ts_ns",
    ]  # fmt: skip
    assert found["value"]["source"]["ts_ns"] == 1_767_323_045_678_901_000
    assert list(found["headers"]) == [
        f"__debezium.context.{name}" for name in ("connectorLogicalName", "taskId", "connectorName", "runId")
    ]


def test_a_heartbeat_is_a_record_of_its_own() -> None:
    [found] = lines(started(PLAIN).heartbeat(Lsn(END)))
    assert (found["topic"], found["key"]) == ("__debezium-heartbeat.srv", {"serverName": "srv"})
    assert list(found["value"]) == ["ts_ms"]


def test_the_delimiter_stands_in_a_heartbeats_topic_too() -> None:
    config = replace(PLAIN, topic_delimiter="/", topic_heartbeat_prefix="h b")
    [found] = lines(started(config).heartbeat(Lsn(END)))
    assert found["topic"] == "h b/srv"


def test_a_topic_is_no_longer_than_kafka_allows(items: TableSchema) -> None:
    stream = Stream(changes=[change(items, "I", [1], [["1", "a"]])])
    config = replace(PLAIN, topic_prefix="p" * 240, key_converter_schemas_enable=True)
    [found] = records(stream, config)
    assert found["topic"] == "p" * 240 + ".public.i"
    assert found["key"]["schema"]["name"] == found["topic"] + ".Key"


def test_the_newer_headers_are_those_of_rows_and_have_schemas_where_keys_do(items: TableSchema) -> None:
    settings = replace(PLAIN, debezium_version="3.4", key_converter_schemas_enable=True)
    message = MessageChange(stamp(2), transactional=True, prefix="p", content=b"hi")
    row, said = records(Stream(changes=[change(items, "I", [1], [["1", "a"]])], messages=[message]), settings)
    assert row["headers"]["__debezium.context.taskId"] == {
        "schema": {"type": "string", "optional": False},
        "payload": "0",
    }
    assert said["headers"] == {}


def test_the_newer_headers_can_be_left_out(items: TableSchema) -> None:
    settings = replace(PLAIN, debezium_version="3.4", extended_headers_enabled=False)
    stream = Stream(changes=[change(items, "U", [1], [["2", "a"]], full([["1", "a"]]))])
    gone, _, new = records(stream, settings)
    assert (list(gone["headers"]), list(new["headers"])) == (["__debezium.newkey"], ["__debezium.oldkey"])


def test_avro_names_in_unicode_have_two_zeros_only_below_256(items: TableSchema) -> None:
    columns = tuple(replace(c, name=n) for c, n in zip(items.columns, ("a-b\t", "кл"), strict=True))
    other = replace(items, columns=columns, facts=None, key=None)
    [found] = records(
        Stream(changes=[change(other, "I", [1], [["1", "a"]])]),
        replace(PLAIN, field_name_adjustment_mode="avro_unicode"),
    )
    assert list(found["value"]["after"]) == ["a_u002db_u009", "_u43a_u43b"]


def test_a_row_without_columns_is_no_event(items: TableSchema) -> None:
    bare = table({}, name="bare")
    stream = Stream(changes=[change(bare, "I", [1], [[]]), change(items, "I", [2], [["1", "a"]])])
    assert [record["value"]["source"]["table"] for record in records(stream)] == ["items"]


def test_a_key_of_columns_that_are_left_out_is_empty() -> None:
    """`message.key.columns` names one of an unknown type, which isn't the same as none."""
    schema = table({"id": "int4", "place": "box"}, name="items", key=("id",))
    rows = Stream(changes=[change(schema, "I", [1], [["1", "(1,1),(0,0)"]])])
    for column, key in (("place", {}), ("nowhere", {"id": 1})):
        config = replace(PLAIN, message_key_columns=(re.compile(f"public.items.{column}"),))
        assert [record["key"] for record in records(rows, config)] == [key]


def test_a_key_that_was_put_aside_unchanged_is_that_of_the_old_row(items: TableSchema) -> None:
    """The server sends the old row's key if it is stored out of line (TOAST), even if it doesn't change."""
    long = table({"id": "text", "name": "text"}, name="items", key=("id",))
    long = replace(long, facts=items.facts)
    old = key_only([["k" * 3000, None]], long)
    stream = Stream(changes=[change(long, "U", [1], [[UNCHANGED, "b"]], old)])
    [updated] = records(stream)
    assert (updated["key"], updated["value"]["op"]) == ({"id": "k" * 3000}, "u")
    assert updated["value"]["after"] == {"id": "k" * 3000, "name": "b"}


def test_a_character_beyond_the_first_plane_is_two_in_a_topic_and_for_avro() -> None:
    schema = table({"id😀": "int4"}, name="é😀")
    config = replace(PLAIN, field_name_adjustment_mode="avro")
    [found] = records(Stream(changes=[change(schema, "I", [1], [["1"]])]), config)
    assert (found["topic"], found["value"]["after"]) == ("srv.public.___", {"id__": 1})


def test_names_and_prefixes_are_escaped_as_values_are() -> None:
    schema = table({"a\x1b": "text"}, name="t\x1b")
    message = MessageChange(stamp(2), True, "p\x1b😀", b"")
    stream = Stream(changes=[change(schema, "I", [1], [["v\x1b"]])], messages=[message])
    written = b"".join(bytes(piece.data) for piece in started(PLAIN).encode(stream.slice()).pieces)
    for part in (rb'"a\u001B":"v\u001B"', rb'"table":"t\u001B"', rb'"prefix":"p\u001B\uD83D\uDE00"'):
        assert part in written


@pytest.mark.parametrize("version", ["2.5", "3.4"])
def test_a_message_before_the_first_transaction_has_no_time(version: str) -> None:
    """Nanoseconds are a number, too."""
    lone = replace(stamp(1), xid=None, commit_ts=None)
    stream = Stream(messages=[MessageChange(lone, transactional=False, prefix="p", content=b"x")])
    [found] = records(stream, replace(PLAIN, debezium_version=version))
    times = [value for name, value in found["value"]["source"].items() if name.startswith("ts_")]
    assert times == ([0] if version == "2.5" else [0, 0, 0])
