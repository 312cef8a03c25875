"""How an outbox's rows become events of their own by `EventRouter`: which columns go where."""

import json
import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Any, TypeAlias

import pyarrow as pa

from pgcdc_cli.formats.debezium.connector_config import ConnectorConfig, EventRouter
from pgcdc_cli.formats.debezium.payload_expansion import Expansion, columnar
from pgcdc_cli.formats.debezium.types import connect_schemas, texts
from pgcdc_cli.formats.debezium.types.connect_schemas import Schema, render
from pgcdc_cli.formats.debezium.types.kind import NULL, Converter, EventColumn, ToJson, single_token, token
from pgcdc_cli.formats.debezium.unwrapped import by_distinct, find_column, text_column
from pgcdc_cli.types import kernels

PAYLOAD = "payload"
"""What the payload is called beside columns that are placed in the envelope."""
_ROUTE, _VERSION, _SCHEMA = "<route>", b"<version>", b"<schema>"
"""What stands in a schema for what differs from row to row."""
_MARKS = re.compile(b"(%s|%s|%s)" % (_ROUTE.encode(), _VERSION, _SCHEMA))
_BLANK = r'^"(?: |\\[tnrfb]|\\u00[01][0-9A-F])*"$'
"""A JSON string that Java's `trim` leaves nothing of."""
_ONE_BLANK = re.compile(_BLANK.encode())

Expanded: TypeAlias = tuple[Schema, bytes]
Expand: TypeAlias = Callable[[bytes], Expanded | None]
Part: TypeAlias = bytes | int
"""A constant, or which of an outbox's further columns stands there."""


@dataclass(frozen=True, slots=True)
class OutboxLayout:
    """What a record is put together of: constants, and the tokens of `columns`."""

    router: EventRouter
    columns: tuple[EventColumn, ...]
    topic: int
    key: tuple[Part, ...]
    value: tuple[Part, ...]
    headers: tuple[tuple[Part, ...], ...]


def outbox_layout(
    columns: Sequence[EventColumn], row: Schema, router: EventRouter, config: ConnectorConfig
) -> OutboxLayout:
    """Lay an outbox out, whose row `row` describes; a USAGE error where it lacks a column."""
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
        key=builder.converted(builder.find(router.event_key)),
        value=builder.value(),
        headers=tuple(
            (token(name) + b":", *builder.converted(builder.find(column)), b",") for name, column in headers
        ),
        columns=tuple(builder.added),
    )


class _Builder:
    """Collects the columns that are asked for."""

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
        """Give what goes there: the name that it gets, and the column."""
        names = {column.field.name for column in self._columns}
        return [
            (one.alias, one.column)
            for one in self._router.placed
            if one.placement == placement and (self._router.error_on_missing or one.column in names)
        ]

    def converted(self, column: EventColumn) -> tuple[Part, ...]:
        """Write a key or a header as its converter does."""
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
        """Expand most payloads as a column, where nobody asks for their schemas."""
        field = expanded.field
        if self._expand is None or self._schemas or payload.field.to_json is not texts.JSONB:
            return expanded
        to_json = columnar(field.to_json, nulls=self._router.nulls)
        return replace(expanded, field=replace(field, to_json=to_json))

    def _envelope(self, payload: EventColumn, members: list[tuple[str, str]]) -> tuple[Part, ...]:
        """Write the payload and what stands beside it."""
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
        """Describe the value: its name tells the route, and its version may be a column's."""
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
            _VERSION: lambda: self.find(self._router.schema_version),
            _SCHEMA: lambda: of_payload,
        }
        for text in _MARKS.split(render(schema)):
            yield self.add(parts[text]()) if text in parts else text

    @property
    def _schemas(self) -> bool:
        return self._config.value_converter_schemas_enable

    @property
    def _expand(self) -> Expand | None:
        """Give what expands payloads; None where they stay as they are."""
        router = self._router
        if not router.expand or self.find(router.payload).field.schema["type"] != "string":
            return None
        unnamed = "null." if self._config.debezium_version == "2.5" else ""
        expansion = Expansion(router.payload, nulls=router.nulls, unnamed=unnamed)
        return lambda found: None if found == NULL else expansion.expand(json.loads(found))

    def _expanded(
        self, payload: EventColumn, part: Callable[[Expanded], bytes], plain: bytes | None = None
    ) -> EventColumn:
        """Give a part of each expanded payload; of others `plain`, or the payload itself."""
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
    """Put texts around every token but null."""
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
    """Give null for a blank text."""
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
    """Convert tokens further, each that occurs once."""
    return _with(column, by_distinct(column.field.to_json, convert), convert)


def _with(column: EventColumn, to_json: ToJson, convert: Callable[[bytes], bytes]) -> EventColumn:
    """Let a column's stand-ins become what its values do, but null."""
    field = column.field
    null, absent, unavailable = (
        one if one == NULL else convert(one) for one in (field.null, field.absent, field.unavailable)
    )
    field = replace(field, to_json=to_json, null=null, absent=absent, unavailable=unavailable)
    return replace(column, field=field)


def _with_schema(schema: Schema, payload: bytes) -> bytes:
    """Write a payload behind its schema."""
    return b'{"schema":' + render(schema) + b',"payload":' + payload + b"}"
