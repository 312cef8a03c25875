"""Growing files: the one of each table, and how much of each belongs to whole transactions.

Encoded rows are held in memory until a frame is worth writing, in two parts: rows of whole transactions, and
rows of the one that is still open. So an edge always falls between two frames, and the rows of an open
transaction can be taken back: from memory, or by truncating the file at the last edge.
"""

from collections.abc import Iterable, Iterator
from dataclasses import replace
from functools import partial

import pyarrow as pa
from zlib_ng import zlib_ng

from pgcdc_cli.directory.checkpoint import FileState, PartialFile
from pgcdc_cli.directory.disk import OpenFiles, folder_of
from pgcdc_cli.directory.file_names import PARTIAL, TableFolders, file_name
from pgcdc_cli.directory.schema_files import SchemaFiles
from pgcdc_cli.formats.interface import Data, EncodedSlice, FileFormat, Piece

FRAME_SIZE = 1 << 20
"""Bytes (before compression) at which held rows become a frame and are written."""

COLUMN_OVERHEAD = 1 << 10
"""Bytes that a column of a record batch takes beside its values: most of its size if rows are few."""

WRITE_BACK = 32 << 20
"""Bytes of a file after which write-back begins: a snapshot has many, and is fsynced only at its end."""


class OutputFiles:
    """The files that are being written; of this class exactly one, of `TableFiles` any number.

    `held` counts bytes in memory, `size` bytes in the files.
    """

    def __init__(self, files: OpenFiles, format_: FileFormat) -> None:
        self.files = files
        self.format = format_
        self.held = self.size = 0
        self._outputs: list[OutputFile] = []
        self._unsaved: dict[OutputFile, None] = {}

    def __len__(self) -> int:
        return len(self._outputs)

    def __iter__(self) -> Iterator["OutputFile"]:
        return iter(self._outputs)

    def open(self, entry: PartialFile, head: bytes, *, exists: bool) -> "OutputFile":
        """Continue an existing file, or begin one, which is created on the first write."""
        output = OutputFile(self.files, self.format, entry, head, exists=exists)
        self.size += output.now.size
        self._outputs.append(output)
        return output

    def append(self, encoded: EncodedSlice) -> None:
        """Append each piece of a slice to its file."""
        for piece in encoded.pieces:
            output = self._file_for(piece)
            held, size = output.held, output.now.size
            output.append(piece, whole=encoded.edge is not None)
            self.held += output.held - held
            self.size += output.now.size - size
            self._unsaved[output] = None

    def _file_for(self, piece: Piece) -> "OutputFile":
        assert not piece.head, "a file for one table only"
        (output,) = self._outputs
        return output

    @property
    def unsynced(self) -> bool:
        """Whether rows of whole transactions are not durable yet."""
        return any(output.unsynced for output in self._unsaved)

    def mark_edge(self) -> None:
        """Mark a transaction edge: all rows taken so far are of whole transactions."""
        for output in self._unsaved:
            if output.begun:
                output.mark_edge()

    def write_all(self) -> None:
        """Write all rows held in memory."""
        for output in self._unsaved:
            output.write_all()
        self._count()

    def write_whole(self) -> None:
        """Write the rows of whole transactions."""
        for output in self._unsaved:
            output.write_whole()
        self._count()

    def finish(self) -> None:
        """Write all rows held in memory, and the tail of each file."""
        for output in self._outputs:
            output.finish()
        self._count()

    def _count(self) -> None:
        self.held = sum(output.held for output in self._unsaved)
        self.size = sum(output.now.size for output in self._outputs)

    def changed(self) -> list["OutputFile"]:
        """Return the files with written rows of whole transactions that aren't durable."""
        return [output for output in self._outputs if output.edge != output.durable]

    def entries(self) -> tuple[PartialFile, ...]:
        """Return the files' entries for a checkpoint at the last edge."""
        return tuple(output.entry for output in self._outputs if output.lasting)

    def fsync(self, changed: list["OutputFile"]) -> None:
        """Fsync these files; the caller fsyncs folders."""
        self.files.fsync_all({output.path: output.now.size for output in changed})

    def now_durable(self, changed: list["OutputFile"]) -> None:
        """Mark the whole transactions in these files as durable; in the others they are."""
        for output in changed:
            output.durable = output.edge
        self._unsaved = {output: None for output in self._unsaved if output.begun}

    def rollback(self) -> None:
        """Take back the rows of the open transaction, and forget files that have no others."""
        for output in self._unsaved:
            output.rollback()
        self._outputs = [output for output in self._outputs if not output.empty]
        self._unsaved = {output: None for output in self._unsaved if not output.empty}
        self._count()

    def clear(self) -> None:
        """Forget all files: they are finished."""
        self._outputs, self._unsaved = [], {}
        self.held = self.size = 0


class TableFiles(OutputFiles):
    """The files of a directory's open segment: one for each table.

    A file that is full, at `full_size` bytes, or whose table has changed goes on in another part.
    """

    def __init__(self, files: OpenFiles, format_: FileFormat, full_size: int | None) -> None:
        super().__init__(files, format_)
        self._schemas = SchemaFiles(files)
        self.segment = 1
        self._full_size = full_size
        self._newest: dict[str, OutputFile] = {}
        self._folders: dict[tuple[str, str], str] = {}
        self._names = TableFolders(())

    def start(self, segment: int, folders: Iterable[str]) -> None:
        """Go on with this segment, in a directory that has these folders."""
        self.segment = segment
        self._names = TableFolders(folders)

    def open(self, entry: PartialFile, head: bytes, *, exists: bool) -> "OutputFile":
        """Continue an existing file, or begin one; the parts of a table are opened in order."""
        output = super().open(entry, head, exists=exists)
        self._newest[output.folder] = output
        return output

    def rollback(self) -> None:
        """Take back the rows of the open transaction, and forget files that have no others."""
        super().rollback()
        self._newest = {output.folder: output for output in self}

    def clear(self) -> None:
        """Forget all files: they are finished."""
        super().clear()
        self._newest = {}

    def append(self, encoded: EncodedSlice) -> None:
        """Append each piece of a slice to its file, and note all its tables for the schema files."""
        for table in encoded.tables:
            self._schemas.note(table)
        super().append(encoded)

    def fsync(self, changed: list["OutputFile"]) -> None:
        """Fsync these files, and write new schema files durably."""
        super().fsync(changed)
        self._schemas.write()

    def _file_for(self, piece: Piece) -> "OutputFile":
        schema = None if piece.table is None else self._schemas.note(piece.table)
        folder = self._folder(piece)
        newest = self._newest.get(folder)
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

    def _create(self, folder: str, piece: Piece, schema: str | None, part: int) -> "OutputFile":
        suffix = self.format.suffix + PARTIAL
        name = file_name(self.segment, piece.first_commit_lsn, part, suffix)
        entry = PartialFile(
            path=f"{folder}/{name}" if folder else name,
            state=FileState(),
            part=part,
            table=piece.target or None,
            schema=schema,
            head_size=len(piece.head),
        )
        return self.open(entry, piece.head, exists=False)


class OutputFile:
    """A file that is being written.

    Its rows, in the stream's order, are durable up to `durable` (fsynced and in the checkpoint), written up
    to `now`, and the rest is in memory: first `_whole`, of whole transactions, then `_begun`, of the open
    one. Once rows of the open transaction had to be written (`_spilled`), `edge` is where they begin in the
    file. Before that, all that is written is of whole transactions, and `edge` follows with `write_whole`.
    """

    def __init__(
        self, files: OpenFiles, format_: FileFormat, entry: PartialFile, head: bytes, *, exists: bool
    ) -> None:
        self.head = head
        self.path = entry.path
        self.folder = folder_of(entry.path)
        self.part = entry.part
        self.schema = entry.schema
        self.now = self.edge = self.durable = entry.state
        self._entry = entry
        self._files = files
        self._format = format_
        self._found = self._exists = exists
        self._whole = _HeldRows()
        self._begun = _HeldRows()
        self._spilled = False

    @property
    def entry(self) -> PartialFile:
        """The file's entry for the checkpoint."""
        return replace(self._entry, state=self.edge)

    @property
    def held(self) -> int:
        """Bytes of rows in memory."""
        return self._whole.state.size + self._begun.state.size

    @property
    def begun(self) -> bool:
        """Whether it has rows of a transaction that is still open."""
        return self._spilled or bool(self._begun.data)

    @property
    def unsynced(self) -> bool:
        """Whether it has rows of whole transactions that aren't durable yet."""
        return bool(self._whole.data) or (self.edge if self._spilled else self.now) != self.durable

    @property
    def empty(self) -> bool:
        """Whether it has no content, and isn't in a checkpoint either."""
        return not (self._found or self.now != FileState() or self._whole.data or self._begun.data)

    @property
    def lasting(self) -> bool:
        """Whether a checkpoint at the last edge names it."""
        return self._found or self.edge != FileState()

    def append(self, piece: Piece, *, whole: bool) -> None:
        """Take rows; `whole` if their transactions end in the same slice."""
        if whole and self._begun.data:
            self._complete()
        held = self._whole if whole else self._begun
        size = _size(piece.data)
        full = self.held + size >= FRAME_SIZE
        data = piece.data if full else _own(piece.data)
        commits = piece.first_commit_lsn, piece.last_commit_lsn
        state = FileState(size, 0, piece.rows, *commits, piece.unchanged, piece.invalid_text)
        held.add([data], state)
        if full:
            self.write_all()

    def _complete(self) -> None:
        self._whole.add(self._begun.data, self._begun.state)
        self._begun.clear()

    def mark_edge(self) -> None:
        """Mark a transaction edge: all rows taken so far are of whole transactions."""
        self._complete()
        self._spilled = False

    def write_all(self) -> None:
        """Write all rows held in memory, as one frame up to the edge and one after it."""
        self._write(self._whole)
        if self._begun.data and not self._spilled:
            self.edge = self.now
            self._spilled = True
        self._write(self._begun)

    def write_whole(self) -> None:
        """Write the rows of whole transactions, so that `edge` is the state at the last edge."""
        if not self._spilled:
            self._write(self._whole)
            self.edge = self.now

    def finish(self) -> None:
        """Write all rows held in memory, and the file's tail."""
        self.write_all()
        if self._format.tail is not None and self._exists:
            self._append(self._format.tail(partial(self._files.read, self.path)), FileState())
        self.edge = self.now

    def rollback(self) -> None:
        """Take back the rows of the open transaction; a file that has no others is removed."""
        self._begun.clear()
        if not self._spilled:
            return
        self._spilled = False
        self.now = self.edge
        if self.lasting:
            self._files.truncate(self.path, self.edge.size)
        else:
            self._files.remove(self.path)

    def _write(self, held: "_HeldRows") -> None:
        if not held.data:
            return
        frame = self._format.frame(held.data)
        rows = held.state
        held.clear()
        if not self._exists:
            self._files.create(self.path)
            self._exists = True
        if self.head and not self.now.size:
            self._append(self.head, FileState())
        self._append(memoryview(frame).cast("B"), rows)

    def _append(self, data: bytes | memoryview, rows: FileState) -> None:
        size = self.now.size + len(data)
        begins = size // WRITE_BACK > self.now.size // WRITE_BACK
        self._files.append_behind(self.path, data, write_back=begins)
        # This takes a quarter of the time that zlib's function takes, which would be a tenth of a snapshot's.
        crc32 = zlib_ng.crc32(data, self.now.crc32)
        self.now = _extended(self.now, rows, size, crc32)


class _HeldRows:
    """Rows that are not yet written; `state` counts their bytes as held, and has no checksum."""

    def __init__(self) -> None:
        self.data: list[Data] = []
        self.state = FileState()

    def add(self, data: list[Data], rows: FileState) -> None:
        self.data += data
        self.state = _extended(self.state, rows, self.state.size + rows.size, 0)

    def clear(self) -> None:
        self.data = []
        self.state = FileState()


def _extended(before: FileState, rows: FileState, size: int, crc32: int) -> FileState:
    # A file's head and end are of no commit; a table without rows is of one, and has nothing in its file.
    first = before.first_commit_lsn or rows.first_commit_lsn
    # Of an interrupted snapshot, tables read later have rows of a later position than the changes after them.
    last = max(before.last_commit_lsn, rows.last_commit_lsn)
    unchanged, invalid = before.unchanged or rows.unchanged, before.invalid_text + rows.invalid_text
    return FileState(size, crc32, before.rows + rows.rows, first, last, unchanged, invalid)


def _size(data: Data) -> int:
    match data:
        case pa.RecordBatch():
            # `nbytes` inspects every column, which takes as long as making it.
            return data.get_total_buffer_size() + data.num_columns * COLUMN_OVERHEAD
        case pa.Buffer():
            return data.size
        case memoryview():
            return data.nbytes
    return len(data)


def _own(data: Data) -> Data:
    """Copy what may be a view into a much larger buffer, which the view would keep in memory."""
    return bytes(data) if isinstance(data, memoryview | pa.Buffer) else data
