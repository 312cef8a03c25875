"""The second half of a rotation, the same whether it goes on at once or after a crash.

Each step may have happened already. A finished file is never replaced, and the manifest grows by whole
lines only.
"""

from pgcdc_cli.lsn import Lsn
from pgcdc_cli.sinks import manifest
from pgcdc_cli.sinks.checkpoint import Checkpoint, PartialFile, Pending
from pgcdc_cli.sinks.files import Files, folder_of
from pgcdc_cli.sinks.manifest import Segment, SegmentFile
from pgcdc_cli.sinks.paths import PARTIAL
from pgcdc_cli.sinks.strict import damaged


def plan(
    checkpoint: Checkpoint, end_lsn: Lsn, kind: str, files: tuple[PartialFile, ...], manifest_size: int
) -> Pending:
    """Say how the checkpoint's segment, with these complete files (at least one), is to be published."""
    line = Segment(
        checkpoint.segment,
        checkpoint.stream_id,
        min(file.mark.first_commit_lsn for file in files),
        max(file.mark.last_commit_lsn for file in files),
        end_lsn,
        tuple(_finished(file, kind) for file in files),
    )
    renames = tuple((file.path, file.path.removesuffix(PARTIAL)) for file in files)
    return Pending(manifest.encode_segment(line), renames, manifest_size)


def _finished(file: PartialFile, kind: str) -> SegmentFile:
    path, mark = file.path.removesuffix(PARTIAL), file.mark
    return SegmentFile(
        file.table, path, kind, mark.rows, mark.size, mark.crc32, file.schema, unchanged=mark.unchanged
    )


def check(files: Files, pending: Pending) -> None:
    """Verify that every file of a pending rotation is there and as it was; CHECKPOINT if not."""
    for file in manifest.decode_segment(pending.line.encode()).files:
        path = file.path if files.stat(file.path) is not None else file.path + PARTIAL
        found = files.stat(path)
        if found is None:
            raise damaged(files.full(file.path), "it is missing")
        if found.size != file.bytes or files.disk.crc32(files.full(path), file.bytes) != file.crc32:
            raise damaged(files.full(path), "it was changed")


def publish(files: Files, pending: Pending) -> int:
    """Rename the files, make that durable, append the manifest's line; returns the manifest's new size."""
    for old, new in pending.renames:
        _rename(files, old, new)
    files.fsync_folders()
    line = pending.line.encode()
    _append_line(files, line, pending.manifest_size)
    return pending.manifest_size + len(line)


def _rename(files: Files, old: str, new: str) -> None:
    source, target = files.stat(old), files.stat(new)
    if source is not None and target is not None:
        raise damaged(files.full(new), "it is there already")
    if source is None and target is None:
        raise damaged(files.full(new), "it is missing")
    if source is not None:
        files.rename(old, new)
    files.changed_folders.add(folder_of(new))


def _append_line(files: Files, line: bytes, size: int) -> None:
    path = files.full(manifest.NAME)
    found = files.stat(manifest.NAME)
    if found is None:
        if size:
            raise damaged(path, "it is missing")
        files.create(manifest.NAME)
    rest = b"" if found is None else _torn(files, found.size, line, size)
    if rest != line:
        if rest:
            files.truncate(manifest.NAME, size)
        files.append(manifest.NAME, line)
    files.fsync(manifest.NAME)
    files.changed_folders.add("")
    files.fsync_folders()


def _torn(files: Files, found: int, line: bytes, size: int) -> bytes:
    """Read what stands after the recorded length: nothing, the line, or what a crash left of it."""
    if found < size:
        raise damaged(files.full(manifest.NAME), "it is shorter than it was")
    if found > size + len(line):
        raise damaged(files.full(manifest.NAME), "something else was appended to it")
    return files.disk.read(files.full(manifest.NAME), size)
