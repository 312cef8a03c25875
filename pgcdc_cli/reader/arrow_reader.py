"""Arrow streams back into JSON lines: columns into wire text, and then the way that JSON lines always go."""

from collections.abc import Callable, Iterator
from decimal import Decimal
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa

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
from pgcdc_cli.lsn import Lsn
from pgcdc_cli.reader.stored_file import Record, Stored, find_schema, undecodable
from pgcdc_cli.types import kernels
from pgcdc_cli.types.kernels import ArrowArray, Booleans, Int64s
from pgcdc_cli.types.pg_type import TYPES, PgType, builtin
from pgcdc_cli.types.to_arrow import arrow_type, json_kind

_TEXT = 25
"""OID of text."""


def inferred_schema(arrow: pa.Schema) -> TableSchema:
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


_ROWS = 1024
"""Rows that are turned back at once."""

_FORMAT = JsonlFormat()
_ROW_OPERATIONS: tuple[Operation, ...] = ("I", "U", "D", "R")
_MESSAGES = "_messages"
_NO_OLD, _KEY, _WHOLE = range(3)


def read_arrow(path: str, file: Stored) -> Iterator[Record]:
    """Give one record a row; PROTOCOL error for a damaged stream, or one that isn't pgcdc's.

    The table is that of the directory's schema file, else what the stream itself tells of it.
    """
    try:
        with pa.ipc.open_stream(file) as reader:
            table = _table(path, reader.schema)
            for batch in reader:
                for start in range(0, batch.num_rows, _ROWS):
                    yield from _records(batch.slice(start, _ROWS), table)
    except (pa.ArrowException, OSError, KeyError, ValueError) as error:
        raise undecodable(path, f"its Arrow stream is damaged or not pgcdc's: {error}") from error


def _table(path: str, arrow: pa.Schema) -> TableSchema | None:
    """Find the table; None for a file of logical messages."""
    if arrow.equals(MESSAGE_SCHEMA):
        return None
    fingerprint = (arrow.metadata or {})[b"schema_fingerprint"].decode()
    return find_schema(Path(path).absolute().parent.parent, fingerprint) or inferred_schema(arrow)


def _records(batch: pa.RecordBatch, table: TableSchema | None) -> Iterator[Record]:
    rows = _Messages(batch) if table is None else _Rows(batch, table)
    target = _MESSAGES if table is None else table.display
    encoded = _FORMAT.encode(rows.part())
    text = b"".join(bytes(_FORMAT.frame([piece.data])) for piece in encoded.pieces).decode()
    stamps = rows.stamps
    snapshot = np.array([operation != "R" for operation in rows.operations], np.int64)
    places = zip(stamps.commit_lsn.tolist(), snapshot.tolist(), stamps.seq.tolist(), strict=True)
    exact = isinstance(rows, _Messages) or not rows.has_line_breaks()
    for order, line in zip(places, text.split("\n"), strict=False):
        yield Record(order, target, line, exact=exact)


def _stamps(batch: pa.RecordBatch) -> Stamps:
    names = [field.name for field in STAMP_FIELDS[1:]]
    lsn, commit_lsn, commit_ts, xid, seq = (_integers(batch.column(name)) for name in names)
    return Stamps(np.arange(batch.num_rows), lsn, commit_lsn, commit_ts, xid, seq)


def _integers(column: ArrowArray) -> Int64s:
    integers: Int64s = column.cast(pa.int64()).fill_null(0).to_numpy()
    return integers


class _Messages:
    """Rows of a file of logical messages."""

    def __init__(self, batch: pa.RecordBatch) -> None:
        self._batch = batch
        self.stamps = _stamps(batch)
        self.operations = [str(operation) for operation in batch.column("_op")]

    def part(self) -> Slice:
        rows = self._batch.select(["transactional", "prefix", "content"]).to_pylist()
        messages = (MessageChange(stamp(self.stamps, row), *rows[row].values()) for row in range(len(rows)))
        return Slice(None, messages=tuple(messages))


class _Rows:
    """Rows of one table."""

    def __init__(self, batch: pa.RecordBatch, table: TableSchema) -> None:
        self._batch = batch
        self._schema = table
        self.stamps = _stamps(batch)
        self.operations = [str(operation) for operation in batch.column("_op")]
        old = batch.column("_old")
        assert isinstance(old, pa.StructArray)
        self._old = old
        self._unfit = [dict(pairs or ()) for pairs in batch.column("_unfit").to_pylist()]

    def part(self) -> Slice:
        """Give the rows as changes, each shape by itself; `index` keeps their order."""
        olds, operations = self._old_kinds(), np.array(self.operations, dtype=object)
        shapes = [
            (operation, old, np.flatnonzero((operations == operation) & (olds == old)))
            for operation in _ROW_OPERATIONS
            for old in (_NO_OLD, _KEY, _WHOLE)
        ]
        changes = tuple(self._changes(*shape) for shape in shapes if len(shape[2]))
        truncates = tuple(self._truncate(int(row)) for row in np.flatnonzero(operations == "T"))
        return Slice(None, changes, truncates)

    def has_line_breaks(self) -> bool:
        """Say whether a json value has a line break, which its line can't have."""
        texts = [
            image
            for index, column in enumerate(self._schema.columns)
            if json_kind(column.type) == "json"
            for image in (self._batch.column(column.name), self._old.field(index))
        ]
        return any(kernels.as_mask(kernels.matches(text, "[\n\r]")).any() for text in texts)

    def _old_kinds(self) -> Int64s:
        """Say what each row has of the old one: nothing, its key, or all, even outside of the identity."""
        whole = np.full(len(self._old), self._schema.replica_identity is ReplicaIdentity.FULL)
        for index, column in enumerate(self._schema.columns):
            if not column.replica_identity:
                whole |= kernels.as_mask(self._old.field(index).is_valid())
        has_old = kernels.as_mask(self._old.is_valid())
        return np.where(has_old, np.where(whole, _WHOLE, _KEY), _NO_OLD)

    def _changes(self, operation: Operation, old: int, rows: Int64s) -> ChangeBatch:
        new = None if operation == "D" else self._new(rows)
        return ChangeBatch(
            self._schema,
            operation,
            _taken(self.stamps, rows),
            new,
            None if old == _NO_OLD else self._old_image(rows, whole=old == _WHOLE),
        )

    def _new(self, rows: Int64s) -> FullImage:
        unchanged = [
            frozenset(names or ())
            for names in kernels.take(self._batch.column("_unchanged"), rows).to_pylist()
        ]
        columns = [
            self._texts(self._batch.column(column.name), column.name, index, rows)
            for index, column in enumerate(self._schema.columns)
        ]
        masks = [_mask(column.name, unchanged) for column in self._schema.columns]
        return FullImage(tuple(columns), tuple(masks))

    def _old_image(self, rows: Int64s, *, whole: bool) -> FullImage | KeyImage:
        columns = [
            self._texts(self._old.field(index), f"_old.{column.name}", index, rows)
            if whole or column.replica_identity
            else None
            for index, column in enumerate(self._schema.columns)
        ]
        known = [column for column in columns if column is not None]
        return FullImage(tuple(known), (None,) * len(known)) if whole else KeyImage(tuple(columns))

    def _texts(self, column: ArrowArray, name: str, index: int, rows: Int64s) -> pa.BinaryArray:
        texts = pg_texts(kernels.take(column, rows), self._schema.columns[index].type)
        for place, row in enumerate(rows):
            if texts[place] is None:
                texts[place] = self._unfit[row].get(name)
        return kernels.binary(texts)

    def _truncate(self, row: int) -> TruncateChange:
        options = self._batch.column("_truncate")[row].as_py() or ()
        cascade, restart = "cascade" in options, "restart_identity" in options
        return TruncateChange(self._schema, stamp(self.stamps, row), cascade, restart)


def _taken(stamps: Stamps, rows: Int64s) -> Stamps:
    index, lsn, commit_lsn = stamps.index[rows], stamps.lsn[rows], stamps.commit_lsn[rows]
    return Stamps(index, lsn, commit_lsn, stamps.commit_ts[rows], stamps.xid[rows], stamps.seq[rows])


def _mask(name: str, unchanged: list[frozenset[str]]) -> Booleans | None:
    mask = np.array([name in names for names in unchanged], np.bool_)
    return mask if mask.any() else None


def stamp(stamps: Stamps, row: int) -> Stamp:
    """Give one row's place."""
    return Stamp(
        row,
        Lsn(stamps.lsn[row]),
        Lsn(stamps.commit_lsn[row]),
        int(stamps.commit_ts[row]) or None,
        int(stamps.xid[row]) or None,
        int(stamps.seq[row]),
    )
