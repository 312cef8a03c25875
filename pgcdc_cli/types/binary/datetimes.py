"""Dates, times and intervals, printed with DateStyle ISO, TimeZone UTC and IntervalStyle postgres.

See `EncodeDateTime`, `EncodeTimeOnly` and `EncodeInterval` in datetime.c.
"""

import numpy as np

from pgcdc_cli.frames import POSTGRES_EPOCH
from pgcdc_cli.types import kernels
from pgcdc_cli.types.binary.numbers import leading_dropped, pairs, quads, sixes, trailing_dropped, wide
from pgcdc_cli.types.binary.packed import (
    Bytes,
    Integers,
    Packed,
    Reader,
    big_endian,
    choose,
    decimal,
    from_kept,
    from_rows,
    require,
)
from pgcdc_cli.types.kernels import ArrowArray, Booleans, Int64s

_EPOCH_DAY = POSTGRES_EPOCH // kernels.DAY
"""Days from 1970-01-01 to 2000-01-01."""

_ZONE_END = 16 * 3600
_YEAR_DIGITS = 7
_LAST_YEAR = 9999
_INFINITE = (np.iinfo(np.int64).max, np.iinfo(np.int32).max, np.iinfo(np.int32).max)
_MINUS_INFINITE = (np.iinfo(np.int64).min, np.iinfo(np.int32).min, np.iinfo(np.int32).min)


class _Characters:
    """A matrix of characters, one row a value, built from left to right; a mask says which are kept."""

    def __init__(self, rows: int) -> None:
        self._rows = rows
        self._parts: list[Bytes] = []
        self._kept: list[Booleans | None] = []

    def add(self, characters: Bytes, kept: Booleans | None = None) -> None:
        """Append a matrix of n rows; `kept` is a mask of its shape or of one column; None keeps all."""
        self._parts.append(characters)
        self._kept.append(kept)

    def constant(self, text: bytes, kept: Booleans | None = None) -> None:
        """Append the same text to each row; keep it in all rows, or in those marked."""
        characters = np.broadcast_to(np.frombuffer(text, np.uint8), (self._rows, len(text)))
        if kept is None or kept.any():
            self.add(characters, None if kept is None else kept[:, None])

    def sign(self, minus: Booleans, plus: Booleans) -> None:
        if not (minus | plus).any():
            return
        characters = np.where(minus, np.uint8(ord("-")), np.uint8(ord("+")))
        self.add(characters[:, None], (minus | plus)[:, None])

    def two(self, values: Integers, kept: Booleans | None = None) -> None:
        """Append two digits to each row; keep them in all rows, or in those marked."""
        if kept is None or kept.any():
            self.add(pairs(values), None if kept is None else kept[:, None])

    def packed(self, infinite: Booleans | None = None, minus: Booleans | None = None) -> Packed:
        """Pack the rows; `infinite` ones become `infinity`, or `-infinity` where `minus`."""
        characters = np.concatenate(self._parts, axis=1)
        has_infinite = infinite is not None and bool(infinite.any())
        if not has_infinite and all(kept is None for kept in self._kept):
            return from_rows(characters)
        kept = self._all_kept(characters.shape)
        if has_infinite:
            assert infinite is not None
            assert minus is not None
            characters[infinite, :9] = np.frombuffer(b"-infinity", np.uint8)
            kept[infinite] = np.arange(kept.shape[1]) < 9
            kept[infinite, 0] = minus[infinite]
        return from_kept(characters, kept)

    def _all_kept(self, shape: tuple[int, ...]) -> Booleans:
        found = np.ones(shape, np.bool_)
        start = 0
        for characters, kept in zip(self._parts, self._kept, strict=True):
            stop = start + characters.shape[1]
            if kept is not None:
                found[:, start:stop] = kept
            start = stop
        return found


def _add_date(text: _Characters, days: Int64s) -> Booleans:
    """Append year, month and day; return a mask of the years BC."""
    date = days.astype("datetime64[D]")
    month = date.astype("datetime64[M]")
    day = (date - month.astype("datetime64[D]")).astype(np.int64)
    year, month_of_year = np.divmod(month.astype(np.int64) + 1970 * 12, 12)
    before: Booleans = year < 1
    if before.any() or (year > _LAST_YEAR).any():
        characters = wide(np.where(before, 1 - year, year), _YEAR_DIGITS)
        text.add(characters, leading_dropped(characters, 4))
    else:
        text.add(quads(year))
    text.constant(b"-")
    text.two(month_of_year + 1)
    text.constant(b"-")
    text.two(day + 1)
    return before


def _add_time(text: _Characters, micros: Int64s) -> None:
    """Append hours, minutes and seconds."""
    seconds, fraction = np.divmod(micros, kernels.SECOND)
    minutes, second = np.divmod(seconds, 60)
    hours, minute = np.divmod(minutes, 60)
    text.two(hours)
    _add_minutes(text, minute, second, fraction)


def _add_minutes(text: _Characters, minute: Int64s, second: Int64s, fraction: Int64s) -> None:
    text.constant(b":")
    text.two(minute)
    text.constant(b":")
    text.two(second)
    if fraction.any():
        characters = sixes(fraction)
        text.constant(b".", fraction != 0)
        text.add(characters, trailing_dropped(characters))


def date(values: Packed) -> Packed:
    """Read days since 2000-01-01; the largest and the smallest int4 are infinity and -infinity."""
    days = big_endian(values.fixed(4), "i4").astype(np.int64)
    infinite, minus = _infinities(days, np.int32)
    text = _Characters(len(days))
    before = _add_date(text, days + _EPOCH_DAY)
    text.constant(b" BC", before)
    return text.packed(infinite, minus)


def _infinities(values: Int64s, type_: type[np.int32] | type[np.int64]) -> tuple[Booleans, Booleans]:
    minus: Booleans = values == np.iinfo(type_).min
    return minus | (values == np.iinfo(type_).max), minus


def timestamp(zone: bytes) -> Reader:
    """Read microseconds since 2000-01-01; the largest and the smallest int8 are infinity and -infinity."""

    def read(values: Packed) -> Packed:
        micros = big_endian(values.fixed(8), "i8").astype(np.int64)
        infinite, minus = _infinities(micros, np.int64)
        text = _Characters(len(micros))
        days, time_of_day = np.divmod(micros, kernels.DAY)
        before = _add_date(text, days + _EPOCH_DAY)
        text.constant(b" ")
        _add_time(text, time_of_day)
        text.constant(zone)
        text.constant(b" BC", before)
        return text.packed(infinite, minus)

    return read


def time(values: Packed) -> Packed:
    """Read microseconds since midnight."""
    text = _Characters(values.rows)
    _add_time(text, _time_of_day(values.fixed(8)))
    return text.packed()


def _time_of_day(values: Bytes) -> Int64s:
    micros = big_endian(values, "i8").astype(np.int64)
    require((micros >= 0) & (micros <= kernels.DAY), "it is not a time of day")
    return micros


def timetz(values: Packed) -> Packed:
    """Read microseconds since midnight, then the time zone in seconds west of Greenwich."""
    wire = values.fixed(12)
    text = _Characters(values.rows)
    _add_time(text, _time_of_day(wire[:, :8]))
    west = big_endian(wire[:, 8:], "i4").astype(np.int64)
    require(np.abs(west) < _ZONE_END, "it has no time zone")
    hours, rest = np.divmod(np.abs(west), 3600)
    minutes, seconds = np.divmod(rest, 60)
    text.sign(west > 0, west <= 0)
    text.two(hours)
    text.constant(b":", rest != 0)
    text.two(minutes, rest != 0)
    text.constant(b":", seconds != 0)
    text.two(seconds, seconds != 0)
    return text.packed()


def interval(values: Packed) -> Packed:
    """Read microseconds, days and months; since PostgreSQL 17, all three at their limits are an infinity."""
    wire = values.fixed(16)
    micros = big_endian(wire[:, :8], "i8").astype(np.int64)
    days = big_endian(wire[:, 8:12], "i4").astype(np.int64)
    months = big_endian(wire[:, 12:], "i4").astype(np.int64)
    years, rest = np.divmod(np.abs(months), 12)
    written = _IntervalText(values.rows)
    written.part(years * np.sign(months), b"year")
    written.part(rest * np.sign(months), b"mon")
    written.part(days, b"day")
    written.time(micros)
    text = kernels.as_binary(kernels.join(written.parts))
    for limits, name in ((_INFINITE, b"infinity"), (_MINUS_INFINITE, b"-infinity")):
        infinite = (micros == limits[0]) & (days == limits[1]) & (months == limits[2])
        text = kernels.replace_where(text, infinite, name) if infinite.any() else text
    return Packed.of(text)


class _IntervalText:
    """The parts of interval texts; a plus sign precedes a positive part after a negative one."""

    def __init__(self, rows: int) -> None:
        self.parts: list[ArrowArray] = []
        self._empty: Booleans = np.ones(rows, np.bool_)
        self._negative: Booleans = np.zeros(rows, np.bool_)

    def part(self, values: Int64s, unit: bytes) -> None:
        present = values != 0
        if not present.any():
            return
        signs = (b"", b"+", b" ", b" +")
        heads = choose(signs, 2 * ~self._empty + (self._negative & (values > 0)))
        tails = choose((b" " + unit + b"s", b" " + unit), values == 1)
        words = kernels.as_binary(kernels.join([heads, decimal(values), tails]))
        self.parts.append(kernels.replace_where(words, ~present, b""))
        self._empty &= ~present
        self._negative = np.where(present, values < 0, self._negative)

    def time(self, micros: Int64s) -> None:
        present = self._empty | (micros != 0)
        text = _Characters(len(micros))
        minus = micros < 0
        text.constant(b" ", ~self._empty)
        text.sign(minus, self._negative & ~minus)
        # The smallest int64 can't be negated: its negation wraps around, and is right as uint64.
        size = np.where(minus, -micros, micros).view(np.uint64)
        seconds, fraction = np.divmod(size, np.uint64(kernels.SECOND))
        minutes, second = np.divmod(seconds, np.uint64(60))
        hours, minute = np.divmod(minutes, np.uint64(60))
        characters = wide(hours, 10)
        text.add(characters, leading_dropped(characters, 2))
        _add_minutes(text, *(part.astype(np.int64) for part in (minute, second, fraction)))
        written = text.packed().arrow()
        self.parts.append(kernels.replace_where(written, ~present, b"") if not present.all() else written)
