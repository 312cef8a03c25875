"""What pg_recvlogical captured of pgoutput: messages, each followed by a line feed.

The capture holds no positions of its own, so that changes have no `lsn`; and no types but the built-in ones,
so that values of others are strings. Messages that are no changes stand as `{"message":"Relation",...}`.
"""

import base64
import json
import re
from collections.abc import Iterator
from dataclasses import asdict, fields, replace
from typing import Any

from pgcdc_cli.errors import UndecodableError
from pgcdc_cli.lsn import Lsn
from pgcdc_cli.pgoutput import messages as m
from pgcdc_cli.pgoutput.decode import decode_next
from pgcdc_cli.reader.binary import in_text
from pgcdc_cli.reader.record import Record, undecodable
from pgcdc_cli.reader.rows import row_members
from pgcdc_cli.reader.stored import Stored
from pgcdc_cli.reader.text import timestamp_text

_CHUNK = 1 << 20
_LARGEST = 1 << 30
"""Bytes of a message at most: `MaxAllocSize` in memutils.h."""

_NO_ORDER = (0, 0, 0)
"""A capture is read alone, in its own order."""

TAGS = frozenset(m.Tag)


def read_capture(path: str, file: Stored) -> Iterator[Record]:
    """Give a record for each message, in the capture's order; PROTOCOL error for what is no message.

    Memory holds the longest message, and a chunk.
    """
    window = _Window(file)
    transaction = _Transaction()
    while window.more():
        start = window.position
        try:
            yield from transaction.records(window.next_message(transaction.in_stream))
        except UndecodableError as error:
            raise undecodable(path, f"{error.message}, in the message at byte {start}") from error


class _Window:
    """The part of the capture that is in memory; `position` is where in the capture the next message is."""

    def __init__(self, file: Stored) -> None:
        self._file = file
        self._data = b""
        self._offset = 0
        self.position = 0

    def more(self) -> bool:
        return self._offset < len(self._data) or self._extend()

    def next_message(self, in_stream: bool) -> m.Message:
        """Decode a message and its line feed, with more of the file where it goes on there."""
        while True:
            try:
                message, end = self._decode(in_stream)
                break
            except UndecodableError:
                if self._data[self._offset] not in TAGS or not self._extend():
                    raise
        self.position += end - self._offset
        self._offset = end
        return message

    def _decode(self, in_stream: bool) -> tuple[m.Message, int]:
        message, end = decode_next(self._data, self._offset, in_stream=in_stream)
        if isinstance(message, m.StreamAbort) and self._data[end : end + 1] != b"\n":
            # Only the capture's reader knows whether streaming was parallel: the message is longer then.
            message, end = decode_next(self._data, self._offset, in_stream=in_stream, streaming_parallel=True)
        if self._data[end : end + 1] != b"\n":
            start = self._data[self._offset : end]
            name = type(message).__name__
            raise UndecodableError(f"could not decode {name} message: no line feed follows it", start)
        return message, end + 1

    def _extend(self) -> bool:
        rest = self._data[self._offset :]
        if len(rest) > _LARGEST:
            return False
        added = self._file.read(max(_CHUNK, len(rest)))
        self._data, self._offset = rest + added, 0
        return bool(added)


class _Transaction:
    """What the messages so far say about the next: relations, and the open transaction."""

    def __init__(self) -> None:
        self._relations: dict[int, m.Relation] = {}
        self._stamp: dict[str, Any] = {}
        self._seq = 0
        self.in_stream = False

    def records(self, message: m.Message) -> Iterator[Record]:
        """Give a message's record, but one for each table of a truncate."""
        if isinstance(message, m.Truncate):
            for oid in message.relation_oids:
                one = replace(message, relation_oids=(oid,))
                yield Record(_NO_ORDER, *self._truncate(one, self._relation(oid)), (one, self._relations))
            return
        if isinstance(message, m.Insert | m.Update | m.Delete):
            message = in_text(message, self._relation(message.relation_oid))
        yield Record(_NO_ORDER, *self._line(message), (message, self._relations))

    def _line(self, message: m.Message) -> tuple[str, str]:
        """Give table and JSON."""
        match message:
            case m.Begin():
                return "", _json({"op": "B", **self._begin(message)})
            case m.Commit():
                return "", _json({"op": "C", **self._end(message)})
            case m.Insert() | m.Update() | m.Delete():
                return self._row(message)
            case m.LogicalMessage():
                return "_messages", _json({**self._change("M", message.xid), **_logical(message)})
            case m.Relation():
                self._relations[message.oid] = message
                return f"{message.namespace}.{message.name}", _json(_other(message))
            case _:
                if isinstance(message, m.StreamStart | m.StreamStop):
                    self.in_stream = isinstance(message, m.StreamStart)
                return "", _json(_other(message))

    def _begin(self, message: m.Begin) -> dict[str, Any]:
        self._seq = 0
        time = _plain("commit_time", message.commit_time)
        self._stamp = {"commit_lsn": str(message.final_lsn), "xid": message.xid, "ts": time}
        return self._stamp

    def _end(self, message: m.Commit) -> dict[str, Any]:
        stamp, self._stamp = self._stamp, {}
        return {"commit_lsn": str(message.commit_lsn), "end_lsn": str(message.end_lsn), **stamp}

    def _change(self, operation: str, xid: int | None) -> dict[str, Any]:
        """Stamp a change; before its commit, a streamed or prepared one has no place in history."""
        stamp = self._stamp or {"commit_lsn": None, "xid": xid, "ts": None}
        self._seq += 1
        return {"op": operation, "commit_lsn": stamp["commit_lsn"], "seq": self._seq - 1, **stamp}

    def _relation(self, oid: int) -> m.Relation:
        if oid not in self._relations:
            raise UndecodableError(f"could not tell the table of a change: relation {oid} is unknown", b"")
        return self._relations[oid]

    def _row(self, message: m.Insert | m.Update | m.Delete) -> tuple[str, str]:
        relation = self._relation(message.relation_oid)
        old = None if isinstance(message, m.Insert) else message.old
        new = None if isinstance(message, m.Delete) else message.new
        for image in (old, new):
            if image is not None and len(image.values) != len(relation.columns):
                raise UndecodableError(f"could not fit a row to {relation.namespace}.{relation.name}", b"")
        change = self._change(type(message).__name__[0], message.xid)
        head = _json({**change, "schema": relation.namespace, "table": relation.name})
        table = f"{relation.namespace}.{relation.name}"
        return table, head[:-1] + row_members(relation, old, new) + "}"

    def _truncate(self, message: m.Truncate, relation: m.Relation) -> tuple[str, str]:
        table = {"schema": relation.namespace, "table": relation.name}
        options = {"cascade": message.cascade, "restart_identity": message.restart_identity}
        change = self._change("T", message.xid)
        return f"{relation.namespace}.{relation.name}", _json({**change, **table, **options})


def _logical(message: m.LogicalMessage) -> dict[str, Any]:
    content = {"transactional": message.transactional, "prefix": message.prefix}
    try:
        return {**content, "content": message.content.decode()}
    except UnicodeDecodeError:
        return {**content, "content_base64": base64.b64encode(message.content).decode()}


def _other(message: Any) -> dict[str, Any]:  # noqa: ANN401 - any message type
    """Name a message, and give its fields."""
    title = re.sub(r"(?<=[a-z])(?=[A-Z])", " ", type(message).__name__)
    content = {field.name: _plain(field.name, getattr(message, field.name)) for field in fields(message)}
    return {"message": title, **content}


def _plain(name: str, value: Any) -> Any:  # noqa: ANN401 - any field
    """Turn a field's value into what JSON knows."""
    if isinstance(value, Lsn):
        return str(value)
    if isinstance(value, m.ReplicaIdentity):
        return value.name.lower()
    if isinstance(value, tuple):
        return [asdict(column) for column in value]
    if name.endswith("_time") and value is not None:
        seconds, fraction = divmod(value, 1_000_000)
        return f"{timestamp_text(seconds * 1_000_000).replace(' ', 'T', 1)}.{fraction:06d}Z"
    return value


def _json(content: dict[str, Any]) -> str:
    return json.dumps(content, ensure_ascii=False, separators=(",", ":"))
