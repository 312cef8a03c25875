"""Debezium's events, one record a line: `{"topic","key","value","headers"}`, or the value alone.

The reference is Debezium 2.5.4's PostgreSQL connector with pgoutput and Kafka's JsonConverter; with
`debezium.version=3.4` the envelope is that of 3.4.3.
"""

import time
import uuid
from collections.abc import Iterator, Sequence
from dataclasses import KW_ONLY, dataclass, field
from typing import Literal

import numpy as np
import pyarrow as pa

from pgcdc_cli.formats.base import Data, EncodedSlice, Piece
from pgcdc_cli.formats.compress import SUFFIXES, Compression, compress
from pgcdc_cli.formats.debezium import singles
from pgcdc_cli.formats.debezium.config import ConnectorConfig
from pgcdc_cli.formats.debezium.marker import snapshot_marker
from pgcdc_cli.formats.debezium.progress import Changes, Progress, Timeline, one
from pgcdc_cli.formats.debezium.readback import LOSSES, Losses, described
from pgcdc_cli.formats.debezium.record import Context, Record
from pgcdc_cli.formats.debezium.rows import event_counts, row_lines
from pgcdc_cli.formats.debezium.tables import EventTable, event_table
from pgcdc_cli.formats.ordered import MESSAGES, Arrange, Encoded, commit_range, place, tables_of
from pgcdc_cli.lsn import Lsn
from pgcdc_cli.pgoutput.changes import (
    ChangeBatch,
    Int64s,
    LastCommit,
    MessageChange,
    Slice,
    Stamps,
    TransactionMark,
)
from pgcdc_cli.table import TableSchema
from pgcdc_cli.types import kernels
from pgcdc_cli.types.kernels import Column

TRANSACTIONS = "_transaction"
HEARTBEATS = "_heartbeat"
_LINES: Arrange[Column] = Arrange(kernels.concat_bytes, kernels.take)
_CODES = {"I": "c", "U": "udc", "D": "d", "R": "r"}
"""Operations that a change can be; an update of the key is a delete and a create."""
_NEWLINE = 0x0A


@dataclass(slots=True)
class DebeziumFormat:
    """Needs the marks of begins and commits in its slices, and to be told where it starts (`restart`)."""

    config: ConnectorConfig
    layout: Literal["table", "stream"] = "table"
    compression: Compression = "none"
    values_only: bool = False
    _: KW_ONLY
    name: str = field(default="debezium", init=False)
    tail: bytes = field(default=b"", init=False)
    _progress: Progress = field(default_factory=Progress, init=False)
    _run_id: str = field(default_factory=lambda: str(uuid.uuid4()), init=False)
    _database: str = field(default="", init=False)
    _told: set[tuple[str, ...]] = field(default_factory=set, init=False)

    @property
    def _context(self) -> Context:
        return Context(self.config, self._database, self.values_only, self._run_id)

    @property
    def suffix(self) -> str:
        return ".jsonl" + SUFFIXES[self.compression]

    def restart(self, database: str, last_commit: LastCommit | None) -> None:
        """Forget what came after the last edge; `last_commit` is the transaction before it, if any.

        `database` is what `source.db` says.
        """
        self._database = database
        self._told = set()
        self._progress = Progress() if last_commit is None else Progress(*last_commit)

    def encode(self, part: Slice) -> EncodedSlice:
        """Encode a slice's events; a PROTOCOL error where a value is no valid UTF-8."""
        now = time.time_ns()
        timeline = Timeline(part, self._progress)
        if self.config.provide_transaction_metadata:
            timeline.count(self._changes(part))
        encoded = [*self._rows(part, timeline, now), *self._singles(part, timeline, now)]
        encoded += self._skipped(part)
        self._progress = timeline.after
        pieces = tuple(_piece(lines) for lines in _LINES.in_order(encoded))
        return EncodedSlice(pieces, part.edge, tuple(map(self._described, tables_of(part))))

    def frame(self, data: Sequence[Data]) -> bytes | memoryview | pa.Buffer:
        """Join lines; with a compression, into one frame."""
        return compress(data, self.compression)

    def heartbeat(self, commit_lsn: Lsn) -> EncodedSlice:
        """Build a heartbeat record, to be written at a transaction edge."""
        line = singles.heartbeat(self._context, time.time_ns() // 1_000_000)
        target = HEARTBEATS if self.layout == "table" else ""
        return EncodedSlice((Piece(target, 1, commit_lsn, commit_lsn, line),), None)

    def _rows(self, part: Slice, timeline: Timeline, now: int) -> Iterator[Encoded[Column]]:
        for batch in self._wanted(part):
            losses = self._losses(batch.table, batch.stamps.lsn)
            lines = self._batch(batch, timeline, now, losses)
            stamps, told = batch.stamps, ~kernels.as_mask(kernels.equal(lines, b""))
            if not told.all():
                lines = lines.filter(pa.array(told))
            if len(lines):
                index, commit = stamps.index[told], stamps.commit_lsn[told]
                yield Encoded(*self._place(batch.table), index, commit, lines, batch.lacks_any)
            yield from _lost(losses, stamps)

    def _batch(
        self, batch: ChangeBatch, timeline: Timeline, now: int, losses: Losses | None
    ) -> pa.BinaryArray:
        table = batch.table
        layout = self._layout(table, snapshot=batch.operation == "R")
        places = timeline.places(batch.stamps, snapshot=snapshot_marker(batch))
        record = Record(self._context, layout, (table.schema, table.name), places, now)
        return row_lines(batch, layout, record, self.config, losses)

    def _losses(self, table: TableSchema, lsn: Int64s) -> Losses | None:
        """Look for losses in directories only, which tables are made of."""
        return Losses(table, lsn, self._told) if self.layout == "table" else None

    def _skipped(self, part: Slice) -> Iterator[Encoded[Column]]:
        """Tell of operations that are left out."""
        skipped = self.config.skipped_operations
        left_out = [
            (b.table, b.stamps) for b in part.changes if len(b) and set(_CODES[b.operation]) & set(skipped)
        ]
        left_out += [(t.table, one(t.stamp, 0)) for t in part.truncates if "t" in skipped]
        for table, stamps in left_out:
            losses = self._losses(table, stamps.lsn)
            if losses is not None and self.config.includes_table(table.schema, table.name):
                losses.tell(0, "skipped.operations")
            yield from _lost(losses, stamps)

    def _changes(self, part: Slice) -> Iterator[Changes]:
        """What counts in a transaction, truncates included."""
        for batch in self._wanted(part):
            if batch.operation == "R":
                continue
            counts = event_counts(batch, self._layout(batch.table), self.config)
            yield Changes(batch.stamps.index, batch.table, counts)
        for truncate in part.truncates:
            if self._includes(truncate.table, "t"):
                index, one_event = place(truncate.stamp)[0], np.ones(1, np.int64)
                yield Changes(index, truncate.table, one_event, truncates=True)

    def _wanted(self, part: Slice) -> Iterator[ChangeBatch]:
        """Give what makes events; rows of a table without columns make none."""
        for batch in part.changes:
            some = len(batch) and batch.table.columns
            if some and any(self._includes(batch.table, code) for code in _CODES[batch.operation]):
                yield batch

    def _includes(self, table: TableSchema, operation: str) -> bool:
        skipped = operation in self.config.skipped_operations
        return not skipped and self.config.includes_table(table.schema, table.name)

    def _layout(self, table: TableSchema, *, snapshot: bool = False) -> EventTable:
        return event_table(table, table.facts, self.config, snapshot=snapshot)

    def _singles(self, part: Slice, timeline: Timeline, now: int) -> Iterator[Encoded[Column]]:
        for truncate in part.truncates:
            if self._includes(truncate.table, "t"):
                table = self._layout(truncate.table)
                line = singles.truncate(self._context, truncate, table, timeline, now)
                yield Encoded(*self._place(truncate.table), *place(truncate.stamp), kernels.binary([line]))
        for message in part.messages:
            if self.config.includes_message(message.prefix):
                yield self._single(message, singles.message(self._context, message, timeline, now), MESSAGES)
        if self.config.provide_transaction_metadata:
            for mark, line in singles.transactions(self._context, timeline):
                yield self._single(mark, line, TRANSACTIONS)

    def _single(self, event: MessageChange | TransactionMark, line: bytes, target: str) -> Encoded[Column]:
        target = target if self.layout == "table" else ""
        return Encoded(target, None, *place(event.stamp), kernels.binary([line]))

    def _place(self, table: TableSchema) -> tuple[str, TableSchema | None]:
        return (table.display, self._described(table)) if self.layout == "table" else ("", None)

    def _described(self, table: TableSchema) -> TableSchema:
        if self.layout == "stream":
            return table
        return described(table, table.facts, self.config, values_only=self.values_only)


def _lost(losses: Losses | None, stamps: Stamps) -> Iterator[Encoded[Column]]:
    if losses is not None and losses.lines:
        lines = kernels.binary([b"".join(losses.lines)])
        yield Encoded(LOSSES, None, stamps.index[:1], stamps.commit_lsn[:1], lines)


def _piece(lines: Encoded[Column]) -> Piece:
    data = kernels.contiguous(lines.rows)
    rows = int(np.count_nonzero(np.asarray(memoryview(data)).view(np.uint8) == _NEWLINE))
    commits = commit_range(lines)
    return Piece(lines.target, rows, *commits, data, table=lines.table, unchanged=lines.unchanged)
