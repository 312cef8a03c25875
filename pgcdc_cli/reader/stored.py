"""The bytes of a stored file, checked while they are read, and decompressed."""

import io
import zlib
from collections.abc import Iterator
from typing import TYPE_CHECKING, Literal, NamedTuple, TypeAlias

import pyarrow as pa

from pgcdc_cli.errors import ErrorKind, PgcdcError
from pgcdc_cli.reader.record import damaged, undecodable

if TYPE_CHECKING:
    from _typeshed import WriteableBuffer

Stored: TypeAlias = io.BufferedReader

_CHUNK = 1 << 16
_GZIP = b"\x1f\x8b"
_ZSTD = b"\x28\xb5\x2f\xfd"


class Promise(NamedTuple):
    """What manifest or checkpoint says of a file's first `size` bytes."""

    size: int
    crc32: int


class CheckedFile(io.RawIOBase):
    """A file up to its promised size, whose checksum is held against the promise when its end is read."""

    def __init__(self, path: str, promise: Promise | None) -> None:
        super().__init__()
        self.path = path
        self._promise = promise
        self._crc = self._position = 0
        self._file = _open(path)

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: "WriteableBuffer") -> int:
        view = memoryview(buffer).cast("B")
        if self._promise is not None:
            view = view[: self._promise.size - self._position]
        try:
            count = self._file.readinto(view) or 0
        except OSError as error:
            raise _unreadable(self.path, error) from error
        self._crc = zlib.crc32(view[:count], self._crc)
        self._position += count
        if count == 0 and self._promise is not None:
            self._check(self._promise)
        return count

    def _check(self, promise: Promise) -> None:
        if self._position != promise.size:
            raise damaged(self.path, f"{self._position} bytes where {promise.size} were written")
        if self._crc != promise.crc32:
            raise damaged(self.path, f"checksum {self._crc:08x} where {promise.crc32:08x} was written")

    def close(self) -> None:
        if not self.closed:
            self._file.close()
        super().close()


def _open(path: str) -> io.FileIO:
    try:
        return io.FileIO(path)
    except FileNotFoundError as error:
        raise PgcdcError(ErrorKind.USAGE, f'could not open "{path}": no such file') from error
    except OSError as error:
        raise _unreadable(path, error) from error


def _unreadable(path: str, error: OSError) -> PgcdcError:
    reason = error.strerror or str(error)
    return PgcdcError(
        ErrorKind.OUTPUT, f'could not read "{path}": {reason}', hint="check the file and its rights"
    )


def open_stored(path: str, promise: Promise | None = None) -> Stored:
    """Open a file's content, decompressed where it begins as gzip or Zstandard frames do."""
    raw: Stored = io.BufferedReader(CheckedFile(path, promise), _CHUNK)
    start = raw.peek(4)[:4]
    if start[:2] == _GZIP:
        return io.BufferedReader(_Decompressed(path, raw, "gzip"), _CHUNK)
    if start == _ZSTD:
        return io.BufferedReader(_Decompressed(path, raw, "zstd"), _CHUNK)
    return raw


class _Decompressed(io.RawIOBase):
    """Several compressed frames as one content; PROTOCOL where they are damaged."""

    def __init__(self, path: str, raw: Stored, codec: Literal["gzip", "zstd"]) -> None:
        super().__init__()
        self._path = path
        self._raw = raw
        self._stream = pa.CompressedInputStream(raw, codec)

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: "WriteableBuffer") -> int:
        view = memoryview(buffer).cast("B")
        try:
            data = self._stream.read(len(view))
        except (OSError, pa.ArrowException) as error:
            raise undecodable(self._path, str(error)) from error
        view[: len(data)] = data
        return len(data)

    def close(self) -> None:
        if not self.closed:
            self._raw.close()
        super().close()


def lines(file: Stored) -> Iterator[bytes]:
    """Lines without their line breaks; what stands behind the last one, too."""
    for line in file:
        yield line.removesuffix(b"\n")
