"""The members of JSON objects, column by column: `"id":1,"name":"x"` for n rows at once.

What every row shares is one constant; where rows differ (a NULL without quotes, a value that the server
didn't send) there is a fragment per row.
"""

import json
from collections.abc import Iterable, Iterator, Sequence
from functools import lru_cache
from typing import NamedTuple

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from pgcdc_cli.types import kernels
from pgcdc_cli.types.kernels import ArrowArray, Booleans, Int64s, Part, as_mask, as_text
from pgcdc_cli.types.to_arrow import JsonKind

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


NUMBER = r"^-?(0|[1-9]\d*)(\.\d+)?([eE][-+]?\d+)?$"
NULL = r"^[ \t\n\r]*null[ \t\n\r]*$"
_PLAIN = np.zeros(256, np.bool_)
_PLAIN[np.frombuffer(b"0123456789-", np.uint8)] = True
_BLANKS = np.arange(256, dtype=np.uint8)
_BLANKS[[0x0A, 0x0D]] = ord(" ")


class JsonValue(NamedTuple):
    """`text` is null for SQL NULL; `bare` says whose values stand without quotes: all, none, or these."""

    text: pa.BinaryArray
    bare: Booleans | bool


def json_value(kind: JsonKind, column: pa.BinaryArray) -> JsonValue:
    """Prepare n wire texts of a column for their lines."""
    if kind == "json":
        return JsonValue(_one_line(column), True)
    if kind == "bool":
        return _boolean(column)
    if kind in ("number", "float"):
        return _number(column)
    return JsonValue(escape(column), False)


def json_null(column: pa.BinaryArray) -> Booleans | None:
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


class Member(NamedTuple):
    """One column's name and values; `absent` rows don't have the member at all."""

    name: str
    value: JsonValue
    absent: Booleans | None


def object_parts(members: Iterable[Member]) -> Iterator[Part]:
    """Yield what, joined row by row, is the object."""
    yield b"{"
    preceded: Booleans | bool = False
    for member in members:
        yield from _member(member, preceded)
        preceded = True if member.absent is None else preceded | ~member.absent
    yield b"}"


def _member(member: Member, preceded: Booleans | bool) -> Iterator[Part]:
    name = quote(member.name) + b":"
    text, bare = member.value
    if text.null_count and bare is not True:
        bare = bare | as_mask(text.is_null())
    comma = b"," if preceded is True else b""
    if isinstance(bare, bool) and member.absent is None and isinstance(preceded, bool):
        mark = b"" if bare else b'"'
        yield from (comma + name + mark, text, mark)
        return
    if member.absent is not None:
        text = kernels.replace_where(text, member.absent, b"")
    state = _state(member, bare, preceded)
    yield _pick((name + b'"', name, b"", b"," + name + b'"', b"," + name, b""), state)
    yield text
    yield _pick((b'"', b"", b"", b'"', b"", b""), state)


def _state(member: Member, bare: Booleans | bool, preceded: Booleans | bool) -> Int64s:
    """Per row: 0 quoted, 1 bare, 2 absent; and 3 more where a comma comes before."""
    state = np.zeros(len(member.value.text), np.int64)
    state[...] = bare
    if member.absent is not None:
        state[member.absent] = 2
    return state + 3 * np.asarray(preceded, np.int64)


def _pick(options: Sequence[bytes], choice: Int64s) -> Part:
    return kernels.take(kernels.binary(options), choice)


def listing(label: str, marked: Sequence[tuple[str, Booleans]]) -> Part:
    """`,"label":["a","b"]` with the names whose mask is set in a row; nothing where none is."""
    if not marked:
        return b""
    patterns, choice = np.unique(np.stack([mask for _, mask in marked], axis=1), axis=0, return_inverse=True)
    return _pick([_list_member(label, marked, pattern) for pattern in patterns], choice.reshape(-1))


def _list_member(label: str, marked: Sequence[tuple[str, Booleans]], pattern: Booleans) -> bytes:
    names = [quote(name) for (name, _), chosen in zip(marked, pattern, strict=True) if chosen]
    return b"," + quote(label) + b":[" + b",".join(names) + b"]" if names else b""


def joined(parts: Iterable[Part]) -> ArrowArray:
    """Concatenate row by row; neighbouring constants become one."""
    merged: list[Part] = []
    for part in parts:
        if isinstance(part, bytes) and merged and isinstance(merged[-1], bytes):
            merged[-1] += part
        else:
            merged.append(part)
    return kernels.join(merged)
