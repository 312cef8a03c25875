"""One version of one table as its events show it: fields, key, names, and the text of its schemas."""

from dataclasses import dataclass, replace
from functools import lru_cache

from pgcdc_cli.formats.debezium import names, schemas
from pgcdc_cli.formats.debezium.config import ConnectorConfig
from pgcdc_cli.formats.debezium.field import Field
from pgcdc_cli.formats.debezium.schemas import Schema, in_order, render
from pgcdc_cli.formats.debezium.sourcetype import source_type
from pgcdc_cli.formats.debezium.types.kind import inexact
from pgcdc_cli.formats.debezium.types.registry import field_for
from pgcdc_cli.formats.escape import quote
from pgcdc_cli.table import ColumnFacts, TableFacts, TableSchema


@dataclass(frozen=True, slots=True)
class Column:
    """A field, and where its values stand in the table's columns.

    `key_schema` is the field's schema where it is part of a key, which never tells of the source's type.
    """

    index: int
    field: Field
    label: bytes
    key_schema: Schema


@dataclass(frozen=True, slots=True)
class EventTable:
    """`key` and `value` begin the record's key and value, schema included, and `_tail` ends them."""

    topic: bytes
    columns: tuple[Column, ...]
    key: tuple[Column, ...]
    key_head: bytes
    key_tail: bytes
    value_head: bytes
    value_tail: bytes


@lru_cache(4096)
def event_table(
    table: TableSchema, facts: TableFacts | None, config: ConnectorConfig, *, snapshot: bool
) -> EventTable:
    """Lay a table out. `facts` are the table's, which make no difference between versions otherwise."""
    columns = _columns(table, config, snapshot=snapshot)
    by_name = {table.columns[column.index].name: column for column in columns}
    wanted = config.key_columns(table.schema, table.name) or _key(table, facts)
    key = tuple(by_name[name] for name in wanted if name in by_name)
    adjust = names.schema_adjuster(config)
    full_name = names.topic(config, table.schema, table.name)
    row = schemas.struct(_fields(columns), adjust(f"{full_name}.Value"), optional=True)
    value = schemas.envelope(row, adjust(f"{full_name}.Envelope"), config)
    key_schema = schemas.struct(_key_fields(key), adjust(f"{full_name}.Key"))
    return EventTable(
        quote(full_name),
        columns,
        key,
        *wrapping(key_schema, enabled=config.key_converter_schemas_enable),
        *wrapping(value, enabled=config.value_converter_schemas_enable),
    )


def wrapping(schema: Schema, *, enabled: bool) -> tuple[bytes, bytes]:
    """Give what stands before and behind a payload."""
    return (b'{"schema":' + render(schema) + b',"payload":', b"}") if enabled else (b"", b"")


def _key(table: TableSchema, facts: TableFacts | None) -> tuple[str, ...]:
    if facts is None:
        return table.key or ()
    return facts.primary_key or facts.unique or ()


def _fields(columns: tuple[Column, ...]) -> list[Schema]:
    return [schemas.field(column.field.schema, column.field.name) for column in columns]


def _key_fields(columns: tuple[Column, ...]) -> list[Schema]:
    return [schemas.field(column.key_schema, column.field.name) for column in columns]


def _columns(table: TableSchema, config: ConnectorConfig, *, snapshot: bool) -> tuple[Column, ...]:
    adjust = names.field_adjuster(config)
    columns = []
    for index, column in enumerate(table.columns):
        if not config.includes_column(table.schema, table.name, column.name):
            continue
        field = field_for(column, _column_facts(table, index), config, snapshot=snapshot)
        if field is not None:
            name = adjust(column.name)
            key_schema = field.schema
            field = replace(_propagated(table, index, field, config, snapshot=snapshot), name=name)
            columns.append(Column(index, field, quote(name) + b":", key_schema))
    return tuple(columns)


def _column_facts(table: TableSchema, index: int) -> ColumnFacts:
    """Find a column's facts; defaults are not read where the type is a domain."""
    column = table.columns[index]
    facts = None if table.facts is None else table.facts.columns.get(column.name)
    facts = facts or ColumnFacts()
    return (
        facts if table.relation.columns[index].type_oid == column.type.oid else replace(facts, default=None)
    )


def _propagated(
    table: TableSchema, index: int, field: Field, config: ConnectorConfig, *, snapshot: bool
) -> Field:
    column, wire = table.columns[index], table.relation.columns[index]
    described = source_type(column, wire.type_oid, _column_facts(table, index).default, snapshot=snapshot)
    kind = described["__debezium.source.column.type"]
    if config.propagates_source_type(table.schema, table.name, column.name, kind):
        parameters = {**field.schema.get("parameters", {}), **described}
        field = replace(field, schema=in_order({**field.schema, "parameters": parameters}))
    mask = config.column_mask(table.schema, table.name, column.name)
    if mask is None:
        return field
    to_json = field.to_json
    rule = config.mask_rule(table.schema, table.name, column.name)
    return replace(field, to_json=lambda values: to_json(mask(values)), form=inexact(str(rule)))
