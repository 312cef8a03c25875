"""Numbers as text: integers as ASCII digits, then float4 and float8, then numeric.

Arrow prints the digits of floats. PostgreSQL writes an exponent below 1e-4 and from 1e15 on (float4: 1e6),
with at least two digits; Arrow's limits differ. PostgreSQL never prints a decimal half-way between two floats
(`d2s.c`, with `STRICTLY_SHORTEST` off): which of the two it is read back as would depend on the reader.

Numerics of usual size are printed together, digit by digit for all rows; others one by one.
"""

from dataclasses import dataclass
from decimal import Decimal
from fractions import Fraction
from typing import NamedTuple, cast

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from pgcdc_cli.types import kernels
from pgcdc_cli.types.binary.packed import (
    Bytes,
    Integers,
    Packed,
    big_endian,
    from_kept,
    from_list,
    numbers_at,
    require,
    slices,
)
from pgcdc_cli.types.kernels import Booleans, Int64s

ZERO = ord("0")


def _digit_table(count: int, form: str) -> Integers:
    """Print all numbers below a count; each one's characters are one integer, to copy them in one step."""
    text = "".join(format(number, form) for number in range(count)).encode()
    return np.frombuffer(text, f"u{len(text) // count}")


_PAIRS = _digit_table(100, "02d")
_QUADS = _digit_table(10_000, "04d")
_HEX = _digit_table(256, "02x")
_UPPER = _digit_table(16, "X")


def _characters(table: Integers, values: Integers) -> Bytes:
    return table[values].view(np.uint8).reshape(*values.shape, table.itemsize)


def pairs(values: Integers) -> Bytes:
    """Print numbers below 100 with two digits: n rows."""
    return _characters(_PAIRS, values)


def quads(values: Integers) -> Bytes:
    """Print numbers below 10,000 with four digits: n rows."""
    return _characters(_QUADS, values)


def hex_pairs(values: Bytes) -> Bytes:
    """Print bytes with two hexadecimal digits; the result has one more dimension."""
    return _characters(_HEX, values)


def hex_digit(values: Integers) -> Bytes:
    """Print numbers below 16 with an upper-case hexadecimal digit."""
    return _characters(_UPPER, values)[..., 0]


def sixes(values: Integers) -> Bytes:
    """Print numbers below a million with six digits: n rows."""
    high, low = np.divmod(values, 100)
    return np.concatenate([quads(high), pairs(low)], axis=1)


def wide(values: Integers, width: int) -> Bytes:
    """Print numbers of at most `width` digits with leading zeroes: n rows."""
    found = np.empty((len(values), width), np.uint8)
    rest = values
    for column in range(width - 1, -1, -1):
        rest, digit = np.divmod(rest, rest.dtype.type(10))
        found[:, column] = digit + rest.dtype.type(ZERO)
    return found


def leading_dropped(characters: Bytes, least: int) -> Booleans:
    """Mark all but leading zeroes; the last `least` digits are always marked."""
    kept: Booleans = np.logical_or.accumulate(characters != ZERO, axis=1)
    kept[:, characters.shape[1] - least :] = True
    return kept


def trailing_dropped(characters: Bytes) -> Booleans:
    """Mark all but trailing zeroes."""
    kept: Booleans = np.logical_or.accumulate(characters[:, ::-1] != ZERO, axis=1)[:, ::-1]
    return kept


Floats = NDArray[np.float64] | NDArray[np.float32]


class _Spelling(NamedTuple):
    """An RE2 pattern of Arrow's text and PostgreSQL's spelling, for sizes from low to high; NaN is inf."""

    low: float
    high: float
    arrow: str
    postgres: str


_SMALLEST_PLAIN = 1e-4
_ARROW_PLAIN_BELOW = 1e10
_SMALL_SPELLINGS = (
    _Spelling(1e-5, 1e-4, r"^(-?)0\.0000([1-9])(\d*)$", r"\1\2.\3e-05"),
    _Spelling(1e-6, 1e-5, r"^(-?)0\.00000([1-9])(\d*)$", r"\1\2.\3e-06"),
)
_ANY_SPELLINGS = (
    _Spelling(1e-6, 1e10, r"\.?0*e", "e"),
    _Spelling(0, 1e10, r"e([-+])(\d)$", r"e\10\2"),
    _Spelling(np.inf, np.nan, r"^(-?)inf$", r"\1Infinity"),
    _Spelling(np.inf, np.nan, r"^nan$", "NaN"),
)
_FRACTION_SPELLINGS = tuple(
    _Spelling(10.0**n, 10.0 ** (n + 1), rf"^(-?\d)\.(\d{{{n}}})(\d+)e\+{n}$", r"\1\2.\3")
    for n in range(10, 15)
)
_INTEGER_SPELLINGS = tuple(
    _Spelling(10.0**n, 10.0 ** (n + 1), rf"^(-?\d)(\d{{{n}}})(?:\.(\d+))?$", rf"\1.\2\3e+0{n}")
    for n in range(6, 10)
)


@dataclass(frozen=True, slots=True)
class Floating:
    """Reads float4 or float8; `code` is numpy's. From `plain_below` on, numbers have an exponent.

    A decimal of up to `digits` digits can be half-way between two floats (a tie) only between `ties_from`,
    from where on neighbouring floats are 2 or more apart, and `ties_below`, where a float's bits no longer
    hold the power of 5 that it would take.
    """

    code: str
    digits: int
    plain_below: float
    ties_from: float
    ties_below: float
    spellings: tuple[_Spelling, ...]

    def __call__(self, values: Packed) -> Packed:
        with np.errstate(invalid="ignore"):  # a signalling NaN is no worse than another
            numbers = big_endian(values.fixed(int(self.code[1])), self.code)
            return Packed.of(self.print(numbers))

    def print(self, numbers: Floats) -> pa.BinaryArray:
        text = cast("pa.StringArray", pa.array(numbers).cast(pa.string()))
        size = np.abs(numbers)
        usual_below = min(self.plain_below, _ARROW_PLAIN_BELOW)
        unusual = (size != 0) & ~((size >= _SMALLEST_PLAIN) & (size < usual_below))
        if unusual.any():
            text = kernels.replace_with_mask(text, unusual, self._unusual(text, numbers, unusual))
        return kernels.as_binary(text)

    def _unusual(self, text: pa.StringArray, numbers: Floats, which: Booleans) -> pa.StringArray:
        some, text = numbers[which], text.filter(pa.array(which))
        integers = (np.abs(some) >= _ARROW_PLAIN_BELOW) & (np.abs(some) < self.plain_below)
        integers[integers] = np.trunc(some[integers]) == some[integers]
        printed = pa.array(some[integers].astype(np.int64)).cast(pa.string())
        text = kernels.replace_with_mask(text, integers, printed)
        size = np.abs(some)
        ties = (size >= self.ties_from) & (size < self.ties_below)
        if ties.any():
            pairs = zip(some[ties].tolist(), text.filter(pa.array(ties)).to_pylist(), strict=True)
            untied = pa.array([self._untied(number, str(digits)) for number, digits in pairs], pa.string())
            text = kernels.replace_with_mask(text, ties, untied)
        size[np.isnan(size)] = np.inf
        for spelling in (*self.spellings, *_SMALL_SPELLINGS, *_ANY_SPELLINGS):
            if ((size >= spelling.low) & ~(size >= spelling.high)).any():
                text = kernels.replace_pattern(text, spelling.arrow, spelling.postgres)
        return text

    def _untied(self, number: float, text: str) -> str:
        """Find the shortest decimal that is closer to this number than to any other float."""
        exact, shortest = int(abs(number)), abs(int(Decimal(text)))
        below, above = self._halves(number)
        if exact - below < shortest < exact + above:
            return text
        length = len(str(exact))
        for digits in range(1, self.digits + 1):
            step = 10 ** max(length - digits, 0)
            low = exact // step * step
            near = [n for n in (low, low + step) if exact - below < n < exact + above]
            if near:
                best = min(near, key=lambda n: abs(n - exact))
                return format(Decimal(best).copy_sign(Decimal(number)), f".{digits - 1}e")
        return text

    def _halves(self, number: float) -> tuple[Fraction, Fraction]:
        """Half the distances to the next float towards zero, and away from it."""
        size = np.dtype(self.code).newbyteorder("=").type(abs(number))
        exact = Fraction(float(size))
        smaller, larger = (Fraction(float(np.nextafter(size, size.dtype.type(to)))) for to in (0, np.inf))
        return (exact - smaller) / 2, (larger - exact) / 2


FLOAT4 = Floating("f4", 9, 1e6, 2.0**24, 1e20, _INTEGER_SPELLINGS)
FLOAT8 = Floating("f8", 17, 1e15, 2.0**53, 1e40, _FRACTION_SPELLINGS)

_NUMERIC_HEADER = 8
_POSITIVE, _NEGATIVE = 0, 0x4000
_SPECIAL = {0xC000: b"NaN", 0xD000: b"Infinity", 0xF000: b"-Infinity"}
_LARGEST_WEIGHT = 7
_LARGEST_SCALE = 32
_DIGIT_END = 10_000


class _NumericHeader(NamedTuple):
    digits: Int64s
    weight: Int64s
    sign: Int64s
    scale: Int64s


def numeric(values: Packed) -> Packed:
    """Read digits of base 10,000, preceded by their number, weight, sign and scale (`numeric_send`)."""
    values.at_least(_NUMERIC_HEADER)
    header = _NumericHeader(
        *(
            numbers_at(values.data, values.starts + 2 * field, values.ends, code)
            for field, code in enumerate(("u2", "i2", "u2", "u2"))
        )
    )
    require(values.lengths == _NUMERIC_HEADER + 2 * header.digits, "its length is not that of its digits")
    require(np.isin(header.sign, (_POSITIVE, _NEGATIVE, *_SPECIAL)), "it has no sign")
    usual = (header.sign <= _NEGATIVE) & (header.scale <= _LARGEST_SCALE)
    usual &= (header.weight <= _LARGEST_WEIGHT) & (header.weight >= -_LARGEST_SCALE)
    if usual.all():
        return _usual_numerics(values, header)
    return _mixed_numerics(values, header, usual)


def _mixed_numerics(values: Packed, header: _NumericHeader, usual: Booleans) -> Packed:
    some = slices(values, values.starts[usual], values.lengths[usual])
    texts = np.empty(values.rows, np.object_)
    texts[usual] = _usual_numerics(some, _NumericHeader(*(part[usual] for part in header))).each()
    texts[~usual] = [
        _one_numeric(values.data[slice(*values.offsets[row : row + 2])]) for row in np.flatnonzero(~usual)
    ]
    return from_list(texts.tolist())


def _usual_numerics(values: Packed, header: _NumericHeader) -> Packed:
    if not values.rows:
        return values
    powers = int(max(header.weight.max(), 0))
    fractions = -(-int(header.scale.max()) // 4)
    groups = [_digit_group(values, header, power) for power in range(powers, -fractions - 1, -1)]
    integer = np.concatenate(groups[: powers + 1], axis=1)
    negative = header.sign == _NEGATIVE
    rows = values.rows
    parts = [np.full((rows, 1), ord("-"), np.uint8), integer]
    kept = [negative[:, None], leading_dropped(integer, 1)]
    if fractions:
        parts += [np.full((rows, 1), ord("."), np.uint8), *groups[powers + 1 :]]
        kept += [(header.scale > 0)[:, None], np.arange(4 * fractions) < header.scale[:, None]]
    return from_kept(np.concatenate(parts, axis=1), np.concatenate(kept, axis=1))


def _digit_group(values: Packed, header: _NumericHeader, power: int) -> Bytes:
    """Print every value's digit for one power of 10,000: n rows of four characters."""
    index = header.weight - power
    there = (index >= 0) & (index < header.digits)
    digits = np.zeros(values.rows, np.int64)
    digits[there] = numbers_at(
        values.data, (values.starts + _NUMERIC_HEADER + 2 * index)[there], values.ends[there], "u2"
    )
    _check_digits(digits)
    return quads(digits)


def _check_digits(digits: Int64s) -> None:
    require(digits < _DIGIT_END, "it has a digit beyond 9999")


def _one_numeric(wire: Bytes) -> bytes:
    """Print one value of any size, as `get_str_from_var` in numeric.c does."""
    count, weight, sign, scale = np.ndarray(4, ">u2", wire.tobytes()).tolist()
    if sign in _SPECIAL:
        return _SPECIAL[sign]
    weight -= (weight & 0x8000) << 1
    digits = np.ndarray(count, ">u2", wire.tobytes(), _NUMERIC_HEADER).astype(np.int64)
    _check_digits(digits)
    text = quads(digits).tobytes()
    whole = 4 * (weight + 1)
    if whole <= 0:
        integer, fraction = b"0", b"0" * -whole + text
    else:
        integer, fraction = text[:whole].ljust(whole, b"0").lstrip(b"0") or b"0", text[whole:]
    minus = b"-" if sign == _NEGATIVE else b""
    return minus + integer + (b"." + fraction[:scale].ljust(scale, b"0") if scale else b"")
