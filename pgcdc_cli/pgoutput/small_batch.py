"""Small batches: a few rows of known tables, decoded one by one.

The columnar decoder takes half a millisecond for any batch, and a stream that keeps up with its server has a
batch for every few rows. For the same messages and state, this module returns the slices and state that
`assemble.py` would. It handles only begins, commits and rows; whatever is unusual or wrong is left to the
columnar decoder.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from types import EllipsisType  # noqa: TC003 - a part of the alias
from typing import Literal, TypeAlias

import numpy as np

from pgcdc_cli.changes.edge import Edge
from pgcdc_cli.changes.selection import Selected
from pgcdc_cli.changes.slice import (
    Boundaries,
    ChangeBatch,
    ColumnTexts,
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
from pgcdc_cli.frames import MESSAGE_TAG, START_LSN, XLOGDATA_HEADER, Frames
from pgcdc_cli.lsn import Lsn
from pgcdc_cli.pgoutput import messages as m
from pgcdc_cli.pgoutput.decode import decode
from pgcdc_cli.pgoutput.message_batch import DecodeLimits, OpenTransaction, State
from pgcdc_cli.pgoutput.relations import Tables
from pgcdc_cli.types.kernels import Booleans

MOST_MESSAGES, MOST_BYTES = 96, 1 << 16
"""The largest small batch: beyond about this size the columnar decoder is faster."""

_BEGIN, _COMMIT, _NEW = b"B", b"C", b"N"
_TAKEN = frozenset([_BEGIN, b"I", b"U", b"D", _COMMIT])
_KINDS: dict[bytes, Operation] = {
    b"IN": "I",
    b"UN": "U",
    b"UK": "U",
    b"UO": "U",
    b"DK": "D",
    b"DO": "D",
}
"""Operations by a row message's tag and the marker of its first tuple."""

_OID = slice(XLOGDATA_HEADER + 1, XLOGDATA_HEADER + 5)
_MARKER = slice(_OID.stop, _OID.stop + 1)


class _LeftToColumnsError(Exception):
    """The batch has something that only the columnar decoder handles."""


def fits_small_batch(frames: Frames) -> bool:
    """Whether XLogData frames are so few that the fixed cost of a batch outweighs their rows."""
    return len(frames) <= MOST_MESSAGES and frames.size <= MOST_BYTES


def is_small(frames: Frames) -> bool:
    """Whether frames are few, and all of kinds that this module handles."""
    return fits_small_batch(frames) and all(frame[MESSAGE_TAG] in _TAKEN for frame in frames)


_Value: TypeAlias = "bytes | EllipsisType | None"
"""A text value, None for NULL, `...` for unchanged TOAST, which was not sent."""


@dataclass(slots=True)
class _DecodedRows:
    """Rows of one table and shape; a stamp has the first six fields of `Stamps`, `index` to `seq`."""

    table: TableSchema
    selected: Selected
    operation: Operation
    old_is_key: bool
    stamps: list[tuple[int, int, int, int, int, int]] = field(default_factory=list)
    new: list[list[_Value]] = field(default_factory=list)
    old: list[list[_Value]] = field(default_factory=list)

    @classmethod
    def of(cls, table: TableSchema, selected: Selected, kind: bytes) -> "_DecodedRows":
        """Begin with rows whose messages have this tag and marker.

        Raises _LeftToColumnsError for an unknown combination.
        """
        if kind not in _KINDS:
            raise _LeftToColumnsError
        return cls(table, selected, _KINDS[kind], kind[1:] == b"K")

    def batch(self) -> ChangeBatch:
        stamps = np.array(self.stamps, np.int64).T
        new = _full_image(self.new) if self.new else None
        image = _key_image(self.table, self.old) if self.old_is_key else _full_image(self.old)
        old = image if self.old else None
        return self.selected.narrow(ChangeBatch(self.table, self.operation, Stamps(*stamps), new, old))


def assemble(
    frames: Sequence[bytes], state: State, tables: Tables, *, boundaries: bool
) -> tuple[list[Slice], State] | None:
    """Decode frames that `is_small` accepts, as `assemble.assemble` does; None for anything unusual."""
    if state.ended or state.limits.transactions is not None:
        return None
    frames = list(frames)
    commits = [at for at, frame in enumerate(frames) if frame[MESSAGE_TAG] == _COMMIT]
    cut = commits[-1] + 1 if commits else 0
    whole = _SliceBuilder(tables, state.limits, boundaries, state.open)
    try:
        whole.take(frames[:cut])
        rest = _SliceBuilder(tables, state.limits, boundaries, whole.open, whole.index)
        rest.take(frames[cut:])
    except (UndecodableError, _LeftToColumnsError):
        return None
    found = [whole.slice(), rest.slice()]
    filled = [one for one in found if one.edge or one.changes or one.boundaries]
    return filled, state._replace(open=rest.open)


@dataclass(slots=True)
class _SliceBuilder:
    """Builds one slice; `open` is the transaction that is open after it, `index` that of the next event."""

    tables: Tables
    limits: DecodeLimits
    with_boundaries: bool
    open: OpenTransaction | None
    index: int = 0
    edge: Edge | None = None
    rows: dict[tuple[int, bytes], _DecodedRows] = field(default_factory=dict)
    boundaries: list[TransactionBoundary] = field(default_factory=list)

    def take(self, frames: Sequence[bytes]) -> None:
        """Decode frames. Raises UndecodableError or _LeftToColumnsError for what is left to the columns."""
        for frame in frames:
            lsn, tag = int.from_bytes(frame[START_LSN], "big", signed=True), frame[MESSAGE_TAG]
            if lsn < 0:
                raise _LeftToColumnsError
            if tag == _BEGIN:
                self._begin(decode(frame[XLOGDATA_HEADER:]), lsn)
            elif tag == _COMMIT:
                self._commit(decode(frame[XLOGDATA_HEADER:]))
            else:
                self._row(frame, lsn)

    def slice(self) -> Slice:
        """Make a slice of what was decoded."""
        changes = tuple(rows.batch() for rows in self.rows.values())
        return Slice(
            self.edge, changes, boundaries=(Boundaries.of(self.boundaries),) if self.boundaries else ()
        )

    def _begin(self, message: m.Message, lsn: int) -> None:
        assert isinstance(message, m.Begin)
        until = self.limits.until
        ends = until is not None and message.final_lsn >= until
        if self.open is not None or ends or self._is_skipped(message.final_lsn):
            raise _LeftToColumnsError
        self.open = OpenTransaction(message.final_lsn, message.commit_time, message.xid, 0)
        self._boundary("B", self.open, lsn)

    def _commit(self, message: m.Message) -> None:
        assert isinstance(message, m.Commit)
        until, transaction = self.limits.until, self._inside()
        ends = until is not None and message.end_lsn >= until
        if ends or message.commit_lsn != transaction.commit_lsn:
            raise _LeftToColumnsError
        self._boundary("C", transaction, message.end_lsn)
        count = 1 if self.edge is None else self.edge.transactions + 1
        self.edge = Edge(
            message.end_lsn,
            commit_lsn=message.commit_lsn,
            transactions=count,
            commit_ts=transaction.commit_ts,
        )
        self.open = None

    def _inside(self) -> OpenTransaction:
        if self.open is None or self.open.origin is not None or self._is_skipped(self.open.commit_lsn):
            raise _LeftToColumnsError
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

    def _row(self, frame: bytes, lsn: int) -> None:
        transaction, number = self._inside(), self.tables.current(int.from_bytes(frame[_OID], "big"))
        if number < 0:
            raise _LeftToColumnsError
        commit_lsn, commit_ts, xid, seq, _ = transaction
        stamp = (self._next_index(), lsn, commit_lsn, commit_ts, xid, seq)
        self.open = transaction._replace(seq=seq + 1)
        selected = self.tables.selected(number)
        if selected is None:
            return
        table, kind = self.tables[number], frame[MESSAGE_TAG] + frame[_MARKER]
        rows = self.rows.get((number, kind))
        if rows is None:
            rows = self.rows[number, kind] = _DecodedRows.of(table, selected, kind)
        old, new = _read_row(frame, kind, len(table.columns))
        if old is not None:
            rows.old.append(_checked_key(table, old) if rows.old_is_key else old)
        if new is not None:
            rows.new.append(new)
        rows.stamps.append(stamp)


def _read_row(frame: bytes, kind: bytes, columns: int) -> tuple[list[_Value] | None, list[_Value] | None]:
    """Read a row's old and new values, None for a missing tuple."""
    old, at = None, _MARKER.start
    try:
        if kind[1:] != _NEW:
            old, at = _read_values(frame, at + 1, columns)
        if kind[:1] == b"D":
            new = None
        elif frame[at : at + 1] == _NEW:
            new, at = _read_values(frame, at + 1, columns)
        else:
            raise _LeftToColumnsError
    except IndexError:
        raise _LeftToColumnsError from None
    if at != len(frame):
        raise _LeftToColumnsError
    return old, new


def _read_values(data: bytes, at: int, columns: int) -> tuple[list[_Value], int]:
    """Read a tuple of text values; return it and its end, which is beyond truncated data."""
    if int.from_bytes(data[at : at + 2], "big") != columns:
        raise _LeftToColumnsError
    at += 2
    values: list[_Value] = []
    for _ in range(columns):
        kind = data[at]
        at += 1
        if kind == m.TEXT:
            start = at + 4
            at = start + int.from_bytes(data[at:start], "big")
            values.append(data[start:at])
        elif kind == m.NULL:
            values.append(None)
        elif kind == m.UNCHANGED_TOAST:
            values.append(...)
        else:
            raise _LeftToColumnsError
    return values, at


def _checked_key(table: TableSchema, values: list[_Value]) -> list[_Value]:
    """Return a key tuple's values, if those of columns outside of the key are NULL."""
    for column, value in zip(table.columns, values, strict=True):
        if value is ... or (value is not None and not column.in_replica_identity):
            raise _LeftToColumnsError
    return values


def _full_image(rows: Sequence[Sequence[_Value]]) -> FullImage:
    columns = list(zip(*rows, strict=True))
    return FullImage(FewColumns([*map(_texts, columns)]), tuple(map(_unchanged, columns)))


def _key_image(table: TableSchema, rows: Sequence[Sequence[_Value]]) -> KeyImage:
    columns = zip(table.columns, zip(*rows, strict=True), strict=True)
    return KeyImage(
        FewColumns([_texts(values) if column.in_replica_identity else None for column, values in columns])
    )


def _texts(values: Sequence[_Value]) -> ColumnTexts:
    return [None if value is ... else value for value in values]


def _unchanged(values: Sequence[_Value]) -> Booleans | None:
    return np.array([value is ... for value in values]) if ... in values else None
