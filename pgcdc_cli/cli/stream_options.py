"""The options of `pgcdc stream`, in the order of its help, and what their values mean."""

import os
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from pgcdc_cli.cli import units
from pgcdc_cli.cli.command_tree import usage_error
from pgcdc_cli.cli.metrics import address
from pgcdc_cli.formats.interface import Compression as CompressionName
from pgcdc_cli.formats.interface import FormatName
from pgcdc_cli.formats.interface import Layout as LayoutName
from pgcdc_cli.formats.interface import Numeric as NumericName
from pgcdc_cli.types.database_text import InvalidText as InvalidTextName

if TYPE_CHECKING:
    from pgcdc_cli.changes.selection import NamePattern, Selection
    from pgcdc_cli.replication.commands import PluginOptions
    from pgcdc_cli.stream.settings import RunLimits

_MOST_WORKERS = 4

OUTPUT, DEBEZIUM, WAL2JSON = "Output", "Debezium", "wal2json"
END, SERVER = "Where it ends", "What the server sends"

Slot = Annotated[str | None, typer.Option("-S", "--slot", metavar="NAME", help="Replication slot to read.")]
Publication = Annotated[list[str] | None, typer.Option(metavar="NAME", help="Publication to read.")]
CreateSlot = Annotated[bool, typer.Option("--create-slot", help="Create the slot first.")]
IfNotExists = Annotated[
    bool, typer.Option("--if-not-exists", help="With --create-slot: use the slot if it exists.")
]
Peek = Annotated[
    bool,
    typer.Option(
        "--peek",
        help="Consume nothing: read a temporary copy of the slot. Default on a terminal without -f or -D.",
    ),
]
Startpos = Annotated[
    str | None,
    typer.Option(
        "-I",
        "--startpos",
        metavar="LSN",
        callback=units.checked(units.lsn),
        help="Start here, unless the slot is already past it.",
    ),
]
NoLoop = Annotated[bool, typer.Option("-n", "--no-loop", help="Don't reconnect when the connection is lost.")]
StatusInterval = Annotated[
    str,
    typer.Option(
        "-s",
        "--status-interval",
        metavar="TIME",
        callback=units.checked(units.duration),
        help="Time between status updates; 0: only those the server needs.",
    ),
]
Snapshot = Annotated[
    Literal["never", "initial", "only"] | None,
    typer.Option(
        help="For a new stream: create the slot and write the existing rows first. only: then exit."
    ),
]
Resnapshot = Annotated[
    list[str] | None,
    typer.Option(
        metavar="PATTERN",
        help="Read matching published tables again while streaming: schema.table, with * and ?.",
    ),
]
AcceptGap = Annotated[
    bool, typer.Option("--accept-gap", help="Start over as a new stream if changes were lost.")
]
AcceptPublications = Annotated[
    bool, typer.Option("--accept-publications", help="Continue with a different set of publications.")
]
AcceptDatabase = Annotated[
    bool, typer.Option("--accept-database", help="Continue after ALTER DATABASE ... RENAME.")
]
AcceptUpgrade = Annotated[
    bool, typer.Option("--accept-upgrade", help="Continue on the server that pg_upgrade made.")
]
SnapshotWorkers = Annotated[
    str | None,
    typer.Option(
        metavar="N",
        callback=units.checked(units.whole_number),
        help="Connections that read the snapshot. Default: number of CPUs, at most 4.",
    ),
]
NoCatalog = Annotated[
    bool,
    typer.Option("--no-catalog", help="Don't ask the server for keys, defaults and labels."),
]
Progress = Annotated[
    bool | None,
    typer.Option("--progress/--no-progress", help="Show rows/s, lag and LSN. Default: only on a terminal."),
]
File = Annotated[
    str | None,
    typer.Option(
        "-f", "--file", metavar="FILE", help="One file; - for standard output.", rich_help_panel=OUTPUT
    ),
]
Directory = Annotated[
    Path | None,
    typer.Option(
        "-D",
        "--directory",
        metavar="DIR",
        help="Directory of rotating files, with a checkpoint.",
        rich_help_panel=OUTPUT,
    ),
]
FileFormat = Annotated[
    FormatName | None,
    typer.Option("--format", help="Default: pretty on a terminal, else jsonl.", rich_help_panel=OUTPUT),
]
Layout = Annotated[
    LayoutName, typer.Option(help="With -D: a folder per table, or all in one file.", rich_help_panel=OUTPUT)
]
Compression = Annotated[
    CompressionName, typer.Option(help="Compression of the files.", rich_help_panel=OUTPUT)
]
RotateSize = Annotated[
    str,
    typer.Option(
        metavar="SIZE",
        callback=units.checked(units.size),
        help="Finish a segment at the first commit past this size.",
        rich_help_panel=OUTPUT,
    ),
]
RotateInterval = Annotated[
    str,
    typer.Option(
        metavar="TIME",
        callback=units.checked(units.duration),
        help="Finish a segment at this age; 0: never.",
        rich_help_panel=OUTPUT,
    ),
]
OnSegment = Annotated[
    str | None,
    typer.Option(
        metavar="COMMAND",
        help="Run this for each finished segment, with its manifest line on standard input.",
        rich_help_panel=OUTPUT,
    ),
]
FsyncInterval = Annotated[
    str,
    typer.Option(
        "-F",
        "--fsync-interval",
        metavar="TIME",
        callback=units.checked(units.duration),
        help="Time between fsyncs; 0: only at rotation and exit.",
        rich_help_panel=OUTPUT,
    ),
]
FileMode = Annotated[
    str,
    typer.Option(
        metavar="MODE",
        callback=units.checked(units.file_mode),
        help="Octal mode of new files. Whoever may read them may enter new folders.",
        rich_help_panel=OUTPUT,
    ),
]
MetricsPort = Annotated[
    str | None,
    typer.Option(
        metavar="[HOST:]PORT",
        callback=units.checked(address),
        help="Serve Prometheus metrics here; without HOST, on loopback.",
    ),
]
MetricsFile = Annotated[
    Path | None, typer.Option(metavar="FILE", help="Write metrics here, for node-exporter.")
]
Transactions = Annotated[
    bool,
    typer.Option(
        "--transactions",
        help="Also write begin and commit; not with a folder per table.",
        rich_help_panel=OUTPUT,
    ),
]
Numeric = Annotated[NumericName, typer.Option(help="How jsonl writes numeric.", rich_help_panel=OUTPUT)]
Table = Annotated[
    list[str] | None,
    typer.Option(
        metavar="PATTERN",
        help="Only matching tables: schema.table, with * and ? as in psql.",
        rich_help_panel=OUTPUT,
    ),
]
ExcludeTable = Annotated[
    list[str] | None,
    typer.Option(metavar="PATTERN", help="Leave out matching tables.", rich_help_panel=OUTPUT),
]
ExcludeColumn = Annotated[
    list[str] | None,
    typer.Option(
        metavar="PATTERN",
        help="Leave out matching columns, schema.table.column; keys are kept.",
        rich_help_panel=OUTPUT,
    ),
]
InvalidText = Annotated[
    InvalidTextName | None,
    typer.Option(
        help="Invalid text: stop, write U+FFFD, or its bytes in hex. Default: stop; debezium: replace.",
        rich_help_panel=OUTPUT,
    ),
]
ConnectorConfig = Annotated[
    Path | None,
    typer.Option(metavar="FILE", help="Configuration of a Debezium connector.", rich_help_panel=DEBEZIUM),
]
ConnectorProperty = Annotated[
    list[str] | None,
    typer.Option(
        "-c",
        "--connector-property",
        metavar="NAME=VALUE",
        help="One property of that configuration.",
        rich_help_panel=DEBEZIUM,
    ),
]
Record = Annotated[
    Literal["full", "value"],
    typer.Option(help="Topic, key, value and headers, or the value alone.", rich_help_panel=DEBEZIUM),
]
Wal2jsonOption = Annotated[
    list[str] | None,
    typer.Option(metavar="NAME[=VALUE]", help="An option of the wal2json plugin.", rich_help_panel=WAL2JSON),
]
Endpos = Annotated[
    str | None,
    typer.Option(
        "-E",
        "--endpos",
        metavar="LSN|now",
        callback=units.checked(units.end_position),
        help="Exit once everything up to here is written.",
        rich_help_panel=END,
    ),
]
MaxTime = Annotated[
    str | None,
    typer.Option(
        metavar="TIME",
        callback=units.checked(units.positive_duration),
        help="Exit after this time, even if the server doesn't answer.",
        rich_help_panel=END,
    ),
]
MaxTransactions = Annotated[
    str | None,
    typer.Option(
        metavar="N",
        callback=units.checked(units.whole_number),
        help="Exit after N transactions.",
        rich_help_panel=END,
    ),
]
IdleTimeout = Annotated[
    str | None,
    typer.Option(
        metavar="TIME",
        callback=units.checked(units.positive_duration),
        help="Exit when nothing has arrived for this long.",
        rich_help_panel=END,
    ),
]
ProtoVersion = Annotated[
    int | None,
    typer.Option(
        min=1,
        max=4,
        metavar="N",
        help="pgoutput's protocol. Default: the server's newest.",
        rich_help_panel=SERVER,
    ),
]
Streaming = Annotated[
    Literal["off", "on", "parallel"] | None,
    typer.Option(
        help="Send large transactions before they commit. Default: the server's best.", rich_help_panel=SERVER
    ),
]
TwoPhase = Annotated[
    bool,
    typer.Option("-t", "--two-phase", help="Send prepared transactions at PREPARE.", rich_help_panel=SERVER),
]
TwoPhaseAt = Annotated[
    Literal["commit", "prepare"],
    typer.Option(
        help="Write their changes at COMMIT PREPARED, or at PREPARE (implies -t).", rich_help_panel=SERVER
    ),
]
Binary = Annotated[
    bool,
    typer.Option("--binary", help="Send values in binary; the output is the same.", rich_help_panel=SERVER),
]
Messages = Annotated[
    bool, typer.Option("--messages", help="Also send logical decoding messages.", rich_help_panel=SERVER)
]
Origin = Annotated[
    Literal["any", "none"] | None,
    typer.Option(help="none: only changes made on this server.", rich_help_panel=SERVER),
]
SpoolLimit = Annotated[
    str | None,
    typer.Option(
        metavar="SIZE",
        callback=units.checked(units.size),
        help="Stop if uncommitted transactions take more disk than this.",
        rich_help_panel=SERVER,
    ),
]
PluginOption = Annotated[
    list[str] | None,
    typer.Option(
        "-o", "--option", metavar="NAME=VALUE", help="Option for the output plugin.", rich_help_panel=SERVER
    ),
]

OWN_OPTIONS = {
    "proto_version": "use --proto-version",
    "publication_names": "use --publication",
    "streaming": "use --streaming",
    "two_phase": "use --two-phase",
    "binary": "use --binary",
    "messages": "use --messages",
    "origin": "use --origin",
}
"""pgoutput's options for which pgcdc has options of its own."""


def plugin_options(publications: list[str], given: list[str], *, raw: bool) -> "PluginOptions":
    """Return the options of START_REPLICATION that are the same for every server.

    A raw stream without publications is for another plugin, which may take any option.
    """
    options = [units.name_and_value("-o", item) for item in given]
    if raw and not publications:
        return options
    for name, _ in options:
        _check_name(name)
    if not publications:
        raise usage_error("--publication is missing")
    from pgcdc_cli.replication.commands import publication_names

    return [*options, ("publication_names", publication_names(publications))]


def _check_name(name: str) -> None:
    """Refuse what isn't an option of the server's plugin, but of pgcdc. Raises a usage error."""
    from pgcdc_cli.formats.wal2json.wal2json_options import OPTION_DOCS

    if name in OWN_OPTIONS:
        raise usage_error(f"-o {name}: {OWN_OPTIONS[name]}")
    if name in OPTION_DOCS:
        raise usage_error(f"-o {name}: use --format wal2json with --wal2json-option {name}=VALUE")


def selection(
    tables: list[str] | None,
    excluded_tables: list[str] | None,
    excluded_columns: list[str] | None,
    columns: tuple[str, ...] = (),
) -> "Selection":
    """Parse the patterns of tables and columns; `columns` are names. Raises a usage error."""
    from pgcdc_cli.changes.selection import Selection

    return Selection(
        _patterns("--table", tables, 2),
        _patterns("--exclude-table", excluded_tables, 2),
        _patterns("--exclude-column", excluded_columns, 3),
        columns,
    )


def _patterns(option: str, given: list[str] | None, parts: int) -> "tuple[NamePattern, ...]":
    from pgcdc_cli.changes.selection import NamePattern

    try:
        return tuple(NamePattern(text, parts) for text in given or ())
    except ValueError as error:
        # As one would give several to other programs.
        each = f": give each its own {option}" if any("," in text for text in given or ()) else ""
        raise usage_error(f"{option}: {error}{each}") from error


def resnapshot(given: list[str] | None) -> "tuple[NamePattern, ...]":
    """Parse the patterns of --resnapshot. Raises a usage error."""
    return _patterns("--resnapshot", given, 2)


def workers(given: str | None) -> int:
    """Return the number of connections that read a snapshot, by default that of processors."""
    if given is not None:
        return units.whole_number(given)
    # Not every system can tell which processors this process may use.
    affinity = getattr(os, "sched_getaffinity", None)
    processors = (os.cpu_count() or 1) if affinity is None else len(affinity(0))
    return min(processors, _MOST_WORKERS)


def limits(
    endpos: str | None, max_time: str | None, max_transactions: str | None, idle_timeout: str | None
) -> "RunLimits":
    """Parse the limits at which the run ends."""
    from pgcdc_cli.stream.settings import RunLimits

    return RunLimits(
        end_lsn=None if endpos is None else units.end_position(endpos),
        end_now=endpos == "now",
        max_time=None if max_time is None else units.positive_duration(max_time),
        max_transactions=None if max_transactions is None else units.whole_number(max_transactions),
        idle_timeout=None if idle_timeout is None else units.positive_duration(idle_timeout),
    )
