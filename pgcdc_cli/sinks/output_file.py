"""One growing file, and how much of it is whole.

What a format gives is held back until a frame is worth writing, in two parts: rows of whole transactions,
and rows of the one that is still open. So an edge always falls between two frames, and the rows of an open
transaction can be taken back: from memory, or by cutting the file where the last edge was.
"""

import zlib
from dataclasses import replace

import pyarrow as pa

from pgcdc_cli.directory.checkpoint import Mark, PartialFile
from pgcdc_cli.directory.open_files import Files
from pgcdc_cli.formats.base import Data, FileFormat, Piece

FRAME_SIZE = 1 << 20
"""Bytes (before compression) at which held rows become a frame and are written."""


class Held:
    """Rows that are not yet written; `mark` counts their bytes as held, and has no checksum."""

    def __init__(self) -> None:
        self.data: list[Data] = []
        self.mark = Mark()

    def add(self, data: list[Data], mark: Mark) -> None:
        self.data += data
        self.mark = _joined(self.mark, mark, self.mark.size + mark.size, 0)

    def clear(self) -> None:
        self.data = []
        self.mark = Mark()


def _size(data: Data) -> int:
    match data:
        case pa.RecordBatch():
            return data.nbytes
        case pa.Buffer():
            return data.size
        case memoryview():
            return data.nbytes
    return len(data)


def _own(data: Data) -> Data:
    """Copy what may be a view into a buffer that is much larger, and would live as long as the view."""
    return bytes(data) if isinstance(data, memoryview | pa.Buffer) else data


def _joined(mark: Mark, new: Mark, size: int, crc32: int) -> Mark:
    first = mark.first_commit_lsn if mark.rows else new.first_commit_lsn
    last = new.last_commit_lsn if new.rows else mark.last_commit_lsn
    return Mark(size, crc32, mark.rows + new.rows, first, last, mark.unchanged or new.unchanged)


class OutputFile:
    """A file that is being written.

    `now` is what is in it, `edge` what of that is whole once `settle_edge` was called, `durable` what is
    fsynced and in the checkpoint.
    """

    def __init__(
        self, files: Files, encoding: FileFormat, entry: PartialFile, head: bytes, *, exists: bool
    ) -> None:
        self.head = head
        self.path = entry.path
        self.part = entry.part
        self.schema = entry.schema
        self.now = self.edge = self.durable = entry.mark
        self._entry = entry
        self._files = files
        self._encoding = encoding
        self._found = self._exists = exists
        self._whole = Held()
        self._begun = Held()
        self._spilled = False

    @property
    def entry(self) -> PartialFile:
        """What the checkpoint says of it."""
        return replace(self._entry, mark=self.edge)

    @property
    def held(self) -> int:
        """Bytes in memory."""
        return self._whole.mark.size + self._begun.mark.size

    @property
    def begun(self) -> bool:
        """Whether it has rows of a transaction that is still open."""
        return self._spilled or bool(self._begun.data)

    @property
    def behind(self) -> bool:
        """Whether it has whole rows that are not durable."""
        return bool(self._whole.data) or (self.edge if self._spilled else self.now) != self.durable

    def append(self, piece: Piece, *, whole: bool) -> None:
        """Take rows; `whole` if their transactions end in the same slice."""
        if whole and self._begun.data:
            self._complete()
        held = self._whole if whole else self._begun
        size = _size(piece.data)
        full = self.held + size >= FRAME_SIZE
        data = piece.data if full else _own(piece.data)
        commits = piece.first_commit_lsn, piece.last_commit_lsn
        held.add([data], Mark(size, 0, piece.rows, *commits, piece.unchanged))
        if full:
            self.cut()

    def _complete(self) -> None:
        self._whole.add(self._begun.data, self._begun.mark)
        self._begun.clear()

    def settle(self) -> None:
        """Count all rows taken so far as whole: this is a transaction edge."""
        self._complete()
        self._spilled = False

    def cut(self) -> None:
        """Write what is held, as one frame up to the edge and one beyond it."""
        self._write(self._whole)
        if self._begun.data and not self._spilled:
            self.edge = self.now
            self._spilled = True
        self._write(self._begun)

    def settle_edge(self) -> None:
        """Write what is whole, so that `edge` says how far that reaches."""
        if not self._spilled:
            self._write(self._whole)
            self.edge = self.now

    def finish(self, tail: bytes) -> None:
        """Write all that is held, and the end of the file."""
        self.cut()
        if tail and self._exists:
            self._append(tail, Mark())
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
            self._exists = False

    @property
    def empty(self) -> bool:
        """Whether it is nothing but a name, of which no checkpoint need speak."""
        return not (self._found or self.now.size or self.held)

    @property
    def lasting(self) -> bool:
        """Whether a checkpoint at the last edge speaks of it."""
        return self._found or self.edge.size > 0

    def _write(self, held: Held) -> None:
        if not held.data:
            return
        frame = self._encoding.frame(held.data)
        rows = held.mark
        held.clear()
        if not self._exists:
            self._files.create(self.path)
            self._exists = True
        if self.head and not self.now.size:
            self._append(self.head, Mark())
        self._append(memoryview(frame).cast("B"), rows)

    def _append(self, data: bytes | memoryview, rows: Mark) -> None:
        self._files.append(self.path, data)
        crc32 = zlib.crc32(data, self.now.crc32)
        self.now = _joined(self.now, rows, self.now.size + len(data), crc32)
