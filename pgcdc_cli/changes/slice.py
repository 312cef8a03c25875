"""Slices: the changes of whole or partial transactions, as columns; what assemble passes to format.

A batch of frames becomes at most two slices: one up to its last transaction edge, and one with the beginning
of a transaction that is still open. Within a slice, rows of one table and one shape (operation, kind of old
image) are together in one `ChangeBatch`, so that formats build each shape from one template. `index` is the
position of each event in the stream; no two events of a slice share one.

An image is full, key-only or absent, and its type says which: unchanged TOAST can't be mistaken for NULL, nor
a key image for a row.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, Literal, NamedTuple, TypeAlias

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from pgcdc_cli.changes.edge import Edge
from pgcdc_cli.changes.origin import Origin
from pgcdc_cli.changes.table import TableSchema
from pgcdc_cli.lsn import Lsn
from pgcdc_cli.types import kernels
from pgcdc_cli.types.kernels import Booleans, Int64s

Operation = Literal["I", "U", "D", "R"]
BoundaryKind = Literal["B", "C", "P", "K", "r"]
ColumnTexts = list[bytes | None]

INVALID_XID = 0
"""`InvalidTransactionId` in access/transam.h: the xid of snapshot rows."""

_BINARY = pa.binary()

FEW_ROWS, FEW_BYTES = 96, 1 << 16
"""The largest batch that is formatted row by row: beyond it columns are faster.

The limit in bytes also keeps the feedback thread going, which can't run while Python writes a long value.
"""


class FewColumns(Sequence[Any]):
    """Columns of a few rows: lists of values, or slices of longer arrays; None for a column that is left out.

    Making an Arrow array of a column takes longer than formatting a few rows, so indexing makes it on demand.
    """

    def __init__(self, columns: "Sequence[ColumnTexts | pa.BinaryArray | None]") -> None:
        self._columns = columns

    @cached_property
    def texts(self) -> Sequence[ColumnTexts | None]:
        """The columns as lists of values."""
        return [column.to_pylist() if isinstance(column, pa.Array) else column for column in self._columns]

    def __len__(self) -> int:
        return len(self._columns)

    def __getitem__(self, index: Any) -> Any:  # noqa: ANN401 - of a sequence of arrays
        column = self._columns[index]
        if column is None:
            return None
        return kernels.concat([column]) if isinstance(column, pa.Array) else pa.array(column, _BINARY)


def _columns_where(columns: Sequence[pa.BinaryArray | None], kept: Booleans) -> Sequence[Any]:
    numbers = np.flatnonzero(kept)
    if isinstance(columns, FewColumns):
        return FewColumns(
            [None if texts is None else [texts[number] for number in numbers] for texts in columns.texts]
        )
    return tuple(None if column is None else kernels.take(column, numbers) for column in columns)


def texts_of(columns: Sequence[pa.BinaryArray | None], index: int) -> ColumnTexts | None:
    """Return a column as a list of values; None if the column is left out."""
    if isinstance(columns, FewColumns):
        return columns.texts[index]
    column = columns[index]
    return None if column is None else column.to_pylist()


@dataclass(frozen=True, slots=True, eq=False)
class FullImage:
    """Whole rows: `columns[i]` has one value per row of the table's column i, in PostgreSQL's text format.

    A format that takes typed columns may get them in their Arrow types instead (rows of a snapshot).

    A value is null if it is SQL NULL, or if the server did not send it (unchanged TOAST); only in the second
    case is the mask `unchanged[i]` true. `unchanged[i]` is None if all rows have the column's value.
    """

    columns: Sequence[pa.BinaryArray]
    unchanged: tuple[Booleans | None, ...]

    @property
    def lacks_any(self) -> bool:
        """Whether the server left out any value (unchanged TOAST)."""
        return any(mask is not None and bool(mask.any()) for mask in self.unchanged)

    def unchanged_in(self, index: int) -> Booleans | None:
        """Mark the rows whose value of a column was not sent; None if all were."""
        return self.unchanged[index]

    def where(self, kept: Booleans) -> "FullImage":
        """Return only the rows where `kept` is true."""
        unchanged = tuple(None if mask is None else mask[kept] for mask in self.unchanged)
        return FullImage(_columns_where(self.columns, kept), unchanged)


@dataclass(frozen=True, slots=True, eq=False)
class KeyImage:
    """The replica identity's values of rows: `columns[i]` is None for a column that isn't part of it."""

    columns: Sequence[pa.BinaryArray | None]

    def unchanged_in(self, index: int) -> None:
        """Return None: a replica identity is always sent whole."""

    def where(self, kept: Booleans) -> "KeyImage":
        """Return only the rows where `kept` is true."""
        return KeyImage(_columns_where(self.columns, kept))


Image: TypeAlias = FullImage | KeyImage


@dataclass(frozen=True, slots=True, eq=False)
class Stamps:
    """The positions of n changes in the stream and in history; every array has n elements.

    `lsn` is the start LSN of the message's XLogData, `commit_lsn` the final LSN of the transaction's Begin,
    `commit_ts` is in microseconds since 1970-01-01 UTC, `seq` numbers the changes of a transaction from 0.
    `origin` holds indexes into `origins`, -1 for a change made on this server; None if all were made on it.
    """

    index: Int64s
    lsn: Int64s
    commit_lsn: Int64s
    commit_ts: Int64s
    xid: Int64s
    seq: Int64s
    origin: Int64s | None = None
    origins: tuple[Origin, ...] = ()

    @classmethod
    def of(cls, stamps: Sequence["Stamp"]) -> "Stamps":
        """Make columns of stamps; a `commit_ts` or `xid` of None becomes 0."""
        rows = [(s.index, s.lsn, s.commit_lsn, s.commit_ts or 0, s.xid or 0, s.seq) for s in stamps]
        origins = tuple({s.origin: None for s in stamps if s.origin is not None})
        numbers = [-1 if s.origin is None else origins.index(s.origin) for s in stamps]
        index, lsn, commit_lsn, commit_ts, xid, seq = np.array(rows, np.int64).reshape(-1, 6).T
        origin = np.array(numbers, np.int64) if origins else None
        return cls(index, lsn, commit_lsn, commit_ts, xid, seq, origin, origins)

    def where(self, kept: Booleans) -> "Stamps":
        """Return only the stamps where `kept` is true."""
        return replace(
            self,
            index=self.index[kept],
            lsn=self.lsn[kept],
            commit_lsn=self.commit_lsn[kept],
            commit_ts=self.commit_ts[kept],
            xid=self.xid[kept],
            seq=self.seq[kept],
            origin=None if self.origin is None else self.origin[kept],
        )

    @property
    def origin_places(self) -> Int64s:
        """`origin` as an array in any case: all -1 if every change was made on this server."""
        return np.full(len(self), -1, np.int64) if self.origin is None else self.origin

    def __len__(self) -> int:
        return len(self.index)

    def __iter__(self) -> "Iterator[Stamp]":
        """Iterate over the stamps."""
        columns = (
            self.index,
            self.lsn,
            self.commit_lsn,
            self.commit_ts,
            self.xid,
            self.seq,
            self.origin_places,
        )
        known = (*self.origins, None)
        for index, lsn, commit_lsn, commit_ts, xid, seq, number in zip(
            *(column.tolist() for column in columns), strict=True
        ):
            yield Stamp(index, Lsn(lsn), Lsn(commit_lsn), commit_ts, xid, seq, known[number])


@dataclass(frozen=True, slots=True)
class SnapshotPosition:
    """The place of a batch of snapshot rows: in the first or last table, at that table's beginning or end.

    `last_table` is the last one that has rows, which is known only in the batch that ends a table.
    `incremental` rows are read while their table is streamed; for them the other fields are false.
    """

    first_table: bool
    last_table: bool
    begins: bool
    ends: bool
    incremental: bool = False


@dataclass(frozen=True, slots=True, eq=False)
class ChangeBatch:
    """n changes of one table and one shape.

    Inserts and snapshot rows ("R") have `new`, deletes `old`, updates `new` and sometimes `old`. The server
    publishes no delete under replica identity NOTHING. Only snapshot rows have a `snapshot`.
    """

    table: TableSchema
    operation: Operation
    stamps: Stamps
    new: FullImage | None
    old: Image | None
    snapshot: SnapshotPosition | None = None

    @property
    def lacks_any(self) -> bool:
        """Whether the server left out any new value (unchanged TOAST)."""
        return self.new is not None and self.new.lacks_any

    def where(self, kept: Booleans) -> "ChangeBatch":
        """Return only the changes where `kept` is true."""
        new = None if self.new is None else self.new.where(kept)
        old = None if self.old is None else self.old.where(kept)
        return replace(self, stamps=self.stamps.where(kept), new=new, old=old)

    def __len__(self) -> int:
        return len(self.stamps)


@dataclass(frozen=True, slots=True)
class Stamp:
    """The position of one change, as in `Stamps`; `origin` is None for a change made on this server.

    `xid` and `commit_ts` are None for a non-transactional message: the server sends none.
    """

    index: int
    lsn: Lsn
    commit_lsn: Lsn
    commit_ts: int | None
    xid: int | None
    seq: int
    origin: Origin | None = None


@dataclass(frozen=True, slots=True)
class TruncateChange:
    """One table of a TRUNCATE."""

    table: TableSchema
    stamp: Stamp
    cascade: bool
    restart_identity: bool


@dataclass(frozen=True, slots=True)
class MessageChange:
    """A logical decoding message (`pg_logical_emit_message`)."""

    stamp: Stamp
    transactional: bool
    prefix: str
    content: bytes


@dataclass(frozen=True, slots=True)
class TransactionBoundary:
    """A transaction's begin ("B") or commit ("C"), or the steps of a two-phase commit.

    These are prepare ("P"), commit prepared ("K") and rollback prepared ("r"), used if changes are written at
    the prepare. `stamp.lsn` is the start LSN of the Begin's XLogData for "B", else the end LSN of the record;
    `stamp.seq` is the number of changes before the boundary. Only prepared transactions have a `gid`.
    """

    kind: BoundaryKind
    stamp: Stamp
    gid: str | None = None


@dataclass(frozen=True, slots=True, eq=False)
class Boundaries:
    """n boundaries as columns, in stream order; all have the same `gid`."""

    kinds: NDArray[np.str_]
    stamps: Stamps
    gid: str | None = None

    @classmethod
    def of(cls, boundaries: Sequence[TransactionBoundary]) -> "Boundaries":
        """Make columns of boundaries that have one gid."""
        stamps = Stamps.of([boundary.stamp for boundary in boundaries])
        kinds = np.array([boundary.kind for boundary in boundaries], np.str_)
        return cls(kinds, stamps, boundaries[0].gid if boundaries else None)

    def where(self, kept: Booleans) -> "Boundaries":
        """Return only the boundaries where `kept` is true."""
        return Boundaries(self.kinds[kept], self.stamps.where(kept), self.gid)

    def __len__(self) -> int:
        return len(self.kinds)

    def __iter__(self) -> Iterator[TransactionBoundary]:
        """Iterate over the boundaries."""
        for kind, stamp in zip(self.kinds.tolist(), self.stamps, strict=True):
            yield TransactionBoundary(kind, stamp, self.gid)


class EmptyTable(NamedTuple):
    """A table that has no rows as of a position, where a snapshot read it."""

    table: TableSchema
    position: Lsn


@dataclass(frozen=True, slots=True, eq=False)
class Slice:
    """Changes, whose `index` gives their order in the stream; `edge` is None if the last transaction is open.

    `gid` is set if the whole slice belongs to one transaction that was prepared under this identifier.
    """

    edge: Edge | None
    changes: tuple[ChangeBatch, ...] = ()
    truncates: tuple[TruncateChange, ...] = ()
    messages: tuple[MessageChange, ...] = ()
    boundaries: tuple[Boundaries, ...] = ()
    gid: str | None = None
    empty_tables: tuple[EmptyTable, ...] = ()
