"""`pgcdc show`: prints what pgcdc wrote."""

import json as json_text
import sys
from collections.abc import Callable, Iterable, Iterator
from contextlib import nullcontext
from itertools import chain, islice
from pathlib import Path
from shutil import get_terminal_size
from typing import TYPE_CHECKING

import typer

from pgcdc_cli.cli import show_options as options
from pgcdc_cli.cli import stream_options
from pgcdc_cli.cli.command_tree import Command, examples, usage_error
from pgcdc_cli.cli.pager import paged
from pgcdc_cli.cli.printing import facts, table, text_of, wants_colour, write
from pgcdc_cli.cli.target import read_config
from pgcdc_cli.cli.units import name_and_value

if TYPE_CHECKING:
    from pgcdc_cli.formats.debezium.connector_config import ConnectorConfig
    from pgcdc_cli.reader.directory_reader import StoredChange
    from pgcdc_cli.reader.statistics import Statistics

_HEADINGS = {
    "I": "INSERTS",
    "U": "UPDATES",
    "D": "DELETES",
    "T": "TRUNCATES",
    "M": "MESSAGES",
    "R": "SNAPSHOT",
}


def register(app: typer.Typer) -> None:
    """Add `show`."""
    app.command(
        "show",
        cls=Command,
        epilog=examples(
            "pgcdc show changes",
            "pgcdc show changes --table 'public.*' --limit 20 --format jsonl",
            "pgcdc show changes --table public.orders --key id=42",
            "pgcdc show changes --follow --tail 20",
            "pgcdc show changes --stat --since 2026-11-01",
            "pgcdc show changes --format debezium -c topic.prefix=shop",
        ),
    )(show)


def show(  # noqa: PLR0913 - a command's options
    paths: options.Paths,
    *,
    form: options.Form = None,
    json: options.Json = False,
    full: options.Full = False,
    stat: options.Stat = False,
    partial: options.Partial = False,
    follow: options.Follow = False,
    limit: options.Limit = None,
    tail: options.Tail = None,
    tables: options.Tables = None,
    operations: options.Operations = None,
    key: options.Key = None,
    columns: options.Columns = None,
    since: options.Since = None,
    until: options.Until = None,
    at: options.At = None,
    connector_config: stream_options.ConnectorConfig = None,
    connector_property: stream_options.ConnectorProperty = None,
    record: stream_options.Record = "full",
) -> None:
    """Print what pgcdc wrote, in the order in which it happened.

    PATH is a directory of `pgcdc stream -D`, a single file of JSON lines (compressed or not) or Arrow, or
    what pg_recvlogical captured of pgoutput. Of a directory, finished segments are shown, with all tables
    merged. Of a directory of JSON lines or Arrow files, --format debezium makes Debezium's events.

    WHEN is an LSN or a time in ISO form, UTC unless it says otherwise. On a terminal PAGER shows it.
    """
    from pgcdc_cli.reader.change_filter import ChangeFilter

    keys = tuple(name_and_value("--key", one) for one in key or ())
    wanted = ChangeFilter(frozenset(operations or ()), keys, frozenset(columns or ()), since, until, at)
    stream_options.check_connector(form, connector_config, connector_property, record)
    if form == "debezium":
        if tables:
            raise usage_error("--table: with --format debezium, -c table.include.list=... chooses tables")
        if json or full or stat or follow or tail or wanted != ChangeFilter():
            raise usage_error("--format debezium goes with --partial and --limit alone")
        config = read_config(connector_config, connector_property or [])
        events = islice(_events(paths, config, values_only=record == "value", partial=partial), limit)
        with paged():
            _write(events)
        return
    _check_reading(paths, follow=follow, stat=stat, limit=limit, tail=tail)
    shown = options.Shown(paths, tables or [], wanted)
    changes = shown.follow(tail) if follow else shown.read(partial=partial)
    chosen = options.first_or_last(changes, limit, None if follow else tail)
    lines = (
        _statistics(chosen, json=json)
        if stat
        # Of a row whose other changes aren't shown, the one shown last needn't be the one before.
        else map(_printer("jsonl" if json else form, full=full, remember=not (operations or columns)), chosen)
    )
    whole = False
    with nullcontext() if follow else paged():
        _write(lines)
        whole = True
    # What --limit left unread, or who left the pager, may hold more tables.
    if whole and not follow and next(changes, None) is None:
        shown.refuse_unmatched()


def _write(lines: Iterable[str]) -> None:
    for line in lines:
        write(line)


def _check_reading(
    paths: list[Path], *, follow: bool, stat: bool, limit: int | None, tail: int | None
) -> None:
    if limit and tail:
        raise usage_error("--limit and --tail: give one of them")
    if follow and stat:
        raise usage_error("--stat: with --follow there is no end at which to count")
    if follow and not (len(paths) == 1 and paths[0].is_dir()):
        raise usage_error("--follow: give one directory of pgcdc stream -D")


def _statistics(changes: Iterator["StoredChange"], *, json: bool) -> Iterator[str]:
    from pgcdc_cli.reader.statistics import count

    statistics = count((change.table, change.line) for change in changes)
    return iter([json_text.dumps(_content(statistics))]) if json else _statistics_lines(statistics)


def _content(statistics: "Statistics") -> dict[str, object]:
    return {
        "format_version": 1,
        "changes": [
            {"table": name, "op": operation, "changes": changes}
            for (name, operation), changes in sorted(statistics.operations.items())
        ],
        "transactions": statistics.transactions,
        "largest": [one._asdict() for one in statistics.largest],
        "first": statistics.first and statistics.first._asdict(),
        "last": statistics.last and statistics.last._asdict(),
    }


def _statistics_lines(statistics: "Statistics") -> Iterator[str]:
    yield from facts(_span(statistics))
    if statistics.operations:
        yield ""
        names = sorted({name for name, _ in statistics.operations})
        given = [op for op in _HEADINGS if any((name, op) in statistics.operations for name in names)]
        headings = ["TABLE", *(_HEADINGS[op] for op in given)]
        rows = [[name, *(f"{statistics.operations[name, op]:,}" for op in given)] for name in names]
        yield from table(headings, rows, headings[1:])
        yield ""
        headings = ["LARGEST", "XID", "COMMIT LSN", "TIME"]
        cells = [
            [f"{one.changes:,}", text_of(one.xid) or "-", one.commit_lsn, one.ts or "-"]
            for one in statistics.largest
        ]
        yield from table(headings, cells, headings[:2])


def _span(statistics: "Statistics") -> Iterator[tuple[str, str]]:
    yield "changes", f"{statistics.operations.total():,}"
    yield "transactions", f"{statistics.transactions:,}"
    for name, commit in (("first", statistics.first), ("last", statistics.last)):
        if commit is not None:
            yield name, " ".join(filter(None, [commit.lsn, commit.ts]))


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


def _printer(form: str | None, *, full: bool, remember: bool) -> Callable[["StoredChange"], str]:
    if (form or ("pretty" if sys.stdout.isatty() else "jsonl")) == "pretty":
        return _pretty_printer(full=full, remember=remember)
    terminal = sys.stdout.isatty()
    return lambda change: _for_terminals(change.line) if terminal else change.line


def _pretty_printer(*, full: bool, remember: bool) -> Callable[["StoredChange"], str]:
    from pgcdc_cli.formats.earlier_rows import EarlierRows
    from pgcdc_cli.formats.pretty import render_line, render_message
    from pgcdc_cli.formats.terminal import Style
    from pgcdc_cli.reader.capture_reader import CapturedMessage
    from pgcdc_cli.reader.stored_file import undecodable

    style = Style(colour=wants_colour(sys.stdout), width=get_terminal_size().columns, full=full)
    earlier = EarlierRows() if remember else None

    def pretty(change: "StoredChange") -> str:
        if isinstance(change, CapturedMessage):
            return render_message(change.message, change.relations, style)
        try:
            return render_line(change.line, style, earlier).removesuffix("\n")
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
