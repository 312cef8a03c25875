"""Arrow IPC files: one schema per file, typed columns, one record batch message per frame.

A file is a stream between two magic strings, followed by a footer with the positions of its record batches.
Since the stream comes first, a file grows by appending. The end of the stream and the footer are added when
the file is finished; they are made from the messages' own metadata. See "IPC File Format" in Arrow's
"Columnar Format", File.fbs and Message.fbs; the metadata are FlatBuffers (https://flatbuffers.dev,
"FlatBuffer Binary Format").

A file has `_op`, `_lsn`, `_commit_lsn`, `_commit_ts`, `_xid`, `_seq`, `_unchanged`, `_truncate`, then the
table's columns, then `_old` and `_unfit`:

- `_op` is I, U, D, R or T. LSNs are integers. `_xid` is null outside of transactions.
- `_unchanged` names the columns whose values the server didn't send (unchanged TOAST); null if there are
  none.
- `_truncate` lists the options of a T ("cascade", "restart_identity"; empty for none), and all the table's
  columns are null then; it is null for every other operation.
- `_old` is the old row as a struct of the table's columns, null if the server sent none. If it sent only the
  replica identity, the other columns are null.
- `_unfit` maps the name of a column (`_old.NAME` for one of the old row) to PostgreSQL's text of a value that
  its Arrow type can't hold, and that is therefore null there; null if there is no such value.

A file of logical messages has the columns `_op` (M) to `_seq`, then `transactional`, `prefix` and `content`.
"""

import struct
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, ClassVar, Literal, NamedTuple, TypeAlias, cast

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from pgcdc_cli.changes.slice import (
    INVALID_XID,
    ChangeBatch,
    FullImage,
    Image,
    MessageChange,
    Slice,
    Stamps,
    TruncateChange,
)
from pgcdc_cli.changes.table import MANY_TABLES, TableSchema
from pgcdc_cli.errors import ErrorKind, PgcdcError
from pgcdc_cli.formats.encoded_rows import MESSAGES, Arrange, Encoded, piece_of_empty, tables_of
from pgcdc_cli.formats.interface import Capabilities, Data, EncodedSlice, Piece, ReadAt, TableLists
from pgcdc_cli.types import kernels
from pgcdc_cli.types.kernels import ArrowArray, Booleans, Int64s
from pgcdc_cli.types.to_arrow import arrow_type, to_arrow

LARGEST_MESSAGE = 64 * 1024 * 1024
"""Small record batches are combined up to this many bytes."""

ArrowCompression = Literal["none", "zstd"]

MAGIC = b"ARROW1\0\0"
"""Begins a file, padded to 8 bytes; ends it without padding."""

END_OF_STREAM = b"\xff\xff\xff\xff\0\0\0\0"
"""Continuation marker and a metadata length of 0 (Arrow columnar format, "IPC Streaming Format")."""

_PREFIX = struct.Struct("<4xi")
"""A message's prefix: continuation marker, length of its metadata."""

_FOOTER = struct.Struct("<I6HihxxIII")
"""Offset of the root table; vtable: two sizes, four fields; table: offset of its vtable, these fields."""

_BLOCK = struct.Struct("<qi4xq")
"""A Block of the footer: a message's offset, length of its prefix and metadata, length of its body."""

_WINDOW = 1 << 16
"""Bytes of a file that are read at once; a small file is read whole."""

_VERSION, _HEADER, _BODY_LENGTH = 0, 2, 3
"""Field numbers of a Message (Message.fbs) that the footer needs."""


def _concat(batches: Sequence[pa.RecordBatch]) -> pa.RecordBatch:
    return pa.Table.from_batches(list(batches)).combine_chunks().to_batches()[0]


def _take(batch: pa.RecordBatch, rows: Int64s) -> pa.RecordBatch:
    return batch.take(rows)


_BATCHES: Arrange[pa.RecordBatch] = Arrange(_concat, _take)


@dataclass(frozen=True, slots=True)
class ArrowFormat:
    """Writes a target per table, and one for logical messages; `compression` is for record batch bodies."""

    name: ClassVar[str] = "arrow"
    suffix: ClassVar[str] = ".arrow"
    capabilities: ClassVar[Capabilities] = Capabilities(("table",), ("none", "zstd"), typed=True)
    decodes: ClassVar[Literal[True]] = True
    wants_boundaries: ClassVar[bool] = False
    restartable: ClassVar[None] = None
    table_lists: ClassVar[TableLists] = {}

    compression: ArrowCompression = "none"

    @property
    def tail(self) -> Callable[[ReadAt], bytes]:
        return file_end

    def encode(self, slice_: Slice) -> EncodedSlice:
        """Encode the rows of a slice.

        Raises PgcdcError: PROTOCOL for invalid UTF-8, USAGE for a column with one of pgcdc's own names.
        """
        encoded = [_changes(batch) for batch in slice_.changes if len(batch)]
        encoded += [_truncate(event) for event in slice_.truncates]
        encoded += [_messages(slice_.messages)] if slice_.messages else []
        pieces = [_piece(batch) for batch in _BATCHES.in_order(encoded)]
        pieces += [piece_of_empty(one, one.table, _head(one.table)) for one in slice_.empty_tables]
        return EncodedSlice(tuple(pieces), slice_.edge, tables_of(slice_))

    def frame(self, data: Sequence[Data]) -> bytes | memoryview | pa.Buffer:
        """Write record batch messages; small batches are combined. All must have one schema.

        A batch without rows, of an empty table, is left out.
        """
        batches = [batch for batch in data if isinstance(batch, pa.RecordBatch)]
        if not batches:
            return b""
        if len(batches) == 1 and self.compression == "none":
            # The message is the same, and is written into memory of the right size.
            return batches[0].serialize()
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
        # `nbytes` looks into every column; that takes longer than writing a few rows.
        added = batch.get_total_buffer_size()
        if group and size + added > LARGEST_MESSAGE:
            yield group
            group, size = [], 0
        group.append(batch)
        size += added
    yield group


def _piece(batch: Encoded[pa.RecordBatch]) -> Piece:
    head, rows = _head(batch.table), len(batch.index)
    return Piece(batch.target, rows, *batch.commit_range, batch.rows, head, batch.table, batch.unchanged)


@lru_cache(MANY_TABLES)
def _head(table: TableSchema | None) -> bytes:
    schema = MESSAGE_SCHEMA if table is None else _table_schema(table)
    return MAGIC + schema.serialize().to_pybytes()


ArrowField: TypeAlias = "pa.Field[Any]"

FORMAT_VERSION = 1

STAMP_FIELDS: tuple[ArrowField, ...] = (
    pa.field("_op", pa.string(), nullable=False),
    pa.field("_lsn", pa.int64(), nullable=False),
    pa.field("_commit_lsn", pa.int64(), nullable=False),
    pa.field("_commit_ts", pa.timestamp("us", "UTC"), nullable=False),
    pa.field("_xid", pa.int64()),
    pa.field("_seq", pa.int64(), nullable=False),
)
_COMMIT_TS = STAMP_FIELDS[3]
_NAMES = pa.list_(pa.string())
_TEXTS = pa.map_(pa.string(), pa.string())
OWN_NAMES = frozenset([*(field.name for field in STAMP_FIELDS), "_unchanged", "_truncate", "_old", "_unfit"])

_MESSAGE_FIELDS: tuple[ArrowField, ...] = (
    *(field.with_nullable(nullable=True) if field is _COMMIT_TS else field for field in STAMP_FIELDS),
    pa.field("transactional", pa.bool_(), nullable=False),
    pa.field("prefix", pa.string(), nullable=False),
    pa.field("content", pa.binary(), nullable=False),
)
MESSAGE_SCHEMA = pa.schema(_MESSAGE_FIELDS, {"format_version": str(FORMAT_VERSION)})


@lru_cache(MANY_TABLES)
def _table_schema(table: TableSchema) -> pa.Schema:
    """Build the schema; its metadata name the table and the version of its definition."""
    row = _row_fields(table)
    metadata: dict[str | bytes, str | bytes] = {
        "table": table.display,
        "schema_fingerprint": table.fingerprint,
        "format_version": str(FORMAT_VERSION),
    }
    fields: list[ArrowField] = [
        *STAMP_FIELDS,
        pa.field("_unchanged", _NAMES),
        pa.field("_truncate", _NAMES),
        *row,
        pa.field("_old", pa.struct(row)),
        pa.field("_unfit", _TEXTS),
    ]
    return pa.schema(fields, metadata)


def _row_fields(table: TableSchema) -> list[ArrowField]:
    """Type the table's columns. Raises PgcdcError (USAGE) for a column with one of pgcdc's own names."""
    for column in table.columns:
        if column.name in OWN_NAMES:
            raise PgcdcError(
                ErrorKind.USAGE,
                f'could not encode table "{table.display}" as Arrow: it has a column "{column.name}"',
                hint="that name is one of pgcdc's own in Arrow files: use --format jsonl",
            )
    return [pa.field(column.name, arrow_type(column.type)) for column in table.columns]


Columns: TypeAlias = dict[str, ArrowArray]
"""Columns by name; one that is null in all rows may be left out."""


def _changes(batch: ChangeBatch) -> Encoded[pa.RecordBatch]:
    """Convert n changes. Raises PgcdcError (PROTOCOL) for invalid UTF-8."""
    table, stamps, rows = batch.table, batch.stamps, len(batch)
    schema = _table_schema(table)
    new, unfit = _image(table, batch.new, "")
    columns = {**_stamps(batch.operation, stamps), **_unchanged(table, batch.new), **new}
    if batch.old is not None:
        old, old_unfit = _image(table, batch.old, "_old.")
        columns["_old"] = _struct(schema.field("_old").type, old, rows)
        unfit += old_unfit
    encoded = _record_batch(schema, {**columns, **_unfit(unfit, rows)}, rows)
    return Encoded(table.display, table, stamps.index, stamps.commit_lsn, encoded, batch.lacks_any)


def _truncate(event: TruncateChange) -> Encoded[pa.RecordBatch]:
    """Make the row of a T: only its stamp and `_truncate` are set."""
    table, stamps, schema = event.table, Stamps.of([event.stamp]), _table_schema(event.table)
    options = {"cascade": event.cascade, "restart_identity": event.restart_identity}
    nothing: Columns = {field.name: pa.array([None], field.type) for field in schema}
    given: ArrowArray = pa.array([[name for name, wanted in options.items() if wanted]], _NAMES)
    encoded = _record_batch(schema, {**nothing, **_stamps("T", stamps), "_truncate": given}, 1)
    return Encoded(table.display, table, stamps.index, stamps.commit_lsn, encoded)


def _messages(events: Sequence[MessageChange]) -> Encoded[pa.RecordBatch]:
    stamps = Stamps.of([event.stamp for event in events])
    columns = {
        **_stamps("M", stamps),
        # A message outside of transactions has no commit timestamp.
        _COMMIT_TS.name: pa.array([event.stamp.commit_ts for event in events], _COMMIT_TS.type),
        "transactional": pa.array([event.transactional for event in events], pa.bool_()),
        "prefix": pa.array([event.prefix for event in events], pa.string()),
        "content": pa.array([event.content for event in events], pa.binary()),
    }
    encoded = _record_batch(MESSAGE_SCHEMA, columns, len(events))
    return Encoded(MESSAGES, None, stamps.index, stamps.commit_lsn, encoded)


def _record_batch(schema: pa.Schema, columns: Mapping[str, ArrowArray], rows: int) -> pa.RecordBatch:
    return pa.RecordBatch.from_arrays(cast("Any", _filled(schema, columns, rows)), schema=schema)


def _struct(kind: pa.DataType, columns: Mapping[str, ArrowArray], rows: int) -> ArrowArray:
    fields: list[ArrowField] = list(cast("Any", kind))
    if not fields:
        return cast("ArrowArray", pa.repeat(cast("Any", pa.scalar({}, kind)), rows))
    arrays = cast("Any", _filled(fields, columns, rows))
    return cast("ArrowArray", pa.StructArray.from_arrays(arrays, fields=fields))


def _filled(fields: Iterable[ArrowField], columns: Mapping[str, ArrowArray], rows: int) -> list[ArrowArray]:
    """Order columns by the fields; a missing column is null in all rows."""
    return [
        columns[field.name] if field.name in columns else kernels.nulls(rows, field.type) for field in fields
    ]


def _stamps(operation: str, stamps: Stamps) -> Columns:
    """Make the columns of `STAMP_FIELDS`."""
    columns: tuple[ArrowArray, ...] = (
        pa.repeat(pa.scalar(operation, pa.string()), len(stamps)),
        kernels.numbers(stamps.lsn),
        kernels.numbers(stamps.commit_lsn),
        kernels.numbers(stamps.commit_ts, _COMMIT_TS.type),
        kernels.numbers(stamps.xid, null=stamps.xid == INVALID_XID),
        kernels.numbers(stamps.seq),
    )
    return {field.name: column for field, column in zip(STAMP_FIELDS, columns, strict=True)}


class _Unfit(NamedTuple):
    """The values of one column that its Arrow type can't hold: `texts[rows]`."""

    name: str
    rows: Booleans
    texts: ArrowArray


def _image(table: TableSchema, image: Image | None, label: str) -> tuple[Columns, list[_Unfit]]:
    """Convert an image's columns; `label` is put before the names of values that don't fit."""
    columns: Columns = {}
    unfit: list[_Unfit] = []
    for index, column in enumerate(table.columns):
        values = None if image is None else image.columns[index]
        if values is not None:
            typed = to_arrow(column.type, values)
            columns[column.name] = typed.values
            if typed.unfit is not None:
                unfit.append(_Unfit(label + column.name, typed.unfit, values))
    return columns, unfit


def _unchanged(table: TableSchema, image: FullImage | None) -> Columns:
    if image is None:
        return {}
    masks = zip(table.columns, image.unchanged, strict=True)
    marked = [(column.name, mask) for column, mask in masks if mask is not None]
    if not marked:
        return {}
    stacked = np.stack([mask for _, mask in marked], axis=1)
    names = kernels.take(pa.array([name for name, _ in marked]), np.nonzero(stacked)[1])
    counts = stacked.sum(axis=1)
    return {"_unchanged": kernels.lists(_offsets(counts), names, counts == 0)}


def _unfit(unfit: Sequence[_Unfit], rows: int) -> Columns:
    if not unfit:
        return {}
    at = np.concatenate([np.flatnonzero(one.rows) for one in unfit])
    order = np.argsort(at, kind="stable")
    names = pa.array([one.name for one in unfit])
    owners = np.repeat(np.arange(len(unfit)), [one.rows.sum() for one in unfit])
    texts = kernels.concat([kernels.as_text(one.texts.filter(pa.array(one.rows))) for one in unfit])
    counts = np.bincount(at, minlength=rows)
    entries = kernels.take(names, owners[order]), kernels.take(texts, order)
    return {"_unfit": kernels.maps(_offsets(counts), *entries, counts == 0)}


def _offsets(counts: Int64s) -> NDArray[np.int32]:
    return np.concatenate([np.zeros(1, np.int32), np.cumsum(counts, dtype=np.int32)])


class _Message(NamedTuple):
    """A message's metadata (a FlatBuffer), and the message's offset in the file."""

    offset: int
    metadata: bytes

    def field(self, number: int) -> int | None:
        """Find a field's offset; None if it is absent, which means its default value."""
        (table,) = struct.unpack_from("<I", self.metadata)
        vtable = table - struct.unpack_from("<i", self.metadata, table)[0]
        at = vtable + 4 + 2 * number
        if at >= vtable + struct.unpack_from("<H", self.metadata, vtable)[0]:
            return None
        (offset,) = struct.unpack_from("<H", self.metadata, at)
        return table + offset if offset else None

    def integer(self, number: int, layout: str) -> int:
        at = self.field(number)
        return 0 if at is None else int(struct.unpack_from(layout, self.metadata, at)[0])

    @property
    def body(self) -> int:
        """Bytes after the metadata."""
        return self.integer(_BODY_LENGTH, "<q")

    @property
    def end(self) -> int:
        return self.offset + _PREFIX.size + len(self.metadata) + self.body


def file_end(read: ReadAt) -> bytes:
    """Make the end of a file: the end of the stream, and the footer.

    Data that doesn't begin with the magic string is a stream, written by an earlier version, and gets only
    the end of a stream.
    """
    read = _ahead(read)
    if read(0, len(MAGIC)) != MAGIC:
        return END_OF_STREAM
    schema, *batches = _messages_in(read)
    footer = _footer(schema, batches)
    return END_OF_STREAM + footer + struct.pack("<i", len(footer)) + MAGIC.rstrip(b"\0")


def _ahead(read: ReadAt) -> ReadAt:
    """Read more than is asked for, since each read opens the file again."""
    start, window = 0, b""

    def from_window(offset: int, size: int) -> bytes:
        nonlocal start, window
        if not start <= offset <= offset + size <= start + len(window):
            start, window = offset, read(offset, max(size, _WINDOW))
        return window[offset - start : offset - start + size]

    return from_window


def _messages_in(read: ReadAt) -> Iterator[_Message]:
    at = len(MAGIC)
    while prefix := read(at, _PREFIX.size):
        message = _Message(at, read(at + _PREFIX.size, _PREFIX.unpack(prefix)[0]))
        yield message
        at = message.end


def _footer(schema: _Message, batches: list[_Message]) -> bytes:
    """Make a Footer; it contains the schema's whole Message, and refers to the schema inside that."""
    header = schema.field(_HEADER)
    assert header is not None
    in_message = header + struct.unpack_from("<I", schema.metadata, header)[0]
    dictionaries = _FOOTER.size
    blocks = dictionaries + 8
    message = blocks + 4 + _BLOCK.size * len(batches)
    version = schema.integer(_VERSION, "<h")
    # The table begins at 16; its fields are 4, 8, 12 and 16 bytes after that. Offsets count from their own
    # place.
    table = (16 - 4, version, message + in_message - 24, dictionaries - 28, blocks - 32)
    return b"".join(
        [
            _FOOTER.pack(16, 12, 20, 4, 8, 12, 16, *table),
            struct.pack("<I4xI", 0, len(batches)),
            *(_BLOCK.pack(b.offset, _PREFIX.size + len(b.metadata), b.body) for b in batches),
            schema.metadata,
        ]
    )
