"""Write wal2json's lines: one object per change (B, C, I, U, D, T, M) or, in version 1, one per transaction.

Version 1's object may be as large as its transaction, so it is written in pieces; `FirstChanges` finds the
changes that are the first of their transaction.

The reference is wal2json 2.5, in a session with the same role and time zone UTC. For the differences and
their reasons see `docs/coming-from-wal2json.md`.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import lru_cache
from typing import ClassVar, Literal, NamedTuple

import numpy as np
import pyarrow as pa

from pgcdc_cli.changes.slice import (
    ChangeBatch,
    Image,
    MessageChange,
    Slice,
    Stamp,
    Stamps,
    TransactionBoundary,
    TruncateChange,
)
from pgcdc_cli.changes.table import MANY_TABLES, ColumnFacts, TableColumn, TableFacts, TableSchema
from pgcdc_cli.formats.encoded_rows import (
    LINES,
    SUFFIXES,
    EncodedLines,
    Lines,
    compress,
    encoded_lines,
    piece_of,
    tables_of,
)
from pgcdc_cli.formats.interface import Capabilities, Compression, Data, EncodedSlice, Layout, TableLists
from pgcdc_cli.formats.json_text import JsonValue, Member, one_lsn, one_string, quote, separated
from pgcdc_cli.formats.wal2json.row_lines import (
    BOOLEANS,
    Kind,
    base_of,
    identity_of,
    joined_rows,
    kind_of,
    name_of,
    one_stamp,
    one_transaction,
    row_lines,
    transaction_members,
    type_name,
    value_of,
)
from pgcdc_cli.formats.wal2json.wal2json_options import Wal2jsonOptions
from pgcdc_cli.types import kernels
from pgcdc_cli.types.kernels import Booleans, Fragment, Int64s, as_mask

_KINDS = {"I": b"insert", "U": b"update", "D": b"delete"}


@dataclass(slots=True)
class FirstChanges:
    """Finds each transaction's first change; `_next_is_first`: the next slice's first change is one."""

    _next_is_first: bool = True

    def in_next(self, slice_: Slice) -> Int64s:
        """Return the indexes, ascending, of the changes that are the first of their transaction.

        The slice must hold only what is written, and follow the one of the previous call.
        """
        changes = [batch.stamps.index for batch in slice_.changes]
        changes.append(np.array([m.stamp.index for m in slice_.messages if m.transactional], np.int64))
        begins = [some.stamps.index[some.kinds == "B"] for some in slice_.boundaries]
        index = np.sort(np.concatenate(changes))
        begin = np.sort(np.concatenate([np.empty(0, np.int64), *begins]))
        # A begin before all others stands for a transaction that was open before this slice.
        opened = np.concatenate([[-1], begin]) if self._next_is_first else begin
        self._next_is_first = bool(len(opened)) and (not len(index) or int(opened[-1]) > int(index[-1]))
        found = np.searchsorted(index, opened)
        return np.unique(index[found[found < len(index)]])


def comma_before(index: Int64s, firsts: Int64s) -> Fragment:
    """Write the comma before each change, unless it is the first of its transaction."""
    first = np.isin(index, firsts)
    if first.any():
        return kernels.take(kernels.binary([b",", b""]), first.astype(np.int64))
    return b","


def change_objects(batch: ChangeBatch, options: Wal2jsonOptions, firsts: Int64s) -> Lines:
    """Write the objects of a batch's changes. Raises PgcdcError (PROTOCOL) for invalid UTF-8."""
    return joined_rows(_objects(batch, options, firsts), len(batch))


class Blanks(NamedTuple):
    """White space around tokens: none, or with pretty-print a tab per level, line feeds and blanks."""

    tab: bytes = b""
    line: bytes = b""
    space: bytes = b""

    @classmethod
    def of(cls, options: Wal2jsonOptions) -> "Blanks":
        return cls(b"\t", b"\n", b" ") if options.pretty_print else cls()

    def key(self, level: int, name: bytes) -> bytes:
        """Write a member's name, with the white space around it."""
        return self.tab * level + b'"' + name + b'":' + self.space

    def members(self, level: int, members: Mapping[bytes, bytes]) -> bytes:
        """Write an object's members; with pretty-print, each on its own line."""
        lines = (self.key(level, name) + value for name, value in members.items())
        return (b"," + self.line).join(lines)


def _objects(batch: ChangeBatch, options: Wal2jsonOptions, firsts: Int64s) -> Iterator[Fragment]:
    columns, blanks = _columns(batch.table, batch.table.facts, options), Blanks.of(options)
    members = {b"kind": b'"%b"' % _KINDS[batch.operation]}
    if options.include_schemas:
        members[b"schema"] = quote(batch.table.schema)
    members[b"table"] = quote(batch.table.name)
    yield line_before(options) + blanks.tab * 2
    yield comma_before(batch.stamps.index, firsts)
    yield b"{" + blanks.line + blanks.members(3, members)
    if batch.new is not None:
        yield b"," + blanks.line
        yield from _arrays(batch.new, columns, batch, options)
    key = [column for column in columns if column.in_primary_key] if options.include_pk else []
    if key:
        yield b"," + blanks.line + blanks.key(3, b"pk") + _primary_key(key, options)
    identity = identity_of(batch)
    if identity is not None:
        yield b"," + blanks.line + blanks.key(3, b"oldkeys") + b"{" + blanks.line
        yield from _arrays(identity, columns, batch, options, keys=True)
        yield blanks.line + blanks.tab * 3 + b"}"
    yield blanks.line + blanks.tab * 2 + b"}" + line_end(options)


def line_before(options: Wal2jsonOptions) -> bytes:
    """Text before a change, and before an object's end; none in chunks, which begin on a new line anyway."""
    return b"" if options.write_in_chunks else Blanks.of(options).line


def line_end(options: Wal2jsonOptions) -> bytes:
    """Text after a part of an object; in chunks, each part ends its line."""
    return b"\n" if options.write_in_chunks else b""


def _primary_key(columns: Sequence["_Column"], options: Wal2jsonOptions) -> bytes:
    blanks = Blanks.of(options)
    comma = b"," + blanks.space
    types = (column.elements[b"types"] for column in columns if options.include_types)
    members = {
        b"pknames": b"[" + comma.join(column.elements[b"names"] for column in columns) + b"]",
        b"pktypes": b"[" + comma.join(types) + b"]",
    }
    return b"{" + blanks.line + blanks.members(4, members) + blanks.line + blanks.tab * 3 + b"}"


class _Column(NamedTuple):
    """A column: `elements` has what each array that describes columns has for it, by the array's name.

    The names are without their beginning, `column` or `key`: `types` is `columntypes` or `keytypes`.
    """

    elements: dict[bytes, bytes]
    kind: Kind
    in_primary_key: bool


@lru_cache(MANY_TABLES)
def _columns(table: TableSchema, facts: TableFacts | None, options: Wal2jsonOptions) -> tuple[_Column, ...]:
    known = {} if facts is None else facts.columns
    return tuple(_column(column, known.get(column.name, ColumnFacts()), options) for column in table.columns)


def _column(column: TableColumn, facts: ColumnFacts, options: Wal2jsonOptions) -> _Column:
    optional = None if facts.not_null is None else not facts.not_null
    base = base_of(facts, options)
    # The plugin looks up a domain's base type only if it writes types; from then on that is the column's
    # type.
    type_oid = base.oid if base is not None and options.include_types else column.type_oid
    elements = {
        b"names": quote(column.name),
        b"types": quote(_type(column, facts, options)),
        b"typeoids": b"%d" % type_oid,
        b"positions": b"null" if facts.position is None else b"%d" % facts.position,
        b"optionals": BOOLEANS[optional],
        b"defaults": b"null" if facts.default is None else quote(facts.default),
    }
    kind = kind_of(type_oid, numbers_as_strings=options.numeric_data_types_as_string)
    return _Column(elements, kind, facts.in_primary_key)


def _array_names(options: Wal2jsonOptions, *, keys: bool) -> list[bytes]:
    """Name the arrays that the options ask for; old keys have fewer."""
    wanted = {
        b"names": True,
        b"types": options.include_types,
        b"typeoids": options.include_type_oids,
        b"positions": options.include_column_positions and not keys,
        b"optionals": options.include_not_null and not keys,
        b"defaults": options.include_default and not keys,
    }
    return [name for name, included in wanted.items() if included]


def _type(column: TableColumn, facts: ColumnFacts, options: Wal2jsonOptions) -> str:
    """Name a column's type; without type modifier by the catalog's name, if the column still exists."""
    base = base_of(facts, options)
    declared, plain = (column.declared, facts.type_name) if base is None else (base.declared, base.name)
    return (None if options.include_typmod else plain) or type_name(declared)


def _arrays(
    image: Image,
    columns: Sequence[_Column],
    batch: ChangeBatch,
    options: Wal2jsonOptions,
    *,
    keys: bool = False,
) -> Iterator[Fragment]:
    """Yield fragments that, joined row by row, make an image's arrays, without absent columns."""
    blanks, label, level = Blanks.of(options), b"key" if keys else b"column", 4 if keys else 3
    comma = b"," + blanks.space
    some: list[tuple[_Column, JsonValue, Booleans | None]] = []
    for index, column in enumerate(columns):
        values, absent = image.columns[index], _absent(image, index, keys=keys)
        if values is not None and (absent is None or not absent.all()):
            some.append((column, value_of(column.kind, values), absent))
    for name in _array_names(options, keys=keys):
        yield blanks.key(level, label + name) + b"["
        yield _lists([(column.elements[name], absent) for column, _, absent in some], len(batch), comma)
        yield b"]," + blanks.line
    yield blanks.key(level, label + b"values") + b"["
    yield from separated((Member(b"", value, absent) for _, value, absent in some), comma)
    yield b"]"


def _absent(image: Image, index: int, *, keys: bool) -> Booleans | None:
    """Mark values that the server did not send and, in old keys, nulls."""
    absent = image.unchanged_in(index)
    values = image.columns[index]
    if not keys or values is None or not values.null_count:
        return absent
    null = as_mask(values.is_null())
    return null if absent is None else null | absent


def _lists(texts: Sequence[tuple[bytes, Booleans | None]], rows: int, comma: bytes) -> Fragment:
    """Join texts with commas; each row leaves out those that are absent in it."""
    if all(absent is None for _, absent in texts):
        return comma.join(text for text, _ in texts)
    present = [np.ones(rows, np.bool_) if absent is None else ~absent for _, absent in texts]
    patterns, choice = np.unique(np.stack(present, axis=1), axis=0, return_inverse=True)
    lists = [
        comma.join(text for (text, _), there in zip(texts, row, strict=True) if there) for row in patterns
    ]
    return kernels.take(kernels.binary(lists), choice.reshape(-1))


@dataclass(frozen=True, slots=True)
class Wal2jsonFormat:
    """With `layout` "table" each table is a target; begins and commits need "stream"."""

    name: ClassVar[str] = "wal2json"
    tail: ClassVar[None] = None
    capabilities: ClassVar[Capabilities] = Capabilities(("table", "stream"), ("none", "gzip", "zstd"))
    decodes: ClassVar[Literal[True]] = True
    restartable: ClassVar[None] = None

    layout: Layout = "table"
    compression: Compression = "none"
    options: Wal2jsonOptions = field(default_factory=Wal2jsonOptions)
    _firsts: FirstChanges = field(default_factory=FirstChanges, init=False)

    @property
    def suffix(self) -> str:
        return ".jsonl" + SUFFIXES[self.compression]

    @property
    def table_lists(self) -> TableLists:
        return {} if self.options.add_tables is None else {"add-tables": self.options.adds_table}

    @property
    def wants_boundaries(self) -> bool:
        return self.options.has_boundaries

    def encode(self, slice_: Slice) -> EncodedSlice:
        """Encode the wanted rows of a slice. Raises PgcdcError (PROTOCOL) for invalid UTF-8."""
        wanted = _wanted(slice_, self.options)
        lines = self._lines if self.options.format_version == 2 else self._objects
        pieces = tuple(piece_of(some) for some in LINES.in_order(list(lines(wanted))))
        return EncodedSlice(pieces, wanted.edge, tables_of(wanted))

    def frame(self, data: Sequence[Data]) -> bytes | memoryview | pa.Buffer:
        """Join lines; with a compression, compress them into one frame."""
        return compress(data, self.compression)

    def _lines(self, slice_: Slice) -> Iterator[EncodedLines]:
        options = self.options
        for batch in slice_.changes:
            lines = row_lines(batch, options)
            yield encoded_lines(self.layout, batch.table, batch.stamps, lines, unchanged=batch.lacks_any)
        for event in slice_.truncates:
            stamps = Stamps.of([event.stamp])
            yield encoded_lines(self.layout, event.table, stamps, [_truncate(event, options)])
        if slice_.messages:
            stamps = Stamps.of([event.stamp for event in slice_.messages])
            lines = [_message(event, options) for event in slice_.messages]
            yield encoded_lines(self.layout, None, stamps, lines)
        for boundaries in slice_.boundaries if self.wants_boundaries else ():
            lines = [_boundary(event, options) for event in boundaries]
            yield encoded_lines(self.layout, None, boundaries.stamps, lines)

    def _objects(self, slice_: Slice) -> Iterator[EncodedLines]:
        """Write the parts of version 1's objects; they contain no truncates."""
        options, firsts = self.options, self._firsts.in_next(slice_)
        for batch in slice_.changes:
            objects = change_objects(batch, options, firsts)
            yield encoded_lines(self.layout, batch.table, batch.stamps, objects, unchanged=batch.lacks_any)
        for event in slice_.messages:
            stamps = Stamps.of([event.stamp])
            yield encoded_lines(self.layout, None, stamps, [_message_object(event, options, firsts)])
        for boundaries in slice_.boundaries:
            parts = [_object_edge(event, options) for event in boundaries]
            yield encoded_lines(self.layout, None, boundaries.stamps, parts)


def _wanted(slice_: Slice, options: Wal2jsonOptions) -> Slice:
    if options.filter_origins:
        slice_ = _without_origins(slice_, frozenset(options.filter_origins))
    changes = (one for one in slice_.changes if len(one) and one.operation in options.actions)
    truncates = slice_.truncates if "T" in options.actions else ()
    return replace(
        slice_,
        changes=tuple(one for one in changes if options.wants_table(one.table)),
        truncates=tuple(one for one in truncates if options.wants_table(one.table)),
        messages=tuple(one for one in slice_.messages if options.wants_message(one.prefix)),
    )


def _without_origins(slice_: Slice, numbers: frozenset[int]) -> Slice:
    """Leave out transactions with these origins, including their begins and commits."""

    def kept(stamps: Stamps) -> Booleans:
        # Place -1 is this server.
        ours = [origin.number not in numbers for origin in stamps.origins] + [True]
        return np.array(ours, np.bool_)[stamps.origin_places]

    def is_kept(stamp: Stamp) -> bool:
        return stamp.origin is None or stamp.origin.number not in numbers

    boundaries = (some.where(kept(some.stamps)) for some in slice_.boundaries)
    return replace(
        slice_,
        changes=tuple(batch.where(kept(batch.stamps)) for batch in slice_.changes),
        truncates=tuple(one for one in slice_.truncates if is_kept(one.stamp)),
        messages=tuple(one for one in slice_.messages if is_kept(one.stamp)),
        boundaries=tuple(some for some in boundaries if len(some)),
    )


def _truncate(event: TruncateChange, options: Wal2jsonOptions) -> bytes:
    return b'{"action":"T"%b%b}\n' % (one_stamp(event.stamp, options), name_of(event.table, options))


def _message(event: MessageChange, options: Wal2jsonOptions) -> bytes:
    return b'{"action":"M"%b,"transactional":%b,"prefix":%b,"content":%b}\n' % (
        one_stamp(event.stamp, options),
        b"true" if event.transactional else b"false",
        quote(event.prefix),
        _content(event.content),
    )


def _message_object(event: MessageChange, options: Wal2jsonOptions, firsts: Int64s) -> bytes:
    """Write a message as one of a transaction's changes, or as an object of its own outside a transaction."""
    blanks = Blanks.of(options)
    members = {
        b"kind": b'"message"',
        b"transactional": b"true" if event.transactional else b"false",
        b"prefix": quote(event.prefix),
        b"content": _content(event.content),
    }
    change = b"{" + blanks.line + blanks.members(3, members) + blanks.line + blanks.tab * 2 + b"}"
    if event.transactional:
        comma = b"" if event.stamp.index in firsts else b","
        return line_before(options) + blanks.tab * 2 + comma + change + line_end(options)
    begin = b"{" + blanks.line + blanks.key(1, b"change") + b"[" + blanks.line + blanks.tab * 2
    return begin + change + blanks.line + blanks.tab + b"]" + blanks.line + b"}\n"


def _object_edge(event: TransactionBoundary, options: Wal2jsonOptions) -> bytes:
    """Write the beginning or end of a transaction's object; only the end knows `nextlsn`."""
    blanks, stamp = Blanks.of(options), event.stamp
    if event.kind == "B":
        members = transaction_members(stamp.xid, stamp.commit_ts, stamp.origin, options)
        members[b"change"] = b"["
        return b"{" + blanks.line + blanks.members(1, members) + line_end(options)
    end = line_before(options) + blanks.tab + b"]"
    if options.include_lsn:
        end += b"," + blanks.line + blanks.key(1, b"nextlsn") + b'"%b"' % one_lsn(stamp.lsn)
    return end + blanks.line + b"}\n"


def _content(content: bytes) -> bytes:
    """Quote the text before a zero byte, as the plugin does; invalid UTF-8 is replaced."""
    return one_string(content.split(b"\0", 1)[0].decode(errors="replace").encode())


def _boundary(event: TransactionBoundary, options: Wal2jsonOptions) -> bytes:
    stamp, positions = event.stamp, b""
    if options.include_lsn:
        positions = b',"lsn":"%b"' % one_lsn(stamp.commit_lsn)
        # Only the commit knows where the transaction ends.
        positions += b"" if event.kind == "B" else b',"nextlsn":"%b"' % one_lsn(stamp.lsn)
    return b'{"action":"%b"%b%b}\n' % (event.kind.encode(), one_transaction(stamp, options), positions)
