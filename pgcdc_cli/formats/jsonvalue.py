"""A column's values as they stand in a JSON object: which text, and which rows without quotes."""

from typing import NamedTuple

import numpy as np
import pyarrow as pa

from pgcdc_cli.formats.escape import escape
from pgcdc_cli.types import kernels
from pgcdc_cli.types.convert import JsonKind
from pgcdc_cli.types.kernels import Mask, as_mask, as_text

NUMBER = r"^-?(0|[1-9]\d*)(\.\d+)?([eE][-+]?\d+)?$"
NULL = r"^[ \t\n\r]*null[ \t\n\r]*$"
_PLAIN = np.zeros(256, np.bool_)
_PLAIN[np.frombuffer(b"0123456789-", np.uint8)] = True
_BLANKS = np.arange(256, dtype=np.uint8)
_BLANKS[[0x0A, 0x0D]] = ord(" ")


class JsonValue(NamedTuple):
    """`text` is null for SQL NULL; `bare` says whose values stand without quotes: all, none, or these."""

    text: pa.BinaryArray
    bare: Mask | bool


def json_value(kind: JsonKind, column: pa.BinaryArray) -> JsonValue:
    """Prepare n wire texts of a column for their lines."""
    if kind == "json":
        return JsonValue(_one_line(column), True)
    if kind == "bool":
        return _boolean(column)
    if kind in ("number", "float"):
        return _number(column)
    return JsonValue(escape(column), False)


def json_null(column: pa.BinaryArray) -> Mask | None:
    """Mark the JSON values that are JSON's own null; None where there is none."""
    mask = as_mask(kernels.matches(as_text(column), NULL))
    return mask if mask.any() else None


def _one_line(column: pa.BinaryArray) -> pa.BinaryArray:
    """Blank the line breaks, which in JSON stand between tokens only."""
    offsets, data = kernels.value_bytes(column)
    if len(data) and data.max() >= 0x80:
        as_text(column)
    if not ((data == 0x0A) | (data == 0x0D)).any():
        return column
    validity = column.is_valid().buffers()[1] if column.null_count else None
    return kernels.from_bytes(offsets, _BLANKS[data], validity)


def _boolean(column: pa.BinaryArray) -> JsonValue:
    true = kernels.equal(column, b"t")
    if (as_mask(true) | as_mask(kernels.equal(column, b"f")) | as_mask(column.is_null())).all():
        return JsonValue(kernels.if_else(true, b"true", b"false"), True)
    return JsonValue(escape(column), False)


def _number(column: pa.BinaryArray) -> JsonValue:
    """Quote NaN and the infinities. Only values with other bytes than an integer's are looked at closely."""
    _, data = kernels.value_bytes(column)
    if _PLAIN[data].all():
        return JsonValue(column, True)
    finite = as_mask(kernels.matches(as_text(column), NUMBER))
    return JsonValue(column, True) if finite.all() else JsonValue(escape(column), finite)
