"""Values that aren't valid text: find the first one, or replace them."""

import logging
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any, TypeVar

import pyarrow as pa

from pgcdc_cli.changes.slice import ChangeBatch, FewColumns, FullImage, Image, KeyImage, Slice, texts_of
from pgcdc_cli.changes.table import TableColumn, TableSchema
from pgcdc_cli.errors import ErrorKind, PgcdcError
from pgcdc_cli.formats.interface import EncodedSlice, Piece
from pgcdc_cli.lsn import Lsn
from pgcdc_cli.types import kernels
from pgcdc_cli.types.database_text import DatabaseText, backslashes

log = logging.getLogger("pgcdc")

ImageT = TypeVar("ImageT", FullImage, KeyImage, Image)
_LONGEST_VALUE = 60
_FIX_OR_CHOOSE = "fix it in the source before it is read, or continue with --invalid-text replace or escape"


class TextMender:
    """Converts the text of slices to UTF-8; with `invalid_text` "stop" slices are passed on unchanged.

    Warns about each table once, and counts invalid values for the manifest.
    """

    def __init__(self, text: DatabaseText, warned: set[str]) -> None:
        self.text = text
        self._warned = warned
        self._counts: Counter[TableSchema] = Counter()

    def mend(self, slice_: Slice) -> Slice:
        """Return a slice whose values are UTF-8."""
        self._counts.clear()
        if self.text.passes:
            return slice_
        return replace(slice_, changes=tuple(map(self._batch, slice_.changes)))

    def counted(self, encoded: EncodedSlice) -> EncodedSlice:
        """Add to each piece of the slice mended last how many of its values weren't valid text."""
        if not self._counts:
            return encoded
        left = Counter(self._counts)
        return replace(encoded, pieces=tuple(_counted(piece, left) for piece in encoded.pieces))

    def _batch(self, batch: ChangeBatch) -> ChangeBatch:
        new = None if batch.new is None else self._image(batch.table, batch.new)
        old = None if batch.old is None else self._image(batch.table, batch.old)
        if new is batch.new and old is batch.old:
            return batch
        return replace(batch, new=new, old=old)

    def _image(self, table: TableSchema, image: ImageT) -> ImageT:
        columns = image.columns
        few = isinstance(columns, FewColumns)
        given = columns.texts if isinstance(columns, FewColumns) else columns
        mended: list[Any] = [
            None if values is None else self._values(table, column, values)
            for column, values in zip(table.columns, given, strict=True)
        ]
        if all(new is old for new, old in zip(mended, given, strict=True)):
            return image
        return replace(image, columns=FewColumns(mended) if few else tuple(mended))

    def _values(
        self, table: TableSchema, column: TableColumn, values: pa.BinaryArray | list[bytes | None]
    ) -> pa.BinaryArray | list[bytes | None]:
        mended: pa.BinaryArray | list[bytes | None]
        if isinstance(values, list):
            if all(value is None or value.isascii() for value in values):
                return values
            mended, invalid = self.text.values(values, backslashes(column.type))
        else:
            mended, invalid = self._array(values, backslashes(column.type))
        if invalid:
            self._counts[table] += invalid
            self._warn(table, column)
        return mended

    def _array(self, values: pa.BinaryArray, backslashes: int) -> tuple[pa.BinaryArray, int]:
        """Convert an array to UTF-8, and count the values that weren't valid text."""
        data = kernels.all_bytes(values)
        is_utf8 = self.text.codec == "utf-8"
        if not len(data) or data.max() < 0x80 or (is_utf8 and _first_invalid(values) is None):
            return values, 0
        mended, invalid = self.text.values(values.to_pylist(), backslashes)
        return kernels.binary(mended), invalid

    def _warn(self, table: TableSchema, column: TableColumn) -> None:
        if table.display not in self._warned:
            self._warned.add(table.display)
            log.warning(
                'column "%s" of table "%s" has invalid text: --invalid-text %s applies',
                column.name,
                table.display,
                self.text.invalid,
            )


def _counted(piece: Piece, left: Counter[TableSchema]) -> Piece:
    """Move the counts of a piece's table, or of all tables if it has several, into the piece."""
    tables = [table for table in left if piece.table in (None, table)]
    if not piece.rows or not tables:
        return piece
    return replace(piece, invalid_text=sum(left.pop(table) for table in tables))


def invalid_value(slice_: Slice) -> PgcdcError | None:
    """Make an error for the first value that isn't valid UTF-8: table, column, key and LSN; None without."""
    found = (_invalid(batch) for batch in slice_.changes)
    named = [one for one in found if one is not None]
    if not named:
        return None
    _, table, where, lsn = min(named, key=lambda one: one[0])
    message = f'could not decode {where} of table "{table}": it is not valid UTF-8 (LSN {lsn})'
    return PgcdcError(ErrorKind.PROTOCOL, message, hint=_FIX_OR_CHOOSE)


def _invalid(batch: ChangeBatch) -> tuple[int, str, str, Lsn] | None:
    """Find a batch's first invalid value: its index in the stream, table, column and key, LSN."""
    places = [
        (row, number)
        for image in (batch.new, batch.old)
        if image is not None
        for number, values in enumerate(_arrays(image.columns))
        if values is not None and (row := _first_invalid(values)) is not None
    ]
    if not places:
        return None
    row, number = min(places)
    where = f'column "{batch.table.columns[number].name}"{_key(batch, row)}'
    return int(batch.stamps.index[row]), batch.table.display, where, Lsn(int(batch.stamps.lsn[row]))


def _first_invalid(values: pa.BinaryArray) -> int | None:
    """Return the row of the first value that isn't valid UTF-8."""
    try:
        values.cast(pa.string())
    except pa.ArrowInvalid:
        rows = (number for number, value in enumerate(values.to_pylist()) if not _is_valid(value))
        return next(rows)
    return None


def _is_valid(value: bytes | None) -> bool:
    try:
        (value or b"").decode()
    except UnicodeDecodeError:
        return False
    return True


def _arrays(columns: Sequence[pa.BinaryArray | None]) -> Iterator[pa.BinaryArray | None]:
    return (columns[number] for number in range(len(columns)))


def _key(batch: ChangeBatch, row: int) -> str:
    image = batch.new or batch.old
    names = batch.table.key
    if image is None or not names:
        return ""
    numbers = [number for number, column in enumerate(batch.table.columns) if column.name in names]
    pairs = [
        f"{batch.table.columns[number].name}={_shown(texts[row])}"
        for number in numbers
        if (texts := texts_of(image.columns, number)) is not None
    ]
    return f" in the row with {', '.join(pairs)}"


def _shown(value: bytes | None) -> str:
    text = "NULL" if value is None else value.decode(errors="backslashreplace")
    return text if len(text) <= _LONGEST_VALUE else f"{text[:_LONGEST_VALUE]}..."
