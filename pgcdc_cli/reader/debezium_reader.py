"""Debezium's events as changes: whole records or just values, with or without schemas.

An event has its LSN, its transaction's xid and commit time, and the end LSN of the previous commit; but not
its own commit's LSN, its number in the transaction, or a truncate's options. In `before`, null also stands
for values that were not sent. Tombstones and heartbeats are not changes.
"""

import base64
import io
import json
from collections.abc import Collection, Iterator, Mapping
from datetime import UTC, datetime, timedelta
from typing import Any, NamedTuple

from pgcdc_cli.changes.table import TableSchema
from pgcdc_cli.errors import ErrorKind, PgcdcError
from pgcdc_cli.formats.encoded_rows import MESSAGES
from pgcdc_cli.formats.exact_json import parse_line
from pgcdc_cli.lsn import Lsn
from pgcdc_cli.reader.debezium_values import ConnectSchema, StoredField, described_columns, schema_column
from pgcdc_cli.reader.restored_change import (
    RestoredChange,
    Values,
    change_line,
    each_line,
    message_content,
)
from pgcdc_cli.reader.stored_file import Order, StoredFile, read_schema

_OPERATIONS = {"c": "I", "u": "U", "d": "D", "t": "T", "r": "R", "m": "M"}
_BOUNDS = {"BEGIN": "B", "END": "C"}
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


class _Payload(NamedTuple):
    """A value or a key, and its Connect schema, if written."""

    content: Any
    schema: ConnectSchema | None

    @classmethod
    def of(cls, value: object) -> "_Payload":
        if isinstance(value, dict) and value.keys() == {"schema", "payload"}:
            return cls(value["payload"], value["schema"])
        return cls(value, None)

    def field(self, name: str) -> "_Payload":
        return _Payload(self.content[name], None if self.schema is None else _field(self.schema, name))


def _field(schema: ConnectSchema, name: str) -> ConnectSchema | None:
    return next((one for one in schema.get("fields", ()) if one["field"] == name), None)


class _Event(NamedTuple):
    """A parsed event."""

    order: Order
    head: dict[str, object]
    key: Values | None = None
    old: Values | None = None
    new: Values | None = None
    unchanged: tuple[str, ...] = ()

    def is_moved_to(self, other: "_Event") -> bool:
        """Whether this event deletes, and the other creates, a row at the same LSN: a changed key."""
        operations = self.head["op"], other.head["op"]
        place = ("lsn", "schema", "table")
        return operations == ("D", "I") and all(self.head.get(at) == other.head.get(at) for at in place)

    def moved_to(self, other: "_Event") -> "_Event":
        return other._replace(head={**other.head, "op": "U"}, old=self.old)

    def change(self) -> RestoredChange:
        """Convert it to a JSON line."""
        images = {"key": self.key, "old": self.old, "new": self.new}
        if self.head["op"] == "M":
            table = MESSAGES
        else:
            table = f"{self.head['schema']}.{self.head['table']}" if "table" in self.head else ""
        return RestoredChange(self.order, table, change_line(self.head, images, self.unchanged))


def read_debezium(file: StoredFile, content: io.BufferedReader) -> Iterator[RestoredChange]:
    """Yield every change. Raises PgcdcError (PROTOCOL) for a line that is no event, or a transformed one."""
    table = None if file.schema is None else read_schema(file.schema)
    reader = _EventReader(file.path, table)
    events = each_line(file.path, content, reader.read, "an event of Debezium")
    return (event.change() for event in _with_moved(events))


def _with_moved(events: Iterator[_Event]) -> Iterator[_Event]:
    """Combine the two events of a changed key, which are adjacent, into one update."""
    deleted = None
    try:
        for event in events:
            if deleted is not None and deleted.is_moved_to(event):
                yield deleted.moved_to(event)
                deleted = None
                continue
            if deleted is not None:
                yield deleted
            deleted = event if event.head["op"] == "D" else None
            if deleted is None:
                yield event
    except PgcdcError:
        # The damage is in the next event, not in this one.
        if deleted is not None:
            yield deleted
        raise
    if deleted is not None:
        yield deleted


class _EventReader:
    """Reads lines; `table` is the table's schema file, or None."""

    def __init__(self, path: str, table: TableSchema | None) -> None:
        self._path = path
        self._table = table if table is not None and table.events is not None else None
        self._known = {} if self._table is None else described_columns(self._table)

    def read(self, line: str) -> Iterator[_Event]:
        """Yield the line's event, if it is one."""
        record = parse_line(line)
        if not isinstance(record, dict):
            raise TypeError
        key = _Payload.of(record.get("key") if "topic" in record else None)
        value = _Payload.of(record["value"] if "topic" in record else record)
        if value.content is None or _is_heartbeat(value.content):
            return
        if not isinstance(value.content, dict) or not ({"op", "source"} <= value.content.keys()):
            yield self._boundary(value.content)
        elif value.content["op"] == "m":
            yield _message(value)
        else:
            yield self._row(value, key)

    def _boundary(self, content: object) -> _Event:
        """Read a transaction's BEGIN or END; anything else must be what a transform left of an event."""
        if not isinstance(content, dict) or content.get("status") not in _BOUNDS or "id" not in content:
            raise _transformed(self._path)
        xid, ts = int(content["id"].partition(":")[0]), _moment(int(content["ts_ms"]), 1000)
        return _Event((0, 0, 0), {"op": _BOUNDS[content["status"]], "xid": xid, "ts": ts})

    def _row(self, event: _Payload, key: _Payload) -> _Event:
        source, operation = event.content["source"], _OPERATIONS[event.content["op"]]
        names = {"schema": source["schema"], "table": source["table"]}
        # A snapshot row's txId is the transaction that read it, not one that changed it.
        alone = {"xid": None} if operation == "R" else {}
        head = {"op": operation, **_stamp(source), **alone, **names}
        if operation == "T":
            return _Event(_order(source, operation), head)
        before, after = event.field("before"), event.field("after")
        old = None if before.content is None else self._old(before)
        unchanged = self._unchanged(after) if operation in "IU" else {}
        new = None if after.content is None else self._values(after, leave_out=unchanged.keys())
        found = self._key(key, {**(old or {}), **(new or {})})
        return _Event(_order(source, operation), head, found, old, new, tuple(unchanged.values()))

    def _column(self, row: _Payload, name: str) -> StoredField:
        """Find how a field is written: by the schema file if it has a rule, else by the Connect schema."""
        known = self._known.get(name)
        if known is not None and known.form is not None:
            return known
        told = schema_column(name, None if row.schema is None else _field(row.schema, name))
        return told if known is None else known.read_as(told)

    def _values(self, row: _Payload, leave_out: Collection[str] = ()) -> Values:
        columns = {name: self._column(row, name) for name in row.content if name not in leave_out}
        return {column.name: column.value(row.content[name]) for name, column in columns.items()}

    def _unchanged(self, row: _Payload) -> dict[str, str]:
        """Return the fields whose values were not sent, with their columns' names."""
        columns = {name: self._column(row, name) for name in row.content}
        return {n: column.name for n, column in columns.items() if column.is_unavailable(row.content[n])}

    def _old(self, row: _Payload) -> Values:
        """Leave out values that were not sent, and nulls if that is unknown of their column."""
        columns = {name: self._column(row, name) for name in row.content}
        unsent = {
            name
            for name, column in columns.items()
            if column.in_old is False or (column.in_old is None and row.content[name] is None)
        }
        return self._values(row, leave_out=unsent)

    def _key(self, key: _Payload, row: Values) -> Values | None:
        """Return the key as in JSON lines; without a schema file, the record's key."""
        if self._table is None:
            return None if key.content is None else self._values(key)
        names = self._table.key or ()
        return {name: row[name] for name in names} if names and row.keys() >= set(names) else None


def _is_heartbeat(content: object) -> bool:
    return isinstance(content, dict) and content.keys() == {"ts_ms"}


def _transformed(path: str) -> PgcdcError:
    return PgcdcError(
        ErrorKind.PROTOCOL,
        f'could not read "{path}": a message transform left only a part of its events, not what happened',
        hint="pgcdc shows whole events: read these as JSON, or stream without transforms",
    )


def _message(event: _Payload) -> _Event:
    source, message = event.content["source"], event.field("message")
    stamp = _stamp(source)
    said = {"transactional": stamp["xid"] is not None, "prefix": message.content["prefix"]}
    content, schema = message.content["content"], message.field("content").schema
    if schema is not None and schema["type"] == "bytes":
        told = message_content(base64.b64decode(content, validate=True))
    else:
        told = {"content": content}
    return _Event(_order(source, "M"), {"op": "M", **stamp, **said, **told})


def _stamp(source: Mapping[str, Any]) -> dict[str, object]:
    xid = source["txId"]
    exact = source.get("ts_us") is not None
    ts = _moment(int(source["ts_us"]), 1_000_000) if exact else _moment(int(source["ts_ms"]), 1000)
    return {"lsn": str(Lsn(int(source["lsn"]))), "xid": None if xid is None else int(xid), "ts": ts}


def _moment(count: int, per_second: int) -> str:
    """Print a time since 1970, with as many digits as its unit has."""
    at = _EPOCH + timedelta(microseconds=count * 1_000_000 // per_second)
    shown = at.isoformat(timespec="microseconds" if per_second > 1000 else "milliseconds")
    return shown.removesuffix("+00:00") + "Z"


def _order(source: Mapping[str, Any], operation: str) -> Order:
    """Return the event's place among those of other tables.

    The previous commit's end LSN orders transactions; it is missing before the first one. Snapshot rows, and
    messages outside of transactions, precede the transaction that follows the same commit.
    """
    sequence = source.get("sequence")
    previous = None if sequence is None else json.loads(sequence)[0]
    alone = operation == "R" or (operation == "M" and source["txId"] is None)
    return int(previous or 0), int(not alone), int(source["lsn"])
