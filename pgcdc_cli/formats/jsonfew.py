"""The lines of a few rows, written one by one: the bytes that `jsonrow.py` makes of columns.

Columns cost a fifth of a millisecond for each table and shape, however few the rows. What is not usual
(changes from another server, text that isn't UTF-8, a boolean that is none) is left to them.
"""

import json
import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field

from pgcdc_cli.formats.escape import quote
from pgcdc_cli.formats.jsonvalue import NULL, NUMBER
from pgcdc_cli.formats.lines import are_few
from pgcdc_cli.formats.stamps import INVALID_XID, one_lsn, one_timestamp
from pgcdc_cli.pgoutput.changes import ChangeBatch, FullImage, KeyImage
from pgcdc_cli.table import TableSchema
from pgcdc_cli.types.convert import JsonKind, json_kind

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
        yield b"".join([begin, stamp, names, *_members(table, old, new), b"}\n"])


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
    for column, values, mask in zip(batch.table.columns, image.columns, unchanged, strict=True):
        if values is not None:
            kind = json_kind(column.type)
            writer = _WRITERS[numeric if kind == "numeric" else kind]
            absent = [False] * len(rows) if mask is None else mask.tolist()
            for row, value, left_out in zip(rows, values.to_pylist(), absent, strict=True):
                if left_out:
                    row.unchanged.append(column.name)
                else:
                    row.values[column.name] = b"null" if value is None else writer(value)
                    if kind == "json" and value is not None and _NULL.fullmatch(value):
                        row.json_null.append(column.name)
    return rows


def _members(table: TableSchema, old: _Image | None, new: _Image | None) -> Iterator[bytes]:
    """Write key to json_null."""
    if table.key is not None:
        yield from (b',"key":', _object(_key(table.key, old, new)))
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


def _key(names: tuple[str, ...], old: _Image | None, new: _Image | None) -> dict[str, bytes]:
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
