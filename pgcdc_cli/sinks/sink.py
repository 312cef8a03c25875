"""The interface of sinks to the stream loop, and their settings."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Protocol

from pgcdc_cli.changes.slice import Edge, LastCommit, Prepared, TableRead, TableResnapshot
from pgcdc_cli.changes.spool import Spools
from pgcdc_cli.directory.checkpoint import Checkpoint, StreamSource
from pgcdc_cli.formats.interface import EncodedSlice
from pgcdc_cli.lsn import Lsn


@dataclass(frozen=True, slots=True, kw_only=True)
class SinkSettings:
    """Settings of a sink: intervals in seconds, sizes in bytes.

    With `fsync_interval` 0, rows become durable at rotation and exit only. `spool_limit` limits the spools of
    uncommitted transactions, None for any size.

    `rotate_size` (over all files) and `rotate_interval` (since the first row) say when a directory begins a
    new segment, None for no such limit. `on_segment` is the command to run for each finished segment; `ends`
    tells whether the run was asked to end meanwhile.

    `options` are the other options that determine the content of files (filters, the form of numeric): a
    checkpoint with different ones is refused.
    """

    fsync_interval: float = 10.0
    status_interval: float = 10.0
    options: Mapping[str, str] = field(default_factory=dict)
    spool_limit: int | None = None
    rotate_size: int | None = None
    rotate_interval: float | None = None
    on_segment: str | None = None
    ends: Callable[[], bool] = field(default=lambda: False)


EAGER_PACE = 0.002
"""Seconds between small batches if rows should be visible soon: each batch takes half a millisecond."""

LAZY_PACE = 0.02
"""Seconds between small batches if rows become visible only at the next flush."""


_PORTIONS, _LARGEST_PORTION = 64, 1 << 20
"""A segment has at least so many slices, since rows may be several times larger as written than as received.

Even a busy stream rarely delivers more than a megabyte at once, so larger portions need no counting.
"""


def portion_of(settings: SinkSettings) -> int | None:
    """Return the bytes of messages for one slice of a segment; None if a batch is smaller anyway."""
    portion = None if settings.rotate_size is None else settings.rotate_size // _PORTIONS
    return None if portion is None or portion >= _LARGEST_PORTION else portion


class Sink(Protocol):
    """The destination of encoded slices.

    - `edge`: the last transaction edge taken; what the server sends again from before it is skipped.
    - `written_lsn`: everything up to it is in the files, no longer in memory.
    - `durable_lsn`: the position that is fsynced and in the checkpoint, the only one reported as flushed.
    - `pace`: seconds that a few rows may wait for others, so that they are handled together.
    - `portion`: bytes of messages after which a slice ends with the next commit, None for no limit; so there
      are enough edges.
    """

    @property
    def pace(self) -> float: ...

    @property
    def portion(self) -> int | None: ...

    @property
    def edge(self) -> "LastEdge": ...

    @property
    def written_lsn(self) -> Lsn: ...

    @property
    def durable_lsn(self) -> Lsn: ...

    @property
    def checkpoint(self) -> Checkpoint | None:
        """The checkpoint on disk."""

    def open(self) -> Checkpoint | None:
        """Lock and recover; return the checkpoint, which must be checked against the source, or None."""

    def start(self, source: StreamSource, start_lsn: Lsn, checkpoint: Checkpoint | None = None) -> None:
        """Begin at `start_lsn`, or go on with the checkpoint that `check_source` returned.

        Called again, with a checkpoint, for every new connection.
        """

    def creating(self, position: Lsn) -> None:
        """Record durably that the stream's slot is about to be created at this position.

        The record stays in the checkpoint until the edge after the snapshot's rows.
        """

    def write(self, encoded: EncodedSlice) -> None:
        """Append a slice. Flushes or rotates at its edge if that is due."""

    def advance(self, lsn: Lsn) -> None:
        """Take over the position of a keepalive that came at a transaction edge."""

    def tick(self) -> None:
        """Flush or rotate if an interval has passed; called at least once a second."""

    def flush(self) -> None:
        """Make everything up to the last edge durable, now."""

    @property
    def spooled(self) -> int:
        """Bytes in the spools of uncommitted transactions."""
        ...

    def new_spools(self) -> Spools:
        """Return the spools for a new connection; those of the last one are dropped."""
        ...

    def rollback(self) -> None:
        """Take back what was written after the last edge (the connection was lost)."""

    def reopen(self) -> None:
        """HUP: reopen the file, or rotate, at the next edge."""

    def close(self) -> None:
        """Take back what is after the last edge, finish the files, and make everything durable."""


@dataclass(slots=True)
class LastEdge:
    """The last transaction edge that the sink took.

    - `lsn`: the end of the last commit, or a later keepalive's position.
    - `last_commit`: the last transaction taken, None before the first.
    - `prepared`: the transactions that are prepared, but not ended, at the edge.
    - `read`: the tables whose snapshot rows are written, as of positions beyond `lsn`.
    - `resnapshots`: the progress of tables that are read while they are streamed.
    """

    lsn: Lsn = Lsn(0)  # noqa: RUF009 - an int, immutable
    last_commit: LastCommit | None = None
    prepared: tuple[Prepared, ...] = ()
    read: tuple[TableRead, ...] = ()
    resnapshots: tuple[TableResnapshot, ...] = ()

    @property
    def tables_differ(self) -> bool:
        """Whether some tables are as of a later position: then the files match no state of the database."""
        return bool(self.read) or any(one.position > self.lsn for one in self.resnapshots)

    def advance(self, lsn: Lsn) -> None:
        """Advance to a position, never back."""
        self.lsn = max(self.lsn, lsn)
        if self.lsn and self.read:
            self.read = tuple(one for one in self.read if one.position > self.lsn)

    def reach(self, edge: Edge) -> None:
        """Advance to the edge of a slice."""
        if edge.read is not None:
            self.read += (edge.read,)
        self.advance(edge.end_lsn)
        if edge.commit_lsn:
            self.last_commit = LastCommit.after(self.last_commit, edge)
        if edge.prepared is not None:
            self.prepared = edge.prepared
        if edge.resnapshots is not None:
            self.resnapshots = edge.resnapshots
