"""Read Arrow files: rows become changes, and columns PostgreSQL's text of their values."""

import io
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from functools import cached_property
from pathlib import Path
from typing import Any, NamedTuple, cast

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from pgcdc_cli.changes.slice import (
    ChangeBatch,
    FullImage,
    Image,
    KeyImage,
    MessageChange,
    Operation,
    Slice,
    Stamp,
    Stamps,
    TruncateChange,
)
from pgcdc_cli.changes.table import ReplicaIdentity, TableColumn, TableSchema
from pgcdc_cli.formats.arrow import MAGIC, MESSAGE_SCHEMA, OWN_NAMES, STAMP_FIELDS
from pgcdc_cli.formats.encoded_rows import MESSAGES
from pgcdc_cli.formats.jsonl import JsonlFormat
from pgcdc_cli.frames import POSTGRES_EPOCH
from pgcdc_cli.reader.stored_file import Order, StoredFile, find_schema, undecodable
from pgcdc_cli.types import kernels
from pgcdc_cli.types.binary import text_of
from pgcdc_cli.types.kernels import ArrowArray, Booleans, Int64s
from pgcdc_cli.types.pg_type import TYPES, PgType, builtin
from pgcdc_cli.types.to_arrow import arrow_type

_ROWS = 1024
"""Rows that are converted to changes at once."""

_REST, _LARGEST_FOOTER = 1 << 16, 16 << 20
"""Bytes read at once after the end of the stream, and of its footer."""

_END = b"ARROW1"
"""What an Arrow file ends with (Arrow's manual, "IPC File Format")."""

_JSONL = JsonlFormat()
_ROW_OPERATIONS: tuple[Operation, ...] = ("I", "U", "D", "R")
_NO_OLD, _KEY, _WHOLE = range(3)
_TEXT = 25
"""OID of text."""


class ArrowRow(NamedTuple):
    """One change: row `number` of `rows`; `table` is `schema.table` or `_messages`."""

    order: Order
    table: str
    rows: "ArrowRows"
    number: int

    @property
    def line(self) -> str:
        """The change as a JSON line, without a line feed."""
        return self.rows.lines[self.number]


def read_arrow(file: StoredFile, content: io.BufferedReader) -> Iterator[ArrowRow]:
    """Yield every row. Raises PgcdcError (PROTOCOL) for a damaged file, or one that isn't pgcdc's.

    The file is read in order, as a stream: an unfinished one has no footer. The table comes from the
    directory's schema file or, without one, from the stream's own schema.
    """
    with _refusing_damage(file.path):
        has_footer = content.peek(len(MAGIC))[: len(MAGIC)] == MAGIC
        if has_footer:
            content.read(len(MAGIC))
        with pa.ipc.open_stream(content) as reader:
            table = _table(file.path, reader.schema)
            for batch in reader:
                # Arrow itself trusts the offsets in a batch: damaged ones would end the process.
                batch.validate(full=True)
                for start in range(0, batch.num_rows, _ROWS):
                    yield from ArrowRows(file.path, table, batch.slice(start, _ROWS))
        _check_end(content, has_footer=has_footer)
        while content.read(_REST):
            pass  # the promised size and checksum are compared at the end of the file


def _check_end(content: io.BufferedReader, *, has_footer: bool) -> None:
    """Raise ValueError if more follows than an Arrow file's footer, which ends with its size and the magic.

    An unfinished file has no footer, or not all of it.
    """
    rest = content.read(_LARGEST_FOOTER)
    end = rest.find(_END)
    size = int.from_bytes(rest[end - 4 : end], "little")
    if rest and (not has_footer or (end >= 4 and size == end - 4 and end + len(_END) < len(rest))):
        raise ValueError("another stream, or something else, follows: show one file at a time")


@contextmanager
def _refusing_damage(path: str) -> Iterator[None]:
    try:
        yield
    except (pa.ArrowException, OSError, KeyError, ValueError, MemoryError) as error:
        raise undecodable(path, f"its Arrow stream is damaged or not pgcdc's: {error}") from error


def _table(path: str, arrow: pa.Schema) -> TableSchema | None:
    """Find the file's table; None for a file of logical messages."""
    if arrow.equals(MESSAGE_SCHEMA):
        return None
    fingerprint = (arrow.metadata or {})[b"schema_fingerprint"].decode()
    return find_schema(Path(path).absolute().parent.parent, fingerprint) or _inferred_schema(arrow)


class ArrowRows:
    """Rows of one table; `table` is None for logical messages."""

    def __init__(self, path: str, table: TableSchema | None, batch: pa.RecordBatch) -> None:
        self.table = table
        self._path = path
        self._batch = batch

    def __iter__(self) -> Iterator[ArrowRow]:
        """Yield the rows one by one, in the order of the file."""
        name = MESSAGES if self.table is None else self.table.display
        commit_lsn, seq = (_integers(self._batch.column(column)) for column in ("_commit_lsn", "_seq"))
        streamed = (_operations(self._batch) != "R").astype(np.int64)
        orders = zip(commit_lsn.tolist(), streamed.tolist(), seq.tolist(), strict=True)
        for number, order in enumerate(orders):
            yield ArrowRow(order, name, self, number)

    @cached_property
    def lines(self) -> list[str]:
        """All rows as JSON lines, without line feeds."""
        every = np.arange(self._batch.num_rows)
        with _refusing_damage(self._path):
            encoded = _JSONL.encode(self.slice(every, every))
            text = b"".join(bytes(_JSONL.frame([piece.data])) for piece in encoded.pieces).decode()
        lines = text.split("\n")[:-1]
        if len(lines) != len(every):
            raise undecodable(self._path, "its Arrow stream has an operation that pgcdc doesn't write")
        return lines

    def slice(self, numbers: Int64s, index: Int64s) -> Slice:
        """Convert some rows to changes; `index` are their places among the changes of all tables."""
        with _refusing_damage(self._path):
            batch = self._batch.take(numbers)
            if self.table is None:
                return Slice(None, messages=tuple(_messages(batch, index)))
            changes = tuple(_changes(self.table, batch, index))
            return Slice(None, changes, tuple(_truncates(self.table, batch, index)))


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
    """Group rows by shape."""
    operations, olds = _operations(batch), _old_kinds(table, batch)
    for operation in _ROW_OPERATIONS:
        for old in (_NO_OLD, _KEY, _WHOLE):
            chosen = (operations == operation) & (olds == old)
            if chosen.any():
                rows, rows_index = _taken(batch, index, chosen)
                images = _Images(table, rows)
                new = None if operation == "D" else images.new()
                before = None if old == _NO_OLD else images.old(whole=old == _WHOLE)
                yield ChangeBatch(table, operation, _stamps(rows, rows_index), new, before)


def _old_kinds(table: TableSchema, batch: pa.RecordBatch) -> Int64s:
    """Determine what each row has of its old row: nothing, the key, or more than the replica identity."""
    whole = np.full(batch.num_rows, table.replica_identity is ReplicaIdentity.FULL)
    for column in table.columns:
        if not column.in_replica_identity:
            whole |= kernels.as_mask(_old(batch, column.name).is_valid())
    has_old = kernels.as_mask(batch.column("_old").is_valid())
    return np.where(has_old, np.where(whole, _WHOLE, _KEY), _NO_OLD)


class _Images:
    """The images of rows of one shape."""

    def __init__(self, table: TableSchema, batch: pa.RecordBatch) -> None:
        self._columns = table.columns
        self._batch = batch
        self._unfit = [dict(pairs or ()) for pairs in batch.column("_unfit").to_pylist()]
        self._all_fit = not any(self._unfit)

    def new(self) -> FullImage:
        texts = (self._texts(self._batch.column(c.name), c.name, c.type) for c in self._columns)
        unchanged = [names or () for names in self._batch.column("_unchanged").to_pylist()]
        masks = (np.array([c.name in names for names in unchanged], np.bool_) for c in self._columns)
        return FullImage(tuple(texts), tuple(mask if mask.any() else None for mask in masks))

    def old(self, *, whole: bool) -> Image:
        texts = [
            self._texts(_old(self._batch, c.name), f"_old.{c.name}", c.type)
            if whole or c.in_replica_identity
            else None
            for c in self._columns
        ]
        known = [column for column in texts if column is not None]
        return FullImage(tuple(known), (None,) * len(known)) if whole else KeyImage(tuple(texts))

    def _texts(self, column: ArrowArray, name: str, pg_type: PgType) -> pa.BinaryArray:
        texts = pg_texts(column, pg_type)
        if self._all_fit:
            return texts
        return kernels.coalesce(texts, kernels.binary([unfit.get(name) for unfit in self._unfit]))


def _operations(batch: pa.RecordBatch) -> NDArray[np.str_]:
    return np.array(batch.column("_op").to_pylist(), np.str_)


def _old(batch: pa.RecordBatch, name: str) -> ArrowArray:
    """Take a column of the old image."""
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
    """Infer a table without a key; a column gets the first type that is converted to its Arrow type.

    Raises KeyError if the stream isn't pgcdc's.
    """
    names = [name for name in arrow.names if name not in OWN_NAMES]
    types = [_pg_type(arrow.field(name).type) for name in names]
    columns = tuple(
        TableColumn.of(n, t, in_replica_identity=False) for n, t in zip(names, types, strict=True)
    )
    namespace, _, table = (arrow.metadata or {})[b"table"].decode().partition(".")
    # FULL, since the stream doesn't say which columns an old row with only the key has.
    return TableSchema(0, namespace, table, ReplicaIdentity.FULL, columns, None)


def _pg_type(arrow: pa.DataType) -> PgType:
    candidates = (builtin(oid, -1) for _, _, oid, array in TYPES for oid in (oid, array) if oid)
    fitting = (t for t in candidates if t is not None and arrow_type(t) == arrow)
    return next(fitting, PgType(_TEXT, -1, "text"))


_NEEDS_QUOTES = frozenset('{}"\\ \t\n\r\v\f')
_BY_NAME = {name: PgType(oid, -1, name) for name, _, oid, _ in TYPES}


def _is_local(arrow: pa.DataType) -> bool:
    return isinstance(arrow, pa.TimestampType) and arrow.tz is None


class _Sent(NamedTuple):
    """How to convert an Arrow type to a type's send format: bytes of the numpy type `code`.

    `epoch` is 2000-01-01, PostgreSQL's day 0, in Arrow's units.
    """

    fits: Callable[[pa.DataType], bool]
    pg_type: str
    storage: pa.DataType
    code: str
    epoch: int = 0

    def texts(self, column: ArrowArray) -> pa.BinaryArray:
        values = kernels.coalesce(column.cast(self.storage), pa.scalar(0, self.storage)).to_numpy()
        data = (values - self.epoch).astype(self.code).view(np.uint8)
        offsets = np.arange(len(column) + 1) * np.dtype(self.code).itemsize
        texts = text_of(_BY_NAME[self.pg_type], kernels.from_bytes(offsets, data))
        return kernels.nulled_like(texts, column)


_SENT = (
    _Sent(pa.types.is_boolean, "bool", pa.uint8(), "u1"),
    _Sent(pa.types.is_float32, "float4", pa.float32(), ">f4"),
    _Sent(pa.types.is_float64, "float8", pa.float64(), ">f8"),
    _Sent(pa.types.is_date32, "date", pa.int32(), ">i4", POSTGRES_EPOCH // kernels.DAY),
    _Sent(pa.types.is_time, "time", pa.int64(), ">i8"),
    _Sent(_is_local, "timestamp", pa.int64(), ">i8", POSTGRES_EPOCH),
    _Sent(pa.types.is_timestamp, "timestamptz", pa.int64(), ">i8", POSTGRES_EPOCH),
)


def pg_texts(column: ArrowArray, pg_type: PgType | None) -> pa.BinaryArray:
    """Print each value as PostgreSQL does; null stays null. `pg_type` determines an array's delimiter."""
    if isinstance(column, pa.ListArray):
        return _array_literals(column, pg_type)
    sent = next((sent for sent in _SENT if sent.fits(column.type)), None)
    if sent is not None:
        return sent.texts(column)
    if pa.types.is_binary(column.type):
        return text_of(_BY_NAME["bytea"], kernels.as_binary(column))
    # str() prints small decimals with an exponent.
    text = "{:f}".format if pa.types.is_decimal(column.type) else str
    return kernels.binary([None if value is None else text(value) for value in column.to_pylist()])


def _array_literals(column: "pa.ListArray[Any]", pg_type: PgType | None) -> pa.BinaryArray:
    element = None if pg_type is None else pg_type.element
    delimiter = ";" if element is not None and element.name == "box" else ","
    texts = [
        array_element(text, delimiter)
        for text in kernels.as_text(pg_texts(column.flatten(), element)).to_pylist()
    ]
    literals: list[str | None] = []
    start = 0
    for length in column.value_lengths().to_pylist():
        if length is None:
            literals.append(None)
        else:
            literals.append("{" + delimiter.join(texts[start : start + length]) + "}")
            start += length
    return kernels.binary(literals)


def array_element(text: str | None, delimiter: str) -> str:
    """Quote an array element if `array_out` in arrayfuncs.c would."""
    if text is None:
        return "NULL"
    if text and text.upper() != "NULL" and delimiter not in text and _NEEDS_QUOTES.isdisjoint(text):
        return text
    return '"' + text.replace("\\", "\\\\").replace('"', '\\"') + '"'
