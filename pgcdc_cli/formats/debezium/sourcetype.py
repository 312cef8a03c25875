"""A column's type, length and scale as the JDBC driver tells them (`org.postgresql.jdbc.TypeInfoCache`)."""

from pgcdc_cli.types.numeric import numeric_precision
from pgcdc_cli.types.registry import PgType

_UNLIMITED = 2**31 - 1
_PRECISION = {"int2": 5, "oid": 10, "int4": 10, "int8": 19, "float4": 8, "float8": 17, "bool": 1, "char": 1}
_SCALE = {"float4": 8, "float8": 17}
_CLOCKS = {"time": 8, "timetz": 14, "timestamp": 22, "timestamptz": 28}
_VARLENA_HEADER = 4


def source_type(type_: PgType, name: str) -> dict[str, str]:
    """Build the parameters that `column.propagate.source.type` adds to a field's schema."""
    return {
        "__debezium.source.column.type": _type_name(type_),
        "__debezium.source.column.length": str(_length(type_.name, type_.typmod)),
        "__debezium.source.column.scale": str(_scale(type_.name, type_.typmod)),
        "__debezium.source.column.name": name,
    }


def _type_name(type_: PgType) -> str:
    return (f"_{type_.element.name}" if type_.element is not None else type_.name).upper()


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
