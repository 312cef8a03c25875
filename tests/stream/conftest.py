"""A small published table, and streams in the background that no failing test leaves behind."""

from collections.abc import Callable, Iterator

import pytest
from stream_runs import SMALL, Following


@pytest.fixture
def source(database18):
    """A database with the tables of `SMALL`, of which `pub` publishes t."""
    database18.execute(SMALL)
    return database18


@pytest.fixture
def follow() -> Iterator[Callable[..., Following]]:
    """Start `pgcdc stream` in the background: `follow(uri, slot, path, *arguments)`."""
    started = []

    def start(*arguments, **settings) -> Following:
        started.append(Following(*arguments, **settings))
        return started[-1]

    yield start
    for one in started:
        one.process.kill()
        one.process.communicate()
