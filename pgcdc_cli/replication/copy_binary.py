"""Read the rows of COPY ... TO STDOUT (FORMAT binary), many at a time, as columns of Arrow's types.

A row is an Int16, the number of columns, and for each column an Int32, the value's length (-1 for NULL), and
the value in its type's send format. PostgreSQL manual, "COPY", "Binary Format".
"""

from collections.abc import Callable, Collection, Iterator, Sequence
from typing import ClassVar

import numpy as np
from numpy.typing import NDArray
from psycopg.pq.abc import PGconn

from pgcdc_cli.errors import MalformedError
from pgcdc_cli.replication.backend_messages import COPY_DATA, HEAD
from pgcdc_cli.replication.copy_out import (
    BYTES,
    lengths_at,
    rows_from_socket,
    size_of,
    undecodable,
)
from pgcdc_cli.types import kernels
from pgcdc_cli.types.binary.arrow_values import Fields, arrow_values
from pgcdc_cli.types.kernels import ArrowArray, Int64s
from pgcdc_cli.types.pg_type import PgType

_SIGNATURE = b"PGCOPY\n\xff\r\n\0"
_FILE_HEADER = _SIGNATURE + bytes(8)
"""The signature, no flags, and no header extension."""

_COUNT = 2
"""Bytes of a row's number of columns."""


def copy_binary(
    pgconn: PGconn, statement: bytes, types: Sequence[PgType], stopped: Callable[[], bool]
) -> Iterator[tuple[int, tuple[ArrowArray, ...]]]:
    """Yield bytes received and columns of these types, for chunks of one or more rows.

    The connection must not be encrypted. Columns are those of `arrow_values`. Ends early once `stopped`.
    Raises psycopg.Error, and PROTOCOL. After an error or a stop the connection can't be used any more.
    """
    for data, edges in rows_from_socket(pgconn, statement, BinaryRows(len(types)), stopped):
        yield int(edges[-1] - edges[0]), binary_columns(data, edges, types)


class BinaryRows:
    """The rows of COPY's binary format, with `width` columns."""

    # What a header in a message of its own leaves, and the trailer.
    others: ClassVar[Collection[bytes]] = (b"", b"\xff\xff")

    def __init__(self, width: int) -> None:
        self._width = width
        self._begun = False

    def find_rows(self, data: NDArray[np.uint8]) -> Int64s:
        """Find the rows as described in `Framing`.

        Every place where a row's message could begin is the beginning of one, or within another row. If all
        are linked by their messages' lengths, they are the rows; else the links are followed one by one.
        """
        start = 0 if self._begun else self._skip_header(data)
        if not self._begun or len(data) < start + HEAD or start + size_of(data[start:]) > len(data):
            return np.full(1, start, np.int64)
        begins = self._candidates(data, start)
        if not len(begins) or begins[0] != start:
            return np.full(1, start, np.int64)
        ends = begins + 1 + lengths_at(data)[begins]
        if (ends[:-1] != begins[1:]).any():
            begins, ends = _with_predecessor(begins, ends, len(data))
        if (ends[:-1] != begins[1:]).any():
            return _linked(start, dict(zip(begins.tolist(), ends.tolist(), strict=True)), len(data))
        return np.append(begins, ends[-1]) if ends[-1] <= len(data) else begins

    def _candidates(self, data: NDArray[np.uint8], start: int) -> Int64s:
        """Find the places from `start` on that have the tag and the number of columns of a row."""
        tags = data[start : -HEAD - _COUNT + 1] == COPY_DATA
        if len(data) > BYTES:
            # A large value may have the tag everywhere: eight bytes for each place would be too many.
            tags &= data[start + HEAD : -1] == self._width >> 8
            tags &= data[start + HEAD + 1 :] == self._width & 0xFF
        begins = start + np.flatnonzero(tags)
        counts = kernels.at_each_byte(data, "u2")[begins + HEAD]
        candidates: Int64s = begins[counts == self._width]
        return candidates

    def _skip_header(self, data: NDArray[np.uint8]) -> int:
        """Make the first row's message one of its own: the header is before it, in the same message.

        Returns where it begins; 0 if the header isn't there yet.
        """
        end = HEAD + len(_FILE_HEADER)
        if len(data) < end or data[0] != COPY_DATA:
            return 0
        if data[HEAD:end].tobytes() != _FILE_HEADER or size_of(data) < end:
            raise undecodable("it does not begin with the header of the binary format")
        self._begun = True
        start = len(_FILE_HEADER)
        data[start:end] = data[:HEAD]
        lengths_at(data)[start] -= start
        return start


def _with_predecessor(begins: Int64s, ends: Int64s, size: int) -> tuple[Int64s, Int64s]:
    """Leave out all but the first place that are not where another's message ends: most that are no rows."""
    follows = np.zeros(size + 1, np.bool_)
    follows[ends[ends <= size]] = True
    follows[begins[0]] = True
    kept = follows[begins]
    return begins[kept], ends[kept]


def _linked(start: int, ends: dict[int, int], size: int) -> Int64s:
    edges = [start]
    while (end := ends.get(edges[-1], size + 1)) <= size:
        edges.append(end)
    return np.array(edges, np.int64)


def binary_columns(data: NDArray[np.uint8], edges: Int64s, types: Sequence[PgType]) -> tuple[ArrowArray, ...]:
    """Divide rows, whose messages have these edges, into columns. Raises PROTOCOL."""
    try:
        return arrow_values(types, list(_fields(data, edges, len(types))))
    except MalformedError as error:
        raise undecodable(f"a value is not in its type's format: {error.reason}") from None


def _fields(data: NDArray[np.uint8], edges: Int64s, width: int) -> Iterator[Fields]:
    lengths = kernels.at_each_byte(data, "i4")
    position = edges[:-1].astype(np.int32) + np.int32(HEAD + _COUNT)
    last = np.int32(len(lengths) - 1)
    for _ in range(width):
        # A damaged row may lead anywhere; it doesn't end where its message does.
        length = lengths[np.minimum(position, last)].astype(np.int32)
        starts = position + np.int32(4)
        null = length < 0 if length.min() < 0 else None
        if null is not None and length.min() < -1:
            raise undecodable("a value has a negative length")
        position = starts + (length if null is None else np.maximum(length, np.int32(0)))
        # An overflow is negative, and a large number when unsigned.
        if position.view(np.uint32).max() > edges[-1]:
            raise undecodable("a value goes beyond its row")
        yield Fields(data, starts, position, null)
    if (position != edges[1:]).any():
        raise undecodable("a value goes beyond its row")
