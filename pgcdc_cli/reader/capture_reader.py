"""Read what pg_recvlogical captured of pgoutput: messages, each followed by a line feed.

A capture has no positions of its own, so its changes have no `lsn`. Only built-in types are known; values of
others are strings. Messages other than changes are shown as `{"message":"Relation",...}`. A capture doesn't
tell its encoding either: bytes that aren't UTF-8 are escaped.
"""

import io
import re
from collections.abc import Iterator, Mapping
from dataclasses import asdict, fields, replace
from typing import Any, NamedTuple, TypeAlias, TypeVar

import pyarrow as pa

from pgcdc_cli.changes.table import ReplicaIdentity
from pgcdc_cli.errors import MalformedError, UndecodableError
from pgcdc_cli.formats.encoded_rows import MESSAGES
from pgcdc_cli.formats.exact_json import compact_json
from pgcdc_cli.frames import POSTGRES_EPOCH
from pgcdc_cli.lsn import Lsn
from pgcdc_cli.pgoutput import messages as m
from pgcdc_cli.pgoutput.decode import decode_next
from pgcdc_cli.reader.restored_change import Value, Values, change_line, message_content
from pgcdc_cli.reader.stored_file import Order, StoredFile, undecodable
from pgcdc_cli.types.binary import has_reader, text_of
from pgcdc_cli.types.database_text import ESCAPED, backslashes
from pgcdc_cli.types.pg_type import PgType, builtin, json_kind

_CHUNK = 1 << 20
_LARGEST = 1 << 30
"""Largest size of a message in bytes: `MaxAllocSize` in memutils.h."""

TAGS = frozenset(m.Tag)

_TIMESTAMP = PgType(1114, -1, "timestamp")

_RowChange: TypeAlias = m.Insert | m.Update | m.Delete
_Image: TypeAlias = m.FullTuple | m.KeyTuple
_ImageT = TypeVar("_ImageT", m.FullTuple, m.KeyTuple, m.FullTuple | m.KeyTuple)


class CapturedMessage(NamedTuple):
    """A message, with the relations known before it; a truncate is one message per table.

    `table` is `schema.table`, `_messages`, or "" for a message of no table; `line` is JSON.
    """

    table: str
    line: str
    message: m.Message
    relations: Mapping[int, m.Relation]
    order: Order = (0, 0, 0)
    """Constant: a capture is read by itself, in its own order."""


def read_capture(file: StoredFile, content: io.BufferedReader) -> Iterator[CapturedMessage]:
    """Yield every message, in the capture's order. Raises PgcdcError (PROTOCOL) for anything else.

    Memory use is bounded by the longest message and a chunk.
    """
    window = _Window(content)
    transaction = _Transaction()
    while window.more():
        start = window.position
        try:
            yield from transaction.captured(window.next_message(transaction.in_stream))
        except UndecodableError as error:
            # Many a text begins with the letter of a message, which then can't be decoded.
            other = "" if window.position else "it is neither JSON nor Arrow nor pgoutput: "
            reason = f"{other}{error.message}, in the message at byte {start}"
            raise undecodable(file.path, reason) from error


class _Window:
    """The part of the capture that is in memory; the next message is at byte `position` of the capture."""

    def __init__(self, content: io.BufferedReader) -> None:
        self._content = content
        self._data = b""
        self._offset = 0
        self.position = 0

    def more(self) -> bool:
        return self._offset < len(self._data) or self._extend()

    def next_message(self, in_stream: bool) -> m.Message:
        """Decode a message and its line feed; read more of the file if the message is incomplete."""
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
        message, end = decode_next(self._data, self._offset, in_stream=in_stream, text=ESCAPED)
        if isinstance(message, m.StreamAbort) and self._data[end : end + 1] != b"\n":
            # A capture doesn't say whether streaming was parallel; if it was, this message is longer.
            message, end = decode_next(
                self._data, self._offset, in_stream=in_stream, streaming_parallel=True, text=ESCAPED
            )
        if self._data[end : end + 1] != b"\n":
            start = self._data[self._offset : end]
            name = type(message).__name__
            raise UndecodableError(f"could not decode {name} message: no line feed follows it", start)
        return message, end + 1

    def _extend(self) -> bool:
        rest = self._data[self._offset :]
        if len(rest) > _LARGEST:
            return False
        added = self._content.read(max(_CHUNK, len(rest)))
        self._data, self._offset = rest + added, 0
        return bool(added)


class _Transaction:
    """State from earlier messages: relations, and the open transaction."""

    def __init__(self) -> None:
        self._relations: dict[int, m.Relation] = {}
        self._stamp: dict[str, Any] = {}
        self._seq = 0
        self.in_stream = False

    def captured(self, message: m.Message) -> Iterator[CapturedMessage]:
        if isinstance(message, m.Truncate):
            for oid in message.relation_oids:
                one = replace(message, relation_oids=(oid,))
                yield CapturedMessage(*self._truncate(one, self._relation(oid)), one, self._relations)
            return
        if isinstance(message, m.Insert | m.Update | m.Delete):
            message = _in_text(message, self._relation(message.relation_oid))
        yield CapturedMessage(*self._line(message), message, self._relations)

    def _line(self, message: m.Message) -> tuple[str, str]:
        """Return the table and the JSON line."""
        match message:
            case m.Begin():
                return "", compact_json({"op": "B", **self._begin(message)})
            case m.Commit():
                return "", compact_json({"op": "C", **self._end(message)})
            case m.Insert() | m.Update() | m.Delete():
                return self._row(message)
            case m.LogicalMessage():
                return MESSAGES, compact_json(self._message(message))
            case m.Relation():
                self._relations[message.oid] = message
                return _name(message), compact_json(_other(message))
            case _:
                if isinstance(message, m.StreamStart | m.StreamStop):
                    self.in_stream = isinstance(message, m.StreamStart)
                return "", compact_json(_other(message))

    def _begin(self, message: m.Begin) -> dict[str, Any]:
        self._seq = 0
        time = _plain("commit_time", message.commit_time)
        self._stamp = {"commit_lsn": str(message.final_lsn), "xid": message.xid, "ts": time}
        return self._stamp

    def _end(self, message: m.Commit) -> dict[str, Any]:
        stamp, self._stamp = self._stamp, {}
        return {"commit_lsn": str(message.commit_lsn), "end_lsn": str(message.end_lsn), **stamp}

    def _change(self, operation: str, xid: int | None) -> dict[str, Any]:
        """Stamp a change; a streamed or prepared one, which may yet be rolled back, has no place so far."""
        if not self._stamp:
            return {"op": operation, "commit_lsn": None, "seq": None, "xid": xid, "ts": None}
        self._seq += 1
        return {"op": operation, "commit_lsn": self._stamp["commit_lsn"], "seq": self._seq - 1, **self._stamp}

    def _message(self, message: m.LogicalMessage) -> dict[str, Any]:
        if message.transactional:
            change = self._change("M", message.xid)
        else:
            change = {"op": "M", "commit_lsn": str(message.lsn), "seq": 0, "xid": None, "ts": None}
        said = {"transactional": message.transactional, "prefix": message.prefix}
        return {**change, **said, **message_content(message.content)}

    def _relation(self, oid: int) -> m.Relation:
        if oid not in self._relations:
            raise UndecodableError(f"could not tell the table of a change: relation {oid} is unknown", b"")
        return self._relations[oid]

    def _row(self, message: _RowChange) -> tuple[str, str]:
        relation = self._relation(message.relation_oid)
        old = None if isinstance(message, m.Insert) else message.old
        new = None if isinstance(message, m.Delete) else message.new
        for image in (old, new):
            if image is not None and len(image.values) != len(relation.columns):
                raise UndecodableError(f"could not fit a row to {_name(relation)}", b"")
        change = self._change(type(message).__name__[0], message.xid)
        head = {**change, "schema": relation.namespace, "table": relation.name}
        images = {"old": _values(relation, old), "new": _values(relation, new)}
        key = _key(relation, images["old" if new is None else "new"])
        return _name(relation), change_line(head, {"key": key, **images}, _unchanged(relation, new))

    def _truncate(self, message: m.Truncate, relation: m.Relation) -> tuple[str, str]:
        table = {"schema": relation.namespace, "table": relation.name}
        options = {"cascade": message.cascade, "restart_identity": message.restart_identity}
        change = self._change("T", message.xid)
        return _name(relation), compact_json({**change, **table, **options})


def _name(relation: m.Relation) -> str:
    return f"{relation.namespace}.{relation.name}"


def _other(message: Any) -> dict[str, Any]:  # noqa: ANN401 - any message type
    """Return a message's name and fields."""
    title = re.sub(r"(?<=[a-z])(?=[A-Z])", " ", type(message).__name__)
    content = {field.name: _plain(field.name, getattr(message, field.name)) for field in fields(message)}
    return {"message": title, **content}


def _plain(name: str, value: Any) -> Any:  # noqa: ANN401 - any field
    """Convert a field's value to one that JSON has."""
    if isinstance(value, Lsn):
        return str(value)
    if isinstance(value, ReplicaIdentity):
        return value.name.lower()
    if isinstance(value, tuple):
        return [asdict(column) for column in value]
    if name.endswith("_time") and value is not None:
        return _moment(value)
    return value


def _moment(micros: int) -> str:
    """Print a time of any year; unlike a stream, which refuses some, a capture is shown in any case."""
    fraction = micros % 1_000_000
    sent = max(micros - fraction - POSTGRES_EPOCH, -(2**63)).to_bytes(8, "big", signed=True)
    text = str(text_of(_TIMESTAMP, pa.array([sent], pa.binary()))[0].as_py(), "ascii")
    return f"{text.replace(' ', 'T', 1)}.{fraction:06d}Z"


def _key(relation: m.Relation, values: Values | None) -> Values | None:
    """Return the key's values; None for REPLICA IDENTITY FULL, where every column is flagged as key."""
    names = {column.name for column in relation.columns if column.key}
    if not names or values is None or relation.replica_identity is ReplicaIdentity.FULL:
        return None
    return {name: value for name, value in values.items() if name in names}


def _values(relation: m.Relation, image: _Image | None) -> Values | None:
    """Return the values that were sent; those of types that aren't built in are strings."""
    if image is None:
        return None
    values = {}
    for column, value in zip(relation.columns, image.values, strict=True):
        match value:
            case m.Null() if isinstance(image, m.FullTuple) or column.key:
                values[column.name] = Value("string", None)
            case m.Text():
                pg_type = builtin(column.type_oid, column.typmod)
                kind = "string" if pg_type is None else json_kind(pg_type)
                text, _ = ESCAPED.decode(value.data, 1 if pg_type is None else backslashes(pg_type))
                values[column.name] = Value(kind, text)
            case m.Binary():
                values[column.name] = Value("string", "\\x" + value.data.hex())
    return values


def _unchanged(relation: m.Relation, image: _Image | None) -> list[str]:
    columns = () if image is None else zip(relation.columns, image.values, strict=True)
    return [column.name for column, value in columns if isinstance(value, m.UnchangedToast)]


def _in_text(message: _RowChange, relation: m.Relation) -> _RowChange:
    """Convert binary values of types that have a reader to text.

    Raises UndecodableError for a value that is not in its type's send format.
    """
    match message:
        case m.Insert(new=new):
            return replace(message, new=_image_in_text(new, relation))
        case m.Update(old=old, new=new):
            old = None if old is None else _image_in_text(old, relation)
            return replace(message, old=old, new=_image_in_text(new, relation))
        case m.Delete(old=old):
            return replace(message, old=_image_in_text(old, relation))


def _image_in_text(image: _ImageT, relation: m.Relation) -> _ImageT:
    values = image.values
    if len(values) != len(relation.columns) or not any(isinstance(value, m.Binary) for value in values):
        return image
    texts: Any = tuple(map(_value_in_text, values, relation.columns))
    return replace(image, values=texts)


def _value_in_text(value: m.TupleValue, column: m.RelationColumn) -> m.TupleValue:
    pg_type = builtin(column.type_oid, column.typmod)
    if not isinstance(value, m.Binary) or pg_type is None or not has_reader(pg_type):
        return value
    try:
        text = text_of(pg_type, pa.array([value.data], pa.binary()))
    except MalformedError as error:
        reason = f'column "{column.name}" is not what its type sends in binary: {error.reason}'
        raise UndecodableError(f"could not read a row: {reason}", value.data) from None
    return m.Text(text[0].as_py() or b"")
