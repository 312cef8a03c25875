"""`pgcdc show`: print what pgcdc wrote."""

import json as json_text
import sys
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import nullcontext, suppress
from datetime import UTC, datetime, timedelta
from itertools import chain, islice
from pathlib import Path
from shutil import get_terminal_size
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from pgcdc_cli.cli import stream_options
from pgcdc_cli.cli.command_tree import Command, examples, refuse_unmatched, usage_error
from pgcdc_cli.cli.option_checks import check_connector
from pgcdc_cli.cli.printing import counted, facts, flush, paged, say, table, text_of, wants_colour, write
from pgcdc_cli.cli.target import read_config
from pgcdc_cli.cli.units import duration, lsn, name_and_value, whole_number
from pgcdc_cli.ending_signals import early_ending
from pgcdc_cli.errors import ErrorKind, PgcdcError, quoted_list
from pgcdc_cli.lsn import Lsn

if TYPE_CHECKING:
    from pgcdc_cli.formats.debezium.connector_config import ConnectorConfig
    from pgcdc_cli.reader.change_filter import ChangeFilter
    from pgcdc_cli.reader.directory_reader import StoredChange
    from pgcdc_cli.reader.statistics import Statistics

_WHICH = "Which changes"

_LOOK = 0.5
"""Seconds between two reads of a directory that is followed."""

_OPERATIONS = {
    "insert": "I",
    "update": "U",
    "delete": "D",
    "truncate": "T",
    "message": "M",
    "row": "R",
}
"""The letters of `op` by their words."""


def operation(text: str) -> str:
    """Parse a letter of `op`, or its word."""
    letter = _OPERATIONS.get(text.lower(), text.upper())
    if letter not in _OPERATIONS.values():
        each = ": give each its own --op" if "," in text else ""
        raise usage_error(f'"{text}" is not one of {", ".join(_OPERATIONS.values())}{each}')
    return letter


def moment(text: str) -> Lsn | datetime:
    """Parse an LSN, a time in ISO form (UTC without a zone), or how long ago."""
    if "/" in text:
        return lsn(text)
    with suppress(ValueError):
        read = datetime.fromisoformat(text)
        return read if read.tzinfo else read.replace(tzinfo=UTC)
    if text[:1].isdigit() and text[-1:].isalpha():
        try:
            return datetime.now(UTC) - timedelta(seconds=duration(text))
        except OverflowError as error:
            raise usage_error(f'"{text}" ago is before the year 1') from error
    raise usage_error(
        f'"{text}" is neither an LSN, such as 0/1A2B3C8, nor a time in ISO form, nor how long ago, such as 2h'
    )


_STANDARD_INPUT = Path("/dev/stdin")

Paths = Annotated[
    list[Path],
    typer.Argument(
        metavar="PATH", help="Directories or files, shown one after another; - is standard input."
    ),
]
Form = Annotated[
    Literal["pretty", "jsonl", "debezium"] | None,
    typer.Option("--format", help="Default: pretty on a terminal, else jsonl."),
]
Json = Annotated[bool, typer.Option("--json", help="The same as --format jsonl; with --stat, one object.")]
Full = Annotated[bool, typer.Option("--full", help="With pretty: don't shorten values.")]
Stat = Annotated[
    bool,
    typer.Option("--stat", help="Only count: changes by table, largest transactions, time span."),
]
Partial = Annotated[
    bool, typer.Option("--partial", help="Include the durable part of the unfinished segment.")
]
Follow = Annotated[
    bool, typer.Option("--follow", help="Keep printing changes of a directory as they become durable.")
]
Limit = Annotated[
    int | None, typer.Option(parser=whole_number, metavar="N", help="Only the first N changes.")
]
Tail = Annotated[int | None, typer.Option(parser=whole_number, metavar="N", help="Only the last N changes.")]
Tables = Annotated[
    list[str] | None,
    typer.Option(
        "--table", metavar="PATTERN", rich_help_panel=_WHICH, help="Only matching tables, such as 'public.*'."
    ),
]
Operations = Annotated[
    list[str] | None,
    typer.Option(
        "--op",
        parser=operation,
        metavar="OP",
        rich_help_panel=_WHICH,
        help="Only I (insert), U (update), D (delete), T (truncate), M (message) or R (snapshot row).",
    ),
]
Key = Annotated[
    list[str] | None,
    typer.Option(
        metavar="NAME=VALUE",
        rich_help_panel=_WHICH,
        help="Only rows with this value before or after the change.",
    ),
]
Columns = Annotated[
    list[str] | None,
    typer.Option(
        "--column",
        metavar="NAME",
        rich_help_panel=_WHICH,
        help="Only changes that may have changed this column.",
    ),
]
Since = Annotated[
    Lsn | None,
    typer.Option(
        parser=moment, metavar="WHEN", rich_help_panel=_WHICH, help="Only commits from this LSN or time on."
    ),
]
Until = Annotated[
    Lsn | None,
    typer.Option(
        parser=moment, metavar="WHEN", rich_help_panel=_WHICH, help="Only commits up to this LSN or time."
    ),
]
At = Annotated[
    Lsn | None,
    typer.Option(
        parser=lsn, metavar="LSN", rich_help_panel=_WHICH, help="Only the change, or the commit, at this LSN."
    ),
]


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
            "pgcdc show changes --stat --since 2h",
            "pgcdc show changes --format debezium -c topic.prefix=shop",
        ),
    )(show)


def show(  # noqa: PLR0913 - a command's options
    paths: Paths,
    *,
    form: Form = None,
    json: Json = False,
    full: Full = False,
    stat: Stat = False,
    partial: Partial = False,
    follow: Follow = False,
    limit: Limit = None,
    tail: Tail = None,
    tables: Tables = None,
    operations: Operations = None,
    key: Key = None,
    columns: Columns = None,
    since: Since = None,
    until: Until = None,
    at: At = None,
    connector_config: stream_options.ConnectorConfig = None,
    connector_property: stream_options.ConnectorProperty = None,
    record: stream_options.Record = "full",
) -> None:
    """Print what pgcdc wrote, in the order in which it happened.

    PATH is a directory written by `pgcdc stream -D`, a single file (compressed or not), or pgoutput captured
    by pg_recvlogical. Changes look the same whatever format they are stored in. For a directory, the finished
    segments are shown, with all tables merged; --format debezium turns JSON lines and Arrow files into
    Debezium's events. A file's checksum is compared at its end, after its changes are shown: pgcdc status
    --verify compares all.

    WHEN is an LSN, an ISO 8601 time (UTC unless it has an offset) or a time span ago, such as 2h. On a
    terminal, the output goes through PAGER.
    """
    from pgcdc_cli.reader.change_filter import ChangeFilter

    paths = [_STANDARD_INPUT if path == Path("-") else path for path in paths]
    keys = tuple(name_and_value("--key", one) for one in key or ())
    if _is_before(until, since):
        raise usage_error("--until is before --since: no change is between them")
    wanted = ChangeFilter(frozenset(operations or ()), keys, frozenset(columns or ()), since, until, at)
    check_connector(form, connector_config, connector_property, record)
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
    shown = _Shown(paths, tables or [], wanted)
    early_ending.check()
    changes = shown.follow(tail) if follow else shown.read(partial=partial)
    chosen = _first(changes, limit) if follow or tail is None else iter(_last(changes, tail))
    lines = (
        _statistics(chosen, shown.empty_tables() if wanted == ChangeFilter() else set(), json=json)
        if stat
        # If not all changes are shown, the last one shown of a row needn't be the one before.
        else map(_printer("jsonl" if json else form, full=full, remember=not (operations or columns)), chosen)
    )
    whole = False
    with nullcontext() if follow else paged():
        _write(lines)
        whole = True
    # There may be more tables after --limit, or after the user left the pager.
    if whole and not follow and next(changes, None) is None:
        shown.refuse_unmatched()
        if not partial and sys.stdout.isatty():
            _tell_of_unfinished(paths)


def _is_before(one: Lsn | datetime | None, other: Lsn | datetime | None) -> bool:
    """Whether both are positions, or both are times, and one is before the other."""
    if isinstance(one, Lsn) and isinstance(other, Lsn):
        return one < other
    return isinstance(one, datetime) and isinstance(other, datetime) and one < other


def _tell_of_unfinished(paths: list[Path]) -> None:
    """Say that there is more than what was shown."""
    from pgcdc_cli.reader.directory_reader import unfinished_rows

    for path in paths:
        if rows := unfinished_rows(path):
            more = counted(rows, "change")
            say(f'"{path}" has {more} more, in a segment that isn\'t finished: add --partial')


class _Shown:
    """The wanted changes in some files; `tables` are patterns, none for all."""

    def __init__(self, paths: Sequence[Path], tables: Sequence[str], wanted: "ChangeFilter") -> None:
        self._paths = paths
        self._tables = tables
        self._wanted = wanted
        self._seen: set[str] = set()
        self._unseen_columns = {name for name, _ in wanted.key} | wanted.columns
        self._found = self._unsure = False

    def read(self, *, partial: bool) -> Iterator["StoredChange"]:
        """Read all changes that are there."""
        from pgcdc_cli.reader.directory_reader import read_path

        paths = (read_path(path, self._tables, partial=partial) for path in self._paths)
        return filter(self._wants, chain.from_iterable(paths))

    def follow(self, tail: int | None) -> Iterator["StoredChange"]:
        """Read a directory forever, beginning with the last `tail` changes that are there, or all."""
        from pgcdc_cli.reader.directory_reader import follow_directory

        found = follow_directory(self._paths[0], self._tables)
        if tail is not None:
            yield from _last(filter(self._wants, iter(found.__next__, None)), tail)
        for change in found:
            if change is None:
                flush()
                time.sleep(_LOOK)
            elif self._wants(change):
                yield change

    def _wants(self, change: "StoredChange") -> bool:
        self._seen.add(change.table)
        if self._unseen_columns:
            self._unseen_columns = {name for name in self._unseen_columns if not _has(change, name)}
        wanted = self._wanted.wants(change.line)
        self._found = self._found or wanted
        self._unsure = self._unsure or (change.table != "" and self._wanted.is_unsure(change.line))
        return wanted

    def empty_tables(self) -> set[str]:
        """Name the tables of which a snapshot had no rows."""
        from pgcdc_cli.reader.directory_reader import empty_tables

        return {table for path in self._paths for table in empty_tables(path, self._tables)}

    def refuse_unmatched(self) -> None:
        """After reading, raise USAGE for what can't be known to be missing, or is a mistake.

        That is an LSN that no change has, if the files lack positions, patterns that matched no table, and
        columns that no change had.
        """
        from pgcdc_cli.reader.directory_reader import is_table

        if self._unsure and not self._found:
            raise self._wanted.lacks_position()
        there = self._seen | (self.empty_tables() if self._tables else set())
        refuse_unmatched([p for p in self._tables if not any(is_table(t, p) for t in there)])
        if self._seen and self._unseen_columns:
            raise PgcdcError(
                ErrorKind.USAGE,
                f"could not find {quoted_list(sorted(self._unseen_columns))}: no change has such a column",
                hint="a column's name is as in the files, in the same case: --key id=42, --column total",
            )


def _has(change: "StoredChange", column: str) -> bool:
    return f"{json_text.dumps(column, ensure_ascii=False)}:" in change.line


def _first(changes: Iterator["StoredChange"], limit: int | None) -> Iterator["StoredChange"]:
    """Yield all up to the change number `limit`. What belongs to no table (B, C, messages) isn't counted."""
    left = limit
    while left != 0 and (change := next(changes, None)) is not None:
        yield change
        if left is not None and change.table:
            left -= 1


def _last(changes: Iterable["StoredChange"], number: int) -> Iterable["StoredChange"]:
    """Return the last `number` changes, counted as in `_first`, and what came after the first of them."""
    kept: deque[StoredChange] = deque()
    count = 0
    for change in changes:
        kept.append(change)
        count += bool(change.table)
        while kept and (count > number or not kept[0].table):
            count -= bool(kept.popleft().table)
    return kept


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
    from pgcdc_cli.reader.directory_reader import is_folder

    if follow and not (len(paths) == 1 and is_folder(paths[0])):
        raise usage_error("--follow: give one directory of pgcdc stream -D")


def _statistics(changes: Iterator["StoredChange"], empty: set[str], *, json: bool) -> Iterator[str]:
    from pgcdc_cli.reader.statistics import count

    statistics = count(((change.table, change.line) for change in changes), empty)
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
    if statistics.largest:
        yield ""
        headings = ["LARGEST", "XID", "COMMIT LSN", "TIME"]
        cells = [
            [f"{one.changes:,}", text_of(one.xid) or "-", one.commit_lsn or "-", one.ts or "-"]
            for one in statistics.largest
        ]
        yield from table(headings, cells, headings[:2])


def _span(statistics: "Statistics") -> Iterator[tuple[str, str]]:
    yield "changes", f"{statistics.operations.total():,}"
    if statistics.transactions is not None:
        yield "transactions", f"{statistics.transactions:,}"
    for name, commit in (("first", statistics.first), ("last", statistics.last)):
        if commit is not None:
            yield name, " ".join(filter(None, commit))


def _events(
    paths: list[Path], config: "ConnectorConfig", *, values_only: bool, partial: bool
) -> Iterator[str]:
    from pgcdc_cli.formats.debezium.debezium_format import DebeziumFormat
    from pgcdc_cli.reader.as_debezium import read_events
    from pgcdc_cli.reader.directory_reader import is_folder

    for path in paths:
        if not is_folder(path):
            raise usage_error(f'--format debezium: "{path}" is not a directory, whose schema files it needs')
    format_ = DebeziumFormat(config, "stream", values_only=values_only)
    lines = chain.from_iterable(read_events(path, format_, partial=partial) for path in paths)
    return map(_for_terminals, lines) if sys.stdout.isatty() else lines


def _printer(form: str | None, *, full: bool, remember: bool) -> Callable[["StoredChange"], str]:
    if (form or ("pretty" if sys.stdout.isatty() else "jsonl")) == "pretty":
        return _pretty_printer(full=full, remember=remember)
    terminal = sys.stdout.isatty()
    return lambda change: _for_terminals(change.line) if terminal else change.line


def _pretty_printer(*, full: bool, remember: bool) -> Callable[["StoredChange"], str]:
    from pgcdc_cli.formats.pretty import EarlierChanges, render_line, render_message
    from pgcdc_cli.formats.terminal import Style
    from pgcdc_cli.reader.capture_reader import CapturedMessage
    from pgcdc_cli.reader.restored_change import MISREAD, unfit_line

    style = Style(colour=wants_colour(sys.stdout), width=get_terminal_size().columns, full=full)
    earlier = EarlierChanges() if remember else None

    def pretty(change: "StoredChange") -> str:
        if isinstance(change, CapturedMessage):
            return render_message(change.message, change.relations, style)
        try:
            return render_line(change.line, style, earlier).removesuffix("\n")
        except MISREAD as error:
            raise unfit_line(change.line, error) from error

    return pretty


def _for_terminals(line: str) -> str:
    """Escape control characters for terminals in a line of JSON, which itself has none below U+0020."""
    if line.isprintable():
        return line
    return "".join(c if c.isprintable() else _escaped(c) for c in line)


def _escaped(character: str) -> str:
    units = character.encode("utf-16-be")
    return "".join(f"\\u{units[i]:02x}{units[i + 1]:02x}" for i in range(0, len(units), 2))
