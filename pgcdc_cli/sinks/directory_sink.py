"""A directory of segments, with one folder per table (docs/delivery.md, "A directory").

This module publishes segments, and recovers the state that the checkpoint names. Once the checkpoint has a
pending rotation, the same steps finish it in a run and after a crash: each of them may have been done
already. A finished file is never replaced, and the manifest grows by whole lines only.

Recovery raises CHECKPOINT if the files don't match the checkpoint; then it has changed nothing, except for
steps of a pending rotation.
"""

from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from pathlib import PurePath
from typing import ClassVar

from pgcdc_cli.directory import manifest
from pgcdc_cli.directory.beyond_checkpoint import data_files, gap_remedy_of_directory, unnamed_partials
from pgcdc_cli.directory.checkpoint import Checkpoint, PartialFile, PendingRotation
from pgcdc_cli.directory.disk import Disk, HeldLock, OpenFiles, damaged, folder_of
from pgcdc_cli.directory.file_names import (
    IN_DIRECTORY,
    MANIFEST,
    PARTIAL,
    ControlFiles,
)
from pgcdc_cli.directory.manifest import Segment, SegmentFile, decode_segment
from pgcdc_cli.errors import ErrorKind, PgcdcError
from pgcdc_cli.formats.interface import FileFormat
from pgcdc_cli.sinks.checkpointed_sink import CheckpointedSink
from pgcdc_cli.sinks.output_file import TableFiles
from pgcdc_cli.sinks.segment_command import SegmentCommand
from pgcdc_cli.sinks.sink import SinkSettings


def directory_sink(
    path: str,
    format_: FileFormat,
    settings: SinkSettings,
    disk: Disk | None = None,
    clock: Callable[[], float] | None = None,
) -> CheckpointedSink:
    """Make the sink for a directory, which need not exist."""
    files = OpenFiles(disk or Disk(), str(PurePath(path)))
    outputs = TableFiles(files, format_, settings.rotate_size)
    return CheckpointedSink(SegmentDirectory(outputs, settings), outputs, settings, clock)


class SegmentDirectory:
    """Segments of files in a directory."""

    in_segments: ClassVar[bool] = True
    control: ControlFiles = IN_DIRECTORY

    def __init__(self, outputs: TableFiles, settings: SinkSettings) -> None:
        self._outputs = outputs
        self._files = outputs.files
        self._command = None
        if settings.on_segment is not None:
            self._command = SegmentCommand(
                outputs.files, settings.on_segment, settings.ends, umask=settings.umask
            )
        self._manifest_size = 0
        self._made = False
        self._uncut: Checkpoint | None = None

    @property
    def gap_remedy(self) -> str | None:
        """The hint for a gap that would cut off what is in the files."""
        if self._uncut is None:
            return None
        return gap_remedy_of_directory(self._files.disk, self._files.root, self._uncut)

    def lock(self) -> HeldLock:
        """Lock the directory, which is created if it is missing."""
        found = self._files.stat("")
        if found is None:
            self._files.disk.mkdir(self._files.root)
            self._made = True
        elif not found.folder:
            message = f'could not open "{self._files.root}": it is not a directory'
            raise PgcdcError(
                ErrorKind.OUTPUT, message, hint="write to a file with -f, or name another directory"
            )
        return self._files.disk.lock(self._files.full(self.control.lock))

    def discard(self) -> None:
        """Remove the directory if this run created it, and it is empty."""
        if self._made:
            with suppress(PgcdcError):
                self._files.disk.rmdir(self._files.root)

    def check_unwritten(self) -> None:
        """Raise CHECKPOINT for data of a stream; otherwise make the directory's own entry durable."""
        data = _find_data(self._files)
        if data is not None:
            raise damaged(self._files.full(self.control.checkpoint), f'it is missing, but there is "{data}"')
        self._files.disk.fsync_folder(str(PurePath(self._files.root).parent))

    def recover(self, checkpoint: Checkpoint) -> Checkpoint:
        """Finish a pending rotation, and find the open files, with all that was durable."""
        self._uncut, self._manifest_size = _recover(self._files, checkpoint)
        return self._uncut

    def start(self, checkpoint: Checkpoint, save: Callable[[Checkpoint], None]) -> None:
        """Continue the open files of the checkpoint's segment, from their durable size.

        What is beyond is cut off only now, when the source is known to send it again.
        """
        del save
        self._uncut = None
        for entry in checkpoint.files:
            self._files.truncate(entry.path, entry.state.size)
        for path in tuple(unnamed_partials(self._files.disk, self._files.root, checkpoint)):
            self._files.remove(path)
        self._outputs.start(checkpoint.segment, self._files.disk.names(self._files.root))
        for entry in checkpoint.files:
            head = self._files.disk.read(self._files.full(entry.path), 0, entry.head_size)
            self._outputs.open(entry, head, exists=True)
        if self._command is not None:
            self._command.catch_up()

    def end(self, edge: Checkpoint, save: Callable[[Checkpoint], None]) -> None:
        """Do nothing: a segment without rows has no files."""

    def rotate(self, edge: Checkpoint, save: Callable[[Checkpoint], None]) -> None:
        """Publish the open files as one finished segment; without any, only save the checkpoint."""
        if not edge.files:
            save(edge)
            return
        for file in edge.files:
            # Those without new rows were not fsynced, nor looked at.
            self._files.check_size(file.path, file.state.size)
        pending = _plan_rotation(edge, self._outputs.format.name, self._manifest_size)
        begun = replace(edge, segment=edge.segment + 1, files=(), pending=pending)
        save(begun)
        self._manifest_size = _finish_segment(self._files, pending)
        save(replace(begun, pending=None))
        self._outputs.clear()
        self._outputs.segment = begun.segment
        if self._command is not None:
            self._command.hand_over([decode_segment(pending.line.encode())])


def _plan_rotation(edge: Checkpoint, kind: str, manifest_size: int) -> PendingRotation:
    """Plan how to publish the open segment, which has at least one file; all are complete.

    `kind` is the format's name.
    """
    segment = Segment(
        edge.segment,
        edge.stream_id,
        min(file.state.first_commit_lsn for file in edge.files),
        max(file.state.last_commit_lsn for file in edge.files),
        edge.end_lsn,
        tuple(_finished(file, kind) for file in edge.files),
    )
    renames = tuple((file.path, _finished_path(file)) for file in edge.files)
    return PendingRotation(manifest.encode_segment(segment), renames, manifest_size)


def _finished(file: PartialFile, kind: str) -> SegmentFile:
    state = file.state
    return SegmentFile(
        table=file.table,
        path=_finished_path(file),
        format=kind,
        rows=state.rows,
        bytes=state.size,
        crc32=state.crc32,
        schema=file.schema,
        unchanged=state.unchanged,
        invalid_text=state.invalid_text,
    )


def _finished_path(file: PartialFile) -> str:
    return file.path.removesuffix(PARTIAL)


def _finish_segment(files: OpenFiles, pending: PendingRotation) -> int:
    """Rename the files durably, append the manifest's line; return the manifest's new size in bytes."""
    for old, new in pending.renames:
        _rename(files, old, new)
    files.fsync_folders()
    line = pending.line.encode()
    manifest.append_line(files, line, pending.manifest_size)
    return pending.manifest_size + len(line)


def _rename(files: OpenFiles, old: str, new: str) -> None:
    source, target = files.stat(old), files.stat(new)
    if source is not None and target is not None:
        raise damaged(files.full(new), "it already exists")
    if source is None and target is None:
        raise damaged(files.full(new), "it is missing")
    if source is not None:
        files.rename(old, new)
    files.changed_folders.add(folder_of(new))


def _recover(files: OpenFiles, checkpoint: Checkpoint) -> tuple[Checkpoint, int]:
    """Check the files that the checkpoint names, and finish a pending rotation.

    Returns the checkpoint to save (the same object if nothing changed), and the manifest's size in bytes.
    """
    for file in checkpoint.files:
        _check_partial(files, file)
    if checkpoint.pending is not None:
        _check_pending(files, checkpoint.pending)
        size = _finish_segment(files, checkpoint.pending)
        checkpoint = replace(checkpoint, pending=None)
    else:
        size = _check_manifest(files, checkpoint)
    return checkpoint, size


def _check_partial(files: OpenFiles, file: PartialFile) -> None:
    path = files.full(file.path)
    found = files.stat(file.path)
    if found is None:
        raise damaged(path, "it is missing")
    if found.size < file.state.size:
        raise damaged(path, f"it has {found.size} bytes, {file.state.size} were durable")
    if files.disk.crc32(path, file.state.size) != file.state.crc32:
        raise damaged(path, "it was changed")


def _check_pending(files: OpenFiles, pending: PendingRotation) -> None:
    """Raise CHECKPOINT unless every file of a pending rotation is there and unchanged."""
    for file in manifest.decode_segment(pending.line.encode()).files:
        path = file.path if files.stat(file.path) is not None else file.path + PARTIAL
        found = files.stat(path)
        if found is None:
            raise damaged(files.full(file.path), "it is missing")
        if found.size != file.bytes or files.disk.crc32(files.full(path), file.bytes) != file.crc32:
            raise damaged(files.full(path), "it was changed")


def _check_manifest(files: OpenFiles, checkpoint: Checkpoint) -> int:
    path = files.full(MANIFEST)
    last = manifest.last_segment(files.disk, path)
    number = 0 if last is None else last.segment
    if number != checkpoint.segment - 1:
        raise damaged(path, f"its last segment is {number}, the checkpoint's is {checkpoint.segment - 1}")
    found = files.stat(MANIFEST)
    return 0 if found is None else found.size


def _find_data(files: OpenFiles) -> str | None:
    """Return the path of something that a stream wrote in a directory; None if there is nothing."""
    if files.stat(MANIFEST) is not None:
        return MANIFEST
    return next((path for path, _ in data_files(files.disk, files.root)), None)
