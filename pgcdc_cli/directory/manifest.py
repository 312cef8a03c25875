"""The manifest of a directory's data files, with one line for each finished segment.

Readers take whole segments from it: each is complete for all tables up to its `end_lsn`.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from pgcdc_cli.directory.checkpoint import Checkpoint, read_checkpoint
from pgcdc_cli.directory.disk import Disk, OpenFiles, damaged
from pgcdc_cli.directory.file_names import CHECKPOINT, MANIFEST
from pgcdc_cli.directory.json_fields import (
    JsonFields,
    OtherVersionError,
    check_version,
    dump,
    load,
    unusable,
)
from pgcdc_cli.lsn import Lsn

FORMAT_VERSION = 1
"""Of the manifest's lines."""

_TAIL = 1 << 16


@dataclass(frozen=True, slots=True)
class SegmentFile:
    """A finished data file.

    `table` is `schema.table`, `_messages`, or None for a file of all tables. `path` and `schema` are relative
    to the directory. `bytes` and `crc32` are those of the file as stored. `unchanged` says that the server
    left out values of some rows (unchanged TOAST); `invalid_text` counts values that weren't valid text.
    """

    table: str | None
    path: str
    format: str
    rows: int
    bytes: int
    crc32: int
    schema: str | None
    unchanged: bool
    invalid_text: int = 0


@dataclass(frozen=True, slots=True)
class Segment:
    """A range of whole transactions across all tables, up to `end_lsn`."""

    segment: int
    stream_id: str
    first_commit_lsn: Lsn
    last_commit_lsn: Lsn
    end_lsn: Lsn
    files: tuple[SegmentFile, ...]


def encode_segment(segment: Segment) -> str:
    """Encode a segment as a line of the manifest, with its newline."""
    files: list[object] = [
        {
            "table": file.table,
            "path": file.path,
            "format": file.format,
            "rows": file.rows,
            "bytes": file.bytes,
            "crc32": file.crc32,
            "schema": file.schema,
            "unchanged": file.unchanged,
            **({"invalid_text": file.invalid_text} if file.invalid_text else {}),
        }
        for file in segment.files
    ]
    line = dump(
        {
            "segment": segment.segment,
            "stream_id": segment.stream_id,
            "first_commit_lsn": str(segment.first_commit_lsn),
            "last_commit_lsn": str(segment.last_commit_lsn),
            "end_lsn": str(segment.end_lsn),
            "files": files,
            "format_version": FORMAT_VERSION,
        }
    )
    return line.decode() + "\n"


def decode_segment(line: bytes) -> Segment:
    """Decode a line of the manifest, without its newline. Raises ValueError if it is damaged."""
    content = load(line)
    check_version(content, "a segment", FORMAT_VERSION)
    fields = JsonFields(content, "a segment")
    fields.count("format_version")
    segment = Segment(
        fields.count("segment"),
        fields.text("stream_id"),
        fields.lsn("first_commit_lsn"),
        fields.lsn("last_commit_lsn"),
        fields.lsn("end_lsn"),
        tuple(_decode_file(item) for item in fields.items("files")),
    )
    fields.end()
    return segment


def _decode_file(data: object) -> SegmentFile:
    fields = JsonFields(data, "a file")
    file = SegmentFile(
        table=None if fields.null("table") else fields.text("table"),
        path=fields.path("path"),
        format=fields.text("format"),
        rows=fields.count("rows"),
        bytes=fields.count("bytes"),
        crc32=fields.count("crc32"),
        schema=None if fields.null("schema") else fields.path("schema"),
        unchanged=fields.missing("unchanged") or fields.flag("unchanged"),
        invalid_text=0 if fields.missing("invalid_text") else fields.count("invalid_text"),
    )
    fields.end()
    return file


def read_manifest(path: str, disk: Disk | None = None) -> list[Segment]:
    """Read all finished segments of a directory; an empty list if there is no manifest yet.

    A last line without a line feed is incomplete: its segment isn't finished. Raises CHECKPOINT for a damaged
    line, and for segments out of order.
    """
    disk = disk or Disk()
    if disk.stat(path) is None:
        return []
    data = disk.read(path)
    try:
        return _in_order(_decode_lines(data))
    except ValueError as error:
        raise unusable(path, error) from error


def read_state(directory: str, disk: Disk) -> tuple[Checkpoint | None, list[Segment]]:
    """Read a directory's checkpoint, if it has one, and its finished segments, while a stream may go on.

    Raises CHECKPOINT if either is damaged, or the manifest lacks segments that the checkpoint has finished.
    """
    # The checkpoint first: if its segment is finished meanwhile, that is in the manifest, and none is
    # skipped.
    checkpoint = read_checkpoint(disk, f"{directory}/{CHECKPOINT}")
    segments = read_manifest(f"{directory}/{MANIFEST}", disk)
    if checkpoint is not None:
        _check_against(f"{directory}/{MANIFEST}", segments, checkpoint)
    return checkpoint, segments


def _check_against(path: str, segments: Sequence[Segment], checkpoint: Checkpoint) -> None:
    last = segments[-1].segment if segments else 0
    finished = checkpoint.segment - 1 - (checkpoint.pending is not None)
    if last < finished:
        raise damaged(path, f"its last segment is {last}, the checkpoint's is {finished}", doing="read")


def last_segment(disk: Disk, path: str) -> Segment | None:
    """Read only the last finished segment, from the manifest's end; None if there is none."""
    found = disk.stat(path)
    if found is None or not found.size:
        return None
    try:
        return decode_segment(_last_line(disk, path, found.size))
    except OtherVersionError as error:
        raise unusable(path, error) from error
    except ValueError as error:
        raise damaged(path, f"the last line: {error}", doing="read") from error


def _last_line(disk: Disk, path: str, size: int) -> bytes:
    length = _TAIL
    while True:
        start = max(0, size - length)
        tail = disk.read(path, start, length)
        if not tail.endswith(b"\n"):
            raise ValueError("it is cut off")
        lines = tail.split(b"\n")
        if len(lines) > 2 or not start:
            return lines[-2]
        length *= 4


def _decode_lines(data: bytes) -> Iterable[Segment]:
    for number, line in enumerate(data.split(b"\n")[:-1], 1):
        try:
            yield decode_segment(line)
        except OtherVersionError:
            raise
        except ValueError as error:
            raise ValueError(f"line {number}: {error}") from error


def _in_order(segments: Iterable[Segment]) -> list[Segment]:
    found: list[Segment] = []
    for segment in segments:
        if found and segment.segment != found[-1].segment + 1:
            raise ValueError(f"segment {segment.segment} follows segment {found[-1].segment}")
        if found and segment.end_lsn < found[-1].end_lsn:
            raise ValueError(f"segment {segment.segment} ends before the one before it")
        found.append(segment)
    return found


def append_line(files: OpenFiles, line: bytes, size: int) -> None:
    """Append a segment's line, line break included, to a manifest of `size` bytes, and make that durable.

    What a crash left of the same line is cut off first, and a line that is whole already stays. Raises
    CHECKPOINT if the manifest is shorter than that, or if anything else follows.
    """
    path = files.full(MANIFEST)
    found = files.stat(MANIFEST)
    if found is None:
        if size:
            raise damaged(path, "it is missing")
        files.create(MANIFEST)
    rest = b"" if found is None else _torn(files, found.size, line, size)
    if rest != line:
        if rest:
            files.truncate(MANIFEST, size)
        files.append(MANIFEST, line)
    files.fsync_all({MANIFEST: size + len(line)})
    files.changed_folders.add("")
    files.fsync_folders()


def _torn(files: OpenFiles, found: int, line: bytes, size: int) -> bytes:
    """Read what follows the recorded size: nothing, the line, or what a crash left of it."""
    if found < size:
        raise damaged(files.full(MANIFEST), "it is shorter than it was")
    if found > size + len(line):
        raise damaged(files.full(MANIFEST), "something else was appended to it")
    return files.disk.read(files.full(MANIFEST), size)
