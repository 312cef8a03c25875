"""Intervals under `interval.handling.mode`. Texts are PostgreSQL's under the interval style postgres."""

import re
from decimal import ROUND_DOWN, Decimal

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from pgcdc_cli.formats.debezium.connector_config import ConnectorConfig
from pgcdc_cli.formats.debezium.types.kind import Kind, Loss, inexact, named, token, usually
from pgcdc_cli.formats.debezium.types.numeric_types import java_number
from pgcdc_cli.formats.stamps import integer_text
from pgcdc_cli.types import kernels
from pgcdc_cli.types.kernels import ArrowArray, Fragment, Int64s

Parts = Int64s
"""Years, months, days, hours, minutes and microseconds: six numbers, or 6 x n of n intervals."""

_INFINITE = frozenset({"infinity", "-infinity"})
_INTERVAL = re.compile(
    r"(?:([+-]?\d+) years? ?)?(?:([+-]?\d+) mons? ?)?(?:([+-]?\d+) days? ?)?"
    r"(?:([+-])?(\d+):(\d\d):(\d\d)(?:\.(\d+))?)?"
)
_USUAL = (
    r"^(?:\+?(?P<years>-?\d{1,5}) years? ?)?(?:\+?(?P<months>-?\d{1,2}) mons? ?)?"
    r"(?:\+?(?P<days>-?\d{1,7}) days? ?)?(?:\+?(?P<sign>-?)(?P<hours>\d{1,8}):(?P<minutes>\d\d)"
    r":(?P<seconds>\d\d)(?:\.(?P<fraction>\d{1,6}))?)?$"
)
"""Not infinite, and of far fewer microseconds than 64 bits hold."""
_SIGN = 3
"""Which group that is."""
_WHOLE_SECONDS = _USUAL.replace(r"\d{1,6}", r"\d{0}")
_MICROS = 6
_SECOND = 10**_MICROS
_MONTH_DAYS = 365.25 / 12
_NANO = Decimal("1e-9")
_INT64_MAX = 2**63 - 1


def interval(config: ConnectorConfig) -> Kind:
    if config.interval_handling_mode == "string":
        zero = b'"P0Y0M0DT0H0M0S"'
        schema = named("string", "io.debezium.time.Interval")
        loss = Loss("infinity", "Debezium has no infinite intervals")
        to_json = usually(_WHOLE_SECONDS, _texts, _text)
        return Kind(schema, to_json, zero, zero, form={"form": "interval"}, loss=loss)
    schema = named("int64", "io.debezium.time.MicroDuration")
    form = inexact("interval.handling.mode=numeric")
    return Kind(schema, usually(_USUAL, _counts, _count), b"0", b"0", form=form)


def _parts(text: str) -> Parts | None:
    """Split one; the driver finds nothing in infinity."""
    match = _INTERVAL.fullmatch("" if text in _INFINITE else text)
    if match is None:
        return None
    years, months, days = (int(match[group] or 0) for group in (1, 2, 3))
    sign = -1 if match[4] == "-" else 1
    micros = int(match[7] or 0) * _SECOND + int((match[8] or "0").ljust(_MICROS, "0"))
    return np.array(
        [years, months, days, sign * int(match[5] or 0), sign * int(match[6] or 0), sign * micros]
    )


def _parts_of(column: pa.BinaryArray) -> Parts:
    """Split usual ones; null has none of anything."""
    groups = kernels.groups(kernels.as_text(column), _USUAL)
    years, months, days, hours, minutes, seconds, fraction = map(
        _whole, (group for number, group in enumerate(groups) if number != _SIGN)
    )
    digits = np.diff(kernels.value_bytes(groups[-1])[0])
    micros = seconds * _SECOND + fraction * 10 ** (_MICROS - digits)
    sign = np.where(kernels.as_mask(kernels.equal(groups[_SIGN], b"-")), -1, 1)
    return np.stack([years, months, days, sign * hours, sign * minutes, sign * micros])


def _whole(text: ArrowArray) -> Int64s:
    """Read integers; null and an empty text are none."""
    none = np.diff(kernels.value_bytes(text)[0]) == 0
    return kernels.replace_where(text, none, b"0").cast(pa.int64()).to_numpy()


def _micros(parts: Parts) -> NDArray[np.float64]:
    """Add up in floating point, in this order, as the connector does it."""
    years, months, days, hours, minutes, micros = parts
    total: NDArray[np.float64] = (years * 12 + months) * _MONTH_DAYS + days
    total = ((total * 24 + hours) * 60 + minutes) * 60 + _seconds(micros)
    return total * 1e6


def _seconds(micros: Int64s) -> NDArray[np.float64]:
    """Add the whole seconds and the rest as the driver does, in floating point."""
    return np.trunc(micros / 1e6) + np.fmod(micros, 1e6) / 1e6


def _count(text: str) -> bytes | None:
    parts = _parts(text)
    if parts is None:
        return None
    return b"%d" % max(-(2**63), min(_INT64_MAX, int(_micros(parts))))


def _counts(column: pa.BinaryArray) -> pa.BinaryArray:
    return kernels.nulled_like(integer_text(_micros(_parts_of(column)).astype(np.int64)), column)


def _text(text: str) -> bytes | None:
    parts = _parts(text)
    if parts is None:
        return None
    years, months, days, hours, minutes, micros = parts
    seconds = Decimal(java_number(repr(float(_seconds(micros))))).quantize(_NANO, ROUND_DOWN)
    shown = f"{seconds:f}".rstrip("0").rstrip(".")
    return token(f"P{years}Y{months}M{days}DT{hours}H{minutes}M{'0' if shown == '-0' else shown}S")


def _texts(column: pa.BinaryArray) -> pa.BinaryArray:
    """Write those of whole seconds."""
    *parts, micros = _parts_of(column)
    years, months, days, hours, minutes, seconds = map(integer_text, (*parts, micros // _SECOND))
    date: list[Fragment] = [b'"P', years, b"Y", months, b"M", days]
    time: list[Fragment] = [b"DT", hours, b"H", minutes, b"M", seconds, b'S"']
    return kernels.nulled_like(kernels.as_binary(kernels.join(date + time)), column)
