"""Whether a lost connection is tried again, and how soon."""

import logging
import random
import time
from collections.abc import Iterator

from pgcdc_cli.errors import ErrorKind, PgcdcError

FIRST_ATTEMPTS = 4
"""Attempts to make the first connection where nothing says that a server is there: over half a second."""

GIVE_UP_AFTER = 600.0
"""Seconds without a working connection after which a run that had one, or knows of a server, gives up."""

STEADY = 1.0
"""Seconds that a connection must last; after shorter ones the waits grow, so that no server is hammered."""

FIRST_WAIT = 0.1
"""Seconds: a walsender that was terminated lets go of its slot within that time."""

LONGEST_WAIT = 1.5
"""Seconds: a server that comes back, after however long, has its reader within two."""

LONGEST_AFTER_LOSS = 30.0
"""Seconds, where connections were made and did not last: what ends them may be what they read."""

REMINDER = 30.0
"""Seconds between two warnings that say the same."""


class Backoff(Iterator[float]):
    """Seconds to wait, doubling from `FIRST_WAIT` up to `longest`; `reset` after progress.

    Half of each wait is random, so that many streams which lost one server don't come back at one instant.
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
    """May a failed connection be tried again, and when?

    `for_ever`: no number of attempts and no time is too much.
    """

    def __init__(self, *, loop: bool, for_ever: bool = False) -> None:
        self._loop = loop
        self._for_ever = for_ever
        self._away = Backoff(LONGEST_WAIT)
        self._losses = Backoff(LONGEST_AFTER_LOSS)
        self._attempts = 0
        self._lost_at: float | None = None
        self._connected_at: float | None = None
        self._server_is_there = False
        self._said, self._said_at = "", 0.0

    @property
    def level(self) -> int:
        """A lost connection is worth a warning; a server that isn't there will be an error soon enough."""
        return logging.WARNING if self._server_is_there or self._for_ever else logging.INFO

    def level_of(self, message: str) -> int:
        """Of what was said a moment ago the others are of less interest: there is a try every second."""
        now = time.monotonic()
        if message == self._said and now < self._said_at + REMINDER:
            return logging.INFO
        self._said, self._said_at = message, now
        return self.level

    def server_answers(self) -> None:
        """Take note of a server that is there, though nothing is streamed yet."""
        self._server_is_there = True

    def connected(self) -> float | None:
        """Take note of a working connection; gives the seconds that there was none, None at first."""
        self._connected_at = time.monotonic()
        away = None if self._lost_at is None else self._connected_at - self._lost_at
        self._lost_at = None
        self._server_is_there = True
        self._said = ""
        self._away.reset()
        return away

    def after(self, error: PgcdcError) -> float | None:
        """Seconds to wait before another try; None if there is none.

        A server that says that it is starting up or shutting down is there: a service that is started with
        it, at boot or in a failover, waits for it as for one that it had.
        """
        if error.kind is ErrorKind.NOT_READY:
            self.server_answers()
        self._attempts += 1
        now = time.monotonic()
        self._lost_at = self._lost_at or now
        backoff = self._away if self._connected_at is None else self._losses
        if self._connected_at is not None and now - self._connected_at >= STEADY:
            self._losses.reset()
        self._connected_at = None
        if not error.kind.rule.transient or not self._loop:
            return None
        if self._for_ever:
            return next(backoff)
        if not self._server_is_there and self._attempts >= FIRST_ATTEMPTS:
            return None
        return None if now - self._lost_at > GIVE_UP_AFTER else next(backoff)
