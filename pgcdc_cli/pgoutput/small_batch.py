"""A small batch: a few rows of tables that are known, decoded one by one.

As columns a batch takes half a millisecond, whatever is in it, and a stream that follows its server has one
for every few rows. This gives the slices that `batch.py` gives for the same messages. It takes begins,
commits and rows only; what is not usual, or not right, it leaves to the columns.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Literal, TypeVar

import numpy as np
import pyarrow as pa

from pgcdc_cli.errors import UndecodableError
from pgcdc_cli.lsn import Lsn
from pgcdc_cli.pgoutput import messages as m
from pgcdc_cli.pgoutput.batch import Tables
from pgcdc_cli.pgoutput.changes import (
    ChangeBatch,
    Edge,
    FullImage,
    KeyImage,
    Marks,
    Mask,
    Operation,
    Slice,
    Stamp,
    Stamps,
    TransactionMark,
)
from pgcdc_cli.pgoutput.decode import decode
from pgcdc_cli.pgoutput.outline import Limits, OpenTransaction
from pgcdc_cli.pgoutput.wire import HEADER
from pgcdc_cli.table import TableSchema

MOST_MESSAGES, MOST_BYTES = 64, 1 << 16
"""From about here on columns are quicker."""

Tuple = m.FullTuple | m.KeyTuple
TupleT = TypeVar("TupleT", m.FullTuple, m.KeyTuple, Tuple)
_BINARY = pa.binary()
_COMMIT = b"C"
_TAKEN = frozenset([b"B", b"I", b"U", b"D", _COMMIT])


class _UnusualError(Exception):
    """Something that is left to the columns."""


def is_small(frames: Sequence[bytes]) -> bool:
    """Say whether these XLogData frames are few, and of kinds that are taken here."""
    if len(frames) > MOST_MESSAGES or sum(map(len, frames)) > MOST_BYTES:
        return False
    return all(frame[HEADER : HEADER + 1] in _TAKEN for frame in frames)


@dataclass(slots=True)
class _Rows:
    """Rows of one table and shape; a stamp is what `Stamps` has of it, from `index` to `seq`."""

    table: TableSchema
    operation: Operation
    stamps: list[tuple[int, int, int, int, int, int]] = field(default_factory=list)
    new: list[m.FullTuple] = field(default_factory=list)
    old: list[Tuple] = field(default_factory=list)

    def batch(self) -> ChangeBatch:
        stamps = np.array(self.stamps, np.int64).T
        new = _full_image(self.new) if self.new else None
        old = _old_image(self.table, self.old) if self.old else None
        return ChangeBatch(self.table, self.operation, Stamps(*stamps), new, old)


class SmallBatch:
    """The changes of a small batch; `open` is the transaction that is open behind it."""

    def __init__(
        self, tables: Tables, before: OpenTransaction | None, limits: Limits, *, marks: bool
    ) -> None:
        self.open = before
        self._tables = tables
        self._limits = limits
        self._marked = marks
        self._index = 0
        self._edge: Edge | None = None
        self._rows: dict[tuple[int, str, type], _Rows] = {}
        self._marks: list[TransactionMark] = []

    def slices(self, frames: Sequence[bytes]) -> list[Slice] | None:
        """Decode what `is_small` takes: up to the last commit, and the rest. None for anything unusual."""
        commits = [at for at, frame in enumerate(frames) if frame[HEADER : HEADER + 1] == _COMMIT]
        cut = commits[-1] + 1 if commits else 0
        try:
            found = [self._slice(frames[:cut]), self._slice(frames[cut:])]
        except (UndecodableError, _UnusualError):
            return None
        return [part for part in found if part.edge or part.changes or part.marks]

    def _slice(self, frames: Sequence[bytes]) -> Slice:
        self._edge, self._rows, self._marks = None, {}, []
        for frame in frames:
            self._take(decode(frame[HEADER:]), int.from_bytes(frame[1:9], "big", signed=True))
        changes = tuple(rows.batch() for rows in self._rows.values())
        return Slice(self._edge, changes, marks=(Marks.of(self._marks),) if self._marks else ())

    def _take(self, message: m.Message, lsn: int) -> None:
        if lsn < 0:
            raise _UnusualError
        match message:
            case m.Begin():
                self._begin(message, lsn)
            case m.Commit():
                self._commit(message)
            case m.Insert():
                self._row(message.relation_oid, "I", lsn, message.new, None)
            case m.Update():
                self._row(message.relation_oid, "U", lsn, message.new, message.old)
            case m.Delete():
                self._row(message.relation_oid, "D", lsn, None, message.old)

    def _begin(self, message: m.Begin, lsn: int) -> None:
        until = self._limits.until
        ends = until is not None and message.final_lsn >= until
        if self.open is not None or ends or self._is_skipped(message.final_lsn):
            raise _UnusualError
        self.open = OpenTransaction(message.final_lsn, message.commit_time, message.xid, 0)
        self._mark("B", self.open, lsn)

    def _commit(self, message: m.Commit) -> None:
        until, transaction = self._limits.until, self._inside()
        ends = until is not None and message.end_lsn >= until
        if ends or message.commit_lsn != transaction.commit_lsn:
            raise _UnusualError
        self._mark("C", transaction, message.end_lsn)
        count = 1 if self._edge is None else self._edge.transactions + 1
        self._edge = Edge(message.commit_lsn, message.end_lsn, count, transaction.commit_ts)
        self.open = None

    def _inside(self) -> OpenTransaction:
        if self.open is None or self.open.origin is not None or self._is_skipped(self.open.commit_lsn):
            raise _UnusualError
        return self.open

    def _is_skipped(self, commit_lsn: int) -> bool:
        return commit_lsn < self._limits.skip_before

    def _mark(self, kind: Literal["B", "C"], transaction: OpenTransaction, lsn: int) -> None:
        if self._marked:
            commit_lsn, commit_ts, xid, seq, _ = transaction
            stamp = Stamp(self._next_index(), Lsn(lsn), Lsn(commit_lsn), commit_ts, xid, seq)
            self._marks.append(TransactionMark(kind, stamp))

    def _next_index(self) -> int:
        self._index += 1
        return self._index - 1

    def _row(
        self, oid: int, operation: Operation, lsn: int, new: m.FullTuple | None, old: Tuple | None
    ) -> None:
        transaction, number = self._inside(), self._tables.current(oid)
        if number < 0:
            raise _UnusualError
        table = self._tables[number]
        kind = number, operation, type(old)
        rows = self._rows.get(kind) or self._rows.setdefault(kind, _Rows(table, operation))
        commit_lsn, commit_ts, xid, seq, _ = transaction
        rows.stamps.append((self._next_index(), lsn, commit_lsn, commit_ts, xid, seq))
        if new is not None:
            rows.new.append(_checked(table, new))
        if old is not None:
            rows.old.append(_checked(table, old))
        self.open = transaction._replace(seq=seq + 1)


def _checked(table: TableSchema, image: TupleT) -> TupleT:
    """Take a tuple that has the table's columns, as text; of a key none but the key's."""
    if len(image.values) != len(table.columns) or m.Binary in map(type, image.values):
        raise _UnusualError
    if isinstance(image, m.KeyTuple):
        for column, value in zip(table.relation.columns, image.values, strict=True):
            if not (column.key or isinstance(value, m.Null)):
                raise _UnusualError
    return image


def _full_image(tuples: Sequence[Tuple]) -> FullImage:
    columns = list(zip(*(one.values for one in tuples), strict=True))
    return FullImage(tuple(map(_column, columns)), tuple(map(_unchanged, columns)))


def _old_image(table: TableSchema, tuples: Sequence[Tuple]) -> FullImage | KeyImage:
    if not isinstance(tuples[0], m.KeyTuple):
        return _full_image(tuples)
    columns = zip(*(one.values for one in tuples), strict=True)
    wanted = zip(table.relation.columns, columns, strict=True)
    return KeyImage(tuple(_column(values) if column.key else None for column, values in wanted))


def _column(values: Sequence[m.Value]) -> pa.BinaryArray:
    return pa.array([value.data if isinstance(value, m.Text) else None for value in values], _BINARY)


def _unchanged(values: Sequence[m.Value]) -> Mask | None:
    mask = [isinstance(value, m.UnchangedToast) for value in values]
    return np.array(mask) if True in mask else None
