"""Arguments and results of readers: n byte strings one after the other, none of them NULL.

Numbers on the wire are big-endian. Text is built as a matrix of characters, one row a value; a second matrix
says which characters are part of the value.
"""

import struct
from collections.abc import Callable, Sequence
from itertools import pairwise
from typing import Any, NamedTuple, TypeAlias

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from pgcdc_cli.errors import MalformedError
from pgcdc_cli.types import kernels
from pgcdc_cli.types.kernels import ArrowArray, Booleans, Int64s

Bytes = NDArray[np.uint8]
Integers: TypeAlias = "NDArray[np.integer[Any]]"


class Packed(NamedTuple):
    """String i is `data[offsets[i]:offsets[i + 1]]`; the first offset is 0."""

    offsets: Int64s
    data: Bytes

    @classmethod
    def of(cls, column: ArrowArray) -> "Packed":
        """View the memory of a binary or string array without nulls."""
        return cls(*kernels.value_bytes(column))

    @property
    def rows(self) -> int:
        return len(self.offsets) - 1

    @property
    def starts(self) -> Int64s:
        return self.offsets[:-1]

    @property
    def ends(self) -> Int64s:
        return self.offsets[1:]

    @property
    def lengths(self) -> Int64s:
        return np.diff(self.offsets)

    def arrow(self, validity: pa.Buffer | None = None) -> pa.BinaryArray:
        if self.offsets[-1] > kernels.INT32_MAX:
            raise MalformedError("its text would have 2**31 characters or more")
        return kernels.from_bytes(self.offsets, self.data, validity)

    def fixed(self, size: int) -> Bytes:
        """View the bytes as n rows of one size. Raises MalformedError if a string has another size."""
        require(self.lengths == size, f"it does not have {size} bytes")
        return self.data.reshape(-1, size)

    def at_least(self, size: int) -> None:
        require(self.lengths >= size, f"it has fewer than {size} bytes")

    def each(self) -> list[bytes]:
        """Split into single strings, for types whose values nest."""
        data = self.data.tobytes()
        bounds = self.offsets.tolist()
        return [data[start:end] for start, end in pairwise(bounds)]


Reader = Callable[[Packed], Packed]
"""Converts a type's send format to text. Raises MalformedError for anything else."""


def require(good: Booleans, reason: str) -> None:
    if not good.all():
        raise MalformedError(reason)


def from_rows(values: Bytes) -> Packed:
    """Pack strings of one size, given as a matrix of n rows."""
    rows, size = values.shape
    return Packed(np.arange(rows + 1, dtype=np.int64) * size, values.reshape(-1))


def from_kept(values: Bytes, kept: Booleans) -> Packed:
    """Pack each row's characters, leaving out those not marked in `kept`."""
    return Packed(edges(np.count_nonzero(kept, axis=1)), values[kept])


def from_list(values: Sequence[bytes]) -> Packed:
    return Packed.of(kernels.binary(values))


def edges(lengths: Integers) -> Int64s:
    """Turn n lengths into n + 1 offsets."""
    offsets = np.zeros(len(lengths) + 1, np.int64)
    np.cumsum(lengths, out=offsets[1:])
    return offsets


def big_endian(values: Bytes, code: str) -> NDArray[Any]:
    """Read big-endian numbers (`i4`, `u2`, ...) of rows of that size into native byte order."""
    dtype = np.dtype(f">{code}")
    wire = np.ascontiguousarray(values).view(dtype).reshape(-1)
    return wire.astype(dtype.newbyteorder("="))


def numbers_at(data: Bytes, positions: Int64s, ends: Int64s, code: str) -> Int64s:
    """Gather numbers at any positions. Raises MalformedError if one goes beyond its end."""
    require(positions + np.dtype(code).itemsize <= ends, "it is cut short")
    if not len(positions):
        return np.empty(0, np.int64)
    numbers: Int64s = kernels.at_each_byte(data, code)[positions].astype(np.int64)
    return numbers


def slices(values: Packed, starts: Int64s, lengths: Int64s) -> Packed:
    """Cut strings out of the data; they must be in order and not overlap."""
    count = len(starts)
    offsets = np.zeros(2 * count + 2, np.int32)
    offsets[1:-1:2] = starts
    offsets[2::2] = starts + lengths
    offsets[-1] = len(values.data)
    buffers = [None, kernels.buffer(offsets), kernels.buffer(values.data)]
    spaced = pa.BinaryArray.from_buffers(pa.binary(), 2 * count + 1, buffers)
    return Packed.of(kernels.take(spaced, np.arange(1, 2 * count + 1, 2)))


def decimal(values: Integers) -> pa.BinaryArray:
    """Print integers."""
    return kernels.as_binary(pa.array(values).cast(pa.string()))


def choose(constants: Sequence[bytes], which: Integers) -> pa.BinaryArray:
    """Choose a constant for each row, by its index."""
    return kernels.take(kernels.binary(constants), which.astype(np.int64))


_LENGTH = struct.Struct(">i")
_FEW = 8
"""Below this many values, each is walked by itself; from it on all together, one item of each at a time."""

_CUT = "it is cut short"


def walk(values: Packed, first: Int64s, count: Int64s) -> tuple[Int64s, Int64s]:
    """Find the starts and lengths of the items that fill each value from `first` to its end.

    `count` is the number of each value's items: at most a quarter of its bytes, so that memory is bounded.
    Raises MalformedError if the items don't fill the value.
    """
    offsets = edges(count)
    starts = np.zeros(int(offsets[-1]), np.int64)
    lengths = np.zeros(int(offsets[-1]), np.int64)
    position = first.copy()
    active = np.flatnonzero(count > 0)
    item = 0
    while len(active) >= _FEW:
        here, ends = position[active], values.ends[active]
        found = numbers_at(values.data, here, ends, "i4")
        require((found >= -1) & (here + 4 + np.maximum(found, 0) <= ends), _CUT)
        starts[offsets[active] + item] = here + 4
        lengths[offsets[active] + item] = found
        position[active] = here + 4 + np.maximum(found, 0)
        item += 1
        active = active[count[active] > item]
    data = values.data.data
    for row in active.tolist():
        items = slice(int(offsets[row]) + item, int(offsets[row + 1]))
        bounds = int(position[row]), int(values.ends[row])
        starts[items], lengths[items], position[row] = _walk_one(data, bounds, items.stop - items.start)
    require(position == values.ends, "it has more bytes than items")
    return starts, lengths


def _walk_one(data: memoryview, bounds: tuple[int, int], count: int) -> tuple[list[int], list[int], int]:
    position, end = bounds
    starts, lengths = [], []
    for _ in range(count):
        if position + 4 > end:
            raise MalformedError(_CUT)
        (length,) = _LENGTH.unpack_from(data, position)
        starts.append(position + 4)
        lengths.append(length)
        position += 4 + max(length, 0)
        if length < -1 or position > end:
            raise MalformedError(_CUT)
    return starts, lengths, position


def read_items(values: Packed, starts: Int64s, lengths: Int64s, read: Reader) -> pa.BinaryArray:
    """Read the items that `walk` found; null for those with a negative length."""
    there = lengths >= 0
    items = slices(values, starts[there], lengths[there])
    return spread(read(items) if items.rows else items, there)


def spread(values: Packed, there: Booleans) -> pa.BinaryArray:
    """Put strings into the rows that are there, with null in the others."""
    if there.all():
        return values.arrow()
    lengths = np.zeros(len(there), np.int64)
    lengths[there] = values.lengths
    validity = kernels.bitmap(there)
    return Packed(edges(lengths), values.data).arrow(validity)
