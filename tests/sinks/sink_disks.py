"""Disks that fail, and one that loses power."""

import errno
import os
import random
import stat
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import PurePath
from threading import Lock
from types import SimpleNamespace
from typing import Any

from pgcdc_cli.directory.disk import Disk, HeldLock


class Crash(BaseException):
    """The process has died."""


class NoLock(HeldLock):
    """A lock for tests in which no other process writes."""

    def __init__(self) -> None:
        pass

    def check(self) -> None:
        pass

    def release(self) -> None:
        pass

    def discard(self) -> None:
        pass


class FailingDisk(Disk):
    """A disk whose `at`-th call fails in one of several ways. After a crash every call fails.

    It doesn't fsync: that makes no difference if only the process dies, and tests would take minutes.
    """

    def __init__(self, at: int = -1, how: str = "before") -> None:
        super().__init__()
        self.at, self.how = at, how
        self.calls: list[str] = []
        self.dead = False
        self.descriptors: set[int] = set()
        self._one_at_a_time = Lock()

    def lock(self, _path: str) -> NoLock:
        return NoLock()

    def _os(self, function: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        with self._one_at_a_time:
            if self.dead:
                raise Crash
            self.calls.append(function.__name__)
            if len(self.calls) - 1 == self.at:
                return self._fail(function, *args, **kwargs)
            return self._do(function, *args, **kwargs)

    def _do(self, function: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        if function is os.fsync:
            return None
        result = function(*args, **kwargs)
        if function is os.open:
            self.descriptors.add(result)
        if function is os.close:
            self.descriptors.discard(args[0])
        return result

    def _fail(self, function: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        if self.how in errno.errorcode.values():
            code = getattr(errno, self.how)
            if function is os.close:
                self._do(function, *args)
            raise OSError(code, os.strerror(code))
        if function is os.write and self.how == "short-and-go-on":
            return os.write(args[0], bytes(args[1])[: max(1, len(args[1]) // 2)])
        if function is os.write and self.how == "short":
            os.write(args[0], bytes(args[1])[: len(args[1]) // 2])
        elif self.how == "after":
            with suppress(OSError):
                self._do(function, *args, **kwargs)
        self.dead = True
        raise Crash

    def bury(self) -> None:
        """Close the descriptors that the system would close when a process dies."""
        for fd in self.descriptors:
            with suppress(OSError):
                os.close(fd)
        self.descriptors.clear()


@dataclass(eq=False)
class Inode:
    number: int
    data: bytearray = field(default_factory=bytearray)
    durable: bytes = b""
    kept: int = 0
    entries: dict[str, "Inode"] | None = None
    durable_entries: dict[str, "Inode"] = field(default_factory=dict)
    unsynced: list[dict[str, "Inode | None"]] = field(default_factory=list)


class PowerDisk(Disk):
    """A disk in memory that may lose what was not fsynced: contents of files, and entries of folders.

    A power cut decides for each change that was not fsynced whether it survives, for folders entry by entry;
    appended bytes may survive in part, or as zeros.
    """

    def __init__(self) -> None:
        super().__init__()
        self._one_at_a_time = Lock()
        self.inodes = 1
        self.root = Inode(1, entries={})
        self.open_files: dict[int, Inode] = {}
        self.next_fd = 10
        self.calls = 0
        self.cut_at = -1
        self.mkdir("/data")
        self.fsync_folder("/")

    def lock(self, _path: str) -> NoLock:
        return NoLock()

    def _os(self, function: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        with self._one_at_a_time:
            if 0 <= self.cut_at <= self.calls:
                raise Crash
            self.calls += 1
            return getattr(self, "_" + function.__name__)(*args, **kwargs)

    def power_cut(self, rng: random.Random) -> None:
        """Lose what was not fsynced, or some of it."""
        self._lose(self.root, rng, set())
        self.open_files.clear()
        self.cut_at = -1

    def _lose(self, inode: Inode, rng: random.Random, seen: set[int]) -> None:
        if id(inode) in seen:
            return
        seen.add(id(inode))
        if inode.entries is None:
            inode.data = bytearray(self._survivor(inode, rng))
            self._harden(inode)
            return
        entries = dict(inode.durable_entries)
        for change in inode.unsynced:
            if rng.random() < 0.5:
                for name, child in change.items():
                    if child is None:
                        entries.pop(name, None)
                    else:
                        entries[name] = child
        inode.entries, inode.durable_entries, inode.unsynced = entries, dict(entries), []
        for child in entries.values():
            self._lose(child, rng, seen)

    @staticmethod
    def _survivor(inode: Inode, rng: random.Random) -> bytes:
        data = bytes(inode.data)
        kept = data[: rng.randint(inode.kept, len(data))]
        return rng.choice([inode.durable, data, kept, kept + bytes(len(data) - len(kept))])

    def _find(self, path: str) -> Inode:
        inode = self.root
        for name in PurePath(path).parts[1:]:
            if inode.entries is None or name not in inode.entries:
                raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), path)
            inode = inode.entries[name]
        return inode

    def _change(self, folder: Inode, **changes: Inode | None) -> None:
        assert folder.entries is not None
        for name, child in changes.items():
            if child is None:
                del folder.entries[name]
            else:
                folder.entries[name] = child
        folder.unsynced.append(changes)

    def _new(self, path: str, entries: dict[str, Inode] | None) -> Inode:
        self.inodes += 1
        inode = Inode(self.inodes, entries=entries)
        self._change(self._find(str(PurePath(path).parent)), **{PurePath(path).name: inode})
        return inode

    def _open(self, path: str, flags: int, _mode: int = 0) -> int:
        try:
            inode = self._find(path)
            if flags & os.O_EXCL:
                raise FileExistsError(errno.EEXIST, os.strerror(errno.EEXIST), path)
        except FileNotFoundError:
            if not flags & os.O_CREAT:
                raise
            inode = self._new(path, None)
        if flags & os.O_TRUNC:
            inode.data.clear()
            inode.kept = 0
        self.next_fd += 1
        self.open_files[self.next_fd] = inode
        return self.next_fd

    def _close(self, fd: int) -> None:
        del self.open_files[fd]

    def _write(self, fd: int, data: bytes) -> int:
        self.open_files[fd].data += data
        return len(data)

    def _pread(self, fd: int, size: int, offset: int) -> bytes:
        return bytes(self.open_files[fd].data[offset : offset + size])

    def _fsync(self, fd: int) -> None:
        inode = self.open_files[fd]
        if inode.entries is not None:
            inode.durable_entries, inode.unsynced = dict(inode.entries), []
        self._harden(inode)

    @staticmethod
    def _harden(inode: Inode) -> None:
        inode.durable, inode.kept = bytes(inode.data), len(inode.data)

    def _ftruncate(self, fd: int, size: int) -> None:
        inode = self.open_files[fd]
        del inode.data[size:]
        inode.kept = min(inode.kept, size)

    def _rename(self, path: str, new: str) -> None:
        inode, folder = self._find(path), self._find(str(PurePath(path).parent))
        self._change(folder, **{PurePath(path).name: None, PurePath(new).name: inode})

    def _unlink(self, path: str) -> None:
        self._find(path)
        self._change(self._find(str(PurePath(path).parent)), **{PurePath(path).name: None})

    _rmdir = _unlink

    def _mkdir(self, path: str, _mode: int = 0) -> None:
        self._new(path, {})

    def _stat(self, path: str | int) -> SimpleNamespace:
        inode = self.open_files[path] if isinstance(path, int) else self._find(path)
        mode = stat.S_IFREG if inode.entries is None else stat.S_IFDIR
        return SimpleNamespace(
            st_dev=1, st_ino=inode.number, st_size=len(inode.data), st_mode=mode, st_nlink=1
        )

    def _listdir(self, path: str) -> list[str]:
        return list(self._find(path).entries or ())
