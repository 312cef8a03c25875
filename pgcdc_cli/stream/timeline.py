"""The server's timeline while it is streamed."""

from typing import Self

from pgcdc_cli.replication.connection import ReplicationConnection, SystemIdentity
from pgcdc_cli.sinks.base import Sink
from pgcdc_cli.stream.settings import Signals
from pgcdc_cli.stream.start import RunStart


class TimelineWatch:
    """Looks whether the standby that we stream from is promoted: to the stream nobody says so.

    Asked before what came is written, a second connection tells of a new timeline before anything of it is in
    the output. Any other server would have to restart for a new timeline; it isn't asked.
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
        """Take a new timeline into the checkpoint, if it has our position: SOURCE_CHANGED."""
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
        """Watch no more."""
        asked, self._asked = self._asked, None
        if asked is not None:
            asked.close()
