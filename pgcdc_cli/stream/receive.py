"""Receive frames in batches that are large enough to outweigh the fixed cost of a batch.

The frames come from the stream in copy-both mode (`replication/copy_both.py`).
"""

import time
from collections.abc import Callable

from pgcdc_cli.errors import PgcdcError
from pgcdc_cli.pgoutput.message_batch import MESSAGE_BYTES
from pgcdc_cli.pgoutput.small_batch import fits_small_batch
from pgcdc_cli.replication.copy_both import Received, ReplicationStream
from pgcdc_cli.stream.encode import FrameEncoder
from pgcdc_cli.stream.settings import RunEnd

NAP = 0.0002
"""Seconds given to a server that flushes every message, so that one wake-up brings many rows, not a dozen."""

TICK = 0.25
"""Seconds after which an idle loop checks signals and intervals."""


class BatchReceiver:
    """Takes batches from one stream. `pace` is the sink's; `must_end` tells whether to stop waiting."""

    def __init__(
        self,
        stream: ReplicationStream,
        encoder: FrameEncoder,
        end: RunEnd,
        must_end: Callable[[], bool],
        pace: float,
    ) -> None:
        self._stream = stream
        self._encoder = encoder
        self._end = end
        self._must_end = must_end
        self._pace = pace
        self._taken = 0.0
        self._failure: PgcdcError | None = None

    def receive(self) -> Received:
        """Take a batch of what has arrived.

        Of a busy stream it is not too small, and if possible it doesn't end within a transaction.
        """
        if self._failure is not None:
            raise self._failure
        received = self._stream.receive(self._encoder.batch, TICK)
        if received.frames:
            received = self._completed(self._paced(received))
            self._taken = time.monotonic()
        return received

    def _paced(self, received: Received) -> Received:
        """Let a few changes soon after the last batch wait for more: each batch has a fixed cost."""
        wait = self._taken + self._pace - time.monotonic()
        if (
            wait <= 0
            or not fits_small_batch(received.frames)
            or self._encoder.patience(received.frames, len(received.frames)) is not None
        ):
            return received
        if self._ends_with(received):
            return received
        time.sleep(wait)
        return self._more(received, 0.0) or received

    def _completed(self, received: Received) -> Received:
        """Wait for the rest of an open transaction while it keeps coming: a part of one is of no use."""
        until = time.monotonic() + TICK
        batch = self._encoder.batch
        came, size = received.frames, 0
        while not (self._ends_with(received) or self._must_end()):
            patience = self._encoder.patience(received.frames, len(came))
            if patience is None or len(received.frames) >= batch or time.monotonic() >= until:
                break
            size += sum(map(len, came))
            if size >= batch * MESSAGE_BYTES:
                break
            time.sleep(NAP)
            more = self._more(received, patience)
            if more is None:
                break
            came = more.frames[len(received.frames) :]
            received = more
        return received

    def _more(self, received: Received, timeout: float) -> Received | None:
        """Add what arrives within `timeout` seconds; None if nothing does.

        An error is raised by the next `receive`, when the frames before it are written.
        """
        try:
            later = self._stream.receive(self._encoder.batch - len(received.frames), timeout)
        except PgcdcError as error:
            self._failure = error
            return None
        return None if later.empty else received.followed_by(later)

    def _ends_with(self, received: Received) -> bool:
        """Whether nothing more is wanted: the stream was closed, or a keepalive reaches the end position."""
        keepalive = received.keepalive
        return received.closed or (keepalive is not None and self._end.is_reached(keepalive.wal_end))
