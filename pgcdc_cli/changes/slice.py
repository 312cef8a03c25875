"""What passes from assemble to format: the changes of whole or partial transactions, as columns.

A batch of frames becomes at most two slices: up to the last transaction edge in it, and the beginning of a
transaction that is still open. Inside a slice, rows of one table and one shape (operation, kind of old image)
stand together in one `ChangeBatch`, so that formats build each shape from one template. `index` says where
every row stood in the stream; no two events of a slice share one.

An image is full, key-only or absent, and its type says which: unchanged TOAST can't be mistaken for NULL, nor
a key image for a row.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any, Literal, NamedTuple

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from pgcdc_cli.changes.origin import Origin
from pgcdc_cli.changes.table import TableSchema
from pgcdc_cli.lsn import Lsn
from pgcdc_cli.types import kernels
from pgcdc_cli.types.kernels import Booleans, Int64s

Operation = Literal["I", "U", "D", "R"]
BoundaryKind = Literal["B", "C", "P", "K", "r"]
ColumnTexts = list[bytes | None]

_BINARY = pa.binary()


FEW_ROWS, FEW_BYTES = 96, 1 << 16
"""From about so many rows on columns are quicker than one row after the other.

And while Python writes a long value, no other thread tells the server that we live.
"""


class FewColumns(Sequence[Any]):
    """Columns of a few rows, None for one that is left out: lists of values, or parts of longer arrays.

    To make an Arrow array of a column takes longer than to write a few rows of it: one is made where it is
    asked for.
    """

    def __init__(self, columns: "Sequence[ColumnTexts | pa.BinaryArray | None]") -> None:
        self._columns = columns

    @cached_property
    def texts(self) -> Sequence[ColumnTexts | None]:
        """Give the lists of values."""
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
    """Give a column's values one by one; None for one that is left out."""
    if isinstance(columns, FewColumns):
        return columns.texts[index]
    column = columns[index]
    return None if column is None else column.to_pylist()


@dataclass(frozen=True, slots=True, eq=False)
class FullImage:
    """Whole rows: `columns[i]` has one wire-text value per row for the table's column i.

    A value is null where it is SQL NULL, and where the server did not send it (unchanged TOAST): there
    `unchanged[i]` is true. `unchanged[i]` is None for a column with no such row.
    """

    columns: Sequence[pa.BinaryArray]
    unchanged: tuple[Booleans | None, ...]

    @property
    def lacks_any(self) -> bool:
        """Whether there is a value that the server did not send."""
        return any(mask is not None and bool(mask.any()) for mask in self.unchanged)

    def where(self, kept: Booleans) -> "FullImage":
        """Give the rows that are kept."""
        unchanged = tuple(None if mask is None else mask[kept] for mask in self.unchanged)
        return FullImage(_columns_where(self.columns, kept), unchanged)


@dataclass(frozen=True, slots=True, eq=False)
class KeyImage:
    """Replica identity only: `columns[i]` is None for a column outside of it."""

    columns: Sequence[pa.BinaryArray | None]

    def where(self, kept: Booleans) -> "KeyImage":
        """Give the rows that are kept."""
        return KeyImage(_columns_where(self.columns, kept))


@dataclass(frozen=True, slots=True, eq=False)
class Stamps:
    """Where n changes stand in the stream and in history; every array has n elements.

    `lsn` is the start of the message's XLogData, `commit_lsn` the Begin's final LSN, `commit_ts` in
    microseconds since 1970-01-01 UTC, `seq` the change's number in its transaction. `origin` says by its
    number in `origins` where a change came from, -1 for this server; None where all are of this server.
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
        """Put stamps together; what is None becomes 0."""
        rows = [(s.index, s.lsn, s.commit_lsn, s.commit_ts or 0, s.xid or 0, s.seq) for s in stamps]
        origins = tuple({s.origin: None for s in stamps if s.origin is not None})
        numbers = [-1 if s.origin is None else origins.index(s.origin) for s in stamps]
        index, lsn, commit_lsn, commit_ts, xid, seq = np.array(rows, np.int64).reshape(-1, 6).T
        origin = np.array(numbers, np.int64) if origins else None
        return cls(index, lsn, commit_lsn, commit_ts, xid, seq, origin, origins)

    def where(self, kept: Booleans) -> "Stamps":
        """Give those of the changes that are kept."""
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
        """Give `origin`, also where all changes are of this server."""
        return np.full(len(self), -1, np.int64) if self.origin is None else self.origin

    def __len__(self) -> int:
        return len(self.index)

    def __iter__(self) -> "Iterator[Stamp]":
        """Give them one by one."""
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
    """Where a batch of snapshot rows stands: in which table, and whether it begins or ends that.

    Only where a table ends is it known to be the last one with rows. `incremental` ones are read while the
    table is streamed, and say nothing of that.
    """

    first_table: bool
    last_table: bool
    begins: bool
    ends: bool
    incremental: bool = False


@dataclass(frozen=True, slots=True, eq=False)
class ChangeBatch:
    """n changes of one table and one shape.

    Insert and snapshot rows have `new`, deletes `old`, updates `new` and sometimes `old`; a delete under
    replica identity NOTHING does not happen. `snapshot` is there for snapshot rows ("R") only.
    """

    table: TableSchema
    operation: Operation
    stamps: Stamps
    new: FullImage | None
    old: FullImage | KeyImage | None
    snapshot: SnapshotPosition | None = None

    @property
    def lacks_any(self) -> bool:
        """Whether there are rows with values that the server did not send."""
        return self.new is not None and self.new.lacks_any

    def where(self, kept: Booleans) -> "ChangeBatch":
        """Give the rows that are kept."""
        new = None if self.new is None else self.new.where(kept)
        old = None if self.old is None else self.old.where(kept)
        return replace(self, stamps=self.stamps.where(kept), new=new, old=old)

    def __len__(self) -> int:
        return len(self.stamps)


@dataclass(frozen=True, slots=True)
class Stamp:
    """Where one change stands, as in `Stamps`; `origin` is None for this server.

    `xid` and `commit_ts` are None for a message outside any transaction: the server gives it none.
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
    """A transaction's begin ("B"), commit ("C"), or what became of a prepared one.

    That is its prepare ("P"), and later its commit ("K") or rollback ("r"), where its changes were given out
    at the prepare. `stamp.lsn` is the start of the Begin's XLogData for "B", else the end LSN of the record;
    `stamp.seq` is the number of changes before the boundary. `gid` is there for prepared transactions only.
    """

    kind: BoundaryKind
    stamp: Stamp
    gid: str | None = None


@dataclass(frozen=True, slots=True, eq=False)
class Boundaries:
    """n boundaries as columns, in stream order; `kinds` are texts, and `gid` is the same for all."""

    kinds: NDArray[np.str_]
    stamps: Stamps
    gid: str | None = None

    @classmethod
    def of(cls, boundaries: Sequence[TransactionBoundary]) -> "Boundaries":
        """Put boundaries of one gid together."""
        stamps = Stamps.of([boundary.stamp for boundary in boundaries])
        kinds = np.array([boundary.kind for boundary in boundaries], np.str_)
        return cls(kinds, stamps, boundaries[0].gid if boundaries else None)

    def where(self, kept: Booleans) -> "Boundaries":
        """Give those that are kept."""
        return Boundaries(self.kinds[kept], self.stamps.where(kept), self.gid)

    def __len__(self) -> int:
        return len(self.kinds)

    def __iter__(self) -> Iterator[TransactionBoundary]:
        """Give them one by one."""
        for kind, stamp in zip(self.kinds.tolist(), self.stamps, strict=True):
            yield TransactionBoundary(kind, stamp, self.gid)


@dataclass(frozen=True, slots=True)
class Prepared:
    """A prepared transaction whose outcome is not known yet.

    Its messages are in the spool at `path` (relative, of `size` bytes with this CRC-32), which has to be
    durable before the server hears of the prepare's position; `path` is None where its changes were given out
    at the prepare.
    """

    xid: int
    gid: str
    prepare_lsn: Lsn
    path: str | None = None
    size: int = 0
    crc32: int = 0


class TableRead(NamedTuple):
    """A table, by OID, whose rows have all come, as of a position."""

    oid: int
    position: Lsn


RowKey = tuple[str, ...]
ResnapshotStage = Literal["reading", "moved", "done"]


@dataclass(frozen=True, slots=True)
class TableResnapshot:
    """How far a table (by OID, and by name for people) is read again.

    `rows` are read so far, in the order of `key`, up to the one with the key `after`, None before the first.
    `moved` are keys that rows came to without all of their values: these rows are to be read once more.
    `position` is where the stream has all that the last rows have. In stage "moved" all rows are read, but
    for those.
    """

    oid: int
    table: str
    key: RowKey
    rows: int = 0
    after: RowKey | None = None
    moved: tuple[RowKey, ...] = ()
    position: Lsn = Lsn(0)  # noqa: RUF009 - an int, immutable
    stage: ResnapshotStage = "reading"

    def anew(self, key: RowKey) -> "TableResnapshot":
        """Begin from the first row, by this key."""
        return replace(self, key=key, after=None, moved=(), stage="reading")


@dataclass(frozen=True, slots=True)
class Edge:
    """The end of a transaction: everything before it is whole.

    `commit_lsn` and `end_lsn` are those of the last transaction before it (0 and its own position where there
    is none, as at the end of a snapshot or a prepare); `transactions` counts those that ended in the slice,
    empty ones included; `commit_ts` is when the last of them committed (0 where all were messages outside of
    any). `prepared` are the transactions that are prepared here; None says that nothing changed. `read` is
    the table of a snapshot that ends here, where another run may go on after it. `resnapshots` are all
    tables that are read while they are streamed, as far as they are here; None says that nothing changed.
    """

    commit_lsn: Lsn
    end_lsn: Lsn
    transactions: int
    commit_ts: int = field(default=0, compare=False)
    prepared: tuple[Prepared, ...] | None = None
    read: TableRead | None = None
    resnapshots: tuple[TableResnapshot, ...] | None = None


class LastCommit(NamedTuple):
    """The last transaction before a position; `commit_ts` is in microseconds since 1970, 0 for none."""

    end_lsn: Lsn
    commit_ts: int

    @classmethod
    def after(cls, before: "LastCommit | None", edge: Edge) -> "LastCommit":
        """Go on to an edge; a message outside of transactions has no time of its own."""
        return cls(edge.end_lsn, edge.commit_ts or (0 if before is None else before.commit_ts))


class EmptyTable(NamedTuple):
    """A table that has no rows as of a position, where a snapshot read it."""

    table: TableSchema
    position: Lsn


@dataclass(frozen=True, slots=True, eq=False)
class Slice:
    """Changes in stream order by `index`; `edge` is None while the last transaction is open.

    `gid` is there where all of it is one transaction that was prepared under this name.
    """

    edge: Edge | None
    changes: tuple[ChangeBatch, ...] = ()
    truncates: tuple[TruncateChange, ...] = ()
    messages: tuple[MessageChange, ...] = ()
    boundaries: tuple[Boundaries, ...] = ()
    gid: str | None = None
    empty_tables: tuple[EmptyTable, ...] = ()
