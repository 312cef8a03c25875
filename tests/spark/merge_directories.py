"""Directories as the sink leaves them: real formats, a manifest, schema files; and what they merge to."""

import json
import zlib
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
from merge_oracle import Change, Key, Row
from pyspark.sql import DataFrame, SparkSession

from pgcdc_cli.formats.arrow import ArrowFormat
from pgcdc_cli.formats.base import Format
from pgcdc_cli.formats.jsonl import JsonlFormat
from pgcdc_cli.lsn import Lsn
from pgcdc_cli.pgoutput.changes import (
    ChangeBatch,
    FullImage,
    KeyImage,
    Slice,
    Stamp,
    Stamps,
    TruncateChange,
)
from pgcdc_cli.sinks.paths import file_name, table_folder
from pgcdc_cli.spark.pgcdc_merge.delta import DeltaLake
from pgcdc_cli.spark.pgcdc_merge.files import folder_name
from pgcdc_cli.spark.pgcdc_merge.iceberg import IcebergLake
from pgcdc_cli.spark.pgcdc_merge.job import merge
from pgcdc_cli.spark.pgcdc_merge.options import Options
from pgcdc_cli.table import TableSchema

FORMATS: dict[str, Format] = {
    "jsonl": JsonlFormat(),
    "jsonl.gz": JsonlFormat(compression="gzip"),
    "jsonl.zst": JsonlFormat(compression="zstd"),
    "arrow": ArrowFormat(),
    "arrow+zstd": ArrowFormat(compression="zstd"),
}


@dataclass
class Directory:
    """A directory under construction; `segment` adds the next one."""

    path: Path
    encoding: Format
    stream_id: str = "5f1d"
    lines: list[dict[str, Any]] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.path.mkdir(parents=True, exist_ok=True)

    def segment(self, changes: Iterable[tuple[TableSchema, Sequence[Change]]]) -> None:
        """Write each table's changes as a file of the next segment, and the manifest's line."""
        number = len(self.lines) + 1
        written = [self._file(number, table, some) for table, some in changes if some]
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

    def _file(self, number: int, table: TableSchema, changes: Sequence[Change]) -> dict[str, Any]:
        data = self._encode(table, changes)
        first = Lsn(changes[0].commit_lsn)
        path = f"{table_folder(table.schema, table.name)}/{file_name(number, first, 1, self.encoding.suffix)}"
        (self.path / path).parent.mkdir(parents=True, exist_ok=True)
        (self.path / path).write_bytes(data)
        return {
            "table": table.display,
            "path": path,
            "format": self.encoding.name,
            "rows": len(changes),
            "bytes": len(data),
            "crc32": zlib.crc32(data),
            "schema": self._schema_file(table),
        }

    def _schema_file(self, table: TableSchema) -> str:
        path = f"schemas/{table.relation.oid}-{table.fingerprint}.json"
        (self.path / "schemas").mkdir(exist_ok=True)
        (self.path / path).write_text(json.dumps({"format_version": 1, **table.to_json()}))
        return path

    def _encode(self, table: TableSchema, changes: Sequence[Change]) -> bytes:
        """Encode in two frames, so that files have more than one."""
        half = len(changes) // 2
        pieces = [
            piece
            for part in (changes[:half], changes[half:])
            if part
            for piece in self.encoding.encode(_slice(table, part)).pieces
        ]
        frames = [bytes(self.encoding.frame([piece.data])) for piece in pieces]
        return pieces[0].head + b"".join(frames) + self.encoding.tail


def _slice(table: TableSchema, changes: Sequence[Change]) -> Slice:
    batches = tuple(_batch(table, i, change) for i, change in enumerate(changes) if change.op != "T")
    truncates = tuple(
        TruncateChange(table, Stamp(i, Lsn(c.commit_lsn), Lsn(c.commit_lsn), 0, 1, c.seq), False, False)
        for i, c in enumerate(changes)
        if c.op == "T"
    )
    return Slice(None, batches, truncates)


def _batch(table: TableSchema, index: int, change: Change) -> ChangeBatch:
    one = [np.array([n]) for n in (index, change.commit_lsn, change.commit_lsn, 0, 1, change.seq)]
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
    return tuple(v if c.replica_identity else None for c, v in zip(table.columns, columns, strict=True))


def merge_into(spark: SparkSession, directory: Directory, warehouse: Path, **options: Any) -> dict[str, Any]:
    """Run a merge in this process and return its summary."""
    return merge(spark, Options(str(directory.path), str(warehouse), **options))


def table_path(warehouse: Path, table: TableSchema) -> Path:
    return warehouse / folder_name(table.schema) / folder_name(table.name)


def read_table(
    spark: SparkSession, warehouse: Path, table: TableSchema, lake: str = "delta", mode: str = "merge"
) -> DataFrame:
    """Read a lake table, in a session of its own."""
    place = f"file:{warehouse}"
    found = IcebergLake(place) if lake == "iceberg" else DeltaLake(place)
    session = spark.newSession()
    for name, value in found.settings.items():
        session.conf.set(name, value)
    return found.open(session, found.place(table.schema, table.name, mode)).read()


def merged_rows(
    spark: SparkSession, warehouse: Path, table: TableSchema, lake: str = "delta"
) -> dict[Key, Row]:
    """Read a merged table as texts, by key."""
    frame = read_table(spark, warehouse, table, lake)
    names = frame.columns
    assert names == [column.name for column in table.columns]
    texts = frame.selectExpr(*(f"CAST(`{name.replace('`', '``')}` AS STRING)" for name in names))
    rows = [dict(zip(names, row, strict=True)) for row in texts.collect()]
    assert table.key is not None
    found = {tuple(row[name] for name in table.key): row for row in rows}
    assert len(found) == len(rows), "a key occurs twice"
    return found
