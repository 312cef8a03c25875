"""What the stream loop asks of every sink."""

from typing import Protocol

from pgcdc_cli.formats.base import EncodedSlice
from pgcdc_cli.lsn import Lsn
from pgcdc_cli.pgoutput.changes import LastCommit
from pgcdc_cli.sinks.checkpoint import Checkpoint, Source


class Sink(Protocol):
    """Where encoded slices go.

    `edge_lsn` is the end LSN of the last transaction written: what is delivered again below it is skipped.
    `last_commit` is that transaction, None before the first.
    `durable_lsn` is the position that is fsynced and in the checkpoint: the only one the server may be told.
    """

    @property
    def edge_lsn(self) -> Lsn: ...

    @property
    def last_commit(self) -> LastCommit | None: ...

    @property
    def durable_lsn(self) -> Lsn: ...

    @property
    def checkpoint(self) -> Checkpoint | None:
        """The checkpoint as it is on disk."""

    def open(self) -> Checkpoint | None:
        """Lock and recover; the checkpoint to be checked against the source, None where there is none."""

    def start(self, source: Source, start_lsn: Lsn, checkpoint: Checkpoint | None = None) -> None:
        """Begin at `start_lsn`, or go on with the checkpoint that `check_source` returned.

        Comes again, with a checkpoint, after every new connection.
        """

    def write(self, part: EncodedSlice) -> None:
        """Append a slice. Flushes or rotates at its edge when that is due."""

    def advance(self, lsn: Lsn) -> None:
        """Take over the position of a keepalive that came at a transaction edge."""

    def tick(self) -> None:
        """Flush or rotate if the clock says so; called at least once a second."""

    def flush(self) -> None:
        """Make everything up to the last edge durable, now."""

    def rollback(self) -> None:
        """Forget what was written after the last edge (the connection was lost)."""

    def reopen(self) -> None:
        """HUP: reopen the file, or rotate, at the next edge."""

    def close(self) -> None:
        """Drop what is after the last edge, finish the files, make all durable."""
