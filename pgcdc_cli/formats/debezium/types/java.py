"""Java 17's `Double.toString` and `Float.toString`, and the order of keys in a HashMap.

Until Java 18, the digits printed are not always the shortest that identify a number: an integer beyond the
precision gets digits by a rule of thumb, a number halfway between two others gets one digit more, and with an
exponent there are at least two digits.
"""

import struct
from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np

from pgcdc_cli.types.kernels import Int64s

_LARGEST_LONG_EXPONENT = 62


@dataclass(frozen=True, slots=True)
class FloatFormat:
    """A floating-point format: `bits` of the significand, and the exponent of the least normal number."""

    bits: int
    least: int


DOUBLE = FloatFormat(53, -1022)
FLOAT = FloatFormat(24, -126)


def java_digits(value: float, format_: FloatFormat) -> tuple[str, int]:
    """Compute a positive number's decimal digits d and point p: it is 0.d times 10 to the power of p."""
    numerator, denominator = value.as_integer_ratio()
    fraction_bits = denominator.bit_length() - 1
    exponent = numerator.bit_length() - fraction_bits - 1
    significant = format_.bits - max(0, format_.least - exponent)
    if fraction_bits == 0 and exponent <= _LARGEST_LONG_EXPONENT:
        return _integer(numerator, exponent - significant)
    return _general(numerator, fraction_bits, significant)


def _integer(value: int, excess: int) -> tuple[str, int]:
    """Round off as many digits as lie below the precision."""
    dropped = len(str(2 ** (excess - 1))) - 1 if excess > 1 else 0
    unit = 10**dropped
    kept = str((value + unit // 2) // unit)
    return kept.rstrip("0"), len(kept) + dropped


def _general(numerator: int, fraction_bits: int, significant: int) -> tuple[str, int]:
    """Take digits until the rest is within half a unit in the last place."""
    point = _decimal_exponent(numerator, fraction_bits)
    odd_bits = numerator.bit_length() - _trailing_zeros(numerator)
    # The unit below a power of two is half of the one above.
    margin_shift = numerator.bit_length() - 1 - significant - (odd_bits == 1)
    shift = max(0, -margin_shift)
    rest, unit = numerator << shift, 1 << (fraction_bits + shift)
    margin = 1 << (margin_shift + shift)
    rest, margin = rest * 10 ** max(0, -point), margin * 10 ** max(0, -point)
    unit *= 10 ** max(0, point)
    digits: list[int] = []
    low = high = False
    while not (low or high):
        digit, rest = divmod(rest, unit)
        digits.append(digit)
        rest, margin = rest * 10, margin * 10
        low = rest < margin
        high = rest + margin > unit * 10
        if len(digits) == 1 and not -3 <= point < 8:
            low = high = False
    if high and (not low or 2 * rest > unit * 10 or (2 * rest == unit * 10 and digits[-1] % 2)):
        return _rounded_up(digits, point + 1)
    return "".join(map(str, digits)), point + 1


def _rounded_up(digits: list[int], point: int) -> tuple[str, int]:
    text = str(int("".join(map(str, digits))) + 1)
    return text.rstrip("0"), point + len(text) - len(digits)


def _decimal_exponent(numerator: int, fraction_bits: int) -> int:
    """Find the power of ten of the first digit."""
    guess = (numerator.bit_length() - fraction_bits - 1) * 30103 // 100_000
    for point in (guess + 1, guess):
        if numerator * 10 ** max(0, -point) >= 10 ** max(0, point) << fraction_bits:
            return point
    return guess - 1


def _trailing_zeros(value: int) -> int:
    return (value & -value).bit_length() - 1


_FEWEST_BUCKETS = 16
_FULL = _FEWEST_BUCKETS * 3 // 4 << np.arange(32)
"""Numbers of keys above which a map doubles its buckets."""


def java_map_order(keys: Iterable[str]) -> list[str]:
    """Sort distinct keys into the order of a HashMap."""
    keys = list(keys)
    hashes = np.array([java_hash(key) for key in keys], np.int64)
    found = buckets(hashes, np.full(len(keys), len(keys)))
    return [keys[index] for index in np.argsort(found, kind="stable").tolist()]


def buckets(hashes: Int64s, sizes: Int64s) -> Int64s:
    """Find each key's bucket in a map with so many keys; keys of one bucket keep the order of insertion."""
    found: Int64s = hashes & ((_FEWEST_BUCKETS << np.searchsorted(_FULL, sizes)) - 1)
    return found


def java_hash(text: str) -> int:
    """Compute `String.hashCode`, spread as `HashMap` does."""
    units = text.encode("utf-16-be", "surrogatepass")
    value = 0
    for (unit,) in struct.iter_unpack(">H", units):
        value = (value * 31 + unit) & 0xFFFFFFFF
    return value ^ value >> 16
