"""Opening a directory again: back to the state that the checkpoint names, and nothing else.

Raises CHECKPOINT where the files aren't what the checkpoint says; then nothing was changed, but for steps
of a rotation that had been decided on.
"""

from collections.abc import Iterator
from dataclasses import replace

from pgcdc_cli.sinks import manifest, rotation
from pgcdc_cli.sinks.checkpoint import Checkpoint, PartialFile
from pgcdc_cli.sinks.files import Files
from pgcdc_cli.sinks.paths import PARTIAL, parse_file_name
from pgcdc_cli.sinks.strict import damaged


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
        rotation.check(files, checkpoint.pending)
        size = rotation.publish(files, checkpoint.pending)
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
