"""Positions, moments and transactions of changes as text, whole columns at once."""

from datetime import datetime, timedelta
from functools import lru_cache

import numpy as np
import pyarrow as pa

from pgcdc_cli.errors import ErrorKind, PgcdcError
from pgcdc_cli.types import kernels
from pgcdc_cli.types.kernels import Int64s, Part

INVALID_XID = 0
"""`InvalidTransactionId` in access/transam.h: what snapshot rows have."""

_EPOCH = datetime(1970, 1, 1)  # noqa: DTZ001 - all are UTC, and say so by their Z
_DIGITS = np.frombuffer(b"0123456789ABCDEF", np.uint8)
_DIGITS_MAX = 8
_POWERS = 1 << np.arange(4, 32, 4)
_SHIFTS = np.arange(28, -1, -4)
_ISO_LENGTH = len("2026-01-02 03:04:05.678901")


def integer_text(values: Int64s) -> pa.BinaryArray:
    """Decimal digits."""
    return kernels.as_binary(pa.array(values).cast(pa.string()))


def lsn_text(values: Int64s) -> pa.BinaryArray:
    """As PostgreSQL prints `pg_lsn`: `0/1A2B3C8`."""
    return kernels.as_binary(kernels.join(lsn_parts(values)))


def lsn_parts(values: Int64s) -> list[Part]:
    """Give the parts that joined are `lsn_text`; in most batches the upper half is a constant."""
    high = values >> 32
    low = _hex(values & 0xFFFFFFFF)
    if (high == high[0]).all():
        return [b"%X/" % high[0], low]
    return [_hex(high), b"/", low]


def _hex(values: Int64s) -> pa.BinaryArray:
    """Upper-case digits of numbers below 2**32, without leading zeros."""
    digits = _DIGITS[values[:, None] >> _SHIFTS & 15]
    lengths = np.searchsorted(_POWERS, values, side="right") + 1
    if (lengths == lengths[0]).all():
        shown = digits[:, _DIGITS_MAX - lengths[0] :].reshape(-1)
    else:
        shown = digits[np.arange(_DIGITS_MAX) >= _DIGITS_MAX - lengths[:, None]]
    return kernels.from_bytes(np.concatenate([np.zeros(1, np.int64), np.cumsum(lengths)]), shown)


def one_lsn(value: int) -> bytes:
    """As `lsn_text`."""
    return b"%X/%X" % (value >> 32, value & 0xFFFFFFFF)


@lru_cache(64)
def one_timestamp(micros: int) -> bytes:
    """As `timestamp_text`."""
    try:
        moment = _EPOCH + timedelta(microseconds=micros)
    except OverflowError:
        raise _no_year() from None
    return moment.isoformat(timespec="microseconds").encode() + b"Z"


def timestamp_text(micros: Int64s) -> pa.BinaryArray:
    """Print microseconds since 1970-01-01 UTC as `2026-01-02T03:04:05.678901Z`.

    A year without four digits is a PROTOCOL error.
    """
    text = pa.array(micros).cast(pa.timestamp("us")).cast(pa.string())
    offsets, data = kernels.value_bytes(text)
    if len(data) != _ISO_LENGTH * len(micros):
        raise _no_year()
    lines = np.empty((len(micros), _ISO_LENGTH + 1), np.uint8)
    lines[:, :-1] = data.reshape(-1, _ISO_LENGTH)
    lines[:, 10] = ord("T")
    lines[:, -1] = ord("Z")
    return kernels.from_bytes(offsets + np.arange(len(offsets)), lines.reshape(-1))


def _no_year() -> PgcdcError:
    return PgcdcError(ErrorKind.PROTOCOL, "could not print a commit's time: its year has no four digits")
