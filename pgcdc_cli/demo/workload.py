"""The shop's load: some clients at once, each with a connection, a thread and random numbers of its own.

What a client does is given by the seed; which of two clients comes first is not.
"""

import itertools
import random
import threading
import time
from collections import Counter
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Self

import psycopg

from pgcdc_cli.demo.actions import ACTIONS, Connection, Kind, RolledBackError, Scene

_CONFLICTS = (psycopg.errors.DeadlockDetected, psycopg.errors.SerializationFailure)


class Workload:
    """Starts with `with` and ends with it; what went wrong in a client is raised by `stop`.

    `rate` is the transactions a second of all clients together, 0 for as many as go; `limit` the transactions
    a client, None for as many as there is time for.
    """

    def __init__(
        self, uri: str, *, seed: int = 1, rate: float = 0.0, clients: int = 4, limit: int | None = None
    ) -> None:
        self._uri = uri
        self._seed = seed
        self._limit = limit
        self._pause = clients / rate if rate > 0 else 0.0
        self._stopping = threading.Event()
        self._counts = [Counter[str]() for _ in range(clients)]
        self._pool = ThreadPoolExecutor(clients, thread_name_prefix="shop")
        self._clients: list[Future[None]] = []

    def __enter__(self) -> Self:
        self._clients = [self._pool.submit(self._client, number) for number in range(len(self._counts))]
        return self

    def __exit__(self, *_: object) -> None:
        self._stopping.set()
        self._pool.shutdown()

    @property
    def counts(self) -> Counter[str]:
        """What has been done so far, by `Kind`."""
        return sum((counts.copy() for counts in self._counts), Counter())

    def check(self) -> None:
        """Raise what a client has died of."""
        for client in self._clients:
            if client.done():
                client.result()

    def stop(self) -> Counter[str]:
        """Let every client finish its transaction, and say what was done; raises what a client died of."""
        self._stopping.set()
        return self.wait()

    def wait(self) -> Counter[str]:
        """Wait until every client has reached its limit, and say what was done; raises as `stop` does."""
        for client in self._clients:
            client.result()
        return self.counts

    def _client(self, number: int) -> None:
        rng = random.Random(f"{self._seed}/{number}")  # noqa: S311  a reproducible load, no secret
        actions = rng.choices(list(ACTIONS), list(ACTIONS.values()), k=10_000)
        start = time.monotonic()
        with psycopg.connect(self._uri, autocommit=True) as connection:
            for count, action in enumerate(itertools.islice(itertools.cycle(actions), self._limit)):
                if self._stopping.wait(max(0.0, start + count * self._pause - time.monotonic())):
                    return
                self._counts[number] += _transaction(connection, rng, action)


def _transaction(connection: Connection, rng: random.Random, action: Callable[[Scene], None]) -> Counter[str]:
    """Run an action in a transaction, again and again until no other client is in its way."""
    retries = 0
    while True:
        done = Counter[str]({Kind.RETRY: retries})
        try:
            with connection.transaction():
                action(Scene(connection, rng, done))
        except RolledBackError:
            return Counter({Kind.ROLLBACK: 1, Kind.RETRY: retries})
        except _CONFLICTS:
            retries += 1
        else:
            done[Kind.TRANSACTION] += 1
            return done
