"""Debezium's events, one record per line: `{"topic","key","value","headers"}`, or just the value.

The reference is Debezium 2.5.4's PostgreSQL connector with pgoutput and Kafka's JsonConverter; with
`debezium.version=3.4`, the envelope is that of 3.4.3.
"""

import time
import uuid
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import lru_cache
from typing import ClassVar, Literal, Self

import numpy as np
import pyarrow as pa

from pgcdc_cli.changes.edge import LastCommit
from pgcdc_cli.changes.slice import Boundaries, ChangeBatch, MessageChange, Slice, Stamps, TruncateChange
from pgcdc_cli.changes.table import MANY_TABLES, TableSchema
from pgcdc_cli.formats.debezium import events
from pgcdc_cli.formats.debezium.connector_config import ConnectorConfig
from pgcdc_cli.formats.debezium.event_sequence import (
    MESSAGE_COLLECTION,
    EventCounts,
    EventSequence,
    EventSequenceState,
    TransactionCounts,
)
from pgcdc_cli.formats.debezium.event_table import EventTable, described, event_table
from pgcdc_cli.formats.debezium.events import event_counts, few_lines, row_lines, row_template
from pgcdc_cli.formats.debezium.losses import LOSSES, Losses
from pgcdc_cli.formats.debezium.record import EventOrders, Handled, Positions, RunContext, handled
from pgcdc_cli.formats.debezium.transformed_records import row_records
from pgcdc_cli.formats.encoded_rows import (
    LINES,
    MESSAGES,
    SUFFIXES,
    Encoded,
    EncodedLines,
    Lines,
    compress,
    joined_lines,
    not_empty,
    piece_of_empty,
    tables_of,
)
from pgcdc_cli.formats.interface import (
    Capabilities,
    Compression,
    Data,
    EncodedSlice,
    Layout,
    Piece,
    TableLists,
)
from pgcdc_cli.lsn import Lsn
from pgcdc_cli.types import kernels
from pgcdc_cli.types.kernels import Fragment, Int64s

TRANSACTIONS = "_transaction"
HEARTBEATS = "_heartbeat"
_CODES = {"I": "c", "U": "udc", "D": "d", "R": "r"}
"""Debezium's operations for a change; an update of the key is a delete and a create."""
_NEWLINE = 0x0A


@dataclass(slots=True)
class DebeziumFormat:
    """Writes Debezium's events; needs begins and commits in its slices, and a `restart` before the first."""

    name: ClassVar[str] = "debezium"
    tail: ClassVar[None] = None
    capabilities: ClassVar[Capabilities] = Capabilities(
        ("table", "stream"), ("none", "gzip", "zstd"), invalid_text="replace"
    )
    decodes: ClassVar[Literal[True]] = True
    wants_boundaries: ClassVar[bool] = True

    config: ConnectorConfig
    layout: Layout = "table"
    compression: Compression = "none"
    values_only: bool = False
    _state: EventSequenceState = field(default_factory=EventSequenceState, init=False)
    _context: RunContext = field(init=False)
    _reported: set[tuple[str, ...]] = field(default_factory=set, init=False)
    _reported_at_edge: frozenset[tuple[str, ...]] = field(default=frozenset(), init=False)

    def __post_init__(self) -> None:
        self._context = RunContext(self.config, "", self.values_only, str(uuid.uuid4()))

    @property
    def suffix(self) -> str:
        return ".jsonl" + SUFFIXES[self.compression]

    @property
    def restartable(self) -> Self:
        return self

    @property
    def table_lists(self) -> TableLists:
        return self.config.table_lists

    def restart(self, database: str, last_commit: LastCommit | None) -> None:
        """Go back to the last edge; `last_commit` is the last transaction before it, or None.

        `database` is the value of `source.db`.
        """
        self._context = replace(self._context, database=database)
        # Each connection makes new table objects; to find them in these caches would compare every column.
        event_table.cache_clear()
        row_template.cache_clear()
        self._reported = set(self._reported_at_edge)
        self._state = EventSequenceState() if last_commit is None else EventSequenceState(*last_commit)

    def encode(self, slice_: Slice) -> EncodedSlice:
        """Encode a slice's events. Raises PgcdcError (PROTOCOL) for invalid UTF-8."""
        now = time.time_ns()
        sequence = EventSequence(slice_, self._state)
        changes = list(self._wanted(slice_))
        messages = [message for message in slice_.messages if self.config.includes_message(message.prefix)]
        orders, totals = self._count(changes, messages, sequence)
        encoded: list[EncodedLines] = []
        at = handled(now)
        for change, order in zip(changes, orders, strict=False):
            if isinstance(change, ChangeBatch):
                encoded += self._rows(change, sequence, order, at)
            else:
                encoded += self._truncate(change, sequence.position(change.stamp, order), at)
        encoded += self._messages(messages, orders[len(changes) :], sequence, now)
        if totals is not None:
            encoded += self._transactions(sequence.boundaries, totals)
        encoded += self._skipped(slice_)
        self._state = sequence.after
        if slice_.edge is not None and len(self._reported) > len(self._reported_at_edge):
            self._reported_at_edge = frozenset(self._reported)
        several = bool(self.config.transforms) or any(b.operation in "UD" for b in slice_.changes)
        pieces = [_piece(lines, several=several) for lines in LINES.in_order(encoded)]
        pieces += self._empty(slice_)
        return EncodedSlice(tuple(pieces), slice_.edge, tuple(map(self._described, tables_of(slice_))))

    def frame(self, data: Sequence[Data]) -> bytes | memoryview | pa.Buffer:
        """Join lines; with a compression, compress them into one frame."""
        return compress(data, self.compression)

    def heartbeat(self, commit_lsn: Lsn) -> EncodedSlice:
        """Build a heartbeat record, to be written at a transaction edge."""
        line = events.heartbeat(self._context, time.time_ns() // 1_000_000)
        return EncodedSlice((Piece(self._target(HEARTBEATS), 1, commit_lsn, commit_lsn, line),), None)

    def _count(
        self,
        changes: Sequence[ChangeBatch | TruncateChange],
        messages: Sequence[MessageChange],
        sequence: EventSequence,
    ) -> tuple[Sequence[EventOrders | None], TransactionCounts | None]:
        """Number the events of each change, then of each message, if `provide.transaction.metadata` is set.

        Messages outside of transactions have no number; Debezium 2.5 counts no messages at all.
        """
        counted = [m for m in messages if m.transactional] if self._context.newer else []
        if not self.config.provide_transaction_metadata:
            return [None] * (len(changes) + len(messages)), None
        index = np.array([message.stamp.index for message in counted], np.int64)
        counts = [self._counts(change) for change in changes]
        of_messages = EventCounts(MESSAGE_COLLECTION, index, np.ones(len(index), np.int64))
        orders, totals = sequence.count([*counts, of_messages])
        return [*orders[:-1], *_numbers(messages, orders[-1].total.tolist() if counted else [])], totals

    def _counts(self, change: ChangeBatch | TruncateChange) -> EventCounts:
        name = change.table.display
        if isinstance(change, TruncateChange):
            return EventCounts(name, Stamps.of([change.stamp]).index, np.ones(1, np.int64))
        index = change.stamps.index
        if change.operation == "R":
            return EventCounts(name, index, np.zeros(len(index), np.int64))
        return EventCounts(name, index, event_counts(change, self._event_table(change.table), self.config))

    def _rows(
        self, batch: ChangeBatch, sequence: EventSequence, orders: EventOrders | None, at: Handled
    ) -> Iterator[EncodedLines]:
        # Rows of a snapshot belong to no transaction.
        orders = None if batch.operation == "R" else orders
        positions = sequence.positions(batch.stamps, orders, _snapshot_marker(batch))
        table = self._event_table(batch.table, snapshot=batch.operation == "R")
        losses = self._losses(batch.table, table, batch.stamps.lsn)
        lines: Lines | None = few_lines(batch, table, self._context, positions, at, losses)
        if lines is None:
            names = batch.table.schema, batch.table.name
            records = row_records(self._context, table, names, positions, at)
            lines = row_lines(batch, table, records, self.config, losses)
        stamps, some = batch.stamps, not_empty(lines)
        index, commit = stamps.index, stamps.commit_lsn
        if some is not None:
            lines = LINES.take(lines, np.flatnonzero(some))
            index, commit = index[some], commit[some]
        if len(lines):
            yield Encoded(*self._target_of(batch.table), index, commit, lines, batch.lacks_any)
        yield from _lost(losses, stamps)

    def _losses(self, table: TableSchema, shown: EventTable, lsn: Int64s) -> Losses | None:
        """Report losses only in directories, from which tables are made, and of whole events."""
        looked_for = self.layout == "table" and shown.whole
        return Losses(table, lsn, self._reported) if looked_for else None

    def _skipped(self, slice_: Slice) -> Iterator[EncodedLines]:
        """Report skipped operations, only in directories."""
        if self.layout == "stream":
            return
        skipped = self.config.skipped_operations
        left_out = [
            (b.table, b.stamps) for b in slice_.changes if len(b) and set(_CODES[b.operation]) & set(skipped)
        ]
        left_out += [(t.table, Stamps.of([t.stamp])) for t in slice_.truncates if "t" in skipped]
        for table, stamps in left_out:
            losses = self._losses(table, self._event_table(table), stamps.lsn)
            if losses is not None and self.config.includes_table(table.schema, table.name):
                losses.report(0, "skipped.operations")
            yield from _lost(losses, stamps)

    def _wanted(self, slice_: Slice) -> Iterator[ChangeBatch | TruncateChange]:
        """Yield the changes that make events; rows of a table without columns make none."""
        for batch in slice_.changes:
            some = len(batch) and batch.table.columns
            if some and _includes(self.config, batch.table.schema, batch.table.name, _CODES[batch.operation]):
                yield batch
        for truncate in slice_.truncates:
            if _includes(self.config, truncate.table.schema, truncate.table.name, "t"):
                yield truncate

    def _empty(self, slice_: Slice) -> Iterator[Piece]:
        """Make empty files for tables without rows, if their rows would be events."""
        for one in slice_.empty_tables if self.layout == "table" else ():
            if _includes(self.config, one.table.schema, one.table.name, _CODES["R"]):
                yield piece_of_empty(one, self._described(one.table))

    def _event_table(self, table: TableSchema, *, snapshot: bool = False) -> EventTable:
        return event_table(table, table.facts, self.config, snapshot=snapshot)

    def _truncate(self, change: TruncateChange, positions: Positions, at: Handled) -> Iterator[EncodedLines]:
        line = events.truncate(self._context, change, self._event_table(change.table), positions, at)
        stamps = positions.stamps
        if line:
            yield Encoded(*self._target_of(change.table), stamps.index, stamps.commit_lsn, [line])

    def _messages(
        self,
        messages: Sequence[MessageChange],
        orders: Sequence[EventOrders | None],
        sequence: EventSequence,
        now: int,
    ) -> Iterator[EncodedLines]:
        for message, order in zip(messages, orders, strict=True):
            positions = sequence.position(message.stamp, order)
            line, stamps = events.message(self._context, message, positions, now), positions.stamps
            yield Encoded(self._target(MESSAGES), None, stamps.index, stamps.commit_lsn, [line])

    def _transactions(self, boundaries: Boundaries, totals: TransactionCounts) -> Iterator[EncodedLines]:
        stamps = boundaries.stamps
        for rows, lines in events.transactions(self._context, boundaries, totals):
            target, commit_lsn = self._target(TRANSACTIONS), stamps.commit_lsn[rows]
            yield Encoded(target, None, stamps.index[rows], commit_lsn, lines)

    def _target(self, name: str) -> str:
        return name if self.layout == "table" else ""

    def _target_of(self, table: TableSchema) -> tuple[str, TableSchema | None]:
        return (table.display, self._described(table)) if self.layout == "table" else ("", None)

    def _described(self, table: TableSchema) -> TableSchema:
        if self.layout == "stream":
            return table
        return described(table, table.facts, self.config, values_only=self.values_only)


def _numbers(messages: Sequence[MessageChange], totals: Sequence[int]) -> Iterator[EventOrders | None]:
    """Number messages; each is the only event of its collection."""
    left = iter(totals)
    for message in messages:
        number = next(left, None) if message.transactional else None
        yield None if number is None else EventOrders(np.array([number]), np.ones(1, np.int64))


@lru_cache(MANY_TABLES)
def _includes(config: ConnectorConfig, schema: str, table: str, codes: str) -> bool:
    """Whether any of these operations on a table makes an event."""
    return not set(codes) <= set(config.skipped_operations) and config.includes_table(schema, table)


def _snapshot_marker(batch: ChangeBatch) -> Fragment:
    """Make the values of `source.snapshot`; `false` for a streamed batch.

    If several apply to a row, they count in this order: last, first, last_in_data_collection.
    """
    snapshot = batch.snapshot
    if snapshot is None:
        return b"false"
    if snapshot.incremental:
        return b"incremental"
    if not (snapshot.begins or snapshot.ends):
        return b"true"
    markers = [b"true"] * len(batch)
    if snapshot.begins:
        markers[0] = b"first_in_data_collection"
    if snapshot.ends:
        markers[-1] = b"last_in_data_collection"
    if snapshot.begins and snapshot.first_table:
        markers[0] = b"first"
    if snapshot.ends and snapshot.last_table:
        markers[-1] = b"last"
    return kernels.binary(markers)


def _lost(losses: Losses | None, stamps: Stamps) -> Iterator[EncodedLines]:
    if losses is not None and losses.lines:
        yield Encoded(LOSSES, None, stamps.index[:1], stamps.commit_lsn[:1], [b"".join(losses.lines)])


def _newlines(data: bytes | pa.Buffer) -> int:
    if isinstance(data, bytes):
        return data.count(b"\n")
    return int(np.count_nonzero(np.asarray(memoryview(data)).view(np.uint8) == _NEWLINE))


def _piece(lines: EncodedLines, *, several: bool) -> Piece:
    """Make the piece for one file; `several` if a change may have more than one line."""
    data = joined_lines(lines.rows)
    rows = _newlines(data) if several or isinstance(data, bytes) else len(lines.rows)
    return Piece(lines.target, rows, *lines.commit_range, data, table=lines.table, unchanged=lines.unchanged)
