"""One version of a table, as its events show it.

Schema files describe how each column is written, so that a reader can restore rows from events without the
connector configuration.
"""

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Any

from pgcdc_cli.changes.table import MANY_TABLES, ColumnFacts, TableFacts, TableSchema
from pgcdc_cli.formats.debezium.connector_config import (
    ConnectorConfig,
    ExtractNewRecordState,
    RowTransform,
)
from pgcdc_cli.formats.debezium.masks import masked, parse_mask, with_parameters
from pgcdc_cli.formats.debezium.outbox import OutboxLayout, outbox_layout
from pgcdc_cli.formats.debezium.types import connect_schemas, texts
from pgcdc_cli.formats.debezium.types.connect_schemas import Schema
from pgcdc_cli.formats.debezium.types.kind import NULL, EventColumn, Field, inexact, token
from pgcdc_cli.formats.debezium.types.registry import field_for, source_type
from pgcdc_cli.formats.debezium.unwrapped import route_columns, unwrapped_schema


@dataclass(frozen=True, slots=True, eq=False)
class EventTable:
    """A table's fields and the constant parts of its records.

    `columns` are the row's fields. `key_only` are fields that only the key has, since masks and filters don't
    apply to keys. `key` indexes both; it is None without a key, and empty if all its types are left out.
    `key_head` and `value_head` begin the record's key and value, including the schema, and the tails end
    them. With a transform, `further` are the columns that it makes of others. `unwrap` is the transform to
    rows; `null_value` is then the value of a deleted one that has none, `routed` are the indexes, among all
    columns, of the topics of deleted rows and of others.
    `outbox` is the layout of an outbox's events.
    """

    topic: bytes
    columns: tuple[EventColumn, ...]
    key_only: tuple[EventColumn, ...]
    key: tuple[int, ...] | None
    key_head: bytes
    key_tail: bytes
    value_head: bytes
    value_tail: bytes
    unwrap: ExtractNewRecordState | None = None
    null_value: bytes = NULL
    further: tuple[EventColumn, ...] = ()
    routed: tuple[int, int] | None = None
    outbox: OutboxLayout | None = None

    @property
    def all_columns(self) -> tuple[EventColumn, ...]:
        """The row's columns, then the key's own, then those that a transform makes."""
        return self.columns + self.key_only + self.further

    @property
    def whole(self) -> bool:
        """Whether no transform leaves only a part of its events."""
        return self.unwrap is None and self.outbox is None


@lru_cache(MANY_TABLES)
def event_table(
    table: TableSchema, facts: TableFacts | None, config: ConnectorConfig, *, snapshot: bool
) -> EventTable:
    """Lay out a table; `facts` are its facts, which don't make another version of it.

    Raises PgcdcError (USAGE) if a message transform doesn't fit the table.
    """
    full_name = connect_schemas.topic(config, table.schema, table.name)
    transform, topic = config.transformed(full_name)
    of_rows = _of_rows(config, transform)
    plain = _plain(table, of_rows, snapshot=snapshot)
    columns = _of_row(table, plain, config, snapshot=snapshot)
    names = tuple(column.name for column in table.columns)
    wanted = config.key_columns(table.schema, table.name, names) or _key(table, facts, config)
    key_config = _of_key(config)
    of_key = plain if key_config == config else _plain(table, key_config, snapshot=snapshot)
    keys = [of_key[name] for name in wanted if name in of_key]
    key_only, key = _key_columns(columns, keys)
    adjust = connect_schemas.schema_adjuster(config)
    row = connect_schemas.struct(_fields(columns), adjust(f"{full_name}.Value"), optional=True)
    key_schema = connect_schemas.struct(_fields(keys), adjust(f"{full_name}.Key"))
    laid_out = EventTable(
        token(topic),
        columns,
        key_only,
        key if any(column.name in wanted for column in table.columns) else None,
        *connect_schemas.wrapping(key_schema, enabled=config.key_converter_schemas_enable),
        *connect_schemas.wrapping(
            connect_schemas.envelope(row, adjust(f"{full_name}.Envelope"), config),
            enabled=config.value_converter_schemas_enable,
        ),
    )
    if isinstance(transform, ExtractNewRecordState):
        return _unwrapped(laid_out, row, transform, config)
    if transform is None:
        return laid_out
    as_key = replace(of_rows, value_converter_decimal_format=config.key_converter_decimal_format)
    in_key = _of_row(table, _plain(table, as_key, snapshot=snapshot), config, snapshot=snapshot)
    layout = outbox_layout(columns, in_key, row, transform, config)
    return replace(laid_out, outbox=layout, further=layout.columns)


def _unwrapped(
    table: EventTable, row: Schema, unwrap: ExtractNewRecordState, config: ConnectorConfig
) -> EventTable:
    value = unwrapped_schema(row, unwrap, config.debezium_version)
    head, tail = connect_schemas.wrapping(value, enabled=config.value_converter_schemas_enable)
    before, behind = connect_schemas.wrapping(row, enabled=config.value_converter_schemas_enable)
    further = route_columns(table.columns, unwrap, json.loads(table.topic))
    first = len(table.all_columns)
    routed = (first, first + len(further) - 1) if further else None
    return replace(
        table,
        value_head=head,
        value_tail=tail,
        unwrap=unwrap,
        null_value=before + NULL + behind if unwrap.deletes == "none" else NULL,
        further=further,
        routed=routed,
    )


def _of_row(
    table: TableSchema, plain: Mapping[str, EventColumn], config: ConnectorConfig, *, snapshot: bool
) -> tuple[EventColumn, ...]:
    """List the columns that are not left out, with their masks."""
    return tuple(
        replace(column, field=_mapped(table, column, config, snapshot=snapshot))
        for name, column in plain.items()
        if config.includes_column(table.schema, table.name, name)
    )


def _of_rows(config: ConnectorConfig, transform: RowTransform | None) -> ConnectorConfig:
    """Return the configuration for rows: some transforms replace nulls by defaults in any case."""
    if isinstance(transform, ExtractNewRecordState):
        filled = transform.rewrites and transform.fill
    else:
        filled = transform is not None
    return replace(config, value_converter_replace_null_with_default=True) if filled else config


def _of_key(config: ConnectorConfig) -> ConnectorConfig:
    """Return the configuration for keys, with the key converter's settings as the value converter's."""
    return replace(
        config,
        value_converter_replace_null_with_default=config.key_converter_replace_null_with_default,
        value_converter_decimal_format=config.key_converter_decimal_format,
    )


def _key(table: TableSchema, facts: TableFacts | None, config: ConnectorConfig) -> tuple[str, ...]:
    if facts is None:
        return table.key or ()
    primary = facts.primary_key or ()
    # pgjdbc 42.6, which 2.5 uses, takes INCLUDE columns for a part of the primary key (its issue 3430).
    own = primary if config.debezium_version == "2.5" else primary[: len(primary) - facts.included]
    return own or facts.unique or ()


def _key_columns(
    columns: tuple[EventColumn, ...], keys: list[EventColumn]
) -> tuple[tuple[EventColumn, ...], tuple[int, ...]]:
    """Find the key's values among the row's; those that differ there are put after the row's columns."""
    found = {
        column.index: number
        for number, column in enumerate(columns)
        for key in keys
        if key.index == column.index and _alike(key.field, column.field)
    }
    key_only = tuple(key for key in keys if key.index not in found)
    behind = {key.index: len(columns) + number for number, key in enumerate(key_only)}
    return key_only, tuple((found | behind)[key.index] for key in keys)


def _alike(one: Field, other: Field) -> bool:
    """Whether two fields write the same tokens."""
    stand_ins = (one.null, one.absent, one.unavailable) == (other.null, other.absent, other.unavailable)
    return one.to_json is other.to_json and stand_ins


def _fields(columns: Iterable[EventColumn]) -> list[Schema]:
    return [connect_schemas.field(column.field.schema, column.field.name) for column in columns]


def _plain(table: TableSchema, config: ConnectorConfig, *, snapshot: bool) -> dict[str, EventColumn]:
    """Make every column's field before masks, by name; a left-out column may still be part of the key."""
    adjust = connect_schemas.field_adjuster(config)
    columns = {}
    for index, column in enumerate(table.columns):
        if config.includes_column(table.schema, table.name, column.name):
            field = _included(table, index, config, snapshot=snapshot)
        else:
            field = _left_out(table, index, config, snapshot=snapshot)
        if field is not None:
            name = adjust(column.name)
            columns[column.name] = EventColumn(index, replace(field, name=name), token(name) + b":")
    return columns


def _included(table: TableSchema, index: int, config: ConnectorConfig, *, snapshot: bool) -> Field | None:
    """Find a column's field; Debezium doesn't know the placeholders of a domain over an array or hstore."""
    column = table.columns[index]
    field = field_for(column, _column_facts(table, index), config, snapshot=snapshot)
    if field is None or not _is_domain(table, index):
        return field
    if column.type.element is not None or (column.type.name == "hstore" and field.schema["type"] == "map"):
        return replace(field, unavailable=NULL)
    return replace(field, unavailable=token(config.placeholder)) if column.type.name == "hstore" else field


def _is_domain(table: TableSchema, index: int) -> bool:
    column = table.columns[index]
    return column.type_oid != column.type.oid


def _left_out(table: TableSchema, index: int, config: ConnectorConfig, *, snapshot: bool) -> Field | None:
    """Find the field of a column that is left out, but may be part of the key.

    While streaming, Debezium doesn't look such a column up, and takes it for optional. In snapshots it
    doesn't read it, unless all columns are left out: a select list without columns selects all.
    """
    column, facts = table.columns[index], _column_facts(table, index)
    if snapshot:
        field = field_for(column, facts, config, snapshot=snapshot)
        read = not any(config.includes_column(table.schema, table.name, one.name) for one in table.columns)
        return field if read else field and replace(field, to_json=texts.nothing().to_json, null=field.absent)
    return field_for(replace(column, not_null=None), replace(facts, default=None), config)


def _column_facts(table: TableSchema, index: int) -> ColumnFacts:
    """Find a column's facts; the default of a column whose type is a domain is ignored."""
    column = table.columns[index]
    facts = None if table.facts is None else table.facts.columns.get(column.name)
    facts = facts or ColumnFacts()
    return replace(facts, default=None) if _is_domain(table, index) else facts


def _mapped(table: TableSchema, column: EventColumn, config: ConnectorConfig, *, snapshot: bool) -> Field:
    """Apply the one rule that masks the column or propagates its source type."""
    described = table.columns[column.index]
    default = _column_facts(table, column.index).default
    source = source_type(described, described.type_oid, default, snapshot=snapshot)
    full_name = (table.schema, table.name, described.name)
    rule = config.mask_rule(*full_name)
    mask = None if rule is None else parse_mask(rule)
    rank = config.source_type_rank(*full_name, source.kind)
    if mask is not None and (rank is None or mask.rank < rank):
        newer = config.debezium_version != "2.5"
        return masked(column.field, mask, described.type, source.length, newer=newer)
    return column.field if rank is None else with_parameters(column.field, source.parameters)


@lru_cache(MANY_TABLES)
def described(
    table: TableSchema, facts: TableFacts | None, config: ConnectorConfig, *, values_only: bool
) -> TableSchema:
    """Add to a table's schema how its events are read back; `facts` are the table's own."""
    shown = event_table(table, facts, config, snapshot=False)
    events = {
        "record": "value" if values_only else "full",
        "schemas": config.value_converter_schemas_enable,
        "columns": _columns(table, shown, config),
    }
    return replace(table, facts=facts, events=events)


def _columns(table: TableSchema, shown: EventTable, config: ConnectorConfig) -> dict[str, Any]:
    """Describe each column by name; None for one that the configuration leaves out."""
    if not shown.whole:
        return {column.name: inexact("transforms leave only a part of them") for column in table.columns}
    fields = {table.columns[column.index].name: column.field for column in shown.columns}
    names = [field.name for field in fields.values()]
    columns: dict[str, Any] = {}
    for column in table.columns:
        if not config.includes_column(table.schema, table.name, column.name):
            columns[column.name] = None
        elif column.name not in fields:
            columns[column.name] = inexact(
                f"Debezium leaves out {column.type.name}: include.unknown.datatypes"
            )
        elif names.count(fields[column.name].name) > 1:
            columns[column.name] = inexact("field.name.adjustment.mode")
        else:
            columns[column.name] = _column(fields[column.name])
    return columns


def _column(field: Field) -> dict[str, Any]:
    unavailable = json.loads(field.unavailable)
    if unavailable is not None and not isinstance(unavailable, str):
        # A reader gets the text of a token that is no string as it is in the line.
        unavailable = field.unavailable.decode()
    return {"field": field.name, **field.form, "unavailable": unavailable}
