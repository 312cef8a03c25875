"""A pgcdc directory's manifest and schema files, and the verification of its data files.

A segment is a range of whole transactions across all tables, complete up to its end LSN; segments are
numbered from 1 without gaps.
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

from .column_types import Choices, LakeColumn
from .java_classes import java_class
from .merge_errors import NO_MANIFEST, MergeError
from .options import CHANGELOG, FORMAT_VERSION

_BUFFER = 1 << 20
_GLOB = re.compile(r"([\\{}\[\]*?^])")

_NO_LIMITS = dict.fromkeys(("maxStringLen", "maxNumLen", "maxNestingDepth"), str(2**31 - 1))
"""Spark's defaults for untrusted JSON are 20 million, 1000 and 1000; PostgreSQL's values can be longer."""

LOSSES = "_losses"
_OTHERS = frozenset({"_messages", "_transaction", "_heartbeat"})
"""Manifest entries that belong to no table."""

_RESTORE = "restore the directory from a copy"
_FORMATS = ("jsonl", "arrow", "debezium")
_READERS = 8


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


@dataclass(frozen=True)
class DebeziumEvents:
    """How Debezium's events contain a table; `forms` has an element for each column."""

    record: str
    schemas: bool
    forms: tuple[dict[str, Any], ...]


@dataclass(frozen=True)
class TableVersion:
    """A table as one schema file describes it; `key` has indexes of `columns`, None without a key.

    `events` is set in schema files of Debezium's events, which may leave columns out. `without_default` are
    nullable columns that are known to have no default. `listed`: a publication names the table, so it may
    have had rows before. `missing` are the texts that columns have in rows from before they were added;
    `later` are the same for columns that were added after this version. `positions` are the columns'
    attribute numbers, as far as known; `left_out` are those of columns that weren't published. `called`
    are columns' names in the lake table, if they differ; None for a column that isn't there.
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
    left_out: frozenset[int] = frozenset()
    called: Mapping[str, str | None] = field(default_factory=dict)

    def has(self, name: str) -> bool:
        """Whether there is such a column."""
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
        """Return a column's name in the lake table; None if it isn't there."""
        return self.called.get(name, name)

    @property
    def key_in_lake(self) -> list[str | None]:
        """Names of the key's columns in the lake table."""
        return [self.in_lake(column.name) for column in self.key_columns]

    @property
    def maybe_unsent(self) -> list[int]:
        """Indexes of the columns that an update may lack; the key is always sent."""
        found = (index for index, column in enumerate(self.columns) if column.may_be_unsent)
        return [index for index in found if index not in (self.key or ())]


class HadoopFiles:
    """Hadoop's file systems; paths are absolute, with a scheme, not percent-encoded (`file:/tmp/a b`)."""

    def __init__(self, spark: SparkSession) -> None:
        self._spark = spark
        # PySpark has no public access to Hadoop's file systems.
        self._configuration: Any = spark._jsc.hadoopConfiguration()  # noqa: SLF001

    def _class(self, name: str) -> Any:  # noqa: ANN401 - Java's
        return java_class(self._spark, name)

    def _open(self, path: str) -> tuple[Any, Any]:
        hadoop_path = self._class("org.apache.hadoop.fs.Path")(path)
        return hadoop_path.getFileSystem(self._configuration), hadoop_path

    def qualify(self, path: str) -> str:
        """Make a path absolute, on the default file system if it names none."""
        system, hadoop_path = self._open(path)
        return str(system.makeQualified(hadoop_path).toString()).rstrip("/")

    def exists(self, path: str) -> bool:
        """Whether there is such a file or directory."""
        system, hadoop_path = self._open(path)
        return bool(system.exists(hadoop_path))

    def size(self, path: str) -> int | None:
        """Return the size in bytes; None if there is no such file."""
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
            return bytes(self._class("org.apache.commons.io.IOUtils").toByteArray(stream))
        finally:
            stream.close()

    def write(self, path: str, data: bytes) -> None:
        """Write a small file: readers find the old content or the new one.

        Hadoop's rename replaces no file, so elsewhere than on the local disk they may find none for a moment.
        """
        local = _local(path)
        if local is not None:
            local.with_name(f"{local.name}.tmp").write_bytes(data)
            local.with_name(f"{local.name}.tmp").replace(local)
            return
        system, hadoop_path = self._open(path)
        temporary = self._class("org.apache.hadoop.fs.Path")(f"{path}.tmp")
        stream = system.create(temporary, True)
        try:
            stream.write(bytearray(data))
        finally:
            stream.close()
        system.delete(hadoop_path, False)
        if not system.rename(temporary, hadoop_path):
            raise OSError(f'could not rename "{path}.tmp"')

    def crc32(self, path: str) -> int:
        """Compute a file's CRC-32, inside the JVM unless the file is local."""
        local = _local(path)
        if local is not None:
            return _crc32(local)
        system, hadoop_path = self._open(path)
        checksum = self._class("java.util.zip.CRC32")()
        stream = self._class("java.util.zip.CheckedInputStream")(system.open(hadoop_path), checksum)
        nowhere = self._class("java.io.OutputStream").nullOutputStream()
        self._class("org.apache.hadoop.io.IOUtils").copyBytes(stream, nowhere, _BUFFER, True)
        return int(checksum.getValue())


def _local(path: str) -> Path | None:
    """Return the path of a local file, which Python reads a hundred times faster than through the JVM."""
    return Path(path.removeprefix("file:")) if path.startswith("file:/") else None


def _crc32(path: Path) -> int:
    checksum = 0
    with path.open("rb") as file:
        while data := file.read(_BUFFER):
            checksum = zlib.crc32(data, checksum)
    return checksum


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
    files: HadoopFiles, directory: str, paths: Iterable[str], choices: Choices
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
    # Variants can't be compared, so a key has none.
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
        left_out=frozenset(known.get("left_out", ())),
    )


def _positions(columns: Sequence[dict[str, Any]], facts: Mapping[str, Any]) -> dict[str, int]:
    """Return columns' attribute numbers, as far as known.

    If the facts are of a later state, a column may be gone: its number is known if no other fits between its
    neighbors'. If names were exchanged since, the numbers aren't ascending, and none is known.
    """
    names = [one["name"] for one in columns]
    known = {name: facts.get(name, {}).get("position") for name in names}
    found = {name: number for name, number in known.items() if number}
    if [*found.values()] != sorted(set(found.values())):
        return {}
    before, between, numbers = 0, list[str](), dict[str, int]()
    for name in names:
        between.append(name)
        if name in found:
            some = range(before + 1, found[name] + 1)
            numbers |= zip(between, some, strict=True) if len(some) == len(between) else {name: found[name]}
            before, between = found[name], []
    return numbers


def _has_no_default(facts: dict[str, Any] | None) -> bool:
    """Whether a column is known to have no default; unknown if it no longer exists (no position)."""
    if facts is None or facts.get("position", 0) is None:
        return False
    return facts["default"] is None and facts.get("type_default") is None


def with_all_columns(version: TableVersion, *, may_be_unsent: bool) -> TableVersion:
    """Describe a table of which any value may be missing (whole old rows are read for it), or none."""
    columns = tuple(replace(column, may_be_unsent=may_be_unsent) for column in version.columns)
    return replace(version, columns=columns)


def verify(files: HadoopFiles, directory: str, wanted: Sequence[ChangeFile], remedy: str = _RESTORE) -> None:
    """Compare files with the manifest: existence, size, checksum. Raises MergeError for one that differs."""
    with ThreadPoolExecutor(_READERS) as pool:
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


def join(directory: str, *names: str) -> str:
    """Append relative names to a path."""
    return "/".join([directory, *(str(PurePosixPath(name)) for name in names)])


def escaped(paths: Sequence[str]) -> list[str]:
    """Escape characters that Spark, unlike the file system, takes for a pattern."""
    return [_GLOB.sub(r"\\\1", path) for path in paths]


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


def folder_name(name: str) -> str:
    """Name the folder of a table or schema after it.

    Letters and digits of any script are kept, and `-`; `_`, except as first character; blanks and full stops,
    except at the ends. Each byte of other characters becomes `~` and two hex digits. No name ends in
    `.changelog`.
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
    """Return a suffix that distinguishes a table's folder from a similar one on some file systems."""
    return f"~~{hashlib.sha256(name.encode()).hexdigest()[:8]}"


def folded(name: str) -> str:
    """Normalise a name, so that names that some file system takes for the same are equal."""
    upper = unicodedata.normalize("NFKC", name).casefold().upper()
    return unicodedata.normalize("NFKD", upper.casefold())
