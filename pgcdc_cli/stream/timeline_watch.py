"""The promotion of a standby that is streamed from."""

from typing import Self

from pgcdc_cli.replication.connection import ReplicationConnection, SystemIdentity
from pgcdc_cli.sinks.sink import Sink
from pgcdc_cli.stream.settings import Signals
from pgcdc_cli.stream.start import RunStart


class TimelineWatch:
    """Notices when the standby that we stream from is promoted: the stream itself doesn't tell.

    A second connection is asked before received changes are written, so it reports a new timeline before
    anything of it is in the output. A server that isn't a standby must restart for a new timeline, so it
    isn't asked.
    """

    def __init__(self, start: RunStart, sink: Sink, signals: Signals) -> None:
        self._start = start
        self._sink = sink
        self._signals = signals
        self._asked: ReplicationConnection | None = None
        self._timeline = 0

    def begin(self, stream: ReplicationConnection, identity: SystemIdentity) -> Self:
        """Watch the server of a stream that has not begun yet."""
        self._timeline = identity.timeline
        if stream.in_recovery:
            with self._signals.interruptible():
                self._asked = stream.beside()
        return self

    def follow(self) -> None:
        """Take a new timeline into the checkpoint. Raises SOURCE_CHANGED if it lacks our position."""
        if self._asked is None:
            return
        was_standby = self._asked.in_recovery
        with self._signals.interruptible():
            identity = self._asked.identify_system()
        if identity.timeline != self._timeline:
            self._timeline = identity.timeline
            self._sink.flush()
            self._start.prepare(self._asked, identity)
        if not was_standby:
            self.close()

    def close(self) -> None:
        """Stop watching."""
        asked, self._asked = self._asked, None
        if asked is not None:
            asked.close()
