"""One file with a checkpoint beside it (`-f FILE`): the guarantees of a directory, without segments.

The checkpoint identifies the file by device and inode, and names it before the first byte is written to it.
So a file that was moved without SIGHUP is found again in its folder, one that was replaced or shortened is
noticed, and no other file is ever truncated, except for a copy with the same durable content.
"""

import os
from collections.abc import Callable
from dataclasses import replace
from pathlib import PurePath
from typing import ClassVar

from pgcdc_cli.directory.beyond_checkpoint import moved_name, remedy_of_longer_file
from pgcdc_cli.directory.checkpoint import Checkpoint, FileState, PartialFile
from pgcdc_cli.directory.disk import Disk, HeldLock, OpenFiles, Stat, damaged
from pgcdc_cli.directory.file_names import beside
from pgcdc_cli.errors import ErrorKind, PgcdcError
from pgcdc_cli.formats.interface import FileFormat
from pgcdc_cli.sinks.checkpointed_sink import CheckpointedSink
from pgcdc_cli.sinks.output_file import OutputFiles
from pgcdc_cli.sinks.sink import SinkSettings

_PUT_BACK = "move the file that was written back under this name, and run again"
_RESTORE = "restore the file from a copy, and run again"
_MOVE_AWAY = "move it away, and run again"
_NOT_OURS = "move it away, or write to another file; if pgcdc wrote it, put {} back next to it"


def takes_checkpoint(path: str) -> bool:
    """Whether output to this path can be taken back: a regular file, or nothing there yet."""
    found = Disk().stat(path)
    return found is None or found.regular


def file_sink(
    path: str,
    format_: FileFormat,
    settings: SinkSettings,
    disk: Disk | None = None,
    clock: Callable[[], float] | None = None,
) -> CheckpointedSink:
    """Make the sink for a file that takes a checkpoint. Raises USAGE for a format with one table per file."""
    if "stream" not in format_.capabilities.layouts:
        message = f'could not write "{path}": format {format_.name} writes one table per file'
        raise PgcdcError(ErrorKind.USAGE, message, hint="write it into a directory: -D DIR")
    folder, name = PurePath(path).parent, PurePath(path).name
    outputs = OutputFiles(OpenFiles(disk or Disk(), str(folder)), format_)
    return CheckpointedSink(SingleFile(outputs, name), outputs, settings, clock)


class SingleFile:
    """One file. Whole transactions are written as they come, so that `tail -f` shows them."""

    in_segments: ClassVar[bool] = False

    def __init__(self, outputs: OutputFiles, name: str) -> None:
        self.control = beside(name)
        self._outputs = outputs
        self._files = outputs.files
        self._files.kept = self._name = name
        self._moved: str | None = None
        self._uncut: Checkpoint | None = None

    @property
    def gap_remedy(self) -> str | None:
        """The hint for a gap that would cut off what is in the file."""
        if self._uncut is None:
            return None
        return remedy_of_longer_file(self._files.disk, self._files.root, self._name, self._uncut)

    @property
    def _full(self) -> str:
        return self._files.full(self._name)

    def lock(self) -> HeldLock:
        """Lock the lock file beside it."""
        return self._files.disk.lock(self._files.full(self.control.lock))

    def discard(self) -> None:
        """Do nothing: the folder existed before."""

    def check_unwritten(self) -> None:
        """Raise CHECKPOINT for a file with content, OUTPUT for anything but a regular file."""
        hint = _NOT_OURS.format(self.control.checkpoint)
        self._check_empty("there is no checkpoint for it", hint)

    def _check_empty(self, reason: str, hint: str | None = None) -> None:
        found = self._files.stat(self._name)
        if found is not None and not found.regular:
            message = f'could not open "{self._full}": it is not a regular file'
            raise PgcdcError(ErrorKind.OUTPUT, message, hint="move it away, or write to another file")
        if found is not None and found.size:
            raise damaged(self._full, f"it has {found.size} bytes, and {reason}", hint=hint)

    def recover(self, checkpoint: Checkpoint) -> Checkpoint:
        """Find the file, with all that was durable. Raises CHECKPOINT if it is neither ours nor a copy."""
        if checkpoint.inode is None:
            self._check_empty("the checkpoint names none", _MOVE_AWAY)
            return checkpoint
        (entry,) = checkpoint.files
        self._moved = self._find_moved(checkpoint, entry.state)
        there = self._files.stat(self._moved or self._name)
        self._uncut = checkpoint if there is not None and there.size > entry.state.size else None
        if self._moved is not None:
            return checkpoint
        if there is None:
            hint = self._without_it(checkpoint)
            raise damaged(self._full, "it is missing; was it moved without HUP?", hint=hint)
        self._files.descriptor(self._name)
        found = self._stat()
        # Only a run that was killed leaves more than was durable; a large file takes long to read.
        as_left = found.inode == checkpoint.inode and found.size == entry.state.size
        whole = as_left or self._has_all(self._name, found, entry.state)
        if found.inode != checkpoint.inode and not (whole and entry.state.size):
            reason = "it is not the file that was written; was that one moved without HUP?"
            raise damaged(self._full, reason, hint=self._without_it(checkpoint))
        if found.size < entry.state.size:
            reason = f"it has {found.size} bytes, {entry.state.size} were durable"
            raise damaged(self._full, reason, hint=self._without_copy(checkpoint))
        if not whole:
            raise damaged(self._full, "it was changed", hint=self._without_copy(checkpoint))
        return replace(checkpoint, inode=found.inode)

    def _without_it(self, checkpoint: Checkpoint) -> str:
        """Make the hint for a file that isn't there; with prepared transactions only it can help."""
        if checkpoint.prepared:
            return _PUT_BACK
        return f"{_PUT_BACK}; if it is gone for good, {self._start_anew(checkpoint)}"

    def _without_copy(self, checkpoint: Checkpoint) -> str:
        """Make the hint for a file that others changed; with prepared transactions only a copy can help."""
        if checkpoint.prepared:
            return _RESTORE
        return f"{_RESTORE}; if there is none, move it away, {self._start_anew(checkpoint)}"

    def _start_anew(self, checkpoint: Checkpoint) -> str:
        continues = checkpoint.source.slot and checkpoint.end_lsn
        where = f", with --startpos {checkpoint.end_lsn}" if continues else " from the start"
        return f"remove {self.control.checkpoint}, and run again{where}"

    def _has_all(self, name: str, found: Stat, state: FileState) -> bool:
        """Whether a file has all that was durable, whatever follows."""
        enough = found.size >= state.size
        return enough and self._files.disk.crc32(self._files.full(name), state.size) == state.crc32

    def _find_moved(self, checkpoint: Checkpoint, state: FileState) -> str | None:
        """Return the name that the file has now in its folder; None if it isn't there with all its rows."""
        name = moved_name(self._files.disk, self._files.root, self._name, checkpoint)
        found = None if name is None else self._files.stat(name)
        return name if name and found and self._has_all(name, found, state) else None

    def start(self, checkpoint: Checkpoint, save: Callable[[Checkpoint], None]) -> None:
        """Continue the file that the checkpoint names, from its durable size, or begin one.

        What is beyond is cut off only now, when the source is known to send it again.
        """
        if checkpoint.inode is None:
            self._take(checkpoint, save)
            return
        (entry,) = checkpoint.files
        name = self._moved or self._name
        self._files.truncate(name, entry.state.size)
        self._uncut = None
        if self._moved is None:
            self._outputs.open(entry, b"", exists=True)
        else:
            self._files.fsync_all({name: entry.state.size})
            self._switch(name, checkpoint, save)

    def _take(self, checkpoint: Checkpoint, save: Callable[[Checkpoint], None]) -> None:
        """Create the file, or take an empty one, and save its inode in the checkpoint."""
        if self._files.stat(self._name) is None:
            self._make()
        self._files.descriptor(self._name)
        self._check_empty("they aren't ours")
        found = self._stat()
        entry = PartialFile(self._name, FileState())
        save(replace(checkpoint, files=(entry,), inode=found.inode))
        self._outputs.open(entry, b"", exists=True)

    def _make(self) -> None:
        """Create the file, or the target of a symbolic link of this name, as a shell's `>` does."""
        target = PurePath(os.path.realpath(self._full))
        made = OpenFiles(self._files.disk, str(target.parent))
        made.create(target.name)
        made.fsync_folders()
        made.close_all()

    def _stat(self) -> Stat:
        found = self._files.stat(self._name)
        if found is None:
            raise damaged(self._full, "it is missing")
        return found

    def rotate(self, edge: Checkpoint, save: Callable[[Checkpoint], None]) -> None:
        """Save the checkpoint, and switch to a new file if the old one was moved."""
        save(edge)
        found = self._files.stat(self._name)
        if found is None or found.inode != edge.inode:
            self._switch(self._name, edge, save)

    def end(self, edge: Checkpoint, save: Callable[[Checkpoint], None]) -> None:
        """Name no file in the checkpoint if it is empty: until the next run, it may go or be replaced."""
        found = self._files.stat(self._name)
        if not any(entry.state.size for entry in edge.files) and (found is None or not found.size):
            save(replace(edge, files=(), inode=None))

    def _switch(self, name: str, edge: Checkpoint, save: Callable[[Checkpoint], None]) -> None:
        """Leave the file, which was opened by this name, and begin a new one."""
        # Otherwise a power failure could undo the move, and leave the old file where none is expected.
        self._files.disk.fsync_folder(self._files.root)
        empty = replace(edge, files=(), inode=None)
        save(empty)
        self._files.close(name)
        self._outputs.clear()
        self._take(empty, save)
