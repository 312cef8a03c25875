"""A directory of segments, with one folder per table (docs/delivery.md, "A directory")."""

from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import PurePath
from typing import ClassVar

from pgcdc_cli.directory.checkpoint import Checkpoint, FileState, PartialFile
from pgcdc_cli.directory.disk import Disk, HeldLock, OpenFiles, damaged
from pgcdc_cli.directory.file_names import IN_DIRECTORY, PARTIAL, ControlFiles, TableFolders, file_name
from pgcdc_cli.directory.manifest import decode_segment
from pgcdc_cli.directory.schema_files import SchemaFiles
from pgcdc_cli.errors import ErrorKind, PgcdcError
from pgcdc_cli.formats.interface import EncodedSlice, FileFormat, Piece
from pgcdc_cli.sinks import recovery
from pgcdc_cli.sinks.base import SinkSettings
from pgcdc_cli.sinks.checkpointed_sink import CheckpointedSink
from pgcdc_cli.sinks.output_file import OutputFile, OutputFiles
from pgcdc_cli.sinks.segment_command import SegmentCommand


def directory_sink(
    path: str,
    encoding: FileFormat,
    settings: SinkSettings,
    disk: Disk | None = None,
    clock: Callable[[], float] | None = None,
) -> CheckpointedSink:
    """Make the sink for a directory, which need not be there."""
    outputs = OutputFiles(OpenFiles(disk or Disk(), str(PurePath(path))), encoding)
    return CheckpointedSink(SegmentDirectory(outputs, settings), outputs, settings, clock)


class SegmentDirectory:
    """Segments of files in a directory; a file that is as large as a segment goes on in another part."""

    in_segments: ClassVar[bool] = True
    control: ControlFiles = IN_DIRECTORY

    def __init__(self, outputs: OutputFiles, settings: SinkSettings) -> None:
        self._outputs = outputs
        self._files = outputs.files
        self._full_size = settings.rotate_size
        command = settings.on_segment
        self._command = None if command is None else SegmentCommand(outputs.files, command, settings.ends)
        self._schemas = SchemaFiles(self._files)
        self._folders: dict[tuple[str, str], str] = {}
        self._names = TableFolders(())
        self._segment = 1
        self._manifest_size = 0

    def lock(self) -> HeldLock:
        """Lock the directory, which is made if it is missing."""
        found = self._files.stat("")
        if found is None:
            self._files.disk.mkdir(self._files.root)
        elif not found.folder:
            message = f'could not open "{self._files.root}": it is no directory'
            raise PgcdcError(ErrorKind.OUTPUT, message, hint="write into a file with -f, or name another")
        return self._files.disk.lock(self._files.full(self.control.lock))

    def check_unwritten(self) -> None:
        """Raise CHECKPOINT for data of a stream; then make durable that there is such a directory."""
        data = recovery.has_data(self._files)
        if data is not None:
            raise damaged(self._files.full(self.control.checkpoint), f'it is missing, but there is "{data}"')
        self._files.disk.fsync_folder(str(PurePath(self._files.root).parent))

    def recover(self, checkpoint: Checkpoint) -> Checkpoint:
        """Finish a rotation that was decided on, and cut the open files to their durable size."""
        recovered, self._manifest_size = recovery.recover(self._files, checkpoint)
        return recovered

    def start(self, checkpoint: Checkpoint, save: Callable[[Checkpoint], None]) -> None:
        """Go on with the open files of the checkpoint's segment."""
        del save
        self._segment = checkpoint.segment
        self._names = TableFolders(self._files.disk.names(self._files.root))
        for entry in checkpoint.files:
            head = self._files.disk.read(self._files.full(entry.path), 0, entry.head_size)
            self._outputs.open(entry, head, exists=True)
        if self._command is not None:
            self._command.catch_up()

    def route(self, encoded: EncodedSlice) -> Iterator[tuple[Piece, OutputFile]]:
        """Give each piece its table's last part, or another where that is full, or of another schema."""
        for table in encoded.tables:
            self._schemas.note(table)
        for piece in encoded.pieces:
            yield piece, self._output(piece)

    def _output(self, piece: Piece) -> OutputFile:
        schema = None if piece.table is None else self._schemas.note(piece.table)
        folder = self._folder(piece)
        newest = self._outputs.newest(folder)
        if newest is None:
            return self._create(folder, piece, schema, 1)
        full = self._full_size is not None and newest.now.size >= self._full_size
        if full or newest.head != piece.head or newest.schema != schema:
            return self._create(folder, piece, schema, newest.part + 1)
        return newest

    def _folder(self, piece: Piece) -> str:
        if piece.table is None:
            return piece.target
        name = piece.table.schema, piece.table.name
        if name not in self._folders:
            self._folders[name] = self._names.name(*name)
        return self._folders[name]

    def _create(self, folder: str, piece: Piece, schema: str | None, part: int) -> OutputFile:
        suffix = self._outputs.encoding.suffix + PARTIAL
        name = file_name(self._segment, piece.first_commit_lsn, part, suffix)
        entry = PartialFile(
            path=f"{folder}/{name}" if folder else name,
            state=FileState(),
            part=part,
            table=piece.target or None,
            schema=schema,
            head_size=len(piece.head),
        )
        return self._outputs.open(entry, piece.head, exists=False)

    def fsync(self, changed: list[OutputFile]) -> None:
        """Fsync the files written to; new schema files are made, and durable."""
        self._files.fsync_all([output.path for output in changed])
        self._schemas.write()

    def rotate(self, edge: Checkpoint, save: Callable[[Checkpoint], None]) -> None:
        """Publish the open files as one finished segment; without any, only the position is made durable."""
        if not edge.files:
            save(edge)
            return
        pending = recovery.plan(edge, self._outputs.encoding.name, self._manifest_size)
        begun = replace(edge, segment=edge.segment + 1, files=(), pending=pending)
        save(begun)
        self._manifest_size = recovery.finish_segment(self._files, pending)
        save(replace(begun, pending=None))
        self._segment = begun.segment
        self._outputs.clear()
        if self._command is not None:
            self._command.hand_over([decode_segment(pending.line.encode())])
