"""`pgcdc snapshot`: turn options into one run that reads the current rows of tables."""

import json as json_text
from typing import TYPE_CHECKING, Annotated, NoReturn, get_args

import typer

from pgcdc_cli.cli import stream_options, units
from pgcdc_cli.cli.command_tree import Command, examples, usage_error
from pgcdc_cli.cli.connection_options import connecting
from pgcdc_cli.cli.option_checks import check_connector, check_target, why_no_snapshots
from pgcdc_cli.cli.printing import write
from pgcdc_cli.cli.publication import column_names
from pgcdc_cli.cli.running import ProgressLine, carry_out, shows_progress
from pgcdc_cli.cli.target import (
    STDOUT,
    StreamTarget,
    default_format,
    format_for,
    read_config,
    sink_for,
    subscription,
)
from pgcdc_cli.formats.interface import FormatName, SnapshotFormatName

if TYPE_CHECKING:
    from pgcdc_cli.stream.snapshot.snapshot_run import SnapshotRun, SnapshotSettings

ROWS = "Which rows"

Publication = Annotated[
    list[str] | None,
    typer.Option(metavar="NAME", help="Publication whose tables are read.", rich_help_panel=ROWS),
]
Table = Annotated[
    list[str] | None,
    typer.Option(
        metavar="PATTERN",
        help="Only matching tables, schema.table with * and ? as in psql. Default: all published ones.",
        rich_help_panel=ROWS,
    ),
]
Where = Annotated[
    str | None,
    typer.Option(
        metavar="CONDITION", help="Only rows for which this SQL condition is true.", rich_help_panel=ROWS
    ),
]
Columns = Annotated[
    str | None,
    typer.Option(
        metavar="LIST", help="Only these columns, separated by commas; keys are kept.", rich_help_panel=ROWS
    ),
]


def _refused_format(name: str) -> NoReturn:
    """Say why a format isn't among those that the option lists."""
    if name in get_args(FormatName):
        raise usage_error(why_no_snapshots(name))
    listed = ", ".join(f'"{one}"' for one in get_args(SnapshotFormatName))
    raise usage_error(f'"{name}" is not one of {listed}')


RowFormat = Annotated[
    SnapshotFormatName | None,
    typer.Option(
        "--format",
        parser=_refused_format,
        help="Default: pretty on a terminal, else jsonl.",
        rich_help_panel=stream_options.OUTPUT,
    ),
]
PartSize = Annotated[
    str,
    typer.Option(
        "--rotate-size",
        metavar="SIZE",
        callback=units.checked(units.size),
        help="With -D: continue in another file past this size.",
        rich_help_panel=stream_options.OUTPUT,
    ),
]
Sample = Annotated[
    str | None,
    typer.Option(
        metavar="PERCENT",
        callback=units.checked(units.percent),
        help="A random sample of about this many of the rows.",
        rich_help_panel=ROWS,
    ),
]
Json = Annotated[bool, typer.Option("--json", help="At the end, print the position and row counts as JSON.")]


def register(app: typer.Typer) -> None:
    """Add `snapshot`."""
    app.command(
        "snapshot",
        cls=Command,
        epilog=examples(
            "pgcdc snapshot -d shop --publication shop_pub -D rows --format arrow",
            "pgcdc snapshot -d shop --table public.orders --where 'total > 100' --columns id,total",
            "pgcdc snapshot -d shop --table 'public.*' --sample 1 -D sample --json",
        ),
    )(connecting(snapshot))


def snapshot(  # noqa: PLR0913 - a command's options
    *,
    conninfo: str,
    publication: Publication = None,
    table: Table = None,
    exclude_table: stream_options.ExcludeTable = None,
    exclude_column: stream_options.ExcludeColumn = None,
    columns: Columns = None,
    where: Where = None,
    sample: Sample = None,
    snapshot_workers: stream_options.SnapshotWorkers = None,
    file: stream_options.File = None,
    directory: stream_options.Directory = None,
    file_format: RowFormat = None,
    layout: stream_options.Layout = "table",
    compression: stream_options.Compression = "none",
    rotate_size: PartSize = "128MB",
    file_mode: stream_options.FileMode = "0600",
    numeric: stream_options.Numeric = "string",
    connector_config: stream_options.ConnectorConfig = None,
    connector_property: stream_options.ConnectorProperty = None,
    record: stream_options.Record = "full",
    invalid_text: stream_options.InvalidText = None,
    no_catalog: stream_options.NoCatalog = False,
    progress: stream_options.Progress = None,
    json: Json = False,
) -> None:
    """Write the current rows of tables, all as of one moment.

    Needs no slot and no privilege but SELECT, and works on a standby. A publication's column lists, row
    filters and partition roots apply as in a stream. `pgcdc show` and `pgcdc spark-submit` read the
    directory. A run that ends early leaves no rows behind, and the next one starts over. To stream the
    changes that follow, use `pgcdc stream --snapshot initial` instead.
    """
    debezium = file_format == "debezium"
    check_connector(file_format, connector_config, connector_property, record)
    config = read_config(connector_config, connector_property or []) if debezium else None
    selection = stream_options.selection(
        table, exclude_table, exclude_column, column_names("--columns", columns)
    )
    target = StreamTarget(
        file=STDOUT if file is None and directory is None else file,
        directory=directory,
        format=file_format or default_format(file, directory),
        layout=layout,
        compression=compression,
        numeric=numeric,
        transactions=False,
        rotate_size=units.size(rotate_size),
        rotate_interval=None,
        fsync_interval=0,
        status_interval=0,
        file_mode=units.file_mode(file_mode),
        connector=config,
        values_only=record == "value",
        invalid_text=invalid_text,
        selection=selection,
    )
    check_target(target)
    if json and target.stdout:
        raise usage_error("--json: the rows go to standard output; use -f or -D")
    if where is not None and not where.strip():
        raise usage_error("--where: the condition is empty")
    if not publication and not table and config is None:
        raise usage_error("--publication or --table is missing")
    source = subscription(config, conninfo, "", publication or [])
    from pgcdc_cli.changes.selection import every_table
    from pgcdc_cli.stream.snapshot.snapshot_run import SnapshotSettings
    from pgcdc_cli.stream.snapshot.snapshot_tables import WantedRows

    wanted = WantedRows(
        publications=publication or ([] if table else source.publications),
        includes=every_table if config is None else config.includes_table,
        selection=selection,
        where=where,
        sample=None if sample is None else units.percent(sample),
    )
    settings = SnapshotSettings(
        source.conninfo,
        str(directory or target.file),
        wanted,
        invalid_text or target.format_class.capabilities.invalid_text,
        use_catalog=not no_catalog,
        with_xid=debezium,
        workers=stream_options.workers(snapshot_workers),
    )
    shown = shows_progress(target) if progress is None else progress
    run = _run(settings, target, ProgressLine(shown=shown))
    if json:
        write(json_text.dumps(_content(run)))


def _run(settings: "SnapshotSettings", target: StreamTarget, progress: ProgressLine) -> "SnapshotRun":
    from pgcdc_cli.stream.settings import Signals
    from pgcdc_cli.stream.snapshot.snapshot_run import SnapshotRun

    format_, signals = format_for(target), Signals()
    assert format_.decodes, "what isn't decoded has no rows"
    chosen = {"where": settings.wanted.where, "sample": settings.wanted.sample}
    more = {name: str(value) for name, value in chosen.items() if value is not None}
    run = SnapshotRun(settings, sink_for(target, format_, signals, more), format_, signals, progress)
    carry_out(run, signals, progress)
    return run


def _content(run: "SnapshotRun") -> dict[str, object]:
    tables = [{"table": table, "rows": rows} for table, rows in run.rows.items()]
    return {"format_version": 1, "lsn": str(run.totals.durable_lsn), "tables": tables}
