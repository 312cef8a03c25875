r"""bytea in its hex form (`bytea_output = hex`): `\x` and two digits a byte."""

from dataclasses import dataclass

import numpy as np
import pyarrow as pa

from pgcdc_cli.types import kernels
from pgcdc_cli.types.column import Typed

_DIGITS = np.full(256, 0xFF, np.uint8)
_DIGITS[np.frombuffer(b"0123456789abcdef", np.uint8)] = np.arange(16)


@dataclass(frozen=True, slots=True)
class Bytea:
    """All digits of a column at once; what is no hex form (never sent to pgcdc's sessions) doesn't fit."""

    arrow: pa.DataType

    def __call__(self, column: pa.BinaryArray) -> Typed:
        try:
            return Typed(decode_hex(column), None)
        except ValueError:
            return _one_by_one(column)


def decode_hex(column: pa.BinaryArray) -> pa.BinaryArray:
    r"""Decode; ValueError if any value isn't `\x` and pairs of lower-case hexadecimal digits."""
    offsets, data = kernels.value_bytes(column.fill_null(b"\\x"))
    lengths = np.diff(offsets)
    if (lengths % 2).any() or (lengths < 2).any():
        raise ValueError("odd number of digits")
    pairs = data.reshape(-1, 2)
    starts = offsets[:-1] // 2
    if (pairs[starts] != np.frombuffer(b"\\x", np.uint8)).any():
        raise ValueError("no hex form")
    digits = _DIGITS[np.delete(pairs, starts, axis=0)]
    if (digits == 0xFF).any():
        raise ValueError("no hexadecimal digit")
    validity = column.is_valid().buffers()[1] if column.null_count else None
    ends = offsets // 2 - np.arange(len(offsets))
    decoded = (digits[:, 0] << 4 | digits[:, 1]).astype(np.uint8)
    return kernels.from_bytes(ends, decoded, validity)


def _one_by_one(column: pa.BinaryArray) -> Typed:
    values: list[bytes | None] = []
    unfit = np.zeros(len(column), np.bool_)
    for row, value in enumerate(column):
        try:
            values += decode_hex(pa.array([value.as_py()], pa.binary())).to_pylist()
        except ValueError:
            values.append(None)
            unfit[row] = True
    return Typed(pa.array(values, pa.binary()), unfit)
