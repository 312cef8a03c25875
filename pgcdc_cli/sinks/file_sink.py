"""One file with a checkpoint beside it (`-f FILE`): the promises of a directory, without segments.

The checkpoint knows the file by device and inode, and names it before the first byte is written to it. So a
file that was moved without HUP, replaced or shortened is found, and nothing of anybody else's is ever cut.
"""

from collections.abc import Callable
from dataclasses import replace
from pathlib import PurePath

from pgcdc_cli.directory.checkpoint import Checkpoint, Mark, PartialFile
from pgcdc_cli.directory.disk import Disk, Stat
from pgcdc_cli.directory.strict_json import damaged
from pgcdc_cli.errors import ErrorKind, PgcdcError
from pgcdc_cli.formats.base import EncodedSlice, FileFormat, Piece
from pgcdc_cli.sinks.base import EAGER_PACE, SinkSettings
from pgcdc_cli.sinks.core import CheckpointedSink
from pgcdc_cli.sinks.output_file import OutputFile

CHECKPOINT_SUFFIX = ".checkpoint"
LOCK_SUFFIX = ".lock"
SPOOL_SUFFIX = ".spool"


def takes_checkpoint(path: str, disk: Disk | None = None) -> bool:
    """Can output to this path be taken back? True for a regular file, and where there is nothing yet."""
    found = (disk or Disk()).stat(path)
    return found is None or found.regular


class FileSink(CheckpointedSink):
    """One file, each transaction once. Whole transactions are written as they come, for `tail -f`."""

    pace = EAGER_PACE
    _eager = True

    def __init__(
        self,
        path: str,
        encoding: FileFormat,
        settings: SinkSettings,
        disk: Disk | None = None,
        clock: Callable[[], float] | None = None,
    ) -> None:
        if encoding.tail:
            message = f'could not write "{path}": format {encoding.name} has one table a file'
            raise PgcdcError(ErrorKind.USAGE, message, hint="write it into a directory: -D DIR")
        place = PurePath(path)
        super().__init__(
            str(place.parent), place.name + SPOOL_SUFFIX, encoding, settings, disk or Disk(), clock
        )
        self._name = place.name

    @property
    def _lock_path(self) -> str:
        return self.files.full(self._name + LOCK_SUFFIX)

    @property
    def _checkpoint_path(self) -> str:
        return self.files.full(self._name + CHECKPOINT_SUFFIX)

    def _check_fresh(self) -> None:
        self._check_unwritten("there is no checkpoint for it")

    def _check_unwritten(self, reason: str) -> None:
        found = self.files.stat(self._name)
        if found is not None and not found.regular:
            raise PgcdcError(ErrorKind.OUTPUT, f'could not open "{self._full}": it is no regular file')
        if found is not None and found.size:
            raise damaged(self._full, f"it has {found.size} bytes, and {reason}")

    def _recover(self, checkpoint: Checkpoint) -> Checkpoint:
        if checkpoint.inode is None:
            self._check_unwritten("the checkpoint knows of none")
            return checkpoint
        if self.files.stat(self._name) is None:
            raise damaged(self._full, "it is missing; was it moved without HUP?")
        (entry,) = checkpoint.files
        self.files.hold(self._name)
        found = self._stat()
        if (found.device, found.inode) != checkpoint.inode:
            raise damaged(self._full, "it is another file than the one written; was that moved without HUP?")
        if found.size < entry.mark.size:
            raise damaged(self._full, f"it has {found.size} bytes, {entry.mark.size} were durable")
        self.files.truncate(self._name, entry.mark.size)
        self._continue(entry)
        return checkpoint

    def _begin(self) -> None:
        if self._saved.inode is None:
            self._take()

    def _take(self) -> None:
        """Make the file, or take an empty one, and let the checkpoint know of it."""
        if self.files.stat(self._name) is None:
            self.files.create(self._name)
            self.files.fsync_folders()
        self.files.hold(self._name)
        self._check_unwritten("they aren't ours")
        found = self._stat()
        entry = PartialFile(self._name, Mark())
        self._save(replace(self._saved, files=(entry,), inode=(found.device, found.inode)))
        self._continue(entry)

    def _continue(self, entry: PartialFile) -> None:
        self.outputs = [OutputFile(self.files, self._encoding, entry, b"", exists=True)]

    def _output(self, piece: Piece) -> OutputFile:
        assert not piece.head, "a file for one table only"
        return self.outputs[0]

    def _boundary_due(self) -> bool:
        return self._reopening

    def _boundary(self) -> None:
        """Go on in a new file if the old one was moved."""
        self._flush()
        found = self.files.stat(self._name)
        if found is not None and (found.device, found.inode) == self._saved.inode:
            return
        # Else a power cut could undo the move, and the old file stand where the checkpoint expects none.
        self.disk.fsync_folder(self.files.root)
        self._save(replace(self._saved, files=(), inode=None))
        self.files.close(self._name)
        self._take()

    def _finish_stream(self) -> None:
        """Do nothing: a new stream goes on in the same file."""

    def _note(self, part: EncodedSlice) -> None:
        """Do nothing: a single file has no schema files."""

    def _place_schemas(self) -> None:
        """Do nothing: a single file has no schema files."""

    def _grew(self, size: int) -> None:
        """Do nothing: a single file has no limit."""

    def _shrank(self) -> None:
        """Do nothing: a single file has no limit."""

    def _end(self) -> None:
        self._flush()

    @property
    def _full(self) -> str:
        return self.files.full(self._name)

    def _stat(self) -> Stat:
        found = self.files.stat(self._name)
        if found is None:
            raise damaged(self._full, "it is missing")
        return found
