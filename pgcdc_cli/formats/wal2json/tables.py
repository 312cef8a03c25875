"""What all lines of a table share: its name, and what stands before and behind each column's value."""

from functools import lru_cache
from typing import NamedTuple

from pgcdc_cli.changes.table import ColumnFacts, TableColumn, TableFacts, TableSchema
from pgcdc_cli.formats.json_object import quote
from pgcdc_cli.formats.wal2json.options import Wal2jsonOptions
from pgcdc_cli.formats.wal2json.values import Kind, kind_of

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
