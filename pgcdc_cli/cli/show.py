"""`pgcdc show`: prints what pgcdc wrote."""

import sys
from collections.abc import Callable, Iterator
from fnmatch import fnmatchcase
from itertools import chain, islice
from pathlib import Path
from shutil import get_terminal_size
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from pgcdc_cli.cli.command_tree import Command, examples, refuse_unmatched, usage_error
from pgcdc_cli.cli.printing import wants_colour, write
from pgcdc_cli.cli.target import read_config
from pgcdc_cli.cli.units import whole_number

if TYPE_CHECKING:
    from pgcdc_cli.formats.debezium.connector_config import ConnectorConfig
    from pgcdc_cli.reader.directory_reader import StoredChange


def register(app: typer.Typer) -> None:
    """Add `show`."""
    app.command(
        "show",
        cls=Command,
        epilog=examples(
            "pgcdc show changes",
            "pgcdc show changes --table 'public.*' --limit 20 --format jsonl",
            "pgcdc show changes --format debezium -c topic.prefix=shop",
        ),
    )(show)


def show(  # noqa: PLR0913 - a command's options
    paths: Annotated[
        list[Path], typer.Argument(metavar="PATH", help="Directories or files, shown one after another.")
    ],
    *,
    form: Annotated[
        Literal["pretty", "jsonl", "debezium"] | None,
        typer.Option("--format", help="Default: pretty on a terminal, else jsonl."),
    ] = None,
    tables: Annotated[
        list[str] | None,
        typer.Option("--table", metavar="PATTERN", help="Only tables like this, as in 'public.*'."),
    ] = None,
    limit: Annotated[
        int | None, typer.Option(parser=whole_number, metavar="N", help="Only the first N lines.")
    ] = None,
    partial: Annotated[
        bool, typer.Option("--partial", help="Of directories, what isn't finished but durable, too.")
    ] = False,
    connector_config: Annotated[
        Path | None, typer.Option(metavar="FILE", help="For debezium: a connector's configuration.")
    ] = None,
    connector_property: Annotated[
        list[str] | None,
        typer.Option("-c", "--connector-property", metavar="NAME=VALUE", help="One property of it."),
    ] = None,
    record: Annotated[
        Literal["full", "value"],
        typer.Option(help="For debezium: topic, key, value and headers, or the value alone."),
    ] = "full",
) -> None:
    """Print what pgcdc wrote, in the order in which it happened.

    PATH is a directory of `pgcdc stream -D`, a single file of JSON lines (compressed or not) or Arrow, or
    what pg_recvlogical captured of pgoutput. Of a directory, finished segments are shown, with all tables
    merged. Of a directory of JSON lines or Arrow files, --format debezium makes Debezium's events.
    """
    if form == "debezium":
        if tables:
            raise usage_error("--table: with --format debezium, -c table.include.list=... chooses tables")
        config = read_config(connector_config, connector_property or [])
        lines = _events(paths, config, values_only=record == "value", partial=partial)
        seen = None
    else:
        if connector_config or connector_property or record != "full":
            raise usage_error("--connector-config, -c and --record go with --format debezium")
        seen = set[str]()
        lines = _lines(paths, form, tables or [], seen, partial=partial)
    for line in islice(lines, limit):
        write(line)
    # What --limit left unread may hold more tables.
    if seen is not None and next(lines, None) is None:
        refuse_unmatched(
            [pattern for pattern in tables or () if not any(fnmatchcase(t, pattern) for t in seen)]
        )


def _lines(
    paths: list[Path],
    form: Literal["pretty", "jsonl"] | None,
    tables: list[str],
    seen: set[str],
    *,
    partial: bool,
) -> Iterator[str]:
    """Print changes; with `tables`, what they were of is added to `seen`."""
    from pgcdc_cli.reader.directory_reader import read_path

    changes: Iterator[StoredChange] = chain.from_iterable(
        read_path(path, tables, partial=partial) for path in paths
    )
    if tables:
        changes = _noting_tables(changes, seen)
    return map(_printer(form or ("pretty" if sys.stdout.isatty() else "jsonl")), changes)


def _noting_tables(changes: Iterator["StoredChange"], seen: set[str]) -> Iterator["StoredChange"]:
    for change in changes:
        seen.add(change.table)
        yield change


def _events(
    paths: list[Path], config: "ConnectorConfig", *, values_only: bool, partial: bool
) -> Iterator[str]:
    from pgcdc_cli.formats.debezium.format import DebeziumFormat
    from pgcdc_cli.reader.debezium_events import read_events

    for path in paths:
        if not path.is_dir():
            raise usage_error(f'--format debezium: "{path}" is no directory, whose schema files it needs')
    encoding = DebeziumFormat(config, "stream", values_only=values_only)
    lines = chain.from_iterable(read_events(path, encoding, partial=partial) for path in paths)
    return map(_for_terminals, lines) if sys.stdout.isatty() else lines


def _printer(form: str) -> Callable[["StoredChange"], str]:
    if form == "pretty":
        return _pretty_printer()
    terminal = sys.stdout.isatty()
    return lambda change: _for_terminals(change.line) if terminal else change.line


def _pretty_printer() -> Callable[["StoredChange"], str]:
    from pgcdc_cli.formats.pretty import render_line, render_message
    from pgcdc_cli.formats.terminal import Style
    from pgcdc_cli.reader.capture_reader import CapturedMessage
    from pgcdc_cli.reader.stored_file import undecodable

    style = Style(colour=wants_colour(sys.stdout), width=get_terminal_size().columns)

    def pretty(change: "StoredChange") -> str:
        if isinstance(change, CapturedMessage):
            return render_message(change.message, change.relations, style)
        try:
            return render_line(change.line, style).removesuffix("\n")
        except (KeyError, TypeError, ValueError, AttributeError) as error:
            raise undecodable("a change", f"{error!r} in {change.line[:200]}") from error

    return pretty


def _for_terminals(line: str) -> str:
    """Escape as JSON what a terminal would obey; below U+0020 JSON itself allows nothing."""
    if line.isprintable():
        return line
    return "".join(c if c.isprintable() else _escaped(c) for c in line)


def _escaped(character: str) -> str:
    units = character.encode("utf-16-be")
    return "".join(f"\\u{units[i]:02x}{units[i + 1]:02x}" for i in range(0, len(units), 2))
