"""Dates, timestamps and times of day, as PostgreSQL prints them under ISO dates and time zone UTC.

Years BC and beyond 9999 are converted wherever Arrow's integer holds them; infinity, a timestamp after
January 294247 and the time 24:00:00 don't fit.
"""

import re

import pyarrow as pa

from pgcdc_cli.types import kernels
from pgcdc_cli.types.column import Conversion, Parsed
from pgcdc_cli.types.kernels import Column, as_mask, as_text

_DAY = 86_400_000_000
_INT64_MAX = 2**63 - 1
_TEXT = re.compile(
    r"(?P<year>\d{4,})-(?P<month>\d\d)-(?P<day>\d\d)"
    r"(?: (?P<hour>\d\d):(?P<minute>\d\d):(?P<second>\d\d)(?:\.(?P<fraction>\d{1,6}))?)?"
    r"(?P<zone>[+-]\d\d(?::\d\d){0,2})?"
    r"(?P<era> BC)?",
    re.ASCII,
)


def days_from_civil(year: int, month: int, day: int) -> int:
    """Count the days since 1970-01-01 of a date in the proleptic Gregorian calendar; 1 BC is year 0."""
    # Years begin in March, so that the leap day comes last: 153 days in every five months.
    shifted = year - (month <= 2)
    days = (153 * ((month + 9) % 12) + 2) // 5 + day - 1
    return shifted * 365 + shifted // 4 - shifted // 100 + shifted // 400 + days - 719_468


def _zone_seconds(zone: str) -> int:
    hours, minutes, seconds = (int(part) for part in (zone[1:] + ":0:0").split(":")[:3])
    offset = hours * 3600 + minutes * 60 + seconds
    return -offset if zone[0] == "-" else offset


def parse_days(text: str) -> int | None:
    """Days since 1970-01-01 of any date but infinity."""
    match = _TEXT.fullmatch(text)
    if match is None:
        return None
    year = int(match["year"])
    days = days_from_civil(1 - year if match["era"] else year, int(match["month"]), int(match["day"]))
    return days if -(2**31) <= days < 2**31 else None


def parse_micros(text: str) -> int | None:
    """Microseconds since 1970-01-01 00:00 (UTC where the text has a zone) of any timestamp that fits."""
    match = _TEXT.fullmatch(text)
    days = parse_days(text)
    if match is None or days is None or match["hour"] is None:
        return None
    seconds = int(match["hour"]) * 3600 + int(match["minute"]) * 60 + int(match["second"])
    if match["zone"]:
        seconds -= _zone_seconds(match["zone"])
    micros = days * _DAY + seconds * 1_000_000 + int((match["fraction"] or "0").ljust(6, "0"))
    return micros if micros <= _INT64_MAX else None


def date() -> Conversion:
    return Parsed(pa.date32(), lambda text: text.cast(pa.date32()), r"^\d{4}-\d\d-\d\d$", parse_days)


def timestamp(zone: str | None) -> Conversion:
    """Microseconds; `zone` is "UTC" for timestamptz."""
    arrow = pa.timestamp("us", zone)
    suffix = r"[+-]\d\d(:\d\d)?" if zone else ""
    usual = rf"^\d{{4}}-\d\d-\d\d \d\d:\d\d:\d\d(\.\d+)?{suffix}$"
    return Parsed(arrow, lambda text: text.cast(arrow), usual, parse_micros)


def _time(text: pa.StringArray) -> Column:
    dated = kernels.null_where(
        kernels.join([b"1970-01-01 ", text.cast(pa.binary())]), as_mask(text.is_null())
    )
    return as_text(dated).cast(pa.timestamp("us")).cast(pa.int64()).cast(pa.time64("us"))


def time() -> Conversion:
    return Parsed(pa.time64("us"), _time, r"^[01]\d:|^2[0-3]:")
