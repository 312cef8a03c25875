"""Tables that are read again while they are streamed, in chunks by key; nothing is written to the server.

A chunk is read at an edge of the stream, at which all that is written so far is seen by it: transactions are
held against the snapshot by their numbers. So its rows come after every change that they have, or before it.
What more they have, the stream brings up to the position at which the log was then; the next chunk is read
after that. Why this comes to what the source has is said in `docs/snapshots.md`, "While streaming".
"""

import logging
import math
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import ExitStack, closing
from dataclasses import dataclass, replace
from typing import NamedTuple

import numpy as np
import psycopg

from pgcdc_cli.changes.selection import NamePattern
from pgcdc_cli.changes.slice import (
    ChangeBatch,
    Edge,
    EmptyTable,
    KeyImage,
    RowKey,
    Slice,
    SnapshotPosition,
    TableResnapshot,
    texts_of,
)
from pgcdc_cli.changes.table import TableSchema
from pgcdc_cli.errors import ErrorKind, PgcdcError
from pgcdc_cli.lsn import Lsn
from pgcdc_cli.pgoutput.relations import Describe
from pgcdc_cli.sinks.sink import Sink
from pgcdc_cli.stream.resnapshot_session import Look, ResnapshotSession, Visibility
from pgcdc_cli.stream.snapshot import Stamper, snapshot_batch
from pgcdc_cli.stream.snapshot_session import Columns
from pgcdc_cli.stream.snapshot_tables import SnapshotTable, WantedRows, find_tables
from pgcdc_cli.types.database_text import DatabaseText

log = logging.getLogger("pgcdc")

CHUNK_ROWS, CHUNK_BYTES = 32768, 16 << 20
"""Rows of a chunk at most, and about how many bytes of them: the stream waits while they are read."""

FIRST_ROWS = 1024
"""Rows of the first chunk, from which it is known how large they are."""

TURN = 1.0
"""Seconds after which a stream is looked at that brings nothing; one that does is, after each chunk."""

ATTEMPTS, PAUSE = 20, 0.005
"""How often, and after how many seconds, it is looked whether what the stream brought is seen by now."""

MOST_MOVED = 10_000
"""Keys of rows to be read once more, at most: a checkpoint has to hold them. Beyond, all is read anew."""

RETRY = 0.5
"""Seconds until what could not be read is tried again."""

QUIET = 10.0
"""Seconds of waiting for other transactions of which nothing is said."""

_AT = SnapshotPosition(first_table=False, last_table=False, begins=False, ends=False, incremental=True)

_NO_TABLE = (
    "publish it first: ALTER PUBLICATION ... ADD TABLE; see what there is with: pgcdc publication show"
)
_NO_KEY = (
    "give it a primary key or REPLICA IDENTITY USING INDEX, or read it into another place: pgcdc snapshot"
)


class ResnapshotOutput(NamedTuple):
    """Where the rows go.

    `settle` makes all durable that is written, and lets the server know; `abandon` takes back what came after
    the last edge.
    """

    sink: Sink
    write: Callable[[Slice], None]
    settle: Callable[[], None]
    abandon: Callable[[], None]


@dataclass(frozen=True, slots=True)
class ResnapshotSource:
    """Which tables are read, those of `wanted` that one of the `patterns` matches; and how."""

    wanted: WantedRows
    patterns: Sequence[NamePattern]
    describe: Describe
    text: DatabaseText
    stopped: Callable[[], bool]

    def find(self, session: ResnapshotSession) -> list[SnapshotTable]:
        """Give all of them; USAGE where one has no key, LockedError where one is locked."""
        wanted = replace(
            self.wanted, includes=lambda *names: any(one.matches(*names) for one in self.patterns)
        )
        return self._find(session, wanted)

    def find_again(self, session: ResnapshotSession, known: TableSchema) -> SnapshotTable | None:
        """Give a table as it is now; None where there is none of this name any more."""
        wanted = replace(
            self.wanted, includes=lambda *names: names == (known.schema, known.name), only=known.oid
        )
        return next(iter(self._find(session, wanted)), None)

    def _find(self, session: ResnapshotSession, wanted: WantedRows) -> list[SnapshotTable]:
        try:
            found = find_tables(session.snapshot, wanted, self.describe)
        except PgcdcError as error:
            if isinstance(error.__cause__, psycopg.errors.LockNotAvailable):
                raise LockedError from error
            raise
        for table in found:
            if not table.schema.key:
                message = f'could not read table "{table.schema.display}" again: it has no key'
                raise PgcdcError(ErrorKind.USAGE, message, hint=_NO_KEY)
        return found


class LockedError(Exception):
    """Somebody keeps others from reading a table, for a while."""


class Resnapshot:
    """What is read again over one connection of a stream. Methods raise PgcdcError."""

    def __init__(self, source: ResnapshotSource, output: ResnapshotOutput) -> None:
        self.streamed = StreamedTables(source.text.codec)
        self._source = source
        self._output = output
        self._sessions = ExitStack()
        self._known: dict[int, _Known] = {}
        self._limits: dict[int, int] = {}
        self._not_before = 0.0
        self._barrier = 0
        self._quiet_until = time.monotonic() + QUIET
        self._looked = False

    @property
    def finished(self) -> bool:
        """Is there nothing to be read any more?"""
        return self._looked and self._next() is None

    @property
    def position(self) -> Lsn:
        """Give the position where the stream has all that the rows have."""
        return max((one.position for one in self.streamed.state), default=Lsn(0))

    def begin(self, conninfo: str) -> None:
        """See what there is to be read, and how far that is.

        What nobody asks for any more is forgotten, once the stream has all that its rows have. Raises USAGE
        where there is nothing of what is asked for, or no key.
        """
        self.streamed.tables = {one.oid: one for one in self._output.sink.edge.resnapshots}
        if self._source.patterns:
            self._session = ResnapshotSession(conninfo, self._source.text, self._source.stopped)
            self._sessions.enter_context(closing(self._session))
        self._look_around()

    def _look_around(self) -> bool:
        """Find the tables; false where one of them is locked for now."""
        if self._source.patterns:
            look, self._barrier = self._session.look(), self._session.barrier()
            self.streamed.forget_seen(look.seen)
            try:
                tables = [table.schema for table in self._source.find(self._session)]
            except LockedError:
                return self._later()
            self._session.end()
            self._check_all_match(tables)
            self._known = {table.oid: _Known(table, look.position) for table in tables}
        edge, before = self._output.sink.edge, self.streamed.tables
        kept = [one for one in before.values() if one.oid not in self._known and one.position > edge.lsn]
        wanted = [_begun(known.schema, before.get(oid)) for oid, known in self._known.items()]
        self.streamed.tables = {one.oid: one for one in [*kept, *wanted]}
        if self.streamed.state != edge.resnapshots:
            self._reach_edge()
        self._looked = True
        return True

    def _check_all_match(self, tables: Sequence[TableSchema]) -> None:
        for pattern in self._source.patterns:
            if not any(pattern.matches(table.schema, table.name) for table in tables):
                reason = f'nothing that the publications have matches "{pattern.text}"'
                message = f"could not find a table to read again: {reason}"
                raise PgcdcError(ErrorKind.USAGE, message, hint=_NO_TABLE)

    def close(self) -> None:
        """End the connection; what is written stays."""
        self._sessions.close()

    def step(self) -> None:
        """Read what can be read at this edge of the stream; soon it is the stream's turn again."""
        until = time.monotonic() + TURN
        try:
            while self._read_next() and time.monotonic() < until:
                pass
        except KeyboardInterrupt:
            if not self._source.stopped():
                raise
            self._output.abandon()

    def _next(self) -> TableResnapshot | None:
        tables = self.streamed.tables
        return next((tables[oid] for oid in self._known if tables[oid].stage != "done"), None)

    def _read_next(self) -> bool:
        """Read a chunk; false where there is none, or not yet."""
        if not self._looked:
            return time.monotonic() >= self._not_before and self._look_around()
        one, edge = self._next(), self._output.sink.edge
        if one is None or edge.tables_differ or edge.lsn < self._known[one.oid].position:
            return False
        if one.stage == "moved" and not one.moved:
            log.info('table "%s" is read again: %d rows', one.table, one.rows)
            self._reach(replace(one, stage="done"))
            return True
        return time.monotonic() >= self._not_before and self._read(one)

    def _read(self, one: TableResnapshot) -> bool:
        look = self._look()
        if look is None:
            return self._later()
        known = self._known[one.oid]
        try:
            table = self._source.find_again(self._session, known.schema)
        except LockedError:
            return self._later()
        if table is None:
            log.warning('table "%s" is not read again any further: it is not published any more', one.table)
            self._reach(replace(one, stage="done", moved=()))
        elif table.schema != known.schema:
            # The stream has perhaps not come to this form of it yet.
            self._known[one.oid] = _Known(table.schema, look.position)
            self._reach(_begun(table.schema, one))
        else:
            self._copy(one, table, look)
        self._session.end()
        return True

    def _look(self) -> Look | None:
        """See what is there, if that is all that is written and more; None where it isn't so for a while."""
        for attempt in range(ATTEMPTS):
            look = self._session.look()
            self.streamed.forget_seen(look.seen)
            if look.seen.xmin < self._barrier:
                self._say_waiting(look.seen.xmin)
                break
            if not self.streamed.xids:
                return look
            if attempt == ATTEMPTS - 1:
                break
            self._session.end()
            if attempt == 0:
                # Their commits may wait for us: a slot's reader can be a synchronous standby.
                self._output.settle()
            time.sleep(PAUSE)
        return None

    def _later(self) -> bool:
        self._session.end()
        self._not_before = time.monotonic() + RETRY
        return False

    def _say_waiting(self, xid: int) -> None:
        if time.monotonic() > self._quiet_until:
            self._quiet_until = math.inf
            log.warning("no table is read again as long as transaction %d, which ran before, goes on", xid)

    def _copy(self, one: TableResnapshot, table: SnapshotTable, look: Look) -> None:
        """Write the next rows, and those that moved, all as of one moment."""
        limit = self._limits.get(one.oid, FIRST_ROWS)
        stamper = Stamper(self._output.sink.edge.lsn, 0, one.rows)
        moved = self._write(table, self._session.moved(one, table), stamper)
        read, stage = _NOTHING, one.stage
        if stage == "reading":
            read = self._write(table, self._session.chunk(one, table, limit), stamper)
            stage = "reading" if read.rows == limit else "moved"
            self._limits[one.oid] = min(CHUNK_ROWS, max(1, CHUNK_BYTES * read.rows // (read.size or 1)))
            if stage == "moved" and not one.rows + moved.rows + read.rows:
                empty = EmptyTable(table.schema, self._output.sink.edge.lsn)
                self._output.write(Slice(None, empty_tables=(empty,)))
        if self._source.stopped():
            raise KeyboardInterrupt
        self._reach(
            replace(
                one,
                rows=one.rows + moved.rows + read.rows,
                after=one.after if read.last is None else self._key(one, table, read.last),
                moved=(),
                position=look.position,
                stage=stage,
            )
        )

    def _write(
        self, table: SnapshotTable, chunks: Iterable[tuple[int, Columns]], stamper: Stamper
    ) -> "_WrittenRows":
        rows, size, last = 0, 0, None
        for received, columns in chunks:
            batch = snapshot_batch(table.schema, columns, stamper, _AT)
            self._output.write(Slice(None, (batch,)))
            rows, size, last = rows + len(batch), size + received, columns
        return _WrittenRows(rows, size, last)

    def _key(self, one: TableResnapshot, table: SnapshotTable, columns: Columns) -> RowKey:
        """Give the key of the last of these rows."""
        where = {column.name: index for index, column in enumerate(table.schema.columns)}
        values = [columns[where[name]][-1].as_py() for name in one.key]
        return tuple(value.decode(self._source.text.codec) for value in values)

    def _reach(self, one: TableResnapshot) -> None:
        """Note how far a table is, with an edge after what is written."""
        self.streamed.tables[one.oid] = one
        self._reach_edge()

    def _reach_edge(self) -> None:
        edge = Edge(Lsn(0), self._output.sink.edge.lsn, 0, resnapshots=self.streamed.state)
        self._output.write(Slice(edge))


class _Known(NamedTuple):
    """A table as it was when the log was at a position."""

    schema: TableSchema
    position: Lsn


class _WrittenRows(NamedTuple):
    """What was written of a query's rows, `size` bytes of them; with the last chunk."""

    rows: int
    size: int
    last: Columns | None


_NOTHING = _WrittenRows(0, 0, None)


def _begun(table: TableSchema, before: TableResnapshot | None) -> TableResnapshot:
    """Go on where an earlier run was, if rows have the same key."""
    key = _in_order_of_index(table)
    if before is None:
        return TableResnapshot(table.oid, table.display, key)
    return before if before.key == key or before.stage == "done" else before.anew(key)


def _in_order_of_index(table: TableSchema) -> RowKey:
    """Give the key as its index has it: in the order of columns all rows would be sorted for each chunk."""
    key = table.key or ()
    for index in () if table.facts is None else (table.facts.primary_key, table.facts.unique):
        # After its key an index may include other columns.
        if index is not None and set(index[: len(key)]) == set(key):
            return index[: len(key)]
    return key


class StreamedTables:
    """What one connection brought of the tables that are being read.

    `tables` by OID; a slice that adds rows that moved says so with its edge. `xids` are those of their
    transactions that the last look did not see; before the first, nobody asks. `codec` is the text's.
    """

    def __init__(self, codec: str) -> None:
        self.tables: dict[int, TableResnapshot] = {}
        self.xids: set[int] = set()
        self._seen: Visibility | None = None
        self._codec = codec
        self._changed = False

    @property
    def state(self) -> tuple[TableResnapshot, ...]:
        """All of them, for an edge."""
        return tuple(self.tables.values())

    def follow(self, slice_: Slice) -> Slice:
        """Note what a slice has of these tables."""
        for batch in slice_.changes:
            one = self.tables.get(batch.table.oid)
            if one is not None and one.stage != "done":
                self._note_xids(np.unique(batch.stamps.xid).tolist())
                self._note(one, batch)
        if slice_.edge is None or not self._changed:
            return slice_
        self._changed = False
        return replace(slice_, edge=replace(slice_.edge, resnapshots=self.state))

    def forget_seen(self, seen: Visibility) -> None:
        """Keep of the transactions, of those to come, too, the ones that a snapshot doesn't see."""
        before, self.xids, self._seen = self.xids, set(), seen
        self._note_xids(before)

    def _note_xids(self, xids: Iterable[int]) -> None:
        seen = self._seen
        if seen is not None:
            self.xids.update(xid for xid in xids if not seen.sees(xid))

    def _note(self, one: TableResnapshot, batch: ChangeBatch) -> None:
        if one.after is None or not _came_without_values(batch):
            # As long as nothing is read, everything is yet to be.
            return
        found = list(_keys(batch, one.key, self._codec))
        moved = dict.fromkeys([*one.moved, *(key for key in found if key is not None)])
        unknown = None in found or len(moved) > MOST_MOVED
        self.tables[one.oid] = one.anew(one.key) if unknown else replace(one, moved=tuple(moved))
        self._changed = True


def _came_without_values(batch: ChangeBatch) -> bool:
    """Are there rows that are new under their key, and lack values?

    An update that changes no key is of a row that was, or will be, read. One under replica identity FULL has
    all values of the old row.
    """
    comes = batch.operation == "I" or isinstance(batch.old, KeyImage)
    return batch.operation != "R" and comes and batch.lacks_any


def _keys(batch: ChangeBatch, names: Sequence[str], codec: str) -> Iterator[RowKey | None]:
    """Give the keys of a batch's rows that lack values; None where a part of it isn't known."""
    assert batch.new is not None
    masks = [mask for mask in batch.new.unchanged if mask is not None]
    where = {column.name: index for index, column in enumerate(batch.table.columns)}
    columns = [_values(batch, where[name]) for name in names if name in where]
    for number in np.flatnonzero(np.logical_or.reduce(masks)).tolist():
        values = [value for column in columns if (value := column[number]) is not None]
        yield tuple(value.decode(codec) for value in values) if len(values) == len(names) else None


def _values(batch: ChangeBatch, index: int) -> list[bytes | None]:
    """Give a column of the key; what is not sent of it is as it was."""
    assert batch.new is not None
    new = texts_of(batch.new.columns, index) or []
    old = None if batch.old is None else texts_of(batch.old.columns, index)
    return new if old is None else [old[n] if value is None else value for n, value in enumerate(new)]
