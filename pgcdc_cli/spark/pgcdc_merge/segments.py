"""What a pgcdc directory says of itself: manifest and schema files, and whether it is true.

A segment is a range of whole transactions across all tables, complete up to its end LSN; they are numbered
without gaps, from 1.
"""

import hashlib
import json
import re
import unicodedata
import zlib
from collections.abc import Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from itertools import pairwise
from pathlib import Path, PurePosixPath
from typing import Any

from pyspark.sql import Column as Expression
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812 - PySpark's own habit

from .column_types import DEFAULTS, Choices, LakeColumn
from .merge_errors import NO_MANIFEST, MergeError
from .options import CHANGELOG, FORMAT_VERSION

_BUFFER = 1 << 20
_GLOB = re.compile(r"([\\{}\[\]*?^])")

_NO_LIMITS = dict.fromkeys(("maxStringLen", "maxNumLen", "maxNestingDepth"), str(2**31 - 1))
"""Spark's own, against the JSON of strangers, are 20 million, 1000 and 1000: PostgreSQL has more."""

LOSSES = "_losses"
_OTHERS = frozenset({"_messages", "_transaction", "_heartbeat"})
"""What isn't of a table."""

_RESTORE = "restore the directory from a copy; nothing was merged"
_FORMATS = ("jsonl", "arrow", "debezium")
_READERS = 8


@dataclass(frozen=True)
class ChangeFile:
    """A finished file of one table: its path under the directory, and what it must be.

    `schema` is the table's schema file; empty for a file that says what is missing in others. `unchanged`
    says that some rows may lack values (unchanged TOAST).
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
    """A line of the manifest. `end_lsn` is PostgreSQL's text; `losses` say what the files don't hold."""

    number: int
    stream_id: str
    end_lsn: str
    files: tuple[ChangeFile, ...]
    losses: tuple[ChangeFile, ...] = ()


@dataclass(frozen=True)
class DebeziumEvents:
    """How Debezium's events hold a table: `forms` has one member for each column."""

    record: str
    schemas: bool
    forms: tuple[dict[str, Any], ...]


@dataclass(frozen=True)
class TableVersion:
    """A table as one schema file describes it; `key` holds indexes of `columns`, None if there is none.

    `events` is there for the schema files of Debezium's events, which may leave columns out.
    `without_default` are columns that are known to have none, and may be NULL. `listed` says that a
    publication names the table, so that it may have had rows before. `missing` are the texts of what columns
    have in rows from before they were added, `later` those of columns that were added after this version.
    `positions` are the columns' numbers in the source's table, none where they aren't known. `called` says
    what columns are called in the lake table, where it is otherwise; None if they aren't there.
    """

    oid: int
    schema: str
    name: str
    columns: tuple[LakeColumn, ...]
    key: tuple[int, ...] | None
    path: str
    events: DebeziumEvents | None = None
    without_default: frozenset[str] = frozenset()
    listed: bool = True
    missing: Mapping[str, str] = field(default_factory=dict)
    later: Mapping[str, str] = field(default_factory=dict)
    positions: Mapping[str, int] = field(default_factory=dict)
    called: Mapping[str, str | None] = field(default_factory=dict)

    def has(self, name: str) -> bool:
        """Say whether there is such a column."""
        return any(column.name == name for column in self.columns)

    @property
    def display(self) -> str:
        return f"{self.schema}.{self.name}"

    @property
    def key_columns(self) -> list[LakeColumn]:
        """The key's columns in the key's order."""
        return [self.columns[index] for index in self.key or ()]

    @property
    def key_names(self) -> str:
        return ", ".join(column.name for column in self.key_columns)

    def in_lake(self, name: str) -> str | None:
        """Say what a column is called in the lake table; None if it isn't there."""
        return self.called.get(name, name)

    @property
    def key_in_lake(self) -> list[str | None]:
        """What the key's columns are called in the lake table."""
        return [self.in_lake(column.name) for column in self.key_columns]

    @property
    def maybe_unsent(self) -> list[int]:
        """Indexes of the columns that an update may come without; the key always comes."""
        found = (index for index, column in enumerate(self.columns) if column.may_be_unsent)
        return [index for index in found if index not in (self.key or ())]


class HadoopFiles:
    """Paths are strings: absolute, with a scheme, and not percent-encoded (`file:/tmp/a b`)."""

    def __init__(self, spark: SparkSession) -> None:
        # PySpark has no public way to Hadoop's file systems.
        self._jvm: Any = spark._jvm  # noqa: SLF001
        self._configuration: Any = spark._jsc.hadoopConfiguration()  # noqa: SLF001

    def _open(self, path: str) -> tuple[Any, Any]:
        hadoop_path = self._jvm.org.apache.hadoop.fs.Path(path)
        return hadoop_path.getFileSystem(self._configuration), hadoop_path

    def qualify(self, path: str) -> str:
        """Make a path absolute, on the default file system if it names none."""
        system, hadoop_path = self._open(path)
        return str(system.makeQualified(hadoop_path).toString()).rstrip("/")

    def exists(self, path: str) -> bool:
        """Say whether there is such a file or directory."""
        system, hadoop_path = self._open(path)
        return bool(system.exists(hadoop_path))

    def size(self, path: str) -> int | None:
        """Size in bytes; None if there is no such file."""
        local = _local(path)
        if local is not None:
            return local.stat().st_size if local.is_file() else None
        system, hadoop_path = self._open(path)
        if not system.exists(hadoop_path):
            return None
        status = system.getFileStatus(hadoop_path)
        return None if status.isDirectory() else int(status.getLen())

    def read(self, path: str) -> bytes | None:
        """Read a small file; None if there is no such file."""
        if self.size(path) is None:
            return None
        system, hadoop_path = self._open(path)
        stream = system.open(hadoop_path)
        try:
            return bytes(self._jvm.org.apache.commons.io.IOUtils.toByteArray(stream))
        finally:
            stream.close()

    def write(self, path: str, data: bytes) -> None:
        """Write a small file so that it is there whole or not at all."""
        local = _local(path)
        if local is not None:
            local.with_name(f"{local.name}.tmp").write_bytes(data)
            local.with_name(f"{local.name}.tmp").replace(local)
            return
        system, hadoop_path = self._open(path)
        temporary = self._jvm.org.apache.hadoop.fs.Path(f"{path}.tmp")
        stream = system.create(temporary, True)
        try:
            stream.write(bytearray(data))
        finally:
            stream.close()
        system.delete(hadoop_path, False)
        if not system.rename(temporary, hadoop_path):
            raise OSError(f'could not rename "{path}.tmp"')

    def crc32(self, path: str) -> int:
        """Read a file through, in the JVM where it isn't local, and return its checksum."""
        local = _local(path)
        if local is not None:
            return _crc32(local)
        system, hadoop_path = self._open(path)
        checksum = self._jvm.java.util.zip.CRC32()
        stream = self._jvm.java.util.zip.CheckedInputStream(system.open(hadoop_path), checksum)
        nowhere = self._jvm.java.io.OutputStream.nullOutputStream()
        self._jvm.org.apache.hadoop.io.IOUtils.copyBytes(stream, nowhere, _BUFFER, True)
        return int(checksum.getValue())


def _local(path: str) -> Path | None:
    """Name a file of this machine, which Python reads a hundred times faster than through the JVM."""
    return Path(path.removeprefix("file:")) if path.startswith("file:/") else None


def _crc32(path: Path) -> int:
    checksum = 0
    with path.open("rb") as file:
        while data := file.read(_BUFFER):
            checksum = zlib.crc32(data, checksum)
    return checksum


def read_manifest(files: HadoopFiles, directory: str) -> list[FinishedSegment]:
    """Read all finished segments; a MergeError for a line that is damaged, or numbers with a gap.

    A last line without a line break is being written: its segment isn't finished.
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
                f'could not read "{path}": segment {after.number} follows segment {before.number}', _RESTORE
            )
    return segments


def _segment(path: str, number: int, line: bytes) -> FinishedSegment:
    try:
        data = json.loads(line)
        _check_version(data["format_version"])
        found = [_data_file(data["segment"], item) for item in data["files"] if item["table"] not in _OTHERS]
        files = tuple(file for file in found if file.table != LOSSES)
        losses = tuple(file for file in found if file.table == LOSSES)
        return FinishedSegment(int(data["segment"]), data["stream_id"], data["end_lsn"], files, losses)
    except (ValueError, KeyError, TypeError) as error:
        raise MergeError(f'could not read "{path}": line {number} is damaged: {error}', _RESTORE) from error


def _check_version(version: object) -> None:
    if version != FORMAT_VERSION:
        raise ValueError(f"its format version is {version}")


def _data_file(segment: int, item: dict[str, Any]) -> ChangeFile:
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


def read_schemas(
    files: HadoopFiles, directory: str, paths: Iterable[str], choices: Choices = DEFAULTS
) -> dict[str, TableVersion]:
    """Read schema files, by their path in the directory."""
    wanted = sorted(set(paths))
    with ThreadPoolExecutor(_READERS) as pool:
        return dict(
            zip(
                wanted,
                pool.map(lambda path: _read_schema(files, directory, path, choices), wanted),
                strict=True,
            )
        )


def _read_schema(files: HadoopFiles, directory: str, path: str, choices: Choices) -> TableVersion:
    data = files.read(join(directory, path))
    if data is None:
        raise MergeError(f'could not read "{join(directory, path)}": there is no such file', _RESTORE)
    try:
        return _table_version(json.loads(data), path, choices)
    except (ValueError, KeyError, TypeError) as error:
        raise MergeError(
            f'could not read "{join(directory, path)}": it is damaged: {error}', _RESTORE
        ) from error


def _table_version(data: dict[str, Any], path: str, choices: Choices) -> TableVersion:
    full, described = data["replica_identity"] == "f", data.get("events")
    sent = [c for c in data["columns"] if described is None or described["columns"][c["name"]] is not None]
    # Variants can't be compared.
    keyed = replace(choices, variant=False)
    columns = tuple(
        LakeColumn.from_json(column, keyed if column["name"] in (data["key"] or ()) else choices, full=full)
        for column in sent
    )
    names = [column.name for column in columns]
    whole = data["key"] is not None and set(data["key"]) <= set(names)
    key = tuple(names.index(name) for name in data["key"]) if whole else None
    events = None
    if described is not None:
        forms = tuple(described["columns"][name] for name in names)
        events = DebeziumEvents(described["record"], described["schemas"], forms)
    known = data.get("facts") or {"columns": {}}
    facts, listed = known["columns"], known.get("listed") is not False
    plain = frozenset(
        column["name"]
        for column in sent
        if not column["not_null"] and _has_no_default(facts.get(column["name"]))
    )
    missing = {name: fact["missing"] for name, fact in facts.items() if fact.get("missing") is not None}
    return TableVersion(
        data["oid"],
        data["schema"],
        data["table"],
        columns,
        key,
        path,
        events,
        plain,
        listed,
        missing,
        positions=_positions(data["columns"], facts),
    )


def _positions(columns: Sequence[dict[str, Any]], facts: Mapping[str, Any]) -> dict[str, int]:
    """Number columns; none in another order than theirs, where the facts are of a later table."""
    found = {one["name"]: facts.get(one["name"], {}).get("position") or 0 for one in columns}
    numbers = [*found.values()]
    return found if 0 not in numbers and numbers == sorted(set(numbers)) else {}


def _has_no_default(facts: dict[str, Any] | None) -> bool:
    """Say whether a column is known to have none; one that is gone by now, without a position, is not."""
    if facts is None or facts.get("position", 0) is None:
        return False
    return facts["default"] is None and facts.get("type_default") is None


def with_all_columns(version: TableVersion, *, may_be_unsent: bool) -> TableVersion:
    """Describe a table any of whose values may be missing (whole old rows are read for it), or none."""
    columns = tuple(replace(column, may_be_unsent=may_be_unsent) for column in version.columns)
    return replace(version, columns=columns)


def verify(files: HadoopFiles, directory: str, wanted: Sequence[ChangeFile]) -> None:
    """Compare stored files with the manifest: there, size, checksum. A MergeError names one that differs."""
    with ThreadPoolExecutor(_READERS) as pool:
        for file, fault in zip(
            wanted, pool.map(lambda file: _fault(files, directory, file), wanted), strict=True
        ):
            if fault is not None:
                raise MergeError(f'could not merge segment {file.segment}: "{file.path}" {fault}', _RESTORE)


def _fault(files: HadoopFiles, directory: str, file: ChangeFile) -> str | None:
    path = join(directory, file.path)
    size = files.size(path)
    if size is None:
        return "is missing"
    if size != file.bytes:
        return f"has {size} bytes, not {file.bytes}"
    checksum = files.crc32(path)
    return None if checksum == file.crc32 else f"has the checksum {checksum}, not {file.crc32}"


def join(directory: str, *names: str) -> str:
    """Append relative names to a path."""
    return "/".join([directory, *(str(PurePosixPath(name)) for name in names)])


def escaped(paths: Sequence[str]) -> list[str]:
    """Escape what Spark, unlike the file system, takes for a pattern."""
    return [_GLOB.sub(r"\\\1", path) for path in paths]


def read_json(session: SparkSession, paths: list[str], schema: str) -> DataFrame:
    """Read JSON lines; a string in the schema gets the exact text of whatever stands there."""
    reader = session.read.option("mode", "FAILFAST").option("lineSep", "\n").options(**_NO_LIMITS)
    return reader.schema(schema).json(paths)


def parsed_json(text: Expression, schema: str) -> Expression:
    """Parse a JSON text; what isn't as the schema says is NULL."""
    return F.from_json(text, schema, _NO_LIMITS)


def struct_of_texts(names: Iterable[str]) -> str:
    """Give the schema of a JSON object whose members are read as they stand there."""
    fields = ", ".join(f"`{name.replace('`', '``')}`: string" for name in names)
    return f"struct<{fields}>"


def folder_name(name: str) -> str:
    """Name a table's or schema's folder as it is called.

    Letters and digits of any script stand, and `-`; behind the first character `_`; inside blanks and full
    stops. Each byte of others stands as `~` and two hexadecimal digits. Nothing ends in `.changelog`.
    """
    last = len(name) - 1
    suffix = last - len(CHANGELOG) if name.lower().endswith(f".{CHANGELOG}") else -1
    return "".join(
        character
        if _is_letter(character)
        or character == "-"
        or (character == "_" and at > 0)
        or (character in " ." and 0 < at < last and at != suffix)
        else "".join(f"~{byte:02X}" for byte in character.encode())
        for at, character in enumerate(name)
    )


def _is_letter(character: str) -> bool:
    return character.isalnum() or unicodedata.category(character).startswith("M")


def name_mark(name: str) -> str:
    """Give what tells a table's folder from that of another which some file systems take for the same."""
    return f"~~{hashlib.sha256(name.encode()).hexdigest()[:8]}"


def folded(name: str) -> str:
    """Give what no file system tells from other names with the same."""
    upper = unicodedata.normalize("NFKC", name).casefold().upper()
    return unicodedata.normalize("NFKD", upper.casefold())
