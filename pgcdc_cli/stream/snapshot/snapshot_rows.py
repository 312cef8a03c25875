"""Read the existing rows of tables in one snapshot.

Several connections read parts of tables at once; the parts are yielded in order. Each connection has a
thread, which reads one part after another, a few chunks ahead of the consumer: so memory is bounded, and the
output is the same for any number of connections.
"""

import logging
import threading
import time
from collections.abc import Callable, Generator, Iterable, Iterator, Sequence
from contextlib import ExitStack, closing, suppress
from queue import Full, Queue
from typing import NamedTuple, TypeVar

import numpy as np
import psycopg

from pgcdc_cli.changes.edge import Edge, TableRead
from pgcdc_cli.changes.slice import ChangeBatch, EmptyTable, FullImage, Slice, SnapshotPosition, Stamps
from pgcdc_cli.changes.table import TableSchema
from pgcdc_cli.errors import PgcdcError
from pgcdc_cli.lsn import Lsn
from pgcdc_cli.replication.copy_out import TICK
from pgcdc_cli.replication.failures import server_failure
from pgcdc_cli.stream.snapshot.snapshot_session import READING, Columns, SnapshotSession
from pgcdc_cli.stream.snapshot.snapshot_tables import SnapshotTable, TablePart
from pgcdc_cli.types.database_text import STRICT, DatabaseText

log = logging.getLogger("pgcdc")

Item = TypeVar("Item")

_AT_ONCE = "1ms"
"""The smallest `lock_timeout` of the server that isn't 0, which would be no limit."""


class Begun(NamedTuple):
    """The part of a snapshot that earlier runs read; the stream begins at its `position`, None if it is new.

    `read` are the OIDs of the tables that they read.
    """

    position: Lsn | None
    read: frozenset[int]

    def left(self, tables: Sequence[SnapshotTable]) -> list[SnapshotTable]:
        """Return the tables that are still to be read."""
        return [table for table in tables if table.schema.oid not in self.read]


class Snapshot:
    """The rows that one session's snapshot sees, as of `position`.

    `text` is the encoding of text, `bytes` counts the bytes of rows received. Several `workers` read at once,
    each over a connection of its own. If `typed`, columns may be of their Arrow types instead of wire text.
    Methods raise PgcdcError, and KeyboardInterrupt once `stopped`.
    """

    def __init__(
        self,
        session: SnapshotSession,
        position: Lsn,
        text: DatabaseText = STRICT,
        stopped: Callable[[], bool] = lambda: False,
        workers: int = 1,
        *,
        typed: bool = False,
    ) -> None:
        self.session = session
        self.position = position
        self.bytes = 0
        self.text = text
        self._stopped = stopped
        self._workers = workers
        self._typed = typed

    def slices(
        self, tables: Sequence[SnapshotTable], *, with_xid: bool = True, begun: Begun | None = None
    ) -> Generator[Slice]:
        """Yield the rows of tables, one table after the other; tables without rows come last.

        With `with_xid`, rows have the ID of the transaction that reads them, else 0. The last slice is empty
        and has an edge. With `begun` there is an edge after each table, too, and tables read before are
        skipped.
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
        yield Slice(Edge(position))

    def _end_of(self, table: TableSchema) -> Slice:
        return Slice(Edge(Lsn(0), read=TableRead(table.oid, self.position)))

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
            for part, size, columns in read_parts(
                parts, sessions, self.text, self._stopped, typed=self._typed
            ):
                self.bytes += size
                yield part.table, columns

    def _others(self, count: int, tables: Sequence[SnapshotTable]) -> Iterator[SnapshotSession]:
        """Open more sessions with the same snapshot; fewer if connections or locks aren't to be had."""
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
        """Open a session that has locked all tables that it will read.

        A lock that isn't granted at once never will be: another session waits for the first session's lock to
        be released, and is ahead of us in the queue.
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


class Stamper:
    """Makes stamps of rows at one position, in one transaction, numbered from `first` on."""

    def __init__(self, position: Lsn, xid: int, first: int = 0) -> None:
        self._position = position
        self._xid = xid
        self._now = time.time_ns() // 1000
        self._rows = first

    def next(self, rows: int) -> Stamps:
        """Return stamps for the next rows."""
        numbers = np.arange(self._rows, self._rows + rows, dtype=np.int64)
        self._rows += rows
        at, now, xid = (np.full(rows, value, np.int64) for value in (self._position, self._now, self._xid))
        return Stamps(numbers, at, at, now, xid, numbers)


def _with_next(items: Iterator[Item]) -> Iterator[tuple[Item, Item | None]]:
    """Yield each item with the one after it, the last one with None."""
    item = next(items, None)
    while item is not None:
        following = next(items, None)
        yield item, following
        item = following


def snapshot_batch(
    table: TableSchema, columns: Columns, stamp: Stamper, position: SnapshotPosition
) -> ChangeBatch:
    """Make a batch of changes from rows that were read."""
    image = FullImage(columns, (None,) * len(columns))
    return ChangeBatch(table, "R", stamp.next(len(columns[0])), image, None, position)


_AHEAD = 4
"""Chunks of a part that are read ahead, at most."""


class Chunk(NamedTuple):
    """Some rows of a part; `size` is their bytes as received."""

    part: TablePart
    size: int
    columns: Columns


class _Reading:
    """A part that is being read: a queue of its chunks, then the error that ended it, or None."""

    def __init__(self, part: TablePart) -> None:
        self.part = part
        self.chunks: Queue[Chunk | BaseException | None] = Queue(_AHEAD)


def read_parts(
    parts: Iterable[TablePart],
    sessions: Sequence[SnapshotSession],
    text: DatabaseText,
    stopped: Callable[[], bool],
    *,
    typed: bool = False,
) -> Iterator[Chunk]:
    """Yield the rows of each part, in order; `text` and `typed` are as for `Snapshot`.

    Raises PgcdcError, and KeyboardInterrupt once `stopped`.
    """
    readers = _Readers(parts, len(sessions), text, stopped, typed=typed)
    threads = [threading.Thread(target=readers.run, args=(session,), daemon=True) for session in sessions]
    for thread in threads:
        thread.start()
    try:
        yield from readers.chunks()
    finally:
        readers.close()
        for thread in threads:
            thread.join()


class _Readers:
    """The state that the reading threads share."""

    def __init__(
        self,
        parts: Iterable[TablePart],
        count: int,
        text: DatabaseText,
        stopped: Callable[[], bool],
        *,
        typed: bool,
    ) -> None:
        self._parts = iter(parts)
        self._text = text
        self._stopped = stopped
        self._typed = typed
        self._closed = threading.Event()
        self._lock = threading.Lock()
        # One more part than threads, so that none waits while the last chunks of a part are written.
        self._room = threading.Semaphore(count + 1)
        self._begun: Queue[_Reading | None] = Queue()

    def close(self) -> None:
        """Make the threads end soon."""
        self._closed.set()

    def chunks(self) -> Iterator[Chunk]:
        """Yield the chunks that the threads read, in the order of parts."""
        while (reading := self._begun.get()) is not None:
            while (chunk := reading.chunks.get()) is not None:
                if isinstance(chunk, psycopg.Error):
                    table = reading.part.table
                    raise table.unfit(server_failure(table.reading, chunk, READING)) from chunk
                if isinstance(chunk, BaseException):
                    raise chunk
                yield chunk
            self._room.release()
        if self._stopped():
            raise KeyboardInterrupt

    def run(self, session: SnapshotSession) -> None:
        """Read parts until there are no more; runs in a thread."""
        while (reading := self._next()) is not None:
            try:
                self._read(session, reading)
            except BaseException as error:  # noqa: BLE001 - `chunks` raises it
                self._put(reading, error)
                return
            self._put(reading, None)

    def _next(self) -> _Reading | None:
        """Begin another part when there is room for it; None at the end."""
        while not (self._ends() or self._room.acquire(timeout=TICK)):
            pass
        with self._lock:
            part = None if self._ends() else next(self._parts, None)
            reading = None if part is None else _Reading(part)
            self._begun.put(reading)
        return reading

    def _read(self, session: SnapshotSession, reading: _Reading) -> None:
        part = reading.part
        types = [column.type for column in part.table.schema.columns]
        rows = session.copy(part.query(), types, self._text, self._ends, typed=self._typed)
        for size, columns in rows:
            self._put(reading, Chunk(part, size, columns))

    def _put(self, reading: _Reading, item: Chunk | BaseException | None) -> None:
        while not self._closed.is_set():
            with suppress(Full):
                reading.chunks.put(item, timeout=TICK)
                return

    def _ends(self) -> bool:
        return self._closed.is_set() or self._stopped()
