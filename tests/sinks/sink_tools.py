"""A tiny stream and two tiny formats for the sink tests."""

import json
import random
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from pgcdc_cli.changes.edge import Edge
from pgcdc_cli.changes.table import ReplicaIdentity, TableColumn, TableSchema
from pgcdc_cli.directory.checkpoint import StreamSource
from pgcdc_cli.directory.disk import Disk
from pgcdc_cli.directory.manifest import Segment, read_manifest
from pgcdc_cli.errors import PgcdcError
from pgcdc_cli.formats.interface import Capabilities, EncodedSlice, Format, Piece
from pgcdc_cli.lsn import Lsn
from pgcdc_cli.sinks.checkpointed_sink import CheckpointedSink
from pgcdc_cli.sinks.directory_sink import directory_sink
from pgcdc_cli.sinks.sink import SinkSettings
from pgcdc_cli.types.pg_type import builtin

SOURCE = StreamSource("7300000000000000001", 1, "shop", "s1", ("p1",))
START = Lsn(100)
LACKING = 1
"""The `seq` of the rows that have unchanged TOAST."""


def killed(sink: CheckpointedSink) -> None:
    """Let go of files and lock, and write nothing more, as the end of a killed process does."""
    sink._release()


class Clock:
    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        return self.now


class Lines:
    """Plain JSON lines."""

    name, suffix, tail = "jsonl", ".jsonl", None
    capabilities = Capabilities(("table", "stream"))
    head = b""

    def encode(self, part):
        raise NotImplementedError

    def frame(self, data):
        return data[0] if len(data) == 1 else b"".join(data)

    @classmethod
    def read(cls, content: bytes, *, finished: bool) -> list[bytes]:  # noqa: ARG003 - others ask
        assert content.endswith(b"\n") or not content
        return content.splitlines(keepends=True)


class Framed(Lines):
    """Like compressed text or Arrow: a head, frames that are readable only if complete, a tail."""

    name, suffix = "framed", ".framed"
    capabilities = Capabilities(("table",))
    head = b"HEAD"

    @staticmethod
    def tail(read):
        """The tail depends on the content: it has its length."""
        return b"T%d" % len(read(0, 1 << 30))

    def frame(self, data):
        content = b"".join(data)
        return b"F%06d" % len(content) + content

    @classmethod
    def read(cls, content: bytes, *, finished: bool) -> list[bytes]:
        assert content.startswith(b"HEAD")
        lines, at = [], content.index(b"F")
        while at < len(content):
            if content[at : at + 1] == b"T":
                assert content[at + 1 :] == b"%d" % at
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
    return TableSchema(
        oid,
        schema,
        name,
        ReplicaIdentity.DEFAULT,
        tuple(TableColumn(column, 23, -1, int4, "integer", in_replica_identity=True) for column in columns),
        tuple(columns),
    )


TABLES = {name: make_table(name, oid=16400 + number) for number, name in enumerate("abcde")}


@dataclass(frozen=True)
class Tx:
    """A transaction: rows are (table, text); or where a snapshot found that the table `empty` has none."""

    commit_lsn: Lsn
    end_lsn: Lsn
    rows: tuple[tuple[str, str], ...]
    empty: str | None = None

    def line(self, seq: int) -> bytes:
        table, text = self.rows[seq]
        return json.dumps({"commit": self.commit_lsn, "seq": seq, "t": table, "x": text}).encode() + b"\n"


def transactions(*rows: str | tuple[str, ...], start: int = START) -> list[Tx]:
    """One transaction per argument: a string names a table per letter, one in upper case an empty one."""
    made, lsn = [], start
    for item in rows:
        commit = Lsn(lsn + 10)
        end = Lsn(lsn + 18)
        if isinstance(item, str) and item.isupper():
            made.append(Tx(commit, end, (), item.lower()))
        else:
            made.append(Tx(commit, end, tuple((table, f"v{n}") for n, table in enumerate(item))))
        lsn = end
    return made


TXS = transactions("ab", "a", "b", "ac", "b", "a")


@dataclass
class Feed:
    """Makes slices of transactions, as a stream would."""

    encoding: Any
    heads: dict[str, bytes] = field(default_factory=dict)
    layout: str = "table"

    def slice(self, rows: Sequence[tuple[Tx, int]], edge: Tx | None, count: int = 1) -> EncodedSlice:
        """A slice of rows (transaction, seq), in order; with `edge` it ends at that transaction's edge."""
        groups: dict[str, list[tuple[Tx, int]]] = {}
        for tx, seq in rows:
            groups.setdefault(tx.rows[seq][0] if self.layout == "table" else "", []).append((tx, seq))
        pieces = [self._piece(name, group) for name, group in groups.items()]
        tables = [TABLES[name] for name in groups if name in TABLES]
        if edge is not None and edge.empty is not None:
            tables.append(TABLES[edge.empty])
            at, head = edge.commit_lsn, self.heads.get(edge.empty, self.encoding.head)
            pieces.append(Piece(f"public.{edge.empty}", 0, at, at, b"", head, tables[-1]))
        mark = None if edge is None else Edge(edge.end_lsn, commit_lsn=edge.commit_lsn, transactions=count)
        return EncodedSlice(tuple(pieces), mark, tuple(tables))

    def _piece(self, name: str, group: Sequence[tuple[Tx, int]]) -> Piece:
        return Piece(
            target=f"public.{name}" if name in TABLES else name,
            rows=len(group),
            first_commit_lsn=group[0][0].commit_lsn,
            last_commit_lsn=group[-1][0].commit_lsn,
            data=b"".join(tx.line(seq) for tx, seq in group),
            head=self.heads.get(name, self.encoding.head),
            table=TABLES.get(name),
            unchanged=any(seq == LACKING for _, seq in group),
        )

    def whole(self, *txs: Tx) -> EncodedSlice:
        return self.slice([(tx, seq) for tx in txs for seq in range(len(tx.rows))], txs[-1], len(txs))

    def part(self, tx: Tx, start: int, stop: int | None = None, *, edge: bool = False) -> EncodedSlice:
        """A slice of rows `start` to `stop` of an open transaction; with `edge` it ends there."""
        seqs = range(start, len(tx.rows) if stop is None else stop)
        return self.slice([(tx, seq) for seq in seqs], tx if edge else None)


def tables_of(tx: Tx) -> set[str]:
    return {table for table, _ in tx.rows} | ({tx.empty} if tx.empty else set())


def expected(txs: Sequence[Tx], table: str | None = None) -> list[bytes]:
    return [
        tx.line(seq) for tx in txs for seq, (name, _) in enumerate(tx.rows) if table is None or name == table
    ]


def go_on(sink: CheckpointedSink | Any, feed: Feed, txs: Sequence[Tx], confirmed: Lsn, seed: int = 0) -> None:
    """Start an open sink, write in random slices what a server sends after `confirmed`, and close."""
    sink.start(SOURCE, START, sink.checkpoint)
    assert sink.durable_lsn >= confirmed, "more was confirmed than was durable"
    rng = random.Random(seed)
    for tx in txs:
        if tx.end_lsn <= confirmed or tx.commit_lsn < sink.edge.lsn:
            continue
        at = 0
        while rng.random() < 0.3 and at < len(tx.rows):
            step = rng.randint(1, len(tx.rows) - at)
            sink.write(feed.part(tx, at, at + step))
            at += step
        sink.write(feed.part(tx, at, edge=True))
    sink.close()


class ScriptedRun:
    """A new run in these steps; `confirmed` is the highest position that could have been confirmed."""

    def __init__(self, sink: CheckpointedSink) -> None:
        self.sink = sink
        self.confirmed = START

    def steps(self) -> Iterator[Callable[[], object]]:
        raise NotImplementedError

    def run(self) -> None:
        self.sink.open()
        assert self.sink.checkpoint is None
        self.sink.start(SOURCE, START)
        for step in self.steps():
            step()
            self.confirmed = max(self.confirmed, self.sink.durable_lsn)
        self.sink.close()
        self.confirmed = max(self.confirmed, self.sink.durable_lsn)


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
        """The finished data files."""
        return {
            path: data
            for path, data in self.files().items()
            if path.endswith((".jsonl", ".framed")) and path != "manifest.jsonl"
        }

    def segments(self) -> list[Segment]:
        return read_manifest(f"{self.root}/manifest.jsonl", self.disk)

    def lines(self, encoding: Any) -> dict[str, list[bytes]]:
        """All lines of finished segments by table, in order; also checks them against the manifest."""
        files, lines = self.files(), {}
        listed = []
        for segment in self.segments():
            first, last = [], []
            for file in segment.files:
                listed.append(file.path)
                data = files[file.path]
                rows = encoding.read(data, finished=True)
                assert (len(data), len(rows)) == (file.bytes, file.rows)
                assert self.disk.crc32(f"{self.root}/{file.path}", len(data)) == file.crc32
                assert file.unchanged == any(json.loads(row)["seq"] == LACKING for row in rows)
                # A file that was made for an empty table has its name from there.
                named = Lsn(int(file.path.split("-")[1], 16))
                commits = [Lsn(json.loads(row)["commit"]) for row in rows] or [named]
                first.append(named)
                last.append(commits[-1])
                assert named <= commits[0] == min(commits) <= max(commits) == commits[-1]
                assert Path(file.path).name.split("-")[0] == f"{segment.segment:06d}"
                if file.schema is not None:
                    assert json.loads(files[file.schema])["format_version"] == 1
                lines.setdefault(file.table, []).extend(rows)
            assert segment.first_commit_lsn == min(first)
            assert segment.last_commit_lsn >= max(last)
            assert segment.last_commit_lsn < segment.end_lsn
        assert sorted(listed) == sorted(self.finished())
        return lines


def check_complete(reader: MemoryOrRealReader, encoding: Any, txs: Sequence[Tx]) -> None:
    """Check that the directory has exactly these transactions, each once and in order, and no open file."""
    lines = reader.lines(encoding)
    tables = sorted({table for tx in txs for table in tables_of(tx)})
    assert sorted(lines) == [f"public.{table}" for table in tables]
    for table in tables:
        assert lines[f"public.{table}"] == expected(txs, table)
    assert not [path for path in reader.files() if path.endswith(".partial")]
    assert [s.segment for s in reader.segments()] == list(range(1, len(reader.segments()) + 1))


def make_directory(
    path: str, encoding: Format | Any, disk: Disk | None = None, clock: Clock | None = None, **settings: Any
) -> CheckpointedSink:
    return directory_sink(path, encoding, SinkSettings(**settings), disk, clock)


def started(
    path: Path, encoding: Any = None, clock: Clock | None = None, disk: Disk | None = None, **settings: Any
) -> CheckpointedSink:
    """Open a sink for a new directory."""
    sink = make_directory(str(path), encoding or Lines(), disk, clock, **settings)
    sink.open()
    sink.start(SOURCE, START, sink.checkpoint)
    return sink


def written(path: Path, *txs: Tx) -> CheckpointedSink:
    """A sink for a new directory, in which these transactions are durable."""
    sink = started(path)
    sink.write(Feed(Lines()).whole(*txs))
    sink.flush()
    return sink


def open_sink(path: Path, encoding: Any = None) -> CheckpointedSink:
    """Open a sink for a directory, new or not."""
    sink = make_directory(str(path), encoding or Lines())
    sink.open()
    return sink


def reader(path: Path) -> MemoryOrRealReader:
    return MemoryOrRealReader(Disk(), str(path))


def error_of(call: Callable[[], object]) -> PgcdcError:
    with pytest.raises(PgcdcError) as caught:
        call()
    return caught.value
