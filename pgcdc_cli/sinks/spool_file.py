"""Spool files: the messages of uncommitted transactions, one file for each transaction.

A file is a sequence of chunks. Each has a header of 20 bytes (number of messages, size of the content, size
of the content as stored) and the content: lengths, differences of LSNs, and the messages. The content is
compressed with LZ4 if that makes it smaller.
"""

import struct
from collections.abc import Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
import pyarrow as pa
from zlib_ng import zlib_ng

from pgcdc_cli.changes.edge import Prepared
from pgcdc_cli.changes.spool import FinishedSpool, SpoolChunk
from pgcdc_cli.directory.disk import OpenFiles, damaged
from pgcdc_cli.errors import ErrorKind, PgcdcError
from pgcdc_cli.large_copies import joined
from pgcdc_cli.lsn import Lsn

if TYPE_CHECKING:
    from pgcdc_cli.types.kernels import Int64s

SUFFIX = ".spool"

CHUNK_BYTES = 1 << 19
"""Bytes of one transaction's messages held in memory at which they are written."""

HELD_AT_MOST = 32 << 20
"""Bytes of all transactions' messages held in memory at which they are written."""

_HEADER = struct.Struct("<IQQ")
_PER_MESSAGE = 12
_LARGEST_COMPRESSED = 1 << 30


class SpoolFolder:
    """All spools of one output, in a folder of their own; `limit` is in bytes, None for no limit."""

    def __init__(self, files: OpenFiles, folder: str, limit: int | None = None) -> None:
        self._files = files
        self._folder = folder
        self._limit = limit
        self._written = self._held = 0
        self._live: dict[str, SpoolFile] = {}

    @property
    def size(self) -> int:
        """Bytes of all spools, on disk (compressed) and in memory."""
        return self._written + self._held

    def create(self, xid: int, first_lsn: Lsn) -> "SpoolFile":
        """Begin the spool of a transaction; its file is created on the first write."""
        path = f"{self._folder}/{xid}-{first_lsn:016X}{SUFFIX}"
        self._live[path] = SpoolFile(self, path)
        return self._live[path]

    def reopen(self, prepared: Prepared) -> "SpoolFile":
        """Open the spool of a prepared transaction, which `clear` has kept."""
        assert prepared.path is not None
        return SpoolFile(self, prepared.path, prepared.size)

    def check(self, prepared: Iterable[Prepared]) -> None:
        """Raise CHECKPOINT if a spool that the checkpoint names is missing or damaged."""
        for one in prepared:
            if one.path is not None:
                self._check(one)

    def clear(self, keep: Iterable[Prepared]) -> None:
        """Remove the spools of an earlier connection or run, except those of prepared transactions."""
        kept = {one.path: one.size for one in keep if one.path is not None}
        folder = self._files.stat(self._folder)
        names = self._files.disk.names(self._files.full(self._folder)) if folder is not None else []
        for path in (f"{self._folder}/{name}" for name in names if name.endswith(SUFFIX)):
            if path not in kept:
                self._files.remove(path)
        self._live.clear()
        self._held = 0
        self._written = sum(kept.values())

    def close(self, keep: Sequence[Prepared]) -> None:
        """Do as `clear` does, and remove the folder if it is empty."""
        self.clear(keep)
        full = self._files.full(self._folder)
        if self._files.stat(self._folder) is not None and not self._files.disk.names(full):
            self._files.disk.rmdir(full)

    def discard(self, prepared: Prepared) -> None:
        """Delete the spool of a transaction that is no longer prepared."""
        if prepared.path is not None:
            self.remove(prepared.path, prepared.size, exists=True)

    def _check(self, prepared: Prepared) -> None:
        path = self._files.full(str(prepared.path))
        found = self._files.stat(str(prepared.path))
        if found is None:
            raise damaged(path, f'it is missing, and held the prepared transaction "{prepared.gid}"')
        if found.size < prepared.size:
            raise damaged(path, f"it has {found.size} bytes, {prepared.size} were durable")
        if self._files.disk.crc32(path, prepared.size) != prepared.crc32:
            raise damaged(path, "it was changed")

    def hold(self, size: int) -> None:
        """Add to the bytes in memory; write all spools if that is too much."""
        self._held += size
        if self._held >= HELD_AT_MOST:
            for spool in self._live.values():
                spool.write()

    def release(self, size: int) -> None:
        """Subtract from the bytes in memory."""
        self._held -= size

    def append(self, path: str, data: list[bytes], *, exists: bool) -> None:
        """Append to a file. Raises OUTPUT, and writes nothing, beyond the limit."""
        size = sum(map(len, data))
        if self._limit is not None and self._written + size > self._limit:
            raise PgcdcError(
                ErrorKind.OUTPUT,
                f'could not spool a transaction in "{self._files.full(path)}":'
                f" the spool would grow beyond {self._limit} bytes",
                hint="raise --spool-limit, or let the server keep what is not committed: --streaming off",
            )
        if not exists:
            self._files.create(path)
        for block in data:
            self._files.append(path, block)
        self._written += size

    def read(self, path: str, offset: int) -> tuple[SpoolChunk, int]:
        """Read a chunk; return it and the offset of the next one."""
        full = self._files.full(path)
        count, size, stored = _HEADER.unpack(self._files.disk.read(full, offset, _HEADER.size))
        offset += _HEADER.size
        content = self._files.disk.read(full, offset, stored)
        return _decode(count, size, content), offset + stored

    def truncate(self, path: str, size: int, before: int) -> None:
        """Truncate a file that had `before` bytes."""
        self._files.truncate(path, size)
        self._written -= before - size

    def remove(self, path: str, size: int, *, exists: bool) -> None:
        """Forget a spool, and its file if there is one."""
        self._live.pop(path, None)
        self._written -= size
        if exists:
            self._files.remove(path)


class _ChunkStart(NamedTuple):
    """The place of a chunk in the file, and the CRC-32 of the bytes before it."""

    offset: int
    crc32: int


class SpoolFile:
    """One transaction's messages."""

    def __init__(self, folder: SpoolFolder, path: str, size: int = 0) -> None:
        self._folder = folder
        self._path = path
        self._size = size
        self._exists = size > 0
        self._crc32 = 0
        self._written: list[_ChunkStart] = []
        self._pending: list[SpoolChunk] = []
        self._count = self._held = 0

    def append(self, chunk: SpoolChunk) -> None:
        """Take over messages; they are written when there are enough of them."""
        self._pending.append(chunk)
        self._count += len(chunk)
        self._held += _size(chunk)
        self._folder.hold(_size(chunk))
        if self._held >= CHUNK_BYTES:
            self.write()

    def cut(self, count: int) -> None:
        """Keep the first `count` messages only."""
        while self._count > count:
            last = self._pop()
            self._count -= len(last)
            if self._count < count:
                self.append(last.first(count - self._count))

    def _pop(self) -> SpoolChunk:
        """Remove and return the last chunk, from memory or else from the file."""
        if self._pending:
            last = self._pending.pop()
            self._release(_size(last))
            return last
        written = self._written.pop()
        last, _ = self._folder.read(self._path, written.offset)
        self._folder.truncate(self._path, written.offset, self._size)
        self._size, self._crc32 = written
        return last

    def _release(self, size: int) -> None:
        self._held -= size
        self._folder.release(size)

    def write(self) -> None:
        """Write what is in memory."""
        pending, self._pending = self._pending, []
        self._release(self._held)
        if not pending:
            return
        data = _encode(SpoolChunk.join(pending))
        self._folder.append(self._path, data, exists=self._exists)
        self._exists = True
        self._written.append(_ChunkStart(self._size, self._crc32))
        for block in data:
            self._size += len(block)
            self._crc32 = zlib_ng.crc32(block, self._crc32)

    def finish(self) -> FinishedSpool:
        """Write what is still in memory, so that the checkpoint can name the spool; appending ends here."""
        self.write()
        if not self._exists:
            self._folder.append(self._path, [], exists=False)
            self._exists = True
        return FinishedSpool(self._path, self._size, self._crc32)

    def chunks(self) -> Iterator[SpoolChunk]:
        """Read all messages, from the beginning."""
        offset = 0
        while offset < self._size:
            chunk, offset = self._folder.read(self._path, offset)
            yield chunk
        yield from self._pending

    def remove(self) -> None:
        """Delete it."""
        self._release(self._held)
        self._folder.remove(self._path, self._size, exists=self._exists)


def _size(chunk: SpoolChunk) -> int:
    return len(chunk.data) + _PER_MESSAGE * len(chunk)


def _encode(chunk: SpoolChunk) -> list[bytes]:
    parts: list[bytes | memoryview] = [
        chunk.sizes.astype("<u4").tobytes(),
        np.diff(chunk.lsn, prepend=0).astype("<i8").tobytes(),
        memoryview(chunk.data)[chunk.offset :],
    ]
    content = joined(parts)
    size = len(content)
    if size < _LARGEST_COMPRESSED:
        compressed: bytes = pa.compress(content, "lz4_raw", asbytes=True)
        content = compressed if len(compressed) < size else content
    return [_HEADER.pack(len(chunk), size, len(content)), content]


def _decode(count: int, size: int, stored: bytes) -> SpoolChunk:
    content: bytes = stored
    if len(stored) < size:
        content = pa.decompress(stored, size, "lz4_raw", asbytes=True)
    sizes = np.frombuffer(content, "<u4", count).astype(np.int64)
    lsn: Int64s = np.cumsum(np.frombuffer(content, "<i8", count, 4 * count))
    return SpoolChunk(content, sizes, lsn, _PER_MESSAGE * count)
