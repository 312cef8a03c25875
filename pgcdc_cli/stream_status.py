"""The progress of a stream: checkpoint and finished files of its output, its slot, and its merge by Spark."""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from pgcdc_cli.catalog import Catalog, Slot
from pgcdc_cli.directory.beyond_checkpoint import GAPS, gap_remedy_of_directory, gap_remedy_of_file
from pgcdc_cli.directory.checkpoint import Checkpoint, check_gap, check_system, older_server, read_checkpoint
from pgcdc_cli.directory.disk import Disk, damaged
from pgcdc_cli.directory.file_names import CHECKPOINT, MANIFEST, beside
from pgcdc_cli.directory.manifest import Segment, read_state
from pgcdc_cli.errors import ErrorKind, PgcdcError
from pgcdc_cli.lsn import Lsn
from pgcdc_cli.spark.warehouse import MergedTable, read_record

_GIVE = "give the directory that pgcdc stream -D writes, or the file of -f"


@dataclass(frozen=True)
class FinishedTable:
    """A table's finished files: `rows` counts changes, `bytes` is the size on disk."""

    table: str
    files: int
    rows: int
    bytes: int


@dataclass(frozen=True)
class FinishedSegments:
    """All finished segments; segment numbers and position are None if there are none."""

    segments: int
    first_segment: int | None
    last_segment: int | None
    end_lsn: Lsn | None
    tables: Sequence[FinishedTable]


@dataclass(frozen=True)
class MergeState:
    """What a warehouse holds; `waiting` counts segments not yet merged into every table in every mode."""

    warehouse: str
    tables: Sequence[MergedTable]
    waiting: int


def read_local(output: Path) -> tuple[Checkpoint | None, FinishedSegments]:
    """Read the checkpoint of a directory or file, and a directory's manifest.

    Raises USAGE if no stream wrote it, CHECKPOINT for damage.
    """
    disk = Disk()
    found = disk.stat(str(output))
    if found is not None and found.folder:
        return _read_directory(output, disk)
    place = output.parent / beside(output.name).checkpoint
    checkpoint = read_checkpoint(disk, str(place))
    if checkpoint is None:
        reason = "it does not exist" if found is None else f"there is no {place.name} next to it"
        raise PgcdcError(ErrorKind.USAGE, f'could not read "{output}": {reason}', hint=_GIVE)
    for file in checkpoint.files:
        # A file that is missing was moved, perhaps a moment ago, and HUP will tell the stream.
        if found is not None and found.size < file.state.size:
            reason = f"it has {found.size} bytes, {file.state.size} were durable"
            raise damaged(str(output), reason, doing="read")
    return checkpoint, _files([])


def _read_directory(directory: Path, disk: Disk) -> tuple[Checkpoint | None, FinishedSegments]:
    checkpoint, segments = read_state(str(directory), disk)
    if checkpoint is None and not segments:
        reason = f"there is neither {CHECKPOINT} nor {MANIFEST} in it"
        raise PgcdcError(ErrorKind.USAGE, f'could not read "{directory}": {reason}', hint=_GIVE)
    return checkpoint, _files(segments)


def _files(segments: Sequence[Segment]) -> FinishedSegments:
    files, rows, sizes = Counter[str](), Counter[str](), Counter[str]()
    for file in (file for segment in segments for file in segment.files):
        name = file.table or "(all tables)"
        files[name] += 1
        rows[name] += file.rows
        sizes[name] += file.bytes
    tables = [FinishedTable(name, files[name], rows[name], sizes[name]) for name in sorted(files)]
    if not segments:
        return FinishedSegments(0, None, None, None, tables)
    first, last = segments[0], segments[-1]
    return FinishedSegments(len(segments), first.segment, last.segment, last.end_lsn, tables)


def read_slot(conninfo: str, checkpoint: Checkpoint) -> Slot | None:
    """Look up the slot that a checkpoint names; None if its snapshot has not created it yet.

    Raises SLOT_MISSING if it should exist, and doesn't, and SOURCE_CHANGED for another server, or an older
    copy of the checkpoint's.
    """
    name = checkpoint.source.slot
    with Catalog(conninfo) as catalog:
        _check_server(catalog, checkpoint)
        slot = catalog.slot(name)
    if slot is None and (checkpoint.end_lsn or checkpoint.read):
        raise PgcdcError(
            ErrorKind.SLOT_MISSING,
            f'could not find slot "{name}", which the checkpoint names: it does not exist',
            hint="its changes since then are lost: start over in another directory or file, with a new slot",
        )
    return slot


def _check_server(catalog: Catalog, checkpoint: Checkpoint) -> None:
    """Raise SOURCE_CHANGED for another server, or an older copy of it, since a slot there says nothing.

    A standby may be behind the checkpoint. Timelines are left to the run, which may read their history; so is
    everything that the role may not ask.
    """
    try:
        system_id, log_end = catalog.identity()
    except PgcdcError as error:
        if error.kind is ErrorKind.RIGHTS:
            return
        raise
    check_system(checkpoint.source, system_id)
    if log_end is not None and log_end < checkpoint.end_lsn:
        raise older_server(checkpoint.end_lsn, log_end)


def check_continues(output: Path, slot: Slot) -> None:
    """Raise SLOT_INVALIDATED for a slot that is lost, and GAP if it is ahead of the output's checkpoint.

    Call it after the slot was read: a running stream moves the checkpoint first, then the slot.
    """
    if slot.lost:
        message = f'could not continue with slot "{slot.name}": invalidated ({slot.lost})'
        raise PgcdcError(ErrorKind.SLOT_INVALIDATED, message)
    checkpoint = read_local(output)[0]
    if checkpoint is not None and checkpoint.end_lsn:
        check_gap(slot.name, slot.confirmed_flush_lsn or Lsn(0), checkpoint.end_lsn)


def advise(error: PgcdcError, output: Path, checkpoint: Checkpoint) -> None:
    """Give the error of a slot the hint that a run gives, if accepting the gap would cut something off."""
    if error.kind not in GAPS or not checkpoint.end_lsn:
        return
    disk = Disk()
    if output.is_dir():
        remedy = gap_remedy_of_directory(disk, str(output), checkpoint)
    else:
        remedy = gap_remedy_of_file(disk, str(output.parent), output.name, checkpoint)
    error.hint = remedy or error.hint


def read_merged(warehouse: str, files: FinishedSegments) -> MergeState | None:
    """Read what Spark has merged; None if there is no record of it, or only Spark can read that."""
    rows = read_record(warehouse)
    if rows is None:
        return None
    reached = min((row.segment for row in rows), default=0)
    tables = sorted((row for row in rows if row.table), key=lambda row: (row.table, row.mode))
    return MergeState(warehouse, tables, max((files.last_segment or 0) - reached, 0))


def as_of(table: MergedTable) -> str | None:
    """Write a query that reads a table as of its last merge; None if nothing was merged into it."""
    if table.version is None or table.path is None:
        return None
    quoted = table.path.replace("`", "``")
    # Iceberg's paths are quoted names already.
    name = table.path if table.path.startswith("`") else f"delta.`{quoted}`"
    return f"SELECT * FROM {name} VERSION AS OF {table.version}"  # noqa: S608 - the name is quoted
