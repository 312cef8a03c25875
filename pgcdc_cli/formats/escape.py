"""Text as it stands between the quotes of a JSON string (RFC 8259, section 7)."""

import json
from functools import lru_cache

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from pgcdc_cli.types import kernels

LONGEST_ESCAPE = len("\\u0000") + 1
"""Bytes that one byte of a value may need while it is rewritten: its own and its escape."""

_BACKSLASH, _QUOTE = 0x5C, 0x22
# The backslash first, since every other escape brings one.
_ESCAPES = {byte: json.dumps(chr(byte))[1:-1].encode() for byte in (_BACKSLASH, _QUOTE, *range(0x20))}


@lru_cache(4096)
def quote(text: str) -> bytes:
    """Quote a name; UTF-8 stays as it is."""
    return json.dumps(text, ensure_ascii=False).encode()


def escape(column: pa.BinaryArray) -> pa.BinaryArray:
    """Escape quotes, backslashes and control characters; a PROTOCOL error where a value is no valid UTF-8.

    Only the rows that hold such a byte are rewritten.
    """
    offsets, data = kernels.value_bytes(column)
    if not len(data):
        return column
    if data.max() >= 0x80:
        kernels.as_text(column)
    special = (data < 0x20) | (data == _QUOTE) | (data == _BACKSLASH)
    if not special.any():
        return column
    if len(data) > kernels.INT32_MAX // LONGEST_ESCAPE:
        column = kernels.widened(column)
    at = np.flatnonzero(special)
    rows = np.unique(np.searchsorted(offsets, at, side="right") - 1)
    return _with_rows(column, rows, _rewrite(kernels.take(column, rows), np.unique(data[at])))


def _rewrite(column: pa.BinaryArray, present: NDArray[np.uint8]) -> pa.BinaryArray:
    for byte, escaped in _ESCAPES.items():
        if byte in present:
            column = kernels.replace_substring(column, bytes([byte]), escaped)
    return column


def _with_rows(column: pa.BinaryArray, rows: NDArray[np.int64], replaced: pa.BinaryArray) -> pa.BinaryArray:
    if len(rows) == len(column):
        return replaced
    places = np.arange(len(column))
    places[rows] = len(column) + np.arange(len(rows))
    return kernels.take(kernels.concat([column, replaced]), places)
