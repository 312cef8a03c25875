"""`pgcdc show`: prints what pgcdc wrote."""

import sys
from collections.abc import Callable, Iterator
from itertools import chain, islice
from pathlib import Path
from shutil import get_terminal_size
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from pgcdc_cli.cli.base import Command, examples
from pgcdc_cli.cli.options import whole_number
from pgcdc_cli.cli.printing import wants_colour, write

if TYPE_CHECKING:
    from pgcdc_cli.reader.record import Record, TableFilter


def register(app: typer.Typer) -> None:
    """Add `show`."""
    app.command(
        "show",
        cls=Command,
        epilog=examples(
            "pgcdc show changes",
            "pgcdc show changes --table 'public.*' --limit 20 --format jsonl",
        ),
    )(show)


def show(
    paths: Annotated[
        list[Path], typer.Argument(metavar="PATH", help="Directories or files, shown one after another.")
    ],
    *,
    form: Annotated[
        Literal["pretty", "jsonl"] | None,
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
) -> None:
    """Print what pgcdc wrote, in the order in which it happened.

    PATH is a directory of `pgcdc stream -D`, a single file of JSON lines (compressed or not) or Arrow, or
    what pg_recvlogical captured of pgoutput. Of a directory, finished segments are shown, with all tables
    merged.
    """
    from pgcdc_cli.reader.record import TableFilter

    keep = TableFilter(tuple(tables or ()))
    records = chain.from_iterable(_records(path, keep, partial=partial) for path in paths)
    as_text = _printer(form or ("pretty" if sys.stdout.isatty() else "jsonl"))
    for record in islice(records, limit):
        write(as_text(record))


def _records(path: Path, keep: "TableFilter", *, partial: bool) -> Iterator["Record"]:
    from pgcdc_cli.reader.directory import read_directory
    from pgcdc_cli.reader.files import read_file

    if path.is_dir():
        return read_directory(path, keep, partial=partial)
    return (record for record in read_file(str(path)) if keep(record.table))


def _printer(form: str) -> Callable[["Record"], str]:
    if form == "pretty":
        return _pretty_printer()
    return _for_terminals if sys.stdout.isatty() else lambda record: record.line


def _pretty_printer() -> Callable[["Record"], str]:
    from pgcdc_cli.formats.pretty import render_line
    from pgcdc_cli.formats.prettymessage import render_message
    from pgcdc_cli.formats.style import Style
    from pgcdc_cli.reader.record import undecodable

    style = Style(colour=wants_colour(sys.stdout), width=get_terminal_size().columns)

    def pretty(record: "Record") -> str:
        if record.capture is not None:
            return render_message(*record.capture, style)
        try:
            return render_line(record.line, style).removesuffix("\n")
        except (KeyError, TypeError, ValueError, AttributeError) as error:
            raise undecodable("a change", f"{error!r} in {record.line[:200]}") from error

    return pretty


def _for_terminals(record: "Record") -> str:
    """Escape as JSON what a terminal would obey; below U+0020 JSON itself allows nothing."""
    line = record.line
    if line.isprintable():
        return line
    return "".join(c if c.isprintable() else _escaped(c) for c in line)


def _escaped(character: str) -> str:
    units = character.encode("utf-16-be")
    return "".join(f"\\u{units[i]:02x}{units[i + 1]:02x}" for i in range(0, len(units), 2))
