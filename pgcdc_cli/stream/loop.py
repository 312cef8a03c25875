"""The loop of a stream: receive, decode and format, write, checkpoint and acknowledge, batch by batch.

`receive.py` receives; `encode.py` has frames decoded, assembled and formatted; the sink (`sinks/`) writes,
fsyncs and saves checkpoints; the stream (`replication/copy_both.py`) is given the positions. One thread does
all of that in turn, except that much output is written while the next is made (`directory/disk.py`). If it
takes long, the feedback thread reports to the server meanwhile what is written and what is durable.
"""

import time
from collections.abc import Callable, Iterable
from contextlib import nullcontext
from dataclasses import replace
from functools import partial
from itertools import chain

from pgcdc_cli.changes.edge import Edge
from pgcdc_cli.errors import ErrorKind, PgcdcError
from pgcdc_cli.formats.interface import EncodedSlice, Restartable
from pgcdc_cli.frames import Keepalive, Received
from pgcdc_cli.lsn import Lsn
from pgcdc_cli.pgoutput.small_batch import fits_small_batch
from pgcdc_cli.replication.copy_both import ReplicationStream
from pgcdc_cli.sinks.sink import Sink
from pgcdc_cli.stream.encode import FrameEncoder, portions
from pgcdc_cli.stream.receive import BatchReceiver
from pgcdc_cli.stream.settings import RunEnd, RunTotals, Signals


class Heartbeats:
    """The heartbeats of one run, if the format has any; `interval` is in seconds, 0 for none."""

    def __init__(self, format_: Restartable | None, interval: float) -> None:
        self._format = format_
        self._interval = interval
        self._beaten = time.monotonic()

    def due(self, edge_lsn: Lsn) -> EncodedSlice | None:
        """Return a heartbeat to write at this edge, if one is due."""
        now = time.monotonic()
        due = self._interval > 0 and now - self._beaten >= self._interval
        if not due or self._format is None:
            return None
        self._beaten = now
        return replace(self._format.heartbeat(edge_lsn), edge=Edge(edge_lsn))


class SliceWriter:
    """Writes the slices of one run, and counts. `last_data` is the monotonic time of the last data."""

    def __init__(self, sink: Sink, signals: Signals, report: Callable[[RunTotals], None]) -> None:
        self._sink = sink
        self._signals = signals
        self._report = report
        self._rows_at_edge = 0
        self.totals = RunTotals()
        self.last_data = time.monotonic()

    def write(self, slices: Iterable[EncodedSlice]) -> None:
        """Write slices. A stop signal ends this within a transaction, which the server sends again later."""
        try:
            for encoded in slices:
                if self._signals.stop and encoded.edge is None:
                    return
                self._write(encoded)
        finally:
            self.last_data = time.monotonic()

    def _write(self, encoded: EncodedSlice) -> None:
        self.reopen_if_asked()
        self._sink.write(encoded)
        self.totals.rows += sum(piece.rows for piece in encoded.pieces)
        if encoded.edge is not None:
            self.totals.transactions += encoded.edge.transactions
            self.totals.wal_end = max(self.totals.wal_end, encoded.edge.end_lsn)
            self._rows_at_edge = self.totals.rows
        else:
            # The rest of the transaction may take long.
            self._report(self.totals)

    def reopen_if_asked(self) -> None:
        """Hand a HUP on to the sink, which reopens its file at the next edge, or when it is closed."""
        if self._signals.hangup:
            self._signals.hangup = False
            self._sink.reopen()

    def back_to_edge(self) -> None:
        """Take back what was written after the last edge, and make durable what was written before."""
        self._sink.rollback()
        self._sink.flush()
        self.totals.rows = self._rows_at_edge

    def close(self) -> None:
        """Close the sink; a file that was moved before a HUP is not what the next run looks for."""
        # The server sends uncommitted transactions again.
        self.totals.spooled = 0
        self.reopen_if_asked()
        self._sink.close()


class StreamLoop:
    """Moves the stream of one connection after another into the sink."""

    def __init__(
        self,
        sink: Sink,
        writer: SliceWriter,
        end: RunEnd,
        heartbeats: Heartbeats,
        signals: Signals,
        report: Callable[[RunTotals], None],
    ) -> None:
        self._sink = sink
        self._writer = writer
        self._end = end
        self._heartbeats = heartbeats
        self._signals = signals
        self._report = report
        self._stream: ReplicationStream | None = None
        self._began = 0.0

    def run(
        self,
        stream: ReplicationStream,
        encoder: FrameEncoder,
        follow_timeline: Callable[[], None],
        at_edge: Callable[[], None],
    ) -> None:
        """Run until the run must end. Raises CONNECTION if the server ends the stream.

        `follow_timeline` is called after each receive, before the sink takes anything of it, `at_edge` after
        batches that end with a whole transaction.
        """
        self._began = time.monotonic()
        if self._stream is None:
            # What a start waits for is no idleness.
            self._writer.last_data = self._began
        self._stream = stream
        receiver = BatchReceiver(stream, encoder, self._end, self._must_end, self._sink.pace)
        while not (encoder.ended or self._must_end() or self._end_is_reached(encoder)):
            received = receiver.receive()
            if not received.empty and not self._waits(follow_timeline):
                break
            if not self._waits(partial(self._write, received, stream, encoder)):
                break
            if received.closed:
                raise PgcdcError(ErrorKind.CONNECTION, "could not continue: the server ended the stream")
            self._do_what_is_due(encoder)
            if not (encoder.in_transaction or encoder.ended or self._must_end()):
                at_edge()
            self.acknowledge()
            self._writer.totals.spooled = self._sink.spooled
            self._report(self._writer.totals)

    def acknowledge(self) -> None:
        """Confirm to the server what is written and durable."""
        assert self._stream is not None, "nothing was received yet"
        totals = self._writer.totals
        totals.written_lsn, totals.durable_lsn = self._sink.written_lsn, self._sink.durable_lsn
        self._stream.confirm(totals.written_lsn, totals.durable_lsn)

    def _waits(self, do: Callable[[], None]) -> bool:
        """Call what may wait for the server; false if the run must end before that is done."""
        try:
            do()
        except KeyboardInterrupt:
            if not self._signals.ends:
                raise
            return False
        return True

    def _must_end(self) -> bool:
        # Nothing could come while this connection was made, however long that took.
        idle = self._end.is_idle(max(self._writer.last_data, self._began))
        return self._signals.stop or idle or self._end.time_is_up

    def _end_is_reached(self, encoder: FrameEncoder) -> bool:
        return not encoder.in_transaction and self._end.is_reached(self._sink.edge.lsn)

    def _write(self, received: Received, stream: ReplicationStream, encoder: FrameEncoder) -> None:
        """Decode, format and write a batch, then take over the position of its keepalive."""
        if received.frames:
            with nullcontext() if fits_small_batch(received.frames) else stream.reading_ahead():
                # One sequence: if a stop ends within a transaction, nothing may be written after that.
                encoded = map(encoder.encode, portions(received.frames, self._sink.portion))
                self._writer.write(chain.from_iterable(encoded))
        if received.keepalive is not None and not encoder.ended:
            self._advance(received.keepalive, encoder)

    def _advance(self, keepalive: Keepalive, encoder: FrameEncoder) -> None:
        totals = self._writer.totals
        totals.wal_end = max(totals.wal_end, keepalive.wal_end)
        if encoder.in_transaction:
            return
        self._sink.advance(keepalive.wal_end)
        if keepalive.reply_requested:
            # A server that is shutting down requests replies until everything is confirmed.
            self._sink.flush()

    def _do_what_is_due(self, encoder: FrameEncoder) -> None:
        """Do what an interval or a signal demands: a heartbeat, a new file, fsync and checkpoint.

        None of that is data, nor is it idleness: nothing can come meanwhile.
        """
        last_data, began = self._writer.last_data, time.monotonic()
        self._writer.reopen_if_asked()
        heartbeat = None if encoder.in_transaction else self._heartbeats.due(self._sink.edge.lsn)
        if heartbeat is not None:
            self._writer.write([heartbeat])
        self._sink.tick()
        self._writer.last_data = last_data + time.monotonic() - began
