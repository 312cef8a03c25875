"""Read a local warehouse without Spark: how far it is merged, and whether a merge is running.

The job writes `_pgcdc.json` last, so everything is merged that it says is. Without it nothing is known.
"""

import fcntl
import json
import os
import re
import shutil
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pgcdc_cli.errors import ErrorKind, PgcdcError
from pgcdc_cli.lsn import Lsn
from pgcdc_cli.spark.pgcdc_merge.merge_errors import NO_MANIFEST, WRITABLE
from pgcdc_cli.spark.pgcdc_merge.options import MergeOptions

_SCHEME = re.compile(r"[A-Za-z][A-Za-z0-9+.-]+:")
_ALL = ""
_RECORD, _LOCK, _LOG = "_pgcdc.json", "_pgcdc.lock", "_pgcdc.log"
_MANIFEST, _CHECKPOINT = "manifest.jsonl", "checkpoint.json"


@dataclass(frozen=True)
class MergedTable:
    """A row of the control table: how far a table (without a name: all tables) is merged in a mode."""

    stream_id: str
    table: str
    mode: str
    path: str | None
    segment: int
    lsn: Lsn
    version: int | None
    keyless: bool
    problem: str | None
    merged_at: str | None
    warning: str | None = None

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> "MergedTable":
        known = {name: data[name] for name in cls.__dataclass_fields__ if name != "warning"}
        return cls(**{**known, "lsn": Lsn.parse(data["lsn"]), "warning": data.get("warning")})


def local_path(location: str) -> Path | None:
    """Return the local path of a location; None for a URI of another file system."""
    if location.startswith("file:"):
        return Path("/" + location.removeprefix("file:").lstrip("/"))
    return None if _SCHEME.match(location) else Path(location)


def read_record(warehouse: str) -> list[MergedTable] | None:
    """Read how far a warehouse is merged; None if unknown. Raises PgcdcError (SPARK) if it is damaged."""
    directory = local_path(warehouse)
    if directory is None:
        return None
    record = directory / _RECORD
    try:
        content = json.loads(record.read_bytes())
        return [MergedTable.from_json(row) for row in content["rows"]]
    except (FileNotFoundError, NotADirectoryError):
        return None
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise PgcdcError(
            ErrorKind.SPARK,
            f'could not read "{record}": {error}',
            hint="remove it: the next merge recreates it, from the control table",
        ) from error


def last_merged(options: MergeOptions) -> tuple[int, Lsn] | None:
    """Return the segment and LSN up to which everything is merged, if nothing is left to merge.

    None if something is, or if that can't be seen without Spark.
    """
    rows, directory = read_record(options.warehouse), local_path(options.input)
    if rows is None or directory is None:
        return None
    everything = [row for row in rows if row.table == _ALL and row.mode in options.modes]
    if len(everything) < len(options.modes) or options.unmatched({row.table for row in rows}):
        return None
    try:
        manifest = (directory / _MANIFEST).read_bytes()
        segments = list(_segments(manifest, options.until))
    except (OSError, ValueError, KeyError):
        return None  # the job says what is wrong with it
    newest = max((number for number, _ in segments), default=0)
    tables = [row for row in rows if row.table != _ALL and options.selects(row.table)]
    tables = [row for row in tables if row.mode in options.modes or row.keyless]
    behind = any(row.segment < newest for row in (*everything, *tables))
    foreign = any(row.stream_id != stream for row in everything for _, stream in segments)
    return None if behind or foreign else (everything[0].segment, everything[0].lsn)


def has_no_segment(location: str) -> bool:
    """Whether a stream has begun to write a local directory, and no segment is finished yet."""
    directory = local_path(location)
    if directory is None or is_there(directory / _MANIFEST):
        return False
    try:
        return bool(json.loads((directory / _CHECKPOINT).read_bytes())["segment"] == 1)
    except (OSError, ValueError, KeyError, TypeError):
        return False  # it isn't a stream's, or its manifest is lost


def matches_nothing(options: MergeOptions) -> bool:
    """Whether no pattern of the options matches a table of the directory; False if only the job can tell.

    That is so if segments were moved away, whose tables are only in the warehouse, or if a name needs quotes.
    """
    directory = local_path(options.input)
    if directory is None or not options.tables:
        return False
    try:
        lines = list(map(json.loads, (directory / _MANIFEST).read_bytes().split(b"\n")[:-1]))
        whole = bool(lines) and lines[0]["segment"] == 1
        names = {file["table"] for line in lines for file in line["files"]}
    except (OSError, ValueError, KeyError, TypeError):
        return False  # the job says what is wrong with it
    if not whole or any(name is None or name.count(".") > 1 for name in names):
        return False
    return len(options.unmatched(names)) == len(options.tables)


def _segments(manifest: bytes, until: int | None) -> Iterator[tuple[int, str]]:
    """Yield segment numbers and stream ids; a last line without a line feed is incomplete."""
    for line in manifest.split(b"\n")[:-1]:
        content = json.loads(line)
        if until is None or Lsn.parse(content["end_lsn"]) <= until:
            yield int(content["segment"]), content["stream_id"]


def refuse_without_manifest(location: str) -> None:
    """Raise PgcdcError for a local input without a finished segment, before Spark starts.

    USAGE if no stream has begun to write it, SPARK otherwise.
    """
    missing = missing_manifest(location)
    if missing is not None:
        message, hint = NO_MANIFEST
        kind = ErrorKind.SPARK if is_there(missing.with_name(_CHECKPOINT)) else ErrorKind.USAGE
        raise PgcdcError(kind, message.format(missing), hint=hint)


def missing_manifest(location: str) -> Path | None:
    """Return the path of the manifest that a local input lacks, since no segment is finished; else None."""
    directory = local_path(location)
    return None if directory is None or is_there(directory / _MANIFEST) else directory / _MANIFEST


def is_there(path: Path) -> bool:
    """Tell whether a path exists. Raises PgcdcError (SPARK) if that can't be seen."""
    with _examining(path):
        return path.exists()


@contextmanager
def _examining(path: Path) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        message = f'could not examine "{path}": {error.strerror or error}'
        raise PgcdcError(ErrorKind.SPARK, message, hint="check the path and its permissions") from error


def refuse_if_locked(warehouse: str) -> None:
    """Raise PgcdcError (LOCKED) if another merge into a local warehouse is running, before Spark starts."""
    directory = local_path(warehouse)
    path = None if directory is None else directory / _LOCK
    if path is None or not is_there(path):
        return
    with _examining(path), path.open("rb") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_SH | fcntl.LOCK_NB)
        except BlockingIOError as error:
            raise PgcdcError(
                ErrorKind.LOCKED,
                f'could not merge into "{directory}": another merge is under way',
                hint="wait for it to end",
            ) from error


def refuse_unwritable(warehouse: str) -> None:
    """Raise PgcdcError (SPARK) if this user can't write to a local warehouse, or make it."""
    directory = local_path(warehouse)
    if directory is None:
        return
    there = directory.absolute()
    while not is_there(there):
        there = there.parent
    if there.is_dir() and os.access(there, os.W_OK | os.X_OK):
        return
    reason = f'this user can\'t write to "{there}"' if there.is_dir() else f'"{there}" is not a directory'
    raise PgcdcError(ErrorKind.SPARK, f'could not write to "{directory}": {reason}', hint=WRITABLE)


def keep_log(log: Path, warehouse: str) -> Path | None:
    """Copy Spark's output of a run to a local warehouse; None if that doesn't exist, or has no room."""
    directory = local_path(warehouse)
    if directory is None:
        return None
    kept = directory / _LOG
    try:
        shutil.copyfile(log, kept)
    except OSError:
        return None
    return kept
