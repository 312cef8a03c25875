"""JSON lines of a few rows, written one by one: the bytes that `jsonl.py` makes of columns.

All that rows of a table and shape share is in a template that is made once; a row is filled in with its stamp
and its values. What is not usual (changes from another server, text that isn't UTF-8, a boolean that is none)
is left to the columns.
"""

from collections.abc import Callable, Iterator, Sequence
from functools import lru_cache
from operator import itemgetter
from typing import NamedTuple

from pgcdc_cli.changes.slice import ChangeBatch, FullImage, KeyImage, Operation, texts_of
from pgcdc_cli.changes.table import TableSchema
from pgcdc_cli.formats.json_object import UnusualError, is_json_null, json_writer, named_list, quote
from pgcdc_cli.formats.lines import are_few
from pgcdc_cli.formats.stamps import stamp_rows
from pgcdc_cli.types.to_arrow import JsonKind, json_kind

Tokens = Sequence[bytes | None]
"""Values as they stand in JSON; None where there is none in the line."""


def few_lines(batch: ChangeBatch, numeric: JsonKind, gid: str | None) -> list[bytes] | None:
    """Write a batch's lines; None for what is left to the columns.

    `numeric` is the kind that numeric columns get, `gid` the name under which the transaction was prepared.
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
    nulls = _json_nulls(batch)
    for number, (stamp, *row) in enumerate(zip(stamp_rows(batch.stamps, gid), *old, *new, strict=True)):
        present = tuple([token is not None for token in row])
        names = tuple([name for name, values in nulls if values[number]])
        shape = _Shape(batch.operation, batch.old is not None, batch.new is not None, present, names)
        template = _template(batch.table, shape)
        yield template.form % template.choose((stamp, *row))


def _tokens(batch: ChangeBatch, image: FullImage | KeyImage | None, numeric: JsonKind) -> list[Tokens]:
    """Give the tokens of each column, of all columns; none at all without an image."""
    if image is None:
        return []
    found: list[Tokens] = []
    for index, write in enumerate(_writers(batch.table, numeric)):
        values = texts_of(image.columns, index)
        if values is None:
            found.append([None] * len(batch))
            continue
        tokens = [b"null" if value is None else write(value) for value in values]
        mask = image.unchanged[index] if isinstance(image, FullImage) else None
        if mask is None:
            found.append(tokens)
        else:
            found.append([None if lacks else one for lacks, one in zip(mask.tolist(), tokens, strict=True)])
    return found


@lru_cache(4096)
def _writers(table: TableSchema, numeric: JsonKind) -> tuple[Callable[[bytes], bytes], ...]:
    kinds = [json_kind(column.type) for column in table.columns]
    return tuple(json_writer(numeric if kind == "numeric" else kind) for kind in kinds)


def _json_nulls(batch: ChangeBatch) -> list[tuple[str, list[bool]]]:
    """Say of each column of JSON, as "new.doc", which rows have JSON's own null there."""
    found = []
    for label, image in (("old", batch.old), ("new", batch.new)):
        if image is not None:
            found += [(f"{label}.{name}", nulls) for name, nulls in _nulls_of(batch.table, image)]
    return found


def _nulls_of(table: TableSchema, image: FullImage | KeyImage) -> Iterator[tuple[str, list[bool]]]:
    for index in _json_columns(table):
        values = texts_of(image.columns, index)
        if values is not None:
            yield table.columns[index].name, [value is not None and is_json_null(value) for value in values]


@lru_cache(4096)
def _json_columns(table: TableSchema) -> tuple[int, ...]:
    return tuple(index for index, column in enumerate(table.columns) if json_kind(column.type) == "json")


class _Shape(NamedTuple):
    """What lines of one template share: `present` by column, those of the old image first."""

    operation: Operation
    has_old: bool
    has_new: bool
    present: tuple[bool, ...]
    json_null: tuple[str, ...]


class _Template(NamedTuple):
    """A line, in the form that `%` takes, and what chooses its values from a row: the stamp, old, new."""

    form: bytes
    choose: Callable[[tuple[bytes | None, ...]], tuple[bytes, ...]]


_Members = dict[str, tuple[bytes, int]]
"""By column: the member in the form that `%` takes, and where its value stands in the row."""


@lru_cache(4096)
def _template(table: TableSchema, shape: _Shape) -> _Template:
    columns = len(table.columns)
    old = _members(table, shape.present[:columns], 1) if shape.has_old else None
    new = _members(table, shape.present[-columns:], 1 + columns * shape.has_old) if shape.has_new else None
    names = b',"schema":%b,"table":%b' % (quote(table.schema), quote(table.name))
    form, chosen = [b'{"op":%b,%%b' % quote(shape.operation), _literal(names)], [0]
    for label, members in ((b"key", _key(table, old, new)), (b"old", old), (b"new", new)):
        if members is not None:
            form.append(b',"%b":{%b}' % (label, b",".join([text for text, _ in members.values()])))
            chosen += [position for _, position in members.values()]
    unchanged = [] if new is None else [one.name for one in table.columns if one.name not in new]
    form += [_literal(named_list("unchanged", unchanged)), _literal(named_list("json_null", shape.json_null))]
    return _Template(b"".join([*form, b"}\n"]), itemgetter(*chosen))


def _members(table: TableSchema, present: Sequence[bool], start: int) -> _Members:
    columns = zip(table.columns, present, strict=True)
    names = [(column.name, number) for number, (column, there) in enumerate(columns, start) if there]
    return {name: (_literal(quote(name)) + b":%b", number) for name, number in names}


def _key(table: TableSchema, old: _Members | None, new: _Members | None) -> _Members | None:
    """Give the new row's key, or the deleted one's; what was not sent again stands in the old image."""
    if table.key is None:
        return None
    members = {**(old or {}), **(new or {})}
    return {name: members[name] for name in table.key if name in members}


def _literal(text: bytes) -> bytes:
    return text.replace(b"%", b"%%")
