"""`pgcdc status`: show the progress of stream, slot and merge."""

import json as json_text
import os
import time
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import asdict
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, NamedTuple

import typer

from pgcdc_cli.cli import units
from pgcdc_cli.cli.command_tree import Command, examples, usage_error
from pgcdc_cli.cli.connection_options import connecting
from pgcdc_cli.cli.printing import counted, facts, human_bytes, table, text_of, warn, write
from pgcdc_cli.cli.slot_view import reader_of, slot_content
from pgcdc_cli.cli.watch import History, Interval, Sample, Watch, repeat
from pgcdc_cli.errors import ErrorKind, PgcdcError
from pgcdc_cli.lsn import Lsn

if TYPE_CHECKING:
    from pgcdc_cli.catalog import Slot
    from pgcdc_cli.directory.checkpoint import Checkpoint
    from pgcdc_cli.reader.directory_reader import Verified
    from pgcdc_cli.spark.warehouse import MergedTable
    from pgcdc_cli.stream_status import FinishedSegments, MergeState

_SERVER = ("PGHOST", "PGHOSTADDR", "PGDATABASE", "PGSERVICE")


def register(app: typer.Typer) -> None:
    """Add `status`."""
    app.command(
        "status",
        cls=Command,
        epilog=examples(
            "pgcdc status changes",
            "pgcdc status changes -d shop --warehouse lake --json",
            "pgcdc status changes -d shop --watch",
            "pgcdc status changes --verify",
            "pgcdc status changes.jsonl -d shop",
        ),
    )(status)


@connecting
def status(  # noqa: PLR0913 - a command's options
    output: Annotated[
        Path,
        typer.Argument(metavar="PATH", help="Directory that `pgcdc stream -D` writes, or the file of -f."),
    ],
    *,
    conninfo: str,
    warehouse: Annotated[
        str | None, typer.Option(metavar="DIR", help="The --warehouse of `pgcdc spark-submit`.")
    ] = None,
    verify: Annotated[
        bool, typer.Option("--verify", help="Read all files, and compare them with their checksums.")
    ] = False,
    json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
    watch: Watch = False,
    interval: Interval = "2s",
) -> None:
    """Show a stream's progress: files, slot, merge.

    Looks up the slot if a server is given, by options or PG* variables: "retained" is the WAL that the slot
    keeps, "safe" how much more may be written before it is in danger, "lag" the part that is not yet
    confirmed. To read all tables as of one moment, use SELECT ... VERSION AS OF their VERSION; --json has
    the queries. --watch adds how fast WAL is written. These are errors: another server, or an older copy of
    it; a slot that is missing, invalidated, or past the checkpoint; a file that --verify finds missing or
    damaged.
    """
    if watch and verify:
        raise usage_error("--verify: with --watch, all files would be read each time")
    if warehouse is not None and _is_file(output):
        raise usage_error("--warehouse: only a directory is merged")
    if watch:
        history = History()
        repeat(
            units.duration(interval),
            lambda: _watched(_look(output, conninfo, warehouse, verify=False), history, json=json),
        )
        return
    found = _look(output, conninfo, warehouse, verify=verify)
    for line in [json_text.dumps(_content(found))] if json else _lines(found):
        write(line)
    nowhere = warehouse is not None and _is_nowhere(warehouse)
    if warehouse is not None and found.merged is None and not nowhere:
        warn(f'can\'t tell what is merged into "{warehouse}": no merge has left its record there')
    _refuse_damages(output, found)
    if found.failure is not None:
        raise found.failure
    if nowhere:
        raise PgcdcError(
            ErrorKind.USAGE,
            f'could not find warehouse "{warehouse}"',
            hint="check its name: pgcdc spark-submit --warehouse makes it at its first merge",
        )


def _is_file(path: Path) -> bool:
    from pgcdc_cli.directory.disk import Disk

    found = Disk().stat(str(path))
    return found is not None and found.regular


def _refuse_damages(output: Path, found: "_Status") -> None:
    if found.verified is None or not found.verified.damages:
        return
    for damage in found.verified.damages:
        warn(damage.message)
    count = len(found.verified.damages)
    are, them = ("is", "it") if count == 1 else ("are", "them")
    reason = f"{count:,} of {counted(found.verified.files, 'file')} {are} missing or damaged"
    message = f'could not verify "{output}": {reason}'
    raise PgcdcError(ErrorKind.CHECKPOINT, message, hint=f"restore {them} from a copy")


def _is_nowhere(warehouse: str) -> bool:
    """Whether a local warehouse doesn't exist: mistyped, or before its first merge."""
    from pgcdc_cli.spark.warehouse import is_there, local_path

    path = local_path(warehouse)
    return path is not None and not is_there(path)


class _Status(NamedTuple):
    """What there is to show; `alone`: the output is one file. `failure` is the slot's problem, if any."""

    alone: bool
    checkpoint: "Checkpoint | None"
    files: "FinishedSegments"
    slot: "Slot | None"
    merged: "MergeState | None"
    failure: PgcdcError | None
    verified: "Verified | None"


def _look(output: Path, conninfo: str, warehouse: str | None, *, verify: bool) -> _Status:
    from pgcdc_cli.stream_status import advise, check_continues, read_local, read_merged, read_slot

    checkpoint, files = read_local(output)
    verified = _verified(output, checkpoint) if verify else None
    merged = None if warehouse is None else read_merged(warehouse, files)
    slot, failure = None, None
    if checkpoint is not None and checkpoint.source.slot and _names_a_server(conninfo):
        try:
            slot = read_slot(conninfo, checkpoint)
            if slot is not None:
                check_continues(output, slot)
        except PgcdcError as error:
            advise(error, output, checkpoint)
            failure = error
    return _Status(not output.is_dir(), checkpoint, files, slot, merged, failure, verified)


def _verified(output: Path, checkpoint: "Checkpoint | None") -> "Verified":
    from pgcdc_cli.reader.directory_reader import is_folder, verify_directory, verify_files
    from pgcdc_cli.reader.stored_file import Promise, StoredFile

    if checkpoint is None or is_folder(output):
        return verify_directory(output)
    states = [file.state for file in checkpoint.files]
    return verify_files(
        [StoredFile(str(output), promise=Promise(one.size, one.crc32, whole=False)) for one in states]
    )


def _watched(found: _Status, history: History, *, json: bool) -> Iterator[str]:
    """Yield the lines of a view, with rates computed from the views before."""
    slot = found.slot
    if json:
        yield json_text.dumps(_content(found))
        return
    if slot is not None and slot.confirmed_flush_lsn is not None and slot.lag_bytes is not None:
        log_end = Lsn(slot.confirmed_flush_lsn + slot.lag_bytes)
        history.add(Sample(time.monotonic(), log_end, slot.lag_bytes, slot.safe_wal_bytes))
    yield f"{datetime.now(UTC):%Y-%m-%d %H:%M:%S} UTC"
    yield from _lines(found, history.facts())
    if found.failure is not None:
        yield ""
        yield f"error: {found.failure.message}"


def _names_a_server(conninfo: str) -> bool:
    from psycopg.conninfo import conninfo_to_dict

    given = conninfo_to_dict(conninfo).keys() - {"fallback_application_name"}
    return bool(given) or any(os.environ.get(name) for name in _SERVER)


def _content(found: _Status) -> dict[str, Any]:
    _, checkpoint, files, slot, merged, _, verified = found
    return {
        "format_version": 1,
        "checkpoint": None if checkpoint is None else _checkpoint_content(checkpoint),
        "slot": None if slot is None else slot_content(slot),
        "files": {**asdict(files), "end_lsn": text_of(files.end_lsn)},
        "merged": None if merged is None else _merged_content(merged),
        "verified": None if verified is None else _verified_content(verified),
    }


def _verified_content(verified: "Verified") -> dict[str, Any]:
    return {
        "files": verified.files,
        "bytes": verified.bytes,
        "damages": [one.message for one in verified.damages],
        "moved_segments": verified.moved,
    }


def _checkpoint_content(checkpoint: "Checkpoint") -> dict[str, Any]:
    return {
        "stream_id": checkpoint.stream_id,
        **asdict(checkpoint.source),
        "end_lsn": str(checkpoint.end_lsn),
        "segment": checkpoint.segment,
        "prepared": [{"gid": one.gid, "xid": one.xid} for one in checkpoint.prepared],
        "unfinished_files": len(checkpoint.files),
        "unfinished_rows": checkpoint.unfinished_rows,
        "resnapshot": [
            {
                "table": one.table,
                "rows": one.rows,
                "stage": one.stage,
                "rows_to_repeat": len(one.moved),
            }
            for one in checkpoint.resnapshots
        ],
        "snapshot": _snapshot_content(checkpoint),
    }


def _snapshot_content(checkpoint: "Checkpoint") -> dict[str, Any] | None:
    """Return the progress of the snapshot before a stream; None if all tables are at one position."""
    if checkpoint.end_lsn and not checkpoint.read:
        return None
    as_of = max((one.position for one in checkpoint.read), default=None)
    return {
        "finished": bool(checkpoint.end_lsn),
        "tables_read": len(checkpoint.read),
        "lsn": text_of(as_of),
    }


def _merged_content(merged: "MergeState") -> dict[str, Any]:
    from pgcdc_cli.stream_status import as_of

    tables = [{**asdict(one), "lsn": str(one.lsn), "query": as_of(one)} for one in merged.tables]
    return {"warehouse": merged.warehouse, "waiting_segments": merged.waiting, "tables": tables}


def _lines(found: _Status, lately: Sequence[tuple[str, str]] = ()) -> Iterator[str]:
    alone, checkpoint, files, slot, merged, _, verified = found
    of_slot = [*_slot_facts(slot), *lately]
    of_files = [*(() if alone else _file_facts(files, merged)), *_verified_facts(verified, files.segments)]
    yield from facts([*_checkpoint_facts(checkpoint, alone=alone), *of_slot, *of_files])
    if files.tables:
        yield ""
        headings = ["TABLE", "FILES", "CHANGES", "SIZE"]
        rows = [[t.table, f"{t.files:,}", f"{t.rows:,}", human_bytes(t.bytes)] for t in files.tables]
        yield from table(headings, rows, headings[1:])
    if merged is not None and merged.tables:
        yield ""
        headings = ["MERGED", "SEGMENT", "LSN", "VERSION"]
        yield from table(headings, map(_merged_cells, merged.tables), headings[1:])
        # Sentences, which would make the table wider than any terminal.
        if problems := _merge_problems(merged.tables):
            yield from ("", *facts(problems))


def _checkpoint_facts(checkpoint: "Checkpoint | None", *, alone: bool) -> Iterator[tuple[str, str]]:
    if checkpoint is None:
        yield "checkpoint", "- (a copy of finished files)"
        return
    from pgcdc_cli.formats.terminal import safe

    source = checkpoint.source
    slot = source.slot or "- (a snapshot without one)"
    yield "slot", f"{slot}, database {source.database}"
    yield "publications", ", ".join(source.publications) or "-"
    yield "durable to", str(checkpoint.end_lsn)
    if (snapshot := _snapshot_content(checkpoint)) is not None:
        yield "snapshot", _snapshot_text(**snapshot)
    if checkpoint.prepared:
        yield "prepared", ", ".join(safe(one.gid) for one in checkpoint.prepared)
    for one in checkpoint.resnapshots:
        done = "done" if one.stage == "done" else "going on"
        yield "read again", f"{safe(one.table)}: {counted(one.rows, 'row')}, {done}"
    rows = checkpoint.unfinished_rows
    if alone:
        size = sum(file.state.size for file in checkpoint.files)
        yield "file", f"{counted(rows, 'change')}, {human_bytes(size)}"
    elif checkpoint.files:
        files, changes = counted(len(checkpoint.files), "file"), counted(rows, "change")
        yield "unfinished", f"{files} with {changes} in segment {checkpoint.segment}"


def _snapshot_text(*, finished: bool, tables_read: int, lsn: str | None) -> str:
    if finished:
        return f"read; tables are as of one moment from {lsn} on"
    complete = "1 table is complete" if tables_read == 1 else f"{tables_read:,} tables are complete"
    return f"in progress, {complete}"


def _slot_facts(slot: "Slot | None") -> Iterator[tuple[str, str]]:
    if slot is None:
        return
    yield "read by", reader_of(slot)
    yield "confirmed", text_of(slot.confirmed_flush_lsn) or "-"
    yield "retained", human_bytes(slot.retained_bytes)
    if slot.safe_wal_bytes is not None:
        yield "safe", human_bytes(slot.safe_wal_bytes)
    yield "lag", human_bytes(slot.lag_bytes)
    if slot.lost:
        yield "invalidated", slot.lost


def _file_facts(files: "FinishedSegments", merged: "MergeState | None") -> Iterator[tuple[str, str]]:
    numbers = (
        f": {files.first_segment} to {files.last_segment}, up to {files.end_lsn}" if files.segments else ""
    )
    yield "segments", f"{files.segments:,}{numbers}"
    if merged is not None:
        yield "to merge", counted(merged.waiting, "segment") if merged.waiting else "nothing"


def _verified_facts(verified: "Verified | None", segments: int) -> Iterator[tuple[str, str]]:
    if verified is None:
        return
    damaged = len(verified.damages)
    result = f"{damaged:,} missing or damaged" if damaged else "as they were written"
    yield "verified", f"{counted(verified.files, 'file')}, {human_bytes(verified.bytes)}: {result}"
    if verified.moved:
        yield "moved away", f"the first {verified.moved:,} of {segments:,} segments"


def _merged_cells(one: "MergedTable") -> list[str]:
    name = one.table if one.mode == "merge" else f"{one.table} (changelog)"
    version = "-" if one.version is None else str(one.version)
    return [name, str(one.segment), str(one.lsn), version]


def _merge_problems(tables: "Iterable[MergedTable]") -> list[tuple[str, str]]:
    """List what is wrong, which names the table; the table and its changelog may say the same."""
    both = ((("problem", one.problem), ("warning", one.warning)) for one in tables)
    return list(dict.fromkeys((what, text) for pair in both for what, text in pair if text))
