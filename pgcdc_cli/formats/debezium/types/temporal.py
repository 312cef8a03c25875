"""Dates, times and timestamps under `time.precision.mode`, intervals under `interval.handling.mode`.

The server's texts have DateStyle ISO, TimeZone UTC and IntervalStyle postgres. Infinity becomes what the JDBC
driver and java.time make of it: large constants, which differ in snapshots.
"""

import re
from collections.abc import Callable, Collection
from dataclasses import replace
from decimal import ROUND_DOWN, Decimal
from typing import NamedTuple

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from pgcdc_cli.formats.debezium.connector_config import ConnectorConfig
from pgcdc_cli.formats.debezium.types.kind import (
    Converter,
    Each,
    Form,
    Kind,
    Loss,
    ToJson,
    inexact,
    named,
    per_value,
    quoted,
    token,
    usually,
)
from pgcdc_cli.formats.debezium.types.numeric_types import java_number
from pgcdc_cli.formats.debezium.types.timestamp_texts import (
    SINCE_1583,
    USUAL_TIMESTAMP,
    all_since_1583,
    timestamps,
)
from pgcdc_cli.formats.json_text import integer_text, timestamp_text
from pgcdc_cli.types import kernels, to_arrow
from pgcdc_cli.types.kernels import ArrowArray, Fragment, Int64s

_INT64_MAX = 2**63 - 1
_MICROS = 6
_SECOND = 10**_MICROS
_CONNECT = "org.apache.kafka.connect.data"
_INFINITE_DAYS = {"infinity": b"-2147472692", "-infinity": b"-2147472691"}
_INFINITE_DAYS_IN_SNAPSHOTS = {"infinity": b"-622191234", "-infinity": b"-625821272"}
_ISO_INFINITE_DAYS = {"infinity": b'"-5877611-06-21Z"', "-infinity": b'"-5877611-06-22Z"'}
_ISO_INFINITE_DAYS_IN_SNAPSHOTS = {"infinity": b'"+292278994-08-16Z"', "-infinity": b'"+292269055-12-02Z"'}
_INFINITE_MICROS = {"infinity": 9223372036825200000, "-infinity": -9223372036832400000}
_INFINITE = frozenset(_INFINITE_MICROS)
_JULIAN_END, _GREGORIAN_BEGIN = -141_437, -141_427
"""1582-10-05, the first day that the calendar reform left out, and 1582-10-15, in days since 1970."""
_TIMESTAMP = re.compile(
    r"(?P<year>\d{4,})-(?P<day>\d\d-\d\d) (?P<clock>\d\d:\d\d:\d\d)(?:\.(?P<fraction>\d+))?"
    r"(?:[+-]\d\d\S*)?(?P<era> BC)?"
)
_TIME = re.compile(r"(\d\d):(\d\d):(\d\d)(?:\.(\d+))?(?:([+-])(\d\d)(?::(\d\d))?(?::(\d\d))?)?")


def _integers(values: NDArray[np.int64], column: pa.BinaryArray) -> pa.BinaryArray:
    tokens = integer_text(values)
    return kernels.nulled_like(tokens, column)


class _Unit(NamedTuple):
    """A unit of time, `times` / `per` units to a microsecond, and its schema names."""

    times: int
    per: int
    time: str
    timestamp: str


_MILLIS = _Unit(1, 1000, "io.debezium.time.Time", "io.debezium.time.Timestamp")
_UNITS = {
    "connect": _Unit(1, 1000, f"{_CONNECT}.Time", f"{_CONNECT}.Timestamp"),
    "microseconds": _Unit(1, 1, "io.debezium.time.MicroTime", "io.debezium.time.MicroTimestamp"),
    "nanoseconds": _Unit(1000, 1, "io.debezium.time.NanoTime", "io.debezium.time.NanoTimestamp"),
}
"""By `time.precision.mode`, for modes whose unit doesn't depend on the column."""


def _unit(mode: str, typmod: int, adaptive: Collection[str]) -> _Unit:
    """Choose a mode's unit; the `adaptive` modes go by the declared precision."""
    if mode in adaptive and 0 <= typmod <= 3:
        return _MILLIS
    return _UNITS.get(mode, _UNITS["microseconds"])


def date(config: ConnectorConfig, *, snapshot: bool) -> Kind:
    def days(text: str) -> int | None:
        # In snapshots the connector drops the era, and days that the calendar reform left out are shifted.
        found = to_arrow.parse_days(text.removesuffix(" BC") if snapshot else text)
        if snapshot and found is not None and _JULIAN_END <= found < _GREGORIAN_BEGIN:
            found += _GREGORIAN_BEGIN - _JULIAN_END
        return found

    usual = SINCE_1583 if snapshot else r"^\d{4}-\d\d-\d\d$"
    if config.time_precision_mode == "isostring":
        return _iso_date(usual, days, _ISO_INFINITE_DAYS_IN_SNAPSHOTS if snapshot else _ISO_INFINITE_DAYS)
    infinite = _INFINITE_DAYS_IN_SNAPSHOTS if snapshot else _INFINITE_DAYS

    def convert(column: pa.BinaryArray) -> pa.BinaryArray:
        return kernels.as_binary(kernels.as_text(column).cast(pa.date32()).cast(pa.int32()).cast(pa.string()))

    def each(text: str) -> bytes | None:
        found = days(text)
        return infinite.get(text, str(found).encode() if found is not None else None)

    name = f"{_CONNECT}.Date" if config.time_precision_mode == "connect" else "io.debezium.time.Date"
    to_json = usually(usual, convert, each)
    loss = _OLD_DATES if snapshot else None
    return Kind(named("int32", name), to_json, b"0", form={"form": "days"}, loss=loss)


def _iso_date(usual: str, days: Callable[[str], int | None], infinite: dict[str, bytes]) -> Kind:
    def each(text: str) -> bytes | None:
        found = days(text)
        return infinite.get(text, token(f"{_iso_day(found)}Z") if found is not None else None)

    return _iso("IsoDate", usually(usual, lambda column: quoted(_in_utc(column)), each), b'"1970-01-01Z"')


def _iso(name: str, to_json: ToJson, zero: bytes) -> Kind:
    """ISO 8601 text; it ends in Z (UTC) even if the type has no time zone."""
    schema = named("string", f"io.debezium.time.{name}")
    return Kind(schema, to_json, zero, form=inexact("time.precision.mode=isostring"))


def _in_utc(column: pa.BinaryArray) -> pa.BinaryArray:
    """Turn usual texts of PostgreSQL's, with a blank, into ISO 8601, with T and Z."""
    dated = kernels.replace_pattern(column, " ", "T")
    return kernels.nulled_like(kernels.as_binary(kernels.join([dated, b"Z"])), column)


_OLD_DATES = Loss(
    r" BC$|^1582-10-(0[5-9]|1[0-4])$", "Debezium leaves out the era in snapshots, and days of October 1582"
)
_OLD_TIMESTAMPS = Loss(
    r" BC$|^(0\d{3}|1[0-4]\d\d|15[0-7]\d|158[0-2])-",
    "Debezium has the Julian calendar in snapshots",
    all_since_1583,
)


def _clock_form(form: str, typmod: int, unit: _Unit) -> Form:
    """Describe how a count is read back, if its unit holds all digits."""
    if unit is _UNITS["nanoseconds"]:
        return inexact("time.precision.mode=nanoseconds")
    if unit is _UNITS["connect"] and not 0 <= typmod <= 3:
        return inexact("time.precision.mode=connect")
    return {"form": form, "per_second": _SECOND // unit.per}


def time(typmod: int, config: ConnectorConfig) -> Kind:
    mode = config.time_precision_mode
    usual = r"^([01]\d|2[0-3]):\d\d:\d\d(\.\d+)?$"
    if mode == "isostring":
        # The connector writes the end of a day as its start.
        iso = usually(
            usual,
            lambda column: quoted(_in_utc(column)),
            lambda text: token(f"{re.sub('^24', '00', text)}Z"),
        )
        return _iso("IsoTime", iso, b'"00:00:00Z"')
    unit = _unit(mode, typmod, {"adaptive"})

    def convert(column: pa.BinaryArray) -> pa.BinaryArray:
        values = to_arrow.time()(column).values.cast(pa.int64()).fill_null(0).to_numpy()
        return _integers(values * unit.times // unit.per, column)

    def each(text: str) -> bytes | None:
        return b"%d" % (_clock_micros(text) * unit.times // unit.per) if _TIME.fullmatch(text) else None

    schema = named("int32" if unit.per > 1 else "int64", unit.time)
    return Kind(schema, usually(usual, convert, each), b"0", form=_clock_form("time", typmod, unit))


def _clock_micros(text: str) -> int:
    match = _TIME.fullmatch(text)
    assert match is not None
    hour, minute, second = int(match[1]), int(match[2]), int(match[3])
    return (hour * 3600 + minute * 60 + second) * 1_000_000 + int((match[4] or "0").ljust(_MICROS, "0"))


def timestamp(typmod: int, config: ConnectorConfig, *, snapshot: bool) -> Kind:
    mode = config.time_precision_mode
    if mode == "isostring":
        usual, each_iso = SINCE_1583 if snapshot else USUAL_TIMESTAMP, _iso_timestamp(snapshot=snapshot)
        iso = usually(usual, lambda column: quoted(_in_utc(column)), each_iso)
        return _iso("IsoTimestamp", iso, b'"1970-01-01T00:00:00Z"')
    unit = _unit(mode, typmod, {"adaptive", "adaptive_time_microseconds"})

    def convert(column: pa.BinaryArray) -> pa.BinaryArray:
        values = kernels.as_text(column).cast(pa.timestamp("us")).cast(pa.int64()).fill_null(0).to_numpy()
        return _integers(values * unit.times // unit.per, column)

    def each(text: str) -> bytes | None:
        micros = _INFINITE_MICROS[text] if text in _INFINITE else _micros(text, julian=snapshot)
        return None if micros is None else b"%d" % _java_count(micros, unit)

    to_json, loss = timestamps(convert, each, snapshot=snapshot), _OLD_TIMESTAMPS if snapshot else None
    form = _clock_form("timestamp", typmod, unit)
    return Kind(named("int64", unit.timestamp), to_json, b"0", form=form, loss=loss)


def _iso_timestamp(*, snapshot: bool) -> Each:
    def each(text: str) -> bytes | None:
        micros = _INFINITE_MICROS[text] if text in _INFINITE else _micros(text, julian=snapshot)
        if micros is None:
            return None
        day, clock, fraction = _iso_parts(micros)
        return token(f"{day}T{clock}{fraction.rstrip('0').rstrip('.')}Z")

    return each


def _micros(text: str, *, julian: bool) -> int | None:
    """Count microseconds since 1970, of any size; with `julian`, old dates are in that calendar."""
    match = _TIMESTAMP.fullmatch(text)
    if match is None:
        return None
    month, day = (int(part) for part in match["day"].split("-"))
    year = 1 - int(match["year"]) if match["era"] else int(match["year"])
    days = to_arrow.days_from_civil(year, month, day)
    if julian and days < _GREGORIAN_BEGIN:
        days += _julian_lag(year - (month <= 2))
    clock = match["clock"] + (f".{match['fraction']}" if match["fraction"] else "")
    return days * kernels.DAY + _clock_micros(clock)


def _julian_lag(year: int) -> int:
    """Days by which a Julian date is later than the Gregorian date of the same name.

    `year` begins in March. In the third century the calendars agree.
    """
    return year // 100 - year // 400 - 2


def _java_count(micros: int, unit: _Unit) -> int:
    """Overflow as Debezium does: with microseconds clamp the seconds, add the fraction, and wrap."""
    if unit.times == unit.per:
        seconds, fraction = divmod(micros, _SECOND)
        micros = max(-(2**63), min(_INT64_MAX, seconds * _SECOND)) + fraction
    return (micros * unit.times // unit.per + 2**63) % 2**64 - 2**63


def timestamptz(typmod: int, *, snapshot: bool) -> Kind:
    digits = _MICROS if typmod < 0 else typmod

    def convert(column: pa.BinaryArray) -> pa.BinaryArray:
        zoned = kernels.as_text(column).cast(pa.timestamp("us", "UTC"))
        shown = timestamp_text(zoned.cast(pa.int64()).fill_null(0).to_numpy())
        if digits < _MICROS:
            shown = _with_fraction(shown, digits)
        tokens = quoted(shown)
        return kernels.nulled_like(tokens, column)

    def each(text: str) -> bytes | None:
        if text in _INFINITE:
            return token(text)
        match = _TIMESTAMP.fullmatch(text)
        if match is None:
            return None
        if snapshot:
            return _julian_timestamp(text, digits)
        fraction = (match["fraction"] or "").ljust(digits, "0")
        clock = match["clock"] + (f".{fraction}" if fraction else "")
        year = 1 - int(match["year"]) if match["era"] else int(match["year"])
        return token(f"{_iso_year(year)}-{match['day']}T{clock}Z")

    to_json = timestamps(convert, each, snapshot=snapshot)
    schema = named("string", "io.debezium.time.ZonedTimestamp")
    loss = _OLD_TIMESTAMPS if snapshot else None
    return Kind(schema, to_json, b'"1970-01-01T00:00:00Z"', form={"form": "zoned"}, loss=loss)


_LEFT_OUT = re.compile(r"1582-10-(0[5-9]|1[0-4])")


def timestamptz_in_array(typmod: int) -> Kind:
    """Elements of timestamptz arrays: the driver reads them as local time, and ignores calendar and era."""
    kind = timestamptz(typmod, snapshot=False)

    def relabelled(text: str) -> bytes | None:
        # -infinity is a constant of the driver, whose era is lost; infinity keeps its name.
        text = "292269055-12-02 23:00:00+00" if text == "-infinity" else text
        later = _LEFT_OUT.sub(lambda day: f"1582-10-{int(day[1]) + 10}", text.removesuffix(" BC"))
        return kind.to_json(kernels.binary([later]))[0].as_py()

    return replace(kind, to_json=usually(SINCE_1583, kind.to_json, relabelled))


def _julian_timestamp(text: str, digits: int) -> bytes:
    """Print an old timestamp, given in the Julian calendar, in the Gregorian one."""
    micros = _micros(text, julian=True)
    assert micros is not None
    day, clock, fraction = _iso_parts(micros)
    return token(f"{day}T{clock}{fraction[: digits + 1] if digits else ''}Z")


def _iso_parts(micros: int) -> tuple[str, str, str]:
    """Split a moment into its day, its time of day, and a point with six digits."""
    days, rest = divmod(micros, kernels.DAY)
    seconds, fraction = divmod(rest, _SECOND)
    clock = f"{seconds // 3600:02}:{seconds // 60 % 60:02}:{seconds % 60:02}"
    return _iso_day(days), clock, f".{fraction:06}"


def _iso_day(days: int) -> str:
    # NumPy's calendar is the proleptic Gregorian one, with a year 0.
    year, month, day = str(np.datetime64(days, "D")).rsplit("-", 2)
    return f"{_iso_year(int(year))}-{month}-{day}"


_ISO_WIDTH = len("2026-01-02T03:04:05.678901Z")


def _with_fraction(text: pa.BinaryArray, digits: int) -> pa.BinaryArray:
    """Cut the fraction of `2026-01-02T03:04:05.678901Z` to `digits` digits."""
    data = kernels.all_bytes(text)
    width = len("2026-01-02T03:04:05.") + digits if digits else len("2026-01-02T03:04:05")
    lines = np.full((len(text), width + 1), ord("Z"), np.uint8)
    lines[:, :-1] = data.reshape(len(text), _ISO_WIDTH)[:, :width]
    return kernels.from_bytes(np.arange(len(text) + 1, dtype=np.int64) * (width + 1), lines.reshape(-1))


def _iso_year(year: int) -> str:
    if 0 <= year <= 9999:
        return f"{year:04}"
    return f"+{year}" if year > 0 else f"-{-year:04}"


def timetz() -> Kind:
    schema = named("string", "io.debezium.time.ZonedTime")
    form = inexact("Debezium leaves out its time zone")
    return Kind(schema, per_value(_zoned_time), b'"00:00:00Z"', form=form)


_WITHOUT_FRACTION = re.compile(r"\.\d+")


def timetz_in_array() -> Kind:
    """Elements of timetz arrays: the driver reads them as local time in whole seconds."""
    kind = timetz()
    whole = per_value(lambda text: _zoned_time(_WITHOUT_FRACTION.sub("", text)))
    return replace(kind, to_json=whole)


def _zoned_time(text: str) -> bytes | None:
    match = _TIME.fullmatch(text)
    if match is None:
        return None
    zone = sum(int(part or 0) * unit for part, unit in zip(match.groups()[5:], (3600, 60, 1), strict=True))
    zone = -zone if match[5] == "-" else zone
    seconds, micros = divmod((_clock_micros(text) - zone * 1_000_000) % kernels.DAY, 1_000_000)
    fraction = f".{micros:06}".rstrip("0") if micros else ""
    return token(f"{seconds // 3600:02}:{seconds // 60 % 60:02}:{seconds % 60:02}{fraction}Z")


Parts = Int64s
"""Years, months, days, hours, minutes and microseconds: six numbers, or 6 x n of n intervals."""

_INTERVAL = re.compile(
    r"(?:([+-]?\d+) years? ?)?(?:([+-]?\d+) mons? ?)?(?:([+-]?\d+) days? ?)?"
    r"(?:([+-])?(\d+):(\d\d):(\d\d)(?:\.(\d+))?)?"
)
_USUAL_INTERVAL = (
    r"^(?:\+?(?P<years>-?\d{1,5}) years? ?)?(?:\+?(?P<months>-?\d{1,2}) mons? ?)?"
    r"(?:\+?(?P<days>-?\d{1,7}) days? ?)?(?:\+?(?P<sign>-?)(?P<hours>\d{1,8}):(?P<minutes>\d\d)"
    r":(?P<seconds>\d\d)(?:\.(?P<fraction>\d{1,6}))?)?$"
)
"""Matches finite intervals whose microseconds stay far below 64 bits."""
_SIGN = 3
"""The number of the sign's group."""
_WHOLE_SECONDS = _USUAL_INTERVAL.replace(r"\d{1,6}", r"\d{0}")
_DIGIT = np.zeros(256, np.bool_)
_DIGIT[np.frombuffer(b"0123456789", np.uint8)] = True
_MONTH_DAYS = 365.25 / 12
_NANO = Decimal("1e-9")


def interval(config: ConnectorConfig) -> Kind:
    if config.interval_handling_mode == "string":
        zero = b'"P0Y0M0DT0H0M0S"'
        schema = named("string", "io.debezium.time.Interval")
        loss = Loss("infinity", "Debezium has no infinite intervals")
        to_json = _intervals(_WHOLE_SECONDS, _texts, _text)
        return Kind(schema, to_json, zero, form={"form": "interval"}, loss=loss)
    schema = named("int64", "io.debezium.time.MicroDuration")
    form = inexact("interval.handling.mode=numeric")
    return Kind(schema, _intervals(_USUAL_INTERVAL, _counts, _count), b"0", form=form)


def _intervals(pattern: str, convert: Callable[[Parts], pa.BinaryArray], each: Each) -> Converter:
    """Make a converter: `convert` for the parts of texts that match the pattern, `each` for others."""
    tested = usually(pattern, lambda column: kernels.nulled_like(convert(_parts_of(column)), column), each)

    def to_json(column: pa.BinaryArray) -> pa.BinaryArray:
        parts = None if column.null_count else _clock_parts(column)
        return tested(column) if parts is None else convert(parts)

    return Converter(to_json, each)


def _parts(text: str) -> Parts | None:
    """Split one interval; infinity has no parts, since the driver finds none in it."""
    match = _INTERVAL.fullmatch("" if text in _INFINITE else text)
    if match is None:
        return None
    years, months, days = (int(match[group] or 0) for group in (1, 2, 3))
    sign = -1 if match[4] == "-" else 1
    micros = int(match[7] or 0) * _SECOND + int((match[8] or "0").ljust(_MICROS, "0"))
    return np.array(
        [years, months, days, sign * int(match[5] or 0), sign * int(match[6] or 0), sign * micros]
    )


def _clock_parts(column: pa.BinaryArray) -> Parts | None:
    """Split intervals without days and fractions, as `-123:04:05`; None if one is different or long."""
    offsets, data = kernels.value_bytes(column)
    starts, lengths = offsets[:-1], np.diff(offsets)
    if not len(column) or lengths.min() < len("00:00:00") or lengths.max() > len("-12345678:00:00"):
        return None
    negative = data[starts] == ord("-")
    tails = data[offsets[1:, None] - np.arange(len(":00:00"), 0, -1)]
    if (tails[:, ::3] != ord(":")).any() or _DIGIT[data].sum() != len(data) - 2 * len(
        column
    ) - negative.sum():
        return None
    digits = tails.astype(np.int64) - ord("0")
    minutes, seconds = digits[:, 1] * 10 + digits[:, 2], digits[:, 4] * 10 + digits[:, 5]
    hours = kernels.as_text(kernels.without_last(column, len(":00:00"))).cast(pa.int64()).to_numpy()
    none, sign = np.zeros_like(hours), np.where(negative, -1, 1)
    return np.stack([none, none, none, hours, sign * minutes, sign * seconds * _SECOND])


def _parts_of(column: pa.BinaryArray) -> Parts:
    """Split usual intervals; null becomes zeroes."""
    groups = kernels.groups(kernels.as_text(column), _USUAL_INTERVAL)
    years, months, days, hours, minutes, seconds, fraction = map(
        _whole, (group for number, group in enumerate(groups) if number != _SIGN)
    )
    digits = np.diff(kernels.value_bytes(groups[-1])[0])
    micros = seconds * _SECOND + fraction * 10 ** (_MICROS - digits)
    sign = np.where(kernels.as_mask(kernels.equal(groups[_SIGN], b"-")), -1, 1)
    return np.stack([years, months, days, sign * hours, sign * minutes, sign * micros])


def _whole(text: ArrowArray) -> Int64s:
    """Parse integers; null and an empty text become 0."""
    none = np.diff(kernels.value_bytes(text)[0]) == 0
    return kernels.replace_where(text, none, b"0").cast(pa.int64()).to_numpy()


def _interval_micros(parts: Parts) -> NDArray[np.float64]:
    """Add up the parts in floating point, in the connector's order."""
    years, months, days, hours, minutes, micros = parts
    total: NDArray[np.float64] = (years * 12 + months) * _MONTH_DAYS + days
    total = ((total * 24 + hours) * 60 + minutes) * 60 + _seconds(micros)
    return total * 1e6


def _seconds(micros: Int64s) -> NDArray[np.float64]:
    """Add whole seconds and their fraction in floating point, as the driver does."""
    return np.trunc(micros / 1e6) + np.fmod(micros, 1e6) / 1e6


def _count(text: str) -> bytes | None:
    parts = _parts(text)
    if parts is None:
        return None
    return b"%d" % max(-(2**63), min(_INT64_MAX, int(_interval_micros(parts))))


def _counts(parts: Parts) -> pa.BinaryArray:
    return integer_text(_interval_micros(parts).astype(np.int64))


def _text(text: str) -> bytes | None:
    parts = _parts(text)
    if parts is None:
        return None
    years, months, days, hours, minutes, micros = parts
    seconds = Decimal(java_number(repr(float(_seconds(micros))))).quantize(_NANO, ROUND_DOWN)
    shown = f"{seconds:f}".rstrip("0").rstrip(".")
    return token(f"P{years}Y{months}M{days}DT{hours}H{minutes}M{'0' if shown == '-0' else shown}S")


def _texts(parts: Parts) -> pa.BinaryArray:
    """Write intervals of whole seconds."""
    *larger, micros = parts
    years, months, days, hours, minutes, seconds = map(integer_text, (*larger, micros // _SECOND))
    date: list[Fragment] = [b'"P', years, b"Y", months, b"M", days]
    time: list[Fragment] = [b"DT", hours, b"H", minutes, b"M", seconds, b'S"']
    return kernels.as_binary(kernels.join(date + time))
