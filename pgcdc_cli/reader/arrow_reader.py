"""Arrow streams: their rows as changes, and each column as PostgreSQL's text of its values."""

import io
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from decimal import Decimal
from functools import cached_property
from pathlib import Path
from typing import Any, NamedTuple, cast

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from pgcdc_cli.changes.slice import (
    ChangeBatch,
    FullImage,
    KeyImage,
    MessageChange,
    Operation,
    Slice,
    Stamp,
    Stamps,
    TruncateChange,
)
from pgcdc_cli.changes.table import ReplicaIdentity, TableColumn, TableSchema
from pgcdc_cli.formats.arrow import MESSAGE_SCHEMA, OWN_NAMES, STAMP_FIELDS
from pgcdc_cli.formats.jsonl import JsonlFormat
from pgcdc_cli.formats.lines import MESSAGES
from pgcdc_cli.reader.stored_file import Order, StoredFile, find_schema, undecodable
from pgcdc_cli.types import kernels
from pgcdc_cli.types.kernels import ArrowArray, Booleans, Int64s
from pgcdc_cli.types.pg_type import TYPES, PgType, builtin
from pgcdc_cli.types.to_arrow import arrow_type, json_kind

_ROWS = 1024
"""Rows that become changes at once."""

_JSONL = JsonlFormat()
_ROW_OPERATIONS: tuple[Operation, ...] = ("I", "U", "D", "R")
_NO_OLD, _KEY, _WHOLE = range(3)
_TEXT = 25
"""OID of text."""


class ArrowRow(NamedTuple):
    """One change, which is the row `number` of `rows`; `table` is `schema.table` or `_messages`."""

    order: Order
    table: str
    rows: "ArrowRows"
    number: int

    @property
    def line(self) -> str:
        """The change as a JSON line, without its line break."""
        return self.rows.lines[self.number]


def read_arrow(file: StoredFile, content: io.BufferedReader) -> Iterator[ArrowRow]:
    """Give every row; PROTOCOL error for a damaged stream, or one that isn't pgcdc's.

    The table is that of the directory's schema file, else what the stream itself says of it.
    """
    with _refusing_damage(file.path), pa.ipc.open_stream(content) as reader:
        table = _table(file.path, reader.schema)
        for batch in reader:
            for start in range(0, batch.num_rows, _ROWS):
                yield from ArrowRows(file.path, table, batch.slice(start, _ROWS))


@contextmanager
def _refusing_damage(path: str) -> Iterator[None]:
    try:
        yield
    except (pa.ArrowException, OSError, KeyError, ValueError) as error:
        raise undecodable(path, f"its Arrow stream is damaged or not pgcdc's: {error}") from error


def _table(path: str, arrow: pa.Schema) -> TableSchema | None:
    """Find the table; None for a file of logical messages."""
    if arrow.equals(MESSAGE_SCHEMA):
        return None
    fingerprint = (arrow.metadata or {})[b"schema_fingerprint"].decode()
    return find_schema(Path(path).absolute().parent.parent, fingerprint) or _inferred_schema(arrow)


class ArrowRows:
    """Rows of one table, or logical messages, whose `table` is None."""

    def __init__(self, path: str, table: TableSchema | None, batch: pa.RecordBatch) -> None:
        self.table = table
        self._path = path
        self._batch = batch

    def __iter__(self) -> Iterator[ArrowRow]:
        """Give them one by one, in the order of the file."""
        name = MESSAGES if self.table is None else self.table.display
        commit_lsn, seq = (_integers(self._batch.column(column)) for column in ("_commit_lsn", "_seq"))
        streamed = (_operations(self._batch) != "R").astype(np.int64)
        orders = zip(commit_lsn.tolist(), streamed.tolist(), seq.tolist(), strict=True)
        for number, order in enumerate(orders):
            yield ArrowRow(order, name, self, number)

    @cached_property
    def lines(self) -> list[str]:
        """All of them as JSON lines, without their line breaks."""
        every = np.arange(self._batch.num_rows)
        encoded = _JSONL.encode(self.slice(every, every))
        text = b"".join(bytes(_JSONL.frame([piece.data])) for piece in encoded.pieces).decode()
        lines = text.split("\n")[:-1]
        if len(lines) != len(every):
            raise undecodable(self._path, "its Arrow stream has an operation that pgcdc doesn't write")
        return lines

    def slice(self, numbers: Int64s, index: Int64s) -> Slice:
        """Give some of them as changes; `index` says where each stands among those of other tables."""
        with _refusing_damage(self._path):
            batch = self._batch.take(numbers)
            if self.table is None:
                return Slice(None, messages=tuple(_messages(batch, index)))
            changes = tuple(_changes(self.table, batch, index))
            return Slice(None, changes, tuple(_truncates(self.table, batch, index)))

    @cached_property
    def has_line_breaks(self) -> bool:
        """Whether a json value has a line break, which a JSON line can't have."""
        json = (column.name for column in self._columns() if json_kind(column.type) == "json")
        texts = (image for name in json for image in (self._batch.column(name), _old(self._batch, name)))
        return any(kernels.as_mask(kernels.matches(text, "[\n\r]")).any() for text in texts)

    def _columns(self) -> tuple[TableColumn, ...]:
        return () if self.table is None else self.table.columns


def _messages(batch: pa.RecordBatch, index: Int64s) -> Iterator[MessageChange]:
    columns = (batch.column(name).to_pylist() for name in ("transactional", "prefix", "content"))
    return map(MessageChange, _each_stamp(batch, index), *columns)


def _truncates(table: TableSchema, batch: pa.RecordBatch, index: Int64s) -> Iterator[TruncateChange]:
    batch, index = _taken(batch, index, _operations(batch) == "T")
    options = batch.column("_truncate").to_pylist()
    for stamp, names in zip(_each_stamp(batch, index), options, strict=True):
        given = names or ()
        yield TruncateChange(table, stamp, "cascade" in given, "restart_identity" in given)


def _changes(table: TableSchema, batch: pa.RecordBatch, index: Int64s) -> Iterator[ChangeBatch]:
    """Put the rows of each shape together."""
    operations, olds = _operations(batch), _old_kinds(table, batch)
    for operation in _ROW_OPERATIONS:
        for old in (_NO_OLD, _KEY, _WHOLE):
            chosen = (operations == operation) & (olds == old)
            if chosen.any():
                rows, places = _taken(batch, index, chosen)
                images = _Images(table, rows)
                new = None if operation == "D" else images.new()
                before = None if old == _NO_OLD else images.old(whole=old == _WHOLE)
                yield ChangeBatch(table, operation, _stamps(rows, places), new, before)


def _old_kinds(table: TableSchema, batch: pa.RecordBatch) -> Int64s:
    """Say what each row has of the old one: nothing, its key, or all, even outside of the identity."""
    whole = np.full(batch.num_rows, table.replica_identity is ReplicaIdentity.FULL)
    for column in table.columns:
        if not column.replica_identity:
            whole |= kernels.as_mask(_old(batch, column.name).is_valid())
    has_old = kernels.as_mask(batch.column("_old").is_valid())
    return np.where(has_old, np.where(whole, _WHOLE, _KEY), _NO_OLD)


class _Images:
    """The images of rows of one shape."""

    def __init__(self, table: TableSchema, batch: pa.RecordBatch) -> None:
        self._columns = table.columns
        self._batch = batch
        self._unfit = [
            (number, dict(pairs)) for number, pairs in enumerate(batch.column("_unfit").to_pylist()) if pairs
        ]

    def new(self) -> FullImage:
        texts = (self._texts(self._batch.column(c.name), c.name, c.type) for c in self._columns)
        unchanged = [names or () for names in self._batch.column("_unchanged").to_pylist()]
        masks = (np.array([c.name in names for names in unchanged], np.bool_) for c in self._columns)
        return FullImage(tuple(texts), tuple(mask if mask.any() else None for mask in masks))

    def old(self, *, whole: bool) -> FullImage | KeyImage:
        texts = [
            self._texts(_old(self._batch, c.name), f"_old.{c.name}", c.type)
            if whole or c.replica_identity
            else None
            for c in self._columns
        ]
        known = [column for column in texts if column is not None]
        return FullImage(tuple(known), (None,) * len(known)) if whole else KeyImage(tuple(texts))

    def _texts(self, column: ArrowArray, name: str, pg_type: PgType) -> pa.BinaryArray:
        texts = pg_texts(column, pg_type)
        for number, unfit in self._unfit:
            if texts[number] is None:
                texts[number] = unfit.get(name)
        return kernels.binary(texts)


def _operations(batch: pa.RecordBatch) -> NDArray[np.str_]:
    return np.array(batch.column("_op").to_pylist(), np.str_)


def _old(batch: pa.RecordBatch, name: str) -> ArrowArray:
    """Give a column of the old image."""
    return cast("pa.StructArray", batch.column("_old")).field(name)


def _taken(batch: pa.RecordBatch, index: Int64s, chosen: Booleans) -> tuple[pa.RecordBatch, Int64s]:
    return batch.filter(pa.array(chosen)), index[chosen]


def _each_stamp(batch: pa.RecordBatch, index: Int64s) -> Iterator[Stamp]:
    for stamp in _stamps(batch, index):
        yield replace(stamp, commit_ts=stamp.commit_ts or None, xid=stamp.xid or None)


def _stamps(batch: pa.RecordBatch, index: Int64s) -> Stamps:
    names = [field.name for field in STAMP_FIELDS[1:]]
    lsn, commit_lsn, commit_ts, xid, seq = (_integers(batch.column(name)) for name in names)
    return Stamps(index, lsn, commit_lsn, commit_ts, xid, seq)


def _integers(column: ArrowArray) -> Int64s:
    integers: Int64s = column.cast(pa.int64()).fill_null(0).to_numpy()
    return integers


def _inferred_schema(arrow: pa.Schema) -> TableSchema:
    """Make a table without a key, whose columns have the first type that has the column's Arrow type.

    KeyError or ValueError if the stream isn't pgcdc's.
    """
    if not OWN_NAMES.issubset(arrow.names):
        raise ValueError("it has other columns")
    names = [name for name in arrow.names if name not in OWN_NAMES]
    types = [_pg_type(arrow.field(name).type) for name in names]
    columns = tuple(TableColumn.of(n, t, replica_identity=False) for n, t in zip(names, types, strict=True))
    namespace, _, table = (arrow.metadata or {})[b"table"].decode().partition(".")
    # FULL, since nothing tells which columns an old row of the key alone has.
    return TableSchema(0, namespace, table, ReplicaIdentity.FULL, columns, None)


def _pg_type(arrow: pa.DataType) -> PgType:
    candidates = (builtin(oid, -1) for _, _, oid, array in TYPES for oid in (oid, array) if oid)
    fitting = (t for t in candidates if t is not None and arrow_type(t) == arrow)
    return next(fitting, PgType(_TEXT, -1, "text"))


_DAY = 86_400_000_000
_NOT_FINITE = {"nan": "NaN", "inf": "Infinity", "-inf": "-Infinity"}
_NEEDS_QUOTES = frozenset('{}"\\ \t\n\r\v\f')


class Printer(NamedTuple):
    """`storage` is an Arrow type whose every value Python can hold, None for the column's own."""

    fits: Callable[[pa.DataType], bool]
    storage: pa.DataType | None
    text: Callable[[Any], str]


def pg_texts(column: ArrowArray, pg_type: PgType | None) -> list[str | None]:
    """Print each value as PostgreSQL does, None for null; `pg_type` tells how array elements are parted."""
    if isinstance(column, pa.ListArray):
        return _array_literals(column, pg_type)
    printer = next(printer for printer in _PRINTERS if printer.fits(column.type))
    values: ArrowArray = column if printer.storage is None else column.cast(printer.storage)
    return [None if value is None else printer.text(value) for value in values.to_pylist()]


def float_text(shortest: str, whole_digits: int) -> str:
    """Lay out the shortest digits of a float as PostgreSQL does (`to_chars` in d2s.c and f2s.c).

    A number of more than `whole_digits` digits before the point, or below 0.0001, has an exponent.
    """
    if shortest in _NOT_FINITE:
        return _NOT_FINITE[shortest]
    sign, digits, exponent = Decimal(shortest).normalize().as_tuple()
    assert isinstance(exponent, int)
    figures = "".join(map(str, digits))
    magnitude = exponent + len(figures) - 1
    minus = "-" if sign else ""
    if figures != "0" and not -4 <= magnitude < whole_digits:
        point = "." if len(figures) > 1 else ""
        return f"{minus}{figures[0]}{point}{figures[1:]}e{magnitude:+03d}"
    if exponent >= 0:
        return minus + figures + "0" * exponent
    figures = figures.rjust(1 - exponent, "0")
    return f"{minus}{figures[:exponent]}.{figures[exponent:]}"


def _date(days: int) -> tuple[str, str]:
    """Year, month and day in the proleptic Gregorian calendar, and ` BC` for years before 1."""
    era, day_of_era = divmod(days + 719_468, 146_097)
    year_of_era = (day_of_era - day_of_era // 1460 + day_of_era // 36_524 - day_of_era // 146_096) // 365
    day_of_year = day_of_era - (365 * year_of_era + year_of_era // 4 - year_of_era // 100)
    # Years begin in March here, so that the leap day comes last: 153 days in every five months.
    shifted = (5 * day_of_year + 2) // 153
    day = day_of_year - (153 * shifted + 2) // 5 + 1
    month = shifted + 3 if shifted < 10 else shifted - 9
    year = era * 400 + year_of_era + (month <= 2)
    return f"{year if year > 0 else 1 - year:04d}-{month:02d}-{day:02d}", "" if year > 0 else " BC"


def date_text(days: int) -> str:
    """Print `2026-01-02` for days since 1970-01-01."""
    return "".join(_date(days))


def time_text(micros: int) -> str:
    """Print `23:59:59.5` for a time of day."""
    seconds, fraction = divmod(micros, 1_000_000)
    text = f"{seconds // 3600:02d}:{seconds // 60 % 60:02d}:{seconds % 60:02d}"
    return text + (f".{fraction:06d}".rstrip("0") if fraction else "")


def timestamp_text(micros: int, zone: str = "") -> str:
    """Print `2026-01-02 03:04:05.5+00` for microseconds since 1970."""
    days, rest = divmod(micros, _DAY)
    date, era = _date(days)
    return f"{date} {time_text(rest)}{zone}{era}"


def _is_local(arrow: pa.DataType) -> bool:
    return isinstance(arrow, pa.TimestampType) and arrow.tz is None


_PRINTERS = (
    Printer(pa.types.is_boolean, None, lambda value: "t" if value else "f"),
    # Arrow prints the shortest digits that give the same float again, for float32, too.
    Printer(pa.types.is_float32, pa.string(), lambda text: float_text(text, 6)),
    Printer(pa.types.is_float64, pa.string(), lambda text: float_text(text, 15)),
    Printer(pa.types.is_decimal, None, lambda value: format(value, "f")),
    Printer(pa.types.is_binary, None, lambda value: "\\x" + str(value.hex())),
    Printer(pa.types.is_date32, pa.int32(), date_text),
    Printer(pa.types.is_time, pa.int64(), time_text),
    Printer(_is_local, pa.int64(), timestamp_text),
    Printer(pa.types.is_timestamp, pa.int64(), lambda micros: timestamp_text(micros, "+00")),
    Printer(lambda _: True, None, str),
)
"""The first that fits an Arrow type prints it."""


def _array_literals(column: "pa.ListArray[Any]", pg_type: PgType | None) -> list[str | None]:
    element = None if pg_type is None else pg_type.element
    delimiter = ";" if element is not None and element.name == "box" else ","
    texts = [_element(text, delimiter) for text in pg_texts(column.flatten(), element)]
    literals: list[str | None] = []
    start = 0
    for length in column.value_lengths().to_pylist():
        if length is None:
            literals.append(None)
        else:
            literals.append("{" + delimiter.join(texts[start : start + length]) + "}")
            start += length
    return literals


def _element(text: str | None, delimiter: str) -> str:
    """Quote where `array_out` in arrayfuncs.c does."""
    if text is None:
        return "NULL"
    if text and text.upper() != "NULL" and delimiter not in text and _NEEDS_QUOTES.isdisjoint(text):
        return text
    return '"' + text.replace("\\", "\\\\").replace('"', '\\"') + '"'
