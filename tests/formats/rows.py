"""A second, simple conversion of rows to JSON objects, row by row; and strategies for streams of rows."""

import json
from dataclasses import dataclass
from itertools import groupby

from batches import COMMIT_TEXT, UNCHANGED, full, key_only, stamp, stamps, table
from hypothesis import strategies as st

from pgcdc_cli.changes.slice import (
    Boundaries,
    ChangeBatch,
    MessageChange,
    Slice,
    TransactionBoundary,
    TruncateChange,
)

ORDERS = table(
    {
        "note": "text",
        "id": "int8",
        "price": "float8",
        "doc": "jsonb",
        "raw": "json",
        "ok": "bool",
        "total": "numeric(12,2)",
        "day": "date",
        'odd "näme"\n': "int4[]",
    },
    key=("note", "id"),
)
ITEMS = table({"sku": "text"}, key=None, name="items", oid=16401)
KINDS = {"int8": "number", "float8": "number", "json": "json", "jsonb": "json", "bool": "bool"}

TEXT = st.one_of(
    st.text(st.characters(exclude_characters="\0", exclude_categories=["Cs"]), max_size=12),
    st.text('"\\/\b\f\n\r\t\x01\x1f\x7f\u2028é🎉', max_size=6),
)
JSON = st.recursive(
    st.one_of(st.none(), st.booleans(), st.integers(), TEXT),
    lambda inner: st.one_of(st.lists(inner, max_size=3), st.dictionaries(TEXT, inner, max_size=3)),
    max_leaves=6,
)
DOCUMENTS = st.builds(
    lambda value, indent, blank: blank + json.dumps(value, indent=indent, ensure_ascii=False) + blank,
    JSON,
    st.sampled_from([None, 0, 2]),
    st.sampled_from(["", " ", "\r\n"]),
)
VALUES = {
    "text": TEXT,
    "int8": st.integers(-(2**63), 2**63 - 1).map(str),
    "float8": st.sampled_from(["0", "-1.5e-07", "1e+20", "NaN", "Infinity", "-Infinity", "0.1"]),
    "json": DOCUMENTS,
    "jsonb": DOCUMENTS,
    "bool": st.sampled_from(["t", "f"]),
    "numeric": st.sampled_from(["0.00", "-12.30", "NaN", "99999999.99"]),
    "date": st.sampled_from(["2024-02-29", "infinity", "0044-03-15 BC"]),
    "int4[]": st.sampled_from(["{}", "{1,NULL}", "[0:1]={1,2}"]),
}


@dataclass(frozen=True)
class Event:
    """An event of the stream: `kind` is a row's operation, T, M, B or C; images are wire texts."""

    kind: str
    schema: object = None
    new: tuple | None = None
    old: tuple | None = None
    old_is_key: bool = False


def image(schema, *, unchanged: bool, required: tuple = ()):
    def value(column):
        found = VALUES[column.type.name]
        if column.name in required:
            return found
        extra = [st.just(UNCHANGED)] if unchanged else []
        return st.one_of(found, st.none(), *extra)

    return st.tuples(*map(value, schema.columns))


def events(schema=None):
    schemas = st.just(schema) if schema else st.sampled_from([ORDERS, ITEMS])
    return schemas.flatmap(_events_of)


def _events_of(schema):
    new = image(schema, unchanged=True)
    old = image(schema, unchanged=False)
    by_key = st.just(schema.key is not None)
    return st.one_of(
        st.builds(Event, st.sampled_from("IR"), st.just(schema), new),
        st.builds(Event, st.just("U"), st.just(schema), new, st.one_of(st.none(), old), by_key),
        st.builds(Event, st.just("U"), st.just(schema), new, old, st.just(False)),
        st.builds(Event, st.just("D"), st.just(schema), st.none(), old, by_key),
        st.builds(Event, st.sampled_from("TMBC"), st.just(schema)),
    )


def to_slice(stream: list[Event], order: list[int]) -> Slice:
    """Make batches by shape, as the decoder does; `order` shuffles the rows inside them."""
    placed = sorted(((event, index) for index, event in enumerate(stream)), key=lambda pair: order[pair[1]])
    rows = [(event, index) for event, index in placed if event.kind in "IURD"]

    def shape(pair):
        event = pair[0]
        return (id(event.schema), event.kind, event.old is not None, event.old_is_key)

    changes = []
    for _, group in groupby(sorted(rows, key=shape), shape):
        events = list(group)
        changes.append(_batch([event for event, _ in events], [index for _, index in events]))
    alone = [(event, index) for event, index in placed if event.kind not in "IURD"]
    return Slice(
        None,
        tuple(changes),
        tuple(TruncateChange(e.schema, stamp(i), True, False) for e, i in alone if e.kind == "T"),
        tuple(MessageChange(stamp(i), True, "p", b"hello \xc3\xa9") for e, i in alone if e.kind == "M"),
        (Boundaries.of([TransactionBoundary(e.kind, stamp(i)) for e, i in alone if e.kind in "BC"]),),
    )


def _batch(events: list[Event], index: list[int]) -> ChangeBatch:
    first = events[0]
    new = None if first.new is None else full([list(event.new) for event in events])
    old = None
    if first.old is not None:
        rows = [list(event.old) for event in events]
        old = key_only(rows, first.schema) if first.old_is_key else full(rows)
    return ChangeBatch(first.schema, first.kind, stamps(index), new, old)


def lsn(number: int) -> str:
    return f"{number >> 32:X}/{number & 0xFFFFFFFF:X}"


def plain(pg_type, text):
    """Convert a wire text to its JSON value."""
    if text is None:
        return None
    kind = KINDS.get(pg_type.name)
    if kind == "json" or (kind == "number" and text.lstrip("-")[0].isdigit()):
        return json.loads(text)
    return {"t": True, "f": False}[text] if kind == "bool" else text


def plain_image(schema, values, *, only: tuple | None = None) -> dict:
    return {
        column.name: plain(column.type, value)
        for column, value in zip(schema.columns, values, strict=True)
        if value is not UNCHANGED and (only is None or column.name in only)
    }


def json_nulls(label: str, schema, values, *, only: tuple | None = None) -> list[str]:
    return [
        f"{label}.{column.name}"
        for column, value in zip(schema.columns, values, strict=True)
        if column.type.name in {"json", "jsonb"}
        and value not in (None, UNCHANGED)
        and value.strip() == "null"
        and (only is None or column.name in only)
    ]


def reference(event: Event, index: int) -> dict:
    """Make the object of an event's line, according to the documentation."""
    at = 0x1A2B000 + 16 * index
    if event.kind in "BC":
        end = {"end_lsn": lsn(at)} if event.kind == "C" else {}
        return {"op": event.kind, "commit_lsn": "0/1A2B400", **end, "xid": 771, "ts": COMMIT_TEXT}
    line = {
        "op": event.kind,
        "lsn": lsn(at),
        "commit_lsn": "0/1A2B400",
        "seq": index,
        "xid": 771,
        "ts": COMMIT_TEXT,
    }
    if event.kind == "M":
        return {**line, "transactional": True, "prefix": "p", "content": "hello é"}
    line |= {"schema": "public", "table": event.schema.name}
    if event.kind == "T":
        return {**line, "cascade": True, "restart_identity": False}
    return line | _row(event)


def _row(event: Event) -> dict:
    schema, only = event.schema, event.schema.key if event.old_is_key else None
    old = None if event.old is None else plain_image(schema, event.old, only=only)
    new = None if event.new is None else plain_image(schema, event.new)
    key = {}
    for name in schema.key or ():
        for values in (new, old):
            if values is not None and name in values:
                key[name] = values[name]
                break
    row = {"key": key} if schema.key is not None else {}
    row |= {} if old is None else {"old": old}
    row |= {} if new is None else {"new": new}
    pairs = zip(schema.columns, event.new or (), strict=False)
    unchanged = [column.name for column, value in pairs if value is UNCHANGED]
    nulls = [] if old is None else json_nulls("old", schema, event.old, only=only)
    nulls += [] if new is None else json_nulls("new", schema, event.new)
    return row | ({"unchanged": unchanged} if unchanged else {}) | ({"json_null": nulls} if nulls else {})
