"""A small batch: a few rows of tables that are known, decoded one by one.

As columns a batch takes half a millisecond, whatever is in it, and a stream that follows its server has one
for every few rows. This takes the state and gives the slices and state that `assemble.py` does for the same
messages. It takes begins, commits and rows only; what is not usual, or not right, it leaves to the columns.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Literal, TypeVar

import numpy as np

from pgcdc_cli.changes.slice import (
    Boundaries,
    ChangeBatch,
    ColumnTexts,
    Edge,
    FewColumns,
    FullImage,
    KeyImage,
    Operation,
    Slice,
    Stamp,
    Stamps,
    TransactionBoundary,
)
from pgcdc_cli.changes.table import TableSchema
from pgcdc_cli.errors import UndecodableError
from pgcdc_cli.frames import MESSAGE_TAG, START_LSN, XLOGDATA_HEADER
from pgcdc_cli.lsn import Lsn
from pgcdc_cli.pgoutput import messages as m
from pgcdc_cli.pgoutput.decode import decode
from pgcdc_cli.pgoutput.relations import Tables
from pgcdc_cli.pgoutput.transactions import DecodeLimits, OpenTransaction, State
from pgcdc_cli.types.kernels import Booleans

MOST_MESSAGES, MOST_BYTES = 96, 1 << 16
"""From about here on columns are quicker."""

Tuple = m.FullTuple | m.KeyTuple
TupleT = TypeVar("TupleT", m.FullTuple, m.KeyTuple, Tuple)
_COMMIT = b"C"
_TAKEN = frozenset([b"B", b"I", b"U", b"D", _COMMIT])


class _UnusualError(Exception):
    """Something that is left to the columns."""


def fits_small_batch(frames: Sequence[bytes]) -> bool:
    """Say whether XLogData frames are so few that their batch's fixed cost outweighs their rows."""
    return len(frames) <= MOST_MESSAGES and sum(map(len, frames)) <= MOST_BYTES


def is_small(frames: Sequence[bytes]) -> bool:
    """Say whether these frames are few, and of kinds that are taken here."""
    return fits_small_batch(frames) and all(frame[MESSAGE_TAG] in _TAKEN for frame in frames)


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


def assemble(
    frames: Sequence[bytes], state: State, tables: Tables, *, boundaries: bool
) -> tuple[list[Slice], State] | None:
    """Decode what `is_small` takes, as `assemble.assemble` does; None for anything unusual."""
    if state.ended or state.limits.transactions is not None:
        return None
    commits = [at for at, frame in enumerate(frames) if frame[MESSAGE_TAG] == _COMMIT]
    cut = commits[-1] + 1 if commits else 0
    whole = _SliceBuilder(tables, state.limits, boundaries, state.open)
    try:
        whole.take(frames[:cut])
        rest = _SliceBuilder(tables, state.limits, boundaries, whole.open, whole.index)
        rest.take(frames[cut:])
    except (UndecodableError, _UnusualError):
        return None
    found = [whole.slice(), rest.slice()]
    filled = [one for one in found if one.edge or one.changes or one.boundaries]
    return filled, state._replace(open=rest.open)


@dataclass(slots=True)
class _SliceBuilder:
    """Gathers one slice; `open` is the transaction that is open behind it, `index` the next event's."""

    tables: Tables
    limits: DecodeLimits
    with_boundaries: bool
    open: OpenTransaction | None
    index: int = 0
    edge: Edge | None = None
    rows: dict[tuple[int, str, type], _Rows] = field(default_factory=dict)
    boundaries: list[TransactionBoundary] = field(default_factory=list)

    def take(self, frames: Sequence[bytes]) -> None:
        """Decode frames; UndecodableError or _UnusualError for what is left to the columns."""
        for frame in frames:
            self._take(decode(frame[XLOGDATA_HEADER:]), int.from_bytes(frame[START_LSN], "big", signed=True))

    def slice(self) -> Slice:
        """Put together what was taken."""
        changes = tuple(rows.batch() for rows in self.rows.values())
        return Slice(
            self.edge, changes, boundaries=(Boundaries.of(self.boundaries),) if self.boundaries else ()
        )

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
        until = self.limits.until
        ends = until is not None and message.final_lsn >= until
        if self.open is not None or ends or self._is_skipped(message.final_lsn):
            raise _UnusualError
        self.open = OpenTransaction(message.final_lsn, message.commit_time, message.xid, 0)
        self._boundary("B", self.open, lsn)

    def _commit(self, message: m.Commit) -> None:
        until, transaction = self.limits.until, self._inside()
        ends = until is not None and message.end_lsn >= until
        if ends or message.commit_lsn != transaction.commit_lsn:
            raise _UnusualError
        self._boundary("C", transaction, message.end_lsn)
        count = 1 if self.edge is None else self.edge.transactions + 1
        self.edge = Edge(message.commit_lsn, message.end_lsn, count, transaction.commit_ts)
        self.open = None

    def _inside(self) -> OpenTransaction:
        if self.open is None or self.open.origin is not None or self._is_skipped(self.open.commit_lsn):
            raise _UnusualError
        return self.open

    def _is_skipped(self, commit_lsn: int) -> bool:
        return commit_lsn < self.limits.skip_before

    def _boundary(self, kind: Literal["B", "C"], transaction: OpenTransaction, lsn: int) -> None:
        if self.with_boundaries:
            commit_lsn, commit_ts, xid, seq, _ = transaction
            stamp = Stamp(self._next_index(), Lsn(lsn), Lsn(commit_lsn), commit_ts, xid, seq)
            self.boundaries.append(TransactionBoundary(kind, stamp))

    def _next_index(self) -> int:
        self.index += 1
        return self.index - 1

    def _row(
        self, oid: int, operation: Operation, lsn: int, new: m.FullTuple | None, old: Tuple | None
    ) -> None:
        transaction, number = self._inside(), self.tables.current(oid)
        if number < 0:
            raise _UnusualError
        table = self.tables[number]
        kind = number, operation, type(old)
        rows = self.rows.get(kind) or self.rows.setdefault(kind, _Rows(table, operation))
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
        for column, value in zip(table.columns, image.values, strict=True):
            if not (column.replica_identity or isinstance(value, m.Null)):
                raise _UnusualError
    return image


def _full_image(tuples: Sequence[Tuple]) -> FullImage:
    columns = list(zip(*(one.values for one in tuples), strict=True))
    return FullImage(FewColumns([*map(_texts, columns)]), tuple(map(_unchanged, columns)))


def _old_image(table: TableSchema, tuples: Sequence[Tuple]) -> FullImage | KeyImage:
    if not isinstance(tuples[0], m.KeyTuple):
        return _full_image(tuples)
    columns = zip(*(one.values for one in tuples), strict=True)
    wanted = zip(table.columns, columns, strict=True)
    return KeyImage(
        FewColumns([_texts(values) if column.replica_identity else None for column, values in wanted])
    )


def _texts(values: Sequence[m.TupleValue]) -> ColumnTexts:
    return [value.data if isinstance(value, m.Text) else None for value in values]


def _unchanged(values: Sequence[m.TupleValue]) -> Booleans | None:
    if m.UnchangedToast not in map(type, values):
        return None
    return np.array([isinstance(value, m.UnchangedToast) for value in values])
