"""A tiny stream and two tiny formats for the sink tests, and disks that fail."""

import errno
import json
import os
import random
import stat
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import PurePath
from types import SimpleNamespace
from typing import Any

from pgcdc_cli.formats.base import EncodedSlice, Format, Piece
from pgcdc_cli.lsn import Lsn
from pgcdc_cli.pgoutput.changes import Edge
from pgcdc_cli.pgoutput.messages import Relation, RelationColumn, ReplicaIdentity
from pgcdc_cli.sinks.checkpoint import Source
from pgcdc_cli.sinks.core import CheckpointedSink
from pgcdc_cli.sinks.directory import DirectorySettings, DirectorySink
from pgcdc_cli.sinks.disk import Disk
from pgcdc_cli.sinks.manifest import Segment, read_manifest
from pgcdc_cli.table import TableColumn, TableSchema
from pgcdc_cli.types.registry import builtin

SOURCE = Source("7300000000000000001", 1, "shop", "s1", ("p1",))
START = Lsn(100)


class Clock:
    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        return self.now


class Lines:
    """Plain JSON lines."""

    name, suffix, tail = "jsonl", ".jsonl", b""
    head = b""

    def encode(self, part):
        raise NotImplementedError

    def frame(self, data):
        return data[0] if len(data) == 1 else b"".join(data)

    @classmethod
    def read(cls, content: bytes, *, finished: bool) -> list[bytes]:
        assert content.endswith(b"\n") or not (content or finished)
        return content.splitlines(keepends=True)


class Framed(Lines):
    """As compressed text or Arrow: a head, frames that are whole or worthless, a tail."""

    name, suffix, tail = "framed", ".framed", b"T"
    head = b"HEAD"

    def frame(self, data):
        content = b"".join(data)
        return b"F%06d" % len(content) + content

    @classmethod
    def read(cls, content: bytes, *, finished: bool) -> list[bytes]:
        assert content.startswith(b"HEAD")
        lines, at = [], content.index(b"F")
        while at < len(content):
            if content[at : at + 1] == b"T":
                assert at == len(content) - 1
                assert finished
                return lines
            assert content[at : at + 1] == b"F"
            size = int(content[at + 1 : at + 7])
            frame = content[at + 7 : at + 7 + size]
            assert len(frame) == size
            lines += frame.splitlines(keepends=True)
            at += 7 + size
        assert not finished
        return lines


def make_table(
    name: str, schema: str = "public", oid: int = 16400, columns: Sequence[str] = ("id",)
) -> TableSchema:
    int4 = builtin(23, -1)
    assert int4 is not None
    wire = tuple(RelationColumn(column, 23, -1, key=True) for column in columns)
    return TableSchema(
        Relation(oid, schema, name, ReplicaIdentity.DEFAULT, wire),
        tuple(TableColumn(column, int4, "integer", replica_identity=True) for column in columns),
        tuple(columns),
    )


TABLES = {name: make_table(name, oid=16400 + number) for number, name in enumerate("abcd")}


@dataclass(frozen=True)
class Tx:
    """A transaction: rows are (table, head, number)."""

    commit_lsn: Lsn
    end_lsn: Lsn
    rows: tuple[tuple[str, str], ...]

    def line(self, seq: int) -> bytes:
        table, text = self.rows[seq]
        return json.dumps({"commit": self.commit_lsn, "seq": seq, "t": table, "x": text}).encode() + b"\n"


def transactions(*rows: str | tuple[str, ...], start: int = START) -> list[Tx]:
    """One transaction per argument: a string names a table per letter."""
    made, lsn = [], start
    for item in rows:
        commit = Lsn(lsn + 10)
        end = Lsn(lsn + 18)
        made.append(Tx(commit, end, tuple((table, f"v{n}") for n, table in enumerate(item))))
        lsn = end
    return made


@dataclass
class Feed:
    """What a server would send: `pieces` of transactions as slices."""

    encoding: Any
    heads: dict[str, bytes] = field(default_factory=dict)
    layout: str = "table"

    def slice(self, rows: Sequence[tuple[Tx, int]], edge: Tx | None, count: int = 1) -> EncodedSlice:
        """Rows (transaction, seq) in order, up to the edge after `edge` or inside of a transaction."""
        groups: dict[str, list[tuple[Tx, int]]] = {}
        for tx, seq in rows:
            groups.setdefault(tx.rows[seq][0] if self.layout == "table" else "", []).append((tx, seq))
        pieces = tuple(self._piece(name, group) for name, group in groups.items())
        mark = None if edge is None else Edge(edge.commit_lsn, edge.end_lsn, count)
        tables = tuple(TABLES[name] for name in groups if name in TABLES)
        return EncodedSlice(pieces, mark, tables)

    def _piece(self, name: str, group: Sequence[tuple[Tx, int]]) -> Piece:
        return Piece(
            target=f"public.{name}" if name in TABLES else name,
            rows=len(group),
            first_commit_lsn=group[0][0].commit_lsn,
            last_commit_lsn=group[-1][0].commit_lsn,
            data=b"".join(tx.line(seq) for tx, seq in group),
            head=self.heads.get(name, self.encoding.head),
            table=TABLES.get(name),
        )

    def whole(self, *txs: Tx) -> EncodedSlice:
        return self.slice([(tx, seq) for tx in txs for seq in range(len(tx.rows))], txs[-1], len(txs))

    def part(self, tx: Tx, start: int, stop: int | None = None, *, edge: bool = False) -> EncodedSlice:
        """Rows `start` to `stop` of an open transaction; with `edge`, up to its end."""
        seqs = range(start, len(tx.rows) if stop is None else stop)
        return self.slice([(tx, seq) for seq in seqs], tx if edge else None)


def expected(txs: Sequence[Tx], table: str | None = None) -> list[bytes]:
    return [
        tx.line(seq) for tx in txs for seq, (name, _) in enumerate(tx.rows) if table is None or name == table
    ]


def go_on(sink: CheckpointedSink | Any, feed: Feed, txs: Sequence[Tx], confirmed: Lsn, seed: int = 0) -> None:
    """Start an open sink, deliver what a server that has `confirmed` sends, in random slices; close."""
    sink.start(SOURCE, START, sink.checkpoint)
    assert sink.durable_lsn >= confirmed, "more was confirmed than was durable"
    rng = random.Random(seed)
    for tx in txs:
        if tx.end_lsn <= confirmed or tx.commit_lsn < sink.edge_lsn:
            continue
        at = 0
        while rng.random() < 0.3 and at < len(tx.rows):
            step = rng.randint(1, len(tx.rows) - at)
            sink.write(feed.part(tx, at, at + step))
            at += step
        sink.write(feed.part(tx, at, edge=True))
    sink.close()


class MemoryOrRealReader:
    """Reads a directory through a disk, for comparisons."""

    def __init__(self, disk: Disk, root: str) -> None:
        self.disk, self.root = disk, root

    def files(self) -> dict[str, bytes]:
        found = {}
        for name in self.disk.names(self.root):
            path = f"{self.root}/{name}"
            entry = self.disk.stat(path)
            assert entry is not None
            inner = [f"{name}/{child}" for child in self.disk.names(path)] if entry.folder else [name]
            for relative in inner:
                found[relative] = self.disk.read(f"{self.root}/{relative}")
        return found

    def finished(self) -> dict[str, bytes]:
        """Finished data files."""
        return {
            path: data
            for path, data in self.files().items()
            if path.endswith((".jsonl", ".framed")) and path != "manifest.jsonl"
        }

    def segments(self) -> list[Segment]:
        return read_manifest(f"{self.root}/manifest.jsonl", self.disk)

    def lines(self, encoding: Any) -> dict[str, list[bytes]]:
        """All lines of finished segments by table, in order; what the manifest says is checked on the way."""
        files, lines = self.files(), {}
        listed = []
        for segment in self.segments():
            for file in segment.files:
                listed.append(file.path)
                data = files[file.path]
                rows = encoding.read(data, finished=True)
                assert (len(data), len(rows)) == (file.bytes, file.rows)
                assert self.disk.crc32(f"{self.root}/{file.path}", len(data)) == file.crc32
                commits = [Lsn(json.loads(row)["commit"]) for row in rows]
                assert segment.first_commit_lsn <= min(commits) <= max(commits) <= segment.last_commit_lsn
                assert file.path.split("-")[1] == commits[0].hex16()
                if file.schema is not None:
                    assert json.loads(files[file.schema])["format_version"] == 1
                lines.setdefault(file.table, []).extend(rows)
            assert segment.last_commit_lsn < segment.end_lsn
        assert sorted(listed) == sorted(self.finished())
        return lines


def check_complete(reader: MemoryOrRealReader, encoding: Any, txs: Sequence[Tx]) -> None:
    """The directory holds exactly these transactions, each once and in order, and nothing unfinished."""
    lines = reader.lines(encoding)
    tables = sorted({table for tx in txs for table, _ in tx.rows})
    assert sorted(lines) == [f"public.{table}" for table in tables]
    for table in tables:
        assert lines[f"public.{table}"] == expected(txs, table)
    assert not [path for path in reader.files() if path.endswith(".partial")]
    assert [s.segment for s in reader.segments()] == list(range(1, len(reader.segments()) + 1))


class Crash(BaseException):
    """The process is gone."""


class FailingDisk(Disk):
    """A disk whose `at`-th call fails in one of several ways. After a crash nothing works any more.

    `fsync` is left out: it makes no difference to a process that dies alone, and tests would take minutes.
    """

    def __init__(self, at: int = -1, how: str = "before") -> None:
        self.at, self.how = at, how
        self.calls: list[str] = []
        self.dead = False
        self.descriptors: set[int] = set()

    def lock(self, _path: str) -> Callable[[], None]:
        return lambda: None

    def _os(self, function: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
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
        """Close what a dead process would not have open any more."""
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
    """A disk in memory that forgets what was not fsynced: contents by file, names by folder.

    What was not fsynced may survive a power cut or not, each change of a folder by itself; appended bytes may
    survive in part, or as zeros.
    """

    def __init__(self) -> None:
        self.inodes = 1
        self.root = Inode(1, entries={})
        self.open_files: dict[int, Inode] = {}
        self.next_fd = 10
        self.calls = 0
        self.cut_at = -1
        self.mkdir("/data")
        self.fsync_folder("/")

    def lock(self, _path: str) -> Callable[[], None]:
        return lambda: None

    def _os(self, function: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
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

    def _mkdir(self, path: str) -> None:
        self._new(path, {})

    def _stat(self, path: str) -> SimpleNamespace:
        inode = self._find(path)
        mode = stat.S_IFREG if inode.entries is None else stat.S_IFDIR
        return SimpleNamespace(st_dev=1, st_ino=inode.number, st_size=len(inode.data), st_mode=mode)

    def _listdir(self, path: str) -> list[str]:
        return list(self._find(path).entries or ())


def make_directory(
    path: str, encoding: Format | Any, disk: Disk | None = None, clock: Clock | None = None, **settings: Any
) -> DirectorySink:
    return DirectorySink(path, encoding, DirectorySettings(**settings), disk, clock)
