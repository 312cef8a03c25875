"""JSON lines: one object per line for each change, truncate and logical message; B and C lines on request.

Keys, in this order: op, lsn, commit_lsn, seq, xid, ts, gid, origin, origin_lsn, schema, table, key, old, new,
unchanged, json_null. Those that don't apply are left out. `gid` is in changes of a prepared transaction,
`origin` in changes that were replicated from another server. A column that the server didn't send (unchanged
TOAST) is not in `new`; `unchanged` names it. `json_null` names the columns, as "new.doc" or "old.doc", whose
null is JSON null, not SQL NULL. `xid` is null outside of transactions. For the form of each type see
`types/to_arrow.py`.

Rows are written as columns. That takes as long as writing about a hundred rows one by one, even for a single
row, so few rows are written one by one (`few_lines`), with the same result: a template, made once, holds what
all rows of one table and shape share; each row adds its stamp and values. Rare cases (changes with an origin,
text that isn't UTF-8, a boolean other than t and f) are left to the columns.
"""

import base64
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache, partial
from itertools import groupby
from operator import itemgetter
from typing import Any, ClassVar, Literal, NamedTuple

import numpy as np
import pyarrow as pa

from pgcdc_cli.changes.slice import (
    ChangeBatch,
    FullImage,
    Image,
    MessageChange,
    Operation,
    Slice,
    Stamps,
    TransactionBoundary,
    TruncateChange,
    texts_of,
)
from pgcdc_cli.changes.table import MANY_TABLES, TableSchema
from pgcdc_cli.formats.encoded_rows import (
    LINES,
    SUFFIXES,
    EncodedLines,
    are_few,
    compress,
    encoded_lines,
    piece_of,
    piece_of_empty,
    tables_of,
)
from pgcdc_cli.formats.interface import (
    Capabilities,
    Compression,
    Data,
    EncodedSlice,
    Layout,
    Numeric,
    TableLists,
)
from pgcdc_cli.formats.json_text import (
    JsonValue,
    Member,
    UnusualError,
    is_json_null,
    joined,
    json_null,
    json_value,
    json_writer,
    named_list,
    named_lists,
    objects_of,
    one_lsn,
    one_stamp,
    one_string,
    one_transaction,
    quote,
    stamp_columns,
    stamp_rows,
)
from pgcdc_cli.types import kernels
from pgcdc_cli.types.kernels import Booleans, Fragment
from pgcdc_cli.types.pg_type import JsonKind, json_kind


@dataclass(frozen=True, slots=True)
class JsonlFormat:
    """The default format. With `layout` "table" each table is a target, with "stream" all go into one file.

    `transactions` adds a line for each begin and commit; it needs the stream layout.
    """

    name: ClassVar[str] = "jsonl"
    tail: ClassVar[None] = None
    capabilities: ClassVar[Capabilities] = Capabilities(
        ("table", "stream"), ("none", "gzip", "zstd"), numeric=True, transactions=True
    )
    decodes: ClassVar[Literal[True]] = True
    restartable: ClassVar[None] = None
    table_lists: ClassVar[TableLists] = {}

    layout: Layout = "table"
    compression: Compression = "none"
    numeric: Numeric = "string"
    transactions: bool = False

    @property
    def suffix(self) -> str:
        return ".jsonl" + SUFFIXES[self.compression]

    @property
    def wants_boundaries(self) -> bool:
        return self.transactions

    def encode(self, slice_: Slice) -> EncodedSlice:
        """Encode the rows of a slice. Raises PgcdcError (PROTOCOL) for invalid UTF-8."""
        pieces = [piece_of(lines) for lines in LINES.in_order(list(self._lines(slice_)))]
        if self.layout == "table":
            pieces += [piece_of_empty(one, one.table) for one in slice_.empty_tables]
        return EncodedSlice(tuple(pieces), slice_.edge, tables_of(slice_))

    def frame(self, data: Sequence[Data]) -> bytes | memoryview | pa.Buffer:
        """Join lines; with a compression, compress them into one frame."""
        return compress(data, self.compression)

    def _lines(self, slice_: Slice) -> Iterator[EncodedLines]:
        gid = slice_.gid
        for batch in slice_.changes:
            if len(batch):
                yield self._changes(batch, gid)
        for event in slice_.truncates:
            yield encoded_lines(self.layout, event.table, Stamps.of([event.stamp]), [_truncate(event, gid)])
        if slice_.messages:
            stamps = Stamps.of([event.stamp for event in slice_.messages])
            lines = [_message(event, gid) for event in slice_.messages]
            yield encoded_lines(self.layout, None, stamps, lines)
        for boundaries in slice_.boundaries if self.transactions else ():
            yield encoded_lines(self.layout, None, boundaries.stamps, list(map(_boundary, boundaries)))

    def _changes(self, batch: ChangeBatch, gid: str | None) -> EncodedLines:
        few = few_lines(batch, self.numeric, gid)
        lines = joined(_columns(batch, self.numeric, gid)) if few is None else few
        return encoded_lines(self.layout, batch.table, batch.stamps, lines, unchanged=batch.lacks_any)


_BOOLEANS = {False: b"false", True: b"true"}


def _truncate(event: TruncateChange, gid: str | None) -> bytes:
    return b'{"op":"T",%b%b,"cascade":%b,"restart_identity":%b}\n' % (
        one_stamp(event.stamp, gid),
        _named(event.table),
        _BOOLEANS[event.cascade],
        _BOOLEANS[event.restart_identity],
    )


def _message(event: MessageChange, gid: str | None) -> bytes:
    return b'{"op":"M",%b,"transactional":%b,"prefix":%b,%b}\n' % (
        one_stamp(event.stamp, gid),
        _BOOLEANS[event.transactional],
        quote(event.prefix),
        _content(event.content),
    )


def _content(content: bytes) -> bytes:
    try:
        return b'"content":' + one_string(content)
    except UnicodeDecodeError:
        return b'"content_base64":"%b"' % base64.b64encode(content)


def _boundary(event: TransactionBoundary) -> bytes:
    stamp = event.stamp
    end = b"" if event.kind == "B" else b',"end_lsn":"%b"' % one_lsn(stamp.lsn)
    commit_lsn, transaction = one_lsn(stamp.commit_lsn), one_transaction(stamp, event.gid)
    return b'{"op":"%b","commit_lsn":"%b"%b%b}\n' % (event.kind.encode(), commit_lsn, end, transaction)


def _named(table: TableSchema) -> bytes:
    return b',"schema":%b,"table":%b' % (quote(table.schema), quote(table.name))


def _columns(batch: ChangeBatch, numeric: JsonKind, gid: str | None) -> Iterator[Fragment]:
    """Yield fragments that, joined row by row, make a batch's lines.

    `numeric` is the JSON kind of numeric columns, `gid` that of the prepared transaction.
    """
    table = batch.table
    old = _members(table, batch.old, numeric)
    new = _members(table, batch.new, numeric)
    yield b'{"op":%b,' % quote(batch.operation)
    yield from stamp_columns(batch.stamps, gid)
    yield _named(table)
    if table.key is not None:
        yield b',"key":'
        yield from objects_of(_key(table.key, old, new))
    for label, members in ((b',"old":', old), (b',"new":', new)):
        if members is not None:
            yield label
            yield from objects_of(members.values())
    yield named_lists("unchanged", _unchanged(table, batch.new))
    yield named_lists("json_null", [*_nulls("old", table, batch.old), *_nulls("new", table, batch.new)])
    yield b"}\n"


def _members(table: TableSchema, image: Image | None, numeric: JsonKind) -> dict[str, Member] | None:
    if image is None:
        return None
    members = {}
    for index, (column, values) in enumerate(zip(table.columns, image.columns, strict=True)):
        if values is not None:
            kind = json_kind(column.type)
            value = json_value(numeric if kind == "numeric" else kind, values)
            members[column.name] = Member.of(column.name, value, image.unchanged_in(index))
    return members


def _key(
    names: tuple[str, ...], old: dict[str, Member] | None, new: dict[str, Member] | None
) -> Iterator[Member]:
    """Yield the key of the new row, or of the deleted one.

    If the server didn't send a key's value again (unchanged TOAST), it is in the old image.
    """
    for name in names:
        member = (new or old or {})[name]
        before = old.get(name) if old is not None else None
        if member.absent is None or before is None:
            yield member
        else:
            yield Member.of(name, _choose(member.absent, before.value, member.value), None)


def _choose(mask: Booleans, one: JsonValue, other: JsonValue) -> JsonValue:
    text = kernels.coalesce(kernels.null_where(other.text, mask), kernels.null_where(one.text, ~mask))
    if isinstance(one.bare, bool) and one.bare is other.bare:
        return JsonValue(text, one.bare)
    return JsonValue(text, np.where(mask, one.bare, other.bare))


def _unchanged(table: TableSchema, image: FullImage | None) -> list[tuple[str, Booleans]]:
    if image is None:
        return []
    masks = zip(table.columns, image.unchanged, strict=True)
    return [(column.name, mask) for column, mask in masks if mask is not None]


def _nulls(label: str, table: TableSchema, image: Image | None) -> Iterator[tuple[str, Booleans]]:
    if image is None:
        return
    for column, values in zip(table.columns, image.columns, strict=True):
        if values is not None and json_kind(column.type) == "json":
            mask = json_null(values)
            if mask is not None:
                yield f"{label}.{column.name}", mask


Tokens = Sequence[bytes | None]
"""A column's values as JSON tokens; None for a value that its line doesn't contain."""


def few_lines(batch: ChangeBatch, numeric: JsonKind, gid: str | None) -> list[bytes] | None:
    """Write a batch's lines one by one; None if it is left to the columns.

    `numeric` is the JSON kind of numeric columns, `gid` that of the prepared transaction.
    """
    if not are_few(batch) or batch.stamps.origin is not None:
        return None
    try:
        return list(_lines(batch, numeric, gid))
    except (UnusualError, UnicodeDecodeError):
        return None


def _lines(batch: ChangeBatch, numeric: JsonKind, gid: str | None) -> Iterator[bytes]:
    if isinstance(batch.old, FullImage) and batch.old.lacks_any:
        raise UnusualError
    old, new = (_tokens(batch, image, numeric) for image in (batch.old, batch.new))
    shapes, stamps = _shapes(batch, [*old, *new]), stamp_rows(batch.stamps, gid)
    rows = zip(shapes, stamps, *old, *new, strict=True)
    for shape, alike in groupby(rows, itemgetter(0)):
        form, choose = _template(batch.table, shape)
        yield from [form % choose(row) for row in alike]


def _shapes(batch: ChangeBatch, tokens: Sequence[Tokens]) -> "Iterable[_LineShape]":
    """Determine each row's shape; in most batches it is the same for all."""
    nulls = _json_nulls(batch)
    shape = partial(_LineShape, batch.operation, batch.old is not None, batch.new is not None)
    if not nulls and not batch.lacks_any:
        return [shape(tuple([column[0] is not None for column in tokens]), ())] * len(batch)
    names = [tuple([name for name, values in nulls if values[row]]) for row in range(len(batch))]
    present = zip(*([one is not None for one in column] for column in tokens), strict=True)
    return map(shape, present, names)


def _tokens(batch: ChangeBatch, image: Image | None, numeric: JsonKind) -> list[Tokens]:
    """Write all columns of an image as tokens; an empty list without an image."""
    if image is None:
        return []
    found: list[Tokens] = []
    for index, write in enumerate(_writers(batch.table, numeric)):
        values = texts_of(image.columns, index)
        if values is None:
            found.append([None] * len(batch))
            continue
        tokens = [b"null" if value is None else write(value) for value in values]
        mask = image.unchanged_in(index)
        if mask is None:
            found.append(tokens)
        else:
            found.append([None if lacks else one for lacks, one in zip(mask.tolist(), tokens, strict=True)])
    return found


@lru_cache(MANY_TABLES)
def _writers(table: TableSchema, numeric: JsonKind) -> tuple[Callable[[bytes], bytes], ...]:
    kinds = [json_kind(column.type) for column in table.columns]
    return tuple(json_writer(numeric if kind == "numeric" else kind) for kind in kinds)


def _json_nulls(batch: ChangeBatch) -> list[tuple[str, list[bool]]]:
    """List the json columns, as "new.doc", that have a JSON null, with a flag per row."""
    found = []
    for label, image in (("old", batch.old), ("new", batch.new)):
        if image is not None:
            found += [(f"{label}.{name}", nulls) for name, nulls in _nulls_of(batch.table, image)]
    return found


def _nulls_of(table: TableSchema, image: Image) -> Iterator[tuple[str, list[bool]]]:
    for index in _json_columns(table):
        values = texts_of(image.columns, index)
        if values is not None:
            nulls = [value is not None and is_json_null(value) for value in values]
            if any(nulls):
                yield table.columns[index].name, nulls


@lru_cache(MANY_TABLES)
def _json_columns(table: TableSchema) -> tuple[int, ...]:
    return tuple(index for index, column in enumerate(table.columns) if json_kind(column.type) == "json")


class _LineShape(NamedTuple):
    """What the lines of one template share; `present` has a flag per column, the old image's first."""

    operation: Operation
    has_old: bool
    has_new: bool
    present: tuple[bool, ...]
    json_null: tuple[str, ...]


class _LineTemplate(NamedTuple):
    """A line as a format for `%`, and a function that picks its values from a row: shape, stamp, old, new."""

    form: bytes
    choose: Callable[[tuple[Any, ...]], tuple[bytes, ...]]


_Members = dict[str, tuple[bytes, int]]
"""By column: the member as a format for `%`, and the place of its value in the row."""


@lru_cache(MANY_TABLES)
def _template(table: TableSchema, shape: _LineShape) -> _LineTemplate:
    columns = len(table.columns)
    old = _members_of_template(table, shape.present[:columns], 2) if shape.has_old else None
    new = (
        _members_of_template(table, shape.present[-columns:], 2 + columns * shape.has_old)
        if shape.has_new
        else None
    )
    form, chosen = [b'{"op":%b,%%b' % quote(shape.operation), _literal(_named(table))], [1]
    for label, members in ((b"key", _key_of_template(table, old, new)), (b"old", old), (b"new", new)):
        if members is not None:
            form.append(b',"%b":{%b}' % (label, b",".join([text for text, _ in members.values()])))
            chosen += [position for _, position in members.values()]
    unchanged = [] if new is None else [one.name for one in table.columns if one.name not in new]
    form += [_literal(named_list("unchanged", unchanged)), _literal(named_list("json_null", shape.json_null))]
    return _LineTemplate(b"".join([*form, b"}\n"]), itemgetter(*chosen))


def _members_of_template(table: TableSchema, present: Sequence[bool], start: int) -> _Members:
    columns = zip(table.columns, present, strict=True)
    names = [(column.name, number) for number, (column, there) in enumerate(columns, start) if there]
    return {name: (_literal(quote(name)) + b":%b", number) for name, number in names}


def _key_of_template(table: TableSchema, old: _Members | None, new: _Members | None) -> _Members | None:
    """Make the key of the new row, or of the deleted one; a value not sent again is in the old row."""
    if table.key is None:
        return None
    members = {**(old or {}), **(new or {})}
    return {name: members[name] for name in table.key if name in members}


def _literal(text: bytes) -> bytes:
    return text.replace(b"%", b"%%")
