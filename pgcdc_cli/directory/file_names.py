"""What the files and folders of a stream's output are called.

Two tables never share a folder, whatever their names are, also on file systems that ignore case or normalise
Unicode: a character stays as it is only if neither folding nor normalisation could turn it into another or
another into it, and stands as the percent-encoded bytes of its UTF-8 otherwise.
"""

import hashlib
import re
import unicodedata
from typing import NamedTuple

from pgcdc_cli.lsn import Lsn

CHECKPOINT = "checkpoint.json"
MANIFEST = "manifest.jsonl"
SCHEMAS = "schemas"
"""A folder with each version of each table."""

PARTIAL = ".partial"
"""What a data file's name ends in until the file is finished."""

LONGEST = 255
"""Bytes in the name of a folder, on every file system in common use."""

_PLAIN = frozenset("abcdefghijklmnopqrstuvwxyz0123456789_-")
_DATA_FILE = re.compile(r"([0-9]{6,})-([0-9A-F]{16})-([1-9][0-9]*)(\..+)")


class ControlFiles(NamedTuple):
    """Where a sink keeps what it needs for itself; the spool is a folder."""

    checkpoint: str
    lock: str
    spool: str


IN_DIRECTORY = ControlFiles(CHECKPOINT, ".lock", "_spool")


def beside(name: str) -> ControlFiles:
    """Name what stands beside a single file."""
    return ControlFiles(f"{name}.checkpoint", f"{name}.lock", f"{name}.spool")


def table_folder(schema: str, table: str) -> str:
    """Name the folder of a table: `schema.table`, encoded.

    A name that would be longer than 255 bytes is cut and ends in `%~` and a SHA-256 of the whole.
    """
    name = f"{_encode(schema)}.{_encode(table)}"
    if len(name.encode()) <= LONGEST:
        return name
    digest = hashlib.sha256(name.encode()).hexdigest()
    kept = name.encode()[: LONGEST - 2 - len(digest)].decode(errors="ignore")
    return f"{kept}%~{digest}"


def _encode(name: str) -> str:
    return "".join(character if _keeps(character) else _percent(character) for character in name)


def _percent(character: str) -> str:
    return "".join(f"%{byte:02X}" for byte in character.encode())


def _keeps(character: str) -> bool:
    if character.isascii():
        return character in _PLAIN
    return (
        character.isalnum()
        and character == character.casefold() == character.lower() == character.upper().casefold()
        and character == unicodedata.normalize("NFKD", character)
    )


def schema_path(oid: int, fingerprint: str) -> str:
    """Name the file of one version of a table, relative to the directory."""
    return f"{SCHEMAS}/{oid}-{fingerprint}.json"


class DataFileName(NamedTuple):
    """What a data file's name says, finished or not."""

    segment: int
    first_commit_lsn: Lsn
    part: int
    suffix: str


def file_name(segment: int, first_commit_lsn: Lsn, part: int, suffix: str) -> str:
    """Name a data file; `suffix` ends with `PARTIAL` until it is finished."""
    return f"{segment:06d}-{first_commit_lsn.hex16()}-{part}{suffix}"


def parse_file_name(name: str) -> DataFileName | None:
    """Read a data file's name; None for any other file."""
    match = _DATA_FILE.fullmatch(name)
    if match is None:
        return None
    segment, lsn, part, suffix = match.groups()
    return DataFileName(int(segment), Lsn(int(lsn, 16)), int(part), suffix)
