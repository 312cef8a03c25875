"""A directory of rotating files, one folder per table (design: "The directory")."""

from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import PurePath

from pgcdc_cli.directory.checkpoint import Checkpoint, Mark, PartialFile
from pgcdc_cli.directory.disk import Disk
from pgcdc_cli.directory.open_files import folder_of
from pgcdc_cli.directory.paths import PARTIAL, file_name, table_folder
from pgcdc_cli.directory.schema_files import SchemaFiles
from pgcdc_cli.directory.strict_json import damaged
from pgcdc_cli.errors import ErrorKind, PgcdcError
from pgcdc_cli.formats.base import EncodedSlice, FileFormat, Piece
from pgcdc_cli.sinks import recovery
from pgcdc_cli.sinks.base import SinkSettings
from pgcdc_cli.sinks.core import CheckpointedSink
from pgcdc_cli.sinks.output_file import OutputFile

CHECKPOINT = "checkpoint.json"
LOCK = ".lock"
SPOOL = "_spool"


@dataclass(frozen=True, slots=True, kw_only=True)
class DirectorySettings(SinkSettings):
    """When to begin a new segment; None for no such limit.

    `rotate_size` is in bytes over all files, `rotate_interval` in seconds since the first row.
    """

    rotate_size: int | None = 128 << 20
    rotate_interval: float | None = 300.0


class DirectorySink(CheckpointedSink):
    """Segments of files in a directory, each transaction once, whatever happens."""

    def __init__(
        self,
        path: str,
        encoding: FileFormat,
        settings: DirectorySettings,
        disk: Disk | None = None,
        clock: Callable[[], float] | None = None,
    ) -> None:
        super().__init__(str(PurePath(path)), SPOOL, encoding, settings, disk or Disk(), clock)
        self._limits = settings
        self._schemas = SchemaFiles(self.files)
        self._current: dict[str, OutputFile] = {}
        self._folders: dict[tuple[str, str], str] = {}
        self._size = 0
        self._first_row_at = 0.0
        self._manifest_size = 0

    @property
    def _lock_path(self) -> str:
        return self.files.full(LOCK)

    @property
    def _checkpoint_path(self) -> str:
        return self.files.full(CHECKPOINT)

    def open(self) -> Checkpoint | None:
        """As in the base class; makes the directory itself if it is missing."""
        found = self.files.stat("")
        if found is None:
            self.disk.mkdir(self.files.root)
        elif not found.folder:
            raise PgcdcError(ErrorKind.OUTPUT, f'could not open "{self.files.root}": it is no directory')
        return super().open()

    def _check_fresh(self) -> None:
        data = recovery.has_data(self.files)
        if data is not None:
            raise damaged(self._checkpoint_path, f'it is missing, but there is "{data}"')
        self.disk.fsync_folder(str(PurePath(self.files.root).parent))

    def _recover(self, checkpoint: Checkpoint) -> Checkpoint:
        recovered, self._manifest_size = recovery.recover(self.files, checkpoint)
        if recovered != checkpoint:
            self._save(recovered)
        for entry in recovered.files:
            head = self.disk.read(self.files.full(entry.path), 0, entry.head_size)
            self._adopt(OutputFile(self.files, self._encoding, entry, head, exists=True))
        return recovered

    def _adopt(self, output: OutputFile) -> None:
        folder = folder_of(output.path)
        current = self._current.get(folder)
        if current is None or output.part > current.part:
            self._current[folder] = output
        self.outputs.append(output)

    def _begin(self) -> None:
        self._first_row_at = self._clock()
        self._shrank()

    def _note(self, part: EncodedSlice) -> None:
        for table in part.tables:
            self._schemas.note(table)

    def _place_schemas(self) -> None:
        self._schemas.place()

    def _output(self, piece: Piece) -> OutputFile:
        schema = None if piece.table is None else self._schemas.note(piece.table)
        folder = self._folder(piece)
        current = self._current.get(folder)
        if current is None:
            return self._create(folder, piece, schema, 1)
        full = self._limits.rotate_size is not None and current.now.size >= self._limits.rotate_size
        if full or current.head != piece.head or current.schema != schema:
            return self._create(folder, piece, schema, current.part + 1)
        return current

    def _folder(self, piece: Piece) -> str:
        if piece.table is None:
            return piece.target
        name = piece.table.schema, piece.table.name
        if name not in self._folders:
            self._folders[name] = table_folder(*name)
        return self._folders[name]

    def _create(self, folder: str, piece: Piece, schema: str | None, part: int) -> OutputFile:
        if not self.outputs:
            self._first_row_at = self._clock()
        name = file_name(self._saved.segment, piece.first_commit_lsn, part, self._encoding.suffix) + PARTIAL
        entry = PartialFile(
            path=f"{folder}/{name}" if folder else name,
            mark=Mark(),
            part=part,
            table=piece.target or None,
            schema=schema,
            head_size=len(piece.head),
        )
        output = OutputFile(self.files, self._encoding, entry, piece.head, exists=False)
        self._adopt(output)
        return output

    def _grew(self, size: int) -> None:
        self._size += size

    def _shrank(self) -> None:
        self._size = sum(output.now.size for output in self.outputs)
        outputs, self.outputs = self.outputs, []
        self._current.clear()
        for output in outputs:
            self._adopt(output)

    def _boundary_due(self) -> bool:
        if self._reopening:
            return True
        if not self.outputs:
            return False
        size, interval = self._limits.rotate_size, self._limits.rotate_interval
        if size is not None and self._size >= size:
            return True
        return interval is not None and self._clock() - self._first_row_at >= interval

    def _boundary(self) -> None:
        self._rotate()

    def _finish_stream(self) -> None:
        self._rotate()

    def _end(self) -> None:
        self._rotate()

    def _rotate(self) -> None:
        """Publish the open files as one finished segment; without any, only the position is made durable."""
        if not self.outputs:
            self._flush()
            return
        for output in self.outputs:
            output.finish(self._encoding.tail)
        self._sync([output for output in self.outputs if output.edge != output.durable])
        checkpoint = self._saved
        pending = recovery.plan(
            checkpoint,
            self._edge_lsn,
            self._encoding.name,
            tuple(output.entry for output in self.outputs),
            self._manifest_size,
        )
        begun = replace(self._at_position(), segment=checkpoint.segment + 1, files=(), pending=pending)
        self._save(begun)
        self._manifest_size = recovery.publish(self.files, pending)
        self._save(replace(begun, pending=None))
        self._forget()

    def _forget(self) -> None:
        self.outputs.clear()
        self._current.clear()
        self._unsaved.clear()
        self._held = self._size = 0
        self._flushed_at = self._clock()
