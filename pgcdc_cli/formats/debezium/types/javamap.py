"""The order in which Java's HashMap gives its keys (`java.util.HashMap`, OpenJDK 17)."""

import struct
from collections.abc import Iterable

import numpy as np

from pgcdc_cli.pgoutput.changes import Int64s

_FEWEST_BUCKETS = 16
_FULL = _FEWEST_BUCKETS * 3 // 4 << np.arange(32)
"""A map of more keys than this has twice as many buckets."""


def java_map_order(keys: Iterable[str]) -> list[str]:
    """Put distinct keys in order."""
    keys = list(keys)
    hashes = np.array([java_hash(key) for key in keys], np.int64)
    found = buckets(hashes, np.full(len(keys), len(keys)))
    return [keys[place] for place in np.argsort(found, kind="stable").tolist()]


def buckets(hashes: Int64s, sizes: Int64s) -> Int64s:
    """Find each key's bucket in a map of so many keys; those of one bucket stand as they were added."""
    found: Int64s = hashes & ((_FEWEST_BUCKETS << np.searchsorted(_FULL, sizes)) - 1)
    return found


def java_hash(text: str) -> int:
    """`String.hashCode`, spread as `HashMap` does."""
    units = text.encode("utf-16-be", "surrogatepass")
    value = 0
    for (unit,) in struct.iter_unpack(">H", units):
        value = (value * 31 + unit) & 0xFFFFFFFF
    return value ^ value >> 16
