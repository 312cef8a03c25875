"""`pgcdc stream`: turn options into one run of the stream."""

from functools import partial
from typing import TYPE_CHECKING

import typer

from pgcdc_cli.cli import stream_options, units
from pgcdc_cli.cli.command_tree import Command, examples
from pgcdc_cli.cli.connection_options import connecting
from pgcdc_cli.cli.metrics import MetricsOutput, address
from pgcdc_cli.cli.option_checks import (
    check_connector,
    check_limits,
    check_resnapshot,
    check_slot,
    check_stream,
)
from pgcdc_cli.cli.printing import log_times, say
from pgcdc_cli.cli.running import ProgressLine, carry_out, reached, shows_progress, timed
from pgcdc_cli.cli.service_manager import ServiceManager
from pgcdc_cli.cli.target import (
    STDOUT,
    StreamTarget,
    default_format,
    folder_of,
    format_for,
    keeps_checkpoint,
    peeks,
    read_config,
    read_wal2json_options,
    sink_for,
    snapshot_plan,
    subscription,
    with_connector,
)

if TYPE_CHECKING:
    from pgcdc_cli.stream.settings import RunTotals, StreamSettings


def register(app: typer.Typer) -> None:
    """Add `stream`."""
    app.command(
        "stream",
        cls=Command,
        epilog=examples(
            "pgcdc stream -d shop -S shop_slot --publication shop_pub",
            "pgcdc stream -d shop -S shop_slot --publication shop_pub -D changes --endpos now",
            "pgcdc stream -d shop -S new_slot --publication shop_pub -D changes --snapshot initial",
            "pgcdc stream -d shop -S s --create-slot --publication p -D out --format arrow --rotate-size 1GB",
        ),
    )(connecting(stream))


def stream(  # noqa: PLR0913 - a command's options
    *,
    conninfo: str,
    slot: stream_options.Slot = None,
    publication: stream_options.Publication = None,
    create_slot: stream_options.CreateSlot = False,
    if_not_exists: stream_options.IfNotExists = False,
    peek: stream_options.Peek = False,
    snapshot: stream_options.Snapshot = None,
    snapshot_workers: stream_options.SnapshotWorkers = None,
    resnapshot: stream_options.Resnapshot = None,
    startpos: stream_options.Startpos = None,
    no_loop: stream_options.NoLoop = False,
    status_interval: stream_options.StatusInterval = "10s",
    accept_gap: stream_options.AcceptGap = False,
    accept_publications: stream_options.AcceptPublications = False,
    accept_database: stream_options.AcceptDatabase = False,
    accept_upgrade: stream_options.AcceptUpgrade = False,
    file: stream_options.File = None,
    directory: stream_options.Directory = None,
    file_format: stream_options.FileFormat = None,
    layout: stream_options.Layout = "table",
    compression: stream_options.Compression = "none",
    rotate_size: stream_options.RotateSize = "128MB",
    rotate_interval: stream_options.RotateInterval = "5min",
    on_segment: stream_options.OnSegment = None,
    fsync_interval: stream_options.FsyncInterval = "10s",
    file_mode: stream_options.FileMode = "0600",
    transactions: stream_options.Transactions = False,
    numeric: stream_options.Numeric = "string",
    connector_config: stream_options.ConnectorConfig = None,
    connector_property: stream_options.ConnectorProperty = None,
    record: stream_options.Record = "full",
    wal2json_option: stream_options.Wal2jsonOption = None,
    invalid_text: stream_options.InvalidText = None,
    table: stream_options.Table = None,
    exclude_table: stream_options.ExcludeTable = None,
    exclude_column: stream_options.ExcludeColumn = None,
    no_catalog: stream_options.NoCatalog = False,
    endpos: stream_options.Endpos = None,
    max_time: stream_options.MaxTime = None,
    max_transactions: stream_options.MaxTransactions = None,
    idle_timeout: stream_options.IdleTimeout = None,
    proto_version: stream_options.ProtoVersion = None,
    streaming: stream_options.Streaming = None,
    two_phase: stream_options.TwoPhase = False,
    two_phase_at: stream_options.TwoPhaseAt = "commit",
    binary: stream_options.Binary = False,
    messages: stream_options.Messages = False,
    origin: stream_options.Origin = None,
    spool_limit: stream_options.SpoolLimit = None,
    option: stream_options.PluginOption = None,
    progress: stream_options.Progress = None,
    metrics_port: stream_options.MetricsPort = None,
    metrics_file: stream_options.MetricsFile = None,
) -> None:
    """Stream a slot into files, each transaction exactly once.

    Writes to standard output, one file (-f) or a directory of rotating files (-D). A file or directory has a
    checkpoint: the next run continues where this one ended, however it ended. On a terminal, without -f or
    -D, it shows the next changes without consuming them; -f - consumes them. INT and TERM end it cleanly; HUP
    reopens the file, or finishes the segment.
    """
    check_connector(file_format, connector_config, connector_property, record)
    debezium = file_format == "debezium"
    config = read_config(connector_config, connector_property or [], snapshot) if debezium else None
    selection = stream_options.selection(table, exclude_table, exclude_column)
    target = StreamTarget(
        file=STDOUT if file is None and directory is None else file,
        directory=directory,
        format=file_format or default_format(file, directory),
        layout=layout,
        compression=compression,
        numeric=numeric,
        transactions=transactions,
        at_prepare=two_phase_at == "prepare",
        spool_limit=None if spool_limit is None else units.size(spool_limit),
        rotate_size=units.size(rotate_size),
        rotate_interval=units.duration(rotate_interval) or None,
        fsync_interval=units.duration(fsync_interval),
        status_interval=units.duration(status_interval),
        file_mode=units.file_mode(file_mode),
        connector=config,
        values_only=record == "value",
        wal2json=read_wal2json_options(file_format, wal2json_option or [], catalog=not no_catalog),
        invalid_text=invalid_text,
        selection=selection,
        on_segment=on_segment,
    )
    looks = peeks(target, asked=peek, file_given=file is not None)
    check_stream(target, peek=peek, looks=looks, snapshot=snapshot, startpos=startpos, two_phase=two_phase)
    check_slot(target, slot, create_slot=create_slot, if_not_exists=if_not_exists)
    check_limits(target, max_transactions)
    source = subscription(config, conninfo, slot or "", publication or [])
    keeps, decodes = keeps_checkpoint(target), target.format_class.decodes
    options = stream_options.plugin_options(source.publications, option or [], raw=not decodes)
    if resnapshot:
        check_resnapshot(target, snapshot, looks=looks)
    workers = stream_options.workers(snapshot_workers)
    from pgcdc_cli.replication.commands import Protocol
    from pgcdc_cli.stream.settings import StreamSettings

    settings = StreamSettings(
        conninfo=source.conninfo,
        slot=source.slot,
        publications=tuple(source.publications),
        options=options,
        protocol=Protocol(
            version=proto_version,
            streaming=streaming,
            two_phase=two_phase or target.at_prepare,
            binary=binary,
            messages=messages or file_format == "wal2json",
            origin=origin,
            newest=decodes,
        ),
        at_prepare=target.at_prepare,
        # The copy of a slot isn't two-phase.
        keeps_prepared=keeps or looks or target.at_prepare,
        limits=stream_options.limits(endpos, max_time, max_transactions, idle_timeout),
        bad_file=folder_of(target) / f"{source.slot}.bad",
        start_lsn=None if startpos is None else units.lsn(startpos),
        create_slot=create_slot,
        if_not_exists=if_not_exists,
        loop=not no_loop,
        status_interval=target.status_interval,
        accept_gap=accept_gap,
        accept_publications=accept_publications,
        accept_database=accept_database,
        accept_upgrade=accept_upgrade,
        use_catalog=not no_catalog,
        origin_numbers=target.wal2json is not None and target.wal2json.wants_origin_numbers,
        snapshot=snapshot_plan(snapshot, workers),
        peek=looks,
        peeking=None if peek else partial(_say_nothing_is_taken, source.slot),
        invalid_text=invalid_text,
        selection=selection,
        resnapshot=stream_options.resnapshot(resnapshot),
    )
    if snapshot != "only" and not (endpos or max_time or max_transactions or idle_timeout):
        log_times()
    shown = shows_progress(target) if progress is None else progress
    if config is not None:
        settings = with_connector(settings, config, workers)
    port = None if metrics_port is None else address(metrics_port)
    metrics = MetricsOutput(source.conninfo, source.slot, port, metrics_file)
    _run(settings, target, ProgressLine(shown=shown), metrics)


def _say_nothing_is_taken(slot: str) -> None:
    say(f'nothing is consumed from slot "{slot}": -f - consumes what it prints')


def _run(
    settings: "StreamSettings", target: StreamTarget, progress: ProgressLine, metrics: MetricsOutput
) -> None:
    from pgcdc_cli.stream.run import StreamRun
    from pgcdc_cli.stream.settings import Signals

    format_, signals, manager = format_for(target), Signals(), ServiceManager()

    def report(totals: "RunTotals") -> None:
        progress(totals)
        metrics(totals)
        if manager.is_due:
            manager.tell(reached(totals))

    run = StreamRun(settings, sink_for(target, format_, signals), format_, signals, report)
    with metrics.open(), timed(signals, settings.limits.max_time):
        carry_out(run, signals, progress)
        # A run that had nothing to receive has reported nothing so far.
        metrics(run.totals)
