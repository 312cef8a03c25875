"""One run, from its start to its end: start, snapshot, stream, over as many connections as it takes."""

import logging
from collections.abc import Callable
from contextlib import closing
from dataclasses import replace
from functools import cache, partial
from typing import NamedTuple

from pgcdc_cli.catalog import Catalog
from pgcdc_cli.catalog.table_facts import describe_alone
from pgcdc_cli.changes.selection import TableStarts
from pgcdc_cli.changes.slice import Slice
from pgcdc_cli.errors import ErrorKind, PgcdcError, UndecodableError
from pgcdc_cli.formats.interface import Format
from pgcdc_cli.formats.raw import RawFormat
from pgcdc_cli.pgoutput.assemble import Assembler
from pgcdc_cli.pgoutput.message_batch import DecodeLimits
from pgcdc_cli.pgoutput.prepared import PreparedPolicy
from pgcdc_cli.pgoutput.relations import Describe, Tables
from pgcdc_cli.pgoutput.spooled_transaction import UndecidedRollbackError
from pgcdc_cli.pgoutput.transactions import PgoutputDecoder
from pgcdc_cli.replication.commands import PluginOptions
from pgcdc_cli.replication.connection import ReplicationConnection, SystemIdentity
from pgcdc_cli.replication.copy_both import NEVER, ReplicationStream
from pgcdc_cli.sinks.sink import Sink
from pgcdc_cli.stream.encode import ChangeEncoder, FrameEncoder, RawEncoder, SliceEncoder
from pgcdc_cli.stream.invalid_text import TextMender
from pgcdc_cli.stream.known_prepared import KnownPrepared
from pgcdc_cli.stream.loop import Heartbeats, SliceWriter, StreamLoop
from pgcdc_cli.stream.memory import keep_freed_memory
from pgcdc_cli.stream.reconnect import Reconnection, RetryPolicy
from pgcdc_cli.stream.settings import RunEnd, RunTotals, Signals, StreamSettings, timed_out
from pgcdc_cli.stream.snapshot.initial_snapshot import InitialSnapshot
from pgcdc_cli.stream.snapshot.resnapshot import Resnapshot, ResnapshotOutput, ResnapshotWatch
from pgcdc_cli.stream.snapshot.resnapshot_session import ResnapshotSource
from pgcdc_cli.stream.snapshot.snapshot_tables import WantedRows
from pgcdc_cli.stream.start import RunStart
from pgcdc_cli.stream.timeline_watch import TimelineWatch
from pgcdc_cli.types.database_text import DatabaseText

log = logging.getLogger("pgcdc")

_SILENCE = 1.5
"""Seconds of silence after CopyDone: a walsender answers at once, or goes on sending.

One that is silent for longer, as it reads WAL without published changes, notices later that we have gone.
"""


class _Connected(NamedTuple):
    """A connection, what its server says of itself, the plugin's options, and how rows are read over it.

    `slices` encodes them; what isn't decoded has none.
    """

    connection: ReplicationConnection
    identity: SystemIdentity
    options: PluginOptions
    describe: Describe
    text: DatabaseText
    slices: SliceEncoder | None


class StreamRun:
    """Streams for one run, from its start to its end, over as many connections as it takes."""

    def __init__(
        self,
        settings: StreamSettings,
        sink: Sink,
        format_: Format | RawFormat,
        signals: Signals,
        report: Callable[[RunTotals], None],
    ) -> None:
        self._settings = settings
        self._sink = sink
        self._format = format_
        self._signals = signals
        self._catalog = Catalog(settings.conninfo, signals.interruptible)
        self._end = RunEnd(settings.limits)
        self._writer = SliceWriter(sink, signals, report)
        self._start = RunStart(settings, sink, self._catalog, signals, format_)
        self._timeline = TimelineWatch(self._start, sink, signals)
        heartbeats = Heartbeats(format_.restartable, settings.heartbeat_interval)
        self._loop = StreamLoop(sink, self._writer, self._end, heartbeats, signals, report)
        self._snapshot = None
        if settings.snapshot is not None:
            plan, start = settings.snapshot, self._start
            self._snapshot = InitialSnapshot(settings, plan, start, sink, self._writer, signals)
        self._protocol = settings.protocol
        self._known_prepared = KnownPrepared(settings.slot, sink, self._catalog)
        self._retries = RetryPolicy(loop=settings.loop, for_ever=settings.for_ever)
        self._connections = Reconnection(self._retries, self._end, self._writer, sink, signals, self._catalog)
        self._warned: set[str] = set()
        self._told: set[int] = set()

    @property
    def totals(self) -> RunTotals:
        return self._writer.totals

    def run(self) -> None:
        """Stream until an end is reached or a signal stops it; then everything is durable and confirmed.

        Raises TIMEOUT if time is up before the end position, and whatever the packages below raise. Even then
        everything up to the last transaction edge is durable, unless the output itself has failed.
        """
        keep_freed_memory()
        with closing(self._catalog):
            if not self._opened():
                return
            try:
                self._start.check_position()
                self._connections.until_done(self._one_connection)
            except UndecodableError as error:
                if error.remedy is None:
                    error.hint = self._keep(error.data)
                if error.kind is ErrorKind.UNEXPECTED:
                    error.hint += " and the traceback that --debug shows"
                raise
            finally:
                self._writer.close()
        self._end.check(self._sink.edge.lsn)

    def _opened(self) -> bool:
        """Open the sink; false if a signal ended the run while a named pipe had no reader."""
        try:
            self._sink.open()
        except KeyboardInterrupt:
            if not self._signals.stop:
                raise timed_out("wait any longer for a reader of the output") from None
            return False
        return True

    def _keep(self, data: bytes) -> str:
        """Write what could not be decoded into the `.bad` file; return a hint that names it."""
        path = self._settings.bad_file
        try:
            path.write_bytes(data)
        except OSError as error:
            return f'none of it was confirmed; it could not be kept in "{path}": {error.strerror}'
        return f'none of it was confirmed: report it and attach "{path}"'

    def _one_connection(self) -> bool:
        """Run over one connection; false if its end asks for another one."""
        settings, level = self._settings, self._retries.level
        with self._signals.interruptible():
            connection = ReplicationConnection(
                settings.conninfo,
                status_interval=settings.status_interval,
                session_kind=settings.session_kind,
            )
        with connection:
            connected = self._prepare(connection)
            if self._begins_beyond_end() or not self._take_snapshot(connected):
                return True
            undecided = None
            with (
                closing(self._begin_resnapshot(connected)) as again,
                closing(self._timeline.begin(connection, connected.identity)) as timeline,
            ):
                stream = self._begin_stream(connected, level)
                encoder = self._encoder(connected, again.watch)
                try:
                    self._loop.run(
                        stream, encoder, timeline.follow, partial(self._between_transactions, again)
                    )
                except UndecidedRollbackError as error:
                    undecided = error
            # The sink is closed last: what is asked of it until then, such as HUP, still counts.
            self._writer.back_to_edge()
            self._known_prepared.forget_missed(connected.identity.wal_position)
            self._loop.acknowledge()
            self._finish(stream, hurry=self._signals.stop or undecided is not None)
        if undecided is not None:
            self._ask_for_whole_transactions(undecided)
        return undecided is None

    def _prepare(self, connection: ReplicationConnection) -> _Connected:
        """Check the server and what is on it, and create what is missing, before anything is read."""
        self._catalog.turn_to(connection.here)
        self._known_prepared.look(connection)
        with self._signals.interruptible():
            identity = connection.identify_system()
        options = self._plugin_options(connection.server_version)
        if not self._settings.resnapshot:
            self._end.resolve_now(identity.wal_position)
        with self._catalog.over(connection.own_session):
            self._start.prepare(connection, identity)
        if not self._start.two_phase:
            self._known_prepared.forget_all()
        # What fails from here on, such as a query that a standby cancels, isn't for want of a server.
        self._retries.server_answers()
        text = self._text_of(connection.database_encoding)
        ask = self._settings.use_catalog
        describe = partial(self._catalog.describe, text=text) if ask else describe_alone
        slices = None
        if self._format.decodes:
            slices = SliceEncoder(self._format, TextMender(text, self._warned), identity.database)
            slices.restart(self._sink.edge.last_commit)
        return _Connected(connection, identity, options, describe, text, slices)

    def _begin_stream(self, connected: _Connected, level: int) -> ReplicationStream:
        """Begin the stream; if that took more than one attempt, `level` is the log level to say so."""
        connection, identity = connected.connection, connected.identity
        with self._signals.interruptible():
            stream = connection.start(
                self._readable_slot(connection),
                max(self._sink.durable_lsn, self._start.position),
                connected.options,
                client_encoding=connected.text.client_encoding,
            )
        log.info("streaming initiated")
        self._start.begun = True
        # Until the server says more, or if it has nothing to send, its WAL ends here.
        self.totals.wal_end = max(self.totals.wal_end, identity.wal_position)
        away = self._retries.connected()
        if away is not None:
            log.log(level, "connected again after %.1f s", away)
        return stream

    def _begins_beyond_end(self) -> bool:
        """Whether the run starts where it was to end, so that nothing comes, nor is confirmed.

        A checkpoint has the start position by now, which the slot may catch up with.
        """
        start, end = self._settings.start_lsn, self._settings.limits.end_lsn
        return self._sink.checkpoint is None and start is not None and end is not None and end < start

    def _ask_for_whole_transactions(self, error: UndecidedRollbackError) -> None:
        log.info("%s; asking for whole transactions", error.message)
        self._protocol = replace(self._protocol, streaming="off")
        self._retries.leaves()

    def _readable_slot(self, connection: ReplicationConnection) -> str:
        """Return the slot to read; for `peek` a temporary copy, which is announced once."""
        settings = self._settings
        if not settings.peek:
            return settings.slot
        copy = connection.temporary_copy(settings.slot)
        if settings.peeking is not None and not self._start.begun:
            settings.peeking()
        return copy

    def _plugin_options(self, server_version: int) -> PluginOptions:
        options = self._settings.options
        if not self._settings.publications:
            return options
        return (*self._protocol.options(server_version).items(), *options)

    def _finish(self, stream: ReplicationStream, *, hurry: bool) -> None:
        """End the stream. Everything is durable, so it is no failure if the server can't be told.

        With a checkpoint nothing is repeated then, so who is in a hurry doesn't wait for a dead connection.
        """
        try:
            patience = _SILENCE if hurry and self._sink.checkpoint else NEVER
            if not stream.finish(patience=patience):
                log.info("the server took too long to confirm the end")
        except PgcdcError as error:
            log.warning("%s; the end may not have been confirmed", error.message)

    def _take_snapshot(self, connected: _Connected) -> bool:
        """Write the snapshot before the stream, if one is due; false ends the run."""
        snapshot = self._snapshot
        if snapshot is None:
            return True
        if snapshot.is_due:
            assert connected.slices is not None, "what isn't decoded has no rows"
            with closing(snapshot.export(connected.connection.here)) as exported:
                snapshot.write(exported, connected.describe, connected.slices)
        return snapshot.goes_on(self._end)

    def _begin_resnapshot(self, connected: _Connected) -> Resnapshot:
        """Find the tables to read again while they are streamed, before the stream begins."""
        settings, slices = self._settings, connected.slices

        def write(slice_: Slice) -> None:
            assert slices is not None, "what isn't decoded has no rows"
            self._writer.write([slices.encode(slice_)])

        def confirm() -> None:
            self._sink.flush()
            self._loop.acknowledge()

        def abandon() -> None:
            assert slices is not None, "what isn't decoded has no rows"
            self._writer.back_to_edge()
            slices.restart(self._sink.edge.last_commit)

        wanted = WantedRows(settings.publications, settings.includes, settings.selection)
        source = ResnapshotSource(
            wanted,
            settings.resnapshot,
            connected.describe,
            self._catalog.table_names,
            connected.text,
            lambda: self._signals.ends,
            self._told,
        )
        again = Resnapshot(source, ResnapshotOutput(self._sink, write, confirm, abandon))
        try:
            with self._signals.interruptible():
                again.begin(connected.connection.here)
            again.record()
        except BaseException:
            again.close()
            raise
        if again.finished:
            self._end.resolve_now(connected.identity.wal_position)
        return again

    def _between_transactions(self, again: Resnapshot) -> None:
        """Do what must not be done amid a transaction, or need not be."""
        self._catalog.rest()
        self._read_again(again)

    def _read_again(self, again: Resnapshot) -> None:
        """Read more of the tables; the end position "now" is where the stream has caught up with them."""
        if not again.finished:
            again.step()
            if again.finished:
                self._end.resolve_now(again.caught_up_at)
                again.close()

    def _text_of(self, encoding: str) -> DatabaseText:
        """Return how text is received; for raw output in the database's encoding."""
        if not self._format.decodes:
            return DatabaseText(encoding)
        default = self._format.capabilities.invalid_text
        return DatabaseText.of(encoding, self._settings.invalid_text, default)

    def _encoder(self, connected: _Connected, watch: ResnapshotWatch) -> FrameEncoder:
        """Make the encoder for a new connection, on which the stream restarts at the last edge."""
        format_ = self._format
        if not format_.decodes:
            return RawEncoder(format_, self._end.lsn)
        assert connected.slices is not None, "what is decoded is encoded"
        tables = Tables(
            connected.describe,
            selection=self._settings.selection,
            origin_number=cache(self._catalog.origin_number) if self._settings.origin_numbers else None,
            binary=self._settings.protocol.binary,
        )
        transactions = self._end.transactions_left(self.totals.transactions)
        limits = DecodeLimits(self._sink.edge.lsn, self._end.lsn, transactions)
        assembler = Assembler(tables, limits, boundaries=format_.wants_boundaries)
        policy = PreparedPolicy(
            known=self._sink.edge.prepared,
            at_prepare=self._settings.at_prepare,
            accept_gap=self._settings.accept_gap,
            warn=log.warning,
        )
        decoder = PgoutputDecoder(assembler, self._sink.new_spools(), policy, connected.text)
        starts = TableStarts(dict(self._sink.edge.read))
        return ChangeEncoder(
            decoder, connected.slices, lambda slice_: watch.follow(starts.without_read(slice_))
        )
