"""Dates, times and timestamps under `time.precision.mode`.

The server's texts have DateStyle ISO and TimeZone UTC. Infinity becomes what the JDBC driver and java.time
make of it: large constants, which differ in snapshots.
"""

import re
from collections.abc import Callable, Collection
from dataclasses import replace
from functools import partial
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
    at_once,
    inexact,
    named,
    per_value,
    quoted,
    token,
    usually,
)
from pgcdc_cli.formats.json_text import integer_text
from pgcdc_cli.types import kernels, to_arrow
from pgcdc_cli.types.kernels import Int64s

_MICROS = 6
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
_YEAR, _YEAR_SINCE_1583 = r"^\d{4}", r"^(158[3-9]|159\d|1[6-9]\d\d|[2-9]\d{3})"
"""Since 1583 Java's calendar, Julian before 1582, and PostgreSQL's agree."""
_DAY, _CLOCK = r"-\d\d-\d\d", r" \d\d:\d\d:\d\d(\.\d{1,6})?"
_UTC = r"\+00"
_ZONED_LENGTH = len("2026-01-02 03:04:05.678901+00")
_EPOCH = pa.scalar(b"1970-01-01 00:00:00+00", pa.binary())
_TIMESTAMP_LENGTH, _DATE_LENGTH, _TIME_LENGTH = map(len, ("2026-01-02 03:04:05", "2026-01-02", "03:04:05"))


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

    usual = f"{_YEAR_SINCE_1583 if snapshot else _YEAR}{_DAY}$"
    if config.time_precision_mode == "isostring":
        return _iso_date(usual, days, _ISO_INFINITE_DAYS_IN_SNAPSHOTS if snapshot else _ISO_INFINITE_DAYS)
    infinite = _INFINITE_DAYS_IN_SNAPSHOTS if snapshot else _INFINITE_DAYS

    def convert(column: pa.BinaryArray) -> pa.BinaryArray:
        return kernels.as_binary(kernels.as_text(column).cast(pa.date32()).cast(pa.int32()).cast(pa.string()))

    def each(text: str) -> bytes | None:
        found = days(text)
        return infinite.get(text, str(found).encode() if found is not None else None)

    name = f"{_CONNECT}.Date" if config.time_precision_mode == "connect" else "io.debezium.time.Date"
    test = partial(_all_since_1583 if snapshot else _all_long, length=_DATE_LENGTH)
    to_json = at_once(test, convert, usually(usual, convert, each))
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


def _usual_timestamp(zone: str = "", *, snapshot: bool) -> str:
    return f"{_YEAR_SINCE_1583 if snapshot else _YEAR}{_DAY}{_CLOCK}{zone}$"


def _timestamps(convert: ToJson, each: Each, zone: str = "", *, snapshot: bool) -> Converter:
    """Make a converter: `convert` for usual texts, which have this pattern as time zone, `each` for the rest.

    `convert` must raise ArrowInvalid for unusual texts of at least the usual length.
    """
    tested = usually(_usual_timestamp(zone, snapshot=snapshot), convert, each)
    return at_once(_all_since_1583 if snapshot else _all_long, convert, tested)


def _all_long(column: pa.BinaryArray, length: int = _TIMESTAMP_LENGTH) -> bool:
    """Whether all texts have that length or more."""
    lengths = np.diff(kernels.offsets(column))
    return int((lengths >= length).sum()) == len(column) - column.null_count


def _all_since_1583(column: pa.BinaryArray, length: int = _TIMESTAMP_LENGTH) -> bool:
    """Whether all texts are that long, of years from 1583 on, and not BC; false if all are null."""
    offsets, data = kernels.value_bytes(column)
    starts, lengths = offsets[:-1], np.diff(offsets)
    if column.null_count:
        starts, lengths = starts[lengths > 0], lengths[lengths > 0]
    if not len(data) or lengths.min() < length or data.max() >= ord("B"):
        return False
    years = kernels.at_each_byte(data, "u4")[starts]
    return bool((years >= int.from_bytes(b"1583")).all())


_OLD_DATES = Loss(
    r" BC$|^1582-10-(0[5-9]|1[0-4])$", "Debezium leaves out the era in snapshots, and days of October 1582"
)
_OLD_TIMESTAMPS = Loss(
    r" BC$|^(0\d{3}|1[0-4]\d\d|15[0-7]\d|158[0-2])-",
    "Debezium has the Julian calendar in snapshots",
    _all_since_1583,
)


def _clock_form(form: str, typmod: int, unit: _Unit) -> Form:
    """Describe how a count is read back, if its unit holds all digits."""
    if unit is _UNITS["nanoseconds"]:
        return inexact("time.precision.mode=nanoseconds")
    if unit is _UNITS["connect"] and not 0 <= typmod <= 3:
        return inexact("time.precision.mode=connect")
    return {"form": form, "per_second": kernels.SECOND // unit.per}


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
        found = to_arrow.time()(column)
        if found.unfit is not None:
            raise pa.ArrowInvalid("the end of a day is no time of day")
        values = found.values.cast(pa.int64()).fill_null(0).to_numpy()
        return _integers(values * unit.times // unit.per, column)

    def each(text: str) -> bytes | None:
        return b"%d" % (_clock_micros(text) * unit.times // unit.per) if _TIME.fullmatch(text) else None

    schema = named("int32" if unit.per > 1 else "int64", unit.time)
    to_json = at_once(partial(_all_long, length=_TIME_LENGTH), convert, usually(usual, convert, each))
    return Kind(schema, to_json, b"0", form=_clock_form("time", typmod, unit))


def _clock_micros(text: str) -> int:
    match = _TIME.fullmatch(text)
    assert match is not None
    hour, minute, second = int(match[1]), int(match[2]), int(match[3])
    return (hour * 3600 + minute * 60 + second) * 1_000_000 + int((match[4] or "0").ljust(_MICROS, "0"))


def timestamp(typmod: int, config: ConnectorConfig, *, snapshot: bool) -> Kind:
    mode = config.time_precision_mode
    if mode == "isostring":
        usual = _usual_timestamp(snapshot=snapshot)
        iso = usually(usual, lambda column: quoted(_in_utc(column)), _iso_timestamp(snapshot=snapshot))
        return _iso("IsoTimestamp", iso, b'"1970-01-01T00:00:00Z"')
    unit = _unit(mode, typmod, {"adaptive", "adaptive_time_microseconds"})

    def convert(column: pa.BinaryArray) -> pa.BinaryArray:
        values = kernels.as_text(column).cast(pa.timestamp("us")).cast(pa.int64()).fill_null(0).to_numpy()
        return _integers(values * unit.times // unit.per, column)

    def each(text: str) -> bytes | None:
        micros = _INFINITE_MICROS[text] if text in _INFINITE else _micros(text, julian=snapshot)
        return None if micros is None else b"%d" % _java_count(micros, unit)

    to_json, loss = _timestamps(convert, each, snapshot=snapshot), _OLD_TIMESTAMPS if snapshot else None
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
        seconds, fraction = divmod(micros, kernels.SECOND)
        micros = max(-(2**63), min(kernels.INT64_MAX, seconds * kernels.SECOND)) + fraction
    return (micros * unit.times // unit.per + 2**63) % 2**64 - 2**63


def timestamptz(typmod: int, *, snapshot: bool) -> Kind:
    digits = _MICROS if typmod < 0 else typmod

    def convert(column: pa.BinaryArray) -> pa.BinaryArray:
        given = kernels.coalesce(column, _EPOCH) if column.null_count else column
        return kernels.nulled_like(_zoned(given, digits), column)

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

    to_json = _timestamps(convert, each, _UTC, snapshot=snapshot)
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

    return replace(kind, to_json=usually(_usual_timestamp(_UTC, snapshot=True), kind.to_json, relabelled))


def _julian_timestamp(text: str, digits: int) -> bytes:
    """Print an old timestamp, given in the Julian calendar, in the Gregorian one."""
    micros = _micros(text, julian=True)
    assert micros is not None
    day, clock, fraction = _iso_parts(micros)
    return token(f"{day}T{clock}{fraction[: digits + 1] if digits else ''}Z")


def _iso_parts(micros: int) -> tuple[str, str, str]:
    """Split a moment into its day, its time of day, and a point with six digits."""
    days, rest = divmod(micros, kernels.DAY)
    seconds, fraction = divmod(rest, kernels.SECOND)
    clock = f"{seconds // 3600:02}:{seconds // 60 % 60:02}:{seconds % 60:02}"
    return _iso_day(days), clock, f".{fraction:06}"


def _iso_day(days: int) -> str:
    # NumPy's calendar is the proleptic Gregorian one, with a year 0.
    year, month, day = str(np.datetime64(days, "D")).rsplit("-", 2)
    return f"{_iso_year(int(year))}-{month}-{day}"


def _zoned(column: pa.BinaryArray, digits: int) -> pa.BinaryArray:
    """Write texts like `2026-01-02 03:04:05.6789+00` as quoted ISO 8601, with `digits` digits of a second.

    None may be null. Raises ArrowInvalid for texts of another form.
    """
    offsets, data = kernels.value_bytes(column)
    _check_zoned(offsets, data)
    lengths = np.diff(offsets)
    # Each token has its text where it is in the column, after a quote; a shorter text is followed by others'.
    behind = np.zeros(_ZONED_LENGTH, np.uint8)
    tokens = kernels.items_at(np.concatenate([behind[:1], data, behind]), offsets[:-1], _ZONED_LENGTH)
    end = len('"2026-01-02T03:04:05.') + digits if digits else len('"2026-01-02T03:04:05')
    for at, byte in (0, b'"'), (11, b"T"), (20, b"."), (end, b"Z"), (end + 1, b'"'):
        tokens[:, at] = ord(byte)
    short = np.flatnonzero(lengths < _ZONED_LENGTH)
    given = lengths[short] - len("2026-01-02 03:04:05.+00")
    for digit in range(digits):
        tokens[short[given <= digit], 21 + digit] = ord("0")
    ends = np.arange(len(offsets)) * (end + 2)
    return kernels.from_bytes(ends, np.ascontiguousarray(tokens[:, : end + 2]).reshape(-1))


def _check_zoned(offsets: Int64s, data: NDArray[np.uint8]) -> None:
    """Raise ArrowInvalid unless all timestamps have a year of four digits, and UTC as their time zone."""
    usual = (np.diff(offsets) <= _ZONED_LENGTH).all()
    usual = usual and (data[offsets[:-1] + len("2026")] == ord("-")).all()
    if not (usual and all((data[offsets[1:] - at] == ord(byte)).all() for at, byte in enumerate("00+", 1))):
        raise pa.ArrowInvalid("a timestamp is unusual")


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
