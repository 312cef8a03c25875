"""The snapshot that a stream begins with: it is taken when the slot is created, or of an existing slot.

A temporary slot exports the snapshot: every transaction that commits before the slot's position is in the
snapshot, every later one in the stream from that position on. The stream's slot may be older; or it is
created as a copy of the temporary one once a table is read (`keep_slot`), so that a run that is killed before
leaves no slot. PostgreSQL manual, "Streaming Replication Protocol", CREATE_REPLICATION_SLOT with SNAPSHOT
'export'.
"""

import math
import secrets
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor, wait
from contextlib import ExitStack, closing

import psycopg

from pgcdc_cli.errors import ErrorKind, PgcdcError
from pgcdc_cli.lsn import Lsn
from pgcdc_cli.pgoutput.relations import Describe
from pgcdc_cli.replication.connection import ReplicationConnection
from pgcdc_cli.replication.failures import server_failure
from pgcdc_cli.replication.session import ask
from pgcdc_cli.sinks.sink import Sink
from pgcdc_cli.stream.encode import SliceEncoder
from pgcdc_cli.stream.loop import SliceWriter
from pgcdc_cli.stream.settings import RunEnd, Signals, SnapshotPlan, StreamSettings, timed_out
from pgcdc_cli.stream.snapshot.snapshot_rows import Begun, Snapshot
from pgcdc_cli.stream.snapshot.snapshot_session import SnapshotSession
from pgcdc_cli.stream.snapshot.snapshot_tables import (
    ChangedTableError,
    SnapshotTable,
    WantedRows,
    find_tables,
    rows_to_come,
)
from pgcdc_cli.stream.start import RunStart

_NO_SLOT_HINT = "raise max_replication_slots, or drop a slot that is not in use: pgcdc slot list"

_TURN = 1.0
"""Seconds for which others wait for a lock of ours while there is no snapshot yet.

A few times as long as the server's WAL writer sleeps (`wal_writer_delay`), for which slot creation may wait.
"""

_MOMENT = 0.01
"""Seconds between two looks at whether a lock is waited for."""

# What the catalog says of publications. The view pg_publication_tables is as of now, whatever the snapshot.
_PUBLISHING = """
SELECT ARRAY(SELECT p::text FROM pg_publication p WHERE p.oid = ANY (named) ORDER BY p.oid),
       ARRAY(SELECT r::text FROM pg_publication_rel r WHERE r.prpubid = ANY (named) ORDER BY r.oid),
       ARRAY(SELECT s::text FROM pg_publication_namespace s WHERE s.pnpubid = ANY (named) ORDER BY s.oid)
FROM (SELECT ARRAY(SELECT oid FROM pg_publication WHERE pubname = ANY (%(publications)s))) AS p (named)
"""


class SlotSnapshot:
    """A snapshot as of the position of a temporary slot; a stream from there has everything after it.

    `lock` are tables, by schema and name, to lock before the snapshot is taken, since others keep rewriting
    them.
    """

    def __init__(self, conninfo: str, lock: Sequence[tuple[str, str]] = ()) -> None:
        self._slot = f"pgcdc_snapshot_{secrets.token_hex(6)}"
        self._idle_from = 0.0
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
        """Create the temporary slot, with the tables locked if that is possible.

        Slot creation waits for all transactions that have an ID, and whoever waits to rewrite a table has one
        (`LogAccessExclusiveLockPrepare` in storage/ipc/standby.c). Waiting for our lock would be a deadlock
        that the server can't detect, so they take turns with us.
        """
        with ThreadPoolExecutor(2) as background:
            locked = bool(lock) and self.session.lock(lock)
            export = background.submit(self._exporting.export_snapshot, self._slot)
            try:
                while locked and not wait([export], _TURN).done:
                    locked = self._lock_again(lock, background)
                return export.result()
            finally:
                if not export.done():
                    self._exporting.cancel()

    def _lock_again(self, lock: Sequence[tuple[str, str]], background: ThreadPoolExecutor) -> bool:
        """Let go of the tables, after another session of ours has asked for them.

        So those who wait come first, and none that comes later comes between. False if it doesn't get them.
        """
        before, self.session = self.session, SnapshotSession(self.session.here)
        self._closing.callback(self.session.close)
        request = background.submit(self.session.lock, lock)
        while not (wait([request], _MOMENT).done or before.sees_waiting(self.session)):
            pass
        before.close()
        return request.result()

    @property
    def in_recovery(self) -> bool:
        """Whether the server is a standby."""
        return self._exporting.in_recovery

    def close(self) -> None:
        """End the transaction that holds the snapshot, and drop the temporary slot."""
        self._closing.close()

    def check_publications(self, names: Sequence[str]) -> None:
        """Raise CONNECTION if publications were changed since the snapshot, which must be taken again.

        What came before the change is streamed as it was published then, and the tables were found later.
        """
        named = {"publications": list(names)}
        try:
            now = ask(self._exporting.own_session, _PUBLISHING, named)
        except psycopg.Error as error:
            raise server_failure("look at the publications", error) from error
        if now != self.session.ask(_PUBLISHING, named):
            message = "could not read what is published: a publication was changed since the snapshot"
            raise PgcdcError(ErrorKind.CONNECTION, message, hint="run again")

    def check_free_slot(self, name: str) -> None:
        """Raise USAGE if the server has no free slot: better now than after reading all rows."""
        query = "SELECT count(*) < current_setting('max_replication_slots')::int FROM pg_replication_slots"
        [(free,)] = self.session.ask(query)
        if not free:
            message = f'could not create slot "{name}": the server has no free slot besides the snapshot\'s'
            raise PgcdcError(ErrorKind.USAGE, message, hint=_NO_SLOT_HINT)

    def keep_slot(self, name: str) -> None:
        """Create the stream's slot, at `position`."""
        self._exporting.copy_slot(self._slot, name)

    def use_slots(self, name: str) -> None:
        """Use the snapshot's slot and the stream's from time to time: the server may end idle ones."""
        if time.monotonic() >= self._idle_from:
            timeout = self._exporting.use_slots([self._slot, name])
            self._idle_from = time.monotonic() + (timeout / 4 or math.inf)


class InitialSnapshot:
    """Exports a snapshot together with a slot's position, and writes its rows before the stream.

    A run that lost its connection takes it again, without the tables that are complete. Methods raise
    PgcdcError, and KeyboardInterrupt on a signal.
    """

    def __init__(
        self,
        settings: StreamSettings,
        plan: SnapshotPlan,
        start: RunStart,
        sink: Sink,
        writer: SliceWriter,
        signals: Signals,
    ) -> None:
        self._settings = settings
        self._plan = plan
        self._start = start
        self._sink = sink
        self._writer = writer
        self._signals = signals
        self._to_lock: Sequence[tuple[str, str]] = ()

    @property
    def is_due(self) -> bool:
        """Whether it must be taken before the stream goes on."""
        return not self._start.snapshot_taken and (self._plan.again or self._start.needs_snapshot)

    def export(self, conninfo: str) -> SlotSnapshot:
        """Take the snapshot; the caller closes it."""
        with self._signals.interruptible():
            return SlotSnapshot(conninfo, self._to_lock)

    def write(self, exported: SlotSnapshot, describe: Describe, encoder: SliceEncoder) -> None:
        """Write the rows; they are durable on return. Raises TIMEOUT if time is up before."""
        if self._start.slot_to_come:
            exported.check_free_slot(self._settings.slot)
        try:
            tables = self._find_tables(exported, describe)
            self._write(tables, exported, encoder)
        except KeyboardInterrupt:
            if self._signals.stop:
                raise
            raise timed_out("read all rows of the snapshot") from None
        self._sink.flush()
        totals = self._writer.totals
        totals.snapshot_bytes, totals.durable_lsn = None, self._sink.durable_lsn
        self._start.snapshot_taken = True

    def goes_on(self, end: RunEnd) -> bool:
        """Whether to stream after the snapshot: at least until all tables are as of one position."""
        later = [one.position for one in self._sink.edge.read]
        if later and (self._plan.only or self._settings.limits.end_now):
            end.lsn = max(end.lsn or Lsn(0), *later)
        return bool(later) or not self._plan.only

    def _find_tables(self, exported: SlotSnapshot, describe: Describe) -> list[SnapshotTable]:
        wanted = WantedRows(self._settings.publications, self._settings.includes, self._settings.selection)
        try:
            with self._signals.interruptible(), exported.session.waiting():
                tables = find_tables(exported.session, wanted, describe)
                exported.check_publications(wanted.publications)
        except ChangedTableError as error:
            self._to_lock = error.tables
            raise
        return tables

    def _write(self, tables: Sequence[SnapshotTable], exported: SlotSnapshot, encoder: SliceEncoder) -> None:
        """Write the rows, and create the slot when the first table is complete.

        Raises KeyboardInterrupt if the run ends before.
        """
        snapshot = Snapshot(
            exported.session,
            exported.position,
            encoder.text,
            lambda: self._signals.ends,
            self._plan.workers,
            typed=encoder.typed,
        )
        totals, begun = self._writer.totals, self._begun()
        totals.snapshot_rows = rows_to_come(tables if begun is None else begun.left(tables))
        # A standby can't assign a transaction ID.
        with_xid = self._plan.with_xid and not exported.in_recovery
        with closing(snapshot.slices(tables, with_xid=with_xid, begun=begun)) as slices:
            for rows in slices:
                if self._signals.ends:
                    raise KeyboardInterrupt
                if rows.edge is not None and self._start.slot_to_come:
                    self._sink.creating(exported.position)
                    exported.keep_slot(self._settings.slot)
                    self._start.slot_to_come = False
                exported.use_slots(self._settings.slot)
                totals.snapshot_bytes = snapshot.bytes
                self._writer.write([encoder.encode(rows)])

    def _begun(self) -> Begun | None:
        """Return what earlier runs read of the snapshot; None if a later run can't go on with this one."""
        checkpoint, read = self._sink.checkpoint, self._sink.edge.read
        ours = self._start.slot_to_come or (read and self._start.needs_snapshot)
        # With `at_prepare`, a transaction prepared before a table was read and committed later would be left
        # out.
        if checkpoint is None or not ours or self._settings.at_prepare:
            return None
        return Begun(checkpoint.creating if read else None, frozenset(one.oid for one in read))
