"""Lay out an outbox table's rows as events of their own, for `EventRouter`; expand their payloads.

An expanded payload is a JSON object, with a schema that is inferred from it. Payloads are expanded one by
one, except for most jsonb without schemas, which is converted by column.
"""

import json
import math
import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Any, NoReturn, TypeAlias

import numpy as np
import pyarrow as pa

from pgcdc_cli.formats.debezium.connector_config import PAYLOAD, ConnectorConfig, EventRouter
from pgcdc_cli.formats.debezium.types import connect_schemas, texts
from pgcdc_cli.formats.debezium.types.connect_schemas import Schema, render, struct
from pgcdc_cli.formats.debezium.types.kind import NULL, Converter, EventColumn, ToJson, single_token, token
from pgcdc_cli.formats.debezium.types.numeric_types import java_float
from pgcdc_cli.formats.debezium.unwrapped import by_distinct, find_column, integer_column, text_column
from pgcdc_cli.types import kernels
from pgcdc_cli.types.kernels import Booleans

_INT32, _INT64 = 2**31, 2**63

Json: TypeAlias = "dict[str, Json] | list[Json] | str | bool | int | float | None"


class _UnfitError(ValueError):
    """JSON for which there is no Connect schema."""


@dataclass(frozen=True, slots=True)
class Expansion:
    """How payloads are expanded: `nulls` keeps members that are null; `name` is the payload's column.

    `unnamed` begins the names inside a struct that has no name (in nested arrays).
    """

    name: str
    nulls: bool
    unnamed: str

    def expand(self, text: str) -> tuple[Schema, bytes] | None:
        """Return a payload's schema and token; None unless it is an object that a schema describes."""
        if not text.startswith("{"):
            return None
        try:
            # As Jackson does: what follows the object doesn't count.
            value, _ = _DECODER.raw_decode(text)
            schema = self._schema(self.name, value)
            return None if schema is None else (schema, _token(value, schema))
        except (ValueError, RecursionError):
            return None

    def _schema(self, name: str | None, value: Json) -> Schema | None:
        """Infer a value's schema; None if the value is left out."""
        if isinstance(value, dict):
            begin = self.unnamed if name is None else f"{name}."
            described = {key: self._schema(begin + key, member) for key, member in value.items()}
            fields = [schema | {"field": key} for key, schema in described.items() if schema is not None]
            if not all(field["field"] for field in fields):
                raise _UnfitError
            return struct(fields, name, optional=True)
        if isinstance(value, list):
            return {"type": "array", "items": self._items(name, value), "optional": True} if value else None
        if value is None:
            return {"type": "bytes", "optional": True} if self.nulls else None
        return {"type": _plain_type(value), "optional": True}

    def _items(self, name: str | None, values: list[Json]) -> Schema:
        """Infer the schema of an array's elements, which must be of one kind."""
        some = [value for value in values if value is not None]
        if len({_kind(value) for value in some}) > 1:
            raise _UnfitError
        if not some or not isinstance(some[0], dict):
            schema = self._schema(None, some[0] if some else None)
            if schema is None:
                raise _UnfitError
            return schema
        schemas = [self._schema(name, value) for value in some]
        distinct = [one for number, one in enumerate(schemas) if one and one not in schemas[:number]]
        return distinct[0] if len(distinct) == 1 else _merged(distinct)


def _merged(schemas: list[Schema]) -> Schema:
    """Merge the fields of several structs; a type other than null's takes precedence."""
    fields: dict[str, Schema] = {}
    for field in (field for schema in schemas for field in schema["fields"]):
        known = fields.get(field["field"])
        if known is None or (known["type"] == "bytes" and field["type"] != "bytes"):
            fields[field["field"]] = field
    return struct(list(fields.values()), schemas[0].get("name"))


def _kind(value: Json) -> str:
    """Determine what the elements of an array must have in common."""
    if isinstance(value, (dict, list)):
        return type(value).__name__
    return _plain_type(value)


def _plain_type(value: Json) -> str:
    if isinstance(value, bool):
        return "boolean"
    if isinstance(value, str):
        return "string"
    if isinstance(value, int) and -_INT64 <= value < _INT64:
        return "int32" if -_INT32 <= value < _INT32 else "int64"
    return "double"


def _token(value: Json, schema: Schema) -> bytes:
    """Write a value according to its schema."""
    if value is None:
        if not schema["optional"]:
            raise _UnfitError
        return b"null"
    if schema["type"] == "struct":
        return _object(value, schema)
    if schema["type"] == "array" and isinstance(value, list):
        return b"[" + b",".join(_token(element, schema["items"]) for element in value) + b"]"
    if schema["type"] != _kind(value) or (schema["type"] == "double" and isinstance(value, int)):
        raise _UnfitError
    return _double(value) if isinstance(value, float) else token(value)


def _double(value: float) -> bytes:
    if math.isinf(value):
        raise _UnfitError
    return java_float(repr(value))


def _object(value: Json, schema: Schema) -> bytes:
    if not isinstance(value, dict):
        raise _UnfitError
    members = [
        token(field["field"]) + b":" + _token(value.get(field["field"]), field) for field in schema["fields"]
    ]
    return b"{" + b",".join(members) + b"}"


def _refuse(_name: str) -> NoReturn:
    raise _UnfitError


_DECODER = json.JSONDecoder(parse_constant=_refuse)

_AWKWARD = (
    # Escapes, arrays, empty names, and characters that Jackson escapes.
    r"[\\\[\xF0-\xF4]|\"\":"
    # Numbers that Java prints differently.
    r"|: -?(?:\d{19}|\d{8,}\.|0\.000)|\.\d{8}|\.\d+0[,}]"
)
"""Matches each jsonb whose token differs in more than blanks, and some whose strings look like it."""
_MANY_OBJECTS = r"(?:\{[^{]*){100}"
"""Matches values with many objects; only these may be nested too deeply to be parsed."""


def columnar(one_by_one: ToJson, *, nulls: bool) -> Converter:
    """Convert jsonb objects as PostgreSQL prints them: most of them by column, the rest one by one.

    `nulls` keeps members that are null.
    """
    awkward = _AWKWARD if nulls else f"null|{_AWKWARD}"

    def column(values: pa.BinaryArray) -> pa.BinaryArray:
        plain = _are_objects(values) & ~kernels.as_mask(kernels.matches(values, awkward))
        if not plain.any():
            return one_by_one(values)
        compact = _without_blanks(values.filter(pa.array(plain)))
        if plain.all():
            return compact
        tokens = kernels.replace_with_mask(values, plain, compact)
        return kernels.replace_with_mask(tokens, ~plain, one_by_one(values.filter(pa.array(~plain))))

    return Converter(column, lambda text: single_token(one_by_one, text.encode()))


def _are_objects(values: pa.BinaryArray) -> Booleans:
    """Mark the values that are objects with fewer objects inside than `_MANY_OBJECTS`; null isn't one."""
    few = ~kernels.as_mask(kernels.matches(values, _MANY_OBJECTS))
    return few & kernels.as_mask(kernels.matches(values, r"^\{"))


def _without_blanks(values: pa.BinaryArray) -> pa.BinaryArray:
    """Remove the blanks between tokens; no string may contain a quotation mark, and no value be empty."""
    offsets, data = kernels.value_bytes(values)
    in_text = np.bitwise_xor.accumulate((data == ord('"')).view(np.uint8)).view(np.bool_)
    keep = in_text | (data != ord(" "))
    lengths = np.add.reduceat(keep, offsets[:-1], dtype=np.int64)
    return kernels.from_bytes(np.concatenate([np.zeros(1, np.int64), np.cumsum(lengths)]), data[keep])


_ROUTE, _VERSION, _SCHEMA = "<route>", b"<version>", b"<schema>"
"""Marks in a schema for the parts that differ from row to row."""
_LABEL = b',"version":'
_VERSION_MEMBER = _LABEL + _VERSION
"""Without a version there is no such member."""
_MARKS = re.compile(b"(%s|%s|%s)" % (_ROUTE.encode(), _VERSION_MEMBER, _SCHEMA))
_BLANK = r'^"(?: |\\[tnrfb]|\\u00[01][0-9A-F])*"$'
"""A JSON string that Java's `trim` would empty."""
_ONE_BLANK = re.compile(_BLANK.encode())

Expanded: TypeAlias = tuple[Schema, bytes]
Expand: TypeAlias = Callable[[bytes], Expanded | None]
Part: TypeAlias = bytes | int
"""A constant, or the index of one of the outbox's further columns."""


@dataclass(frozen=True, slots=True)
class OutboxLayout:
    """The parts of a record: constants, and tokens of `columns`, by index."""

    router: EventRouter
    columns: tuple[EventColumn, ...]
    topic: int
    key: tuple[Part, ...]
    value: tuple[Part, ...]
    headers: tuple[tuple[Part, ...], ...]


def outbox_layout(
    columns: Sequence[EventColumn],
    in_key: Sequence[EventColumn],
    row: Schema,
    router: EventRouter,
    config: ConnectorConfig,
) -> OutboxLayout:
    """Lay out an outbox whose rows have the schema `row`. Raises PgcdcError (USAGE) if it lacks a column.

    `in_key` are the columns as the key's converter writes them.
    """
    builder = _Builder(columns, row, router, config)
    if router.timestamp:
        builder.find(router.timestamp)

    @lru_cache(256)
    def topic(route: bytes) -> bytes:
        return token(router.topic(json.loads(route)))

    routed = builder.add(_always(_converted(builder.route, topic), topic(b'""')))
    headers = [("id", router.event_id), *builder.placed("header")]
    return OutboxLayout(
        router=router,
        topic=routed,
        key=builder.converted(find_column(in_key, router.event_key, row["name"])),
        value=builder.value(),
        headers=tuple(
            (token(name) + b":", *builder.converted(builder.find(column)), b",") for name, column in headers
        ),
        columns=tuple(builder.added),
    )


class _Builder:
    """Collects the columns that the layout needs."""

    def __init__(
        self, columns: Sequence[EventColumn], row: Schema, router: EventRouter, config: ConnectorConfig
    ) -> None:
        self._columns = columns
        self._row = row
        self._router = router
        self._config = config
        self.added: list[EventColumn] = []
        self.route = text_column(columns, router.route_by_field, row["name"])

    def find(self, name: str) -> EventColumn:
        return find_column(self._columns, name, self._row["name"])

    def add(self, column: EventColumn) -> int:
        self.added.append(column)
        return len(self.added) - 1

    def placed(self, placement: str) -> list[tuple[str, str]]:
        """List the new names and the columns that are placed there."""
        names = {column.field.name for column in self._columns}
        return [
            (one.alias, one.column)
            for one in self._router.placed
            if one.placement == placement and (self._router.error_on_missing or one.column in names)
        ]

    def converted(self, column: EventColumn) -> tuple[Part, ...]:
        """Write a key or a header, with its schema if the key converter adds schemas."""
        enabled = self._config.key_converter_schemas_enable
        head, tail = connect_schemas.wrapping(column.field.schema, enabled=enabled)
        return (head, self.add(column), tail)

    def value(self) -> tuple[Part, ...]:
        payload, members = self.find(self._router.payload), self.placed("envelope")
        if members:
            return self._envelope(payload, members)
        head, tail = connect_schemas.wrapping(payload.field.schema, enabled=self._schemas)
        column = _unless_blank(payload) if self._router.tombstones else payload
        expand = self._expand
        if expand is None:
            return (self.add(_between(column, head, tail)),)

        def expanded(found: bytes) -> bytes:
            parts = expand(found)
            if parts is None:
                return head + found + tail
            return _with_schema(*parts) if self._schemas else parts[1]

        return (self.add(self._columnar(payload, _converted(column, expanded))),)

    def _columnar(self, payload: EventColumn, expanded: EventColumn) -> EventColumn:
        """Expand most payloads by column if their schemas aren't needed."""
        field = expanded.field
        if self._expand is None or self._schemas or payload.field.to_json is not texts.JSONB:
            return expanded
        to_json = columnar(field.to_json, nulls=self._router.nulls)
        return replace(expanded, field=replace(field, to_json=to_json))

    def _envelope(self, payload: EventColumn, members: list[tuple[str, str]]) -> tuple[Part, ...]:
        """Write the payload and the columns beside it."""
        others = [(name, self.find(column)) for name, column in members]
        expanded = self._columnar(payload, self._expanded(payload, lambda parts: parts[1]))
        inner: list[Part] = [b'{"payload":', self.add(expanded)]
        for name, column in others:
            inner += [b"," + token(name) + b":", self.add(column)]
        inner.append(b"}")
        if not self._schemas:
            return tuple(inner)
        return (b'{"schema":', *self._schema(payload, others), b',"payload":', *inner, b"}")

    def _schema(self, payload: EventColumn, others: list[tuple[str, EventColumn]]) -> Iterator[Part]:
        """Write the value's schema: its name contains the route, its version may come from a column."""
        begin, _, last = self._row["name"].rpartition(".")
        fields = [connect_schemas.field(column.field.schema, name) for name, column in others]
        of_all: list[Any] = [_SCHEMA, *fields]
        schema = connect_schemas.struct(of_all, f"{begin}.{_ROUTE}.{last}")
        if self._router.schema_version:
            schema["version"] = _VERSION
        plain = connect_schemas.field(payload.field.schema, PAYLOAD)
        of_payload = _always(
            self._expanded(payload, lambda parts: render(parts[0] | {"field": PAYLOAD}), render(plain)),
            render(plain),
        )
        parts: dict[bytes, Callable[[], EventColumn]] = {
            _ROUTE.encode(): lambda: _converted(self.route, lambda found: found[1:-1]),
            _VERSION_MEMBER: self._version,
            _SCHEMA: lambda: of_payload,
        }
        for text in _MARKS.split(render(schema)):
            yield self.add(parts[text]()) if text in parts else text

    def _version(self) -> EventColumn:
        """Make the member for the schema's version, empty without one."""
        column = integer_column(self._columns, self._router.schema_version, self._row["name"])
        return _always(_converted(column, lambda found: _LABEL + found), b"")

    @property
    def _schemas(self) -> bool:
        return self._config.value_converter_schemas_enable

    @property
    def _expand(self) -> Expand | None:
        """Return the function that expands a payload; None if payloads stay as they are."""
        router = self._router
        if not router.expand or self.find(router.payload).field.schema["type"] != "string":
            return None
        unnamed = "null." if self._config.debezium_version == "2.5" else ""
        expansion = Expansion(router.payload, nulls=router.nulls, unnamed=unnamed)
        return lambda found: None if found == NULL else expansion.expand(json.loads(found))

    def _expanded(
        self, payload: EventColumn, part: Callable[[Expanded], bytes], plain: bytes | None = None
    ) -> EventColumn:
        """Convert each expanded payload with `part`; any other to `plain`, or not at all."""
        expand = self._expand

        def convert(found: bytes) -> bytes:
            parts = None if expand is None else expand(found)
            if parts is None:
                return found if plain is None else plain
            return part(parts)

        return payload if expand is None and plain is None else _converted(payload, convert)


def _always(column: EventColumn, null: bytes) -> EventColumn:
    return replace(column, field=replace(column.field, null=null, absent=null))


def _between(column: EventColumn, head: bytes, tail: bytes) -> EventColumn:
    """Put texts before and after every token, except null."""
    if not head:
        return column
    to_json = column.field.to_json

    def around(values: pa.BinaryArray) -> pa.BinaryArray:
        tokens = to_json(values)
        texts = kernels.as_binary(kernels.join([head, tokens, tail]))
        return kernels.nulled_like(texts, tokens)

    def each(text: str) -> bytes | None:
        found = single_token(to_json, text.encode())
        return None if found is None else head + found + tail

    return _with(column, Converter(around, each), lambda found: head + found + tail)


def _unless_blank(column: EventColumn) -> EventColumn:
    """Turn blank text into null."""
    to_json = column.field.to_json
    if column.field.schema["type"] != "string":
        return column

    def kept(values: pa.BinaryArray) -> pa.BinaryArray:
        tokens = to_json(values)
        return kernels.null_where(tokens, kernels.as_mask(kernels.matches(tokens, _BLANK)))

    def each(text: str) -> bytes | None:
        found = single_token(to_json, text.encode())
        return None if found is None or _ONE_BLANK.search(found) else found

    def convert(found: bytes) -> bytes:
        return NULL if _ONE_BLANK.search(found) else found

    return _with(column, Converter(kept, each), convert)


def _converted(column: EventColumn, convert: Callable[[bytes], bytes]) -> EventColumn:
    """Convert tokens further, each distinct one once."""
    return _with(column, by_distinct(column.field.to_json, convert), convert)


def _with(column: EventColumn, to_json: ToJson, convert: Callable[[bytes], bytes]) -> EventColumn:
    """Replace a column's conversion, and convert its constants, except null, as well."""
    field = column.field
    null, absent, unavailable = (
        one if one == NULL else convert(one) for one in (field.null, field.absent, field.unavailable)
    )
    field = replace(field, to_json=to_json, null=null, absent=absent, unavailable=unavailable)
    return replace(column, field=field)


def _with_schema(schema: Schema, payload: bytes) -> bytes:
    """Write a payload with its schema."""
    return b'{"schema":' + render(schema) + b',"payload":' + payload + b"}"
