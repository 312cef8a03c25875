"""Ranges and multiranges (`range_send`, `range_out` in rangetypes.c; `multirange_send`).

A range is its flags, then each bound that it has behind its length.
"""

from dataclasses import dataclass

import numpy as np
import pyarrow as pa

from pgcdc_cli.types import kernels
from pgcdc_cli.types.kernels import Column, as_mask
from pgcdc_cli.types.send.items import read_items, spread, walk
from pgcdc_cli.types.send.packed import (
    Int64s,
    Packed,
    Reader,
    choose,
    edges,
    joined,
    numbers_at,
    require,
)

_EMPTY, _LOWER_INCLUSIVE, _UPPER_INCLUSIVE, _LOWER_INFINITE, _UPPER_INFINITE = 1, 2, 4, 8, 16
_KNOWN = 0x1F
_QUOTED = r'^$|["\\()\[\],\s\x0b]'


@dataclass(frozen=True, slots=True)
class Range:
    """`bound` reads the subtype."""

    bound: Reader

    def __call__(self, values: Packed) -> Packed:
        values.at_least(1)
        flags = values.data[values.starts]
        require(flags <= _KNOWN, "it has unknown flags")
        has_lower = flags & (_EMPTY | _LOWER_INFINITE) == 0
        has_upper = flags & (_EMPTY | _UPPER_INFINITE) == 0
        count = has_lower.astype(np.int64) + has_upper
        require(4 * count <= values.lengths - 1, "it has less bytes than bounds")
        starts, lengths = walk(values, values.starts + 1, count)
        require(lengths >= 0, "it has a bound of negative length")
        bounds = _quoted(read_items(values, starts, lengths, self.bound))
        firsts = edges(count)[:-1]
        text = kernels.join(
            [
                choose((b"(", b"["), flags & _LOWER_INCLUSIVE != 0),
                _where(bounds, firsts, has_lower),
                b",",
                _where(bounds, firsts + has_lower, has_upper),
                choose((b")", b"]"), flags & _UPPER_INCLUSIVE != 0),
            ]
        )
        empty = flags & _EMPTY != 0
        return Packed.of(kernels.replace_where(text, empty, b"empty") if empty.any() else text)


def _where(bounds: pa.BinaryArray, places: Int64s, there: kernels.Mask) -> Column:
    """Take a bound for each range that has it; nothing for the others."""
    taken = Packed.of(kernels.take(bounds, places[there]))
    return kernels.coalesce(spread(taken, there), pa.scalar(b"", pa.binary()))


def _quoted(bounds: pa.BinaryArray) -> pa.BinaryArray:
    """Put in quotes what would be read as something else (`range_bound_escape`)."""
    needed = as_mask(kernels.matches(bounds, _QUOTED))
    if not needed.any():
        return bounds
    some = bounds.filter(pa.array(needed))
    for character in (b"\\", b'"'):
        some = kernels.replace_substring(some, character, character * 2)
    return kernels.replace_with_mask(bounds, needed, kernels.join([b'"', some, b'"']))


@dataclass(frozen=True, slots=True)
class Multirange:
    """A number of ranges, each behind its length."""

    range: Range

    def __call__(self, values: Packed) -> Packed:
        count = numbers_at(values.data, values.starts, values.ends, "i4")
        require((count >= 0) & (4 * count <= values.lengths - 4), "it has less bytes than ranges")
        starts, lengths = walk(values, values.starts + 4, count)
        require(lengths >= 0, "it has a range of negative length")
        ranges = read_items(values, starts, lengths, self.range)
        return Packed.of(kernels.join([b"{", joined(ranges, edges(count), b","), b"}"]))
