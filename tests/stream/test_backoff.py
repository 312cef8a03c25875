"""The waits between tries to connect."""

from itertools import islice

from pgcdc_cli.stream.reconnect import CAP, FIRST, Backoff


def test_waits_double_from_a_tenth_of_a_second_to_the_cap_and_half_of_each_is_random():
    ceilings = [min(FIRST * 2**n, CAP) for n in range(15)]
    runs = [list(islice(Backoff(), 15)) for _ in range(50)]
    for run in runs:
        assert all(c / 2 <= wait <= c for wait, c in zip(run, ceilings, strict=True))
    assert len({run[-1] for run in runs}) > 1
    assert ceilings[-1] == 30.0


def test_after_progress_the_waits_are_short_again():
    backoff = Backoff()
    assert max(islice(backoff, 12)) > 10
    backoff.reset()
    assert next(backoff) <= FIRST
