"""Which options of `pgcdc stream` and `pgcdc snapshot` go together.

All functions raise a usage error for those that don't.
"""

import re
from pathlib import Path
from typing import get_args

from pgcdc_cli.cli.command_tree import usage_error
from pgcdc_cli.cli.target import StreamTarget, keeps_checkpoint
from pgcdc_cli.formats.interface import FormatName, SnapshotFormatName

_URL = re.compile(r"(abfss?|gs|hdfs|https?|s3a?):/")
"""The beginning of a URL; as a path it has lost a slash."""


def check_connector(
    form: FormatName | None, config: Path | None, properties: list[str] | None, record: str
) -> None:
    """Refuse Debezium's options with another format."""
    if form != "debezium" and (config or properties or record != "full"):
        raise usage_error("--connector-config, -c and --record go with --format debezium")


def check_stream(
    target: StreamTarget,
    *,
    peek: bool,
    looks: bool,
    snapshot: str | None,
    startpos: str | None,
    two_phase: bool,
) -> None:
    """Refuse options about the output and about where the stream begins.

    `peek` is the option; `looks`: the run peeks, be it by default.
    """
    check_target(target)
    if peek and not target.stdout:
        raise usage_error("--peek prints to standard output: it excludes -f FILE and -D")
    if snapshot not in {None, "never"}:
        check_has_snapshots(target, "--snapshot")
        if looks:
            raise usage_error(f"--snapshot {snapshot} makes a slot, and --peek only looks: use -f - or -D")
        if startpos is not None:
            raise usage_error("--snapshot begins where the snapshot is: it excludes -I/--startpos")
    if not target.format_class.decodes:
        _check_raw(target)
    _check_prepared(target, two_phase=two_phase, keeps=keeps_checkpoint(target))


def check_target(target: StreamTarget) -> None:
    """Refuse options of the output that don't go together."""
    if target.file is not None and target.directory is not None:
        raise usage_error("-f and -D exclude each other")
    where = str(target.directory or target.file)
    if _URL.match(where):
        remedy = "write to a local -D, and copy (stream --on-segment)"
        raise usage_error(f'"{where}" is not on this machine: {remedy}')
    if target.on_segment is not None and target.directory is None:
        raise usage_error("--on-segment: only a directory (-D) has segments")
    layouts = target.format_class.capabilities.layouts
    if "table" not in layouts and target.directory is not None:
        raise usage_error(f"--format {target.format} goes into one file (-f) or to standard output")
    if "stream" not in layouts and target.directory is None:
        raise usage_error(f"--format {target.format} needs a directory (-D): a file holds one table")
    by_table = target.directory is not None and target.layout == "table"
    if by_table and target.wal2json is not None and target.wal2json.has_boundaries:
        raise usage_error(
            "--format wal2json: begins and commits have no place in the tables' files;"
            " use --layout stream, or --wal2json-option include-transaction=false"
        )


def _check_raw(target: StreamTarget) -> None:
    if target.invalid_text is not None:
        raise usage_error("--invalid-text: raw output has text as it is in the database")
    if target.selection is not None and target.selection.options:
        raise usage_error("--table, --exclude-table and --exclude-column: raw output has all that is sent")


def _check_prepared(target: StreamTarget, *, two_phase: bool, keeps: bool) -> None:
    """Refuse prepared transactions that the output can't show or keep; `keeps`: it has a checkpoint."""
    form = target.format_class
    if target.at_prepare and not form.capabilities.transactions:
        raise usage_error(f"--two-phase-at prepare: --format {form.name} can't show how a transaction ended")
    if two_phase and not target.at_prepare and not keeps and form.decodes:
        raise usage_error(
            "--two-phase: nothing keeps a prepared transaction until it commits;"
            " use -f or -D, or --two-phase-at prepare"
        )


def check_slot(target: StreamTarget, slot: str | None, *, create_slot: bool, if_not_exists: bool) -> None:
    """Refuse a missing slot, which a connector's configuration always names, and options about making it."""
    if slot is None and target.connector is None:
        raise usage_error("-S/--slot is missing")
    if if_not_exists and not create_slot:
        raise usage_error("--if-not-exists goes with --create-slot")


def check_limits(target: StreamTarget, max_transactions: str | None) -> None:
    """Refuse a limit that the format can't keep."""
    if max_transactions is not None and not target.format_class.decodes:
        raise usage_error("--max-transactions: raw output doesn't know where a transaction ends")


def check_resnapshot(target: StreamTarget, snapshot: str | None, *, looks: bool) -> None:
    """Refuse options that exclude --resnapshot."""
    check_has_snapshots(target, "--resnapshot")
    if looks or not keeps_checkpoint(target):
        raise usage_error("--resnapshot: a checkpoint has to keep its progress: use -f FILE or -D")
    if snapshot == "only":
        raise usage_error("--resnapshot reads while it streams, and --snapshot only exits before that")


def check_has_snapshots(target: StreamTarget, what: str) -> None:
    """Refuse the option `what` if the format can't represent existing rows."""
    if target.format not in get_args(SnapshotFormatName):
        raise usage_error(f"{what}: {why_no_snapshots(target.format)}")


def why_no_snapshots(form: str) -> str:
    """Say why a format has no snapshots."""
    if form == "raw":
        return "raw output is what the plugin sends, which has no rows of tables"
    return f"{form} can't represent existing rows"
