"""The checkpoint: up to which position the files are whole and durable, and which stream they belong to.

It is one JSON object, written at transaction edges only: to a temporary name, fsynced and renamed. It ends
with a CRC-32 of its content, so that a single damaged byte is found.

A stream may go on from a checkpoint only with the source and the options that it names, and if the slot is
not ahead of it.
"""

import re
import uuid
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from os.path import commonprefix
from pathlib import PurePath
from typing import cast, get_args

from zlib_ng import zlib_ng

from pgcdc_cli.changes.edge import (
    LastCommit,
    LastEdge,
    Prepared,
    ResnapshotStage,
    RowKey,
    TableRead,
    TableResnapshot,
)
from pgcdc_cli.directory.disk import Disk
from pgcdc_cli.directory.json_fields import JsonFields, check_version, dump, load, unusable
from pgcdc_cli.errors import ErrorKind, PgcdcError
from pgcdc_cli.lsn import Lsn
from pgcdc_cli.types.database_text import InvalidText

FORMAT_VERSION = 1

_OLDER_SERVER = (
    "the server is an older copy of itself: bring back the newer one, or use another directory and a new slot"
)

_LISTS = {
    "table": "--table",
    "exclude_table": "--exclude-table",
    "wal2json.add_tables": "add-tables",
    "wal2json.filter_tables": "filter-tables",
}
"""Options that choose among tables, as a checkpoint has them, and as they are given."""
_CONNECTOR_LISTS = tuple(
    f"connector.{one}." for one in ("schema.include", "schema.exclude", "table", "message.prefix")
)
"""Beginnings of a connector's options that choose among changes. Both kinds may change, with a warning."""
_MAY_CHANGE = (*_CONNECTOR_LISTS, "connector.snapshot.", "connector.heartbeat.")
"""Beginnings of a connector's options that may change: what is written already doesn't depend on them."""

_AROUND = 30
"""Characters of a long option that an error shows before and after the place where it changed."""
_SEAL = re.compile(rb',"crc32":([0-9]{1,10})}\n\Z')


@dataclass(frozen=True, slots=True)
class StreamSource:
    """The source of a stream. Publications are sorted by name; `slot` is "" for a snapshot alone."""

    system_id: str
    timeline: int
    database: str
    slot: str
    publications: tuple[str, ...]

    def __post_init__(self) -> None:
        object.__setattr__(self, "publications", tuple(sorted(set(self.publications))))


@dataclass(frozen=True, slots=True)
class FileState:
    """A file's state at one moment: its size in bytes, their CRC-32, and the number and commits of its rows.

    `unchanged` says that the server left out values of some rows (unchanged TOAST); `invalid_text` counts
    values that weren't valid text.
    """

    size: int = 0
    crc32: int = 0
    rows: int = 0
    first_commit_lsn: Lsn = Lsn(0)  # noqa: RUF009 - an int, immutable
    last_commit_lsn: Lsn = Lsn(0)  # noqa: RUF009 - an int, immutable
    unchanged: bool = False
    invalid_text: int = 0


@dataclass(frozen=True, slots=True)
class PartialFile:
    """A data file that isn't finished.

    `path` is relative to the checkpoint's folder. The first `head_size` bytes are the file's head
    (`Piece.head`). `table` is its table's name for the manifest, `schema` the path of the schema file; None
    for a file without.
    """

    path: str
    state: FileState
    part: int = 1
    table: str | None = None
    schema: str | None = None
    head_size: int = 0


@dataclass(frozen=True, slots=True)
class PendingRotation:
    """A rotation that has begun: once this is durable, the run or recovery finishes it.

    `line` is the complete next line of the manifest, which had `manifest_size` bytes before it. `renames` are
    pairs of the old and the new path.
    """

    line: str
    renames: tuple[tuple[str, str], ...]
    manifest_size: int


@dataclass(frozen=True, slots=True)
class Checkpoint:
    """What was durable at one transaction edge.

    - `end_lsn`: everything below it is durable; the end of the last commit, or a later keepalive's position.
    - `options`: the format, and the other options that determine the content of files.
    - `segment`: the number of the open segment, or of the next one.
    - `inode`: device and inode of a single output file, None for a directory.
    - `last_commit`: the last transaction received, None before the first.
    - `prepared`: transactions that were prepared, but not ended, before `end_lsn`; their spools are durable.
    - `creating`: the position at which the snapshot is about to create the stream's slot, None if not known.
      Until the snapshot is complete, `end_lsn` is 0/0.
    - `read`: tables whose snapshot rows are complete, until `end_lsn` reaches the last one's position.
    - `resnapshots`: the progress of tables that are read again while they are streamed.
    """

    source: StreamSource
    end_lsn: Lsn
    options: dict[str, str]
    stream_id: str = field(default_factory=lambda: str(uuid.uuid4()))
    segment: int = 1
    files: tuple[PartialFile, ...] = ()
    pending: PendingRotation | None = None
    inode: tuple[int, int] | None = None
    last_commit: LastCommit | None = None
    prepared: tuple[Prepared, ...] = ()
    creating: Lsn | None = None
    read: tuple[TableRead, ...] = ()
    resnapshots: tuple[TableResnapshot, ...] = ()

    @property
    def edge(self) -> LastEdge:
        """The edge to go on from."""
        return LastEdge(
            lsn=self.end_lsn,
            last_commit=self.last_commit,
            prepared=self.prepared,
            read=self.read,
            resnapshots=self.resnapshots,
        )

    def at(self, edge: LastEdge, files: tuple[PartialFile, ...]) -> "Checkpoint":
        """Return the checkpoint of a later edge, at which these files are unfinished."""
        return replace(
            self,
            end_lsn=edge.lsn,
            last_commit=edge.last_commit,
            prepared=edge.prepared,
            read=edge.read,
            resnapshots=edge.resnapshots,
            files=files,
            creating=None if edge.lsn else self.creating,
        )

    @property
    def unfinished_rows(self) -> int:
        return sum(file.state.rows for file in self.files)


def read_checkpoint(disk: Disk, path: str) -> Checkpoint | None:
    """Read a checkpoint; None if there is none. Raises CHECKPOINT if it is damaged or of another version."""
    if disk.stat(path) is None:
        return None
    try:
        return decode(disk.read(path))
    except ValueError as error:
        raise unusable(path, error) from error


def write_checkpoint(disk: Disk, path: str, checkpoint: Checkpoint) -> None:
    """Replace the checkpoint; it is durable on return."""
    disk.replace(path, encode(checkpoint))
    disk.fsync_folder(str(PurePath(path).parent))


def check_gap(slot: str, slot_position: Lsn, end_lsn: Lsn, hint: str | None = None) -> None:
    """Raise GAP if the slot is ahead of `end_lsn`, where the output ends; `hint` replaces the default."""
    if slot_position > end_lsn:
        message = (
            f'could not continue with slot "{slot}": it is at {slot_position}, the output ends at {end_lsn}'
        )
        raise PgcdcError(ErrorKind.GAP, message, hint=hint)


def check_system(ours: StreamSource, system_id: str, *, hint: str | None = None) -> None:
    """Raise SOURCE_CHANGED for a server with another system identifier; `hint` replaces the default."""
    if ours.system_id != system_id:
        raise changed("system identifier", ours.system_id, system_id, hint=hint)


def changed(what: str, old: str, new: str, *, hint: str | None = None) -> PgcdcError:
    message = f"could not continue from the checkpoint: it belongs to {what} {old}, not {new}"
    return PgcdcError(ErrorKind.SOURCE_CHANGED, message, hint=hint)


def older_server(done: Lsn, log_end: Lsn) -> PgcdcError:
    """Make the error for a server whose WAL ends before our position."""
    message = f"could not continue from {done}: the server's WAL ends before that, at {log_end}"
    return PgcdcError(ErrorKind.SOURCE_CHANGED, message, hint=_OLDER_SERVER)


def allow_mending(checkpoint: Checkpoint, ours: Mapping[str, str], default: InvalidText) -> Checkpoint:
    """Let a stream with `invalid_text` "stop" go on with another choice: its files have no invalid text.

    Not while a transaction is prepared: its spool was received in the earlier choice's encoding. A missing
    option means `default`, the format's own.
    """
    if checkpoint.prepared or checkpoint.options.get("invalid_text", default) != "stop":
        return checkpoint
    others = {name: value for name, value in checkpoint.options.items() if name != "invalid_text"}
    wanted = {name: value for name, value in ours.items() if name == "invalid_text"}
    return replace(checkpoint, options=others | wanted)


def check_options(path: str, ours: Mapping[str, str], theirs: Mapping[str, str]) -> None:
    """Raise USAGE if the checkpoint at `path` has another format or other options.

    An option such as connector.topic.prefix, beside the option connector, only tells what differs if that
    does. If it is nothing but what may change, the stream goes on.
    """
    both, differing = ours.keys() & theirs.keys(), _differing(ours, theirs)
    others = [one for one in differing if one not in _LISTS]
    for name in [one for one in others if one.partition(".")[0] not in both - {one}]:
        # A checkpoint of an older version has no details.
        has_details = any(one.startswith(f"{name}.") for one in theirs)
        details = [one for one in differing if one.startswith(f"{name}.")] if has_details else []
        telling = [one for one in details if not one.startswith(_MAY_CHANGE)]
        if telling or not details:
            raise _other_option(path, next(iter(telling), name), ours, theirs)


def changed_lists(ours: Mapping[str, str], theirs: Mapping[str, str]) -> list[str]:
    """Name the lists, as they are given, that choose other changes than the checkpoint's do."""
    differing = _differing(ours, theirs)
    # Otherwise, it means the same.
    of_connector = _CONNECTOR_LISTS if "connector" in differing else ()
    return [
        _LISTS.get(one) or one.partition(".")[2]
        for one in differing
        if one in _LISTS or one.startswith(of_connector)
    ]


def _differing(ours: Mapping[str, str], theirs: Mapping[str, str]) -> list[str]:
    return [one for one in sorted(ours.keys() | theirs.keys()) if ours.get(one) != theirs.get(one)]


def _other_option(path: str, name: str, ours: Mapping[str, str], theirs: Mapping[str, str]) -> PgcdcError:
    old, now = _shortened(theirs.get(name, "not set"), ours.get(name, "not set"))
    change = f"not {now}" if name in ours and name in theirs else f"and now it is {now}"
    return PgcdcError(
        ErrorKind.USAGE,
        f'could not continue from "{path}": its {name} is {old}, {change}',
        hint="use the same options as before, or another directory or file and a new slot",
    )


def _shortened(one: str, other: str) -> tuple[str, str]:
    """Shorten two long texts to the places where they begin to differ."""
    begin = max(len(commonprefix([one, other])) - _AROUND, 0)  # noqa: RUF071 - characters are meant
    if max(len(one), len(other)) <= 2 * _AROUND:
        return one, other

    def part(text: str) -> str:
        end = begin + 2 * _AROUND
        return f"{'...' if begin else ''}{text[begin:end]}{'...' if end < len(text) else ''}"

    return part(one), part(other)


def encode(checkpoint: Checkpoint) -> bytes:
    """Encode a checkpoint as the bytes of its file."""
    source, pending, tables = checkpoint.source, checkpoint.pending, checkpoint.resnapshots
    body = dump(
        {
            "format_version": FORMAT_VERSION,
            "stream_id": checkpoint.stream_id,
            "source": {
                "system_id": source.system_id,
                "timeline": source.timeline,
                "database": source.database,
                "slot": source.slot,
                "publications": list(source.publications),
            },
            "end_lsn": str(checkpoint.end_lsn),
            "options": checkpoint.options,
            "segment": checkpoint.segment,
            "files": [_encode_file(file) for file in checkpoint.files],
            "pending": None if pending is None else _encode_pending(pending),
            "inode": None if checkpoint.inode is None else list(checkpoint.inode),
            "last_commit": _encode_commit(checkpoint.last_commit),
            "prepared": [_encode_prepared(one) for one in checkpoint.prepared],
            **({} if checkpoint.creating is None else {"creating": str(checkpoint.creating)}),
            **({"read": [_encode_read(one) for one in checkpoint.read]} if checkpoint.read else {}),
            **({"resnapshot": [_encode_resnapshot(one) for one in tables]} if tables else {}),
        }
    )
    return body[:-1] + b',"crc32":%d}\n' % zlib_ng.crc32(body)


def _encode_file(file: PartialFile) -> dict[str, object]:
    state = file.state
    return {
        "path": file.path,
        "size": state.size,
        "crc32": state.crc32,
        "rows": state.rows,
        "first_commit_lsn": str(state.first_commit_lsn),
        "last_commit_lsn": str(state.last_commit_lsn),
        "unchanged": state.unchanged,
        **({"invalid_text": state.invalid_text} if state.invalid_text else {}),
        "part": file.part,
        "table": file.table,
        "schema": file.schema,
        "head_size": file.head_size,
    }


def _encode_commit(last: LastCommit | None) -> dict[str, object] | None:
    return None if last is None else {"end_lsn": str(last.end_lsn), "commit_ts": last.commit_ts}


def _encode_prepared(one: Prepared) -> dict[str, object]:
    return {
        "xid": one.xid,
        "gid": one.gid,
        "prepare_lsn": str(one.prepare_lsn),
        "path": one.path,
        "size": one.size,
        "crc32": one.crc32,
    }


def _encode_read(one: TableRead) -> dict[str, object]:
    return {"table": one.oid, "lsn": str(one.position)}


def _encode_resnapshot(one: TableResnapshot) -> dict[str, object]:
    return {
        "oid": one.oid,
        "table": one.table,
        "key": list(one.key),
        "rows": one.rows,
        "after": None if one.after is None else list(one.after),
        "moved": [list(key) for key in one.moved],
        "lsn": str(one.caught_up_at),
        "stage": one.stage,
        **({"order": one.order} if one.order else {}),
    }


def _encode_pending(pending: PendingRotation) -> dict[str, object]:
    renames = [{"from": old, "to": new} for old, new in pending.renames]
    return {"line": pending.line, "renames": renames, "manifest_size": pending.manifest_size}


def decode(data: bytes) -> Checkpoint:
    """Decode the bytes of a checkpoint file. Raises ValueError, with a reason, if they are damaged."""
    check_version(load(data), "a checkpoint", FORMAT_VERSION)
    seal = _SEAL.search(data)
    if seal is None:
        raise ValueError("it is cut off or damaged")
    body = data[: seal.start()] + b"}"
    if zlib_ng.crc32(body) != int(seal[1]):
        raise ValueError("its checksum is wrong")
    fields = JsonFields(load(body), "the checkpoint")
    fields.count("format_version")
    checkpoint = Checkpoint(
        stream_id=fields.text("stream_id"),
        source=_decode_source(fields.inner("source")),
        end_lsn=fields.lsn("end_lsn"),
        options=fields.texts("options"),
        segment=fields.count("segment"),
        files=tuple(_decode_file(item) for item in fields.items("files")),
        pending=_decode_pending(fields.inner("pending")),
        inode=_decode_inode(fields),
        last_commit=_decode_commit(fields.inner("last_commit")),
        prepared=tuple(_decode_prepared(item) for item in fields.items("prepared")),
        creating=None if fields.missing("creating") else fields.lsn("creating"),
        read=() if fields.missing("read") else tuple(_decode_read(item) for item in fields.items("read")),
        resnapshots=()
        if fields.missing("resnapshot")
        else tuple(_decode_resnapshot(item) for item in fields.items("resnapshot")),
    )
    fields.end()
    if encode(checkpoint) != data:
        raise ValueError("it was not written by pgcdc")
    return checkpoint


def _decode_source(fields: JsonFields | None) -> StreamSource:
    if fields is None:
        raise ValueError("source is null")
    publications = tuple(
        JsonFields({"publication": item}, "source").text("publication")
        for item in fields.items("publications")
    )
    source = StreamSource(
        fields.text("system_id"),
        fields.count("timeline"),
        fields.text("database"),
        fields.text("slot"),
        publications,
    )
    fields.end()
    return source


def _decode_file(data: object) -> PartialFile:
    fields = JsonFields(data, "a file")
    file = PartialFile(
        path=fields.path("path"),
        state=FileState(
            fields.count("size"),
            fields.count("crc32"),
            fields.count("rows"),
            fields.lsn("first_commit_lsn"),
            fields.lsn("last_commit_lsn"),
            fields.flag("unchanged"),
            0 if fields.missing("invalid_text") else fields.count("invalid_text"),
        ),
        part=fields.count("part"),
        table=None if fields.null("table") else fields.text("table"),
        schema=None if fields.null("schema") else fields.path("schema"),
        head_size=fields.count("head_size"),
    )
    fields.end()
    return file


def _decode_commit(fields: JsonFields | None) -> LastCommit | None:
    if fields is None:
        return None
    last = LastCommit(fields.lsn("end_lsn"), fields.count("commit_ts"))
    fields.end()
    return last


def _decode_prepared(data: object) -> Prepared:
    fields = JsonFields(data, "a prepared transaction")
    prepared = Prepared(
        xid=fields.count("xid"),
        gid=fields.text("gid"),
        prepare_lsn=fields.lsn("prepare_lsn"),
        path=None if fields.null("path") else fields.path("path"),
        size=fields.count("size"),
        crc32=fields.count("crc32"),
    )
    fields.end()
    return prepared


def _decode_read(data: object) -> TableRead:
    fields = JsonFields(data, "a table that was read")
    read = TableRead(fields.count("table"), fields.lsn("lsn"))
    fields.end()
    return read


def _decode_resnapshot(data: object) -> TableResnapshot:
    fields = JsonFields(data, "a table that is read again")
    found = TableResnapshot(
        fields.count("oid"),
        fields.text("table"),
        _decode_key(fields.items("key")),
        fields.count("rows"),
        None if fields.null("after") else _decode_key(fields.items("after")),
        tuple(_decode_key(item) for item in fields.items("moved")),
        fields.lsn("lsn"),
        cast("ResnapshotStage", fields.text("stage")),
        "" if fields.missing("order") else fields.text("order"),
    )
    if found.stage not in get_args(ResnapshotStage):
        raise ValueError(f'"{found.stage}" is not a stage of a resnapshot')
    fields.end()
    return found


def _decode_key(items: object) -> RowKey:
    key = tuple(text for text in items if isinstance(text, str)) if isinstance(items, list) else ()
    if not key or len(key) != len(cast("list[object]", items)):
        raise ValueError("a key is not a list of strings")
    return key


def _decode_pending(fields: JsonFields | None) -> PendingRotation | None:
    if fields is None:
        return None
    pending = PendingRotation(
        fields.text("line"),
        tuple(_decode_rename(item) for item in fields.items("renames")),
        fields.count("manifest_size"),
    )
    fields.end()
    return pending


def _decode_rename(data: object) -> tuple[str, str]:
    fields = JsonFields(data, "a rename")
    rename = fields.path("from"), fields.path("to")
    fields.end()
    return rename


def _decode_inode(fields: JsonFields) -> tuple[int, int] | None:
    if fields.null("inode"):
        return None
    match fields.items("inode"):
        case [int(device), int(inode)]:
            return device, inode
    raise ValueError("inode is not a pair of numbers")
