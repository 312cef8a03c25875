"""Output that can't be taken back: standard output, pipes, devices, and raw files.

Delivery is at least once: a transaction counts as durable once all of it is written and, to a regular file,
fsynced. When the reader of a pipe goes away, BrokenPipeError ends the command quietly, as SIGPIPE would.
"""

import os
import tempfile
import time
from collections.abc import Callable
from contextlib import suppress
from typing import NamedTuple

from pgcdc_cli.changes.edge import LastEdge
from pgcdc_cli.directory.checkpoint import Checkpoint, StreamSource
from pgcdc_cli.directory.disk import Disk, OpenFiles
from pgcdc_cli.errors import ErrorKind, PgcdcError
from pgcdc_cli.formats.interface import EncodedSlice, FileFormat
from pgcdc_cli.lsn import Lsn
from pgcdc_cli.sinks.sink import EAGER_PACE, FailureGuard, SinkSettings
from pgcdc_cli.sinks.spool_file import SpoolFolder

STDOUT = 1


class _Spooling(NamedTuple):
    """A temporary folder with the spools of one connection."""

    folder: tempfile.TemporaryDirectory[str]
    files: OpenFiles
    spools: SpoolFolder


class UncheckpointedSink:
    """Writes every slice as it comes, to a path or to a descriptor, which is not closed.

    With `fsyncs` false, what is written to a regular file counts as durable at once, too.
    """

    pace = EAGER_PACE
    portion = None

    def __init__(
        self,
        target: str | int,
        format_: FileFormat,
        settings: SinkSettings,
        disk: Disk | None = None,
        clock: Callable[[], float] | None = None,
        *,
        fsyncs: bool = True,
    ) -> None:
        self._target = target
        self._fsyncs = fsyncs
        self._name = (
            target if isinstance(target, str) else "standard output" if target == STDOUT else str(target)
        )
        self._format = format_
        self._settings = settings
        self._disk = disk or Disk()
        self._clock = clock or time.monotonic
        self._fd: int | None = None
        self._regular = self._named = False
        self._unsynced = False
        self._in_transaction = False
        self._reopening = False
        self._started = False
        self._guard = FailureGuard()
        self._made: str | None = None
        self._synced_at = 0.0
        self._edge = LastEdge()
        self._durable_lsn = Lsn(0)
        self._spooling: _Spooling | None = None

    @property
    def edge(self) -> LastEdge:
        return self._edge

    @property
    def written_lsn(self) -> Lsn:
        return self._edge.lsn

    @property
    def durable_lsn(self) -> Lsn:
        return self._durable_lsn

    @property
    def checkpoint(self) -> Checkpoint | None:
        return None

    @property
    def gap_remedy(self) -> None:
        return None

    def open(self) -> None:
        """Open the target; a named pipe waits for its reader. Raises KeyboardInterrupt if the run ends."""
        if isinstance(self._target, int):
            self._fd = self._target
        else:
            if not self._started and self._disk.stat(self._target) is None:
                self._made = os.path.realpath(self._target)
            with self._settings.waiting():
                self._fd = self._disk.open(self._target, os.O_CREAT)
        found = self._disk.stat(self._fd)
        self._regular = self._fsyncs and found is not None and found.regular
        # A file without a name may be given as one, such as /dev/stdout.
        self._named = isinstance(self._target, str) and found is not None and found.links > 0

    def start(self, source: StreamSource, start_lsn: Lsn, checkpoint: Checkpoint | None = None) -> None:
        """Begin at `start_lsn`; source and checkpoint are ignored."""
        del source, checkpoint
        self._started = True
        self._edge.lsn = self._durable_lsn = start_lsn
        self._synced_at = self._clock()

    def creating(self, position: Lsn) -> None:
        """Do nothing: there is no checkpoint."""

    def write(self, encoded: EncodedSlice) -> None:
        """Write a slice. Raises BrokenPipeError if the reader has gone away."""
        self._in_transaction = encoded.edge is None
        data = [piece.data for piece in encoded.pieces]
        if data:
            self._write(memoryview(self._format.frame(data)).cast("B"))
        if encoded.edge is not None:
            self._edge.reach(encoded.edge)
            self._do_what_is_due()

    def _write(self, data: memoryview) -> None:
        assert self._fd is not None, "the sink is not open"
        with self._guard:
            self._disk.write(self._fd, self._name, data)
        self._unsynced = self._regular

    def _do_what_is_due(self) -> None:
        if self._reopening and not self._in_transaction:
            self._reopen()
        interval = self._settings.fsync_interval
        due = interval > 0 and self._clock() - self._synced_at >= interval
        if due or not self._unsynced:
            self.flush()

    def _reopen(self) -> None:
        self._reopening = False
        if isinstance(self._target, str):
            self.flush()
            self._close()
            self.open()

    def advance(self, lsn: Lsn) -> None:
        """Take over the position of a keepalive that came at a transaction edge."""
        self._edge.advance(lsn)
        self._do_what_is_due()

    def tick(self) -> None:
        """Flush if the interval has passed."""
        self._do_what_is_due()

    def flush(self) -> None:
        """Make everything up to the last edge durable; only regular files need an fsync."""
        if self._unsynced and self._fd is not None:
            with self._guard:
                self._disk.fsync(self._fd, self._name)
                if self._named:
                    self._disk.check_named(self._fd, self._name)
            self._unsynced = False
        self._synced_at = self._clock()
        self._durable_lsn = self._edge.lsn

    def new_spools(self) -> SpoolFolder:
        """Create a new temporary folder for the spools of a connection."""
        self._drop_spools()
        try:
            folder = tempfile.TemporaryDirectory(prefix="pgcdc-")
        except OSError as error:
            raise PgcdcError(
                ErrorKind.OUTPUT,
                f"could not create a temporary folder: {error.strerror or error}",
                hint="set TMPDIR to a folder that is writable",
            ) from error
        files = OpenFiles(self._disk, folder.name)
        self._spooling = _Spooling(folder, files, SpoolFolder(files, "spool", self._settings.spool_limit))
        return self._spooling.spools

    @property
    def spooled(self) -> int:
        """Bytes in spools."""
        return 0 if self._spooling is None else self._spooling.spools.size

    def _drop_spools(self) -> None:
        dropped, self._spooling = self._spooling, None
        if dropped is not None:
            dropped.files.close_all()
            dropped.folder.cleanup()

    def rollback(self) -> None:
        """Forget the open transaction: what was written of it stays, and the server sends it again."""
        self._in_transaction = False

    def reopen(self) -> None:
        """HUP: reopen the path at the next edge."""
        self._reopening = True

    def close(self) -> None:
        """Flush and close; after a failure only close.

        A file that was created for a stream that never started is removed.
        """
        try:
            if self._fd is not None and self._guard.failure is None:
                self.flush()
        finally:
            self._drop_spools()
            self._close()
            if self._made is not None and not self._started:
                with suppress(PgcdcError):
                    self._disk.unlink(self._made)

    def _close(self) -> None:
        fd, self._fd = self._fd, None
        if fd is not None and isinstance(self._target, str):
            self._disk.close(fd, self._name)
