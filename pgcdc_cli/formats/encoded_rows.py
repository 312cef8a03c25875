"""Encoded rows of a slice: put into stream order again after batches split them by table and shape.

Rows of text are lines. They are kept as lines until they are written; then they are joined and compressed.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from itertools import chain
from typing import Generic, TypeAlias, TypeVar, cast

import numpy as np
import pyarrow as pa

from pgcdc_cli.changes.slice import (
    FEW_BYTES,
    FEW_ROWS,
    ChangeBatch,
    EmptyTable,
    FewColumns,
    Image,
    Slice,
    Stamps,
)
from pgcdc_cli.changes.table import TableSchema
from pgcdc_cli.formats.interface import Compression, Data, Layout, Piece
from pgcdc_cli.lsn import Lsn
from pgcdc_cli.types import kernels
from pgcdc_cli.types.kernels import ArrowArray, Booleans, Int64s

RowsT = TypeVar("RowsT")

MESSAGES = "_messages"
"""The target of logical messages, which belong to no table."""


@dataclass(frozen=True, slots=True, eq=False)
class Encoded(Generic[RowsT]):
    """Rows for one target; `table` is None for rows of no table; `index` are their places in the stream.

    `unchanged`: some rows have values that the server didn't send (unchanged TOAST).
    """

    target: str
    table: TableSchema | None
    index: Int64s
    commit_lsn: Int64s
    rows: RowsT
    unchanged: bool = False

    @property
    def commit_range(self) -> tuple[Lsn, Lsn]:
        """The commit LSNs of the first and the last row."""
        return Lsn(self.commit_lsn[0]), Lsn(self.commit_lsn[-1])


@dataclass(frozen=True, slots=True)
class Arrange(Generic[RowsT]):
    """A format's ways to arrange its rows: `concat` several groups, `take` some rows in a given order."""

    concat: Callable[[Sequence[RowsT]], RowsT]
    take: Callable[[RowsT, Int64s], RowsT]

    def in_order(self, encoded: Sequence[Encoded[RowsT]]) -> list[Encoded[RowsT]]:
        """Merge rows of the same target and table version; the results are in the order of their first rows.

        A target has several results if its table changed within the slice. By this order, also of different
        targets, the manifest tells which name a renamed table had last.
        """
        groups: dict[tuple[str, str], list[Encoded[RowsT]]] = {}
        for one in encoded:
            groups.setdefault((one.target, one.table.fingerprint if one.table else ""), []).append(one)
        versions: dict[str, list[Encoded[RowsT]]] = {}
        for group in groups.values():
            versions.setdefault(group[0].target, []).append(self._merge(group))
        runs = (run for some in versions.values() for run in self._cut(some))
        return sorted(runs, key=lambda run: int(run.index[0]))

    def _merge(self, group: Sequence[Encoded[RowsT]]) -> Encoded[RowsT]:
        if len(group) == 1:
            return self._sorted(group[0])
        index = np.concatenate([one.index for one in group])
        commit_lsn = np.concatenate([one.commit_lsn for one in group])
        rows = self.concat([one.rows for one in group])
        unchanged = any(one.unchanged for one in group)
        return self._sorted(Encoded(group[0].target, group[0].table, index, commit_lsn, rows, unchanged))

    def _sorted(self, encoded: Encoded[RowsT]) -> Encoded[RowsT]:
        if (encoded.index[1:] > encoded.index[:-1]).all():
            return encoded
        return self._pick(encoded, np.argsort(encoded.index))

    def _pick(self, encoded: Encoded[RowsT], chosen: Int64s) -> Encoded[RowsT]:
        rows = self.take(encoded.rows, chosen)
        return replace(encoded, index=encoded.index[chosen], commit_lsn=encoded.commit_lsn[chosen], rows=rows)

    def _cut(self, versions: Sequence[Encoded[RowsT]]) -> list[Encoded[RowsT]]:
        """Interleave a table's versions (each sorted) in stream order, in as few runs as possible."""
        if len(versions) == 1:
            return list(versions)
        index = np.concatenate([version.index for version in versions])
        owner = np.repeat(np.arange(len(versions)), [len(version.index) for version in versions])
        order = np.argsort(index)
        runs = np.split(order, np.flatnonzero(np.diff(owner[order])) + 1)
        return [self._run(versions[owner[run[0]]], index[run[0]], index[run[-1]]) for run in runs]

    def _run(self, version: Encoded[RowsT], first: int, last: int) -> Encoded[RowsT]:
        chosen = np.flatnonzero((version.index >= first) & (version.index <= last))
        return version if len(chosen) == len(version.index) else self._pick(version, chosen)


def tables_of(slice_: Slice) -> tuple[TableSchema, ...]:
    """List the tables of a slice, each version once."""
    tables = [*(batch.table for batch in slice_.changes), *(event.table for event in slice_.truncates)]
    tables += [one.table for one in slice_.empty_tables]
    return tuple({table.fingerprint: table for table in tables}.values())


Lines: TypeAlias = "ArrowArray | list[bytes]"
EncodedLines: TypeAlias = "Encoded[Lines]"


def are_few(batch: ChangeBatch, weight: int = 1) -> bool:
    """Whether writing a batch's rows one by one is faster than by column; each row counts as `weight`."""
    return len(batch) * weight <= FEW_ROWS and _bytes_of(batch.old) + _bytes_of(batch.new) <= FEW_BYTES


def _bytes_of(image: Image | None) -> int:
    """Count the bytes of an image's arrays; FewColumns are always few bytes."""
    if image is None or isinstance(image.columns, FewColumns):
        return 0
    return sum(column.get_total_buffer_size() for column in image.columns if column is not None)


def _concat(lines: Sequence[Lines]) -> Lines:
    if all(isinstance(some, list) for some in lines):
        return list(chain.from_iterable(cast("Sequence[list[bytes]]", lines)))
    return kernels.concat_bytes([kernels.binary(some) if isinstance(some, list) else some for some in lines])


def _take(lines: Lines, rows: Int64s) -> Lines:
    return [lines[row] for row in rows.tolist()] if isinstance(lines, list) else kernels.take(lines, rows)


LINES: Arrange[Lines] = Arrange(_concat, _take)


def not_empty(lines: Lines) -> Booleans | None:
    """Mark the rows that have text; None if all have."""
    if isinstance(lines, list):
        return None if all(lines) else np.array([len(line) > 0 for line in lines])
    mask: Booleans = np.diff(kernels.value_bytes(lines)[0]) > 0
    return None if mask.all() else mask


def joined_lines(lines: Lines) -> bytes | pa.Buffer:
    """Join lines into one buffer."""
    return b"".join(lines) if isinstance(lines, list) else kernels.contiguous(lines)


def encoded_lines(
    layout: Layout, table: TableSchema | None, stamps: Stamps, lines: Lines, *, unchanged: bool = False
) -> EncodedLines:
    """Address lines of a table (None: of no table) to the file that has them in this layout."""
    target = "" if layout == "stream" else MESSAGES if table is None else table.display
    owner = None if layout == "stream" else table
    return Encoded(target, owner, stamps.index, stamps.commit_lsn, lines, unchanged)


def piece_of(lines: EncodedLines) -> Piece:
    """Make the sink's piece of one target's lines."""
    data, rows = joined_lines(lines.rows), len(lines.rows)
    return Piece(lines.target, rows, *lines.commit_range, data, table=lines.table, unchanged=lines.unchanged)


def piece_of_empty(one: EmptyTable, table: TableSchema, head: bytes = b"") -> Piece:
    """Make the piece for the empty file of a table without rows."""
    return Piece(table.display, 0, one.position, one.position, b"", head, table)


SUFFIXES: dict[Compression, str] = {"none": "", "gzip": ".gz", "zstd": ".zst"}
_LEVELS = {"gzip": 6, "zstd": 3}


def join_bytes(data: Sequence[Data]) -> bytes | memoryview | pa.Buffer:
    """Join buffers; a single one stays as it is."""
    if len(data) == 1 and not isinstance(data[0], pa.RecordBatch):
        return data[0]
    return b"".join(memoryview(some) for some in data if not isinstance(some, pa.RecordBatch))


def compress(data: Sequence[Data], compression: Compression) -> bytes | memoryview | pa.Buffer:
    """Compress `data` into one frame: a gzip member or a zstd frame."""
    joined = join_bytes(data)
    if compression == "none":
        return joined
    return pa.Codec(compression, _LEVELS[compression]).compress(joined)
