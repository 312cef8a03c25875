"""The loop over batches of one connection: receive, decode and format, write, checkpoint, acknowledge.

One thread does all of that in turn; the connection's feedback thread only tells the server, when it is due,
what the sink has made durable.
"""

import time
from collections.abc import Callable, Iterable
from contextlib import nullcontext
from dataclasses import replace

from pgcdc_cli.changes.slice import Edge
from pgcdc_cli.errors import ErrorKind, PgcdcError
from pgcdc_cli.formats.base import EncodedSlice, Restartable
from pgcdc_cli.frames import Keepalive, Received
from pgcdc_cli.lsn import Lsn
from pgcdc_cli.replication.connection import ReplicationConnection
from pgcdc_cli.sinks.base import Sink
from pgcdc_cli.stream.pipeline import Pipeline
from pgcdc_cli.stream.receive import Receiver, is_small
from pgcdc_cli.stream.settings import Control, Ends, Totals


class Heartbeats:
    """Those of one run, where the format has any; `interval` is in seconds, 0 for none."""

    def __init__(self, encoding: Restartable | None, interval: float) -> None:
        self._encoding = encoding
        self._interval = interval
        self._beaten = time.monotonic()

    def due(self, edge_lsn: Lsn) -> EncodedSlice | None:
        """Give one if it is time to, which is to be written at this edge."""
        now = time.monotonic()
        due = self._interval > 0 and now - self._beaten >= self._interval
        if not due or self._encoding is None:
            return None
        self._beaten = now
        return replace(self._encoding.heartbeat(edge_lsn), edge=Edge(Lsn(0), edge_lsn, 0))


class Writer:
    """Writes for one run. `last_data` is when something last came, by the monotonic clock."""

    def __init__(self, sink: Sink, control: Control) -> None:
        self._sink = sink
        self._control = control
        self._rows_at_edge = 0
        self.totals = Totals()
        self.last_data = time.monotonic()

    def write(self, parts: Iterable[EncodedSlice]) -> None:
        """Write slices; a transaction that takes long may be left in its midst, and comes again."""
        self.last_data = time.monotonic()
        for part in parts:
            self.last_data = time.monotonic()
            if self._control.stop and part.edge is None:
                return
            self._sink.write(part)
            self.totals.rows += sum(piece.rows for piece in part.pieces)
            if part.edge is not None:
                self.totals.transactions += part.edge.transactions
                self.totals.edge_lsn = part.edge.end_lsn
                self._rows_at_edge = self.totals.rows
        self.totals.wal_end = max(self.totals.wal_end, self.totals.edge_lsn)

    def back_to_edge(self) -> None:
        """Forget what came after the last edge, and make durable what came before."""
        self._sink.rollback()
        self._sink.flush()
        self.totals.rows = self._rows_at_edge


class Pump:
    """Moves what one connection after another sends into the sink."""

    def __init__(
        self,
        sink: Sink,
        writer: Writer,
        ends: Ends,
        heartbeats: Heartbeats,
        control: Control,
        report: Callable[[Totals], None],
    ) -> None:
        self._sink = sink
        self._writer = writer
        self._ends = ends
        self._heartbeats = heartbeats
        self._control = control
        self._report = report

    def run(self, connection: ReplicationConnection, pipeline: Pipeline) -> None:
        """Go on until the run is to end; raises PgcdcError CONNECTION where the server ends the stream."""
        receiver = Receiver(connection, pipeline, self._ends, self._must_end, self._sink.pace)
        self._writer.last_data = time.monotonic()
        while not (pipeline.ended or self._must_end() or self._end_is_reached(pipeline)):
            received = receiver.receive()
            self._take(received, connection, pipeline)
            if received.closed:
                raise PgcdcError(ErrorKind.CONNECTION, "could not go on: the server ended the stream")
            if self._control.hangup:
                self._control.hangup = False
                self._sink.reopen()
            self._beat(pipeline)
            self._sink.tick()
            self.acknowledge(connection)
            self._report(self._writer.totals)

    def acknowledge(self, connection: ReplicationConnection) -> None:
        """Let the server know of what is written and durable."""
        connection.confirm(self._sink.edge_lsn, self._sink.durable_lsn)
        self._writer.totals.durable_lsn = self._sink.durable_lsn

    def _must_end(self) -> bool:
        return self._control.stop or self._ends.is_idle(self._writer.last_data) or self._ends.time_is_up

    def _end_is_reached(self, pipeline: Pipeline) -> bool:
        return not pipeline.in_transaction and self._ends.is_reached(self._sink.edge_lsn)

    def _take(self, received: Received, connection: ReplicationConnection, pipeline: Pipeline) -> None:
        if received.frames:
            with nullcontext() if is_small(received.frames) else connection.reading_ahead():
                self._writer.write(pipeline.encode(received.frames))
        if received.keepalive is not None and not pipeline.ended:
            self._keepalive(received.keepalive, pipeline)

    def _keepalive(self, keepalive: Keepalive, pipeline: Pipeline) -> None:
        totals = self._writer.totals
        totals.wal_end = max(totals.wal_end, keepalive.wal_end)
        if pipeline.in_transaction:
            return
        self._sink.advance(keepalive.wal_end)
        if keepalive.reply_requested:
            # So it is that a server asks which waits with its shutdown until all is confirmed.
            self._sink.flush()

    def _beat(self, pipeline: Pipeline) -> None:
        """Write a heartbeat, if one is due and this is an edge."""
        heartbeat = None if pipeline.in_transaction else self._heartbeats.due(self._sink.edge_lsn)
        if heartbeat is not None:
            self._writer.write([heartbeat])
