"""A stored file: its bytes, verified and decompressed while they are read, and its table's schema file."""

import glob
import io
import json
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Literal, NamedTuple, TypeAlias

import pyarrow as pa
from zlib_ng import zlib_ng

from pgcdc_cli.changes.table import TableSchema
from pgcdc_cli.directory.disk import hint_for
from pgcdc_cli.directory.file_names import PARTIAL, SCHEMAS
from pgcdc_cli.errors import ErrorKind, PgcdcError

if TYPE_CHECKING:
    from _typeshed import WriteableBuffer

Order: TypeAlias = tuple[int, int, int]
"""Place in the order of changes: commit LSN; 0 for snapshot rows, else 1; number in the transaction."""


class Promise(NamedTuple):
    """Size and checksum of a file's first `size` bytes, from the manifest or the checkpoint.

    `whole` says that the file has no more: it is finished.
    """

    size: int
    crc32: int
    whole: bool = True


class StoredFile(NamedTuple):
    """A file to read.

    The rest comes from the manifest or checkpoint, and is None for a single file: `table` (also None if the
    file holds several tables), `promise`, and the path of the table's schema file.
    """

    path: str
    table: str | None = None
    promise: Promise | None = None
    schema: Path | None = None


_CHUNK = 1 << 16
_GZIP = b"\x1f\x8b"
_ZSTD = b"\x28\xb5\x2f\xfd"


def open_stored(file: StoredFile) -> io.BufferedReader:
    """Open a file's content; gzip and Zstandard, recognised by their first bytes, are decompressed."""
    opened = _open(file.path) if file.promise is None else _open_promised(file.path)
    raw: io.BufferedReader = io.BufferedReader(_CheckedFile(file.path, opened, file.promise), _CHUNK)
    start = raw.peek(4)[:4]
    if start[:2] == _GZIP:
        return io.BufferedReader(_Decompressed(file.path, raw, "gzip"), _CHUNK)
    if start == _ZSTD:
        return io.BufferedReader(_Decompressed(file.path, raw, "zstd"), _CHUNK)
    return raw


def verify(file: StoredFile) -> None:
    """Read a file and its schema file whole. Raises PgcdcError (CHECKPOINT) if they aren't as written."""
    with _CheckedFile(file.path, _open_promised(file.path), file.promise) as content:
        chunk = bytearray(_CHUNK)
        while content.readinto(chunk):
            pass
    if file.schema is not None:
        read_schema(file.schema)


class _CheckedFile(io.RawIOBase):
    """A file up to its promised size; size and checksum are verified when its end is read."""

    def __init__(self, path: str, file: io.FileIO, promise: Promise | None) -> None:
        super().__init__()
        self.path = path
        self._file = file
        self._promise = promise
        self._crc = self._position = 0

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: "WriteableBuffer") -> int:
        view = memoryview(buffer).cast("B")
        if self._promise is not None:
            view = view[: self._promise.size - self._position]
        try:
            count = self._file.readinto(view) or 0
        except OSError as error:
            raise not_readable(self.path, error) from error
        self._crc = zlib_ng.crc32(view[:count], self._crc)
        self._position += count
        if count == 0 and self._promise is not None:
            self._check(self._promise)
        return count

    def _check(self, promise: Promise) -> None:
        if self._position != promise.size:
            raise unreadable(self.path, f"it has {self._position} bytes, but {promise.size} were written")
        if self._crc != promise.crc32:
            raise unreadable(
                self.path, f"its checksum is {self._crc:08x}, but {promise.crc32:08x} was written"
            )

    def close(self) -> None:
        if not self.closed:
            self._file.close()
        super().close()


def _open(path: str) -> io.FileIO:
    try:
        return io.FileIO(path)
    except FileNotFoundError as error:
        hint = "give a directory that pgcdc stream -D writes, or a file in it or on its own"
        raise PgcdcError(ErrorKind.USAGE, f'could not open "{path}": no such file', hint=hint) from error
    except OSError as error:
        raise not_readable(path, error) from error


def _open_promised(path: str) -> io.FileIO:
    """Open a file, under its final name if a rotation has renamed it meanwhile."""
    try:
        return io.FileIO(path)
    except FileNotFoundError as error:
        if path.endswith(PARTIAL):
            return _open_promised(path.removesuffix(PARTIAL))
        raise unreadable(path, error.strerror or str(error)) from error
    except OSError as error:
        raise not_readable(path, error) from error


def not_readable(path: str, error: OSError) -> PgcdcError:
    """Make the error for a file that the system doesn't let us read: it needn't be damaged."""
    reason = error.strerror or str(error)
    return PgcdcError(
        ErrorKind.OUTPUT,
        f'could not read "{path}": {reason}',
        hint=hint_for(error) or "check the file and its disk",
    )


class _Decompressed(io.RawIOBase):
    """Concatenated compressed frames as one content. Raises PgcdcError (PROTOCOL) for damaged ones."""

    def __init__(self, path: str, raw: io.BufferedReader, codec: Literal["gzip", "zstd"]) -> None:
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


def unreadable(path: str, reason: str) -> PgcdcError:
    """Make the error for a file that isn't as it was when it was finished."""
    return PgcdcError(
        ErrorKind.CHECKPOINT,
        f'could not read "{path}": {reason}',
        hint="the file was damaged or changed after it was written: restore it from a copy",
    )


def undecodable(path: str, reason: str) -> PgcdcError:
    """Make the error for a file that neither pgcdc nor pg_recvlogical wrote."""
    return PgcdcError(
        ErrorKind.PROTOCOL,
        f'could not read "{path}": {reason}',
        hint="pgcdc shows its own files, of all formats, and what pg_recvlogical captured of pgoutput",
    )


@cache
def find_schema(directory: Path, fingerprint: str) -> TableSchema | None:
    """Read `schemas/OID-FINGERPRINT.json`, if there is one. Raises PgcdcError (CHECKPOINT) if damaged."""
    path = next((directory / SCHEMAS).glob(f"*-{glob.escape(fingerprint)}.json"), None)
    return None if path is None else read_schema(path)


@cache
def read_schema(path: Path) -> TableSchema:
    """Read a schema file. Raises PgcdcError (CHECKPOINT) if it isn't as it was written."""
    try:
        schema = TableSchema.from_json(json.loads(path.read_bytes()))
        unchanged = path.stem.endswith(f"-{schema.fingerprint}")
    except FileNotFoundError as error:
        raise unreadable(str(path), error.strerror or str(error)) from error
    except OSError as error:
        raise not_readable(str(path), error) from error
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        raise unreadable(str(path), f"it is not a schema file of pgcdc: {error!r}") from error
    if not unchanged:
        raise unreadable(str(path), "its content doesn't have the fingerprint in its name")
    return schema
