"""What events lack, and the reports that name the first lost value of each column."""

import json
from dataclasses import replace

import pytest
from batches import UNCHANGED, Stream, change, key_only, stamp, table

from pgcdc_cli.changes.edge import Edge
from pgcdc_cli.changes.slice import TruncateChange
from pgcdc_cli.changes.table import ColumnFacts, TableFacts
from pgcdc_cli.formats.debezium.connector_config import ConnectorConfig
from pgcdc_cli.formats.debezium.debezium_format import DebeziumFormat
from pgcdc_cli.formats.debezium.losses import LOSSES
from pgcdc_cli.formats.debezium.properties import connector_config
from pgcdc_cli.lsn import Lsn

PLACEHOLDER = "__debezium_unavailable_value"
FIRST, SECOND, THIRD = "0/1A2B010", "0/1A2B020", "0/1A2B030"
TWO_NUMBERS = table({"id": "int8", "v": "numeric", "w": "numeric", "x": "text"})


def losses(kind: str, operation: str, values: list, default: str | None = None) -> list[tuple[str, str]]:
    """Find where values of a column v are lost, and why, according to the reports in a directory."""
    schema = table({"id": "int8", "v": kind})
    facts = {"id": ColumnFacts(), "v": ColumnFacts(default)}
    schema = replace(schema, facts=TableFacts(("id",), None, facts))
    encoding = DebeziumFormat(ConnectorConfig(topic_prefix="srv"))
    encoding.restart("shop", None)
    rows = [[str(number), value] for number, value in enumerate(values)]
    stream = Stream(changes=[change(schema, operation, [*range(1, len(rows) + 1)], rows)])
    found = [bytes(piece.data) for piece in encoding.encode(stream.slice()).pieces if piece.target == LOSSES]
    lines = [json.loads(line) for data in found for line in data.splitlines()]
    assert all((line["schema"], line["table"], line["column"]) == ("public", "orders", "v") for line in lines)
    return [(line["lsn"], line["why"]) for line in lines]


@pytest.mark.parametrize(
    ("kind", "values", "where", "why"),
    [
        ("numeric", ["1", None, "1.50"], THIRD, "decimal.handling.mode=precise"),
        ("int4[]", ["{1}", "{{1}}", "[0:0]={1}"], SECOND, "Debezium's arrays have one dimension"),
        ("text", ["x", PLACEHOLDER], SECOND, "unavailable.value.placeholder"),
        ("numeric", [UNCHANGED, "1", None], FIRST, "Debezium writes null for an unchanged TOAST value"),
    ],
)
def test_the_first_value_of_a_column_that_is_lost_is_named(kind, values, where, why):
    [(lsn, reason)] = losses(kind, "U", values)
    assert lsn == where
    assert reason.startswith(why)


@pytest.mark.parametrize(
    ("kind", "values", "where", "why"),
    [
        ("date", ["1582-10-15", "1582-10-14"], SECOND, "Debezium leaves out the era in snapshots"),
        ("date", ["0044-03-15 BC"], FIRST, "Debezium leaves out the era in snapshots"),
        ("timestamp", ["4713-01-01 00:00:00 BC"], FIRST, "Debezium has the Julian calendar in snapshots"),
        ("timestamptz", ["1582-12-31 00:00:00+00"], FIRST, "Debezium has the Julian calendar in snapshots"),
    ],
)
def test_an_old_moment_is_lost_in_a_snapshot_only(kind, values, where, why):
    [(lsn, reason)] = losses(kind, "R", values)
    assert lsn == where
    assert reason.startswith(why)
    assert losses(kind, "I", values) == []


@pytest.mark.parametrize("moment", ["1583-01-01 00:00:00", "9999-12-31 23:59:59.999999"])
def test_a_moment_that_both_calendars_have_is_not_lost_in_a_snapshot(moment):
    assert losses("timestamp", "R", [None, moment]) == []


@pytest.mark.parametrize(
    ("kind", "values"),
    [("numeric", ["1", None, "1.5"]), ("text", ["x", UNCHANGED, None]), ("int4[]", ["{1,NULL}", None])],
)
def test_what_is_all_there_is_not_reported(kind, values):
    assert losses(kind, "U", values) == []


def test_a_null_that_the_default_replaces_is_lost_and_an_unchanged_value_is_none():
    assert losses("text", "U", [UNCHANGED, "x"], "'none'::text") == []
    assert losses("text", "U", [UNCHANGED, None], "'none'::text") == [
        (SECOND, "value.converter.replace.null.with.default")
    ]


def test_a_row_that_is_deleted_loses_nothing():
    schema = table({"id": "numeric"})
    encoding = DebeziumFormat(ConnectorConfig(topic_prefix="srv"))
    encoding.restart("shop", None)
    deleted = change(schema, "D", [1], old=key_only([["1.50"]], schema))
    targets = [piece.target for piece in encoding.encode(Stream(changes=[deleted]).slice()).pieces]
    assert targets == ["public.orders"]


def test_a_column_that_only_the_key_has_loses_nothing():
    """Its key is written as ever; that the row lacks it is no loss, since the configuration says so."""
    schema = table({"id": "numeric", "v": "text"})
    properties = {"topic.prefix": "srv", "column.exclude.list": "public.orders.id"}
    encoding = DebeziumFormat(connector_config(properties))
    encoding.restart("shop", None)
    inserted = change(schema, "I", [1], [["1.50", "x"]])
    pieces = encoding.encode(Stream(changes=[inserted]).slice()).pieces
    assert [piece.target for piece in pieces] == ["public.orders"]


def reported(encoding: DebeziumFormat, row: list, edge: Edge | None = None) -> list[str]:
    """Name the columns of an inserted row whose losses are reported; with an edge, it is kept."""
    inserted = replace(Stream(changes=[change(TWO_NUMBERS, "I", [1], [row])]).slice(), edge=edge)
    found = [bytes(piece.data) for piece in encoding.encode(inserted).pieces if piece.target == LOSSES]
    return [json.loads(line)["column"] for data in found for line in data.splitlines()]


def test_a_loss_is_reported_once_for_each_column_and_others_are_looked_for_after_it():
    encoding = DebeziumFormat(ConnectorConfig(topic_prefix="srv"))
    encoding.restart("shop", None)
    rows = (
        ["1", "1.50", "1", "x"],
        ["2", "1.50", "1.50", PLACEHOLDER],
        ["3", "0.0", "0.0", PLACEHOLDER],
    )
    assert [reported(encoding, row) for row in rows] == [["v"], ["w", "x"], []]


def test_a_loss_is_reported_again_only_if_its_report_was_taken_back():
    """As what follows the last edge is when a connection is lost, or a table is read anew."""
    encoding = DebeziumFormat(ConnectorConfig(topic_prefix="srv"))
    encoding.restart("shop", None)
    kept = reported(encoding, ["1", "1.50", "1", "x"], Edge(Lsn(9)))
    taken_back = reported(encoding, ["2", "1.50", "1.50", "x"])
    encoding.restart("shop", None)
    assert (kept, taken_back) == (["v"], ["w"])
    assert reported(encoding, ["2", "1.50", "1.50", "x"]) == ["w"]


UNWRAP = {
    "topic.prefix": "srv",
    "transforms": "unwrap",
    "transforms.unwrap.type": "io.debezium.transforms.ExtractNewRecordState",
    "transforms.unwrap.predicate": "p",
    "predicates": "p",
    "predicates.p.type": "org.apache.kafka.connect.transforms.predicates.TopicNameMatches",
}


@pytest.mark.parametrize(("topics", "reports"), [("srv.public.other", 2), ("srv.public.orders", 0)])
def test_a_transform_of_other_tables_hides_no_loss(topics, reports):
    """A merge makes this table of its events, which are whole, and has to know of what they lack."""
    schema = table({"id": "int8", "v": "numeric"})
    encoding = DebeziumFormat(connector_config(UNWRAP | {"predicates.p.pattern": topics}))
    encoding.restart("shop", None)
    skipped = TruncateChange(schema, stamp(2), False, False)
    stream = Stream(changes=[change(schema, "I", [1], [["1", "NaN"]])], truncates=[skipped])
    pieces = [piece for piece in encoding.encode(stream.slice()).pieces if piece.target == LOSSES]
    assert sum(bytes(piece.data).count(b"\n") for piece in pieces) == reports
