"""Characters of numbers, for all rows at once: lookup tables of ASCII digits."""

import numpy as np

from pgcdc_cli.types.kernels import Mask
from pgcdc_cli.types.send.packed import Bytes, Integers

ZERO = ord("0")


def _table(count: int, form: str) -> Integers:
    """All numbers below a count; the characters of each as one number, so that it is copied at once."""
    text = "".join(format(number, form) for number in range(count)).encode()
    return np.frombuffer(text, f"u{len(text) // count}")


_PAIRS = _table(100, "02d")
_QUADS = _table(10_000, "04d")
_HEX = _table(256, "02x")
_UPPER = _table(16, "X")


def _characters(table: Integers, values: Integers) -> Bytes:
    return table[values].view(np.uint8).reshape(*values.shape, table.itemsize)


def pairs(values: Integers) -> Bytes:
    """Print numbers below 100 with two digits: n rows."""
    return _characters(_PAIRS, values)


def quads(values: Integers) -> Bytes:
    """Print numbers below 10,000 with four digits: n rows."""
    return _characters(_QUADS, values)


def hex_pairs(values: Bytes) -> Bytes:
    """Print bytes with two hexadecimal digits, in one dimension more."""
    return _characters(_HEX, values)


def hex_digit(values: Integers) -> Bytes:
    """Print numbers below 16 with an upper-case hexadecimal digit."""
    return _characters(_UPPER, values)[..., 0]


def sixes(values: Integers) -> Bytes:
    """Print numbers below a million with six digits: n rows."""
    high, low = np.divmod(values, 100)
    return np.concatenate([quads(high), pairs(low)], axis=1)


def octals(values: Integers, width: int) -> Bytes:
    """Print numbers in octal, with so many digits."""
    places = 8 ** np.arange(width)[::-1]
    return (values[:, None] // places % 8 + ZERO).astype(np.uint8)


def wide(values: Integers, width: int) -> Bytes:
    """Print numbers that have at most so many digits, with leading zeroes: n rows."""
    found = np.empty((len(values), width), np.uint8)
    rest = values
    for place in range(width - 1, -1, -1):
        rest, digit = np.divmod(rest, rest.dtype.type(10))
        found[:, place] = digit + rest.dtype.type(ZERO)
    return found


def leading_dropped(characters: Bytes, least: int) -> Mask:
    """Keep the digits from the first on that is not 0, and the last `least` in any case."""
    kept: Mask = np.logical_or.accumulate(characters != ZERO, axis=1)
    kept[:, characters.shape[1] - least :] = True
    return kept


def trailing_dropped(characters: Bytes) -> Mask:
    """Keep the digits up to the last that is not 0."""
    kept: Mask = np.logical_or.accumulate(characters[:, ::-1] != ZERO, axis=1)[:, ::-1]
    return kept
