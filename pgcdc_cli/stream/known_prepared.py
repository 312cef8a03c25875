"""The prepared transactions that the checkpoint knows, and whose end the server may never send."""

import logging
from collections.abc import Sequence

from pgcdc_cli.catalog import Catalog
from pgcdc_cli.changes.edge import Edge, Prepared
from pgcdc_cli.formats.interface import EncodedSlice
from pgcdc_cli.lsn import Lsn
from pgcdc_cli.replication.connection import ReplicationConnection
from pgcdc_cli.sinks.sink import Sink

log = logging.getLogger("pgcdc")


class KnownPrepared:
    """Drops prepared transactions that have ended, or that the server will send again whole.

    Methods raise PgcdcError.
    """

    def __init__(self, slot: str, sink: Sink, catalog: Catalog) -> None:
        self._slot = slot
        self._sink = sink
        self._catalog = catalog
        self._ended: Sequence[Prepared] = ()

    def look(self, connection: ReplicationConnection) -> None:
        """Find out which of them have ended, before the stream begins. A standby doesn't know."""
        prepared = self._sink.edge.prepared
        self._ended = ()
        if prepared and not connection.in_recovery:
            with self._catalog.over(connection.own_session):
                ended = self._catalog.ended_transactions([one.xid for one in prepared])
            self._ended = [one for one in prepared if one.xid in ended]

    def forget_missed(self, position: Lsn) -> None:
        """Forget those that had ended and whose end didn't come, though it was below `position`.

        It was in a gap that was accepted.
        """
        missed = [one for one in self._ended if one in self._sink.edge.prepared]
        if missed and self._sink.edge.lsn >= position:
            for one in missed:
                log.warning('the end of prepared transaction "%s" did not come: it is left out', one.gid)
            self._forget(missed)

    def forget_all(self) -> None:
        """Forget all of them, since the server will send them whole at their commit."""
        if self._sink.edge.prepared:
            log.warning(
                'slot "%s" is no longer two-phase: what is prepared comes again, at its commit', self._slot
            )
            self._forget(self._sink.edge.prepared)

    def _forget(self, prepared: Sequence[Prepared]) -> None:
        edge = self._sink.edge
        kept = tuple(one for one in edge.prepared if one not in prepared)
        self._sink.write(EncodedSlice((), Edge(edge.lsn, prepared=kept)))
        self._sink.flush()
