"""Back to the state that the checkpoint names; and a rotation's second half, the same after a crash.

Each step may have happened already. A finished file is never replaced, and the manifest grows by whole
lines only.

Raises CHECKPOINT where the files aren't what the checkpoint says; then nothing was changed, but for steps
of a rotation that had been decided on.
"""

from collections.abc import Iterator
from dataclasses import replace

from pgcdc_cli.directory import manifest
from pgcdc_cli.directory.checkpoint import Checkpoint, PartialFile, Pending
from pgcdc_cli.directory.manifest import Segment, SegmentFile
from pgcdc_cli.directory.open_files import Files, folder_of
from pgcdc_cli.directory.paths import PARTIAL, parse_file_name
from pgcdc_cli.directory.strict_json import damaged
from pgcdc_cli.lsn import Lsn


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


def has_data(files: Files) -> str | None:
    """Find something in a directory that a stream wrote; its path, or None."""
    if files.stat(manifest.NAME) is not None:
        return manifest.NAME
    return next((path for path, _ in data_files(files)), None)


def data_files(files: Files) -> Iterator[tuple[str, int]]:
    """All data files of a directory, finished or not: relative path and segment number."""
    for name in files.disk.names(files.root):
        found = files.stat(name)
        if found is not None and found.folder:
            yield from _data_files(name + "/", files.disk.names(files.full(name)))
        else:
            yield from _data_files("", [name])


def _data_files(folder: str, names: list[str]) -> Iterator[tuple[str, int]]:
    for name in names:
        parsed = parse_file_name(name)
        if parsed is not None:
            yield folder + name, parsed.segment


def recover(files: Files, checkpoint: Checkpoint) -> tuple[Checkpoint, int]:
    """Finish a pending rotation, cut the open files to their durable size, delete unnamed `.partial` files.

    Returns the checkpoint as it is to be saved (the same object if it is on disk as it should be), and the
    manifest's size.
    """
    for file in checkpoint.files:
        _check(files, file)
    if checkpoint.pending is not None:
        check(files, checkpoint.pending)
        size = publish(files, checkpoint.pending)
        checkpoint = replace(checkpoint, pending=None)
    else:
        size = _check_manifest(files, checkpoint)
    for file in checkpoint.files:
        files.truncate(file.path, file.mark.size)
    _remove_unnamed(files, checkpoint)
    return checkpoint, size


def _check(files: Files, file: PartialFile) -> None:
    path = files.full(file.path)
    found = files.stat(file.path)
    if found is None:
        raise damaged(path, "it is missing")
    if found.size < file.mark.size:
        raise damaged(path, f"it has {found.size} bytes, {file.mark.size} were durable")
    if files.disk.crc32(path, file.mark.size) != file.mark.crc32:
        raise damaged(path, "it was changed")


def _check_manifest(files: Files, checkpoint: Checkpoint) -> int:
    path = files.full(manifest.NAME)
    last = manifest.last_segment(files.disk, path)
    number = 0 if last is None else last.segment
    if number != checkpoint.segment - 1:
        raise damaged(path, f"its last segment is {number}, the checkpoint's is {checkpoint.segment - 1}")
    found = files.stat(manifest.NAME)
    return 0 if found is None else found.size


def _remove_unnamed(files: Files, checkpoint: Checkpoint) -> None:
    named = {file.path for file in checkpoint.files}
    for path, segment in tuple(data_files(files)):
        if path.endswith(PARTIAL) and segment >= checkpoint.segment and path not in named:
            files.remove(path)
