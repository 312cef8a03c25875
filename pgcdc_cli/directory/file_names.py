"""The names of files and folders in a stream's output.

A table's folder is named like the table: `public.Order Lines`. Characters that could be trouble for a file
system are escaped: `~` and two hexadecimal digits for each byte of their UTF-8. Two tables never share a
folder, even on file systems that ignore case or normalize Unicode.
"""

import hashlib
import re
import unicodedata
from collections.abc import Iterable
from typing import NamedTuple

from pgcdc_cli.lsn import Lsn

CHECKPOINT = "checkpoint.json"
MANIFEST = "manifest.jsonl"
HANDED_OVER = "handed-over.json"
"""Has the last segment for which the command of `--on-segment` succeeded."""

SCHEMAS = "schemas"
"""The folder with a schema file for each version of each table."""

PARTIAL = ".partial"
"""The suffix of a data file until it is finished."""

TEMPORARY = ".tmp"
"""The suffix of a file that is about to replace another."""

LONGEST = 255
"""Bytes in a folder's name, at most, on every file system in common use."""

_MARK = 8
"""Hexadecimal digits of a hash that tell a table's folder from that of a table with a similar name."""

_FILES = frozenset(f"{name}{end}" for name in (CHECKPOINT, MANIFEST, HANDED_OVER) for end in ("", TEMPORARY))
"""The directory's own files, whose names could be those of tables."""

_PLAIN = frozenset("abcdefghijklmnopqrstuvwxyz0123456789_-")
_DATA_FILE = re.compile(r"([0-9]{6,})-([0-9A-F]{16})-([1-9][0-9]*)(\..+)")


class ControlFiles(NamedTuple):
    """The files that a sink keeps for itself, beside the data; `spool` is a folder."""

    checkpoint: str
    lock: str
    spool: str


IN_DIRECTORY = ControlFiles(CHECKPOINT, ".lock", "_spool")


def beside(name: str) -> ControlFiles:
    """Name the control files beside a single output file."""
    return ControlFiles(f"{name}.checkpoint", f"{name}.lock", f"{name}.spool")


def table_folder(schema: str, table: str) -> str:
    """Name the folder of a table: `schema.table`, escaped.

    A name that would be longer than 255 bytes is cut and ends in `~~` and a SHA-256 of the whole.
    """
    name = f"{_escape(schema, '_- ')}.{_escape(table, '_- .')}"
    return _within_limit(name, "~~")


def may_hold_data(name: str) -> bool:
    """Whether a folder of this name may hold data files: a table's, or one like `_messages`.

    A table's folder has a full stop in its name, or a `~` if that was cut.
    """
    return name.startswith("_") or "." in name or "~" in name


def _within_limit(name: str, sign: str) -> str:
    return name if len(name.encode()) <= LONGEST else _marked(name, sign + _digest(name))


def _digest(name: str) -> str:
    return hashlib.sha256(name.encode()).hexdigest()


def _marked(name: str, mark: str) -> str:
    """Append a mark that no escaped name has, and cut the name to make room for it."""
    return name.encode()[: LONGEST - len(mark)].decode(errors="ignore") + mark


def _in_hexadecimal(character: str, sign: str) -> str:
    return "".join(f"{sign}{byte:02X}" for byte in character.encode())


def _escape(name: str, kept: str) -> str:
    """Escape all but letters and digits of any script, and the `kept` characters within the name."""
    last = len(name) - 1
    return "".join(
        character
        if _is_letter(character) or (character in kept and _is_inside(character, at, last))
        else _in_hexadecimal(character, "~")
        for at, character in enumerate(name)
    )


def _is_letter(character: str) -> bool:
    return character.isalnum() or unicodedata.category(character).startswith("M")


def _is_inside(character: str, at: int, last: int) -> bool:
    """Whether a kept character may be at this place: many programs ignore names that begin with . or _."""
    return character == "-" or (at > 0 and (character == "_" or at < last))


class TableFolders:
    """Names the folders of tables in a directory that has the `existing` ones.

    A table stays in the folder that it has, even if an earlier version of pgcdc named it. A name that some
    file system would take for another table's gets a mark.
    """

    def __init__(self, existing: Iterable[str]) -> None:
        self._existing = set(existing) - _FILES
        self._folded = {_folded(name) for name in self._existing | _FILES}

    def name(self, schema: str, table: str) -> str:
        """Name a table's folder, and remember the name."""
        earlier, name = _earlier_name(schema, table), table_folder(schema, table)
        if earlier in self._existing:
            name = earlier
        elif name not in self._existing and _folded(name) in self._folded:
            name = _marked(name, f"~~{_digest(name)[:_MARK]}")
        self._existing.add(name)
        self._folded.add(_folded(name))
        return name


def _folded(name: str) -> str:
    """Fold a name: names that some file system takes for the same have the same result."""
    folded = unicodedata.normalize("NFKC", name).casefold().upper().casefold()
    return unicodedata.normalize("NFKD", folded)


def _earlier_name(schema: str, table: str) -> str:
    """Name a table's folder as versions up to 0.1 did: all but some letters and digits percent-encoded."""
    return _within_limit(f"{_percent_encode(schema)}.{_percent_encode(table)}", "%~")


def _percent_encode(name: str) -> str:
    return "".join(
        character if _was_kept(character) else _in_hexadecimal(character, "%") for character in name
    )


def _was_kept(character: str) -> bool:
    if character.isascii():
        return character in _PLAIN
    return (
        character.isalnum()
        and character == character.casefold() == character.lower() == character.upper().casefold()
        and character == unicodedata.normalize("NFKD", character)
    )


def schema_path(oid: int, fingerprint: str) -> str:
    """Name the schema file of one version of a table, relative to the directory."""
    return f"{SCHEMAS}/{oid}-{fingerprint}.json"


class DataFileName(NamedTuple):
    """The parts of a data file's name, finished or not."""

    segment: int
    first_commit_lsn: Lsn
    part: int
    suffix: str


def file_name(segment: int, first_commit_lsn: Lsn, part: int, suffix: str) -> str:
    """Name a data file; `suffix` ends with `PARTIAL` until it is finished."""
    return f"{segment:06d}-{first_commit_lsn.hex16()}-{part}{suffix}"


def parse_file_name(name: str) -> DataFileName | None:
    """Parse a data file's name; None for any other file."""
    match = _DATA_FILE.fullmatch(name)
    if match is None:
        return None
    segment, lsn, part, suffix = match.groups()
    return DataFileName(int(segment), Lsn(int(lsn, 16)), int(part), suffix)
