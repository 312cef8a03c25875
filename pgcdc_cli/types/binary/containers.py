r"""Arrays, vectors, ranges and multiranges: values that contain values of another type.

An array is its number of dimensions, flags and element type; for each dimension its size and lower bound;
then the elements, each preceded by its length, -1 for NULL (`array_send`). A range is its flags, then each
bound that it has, preceded by its length (`range_send`). The elements of all arrays of a column are read
together, and so are the bounds of all ranges.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple, cast

import numpy as np
import pyarrow as pa

from pgcdc_cli.types import kernels
from pgcdc_cli.types.binary.packed import (
    Packed,
    Reader,
    choose,
    edges,
    from_list,
    numbers_at,
    read_items,
    require,
    spread,
    walk,
)
from pgcdc_cli.types.kernels import ArrowArray, Booleans, Int64s, as_mask

_ARRAY_HEADER = 12
_MOST_DIMENSIONS = 6
_ARRAY_ESCAPES = {b"\\": b"\\\\", b'"': b'\\"'}

_EMPTY, _LOWER_INCLUSIVE, _UPPER_INCLUSIVE, _LOWER_INFINITE, _UPPER_INFINITE = 1, 2, 4, 8, 16
_KNOWN_FLAGS = 0x1F
_RANGE_ESCAPES = {b"\\": b"\\\\", b'"': b'""'}
_SPECIAL_IN_RANGE = r'^$|["\\()\[\],\s\x0b]'


@dataclass(frozen=True, slots=True)
class Array:
    """Reads arrays; `delimiter` is the element type's `typdelim`."""

    element: Reader
    delimiter: bytes = b","

    @property
    def _special(self) -> str:
        return rf'^$|^(?i:NULL)$|["\\{{}}{self.delimiter.decode()}\s\x0b]'

    def __call__(self, values: Packed) -> Packed:
        shapes = _array_shapes(values)
        starts, lengths = walk(values, shapes.first, shapes.elements)
        texts = read_items(values, starts, lengths, self.element)
        quoted = kernels.coalesce(
            _quoted(texts, self._special, _ARRAY_ESCAPES), pa.scalar(b"NULL", pa.binary())
        )
        offsets = edges(shapes.elements)
        plain = Packed.of(kernels.join([b"{", kernels.join_lists(offsets, quoted, self.delimiter), b"}"]))
        odd = (shapes.dimensions > 1) | ((shapes.dimensions == 1) & ~_counts_from_one(values, shapes))
        return self._nested(values, plain, quoted, offsets, odd) if odd.any() else plain

    def _nested(
        self, values: Packed, plain: Packed, quoted: pa.BinaryArray, offsets: Int64s, odd: Booleans
    ) -> Packed:
        """Print the arrays with several dimensions, or a lower bound other than 1, one at a time."""
        texts = np.array(plain.each(), np.object_)
        for row in np.flatnonzero(odd):
            elements = cast("list[bytes]", quoted[offsets[row] : offsets[row + 1]].to_pylist())
            wire = values.data[slice(*values.offsets[row : row + 2])]
            count = int.from_bytes(wire[:4].tobytes())
            bounds = np.ndarray((count, 2), ">i4", wire.tobytes(), _ARRAY_HEADER).tolist()
            texts[row] = _array_bounds(bounds) + _braces(
                [size for size, _ in bounds], elements, self.delimiter
            )
        return from_list(texts.tolist())


@dataclass(frozen=True, slots=True)
class Vector:
    """Reads int2vector and oidvector: numbers separated by spaces."""

    element: Reader

    def __call__(self, values: Packed) -> Packed:
        shapes = _array_shapes(values)
        require(shapes.dimensions == 1, "it does not have one dimension")
        starts, lengths = walk(values, shapes.first, shapes.elements)
        require(lengths >= 0, "it has a NULL")
        numbers = read_items(values, starts, lengths, self.element)
        return Packed.of(kernels.join_lists(edges(shapes.elements), numbers, b" "))


class _ArrayShapes(NamedTuple):
    """Each array's number of dimensions, the position of its first element, and how many it has."""

    dimensions: Int64s
    first: Int64s
    elements: Int64s


def _array_shapes(values: Packed) -> _ArrayShapes:
    dimensions = numbers_at(values.data, values.starts, values.ends, "i4")
    require((dimensions >= 0) & (dimensions <= _MOST_DIMENSIONS), "it has no number of dimensions")
    first = values.starts + _ARRAY_HEADER + 8 * dimensions
    require(first <= values.ends, "it is cut short")
    count = np.minimum(dimensions, 1)
    for dimension in range(int(dimensions.max())):
        there = dimensions > dimension
        position = values.starts[there] + _ARRAY_HEADER + 8 * dimension
        size = numbers_at(values.data, position, values.ends[there], "i4")
        require(size >= 0, "it has a dimension of negative size")
        count[there] *= size
        # Each element takes 4 bytes or more: its length.
        require(4 * count <= values.ends - first, "it has fewer bytes than elements")
    return _ArrayShapes(dimensions, first, count)


def _counts_from_one(values: Packed, shapes: _ArrayShapes) -> Booleans:
    found = np.ones(values.rows, np.bool_)
    there = shapes.dimensions == 1
    position = values.starts[there] + _ARRAY_HEADER + 4
    found[there] = numbers_at(values.data, position, values.ends[there], "i4") == 1
    return found


def _array_bounds(dimensions: Sequence[tuple[int, int]]) -> bytes:
    """Print the bounds of all dimensions, unless all lower bounds are 1."""
    if all(low == 1 for _, low in dimensions):
        return b""
    return "".join(f"[{low}:{low + size - 1}]" for size, low in dimensions).encode() + b"="


def _braces(sizes: Sequence[int], elements: Sequence[bytes], delimiter: bytes) -> bytes:
    """Put braces around the elements of the innermost dimension, then of the next one, and so on."""
    level = list(elements) or [b""]
    for size in reversed(sizes):
        level = [b"{" + delimiter.join(group) + b"}" for group in _groups(level, size)]
    return level[0]


def _groups(elements: list[bytes], size: int) -> Iterator[list[bytes]]:
    return (elements[start : start + size] for start in range(0, len(elements), size))


@dataclass(frozen=True, slots=True)
class Range:
    """Reads ranges; `bound` reads the subtype."""

    bound: Reader

    def __call__(self, values: Packed) -> Packed:
        values.at_least(1)
        flags = values.data[values.starts]
        require(flags <= _KNOWN_FLAGS, "it has unknown flags")
        has_lower = flags & (_EMPTY | _LOWER_INFINITE) == 0
        has_upper = flags & (_EMPTY | _UPPER_INFINITE) == 0
        count = has_lower.astype(np.int64) + has_upper
        require(4 * count <= values.lengths - 1, "it has fewer bytes than bounds")
        starts, lengths = walk(values, values.starts + 1, count)
        require(lengths >= 0, "it has a bound of negative length")
        bounds = read_items(values, starts, lengths, self.bound)
        bounds = _quoted(bounds, _SPECIAL_IN_RANGE, _RANGE_ESCAPES)
        firsts = edges(count)[:-1]
        text = kernels.join(
            [
                choose((b"(", b"["), flags & _LOWER_INCLUSIVE != 0),
                _bound(bounds, firsts, has_lower),
                b",",
                _bound(bounds, firsts + has_lower, has_upper),
                choose((b")", b"]"), flags & _UPPER_INCLUSIVE != 0),
            ]
        )
        empty = flags & _EMPTY != 0
        return Packed.of(kernels.replace_where(text, empty, b"empty") if empty.any() else text)


def _bound(bounds: pa.BinaryArray, rows: Int64s, there: Booleans) -> ArrowArray:
    """Take the bound of each range that has it; empty text for the others."""
    taken = Packed.of(kernels.take(bounds, rows[there]))
    return kernels.coalesce(spread(taken, there), pa.scalar(b"", pa.binary()))


@dataclass(frozen=True, slots=True)
class Multirange:
    """Reads multiranges: the number of ranges, then each one, preceded by its length."""

    range: Range

    def __call__(self, values: Packed) -> Packed:
        count = numbers_at(values.data, values.starts, values.ends, "i4")
        require((count >= 0) & (4 * count <= values.lengths - 4), "it has fewer bytes than ranges")
        starts, lengths = walk(values, values.starts + 4, count)
        require(lengths >= 0, "it has a range of negative length")
        ranges = read_items(values, starts, lengths, self.range)
        return Packed.of(kernels.join([b"{", kernels.join_lists(edges(count), ranges, b","), b"}"]))


def _quoted(texts: pa.BinaryArray, special: str, escapes: Mapping[bytes, bytes]) -> pa.BinaryArray:
    """Quote texts that would be ambiguous without quotes (`array_out`, `range_bound_escape`)."""
    needed = as_mask(kernels.matches(texts, special))
    if not needed.any():
        return texts
    some = texts.filter(pa.array(needed))
    for character, escaped in escapes.items():
        some = kernels.replace_substring(some, character, escaped)
    return kernels.replace_with_mask(texts, needed, kernels.join([b'"', some, b'"']))
