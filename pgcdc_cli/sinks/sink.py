"""The interface of sinks to the stream loop, their settings, and what they remember of a failure."""

from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from types import TracebackType
from typing import Protocol

from pgcdc_cli.changes.edge import LastEdge
from pgcdc_cli.changes.spool import Spools
from pgcdc_cli.directory.checkpoint import Checkpoint, StreamSource
from pgcdc_cli.errors import ErrorKind, PgcdcError
from pgcdc_cli.formats.interface import EncodedSlice
from pgcdc_cli.lsn import Lsn


@dataclass(frozen=True, slots=True, kw_only=True)
class SinkSettings:
    """Settings of a sink: intervals in seconds, sizes in bytes.

    With `fsync_interval` 0, rows become durable at rotation and exit only. `spool_limit` limits the spools of
    uncommitted transactions, None for any size.

    `rotate_size` (over all files) and `rotate_interval` (since the first row) say when a directory begins a
    new segment, None for no such limit. `on_segment` is the command to run for each finished segment, with
    `umask`; `ends` tells whether the run was asked to end meanwhile. What waits for somebody else, and leaves
    nothing unfinished, is done within `waiting`, which lets that interrupt it.

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
    umask: int = -1
    ends: Callable[[], bool] = field(default=lambda: False)
    waiting: Callable[[], AbstractContextManager[None]] = nullcontext


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
    def edge(self) -> LastEdge: ...

    @property
    def written_lsn(self) -> Lsn: ...

    @property
    def durable_lsn(self) -> Lsn: ...

    @property
    def checkpoint(self) -> Checkpoint | None:
        """The checkpoint on disk."""

    @property
    def gap_remedy(self) -> str | None:
        """What to do instead of going on behind a gap, where that would cut off what never comes again."""
        ...

    def open(self) -> None:
        """Lock and recover; then `checkpoint` must be checked against the source, if there is one."""

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


class FailureGuard:
    """Remembers a failure, whatever it was: from then on it is raised again instead of doing anything."""

    def __init__(self) -> None:
        self.failure: PgcdcError | None = None

    def __enter__(self) -> None:
        if self.failure is not None:
            raise self.failure

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if isinstance(error, PgcdcError):
            self.failure = error
        elif error is not None:
            self.failure = PgcdcError(ErrorKind.UNEXPECTED, f"could not write: {error!r}")
