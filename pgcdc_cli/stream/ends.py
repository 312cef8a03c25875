"""Where a run ends by itself."""

import time

from pgcdc_cli.errors import ErrorKind, PgcdcError
from pgcdc_cli.lsn import Lsn
from pgcdc_cli.stream.settings import Limits


class Ends:
    """The limits of one run, whose clock runs from here on. `lsn` is the end position, None for none."""

    def __init__(self, limits: Limits) -> None:
        self._limits = limits
        self._began = time.monotonic()
        self.lsn = limits.end_lsn

    def resolve_now(self, position: Lsn) -> None:
        """Let "now" stand for the server's position at the first connection."""
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
        """Raise TIMEOUT where time is up before the end position."""
        if self.time_is_up and self.lsn is not None and edge_lsn < self.lsn:
            raise PgcdcError(
                ErrorKind.TIMEOUT,
                f"could not reach the end position {self.lsn}: time is up at {edge_lsn}",
            )
