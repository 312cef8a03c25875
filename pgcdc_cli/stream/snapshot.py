"""The rows that are there, all as of one moment: a snapshot exported with a slot, or one by itself.

A temporary slot exports it: every transaction that commits before the slot's position is in the snapshot,
every later one in the stream from that position on. The stream's slot may be older; or it is made as a copy
of the temporary one once a table is read (`keep_slot`). A run that is killed before leaves no slot behind.
PostgreSQL manual, "Streaming Replication Protocol", CREATE_REPLICATION_SLOT with SNAPSHOT 'export'.

Parts of tables are read over several connections at once, and given in their order. Each connection has a
thread, which reads one part after another, some chunks ahead of whoever takes them: so memory is bounded, and
what comes out is the same however many there are.
"""

import logging
import secrets
import threading
import time
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, closing, contextmanager, suppress
from dataclasses import replace
from queue import Full, Queue
from typing import NamedTuple, TypeVar

import numpy as np
import psycopg
import pyarrow as pa

from pgcdc_cli.changes.slice import (
    ChangeBatch,
    Edge,
    EmptyTable,
    FullImage,
    Slice,
    SnapshotPosition,
    Stamps,
    TableRead,
)
from pgcdc_cli.changes.table import TableSchema
from pgcdc_cli.directory.checkpoint import StreamSource
from pgcdc_cli.errors import ErrorKind, PgcdcError
from pgcdc_cli.lsn import Lsn
from pgcdc_cli.replication.connection import ReplicationConnection
from pgcdc_cli.replication.copy_out import TICK
from pgcdc_cli.replication.session import server_failure
from pgcdc_cli.stream.snapshot_session import Columns, SnapshotSession
from pgcdc_cli.stream.snapshot_tables import SnapshotTable, TablePart
from pgcdc_cli.types.database_text import STRICT, DatabaseText

log = logging.getLogger("pgcdc")

Item = TypeVar("Item")

_NO_SLOT_HINT = "raise max_replication_slots, or drop a slot that nobody reads: pgcdc slot list"

_AT_ONCE = "1ms"
"""The least that the server's lock_timeout can be."""

_BRIEFLY = "2s"
"""As long as others may be kept from their tables before there is a snapshot."""

# The snapshot is taken before the position is read: what it sees has committed before that.
_SOURCE = """
SELECT (SELECT system_identifier FROM pg_control_system())::text,
       (SELECT timeline_id FROM pg_control_checkpoint()), current_database(), pg_is_in_recovery(),
       CASE WHEN pg_is_in_recovery() THEN pg_last_wal_replay_lsn() ELSE pg_current_wal_insert_lsn() END::text
"""


class Begun(NamedTuple):
    """What there is of a snapshot that the stream goes on after, at `position`, None where that is new.

    `read` are the OIDs of the tables that earlier runs read.
    """

    position: Lsn | None
    read: frozenset[int]

    def left(self, tables: Sequence[SnapshotTable]) -> list[SnapshotTable]:
        """Give the tables that are yet to be read."""
        return [table for table in tables if table.schema.oid not in self.read]


class Snapshot:
    """The rows that one session sees, as of `position`.

    `text` says how text comes. `bytes` is how much of the rows did. So many `workers` read at once, over a
    connection each. Methods raise PgcdcError, and a wait for rows KeyboardInterrupt once `stopped`.
    """

    def __init__(
        self,
        session: SnapshotSession,
        position: Lsn,
        text: DatabaseText = STRICT,
        stopped: Callable[[], bool] = lambda: False,
        workers: int = 1,
    ) -> None:
        self.session = session
        self.position = position
        self.bytes = 0
        self.text = text
        self._stopped = stopped
        self._workers = workers

    def slices(
        self, tables: Sequence[SnapshotTable], *, with_xid: bool = True, begun: Begun | None = None
    ) -> Generator[Slice]:
        """Read tables, one after the other; those without rows come last.

        With `with_xid` rows have the transaction that reads them, else none. The last slice is an edge and
        nothing else. With `begun` there are edges after tables, too, and those that were read before aren't
        read again.
        """
        stamp = Stamper(self.position, self._transaction() if with_xid else 0)
        left = tables if begun is None else begun.left(tables)
        first = left[0] if left and len(left) == len(tables) else None
        before, empty = None, {table.schema.oid: table.schema for table in left}
        for (table, columns), following in _with_next(self._chunks(left)):
            ends = following is None or following[0] is not table
            at = SnapshotPosition(table is first, following is None, table is not before, ends)
            before = table
            empty.pop(table.schema.oid, None)
            yield Slice(None, (snapshot_batch(table.schema, columns, stamp, at),))
            if ends and begun is not None:
                yield self._end_of(table.schema)
        for schema in empty.values():
            yield Slice(None, empty_tables=(EmptyTable(schema, self.position),))
            if begun is not None:
                yield self._end_of(schema)
        position = self.position if begun is None or begun.position is None else begun.position
        yield Slice(Edge(Lsn(0), position, 0))

    def _end_of(self, table: TableSchema) -> Slice:
        return Slice(Edge(Lsn(0), Lsn(0), 0, read=TableRead(table.oid, self.position)))

    def _transaction(self) -> int:
        [(xid,)] = self.session.ask("SELECT txid_current() % 4294967296")
        return int(xid)

    def _chunks(self, tables: Sequence[SnapshotTable]) -> Iterator[tuple[SnapshotTable, Columns]]:
        if self._workers == 1:
            parts = [TablePart(table, 0, None) for table in tables]
        else:
            parts = [part for table in tables for part in table.parts()]
        with ExitStack() as others:
            more = self._others(min(self._workers, len(parts)) - 1, tables)
            sessions = [self.session, *(others.enter_context(closing(session)) for session in more)]
            for part, size, columns in read_parts(parts, sessions, self.text, self._stopped):
                self.bytes += size
                yield part.table, columns

    def _others(self, count: int, tables: Sequence[SnapshotTable]) -> Iterator[SnapshotSession]:
        """Open more sessions that see the same; fewer where there is no room, or no lock, for so many."""
        name = self.session.export() if count > 0 else ""
        for number in range(count):
            try:
                yield self._another(name, tables)
            except PgcdcError as error:
                if not error.kind.rule.transient:
                    raise
                log.warning("%s; connections that read the snapshot: %d", error.message, number + 1)
                return

    def _another(self, name: str, tables: Sequence[SnapshotTable]) -> SnapshotSession:
        """Open a session that has locked all that it will read.

        A lock that is not to be had at once never will be: whoever wants to change the table waits for the
        first session's to go, and is before us in the queue.
        """
        session = SnapshotSession(self.session.here, name)
        try:
            session.limit_lock_waits(_AT_ONCE)
            for table in tables:
                session.check(table.query(), table.reading)
        except BaseException:
            session.close()
            raise
        return session


class SlotSnapshot:
    """A snapshot as of the position of a temporary slot, where a stream begins that has all after it.

    `lock` are tables, by schema and name, that are locked before, since others rewrite them all the time.
    """

    def __init__(self, conninfo: str, lock: Sequence[tuple[str, str]] = ()) -> None:
        self._slot = f"pgcdc_snapshot_{secrets.token_hex(6)}"
        self._closing = ExitStack()
        try:
            self.session = self._closing.enter_context(closing(SnapshotSession(conninfo)))
            self._exporting = self._closing.enter_context(ReplicationConnection(conninfo))
            self.position, name = self._export(lock)
            self.session.see(name)
        except BaseException:
            self._closing.close()
            raise

    def _export(self, lock: Sequence[tuple[str, str]]) -> tuple[Lsn, str]:
        """Make the slot, if it can be with the tables locked.

        It waits for all transactions that have written, one of which may wait for our lock: without limits
        that would never end, and no server sees that it is a deadlock.
        """
        if lock:
            self.session.limit_lock_waits(_BRIEFLY)
            if self.session.lock(lock):
                try:
                    return self._exporting.export_snapshot(self._slot, lock_timeout=_BRIEFLY)
                except PgcdcError as error:
                    if not isinstance(error.__cause__, psycopg.errors.LockNotAvailable):
                        raise
            self.session.end()
            self.session.begin()
        return self._exporting.export_snapshot(self._slot)

    @property
    def in_recovery(self) -> bool:
        """Are these the rows of a standby?"""
        return self._exporting.in_recovery

    def close(self) -> None:
        """End the transaction that holds the snapshot; the temporary slot is gone, too."""
        self._closing.close()

    def check_free_slot(self, name: str) -> None:
        """Raise USAGE where there can be no slot more: better now than when all rows are read."""
        query = "SELECT count(*) < current_setting('max_replication_slots')::int FROM pg_replication_slots"
        [(free,)] = self.session.ask(query)
        if not free:
            message = f'could not create slot "{name}": the server has no free one beside the snapshot\'s'
            raise PgcdcError(ErrorKind.USAGE, message, hint=_NO_SLOT_HINT)

    def keep_slot(self, name: str) -> None:
        """Make the stream's slot, at `position`."""
        self._exporting.copy_slot(self._slot, name)


def source_of(session: SnapshotSession, publications: Sequence[str]) -> tuple[StreamSource, Lsn, bool]:
    """Say where a snapshot without a slot comes from, a position after all that it has, and "a standby?"."""
    [(system_id, timeline, database, in_recovery, position)] = session.ask(_SOURCE)
    source = StreamSource(system_id, timeline, database, "", tuple(publications))
    return source, Lsn.parse(position), in_recovery


class Stamper:
    """Stamps of rows that all stand at one position, in one transaction; numbered from `first` on."""

    def __init__(self, position: Lsn, xid: int, first: int = 0) -> None:
        self._position = position
        self._xid = xid
        self._now = time.time_ns() // 1000
        self._rows = first

    def next(self, rows: int) -> Stamps:
        """Stamp so many rows more."""
        numbers = np.arange(self._rows, self._rows + rows, dtype=np.int64)
        self._rows += rows
        at, now, xid = (np.full(rows, value, np.int64) for value in (self._position, self._now, self._xid))
        return Stamps(numbers, at, at, now, xid, numbers)


def _with_next(items: Iterator[Item]) -> Iterator[tuple[Item, Item | None]]:
    """Give each item with the one after it, the last one with None."""
    item = next(items, None)
    while item is not None:
        following = next(items, None)
        yield item, following
        item = following


def snapshot_batch(
    table: TableSchema, columns: Columns, stamp: Stamper, position: SnapshotPosition
) -> ChangeBatch:
    """Make changes of rows that were read."""
    image = FullImage(columns, (None,) * len(columns))
    return ChangeBatch(table, "R", stamp.next(len(columns[0])), image, None, position)


class TableStarts:
    """By OID, the position as of which a table was read: only what commits there or later is news of it."""

    def __init__(self, starts: Mapping[int, Lsn]) -> None:
        self._starts = starts

    def news(self, slice_: Slice) -> Slice:
        """Leave out the changes that the rows have."""
        if not self._starts:
            return slice_
        changes = tuple(news for batch in slice_.changes if len(news := self._of(batch)))
        truncates = tuple(
            one for one in slice_.truncates if one.stamp.commit_lsn >= self._starts.get(one.table.oid, 0)
        )
        return replace(slice_, changes=changes, truncates=truncates)

    def _of(self, batch: ChangeBatch) -> ChangeBatch:
        start = self._starts.get(batch.table.oid)
        if start is None:
            return batch
        kept = batch.stamps.commit_lsn >= start
        return batch if kept.all() else batch.where(kept)


_AHEAD = 4
"""Chunks of a part that wait to be taken, at most."""


class Chunk(NamedTuple):
    """Some rows, `size` bytes of them on the wire."""

    part: TablePart
    size: int
    columns: Columns


class _Reading:
    """A part on its way: its chunks, then the error that ended it, or None."""

    def __init__(self, part: TablePart) -> None:
        self.part = part
        self.chunks: Queue[Chunk | BaseException | None] = Queue(_AHEAD)


def read_parts(
    parts: Iterable[TablePart],
    sessions: Sequence[SnapshotSession],
    text: DatabaseText,
    stopped: Callable[[], bool],
) -> Iterator[Chunk]:
    """Yield the rows of each part, in order.

    Raises PgcdcError, and KeyboardInterrupt once `stopped`.
    """
    readers = _Readers(parts, len(sessions), text, stopped)
    threads = [threading.Thread(target=readers.run, args=(session,), daemon=True) for session in sessions]
    with _common_memory():
        for thread in threads:
            thread.start()
        try:
            yield from readers.chunks()
        finally:
            readers.close()
            for thread in threads:
                thread.join()


@contextmanager
def _common_memory() -> Iterator[None]:
    """Let Arrow take memory from the system's allocator meanwhile.

    Its own keeps what one thread took and another one gave back, as it is with every chunk: 70 MB.
    """
    before = pa.default_memory_pool()
    pa.set_memory_pool(pa.system_memory_pool())
    try:
        yield
    finally:
        pa.set_memory_pool(before)


class _Readers:
    """What the threads share."""

    def __init__(
        self, parts: Iterable[TablePart], count: int, text: DatabaseText, stopped: Callable[[], bool]
    ) -> None:
        self._parts = iter(parts)
        self._text = text
        self._stopped = stopped
        self._closed = threading.Event()
        self._lock = threading.Lock()
        # One more than there are threads, so that none waits while the last chunks of a part are written.
        self._room = threading.Semaphore(count + 1)
        self._begun: Queue[_Reading | None] = Queue()

    def close(self) -> None:
        """Let the threads end, soon."""
        self._closed.set()

    def chunks(self) -> Iterator[Chunk]:
        """Yield what the threads read."""
        while (reading := self._begun.get()) is not None:
            while (chunk := reading.chunks.get()) is not None:
                if isinstance(chunk, psycopg.Error):
                    table = reading.part.table
                    raise table.unfit(server_failure(table.reading, chunk)) from chunk
                if isinstance(chunk, BaseException):
                    raise chunk
                yield chunk
            self._room.release()
        if self._stopped():
            raise KeyboardInterrupt

    def run(self, session: SnapshotSession) -> None:
        """Be a thread."""
        while (reading := self._next()) is not None:
            try:
                self._read(session, reading)
            except BaseException as error:  # noqa: BLE001 - whoever takes the rows is told
                self._put(reading, error)
                return
            self._put(reading, None)

    def _next(self) -> _Reading | None:
        """Begin with another part, when there is room for it; None at the end."""
        while not (self._ends() or self._room.acquire(timeout=TICK)):
            pass
        with self._lock:
            part = None if self._ends() else next(self._parts, None)
            reading = None if part is None else _Reading(part)
            self._begun.put(reading)
        return reading

    def _read(self, session: SnapshotSession, reading: _Reading) -> None:
        part = reading.part
        width = len(part.table.schema.columns)
        for size, columns in session.copy(part.query(), width, self._text, self._ends):
            self._put(reading, Chunk(part, size, columns))

    def _put(self, reading: _Reading, item: Chunk | BaseException | None) -> None:
        while not self._closed.is_set():
            with suppress(Full):
                reading.chunks.put(item, timeout=TICK)
                return

    def _ends(self) -> bool:
        return self._closed.is_set() or self._stopped()
