"""What all lines of a table share: its name, what stands around each column's value, and how that is printed.

Numbers and booleans are bare, all else are strings. The plugin looks at the type that the table declares: a
domain over a number is a string. NaN and the infinities are null, and bytea is hexadecimal digits alone.
"""

from collections.abc import Callable
from functools import lru_cache
from typing import Literal, NamedTuple

import pyarrow as pa

from pgcdc_cli.changes.table import ColumnFacts, TableColumn, TableFacts, TableSchema
from pgcdc_cli.formats.json_object import JsonValue, escape, one_string, quote
from pgcdc_cli.formats.wal2json.options import Wal2jsonOptions
from pgcdc_cli.types import kernels
from pgcdc_cli.types.kernels import as_mask
from pgcdc_cli.types.pg_type import TYPES

Kind = Literal["number", "bool", "bytea", "string"]

_BOOLEANS = {False: b"false", True: b"true", None: b"null"}


class ColumnParts(NamedTuple):
    """A column: `head` before a value, `tail` behind it among `columns`; an identity's ends with `}`."""

    head: bytes
    tail: bytes
    kind: Kind


class TableParts(NamedTuple):
    """`name` begins with a comma, and so does `pk`, which is empty where nobody asks for it."""

    name: bytes
    columns: tuple[ColumnParts, ...]
    pk: bytes


def parts_of(table: TableSchema, options: Wal2jsonOptions) -> TableParts:
    """Make them once for each version; facts are no part of a version, so they are asked for as well."""
    return _parts(table, table.facts, options)


@lru_cache(4096)
def _parts(table: TableSchema, facts: TableFacts | None, options: Wal2jsonOptions) -> TableParts:
    known = {} if facts is None else facts.columns
    pairs = [(column, known.get(column.name, ColumnFacts())) for column in table.columns]
    columns = tuple(_column(column, facts, options) for column, facts in pairs)
    pk = b",".join(_described(column, options) + b"}" for column, facts in pairs if facts.in_primary_key)
    return TableParts(name_of(table, options), columns, b',"pk":[%b]' % pk if options.include_pk else b"")


def name_of(table: TableSchema, options: Wal2jsonOptions) -> bytes:
    """Write schema and table."""
    schema = b',"schema":' + quote(table.schema) if options.include_schemas else b""
    return schema + b',"table":' + quote(table.name)


def _column(column: TableColumn, facts: ColumnFacts, options: Wal2jsonOptions) -> ColumnParts:
    kind = kind_of(column, numbers_as_strings=options.numeric_data_types_as_string)
    tail = b""
    if options.include_not_null:
        optional = None if facts.not_null is None else not facts.not_null
        tail += b',"optional":' + _BOOLEANS[optional]
    if options.include_column_positions:
        tail += b',"position":' + (b"null" if facts.position is None else b"%d" % facts.position)
    if options.include_default:
        tail += b',"default":' + (b"null" if facts.default is None else quote(facts.default))
    return ColumnParts(_described(column, options) + b',"value":', tail + b"}", kind)


def _described(column: TableColumn, options: Wal2jsonOptions) -> bytes:
    """Begin a column's object."""
    type_ = b',"type":' + quote(type_name(column)) if options.include_types else b""
    oid = b',"typeoid":%d' % column.type_oid if options.include_type_oids else b""
    return b'{"name":' + quote(column.name) + type_ + oid


def type_name(column: TableColumn) -> str:
    """Name the type as declared, without the quotes around a name."""
    name = column.declared
    if len(name) > 1 and name[0] == name[-1] == '"' and '"."' not in name:
        return name[1:-1].replace('""', '"')
    return name


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
