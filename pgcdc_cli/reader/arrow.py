"""Arrow streams back into JSON lines: columns into wire text, and then the way that JSON lines always go."""

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pyarrow as pa

from pgcdc_cli.formats.arrowschema import MESSAGE_SCHEMA, STAMP_FIELDS
from pgcdc_cli.formats.jsonl import JsonlFormat
from pgcdc_cli.lsn import Lsn
from pgcdc_cli.pgoutput.changes import (
    ChangeBatch,
    FullImage,
    Int64s,
    KeyImage,
    Mask,
    MessageChange,
    Operation,
    Slice,
    Stamp,
    Stamps,
    TruncateChange,
)
from pgcdc_cli.pgoutput.messages import ReplicaIdentity
from pgcdc_cli.reader.inferred import inferred_schema
from pgcdc_cli.reader.record import Record, undecodable
from pgcdc_cli.reader.schemas import find_schema
from pgcdc_cli.reader.stored import Stored
from pgcdc_cli.reader.text import pg_texts
from pgcdc_cli.table import TableSchema
from pgcdc_cli.types import kernels
from pgcdc_cli.types.convert import json_kind
from pgcdc_cli.types.kernels import Column

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


def _integers(column: Column) -> Int64s:
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
        whole = np.full(len(self._old), self._schema.relation.replica_identity is ReplicaIdentity.FULL)
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

    def _texts(self, column: Column, name: str, index: int, rows: Int64s) -> pa.BinaryArray:
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


def _mask(name: str, unchanged: list[frozenset[str]]) -> Mask | None:
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
