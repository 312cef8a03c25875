"""Version 1's objects, one a transaction: changes, and the commas between them.

An object may be as large as its transaction, so it is written as it comes: `Commas` knows whether a change is
the first of its transaction.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import NamedTuple

import numpy as np

from pgcdc_cli.changes.slice import ChangeBatch, FullImage, KeyImage, Slice
from pgcdc_cli.changes.table import ColumnFacts, TableColumn, TableFacts, TableSchema
from pgcdc_cli.formats.json_object import JsonValue, Member, joined, quote, separated
from pgcdc_cli.formats.wal2json.options import Wal2jsonOptions
from pgcdc_cli.formats.wal2json.row_lines import identity_of
from pgcdc_cli.formats.wal2json.tables import Kind, kind_of, name_of, type_name, value_of
from pgcdc_cli.types import kernels
from pgcdc_cli.types.kernels import ArrowArray, Booleans, Fragment, Int64s, as_mask

_KINDS = {"I": b"insert", "U": b"update", "D": b"delete"}
_BOOLEANS = {False: b"false", True: b"true", None: b"null"}


@dataclass(slots=True)
class Commas:
    """Which changes have others of their transaction before them; `_first` says it of the next one."""

    _first: bool = True

    def firsts(self, slice_: Slice) -> Int64s:
        """Give the places in the stream of changes that are the first of their transaction, ascending.

        The slice has what is written alone; it is the one behind that of the last call.
        """
        changes = [batch.stamps.index for batch in slice_.changes]
        changes.append(np.array([m.stamp.index for m in slice_.messages if m.transactional], np.int64))
        begins = [some.stamps.index[some.kinds == "B"] for some in slice_.boundaries]
        index = np.sort(np.concatenate(changes))
        begin = np.sort(np.concatenate([np.empty(0, np.int64), *begins]))
        # One begin that is before all others stands for what was open before.
        opened = np.concatenate([[-1], begin]) if self._first else begin
        self._first = bool(len(opened)) and (not len(index) or int(opened[-1]) > int(index[-1]))
        found = np.searchsorted(index, opened)
        return np.unique(index[found[found < len(index)]])


def comma_before(index: Int64s, firsts: Int64s) -> Fragment:
    """Write what stands before changes."""
    first = np.isin(index, firsts)
    if first.any():
        return kernels.take(kernels.binary([b",", b""]), first.astype(np.int64))
    return b","


def change_objects(batch: ChangeBatch, options: Wal2jsonOptions, firsts: Int64s) -> ArrowArray:
    """Write the objects of a batch's changes; a PROTOCOL error where a value is no valid UTF-8."""
    return joined(_objects(batch, options, firsts))


def _objects(batch: ChangeBatch, options: Wal2jsonOptions, firsts: Int64s) -> Iterator[Fragment]:
    columns = _columns(batch.table, batch.table.facts, options)
    yield comma_before(batch.stamps.index, firsts)
    yield b'{"kind":"%b"%b' % (_KINDS[batch.operation], name_of(batch.table, options))
    if batch.new is not None:
        yield from _arrays(batch.new, columns, b"column", batch)
    identity = identity_of(batch)
    if identity is not None:
        yield b',"oldkeys":{'
        yield from _arrays(identity, columns, b"key", batch)
        yield b"}"
    yield b"}" + line_end(options)


def line_end(options: Wal2jsonOptions) -> bytes:
    """Give what ends a part of an object: in chunks each has a line."""
    return b"\n" if options.write_in_chunks else b""


class _Column(NamedTuple):
    """What is said of a column, by the end of the array's name; `of_keys` is said of old keys, too."""

    said: dict[bytes, bytes]
    of_keys: frozenset[bytes]
    kind: Kind


@lru_cache(4096)
def _columns(table: TableSchema, facts: TableFacts | None, options: Wal2jsonOptions) -> tuple[_Column, ...]:
    known = {} if facts is None else facts.columns
    return tuple(_column(column, known.get(column.name, ColumnFacts()), options) for column in table.columns)


def _column(column: TableColumn, facts: ColumnFacts, options: Wal2jsonOptions) -> _Column:
    optional = None if facts.not_null is None else not facts.not_null
    said = {
        b"names": (True, quote(column.name)),
        b"types": (options.include_types, quote(type_name(column))),
        b"typeoids": (options.include_type_oids, b"%d" % column.type_oid),
        b"positions": (
            options.include_column_positions,
            b"null" if facts.position is None else b"%d" % facts.position,
        ),
        b"optionals": (options.include_not_null, _BOOLEANS[optional]),
        b"defaults": (options.include_default, b"null" if facts.default is None else quote(facts.default)),
    }
    kind = kind_of(column, numbers_as_strings=options.numeric_data_types_as_string)
    wanted = {name: text for name, (asked, text) in said.items() if asked}
    return _Column(wanted, frozenset({b"names", b"types", b"typeoids"}), kind)


def _arrays(
    image: FullImage | KeyImage, columns: Sequence[_Column], label: bytes, batch: ChangeBatch
) -> Iterator[Fragment]:
    """Yield what, joined row by row, are an image's arrays, which lack what isn't there."""
    some: list[tuple[_Column, JsonValue, Booleans | None]] = []
    for index, column in enumerate(columns):
        values, absent = image.columns[index], _absent(image, index, keys=label == b"key")
        if values is not None and (absent is None or not absent.all()):
            some.append((column, value_of(column.kind, values), absent))
    said = [name for name in columns[0].said if label != b"key" or name in columns[0].of_keys]
    comma = b"," if label != b"key" else b""
    for name in said:
        yield comma + b'"%b%b":[' % (label, name)
        yield _lists([(column.said[name], absent) for column, _, absent in some], len(batch))
        yield b"]"
        comma = b","
    yield b',"%bvalues":[' % label
    yield from separated(Member(b"", value, absent) for _, value, absent in some)
    yield b"]"


def _absent(image: FullImage | KeyImage, index: int, *, keys: bool) -> Booleans | None:
    """Mark what the server did not send, and in old keys what is null."""
    absent = image.unchanged[index] if isinstance(image, FullImage) else None
    values = image.columns[index]
    if not keys or values is None or not values.null_count:
        return absent
    null = as_mask(values.is_null())
    return null if absent is None else null | absent


def _lists(texts: Sequence[tuple[bytes, Booleans | None]], rows: int) -> Fragment:
    """Join texts with commas, for each row without those that are absent there."""
    if all(absent is None for _, absent in texts):
        return b",".join(text for text, _ in texts)
    present = [np.ones(rows, np.bool_) if absent is None else ~absent for _, absent in texts]
    patterns, choice = np.unique(np.stack(present, axis=1), axis=0, return_inverse=True)
    lists = [
        b",".join(text for (text, _), there in zip(texts, row, strict=True) if there) for row in patterns
    ]
    return kernels.take(kernels.binary(lists), choice.reshape(-1))
