"""What an output has beyond its checkpoint: a killed run leaves it, and the server sends it again.

Only beside an older copy of the checkpoint, which the slot is ahead of, it doesn't come again. So nothing is
cut off before the slot is known, and the hint for such a gap says what to do instead of accepting it.
"""

from collections.abc import Iterator

from pgcdc_cli.directory.checkpoint import Checkpoint
from pgcdc_cli.directory.disk import Disk
from pgcdc_cli.directory.file_names import PARTIAL, beside, may_hold_data, parse_file_name
from pgcdc_cli.errors import ErrorKind

GAPS = frozenset({ErrorKind.GAP, ErrorKind.SLOT_MISSING})
"""Errors after which changes don't come again, unless an unfinished snapshot starts over anyway."""

_NEWER_COPY = "restore the checkpoint from a newer copy"
_OLDER = '"{}" has changes beyond its checkpoint, which do not come again: {}'


def gap_remedy_of_file(disk: Disk, folder: str, name: str, checkpoint: Checkpoint) -> str | None:
    """Return the hint for a gap that would cut off what a file has; None if it has nothing more."""
    there = moved_name(disk, folder, name, checkpoint) or name
    found = disk.stat(f"{folder}/{there}")
    if found is None or not checkpoint.files or found.size <= checkpoint.files[0].state.size:
        return None
    return _remedy_of_longer_file(name, there, checkpoint)


def remedy_of_longer_file(disk: Disk, folder: str, name: str, checkpoint: Checkpoint) -> str:
    """Return the hint for a gap that would cut off what a file has, wherever it is now."""
    there = moved_name(disk, folder, name, checkpoint) or name
    return _remedy_of_longer_file(name, there, checkpoint)


def _remedy_of_longer_file(name: str, there: str, checkpoint: Checkpoint) -> str:
    control = beside(name).checkpoint
    move = "move the file away, " if there == name else ""
    return _remedy(there, checkpoint, f"{move}remove {control}, and run again")


def gap_remedy_of_directory(disk: Disk, root: str, checkpoint: Checkpoint) -> str | None:
    """Return the hint for a gap that would cut off what a directory has; None if it has nothing more."""
    longer = (file.path for file in checkpoint.files if _size(disk, f"{root}/{file.path}") > file.state.size)
    unnamed = (path for path in unnamed_partials(disk, root, checkpoint) if _size(disk, f"{root}/{path}"))
    path = next(longer, None) or next(unnamed, None)
    return None if path is None else _remedy(path, checkpoint, "write to another directory")


def _remedy(path: str, checkpoint: Checkpoint, otherwise: str) -> str:
    """Make the hint. With prepared transactions, which are in spools, only a newer checkpoint helps."""
    anew = f"{_NEWER_COPY}; if there is none, {otherwise}"
    return _OLDER.format(path, _NEWER_COPY if checkpoint.prepared else anew)


def _size(disk: Disk, path: str) -> int:
    found = disk.stat(path)
    return 0 if found is None else found.size


def moved_name(disk: Disk, folder: str, name: str, checkpoint: Checkpoint) -> str | None:
    """Return the name that the checkpoint's file has now in its folder; None if it wasn't moved there."""
    there = disk.stat(f"{folder}/{name}")
    if checkpoint.inode is None or (there is not None and (there.size or there.inode == checkpoint.inode)):
        return None
    for other in disk.names(folder):
        found = disk.stat(f"{folder}/{other}")
        if found is not None and found.inode == checkpoint.inode:
            return other
    return None


def unnamed_partials(disk: Disk, root: str, checkpoint: Checkpoint) -> Iterator[str]:
    """Yield the unfinished files of the checkpoint's segment or a later one that it doesn't name."""
    named = {file.path for file in checkpoint.files}
    for path, segment in data_files(disk, root):
        if path.endswith(PARTIAL) and segment >= checkpoint.segment and path not in named:
            yield path


def data_files(disk: Disk, root: str) -> Iterator[tuple[str, int]]:
    """Yield all data files of a directory, finished or not: relative path and segment number.

    Folders that can't be pgcdc's are skipped: only root may look into a file system's `lost+found`.
    """
    for name in disk.names(root):
        found = disk.stat(f"{root}/{name}")
        if found is not None and found.folder:
            if may_hold_data(name):
                yield from _data_files_in(name + "/", disk.names(f"{root}/{name}"))
        else:
            yield from _data_files_in("", [name])


def _data_files_in(folder: str, names: list[str]) -> Iterator[tuple[str, int]]:
    for name in names:
        parsed = parse_file_name(name)
        if parsed is not None:
            yield folder + name, parsed.segment
