"""The file operations of all sinks, and the open files of one directory.

Each operation is one system call, made by `Disk._os`, so that tests can let any of them fail, stop short or
be the last before a crash. Every failure becomes an error of kind OUTPUT that names the path. Only
BrokenPipeError passes through: the reader of a pipe has gone away, which is not an error.
"""

import ctypes
import errno
import os
import resource
import select
import stat
from collections import OrderedDict
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor, wait
from contextlib import contextmanager, suppress
from functools import partial
from pathlib import Path
from typing import NamedTuple, ParamSpec, TypeVar

from filelock import FileLock, Timeout
from zlib_ng import zlib_ng

from pgcdc_cli.directory.file_names import TEMPORARY
from pgcdc_cli.errors import ErrorKind, PgcdcError

P = ParamSpec("P")
T = TypeVar("T")

MANY = 16
"""Files from which on threads fsync them."""

_AT_ONCE = 8

BEHIND = 256 << 10
"""Bytes from which on a thread writes them, since that takes longer than handing them over."""

_CHUNK = 1 << 20

FILE_MODE = 0o600
"""Only the owner may read files: their rows may come from tables that not everybody may read."""

_sync_file_range = getattr(ctypes.CDLL(None), "sync_file_range", None)
_SYNC_FILE_RANGE_WRITE = 2

_MAKE_ROOM = "only what was written was confirmed: make room (df -h, df -i) and run again"
_LOCK_LOST = "only what was written was confirmed: put the folder back, and run again"
_NAME_LOST = "only what was written was confirmed: put the file back, and run again"
_CHANGED = (
    "only what was written was confirmed: see that only pgcdc writes to it (with logrotate,"
    " no copytruncate), and run again"
)
_CHECK_MODE = "check the owner and mode of the path and its folder, and which user runs pgcdc"
_MISSING = "a folder of the path is missing: create it, or put it back if it was removed"
_HINTS = {
    errno.ENOSPC: _MAKE_ROOM,
    errno.EDQUOT: _MAKE_ROOM,
    errno.EFBIG: "raise the limit on the size of a file (ulimit -f), or write smaller files: -D with"
    " --rotate-size",
    errno.EROFS: "mount the file system for writing, or write to another directory or file",
    errno.EACCES: _CHECK_MODE,
    errno.EPERM: _CHECK_MODE,
    errno.ENOENT: _MISSING,
    errno.ENOTDIR: "a file is in the place of a folder: move it away, or write to another directory or file",
    errno.EISDIR: "a folder is in the place of a file: move it away, or name a file in it",
    errno.EEXIST: "move away what has that name, or write to another directory or file",
    errno.EMFILE: "raise the number of files that a process may open: ulimit -n",
    errno.ENFILE: "raise the number of files that the system may open: fs.file-max",
}
"""Hints by errno; other errors have the default hint of their kind."""


def folder_mode(file_mode: int) -> int:
    """Return the mode for folders of files with this mode: whoever may read the files may enter."""
    return file_mode | (file_mode & 0o444) >> 2


class Stat(NamedTuple):
    """What a path leads to; `inode` is its device and inode, which tell a file whatever its name is."""

    inode: tuple[int, int]
    size: int
    regular: bool
    folder: bool
    links: int


class Disk:
    """The real disk. Paths are the operating system's; methods raise OUTPUT unless they say otherwise.

    New files have `file_mode`, new folders `folder_mode(file_mode)`, both less the umask.
    """

    def __init__(self, file_mode: int = FILE_MODE) -> None:
        self._file_mode = file_mode

    def _os(self, function: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
        return function(*args, **kwargs)

    def lock(self, path: str) -> "HeldLock":
        """Lock a file against other processes. Raises LOCKED if another one holds it."""
        lock = FileLock(path, mode=self._file_mode)
        with _named("lock", path):
            # FileLock would create missing folders.
            Path(path).parent.stat()
            made = not Path(path).exists()
            try:
                lock.acquire(timeout=0)
            except Timeout:
                message = f'could not lock "{path}": another process holds it'
                raise PgcdcError(ErrorKind.LOCKED, message) from None
            return HeldLock(lock, path, made=made)

    def stat(self, path: str | int) -> Stat | None:
        """Stat a path (symbolic links are followed) or descriptor; None if nothing is there."""
        with _named("examine", str(path)):
            try:
                found = self._os(os.stat, path)
            except FileNotFoundError:
                return None
        kind = stat.S_IFMT(found.st_mode)
        regular, folder = kind == stat.S_IFREG, kind == stat.S_IFDIR
        return Stat((found.st_dev, found.st_ino), found.st_size, regular, folder, found.st_nlink)

    def check_named(self, fd: int, path: str) -> Stat:
        """Stat an open file. Raises OUTPUT if it has no name any more: nobody could read what is written."""
        found = self.stat(fd)
        if found is None or not found.links:
            message = f'could not continue: "{path}" was removed, or moved to another file system'
            raise PgcdcError(ErrorKind.OUTPUT, message, hint=_NAME_LOST)
        return found

    def names(self, folder: str) -> list[str]:
        """List a folder, sorted."""
        with _named("list", folder):
            return sorted(self._os(os.listdir, folder))

    def read(self, path: str, offset: int = 0, size: int | None = None) -> bytes:
        """Read `size` bytes from `offset` on, or all of them; fewer where the file ends."""
        return b"".join(self._chunks(path, offset, size))

    def crc32(self, path: str, size: int) -> int:
        """Compute the CRC-32 of the first `size` bytes."""
        crc = 0
        for chunk in self._chunks(path, 0, size):
            crc = zlib_ng.crc32(chunk, crc)
        return crc

    def _chunks(self, path: str, offset: int, size: int | None) -> Iterator[bytes]:
        with _named("read", path):
            fd = self._os(os.open, path, os.O_RDONLY)
            try:
                end = offset + size if size is not None else None
                while chunk := self._os(
                    os.pread, fd, _CHUNK if end is None else min(_CHUNK, end - offset), offset
                ):
                    yield chunk
                    offset += len(chunk)
            finally:
                self._os(os.close, fd)

    def mkdir(self, path: str) -> None:
        with _named("create folder", path):
            self._os(os.mkdir, path, folder_mode(self._file_mode))

    def open(self, path: str, flags: int = 0) -> int:
        """Open for appending, with `os.O_CREAT` and `os.O_EXCL` if given, and return the descriptor."""
        with _named("open", path):
            return self._os(os.open, path, os.O_WRONLY | os.O_APPEND | flags, self._file_mode)

    def _create_anew(self, path: str) -> int:
        """Create a file; one that a crash left there is removed first, since its mode may differ."""
        flags = os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_EXCL
        with _named("open", path):
            try:
                return self._os(os.open, path, flags, self._file_mode)
            except FileExistsError:
                self._os(os.unlink, path)
                return self._os(os.open, path, flags, self._file_mode)

    def write(self, fd: int, path: str, data: bytes | memoryview) -> None:
        """Write all of `data`, in as many calls as it takes; waits while a non-blocking pipe is full."""
        with _named("write", path):
            written = self._write_some(fd, data)
            if written == len(data):
                return
            rest = memoryview(data)[written:]
            while rest:
                rest = rest[self._write_some(fd, rest) :]

    def _write_some(self, fd: int, data: bytes | memoryview) -> int:
        try:
            return self._os(os.write, fd, data)
        except BlockingIOError:
            room = select.poll()
            room.register(fd, select.POLLOUT)
            room.poll()
            return 0

    def write_back(self, fd: int) -> None:
        """Start writing a file's dirty pages to disk, so that less is left to fsync; Linux only.

        This makes nothing durable, and leaves errors to fsync.
        """
        if _sync_file_range is not None:
            # A range of length 0 reaches to the end of the file.
            _sync_file_range(fd, ctypes.c_int64(0), ctypes.c_int64(0), _SYNC_FILE_RANGE_WRITE)

    def fsync(self, fd: int, path: str) -> None:
        with _named("fsync", path):
            self._os(os.fsync, fd)

    def close(self, fd: int, path: str) -> None:
        with _named("close", path):
            self._os(os.close, fd)

    def fsync_folder(self, path: str) -> None:
        """Make creations, renames and removals in a folder durable."""
        with _named("fsync", path):
            fd = self._os(os.open, path, os.O_RDONLY | os.O_DIRECTORY)
            try:
                self._os(os.fsync, fd)
            finally:
                self._os(os.close, fd)

    def truncate(self, fd: int, path: str, size: int) -> None:
        with _named("truncate", path):
            self._os(os.ftruncate, fd, size)

    def rename(self, path: str, new: str) -> None:
        with _named("rename", path):
            self._os(os.rename, path, new)

    def unlink(self, path: str) -> None:
        with _named("remove", path):
            self._os(os.unlink, path)

    def rmdir(self, path: str) -> None:
        with _named("remove", path):
            self._os(os.rmdir, path)

    def replace(self, path: str, data: bytes) -> None:
        """Create or replace a file atomically: write to a temporary name, fsync, rename.

        The caller must fsync the folder.
        """
        temporary = path + TEMPORARY
        fd = self._create_anew(temporary)
        try:
            self.write(fd, temporary, data)
            self.fsync(fd, temporary)
        finally:
            self.close(fd, temporary)
        self.rename(temporary, path)


class HeldLock:
    """The lock on a file, which excludes others only as long as the file keeps its name.

    `made` says that locking created the file.
    """

    def __init__(self, lock: FileLock, path: str, *, made: bool) -> None:
        self._lock = lock
        self._path = path
        self._made = made
        self._inode = _inode(path)

    def check(self) -> None:
        """Raise OUTPUT if the file is gone or replaced: others may write here, or the folder was moved."""
        try:
            found = _inode(self._path)
        except FileNotFoundError:
            found = None
        if found != self._inode:
            message = f'could not continue: the lock "{self._path}" was removed, or its folder was moved'
            raise PgcdcError(ErrorKind.OUTPUT, message, hint=_LOCK_LOST)

    def release(self) -> None:
        self._lock.release()

    def discard(self) -> None:
        """Release the lock, and remove the file if locking created it."""
        with suppress(OSError):
            if self._made and _inode(self._path) == self._inode:
                Path(self._path).unlink()
        self.release()


def _inode(path: str) -> tuple[int, int]:
    found = os.stat(path)  # noqa: PTH116 - a text, as everywhere here
    return found.st_dev, found.st_ino


def fsync_each(fsync: Callable[[T], None], items: Sequence[T]) -> None:
    """Call `fsync` for each item; the first error is raised when no call is running any more.

    Several threads share many items: fsyncs that wait for a file system's journal at the same time are
    satisfied by one write of it, where one after the other would each wait for its own (1,000 files: 0.2 s,
    not 2.7).
    """
    if len(items) < MANY:
        for item in items:
            fsync(item)
        return

    def fsync_some(start: int) -> None:
        for item in items[start::_AT_ONCE]:
            fsync(item)

    with ThreadPoolExecutor(_AT_ONCE) as threads:
        for _ in threads.map(fsync_some, range(_AT_ONCE)):
            pass


def damaged(path: str, reason: str, *, doing: str = "continue from", hint: str | None = None) -> PgcdcError:
    """Make the error for a file that isn't as pgcdc left it."""
    return PgcdcError(ErrorKind.CHECKPOINT, f'could not {doing} "{path}": {reason}', hint=hint)


@contextmanager
def _named(verb: str, path: str) -> Iterator[None]:
    try:
        yield
    except BrokenPipeError:
        raise
    except OSError as error:
        message = f'could not {verb} "{path}": {error.strerror or error}'
        raise PgcdcError(ErrorKind.OUTPUT, message, hint=hint_for(error)) from error


def hint_for(error: OSError) -> str | None:
    """Return a hint that fits the error; None if there is no special one."""
    return _HINTS.get(error.errno or 0)


def _check_size(found: Stat, path: str, size: int) -> None:
    """Raise OUTPUT if a file hasn't the size that we left: others changed it."""
    if found.size != size:
        message = f'could not continue: "{path}" was changed: it has {found.size} bytes, {size} were written'
        raise PgcdcError(ErrorKind.OUTPUT, message, hint=_CHANGED)


def folder_of(path: str) -> str:
    """Return the folder of a relative path; "" for the root itself."""
    return path.rpartition("/")[0]


class OpenFiles:
    """Appends to files under `root`, by relative path. Few are open at a time; changed folders are noted.

    A descriptor that is closed to make room for another is reopened when it is needed. That loses nothing:
    fsync applies to the file, whichever descriptor wrote to it, and Linux reports a failed write-back to the
    next fsync of the file. Only `kept` stays open: others may move that file, and its name leads elsewhere
    then.

    One write at a time may be left to a thread (`append_behind`). Every other operation on files waits for it
    first, and raises its error.
    """

    def __init__(self, disk: Disk, root: str) -> None:
        self.disk = disk
        self.root = root
        self.changed_folders: set[str] = set()
        self.kept: str | None = None
        self._limit = _descriptor_limit()
        self._open: OrderedDict[str, int] = OrderedDict()
        self._writer = ThreadPoolExecutor(1, "pgcdc-writer")
        self._write: Future[None] | None = None

    def full(self, path: str) -> str:
        return f"{self.root}/{path}" if path else self.root

    def stat(self, path: str) -> Stat | None:
        self.wait_for_writes()
        return self.disk.stat(self.full(path))

    def read(self, path: str, offset: int = 0, size: int | None = None) -> bytes:
        """Read `size` bytes from `offset` on, or all of them; fewer where the file ends."""
        self.wait_for_writes()
        return self.disk.read(self.full(path), offset, size)

    def create(self, path: str) -> None:
        """Create an empty file, and its folder if it is missing. Raises OUTPUT if the name is taken."""
        self.make_folder(folder_of(path))
        self._keep(path, os.O_CREAT | os.O_EXCL)

    def make_folder(self, folder: str) -> None:
        """Create a folder directly under the root unless it exists, and note it as changed."""
        if folder and folder not in self.changed_folders and self.stat(folder) is None:
            self.disk.mkdir(self.full(folder))
            self.changed_folders.add("")
        self.changed_folders.add(folder)

    def append(self, path: str, data: bytes | memoryview) -> None:
        self.wait_for_writes()
        self.disk.write(self.descriptor(path), self.full(path), data)

    def append_behind(self, path: str, data: bytes | memoryview, *, write_back: bool = False) -> None:
        """Append data that nobody changes any more; if it is much, return while it is being written.

        With `write_back`, what the file has by then begins to be written to disk.
        """
        self.wait_for_writes()
        append = partial(self._append, self.descriptor(path), self.full(path), data, write_back=write_back)
        if len(data) < BEHIND:
            append()
        else:
            self._write = self._writer.submit(append)

    def _append(self, fd: int, path: str, data: bytes | memoryview, *, write_back: bool) -> None:
        self.disk.write(fd, path, data)
        if write_back:
            self.disk.write_back(fd)

    @property
    def writing(self) -> bool:
        """Whether a write isn't finished, or its error not raised yet."""
        return self._write is not None and not (self._write.done() and self._write.exception() is None)

    def wait_for_writes(self) -> None:
        """Wait for the write that is under way. Raises OUTPUT if it failed."""
        if self._write is not None:
            wait([self._write])
            done, self._write = self._write, None
            done.result()

    def fsync_all(self, sizes: Mapping[str, int]) -> None:
        """Fsync files of these sizes, as many at a time as may be open.

        Raises OUTPUT if one has no name any more, or another size: others wrote to it, or cut it.
        """
        self.wait_for_writes()
        files = list(sizes.items())
        for start in range(0, len(files), self._limit):
            some = files[start : start + self._limit]
            opened = [(self.descriptor(path), self.full(path)) for path, _ in some]
            fsync_each(lambda one: self.disk.fsync(*one), opened)
            for (fd, full), (_, size) in zip(opened, some, strict=True):
                _check_size(self.disk.check_named(fd, full), full, size)

    def check_size(self, path: str, size: int) -> None:
        """Raise OUTPUT if a file hasn't this size; one that is missing is left to the caller."""
        found = self.stat(path)
        if found is not None:
            _check_size(found, self.full(path), size)

    def fsync_folders(self) -> None:
        """Fsync every folder with created or removed entries, and those that callers noted as changed."""
        self.wait_for_writes()
        fsync_each(self.disk.fsync_folder, [self.full(folder) for folder in sorted(self.changed_folders)])
        self.changed_folders.clear()

    def truncate(self, path: str, size: int) -> None:
        self.wait_for_writes()
        self.disk.truncate(self.descriptor(path), self.full(path), size)

    def remove(self, path: str) -> None:
        self.close(path)
        self.disk.unlink(self.full(path))
        self.changed_folders.add(folder_of(path))

    def rename(self, path: str, new: str) -> None:
        """Rename within a folder, which the caller must note as changed."""
        self.close(path)
        self.disk.rename(self.full(path), self.full(new))

    def close(self, path: str) -> None:
        self.wait_for_writes()
        fd = self._open.pop(path, None)
        if fd is not None:
            self.disk.close(fd, self.full(path))

    def close_all(self) -> None:
        """Close every descriptor; the first error is raised after all are closed."""
        failed: PgcdcError | None = None
        steps: list[Callable[[], None]] = [self.wait_for_writes]
        steps += [partial(self.close, path) for path in self._open]
        for step in steps:
            try:
                step()
            except PgcdcError as error:
                failed = failed or error
        if failed is not None:
            raise failed

    def descriptor(self, path: str) -> int:
        """Return a descriptor of an existing file; it stays open until others need the room."""
        if path not in self._open:
            return self._keep(path, 0)
        self._open.move_to_end(path)
        return self._open[path]

    def _keep(self, path: str, flags: int) -> int:
        self.wait_for_writes()
        oldest = next((one for one in self._open if one != self.kept), None)
        if oldest is not None and len(self._open) >= self._limit:
            self.close(oldest)
        fd = self._open[path] = self.disk.open(self.full(path), flags)
        return fd


def _descriptor_limit() -> int:
    """Return a quarter of the process's limit of open files, 8 to 256: others need descriptors, too."""
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return 256 if soft == resource.RLIM_INFINITY else max(8, min(256, soft // 4))
