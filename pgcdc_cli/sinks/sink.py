"""What the stream loop asks of every sink, and how sinks are set up."""

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
    """Intervals in seconds, sizes in bytes.

    `fsync_interval` 0 makes rows durable at rotation and exit only. `spool_limit` is how much the spools of
    transactions that aren't committed may take, None for any size.

    `rotate_size` (over all files) and `rotate_interval` (since the first row) say when a directory begins a
    new segment, None for no such limit. `on_segment` is the command that each finished segment is handed to;
    `ends` says whether the run was asked to end meanwhile.

    `options` says what else decides over the content of lines (filters, how numeric is written): a checkpoint
    that was made with others is refused.
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
"""Where each row is to be seen soon. Small batches come no faster, and each takes half a millisecond."""

LAZY_PACE = 0.02
"""Where rows are seen at the next flush only."""


_PORTIONS, _LARGEST_PORTION = 64, 1 << 20
"""Slices of which a segment is made, at least: what is written of a row may be some times what was sent.

Of a busy stream a megabyte comes at once, and little more: larger portions need nobody to count.
"""


def portion_of(settings: SinkSettings) -> int | None:
    """Bytes of messages for one slice of a segment; None where what comes at once is less."""
    portion = None if settings.rotate_size is None else settings.rotate_size // _PORTIONS
    return None if portion is None or portion >= _LARGEST_PORTION else portion


class Sink(Protocol):
    """Where encoded slices go.

    `edge` is up to where everything is taken: what is delivered again below it is skipped.
    `written_lsn` is the position up to which all of that is in the files, no longer in memory.
    `durable_lsn` is the position that is fsynced and in the checkpoint: the only one reported as
    flushed.
    `pace` is how many seconds a few rows may wait for others, so that they are handled together.
    `portion` is at how many bytes of messages a slice is to end with the next transaction, so that there are
    edges in time; None for any number.
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
        """The checkpoint as it is on disk."""

    def open(self) -> Checkpoint | None:
        """Lock and recover; the checkpoint to be checked against the source, None where there is none."""

    def start(self, source: StreamSource, start_lsn: Lsn, checkpoint: Checkpoint | None = None) -> None:
        """Begin at `start_lsn`, or go on with the checkpoint that `check_source` returned.

        Comes again, with a checkpoint, after every new connection.
        """

    def creating(self, position: Lsn) -> None:
        """Note, durably, that the stream's slot is about to be made, at this position.

        The checkpoint says so until it has the edge after the snapshot's rows.
        """

    def write(self, encoded: EncodedSlice) -> None:
        """Append a slice. Flushes or rotates at its edge when that is due."""

    def advance(self, lsn: Lsn) -> None:
        """Take over the position of a keepalive that came at a transaction edge."""

    def tick(self) -> None:
        """Flush or rotate if the clock says so; called at least once a second."""

    def flush(self) -> None:
        """Make everything up to the last edge durable, now."""

    @property
    def spooled(self) -> int:
        """Bytes in spools, of transactions that aren't committed yet."""
        ...

    def new_spools(self) -> Spools:
        """Say where the spools of a new connection go; those of the last one are dropped."""
        ...

    def rollback(self) -> None:
        """Forget what was written after the last edge (the connection was lost)."""

    def reopen(self) -> None:
        """HUP: reopen the file, or rotate, at the next edge."""

    def close(self) -> None:
        """Drop what is after the last edge, finish the files, make all durable."""


@dataclass(slots=True)
class LastEdge:
    """The last transaction edge that was taken.

    `lsn` is the last commit's end, or a later keepalive's position.
    `last_commit` is the last transaction taken, None before the first.
    `prepared` are the transactions that are prepared and not ended there.
    `read` are the tables whose rows are there, as of a later position.
    `resnapshots` are the tables that are read while they are streamed.
    """

    lsn: Lsn = Lsn(0)  # noqa: RUF009 - an int, immutable
    last_commit: LastCommit | None = None
    prepared: tuple[Prepared, ...] = ()
    read: tuple[TableRead, ...] = ()
    resnapshots: tuple[TableResnapshot, ...] = ()

    @property
    def tables_differ(self) -> bool:
        """Are there rows as of a later position? They aren't what the database was at any one moment."""
        return bool(self.read) or any(one.position > self.lsn for one in self.resnapshots)

    def advance(self, lsn: Lsn) -> None:
        """Go on to a position; never back."""
        self.lsn = max(self.lsn, lsn)
        if self.lsn and self.read:
            self.read = tuple(one for one in self.read if one.position > self.lsn)

    def reach(self, edge: Edge) -> None:
        """Go on to the end of a slice."""
        if edge.read is not None:
            self.read += (edge.read,)
        self.advance(edge.end_lsn)
        if edge.commit_lsn:
            self.last_commit = LastCommit.after(self.last_commit, edge)
        if edge.prepared is not None:
            self.prepared = edge.prepared
        if edge.resnapshots is not None:
            self.resnapshots = edge.resnapshots
