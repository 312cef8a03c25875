"""float4 and float8: the shortest digits that read back as the same number, as `float8out` lays them out.

Arrow finds the digits. PostgreSQL writes an exponent below 1e-4 and from 1e15 (float4: 1e6), with two digits
at least; Arrow has other limits. PostgreSQL's digits (`d2s.c`, where `STRICTLY_SHORTEST` is off) are never
those of a decimal half-way between two numbers, since it depends on the reader which one it reads back as.
"""

from dataclasses import dataclass
from decimal import Decimal
from fractions import Fraction
from typing import NamedTuple, cast

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from pgcdc_cli.types import kernels
from pgcdc_cli.types.kernels import Mask
from pgcdc_cli.types.send.packed import Packed, big_endian

Floats = NDArray[np.float64] | NDArray[np.float32]


class _Spelling(NamedTuple):
    """How numbers of some size (NaN is infinite here) stand in Arrow's text (RE2), and in PostgreSQL's."""

    low: float
    high: float
    arrow: str
    postgres: str


_SMALLEST_PLAIN = 1e-4
_ARROW_PLAIN_BELOW = 1e10
_SMALL = (
    _Spelling(1e-5, 1e-4, r"^(-?)0\.0000([1-9])(\d*)$", r"\1\2.\3e-05"),
    _Spelling(1e-6, 1e-5, r"^(-?)0\.00000([1-9])(\d*)$", r"\1\2.\3e-06"),
)
_ANY = (
    _Spelling(1e-6, 1e10, r"\.?0*e", "e"),
    _Spelling(0, 1e10, r"e([-+])(\d)$", r"e\10\2"),
    _Spelling(np.inf, np.nan, r"^(-?)inf$", r"\1Infinity"),
    _Spelling(np.inf, np.nan, r"^nan$", "NaN"),
)
_FRACTIONS = tuple(
    _Spelling(10.0**n, 10.0 ** (n + 1), rf"^(-?\d)\.(\d{{{n}}})(\d+)e\+{n}$", r"\1\2.\3")
    for n in range(10, 15)
)
_INTEGERS = tuple(
    _Spelling(10.0**n, 10.0 ** (n + 1), rf"^(-?\d)(\d{{{n}}})(?:\.(\d+))?$", rf"\1.\2\3e+0{n}")
    for n in range(6, 10)
)


@dataclass(frozen=True, slots=True)
class Floating:
    """One of the two types; `code` is numpy's. Numbers from `plain_below` have an exponent.

    Only between `ties_from`, from where on neighbours are 2 or more apart, and `ties_below`, where the power
    of 5 is more than the bits of a number can hold, a decimal of up to `digits` digits may be a tie.
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

    def _unusual(self, text: pa.StringArray, numbers: Floats, which: Mask) -> pa.StringArray:
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
        for spelling in (*self.spellings, *_SMALL, *_ANY):
            if ((size >= spelling.low) & ~(size >= spelling.high)).any():
                text = _respelled(text, spelling)
        return text

    def _untied(self, number: float, text: str) -> str:
        """Find the shortest decimal that is nearer to this number than to any other."""
        exact, shortest = int(abs(number)), abs(int(Decimal(text)))
        below, above = self._halves(number)
        if exact - below < shortest < exact + above:
            return text
        places = len(str(exact))
        for digits in range(1, self.digits + 1):
            step = 10 ** max(places - digits, 0)
            low = exact // step * step
            near = [n for n in (low, low + step) if exact - below < n < exact + above]
            if near:
                best = min(near, key=lambda n: abs(n - exact))
                return format(Decimal(best).copy_sign(Decimal(number)), f".{digits - 1}e")
        return text

    def _halves(self, number: float) -> tuple[Fraction, Fraction]:
        """Half of the way to the next number towards zero, and of that to the next away from it."""
        size = np.dtype(self.code).newbyteorder("=").type(abs(number))
        exact = Fraction(float(size))
        smaller, larger = (Fraction(float(np.nextafter(size, size.dtype.type(to)))) for to in (0, np.inf))
        return (exact - smaller) / 2, (larger - exact) / 2


def _respelled(text: pa.StringArray, spelling: _Spelling) -> pa.StringArray:
    options = pc.ReplaceSubstringOptions(spelling.arrow, spelling.postgres)
    return cast("pa.StringArray", pc.call_function("replace_substring_regex", [text], options))


FLOAT4 = Floating("f4", 9, 1e6, 2.0**24, 1e20, _INTEGERS)
FLOAT8 = Floating("f8", 17, 1e15, 2.0**53, 1e40, _FRACTIONS)
