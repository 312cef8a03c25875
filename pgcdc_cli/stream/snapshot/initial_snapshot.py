"""The snapshot that a stream begins with: it is taken when the slot is created, or of an existing slot."""

from collections.abc import Sequence
from contextlib import closing

from pgcdc_cli.formats.interface import Format
from pgcdc_cli.lsn import Lsn
from pgcdc_cli.pgoutput.relations import Describe
from pgcdc_cli.sinks.sink import Sink
from pgcdc_cli.stream.invalid_text import TextMender
from pgcdc_cli.stream.loop import SliceWriter
from pgcdc_cli.stream.settings import RunEnd, Signals, SnapshotPlan, StreamSettings, timed_out
from pgcdc_cli.stream.snapshot.snapshot_rows import Begun, SlotSnapshot, Snapshot
from pgcdc_cli.stream.snapshot.snapshot_tables import (
    ChangedTableError,
    SnapshotTable,
    WantedRows,
    find_tables,
    rows_to_come,
)
from pgcdc_cli.stream.start import RunStart


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

    def write(self, exported: SlotSnapshot, describe: Describe, format_: Format, mender: TextMender) -> None:
        """Write the rows; they are durable on return. Raises TIMEOUT if time is up before."""
        if self._start.slot_to_come:
            exported.check_free_slot(self._settings.slot)
        try:
            tables = self._find_tables(exported, describe)
            self._write(tables, exported, format_, mender)
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
        wanted = WantedRows(self._settings.publications, self._plan.includes, self._settings.selection)
        try:
            with self._signals.interruptible():
                tables = find_tables(exported.session, wanted, describe)
                exported.check_publications(wanted.publications)
        except ChangedTableError as error:
            self._to_lock = error.tables
            raise
        return tables

    def _write(
        self,
        tables: Sequence[SnapshotTable],
        exported: SlotSnapshot,
        format_: Format,
        mender: TextMender,
    ) -> None:
        """Write the rows, and create the slot when the first table is complete.

        Raises KeyboardInterrupt if the run ends before.
        """
        snapshot = Snapshot(
            exported.session,
            exported.position,
            mender.text,
            lambda: self._signals.ends,
            self._plan.workers,
            typed=format_.capabilities.typed,
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
                self._writer.write([mender.encode(format_, rows)])

    def _begun(self) -> Begun | None:
        """Return what earlier runs read of the snapshot; None if a later run can't go on with this one."""
        checkpoint, read = self._sink.checkpoint, self._sink.edge.read
        ours = self._start.slot_to_come or (read and self._start.needs_snapshot)
        # With `at_prepare`, a transaction prepared before a table was read and committed later would be left
        # out.
        if checkpoint is None or not ours or self._settings.at_prepare:
            return None
        return Begun(checkpoint.creating if read else None, frozenset(one.oid for one in read))
