"""Strings behind their lengths (32 bits, -1 for NULL), so many in each value: elements, ranges, bounds."""

import struct

import numpy as np
import pyarrow as pa

from pgcdc_cli.types import kernels
from pgcdc_cli.types.kernels import Mask
from pgcdc_cli.types.send.packed import (
    Int64s,
    MalformedError,
    Packed,
    Reader,
    edges,
    numbers_at,
    require,
    slices,
)

_LENGTH = struct.Struct(">i")
_FEW = 8
"""So few values are walked one at a time rather than all together, one item of each after the other."""

_CUT = "it is cut short"


def walk(values: Packed, first: Int64s, count: Int64s) -> tuple[Int64s, Int64s]:
    """Find the items, which must fill each value from `first` to its end: their starts and lengths.

    `count` of each must not be more than a quarter of the bytes that there are.
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
    """Read the items that `walk` found; null where they are."""
    there = lengths >= 0
    items = slices(values, starts[there], lengths[there])
    return spread(read(items) if items.rows else items, there)


def spread(values: Packed, there: Mask) -> pa.BinaryArray:
    """Put strings where they belong, with nulls between them."""
    if there.all():
        return values.arrow()
    lengths = np.zeros(len(there), np.int64)
    lengths[there] = values.lengths
    validity = kernels.buffer(np.packbits(there, bitorder="little"))
    return Packed(edges(lengths), values.data).arrow(validity)
