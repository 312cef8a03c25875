"""Rows of a batch to lines: as columns, or, for a few rows, one by one with the same bytes."""

from collections.abc import Iterator

import numpy as np

from pgcdc_cli.changes.slice import ChangeBatch, FullImage, KeyImage, texts_of
from pgcdc_cli.changes.table import TableSchema
from pgcdc_cli.formats.json_object import Member, joined, separated
from pgcdc_cli.formats.lines import Lines, are_few
from pgcdc_cli.formats.wal2json.options import Wal2jsonOptions
from pgcdc_cli.formats.wal2json.stamps import stamp_columns, stamp_rows
from pgcdc_cli.formats.wal2json.tables import ColumnParts, parts_of
from pgcdc_cli.formats.wal2json.values import value_of, writer_of
from pgcdc_cli.types.kernels import Booleans, Fragment

Image = FullImage | KeyImage


def row_lines(batch: ChangeBatch, options: Wal2jsonOptions) -> Lines:
    """Write a batch's lines; a PROTOCOL error where a value is no valid UTF-8."""
    if are_few(batch):
        try:
            return list(_few(batch, options))
        except UnicodeDecodeError:
            # The columns say so.
            pass
    return joined(_columns(batch, options))


def _columns(batch: ChangeBatch, options: Wal2jsonOptions) -> Iterator[Fragment]:
    """Yield what, joined row by row, are a batch's lines."""
    parts = parts_of(batch.table, options)
    yield b'{"action":"%b"' % batch.operation.encode()
    yield from stamp_columns(batch.stamps, options)
    yield parts.name
    for label, image, columns in _images(batch, parts.columns):
        yield b',"%b":[' % label
        yield from separated(_members(image, columns))
        yield b"]"
    yield parts.pk + b"}\n"


def _images(
    batch: ChangeBatch, columns: tuple[ColumnParts, ...]
) -> Iterator[tuple[bytes, Image, tuple[ColumnParts, ...]]]:
    """Yield the new row's image and the identity's, each with what stands around its values."""
    if batch.new is not None:
        yield b"columns", batch.new, columns
    identity = identity_of(batch)
    if identity is not None:
        yield b"identity", identity, tuple(column._replace(tail=b"}") for column in columns)


def identity_of(batch: ChangeBatch) -> Image | None:
    """Take the old row's; an update without one left the identity as it is in the new row."""
    if batch.old is not None or batch.new is None or batch.operation != "U":
        return batch.old
    return _identity_in(batch.table, batch.new, len(batch))


def _identity_in(table: TableSchema, new: FullImage, count: int) -> FullImage:
    """Mark what isn't in the identity of `count` rows as absent."""
    absent = np.ones(count, np.bool_)
    masks = zip(table.columns, new.unchanged, strict=True)
    unchanged = tuple(mask if column.replica_identity else absent for column, mask in masks)
    return FullImage(new.columns, unchanged)


def _absent(image: Image, index: int) -> Booleans | None:
    return image.unchanged[index] if isinstance(image, FullImage) else None


def _members(image: Image, columns: tuple[ColumnParts, ...]) -> Iterator[Member]:
    for index, column in enumerate(columns):
        values, absent = image.columns[index], _absent(image, index)
        if values is not None and (absent is None or not absent.all()):
            yield Member(column.head, value_of(column.kind, values), absent, column.tail)


def _few(batch: ChangeBatch, options: Wal2jsonOptions) -> Iterator[bytes]:
    parts = parts_of(batch.table, options)
    begin, end = b'{"action":"%b"' % batch.operation.encode(), parts.pk + b"}\n"
    labels, images = [], []
    for label, image, columns in _images(batch, parts.columns):
        labels.append(b',"%b":[' % label)
        images.append(_rows(image, columns, len(batch)))
    for stamp, *rows in zip(stamp_rows(batch.stamps, options), *images, strict=True):
        arrays = [label + b",".join(row) + b"]" for label, row in zip(labels, rows, strict=True)]
        yield begin + stamp + parts.name + b"".join(arrays) + end


def _rows(image: Image, columns: tuple[ColumnParts, ...], count: int) -> list[list[bytes]]:
    """Give each row's members."""
    rows: list[list[bytes]] = [[] for _ in range(count)]
    for index, (head, tail, kind) in enumerate(columns):
        values, absent = texts_of(image.columns, index), _absent(image, index)
        if values is not None:
            write, lacks = writer_of(kind), [False] * count if absent is None else absent.tolist()
            for row, value, lack in zip(rows, values, lacks, strict=True):
                if not lack:
                    row.append(head + (b"null" if value is None else write(value)) + tail)
    return rows
