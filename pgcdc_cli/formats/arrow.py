"""Arrow IPC streams, one schema a file (`arrowschema.py`): typed columns, a record batch message a frame."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import ClassVar, Literal

import pyarrow as pa

from pgcdc_cli.formats.arrowrow import batch_of_changes, batch_of_message, batch_of_truncate
from pgcdc_cli.formats.arrowschema import table_schema
from pgcdc_cli.formats.base import Data, EncodedSlice, Piece
from pgcdc_cli.formats.capabilities import Capabilities
from pgcdc_cli.formats.ordered import MESSAGES, Arrange, Encoded, commit_range, place, tables_of
from pgcdc_cli.pgoutput.changes import ChangeBatch, Int64s, MessageChange, Slice, TruncateChange

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
    wants_marks: ClassVar[bool] = False
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
