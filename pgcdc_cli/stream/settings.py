"""What one run of the stream is to do: settings, limits, signals. And how far it is: end, totals."""

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from pgcdc_cli.changes.selection import EVERYTHING, NamePattern, Selection
from pgcdc_cli.errors import ErrorKind, PgcdcError
from pgcdc_cli.lsn import Lsn
from pgcdc_cli.replication.commands import PluginOptions, Protocol
from pgcdc_cli.replication.session import SessionKind
from pgcdc_cli.types.database_text import InvalidText

if TYPE_CHECKING:
    from pgcdc_cli.catalog import Catalog


@dataclass(frozen=True, slots=True)
class RunLimits:
    """Where a run ends by itself; None is never. Times are in seconds.

    `end_now` stands for the position that the server has when the run begins.
    """

    end_lsn: Lsn | None = None
    end_now: bool = False
    max_time: float | None = None
    max_transactions: int | None = None
    idle_timeout: float | None = None


@dataclass(frozen=True, slots=True)
class SnapshotPlan:
    """Which tables' rows come before the stream, by schema and name.

    `again` reads them at every start, not only where the stream is new; `only` ends the run with them. A new
    slot is made with the snapshot; `any_slot` says that one that is there will do. `with_xid` gives rows the
    transaction that read them. So many `workers` read at once.
    """

    includes: Callable[[str, str], bool]
    again: bool = False
    only: bool = False
    any_slot: bool = False
    with_xid: bool = False
    workers: int = 1


@dataclass(frozen=True, slots=True)
class StreamSettings:
    """What to read, from where, until when.

    `options` go to the server's plugin; `protocol` adds pgoutput's own, where there are publications.
    `start_lsn` is for a run without a checkpoint; None is the slot's own position. `create_slot` makes the
    slot first, with `if_not_exists` only where there is none. `bad_file` takes the bytes of a message that
    can't be decoded. Without `use_catalog` relation messages are all that is known of tables.
    `make_publication` is called before a new stream begins. `heartbeat_interval` is in seconds, 0 for none.
    `at_prepare` gives out prepared transactions at their PREPARE; `keeps_prepared` says
    that they can be dealt with at all. `peek` reads a temporary copy of the slot, so that nothing is taken;
    `peeking` is called when the copy is there. `invalid_text` says what becomes of bytes that are no text;
    None leaves it to the format. `origin_numbers` asks the catalog for those of replication origins.
    `selection` are the tables and columns that are wanted, `resnapshot` the tables that are read again while
    they are streamed. With `for_ever` a connection that was lost is tried again however long that takes.
    """

    conninfo: str
    slot: str
    publications: tuple[str, ...]
    options: PluginOptions
    protocol: Protocol
    limits: RunLimits
    bad_file: Path
    start_lsn: Lsn | None = None
    create_slot: bool = False
    if_not_exists: bool = False
    loop: bool = True
    status_interval: float = 10.0
    accept_gap: bool = False
    accept_publications: bool = False
    use_catalog: bool = True
    snapshot: SnapshotPlan | None = None
    make_publication: "Callable[[Catalog], None] | None" = None
    heartbeat_interval: float = 0.0
    at_prepare: bool = False
    keeps_prepared: bool = True
    peek: bool = False
    peeking: Callable[[], None] | None = None
    invalid_text: InvalidText | None = None
    origin_numbers: bool = False
    selection: Selection = EVERYTHING
    resnapshot: tuple[NamePattern, ...] = ()
    for_ever: bool = False
    session_kind: SessionKind = "fixed"


@dataclass(slots=True)
class Signals:
    """What signals ask for; set by a handler, looked at between batches.

    `time_up`: the run has no time left. While `waiting` there is nothing to finish, and a handler that was
    told of either may raise KeyboardInterrupt.
    """

    stop: bool = False
    time_up: bool = False
    hangup: bool = False
    waiting: bool = False

    @property
    def ends(self) -> bool:
        """Is there to be no more waiting for the server?"""
        return self.stop or self.time_up

    @contextmanager
    def interruptible(self) -> Iterator[None]:
        """Wait for a server, which may take for ever. KeyboardInterrupt if there was reason for it before."""
        waited, self.waiting = self.waiting, True
        try:
            if self.ends:
                raise KeyboardInterrupt
            yield
        finally:
            self.waiting = waited


@dataclass(slots=True)
class RunTotals:
    """What a run has done so far. `wal_end` is the newest end of the server's WAL that it told.

    `snapshot_bytes` is how much of a snapshot came, None where none is being read; `snapshot_rows` about how
    many rows it will have, None where that isn't known. `spooled` are bytes that came of transactions which
    aren't committed yet.
    """

    rows: int = 0
    snapshot_bytes: int | None = None
    snapshot_rows: int | None = None
    transactions: int = 0
    spooled: int = 0
    reconnects: int = 0
    written_lsn: Lsn = Lsn(0)  # noqa: RUF009 - an int, immutable
    durable_lsn: Lsn = Lsn(0)  # noqa: RUF009 - an int, immutable
    wal_end: Lsn = Lsn(0)  # noqa: RUF009 - an int, immutable


class RunEnd:
    """The limits of one run, whose clock runs from here on. `lsn` is the end position, None for none."""

    def __init__(self, limits: RunLimits) -> None:
        self._limits = limits
        self._began = time.monotonic()
        self.lsn = limits.end_lsn

    def resolve_now(self, position: Lsn) -> None:
        """Let "now" stand for the server's position when it is asked for; the first call counts."""
        if self._limits.end_now and self.lsn is None:
            self.lsn = position

    @property
    def time_is_up(self) -> bool:
        limit = self._limits.max_time
        return limit is not None and time.monotonic() - self._began >= limit

    def is_idle(self, last_data: float) -> bool:
        """Was there nothing for too long since `last_data`, a time of the monotonic clock?"""
        idle = self._limits.idle_timeout
        return idle is not None and time.monotonic() - last_data >= idle

    def is_reached(self, lsn: Lsn) -> bool:
        """Nothing else can have committed before the end position once an edge is beyond it."""
        return self.lsn is not None and lsn >= self.lsn

    def transactions_left(self, done: int) -> int | None:
        """How many are wanted after those that are done; None for any number."""
        count = self._limits.max_transactions
        return None if count is None else count - done

    def check(self, edge_lsn: Lsn) -> None:
        """Raise TIMEOUT where time is up before the end position, or before it is known where "now" is."""
        wanted = self._limits.end_now if self.lsn is None else edge_lsn < self.lsn
        if self.time_is_up and wanted:
            end = "now" if self.lsn is None else self.lsn
            raise PgcdcError(
                ErrorKind.TIMEOUT,
                f"could not reach the end position {end}: time is up at {edge_lsn}",
            )
