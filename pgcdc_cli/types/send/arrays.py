r"""Arrays (`array_send`, `array_out` in arrayfuncs.c), and vectors, which are sent as arrays.

Number of dimensions, flags and element type; for each dimension its size and lower bound; then the elements,
each behind its length, -1 for NULL. Elements of all arrays of a column are read together.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import NamedTuple, cast

import numpy as np
import pyarrow as pa

from pgcdc_cli.types import kernels
from pgcdc_cli.types.kernels import Mask, as_mask
from pgcdc_cli.types.send.items import read_items, walk
from pgcdc_cli.types.send.packed import (
    Int64s,
    Packed,
    Reader,
    edges,
    from_list,
    joined,
    numbers_at,
    require,
)

_HEADER = 12
_MOST_DIMENSIONS = 6


class _Shapes(NamedTuple):
    """Where each array's elements begin, and how many there are."""

    dimensions: Int64s
    first: Int64s
    elements: Int64s


@dataclass(frozen=True, slots=True)
class Array:
    """`delimiter` is the element type's `typdelim`."""

    element: Reader
    delimiter: bytes = b","

    def __call__(self, values: Packed) -> Packed:
        shapes = _shapes(values)
        starts, lengths = walk(values, shapes.first, shapes.elements)
        texts = read_items(values, starts, lengths, self.element)
        quoted = kernels.coalesce(self._quoted(texts), pa.scalar(b"NULL", pa.binary()))
        offsets = edges(shapes.elements)
        plain = Packed.of(kernels.join([b"{", joined(quoted, offsets, self.delimiter), b"}"]))
        odd = (shapes.dimensions > 1) | ((shapes.dimensions == 1) & ~_counts_from_one(values, shapes))
        return self._nested(values, plain, quoted, offsets, odd) if odd.any() else plain

    def _quoted(self, texts: pa.BinaryArray) -> pa.BinaryArray:
        """Put in quotes what would be read as something else (`array_out`)."""
        special = rf'^$|^(?i:NULL)$|["\\{{}}{self.delimiter.decode()}\s\x0b]'
        needed = as_mask(kernels.matches(texts, special))
        if not needed.any():
            return texts
        some = texts.filter(pa.array(needed))
        for character in (b"\\", b'"'):
            some = kernels.replace_substring(some, character, b"\\" + character)
        quoted = kernels.join([b'"', some, b'"'])
        return kernels.replace_with_mask(texts, needed, quoted)

    def _nested(
        self, values: Packed, plain: Packed, quoted: pa.BinaryArray, offsets: Int64s, odd: Mask
    ) -> Packed:
        """Print the arrays of several dimensions, or with another lower bound than 1, one at a time."""
        texts = np.array(plain.each(), np.object_)
        for row in np.flatnonzero(odd):
            elements = cast("list[bytes]", quoted[offsets[row] : offsets[row + 1]].to_pylist())
            wire = values.data[slice(*values.offsets[row : row + 2])]
            count = int.from_bytes(wire[:4].tobytes())
            bounds = np.ndarray((count, 2), ">i4", wire.tobytes(), _HEADER).tolist()
            texts[row] = _bounds(bounds) + _braces([size for size, _ in bounds], elements, self.delimiter)
        return from_list(texts.tolist())


@dataclass(frozen=True, slots=True)
class Vector:
    """int2vector and oidvector: numbers with blanks between them."""

    element: Reader

    def __call__(self, values: Packed) -> Packed:
        shapes = _shapes(values)
        require(shapes.dimensions == 1, "it has not one dimension")
        starts, lengths = walk(values, shapes.first, shapes.elements)
        require(lengths >= 0, "it has a NULL")
        numbers = read_items(values, starts, lengths, self.element)
        return Packed.of(joined(numbers, edges(shapes.elements), b" "))


def _shapes(values: Packed) -> _Shapes:
    dimensions = numbers_at(values.data, values.starts, values.ends, "i4")
    require((dimensions >= 0) & (dimensions <= _MOST_DIMENSIONS), "it has no number of dimensions")
    first = values.starts + _HEADER + 8 * dimensions
    require(first <= values.ends, "it is cut short")
    count = np.minimum(dimensions, 1)
    for dimension in range(int(dimensions.max())):
        there = dimensions > dimension
        position = values.starts[there] + _HEADER + 8 * dimension
        size = numbers_at(values.data, position, values.ends[there], "i4")
        require(size >= 0, "it has a dimension of negative size")
        count[there] *= size
        # Each element has its length at least.
        require(4 * count <= values.ends - first, "it has less bytes than elements")
    return _Shapes(dimensions, first, count)


def _counts_from_one(values: Packed, shapes: _Shapes) -> Mask:
    found = np.ones(values.rows, np.bool_)
    there = shapes.dimensions == 1
    position = values.starts[there] + _HEADER + 4
    found[there] = numbers_at(values.data, position, values.ends[there], "i4") == 1
    return found


def _bounds(dimensions: Sequence[tuple[int, int]]) -> bytes:
    """Name the bounds of all dimensions, unless all begin at 1."""
    if all(low == 1 for _, low in dimensions):
        return b""
    return "".join(f"[{low}:{low + size - 1}]" for size, low in dimensions).encode() + b"="


def _braces(sizes: Sequence[int], elements: Sequence[bytes], delimiter: bytes) -> bytes:
    """Put braces around the innermost dimension's elements, then around the next one's."""
    level = list(elements) or [b""]
    for size in reversed(sizes):
        level = [b"{" + delimiter.join(group) + b"}" for group in _groups(level, size)]
    return level[0]


def _groups(elements: list[bytes], size: int) -> Iterator[list[bytes]]:
    return (elements[start : start + size] for start in range(0, len(elements), size))
