"""The finished segments of a pgcdc directory: its manifest, the verification of data files, and their JSON.

A segment is a range of whole transactions across all tables, complete up to its end LSN; segments are
numbered from 1 without gaps.
"""

import json
from collections.abc import Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

from pyspark.sql import Column as Expression
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812 - PySpark's own habit

from .hadoop_files import HadoopFiles, join
from .merge_errors import NO_MANIFEST, MergeError
from .options import FORMAT_VERSION

_NO_LIMITS = dict.fromkeys(("maxStringLen", "maxNumLen", "maxNestingDepth"), str(2**31 - 1))
"""Spark's defaults for untrusted JSON are 20 million, 1000 and 1000; PostgreSQL's values can be longer."""

LOSSES = "_losses"
_OTHERS = frozenset({"_messages", "_transaction", "_heartbeat"})
"""Manifest entries that belong to no table."""

RESTORE = "restore the directory from a copy"
_FORMATS = ("jsonl", "arrow", "debezium")
FILES_AT_ONCE = 8
"""Number of files that this process reads at the same time."""


@dataclass(frozen=True)
class ChangeFile:
    """A finished file of one table: its path in the directory, and its expected size and checksum.

    `schema` is the table's schema file, "" for a file that reports losses. `unchanged`: some rows may lack
    values (unchanged TOAST).
    """

    segment: int
    table: str
    path: str
    format: str
    rows: int
    bytes: int
    crc32: int
    schema: str
    unchanged: bool = True


@dataclass(frozen=True)
class FinishedSegment:
    """A line of the manifest; `end_lsn` is PostgreSQL's text, `losses` report what the files lack."""

    number: int
    stream_id: str
    end_lsn: str
    files: tuple[ChangeFile, ...]
    losses: tuple[ChangeFile, ...] = ()


def read_manifest(files: HadoopFiles, directory: str) -> list[FinishedSegment]:
    """Read all finished segments. Raises MergeError for a damaged line, or a gap in the numbers.

    A last line without a line feed is incomplete: its segment isn't finished.
    """
    path = join(directory, "manifest.jsonl")
    data = files.read(path)
    if data is None:
        message, hint = NO_MANIFEST
        raise MergeError(message.format(path), hint)
    segments = [_segment(path, number, line) for number, line in enumerate(data.split(b"\n")[:-1], 1)]
    for before, after in pairwise(segments):
        if after.number != before.number + 1:
            raise MergeError(
                f'could not read "{path}": segment {after.number} follows segment {before.number}', RESTORE
            )
    return segments


def _segment(path: str, number: int, line: bytes) -> FinishedSegment:
    try:
        data = json.loads(line)
        _check_version(data["format_version"])
        found = [
            _change_file(data["segment"], item) for item in data["files"] if item["table"] not in _OTHERS
        ]
        files = tuple(file for file in found if file.table != LOSSES)
        losses = tuple(file for file in found if file.table == LOSSES)
        return FinishedSegment(int(data["segment"]), data["stream_id"], data["end_lsn"], files, losses)
    except (ValueError, KeyError, TypeError) as error:
        raise MergeError(f'could not read "{path}": line {number} is damaged: {error}', RESTORE) from error


def _check_version(version: object) -> None:
    if version != FORMAT_VERSION:
        raise ValueError(f"its format version is {version}")


def _change_file(segment: int, item: dict[str, Any]) -> ChangeFile:
    in_one_file = item["table"] is None
    alone = item["schema"] is None and not in_one_file and item["table"] != LOSSES
    if item["format"] not in _FORMATS or alone:
        raise MergeError(
            f'could not merge "{item["path"]}": its format is {item["format"]}',
            "stream with --format jsonl, arrow or debezium into another directory",
        )
    if in_one_file:
        raise MergeError(
            f'could not merge "{item["path"]}": it holds all tables in one file',
            "stream with --layout table (the default) into another directory",
        )
    schema = item["schema"] or ""
    return ChangeFile(
        segment,
        item["table"],
        item["path"],
        item["format"],
        item["rows"],
        item["bytes"],
        item["crc32"],
        schema,
        item.get("unchanged", True),
    )


def verify(files: HadoopFiles, directory: str, wanted: Sequence[ChangeFile], remedy: str = RESTORE) -> None:
    """Compare files with the manifest: existence, size, checksum. Raises MergeError for one that differs."""
    with ThreadPoolExecutor(FILES_AT_ONCE) as pool:
        for file, fault in zip(
            wanted, pool.map(lambda file: _fault(files, directory, file), wanted), strict=True
        ):
            if fault is not None:
                raise MergeError(f'could not merge segment {file.segment}: "{file.path}" {fault}', remedy)


def _fault(files: HadoopFiles, directory: str, file: ChangeFile) -> str | None:
    path = join(directory, file.path)
    size = files.size(path)
    if size is None:
        return "is missing"
    if size != file.bytes:
        return f"has {size} bytes, not {file.bytes}"
    checksum = files.crc32(path)
    return None if checksum == file.crc32 else f"has the checksum {checksum}, not {file.crc32}"


def read_json(session: SparkSession, paths: list[str], schema: str) -> DataFrame:
    """Read JSON lines; a string in the schema gets the exact text of any value."""
    reader = session.read.option("mode", "FAILFAST").option("lineSep", "\n").options(**_NO_LIMITS)
    return reader.schema(schema).json(paths)


def parsed_json(text: Expression, schema: str) -> Expression:
    """Parse a JSON text; NULL if it doesn't match the schema."""
    return F.from_json(text, schema, _NO_LIMITS)


def struct_of_texts(names: Iterable[str]) -> str:
    """Make the schema of a JSON object whose members are read as text."""
    fields = ", ".join(f"`{name.replace('`', '``')}`: string" for name in names)
    return f"struct<{fields}>"
