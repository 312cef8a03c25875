"""`pgcdc status`: how far stream, slot and merge are."""

import json as json_text
import os
from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from pgcdc_cli.cli.command_tree import Command, examples
from pgcdc_cli.cli.connection_options import connecting
from pgcdc_cli.cli.printing import facts, human_bytes, say, table, text_of, write
from pgcdc_cli.cli.slot import reader_of, slot_content
from pgcdc_cli.errors import PgcdcError

if TYPE_CHECKING:
    from pgcdc_cli.catalog import Slot
    from pgcdc_cli.directory.checkpoint import Checkpoint
    from pgcdc_cli.spark.warehouse import MergedTable
    from pgcdc_cli.stream_status import FinishedSegments, MergeState

_SERVER = ("PGHOST", "PGHOSTADDR", "PGDATABASE", "PGSERVICE")


def register(app: typer.Typer) -> None:
    """Add `status`."""
    app.command(
        "status",
        cls=Command,
        epilog=examples("pgcdc status changes", "pgcdc status changes -d shop --warehouse lake --json"),
    )(status)


@connecting
def status(
    directory: Annotated[Path, typer.Argument(metavar="DIR", help="Directory of `pgcdc stream -D`.")],
    *,
    conninfo: str,
    warehouse: Annotated[
        str | None, typer.Option(metavar="DIR", help="Directory of `pgcdc spark-submit --warehouse`.")
    ] = None,
    json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """Show how far a directory is: checkpoint, files, slot and merge.

    The slot is looked up where a server is given, by options or PG* variables: "retained" is the log that it
    holds back, "lag" what of that isn't confirmed. Tables read at their VERSION are as of one moment: SELECT
    ... VERSION AS OF; --json has the queries. A slot that is missing or beyond the checkpoint is an error.
    """
    from pgcdc_cli.stream_status import check_no_gap, read_local, read_merged, read_slot

    checkpoint, files = read_local(directory)
    merged = None if warehouse is None else read_merged(warehouse, files)
    slot, failure = None, None
    if checkpoint is not None and _names_a_server(conninfo):
        try:
            slot = read_slot(conninfo, checkpoint.source.slot)
            check_no_gap(directory, slot)
        except PgcdcError as error:
            failure = error
    if json:
        write(json_text.dumps(_content(checkpoint, files, slot, merged)))
    else:
        for line in _lines(checkpoint, files, slot, merged):
            write(line)
    if warehouse is not None and merged is None:
        say(f'warning: can\'t tell what is merged into "{warehouse}": no merge has left its record there')
    if failure is not None:
        raise failure


def _names_a_server(conninfo: str) -> bool:
    from psycopg.conninfo import conninfo_to_dict

    given = conninfo_to_dict(conninfo).keys() - {"fallback_application_name"}
    return bool(given) or any(os.environ.get(name) for name in _SERVER)


def _content(
    checkpoint: "Checkpoint | None",
    files: "FinishedSegments",
    slot: "Slot | None",
    merged: "MergeState | None",
) -> dict[str, Any]:
    return {
        "format_version": 1,
        "checkpoint": None if checkpoint is None else _checkpoint_content(checkpoint),
        "slot": None if slot is None else slot_content(slot),
        "files": {**asdict(files), "end_lsn": text_of(files.end_lsn)},
        "merged": None if merged is None else _merged_content(merged),
    }


def _checkpoint_content(checkpoint: "Checkpoint") -> dict[str, Any]:
    return {
        "stream_id": checkpoint.stream_id,
        **asdict(checkpoint.source),
        "end_lsn": str(checkpoint.end_lsn),
        "segment": checkpoint.segment,
        "prepared": [{"gid": one.gid, "xid": one.xid} for one in checkpoint.prepared],
        "unfinished_files": len(checkpoint.files),
        "unfinished_rows": sum(file.state.rows for file in checkpoint.files),
    }


def _merged_content(merged: "MergeState") -> dict[str, Any]:
    from pgcdc_cli.stream_status import as_of

    tables = [{**asdict(one), "lsn": str(one.lsn), "query": as_of(one)} for one in merged.tables]
    return {"warehouse": merged.warehouse, "waiting_segments": merged.waiting, "tables": tables}


def _lines(
    checkpoint: "Checkpoint | None",
    files: "FinishedSegments",
    slot: "Slot | None",
    merged: "MergeState | None",
) -> Iterator[str]:
    yield from facts([*_checkpoint_facts(checkpoint), *_slot_facts(slot), *_file_facts(files, merged)])
    if files.tables:
        yield ""
        headings = ["TABLE", "FILES", "CHANGES", "SIZE"]
        rows = [[t.table, f"{t.files:,}", f"{t.rows:,}", human_bytes(t.bytes)] for t in files.tables]
        yield from table(headings, rows, headings[1:])
    if merged is not None and merged.tables:
        yield ""
        headings = ["MERGED", "SEGMENT", "LSN", "VERSION", "PROBLEM"]
        yield from table(headings, map(_merged_cells, merged.tables), headings[1:4])


def _checkpoint_facts(checkpoint: "Checkpoint | None") -> Iterator[tuple[str, str]]:
    if checkpoint is None:
        yield "checkpoint", "- (a copy of finished files)"
        return
    from pgcdc_cli.formats.terminal import safe

    source = checkpoint.source
    yield "slot", f"{source.slot}, database {source.database}"
    yield "publications", ", ".join(source.publications) or "-"
    yield "durable to", str(checkpoint.end_lsn)
    if checkpoint.prepared:
        yield "prepared", ", ".join(safe(one.gid) for one in checkpoint.prepared)
    if checkpoint.files:
        rows = sum(file.state.rows for file in checkpoint.files)
        yield (
            "unfinished",
            f"{len(checkpoint.files)} files with {rows:,} changes in segment {checkpoint.segment}",
        )


def _slot_facts(slot: "Slot | None") -> Iterator[tuple[str, str]]:
    if slot is None:
        return
    yield "read by", reader_of(slot)
    yield "confirmed", text_of(slot.confirmed_flush_lsn) or "-"
    yield "retained", human_bytes(slot.retained_bytes)
    yield "lag", human_bytes(slot.lag_bytes)
    if slot.invalidation_reason is not None or slot.wal_status == "lost":
        yield "invalidated", slot.invalidation_reason or "its log is gone"


def _file_facts(files: "FinishedSegments", merged: "MergeState | None") -> Iterator[tuple[str, str]]:
    numbers = (
        f": {files.first_segment} to {files.last_segment}, up to {files.end_lsn}" if files.segments else ""
    )
    yield "segments", f"{files.segments:,}{numbers}"
    if merged is not None:
        yield "to merge", f"{merged.waiting:,} segments" if merged.waiting else "nothing"


def _merged_cells(one: "MergedTable") -> list[str]:
    name = one.table if one.mode == "merge" else f"{one.table} (changelog)"
    version = "-" if one.version is None else str(one.version)
    return [name, str(one.segment), str(one.lsn), version, one.problem or ""]
