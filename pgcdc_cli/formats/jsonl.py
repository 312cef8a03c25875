"""JSON lines: one object a line for every change, truncate and logical message, and for B and C if asked.

Columns cost a fifth of a millisecond for each table and shape, however few the rows. What is not usual
(changes from another server, text that isn't UTF-8, a boolean that is none) is left to them.

Keys, in this order: op, lsn, commit_lsn, seq, xid, ts, gid, origin, origin_lsn, schema, table, key, old, new,
unchanged, json_null. Those that have nothing to say are left out. `gid` is there in a transaction that was
prepared, `origin` in one that came here from another server. A column that the server didn't send is not in
`new`, and `unchanged` names it. `json_null` names the columns, as "new.doc" or "old.doc", whose null is
JSON's own and not SQL NULL. `xid` is null outside of transactions. What each type
looks like is in `types/convert.py`.
"""

import base64
import json
import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import chain
from typing import Any, ClassVar, Literal, TypeAlias

import numpy as np
import pyarrow as pa

from pgcdc_cli.changes.slice import (
    ChangeBatch,
    FullImage,
    KeyImage,
    MessageChange,
    Origin,
    Slice,
    Stamp,
    Stamps,
    TransactionBoundary,
    TruncateChange,
    texts_of,
)
from pgcdc_cli.changes.table import TableSchema
from pgcdc_cli.formats.base import SUFFIXES, Data, EncodedSlice, Piece, compress
from pgcdc_cli.formats.capabilities import Capabilities, Compression, Layout, Numeric
from pgcdc_cli.formats.json_object import (
    NULL,
    NUMBER,
    JsonValue,
    Member,
    joined,
    json_null,
    json_value,
    listing,
    object_parts,
    quote,
)
from pgcdc_cli.formats.lines import (
    LINES,
    MESSAGES,
    Encoded,
    EncodedLines,
    are_few,
    commit_range,
    joined_lines,
    place,
    tables_of,
)
from pgcdc_cli.formats.stamps import (
    INVALID_XID,
    integer_text,
    lsn_parts,
    lsn_text,
    one_lsn,
    one_timestamp,
    timestamp_text,
)
from pgcdc_cli.types import kernels
from pgcdc_cli.types.kernels import Booleans, Int64s, Part
from pgcdc_cli.types.to_arrow import JsonKind, json_kind

Event = TruncateChange | MessageChange | TransactionBoundary


def event_object(event: Event, gid: str | None = None) -> dict[str, Any]:
    """Build the object, its keys in the order of the line; `gid` is what its transaction was prepared as."""
    if isinstance(event, TruncateChange):
        return _truncate(event, gid)
    if isinstance(event, MessageChange):
        return _message(event, gid)
    return _mark(event)


def _truncate(event: TruncateChange, gid: str | None) -> dict[str, Any]:
    return {
        "op": "T",
        **_stamp(event.stamp, gid),
        "schema": event.table.schema,
        "table": event.table.name,
        "cascade": event.cascade,
        "restart_identity": event.restart_identity,
    }


def _message(event: MessageChange, gid: str | None) -> dict[str, Any]:
    return {
        "op": "M",
        **_stamp(event.stamp, gid),
        "transactional": event.transactional,
        "prefix": event.prefix,
        **_content(event.content),
    }


def _content(content: bytes) -> dict[str, str]:
    try:
        return {"content": content.decode()}
    except UnicodeDecodeError:
        return {"content_base64": base64.b64encode(content).decode()}


def _mark(event: TransactionBoundary) -> dict[str, Any]:
    stamp = event.stamp
    end = {} if event.kind == "B" else {"end_lsn": str(stamp.lsn)}
    return {
        "op": event.kind,
        "commit_lsn": str(stamp.commit_lsn),
        **end,
        "xid": stamp.xid,
        "ts": _timestamp(stamp.commit_ts),
        **_source(stamp, event.gid),
    }


def _source(stamp: Stamp, gid: str | None) -> dict[str, str]:
    prepared = {} if gid is None else {"gid": gid}
    if stamp.origin is None:
        return prepared
    lsn = stamp.origin.commit_lsn
    return prepared | {"origin": stamp.origin.name} | ({"origin_lsn": str(lsn)} if lsn else {})


def _stamp(stamp: Stamp, gid: str | None) -> dict[str, Any]:
    return {
        "lsn": str(stamp.lsn),
        "commit_lsn": str(stamp.commit_lsn),
        "seq": stamp.seq,
        "xid": stamp.xid,
        "ts": _timestamp(stamp.commit_ts),
        **_source(stamp, gid),
    }


def _timestamp(micros: int | None) -> str | None:
    return None if micros is None else one_timestamp(micros).decode()


Image: TypeAlias = FullImage | KeyImage
Marked: TypeAlias = list[tuple[str, Booleans]]


def row_parts(batch: ChangeBatch, numeric: JsonKind, gid: str | None) -> Iterator[Part]:
    """Yield what, joined row by row, are a batch's lines.

    `numeric` is the kind that numeric columns get, `gid` the name under which the transaction was prepared.
    """
    table = batch.table
    old = _members(table, batch.old, numeric)
    new = _members(table, batch.new, numeric)
    yield b'{"op":' + quote(batch.operation)
    yield from _stamp_parts(batch.stamps, gid)
    yield b',"schema":' + quote(table.schema) + b',"table":' + quote(table.name)
    if table.key is not None:
        yield b',"key":'
        yield from object_parts(_key(table.key, old, new))
    for label, members in ((b',"old":', old), (b',"new":', new)):
        if members is not None:
            yield label
            yield from object_parts(members.values())
    yield listing("unchanged", _unchanged(table, batch.new))
    yield listing("json_null", [*_json_null("old", table, batch.old), *_json_null("new", table, batch.new)])
    yield b"}\n"


def _members(table: TableSchema, image: Image | None, numeric: JsonKind) -> dict[str, Member] | None:
    if image is None:
        return None
    members = {}
    for index, (column, values) in enumerate(zip(table.columns, image.columns, strict=True)):
        if values is not None:
            kind = json_kind(column.type)
            value = json_value(numeric if kind == "numeric" else kind, values)
            members[column.name] = Member(column.name, value, _absent(image, index))
    return members


def _absent(image: Image, index: int) -> Booleans | None:
    return image.unchanged[index] if isinstance(image, FullImage) else None


def _key(
    names: tuple[str, ...], old: dict[str, Member] | None, new: dict[str, Member] | None
) -> Iterator[Member]:
    """Yield the new row's key, or the deleted one's.

    A key's value that the server didn't send again stands in the old image.
    """
    for name in names:
        member = (new or old or {})[name]
        before = old.get(name) if old is not None else None
        if member.absent is None or before is None:
            yield member
        else:
            yield Member(name, _choose(member.absent, before.value, member.value), None)


def _choose(mask: Booleans, one: JsonValue, other: JsonValue) -> JsonValue:
    text = kernels.coalesce(kernels.null_where(other.text, mask), kernels.null_where(one.text, ~mask))
    if isinstance(one.bare, bool) and one.bare is other.bare:
        return JsonValue(text, one.bare)
    return JsonValue(text, np.where(mask, one.bare, other.bare))


def _unchanged(table: TableSchema, image: FullImage | None) -> Marked:
    if image is None:
        return []
    masks = zip(table.columns, image.unchanged, strict=True)
    return [(column.name, mask) for column, mask in masks if mask is not None]


def _json_null(label: str, table: TableSchema, image: Image | None) -> Iterator[tuple[str, Booleans]]:
    if image is None:
        return
    for column, values in zip(table.columns, image.columns, strict=True):
        if values is not None and json_kind(column.type) == "json":
            mask = json_null(values)
            if mask is not None:
                yield f"{label}.{column.name}", mask


def _stamp_parts(stamps: Stamps, gid: str | None) -> Iterator[Part]:
    """Yield lsn to origin. What a transaction's rows share is written once for each run of them."""
    changed = (
        (np.diff(stamps.commit_lsn) != 0) | (np.diff(stamps.xid) != 0) | (np.diff(stamps.commit_ts) != 0)
    )
    starts = np.concatenate([np.zeros(1, np.int64), np.flatnonzero(changed) + 1])
    commit_lsn = lsn_text(stamps.commit_lsn[starts])
    xid = kernels.null_where(integer_text(stamps.xid[starts]), stamps.xid[starts] == INVALID_XID)
    ts = timestamp_text(stamps.commit_ts[starts])
    tail = kernels.join([b',"xid":', xid, b',"ts":"', ts, b'"', *_source_parts(stamps, starts, gid)])
    yield from (b',"lsn":"', *lsn_parts(stamps.lsn), b'","commit_lsn":"')
    if len(starts) == 1:
        yield from (commit_lsn[0].as_py(), b'","seq":', integer_text(stamps.seq), tail[0].as_py())
        return
    run = np.repeat(np.arange(len(starts)), np.diff(np.append(starts, len(stamps))))
    yield from (kernels.take(commit_lsn, run), b'","seq":', integer_text(stamps.seq), kernels.take(tail, run))


def _source_parts(stamps: Stamps, starts: Int64s, gid: str | None) -> Iterator[Part]:
    """Yield gid and origin of some transactions, where there is something to say."""
    if gid is not None:
        yield b',"gid":' + quote(gid)
    if stamps.origin is not None:
        texts = [b"", *map(_origin, stamps.origins)]
        yield kernels.take(kernels.binary(texts), stamps.origin[starts] + 1)


def _origin(origin: Origin) -> bytes:
    """Write an origin; a server that streams doesn't tell the LSN there."""
    lsn = b',"origin_lsn":"%b"' % str(origin.commit_lsn).encode() if origin.commit_lsn else b""
    return b',"origin":' + quote(origin.name) + lsn


_SPECIAL = re.compile(rb'[\x00-\x1f"\\\x80-\xff]')
_NUMBER = re.compile(NUMBER.encode())
_NULL = re.compile(NULL.encode())
_BLANKS = bytes.maketrans(b"\n\r", b"  ")


class _UnusualError(Exception):
    """Something that is left to the columns."""


@dataclass(slots=True)
class _Image:
    """One row's image: values as they stand in JSON by column, and which were not sent or are JSON's null."""

    values: dict[str, bytes] = field(default_factory=dict)
    unchanged: list[str] = field(default_factory=list)
    json_null: list[str] = field(default_factory=list)


def few_lines(batch: ChangeBatch, numeric: JsonKind, gid: str | None) -> list[bytes] | None:
    """Write a batch's lines; None for what is left to the columns. The arguments are those of `row_parts`."""
    if not are_few(len(batch)) or batch.stamps.origin is not None:
        return None
    try:
        return list(_lines(batch, numeric, gid))
    except (_UnusualError, UnicodeDecodeError):
        return None


def _lines(batch: ChangeBatch, numeric: JsonKind, gid: str | None) -> Iterator[bytes]:
    table = batch.table
    begin = b'{"op":' + quote(batch.operation) + b',"lsn":"'
    names = b',"schema":' + quote(table.schema) + b',"table":' + quote(table.name)
    if gid is not None:
        names = b',"gid":' + quote(gid) + names
    olds, news = (_images(batch, image, numeric) for image in (batch.old, batch.new))
    for stamp, old, new in zip(_stamps(batch), olds, news, strict=True):
        yield b"".join([begin, stamp, names, *_few_members(table, old, new), b"}\n"])


def _stamps(batch: ChangeBatch) -> Iterator[bytes]:
    """Write lsn to ts."""
    stamps = batch.stamps
    columns = (stamps.lsn, stamps.commit_lsn, stamps.seq, stamps.xid, stamps.commit_ts)
    for lsn, commit_lsn, seq, xid, commit_ts in zip(*(column.tolist() for column in columns), strict=True):
        yield b'%b","commit_lsn":"%b","seq":%d,"xid":%b,"ts":"%b"' % (
            one_lsn(lsn),
            one_lsn(commit_lsn),
            seq,
            b"null" if xid == INVALID_XID else b"%d" % xid,
            one_timestamp(commit_ts),
        )


def _images(
    batch: ChangeBatch, image: FullImage | KeyImage | None, numeric: JsonKind
) -> Sequence[_Image | None]:
    if image is None:
        return [None] * len(batch)
    rows = [_Image() for _ in range(len(batch))]
    unchanged = image.unchanged if isinstance(image, FullImage) else [None] * len(image.columns)
    for index, (column, mask) in enumerate(zip(batch.table.columns, unchanged, strict=True)):
        values = texts_of(image.columns, index)
        if values is not None:
            kind = json_kind(column.type)
            writer = _WRITERS[numeric if kind == "numeric" else kind]
            absent = [False] * len(rows) if mask is None else mask.tolist()
            for row, value, left_out in zip(rows, values, absent, strict=True):
                if left_out:
                    row.unchanged.append(column.name)
                else:
                    row.values[column.name] = b"null" if value is None else writer(value)
                    if kind == "json" and value is not None and _NULL.fullmatch(value):
                        row.json_null.append(column.name)
    return rows


def _few_members(table: TableSchema, old: _Image | None, new: _Image | None) -> Iterator[bytes]:
    """Write key to json_null."""
    if table.key is not None:
        yield from (b',"key":', _object(_few_key(table.key, old, new)))
    for label, image in ((b',"old":', old), (b',"new":', new)):
        if image is not None:
            yield from (label, _object(image.values))
    if new is not None and new.unchanged:
        yield b',"unchanged":[' + b",".join(map(quote, new.unchanged)) + b"]"
    named = (("old", old), ("new", new))
    nulls = [f"{label}.{name}" for label, image in named if image is not None for name in image.json_null]
    if nulls:
        yield b',"json_null":[' + b",".join(map(quote, nulls)) + b"]"


def _object(values: dict[str, bytes]) -> bytes:
    return b"{" + b",".join([quote(name) + b":" + value for name, value in values.items()]) + b"}"


def _few_key(names: tuple[str, ...], old: _Image | None, new: _Image | None) -> dict[str, bytes]:
    """Give the new row's key, or the deleted one's; what was not sent again stands in the old image."""
    if old is not None and old.unchanged:
        raise _UnusualError
    before = {} if old is None else old.values
    values = before if new is None else {**before, **new.values}
    return {name: values[name] for name in names if name in values}


def _string(value: bytes) -> bytes:
    if _SPECIAL.search(value) is None:
        return b'"' + value + b'"'
    return json.dumps(value.decode(), ensure_ascii=False).encode()


def _number(value: bytes) -> bytes:
    return value if value.isdigit() or _NUMBER.fullmatch(value) else _string(value)


def _boolean(value: bytes) -> bytes:
    if value not in {b"t", b"f"}:
        raise _UnusualError
    return b"true" if value == b"t" else b"false"


def _one_line(value: bytes) -> bytes:
    value.decode()
    return value.translate(_BLANKS)


_WRITERS: dict[str, Callable[[bytes], bytes]] = {
    "string": _string,
    "number": _number,
    "float": _number,
    "bool": _boolean,
    "json": _one_line,
}


@dataclass(frozen=True, slots=True)
class JsonlFormat:
    """The default format. `layout` "table" gives one target a table, "stream" everything in one file.

    `transactions` adds a line for each begin and commit; it needs the stream layout.
    """

    name: ClassVar[str] = "jsonl"
    tail: ClassVar[bytes] = b""
    capabilities: ClassVar[Capabilities] = Capabilities(
        ("table", "stream"), ("none", "gzip", "zstd"), numeric=True, transactions=True
    )
    decodes: ClassVar[Literal[True]] = True
    restartable: ClassVar[None] = None

    layout: Layout = "table"
    compression: Compression = "none"
    numeric: Numeric = "string"
    transactions: bool = False

    @property
    def suffix(self) -> str:
        return ".jsonl" + SUFFIXES[self.compression]

    @property
    def wants_boundaries(self) -> bool:
        return self.transactions

    def encode(self, part: Slice) -> EncodedSlice:
        """Encode the rows of a slice; a PROTOCOL error where a value is no valid UTF-8."""
        marks = chain.from_iterable(part.boundaries if self.transactions else ())
        events: list[Event] = [*part.truncates, *part.messages, *marks]
        encoded = [self._batch(batch, part.gid) for batch in part.changes if len(batch)]
        encoded += [self._event(event, part.gid) for event in events]
        pieces = tuple(_piece(lines) for lines in LINES.in_order(encoded))
        return EncodedSlice(pieces, part.edge, tables_of(part))

    def frame(self, data: Sequence[Data]) -> bytes | memoryview | pa.Buffer:
        """Join lines; with a compression, into one frame."""
        return compress(data, self.compression)

    def _batch(self, batch: ChangeBatch, gid: str | None) -> EncodedLines:
        few = few_lines(batch, self.numeric, gid)
        lines = joined(row_parts(batch, self.numeric, gid)) if few is None else few
        target, stamps = self._place(batch.table), batch.stamps
        return Encoded(*target, stamps.index, stamps.commit_lsn, lines, batch.lacks_any)

    def _event(self, event: Event, gid: str | None) -> EncodedLines:
        line = json.dumps(event_object(event, gid), ensure_ascii=False, separators=(",", ":")) + "\n"
        table = event.table if isinstance(event, TruncateChange) else None
        return Encoded(*self._place(table), *place(event.stamp), [line.encode()])

    def _place(self, table: TableSchema | None) -> tuple[str, TableSchema | None]:
        if self.layout == "stream":
            return "", None
        return (MESSAGES, None) if table is None else (table.display, table)


def _piece(lines: EncodedLines) -> Piece:
    data = joined_lines(lines.rows)
    rows, commits = len(lines.rows), commit_range(lines)
    return Piece(lines.target, rows, *commits, data, table=lines.table, unchanged=lines.unchanged)
