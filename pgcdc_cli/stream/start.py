"""Check publications, slot, source and position before a stream begins, and find where it begins.

This happens before START_REPLICATION, whose errors say less; the source is checked again when a standby is
promoted.
"""

import logging
from dataclasses import replace

import psycopg

from pgcdc_cli.catalog import Catalog, Slot
from pgcdc_cli.changes.selection import PATTERN_HINT
from pgcdc_cli.directory.beyond_checkpoint import GAPS
from pgcdc_cli.directory.checkpoint import Checkpoint, StreamSource, check_gap, older_server
from pgcdc_cli.errors import ErrorKind, PgcdcError
from pgcdc_cli.formats.interface import Format
from pgcdc_cli.formats.raw import RawFormat
from pgcdc_cli.lsn import Lsn
from pgcdc_cli.replication.commands import check_slot_name
from pgcdc_cli.replication.connection import ReplicationConnection, SystemIdentity
from pgcdc_cli.sinks.sink import Sink
from pgcdc_cli.stream.settings import Signals, StreamSettings
from pgcdc_cli.stream.source_checks import after_upgrade, check_begun, check_slot, check_source, warn_of_gap

log = logging.getLogger("pgcdc")

_START_AT_SLOT = "leave out -I/--startpos to start where the slot is"
_STANDBY_BEHIND = "run again when it has caught up with the primary"
_ALL_EXCLUDED = "--exclude-table leaves out all that is published"
_NO_TABLE = f"see what is published with: pgcdc publication show NAME; {PATTERN_HINT}"
_LOST_WITH_SLOT = "the changes since then are lost with it: --create-slot --accept-gap continues without them"
# Without a checkpoint the next run can't notice a gap.
_LOST_UNCHECKED = "changes in between are lost: start it again to continue without them"
_LOST_UNCHECKED_WITH_SLOT = "the changes since then are lost with it: --create-slot continues without them"
_NOT_MIGRATED = (
    "pg_upgrade migrates slots from PostgreSQL 17 on only: if nobody has written since, add --create-slot"
)
_UPGRADED = "system identifier %s was upgraded to %s: the stream goes on at %s"
_SLOT_IN_USE = "leave out --create-slot: there is a checkpoint, and a slot to go on with"
_NO_SNAPSHOT = (
    "read the rows while it streams, with --resnapshot '*.*' in place of --snapshot; or drop it, and the"
    " snapshot recreates it: pgcdc slot drop {}; or do without: --snapshot never"
)
_UNFINISHED = (
    "continue with --snapshot initial (a connector's snapshot.mode=initial), which completes it; or write to"
    " another directory or file"
)


class RunStart:
    """What is created and checked on every connection of a run before the stream begins on it.

    `position`: where the slot was when it was checked. `slot_to_come`: the snapshot will create the slot;
    `snapshot_taken`: it is complete. `begun`: the stream goes on from the sink's position. `two_phase`: the
    server sends prepared transactions at their PREPARE. Methods raise PgcdcError.
    """

    def __init__(
        self,
        settings: StreamSettings,
        sink: Sink,
        catalog: Catalog,
        signals: Signals,
        format_: Format | RawFormat,
    ) -> None:
        self._settings = settings
        self._sink = sink
        self._catalog = catalog
        self._signals = signals
        self._format = format_
        self._created = self._published = False
        self._warned = self._warned_of_lists = self._warned_of_two_phase = False
        self.position = Lsn(0)
        self.slot_to_come = self.snapshot_taken = self.begun = False
        self.two_phase = settings.protocol.two_phase

    @property
    def needs_snapshot(self) -> bool:
        """Whether a snapshot is wanted that neither this run nor an earlier one has completed."""
        checkpoint = self._sink.checkpoint
        wanted = self._settings.snapshot is not None and not self.snapshot_taken
        return wanted and (checkpoint is None or not checkpoint.end_lsn)

    @property
    def _output_end(self) -> Lsn:
        """The position up to which there is output; without a checkpoint 0 until the stream begins."""
        known = self.begun or self._sink.checkpoint is not None
        return self._sink.durable_lsn if known else Lsn(0)

    def check_position(self) -> None:
        """Raise USAGE for a start position beside a checkpoint, or a stream after an incomplete snapshot."""
        start, checkpoint = self._settings.start_lsn, self._sink.checkpoint
        if checkpoint is not None and not checkpoint.end_lsn and self._settings.snapshot is None:
            message = "could not continue: the snapshot that the stream begins with was not finished"
            raise PgcdcError(ErrorKind.USAGE, message, hint=_UNFINISHED)
        if start is not None and checkpoint is not None:
            raise PgcdcError(
                ErrorKind.USAGE,
                f"could not start at {start}: there is a checkpoint, at {checkpoint.end_lsn}",
                hint="leave out -I/--startpos, or write to another directory or file",
            )

    def prepare(self, connection: ReplicationConnection, identity: SystemIdentity) -> None:
        """Check that this is the checkpoint's source, create what is missing, and start the sink."""
        try:
            self._prepare(connection, identity)
        except PgcdcError as error:
            if error.kind in GAPS and self._output_end:
                error.hint = self._sink.gap_remedy or error.hint
            raise

    def _prepare(self, connection: ReplicationConnection, identity: SystemIdentity) -> None:
        settings = self._settings
        if self._sink.checkpoint is None:
            # The slot can't see a publication that is created after it.
            self._make_publication()
        source = StreamSource(
            identity.system_id, identity.timeline, identity.database, settings.slot, settings.publications
        )
        self.slot_to_come = False
        if self.needs_snapshot and not settings.peek:
            self.slot_to_come = self._snapshot_creates_slot(connection)
        if self.slot_to_come:
            self._catalog.check_wal_level()
            position = Lsn(0)
        else:
            position = self._slot_position(connection, source, identity.wal_position)
        self.position = position
        self._check_publications(for_slot=not self.slot_to_come)
        checkpoint = self._checked(source, position, connection)
        self._check_log_end(identity.wal_position, in_recovery=connection.in_recovery)
        self._check_selection()
        if checkpoint is not None or not self.begun:
            self._check_startpos(connection, identity.wal_position)
            self._forget_left_out()
            self._sink.start(source, self._start_lsn(position), checkpoint)
        # Only now is it known that this is the source whose publication should change. The checkpoint has the
        # lists by now, so that a run with the earlier ones says that it differs, also if this one is killed.
        self._make_publication()
        self._check_lists()
        self.begun = self.begun or settings.snapshot is not None

    def _make_publication(self) -> None:
        """Create or change the publication, once a run."""
        make = self._settings.make_publication
        if make is not None and not self._published:
            make(self._catalog, self._sink.checkpoint is None)
            self._published = True

    def _forget_left_out(self) -> None:
        """Forget which tables an unfinished snapshot has read if their changes are left out from now on."""
        read = self._sink.edge.read
        if not (read and self.needs_snapshot):
            return
        names, includes = self._catalog.table_names([one.oid for one in read]), self._settings.includes
        self._sink.edge.read = tuple(one for one in read if one.oid not in names or includes(*names[one.oid]))

    def _slot_position(self, connection: ReplicationConnection, source: StreamSource, log_end: Lsn) -> Lsn:
        settings = self._settings
        if settings.create_slot and not (self._created or self.needs_snapshot or self.snapshot_taken):
            self._create_slot(connection, source, log_end)
        slot = self._checked_slot(connection, source, log_end)
        self.two_phase = settings.protocol.two_phase or bool(slot.two_phase)
        if settings.protocol.two_phase and not (settings.peek or self._warned_of_two_phase):
            self._warned_of_two_phase = True
            if slot.two_phase is False:
                # The server remembers that for all later runs.
                log.warning('slot "%s" becomes two-phase, and stays so without --two-phase', slot.name)
        return slot.position(f'stream slot "{slot.name}"')

    def _checked_slot(self, connection: ReplicationConnection, source: StreamSource, log_end: Lsn) -> Slot:
        settings = self._settings
        try:
            return check_slot(
                self._catalog,
                settings.slot,
                source.database,
                decodes=self._format.decodes,
                keeps_prepared=settings.keeps_prepared,
            )
        except PgcdcError as error:
            if error.kind is ErrorKind.SLOT_MISSING and self._output_end:
                self._check_server_without_slot(source, connection, log_end)
                known = self._sink.checkpoint is not None
                error.hint = _LOST_WITH_SLOT if known else _LOST_UNCHECKED_WITH_SLOT
                if self._is_upgraded(source):
                    error.hint = _NOT_MIGRATED
            raise

    def _check_server_without_slot(
        self, source: StreamSource, connection: ReplicationConnection, log_end: Lsn
    ) -> None:
        """Raise the error that says so if the slot is missing on another server, such as one from a backup.

        A slot created on an older copy of the server would mix two histories once its WAL has grown.
        """
        self._checked(source, Lsn(0), connection)
        self._check_log_end(log_end, in_recovery=connection.in_recovery)

    def _snapshot_creates_slot(self, connection: ReplicationConnection) -> bool:
        """Whether the snapshot is still to create the slot. Raises SLOT_EXISTS for another's."""
        settings, checkpoint = self._settings, self._sink.checkpoint
        slot = self._catalog.slot(settings.slot)
        if checkpoint is not None and checkpoint.read:
            check_begun(checkpoint, slot)
            return False
        if slot is not None and _is_leftover(slot, checkpoint):
            connection.drop_slot(settings.slot)
            return True
        if slot is None:
            check_slot_name(settings.slot)
            return True
        if settings.snapshot is not None and settings.snapshot.any_slot:
            return False
        message = f'could not take a snapshot for slot "{settings.slot}": it already exists'
        raise PgcdcError(ErrorKind.SLOT_EXISTS, message, hint=_NO_SNAPSHOT.format(settings.slot))

    def _create_slot(self, connection: ReplicationConnection, source: StreamSource, log_end: Lsn) -> None:
        """Create the slot, after checking that the publications exist: it can't see later ones."""
        name = self._settings.slot
        slot = self._catalog.slot(name)
        exists = slot is not None
        # An invalidated one is refused next, with a hint that helps.
        if slot is not None and (slot.lost or self._settings.if_not_exists):
            return
        done = self._output_end
        if done and not exists:
            # A slot that is left on a server that is then refused would retain its WAL.
            self._check_server_without_slot(source, connection, log_end)
        accepted = (self._settings.accept_gap or self._is_upgraded(source)) and self._cuts_nothing
        if done and not (exists or accepted):
            message = f'could not continue from {done}: slot "{name}" is gone'
            hint = _LOST_UNCHECKED if self._sink.checkpoint is None else ErrorKind.GAP.rule.hint
            raise PgcdcError(ErrorKind.SLOT_MISSING, message, hint=hint)
        self._check_publications(for_slot=exists)
        self._check_selection()
        check_slot_name(name)
        try:
            with self._signals.interruptible():
                connection.create_slot(name, two_phase=self._settings.protocol.two_phase)
        except PgcdcError as error:
            if error.kind is ErrorKind.SLOT_EXISTS and done:
                error.hint = _SLOT_IN_USE
            raise
        self._created = True

    @property
    def _cuts_nothing(self) -> bool:
        """Whether a gap can be accepted: it makes no other one, by cutting off what is in the output."""
        return self._sink.gap_remedy is None

    def _is_upgraded(self, source: StreamSource) -> bool:
        """Whether this is another server than the checkpoint's, and is to be taken for it."""
        checkpoint = self._sink.checkpoint
        moved = checkpoint is not None and checkpoint.source.system_id != source.system_id
        return moved and self._settings.accept_upgrade and bool(self._output_end)

    def _check_publications(self, *, for_slot: bool) -> None:
        if self._format.decodes:
            self._catalog.check_publications(self._settings.publications, for_slot=for_slot)

    def _check_selection(self) -> None:
        """Warn, once a run, about patterns that match nothing.

        Raises USAGE if patterns leave a stream without tables that is new, or had other patterns before.
        """
        selection, checkpoint = self._settings.selection, self._sink.checkpoint
        if not (self._format.decodes and selection.options) or self._warned:
            return
        self._warned = True
        published = self._published_tables()
        if published is None:
            return
        unmatched = selection.unmatched(published)
        nothing = not any(selection.includes(schema, table) for schema, table, _ in published)
        empty = nothing and (unmatched or not self._settings.protocol.messages)
        if empty and (checkpoint is None or not selection.chooses_as(checkpoint.options)):
            reason = f'nothing in the publications matches "{unmatched[0]}"' if unmatched else _ALL_EXCLUDED
            raise PgcdcError(ErrorKind.USAGE, f"could not find a table to stream: {reason}", hint=_NO_TABLE)
        for pattern in unmatched:
            log.warning('nothing in the publications matches "%s"', pattern)

    def _check_lists(self) -> None:
        """Warn, once a run, about a format's lists of tables that match nothing; Debezium only warns, too."""
        lists = self._format.table_lists if self._format.decodes else {}
        if not lists or self._warned_of_lists:
            return
        self._warned_of_lists = True
        published = self._published_tables()
        if published is None:
            return
        for name, has in lists.items():
            if not any(has(schema, table) for schema, table, _ in published):
                log.warning("nothing in the publications matches %s", name)

    def _published_tables(self) -> list[tuple[str, str, list[str]]] | None:
        """List the published tables with their columns; None, with a warning, if one is locked."""
        try:
            return self._catalog.published(self._settings.publications)
        except PgcdcError as error:
            if not isinstance(error.__cause__, psycopg.errors.LockNotAvailable):
                raise
            log.warning("a published table is locked: could not tell whether each pattern matches one")
            return None

    def _checked(
        self, source: StreamSource, position: Lsn, connection: ReplicationConnection
    ) -> Checkpoint | None:
        """Return the checkpoint to go on with; None if there is none."""
        settings, checkpoint = self._settings, self._sink.checkpoint
        if checkpoint is not None:
            if settings.accept_database:
                # Its slot, which is this database's, is found by its position to have all changes since.
                checkpoint = replace(checkpoint, source=replace(checkpoint.source, database=source.database))
            if self._is_upgraded(source):
                if position:
                    log.warning(_UPGRADED, checkpoint.source.system_id, source.system_id, position)
                checkpoint = after_upgrade(checkpoint, source, position if self._cuts_nothing else Lsn(0))
            return check_source(
                checkpoint,
                source,
                slot_position=Lsn(0) if self.needs_snapshot else position,
                accept_gap=settings.accept_gap and self._cuts_nothing,
                accept_publications=settings.accept_publications,
                history=lambda: connection.timeline_history(source.timeline),
            )
        if self._output_end and not settings.accept_gap:
            check_gap(settings.slot, position, self._output_end, _LOST_UNCHECKED)
        elif self._output_end and position > self._output_end:
            warn_of_gap(self._output_end, position)
        return None

    def _check_log_end(self, log_end: Lsn, *, in_recovery: bool) -> None:
        """Refuse a server whose WAL ends before our position; a standby may still reach it.

        So no slot is ever confirmed beyond its server's WAL, on which `check_source` relies.
        """
        done = self._output_end
        if done <= max(log_end, self._settings.start_lsn or Lsn(0)):
            return
        if in_recovery:
            message = f"could not continue from {done}: the standby has only reached {log_end}"
            raise PgcdcError(ErrorKind.CONNECTION, message, hint=_STANDBY_BEHIND)
        raise older_server(done, log_end)

    def _check_startpos(self, connection: ReplicationConnection, log_end: Lsn) -> None:
        """Refuse a start position beyond the server's WAL: the slot would be confirmed up to there."""
        wanted = self._settings.start_lsn
        if wanted is None or wanted <= log_end:
            return
        if connection.in_recovery:
            message = f"could not start at {wanted}: the standby has only reached {log_end}"
            raise PgcdcError(ErrorKind.CONNECTION, message, hint=_STANDBY_BEHIND)
        written = connection.log_end()
        if wanted > written:
            message = f"could not start at {wanted}: the server's WAL ends before that, at {written}"
            raise PgcdcError(ErrorKind.USAGE, message, hint=_START_AT_SLOT)

    def _start_lsn(self, position: Lsn) -> Lsn:
        wanted = self._settings.start_lsn
        if self.needs_snapshot:
            return Lsn(0)
        if wanted is None or wanted == position:
            return position
        if wanted < position:
            log.warning("could not start at %s: the slot is already at %s", wanted, position)
        return max(wanted, position)


def _is_leftover(slot: Slot, checkpoint: Checkpoint | None) -> bool:
    """Whether a slot is that of a run that ended when it had created it, and had read no table.

    Its position, which that run recorded in the checkpoint, shows that it is ours.
    """
    creating = None if checkpoint is None else checkpoint.creating
    return creating is not None and slot.confirmed_flush_lsn == creating
