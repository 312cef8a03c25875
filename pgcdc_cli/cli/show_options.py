"""The options of `pgcdc show` as they stand in its help, and the changes that they choose."""

import time
from collections import deque
from collections.abc import Iterator, Sequence
from datetime import UTC, datetime
from fnmatch import fnmatchcase
from itertools import chain, islice
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from pgcdc_cli.cli.command_tree import refuse_unmatched, usage_error
from pgcdc_cli.cli.printing import flush
from pgcdc_cli.cli.units import lsn, whole_number
from pgcdc_cli.lsn import Lsn

if TYPE_CHECKING:
    from pgcdc_cli.reader.change_filter import ChangeFilter
    from pgcdc_cli.reader.directory_reader import StoredChange

WHICH = "Which changes"

_LOOK = 0.5
"""Seconds between looks at a directory that is followed."""

_OPERATIONS = "IUDTMR"


def operation(text: str) -> str:
    """A letter of `op`."""
    if len(text) != 1 or text not in _OPERATIONS:
        raise usage_error(f'"{text}" is none of {", ".join(_OPERATIONS)}')
    return text


def moment(text: str) -> Lsn | datetime:
    """A position in the log, or a time in ISO form, which is UTC's where it has no zone."""
    if "/" in text:
        return lsn(text)
    try:
        read = datetime.fromisoformat(text)
    except ValueError as error:
        raise usage_error(f'"{text}" is neither an LSN, such as 0/1A2B3C8, nor a time in ISO form') from error
    return read if read.tzinfo else read.replace(tzinfo=UTC)


Paths = Annotated[
    list[Path], typer.Argument(metavar="PATH", help="Directories or files, shown one after another.")
]
Form = Annotated[
    Literal["pretty", "jsonl", "debezium"] | None,
    typer.Option("--format", help="Default: pretty on a terminal, else jsonl."),
]
Json = Annotated[bool, typer.Option("--json", help="As --format jsonl; with --stat, one object.")]
Full = Annotated[bool, typer.Option("--full", help="With pretty: shorten no value.")]
Stat = Annotated[
    bool,
    typer.Option("--stat", help="Count only: changes by table, the largest transactions, the time span."),
]
Partial = Annotated[
    bool, typer.Option("--partial", help="Of directories, what isn't finished but durable, too.")
]
Follow = Annotated[
    bool, typer.Option("--follow", help="Of a directory, all that is durable, then what becomes so.")
]
Limit = Annotated[
    int | None, typer.Option(parser=whole_number, metavar="N", help="Only the first N changes.")
]
Tail = Annotated[int | None, typer.Option(parser=whole_number, metavar="N", help="Only the last N changes.")]
Tables = Annotated[
    list[str] | None,
    typer.Option(
        "--table", metavar="PATTERN", rich_help_panel=WHICH, help="Only tables like this, as in 'public.*'."
    ),
]
Operations = Annotated[
    list[str] | None,
    typer.Option(
        "--op",
        parser=operation,
        metavar="OP",
        rich_help_panel=WHICH,
        help="Only I (insert), U (update), D (delete), T (truncate), M (message) or R (row of a snapshot).",
    ),
]
Key = Annotated[
    list[str] | None,
    typer.Option(
        metavar="NAME=VALUE", rich_help_panel=WHICH, help="Only rows with this value, before or after."
    ),
]
Columns = Annotated[
    list[str] | None,
    typer.Option(
        "--column", metavar="NAME", rich_help_panel=WHICH, help="Only changes that may have changed it."
    ),
]
Since = Annotated[
    Lsn | None,
    typer.Option(
        parser=moment, metavar="WHEN", rich_help_panel=WHICH, help="Commits from this LSN or time on."
    ),
]
Until = Annotated[
    Lsn | None,
    typer.Option(
        parser=moment, metavar="WHEN", rich_help_panel=WHICH, help="Commits up to this LSN or time."
    ),
]
At = Annotated[
    Lsn | None,
    typer.Option(
        parser=lsn, metavar="LSN", rich_help_panel=WHICH, help="Only the change, or the commit, at this LSN."
    ),
]


class Shown:
    """The changes of some files that are wanted: of `tables`, which are patterns, none meaning all."""

    def __init__(self, paths: Sequence[Path], tables: Sequence[str], wanted: "ChangeFilter") -> None:
        self._paths = paths
        self._tables = tables
        self._wanted = wanted
        self._seen: set[str] = set()

    def read(self, *, partial: bool) -> Iterator["StoredChange"]:
        """Read all there are."""
        from pgcdc_cli.reader.directory_reader import read_path

        paths = (read_path(path, self._tables, partial=partial) for path in self._paths)
        return filter(self._wants, chain.from_iterable(paths))

    def follow(self, tail: int | None) -> Iterator["StoredChange"]:
        """Read a directory for ever; of what is there already, the last `tail`, or all."""
        from pgcdc_cli.reader.directory_reader import follow_directory

        newest: deque[StoredChange] | None = None if tail is None else deque(maxlen=tail)
        for change in follow_directory(self._paths[0], self._tables):
            if change is None:
                yield from newest or ()
                newest = None
                flush()
                time.sleep(_LOOK)
            elif self._wants(change):
                if newest is None:
                    yield change
                else:
                    newest.append(change)

    def _wants(self, change: "StoredChange") -> bool:
        self._seen.add(change.table)
        return self._wanted.wants(change.line)

    def refuse_unmatched(self) -> None:
        """Refuse patterns that no table fits, once all has been read."""
        refuse_unmatched([p for p in self._tables if not any(fnmatchcase(t, p) for t in self._seen)])


def first_or_last(
    changes: Iterator["StoredChange"], limit: int | None, tail: int | None
) -> Iterator["StoredChange"]:
    """Leave out what --limit and --tail leave out."""
    return iter(deque(changes, tail)) if tail is not None else islice(changes, limit)
