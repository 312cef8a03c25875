"""What the demo reports while it runs, and its result.

`demonstrate.run_demo(settings, reporter)` is the demo: it calls the reporter from one thread, and returns a
`DemoResult`. The command line prints both; nothing here does.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from pgcdc_cli.lsn import Lsn


@dataclass(frozen=True)
class DemoSettings:
    """`keep` is the directory to leave (new or empty); None for a new one in the working directory.

    `rate` is in transactions per second, 0 for no limit. `format` is `jsonl` or `arrow`.
    """

    keep: Path | None = None
    seconds: float = 15.0
    rate: float = 0.0
    format: str = "jsonl"
    seed: int = 1


@dataclass(frozen=True)
class DemoProgress:
    """Progress while the load runs and the stream catches up.

    `lag` is the WAL, in bytes, that the slot hasn't confirmed; None before there is a slot.
    """

    elapsed: float
    transactions: int
    rows_changed: int
    finished_segments: int
    lag: int | None


class Reporter(Protocol):
    """Shows the demo's progress."""

    def step(self, number: int, total: int, title: str) -> None:
        """Report that a step begins (numbers from 1), so that the previous one is done."""

    def command(self, line: str) -> None:
        """Show a command that is about to run, as it would be typed."""

    def note(self, text: str) -> None:
        """Show one line about what has just happened."""

    def progress(self, progress: DemoProgress) -> None:
        """Show progress; called several times a second while the load runs."""

    def waiting(self, seconds: float) -> None:
        """Show for how long a merge has run; called several times a second."""

    def output(self, line: str) -> None:
        """Take a line that a command has printed to standard output or standard error."""


@dataclass(frozen=True)
class TableResult:
    """One table's source and copy.

    `read` counts the rows of the snapshot, `changed` the later changes as the server decodes them, `events`
    both in the files. `differences` has the first few, as sentences; it is empty if the tables are equal.
    """

    table: str
    source_rows: int
    merged_rows: int
    read: int
    changed: int
    events: int
    files: int
    bytes: int
    differences: Sequence[str]

    @property
    def equal(self) -> bool:
        return not self.differences


@dataclass(frozen=True)
class Moment:
    """The end of a merge: its position, and each table's version by the table's name in the shop."""

    lsn: Lsn
    versions: Mapping[str, int]


@dataclass(frozen=True)
class LakeView:
    """The tables at a moment: numbers of rows by table, and of those that refer to a missing row."""

    moment: Moment
    rows: Mapping[str, int]
    orphans: int


@dataclass(frozen=True)
class OrderView:
    """An order at two moments, as `status, total`; None if it didn't exist."""

    id: int
    earlier: str | None
    later: str | None


@dataclass(frozen=True)
class DemoResult:
    """`rate` is in events per second during the load, `lag` the largest one in bytes of WAL.

    `views` are the lake as each merge left it, `orders` some that changed in between. `catch_up` is the time
    in seconds that the stream needed to reach the end of the WAL after the load. `suggestions` are commands
    to look around with; they need no server.
    """

    directory: Path
    tables: Sequence[TableResult]
    views: Sequence[LakeView]
    orders: Sequence[OrderView]
    transactions: int
    kinds: dict[str, int]
    segments: int
    rate: float
    lag: int
    catch_up: float
    elapsed: float
    suggestions: Sequence[str]

    @property
    def differing(self) -> Sequence[str]:
        """Names of tables that differ from their source."""
        return [table.table for table in self.tables if not table.equal]

    @property
    def orphans(self) -> int:
        """Number of rows that no consistent state has."""
        return sum(view.orphans for view in self.views)
