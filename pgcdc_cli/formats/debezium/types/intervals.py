"""Intervals under `interval.handling.mode`.

The server's texts have IntervalStyle postgres.
"""

import re
from collections.abc import Callable
from decimal import ROUND_DOWN, Decimal

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from pgcdc_cli.formats.debezium.connector_config import ConnectorConfig
from pgcdc_cli.formats.debezium.types.kind import Converter, Each, Kind, Loss, inexact, named, token, usually
from pgcdc_cli.formats.debezium.types.numeric_types import java_number
from pgcdc_cli.formats.json_text import integer_text
from pgcdc_cli.types import kernels
from pgcdc_cli.types.kernels import ArrowArray, Fragment, Int64s

_MICROS = 6
_INFINITE = frozenset({"infinity", "-infinity"})

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
    micros = int(match[7] or 0) * kernels.SECOND + int((match[8] or "0").ljust(_MICROS, "0"))
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
    return np.stack([none, none, none, hours, sign * minutes, sign * seconds * kernels.SECOND])


def _parts_of(column: pa.BinaryArray) -> Parts:
    """Split usual intervals; null becomes zeroes."""
    groups = kernels.groups(kernels.as_text(column), _USUAL_INTERVAL)
    years, months, days, hours, minutes, seconds, fraction = map(
        _whole, (group for number, group in enumerate(groups) if number != _SIGN)
    )
    digits = np.diff(kernels.value_bytes(groups[-1])[0])
    micros = seconds * kernels.SECOND + fraction * 10 ** (_MICROS - digits)
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
    return b"%d" % max(-(2**63), min(kernels.INT64_MAX, int(_interval_micros(parts))))


def _counts(parts: Parts) -> pa.BinaryArray:
    return integer_text(_interval_micros(parts).astype(np.int64))


def _text(text: str) -> bytes | None:
    parts = _parts(text)
    if parts is None:
        return None
    years, months, days, hours, minutes, micros = parts
    seconds = Decimal(java_number(repr(float(_seconds(micros))))).quantize(_NANO, ROUND_DOWN)
    shown = f"{seconds:f}".rstrip("0").rstrip(".")
    return token(f"P{years}Y{months}M{days}DT{hours}H{minutes}M{shown}S")


def _texts(parts: Parts) -> pa.BinaryArray:
    """Write intervals of whole seconds."""
    *larger, micros = parts
    years, months, days, hours, minutes, seconds = map(integer_text, (*larger, micros // kernels.SECOND))
    date: list[Fragment] = [b'"P', years, b"Y", months, b"M", days]
    time: list[Fragment] = [b"DT", hours, b"H", minutes, b"M", seconds, b'S"']
    return kernels.as_binary(kernels.join(date + time))
