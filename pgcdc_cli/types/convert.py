r"""The one place that says what becomes of each PostgreSQL type in Arrow and in JSON.

| PostgreSQL | Arrow | JSON |
|---|---|---|
| bool | bool | true, false |
| int2, int4, int8 | int16, int32, int64 | number |
| oid, xid, cid | int64 | string |
| float4, float8 | float32, float64 | number; NaN, Infinity, -Infinity: string |
| numeric(p,s), p <= 38, 0 <= s <= p | decimal128(p, s) | string (or number) |
| any other numeric | utf8 | string (or number) |
| bytea | binary | string, `\x...` |
| date, time, timestamp | date32, time64(us), timestamp(us) | string |
| timestamptz | timestamp(us, UTC) | string |
| json, jsonb | utf8 | embedded |
| arrays of built-in types and of enums | list | string |
| anything else (xid8, an unsigned number of 64 bits, too) | utf8 | string |

Strings are PostgreSQL's text output. Arrays of types that are not built in stay text, since their delimiter
(`pg_type.typdelim`) isn't known here.
"""

from collections.abc import Callable
from functools import cache
from typing import Literal

import pyarrow as pa

from pgcdc_cli.types import numeric, temporal
from pgcdc_cli.types.arrays import ArrayOf
from pgcdc_cli.types.binary import Bytea
from pgcdc_cli.types.column import Conversion, Plain, Typed
from pgcdc_cli.types.oids import TYPES
from pgcdc_cli.types.registry import PgType

JsonKind = Literal["number", "float", "bool", "json", "numeric", "string"]

TEXT = Plain(pa.string())
_OIDS = {name: oid for name, _, oid, _ in TYPES}
_BOX = _OIDS["box"]


def _by_oid(conversions: dict[str, Callable[[int], Conversion]]) -> dict[int, Callable[[int], Conversion]]:
    return {_OIDS[name]: conversion for name, conversion in conversions.items()}


# By OID: a user's own type may well be called "date". The argument is the typmod.
_CONVERSIONS = _by_oid(
    {
        "bool": lambda _: numeric.Boolean(pa.bool_()),
        "int2": lambda _: numeric.integer(pa.int16()),
        "int4": lambda _: numeric.integer(pa.int32()),
        "int8": lambda _: numeric.integer(pa.int64()),
        "oid": lambda _: numeric.integer(pa.int64()),
        "xid": lambda _: numeric.integer(pa.int64()),
        "cid": lambda _: numeric.integer(pa.int64()),
        "float4": lambda _: numeric.floating(pa.float32()),
        "float8": lambda _: numeric.floating(pa.float64()),
        "numeric": numeric.numeric,
        "bytea": lambda _: Bytea(pa.binary()),
        "date": lambda _: temporal.date(),
        "time": lambda _: temporal.time(),
        "timestamp": lambda _: temporal.timestamp(None),
        "timestamptz": lambda _: temporal.timestamp("UTC"),
    }
)

_JSON_KINDS: dict[int, JsonKind] = {
    _OIDS["bool"]: "bool",
    _OIDS["int2"]: "number",
    _OIDS["int4"]: "number",
    _OIDS["int8"]: "number",
    _OIDS["float4"]: "float",
    _OIDS["float8"]: "float",
    _OIDS["numeric"]: "numeric",
    _OIDS["json"]: "json",
    _OIDS["jsonb"]: "json",
}


@cache
def conversion(pg_type: PgType) -> Conversion:
    """Find the way from a type's wire text to Arrow."""
    element = pg_type.element
    if element is not None and _is_splittable(element):
        return ArrayOf(conversion(element), ";" if element.oid == _BOX else ",")
    return _CONVERSIONS[pg_type.oid](pg_type.typmod) if pg_type.oid in _CONVERSIONS else TEXT


def _is_splittable(element: PgType) -> bool:
    return element.category == "enum" or element.oid in _OIDS.values()


def arrow_type(pg_type: PgType) -> pa.DataType:
    """Name the Arrow type of a column."""
    return conversion(pg_type).arrow


def to_arrow(pg_type: PgType, column: pa.BinaryArray) -> Typed:
    """Convert n wire texts; a PROTOCOL error if one is no valid UTF-8."""
    return conversion(pg_type)(column)


def json_kind(pg_type: PgType) -> JsonKind:
    """Say how a value stands in JSON; only a `string` may need escapes."""
    return _JSON_KINDS.get(pg_type.oid, "string")
