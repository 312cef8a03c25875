"""The names of folders and files in a directory.

Two tables never share a folder, whatever their names are, also on file systems that ignore case or normalise
Unicode: a character stays as it is only if neither folding nor normalisation could turn it into another or
another into it, and stands as the percent-encoded bytes of its UTF-8 otherwise.
"""

import hashlib
import re
import unicodedata
from typing import NamedTuple

from pgcdc_cli.lsn import Lsn

PARTIAL = ".partial"
MESSAGES = "_messages"
SCHEMAS = "schemas"

LONGEST = 255
"""Bytes in the name of a folder, on every file system in common use."""

_PLAIN = frozenset("abcdefghijklmnopqrstuvwxyz0123456789_-")
_DATA_FILE = re.compile(r"([0-9]{6,})-([0-9A-F]{16})-([1-9][0-9]*)(\..+)")


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


class DataFile(NamedTuple):
    """What a data file's name says, finished or not."""

    segment: int
    first_commit_lsn: Lsn
    part: int
    suffix: str


def file_name(segment: int, first_commit_lsn: Lsn, part: int, suffix: str) -> str:
    """Name a finished file: segment, first commit LSN, part."""
    return f"{segment:06d}-{first_commit_lsn.hex16()}-{part}{suffix}"


def parse_file_name(name: str) -> DataFile | None:
    """Read a data file's name; None for any other file."""
    match = _DATA_FILE.fullmatch(name)
    if match is None:
        return None
    segment, lsn, part, suffix = match.groups()
    return DataFile(int(segment), Lsn(int(lsn, 16)), int(part), suffix)
