"""Where `pgcdc stream` writes, and how: from options to a format and a sink."""

import sys
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from pgcdc_cli.cli.options import usage_error
from pgcdc_cli.cli.printing import wants_colour
from pgcdc_cli.formats.capabilities import Compression, Layout, Numeric

if TYPE_CHECKING:
    from pgcdc_cli.formats.base import Format
    from pgcdc_cli.formats.debezium.config import ConnectorConfig
    from pgcdc_cli.formats.raw import RawFormat
    from pgcdc_cli.sinks.base import Sink

FormatName = Literal["jsonl", "arrow", "debezium", "pretty", "raw"]

STDOUT = "-"


@dataclass(frozen=True, slots=True)
class Target:
    """Where output goes and how: what the sink and the format are made of."""

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
    connector: "ConnectorConfig | None" = None
    values_only: bool = False
    at_prepare: bool = False
    spool_limit: int | None = None

    @property
    def format_class(self) -> "type[Format | RawFormat]":
        """The format's class, which declares what can be asked of it."""
        if self.format == "debezium":
            from pgcdc_cli.formats.debezium.format import DebeziumFormat

            return DebeziumFormat
        from pgcdc_cli.formats.select import FORMATS

        return FORMATS[self.format]

    @property
    def marks(self) -> bool:
        """Are begins and commits written? Without them nobody could tell how a prepared one ended."""
        return self.transactions or self.at_prepare

    @property
    def stdout(self) -> bool:
        return self.directory is None and self.file == STDOUT


def place_of(target: Target) -> Path:
    """Name the folder beside or in which other files may be put."""
    from pgcdc_cli.sinks.file import takes_checkpoint

    if target.directory is not None:
        return target.directory
    beside = not target.stdout and takes_checkpoint(str(target.file))
    return Path(str(target.file)).parent if beside else Path()


def keeps_checkpoint(target: Target) -> bool:
    """Say whether the output has a checkpoint."""
    from pgcdc_cli.sinks.file import takes_checkpoint

    return target.format_class.decodes and (
        target.directory is not None or (not target.stdout and takes_checkpoint(str(target.file)))
    )


def default_format(file: str | None, directory: Path | None) -> FormatName:
    """Choose for somebody who looks on, or for a program."""
    to_terminal = directory is None and file in {None, STDOUT} and sys.stdout.isatty()
    return "pretty" if to_terminal else "jsonl"


def check(target: Target) -> None:
    """Refuse what does not go together."""
    if target.file is not None and target.directory is not None:
        raise usage_error("-f and -D exclude each other")
    if target.file == "":
        raise usage_error("-f/--file: the name is empty")
    layouts = target.format_class.capabilities.layouts
    if "table" not in layouts and target.directory is not None:
        raise usage_error(f"--format {target.format} goes into one file (-f) or to standard output")
    if "stream" not in layouts and target.directory is None:
        raise usage_error(f"--format {target.format} needs a directory (-D): a file holds one table")


def encoding_for(target: Target) -> "Format | RawFormat":
    """Make the format; raises PgcdcError USAGE for options that exclude each other."""
    if target.connector is not None:
        return _debezium(target, target.connector)
    from pgcdc_cli.formats.select import select_format

    return select_format(
        target.format,
        layout="stream" if target.directory is None else target.layout,
        compression=target.compression,
        numeric=target.numeric,
        transactions=target.marks,
        colour=target.stdout and wants_colour(sys.stdout),
    )


def _debezium(target: Target, config: "ConnectorConfig") -> "Format":
    from pgcdc_cli.formats.debezium.format import DebeziumFormat

    layout: Layout = "stream" if target.directory is None else target.layout
    return DebeziumFormat(config, layout, target.compression, target.values_only)


def sink_for(target: Target, encoding: "Format | RawFormat") -> "Sink":
    """Make the sink, as yet unopened."""
    from pgcdc_cli.sinks.base import SinkSettings
    from pgcdc_cli.sinks.directory import DirectorySettings, DirectorySink
    from pgcdc_cli.sinks.file import FileSink
    from pgcdc_cli.sinks.stream import StreamSink

    options = {"numeric": target.numeric, "transactions": str(target.transactions), "layout": target.layout}
    if target.at_prepare:
        options |= {"two_phase_at": "prepare"}
    if target.connector is not None:
        options |= {"connector": target.connector.fingerprint, "record": str(target.values_only)}
    if target.directory is not None:
        rotating = DirectorySettings(
            rotate_size=target.rotate_size,
            rotate_interval=target.rotate_interval,
            fsync_interval=target.fsync_interval,
            status_interval=target.status_interval,
            options=options,
            spool_limit=target.spool_limit,
        )
        return DirectorySink(str(target.directory), encoding, rotating)
    settings = SinkSettings(
        fsync_interval=target.fsync_interval,
        status_interval=target.status_interval,
        options=options,
        spool_limit=target.spool_limit,
    )
    if target.stdout:
        return StreamSink(sys.stdout.fileno(), encoding, settings)
    path = str(target.file)
    if not keeps_checkpoint(target):
        return StreamSink(path, encoding, settings)
    return FileSink(path, encoding, settings)
