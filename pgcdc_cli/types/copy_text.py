"""The text format of COPY to columns of wire text, with nothing done per row in Python.

A tab or newline in the bytes always ends a value: those inside of values are escaped. PostgreSQL manual,
COPY, "Text Format".
"""

from typing import NamedTuple

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from pgcdc_cli.errors import ErrorKind, PgcdcError
from pgcdc_cli.types import kernels
from pgcdc_cli.types.kernels import Booleans, Int64s

_TAB, _NEWLINE, _BACKSLASH, _NULL = b"\t\n\\N"

_UNESCAPED = np.arange(256, dtype=np.uint8)
_UNESCAPED[list(b"bfnrtv")] = list(b"\b\f\n\r\t\v")


class _Values(NamedTuple):
    """Values of n rows and m columns: that of (i, j) is `data[starts[i, j]:ends[i, j]]`."""

    data: NDArray[np.uint8]
    starts: Int64s
    ends: Int64s
    null: Booleans | None


def copy_columns(data: bytes | memoryview, width: int) -> tuple[pa.BinaryArray, ...]:
    """Divide rows of `width` columns, at least one of each; a PROTOCOL error where they have others."""
    values = _values(np.frombuffer(data, np.uint8), width)
    buffer = kernels.buffer(values.data)
    return tuple(
        kernels.nulled(
            kernels.pack(buffer, values.starts[:, column], values.ends[:, column]),
            None if values.null is None else values.null[:, column],
        )
        for column in range(width)
    )


def _values(data: NDArray[np.uint8], width: int) -> _Values:
    # Nothing stands between a tab and a newline, and what is below a tab wraps around.
    ends = np.flatnonzero(data - np.uint8(_TAB) <= _NEWLINE - _TAB)
    ends_row = data[ends] == _NEWLINE
    if len(ends) % width or not ends_row[width - 1 :: width].all() or ends_row.sum() * width != len(ends):
        message = f"could not decode the rows of a COPY: they do not have {width} columns"
        raise PgcdcError(ErrorKind.PROTOCOL, message)
    starts = np.concatenate([np.zeros(1, np.int64), ends[:-1] + 1])
    values = _Values(data, starts.reshape(-1, width), ends.reshape(-1, width), None)
    backslashes = np.flatnonzero(data == _BACKSLASH)
    return _read(values, _escapes(backslashes)) if len(backslashes) else values


def _escapes(backslashes: Int64s) -> Int64s:
    """Leave out the backslashes that are escaped themselves: in a run, every second one."""
    numbers = np.arange(len(backslashes))
    begins = np.ones(len(backslashes), np.bool_)
    begins[1:] = np.diff(backslashes) != 1
    in_run = numbers - np.maximum.accumulate(np.where(begins, numbers, 0))
    escapes: Int64s = backslashes[in_run % 2 == 0]
    return escapes


def _read(values: _Values, escapes: Int64s) -> _Values:
    """Find the nulls, and take the rest of the backslashes out."""
    data, starts, ends, _ = values
    null = (ends - starts == len(b"\\N")) & (data[starts] == _BACKSLASH) & (data[ends - 1] == _NULL)
    if null.sum() < len(escapes):
        data, starts, ends = _unescaped(data, starts, ends, escapes)
    return _Values(data, np.where(null, ends, starts), ends, null)


def _unescaped(
    data: NDArray[np.uint8], starts: Int64s, ends: Int64s, escapes: Int64s
) -> tuple[NDArray[np.uint8], Int64s, Int64s]:
    unescaped = data.copy()
    unescaped[escapes + 1] = _UNESCAPED[data[escapes + 1]]
    keep = np.ones(len(data), np.bool_)
    keep[escapes] = False
    return unescaped[keep], starts - np.searchsorted(escapes, starts), ends - np.searchsorted(escapes, ends)
