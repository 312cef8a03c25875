"""What the demo says while it runs, and what it found in the end.

`demonstrate.run_demo(settings, reporter)` is the demo; it calls the reporter from one thread and returns a
`DemoResult`. The command line renders both; nothing here prints.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from pgcdc_cli.lsn import Lsn


@dataclass(frozen=True)
class DemoSettings:
    """`keep` is the directory to leave (new or empty); None stands for a new one in the working directory.

    `rate` is in transactions a second, 0 for as many as go. `format` is `jsonl` or `arrow`.
    """

    keep: Path | None = None
    seconds: float = 15.0
    rate: float = 0.0
    format: str = "jsonl"
    seed: int = 1


@dataclass(frozen=True)
class DemoProgress:
    """How things stand while the load runs and the stream catches up.

    `lag` is in bytes of log that the slot doesn't know as durable; None before there is a slot.
    """

    elapsed: float
    transactions: int
    rows_changed: int
    finished_segments: int
    lag: int | None


class Reporter(Protocol):
    """Called with everything a spectator would want to see."""

    def step(self, number: int, total: int, title: str) -> None:
        """Say that a step begins (numbers from 1), and so that the one before is done."""

    def command(self, line: str) -> None:
        """Show a command that is about to run, as it would be typed."""

    def note(self, text: str) -> None:
        """Show one line on what has just happened."""

    def progress(self, progress: DemoProgress) -> None:
        """Show how things stand: some times a second while the load runs."""

    def waiting(self, seconds: float) -> None:
        """Show for how long a merge has been waited for: some times a second."""

    def output(self, line: str) -> None:
        """Take one line that a command has printed, standard output and error alike."""


@dataclass(frozen=True)
class TableResult:
    """One table, source and copy.

    `read` counts the rows of the snapshot, `changed` the changes behind it as the server itself decodes them,
    `events` both in the files. `differences` holds the first few, as sentences; it is empty when the tables
    are equal.
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
    """Where a merge left off: up to which position, and each table's version, by its name in the shop."""

    lsn: Lsn
    versions: Mapping[str, int]


@dataclass(frozen=True)
class LakeView:
    """The tables as they were at a moment: rows by table, and how many refer to a row that isn't there."""

    moment: Moment
    rows: Mapping[str, int]
    orphans: int


@dataclass(frozen=True)
class OrderView:
    """An order at two moments, as `status, total`; None where it was not there."""

    id: int
    earlier: str | None
    later: str | None


@dataclass(frozen=True)
class DemoResult:
    """`rate` is in events a second while the load ran, `lag` the longest seen in bytes of log.

    `views` are the lake as each merge left it, `orders` some that have changed in between. `catch_up` is how
    many seconds the stream needed to the end of the log once the load had ended. `suggestions` are commands
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
        """Names of tables that are not as their source."""
        return [table.table for table in self.tables if not table.equal]

    @property
    def orphans(self) -> int:
        """Rows that no consistent moment could hold."""
        return sum(view.orphans for view in self.views)
