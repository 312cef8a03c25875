"""How soon a lost connection is retried, and when no longer."""

import logging
from contextlib import nullcontext
from itertools import islice
from types import SimpleNamespace

import psycopg
import pytest

from pgcdc_cli.errors import ErrorKind, PgcdcError
from pgcdc_cli.lsn import Lsn
from pgcdc_cli.stream.reconnect import (
    FIRST_ATTEMPTS,
    FIRST_WAIT,
    GIVE_UP_AFTER,
    LONGEST_AFTER_LOSS,
    LONGEST_WAIT,
    REMINDER,
    SAME_FAULTS,
    STEADY,
    Backoff,
    Reconnection,
    RetryPolicy,
)
from pgcdc_cli.stream.settings import RunEnd, RunLimits, RunTotals, Signals

HERE, LATER = Lsn(16), Lsn(17)
LOST = PgcdcError(ErrorKind.CONNECTION, "lost")
NOT_READY = PgcdcError(ErrorKind.NOT_READY, "starting up")
IN_USE = PgcdcError(ErrorKind.SLOT_ACTIVE, "active for PID 1")


class Clock:
    def __init__(self) -> None:
        self.now = 1000.0

    def monotonic(self) -> float:
        return self.now

    def sleep(self, seconds: float) -> None:
        self.now += seconds
        assert self.now < 10_000, "it waits for ever"


@pytest.fixture
def clock(monkeypatch):
    clock = Clock()
    monkeypatch.setattr("pgcdc_cli.stream.reconnect.time", clock)
    return clock


def connected(retries, clock, seconds):
    """Make a connection that lasts for `seconds`; return the wait after it."""
    retries.connected()
    clock.now += seconds
    return retries.after(LOST, HERE)


def test_connections_that_are_lost_at_once_are_tried_ever_more_slowly(clock):
    retries = RetryPolicy(loop=True)
    waits = [connected(retries, clock, STEADY / 2) for _ in range(20)]
    assert waits[0] <= FIRST_WAIT
    assert min(waits[-5:]) >= LONGEST_AFTER_LOSS / 2


def test_a_server_that_was_away_for_minutes_is_found_within_two_seconds_of_its_return(clock):
    """Connecting takes well under half a second; how the last connections ended doesn't matter."""
    retries = RetryPolicy(loop=True)
    for _ in range(10):
        connected(retries, clock, STEADY / 2)
    assert all(retries.after(LOST, HERE) <= 1.5 for _ in range(300))
    assert connected(retries, clock, STEADY / 2) > 1.5


def test_what_is_tried_every_second_is_told_when_it_changes_and_twice_a_minute(clock):
    retries = RetryPolicy(loop=True)
    retries.connected()
    told = []
    for second in range(100):
        clock.now += 1
        retries.after(LOST, HERE)
        message = "starting up" if second >= 70 else "no such host"
        if retries.level_of(message) == logging.WARNING:
            told.append(second)
    assert told == [0, REMINDER, 2 * REMINDER, 70]


def test_each_loss_of_a_connection_is_told(clock):
    retries = RetryPolicy(loop=True)
    for _ in range(3):
        connected(retries, clock, STEADY)
        assert retries.level_of("lost") == logging.WARNING


def test_a_connection_that_lasted_is_tried_again_at_once(clock):
    retries = RetryPolicy(loop=True)
    assert connected(retries, clock, STEADY / 2) is not None
    assert all(connected(retries, clock, STEADY) <= FIRST_WAIT for _ in range(20))


def test_a_first_connection_is_tried_for_a_moment_a_later_one_for_minutes(clock):
    retries = RetryPolicy(loop=True)
    assert [retries.after(LOST, HERE) is None for _ in range(FIRST_ATTEMPTS)] == [False] * (
        FIRST_ATTEMPTS - 1
    ) + [True]
    retries.connected()
    assert retries.after(LOST, HERE) is not None
    clock.now += GIVE_UP_AFTER
    assert retries.after(LOST, HERE) is not None
    clock.now += 1
    assert retries.after(LOST, HERE) is None


def test_an_outage_that_is_over_counts_no_more(clock):
    """Neither its time, which would be too much some day, nor how slowly the server was tried at its end."""
    retries = RetryPolicy(loop=True)
    for _ in range(5):
        connected(retries, clock, STEADY)
        clock.now += GIVE_UP_AFTER / 2
        waits = [retries.after(LOST, HERE) for _ in range(10)]
        assert None not in waits
        assert waits[0] <= FIRST_WAIT
        assert retries.connected() == GIVE_UP_AFTER / 2


def fault(number: int) -> PgcdcError:
    return PgcdcError(ErrorKind.SERVER_FAULT, f"could not map filenumber {number}")


def test_a_fault_of_the_server_is_tried_again_unless_it_recurs_at_its_position(clock):
    """Connections that are lost between make no difference; another fault is counted anew."""
    retries = RetryPolicy(loop=True)
    faults = (
        [(fault(1), HERE)] * 2 + [(fault(1), LATER)] * 2 + [(fault(2), LATER), (LOST, LATER)] * SAME_FAULTS
    )
    given_up = []
    for error, edge in faults:
        retries.connected()
        clock.now += STEADY
        given_up.append(retries.after(error, edge) is None)
    assert given_up == [False] * (len(faults) - 2) + [True, False]


def test_a_reader_without_limits_tries_a_fault_of_the_server_for_ever():
    retries = RetryPolicy(loop=True, for_ever=True)
    assert None not in [retries.after(fault(1), HERE) for _ in range(2 * SAME_FAULTS)]


def test_a_snapshot_that_others_spoil_again_and_again_is_tried_for_minutes(clock):
    """Each time an ALTER TABLE or TRUNCATE follows the snapshot, on a server that is there."""
    retries = RetryPolicy(loop=True)
    for _ in range(FIRST_ATTEMPTS + 3):
        retries.server_answers()
        assert retries.after(LOST, HERE) is not None
    clock.now += GIVE_UP_AFTER + 1
    assert retries.after(LOST, HERE) is None


@pytest.mark.parametrize("answer", [NOT_READY, IN_USE], ids=["not ready", "in use"])
def test_a_server_that_says_why_it_does_not_stream_is_waited_for_as_one_that_was_lost(clock, answer):
    """Between shutdown and start it may also refuse connections for a moment."""
    retries = RetryPolicy(loop=True)
    for error in (answer, *[LOST] * FIRST_ATTEMPTS, answer):
        assert retries.after(error, HERE) is not None
        assert retries.level == logging.WARNING
    clock.now += GIVE_UP_AFTER + 1
    assert retries.after(answer, HERE) is None
    assert RetryPolicy(loop=False).after(answer, HERE) is None


@pytest.mark.parametrize(("loop", "kind"), [(False, ErrorKind.CONNECTION), (True, ErrorKind.RIGHTS)])
def test_without_a_loop_or_hope_there_is_no_other_try(loop, kind):
    retries = RetryPolicy(loop=loop)
    retries.connected()
    assert retries.after(PgcdcError(kind, "no"), HERE) is None


def test_a_slot_that_the_run_itself_has_just_left_is_waited_for_without_a_loop():
    """It leaves a connection to read a transaction again, whole; nothing is lost by that."""
    retries = RetryPolicy(loop=False)
    retries.connected()
    retries.leaves()
    assert retries.after(IN_USE, HERE) is not None
    assert retries.after(LOST, HERE) is None


@pytest.mark.parametrize("longest", [LONGEST_WAIT, LONGEST_AFTER_LOSS])
def test_waits_double_from_a_tenth_of_a_second_to_the_longest_and_half_of_each_is_random(longest):
    ceilings = [min(FIRST_WAIT * 2**n, longest) for n in range(15)]
    runs = [list(islice(Backoff(longest), 15)) for _ in range(50)]
    for run in runs:
        assert all(c / 2 <= wait <= c for wait, c in zip(run, ceilings, strict=True))
    assert len({run[-1] for run in runs}) > 1
    assert ceilings[-1] == longest


def test_after_progress_the_waits_are_short_again():
    backoff = Backoff(LONGEST_AFTER_LOSS)
    assert max(islice(backoff, 12)) > 10
    backoff.reset()
    assert next(backoff) <= FIRST_WAIT


def test_for_ever_means_that_no_time_and_no_number_of_attempts_is_too_much(clock):
    retries = RetryPolicy(loop=True, for_ever=True)
    for _ in range(10 * FIRST_ATTEMPTS):
        clock.now += GIVE_UP_AFTER
        assert retries.after(LOST, HERE) <= LONGEST_WAIT
        # No error comes that would say what is waited for.
        assert retries.level == logging.WARNING
    assert retries.after(PgcdcError(ErrorKind.SLOT_MISSING, "gone"), HERE) is None
    assert RetryPolicy(loop=False, for_ever=True).after(LOST, HERE) is None


@pytest.mark.parametrize(
    "limits", [RunLimits(), RunLimits(max_time=1), RunLimits(idle_timeout=1)], ids=["stop", "time", "idle"]
)
def test_a_long_wait_ends_as_soon_as_the_run_must_and_holds_up_no_file(clock, monkeypatch, limits):
    """Such as one that is to be reopened, or finished by an interval. Without limits, a signal ends it."""
    monkeypatch.setattr("pgcdc_cli.stream.settings.time", clock)
    began, signals, called = clock.now, Signals(), []

    def tick():
        called.append("tick")
        signals.stop = limits == RunLimits() and clock.now >= began + 1

    connections, totals = reconnection(limits, signals, called.append, tick)
    with nullcontext() if limits == RunLimits() else pytest.raises(PgcdcError, match="lost"):
        connections.until_done(failing(LOST))
    assert clock.now < began + 2
    assert set(called) == {"back", "close", "tick", "reopen"}
    assert totals.reconnects == 1


@pytest.mark.parametrize(
    ("cause", "hint"),
    [
        (psycopg.errors.OutOfMemory(), "raise max_locks_per_transaction"),
        (psycopg.errors.QueryCanceled(), ErrorKind.TIMEOUT.rule.hint),
    ],
)
def test_what_the_server_lacks_is_said_at_once_and_when_time_is_up(clock, monkeypatch, caplog, cause, hint):
    """Another run wouldn't find it there, either."""
    monkeypatch.setattr("pgcdc_cli.stream.settings.time", clock)
    error = PgcdcError(ErrorKind.CONNECTION, "could not read", hint="raise max_locks_per_transaction")
    error.__cause__ = cause
    connections, _ = reconnection(RunLimits(max_time=1), Signals(), lambda _: None, lambda: None)
    with caplog.at_level(logging.INFO), pytest.raises(PgcdcError, match="time is up") as ended:
        connections.until_done(failing(error))
    assert (ended.value.kind, ended.value.hint) == (ErrorKind.TIMEOUT, hint)
    assert ("raise max_locks_per_transaction" in caplog.text) == (hint == error.hint)


def failing(error):
    def fail():
        raise error

    return fail


def reconnection(limits, signals, called, tick):
    """One that waits as long as it may, and its totals."""
    totals = RunTotals()
    writer = SimpleNamespace(
        back_to_edge=lambda: called("back"),
        reopen_if_asked=lambda: called("reopen"),
        totals=totals,
        last_data=1000.0,
    )
    sink = SimpleNamespace(edge=SimpleNamespace(lsn=HERE), tick=tick)
    retries = SimpleNamespace(
        after=lambda *_: LONGEST_AFTER_LOSS, level_of=lambda _: logging.INFO, server_is_there=True
    )
    catalog = SimpleNamespace(close=lambda: called("close"))
    return Reconnection(retries, RunEnd(limits), writer, sink, signals, catalog), totals
