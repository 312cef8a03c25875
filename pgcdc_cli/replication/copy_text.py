"""Read the rows of COPY ... TO STDOUT in the text format, many at a time, and divide them into columns.

A tab or newline always ends a value: those within values are escaped. PostgreSQL manual, "COPY", "Text
Format".
"""

from collections.abc import Callable, Collection, Iterator
from typing import ClassVar, NamedTuple

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray
from psycopg.pq.abc import PGconn

from pgcdc_cli.replication.backend_messages import COPY_DATA, HEAD
from pgcdc_cli.replication.copy_out import (
    is_encrypted,
    lengths_at,
    rows_from_libpq,
    rows_from_socket,
    undecodable,
)
from pgcdc_cli.types import kernels
from pgcdc_cli.types.kernels import Booleans, Int64s

Places = NDArray[np.integer]

GAP = b"d\0\0\0\0"
"""The head of each row with its length zeroed, so that no length holds a tab, newline or backslash."""

BLOCK = 1 << 20
"""Bytes in which escapes are resolved at a time: so few that what is made of them stays in a cache."""

_TAB, _NEWLINE, _BACKSLASH, _NULL = b"\t\n\\N"

_UNESCAPED = np.arange(256, dtype=np.uint8)
_UNESCAPED[list(b"bfnrtv")] = list(b"\b\f\n\r\t\v")


def copy_text(
    pgconn: PGconn, statement: bytes, width: int, stopped: Callable[[], bool]
) -> Iterator[tuple[int, tuple[pa.BinaryArray, ...]]]:
    """Yield some whole rows at a time: their size in bytes, and their `width` columns.

    Ends early once `stopped`. Raises psycopg.Error, and what `copy_columns` raises. After an error or a stop
    the connection can't be used any more.
    """
    for chunk in _chunks(pgconn, statement, stopped):
        yield len(chunk), copy_columns(chunk, width)


def _chunks(pgconn: PGconn, statement: bytes, stopped: Callable[[], bool]) -> Iterator[bytes | memoryview]:
    """Yield chunks of one or more whole rows, each row preceded by a `GAP`.

    The next chunk overwrites the last one's memory.
    """
    if is_encrypted(pgconn):
        for rows in rows_from_libpq(pgconn, statement, stopped):
            yield GAP + GAP.join(rows)
        return
    for data, edges in rows_from_socket(pgconn, statement, TextRows(), stopped):
        lengths_at(data)[edges[:-1]] = 0
        yield data[edges[0] : edges[-1]].data


class TextRows:
    """The rows of COPY's text format, each a line."""

    others: ClassVar[Collection[bytes]] = ()

    def find_rows(self, data: NDArray[np.uint8]) -> Int64s:
        """Find the rows as described in `Framing`.

        A row ends with its only newline, since those within values are escaped. Another newline can only be
        in the next message's head, so close that no row can end there. The result is checked against the
        messages' lengths.
        """
        newlines = np.flatnonzero(data == _NEWLINE)
        edges = np.append(0, newlines[np.diff(newlines, prepend=-1) > HEAD] + 1)
        begins = edges[:-1]
        if not len(begins):
            return edges
        whole = (data[begins] == COPY_DATA) & (lengths_at(data)[begins] == np.diff(edges) - 1)
        return edges if whole.all() else edges[: whole.argmin() + 1]


class _Values(NamedTuple):
    """The values of m columns and n rows: that of column i, row j is `data[starts[i, j]:ends[i, j]]`.

    The positions of a column are contiguous, since they are used together, and as short as Arrow's offsets.
    """

    data: NDArray[np.uint8]
    starts: Places
    ends: Places
    null: Booleans | None


def copy_columns(data: bytes | memoryview, width: int) -> tuple[pa.BinaryArray, ...]:
    """Divide rows, each preceded by a `GAP`, into columns. Raises PROTOCOL if they aren't `width`."""
    values = _values(np.frombuffer(data, np.uint8), width)
    buffer = kernels.buffer(values.data)
    return tuple(
        kernels.nulled(
            kernels.pack(buffer, values.starts[column], values.ends[column]),
            None if values.null is None else values.null[column],
        )
        for column in range(width)
    )


def _values(data: NDArray[np.uint8], width: int) -> _Values:
    # Tab (9) and newline (10) are neighbours, and bytes below a tab wrap around to large numbers.
    found = np.flatnonzero(data - np.uint8(_TAB) <= _NEWLINE - _TAB)
    ends_row = data[found] == _NEWLINE
    if len(found) % width or not ends_row[width - 1 :: width].all() or ends_row.sum() * width != len(found):
        raise undecodable(f"they do not have {width} columns")
    ends = np.ascontiguousarray(found.reshape(-1, width).T, np.int32)
    starts = np.empty_like(ends)
    starts[1:] = ends[:-1] + 1
    starts[0, :1] = len(GAP)
    starts[0, 1:] = ends[-1, :-1] + 1 + len(GAP)
    values = _Values(data, starts, ends, None)
    backslashes = int(np.count_nonzero(data == _BACKSLASH))
    return _read(values, backslashes) if backslashes else values


def _read(values: _Values, backslashes: int) -> _Values:
    """Find the nulls, each of which has one backslash, and resolve the other escapes."""
    data, starts, ends, _ = values
    null = (ends - starts == len(b"\\N")) & (data[starts] == _BACKSLASH) & (data[ends - 1] == _NULL)
    if null.sum() < backslashes:
        data, starts, ends = _unescaped(data, starts, ends)
    return _Values(data, np.where(null, ends, starts), ends, null)


def _unescaped(
    data: NDArray[np.uint8], starts: Places, ends: Places
) -> tuple[NDArray[np.uint8], Places, Places]:
    """Resolve the escapes, a block at a time: their positions may take many times a value's space."""
    pieces, removed = [], 0
    moved = starts.copy(), ends.copy()
    for begin, end in _blocks(data):
        piece, escapes = _unescaped_block(data[begin:end])
        for old, new in zip((starts, ends), moved, strict=True):
            inside = (old >= begin) & (old < end)
            new[inside] -= removed + np.searchsorted(escapes, old[inside] - begin)
        pieces.append(piece)
        removed += len(escapes)
    return np.concatenate(pieces), *moved


def _blocks(data: NDArray[np.uint8]) -> Iterator[tuple[int, int]]:
    """Divide data between escapes: no block ends with an odd number of backslashes."""
    begin = 0
    while begin < len(data):
        end = min(begin + BLOCK, len(data))
        if end < len(data):
            others = data[begin:end][::-1] != _BACKSLASH
            run = int(others.argmax()) if others.any() else end - begin
            end -= run % 2
        yield begin, end
        begin = end


def _unescaped_block(block: NDArray[np.uint8]) -> tuple[NDArray[np.uint8], Int64s]:
    """Resolve the escapes in a block; also return their positions."""
    escapes = _escapes(np.flatnonzero(block == _BACKSLASH))
    unescaped = block.copy()
    unescaped[escapes + 1] = _UNESCAPED[block[escapes + 1]]
    keep = np.ones(len(block), np.bool_)
    keep[escapes] = False
    return unescaped[keep], escapes


def _escapes(backslashes: Int64s) -> Int64s:
    """Return the backslashes that begin an escape: of a run of them, every other one is escaped itself."""
    begins = np.ones(len(backslashes), np.bool_)
    begins[1:] = np.diff(backslashes) != 1
    if begins.all():
        return backslashes
    numbers = np.arange(len(backslashes))
    in_run = numbers - np.maximum.accumulate(np.where(begins, numbers, 0))
    escapes: Int64s = backslashes[in_run % 2 == 0]
    return escapes
