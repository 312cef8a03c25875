"""The settings, limits and signals of one run of the stream, its end and its totals."""

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from pgcdc_cli.changes.selection import EVERYTHING, NamePattern, Selection, every_table
from pgcdc_cli.errors import ErrorKind, PgcdcError
from pgcdc_cli.lsn import Lsn
from pgcdc_cli.replication.commands import PluginOptions, Protocol
from pgcdc_cli.replication.session import SessionKind
from pgcdc_cli.types.database_text import InvalidText

if TYPE_CHECKING:
    from pgcdc_cli.catalog import Catalog


@dataclass(frozen=True, slots=True)
class RunLimits:
    """Limits at which a run ends by itself; None is no limit. Times are in seconds.

    `end_now` sets the end position to the server's position when the run begins.
    """

    end_lsn: Lsn | None = None
    end_now: bool = False
    max_time: float | None = None
    max_transactions: int | None = None
    idle_timeout: float | None = None


@dataclass(frozen=True, slots=True)
class SnapshotPlan:
    """The snapshot before the stream.

    `again` takes it at every start, not only for a new stream; `only` ends the run after it. The snapshot
    creates the slot; with `any_slot` an existing one may be used. With `with_xid`, rows have the ID of the
    transaction that read them. `workers` is the number of connections that read.
    """

    again: bool = False
    only: bool = False
    any_slot: bool = False
    with_xid: bool = False
    workers: int = 1


@dataclass(frozen=True, slots=True)
class StreamSettings:
    """What to read, from where, and until when.

    - `options` go to the server's plugin; `protocol` adds pgoutput's own if there are `publications`.
    - `bad_file` takes the bytes of a message that can't be decoded.
    - `start_lsn` is for a run without a checkpoint; None is the slot's position.
    - `create_slot` creates the slot first; with `if_not_exists` only if there is none.
    - `loop` retries after a lost connection; with `for_ever` without limits.
    - `status_interval` and `heartbeat_interval` are in seconds, 0 for none.
    - `use_catalog`: without it, tables are known by their Relation messages alone.
    - `make_publication` is called before the stream begins; its second argument says whether it is new.
    - `at_prepare` writes prepared transactions at their PREPARE; `keeps_prepared`: the output can keep them.
    - `peek` reads a temporary copy of the slot, which stays as it is; `peeking` is called once it exists.
    - `invalid_text` says what becomes of bytes that aren't valid text; None leaves it to the format.
    - `origin_numbers` looks up the numbers of replication origins in the catalog.
    - `selection` chooses tables and columns; `resnapshot` are patterns of tables to read while streaming.
    - `includes` chooses the tables whose rows are read, by schema and name, as the format does for changes.
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
    accept_database: bool = False
    accept_upgrade: bool = False
    use_catalog: bool = True
    snapshot: SnapshotPlan | None = None
    make_publication: "Callable[[Catalog, bool], None] | None" = None
    heartbeat_interval: float = 0.0
    at_prepare: bool = False
    keeps_prepared: bool = True
    peek: bool = False
    peeking: Callable[[], None] | None = None
    invalid_text: InvalidText | None = None
    origin_numbers: bool = False
    selection: Selection = EVERYTHING
    resnapshot: tuple[NamePattern, ...] = ()
    includes: Callable[[str, str], bool] = every_table
    for_ever: bool = False
    session_kind: SessionKind = "fixed"


@dataclass(slots=True)
class Signals:
    """What signals ask for: `stop` is an INT or TERM, `hangup` a HUP, and with `time_up` no time is left.

    A handler only sets them, and what is being written is completed. A stop is seen between batches
    (`StreamLoop`), and before the next slice of an open transaction, which the server sends again
    (`SliceWriter`). While `waiting`, an interrupt leaves nothing unfinished, so then the handler also raises
    KeyboardInterrupt. Whoever catches it looks at these for the reason.
    """

    stop: bool = False
    time_up: bool = False
    hangup: bool = False
    waiting: bool = False

    @property
    def ends(self) -> bool:
        """Whether the run must not wait for the server any longer."""
        return self.stop or self.time_up

    @contextmanager
    def interruptible(self) -> Iterator[None]:
        """Let signals interrupt a wait for the server, which may take forever.

        Raises KeyboardInterrupt at once if the run must end already.
        """
        waited, self.waiting = self.waiting, True
        try:
            if self.ends:
                raise KeyboardInterrupt
            yield
        finally:
            self.waiting = waited


@dataclass(slots=True)
class RunTotals:
    """The progress of a run. `wal_end` is the newest end of WAL that the server reported.

    `snapshot_bytes` is how much of a snapshot was received, None if none is being read. `snapshot_rows`
    estimates how many rows it will have, None if unknown. `spooled` are the bytes in the spools of
    uncommitted transactions.
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
    """The end of one run, by its limits; time counts from here on. `lsn` is the end position, if any."""

    def __init__(self, limits: RunLimits) -> None:
        self._limits = limits
        self._began = time.monotonic()
        self.lsn = limits.end_lsn

    def resolve_now(self, position: Lsn) -> None:
        """Resolve the end position "now" to this position; only the first call counts."""
        if self._limits.end_now and self.lsn is None:
            self.lsn = position

    @property
    def time_is_up(self) -> bool:
        limit = self._limits.max_time
        return limit is not None and time.monotonic() - self._began >= limit

    def is_idle(self, last_data: float) -> bool:
        """Whether nothing came for too long since `last_data`, a time of the monotonic clock."""
        idle = self._limits.idle_timeout
        return idle is not None and time.monotonic() - last_data >= idle

    def is_reached(self, lsn: Lsn) -> bool:
        """Whether an edge at `lsn` is at or beyond the end position: no earlier commit is missing then."""
        return self.lsn is not None and lsn >= self.lsn

    def transactions_left(self, done: int) -> int | None:
        """Return the number of transactions still wanted; None for no limit."""
        count = self._limits.max_transactions
        return None if count is None else count - done

    def check(self, edge_lsn: Lsn) -> None:
        """Raise TIMEOUT if time is up before the end position, or before "now" is resolved to one."""
        wanted = self._limits.end_now if self.lsn is None else edge_lsn < self.lsn
        if self.time_is_up and wanted:
            end = "now" if self.lsn is None else self.lsn
            raise PgcdcError(
                ErrorKind.TIMEOUT,
                f"could not reach the end position {end}: time is up at {edge_lsn}",
            )


def timed_out(doing: str) -> PgcdcError:
    """Return the error for a run whose time is up while it does this."""
    return PgcdcError(ErrorKind.TIMEOUT, f"could not {doing}: time is up")
