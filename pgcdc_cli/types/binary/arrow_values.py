"""Convert binary values to Arrow without their text, where a type's send format is close to Arrow's.

Text takes the server longer to print, and a client longer to parse. What Arrow can't hold (infinity, NaN in a
decimal), and whatever else isn't usual, is left to `text_of` and `to_arrow`, so that both ways give the same
values. The function named by a type's `pg_type.typsend`, in PostgreSQL's source, defines its send format.
"""

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, NamedTuple, TypeAlias

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from pgcdc_cli.frames import POSTGRES_EPOCH
from pgcdc_cli.types import kernels
from pgcdc_cli.types.binary import text_of
from pgcdc_cli.types.kernels import ArrowArray, Booleans, Int64s
from pgcdc_cli.types.pg_type import OIDS, PgType
from pgcdc_cli.types.to_arrow import arrow_type

_EPOCH_DAY = POSTGRES_EPOCH // kernels.DAY
_INT32, _INT64 = np.iinfo(np.int32), np.iinfo(np.int64)


class Fields(NamedTuple):
    """The binary values of a column: that of row i is `data[starts[i]:ends[i]]`; `null` marks the NULLs."""

    data: NDArray[np.uint8]
    starts: NDArray[np.int32]
    ends: NDArray[np.int32]
    null: Booleans | None

    @property
    def validity(self) -> pa.Buffer | None:
        return None if self.null is None else kernels.bitmap(~self.null)

    def packed(self) -> pa.BinaryArray:
        """Copy the values into an array of their own."""
        return kernels.nulled(kernels.pack(kernels.buffer(self.data), self.starts, self.ends), self.null)

    def numbers(self, code: str) -> "NDArray[Any]":
        """Gather big-endian numbers (`i4`, `u2`, ...) at the start of each value; any number for a NULL."""
        there = kernels.at_each_byte(self.data, code)
        numbers: NDArray[Any] = there[np.minimum(self.starts, len(there) - 1)].astype(code)
        return numbers

    def words(self, at: NDArray[np.int32]) -> Int64s:
        """Gather eight bytes at each of these positions, as a big-endian number; zeros follow the data.

        A position that isn't in the data gives any number.
        """
        there = kernels.at_each_byte(self.data, "i8")
        last = len(there) - 1
        words: Int64s = there[np.minimum(at, last)].astype(np.int64) << 8 * (at - last).clip(0, 7)
        return words

    def have(self, size: int) -> bool:
        """Whether all values have this many bytes."""
        return self.all(self.ends - self.starts == size)

    def all(self, good: Booleans) -> bool:
        """Whether this holds for all values; of a NULL it needn't."""
        return bool((good if self.null is None else good | self.null).all())

    def zeroed(self, values: "NDArray[Any]") -> "NDArray[Any]":
        """Set the numbers of NULLs to 0."""
        return values if self.null is None else np.where(self.null, values.dtype.type(0), values)


Reader: TypeAlias = Callable[[Fields], "ArrowArray | None"]
"""Converts a column; None if that takes its text. Raises ArrowInvalid for invalid UTF-8."""


def can_read(types: Sequence[PgType]) -> bool:
    """Whether `arrow_values` takes columns of all these types."""
    return all(_reader(pg_type) is not None for pg_type in types)


def arrow_values(types: Sequence[PgType], columns: Sequence[Fields]) -> tuple[ArrowArray, ...]:
    """Convert columns, each with n values (at least one), to their types' Arrow types.

    A column with unusual values becomes wire text, as a binary array, for `to_arrow`; so do all of them if
    there is invalid UTF-8. Raises MalformedError for a value that is not in the type's send format.
    """
    try:
        return tuple(map(_values, types, columns))
    except pa.ArrowInvalid:
        return tuple(map(_text, types, columns))


def _values(pg_type: PgType, fields: Fields) -> ArrowArray:
    read = _reader(pg_type)
    assert read is not None, pg_type
    values = read(fields)
    return _text(pg_type, fields) if values is None else values


def _text(pg_type: PgType, fields: Fields) -> pa.BinaryArray:
    return text_of(pg_type, fields.packed())


def _reader(pg_type: PgType) -> Reader | None:
    if pg_type.element is not None:
        return None
    if pg_type.category == "enum" or pg_type.sends == "text":
        return _string
    if pg_type.oid == OIDS["numeric"]:
        return _numeric(pg_type)
    return _BY_OID.get(pg_type.oid)


def _string(fields: Fields) -> ArrowArray:
    return kernels.convert(fields.packed(), pa.string())


def _jsonb(fields: Fields) -> "ArrowArray | None":
    """Read `jsonb_send`: a version, 1, and the text."""
    there = fields.ends > fields.starts
    if not fields.all(there & (fields.numbers("u1") == 1)):
        return None
    return _string(fields._replace(starts=fields.starts + there))


def _by_text(_: Fields) -> "ArrowArray | None":
    """Leave the column to its text; so it doesn't keep the others from being read in binary."""
    return None


def _boolean(fields: Fields) -> "ArrowArray | None":
    if not fields.have(1):
        return None
    bits = kernels.bitmap(fields.numbers("u1") == 1)
    return pa.Array.from_buffers(pa.bool_(), len(fields.starts), [fields.validity, bits])


def _number(code: str, arrow: pa.DataType) -> Reader:
    """Read numbers of a fixed size; an unsigned one becomes an int64."""

    def read(fields: Fields) -> "ArrowArray | None":
        if not fields.have(np.dtype(code).itemsize):
            return None
        numbers = fields.numbers(code).astype("i8" if code == "u4" else code, copy=False)
        if code[0] == "f":
            # Text has one NaN, binary any.
            numbers[np.isnan(numbers)] = np.nan
        return _array(fields, numbers, arrow)

    return read


def _array(fields: Fields, values: "NDArray[Any]", arrow: pa.DataType) -> ArrowArray:
    return pa.Array.from_buffers(arrow, len(values), [fields.validity, kernels.buffer(fields.zeroed(values))])


def _date(fields: Fields) -> "ArrowArray | None":
    if not fields.have(4):
        return None
    days = fields.zeroed(fields.numbers("i4"))
    if days.max() > _INT32.max - _EPOCH_DAY or days.min() == _INT32.min:
        return None
    return _array(fields, days + np.int32(_EPOCH_DAY), pa.date32())


def _timestamp(arrow: pa.DataType, fields: Fields) -> "ArrowArray | None":
    if not fields.have(8):
        return None
    micros = fields.zeroed(fields.numbers("i8"))
    if micros.max() > _INT64.max - POSTGRES_EPOCH or micros.min() == _INT64.min:
        return None
    return _array(fields, micros + POSTGRES_EPOCH, arrow)


def _time(fields: Fields) -> "ArrowArray | None":
    if not fields.have(8):
        return None
    micros = fields.zeroed(fields.numbers("i8"))
    is_time = micros.min() >= 0 and micros.max() < kernels.DAY
    return _array(fields, micros, pa.time64("us")) if is_time else None


_LONGEST = 18
"""Digits of which any three numbers together fit into 64 bits."""

_NEGATIVE = 0x4000
_POWERS = 10 ** np.arange(_LONGEST + 1, dtype=np.int64)
_GROUP = 4
"""Base-10000 digits that are read at a time, and the decimal digits of each."""

_BASE = 10_000


def _numeric(pg_type: PgType) -> Reader | None:
    """Return what reads a numeric whose Arrow type is a decimal that fits into 64 bits."""
    arrow = arrow_type(pg_type)
    if not isinstance(arrow, pa.Decimal128Type) or arrow.precision > _LONGEST:
        return None
    return partial(_decimals, arrow)


def _decimals(arrow: pa.Decimal128Type, fields: Fields) -> "ArrowArray | None":
    """Read `numeric_send`: number of digits, weight of the first, sign, scale, base-10000 digits."""
    header = fields.zeroed(fields.numbers("i8"))
    count, weight, sign = header >> 48 & 0xFFFF, header << 16 >> 48, header >> 16 & 0xFFFF
    fits = (8 + 2 * count == fields.ends - fields.starts) & ((sign == 0) | (sign == _NEGATIVE))
    if not fields.all(fits):
        return None
    total = np.zeros(len(count), np.int64)
    for first in range(0, int(count.max()), _GROUP):
        number = np.clip(count - first, 0, _GROUP)
        power = _GROUP * (weight - first - number + 1) + arrow.scale
        digits = _digits(fields, first, number)
        scaled = None if digits is None else _scaled(digits, power)
        if scaled is None:
            return None
        total += scaled
    if total.max() >= _POWERS[arrow.precision]:
        return None
    total = np.where(sign == _NEGATIVE, -total, total)
    # A decimal128 is an integer of two words, the lower one first.
    words = np.stack([total, total >> 63], axis=1)
    return pa.Array.from_buffers(arrow, len(total), [fields.validity, kernels.buffer(words)])


def _digits(fields: Fields, first: int, number: Int64s) -> Int64s | None:
    """Read a number, at most four, of each value's digits from the one with index `first`."""
    at = fields.starts + np.int32(8 + 2 * first)
    words = fields.words(at) >> (16 * (_GROUP - number)).clip(0, 63)
    words[number == 0] = 0
    total = np.zeros(len(words), np.int64)
    for place in range(int(number.max())):
        digit = words >> 16 * place & 0xFFFF
        if digit.max() >= _BASE:
            return None
        total += digit * _BASE**place
    return total


def _scaled(values: Int64s, power: Int64s) -> Int64s | None:
    """Multiply by powers of ten; None if one isn't an integer then, or is too large."""
    power = np.where(values == 0, 0, power)
    if power.min() < -_LONGEST or power.max() > _LONGEST:
        return None
    if power.min() < 0:
        values, rest = np.divmod(values, _POWERS[np.maximum(-power, 0)])
        if rest.any():
            return None
    factors = _POWERS[np.maximum(power, 0)]
    # So the sum of three such parts is less than 2**63.
    return values * factors if (values < _POWERS[_LONGEST] // factors).all() else None


_BY_NAME: dict[str, Reader] = {
    "bool": _boolean,
    "int2": _number("i2", pa.int16()),
    "int4": _number("i4", pa.int32()),
    "int8": _number("i8", pa.int64()),
    "oid": _number("u4", pa.int64()),
    "xid": _number("u4", pa.int64()),
    "cid": _number("u4", pa.int64()),
    "float4": _number("f4", pa.float32()),
    "float8": _number("f8", pa.float64()),
    "text": _string,
    "varchar": _string,
    "bpchar": _string,
    "name": _string,
    "json": _string,
    "jsonb": _jsonb,
    "uuid": _by_text,
    "bytea": _by_text,
    "date": _date,
    "time": _time,
    "timestamp": partial(_timestamp, pa.timestamp("us")),
    "timestamptz": partial(_timestamp, pa.timestamp("us", "UTC")),
}
_BY_OID = {OIDS[name]: reader for name, reader in _BY_NAME.items()}
