"""A table's rows as `ExtractNewRecordState` takes them out of their events: schema and topic."""

import json
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import lru_cache
from typing import cast

import pyarrow as pa

from pgcdc_cli.errors import ErrorKind, PgcdcError
from pgcdc_cli.formats.debezium.connector_config import ExtractNewRecordState
from pgcdc_cli.formats.debezium.types import connect_schemas
from pgcdc_cli.formats.debezium.types.connect_schemas import Schema
from pgcdc_cli.formats.debezium.types.kind import NULL, Converter, EventColumn, ToJson, single_token, token
from pgcdc_cli.types import kernels

DELETED = "__deleted"
"""The field that marks deleted rows in rewrite mode."""
_TRIMMED = "".join(map(chr, range(0x21)))


def unwrapped_schema(row: Schema, unwrap: ExtractNewRecordState, version: str) -> Schema:
    """Add the transform's fields to a row's schema. Raises PgcdcError (USAGE) if it has such a field."""
    deleted = [connect_schemas.plain("string", DELETED, optional=True)] if unwrap.rewrites else []
    added = [
        connect_schemas.event_members(version, one.block)[one.name] | {"field": one.added}
        for one in unwrap.fields
    ]
    fields = [*row["fields"], *deleted, *added]
    names = [field["field"] for field in fields]
    twice = next((name for name in names if names.count(name) > 1), None)
    if twice is not None:
        raise PgcdcError(
            ErrorKind.USAGE,
            f'could not add the field "{twice}" to "{row["name"]}": it already exists',
            hint="give it another name, with add.fields.prefix or as MEMBER:NAME",
        )
    return {**row, "fields": fields, "optional": False}


def route_columns(
    columns: Sequence[EventColumn], unwrap: ExtractNewRecordState, topic: str
) -> tuple[EventColumn, ...]:
    """Make the columns whose tokens are the records' topics; none without `route.by.field`.

    The first is for deleted rows, the last for others. Raises PgcdcError (USAGE) if the table has no text
    column of that name.
    """
    if not unwrap.route_by_field:
        return ()
    column = text_column(columns, unwrap.route_by_field, topic)
    table_topic = token(topic)

    @lru_cache(256)
    def routed(value: bytes) -> bytes:
        return table_topic if value == NULL or is_blank(json.loads(value)) else value

    field = column.field
    deleted = replace(
        field,
        to_json=by_distinct(field.to_json, routed),
        null=table_topic,
        absent=table_topic if field.schema["optional"] else routed(field.absent),
        unavailable=routed(field.unavailable),
    )
    # A rewritten row has defaults for nulls; a deleted one's topic is taken from the event, which has nulls.
    filled = replace(deleted, null=routed(field.null)) if unwrap.rewrites and unwrap.fill else deleted
    found = (deleted,) if filled.null == deleted.null else (deleted, filled)
    return tuple(replace(column, field=one) for one in found)


def is_blank(text: str) -> bool:
    """Whether Java's `trim` would leave nothing."""
    return not text.strip(_TRIMMED)


def text_column(columns: Sequence[EventColumn], name: str, row: str) -> EventColumn:
    """Find a text field by its name. Raises PgcdcError (USAGE) if there is none."""
    return _column_of(columns, name, row, "string")


def integer_column(columns: Sequence[EventColumn], name: str, row: str) -> EventColumn:
    """Find a field of type integer by its name. Raises PgcdcError (USAGE) if there is none."""
    return _column_of(columns, name, row, "int32")


_TYPES = {"string": "text", "int32": "an integer"}
"""What PostgreSQL calls Connect's types."""


def _column_of(columns: Sequence[EventColumn], name: str, row: str, type_: str) -> EventColumn:
    found = find_column(columns, name, row)
    if found.field.schema["type"] != type_:
        raise _unfit(row, f'its column "{name}" is not {_TYPES[type_]}')
    return found


def find_column(columns: Sequence[EventColumn], name: str, row: str) -> EventColumn:
    """Find a field by its name; `row` names the row's schema. Raises PgcdcError (USAGE) without one."""
    for column in columns:
        if column.field.name == name:
            return column
    raise _unfit(row, f'it has no column "{name}"')


def _unfit(row: str, reason: str) -> PgcdcError:
    return PgcdcError(
        ErrorKind.USAGE,
        f'could not transform the records of "{row.removesuffix(".Value")}": {reason}',
        hint="name another column with the transform's route.by.field or table.field.event.*,"
        " or limit it to tables that fit, with a predicate or table.include.list",
    )


def by_distinct(to_json: ToJson, convert: Callable[[bytes], bytes]) -> Converter:
    """Convert tokens further, each distinct one once."""

    def column(values: pa.BinaryArray) -> pa.BinaryArray:
        tokens = to_json(values).dictionary_encode()
        distinct = cast("list[bytes]", tokens.dictionary.to_pylist())
        converted = pa.DictionaryArray.from_arrays(
            tokens.indices, kernels.binary(list(map(convert, distinct)))
        )
        return kernels.as_binary(converted)

    def each(text: str) -> bytes | None:
        found = single_token(to_json, text.encode())
        return None if found is None else convert(found)

    return Converter(column, each)
