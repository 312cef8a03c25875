"""Make a column's `Field` from its type, as `PostgresValueConverter` of Debezium 2.5.4 does.

`source_type` describes a type for `column.propagate.source.type`, as the JDBC driver does.
"""

import re
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import NamedTuple

from pgcdc_cli.changes.table import ColumnFacts, TableColumn
from pgcdc_cli.formats.debezium.connector_config import ConnectorConfig
from pgcdc_cli.formats.debezium.types import arrays, intervals, numeric_types, temporal, texts
from pgcdc_cli.formats.debezium.types.connect_schemas import in_order
from pgcdc_cli.formats.debezium.types.defaults import default_token
from pgcdc_cli.formats.debezium.types.kind import NULL, Field, Form, Kind, inexact, per_value, string
from pgcdc_cli.types.pg_type import PgType
from pgcdc_cli.types.to_arrow import numeric_precision


@dataclass(frozen=True, slots=True)
class _Context:
    """What a conversion depends on; `domains`: the column is an array of a domain."""

    typmod: int
    config: ConnectorConfig
    snapshot: bool
    domains: bool = False


_NAMED_TEXT = {
    "json": "io.debezium.data.Json",
    "jsonb": "io.debezium.data.Json",
    "xml": "io.debezium.data.Xml",
    "ltree": "io.debezium.data.Ltree",
    "tsvector": "io.debezium.data.Tsvector",
}
_PLAIN_TEXT = (
    "text", "varchar", "bpchar", "char", "inet", "cidr", "macaddr", "macaddr8", "citext", "isbn",
    "int4range", "int8range", "numrange", "tsrange", "tstzrange", "daterange",
)  # fmt: skip


def _named_text(name: str, semantic: str) -> Callable[[_Context], Kind]:
    to_json = texts.JSONB if name == "jsonb" else string
    return lambda context: texts.text(context.config, semantic, to_json)


_KINDS: dict[str, Callable[[_Context], Kind]] = {
    "bool": lambda _: numeric_types.boolean(),
    "int2": lambda _: numeric_types.integer("int16"),
    "int4": lambda _: numeric_types.integer("int32"),
    "int8": lambda _: numeric_types.integer("int64"),
    "oid": lambda _: numeric_types.integer("int64"),
    "float4": lambda _: numeric_types.floating("float"),
    "float8": lambda _: numeric_types.floating("double"),
    "numeric": lambda c: numeric_types.in_format(numeric_types.numeric(c.typmod, c.config), c.config),
    "money": lambda c: numeric_types.in_format(numeric_types.money(c.config, snapshot=c.snapshot), c.config),
    "bytea": lambda c: texts.bytea(c.config),
    "bit": lambda c: texts.bits(c.typmod),
    "varbit": lambda c: texts.bits(c.typmod, varying=True),
    "uuid": lambda c: texts.uuid(c.config),
    "name": lambda c: (
        texts.text(c.config) if c.snapshot or c.config.include_unknown_datatypes else texts.nothing()
    ),
    "hstore": lambda c: texts.hstore(c.config),
    "int2vector": lambda _: arrays.vector("int16"),
    "oidvector": lambda _: arrays.vector("int64"),
    "point": lambda _: texts.point(),
    "vector": lambda _: arrays.dense_vector("double", "io.debezium.data.DoubleVector"),
    "halfvec": lambda _: arrays.dense_vector("float", "io.debezium.data.FloatVector"),
    "sparsevec": lambda _: arrays.sparse_vector(),
    "date": lambda c: temporal.date(c.config, snapshot=c.snapshot),
    "time": lambda c: temporal.time(c.typmod, c.config),
    "timetz": lambda _: temporal.timetz(),
    "timestamp": lambda c: temporal.timestamp(c.typmod, c.config, snapshot=c.snapshot),
    "timestamptz": lambda c: temporal.timestamptz(c.typmod, snapshot=c.snapshot),
    "interval": lambda c: intervals.interval(c.config),
    **dict.fromkeys(_PLAIN_TEXT, lambda c: texts.text(c.config)),
    **{name: _named_text(name, semantic) for name, semantic in _NAMED_TEXT.items()},
}
_NO_ARRAYS = frozenset(["money", "interval", "point", "xml", "name", "varbit", "refcursor"])
"""Types whose arrays are left out even with `include.unknown.datatypes`."""

_SINCE_3_4 = frozenset(["tsvector", "vector", "halfvec", "sparsevec"])
"""Types that 2.5 doesn't know."""

_LOST_IN_ARRAYS = frozenset(["int2vector", "oidvector", "sparsevec"])
"""Known types whose arrays are null if they have any element."""

_NEVER_NULL = _LOST_IN_ARRAYS | _SINCE_3_4 | {"isbn"}
"""Known types whose arrays are unknown."""

_MILLIS = 3

_TYPES = 1024
"""Types whose kinds are kept; more would only be found again."""


def field_for(
    column: TableColumn,
    facts: ColumnFacts | None,
    config: ConnectorConfig,
    *,
    snapshot: bool = False,
) -> Field | None:
    """Find how a column is written; None if Debezium leaves it out."""
    context = _Context(column.type.typmod, config, snapshot, is_array_of_domain(column))
    labels = (facts.labels if facts is not None else None) or ()
    kind = kind_of(column.type, labels, context)
    # Defaults are always converted as while streaming, in snapshots, too.
    streamed = kind_of(column.type, labels, replace(context, snapshot=False))
    if kind is None or streamed is None:
        return None
    optional = not column.not_null
    default = default_token(streamed, column.type, None if facts is None else facts.default)
    schema = in_order({**kind.schema, "optional": optional})
    if default is not None:
        schema["default"] = default
    stand_in = NULL
    if default is not None and config.value_converter_replace_null_with_default:
        stand_in = default
    absent = stand_in if optional else default or kind.zero
    null = stand_in if optional else absent
    return Field(
        column.name, schema, kind.to_json, null, absent, kind.unavailable, _form(column, kind), kind.loss
    )


def _form(column: TableColumn, kind: Kind) -> Form:
    """Find how values are read back; arrays can be only if the column is declared with one dimension."""
    several = kind.form["form"] == "array" and column.dimensions > 1
    return inexact("Debezium's arrays have one dimension") if several else kind.form


@lru_cache(_TYPES)
def kind_of(type_: PgType, labels: tuple[str, ...], context: _Context) -> Kind | None:
    """Find how a type is written; None if it is unknown and unknown types are left out.

    `labels` are those of an enum. Columns of the same type have the same kind, so that they can be converted
    together.
    """
    if type_.category == "enum":
        return texts.enum(labels, context.config)
    if type_.element is not None:
        return _array(type_.element, labels, context)
    return _KINDS[type_.name](context) if _is_known(type_, context) else _unknown(type_, context)


def _is_known(type_: PgType, context: _Context) -> bool:
    newer = context.config.debezium_version != "2.5"
    return type_.name in _KINDS and (newer or type_.name not in _SINCE_3_4)


def _array(element: PgType, labels: tuple[str, ...], context: _Context) -> Kind | None:
    if context.domains:
        # As the elements' text, without a placeholder: the driver doesn't know a domain's elements.
        unknown = _unknown(replace(element, name="text"), context)
        array = unknown and arrays.array(element, unknown, context.config, optional=False)
        return array and replace(array, unavailable=NULL)
    if element.name in _NO_ARRAYS and element.category == "base":
        return None
    if element.name == "bit":
        # The connector reads the array as one bit string, which never succeeds.
        nothing = texts.nothing()
        return replace(texts.bits(context.typmod), to_json=nothing.to_json, form=nothing.form)
    kind = _element(element, labels, context)
    if kind is None:
        return None
    if element.name in _LOST_IN_ARRAYS and _is_known(element, context):
        kind = replace(kind, to_json=texts.nothing().to_json)
    known = element.name in _KINDS and element.name not in _NEVER_NULL
    array = arrays.array(element, kind, context.config, optional=known)
    if element.name != "time" or not _loses_times(context):
        return array
    form = inexact("time.precision.mode")
    return replace(array, to_json=lambda column: _without_values(array.to_json(column)), form=form)


def _element(element: PgType, labels: tuple[str, ...], context: _Context) -> Kind | None:
    """Find how an element is written: dates as in snapshots (by the driver), times in 2.5 in microseconds."""
    if element.name in {"date", "timestamp"}:
        return kind_of(element, labels, replace(context, snapshot=True))
    if element.name == "timestamptz":
        return temporal.timestamptz_in_array(element.typmod)
    if element.name == "timetz":
        return temporal.timetz_in_array()
    if element.name == "time":
        config, typmod = context.config, element.typmod
        if config.debezium_version == "2.5":
            clock = temporal.time(-1, replace(config, time_precision_mode="adaptive"))
        else:
            clock = temporal.time(typmod, config)
        return arrays.cut_to_millis(clock, typmod)
    return kind_of(element, labels, context)


_without_values = per_value(lambda token: token.encode() if re.fullmatch(r"\[(null,?)*\]", token) else None)


def _loses_times(context: _Context) -> bool:
    """Whether times in arrays are lost: 2.5 can't convert them to milliseconds, and writes a null array."""
    mode = context.config.time_precision_mode
    millis = mode == "connect" or (mode == "adaptive" and 0 <= context.typmod <= _MILLIS)
    return millis and context.config.debezium_version == "2.5"


def _unknown(type_: PgType, context: _Context) -> Kind | None:
    return texts.unknown(type_.name, context.config) if context.config.include_unknown_datatypes else None


_UNLIMITED = 2**31 - 1
_PRECISION = {"int2": 5, "oid": 10, "int4": 10, "int8": 19, "float4": 8, "float8": 17, "bool": 1, "char": 1}
_SCALE = {"float4": 8, "float8": 17}
_CLOCKS = {"time": 8, "timetz": 14, "timestamp": 22, "timestamptz": 28}
_SERIALS = {"int2": "smallserial", "int4": "serial", "int8": "bigserial"}
_VARLENA_HEADER = 4
_FIRST_NORMAL_OID = 16384
"""`FirstNormalObjectId` in access/transam.h: OIDs of user-defined types begin here."""
_NAME = re.compile(r'"((?:[^"]|"")*)"|([^."]+)')


class SourceType(NamedTuple):
    """`kind` is the type's name; `parameters` are those that `column.propagate.source.type` adds."""

    kind: str
    length: int
    parameters: dict[str, str]


def source_type(column: TableColumn, wire_oid: int, default: str | None, *, snapshot: bool) -> SourceType:
    """Describe a column's type; `wire_oid` is the declared type's OID (a domain's, not its base type's).

    In snapshots the driver looks the column up by itself, and reports some of it differently.
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
    """Whether a column's type is an array of a domain."""
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
    """Name a type as the driver does: quoted if outside the search path, "serial" for a sequence's column."""
    if default is not None and "nextval(" in default and not domain:
        return _SERIALS.get(column.type.name, _catalog_name(column.type))
    name, names = _type_name(column, domain), _names(column.declared)
    return f'"{names[0]}"."{name}"' if len(names) > 1 else name


def _names(declared: str) -> list[str]:
    """Split `format_type`'s output for a user-defined type into its schema, if printed, and its name."""
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
    """Count the point and digits; the driver counts one digit too many for a precision of 1."""
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
