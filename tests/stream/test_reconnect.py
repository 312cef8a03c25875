"""How soon a lost connection is tried again, and when no more."""

import logging
from itertools import islice

import pytest

from pgcdc_cli.errors import ErrorKind, PgcdcError
from pgcdc_cli.stream.reconnect import (
    FIRST_ATTEMPTS,
    FIRST_WAIT,
    GIVE_UP_AFTER,
    LONGEST_WAIT,
    STEADY,
    Backoff,
    RetryPolicy,
)

LOST = PgcdcError(ErrorKind.CONNECTION, "lost")
NOT_READY = PgcdcError(ErrorKind.NOT_READY, "starting up")


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


def connected(retries, clock, seconds):
    """A connection that lasts so long; gives the wait after it."""
    retries.connected()
    clock.now += seconds
    return retries.after(LOST)


def test_connections_that_are_lost_at_once_are_tried_ever_more_slowly(clock):
    retries = RetryPolicy(loop=True)
    waits = [connected(retries, clock, STEADY / 2) for _ in range(20)]
    assert waits[0] <= FIRST_WAIT
    assert min(waits[-5:]) >= LONGEST_WAIT / 2


def test_a_connection_that_lasted_is_tried_again_at_once(clock):
    retries = RetryPolicy(loop=True)
    assert connected(retries, clock, STEADY / 2) is not None
    assert all(connected(retries, clock, STEADY) <= FIRST_WAIT for _ in range(20))


def test_a_first_connection_is_tried_for_a_moment_a_later_one_for_minutes(clock):
    retries = RetryPolicy(loop=True)
    assert [retries.after(LOST) is None for _ in range(FIRST_ATTEMPTS)] == [False] * (FIRST_ATTEMPTS - 1) + [
        True
    ]
    retries.connected()
    assert retries.after(LOST) is not None
    clock.now += GIVE_UP_AFTER
    assert retries.after(LOST) is not None
    clock.now += 1
    assert retries.after(LOST) is None


def test_a_snapshot_that_others_spoil_again_and_again_is_tried_for_minutes(clock):
    """An ALTER TABLE or TRUNCATE just behind it, each time, on a server that answers all the same."""
    retries = RetryPolicy(loop=True)
    for _ in range(FIRST_ATTEMPTS + 3):
        retries.server_answers()
        assert retries.after(LOST) is not None
    clock.now += GIVE_UP_AFTER + 1
    assert retries.after(LOST) is None


def test_a_server_that_says_that_it_is_starting_is_waited_for_as_one_that_was_lost(clock):
    """It may be gone for a moment, too, between its end and its start."""
    retries = RetryPolicy(loop=True)
    for error in (NOT_READY, *[LOST] * FIRST_ATTEMPTS, NOT_READY):
        assert retries.after(error) is not None
        assert retries.level == logging.WARNING
    clock.now += GIVE_UP_AFTER + 1
    assert retries.after(NOT_READY) is None
    assert RetryPolicy(loop=False).after(NOT_READY) is None


@pytest.mark.parametrize(("loop", "kind"), [(False, ErrorKind.CONNECTION), (True, ErrorKind.RIGHTS)])
def test_without_a_loop_or_hope_there_is_no_other_try(loop, kind):
    retries = RetryPolicy(loop=loop)
    retries.connected()
    assert retries.after(PgcdcError(kind, "no")) is None


def test_waits_double_from_a_tenth_of_a_second_to_half_a_minute_and_half_of_each_is_random():
    ceilings = [min(FIRST_WAIT * 2**n, LONGEST_WAIT) for n in range(15)]
    runs = [list(islice(Backoff(), 15)) for _ in range(50)]
    for run in runs:
        assert all(c / 2 <= wait <= c for wait, c in zip(run, ceilings, strict=True))
    assert len({run[-1] for run in runs}) > 1
    assert ceilings[-1] == 30.0


def test_after_progress_the_waits_are_short_again():
    backoff = Backoff()
    assert max(islice(backoff, 12)) > 10
    backoff.reset()
    assert next(backoff) <= FIRST_WAIT


def test_for_ever_means_that_no_time_and_no_number_of_attempts_is_too_much(clock):
    retries = RetryPolicy(loop=True, for_ever=True)
    for _ in range(10 * FIRST_ATTEMPTS):
        clock.now += GIVE_UP_AFTER
        assert retries.after(LOST) <= LONGEST_WAIT
    assert retries.after(PgcdcError(ErrorKind.SLOT_MISSING, "gone")) is None
    assert RetryPolicy(loop=False, for_ever=True).after(LOST) is None
