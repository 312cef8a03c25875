"""Build change batches by hand, as the decoder would make them of these rows."""

from dataclasses import dataclass, field

import numpy as np
import pyarrow as pa

from pgcdc_cli.changes.slice import (
    Boundaries,
    ChangeBatch,
    FullImage,
    KeyImage,
    MessageChange,
    Slice,
    Stamp,
    Stamps,
    TransactionBoundary,
    TruncateChange,
)
from pgcdc_cli.changes.table import ReplicaIdentity, TableColumn, TableSchema
from pgcdc_cli.lsn import Lsn
from pgcdc_cli.types.pg_type import TYPES, PgType, builtin

UNCHANGED = object()
"""A value that the server did not send."""

COMMIT_TS = 1_767_323_045_678_901
COMMIT_TEXT = "2026-01-02T03:04:05.678901Z"


def table(
    columns: dict[str, str | PgType],
    key: tuple[str, ...] | None = ("id",),
    name: str = "orders",
    oid: int = 16400,
) -> TableSchema:
    """`columns` maps names to built-in types: `{"id": "int8", "price": "numeric(12,2)"}`."""
    types = [pg_type if isinstance(pg_type, PgType) else _type(pg_type) for pg_type in columns.values()]
    identity = key or ()
    described = tuple(
        TableColumn.of(column, pg_type, in_replica_identity=column in identity)
        for column, pg_type in zip(columns, types, strict=True)
    )
    return TableSchema(oid, "public", name, ReplicaIdentity.DEFAULT, described, key)


def _type(name: str) -> PgType:
    base, _, modifier = name.partition("(")
    typmod = -1
    if modifier:
        precision, scale = (int(number) for number in modifier.rstrip(")[]").split(","))
        typmod = (precision << 16 | scale & 0x7FF) + 4
    array = name.endswith("[]")
    base = base.removesuffix("[]")
    oid = next(row[3 if array else 2] for row in TYPES if row[0] == base)
    found = builtin(oid, typmod)
    assert found is not None
    return found


def column(values: list) -> tuple[pa.BinaryArray, np.ndarray | None]:
    wire = [
        None if v is None or v is UNCHANGED else v if isinstance(v, bytes) else v.encode() for v in values
    ]
    mask = np.array([v is UNCHANGED for v in values], np.bool_)
    return pa.array(wire, pa.binary()), mask if mask.any() else None


def full(rows: list[list]) -> FullImage:
    columns = [column(list(values)) for values in zip(*rows, strict=True)]
    return FullImage(tuple(c for c, _ in columns), tuple(mask for _, mask in columns))


def key_only(rows: list[list], schema: TableSchema) -> KeyImage:
    columns = [column(list(values))[0] for values in zip(*rows, strict=True)]
    kept = [
        c if described.in_replica_identity else None
        for c, described in zip(columns, schema.columns, strict=True)
    ]
    return KeyImage(tuple(kept))


def stamps(index: list[int], commit_lsn: int | list[int] = 0x1A2B400, xid: int = 771, seq: int = 0) -> Stamps:
    """Stamps of changes with these places in the stream; LSNs increase by 16 from 0/1A2B000."""
    at = np.array(index, np.int64)
    commits = np.broadcast_to(np.asarray(commit_lsn, np.int64), at.shape).copy()
    same = np.full(len(at), 1, np.int64)
    return Stamps(at, 0x1A2B000 + 16 * at, commits, same * COMMIT_TS, same * xid, at + seq)


def stamp(index: int, commit_lsn: int = 0x1A2B400, xid: int | None = 771, lsn: int | None = None) -> Stamp:
    lsn = 0x1A2B000 + 16 * index if lsn is None else lsn
    return Stamp(index, Lsn(lsn), Lsn(commit_lsn), COMMIT_TS if xid else None, xid, index)


@dataclass
class Stream:
    """Events in stream order; `slice` makes of them what the decoder makes, one batch per run of a shape."""

    changes: list[ChangeBatch] = field(default_factory=list)
    truncates: list[TruncateChange] = field(default_factory=list)
    messages: list[MessageChange] = field(default_factory=list)
    marks: list[TransactionBoundary] = field(default_factory=list)

    def slice(self) -> Slice:
        marks = (Boundaries.of(self.marks),) if self.marks else ()
        return Slice(None, tuple(self.changes), tuple(self.truncates), tuple(self.messages), marks)


def change(
    schema: TableSchema, operation: str, index: list[int], new: list | None = None, old=None
) -> ChangeBatch:
    image = full(new) if new is not None else None
    return ChangeBatch(schema, operation, stamps(index), image, old)
