"""Values as the plugin prints them: numbers and booleans bare, all else as strings.

It looks at the type that the table declares: a domain over a number is a string. NaN and the infinities are
null, and bytea is hexadecimal digits alone.
"""

from collections.abc import Callable
from typing import Literal

import pyarrow as pa

from pgcdc_cli.changes.table import TableColumn
from pgcdc_cli.formats.json_object import JsonValue, escape, one_string
from pgcdc_cli.types import kernels
from pgcdc_cli.types.kernels import as_mask
from pgcdc_cli.types.pg_type import TYPES

Kind = Literal["number", "bool", "bytea", "string"]

_BY_NAME: dict[str, Kind] = {
    "bool": "bool",
    "bytea": "bytea",
    "int2": "number",
    "int4": "number",
    "int8": "number",
    "oid": "number",
    "float4": "number",
    "float8": "number",
    "numeric": "number",
}
_KINDS = {oid: _BY_NAME[name] for name, _, oid, _ in TYPES if name in _BY_NAME}

_HEX_PREFIX = len("\\x")


def kind_of(column: TableColumn, *, numbers_as_strings: bool) -> Kind:
    """Say how a column's values are printed."""
    kind = _KINDS.get(column.type_oid, "string")
    return "string" if numbers_as_strings and kind == "number" else kind


def value_of(kind: Kind, column: pa.BinaryArray) -> JsonValue:
    """Prepare n wire texts of a column."""
    if kind == "number":
        return JsonValue(_finite(column), True)
    if kind == "bool":
        return JsonValue(kernels.if_else(kernels.equal(column, b"t"), b"true", b"false"), True)
    if kind == "bytea":
        return JsonValue(kernels.without_start(column, _HEX_PREFIX), False)
    return JsonValue(escape(column), False)


def _finite(column: pa.BinaryArray) -> pa.BinaryArray:
    """Drop what is no number in JSON; NaN and the infinities alone hold an N or an n."""
    _, data = kernels.value_bytes(column)
    if not ((data == ord("N")) | (data == ord("n"))).any():
        return column
    return kernels.null_where(column, as_mask(kernels.matches(column, "[Nn]")))


def writer_of(kind: Kind) -> Callable[[bytes], bytes]:
    """Choose what writes one wire text as `value_of` does; UnicodeDecodeError where it is no UTF-8."""
    return _WRITERS[kind]


def _one_number(value: bytes) -> bytes:
    return b"null" if b"n" in value.lower() else value


def _one_boolean(value: bytes) -> bytes:
    return b"true" if value == b"t" else b"false"


def _one_bytea(value: bytes) -> bytes:
    return b'"' + value[_HEX_PREFIX:] + b'"'


_WRITERS: dict[Kind, Callable[[bytes], bytes]] = {
    "number": _one_number,
    "bool": _one_boolean,
    "bytea": _one_bytea,
    "string": one_string,
}
