r"""Convert wire text to Arrow: the Arrow and JSON type of each PostgreSQL type.

A value that the Arrow type can't hold is null in the typed column and marked in `unfit`, so that a format can
write PostgreSQL's text instead: no value is rounded, clamped or dropped.

An array of several dimensions or with another lower bound (`[0:1]={...}`) doesn't fit a list; neither does
one with an element that doesn't fit the element's type.

Floats keep NaN and the infinities. `numeric` without precision, with a negative scale, with a scale above its
precision or with more than 38 digits is text, since no Arrow decimal holds all of its values; NaN and
Infinity don't fit a decimal.

Years BC and beyond 9999 are converted wherever Arrow's integer holds them; infinity, a timestamp after
January 294247 and the time 24:00:00 don't fit.

| PostgreSQL | Arrow | JSON |
|---|---|---|
| bool | bool | true, false |
| int2, int4, int8 | int16, int32, int64 | number |
| oid, xid, cid | int64 | string |
| float4, float8 | float32, float64 | number; NaN, Infinity, -Infinity: string |
| numeric(p,s), p <= 38, 0 <= s <= p | decimal128(p, s) | string (or number) |
| any other numeric | utf8 | string (or number) |
| bytea | binary | string, `\x...` |
| date, time, timestamp | date32, time64(us), timestamp(us) | string |
| timestamptz | timestamp(us, UTC) | string |
| json, jsonb | utf8 | embedded |
| arrays of built-in types and of enums | list | string |
| anything else (also xid8, an unsigned 64-bit number) | utf8 | string |

Strings are PostgreSQL's text output. Arrays of types that are not built in stay text, since their delimiter
(`pg_type.typdelim`) isn't known here; enums' is always the comma.
"""

import re
from binascii import unhexlify
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from typing import NamedTuple, Protocol, cast

import numpy as np
import pyarrow as pa

from pgcdc_cli.large_copies import PIECE, joined
from pgcdc_cli.types import kernels
from pgcdc_cli.types.array_literals import split_arrays
from pgcdc_cli.types.kernels import ArrowArray, Booleans, as_mask, as_text
from pgcdc_cli.types.pg_type import OIDS, PgType


class Typed(NamedTuple):
    """A converted column: null where the text was null or unfit; `unfit` is None if every value fits."""

    values: ArrowArray
    unfit: Booleans | None


class Conversion(Protocol):
    """Converts wire text to a type's Arrow type."""

    @property
    def arrow(self) -> pa.DataType: ...

    def __call__(self, column: pa.BinaryArray) -> Typed: ...


MAX_DECIMAL_PRECISION = 38
_WIRE_TEXT = (pa.binary(), pa.large_binary())


def to_arrow(pg_type: PgType, column: ArrowArray) -> Typed:
    """Convert n wire texts; a column that has the Arrow type already is passed on.

    Raises PgcdcError (PROTOCOL) for invalid UTF-8.
    """
    if column.type not in _WIRE_TEXT:
        return Typed(column, None)
    return conversion(pg_type)(cast("pa.BinaryArray", column))


def arrow_type(pg_type: PgType) -> pa.DataType:
    """Look up a column's Arrow type."""
    return conversion(pg_type).arrow


@cache
def conversion(pg_type: PgType) -> Conversion:
    """Find the conversion of a type's wire text to Arrow."""
    element = pg_type.element
    if element is not None and _is_splittable(element):
        return ArrayOf(conversion(element), ";" if element.oid == _BOX else ",")
    return _CONVERSIONS[pg_type.oid](pg_type.typmod) if pg_type.oid in _CONVERSIONS else _TEXT


def _is_splittable(element: PgType) -> bool:
    return element.category == "enum" or element.oid in OIDS.values()


@dataclass(frozen=True, slots=True)
class Plain:
    """Keeps the text as it is."""

    arrow: pa.DataType

    def __call__(self, column: pa.BinaryArray) -> Typed:
        return Typed(as_text(column), None)


@dataclass(frozen=True, slots=True)
class Parsed:
    """A vectorised cast, with a fallback value by value.

    `cast` converts texts that match the RE2 pattern `usual`. `rare` parses any other text into the Arrow
    type's storage (days, microseconds); None means that it doesn't fit.
    """

    arrow: pa.DataType
    cast: Callable[[pa.StringArray], ArrowArray]
    usual: str
    rare: Callable[[str], int | None] | None = None

    def __call__(self, column: pa.BinaryArray) -> Typed:
        text = as_text(column)
        try:
            return Typed(self.cast(text), None)
        except pa.ArrowInvalid:
            return self._mixed(text)

    def _mixed(self, text: pa.StringArray) -> Typed:
        given = as_mask(text.is_valid())
        rare = given & ~as_mask(kernels.matches(text, self.usual))
        values = self._usual(kernels.null_where(text, rare))
        values = kernels.replace_with_mask(values, rare, self._rare(text.filter(pa.array(rare))))
        unfit = given & as_mask(values.is_null())
        return Typed(values, unfit if unfit.any() else None)

    def _usual(self, text: pa.StringArray) -> ArrowArray:
        try:
            return self.cast(text)
        except pa.ArrowInvalid:
            return kernels.concat([self._single(text[i : i + 1]) for i in range(len(text))])

    def _single(self, text: pa.StringArray) -> ArrowArray:
        try:
            return self.cast(text)
        except pa.ArrowInvalid:
            return kernels.nulls(1, self.arrow)

    def _rare(self, text: pa.StringArray) -> ArrowArray:
        if self.rare is None:
            return kernels.nulls(len(text), self.arrow)
        storage = pa.int32() if self.arrow == pa.date32() else pa.int64()
        values: ArrowArray = pa.array([self.rare(str(value)) for value in text], storage)
        return values.cast(self.arrow)


@dataclass(frozen=True, slots=True)
class Boolean:
    """Converts `t` and `f`."""

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


class NumericPrecision(NamedTuple):
    """`numeric(precision, scale)`; since PostgreSQL 15 the scale may be negative or above the precision."""

    precision: int
    scale: int


def numeric_precision(typmod: int) -> NumericPrecision | None:
    """Decode numeric's typmod (`make_numeric_typmod` in numeric.c); None if no precision was declared."""
    if typmod < 4:
        return None
    packed = typmod - 4
    return NumericPrecision(packed >> 16 & 0xFFFF, ((packed & 0x7FF) ^ 1024) - 1024)


def numeric(typmod: int) -> Conversion:
    """Convert to decimal128 if that holds every finite value of the declared type, else to text."""
    declared = numeric_precision(typmod)
    if declared is None or declared.precision > MAX_DECIMAL_PRECISION:
        return Plain(pa.string())
    if not 0 <= declared.scale <= declared.precision:
        return Plain(pa.string())
    arrow = pa.decimal128(*declared)
    return Parsed(arrow, lambda text: text.cast(arrow), r"^-?[\d.]+$")


_HEX_PREFIX = b"\\x"
_EMPTY = pa.scalar(_HEX_PREFIX, pa.binary())


@dataclass(frozen=True, slots=True)
class Bytea:
    """Decodes a column's hex digits at once; other forms, which pgcdc's sessions never get, don't fit."""

    arrow: pa.DataType

    def __call__(self, column: pa.BinaryArray) -> Typed:
        try:
            return Typed(decode_hex(column), None)
        except ValueError:
            return _hex_one_by_one(column)


def decode_hex(column: pa.BinaryArray) -> pa.BinaryArray:
    r"""Decode bytea's hex format. Raises ValueError for a value that isn't `\x` and pairs of hex digits."""
    given = kernels.coalesce(column, _EMPTY)
    offsets, data = kernels.value_bytes(given)
    lengths, starts = np.diff(offsets), offsets[:-1]
    if (lengths & 1).any() or (lengths < 2).any():
        raise ValueError("odd number of digits")
    if any((data[starts + place] != byte).any() for place, byte in enumerate(_HEX_PREFIX)):
        raise ValueError("no hex form")
    ends, digits = kernels.value_bytes(kernels.without_start(given, len(_HEX_PREFIX)))
    decoded = joined([unhexlify(digits[at : at + PIECE].data) for at in range(0, len(digits), PIECE)])
    validity = column.is_valid().buffers()[1] if column.null_count else None
    return kernels.from_bytes(ends // 2, np.frombuffer(decoded, np.uint8), validity)


def _hex_one_by_one(column: pa.BinaryArray) -> Typed:
    values: list[bytes | None] = []
    unfit = np.zeros(len(column), np.bool_)
    for row, value in enumerate(column):
        try:
            values += decode_hex(pa.array([value.as_py()], pa.binary())).to_pylist()
        except ValueError:
            values.append(None)
            unfit[row] = True
    return Typed(pa.array(values, pa.binary()), unfit)


_MOMENT = re.compile(
    r"(?P<year>\d{4,})-(?P<month>\d\d)-(?P<day>\d\d)"
    r"(?: (?P<hour>\d\d):(?P<minute>\d\d):(?P<second>\d\d)(?:\.(?P<fraction>\d{1,6}))?)?"
    r"(?P<zone>[+-]\d\d(?::\d\d){0,2})?"
    r"(?P<era> BC)?",
    re.ASCII,
)


def date() -> Conversion:
    return Parsed(pa.date32(), lambda text: text.cast(pa.date32()), r"^\d{4}-\d\d-\d\d$", parse_days)


def timestamp(zone: str | None) -> Conversion:
    """Convert to microseconds; `zone` is "UTC" for timestamptz."""
    arrow = pa.timestamp("us", zone)
    suffix = r"[+-]\d\d(:\d\d)?" if zone else ""
    usual = rf"^\d{{4}}-\d\d-\d\d \d\d:\d\d:\d\d(\.\d+)?{suffix}$"
    return Parsed(arrow, lambda text: text.cast(arrow), usual, parse_micros)


def time() -> Conversion:
    return Parsed(pa.time64("us"), _time, r"^[01]\d:|^2[0-3]:")


_DAY = b"1970-01-01 "


def _time(text: pa.StringArray) -> ArrowArray:
    offsets, data = kernels.value_bytes(text)
    dated = kernels.insert_before(data, offsets[:-1], _DAY)
    ends = offsets + len(_DAY) * np.arange(len(offsets))
    column = kernels.from_bytes(ends, dated, kernels.validity(text))
    return as_text(column).cast(pa.timestamp("us")).cast(pa.int64()).cast(pa.time64("us"))


def parse_days(text: str) -> int | None:
    """Parse any date but infinity into days since 1970-01-01."""
    match = _MOMENT.fullmatch(text)
    if match is None:
        return None
    year = int(match["year"])
    days = days_from_civil(1 - year if match["era"] else year, int(match["month"]), int(match["day"]))
    return days if -(2**31) <= days < 2**31 else None


def parse_micros(text: str) -> int | None:
    """Parse a timestamp into microseconds since 1970-01-01 00:00 (UTC); None if it doesn't fit."""
    match = _MOMENT.fullmatch(text)
    days = parse_days(text)
    if match is None or days is None or match["hour"] is None:
        return None
    seconds = int(match["hour"]) * 3600 + int(match["minute"]) * 60 + int(match["second"])
    if match["zone"]:
        seconds -= _zone_seconds(match["zone"])
    micros = days * kernels.DAY + seconds * 1_000_000 + int((match["fraction"] or "0").ljust(6, "0"))
    return micros if micros <= kernels.INT64_MAX else None


def days_from_civil(year: int, month: int, day: int) -> int:
    """Count the days from 1970-01-01 to a date in the proleptic Gregorian calendar; 1 BC is year 0."""
    # Years begin in March, so that the leap day comes last: 153 days in every five months.
    shifted = year - (month <= 2)
    days = (153 * ((month + 9) % 12) + 2) // 5 + day - 1
    return shifted * 365 + shifted // 4 - shifted // 100 + shifted // 400 + days - 719_468


def _zone_seconds(zone: str) -> int:
    hours, minutes, seconds = (int(part) for part in (zone[1:] + ":0:0").split(":")[:3])
    offset = hours * 3600 + minutes * 60 + seconds
    return -offset if zone[0] == "-" else offset


@dataclass(frozen=True, slots=True)
class ArrayOf:
    """Converts array literals to lists of what `element` converts."""

    element: Conversion
    delimiter: str = ","

    @property
    def arrow(self) -> pa.DataType:
        return pa.list_(self.element.arrow)

    def __call__(self, column: pa.BinaryArray) -> Typed:
        elements = split_arrays(column, self.delimiter)
        values, unfit_elements = self.element(elements.texts)
        unfit = elements.irregular
        if unfit_elements is not None:
            unfit = unfit | elements.rows_with(unfit_elements)
        absent = unfit | as_mask(column.is_null())
        lists = kernels.lists(elements.offsets.astype(np.int32), values, absent)
        return Typed(lists, unfit if unfit.any() else None)


_TEXT = Plain(pa.string())
_BOX = OIDS["box"]


def _by_oid(conversions: dict[str, Callable[[int], Conversion]]) -> dict[int, Callable[[int], Conversion]]:
    return {OIDS[name]: conversion for name, conversion in conversions.items()}


# By OID, since a user-defined type may be called "date", too. The argument is the typmod.
_CONVERSIONS = _by_oid(
    {
        "bool": lambda _: Boolean(pa.bool_()),
        "int2": lambda _: integer(pa.int16()),
        "int4": lambda _: integer(pa.int32()),
        "int8": lambda _: integer(pa.int64()),
        "oid": lambda _: integer(pa.int64()),
        "xid": lambda _: integer(pa.int64()),
        "cid": lambda _: integer(pa.int64()),
        "float4": lambda _: floating(pa.float32()),
        "float8": lambda _: floating(pa.float64()),
        "numeric": numeric,
        "bytea": lambda _: Bytea(pa.binary()),
        "date": lambda _: date(),
        "time": lambda _: time(),
        "timestamp": lambda _: timestamp(None),
        "timestamptz": lambda _: timestamp("UTC"),
    }
)
