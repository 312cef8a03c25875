"""Write a batch's rows as lines: by column, or, for a few rows, one by one with the same result.

A change's stamp is its members `xid`, `timestamp`, `origin` and `lsn`, as far as the options ask for them;
each begins with a comma. All lines of a table share its name, the text around each column's value, and the
form of each value. Numbers and booleans are bare; everything else is a string. The plugin goes by a column's
declared type, so a domain over a number is a string. NaN and the infinities are null; bytea is hex digits.
"""

from collections.abc import Callable, Iterable, Iterator
from functools import lru_cache
from typing import Literal, NamedTuple

import numpy as np
import pyarrow as pa

from pgcdc_cli.changes.origin import Origin
from pgcdc_cli.changes.slice import ChangeBatch, FullImage, Image, Stamp, Stamps, texts_of
from pgcdc_cli.changes.table import MANY_TABLES, BaseType, ColumnFacts, TableColumn, TableFacts, TableSchema
from pgcdc_cli.formats.encoded_rows import Lines, are_few
from pgcdc_cli.formats.json_text import (
    JsonValue,
    Member,
    each_row,
    escape,
    integer_text,
    joined,
    lsn_fragments,
    one_lsn,
    one_string,
    one_timestamp,
    quote,
    separated,
    timestamp_text,
    transaction_starts,
)
from pgcdc_cli.formats.wal2json.wal2json_options import Wal2jsonOptions
from pgcdc_cli.types import kernels
from pgcdc_cli.types.kernels import Fragment, Int64s, as_mask
from pgcdc_cli.types.pg_type import TYPES

Kind = Literal["number", "bool", "bytea", "string"]

BOOLEANS = {False: b"false", True: b"true", None: b"null"}


class ColumnParts(NamedTuple):
    """A column: `head` precedes its value, `tail` follows it in `columns`; in `identity` only `}` does."""

    head: bytes
    tail: bytes
    kind: Kind


class TableParts(NamedTuple):
    """`name` and `pk` begin with a comma; `pk` is empty unless an option asks for it."""

    name: bytes
    columns: tuple[ColumnParts, ...]
    pk: bytes


def parts_of(table: TableSchema, options: Wal2jsonOptions) -> TableParts:
    """Make a table's parts, cached by its version and, since that doesn't include them, its facts."""
    return _parts(table, table.facts, options)


@lru_cache(MANY_TABLES)
def _parts(table: TableSchema, facts: TableFacts | None, options: Wal2jsonOptions) -> TableParts:
    known = {} if facts is None else facts.columns
    pairs = [(column, known.get(column.name, ColumnFacts())) for column in table.columns]
    columns = tuple(_column(column, facts, options) for column, facts in pairs)
    pk = b",".join(_described(*pair, options) + b"}" for pair in pairs if pair[1].in_primary_key)
    return TableParts(name_of(table, options), columns, b',"pk":[%b]' % pk if options.include_pk else b"")


def name_of(table: TableSchema, options: Wal2jsonOptions) -> bytes:
    """Write the members `schema` and `table`."""
    schema = b',"schema":' + quote(table.schema) if options.include_schemas else b""
    return schema + b',"table":' + quote(table.name)


def _column(column: TableColumn, facts: ColumnFacts, options: Wal2jsonOptions) -> ColumnParts:
    kind = kind_of(column.type_oid, numbers_as_strings=options.numeric_data_types_as_string)
    tail = b""
    if options.include_not_null:
        optional = None if facts.not_null is None else not facts.not_null
        tail += b',"optional":' + BOOLEANS[optional]
    if options.include_column_positions:
        tail += b',"position":' + (b"null" if facts.position is None else b"%d" % facts.position)
    if options.include_default:
        tail += b',"default":' + (b"null" if facts.default is None else quote(facts.default))
    return ColumnParts(_described(column, facts, options) + b',"value":', tail + b"}", kind)


def _described(column: TableColumn, facts: ColumnFacts, options: Wal2jsonOptions) -> bytes:
    """Begin a column's object: the members before its value."""
    base = base_of(facts, options)
    name = type_name(column.declared if base is None else base.declared)
    type_ = b',"type":' + quote(name) if options.include_types else b""
    oid = b',"typeoid":%d' % column.type_oid if options.include_type_oids else b""
    return b'{"name":' + quote(column.name) + type_ + oid


def base_of(facts: ColumnFacts, options: Wal2jsonOptions) -> BaseType | None:
    """Return the base type of a column's domain, if the options ask for it."""
    return facts.base if options.include_domain_data_type else None


def type_name(declared: str) -> str:
    """Remove the quotes around a type's name."""
    if len(declared) > 1 and declared[0] == declared[-1] == '"' and '"."' not in declared:
        return declared[1:-1].replace('""', '"')
    return declared


_BY_NAME: dict[str, Kind] = {
    "bool": "bool",
    "bytea": "bytea",
    "int2": "number",
    "int4": "number",
    "int8": "number",
    "oid": "number",
    "float4": "number",
    "float8": "number",
    "numeric": "number",
}
_KINDS = {oid: _BY_NAME[name] for name, _, oid, _ in TYPES if name in _BY_NAME}

_HEX_PREFIX = len("\\x")


def kind_of(type_oid: int, *, numbers_as_strings: bool) -> Kind:
    """Look up the form of a type's values."""
    kind = _KINDS.get(type_oid, "string")
    return "string" if numbers_as_strings and kind == "number" else kind


def value_of(kind: Kind, column: pa.BinaryArray) -> JsonValue:
    """Convert n wire texts of a column to JSON."""
    if kind == "number":
        return JsonValue(_finite(column), True)
    if kind == "bool":
        return JsonValue(kernels.if_else(kernels.equal(column, b"t"), b"true", b"false"), True)
    if kind == "bytea":
        return JsonValue(kernels.without_start(column, _HEX_PREFIX), False)
    return JsonValue(escape(column), False)


def _finite(column: pa.BinaryArray) -> pa.BinaryArray:
    """Make NaN and the infinities null; only they contain an N or n."""
    data = kernels.all_bytes(column)
    if not ((data == ord("N")) | (data == ord("n"))).any():
        return column
    return kernels.null_where(column, as_mask(kernels.matches(column, "[Nn]")))


def writer_of(kind: Kind) -> Callable[[bytes], bytes]:
    """Choose the function that writes one wire text as `value_of` does, or raises UnicodeDecodeError."""
    return _WRITERS[kind]


def _one_number(value: bytes) -> bytes:
    return b"null" if b"n" in value.lower() else value


def _one_boolean(value: bytes) -> bytes:
    return b"true" if value == b"t" else b"false"


def _one_bytea(value: bytes) -> bytes:
    return b'"' + value[_HEX_PREFIX:] + b'"'


_WRITERS: dict[Kind, Callable[[bytes], bytes]] = {
    "number": _one_number,
    "bool": _one_boolean,
    "bytea": _one_bytea,
    "string": one_string,
}


_WEIGHT = 3
"""By column, lines without positions cost a third of those with them: a third as many rows are few."""


def row_lines(batch: ChangeBatch, options: Wal2jsonOptions) -> Lines:
    """Write a batch's lines. Raises PgcdcError (PROTOCOL) for invalid UTF-8."""
    if are_few(batch, _WEIGHT):
        try:
            return list(_few(batch, options))
        except UnicodeDecodeError:
            # The column path raises the error.
            pass
    return joined_rows(_columns(batch, options), len(batch))


def joined_rows(fragments: Iterable[Fragment], rows: int) -> Lines:
    """Concatenate row by row; all fragments may be constants, as for a table without columns."""
    some = list(fragments)
    constants = [fragment for fragment in some if isinstance(fragment, bytes)]
    return [b"".join(constants)] * rows if len(constants) == len(some) else joined(some)


def _columns(batch: ChangeBatch, options: Wal2jsonOptions) -> Iterator[Fragment]:
    """Yield fragments that, joined row by row, make a batch's lines."""
    parts = parts_of(batch.table, options)
    yield b'{"action":"%b"' % batch.operation.encode()
    yield from _stamp_columns(batch.stamps, options)
    yield parts.name
    for label, image, columns in _images(batch, parts.columns):
        yield b',"%b":[' % label
        yield from separated(_members(image, columns))
        yield b"]"
    yield parts.pk + b"}\n"


def _images(
    batch: ChangeBatch, columns: tuple[ColumnParts, ...]
) -> Iterator[tuple[bytes, Image, tuple[ColumnParts, ...]]]:
    """Yield the images of the new row and of the identity, each with the parts of its columns."""
    if batch.new is not None:
        yield b"columns", batch.new, columns
    identity = identity_of(batch)
    if identity is not None:
        yield b"identity", identity, tuple(column._replace(tail=b"}") for column in columns)


def identity_of(batch: ChangeBatch) -> Image | None:
    """Return the old row's image; for an update without one, the identity is unchanged, as in the new row."""
    if batch.old is not None or batch.new is None or batch.operation != "U":
        return batch.old
    return _identity_in(batch.table, batch.new, len(batch))


def _identity_in(table: TableSchema, new: FullImage, count: int) -> FullImage:
    """Mark columns outside the replica identity as absent in `count` rows."""
    absent = np.ones(count, np.bool_)
    masks = zip(table.columns, new.unchanged, strict=True)
    unchanged = tuple(mask if column.in_replica_identity else absent for column, mask in masks)
    return FullImage(new.columns, unchanged)


def _members(image: Image, columns: tuple[ColumnParts, ...]) -> Iterator[Member]:
    for index, column in enumerate(columns):
        values, absent = image.columns[index], image.unchanged_in(index)
        if values is not None and (absent is None or not absent.all()):
            yield Member(column.head, value_of(column.kind, values), absent, column.tail)


def _few(batch: ChangeBatch, options: Wal2jsonOptions) -> Iterator[bytes]:
    parts = parts_of(batch.table, options)
    begin, end = b'{"action":"%b"' % batch.operation.encode(), parts.pk + b"}\n"
    labels, images = [], []
    for label, image, columns in _images(batch, parts.columns):
        labels.append(b',"%b":[' % label)
        images.append(_rows(image, columns, len(batch)))
    for stamp, *rows in zip(_stamp_rows(batch.stamps, options), *images, strict=True):
        arrays = [label + b",".join(row) + b"]" for label, row in zip(labels, rows, strict=True)]
        yield begin + stamp + parts.name + b"".join(arrays) + end


def _rows(image: Image, columns: tuple[ColumnParts, ...], count: int) -> list[list[bytes]]:
    """Write each row's members."""
    rows: list[list[bytes]] = [[] for _ in range(count)]
    for index, (head, tail, kind) in enumerate(columns):
        values, absent = texts_of(image.columns, index), image.unchanged_in(index)
        if values is not None:
            write, lacks = writer_of(kind), [False] * count if absent is None else absent.tolist()
            for row, value, lack in zip(rows, values, lacks, strict=True):
                if not lack:
                    row.append(head + (b"null" if value is None else write(value)) + tail)
    return rows


def _stamp_columns(stamps: Stamps, options: Wal2jsonOptions) -> Iterator[Fragment]:
    """Yield fragments that, joined row by row, make n changes' stamps."""
    if options.include_xids or options.include_timestamp or options.include_origin:
        starts = transaction_starts(stamps)
        shared = joined(_transactions(stamps, starts, options))
        yield from each_row(starts, len(stamps), shared)
    if options.include_lsn:
        yield from (b',"lsn":"', *lsn_fragments(stamps.lsn), b'"')


def _transactions(stamps: Stamps, starts: Int64s, options: Wal2jsonOptions) -> Iterator[Fragment]:
    """Yield fragments that, joined row by row, make the members that a transaction's lines share."""
    if options.include_xids:
        yield from (b',"xid":', integer_text(stamps.xid[starts]))
    if options.include_timestamp:
        text = kernels.replace_pattern(timestamp_text(stamps.commit_ts[starts]), r"\.?0*Z$", "+00")
        yield from (b',"timestamp":"', kernels.replace_substring(text, b"T", b" "), b'"')
    if options.include_origin:
        numbers = kernels.binary([_number(origin) for origin in (None, *stamps.origins)])
        yield from (b',"origin":', kernels.take(numbers, stamps.origin_places[starts] + 1))


def _stamp_rows(stamps: Stamps, options: Wal2jsonOptions) -> Iterator[bytes]:
    """Yield the stamps of a few rows, one by one."""
    columns = (stamps.lsn, stamps.xid, stamps.commit_ts)
    known = (*stamps.origins, None)
    origins = [None] * len(stamps) if stamps.origin is None else [known[place] for place in stamps.origin]
    for lsn, xid, commit_ts, origin in zip(*(one.tolist() for one in columns), origins, strict=True):
        position = b',"lsn":"%b"' % one_lsn(lsn) if options.include_lsn else b""
        yield _transaction(xid, commit_ts, origin, options) + position


def one_stamp(stamp: Stamp, options: Wal2jsonOptions) -> bytes:
    """Write a single stamp; one outside of transactions has neither xid nor timestamp."""
    position = b',"lsn":"%b"' % one_lsn(stamp.lsn) if options.include_lsn else b""
    return one_transaction(stamp, options) + position


def one_transaction(stamp: Stamp, options: Wal2jsonOptions) -> bytes:
    """Write the members that all lines of a transaction share."""
    return _transaction(stamp.xid, stamp.commit_ts, stamp.origin, options)


@lru_cache(4096)
def _transaction(
    xid: int | None, commit_ts: int | None, origin: Origin | None, options: Wal2jsonOptions
) -> bytes:
    members = transaction_members(xid, commit_ts, origin, options)
    return b"".join(b',"%b":%b' % member for member in members.items())


def transaction_members(
    xid: int | None, commit_ts: int | None, origin: Origin | None, options: Wal2jsonOptions
) -> dict[bytes, bytes]:
    """Make a transaction's members, by name."""
    members = {}
    if options.include_xids:
        members[b"xid"] = b"%d" % xid if xid else b"null"
    if options.include_timestamp:
        members[b"timestamp"] = _moment(commit_ts)
    if options.include_origin:
        members[b"origin"] = b"null" if xid is None else _number(origin)
    return members


def _number(origin: Origin | None) -> bytes:
    """Write an origin's number: 0 for this server, null if the catalog has no such origin any more."""
    if origin is None:
        return b"0"
    return b"null" if origin.number is None else b"%d" % origin.number


def _moment(commit_ts: int | None) -> bytes:
    return b"null" if commit_ts is None else b'"%b"' % _as_server(one_timestamp(commit_ts))


def _as_server(timestamp: bytes) -> bytes:
    """Print `2026-01-02T03:04:05.678900Z` as the server does: `2026-01-02 03:04:05.6789+00`."""
    return timestamp.replace(b"T", b" ").rstrip(b"0Z").rstrip(b".") + b"+00"
