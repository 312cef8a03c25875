"""Booleans, integers, floats and numeric.

Floats keep NaN and the infinities. `numeric` without precision, with a negative scale, with a scale above its
precision or with more than 38 digits is text, since no Arrow decimal holds all of its values; NaN and
Infinity don't fit a decimal.
"""

from dataclasses import dataclass
from typing import NamedTuple

import pyarrow as pa

from pgcdc_cli.types import kernels
from pgcdc_cli.types.column import Conversion, Parsed, Plain, Typed
from pgcdc_cli.types.kernels import as_mask

MAX_DECIMAL_PRECISION = 38


@dataclass(frozen=True, slots=True)
class Boolean:
    """`t` and `f`."""

    arrow: pa.DataType

    def __call__(self, column: pa.BinaryArray) -> Typed:
        true = kernels.equal(column, b"t")
        known = as_mask(true) | as_mask(kernels.equal(column, b"f"))
        unfit = as_mask(column.is_valid()) & ~known
        return Typed(kernels.null_where(true, unfit), unfit) if unfit.any() else Typed(true, None)


def integer(arrow: pa.DataType) -> Conversion:
    return Parsed(arrow, lambda text: text.cast(arrow), r"^-?\d+$")


def floating(arrow: pa.DataType) -> Conversion:
    return Parsed(arrow, lambda text: text.cast(arrow), r"^[-+.e\dA-Za-z]+$")


class Precision(NamedTuple):
    """`numeric(precision, scale)`; the scale may be negative or above the precision (PostgreSQL 15)."""

    precision: int
    scale: int


def numeric_precision(typmod: int) -> Precision | None:
    """Decode numeric's typmod (`make_numeric_typmod` in numeric.c); None where no precision was declared."""
    if typmod < 4:
        return None
    packed = typmod - 4
    return Precision(packed >> 16 & 0xFFFF, ((packed & 0x7FF) ^ 1024) - 1024)


def numeric(typmod: int) -> Conversion:
    """Decimal where it holds every finite value of the declared type, else text."""
    declared = numeric_precision(typmod)
    if declared is None or declared.precision > MAX_DECIMAL_PRECISION:
        return Plain(pa.string())
    if not 0 <= declared.scale <= declared.precision:
        return Plain(pa.string())
    arrow = pa.decimal128(*declared)
    return Parsed(arrow, lambda text: text.cast(arrow), r"^-?[\d.]+$")
