"""The content of a directory of `pgcdc stream -D`, according to its manifest."""

import json
import zlib
from pathlib import Path
from typing import Any

import pyarrow as pa

from pgcdc_cli.formats.arrow import END_OF_STREAM, MAGIC
from pgcdc_cli.formats.interface import FileFormat


def finished(data: bytes, form: FileFormat) -> bytes:
    """A file's head and frames, and the tail if its format has one."""
    return data if form.tail is None else data + form.tail(lambda at, size: data[at : at + size])


def as_stream(arrow_file: bytes) -> bytes:
    """Convert a finished Arrow file to the Arrow stream that earlier versions wrote."""
    return arrow_file[len(MAGIC) : arrow_file.rindex(END_OF_STREAM)] + END_OF_STREAM


def manifest(directory: Path) -> list[dict[str, Any]]:
    """The manifest's lines, checked: no gap in the numbers, and every file is there and unchanged.

    Empty before the first segment is finished, when there is no manifest.
    """
    path = directory / "manifest.jsonl"
    segments = [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []
    assert [segment["segment"] for segment in segments] == list(range(1, len(segments) + 1))
    for segment in segments:
        for file in segment["files"]:
            data = (directory / file["path"]).read_bytes()
            assert (len(data), zlib.crc32(data)) == (file["bytes"], file["crc32"])
    return segments


def contents(directory: Path) -> dict[str | None, list[object]]:
    """All lines of the finished segments by table, in order; before Arrow rows, their schema if it is new."""
    found: dict[str | None, list[object]] = {}
    schemas: dict[str | None, pa.Schema] = {}
    for segment in manifest(directory):
        for file in segment["files"]:
            table = file["table"]
            schema, rows = _rows(directory / file["path"])
            if schema is not None and schema != schemas.get(table):
                schemas[table] = schema
                found.setdefault(table, []).append(schema)
            found.setdefault(table, []).extend(rows)
    return found


def _rows(path: Path) -> tuple[pa.Schema | None, list[Any]]:
    if path.suffix == ".arrow":
        with pa.ipc.open_file(path) as reader:
            return reader.schema, reader.read_all().to_pylist()
    with pa.input_stream(path, compression="detect") as file:
        return None, file.read().splitlines()
