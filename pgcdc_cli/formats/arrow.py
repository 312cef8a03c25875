"""Arrow IPC streams, one schema a file: typed columns, a record batch message a frame.

`_op`, `_lsn`, `_commit_lsn`, `_commit_ts`, `_xid`, `_seq`, `_unchanged`, `_truncate`, then the table's
columns, then `_old` and `_unfit`:

- `_op` is I, U, D, R or T. LSNs are integers. `_xid` is null outside of transactions.
- `_unchanged` names the columns that the server didn't send; null where it sent all.
- `_truncate` lists the options of a T ("cascade", "restart_identity"; empty for none), whose row is null
  otherwise; it is null for every other operation.
- `_old` is the old image as a struct of the table's columns, null unless sent. Of a key-only image the
  columns outside the replica identity are null.
- `_unfit` maps a column (`_old.NAME` for one of the old image) to PostgreSQL's text of a value that the
  column's Arrow type can't hold and that is therefore null there; null where there is none.

A file of logical messages has `_op` (M) to `_seq`, then `transactional`, `prefix` and `content`.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Literal, NamedTuple, TypeAlias, cast

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from pgcdc_cli.changes.slice import (
    ChangeBatch,
    FullImage,
    KeyImage,
    MessageChange,
    Slice,
    Stamp,
    Stamps,
    TruncateChange,
)
from pgcdc_cli.changes.table import TableSchema
from pgcdc_cli.errors import ErrorKind, PgcdcError
from pgcdc_cli.formats.base import Data, EncodedSlice, Piece
from pgcdc_cli.formats.capabilities import Capabilities
from pgcdc_cli.formats.lines import MESSAGES, Arrange, Encoded, commit_range, place, tables_of
from pgcdc_cli.formats.stamps import INVALID_XID
from pgcdc_cli.types import kernels
from pgcdc_cli.types.kernels import ArrowArray, Booleans, Int64s
from pgcdc_cli.types.to_arrow import Typed, arrow_type, to_arrow

Field: TypeAlias = "pa.Field[Any]"

FORMAT_VERSION = 1

STAMP_FIELDS: tuple[Field, ...] = (
    pa.field("_op", pa.string(), nullable=False),
    pa.field("_lsn", pa.int64(), nullable=False),
    pa.field("_commit_lsn", pa.int64(), nullable=False),
    pa.field("_commit_ts", pa.timestamp("us", "UTC"), nullable=False),
    pa.field("_xid", pa.int64()),
    pa.field("_seq", pa.int64(), nullable=False),
)
NAMES = pa.list_(pa.string())
UNFIT = pa.map_(pa.string(), pa.string())
OWN_NAMES = frozenset([*(field.name for field in STAMP_FIELDS), "_unchanged", "_truncate", "_old", "_unfit"])

_MESSAGE_FIELDS: tuple[Field, ...] = (
    *STAMP_FIELDS[:3],
    STAMP_FIELDS[3].with_nullable(nullable=True),
    *STAMP_FIELDS[4:],
    pa.field("transactional", pa.bool_(), nullable=False),
    pa.field("prefix", pa.string(), nullable=False),
    pa.field("content", pa.binary(), nullable=False),
)
MESSAGE_SCHEMA = pa.schema(_MESSAGE_FIELDS, {"format_version": str(FORMAT_VERSION)})


def row_fields(table: TableSchema) -> list[Field]:
    """Give the table's columns their types; a USAGE error where one is called as one of pgcdc's own."""
    for column in table.columns:
        if column.name in OWN_NAMES:
            raise PgcdcError(
                ErrorKind.USAGE,
                f'could not encode table "{table.display}" as Arrow: it has a column "{column.name}"',
                hint="that name is one of pgcdc's own in Arrow files: use --format jsonl",
            )
    return [pa.field(column.name, arrow_type(column.type)) for column in table.columns]


def table_schema(table: TableSchema) -> pa.Schema:
    """Build the schema; its metadata say which version of which table it is."""
    row = row_fields(table)
    metadata: dict[str | bytes, str | bytes] = {
        "table": table.display,
        "schema_fingerprint": table.fingerprint,
        "format_version": str(FORMAT_VERSION),
    }
    fields: list[Field] = [
        *STAMP_FIELDS,
        pa.field("_unchanged", NAMES),
        pa.field("_truncate", NAMES),
        *row,
        pa.field("_old", pa.struct(row)),
        pa.field("_unfit", UNFIT),
    ]
    return pa.schema(fields, metadata)


Image: TypeAlias = FullImage | KeyImage


class Unfit(NamedTuple):
    """Values of one column that its Arrow type can't hold: `texts[rows]`."""

    name: str
    rows: Booleans
    texts: ArrowArray


def batch_of_changes(batch: ChangeBatch, schema: pa.Schema) -> pa.RecordBatch:
    """Convert n changes; a PROTOCOL error where a value is no valid UTF-8."""
    rows, table = len(batch), batch.table
    new, new_unfit = _image(table, batch.new, rows, "")
    old, old_unfit = _image(table, batch.old, rows, "_old.")
    columns = [
        *_stamps(batch.operation, batch.stamps),
        _unchanged(table, batch.new, rows),
        kernels.nulls(rows, NAMES),
        *new,
        _struct(old, schema) if batch.old is not None else kernels.nulls(rows, schema.field("_old").type),
        _unfit([*new_unfit, *old_unfit], rows),
    ]
    return _record_batch(columns, schema)


def batch_of_truncate(event: TruncateChange, schema: pa.Schema) -> pa.RecordBatch:
    """Make the one row of a T: `_truncate` and nothing else."""
    options = {"cascade": event.cascade, "restart_identity": event.restart_identity}
    names = [name for name, given in options.items() if given]
    values = {**_stamp("T", event.stamp), "_truncate": names}
    return _record_batch([pa.array([values.get(f.name)], f.type) for f in schema], schema)


def batch_of_message(event: MessageChange) -> pa.RecordBatch:
    """Make the one row of an M."""
    values = {
        **_stamp("M", event.stamp),
        "transactional": event.transactional,
        "prefix": event.prefix,
        "content": event.content,
    }
    return _record_batch([pa.array([values[f.name]], f.type) for f in MESSAGE_SCHEMA], MESSAGE_SCHEMA)


def _record_batch(columns: Sequence[ArrowArray], schema: pa.Schema) -> pa.RecordBatch:
    return pa.RecordBatch.from_arrays(cast("Any", columns), schema=schema)


def _stamp(operation: str, stamp: Stamp) -> dict[str, Any]:
    return {
        "_op": operation,
        "_lsn": int(stamp.lsn),
        "_commit_lsn": int(stamp.commit_lsn),
        "_commit_ts": stamp.commit_ts,
        "_xid": stamp.xid,
        "_seq": stamp.seq,
    }


def _stamps(operation: str, stamps: Stamps) -> list[ArrowArray]:
    commit_ts: ArrowArray = pa.array(stamps.commit_ts)
    return [
        pa.repeat(pa.scalar(operation), len(stamps)),
        pa.array(stamps.lsn),
        pa.array(stamps.commit_lsn),
        commit_ts.cast(pa.timestamp("us", "UTC")),
        pa.array(stamps.xid, mask=stamps.xid == INVALID_XID),
        pa.array(stamps.seq),
    ]


def _image(
    table: TableSchema, image: Image | None, rows: int, label: str
) -> tuple[list[ArrowArray], list[Unfit]]:
    """Convert an image's columns, null where it has none; `label` precedes the names of what doesn't fit."""
    columns, unfit = [], []
    for index, column in enumerate(table.columns):
        wire = None if image is None else image.columns[index]
        typed = (
            Typed(kernels.nulls(rows, arrow_type(column.type)), None)
            if wire is None
            else to_arrow(column.type, wire)
        )
        columns.append(typed.values)
        if wire is not None and typed.unfit is not None:
            unfit.append(Unfit(label + column.name, typed.unfit, wire))
    return columns, unfit


def _struct(columns: Sequence[ArrowArray], schema: pa.Schema) -> ArrowArray:
    kind: Any = schema.field("_old").type
    return cast("ArrowArray", pa.StructArray.from_arrays(cast("Any", columns), fields=list(kind)))


def _unchanged(table: TableSchema, image: FullImage | None, rows: int) -> ArrowArray:
    marked = (
        []
        if image is None
        else [
            (column.name, mask)
            for column, mask in zip(table.columns, image.unchanged, strict=True)
            if mask is not None
        ]
    )
    if not marked:
        return kernels.nulls(rows, NAMES)
    masks = np.stack([mask for _, mask in marked], axis=1)
    names = kernels.take(pa.array([name for name, _ in marked]), np.nonzero(masks)[1])
    counts = masks.sum(axis=1)
    return kernels.lists(_offsets(counts), names, counts == 0)


def _unfit(unfit: Sequence[Unfit], rows: int) -> ArrowArray:
    if not unfit:
        return kernels.nulls(rows, UNFIT)
    at = np.concatenate([np.flatnonzero(one.rows) for one in unfit])
    order = np.argsort(at, kind="stable")
    names = pa.array([one.name for one in unfit])
    owners = np.repeat(np.arange(len(unfit)), [one.rows.sum() for one in unfit])
    texts = kernels.concat([kernels.as_text(one.texts.filter(pa.array(one.rows))) for one in unfit])
    counts = np.bincount(at, minlength=rows)
    entries = kernels.take(names, owners[order]), kernels.take(texts, order)
    return kernels.maps(_offsets(counts), *entries, counts == 0)


def _offsets(counts: Int64s) -> NDArray[np.int32]:
    return np.concatenate([np.zeros(1, np.int32), np.cumsum(counts, dtype=np.int32)])


END_OF_STREAM = b"\xff\xff\xff\xff\0\0\0\0"
"""Continuation marker and a metadata length of 0 (Arrow columnar format, "IPC Streaming Format")."""

LARGEST_MESSAGE = 64 * 1024 * 1024
"""Bytes up to which small record batches become one."""

ArrowCompression = Literal["none", "zstd"]


def _concat(batches: Sequence[pa.RecordBatch]) -> pa.RecordBatch:
    return pa.Table.from_batches(list(batches)).combine_chunks().to_batches()[0]


def _take(batch: pa.RecordBatch, rows: Int64s) -> pa.RecordBatch:
    return batch.take(rows)


_BATCHES: Arrange[pa.RecordBatch] = Arrange(_concat, _take)


@dataclass(frozen=True, slots=True)
class ArrowFormat:
    """One target a table, and one for logical messages. `compression` is that of record batch bodies."""

    name: ClassVar[str] = "arrow"
    suffix: ClassVar[str] = ".arrow"
    tail: ClassVar[bytes] = END_OF_STREAM
    capabilities: ClassVar[Capabilities] = Capabilities(("table",), ("none", "zstd"))
    decodes: ClassVar[Literal[True]] = True
    wants_boundaries: ClassVar[bool] = False
    restartable: ClassVar[None] = None

    compression: ArrowCompression = "none"

    def encode(self, part: Slice) -> EncodedSlice:
        """Encode the rows of a slice.

        A value that is no valid UTF-8 is a PROTOCOL error, a column called as one of pgcdc's own a USAGE
        error.
        """
        encoded = [_changes(batch) for batch in part.changes if len(batch)]
        encoded += [_truncate(event) for event in part.truncates]
        encoded += [_message(event) for event in part.messages]
        pieces = tuple(_piece(batch) for batch in _BATCHES.in_order(encoded))
        return EncodedSlice(pieces, part.edge, tables_of(part))

    def frame(self, data: Sequence[Data]) -> bytes | memoryview | pa.Buffer:
        """Write record batch messages, small batches together. All must have one schema."""
        batches = [batch for batch in data if isinstance(batch, pa.RecordBatch)]
        if not batches:
            return b""
        schema = batches[0].schema
        sink = pa.BufferOutputStream()
        compression = None if self.compression == "none" else self.compression
        options = pa.ipc.IpcWriteOptions(compression=compression)
        with pa.ipc.new_stream(sink, schema, options=options) as writer:
            for group in _groups(batches):
                writer.write_batch(group[0] if len(group) == 1 else _concat(group))
        written = sink.getvalue()
        head = schema.serialize().size
        return written.slice(head, written.size - head - len(END_OF_STREAM))


def _groups(batches: Sequence[pa.RecordBatch]) -> Iterator[list[pa.RecordBatch]]:
    group: list[pa.RecordBatch] = []
    size = 0
    for batch in batches:
        if group and size + batch.nbytes > LARGEST_MESSAGE:
            yield group
            group, size = [], 0
        group.append(batch)
        size += batch.nbytes
    yield group


def _changes(batch: ChangeBatch) -> Encoded[pa.RecordBatch]:
    rows = batch_of_changes(batch, table_schema(batch.table))
    index, commit_lsn = batch.stamps.index, batch.stamps.commit_lsn
    return Encoded(batch.table.display, batch.table, index, commit_lsn, rows, batch.lacks_any)


def _truncate(event: TruncateChange) -> Encoded[pa.RecordBatch]:
    rows = batch_of_truncate(event, table_schema(event.table))
    return Encoded(event.table.display, event.table, *place(event.stamp), rows)


def _message(event: MessageChange) -> Encoded[pa.RecordBatch]:
    return Encoded(MESSAGES, None, *place(event.stamp), batch_of_message(event))


def _piece(batch: Encoded[pa.RecordBatch]) -> Piece:
    head = batch.rows.schema.serialize().to_pybytes()
    rows = len(batch.index)
    return Piece(batch.target, rows, *commit_range(batch), batch.rows, head, batch.table, batch.unchanged)
