"""Turn the options of `pgcdc stream` into a slot to read, a format and a sink.

With `--format debezium`, a connector's configuration supplies what the options leave open.
"""

import logging
import os
import sys
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Literal, NamedTuple

from pgcdc_cli.cli.command_tree import usage_error
from pgcdc_cli.cli.printing import wants_colour
from pgcdc_cli.cli.units import name_and_value
from pgcdc_cli.errors import ErrorKind, PgcdcError, quoted_list
from pgcdc_cli.formats.interface import Compression, FormatName, Layout, Numeric
from pgcdc_cli.types.database_text import InvalidText

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from pgcdc_cli.catalog import Catalog, Publication
    from pgcdc_cli.changes.selection import Selection
    from pgcdc_cli.formats.debezium.connector_config import ConnectorConfig
    from pgcdc_cli.formats.interface import Format
    from pgcdc_cli.formats.raw import RawFormat
    from pgcdc_cli.formats.wal2json.wal2json_options import Wal2jsonOptions
    from pgcdc_cli.sinks.sink import Sink
    from pgcdc_cli.stream.settings import Signals, SnapshotPlan, StreamSettings

SnapshotMode = Literal["never", "initial", "only"]

STDOUT = "-"

_CONNECTION = {
    "host": "database_hostname",
    "port": "database_port",
    "user": "database_user",
    "password": "database_password",
    "dbname": "database_dbname",
    "sslmode": "database_sslmode",
    "sslcert": "database_sslcert",
    "sslkey": "database_sslkey",
    "sslpassword": "database_sslpassword",
    "sslrootcert": "database_sslrootcert",
}
"""libpq's parameters, and the equivalent properties of a connector."""


_CONNECTOR_MODES = {"never": ("never", "no_data"), "initial": ("initial",), "only": ("initial_only",)}
"""The values of `snapshot.mode` that agree with one of `--snapshot`; the first is used if none is given."""


_LEFT = (
    'publication "%s" no longer publishes %s: the lists leave that out. Another stream that reads it needs a'
    " publication of its own"
)
_LIMITING = 'limit publication "{}" to the tables that pass the filters'
_ALL_TABLES = "take it as it is: publication.autocreate.mode=all_tables; events are filtered all the same"
_NO_TABLES = (
    "check table.include.list and the other lists: each pattern matches a whole name, such as public.orders"
)


log = logging.getLogger("pgcdc")


class Subscription(NamedTuple):
    """The source of changes, as in PostgreSQL's CREATE SUBSCRIPTION."""

    conninfo: str
    slot: str
    publications: list[str]


def read_config(
    path: Path | None, given: list[str], snapshot: SnapshotMode | None = None
) -> "ConnectorConfig":
    """Read a connector's configuration; `-c` takes precedence over the file, `snapshot` sets `snapshot.mode`.

    Raises USAGE, also if `snapshot` contradicts a `snapshot.mode`.
    """
    from pgcdc_cli.formats.debezium.configuration_file import as_connector, read_properties
    from pgcdc_cli.formats.debezium.connector_config import without_salt
    from pgcdc_cli.formats.debezium.properties import connector_config

    properties = {} if path is None else read_properties(path)
    for item in given:
        name, value = name_and_value("-c", item if "=" in item else without_salt(item))
        properties[name.strip()] = value
    properties = as_connector(properties)
    if snapshot is not None:
        modes = _CONNECTOR_MODES[snapshot]
        mode = properties.setdefault("snapshot.mode", modes[0]).strip()
        if mode not in modes:
            raise usage_error(f"--snapshot {snapshot} contradicts snapshot.mode={mode}")
    return connector_config(properties)


def read_wal2json_options(
    form: FormatName | None, given: list[str], *, catalog: bool
) -> "Wal2jsonOptions | None":
    """Parse `--wal2json-option`; None with another format. Raises USAGE."""
    if form != "wal2json":
        if given:
            raise usage_error("--wal2json-option goes with --format wal2json")
        return None
    from pgcdc_cli.formats.wal2json.wal2json_options import read_options

    # The plugin takes an option without a value for true.
    named = (item if "=" in item else f"{item}=true" for item in given)
    options = read_options(name_and_value("--wal2json-option", item) for item in named)
    name = options.from_catalog
    if name is not None and not catalog:
        way = f"use --wal2json-option {name}=false" if name.startswith("include-") else "leave it out"
        raise usage_error(f"--no-catalog: wal2json's {name} is what the catalog says; {way}")
    return options


def subscription(
    config: "ConnectorConfig | None", conninfo: str, slot: str, publications: list[str]
) -> Subscription:
    """Complete the options, which may be empty, from the connector's configuration."""
    if config is None:
        return Subscription(conninfo, slot, publications)
    from psycopg.conninfo import conninfo_to_dict, make_conninfo

    known = conninfo_to_dict(conninfo)
    values = {name: getattr(config, attribute) for name, attribute in _CONNECTION.items()}
    more = {name: str(value) for name, value in values.items() if value and name not in known}
    return Subscription(
        make_conninfo(conninfo, **more), slot or config.slot_name, publications or [config.publication_name]
    )


def with_connector(settings: "StreamSettings", config: "ConnectorConfig", workers: int) -> "StreamSettings":
    """Let a run do what a connector does: create slot and publication, take a snapshot, send heartbeats.

    A run that only peeks creates nothing.
    """
    makes = not settings.peek
    return replace(
        settings,
        protocol=replace(settings.protocol, messages=True),
        create_slot=makes or settings.create_slot,
        if_not_exists=settings.if_not_exists or not settings.create_slot,
        snapshot=_connector_plan(config, workers),
        includes=config.includes_table,
        make_publication=_publication_maker(config, settings.publications[0], settings.slot)
        if makes
        else None,
        heartbeat_interval=config.heartbeat_interval_ms / 1000,
    )


def snapshot_plan(mode: SnapshotMode | None, workers: int) -> "SnapshotPlan | None":
    """Return the snapshot that `--snapshot` asks for, of all published tables."""
    from pgcdc_cli.stream.settings import SnapshotPlan

    if mode in {None, "never"}:
        return None
    return SnapshotPlan(only=mode == "only", workers=workers)


def _connector_plan(config: "ConnectorConfig", workers: int) -> "SnapshotPlan | None":
    """Return the snapshot that `snapshot.mode` asks for."""
    from pgcdc_cli.stream.settings import SnapshotPlan

    if config.snapshot_mode in {"never", "no_data"}:
        return None
    return SnapshotPlan(
        again=config.snapshot_mode == "always",
        only=config.snapshot_mode == "initial_only",
        any_slot=True,
        with_xid=True,
        workers=workers,
    )


def _publication_maker(
    config: "ConnectorConfig", name: str, slot: str
) -> "Callable[[Catalog, bool], None] | None":
    """Return a function that creates a publication by `publication.autocreate.mode`; None for none.

    Whether the stream is new is the function's second argument: another one's slot can't see a publication
    that is created later, but it does see what is added to one. It isn't changed while another process reads
    the slot.
    """
    mode, via_root = config.publication_autocreate_mode, config.publish_via_partition_root
    if mode == "disabled":
        return None

    def make(catalog: "Catalog", new: bool) -> None:
        from pgcdc_cli.catalog import Publication

        existing = catalog.publication(name) if new or mode == "filtered" else None
        if mode == "filtered" and existing is not None:
            _follow_filters(catalog, config, existing, slot, new=new)
        elif mode == "filtered" and new:
            _create_filtered(catalog, config, name)
        elif new and existing is None:
            catalog.create_publication(Publication(name, all_tables=mode == "all_tables", via_root=via_root))
            catalog.warn_of_refused_changes(name)

    return make


def _follow_filters(
    catalog: "Catalog", config: "ConnectorConfig", existing: "Publication", slot: str, *, new: bool
) -> None:
    """Let a publication follow the filters, or warn: a table that isn't ours must not end a stream."""
    from psycopg import Error

    try:
        _limit_publication(catalog, config, existing, slot)
    except PgcdcError as error:
        if new or error.kind.rule.transient or not isinstance(error.__cause__, Error):
            raise
        log.warning("%s; it publishes what it did before", error.message)


def _limit_publication(
    catalog: "Catalog", config: "ConnectorConfig", existing: "Publication", slot: str
) -> None:
    """Let a publication have just the tables that pass the filters."""
    from pgcdc_cli.catalog import limit

    name, wanted = existing.name, _filtered_tables(catalog, config, existing.name)
    if existing.all_tables:
        message = f"could not {_LIMITING.format(name)}: it is for all"
        raise PgcdcError(ErrorKind.PUBLICATION, message, hint=_ALL_TABLES)
    change = limit(existing, set(wanted))
    if change is None:
        return
    _check_is_free(catalog, slot)
    catalog.alter_publication(name, change)
    if change.drop is not None:
        left = [f"{table.schema}.{table.name}" for table in change.drop.tables]
        left += [f"{schema}.*" for schema in change.drop.schemas]
        log.warning(_LEFT, name, quoted_list(left))
    if change.add is not None:
        catalog.warn_of_refused_changes(name)


def _check_is_free(catalog: "Catalog", name: str) -> None:
    """Raise SLOT_ACTIVE if somebody reads the slot: perhaps a stream that needs the publication as it is."""
    slot = catalog.slot(name)
    if slot is not None and slot.active_pid is not None:
        message = f'could not stream slot "{name}": process {slot.active_pid} is reading it'
        raise PgcdcError(ErrorKind.SLOT_ACTIVE, message)


def _create_filtered(catalog: "Catalog", config: "ConnectorConfig", name: str) -> None:
    """Create a publication of the tables that pass the filters."""
    from pgcdc_cli.catalog import Publication, PublishedTable

    tables = tuple(PublishedTable(*table) for table in _filtered_tables(catalog, config, name))
    via_root = config.publish_via_partition_root
    catalog.create_publication(Publication(name, tables=tables, via_root=via_root), only=True)
    catalog.warn_of_refused_changes(name)


def _filtered_tables(catalog: "Catalog", config: "ConnectorConfig", name: str) -> list[tuple[str, str]]:
    tables = catalog.tables(config.includes_table)
    if not tables:
        message = f"could not {_LIMITING.format(name)}: there are none"
        raise PgcdcError(ErrorKind.USAGE, message, hint=_NO_TABLES)
    return tables


@dataclass(frozen=True, slots=True)
class StreamTarget:
    """Where the output goes, and how: the options of the sink and the format."""

    file: str | None
    directory: Path | None
    format: FormatName
    layout: Layout
    compression: Compression
    numeric: Numeric
    transactions: bool
    rotate_size: int | None
    rotate_interval: float | None
    fsync_interval: float
    status_interval: float
    file_mode: int
    connector: "ConnectorConfig | None" = None
    values_only: bool = False
    wal2json: "Wal2jsonOptions | None" = None
    at_prepare: bool = False
    spool_limit: int | None = None
    invalid_text: InvalidText | None = None
    selection: "Selection | None" = None
    on_segment: str | None = None

    @property
    def format_class(self) -> "type[Format | RawFormat]":
        """The format's class, which declares its capabilities."""
        from pgcdc_cli.formats.select import format_class

        return format_class(self.format)

    @property
    def begins_and_commits(self) -> bool:
        """Whether begins and commits are written; with `at_prepare` they tell how a transaction ended."""
        return self.transactions or self.at_prepare

    @property
    def stdout(self) -> bool:
        return self.directory is None and self.file == STDOUT


def default_format(file: str | None, directory: Path | None) -> FormatName:
    """Choose the format: pretty for a terminal, otherwise JSON lines."""
    to_terminal = directory is None and file in {None, STDOUT} and sys.stdout.isatty()
    return "pretty" if to_terminal else "jsonl"


def peeks(target: StreamTarget, *, asked: bool, file_given: bool) -> bool:
    """Whether to peek only: with --peek, or if the output goes to a terminal by default."""
    return asked or (target.stdout and not file_given and sys.stdout.isatty())


def keeps_checkpoint(target: StreamTarget) -> bool:
    """Whether the output has a checkpoint."""
    from pgcdc_cli.sinks.file_sink import takes_checkpoint

    return target.format_class.decodes and (
        target.directory is not None or (not target.stdout and takes_checkpoint(str(target.file)))
    )


def folder_of(target: StreamTarget) -> Path:
    """Return the folder for other files, such as `.bad` files: the output directory, or the file's folder."""
    from pgcdc_cli.sinks.file_sink import takes_checkpoint

    if target.directory is not None:
        return target.directory
    beside = not target.stdout and takes_checkpoint(str(target.file))
    return Path(str(target.file)).parent if beside else Path()


def format_for(target: StreamTarget) -> "Format | RawFormat":
    """Make the format. Raises USAGE for options that it doesn't support."""
    from pgcdc_cli.formats.select import check_options

    layout: Layout = "stream" if target.directory is None else target.layout
    compression, numeric, transactions = target.compression, target.numeric, target.begins_and_commits
    check_options(target.format, layout, compression, numeric, transactions=transactions)
    match target.format:
        case "jsonl":
            from pgcdc_cli.formats.jsonl import JsonlFormat

            return JsonlFormat(layout, compression, numeric, transactions=transactions)
        case "arrow":
            from pgcdc_cli.formats.arrow import ArrowFormat

            return ArrowFormat("none" if compression == "none" else "zstd")
        case "debezium":
            from pgcdc_cli.formats.debezium.debezium_format import DebeziumFormat

            assert target.connector is not None, "its configuration was read"
            return DebeziumFormat(target.connector, layout, compression, values_only=target.values_only)
        case "wal2json":
            from pgcdc_cli.formats.wal2json.wal2json_format import Wal2jsonFormat

            assert target.wal2json is not None, "its options were read"
            return Wal2jsonFormat(layout, compression, target.wal2json)
        case "pretty":
            from pgcdc_cli.formats.pretty import PrettyFormat

            return PrettyFormat(colour=target.stdout and wants_colour(sys.stdout))
        case "raw":
            from pgcdc_cli.formats.raw import RawFormat

            return RawFormat(for_terminal=target.stdout and sys.stdout.isatty())


def sink_for(
    target: StreamTarget,
    format_: "Format | RawFormat",
    signals: "Signals",
    more: "Mapping[str, str] | None" = None,
) -> "Sink":
    """Make the sink, not opened yet. `more` are further options to record in the checkpoint.

    Sets the process's umask: files get exactly the mode that was asked for, whatever the shell's umask is.
    """
    from pgcdc_cli.directory.disk import Disk, folder_mode
    from pgcdc_cli.sinks.directory_sink import directory_sink
    from pgcdc_cli.sinks.file_sink import file_sink
    from pgcdc_cli.sinks.sink import SinkSettings
    from pgcdc_cli.sinks.uncheckpointed_sink import UncheckpointedSink

    shell_umask = os.umask(0o777 & ~folder_mode(target.file_mode))
    options = {"numeric": target.numeric, "transactions": str(target.transactions), "layout": target.layout}
    options |= more or {}
    if target.at_prepare:
        options |= {"two_phase_at": "prepare"}
    if target.selection is not None:
        options |= target.selection.options
    if target.invalid_text not in {None, format_.capabilities.invalid_text}:
        options |= {"invalid_text": str(target.invalid_text)}
    if target.connector is not None:
        options |= {**target.connector.recorded, "record": str(target.values_only)}
    if target.wal2json is not None:
        options |= target.wal2json.changed
    settings = SinkSettings(
        fsync_interval=target.fsync_interval,
        status_interval=target.status_interval,
        options=options,
        spool_limit=target.spool_limit,
        rotate_size=target.rotate_size,
        rotate_interval=target.rotate_interval,
        on_segment=target.on_segment,
        umask=shell_umask,
        ends=lambda: signals.stop,
        waiting=signals.interruptible,
    )
    disk = Disk(target.file_mode)
    if target.directory is not None:
        return directory_sink(str(target.directory), format_, settings, disk)
    if target.stdout:
        return UncheckpointedSink(sys.stdout.fileno(), format_, settings, disk)
    path = str(target.file)
    if not keeps_checkpoint(target):
        return UncheckpointedSink(path, format_, settings, disk)
    return file_sink(path, format_, settings, disk)
