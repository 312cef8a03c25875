"""The lines of one change batch, as parts to be joined row by row."""

from collections.abc import Iterator
from typing import TypeAlias

import numpy as np

from pgcdc_cli.formats.escape import quote
from pgcdc_cli.formats.jsonobject import Member, listing, object_parts
from pgcdc_cli.formats.jsonvalue import JsonValue, json_null, json_value
from pgcdc_cli.formats.stamps import INVALID_XID, integer_text, lsn_parts, lsn_text, timestamp_text
from pgcdc_cli.pgoutput.changes import ChangeBatch, FullImage, Int64s, KeyImage, Stamps
from pgcdc_cli.pgoutput.messages import Origin
from pgcdc_cli.table import TableSchema
from pgcdc_cli.types import kernels
from pgcdc_cli.types.convert import JsonKind, json_kind
from pgcdc_cli.types.kernels import Mask, Part

Image: TypeAlias = FullImage | KeyImage
Marked: TypeAlias = list[tuple[str, Mask]]


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


def _absent(image: Image, index: int) -> Mask | None:
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


def _choose(mask: Mask, one: JsonValue, other: JsonValue) -> JsonValue:
    text = kernels.coalesce(kernels.null_where(other.text, mask), kernels.null_where(one.text, ~mask))
    if isinstance(one.bare, bool) and one.bare is other.bare:
        return JsonValue(text, one.bare)
    return JsonValue(text, np.where(mask, one.bare, other.bare))


def _unchanged(table: TableSchema, image: FullImage | None) -> Marked:
    if image is None:
        return []
    masks = zip(table.columns, image.unchanged, strict=True)
    return [(column.name, mask) for column, mask in masks if mask is not None]


def _json_null(label: str, table: TableSchema, image: Image | None) -> Iterator[tuple[str, Mask]]:
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
