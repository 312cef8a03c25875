"""A directory that `pgcdc stream -D` writes: its finished segments in order; or one file of any kind."""

import heapq
import resource
from collections.abc import Callable, Iterable, Iterator
from itertools import chain, groupby
from pathlib import Path
from typing import NamedTuple

from pgcdc_cli.directory import manifest
from pgcdc_cli.directory.checkpoint import read_checkpoint
from pgcdc_cli.directory.disk import Disk
from pgcdc_cli.directory.file_names import CHECKPOINT, MANIFEST, PARTIAL, parse_file_name
from pgcdc_cli.errors import ErrorKind, PgcdcError
from pgcdc_cli.reader.arrow_reader import read_arrow
from pgcdc_cli.reader.capture_reader import TAGS, read_capture
from pgcdc_cli.reader.jsonl_reader import read_json_lines
from pgcdc_cli.reader.stored_file import (
    Promise,
    Record,
    Stored,
    TableFilter,
    damaged,
    open_stored,
    undecodable,
)

_ARROW = b"\xff\xff\xff\xff"
"""Begins a message of an IPC stream ("Encapsulated message format" in Arrow's "Columnar Format")."""


def read_file(path: str, promise: Promise | None = None) -> Iterator[Record]:
    """Read JSON lines (compressed or not), an Arrow stream, or raw pgoutput; nothing from an empty file.

    `promise` is what the file must be. Raises PgcdcError: PROTOCOL for a file of another kind or with damaged
    content, CHECKPOINT where it isn't as promised, USAGE where it isn't there.
    """
    with open_stored(path, promise) as file:
        start = _peek(file)
        if start:
            yield from _reader(path, start)(path, file)


def _peek(file: Stored) -> bytes:
    return file.peek(4)[:4]


def _reader(path: str, start: bytes) -> Callable[[str, Stored], Iterator[Record]]:
    if start == _ARROW:
        return read_arrow
    if start[:1] == b"{":
        return read_json_lines
    if start[0] in TAGS:
        return read_capture
    raise undecodable(path, "it is neither JSON lines nor Arrow nor pgoutput")


class _Stored(NamedTuple):
    """A file of a segment, from manifest or checkpoint."""

    path: str
    table: str | None
    promise: Promise
    schema: str | None


def read_directory(directory: Path, keep: TableFilter, *, partial: bool) -> Iterator[Record]:
    """Every change of the finished segments; with `partial`, then what the checkpoint covers of the open one.

    Memory holds one row per file of a segment. Raises CHECKPOINT for anything that isn't as it was written.
    """
    if not (directory / MANIFEST).exists() and not (directory / CHECKPOINT).exists():
        raise PgcdcError(
            ErrorKind.USAGE,
            f'could not read "{directory}": it has neither {MANIFEST} nor {CHECKPOINT}',
            hint="give the directory that pgcdc stream -D wrote, or single files",
        )
    segments = manifest.read_manifest(str(directory / MANIFEST))
    for segment in segments:
        files = [_Stored(f.path, f.table, Promise(f.bytes, f.crc32), f.schema) for f in segment.files]
        yield from _merge(directory, files, keep)
    if partial:
        yield from _merge(directory, _unfinished(directory, segments), keep)


def _unfinished(directory: Path, segments: list[manifest.Segment]) -> list[_Stored]:
    checkpoint = read_checkpoint(Disk(), str(directory / CHECKPOINT))
    if checkpoint is None:
        return []
    if segments and checkpoint.segment <= segments[-1].segment:
        return []
    files = [
        _Stored(f.path, f.table, Promise(f.state.size, f.state.crc32), f.schema) for f in checkpoint.files
    ]
    return [_renamed(directory, file) for file in files]


def _renamed(directory: Path, file: _Stored) -> _Stored:
    """Between two steps of a rotation an unfinished file may have its final name already."""
    final = file.path.removesuffix(PARTIAL)
    if not (directory / file.path).exists() and (directory / final).exists():
        return file._replace(path=final)
    return file


def _merge(directory: Path, files: Iterable[_Stored], keep: TableFilter) -> Iterator[Record]:
    """One segment's rows by their place in history; a table's parts follow one another."""
    wanted = [file for file in files if file.table is None or keep(file.table)]
    wanted.sort(key=lambda file: (file.table or "", _part(file.path)))
    for file in wanted:
        _check(directory, file)
    _allow_open_files(len(wanted))
    tables = [
        chain.from_iterable(_read(directory, part, keep) for part in list(parts))
        for _, parts in groupby(wanted, key=lambda file: file.table)
    ]
    return heapq.merge(*tables, key=lambda record: record.order)


def _part(path: str) -> int:
    name = parse_file_name(Path(path).name)
    return 0 if name is None else name.part


def _check(directory: Path, file: _Stored) -> None:
    path = directory / file.path
    size = _size(path)
    if file.schema is not None:
        _size(directory / file.schema)
    finished = not file.path.endswith(PARTIAL)
    if size < file.promise.size or (finished and size != file.promise.size):
        raise damaged(str(path), f"{size} bytes where {file.promise.size} were written")


def _size(path: Path) -> int:
    try:
        return path.stat().st_size
    except OSError as error:
        raise damaged(str(path), error.strerror or str(error)) from error


def _read(directory: Path, file: _Stored, keep: TableFilter) -> Iterator[Record]:
    for record in read_file(str(directory / file.path), file.promise):
        if file.table is not None or keep(record.table):
            yield record._replace(schema=file.schema)


def _allow_open_files(count: int) -> None:
    """Raise the limit: a segment of many tables needs many files at once."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = count + 64
    if soft != resource.RLIM_INFINITY and soft < wanted:
        limit = wanted if hard == resource.RLIM_INFINITY else min(wanted, hard)
        resource.setrlimit(resource.RLIMIT_NOFILE, (limit, hard))
