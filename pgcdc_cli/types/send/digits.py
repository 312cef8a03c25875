"""Characters of numbers, for all rows at once: lookup tables of ASCII digits."""

import numpy as np

from pgcdc_cli.types.kernels import Mask
from pgcdc_cli.types.send.packed import Bytes, Integers

ZERO = ord("0")


def _table(count: int, form: str) -> Bytes:
    """All numbers below a count, one a row."""
    text = "".join(format(number, form) for number in range(count))
    return np.frombuffer(text.encode(), np.uint8).reshape(count, -1)


_PAIRS = _table(100, "02d")
_QUADS = _table(10_000, "04d")
_HEX = _table(256, "02x")
_UPPER = _table(16, "X").reshape(-1)


def pairs(values: Integers) -> Bytes:
    """Print numbers below 100 with two digits: n rows."""
    return _PAIRS[values]


def quads(values: Integers) -> Bytes:
    """Print numbers below 10,000 with four digits: n rows."""
    return _QUADS[values]


def hex_pairs(values: Bytes) -> Bytes:
    """Print bytes with two hexadecimal digits, in one dimension more."""
    return _HEX[values]


def hex_digit(values: Integers) -> Bytes:
    """Print numbers below 16 with an upper-case hexadecimal digit."""
    return _UPPER[values]


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
