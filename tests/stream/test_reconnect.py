"""How soon a lost connection is tried again, and when no more."""

import pytest

from pgcdc_cli.errors import ErrorKind, PgcdcError
from pgcdc_cli.stream.reconnect import CAP, FIRST, FIRST_TRIES, PATIENCE, STEADY, Patience

LOST = PgcdcError(ErrorKind.CONNECTION, "lost")


class Clock:
    def __init__(self) -> None:
        self.now = 1000.0

    def monotonic(self) -> float:
        return self.now


@pytest.fixture
def clock(monkeypatch):
    clock = Clock()
    monkeypatch.setattr("pgcdc_cli.stream.reconnect.time", clock)
    return clock


def connected(patience, clock, seconds):
    """A connection that lasts so long; gives the wait after it."""
    patience.connected()
    clock.now += seconds
    return patience.after(LOST)


def test_connections_that_are_lost_at_once_are_tried_ever_more_slowly(clock):
    patience = Patience(loop=True)
    waits = [connected(patience, clock, STEADY / 2) for _ in range(20)]
    assert waits[0] <= FIRST
    assert min(waits[-5:]) >= CAP / 2


def test_a_connection_that_lasted_is_tried_again_at_once(clock):
    patience = Patience(loop=True)
    assert connected(patience, clock, STEADY / 2) is not None
    assert all(connected(patience, clock, STEADY) <= FIRST for _ in range(20))


def test_a_first_connection_is_tried_for_a_moment_a_later_one_for_minutes(clock):
    patience = Patience(loop=True)
    assert [patience.after(LOST) is None for _ in range(FIRST_TRIES)] == [False] * (FIRST_TRIES - 1) + [True]
    patience.connected()
    assert patience.after(LOST) is not None
    clock.now += PATIENCE
    assert patience.after(LOST) is not None
    clock.now += 1
    assert patience.after(LOST) is None


@pytest.mark.parametrize(("loop", "kind"), [(False, ErrorKind.CONNECTION), (True, ErrorKind.RIGHTS)])
def test_without_a_loop_or_hope_there_is_no_other_try(loop, kind):
    patience = Patience(loop=loop)
    patience.connected()
    assert patience.after(PgcdcError(kind, "no")) is None
