"""Connect again after a lost connection: whether, and how soon."""

import logging
import random
import time
from collections.abc import Callable, Iterator

from pgcdc_cli.catalog import Catalog
from pgcdc_cli.errors import ErrorKind, PgcdcError
from pgcdc_cli.lsn import Lsn
from pgcdc_cli.replication import failures
from pgcdc_cli.sinks.sink import Sink
from pgcdc_cli.stream.loop import SliceWriter
from pgcdc_cli.stream.receive import TICK
from pgcdc_cli.stream.settings import RunEnd, Signals, timed_out

log = logging.getLogger("pgcdc")

FIRST_ATTEMPTS = 4
"""Attempts to connect at first, over half a second, if nothing indicates that a server is there."""

GIVE_UP_AFTER = 600.0
"""Seconds without a working connection after which a run gives up that had one, or knows of a server."""

STEADY = 1.0
"""Seconds that a connection must last; after shorter ones the waits grow, to spare the server."""

FIRST_WAIT = 0.1
"""Seconds of the first wait: a terminated walsender releases its slot within that time."""

LONGEST_WAIT = 1.5
"""Seconds of a wait, at most: a server that returns has its reader within two, however long it was away."""

LONGEST_AFTER_LOSS = 30.0
"""Seconds of a wait, at most, if connections were made but didn't last: what they read may end them."""

SAME_FAULTS = 3
"""Attempts that end with the same fault of the server at the same position, after which there is no other."""

REMINDER = 30.0
"""Seconds between two warnings with the same text."""


_ANSWERS = {ErrorKind.NOT_READY, ErrorKind.SLOT_ACTIVE, ErrorKind.SLOT_SYNCED}
"""Errors that only a server makes that is there."""


class Backoff(Iterator[float]):
    """Seconds to wait, doubling from `FIRST_WAIT` up to `longest`; `reset` after progress.

    Half of each wait is random, so that many streams that lost one server don't return all at once.
    """

    def __init__(self, longest: float) -> None:
        self._longest = longest
        self._ceiling = FIRST_WAIT

    def __next__(self) -> float:
        ceiling = self._ceiling
        self._ceiling = min(ceiling * 2, self._longest)
        return random.uniform(ceiling / 2, ceiling)  # noqa: S311 -- spreads load, guards no secret

    def reset(self) -> None:
        self._ceiling = FIRST_WAIT


class RetryPolicy:
    """Decides whether and when to retry after a failed connection.

    `for_ever`: neither the number of attempts nor the time is limited. `server_is_there`: it has
    answered, so it is worth waiting for.
    """

    def __init__(self, *, loop: bool, for_ever: bool = False) -> None:
        self._loop = loop
        self._for_ever = for_ever
        self._away = Backoff(LONGEST_WAIT)
        self._losses = Backoff(LONGEST_AFTER_LOSS)
        self._attempts = 0
        self._lost_at: float | None = None
        self._connected_at: float | None = None
        self.server_is_there = False
        self._left = False
        self._fault, self._faults = ("", Lsn(0)), 0
        self._said, self._said_at = "", 0.0

    @property
    def level(self) -> int:
        """The log level: WARNING after a lost connection; without a server there is an error soon anyway."""
        return logging.WARNING if self.server_is_there or self._for_ever else logging.INFO

    def level_of(self, message: str) -> int:
        """The log level of a message: INFO if it was logged a moment ago, since retries are frequent."""
        now = time.monotonic()
        if message == self._said and now < self._said_at + REMINDER:
            return logging.INFO
        self._said, self._said_at = message, now
        return self.level

    def leaves(self) -> None:
        """Note that the connection is left for another one, not lost; the slot may be ours for a moment."""
        self._left = True

    def server_answers(self) -> None:
        """Note that a server is there, though nothing is streamed yet."""
        self.server_is_there = True

    def connected(self) -> float | None:
        """Note a working connection; return the seconds without one, None for the first."""
        self._connected_at = time.monotonic()
        away = None if self._lost_at is None else self._connected_at - self._lost_at
        self._lost_at = None
        self.server_is_there = True
        self._said = ""
        self._away.reset()
        return away

    def after(self, error: PgcdcError, edge: Lsn) -> float | None:
        """Return the seconds to wait before another attempt; None to give up.

        `edge` is the position of the last transaction edge that the run has come to.

        A server that reports that it is starting up or shutting down is there. A service that is started
        together with it, at boot or in a failover, waits for it as after a lost connection. So does one whose
        slot is in use: the server may not have noticed yet that the last reader is gone. A query that failed
        in a session, as one that a standby cancels, was answered, too.
        """
        # libpq gives no SQLSTATE to a refused connection: only a session has errors with one.
        refused_in_session = getattr(error.__cause__, "sqlstate", None) is not None
        if error.kind in _ANSWERS or refused_in_session:
            self.server_answers()
        self._attempts += 1
        now = time.monotonic()
        self._lost_at = self._lost_at or now
        backoff = self._away if self._connected_at is None else self._losses
        if self._connected_at is not None and now - self._connected_at >= STEADY:
            self._losses.reset()
        self._connected_at = None
        is_ours = self._left and error.kind is ErrorKind.SLOT_ACTIVE
        if not error.kind.rule.transient or not (self._loop or is_ours):
            return None
        if self._for_ever:
            return next(backoff)
        if error.kind is ErrorKind.SERVER_FAULT and self._recurs(error.message, edge):
            return None
        if not self.server_is_there and self._attempts >= FIRST_ATTEMPTS:
            return None
        return None if now - self._lost_at > GIVE_UP_AFTER else next(backoff)

    def _recurs(self, message: str, edge: Lsn) -> bool:
        """Whether the server fails there each time. Beside DDL it may succeed the next time, or never."""
        fault = (message, edge)
        self._faults = self._faults + 1 if fault == self._fault else 1
        self._fault = fault
        return self._faults >= SAME_FAULTS


def _remedy(error: PgcdcError) -> str | None:
    """Return the hint if the server lacks something (class 53), which time alone may not bring."""
    sqlstate = getattr(error.__cause__, "sqlstate", None) or ""
    return error.hint if sqlstate.startswith(failures.INSUFFICIENT_RESOURCES) else None


class Reconnection:
    """Connects until a run is done, and goes back to the last edge whenever a connection is lost or left."""

    def __init__(
        self,
        retries: RetryPolicy,
        end: RunEnd,
        writer: SliceWriter,
        sink: Sink,
        signals: Signals,
        catalog: Catalog,
    ) -> None:
        self._retries = retries
        self._end = end
        self._writer = writer
        self._sink = sink
        self._signals = signals
        self._catalog = catalog

    def until_done(self, connect: Callable[[], bool]) -> None:
        """Call `connect` until it returns true, or a signal stops the run.

        Raises TIMEOUT if time is up, and errors of `connect` that another connection doesn't help.
        """
        while not self._signals.stop:
            try:
                if connect():
                    return
                self._leave()
            except KeyboardInterrupt:
                if self._signals.stop:
                    return
                if self._signals.time_up:
                    raise timed_out("wait for the server any longer") from None
                raise
            except PgcdcError as error:
                self._try_again(error)

    def _try_again(self, error: PgcdcError) -> None:
        """Wait for another attempt; raise the error if there is none."""
        retries = self._retries
        wait = retries.after(error, self._sink.edge.lsn)
        if wait is None:
            raise error
        remedy = _remedy(error)
        again = f"trying again; {remedy}" if remedy else "trying again"
        log.log(retries.level_of(error.message), "%s; %s", error.message, again)
        self._leave()
        self._pause(wait)
        if self._end.time_is_up and retries.server_is_there:
            raise PgcdcError(ErrorKind.TIMEOUT, f"{error.message}; time is up", hint=remedy) from error
        if self._is_over:
            raise error

    def _leave(self) -> None:
        """Go back to the last edge, from which another connection goes on."""
        self._writer.back_to_edge()
        self._writer.totals.reconnects += 1
        # The catalog's connection may be lost, too, without having noticed.
        self._catalog.close()

    @property
    def _is_over(self) -> bool:
        return self._end.time_is_up or self._end.is_idle(self._writer.last_data)

    def _pause(self, seconds: float) -> None:
        until = time.monotonic() + seconds
        while time.monotonic() < until and not (self._signals.stop or self._is_over):
            self._writer.reopen_if_asked()
            self._sink.tick()
            time.sleep(min(TICK, seconds))
