"""What `column.propagate.source.type` says of a column's type, as the JDBC driver tells it."""

import re
from typing import NamedTuple

from pgcdc_cli.changes.table import TableColumn
from pgcdc_cli.types.pg_type import PgType
from pgcdc_cli.types.to_arrow import numeric_precision

_UNLIMITED = 2**31 - 1
_PRECISION = {"int2": 5, "oid": 10, "int4": 10, "int8": 19, "float4": 8, "float8": 17, "bool": 1, "char": 1}
_SCALE = {"float4": 8, "float8": 17}
_CLOCKS = {"time": 8, "timetz": 14, "timestamp": 22, "timestamptz": 28}
_SERIALS = {"int2": "smallserial", "int4": "serial", "int8": "bigserial"}
_VARLENA_HEADER = 4
_FIRST_NORMAL_OID = 16384
"""`FirstNormalObjectId` in access/transam.h: a user's types begin here."""
_NAME = re.compile(r'"((?:[^"]|"")*)"|([^."]+)')


class SourceType(NamedTuple):
    """`kind` is the type's name; `parameters` are what `column.propagate.source.type` adds to a schema."""

    kind: str
    length: int
    parameters: dict[str, str]


def source_type(column: TableColumn, wire_oid: int, default: str | None, *, snapshot: bool) -> SourceType:
    """Describe a column's type; `wire_oid` is the type's as declared, a domain's if it is one.

    In snapshots the driver looks the column up itself, and tells some of it differently.
    """
    domain = wire_oid != column.type.oid
    type_ = column.type if column.type.element is None else column.type.element
    kind = _declared(column, domain, default) if snapshot else _type_name(column, domain)
    known = "" if is_array_of_domain(column) else type_.name
    length, scale = _length(known, column.type.typmod), str(_scale(known, column.type.typmod))
    if snapshot and column.type.name == "numeric" and column.type.typmod < 0 and not domain:
        length, scale = 0, ""
    parameters = {
        "__debezium.source.column.type": kind.upper(),
        "__debezium.source.column.length": str(length),
        "__debezium.source.column.scale": scale,
        "__debezium.source.column.name": column.name,
    }
    return SourceType(kind, length, {name: value for name, value in parameters.items() if value})


def is_array_of_domain(column: TableColumn) -> bool:
    """Whether the elements of a column's arrays are of a domain."""
    type_, element = column.type, column.type.element
    if element is None or type_.oid < _FIRST_NORMAL_OID:
        return False
    printed = column.declared.endswith("[]")
    return element.oid < _FIRST_NORMAL_OID or (printed and _names(column.declared)[-1] != element.name)


def _type_name(column: TableColumn, domain: bool) -> str:
    if is_array_of_domain(column) and not domain:
        return f"_{_names(column.declared)[-1]}"
    return _names(column.declared)[-1] if domain else _catalog_name(column.type)


def _catalog_name(type_: PgType) -> str:
    return f"_{type_.element.name}" if type_.element is not None else type_.name


def _declared(column: TableColumn, domain: bool, default: str | None) -> str:
    """Give the driver's name: of a type out of the search path in quotes, of a sequence's column "serial"."""
    if default is not None and "nextval(" in default and not domain:
        return _SERIALS.get(column.type.name, _catalog_name(column.type))
    name, names = _type_name(column, domain), _names(column.declared)
    return f'"{names[0]}"."{name}"' if len(names) > 1 else name


def _names(declared: str) -> list[str]:
    """Split what `format_type` prints of a user's type into its name and, where it is printed, its schema."""
    plain = declared.partition("(")[0].removesuffix("[]")
    return [quoted.replace('""', '"') or bare for quoted, bare in _NAME.findall(plain)]


def _length(name: str, typmod: int) -> int:
    if name in _PRECISION:
        return _PRECISION[name]
    if name == "numeric":
        declared = numeric_precision(typmod)
        return 131_089 if declared is None else declared.precision
    if name in {"bpchar", "varchar"}:
        return _UNLIMITED if typmod < 0 else typmod - _VARLENA_HEADER
    if name in {"bit", "varbit"}:
        return _UNLIMITED if typmod < 0 else typmod
    if name in _CLOCKS:
        return _CLOCKS[name] + _seconds_width(typmod)
    return {"date": 13, "interval": 49}.get(name, _UNLIMITED)


def _seconds_width(typmod: int) -> int:
    """A point and digits; the driver counts one digit too many for a precision of one."""
    if typmod < 0:
        return 7
    return 3 if typmod == 1 else typmod + (typmod > 0)


def _scale(name: str, typmod: int) -> int:
    if name == "numeric":
        declared = numeric_precision(typmod)
        return 0 if declared is None else declared.scale % 2048
    if name in _CLOCKS:
        return 6 if typmod < 0 else typmod
    if name == "interval":
        return 6 if typmod < 0 else typmod & 0xFFFF
    return _SCALE.get(name, 0)
