"""How one type's values are written, and helpers that the types' files share."""

import base64
import json
import re
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import KW_ONLY, dataclass
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa

from pgcdc_cli.formats.json_text import ESCAPES, escape
from pgcdc_cli.types import kernels
from pgcdc_cli.types.kernels import Booleans

ToJson = Callable[[pa.BinaryArray], pa.BinaryArray]
Each = Callable[[str], bytes | None]
"""Converts one wire text to a JSON token; None is null."""
Form = dict[str, Any]
"""How tokens are read back, as in schema files: `form` names the rule; other members are its parameters.

If no rule restores every value, `form` is null, and `why` gives the reason.
"""
NULL = b"null"
PLAIN: Form = {"form": "plain"}
"""The token's text is the value."""


def inexact(why: str) -> Form:
    return {"form": None, "why": why}


class Loss(NamedTuple):
    """Texts that can't be read back: those that match this RE2 pattern; `why` is for the report.

    `none_in` is a quicker test of a column: if it is true, nothing matches.
    """

    pattern: str
    why: str
    none_in: Callable[[pa.BinaryArray], bool] | None = None


@dataclass(frozen=True, slots=True, eq=False)
class Kind:
    """One type under one configuration.

    `schema` is the Connect schema without "optional", "default" and "field". `to_json` converts wire texts to
    JSON tokens, and leaves null as it is. `zero` is the token for a missing value of a field that must not be
    null, `unavailable` that for an unchanged TOAST value. `form` and `loss` say how tokens are read back, and
    which values can't be.
    """

    schema: dict[str, Any]
    to_json: ToJson
    zero: bytes = NULL
    unavailable: bytes = NULL
    _: KW_ONLY
    form: Form
    loss: Loss | None = None


def named(type_: str, name: str, **parameters: str) -> dict[str, Any]:
    """Make a schema with a semantic type name; its version is 1."""
    schema: dict[str, Any] = {"type": type_, "name": name, "version": 1}
    if parameters:
        schema["parameters"] = parameters
    return schema


def token(value: object) -> bytes:
    """Write one value as Jackson does; characters above U+FFFF are escaped as surrogates."""
    text = json.dumps(value, ensure_ascii=False, separators=(",", ":"))
    return _jackson(text).encode()


def json_text(value: object) -> str:
    """Write one value as Jackson does to a character stream, where only what JSON requires is escaped."""
    text = json.dumps(value, ensure_ascii=False, separators=(",", ":"))
    return _ESCAPE.sub(lambda match: _escaped(match[0]), text)


def base64_token(data: bytes) -> bytes:
    return b'"' + base64.b64encode(data) + b'"'


@dataclass(frozen=True, slots=True, eq=False)
class Converter:
    """Converts a whole column, or a single value; both give the same tokens."""

    column: ToJson
    each: Each

    def __call__(self, column: pa.BinaryArray) -> pa.BinaryArray:
        return self.column(column)


def few_tokens(to_json: ToJson, values: Sequence[bytes | None]) -> list[bytes | None]:
    """Convert a few wire texts, one by one if `to_json` is a `Converter`; None is null."""
    if isinstance(to_json, Converter):
        each = to_json.each
        try:
            return [None if value is None else each(value.decode()) for value in values]
        except UnicodeDecodeError:
            # The column conversion raises the error.
            pass
    return to_json(kernels.binary(values)).to_pylist()


def single_token(to_json: ToJson, value: bytes) -> bytes | None:
    """Convert one wire text; None is null."""
    return few_tokens(to_json, [value])[0]


_SMALL = 1 << 16
"""Bytes up to which a column is converted together with others: for larger ones, copying costs more."""


def convert_together(
    to_jsons: Sequence[ToJson], columns: Sequence[pa.BinaryArray | None]
) -> list[pa.BinaryArray | None]:
    """Convert columns of n values each, small ones with the same converter at once; None stays None.

    Each conversion costs as much as some hundred values, whatever the number of values.
    """
    groups: dict[object, list[tuple[int, pa.BinaryArray]]] = {}
    for number, (to_json, column) in enumerate(zip(to_jsons, columns, strict=True)):
        if column is not None:
            small = len(kernels.all_bytes(column)) <= _SMALL
            groups.setdefault(to_json if small else number, []).append((number, column))
    found: list[pa.BinaryArray | None] = [None] * len(columns)
    for group in groups.values():
        number, column = group[0]
        if len(group) == 1:
            found[number] = to_jsons[number](column)
            continue
        tokens = to_jsons[number](kernels.concat([column for _, column in group]))
        for place, (number, column) in enumerate(group):
            found[number] = tokens.slice(place * len(column), len(column))
    return found


def per_value(convert: Each) -> Converter:
    """Make a converter that converts one by one; None is null."""

    def to_json(column: pa.BinaryArray) -> pa.BinaryArray:
        texts = kernels.as_text(column).to_pylist()
        return kernels.binary([None if text is None else convert(text) for text in texts])

    return Converter(to_json, convert)


def usually(pattern: str, convert: ToJson, each: Each) -> Converter:
    """Make a converter: `convert` for texts that match the RE2 pattern, `each` for any other."""

    def to_json(column: pa.BinaryArray) -> pa.BinaryArray:
        text = kernels.as_text(column)
        given = kernels.as_mask(text.is_valid())
        odd = given & ~kernels.as_mask(kernels.matches(text, pattern))
        return _but(odd, column, convert, each)

    return Converter(to_json, each)


def at_once(test: Callable[[pa.BinaryArray], bool], convert: ToJson, tested: Converter) -> Converter:
    """Make a converter: `convert` for a column that passes the test, `tested` for any other.

    `convert` must raise ArrowInvalid if the column has an unusual value nevertheless.
    """

    def to_json(column: pa.BinaryArray) -> pa.BinaryArray:
        if test(column):
            # The conversion itself tests the rest faster, and most columns pass it.
            with suppress(pa.ArrowInvalid):
                return convert(column)
        return tested(column)

    return Converter(to_json, tested.each)


def _but(odd: Booleans, column: pa.BinaryArray, convert: ToJson, each: Each) -> pa.BinaryArray:
    """Convert a column, but the odd values one by one."""
    if not odd.any():
        return convert(column)
    tokens = convert(kernels.null_where(column, odd))
    return kernels.replace_with_mask(tokens, odd, per_value(each)(column.filter(pa.array(odd))))


def quoted(column: pa.BinaryArray) -> pa.BinaryArray:
    """Quote text that needs no escapes."""
    offsets, data = kernels.value_bytes(column)
    width = int(offsets[1]) if len(column) and not column.null_count else 0
    if width and (np.diff(offsets) == width).all():
        lines = np.full((len(column), width + 2), ord('"'), np.uint8)
        lines[:, 1:-1] = data.reshape(-1, width)
        return kernels.from_bytes(np.arange(len(offsets)) * (width + 2), lines.reshape(-1))
    # Two quotes stand between values; of those at either end, one is left out.
    marked = kernels.insert_before(data, offsets, b'""')[1:-1]
    tokens = kernels.from_bytes(offsets + 2 * np.arange(len(offsets)), marked)
    return kernels.nulled_like(tokens, column)


def _strings(column: pa.BinaryArray) -> pa.BinaryArray:
    data = kernels.all_bytes(column)
    if not len(data) or data.max() < FOUR_BYTES:
        return _short_strings(column)
    offsets, _ = kernels.value_bytes(column)
    odd = np.zeros(len(column), np.bool_)
    odd[np.searchsorted(offsets, np.flatnonzero(data >= FOUR_BYTES), side="right") - 1] = True
    return _but(odd, column, _short_strings, token)


def _short_strings(column: pa.BinaryArray) -> pa.BinaryArray:
    """Convert strings without characters above U+FFFF."""
    return quoted(kernels.as_binary(escape(column, _CONTROL)))


def _string(text: str) -> bytes:
    return token(text) if _SPECIAL.search(text) else b'"%b"' % text.encode()


string = Converter(_strings, _string)
"""Quote and escape text."""


def _jackson(text: str) -> str:
    """Change the escapes that Jackson writes differently: upper-case hex digits, and surrogates."""
    return _OTHERWISE.sub(lambda match: _escaped(match[0]), text)


def _escaped(found: str) -> str:
    if len(found) > 1:
        return found if found[1] != "u" else found[:4] + found[4:].upper()
    if found < "\U00010000":
        return f"\\u{ord(found):04X}"
    high, low = divmod(ord(found) - 0x10000, 0x400)
    return f"\\u{0xD800 + high:04X}\\u{0xDC00 + low:04X}"


_ESCAPE = re.compile(r"\\u[0-9a-f]{4}|\\.")
_OTHERWISE = re.compile(r"\\u[0-9a-f]{4}|\\.|[\uD800-\uDFFF\U00010000-\U0010FFFF]")
_SPECIAL = re.compile(r"[^ !#-\[\]-~]")
FOUR_BYTES = 0xF0
"""The first byte of a character above U+FFFF is this one, or a greater one."""
_CONTROL = {byte: _jackson(text.decode()).encode() for byte, text in ESCAPES.items()}


@dataclass(frozen=True, slots=True, eq=False)
class Field:
    """A column as a field of the row struct.

    `schema` is the Connect schema in JsonConverter's order of keys, without "field"; its "default" is a JSON
    token. `to_json` converts wire texts to JSON tokens, one per value; null stays null. Three tokens are
    constants: `null` for SQL NULL, `absent` for a value that the server did not send (null, or the default or
    zero value of a field that is not optional), `unavailable` for an unchanged TOAST value. `form` and `loss`
    say how tokens are read back, and which values can't be.
    """

    name: str
    schema: dict[str, Any]
    to_json: Callable[[pa.BinaryArray], pa.BinaryArray]
    null: bytes
    absent: bytes
    unavailable: bytes
    form: Form
    loss: Loss | None


@dataclass(frozen=True, slots=True)
class EventColumn:
    """A field, the index of its column in the table, and its label: its quoted name and a colon."""

    index: int
    field: Field
    label: bytes
