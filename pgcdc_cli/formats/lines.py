"""Formats of lines: how rows are held until they are written, put together, and compressed."""

from collections.abc import Sequence
from itertools import chain
from typing import TypeAlias, cast

import numpy as np
import pyarrow as pa

from pgcdc_cli.changes.slice import ChangeBatch, FewColumns, FullImage, KeyImage
from pgcdc_cli.changes.table import TableSchema
from pgcdc_cli.formats.interface import Compression, Data, Layout, Piece
from pgcdc_cli.formats.stream_order import MESSAGES, Arrange, Encoded
from pgcdc_cli.types import kernels
from pgcdc_cli.types.kernels import ArrowArray, Booleans, Int64s

Lines: TypeAlias = "ArrowArray | list[bytes]"
EncodedLines: TypeAlias = "Encoded[Lines]"

MOST_ROWS = 96
"""Rows from about which on columns are quicker than one after the other."""


MOST_BYTES = 1 << 16
"""The most of their values: while Python writes a long one, no other thread tells the server that we live."""


def are_few(batch: ChangeBatch, weight: int = 1) -> bool:
    """Say whether rows of a table and shape are quicker written one by one; each counts as `weight`."""
    return len(batch) * weight <= MOST_ROWS and _bytes_of(batch.old) + _bytes_of(batch.new) <= MOST_BYTES


def _bytes_of(image: FullImage | KeyImage | None) -> int:
    """Count what an image's arrays refer to; values that came as lists are of a small batch."""
    if image is None or isinstance(image.columns, FewColumns):
        return 0
    return sum(column.nbytes for column in image.columns if column is not None)


def _concat(lines: Sequence[Lines]) -> Lines:
    if all(isinstance(some, list) for some in lines):
        return list(chain.from_iterable(cast("Sequence[list[bytes]]", lines)))
    return kernels.concat_bytes([kernels.binary(some) if isinstance(some, list) else some for some in lines])


def _take(lines: Lines, rows: Int64s) -> Lines:
    return [lines[row] for row in rows.tolist()] if isinstance(lines, list) else kernels.take(lines, rows)


LINES: Arrange[Lines] = Arrange(_concat, _take)


def not_empty(lines: Lines) -> Booleans | None:
    """Say which rows have a text at all; None if all have."""
    if isinstance(lines, list):
        return None if all(lines) else np.array([len(line) > 0 for line in lines])
    mask: Booleans = np.diff(kernels.value_bytes(lines)[0]) > 0
    return None if mask.all() else mask


def joined_lines(lines: Lines) -> bytes | pa.Buffer:
    """Give lines as one piece of data."""
    return b"".join(lines) if isinstance(lines, list) else kernels.contiguous(lines)


def target_of(layout: Layout, table: TableSchema | None) -> tuple[str, TableSchema | None]:
    """Say into which file lines of a table go, or of none, and whose alone that file is."""
    if layout == "stream":
        return "", None
    return (MESSAGES, None) if table is None else (table.display, table)


def piece_of(lines: EncodedLines) -> Piece:
    """Give a file's lines to the sink."""
    data, rows = joined_lines(lines.rows), len(lines.rows)
    return Piece(lines.target, rows, *lines.commit_range, data, table=lines.table, unchanged=lines.unchanged)


SUFFIXES: dict[Compression, str] = {"none": "", "gzip": ".gz", "zstd": ".zst"}
_LEVELS = {"gzip": 6, "zstd": 3}


def join_bytes(data: Sequence[Data]) -> bytes | memoryview | pa.Buffer:
    """Join buffers; a single one stays as it is."""
    if len(data) == 1 and not isinstance(data[0], pa.RecordBatch):
        return data[0]
    return b"".join(memoryview(some) for some in data if not isinstance(some, pa.RecordBatch))


def compress(data: Sequence[Data], compression: Compression) -> bytes | memoryview | pa.Buffer:
    """Make one frame (a gzip member, a zstd frame) that holds all of `data`."""
    joined = join_bytes(data)
    if compression == "none":
        return joined
    return pa.Codec(compression, _LEVELS[compression]).compress(joined)
