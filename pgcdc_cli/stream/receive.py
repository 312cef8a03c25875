"""Receive frames in batches that are large enough to outweigh the fixed cost of a batch.

The frames come from the stream in copy-both mode (`replication/copy_both.py`).
"""

import time
from collections.abc import Callable

from pgcdc_cli.errors import PgcdcError
from pgcdc_cli.frames import Frames, Received
from pgcdc_cli.pgoutput.message_batch import MESSAGE_BYTES, SMALLEST_BATCH
from pgcdc_cli.pgoutput.small_batch import fits_small_batch
from pgcdc_cli.replication.copy_both import ReplicationStream
from pgcdc_cli.stream.encode import FrameEncoder
from pgcdc_cli.stream.settings import RunEnd

NAP, LONGEST_NAP = 0.0002, 0.02
"""Seconds given to a server that flushes every message, so that one wake-up brings many rows, not a dozen."""

SOON = 0.1
"""Seconds in which only a server that is behind fills the smallest batch: changes as they are made don't."""

_HARDLY_MORE = 0.6
"""If the rate falls below this part of the last one, a longer nap brought hardly more."""

TICK = 0.25
"""Seconds after which an idle loop checks signals and intervals."""


class Naps:
    """How long to let the server send, before the next look at what has come.

    One that is behind gets more and more, up to `LONGEST_NAP`: sending to a reader that sleeps costs it
    half as much. It gets less again if twice the time brings hardly more: buffers on the way are full. A nap
    is at most twice as long as the last, so a single transaction isn't held up for longer than it took to
    come.
    """

    def __init__(self) -> None:
        self._limit = NAP
        self._rate = 0.0

    @property
    def server_is_behind(self) -> bool:
        """Whether more came during the last nap than come as they are made."""
        return self._rate * SOON >= SMALLEST_BATCH

    def next(self, rest: float) -> float:
        """Return the seconds of the next nap; `rest` is the number of messages still to come in a batch."""
        return min(self._limit, max(NAP, rest / self._rate)) if self._rate else NAP

    def after(self, nap: float, came: float) -> None:
        """Take note of how many messages came during a nap."""
        before, self._rate = self._rate, came / nap
        if not self.server_is_behind:
            self._limit = NAP
        elif self._rate < _HARDLY_MORE * before:
            self._limit = max(self._limit / 2, NAP)
        else:
            self._limit = min(2 * self._limit, LONGEST_NAP)


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
        self._last_batch_at = 0.0
        self._naps = Naps()
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
            self._last_batch_at = time.monotonic()
        return received

    def _paced(self, received: Received) -> Received:
        """Let a few changes soon after the last batch wait for more: each batch has a fixed cost."""
        wait = self._last_batch_at + self._pace - time.monotonic()
        if (
            wait <= 0
            or not fits_small_batch(received.frames)
            or self._encoder.linger(received.frames, len(received.frames)) is not None
        ):
            return received
        if self._ends_with(received):
            return received
        time.sleep(wait)
        return self._more(received, 0.0) or received

    def _completed(self, received: Received) -> Received:
        """Wait for the rest of an open transaction while it keeps coming: a part of one is of no use.

        If the server is behind, wait for more transactions, too, until the batch is full.
        """
        until = time.monotonic() + TICK
        came, size = len(received.frames), _messages(received)
        while not (self._ends_with(received) or self._must_end()):
            rest = self._encoder.batch - size
            wait = self._wait(received.frames, came, rest)
            if wait is None or rest <= 0 or time.monotonic() >= until:
                break
            nap, linger = wait
            self._stream.nap(nap)
            more = self._more(received, linger)
            if more is None:
                self._naps.after(nap, 0.0)
                break
            came = len(more.frames) - len(received.frames)
            before, size, received = size, _messages(more), more
            self._naps.after(nap, size - before)
        return received

    def _wait(self, frames: Frames, came: int, rest: float) -> tuple[float, float] | None:
        """Return the seconds to nap, and those to wait then for the first frame; None to take what is there.

        `came` frames came last, and `rest` messages are still to come in the batch.
        """
        linger = self._encoder.linger(frames, came)
        if linger is not None:
            return self._naps.next(rest), linger
        return (NAP, 0.0) if self._naps.server_is_behind else None

    def _more(self, received: Received, timeout: float) -> Received | None:
        """Add what arrives within `timeout` seconds; None if nothing does.

        An error is raised by the next `receive`, when the frames before it are written.
        """
        try:
            later = self._stream.receive(self._room(received), timeout)
        except PgcdcError as error:
            self._failure = error
            return None
        return None if later.empty else received.followed_by(later)

    def _room(self, received: Received) -> int:
        """Return how many frames of the average size still fit into a batch."""
        batch, count, size = self._encoder.batch, len(received.frames), received.frames.size
        return max(1, min(batch - count, (batch * MESSAGE_BYTES - size) * count // size))

    def _ends_with(self, received: Received) -> bool:
        """Whether nothing more is wanted: the stream was closed, or a keepalive reaches the end position."""
        keepalive = received.keepalive
        return received.closed or (keepalive is not None and self._end.is_reached(keepalive.wal_end))


def _messages(received: Received) -> float:
    """Return how many messages were received; large ones count as so many of the average size."""
    return max(len(received.frames), received.frames.size / MESSAGE_BYTES)
