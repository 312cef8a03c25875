"""Directories for the Spark benchmark: a made-up history, in files like those of `pgcdc stream -D`."""

import json
import os
import zlib
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from pgcdc_cli.changes.edge import LastCommit
from pgcdc_cli.changes.slice import (
    Boundaries,
    ChangeBatch,
    FullImage,
    KeyImage,
    Slice,
    Stamp,
    Stamps,
    TransactionBoundary,
)
from pgcdc_cli.changes.table import ReplicaIdentity, TableColumn, TableSchema
from pgcdc_cli.directory.file_names import file_name, table_folder
from pgcdc_cli.formats.arrow import ArrowFormat
from pgcdc_cli.formats.debezium.connector_config import ConnectorConfig
from pgcdc_cli.formats.debezium.debezium_format import DebeziumFormat
from pgcdc_cli.formats.interface import Format
from pgcdc_cli.formats.jsonl import JsonlFormat
from pgcdc_cli.lsn import Lsn
from pgcdc_cli.types.pg_type import builtin

COLUMNS = {"id": (20, -1), "a": (23, -1), "b": (25, -1), "c": (1700, (12 << 16 | 2) + 4), "ts": (1184, -1)}
"""id bigint PRIMARY KEY, a int, b text, c numeric(12,2), ts timestamptz: as in stream.py."""

_EXACT = ConnectorConfig(
    topic_prefix="pg",
    skipped_operations=(),
    decimal_handling_mode="string",
    key_converter_schemas_enable=False,
    value_converter_schemas_enable=False,
)
FORMATS = {
    "jsonl": JsonlFormat,
    "jsonl.zst": lambda: JsonlFormat(compression="zstd"),
    "arrow": ArrowFormat,
    "debezium": lambda: DebeziumFormat(_EXACT),
}
_TRANSACTION = 100
_TO_COMMIT = 64 * _TRANSACTION - 64
_SLICE = 100 * _TRANSACTION
_DELETED = 0.1
_EPOCH = np.datetime64("2024-01-01T00:00:00.000001")


@dataclass(frozen=True)
class Changes:
    """What happens to one table, in order: an operation and an id for each change."""

    operations: np.ndarray
    ids: np.ndarray

    def __len__(self) -> int:
        return len(self.ids)

    def part(self, number: int, of: int) -> "Changes":
        """Take one of so many parts, which begins and ends at an edge of a transaction."""
        first, last = (len(self) * n // of // _TRANSACTION * _TRANSACTION for n in (number, number + 1))
        last = len(self) if number + 1 == of else last
        return Changes(self.operations[first:last], self.ids[first:last])


def rows(count: int) -> Changes:
    """A snapshot's rows."""
    return Changes(np.full(count, "R"), np.arange(count))


def changes(count: int, keys: int, existing: int, seed: int = 1) -> Changes:
    """Make inserts, updates and deletes of random keys that fit each row's state; one in ten is a delete."""
    random = np.random.default_rng(seed)
    ids = random.integers(0, keys, count)
    order = np.argsort(ids, kind="stable")
    first = np.diff(ids[order], prepend=-1) != 0
    born = first & (ids[order] >= existing)
    wanted = (random.random(count) < _DELETED) & ~born
    place = np.arange(count)
    begins = wanted & (first | ~np.roll(wanted, 1))
    deletes = wanted & ((place - np.maximum.accumulate(np.where(begins, place, 0))) % 2 == 0)
    inserts = born | (np.roll(deletes, 1) & ~first)
    operations = np.full(count, "U")
    operations[order] = np.where(deletes, "D", np.where(inserts, "I", "U"))
    return Changes(operations, ids)


def table(name: str = "bench", oid: int = 16384) -> TableSchema:
    """Describe a table as its schema file does."""
    types = {column: builtin(*told) for column, told in COLUMNS.items()}
    described = tuple(TableColumn.of(n, t, in_replica_identity=n == "id") for n, t in types.items())
    return TableSchema(oid, "public", name, ReplicaIdentity.DEFAULT, described, ("id",))


@dataclass
class Directory:
    """A directory to which `segment` adds the next segment."""

    path: Path
    encoding: Format
    number: int = 0
    lsn: int = 1 << 24
    last: dict[str, LastCommit] = field(default_factory=dict)

    def __post_init__(self) -> None:
        (self.path / "schemas").mkdir(parents=True)

    def segment(self, changed: Iterable[tuple[TableSchema, Changes]]) -> None:
        """Write one file for each table, and the manifest's line."""
        self.number += 1
        files = [self._file(table, some) for table, some in changed]
        line = {"segment": self.number, "stream_id": "5f1d", "files": files, "format_version": 1}
        lsns = dict.fromkeys(("first_commit_lsn", "last_commit_lsn", "end_lsn"), str(Lsn(self.lsn)))
        with (self.path / "manifest.jsonl").open("a") as manifest:
            manifest.write(json.dumps(line | lsns) + "\n")

    def _file(self, table: TableSchema, some: Changes) -> dict[str, object]:
        path = f"{table_folder('public', table.name)}/"
        path += file_name(self.number, Lsn(self.lsn + _TO_COMMIT), 1, self.encoding.suffix)
        (self.path / path).parent.mkdir(exist_ok=True)
        described = table
        with (self.path / path).open("w+b") as file:
            for told, data in self._encoded(table, some):
                described = told
                file.write(data)
            file.flush()
            if self.encoding.tail is not None:
                file.write(self.encoding.tail(lambda at, size: os.pread(file.fileno(), size, at)))
        size, checksum = _size_and_checksum(self.path / path)
        schema = f"schemas/{described.oid}-{described.fingerprint}.json"
        (self.path / schema).write_text(json.dumps({"format_version": 1, **described.to_json()}))
        facts = {"table": table.display, "path": path, "format": self.encoding.name, "rows": len(some)}
        return {**facts, "bytes": size, "crc32": checksum, "schema": schema, "unchanged": False}

    def _encoded(self, table: TableSchema, some: Changes) -> Iterator[tuple[TableSchema, bytes]]:
        """Yield the file's bytes without its end, and the table as the format describes it."""
        if self.encoding.restartable is not None:
            self.encoding.restartable.restart("pg", self.last.get(table.display))
        for first in range(0, len(some), _SLICE):
            part = Changes(some.operations[first : first + _SLICE], some.ids[first : first + _SLICE])
            (piece,) = self.encoding.encode(self._slice(table, part)).pieces
            head = bytes(piece.head) if first == 0 else b""
            yield piece.table, head + bytes(self.encoding.frame([piece.data]))
        self.last[table.display] = LastCommit(Lsn(self.lsn), 0)

    def _slice(self, table: TableSchema, part: Changes) -> Slice:
        """Stamp whole transactions, each one after the last."""
        number = np.arange(len(part))
        begun = self.lsn + 64 * _TRANSACTION * (number // _TRANSACTION)
        commits = begun + _TO_COMMIT
        lsns = begun + 64 * (number % _TRANSACTION)
        micros = _micros(commits)
        stamps = (2 * number, lsns, commits, micros, begun >> 6, number % _TRANSACTION)
        values = _values(part, self.lsn)
        batches = tuple(_batch(table, part, values, stamps, op) for op in np.unique(part.operations))
        ends = [*np.flatnonzero(np.diff(commits)), len(part) - 1]
        commit_ends = [
            TransactionBoundary("C", _end(2 * n + 1, int(commits[n]), int(micros[n]))) for n in ends
        ]
        self.lsn = int(commits[-1]) + 64
        return Slice(None, batches, boundaries=(Boundaries.of(commit_ends),))


def _size_and_checksum(path: Path) -> tuple[int, int]:
    size = checksum = 0
    with path.open("rb") as file:
        while data := file.read(1 << 20):
            size, checksum = size + len(data), zlib.crc32(data, checksum)
    return size, checksum


def _micros(lsns: np.ndarray) -> np.ndarray:
    return _EPOCH.astype("int64") + lsns


def _end(index: int, commit: int, micros: int) -> Stamp:
    return Stamp(index, Lsn(commit + 32), Lsn(commit), micros, commit >> 6, _TRANSACTION)


def _values(part: Changes, salt: int) -> list[pa.Array]:
    """Rows as PostgreSQL's text; `salt` makes the values of each version different."""
    ids = pa.array(part.ids).cast("string")
    versions = pa.array(np.arange(salt, salt + len(part))).cast("string")
    notes = pc.binary_join_element_wise("row number", ids, versions, " ")
    cents = pa.array(part.ids % 100_000 / 100).cast("string")
    times = pa.array(_EPOCH + part.ids * np.timedelta64(1_001_234, "us")).cast("string")
    texts = [ids, pa.array(part.ids % 1000).cast("string"), notes, cents]
    return [text.cast("binary") for text in (*texts, pc.binary_join_element_wise(times, "+00", ""))]


def _batch(
    table: TableSchema, part: Changes, values: list[pa.Array], stamps: tuple[np.ndarray, ...], op: str
) -> ChangeBatch:
    """Gather the rows of one operation."""
    which = np.flatnonzero(part.operations == op)
    columns = tuple(value.take(pa.array(which)) for value in values)
    nothing = (None,) * len(columns)
    new = None if op == "D" else FullImage(columns, nothing)
    old = KeyImage((columns[0], *nothing[1:])) if op == "D" else None
    return ChangeBatch(table, str(op), Stamps(*(stamp[which] for stamp in stamps)), new, old)
