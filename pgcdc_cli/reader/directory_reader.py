"""Read stored changes: those of a `pgcdc stream -D` directory in order, or one file of any kind."""

import heapq
import io
import logging
import re
import resource
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from functools import lru_cache
from itertools import chain, dropwhile, groupby, islice
from pathlib import Path
from typing import NamedTuple, TypeAlias

from pgcdc_cli.changes.selection import NamePattern
from pgcdc_cli.changes.table import MANY_TABLES
from pgcdc_cli.directory import manifest
from pgcdc_cli.directory.checkpoint import Checkpoint, read_checkpoint
from pgcdc_cli.directory.disk import Disk, folder_of
from pgcdc_cli.directory.file_names import CHECKPOINT, MANIFEST, PARTIAL, parse_file_name
from pgcdc_cli.errors import ErrorKind, PgcdcError
from pgcdc_cli.formats.arrow import MAGIC
from pgcdc_cli.formats.debezium.debezium_format import HEARTBEATS, TRANSACTIONS
from pgcdc_cli.formats.debezium.losses import LOSSES
from pgcdc_cli.reader.arrow_reader import ArrowRow, read_arrow
from pgcdc_cli.reader.capture_reader import TAGS, CapturedMessage, read_capture
from pgcdc_cli.reader.debezium_reader import read_debezium
from pgcdc_cli.reader.jsonl_reader import JsonLine, read_json_lines
from pgcdc_cli.reader.restored_change import RestoredChange
from pgcdc_cli.reader.stored_file import (
    Promise,
    StoredFile,
    not_readable,
    open_stored,
    undecodable,
    unreadable,
    verify,
)
from pgcdc_cli.reader.wal2json_reader import read_changes, read_transactions

log = logging.getLogger("pgcdc")

StoredChange: TypeAlias = JsonLine | ArrowRow | RestoredChange | CapturedMessage
"""A change, or another message of a capture; each has `order`, `table` and `line`."""

_ARROW = (MAGIC, b"\xff\xff\xff\xff")
"""First bytes of an IPC file, and of a stream ("Encapsulated message format", Arrow's "Columnar Format")."""

_MOVED = '"%s" lacks its first segments, which were moved away: %d, with commits from %s to %s'

_FAILURES = 10
"""Failed attempts to read a directory, during a rotation, before its state counts as an error."""

_Reader: TypeAlias = Callable[[StoredFile, io.BufferedReader], Iterator[StoredChange]]

_FIRST = re.compile(rb'\{\s*"(op":"m|\w+)"')
"""The first member of an object of any format; `"op":"m"` is Debezium's."""

_READERS: dict[bytes, _Reader] = {
    b"op": read_json_lines,
    b"action": read_changes,
    **dict.fromkeys((b"change", b"xid", b"timestamp", b"origin", b"nextlsn"), read_transactions),
    **dict.fromkeys((b"topic", b"schema", b"payload", b"before", b'op":"m'), read_debezium),
    **dict.fromkeys((b"status", b"ts_ms"), read_debezium),
}
"""Readers by the first member of the first object."""

_START = 64
"""Bytes that are certain to contain that member."""

_ASIDE = frozenset([LOSSES, HEARTBEATS, TRANSACTIONS])
"""Folders beside those of tables that hold no changes (Debezium's events)."""


def read_path(path: Path, tables: Sequence[str], *, partial: bool) -> Iterator[StoredChange]:
    """Read a directory or a file; `tables` are patterns such as `public.*`; none means all tables."""
    if is_folder(path):
        return read_directory(path, tables, partial=partial)
    return (change for change in _read_file(StoredFile(str(path))) if _matches(tables, change.table))


def _matches(tables: Sequence[str], table: str) -> bool:
    return not tables or any(is_table(table, pattern) for pattern in tables)


@lru_cache(MANY_TABLES)
def is_table(table: str, pattern: str) -> bool:
    """Whether a pattern names a table, as pgcdc stream reads it, or as the name is stored.

    Stored names have no quotes. There the wildcards are *, ? and [...].
    """
    if fnmatchcase(table, pattern):
        return True
    try:
        names = NamePattern(pattern, 2)
    except ValueError:
        return False
    dots = (place for place, character in enumerate(table) if character == ".")
    return any(names.matches(table[:dot], table[dot + 1 :]) for dot in dots)


def _read_file(file: StoredFile) -> Iterator[StoredChange]:
    """Read a file of any format, compressed or not, or raw pgoutput; an empty file has no changes.

    Raises PgcdcError: PROTOCOL for a file of another kind or with damaged content, CHECKPOINT for one that
    differs from what its manifest line or checkpoint promises, USAGE for one that doesn't exist.
    """
    with open_stored(file) as content:
        start = content.peek(_START)[:_START]
        if start:
            yield from _reader(file.path, start)(file, content)


def _reader(path: str, start: bytes) -> _Reader:
    if start.startswith(_ARROW):
        return read_arrow
    if start[:1] == b"{":
        first = _FIRST.match(start)
        return read_json_lines if first is None else _READERS.get(first[1], read_json_lines)
    if start[0] in TAGS:
        return read_capture
    raise undecodable(path, "it is neither JSON nor Arrow nor pgoutput")


@dataclass
class _Progress:
    """How far a directory was read: the last whole segment, and the changes read of each file after it."""

    segment: int = 0
    changes: Counter[str] = field(default_factory=Counter)


def read_directory(
    directory: Path,
    tables: Sequence[str] = (),
    *,
    partial: bool,
    progress: _Progress | None = None,
) -> Iterator[StoredChange]:
    """Yield every change of the finished segments; with `partial`, then the open one's up to the checkpoint.

    Changes that `progress` counts are skipped; those yielded are added to it. The oldest segments may have
    been moved away, which causes a warning. Memory holds a line, or a batch of Arrow rows, per file of a
    segment. Raises PgcdcError (CHECKPOINT) for anything that isn't as written.
    """
    progress = progress or _Progress()
    checkpoint, segments = _state(directory)
    unread = [segment for segment in segments if segment.segment > progress.segment]
    left = _after_moved(directory, unread)
    if moved := unread[: len(unread) - len(left)]:
        progress.segment, progress.changes = moved[-1].segment, Counter()
        log.warning(_MOVED, directory, len(moved), moved[0].first_commit_lsn, moved[-1].last_commit_lsn)
    for segment in left:
        yield from _merge(_finished(directory, segment), tables, progress.changes)
        progress.segment, progress.changes = segment.segment, Counter()
    if partial:
        yield from _merge(_unfinished(directory, checkpoint, segments), tables, progress.changes)


def _state(directory: Path) -> tuple[Checkpoint | None, list[manifest.Segment]]:
    disk = Disk()
    if all(disk.stat(str(directory / name)) is None for name in (MANIFEST, CHECKPOINT)):
        hint = "give the directory that pgcdc stream -D wrote, or single files"
        if any(disk.stat(str(directory / ".." / name)) is not None for name in (MANIFEST, CHECKPOINT)):
            hint = "give the directory above it; --table shows one table's changes"
        reason = f"it has neither {MANIFEST} nor {CHECKPOINT}"
        raise PgcdcError(ErrorKind.USAGE, f'could not read "{directory}": {reason}', hint=hint)
    return manifest.read_state(str(directory), disk)


class Verified(NamedTuple):
    """What was read to verify: files, their bytes, and the error of each that isn't as written.

    `moved` counts the oldest segments of which no file is left.
    """

    files: int
    bytes: int
    damages: list[PgcdcError]
    moved: int = 0


def verify_directory(directory: Path) -> Verified:
    """Compare every file with the size and checksum that the manifest or the checkpoint promises.

    Raises what `read_directory` raises, but for damaged files.
    """
    checkpoint, segments = _state(directory)
    left = _after_moved(directory, segments)
    finished = (_finished(directory, segment) for segment in left)
    found = verify_files([*chain.from_iterable(finished), *_unfinished(directory, checkpoint, segments)])
    return found._replace(moved=len(segments) - len(left))


def verify_files(files: Sequence[StoredFile]) -> Verified:
    """Compare files with their promises."""
    sizes = [file.promise.size for file in files if file.promise is not None]
    damages = [error for error in map(_damage, files) if error is not None]
    return Verified(len(files), sum(sizes), damages)


def _after_moved(directory: Path, segments: list[manifest.Segment]) -> list[manifest.Segment]:
    """Leave out the first segments if none of their files is left."""

    def is_moved(segment: manifest.Segment) -> bool:
        return not any((directory / file.path).exists() for file in segment.files)

    return list(dropwhile(is_moved, segments))


def _damage(file: StoredFile) -> PgcdcError | None:
    try:
        _check(file)
        verify(file)
    except PgcdcError as error:
        if error.kind is not ErrorKind.CHECKPOINT:
            raise
        return error
    return None


def is_folder(path: Path) -> bool:
    """Tell whether a path is a folder. Raises PgcdcError (OUTPUT) if that can't be seen."""
    found = Disk().stat(str(path))
    return found is not None and found.folder


def follow_directory(directory: Path, tables: Sequence[str]) -> Iterator[StoredChange | None]:
    """Yield every durable change, then further ones for ever; None whenever there are no more yet.

    Raises what `read_directory` raises.
    """
    progress = _Progress()
    read, failures = None, 0
    while True:
        state = _checkpoint_bytes(directory)
        try:
            if state != read:
                yield from read_directory(directory, tables, partial=True, progress=progress)
            read, failures = state, 0
        except PgcdcError as error:
            # During a rotation, files have other names, and ends, than those in the checkpoint.
            failures += 1
            if error.kind is not ErrorKind.CHECKPOINT or failures == _FAILURES:
                raise
        yield None


def empty_tables(path: Path, tables: Sequence[str] = ()) -> set[str]:
    """Name the tables that have a finished file without rows; none where `path` is not a directory."""
    segments = manifest.read_manifest(str(path / MANIFEST)) if is_folder(path) else []
    files = (file for segment in segments for file in segment.files)
    return {file.table for file in files if file.table and not file.rows and _matches(tables, file.table)}


def unfinished_rows(path: Path) -> int:
    """Count the durable changes of a directory's unfinished segment; 0 where `path` is not a directory."""
    checkpoint = read_checkpoint(Disk(), str(path / CHECKPOINT)) if is_folder(path) else None
    return 0 if checkpoint is None else checkpoint.unfinished_rows


def _checkpoint_bytes(directory: Path) -> bytes:
    """Read the checkpoint, which changes whenever more is durable."""
    path = str(directory / CHECKPOINT)
    disk = Disk()
    return b"" if disk.stat(path) is None else disk.read(path)


def _stored(
    directory: Path, path: str, table: str | None, promise: Promise, schema: str | None
) -> StoredFile:
    return StoredFile(str(directory / path), table, promise, None if schema is None else directory / schema)


def _finished(directory: Path, segment: manifest.Segment) -> list[StoredFile]:
    return [_stored(directory, f.path, f.table, Promise(f.bytes, f.crc32), f.schema) for f in segment.files]


def _unfinished(
    directory: Path, checkpoint: Checkpoint | None, segments: list[manifest.Segment]
) -> list[StoredFile]:
    """List the durable files that are in no segment of the manifest.

    A segment that is being finished is in the checkpoint; some of its files may have their final names.
    """
    last = segments[-1].segment if segments else 0
    if checkpoint is None or checkpoint.segment <= last:
        return []
    if checkpoint.pending is not None:
        pending = manifest.decode_segment(checkpoint.pending.line.encode())
        files = _finished(directory, pending) if pending.segment > last else []
        return [file._replace(path=file.path + PARTIAL) for file in files]
    return [
        _stored(directory, f.path, f.table, Promise(f.state.size, f.state.crc32, whole=False), f.schema)
        for f in checkpoint.files
    ]


def _merge(files: Iterable[StoredFile], tables: Sequence[str], given: Counter[str]) -> Iterator[StoredChange]:
    """Merge one segment's changes in order; a table's files follow one another.

    Changes that cannot be ordered follow table by table. The first `given` changes of each file are skipped;
    those yielded are added to `given`.
    """
    wanted = [
        file
        for file in files
        if file.table is None or (file.table not in _ASIDE and _matches(tables, file.table))
    ]
    wanted.sort(key=lambda file: (*_table(file), _number(file.path)))
    for file in wanted:
        _check(file)
    _allow_open_files(len(wanted))
    by_table = [
        chain.from_iterable(_read(file, tables, given[_final(file)]) for file in list(files))
        for _, files in groupby(wanted, key=_table)
    ]
    for path, change in heapq.merge(*by_table, key=lambda pair: pair[1].order):
        given[path] += 1
        yield change


def _table(file: StoredFile) -> tuple[str, str]:
    """Identify the table by its folder: the names of two tables may read the same."""
    return file.table or "", folder_of(file.path)


def _number(path: str) -> int:
    name = parse_file_name(Path(path).name)
    return 0 if name is None else name.part


def _check(file: StoredFile) -> None:
    assert file.promise is not None
    size = _size(Path(file.path))
    if file.schema is not None:
        _size(file.schema)
    if size < file.promise.size or (file.promise.whole and size != file.promise.size):
        raise unreadable(file.path, f"it has {size} bytes, but {file.promise.size} were written")


def _size(path: Path) -> int:
    """Return a file's size; a rotation may have given it its final name meanwhile."""
    try:
        return path.stat().st_size
    except FileNotFoundError as error:
        if path.suffix == PARTIAL:
            return _size(path.with_suffix(""))
        raise unreadable(str(path), error.strerror or str(error)) from error
    except OSError as error:
        raise not_readable(str(path), error) from error


def _final(file: StoredFile) -> str:
    """Return the path of a file once it is finished."""
    return file.path.removesuffix(PARTIAL)


def _read(file: StoredFile, tables: Sequence[str], given: int) -> Iterator[tuple[str, StoredChange]]:
    """Yield a file's changes after the first `given`, each with the file's final path."""
    changes = _read_file(file)
    if file.table is None:
        changes = (change for change in changes if _matches(tables, change.table))
    return ((_final(file), change) for change in islice(changes, given, None))


def _allow_open_files(count: int) -> None:
    """Raise the soft limit: all files of a segment are open at the same time."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = count + 64
    if soft != resource.RLIM_INFINITY and soft < wanted:
        limit = wanted if hard == resource.RLIM_INFINITY else min(wanted, hard)
        resource.setrlimit(resource.RLIMIT_NOFILE, (limit, hard))
