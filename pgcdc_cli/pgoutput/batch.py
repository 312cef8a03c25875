"""One buffer of messages to slices: which table, number and stamp each change has."""

from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import partial

import numpy as np
import pyarrow as pa

from pgcdc_cli.errors import ErrorKind, PgcdcError, UndecodableError
from pgcdc_cli.lsn import Lsn
from pgcdc_cli.pgoutput.changes import (
    ChangeBatch,
    Edge,
    Int64s,
    Marks,
    MessageChange,
    Slice,
    Stamp,
    Stamps,
    TruncateChange,
)
from pgcdc_cli.pgoutput.columns import SMALLEST_ROW, Rows, Shape, decode_rows
from pgcdc_cli.pgoutput.messages import LogicalMessage, Origin, Relation, Tag, Truncate
from pgcdc_cli.pgoutput.outline import OpenTransaction, Outline
from pgcdc_cli.pgoutput.wire import Wire, tag_mask
from pgcdc_cli.table import TableSchema
from pgcdc_cli.types.send import has_reader, sends_binary, text_of

_SHAPES = tuple(Shape)
_SHAPE_OF = np.full(1 << 16, -1, np.int64)
"""By tag and marker: the shape's number."""
for _number, _shape in enumerate(_SHAPES):
    _SHAPE_OF[ord(_shape.operation) << 8 | ord(_shape.marker)] = _number


_IS_ROW = tag_mask(Tag.INSERT, Tag.UPDATE, Tag.DELETE)
_IS_DEFINITION = tag_mask(Tag.RELATION, Tag.TYPE, Tag.ORIGIN)
_IS_SINGLE = tag_mask(Tag.TRUNCATE, Tag.MESSAGE)
_IS_BOUND = tag_mask(Tag.BEGIN, Tag.COMMIT)


class Tables:
    """The tables that relation messages told of, numbered: one number for each distinct version.

    With `binary` each table's types must have a binary reader.
    """

    def __init__(self, describe: Callable[[Relation], TableSchema], *, binary: bool = False) -> None:
        self.binary = binary
        self._describe = describe
        self._numbers: dict[Relation, int] = {}
        self._tables: list[TableSchema] = []
        self._current: dict[int, int] = {}

    def __getitem__(self, number: int) -> TableSchema:
        return self._tables[number]

    def current(self, oid: int) -> int:
        """Return the number of the table that has this OID by now, or -1."""
        return self._current.get(oid, -1)

    def learn(self, relation: Relation) -> None:
        """Take over a relation message: it counts from here on."""
        table = self._describe(relation)
        if self.binary:
            _check_readers(table)
        known = self._numbers.get(relation)
        if known is None or (self._tables[known], self._tables[known].facts) != (table, table.facts):
            self._tables.append(table)
            self._numbers[relation] = len(self._tables) - 1
        self._current[relation.oid] = self._numbers[relation]


def _check_readers(table: TableSchema) -> None:
    for column in table.columns:
        if sends_binary(column.type) and not has_reader(column.type):
            raise PgcdcError(
                ErrorKind.PROTOCOL,
                f'could not read column "{column.name}" of table "{table.display}" in binary:'
                f" type {column.declared} has no binary reader",
                hint="leave out --binary",
            )


def _read(table: TableSchema, column: int, values: pa.BinaryArray) -> pa.BinaryArray:
    return text_of(table.columns[column].type, values)


class Batch:
    """The messages of one buffer that are wanted, up to the outline's stop.

    `origin` is the open transaction's. Raises UndecodableError for a row or truncate of an unknown relation,
    and for what is no message.
    """

    def __init__(self, wire: Wire, outline: Outline, tables: Tables, origin: Origin | None) -> None:
        self._wire = wire
        self._outline = outline
        self._tables = tables
        self._tags = outline.tags[: outline.stop]
        self._kept = outline.kept[: outline.stop]
        self._rows = np.flatnonzero(_IS_ROW[self._tags] & self._kept)
        self._truncates: list[tuple[int, Truncate, list[TableSchema]]] = []
        self._messages: list[tuple[int, LogicalMessage]] = []
        self._origins: dict[int, Origin] = {} if origin is None else {0: origin}
        shapes = self._shapes_of_rows()
        self._kind = self._tables_of_rows() * len(_SHAPES) + shapes

    def number(self, *, first_index: int, first_seq: int, marks: bool) -> int:
        """Count the changes; `first_seq` is the open transaction's. Returns the index after the last."""
        begins = self._outline.begins[self._outline.begins < self._outline.stop]
        changes = self._counts()
        before = np.cumsum(changes) - changes
        at_begin = np.append(-first_seq, before[begins])[self._outline.transaction[: len(before)]]
        self._seq = before - at_begin
        self._next_seq = int(self._seq[-1] + changes[-1]) if len(changes) else first_seq
        self._marks = np.flatnonzero(_IS_BOUND[self._tags] & self._kept) if marks else np.empty(0, np.int64)
        changes[self._marks] = 1
        places = np.cumsum(changes)
        self._index = first_index + places - changes
        return first_index + int(changes.sum())

    def open_transaction(self, before: OpenTransaction | None) -> OpenTransaction | None:
        """Return what is open behind the last message, if `before` was before the first."""
        outline = self._outline
        if not outline.open_at_stop():
            return None
        if not len(self._tags):
            return before
        last = len(self._tags) - 1
        commit_lsn, commit_ts, xid, transaction = (
            int(column[last])
            for column in (outline.commit_lsn, outline.commit_ts, outline.xid, outline.transaction)
        )
        return OpenTransaction(commit_lsn, commit_ts, xid, self._next_seq, self._origins.get(transaction))

    def slices(self) -> list[Slice]:
        """Up to the last edge, then the open remainder; without those in which nothing is."""
        edges, stop = self._outline.edges, len(self._tags)
        cut = int(edges[-1]) + 1 if len(edges) else 0
        found = [self._slice(0, cut, self._edge())] if cut else []
        rest = self._slice(cut, stop, None)
        if rest.changes or rest.truncates or rest.messages or rest.marks:
            found.append(rest)
        return found

    def _edge(self) -> Edge:
        edges = self._outline.edges
        last = int(edges[-1])
        commit_lsn = Lsn(int(self._outline.commit_lsn[last]))
        commits = edges[self._tags[edges] == Tag.COMMIT]
        commit_ts = int(self._outline.commit_ts[commits[-1]]) if len(commits) else 0
        return Edge(commit_lsn, Lsn(self._outline.end_lsn(last)), len(edges), commit_ts)

    def _slice(self, start: int, stop: int, edge: Edge | None) -> Slice:
        return Slice(
            edge,
            tuple(self._changes(start, stop)),
            tuple(self._truncate_changes(start, stop)),
            tuple(self._message_changes(start, stop)),
            tuple(self._transaction_marks(start, stop)),
        )

    def _tables_of_rows(self) -> Int64s:
        """Each row's table by number: what its OID meant where the row stood. Reads all that is no row."""
        oids = self._wire.head[self._rows] >> 24 & 0xFFFFFFFF
        known, which = np.unique(oids, return_inverse=True)
        tables: Int64s = np.array([self._tables.current(oid) for oid in known.tolist()], np.int64)[which]
        for number in np.flatnonzero(
            _IS_DEFINITION[self._tags] | (_IS_SINGLE[self._tags] & self._kept)
        ).tolist():
            message = self._wire.decode(number)
            if isinstance(message, Relation):
                self._tables.learn(message)
                behind = int(np.searchsorted(self._rows, number))
                tables[behind:][oids[behind:] == message.oid] = self._tables.current(message.oid)
            elif isinstance(message, Truncate):
                self._truncates.append(
                    (number, message, [self._known(number, oid) for oid in message.relation_oids])
                )
            elif isinstance(message, LogicalMessage):
                self._messages.append((number, message))
            elif isinstance(message, Origin):
                self._origins.setdefault(int(self._outline.transaction[number]), message)
        for unknown in np.flatnonzero(tables < 0)[:1].tolist():
            raise self._unknown(int(self._rows[unknown]), int(oids[unknown]))
        return tables

    def _known(self, number: int, oid: int) -> TableSchema:
        table = self._tables.current(oid)
        if table < 0:
            raise self._unknown(number, oid)
        return self._tables[table]

    def _unknown(self, number: int, oid: int) -> UndecodableError:
        title = Tag(int(self._tags[number])).title
        reason = f"no Relation message has come for OID {oid}"
        return self._wire.error(number, f"could not assemble {title} message: {reason}")

    def _shapes_of_rows(self) -> Int64s:
        head = self._wire.head[self._rows]
        shapes: Int64s = _SHAPE_OF[head >> 48 & 0xFF00 | head >> 16 & 0xFF]
        wrong = self._rows[(shapes < 0) | (self._wire.sizes(self._rows) < SMALLEST_ROW)]
        for number in wrong[:1].tolist():
            message = self._wire.decode(number)
            raise AssertionError(f"the decoders disagree on {message}")
        return shapes

    def _counts(self) -> Int64s:
        """How many changes each message makes."""
        counts = np.zeros(len(self._tags), np.int64)
        counts[self._rows] = 1
        for number, message, _ in self._truncates:
            counts[number] = len(message.relation_oids)
        for number, _ in self._messages:
            counts[number] = 1
        return counts

    def _changes(self, start: int, stop: int) -> Iterator[ChangeBatch]:
        """Decode the rows of some messages, those of one table and shape together."""
        first, last = np.searchsorted(self._rows, (start, stop)).tolist()
        if first == last:
            return
        rows, kind = self._rows[first:last], self._kind[first:last]
        order = np.argsort(kind, kind="stable")
        firsts = np.flatnonzero(np.diff(kind[order], prepend=-1))
        tables, groups = [], []
        for some in np.split(order, firsts[1:]):
            number, shape = divmod(int(kind[some[0]]), len(_SHAPES))
            tables.append(self._tables[number])
            read = partial(_read, tables[-1]) if self._tables.binary else None
            groups.append(Rows(rows[some], tables[-1].relation, _SHAPES[shape], read))
        for images in decode_rows(self._wire, groups):
            operation = groups[images.group].shape.operation
            yield ChangeBatch(
                tables[images.group], operation, self._stamps(images.numbers), images.new, images.old
            )

    def _stamps(self, numbers: Int64s) -> Stamps:
        outline = self._outline
        return Stamps(
            self._index[numbers],
            self._wire.lsn[numbers],
            outline.commit_lsn[numbers],
            outline.commit_ts[numbers],
            outline.xid[numbers],
            self._seq[numbers],
            *self._origins_of(outline.transaction[numbers]),
        )

    def _origins_of(self, transactions: Int64s) -> tuple[Int64s | None, tuple[Origin, ...]]:
        if not self._origins:
            return None, ()
        known = np.array(list(self._origins), np.int64)
        found = np.full(int(max(known.max(), transactions.max())) + 1, -1, np.int64)
        found[known] = np.arange(len(known))
        return found[transactions], tuple(self._origins.values())

    def _stamp(self, number: int, position: int = 0) -> Stamp:
        """Stamp one message that is no row, or the change at a position in it."""
        outline = self._outline
        return Stamp(
            int(self._index[number]) + position,
            Lsn(int(self._wire.lsn[number])),
            Lsn(int(outline.commit_lsn[number])),
            int(outline.commit_ts[number]),
            int(outline.xid[number]),
            int(self._seq[number]) + position,
            self._origins.get(int(outline.transaction[number])),
        )

    def _truncate_changes(self, start: int, stop: int) -> Iterator[TruncateChange]:
        for number, message, tables in self._truncates:
            if start <= number < stop:
                for position, table in enumerate(tables):
                    stamp = self._stamp(number, position)
                    yield TruncateChange(table, stamp, message.cascade, message.restart_identity)

    def _message_changes(self, start: int, stop: int) -> Iterator[MessageChange]:
        for number, message in self._messages:
            if start <= number < stop:
                stamp = self._stamp(number)
                if not message.transactional:
                    stamp = replace(stamp, commit_ts=None, xid=None, seq=0, origin=None)
                yield MessageChange(stamp, message.transactional, message.prefix, message.content)

    def _transaction_marks(self, start: int, stop: int) -> Iterator[Marks]:
        numbers = self._marks[slice(*np.searchsorted(self._marks, (start, stop)))]
        if len(numbers):
            begin, stamps = self._tags[numbers] == Tag.BEGIN, self._stamps(numbers)
            stamps.lsn[~begin] = self._outline.ends_of_commits(numbers[~begin])
            yield Marks(np.where(begin, "B", "C"), stamps)
