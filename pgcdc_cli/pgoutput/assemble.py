"""Assemble messages into slices of changes: a batch and the state before in, slices and the state after out.

Everything is computed for all messages of a batch at once: the transaction each belongs to, and whether it is
allowed there (`message_batch.py`), the version of its table (`relations.py`), its sequence number, and its
values (`decode_columns.py`). Only messages that aren't rows (relations, truncates, logical decoding messages)
are handled one by one. A few rows are decoded faster by `small_batch.py`, with the same state and slices.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

import numpy as np

from pgcdc_cli.changes.edge import Edge
from pgcdc_cli.changes.origin import Origin
from pgcdc_cli.changes.selection import Selected
from pgcdc_cli.changes.slice import (
    Boundaries,
    ChangeBatch,
    MessageChange,
    Slice,
    Stamp,
    Stamps,
    TruncateChange,
)
from pgcdc_cli.errors import UndecodableError
from pgcdc_cli.lsn import Lsn
from pgcdc_cli.pgoutput import small_batch
from pgcdc_cli.pgoutput.decode_columns import SMALLEST_ROW, RowMessages, Shape, decode_rows
from pgcdc_cli.pgoutput.message_batch import (
    IS_ROW,
    BatchTransactions,
    DecodeLimits,
    MessageBuffer,
    State,
    find_transactions,
    tag_mask,
)
from pgcdc_cli.pgoutput.messages import LogicalMessage, Relation, Tag, Truncate
from pgcdc_cli.pgoutput.relations import Tables
from pgcdc_cli.types.kernels import Int64s

_SHAPES = tuple(Shape)
_SHAPE_OF = np.full(1 << 16, -1, np.int64)
"""Index into `_SHAPES` by tag and tuple marker; -1 for other combinations."""
for _number, _shape in enumerate(_SHAPES):
    _SHAPE_OF[ord(_shape.operation) << 8 | ord(_shape.marker)] = _number


_IS_DEFINITION = tag_mask(Tag.RELATION, Tag.TYPE, Tag.ORIGIN)
_IS_OTHER_CHANGE = tag_mask(Tag.TRUNCATE, Tag.MESSAGE)
_IS_BOUNDARY = tag_mask(Tag.BEGIN, Tag.COMMIT)


class Assembler:
    """Assembles the batches of one connection; keeps its tables, and the state after the last batch.

    `boundaries`: slices include begins and commits. After an error the assembler can't be used any more.
    """

    def __init__(self, tables: Tables, limits: DecodeLimits, *, boundaries: bool) -> None:
        self.tables = tables
        self.skip_before = limits.skip_before
        self._boundaries = boundaries
        self._state = State(limits)

    @property
    def in_transaction(self) -> bool:
        """Whether a transaction is open: its Begin has come, its Commit hasn't."""
        return self._state.open is not None

    @property
    def ended(self) -> bool:
        """Whether a limit is reached; further messages are ignored."""
        return self._state.ended

    def take_end(self, lsn: Lsn, end_lsn: Lsn) -> bool:
        """Take the end of a transaction without changes into account; return whether it is wanted."""
        until = self._state.limits.until
        if until is not None and end_lsn >= until:
            self._state = self._state._replace(ended=True)
        return until is None or lsn < until

    def assemble(self, buffer: MessageBuffer) -> list[Slice]:
        """Decode messages as the function `assemble` does. Also raises what describing tables raises."""
        found, self._state = assemble(buffer, self._state, self.tables, boundaries=self._boundaries)
        return found

    def assemble_small(self, frames: Sequence[bytes]) -> list[Slice] | None:
        """Decode frames that `is_small` accepts; None if only `assemble` can."""
        taken = small_batch.assemble(frames, self._state, self.tables, boundaries=self._boundaries)
        if taken is None:
            return None
        found, self._state = taken
        return found


def assemble(
    buffer: MessageBuffer, state: State, tables: Tables, *, boundaries: bool
) -> tuple[list[Slice], State]:
    """Decode messages into at most two slices; return them and the state after the batch.

    The first slice ends at the last transaction edge, the second has the rest, of a transaction that is still
    open. A slice is left out if there is no edge, or no change after it. `tables` learn what the messages
    define.

    Raises UndecodableError, and returns nothing of the batch, for bytes that are no message, a message in the
    wrong place or not requested, and a row of an unknown relation or with other columns than its relation's.
    """
    if state.ended:
        return [], state
    transactions = find_transactions(buffer, state)
    contents = _read(buffer, transactions, tables, None if state.open is None else state.open.origin)
    at = np.flatnonzero(_IS_BOUNDARY[transactions.tags] & transactions.wanted & boundaries)
    numbers = _numbers(transactions, contents, at, 0 if state.open is None else state.open.seq)
    batch = _Batch(buffer, transactions, tables, contents, at, numbers)
    return batch.slices(), transactions.next_state(state, numbers.next_seq, contents.origins)


class _Contents(NamedTuple):
    """The content of the wanted messages of a batch.

    `rows` are the message numbers of its rows, `kinds` their tables and shapes, combined into one number.
    `truncates` and `messages` are decoded, each with its message number; `origins` are by transaction number.
    """

    rows: Int64s
    kinds: Int64s
    truncates: list[tuple[int, Truncate, list[Selected | None]]]
    messages: list[tuple[int, LogicalMessage]]
    origins: dict[int, Origin]


def _read(
    buffer: MessageBuffer, transactions: BatchTransactions, tables: Tables, origin: Origin | None
) -> _Contents:
    """Decode everything but rows, and find each row's table: the version of its OID at the row's place.

    `origin` is that of the transaction that was open before. Raises UndecodableError for a row or truncate of
    an unknown relation, and for bytes that are no message.
    """
    rows = np.flatnonzero(IS_ROW[transactions.tags] & transactions.wanted)
    shapes = _shapes(buffer, rows)
    oids = buffer.int32[rows]
    versions = _current(tables, oids)
    found = _Contents(rows, shapes, [], [], {} if origin is None else {0: origin})
    others = _IS_DEFINITION[transactions.tags] | (_IS_OTHER_CHANGE[transactions.tags] & transactions.wanted)
    decoded = [(number, buffer.decode(number)) for number in np.flatnonzero(others).tolist()]
    described = iter(tables.describe([message for _, message in decoded if isinstance(message, Relation)]))
    for number, message in decoded:
        if isinstance(message, Relation):
            tables.learn(message, next(described))
            later = int(np.searchsorted(rows, number))
            versions[later:][oids[later:] == message.oid] = tables.current(message.oid)
        elif isinstance(message, Truncate):
            truncated = [_known(buffer, number, tables, oid) for oid in message.relation_oids]
            found.truncates.append((number, message, truncated))
        elif isinstance(message, LogicalMessage):
            found.messages.append((number, message))
        elif isinstance(message, Origin):
            found.origins.setdefault(int(transactions.number[number]), tables.numbered(message))
    for unknown in np.flatnonzero(versions < 0)[:1].tolist():
        raise _unknown(buffer, int(rows[unknown]), int(oids[unknown]))
    return found._replace(kinds=versions * len(_SHAPES) + shapes)


def _shapes(buffer: MessageBuffer, rows: Int64s) -> Int64s:
    head = buffer.head[rows]
    shapes: Int64s = _SHAPE_OF[head >> 48 & 0xFF00 | head >> 16 & 0xFF]
    wrong = rows[(shapes < 0) | (buffer.sizes(rows) < SMALLEST_ROW)]
    for number in wrong[:1].tolist():
        message = buffer.decode(number)
        raise AssertionError(f"the decoders disagree on {message}")
    return shapes


def _current(tables: Tables, oids: Int64s) -> Int64s:
    """Return the numbers of the tables' current versions, by OID; -1 for an unknown OID."""
    known, which = np.unique(oids, return_inverse=True)
    found: Int64s = np.array([tables.current(oid) for oid in known.tolist()], np.int64)[which]
    return found


def _known(buffer: MessageBuffer, number: int, tables: Tables, oid: int) -> Selected | None:
    table = tables.current(oid)
    if table < 0:
        raise _unknown(buffer, number, oid)
    return tables.selected(table)


def _unknown(buffer: MessageBuffer, number: int, oid: int) -> UndecodableError:
    reason = f"no Relation message was received for OID {oid}"
    return buffer.error(number, f"could not assemble {buffer.title(number)} message: {reason}")


@dataclass(frozen=True, slots=True, eq=False)
class _Numbers:
    """For each message the index of its change in the batch, and its `seq` in the transaction.

    For a message of several changes they are those of the first one. `next_seq` is that of the next change of
    the transaction that is open after the batch.
    """

    index: Int64s
    seq: Int64s
    next_seq: int


def _numbers(
    transactions: BatchTransactions, contents: _Contents, boundaries: Int64s, first_seq: int
) -> _Numbers:
    """Number the changes; `first_seq` is the next number of the transaction that was open before."""
    changes = _counts(len(transactions), contents)
    before = np.cumsum(changes) - changes
    seq = before - np.append(-first_seq, before[transactions.begins])[transactions.number]
    next_seq = int(seq[-1] + changes[-1]) if len(changes) else first_seq
    changes[boundaries] = 1
    return _Numbers(np.cumsum(changes) - changes, seq, next_seq)


def _counts(messages: int, contents: _Contents) -> Int64s:
    """Return the number of changes in each message."""
    counts = np.zeros(messages, np.int64)
    counts[contents.rows] = 1
    for number, message, _ in contents.truncates:
        counts[number] = len(message.relation_oids)
    for number, _ in contents.messages:
        counts[number] = 1
    return counts


@dataclass(frozen=True, slots=True, eq=False)
class _Batch:
    """Everything known about a batch; `boundaries` are its Begin and Commit messages, if wanted."""

    buffer: MessageBuffer
    transactions: BatchTransactions
    tables: Tables
    contents: _Contents
    boundaries: Int64s
    numbers: _Numbers

    def slices(self) -> list[Slice]:
        """Return the slice up to the last edge and the open remainder, without empty ones."""
        ends = self.transactions.ends
        cut = int(ends[-1]) + 1 if len(ends) else 0
        found = [self._slice(0, cut, self._edge())] if cut else []
        rest = self._slice(cut, len(self.transactions), None)
        if rest.changes or rest.truncates or rest.messages or rest.boundaries:
            found.append(rest)
        return found

    def _edge(self) -> Edge:
        transactions = self.transactions
        ends = transactions.ends
        commit_lsn, end_lsn = int(transactions.commit_lsn[ends[-1]]), int(transactions.end_lsn(ends[-1:])[0])
        commits = ends[transactions.tags[ends] == Tag.COMMIT]
        commit_ts = int(transactions.commit_ts[commits[-1]]) if len(commits) else 0
        return Edge(Lsn(end_lsn), commit_lsn=Lsn(commit_lsn), transactions=len(ends), commit_ts=commit_ts)

    def _slice(self, start: int, stop: int, edge: Edge | None) -> Slice:
        return Slice(
            edge,
            tuple(self._changes(start, stop)),
            tuple(self._truncates(start, stop)),
            tuple(self._messages(start, stop)),
            tuple(self._boundaries(start, stop)),
        )

    def _changes(self, start: int, stop: int) -> Iterator[ChangeBatch]:
        """Decode the rows among messages `start` to `stop`, those of one table and shape together."""
        first, last = np.searchsorted(self.contents.rows, (start, stop)).tolist()
        if first == last:
            return
        rows, kinds = self.contents.rows[first:last], self.contents.kinds[first:last]
        order = np.argsort(kinds, kind="stable")
        firsts = np.flatnonzero(np.diff(kinds[order], prepend=-1))
        selections: list[Selected] = []
        groups: list[RowMessages] = []
        for some in np.split(order, firsts[1:]):
            number, shape = divmod(int(kinds[some[0]]), len(_SHAPES))
            selected = self.tables.selected(number)
            if selected is not None:
                selections.append(selected)
                reader = self.tables.reader(number)
                groups.append(RowMessages(rows[some], self.tables[number], _SHAPES[shape], reader))
        for images in decode_rows(self.buffer, groups) if groups else ():
            rows_of = groups[images.group]
            stamps = self._stamps(images.numbers)
            batch = ChangeBatch(rows_of.table, rows_of.shape.operation, stamps, images.new, images.old)
            yield selections[images.group].narrow(batch)

    def _truncates(self, start: int, stop: int) -> Iterator[TruncateChange]:
        for number, message, tables in self.contents.truncates:
            if start <= number < stop:
                for position, selected in enumerate(tables):
                    if selected is not None:
                        stamp = self._stamp(number, position)
                        yield TruncateChange(selected.table, stamp, message.cascade, message.restart_identity)

    def _messages(self, start: int, stop: int) -> Iterator[MessageChange]:
        for number, message in self.contents.messages:
            if start <= number < stop:
                stamp = self._stamp(number)
                if not message.transactional:
                    stamp = replace(stamp, commit_ts=None, xid=None, seq=0, origin=None)
                yield MessageChange(stamp, message.transactional, message.prefix, message.content)

    def _boundaries(self, start: int, stop: int) -> Iterator[Boundaries]:
        numbers = self.boundaries[slice(*np.searchsorted(self.boundaries, (start, stop)))]
        if len(numbers):
            begin, stamps = self.transactions.tags[numbers] == Tag.BEGIN, self._stamps(numbers)
            stamps.lsn[~begin] = self.transactions.end_lsn(numbers[~begin])
            yield Boundaries(np.where(begin, "B", "C"), stamps)

    def _stamps(self, numbers: Int64s) -> Stamps:
        transactions = self.transactions
        return Stamps(
            self.numbers.index[numbers],
            self.buffer.lsn[numbers],
            transactions.commit_lsn[numbers],
            transactions.commit_ts[numbers],
            transactions.xid[numbers],
            self.numbers.seq[numbers],
            *self._origins(transactions.number[numbers]),
        )

    def _origins(self, transactions: Int64s) -> tuple[Int64s | None, tuple[Origin, ...]]:
        origins = self.contents.origins
        if not origins:
            return None, ()
        known = np.array(list(origins), np.int64)
        found = np.full(int(max(known.max(), transactions.max())) + 1, -1, np.int64)
        found[known] = np.arange(len(known))
        return found[transactions], tuple(origins.values())

    def _stamp(self, number: int, position: int = 0) -> Stamp:
        """Stamp a message that is no row, or the change at a position in it."""
        transactions = self.transactions
        return Stamp(
            int(self.numbers.index[number]) + position,
            Lsn(int(self.buffer.lsn[number])),
            Lsn(int(transactions.commit_lsn[number])),
            int(transactions.commit_ts[number]),
            int(transactions.xid[number]),
            int(self.numbers.seq[number]) + position,
            self.contents.origins.get(int(transactions.number[number])),
        )
