"""How long to wait before the next attempt to connect."""

import random
from collections.abc import Iterator

FIRST = 0.1
"""Seconds: a walsender that was terminated lets go of its slot within that time."""

CAP = 30.0
"""Seconds: a server that comes back after hours is noticed soon enough."""


class Backoff(Iterator[float]):
    """Seconds to wait, doubling from `FIRST` up to `CAP`; `reset` after progress.

    Half of each wait is random, so that many streams which lost one server don't come back at one instant.
    """

    def __init__(self) -> None:
        self._ceiling = FIRST

    def __next__(self) -> float:
        ceiling = self._ceiling
        self._ceiling = min(ceiling * 2, CAP)
        return random.uniform(ceiling / 2, ceiling)  # noqa: S311 -- spreads load, guards no secret

    def reset(self) -> None:
        self._ceiling = FIRST
