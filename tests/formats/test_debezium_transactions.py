"""Event numbers, transaction records and sequences, compared with a simple loop over the events."""

import json
from collections.abc import Iterator
from dataclasses import replace
from itertools import groupby, pairwise
from typing import Any, NamedTuple

import numpy as np
from batches import COMMIT_TS, Stream, full, stamp, stamps, table
from debezium_tools import started
from hypothesis import given
from hypothesis import strategies as st

from pgcdc_cli.changes.slice import ChangeBatch, MessageChange, Stamp, TransactionBoundary, TruncateChange
from pgcdc_cli.changes.table import TableSchema
from pgcdc_cli.formats.debezium.event_sequence import MESSAGE_COLLECTION
from pgcdc_cli.formats.debezium.properties import connector_config

TABLES = [table({"id": "int4", "v": "text"}, name=f"t{number}", oid=number + 1) for number in range(30)]
TABLES.append(table({"id": "int4", "v": "text", "w": "text"}, name="t0", oid=1))
"""The last table is another version of the first."""
OPERATIONS = {"I": "c", "U": "u", "K": "dc", "D": "d", "T": "t"}
"""Debezium's operations for a change; K is an update of the key."""
BASE, FIRST_XID = 0x1A2B000, 700


class Event(NamedTuple):
    """A change of a table, a message (M; L outside of transactions) or a boundary, with its transaction."""

    kind: str
    transaction: int
    table: TableSchema = TABLES[0]


def xid(event: Event) -> int:
    return FIRST_XID + event.transaction


def moment(event: Event) -> int:
    return COMMIT_TS + 1_234_567 * event.transaction


def end_of(index: int) -> int:
    return BASE + 16 * index + 8


CHANGES = st.tuples(st.sampled_from([*OPERATIONS, "M"]), st.sampled_from([*TABLES[:3], TABLES[-1]]))


@st.composite
def streams(draw: st.DrawFn) -> list[Event]:
    events = []
    for number in range(draw(st.integers(1, 6))):
        events += [Event("L", number)] * draw(st.integers(0, 1))
        changes = [Event(kind, number, changed) for kind, changed in draw(st.lists(CHANGES, max_size=8))]
        events += [Event("B", number), *changes, Event(draw(st.sampled_from("CCP")), number)]
    return events


def expected(events: list[Event], skipped: str, version: str = "2.5") -> Iterator[tuple[Any, ...]]:
    """Yield each event's operation, sequence, time in milliseconds and transaction block.

    In 3.4 each message in a transaction counts, as the only one of a collection of its own.
    """
    last, time = None, 0
    counts: dict[str, int] = {}
    for index, event in enumerate(events):
        lsn = BASE + 16 * index
        if event.kind == "B":
            counts, time = {}, moment(event) // 1000
            yield "BEGIN", f"{xid(event)}:{lsn}", time, None, None
        elif event.kind in "CP":
            last = str(end_of(index)) if event.kind == "C" else last
            names = in_java(counts) if version == "2.5" else sorted(counts)
            collections = [{"data_collection": n.split("#")[0], "event_count": counts[n]} for n in names]
            yield "END", f"{xid(event)}:{end_of(index)}", time, sum(counts.values()), collections
        elif event.kind in "ML":
            last = str(lsn) if event.kind == "L" else last
            block = None
            if event.kind == "M" and version != "2.5":
                counts[f"{MESSAGE_COLLECTION}#{index}"] = 1
                numbers = {"total_order": sum(counts.values()), "data_collection_order": 1}
                block = {"id": f"{xid(event)}:{lsn}", **numbers}
            yield "m", [last, str(lsn)], time, block
        else:
            for operation in OPERATIONS[event.kind]:
                if operation not in skipped:
                    name = event.table.display
                    counts[name] = counts.get(name, 0) + 1
                    numbers = {"total_order": sum(counts.values()), "data_collection_order": counts[name]}
                    block = {"id": f"{xid(event)}:{lsn}", **numbers}
                    yield operation, [last, str(lsn)], time, block


def in_java(names: dict[str, int]) -> list[str]:
    """Sort as a HashMap does: by bucket; their number doubles whenever three quarters are in use."""
    size = 16
    for number in range(1, len(names) + 1):
        size *= 2 if number > size * 3 // 4 else 1

    def bucket(name: str) -> int:
        value = 0
        for character in name:
            value = (31 * value + ord(character)) % 2**32
        return (value ^ value >> 16) % size

    return sorted(names, key=bucket)


def shown(lines: Iterator[bytes], version: str = "2.5") -> Iterator[tuple[Any, ...]]:
    """Yield the same of each line; in 3.4 collections are sorted, since messages have no order."""
    for line in lines:
        value = json.loads(line)
        if value and "op" in value:
            sequence = json.loads(value["source"]["sequence"])
            yield value["op"], sequence, value["source"]["ts_ms"], value.get("transaction")
        elif value:
            if version != "2.5" and value["data_collections"]:
                value["data_collections"].sort(key=lambda one: one["data_collection"])
            names = ("status", "id", "ts_ms", "event_count", "data_collections")
            yield tuple(value[name] for name in names)


def written(events: list[Event], cuts: list[int], skipped: str, version: str = "2.5") -> Iterator[bytes]:
    properties = {
        "debezium.version": version,
        "topic.prefix": "srv",
        "provide.transaction.metadata": "true",
        "skipped.operations": ",".join(skipped) or "none",
        "value.converter.schemas.enable": "false",
    }
    encoding = started(connector_config(properties), values_only=True)
    for start, stop in pairwise([0, *sorted(cuts), len(events)]):
        for piece in encoding.encode(stream(list(enumerate(events))[start:stop]).slice()).pieces:
            yield from bytes(piece.data).splitlines()


def stream(events: list[tuple[int, Event]]) -> Stream:
    """Make a slice as the decoder does, with one batch per table and shape."""

    def shape(pair: tuple[int, Event]) -> tuple[int, str]:
        return TABLES.index(pair[1].table), pair[1].kind.replace("K", "U")

    rows = sorted((pair for pair in events if pair[1].kind in "IUKD"), key=shape)
    return Stream(
        [batch(list(some)) for _, some in groupby(rows, shape)],
        [TruncateChange(e.table, of(i, e), False, False) for i, e in events if e.kind == "T"],
        [MessageChange(of(i, e), e.kind == "M", "p", b"x") for i, e in events if e.kind in "ML"],
        [TransactionBoundary(e.kind, of(i, e)) for i, e in events if e.kind in "BCP"],
    )


def of(index: int, event: Event) -> Stamp:
    if event.kind == "L":
        return stamp(index, xid=None)
    placed = stamp(index, xid=xid(event), lsn=end_of(index) if event.kind in "CP" else None)
    return replace(placed, commit_ts=moment(event))


def batch(rows: list[tuple[int, Event]]) -> ChangeBatch:
    _, first = rows[0]
    rest = ["x"] * (len(first.table.columns) - 1)
    old = full([["1", *rest] for _ in rows])
    new = full([["2" if event.kind == "K" else "1", *rest] for _, event in rows])
    placed = replace(
        stamps([index for index, _ in rows]),
        xid=np.array([xid(event) for _, event in rows]),
        commit_ts=np.array([moment(event) for _, event in rows]),
    )
    operation = first.kind.replace("K", "U")
    return ChangeBatch(
        first.table, operation, placed, None if operation == "D" else new, None if operation == "I" else old
    )


@given(st.data(), streams(), st.sets(st.sampled_from("cudt")), st.sampled_from(["2.5", "3.4"]))
def test_any_cut_of_a_stream_numbers_events_as_one_by_one(data, events, skipped, version):
    cuts = data.draw(st.lists(st.integers(0, len(events)), max_size=4))
    wanted = "".join(sorted(skipped))
    found = shown(written(events, cuts, wanted, version), version)
    assert list(found) == list(expected(events, wanted, version))


def test_a_transaction_of_many_tables_lists_them_as_java_does():
    events = [Event("B", 0), *(Event("I", 0, changed) for changed in reversed(TABLES)), Event("C", 0)]
    events += [Event("B", 1), *(Event("I", 1, changed) for changed in TABLES[:13]), Event("C", 1)]
    assert list(shown(written(events, [], ""))) == list(expected(events, ""))
