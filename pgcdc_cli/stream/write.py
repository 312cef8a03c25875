"""Encoded slices into the sink, counted."""

import time
from collections.abc import Iterable

from pgcdc_cli.formats.base import EncodedSlice
from pgcdc_cli.sinks.base import Sink
from pgcdc_cli.stream.settings import Control, Totals


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
