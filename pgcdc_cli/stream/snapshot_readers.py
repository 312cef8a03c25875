"""Parts of tables, read over several connections at once, and given in their order.

Each connection has a thread, which reads one part after another, some chunks ahead of whoever takes them: so
memory is bounded, and what comes out is the same however many there are.
"""

import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import suppress
from queue import Full, Queue
from typing import NamedTuple

import psycopg

from pgcdc_cli.replication.copy_out import TICK
from pgcdc_cli.replication.session import server_failure
from pgcdc_cli.stream.snapshot_session import Columns, SnapshotSession
from pgcdc_cli.stream.snapshot_tables import TablePart
from pgcdc_cli.types.database_text import DatabaseText

_AHEAD = 2
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
    for thread in threads:
        thread.start()
    try:
        yield from readers.chunks()
    finally:
        readers.close()
        for thread in threads:
            thread.join()


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
