"""The loop that joins the rooms: receive, decode, assemble, format, write, checkpoint, acknowledge.

One thread does all of that in turn; the connection's feedback thread only tells the server, when it is due,
what the sink has made durable.
"""

import logging
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import closing, nullcontext
from dataclasses import replace

from pgcdc_cli.catalog import Catalog
from pgcdc_cli.catalog.tables import describe_alone
from pgcdc_cli.errors import ErrorKind, PgcdcError, UndecodableError
from pgcdc_cli.formats.base import EncodedSlice, Format, Restartable
from pgcdc_cli.lsn import Lsn
from pgcdc_cli.pgoutput.assemble import Assembler
from pgcdc_cli.pgoutput.changes import Edge
from pgcdc_cli.pgoutput.messages import Relation
from pgcdc_cli.pgoutput.prepared import PreparedPolicy
from pgcdc_cli.pgoutput.streamed import Streams
from pgcdc_cli.replication.connection import ReplicationConnection
from pgcdc_cli.replication.frames import Keepalive, Received
from pgcdc_cli.sinks.base import Sink
from pgcdc_cli.sinks.checkpoint import Checkpoint, Source
from pgcdc_cli.sinks.source import check_gap, check_source
from pgcdc_cli.stream.pipeline import ChangePipeline, Pipeline, RawPipeline
from pgcdc_cli.stream.reconnect import Patience
from pgcdc_cli.stream.settings import Control, StreamSettings, Totals
from pgcdc_cli.stream.snapshot import Snapshot
from pgcdc_cli.stream.start import check_slot
from pgcdc_cli.table import TableSchema

log = logging.getLogger("pgcdc")

BATCH = 8192
"""Frames decoded at once, at most: the cost per batch vanishes, and they stay in cache."""

BATCH_BYTES = 1 << 20
"""Bytes of a batch that is large enough, however few its frames."""

FEW, FEW_BYTES = 64, 1 << 16
"""Frames and bytes of less than which a batch is small: it costs what any batch does, whatever is in it."""

GATHER = 0.005
"""Seconds to wait for more of an open transaction before what is there is decoded."""

NAP = 0.0002
"""Seconds left to a server that flushes every message: one wake-up then brings many rows, not a dozen."""

TICK = 0.25
"""Seconds after which an idle loop looks at signals and clocks."""


NOWHERE = Lsn(2**64 - 1)
"""No position of a log reaches this one."""


def _is_small(frames: Sequence[bytes]) -> bool:
    return len(frames) < FEW and sum(map(len, frames)) < FEW_BYTES


class StreamRun:
    """One run from its start to its end, over as many connections as it takes.

    With `marks` the encoding is given begins and commits, too.
    """

    def __init__(
        self,
        settings: StreamSettings,
        sink: Sink,
        encoding: Format,
        control: Control,
        report: Callable[[Totals], None],
        *,
        marks: bool = False,
    ) -> None:
        self._settings = settings
        self._sink = sink
        self._encoding = encoding
        self._decodes = encoding.name != "raw"
        self._control = control
        self._report = report
        self._marks = marks
        self._catalog = Catalog(settings.conninfo)
        self.totals = Totals()
        self._rows_at_edge = 0
        self._end_lsn = settings.limits.end_lsn
        self._checkpoint: Checkpoint | None = None
        self._database = ""
        self._started = self._created = self._snapshot_taken = False
        self._began = self._last_data = self._beaten = time.monotonic()
        self._taken = 0.0
        self._failure: PgcdcError | None = None

    def run(self) -> Totals:
        """Stream until an end is reached or a signal asks for it; then all is durable and acknowledged.

        Raises PgcdcError: TIMEOUT where time is up before the end position, and whatever the rooms raise.
        What had reached a transaction edge is durable all the same, unless the output itself has failed.
        """
        with closing(self._catalog):
            self._checkpoint = self._sink.open()
            try:
                self._check_start()
                self._connect_until_done()
            except UndecodableError as error:
                error.hint = self._keep(error.data)
                if error.kind is ErrorKind.UNEXPECTED:
                    error.hint += ", and the traceback that --debug shows"
                raise
            finally:
                self._sink.close()
        if self._time_is_up() and self._end_lsn is not None and self._sink.edge_lsn < self._end_lsn:
            raise PgcdcError(
                ErrorKind.TIMEOUT,
                f"could not reach the end position {self._end_lsn}: time is up at {self._sink.edge_lsn}",
            )
        return self.totals

    def _check_start(self) -> None:
        start = self._settings.start_lsn
        if start is not None and self._checkpoint is not None:
            raise PgcdcError(
                ErrorKind.USAGE,
                f"could not start at {start}: there is a checkpoint, at {self._checkpoint.end_lsn}",
                hint="leave out -I/--startpos, or write to another place",
            )

    def _keep(self, data: bytes) -> str:
        """Write what could not be decoded beside the output; gives the hint."""
        path = self._settings.bad_file
        try:
            path.write_bytes(data)
        except OSError as error:
            return f'nothing of it was confirmed; it could not be kept in "{path}": {error.strerror}'
        return f'nothing of it was confirmed: report it with "{path}"'

    def _connect_until_done(self) -> None:
        patience = Patience(loop=self._settings.loop)
        while not self._control.stop:
            try:
                self._one_connection(patience)
            except KeyboardInterrupt:
                if not self._control.stop:
                    raise
            except PgcdcError as error:
                wait = patience.after(error)
                if wait is None:
                    raise
                log.log(patience.level, "%s; trying again", error.message)
                self._back_to_edge()
                self._pause(wait)
                if self._time_is_up():
                    raise
            else:
                return

    def _back_to_edge(self) -> None:
        self._sink.rollback()
        self._sink.flush()
        self._checkpoint = self._sink.checkpoint
        self.totals.rows = self._rows_at_edge

    def _one_connection(self, patience: Patience) -> None:
        with self._control.interruptible():
            connection = ReplicationConnection(
                self._settings.conninfo, status_interval=self._settings.status_interval
            )
        with connection:
            self._prepare(connection)
            if not self._take_snapshot():
                self._sink.close()
                return
            connection.start(
                self._settings.slot, self._sink.durable_lsn, self._plugin_options(connection.server_version)
            )
            patience.connected()
            self._pump(connection)
            self._sink.close()
            self._acknowledge(connection)
            self._part(connection)

    def _plugin_options(self, server_version: int) -> Mapping[str, str]:
        options = self._settings.options
        if not self._settings.publications:
            return options
        return {**self._settings.protocol.options(server_version), **options}

    def _part(self, connection: ReplicationConnection) -> None:
        """End the stream. All is durable by now: that the server doesn't hear of it is no failure."""
        try:
            if not connection.finish():
                log.info("the server took too long to confirm the end")
        except PgcdcError as error:
            log.warning("%s; the end was perhaps not confirmed", error.message)

    def _prepare(self, connection: ReplicationConnection) -> None:
        """Is this still the source that we know? Where the stream is new, here it begins."""
        settings = self._settings
        identity = connection.identify_system()
        self._database = identity.database
        if settings.limits.end_now and self._end_lsn is None:
            self._end_lsn = identity.wal_position
        if settings.make_publication is not None and self._checkpoint is None:
            settings.make_publication(self._catalog)
        if settings.create_slot and not self._created:
            self._create_slot(connection)
        position = check_slot(
            self._catalog,
            settings.slot,
            identity.database,
            decodes=self._decodes,
            keeps_prepared=settings.keeps_prepared,
        )
        self._check_publications()
        source = Source(
            identity.system_id, identity.timeline, identity.database, settings.slot, settings.publications
        )
        checkpoint = self._checkpoint
        if checkpoint is not None:
            checkpoint = check_source(
                checkpoint,
                source,
                slot_position=Lsn(0) if self._unread else position,
                accept_gap=settings.accept_gap,
                accept_publications=settings.accept_publications,
                history=lambda: connection.timeline_history(identity.timeline),
            )
        elif self._sink.durable_lsn and not settings.accept_gap:
            check_gap(settings.slot, position, self._sink.durable_lsn)
        if checkpoint is not None or not self._started:
            self._sink.start(source, self._start_lsn(position), checkpoint)
        self._started = True

    @property
    def _unread(self) -> bool:
        """Is there a snapshot to be read whose end no checkpoint has seen?"""
        checkpoint = self._checkpoint
        return self._settings.snapshot is not None and (checkpoint is None or not checkpoint.end_lsn)

    def _take_snapshot(self) -> bool:
        """Write the rows that are there before the stream, if any are wanted; false ends the run."""
        plan = self._settings.snapshot
        if plan is None or self._snapshot_taken or not (plan.again or self._unread):
            return plan is None or not plan.only
        self._restart_format()
        with self._control.interruptible():
            exported = Snapshot(self._settings.conninfo, self._settings.publications)
        with closing(exported) as snapshot:
            for part in snapshot.slices(plan.includes, self._describe):
                if self._control.stop:
                    self._sink.rollback()
                    return False
                self._write([self._encoding.encode(part)])
                self._report(self.totals)
        self._sink.flush()
        self._snapshot_taken = True
        return not plan.only

    @property
    def _describe(self) -> Callable[[Relation], TableSchema]:
        return self._catalog.describe if self._settings.use_catalog else describe_alone

    def _restart_format(self) -> None:
        if isinstance(self._encoding, Restartable):
            self._encoding.restart(self._database, self._sink.last_commit)

    def _create_slot(self, connection: ReplicationConnection) -> None:
        """Make the slot, when the publications are there: it sees none that come after it."""
        name = self._settings.slot
        exists = self._catalog.slot(name) is not None
        if exists and self._settings.if_not_exists:
            return
        done = self._sink.durable_lsn
        if done and not (exists or self._settings.accept_gap):
            message = f'could not go on from {done}: slot "{name}" is gone'
            raise PgcdcError(ErrorKind.SLOT_MISSING, message, hint=ErrorKind.GAP.rule.hint)
        self._check_publications()
        with self._control.interruptible():
            connection.create_slot(name, two_phase=self._settings.protocol.two_phase)
        self._created = True

    def _check_publications(self) -> None:
        if self._decodes:
            self._catalog.check_publications(self._settings.publications)

    def _start_lsn(self, position: Lsn) -> Lsn:
        wanted = self._settings.start_lsn
        if self._unread:
            return Lsn(0)
        if wanted is None or wanted == position:
            return position
        if wanted < position:
            log.warning("could not start at %s: the slot is at %s already", wanted, position)
        return max(wanted, position)

    def _new_pipeline(self) -> Pipeline:
        if not self._decodes:
            return RawPipeline(self._end_lsn)
        count = self._settings.limits.max_transactions
        self._restart_format()
        assembler = Assembler(
            self._describe,
            skip_before=self._sink.edge_lsn,
            marks=self._marks,
            until=self._end_lsn,
            max_transactions=None if count is None else count - self.totals.transactions,
            binary=self._settings.protocol.binary,
        )
        policy = PreparedPolicy(
            known=self._sink.prepared,
            at_prepare=self._settings.at_prepare,
            accept_gap=self._settings.accept_gap,
            warn=log.warning,
        )
        spools = self._sink.new_spools()
        streams = Streams(assembler, spools, policy, skip_before=self._sink.edge_lsn)
        return ChangePipeline(streams, self._encoding)

    def _pump(self, connection: ReplicationConnection) -> None:
        pipeline = self._new_pipeline()
        self._failure = None
        self._last_data = time.monotonic()
        while not (pipeline.ended or self._must_end() or self._end_is_reached(pipeline)):
            received = self._receive(connection, pipeline)
            if received.frames:
                with nullcontext() if _is_small(received.frames) else connection.reading_ahead():
                    self._write(pipeline.encode(received.frames))
            if received.keepalive is not None and not pipeline.ended:
                self._keepalive(received.keepalive, pipeline)
            if received.closed:
                raise PgcdcError(ErrorKind.CONNECTION, "could not go on: the server ended the stream")
            if self._control.hangup:
                self._control.hangup = False
                self._sink.reopen()
            self._beat(pipeline)
            self._sink.tick()
            self._acknowledge(connection)
            self._report(self.totals)

    def _beat(self, pipeline: Pipeline) -> None:
        """Write a heartbeat, if one is due and this is an edge."""
        interval, now = self._settings.heartbeat_interval, time.monotonic()
        due = interval > 0 and now - self._beaten >= interval
        if due and not pipeline.in_transaction and isinstance(self._encoding, Restartable):
            self._beaten = now
            at = self._sink.edge_lsn
            self._write([replace(self._encoding.heartbeat(at), edge=Edge(Lsn(0), at, 0))])

    def _receive(self, connection: ReplicationConnection, pipeline: Pipeline) -> Received:
        """Take a batch: what is there, but not too little of a busy stream, and no half transaction."""
        if self._failure is not None:
            raise self._failure
        received = connection.receive(BATCH, TICK)
        if received.frames:
            received = self._completed(connection, pipeline, self._paced(connection, pipeline, received))
            self._taken = time.monotonic()
        return received

    def _paced(self, connection: ReplicationConnection, pipeline: Pipeline, received: Received) -> Received:
        """Let a few changes that come right after the last ones wait for more: each batch has its price."""
        wait = self._taken + self._sink.pace - time.monotonic()
        if wait <= 0 or not _is_small(received.frames) or pipeline.awaits_more(received.frames[-1]):
            return received
        if self._ends_with(received):
            return received
        time.sleep(wait)
        return self._more(connection, received, 0.0) or received

    def _completed(
        self, connection: ReplicationConnection, pipeline: Pipeline, received: Received
    ) -> Received:
        """Wait for the rest of a transaction, whose part nobody waits for, while it comes at once."""
        until = time.monotonic() + TICK
        size = sum(map(len, received.frames))
        while pipeline.awaits_more(received.frames[-1]) and not (
            self._ends_with(received) or self._must_end()
        ):
            if len(received.frames) >= BATCH or size >= BATCH_BYTES or time.monotonic() >= until:
                break
            time.sleep(NAP)
            more = self._more(connection, received, GATHER)
            if more is None:
                break
            size += sum(map(len, more.frames[len(received.frames) :]))
            received = more
        return received

    def _more(self, connection: ReplicationConnection, received: Received, timeout: float) -> Received | None:
        """Add what comes by then; None for nothing. An error waits until what came before it is written."""
        try:
            later = connection.receive(BATCH - len(received.frames), timeout)
        except PgcdcError as error:
            self._failure = error
            return None
        return None if later.empty else received.followed_by(later)

    def _ends_with(self, received: Received) -> bool:
        """Say whether nothing behind this is wanted: the server has ended, or is beyond the end position."""
        reached = received.keepalive is not None and received.keepalive.wal_end >= (self._end_lsn or NOWHERE)
        return received.closed or reached

    def _acknowledge(self, connection: ReplicationConnection) -> None:
        connection.confirm(self._sink.edge_lsn, self._sink.durable_lsn)
        self.totals.durable_lsn = self._sink.durable_lsn

    def _write(self, parts: Iterable[EncodedSlice]) -> None:
        """Write slices; a transaction that takes long may be left in its midst, and comes again."""
        self._last_data = time.monotonic()
        for part in parts:
            self._last_data = time.monotonic()
            if self._control.stop and part.edge is None:
                return
            self._sink.write(part)
            self.totals.rows += sum(piece.rows for piece in part.pieces)
            if part.edge is not None:
                self.totals.transactions += part.edge.transactions
                self.totals.edge_lsn = part.edge.end_lsn
                self._rows_at_edge = self.totals.rows
        self.totals.wal_end = max(self.totals.wal_end, self.totals.edge_lsn)

    def _keepalive(self, keepalive: Keepalive, pipeline: Pipeline) -> None:
        self.totals.wal_end = max(self.totals.wal_end, keepalive.wal_end)
        if pipeline.in_transaction:
            return
        self._sink.advance(keepalive.wal_end)
        if keepalive.reply_requested:
            # So it is that a server asks which waits with its shutdown until all is confirmed.
            self._sink.flush()

    def _end_is_reached(self, pipeline: Pipeline) -> bool:
        """Nothing else can have committed before the end position once we are beyond it."""
        if self._end_lsn is None or pipeline.in_transaction:
            return False
        return self._sink.edge_lsn >= self._end_lsn

    def _must_end(self) -> bool:
        idle = self._settings.limits.idle_timeout
        is_idle = idle is not None and time.monotonic() - self._last_data >= idle
        return self._control.stop or is_idle or self._time_is_up()

    def _time_is_up(self) -> bool:
        limit = self._settings.limits.max_time
        return limit is not None and time.monotonic() - self._began >= limit

    def _pause(self, seconds: float) -> None:
        until = time.monotonic() + seconds
        while time.monotonic() < until and not (self._control.stop or self._time_is_up()):
            time.sleep(min(TICK, seconds))
