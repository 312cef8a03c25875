"""The files of one directory, by relative path: few of them open at a time, folders fsynced when due."""

import os
import resource
from collections import OrderedDict
from collections.abc import Sequence

from pgcdc_cli.directory.disk import Disk, Stat, fsync_each
from pgcdc_cli.errors import PgcdcError


def descriptor_limit() -> int:
    """Give a quarter of what the process may open, at most 256: others need descriptors, too."""
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return 256 if soft == resource.RLIM_INFINITY else max(8, min(256, soft // 4))


def folder_of(path: str) -> str:
    """Give the folder of a relative path; "" for the root itself."""
    return path.rpartition("/")[0]


class OpenFiles:
    """Appends to files under `root`.

    A descriptor that is closed to make room for another is opened again when next needed. Nothing is lost
    by that: fsync works on the file, whoever wrote to it, and Linux reports a failed write-back to the next
    one who asks.
    """

    def __init__(self, disk: Disk, root: str, limit: int | None = None) -> None:
        self.disk = disk
        self.root = root
        self.changed_folders: set[str] = set()
        self._limit = limit or descriptor_limit()
        self._open: OrderedDict[str, int] = OrderedDict()

    def full(self, path: str) -> str:
        return f"{self.root}/{path}" if path else self.root

    def stat(self, path: str) -> Stat | None:
        return self.disk.stat(self.full(path))

    def create(self, path: str) -> None:
        """Make a new empty file, and its folder if need be. OUTPUT if something has that name."""
        self.make_folder(folder_of(path))
        self._keep(path, os.O_CREAT | os.O_EXCL)

    def make_folder(self, folder: str) -> None:
        """Make a folder directly under the root unless it is there; note that its entries change."""
        if folder and folder not in self.changed_folders and self.stat(folder) is None:
            self.disk.mkdir(self.full(folder))
            self.changed_folders.add("")
        self.changed_folders.add(folder)

    def append(self, path: str, data: bytes | memoryview) -> None:
        self.disk.write(self.descriptor(path), self.full(path), data)

    def write_back(self, path: str) -> None:
        self.disk.write_back(self.descriptor(path))

    def fsync(self, path: str) -> None:
        self.disk.fsync(self.descriptor(path), self.full(path))

    def fsync_all(self, paths: Sequence[str]) -> None:
        """Fsync files, as many together as may be open."""
        for start in range(0, len(paths), self._limit):
            some = [(self.descriptor(path), self.full(path)) for path in paths[start : start + self._limit]]
            fsync_each(lambda one: self.disk.fsync(*one), some)

    def fsync_folders(self) -> None:
        """Fsync every folder in which something was made or removed, and those that callers noted."""
        fsync_each(self.disk.fsync_folder, [self.full(folder) for folder in sorted(self.changed_folders)])
        self.changed_folders.clear()

    def truncate(self, path: str, size: int) -> None:
        self.disk.truncate(self.descriptor(path), self.full(path), size)

    def remove(self, path: str) -> None:
        self.close(path)
        self.disk.unlink(self.full(path))
        self.changed_folders.add(folder_of(path))

    def rename(self, path: str, new: str) -> None:
        """Rename within a folder, which is the caller's to note."""
        self.close(path)
        self.disk.rename(self.full(path), self.full(new))

    def close(self, path: str) -> None:
        fd = self._open.pop(path, None)
        if fd is not None:
            self.disk.close(fd, self.full(path))

    def close_all(self) -> None:
        """Close every descriptor; the first error is raised when all are closed."""
        failed: PgcdcError | None = None
        for path in tuple(self._open):
            try:
                self.close(path)
            except PgcdcError as error:
                failed = failed or error
        if failed is not None:
            raise failed

    def descriptor(self, path: str) -> int:
        """Open a file that is there, unless it is open; it stays so until others need the room."""
        if path not in self._open:
            return self._keep(path, 0)
        self._open.move_to_end(path)
        return self._open[path]

    def _keep(self, path: str, flags: int) -> int:
        if len(self._open) >= self._limit:
            self.close(next(iter(self._open)))
        fd = self._open[path] = self.disk.open(self.full(path), flags)
        return fd
