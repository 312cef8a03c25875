"""Directories as the sink leaves them, with real formats, a manifest and schema files; and merges of them."""

import json
import zlib
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
from merge_oracle import Change, Key, Row
from pyspark.sql import DataFrame, SparkSession
from segments import as_stream, finished

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
    TruncateChange,
)
from pgcdc_cli.changes.table import TableSchema
from pgcdc_cli.directory.file_names import file_name, table_folder
from pgcdc_cli.formats.arrow import ArrowFormat
from pgcdc_cli.formats.debezium.connector_config import ConnectorConfig
from pgcdc_cli.formats.debezium.debezium_format import DebeziumFormat
from pgcdc_cli.formats.interface import Format, Piece
from pgcdc_cli.formats.jsonl import JsonlFormat
from pgcdc_cli.lsn import Lsn
from pgcdc_cli.spark.pgcdc_merge.folder_names import folder_name
from pgcdc_cli.spark.pgcdc_merge.job import LAKES, merge
from pgcdc_cli.spark.pgcdc_merge.lake import new_session
from pgcdc_cli.spark.pgcdc_merge.options import MergeOptions
from pgcdc_cli.spark.warehouse import read_record

EXACT = ConnectorConfig(
    topic_prefix="shop",
    skipped_operations=(),
    decimal_handling_mode="string",
    interval_handling_mode="string",
    include_unknown_datatypes=True,
    key_converter_schemas_enable=False,
    value_converter_schemas_enable=False,
)
"""A configuration whose events hold everything that a table needs."""

FORMATS: dict[str, Format] = {
    "jsonl": JsonlFormat(),
    "jsonl.gz": JsonlFormat(compression="gzip"),
    "jsonl.zst": JsonlFormat(compression="zstd"),
    "arrow": ArrowFormat(),
    "arrow+zstd": ArrowFormat(compression="zstd"),
    "debezium": DebeziumFormat(EXACT),
    "debezium.zst": DebeziumFormat(
        replace(EXACT, value_converter_schemas_enable=True), compression="zstd", values_only=True
    ),
}


@dataclass
class Directory:
    """A directory under construction; `segment` adds the next segment.

    Each table has a history of its own, as if no transaction had changed several.
    """

    path: Path
    encoding: Format
    stream_id: str = "5f1d"
    lines: list[dict[str, Any]] = field(default_factory=list)
    last_commits: dict[str, LastCommit] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.path.mkdir(parents=True, exist_ok=True)

    def segment(self, changes: Iterable[tuple[TableSchema, Sequence[Change]]]) -> None:
        """Write each table's changes as a file of the next segment, and add the manifest's line."""
        number = self.lines[-1]["segment"] + 1 if self.lines else 1
        written = [file for table, some in changes if some for file in self._files(number, table, some)]
        last = max((change.commit_lsn for _, some in changes for change in some), default=number)
        self.lines.append(
            {
                "segment": number,
                "stream_id": self.stream_id,
                "first_commit_lsn": "0/1",
                "last_commit_lsn": str(Lsn(last)),
                "end_lsn": str(Lsn(last + 8)),
                "files": written,
                "format_version": 1,
            }
        )
        self.write_manifest()

    def write_manifest(self) -> None:
        (self.path / "manifest.jsonl").write_text("".join(json.dumps(line) + "\n" for line in self.lines))

    def _files(self, number: int, table: TableSchema, changes: Sequence[Change]) -> list[dict[str, Any]]:
        """Write one file for each target and table version, of two frames where it has rows for two."""
        found: dict[str, list[Piece]] = {}
        for piece in self._pieces(table, changes):
            found.setdefault(piece.target, []).append(piece)
        return [self._file(number, pieces) for pieces in found.values()]

    def _file(self, number: int, pieces: Sequence[Piece]) -> dict[str, Any]:
        first, table = pieces[0].first_commit_lsn, pieces[0].table
        folder = pieces[0].target if table is None else table_folder(table.schema, table.name)
        # A file that belongs to no table is for all of them, in the order of their names.
        part = (
            1 if table is not None else sum(folder in str(path) for path in self.path.rglob("*.jsonl*")) + 1
        )
        path = f"{folder}/{file_name(number, first, part, self.encoding.suffix)}"
        frames = [bytes(self.encoding.frame([piece.data])) for piece in pieces]
        data = finished(pieces[0].head + b"".join(frames), self.encoding)
        if self.encoding.name == "arrow" and number % 3 == 0:
            data = as_stream(data)
        (self.path / path).parent.mkdir(parents=True, exist_ok=True)
        (self.path / path).write_bytes(data)
        return {
            "table": pieces[0].target,
            "path": path,
            "format": self.encoding.name,
            "rows": sum(piece.rows for piece in pieces),
            "bytes": len(data),
            "crc32": zlib.crc32(data),
            "schema": None if table is None else self._schema_file(table),
            "unchanged": any(piece.unchanged for piece in pieces),
        }

    def _schema_file(self, table: TableSchema) -> str:
        path = f"schemas/{table.oid}-{table.fingerprint}.json"
        (self.path / "schemas").mkdir(exist_ok=True)
        (self.path / path).write_text(json.dumps({"format_version": 1, **table.to_json()}))
        return path

    def _pieces(self, table: TableSchema, changes: Sequence[Change]) -> Iterator[Piece]:
        """Encode the changes in two slices, which may divide a transaction."""
        if self.encoding.restartable is not None:
            self.encoding.restartable.restart("shop", self.last_commits.get(table.display))
        self.last_commits[table.display] = LastCommit(Lsn(changes[-1].commit_lsn), 0)
        half = len(changes) // 2
        for first, last in ((0, half), (half, len(changes))):
            if first < last:
                yield from self.encoding.encode(_slice(table, changes, first, last)).pieces


def _slice(table: TableSchema, changes: Sequence[Change], first: int, last: int) -> Slice:
    """Make a slice of `changes[first:last]`, with the commits of the transactions that end in it."""
    some = list(enumerate(changes))[first:last]
    batches = tuple(_batch(table, i, change) for i, change in some if change.op != "T")
    truncates = tuple(TruncateChange(table, _stamp(2 * i, c), False, False) for i, c in some if c.op == "T")
    ends = [
        TransactionBoundary("C", _stamp(2 * i + 1, c, Lsn(c.commit_lsn)))
        for i, c in some
        if i + 1 == len(changes) or changes[i + 1].commit_lsn != c.commit_lsn
    ]
    return Slice(None, batches, truncates, boundaries=(Boundaries.of(ends),))


def _stamp(index: int, change: Change, lsn: Lsn | None = None) -> Stamp:
    return Stamp(
        index, Lsn(_position(change)) if lsn is None else lsn, Lsn(change.commit_lsn), 0, 1, change.seq
    )


def _position(change: Change) -> int:
    """A change's LSN: not in commit order, since transactions overlap."""
    return change.commit_lsn // (2 + change.commit_lsn % 3) + change.seq


def _batch(table: TableSchema, index: int, change: Change) -> ChangeBatch:
    stamp = (2 * index, _position(change), change.commit_lsn, 0, 1, change.seq)
    one = [np.array([n]) for n in stamp]
    new = None if change.new is None else FullImage(_columns(table, change.new), _masks(table, change))
    old: FullImage | KeyImage | None = None
    if change.old is not None:
        columns = _columns(table, change.old)
        full = FullImage(columns, tuple(None for _ in columns))
        old = full if change.old_full else KeyImage(_key_only(table, columns))
    return ChangeBatch(table, change.op, Stamps(*one), new, old)


def _columns(table: TableSchema, row: Row) -> tuple[pa.BinaryArray, ...]:
    texts = [row.get(column.name) for column in table.columns]
    return tuple(pa.array([None if text is None else text.encode()], pa.binary()) for text in texts)


def _masks(table: TableSchema, change: Change) -> tuple[Any, ...]:
    return tuple(np.array([True]) if c.name in change.unchanged else None for c in table.columns)


def _key_only(table: TableSchema, columns: tuple[pa.BinaryArray, ...]) -> tuple[pa.BinaryArray | None, ...]:
    return tuple(v if c.in_replica_identity else None for c, v in zip(table.columns, columns, strict=True))


def merge_into(spark: SparkSession, directory: Directory, warehouse: Path, **options: Any) -> dict[str, Any]:
    """Run a merge in this process and return its summary."""
    return merge(spark, MergeOptions(str(directory.path), str(warehouse), **options))


def table_path(warehouse: Path, table: TableSchema) -> Path:
    return warehouse / folder_name(table.schema) / folder_name(table.name)


def read_table(
    spark: SparkSession, warehouse: Path, table: TableSchema, lake: str = "delta", mode: str = "merge"
) -> DataFrame:
    """Read a lake table in a new session."""
    found = LAKES[lake](f"file:{warehouse}")
    paths = {(row.table, row.mode): row.path for row in read_record(str(warehouse)) or ()}
    known = paths.get((table.display, mode))
    path = found.location(table.schema, table.name, mode) if known is None else found.known_location(known)
    return found.open(new_session(spark, found), path).read()


def merged_rows(
    spark: SparkSession, warehouse: Path, table: TableSchema, lake: str = "delta"
) -> dict[Key, Row]:
    """Read a merged table's rows by key, each value as text."""
    frame = read_table(spark, warehouse, table, lake)
    names = frame.columns
    assert names == [column.name for column in table.columns]
    texts = frame.selectExpr(*(f"CAST(`{name.replace('`', '``')}` AS STRING)" for name in names))
    rows = [dict(zip(names, row, strict=True)) for row in texts.collect()]
    assert table.key is not None
    found = {tuple(row[name] for name in table.key): row for row in rows}
    assert len(found) == len(rows), "a key occurs twice"
    return found
