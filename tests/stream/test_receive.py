"""How frames become batches: parts of a transaction wait for the rest, and nothing waits for long."""

import struct
from collections.abc import Callable
from types import SimpleNamespace

import pytest

from pgcdc_cli.errors import ErrorKind, PgcdcError
from pgcdc_cli.formats.raw import RawFormat
from pgcdc_cli.frames import Frames, Keepalive, Received
from pgcdc_cli.lsn import Lsn
from pgcdc_cli.pgoutput.message_batch import MESSAGE_BYTES, SMALLEST_BATCH
from pgcdc_cli.pgoutput.small_batch import MOST_BYTES, MOST_MESSAGES, fits_small_batch
from pgcdc_cli.stream import receive
from pgcdc_cli.stream.encode import ChangeEncoder, RawEncoder
from pgcdc_cli.stream.receive import LONGEST_NAP, NAP, TICK, BatchReceiver, Naps
from pgcdc_cli.stream.settings import RunEnd, RunLimits

NOTHING = Received(Frames(), None)
FAILURE = PgcdcError(ErrorKind.PUBLICATION, "could not go on")


def sent(tags: str) -> Frames:
    return Frames.of([b"w" + struct.pack(">QQq", 1, 1, 0) + tag.encode() for tag in tags])


def came(tags: str, keepalive: int | None = None) -> Received:
    return Received(sent(tags), None if keepalive is None else Keepalive(Lsn(keepalive), False))


class Clock:
    """A clock that advances only during sleep."""

    def __init__(self) -> None:
        self.now = 1000.0

    def monotonic(self) -> float:
        return self.now

    def sleep(self, seconds: float) -> None:
        self.now += seconds


@pytest.fixture(autouse=True)
def clock(monkeypatch):
    clock = Clock()
    monkeypatch.setattr(receive, "time", clock)
    return clock


class Wire:
    """A connection on which these batches arrive one by one; then nothing, or the last one `forever`."""

    def __init__(self, *arriving: Received | PgcdcError, forever: bool = False) -> None:
        self._arriving = list(arriving)
        self._forever = forever
        self.looks = 0
        self.limits: list[int] = []

    def nap(self, seconds: float) -> None:
        receive.time.sleep(seconds)

    def receive(self, limit: int, timeout: float) -> Received:
        del timeout
        self.looks += 1
        self.limits.append(limit)
        if self._forever and len(self._arriving) == 1:
            return self._arriving[0]
        found = self._arriving.pop(0) if self._arriving else NOTHING
        if isinstance(found, PgcdcError):
            raise found
        return found


def receiver(
    wire: Wire,
    *,
    end: int | None = None,
    pace: float = 0.0,
    must_end: Callable[[], bool] = lambda: False,
    raw: bool = False,
    batch: int = SMALLEST_BATCH,
) -> BatchReceiver:
    encoder = RawEncoder(None, None) if raw else ChangeEncoder(SimpleNamespace(batch=batch), None, None)
    run_end = RunEnd(RunLimits(end_lsn=None if end is None else Lsn(end)))
    return BatchReceiver(wire, encoder, run_end, must_end, pace)


def tags(received: Received) -> str:
    return "".join(frame[25:].decode() for frame in received.frames)


@pytest.mark.parametrize("pieces", [("B", "I", "IC"), ("BI", "C"), ("S", "I", "E"), ("BRI", "UDC")])
def test_a_transaction_that_comes_in_pieces_is_one_batch(pieces):
    batches = receiver(Wire(*map(came, pieces), came("BIC")))
    assert tags(batches.receive()) == "".join(pieces)
    assert tags(batches.receive()) == "BIC"


def test_a_whole_transaction_waits_for_nothing():
    wire = Wire(came("BIC"), came("BIC"))
    assert tags(receiver(wire).receive()) == "BIC"
    assert wire.looks == 1


@pytest.mark.parametrize("size", [SMALLEST_BATCH, 2 * SMALLEST_BATCH])
def test_a_server_that_is_behind_fills_a_batch_with_transactions(size):
    """A transaction that a nap has brought, faster than any are made, ends no batch."""
    full, few = "BIC" * (size // 3 + 1), "BIC" * 40
    batches = receiver(Wire(came("BI"), *[came("C" + few)] * 9, came(full), came(few)), batch=size)
    assert tags(batches.receive()) == "BI" + ("C" + few) * 9 + full
    assert tags(batches.receive()) == few


def test_one_that_has_nothing_more_holds_a_transaction_up_for_one_nap(clock):
    wire = Wire(came("BI"), came("I" * 400 + "C"), NOTHING, came("BIC"))
    batches = receiver(wire)
    assert len(batches.receive().frames) == 403
    assert clock.now <= 1000 + 3 * NAP
    before = wire.looks
    assert tags(batches.receive()) == "BIC"
    assert wire.looks == before + 1


@pytest.mark.parametrize(("seconds", "second"), [(59, "BICBUC"), (60, "BIC")])
def test_only_a_small_batch_that_follows_closely_waits_for_more(clock, seconds, second):
    batches = receiver(Wire(came("BIC"), came("BIC"), came("BUC")), pace=60.0)
    assert tags(batches.receive()) == "BIC"
    clock.sleep(seconds)
    assert tags(batches.receive()) == second
    assert clock.now == 1060


@pytest.mark.parametrize("second", ["BIC" * MOST_MESSAGES, "BI"], ids=["many", "open"])
def test_many_changes_and_an_open_transaction_wait_for_no_other_batch(clock, second):
    batches = receiver(Wire(came("BIC"), came(second), came("C")), pace=60.0)
    batches.receive()
    assert tags(batches.receive()).startswith(second)
    assert clock.now < 1000 + TICK


@pytest.mark.parametrize(
    "full",
    [sent("I" * SMALLEST_BATCH), Frames.of([sent("I")[0] + bytes(SMALLEST_BATCH * MESSAGE_BYTES)])],
    ids=["many", "large"],
)
def test_a_full_batch_waits_for_nothing(full):
    wire = Wire(came("I"), Received(full, None), came("IC"))
    receiver(wire).receive()
    assert wire.looks == 2


def test_a_batch_of_many_or_of_large_rows_is_not_small():
    assert fits_small_batch(sent("I" * MOST_MESSAGES))
    assert not fits_small_batch(sent("I" * (MOST_MESSAGES + 1)))
    assert not fits_small_batch(Frames.of([b"w" * (MOST_BYTES + 1)]))


@pytest.mark.parametrize("raw", [True, False])
def test_beyond_the_end_position_nothing_more_is_gathered(raw):
    batches = receiver(Wire(came("BIC"), came("BIC", 500), came("BI")), end=500, pace=60.0, raw=raw)
    assert tags(batches.receive()) == "BIC"
    assert tags(batches.receive()) == "BIC"


def test_an_error_waits_until_what_came_before_it_is_taken():
    batches = receiver(Wire(came("BIC"), came("BIC"), FAILURE, came("never")), pace=0.05)
    assert tags(batches.receive()) == "BIC"
    assert tags(batches.receive()) == "BIC"
    for _ in range(2):
        with pytest.raises(PgcdcError, match="could not go on"):
            batches.receive()


def test_half_a_transaction_that_trickles_in_is_taken_after_a_while(clock):
    wire = Wire(came("B"), came("I"), forever=True)
    assert set(tags(receiver(wire).receive())) == {"B", "I"}
    assert wire.looks < SMALLEST_BATCH
    assert 1000 + TICK <= clock.now < 1000 + 2 * TICK


def test_keepalives_alone_are_no_reason_to_wait_on():
    received = receiver(Wire(came("BI"), came("", 7), forever=True)).receive()
    assert (tags(received), received.keepalive.wal_end) == ("BI", 7)


def test_of_several_keepalives_the_last_one_counts_and_a_reply_that_any_asked_for():
    pieces = Received(sent("BI"), Keepalive(Lsn(7), reply_requested=True)), came("I", 8), came("C")
    received = receiver(Wire(*pieces)).receive()
    assert (tags(received), received.keepalive) == ("BIIC", Keepalive(Lsn(8), reply_requested=True))


def test_of_any_plugin_what_rushes_in_is_one_batch(clock):
    rush, few = came("x" * 20), came("xx")
    batches = receiver(Wire(rush, rush, rush, few, rush), raw=True)
    assert len(batches.receive().frames) == 62
    assert clock.now < 1000.002
    assert len(batches.receive().frames) == 20


def test_of_any_plugin_a_few_wait_for_nothing():
    wire = Wire(came("xx"), came("xx"))
    assert tags(receiver(wire, raw=True).receive()) == "xx"
    assert wire.looks == 1


@pytest.mark.parametrize(
    ("starts", "wanted"),
    [((1, 9), 2), ((1, 10, 10), 2), ((1, 9, 11, 10), 2), ((11,), 0), ((10,), 1)],
)
def test_of_any_plugin_the_first_message_at_the_end_is_the_last_and_none_beyond_it_comes(starts, wanted):
    frames = Frames.of([b"w" + struct.pack(">QQq", start, start, 0) + b"x" for start in starts])
    encoder = RawEncoder(RawFormat(), Lsn(10))
    assert sum(piece.rows for encoded in encoder.encode(frames) for piece in encoded.pieces) == wanted
    assert encoder.ended == (max(starts) >= 10)


def test_a_signal_or_the_clock_ends_the_wait_for_the_rest():
    wire = Wire(came("B"), came("I"), forever=True)
    assert tags(receiver(wire, must_end=lambda: wire.looks > 3).receive()) == "BIII"


def test_what_the_server_sent_last_comes_at_once():
    """Nothing may be read after that: it would be an error of its own."""
    wire = Wire(Received(sent("BI"), None, closed=True), FAILURE)
    received = receiver(wire, pace=60.0).receive()
    assert (tags(received), received.closed, wire.looks) == ("BI", True, 1)


def naps(rates: list[float]) -> list[float]:
    """The lengths of naps during which a server sends so many of the smallest batches a second."""
    found, made = [], Naps()
    for rate in rates:
        found.append(made.next(SMALLEST_BATCH))
        made.after(found[-1], rate * SMALLEST_BATCH * found[-1])
    return [*found, made.next(SMALLEST_BATCH)]


def test_a_server_that_is_behind_gets_twice_the_time_again_and_again():
    assert naps([50.0] * 4) == [NAP, 2 * NAP, 4 * NAP, 8 * NAP, 16 * NAP]
    assert naps([50.0] * 9)[-2:] == [LONGEST_NAP, LONGEST_NAP]


def test_one_that_sends_changes_as_they_are_made_is_asked_often():
    assert set(naps([9.0] * 5)) == {NAP}
    assert naps([50.0] * 9 + [9.0])[-1] == NAP


def test_if_more_time_brings_no_more_it_gets_less():
    """A buffer on the way is full after 0.8 ms."""
    found, made = [], Naps()
    for _ in range(20):
        found.append(made.next(SMALLEST_BATCH))
        made.after(found[-1], 800 * min(found[-1] / 0.0008, 1))
    assert max(found) <= 0.0017


def test_no_nap_lasts_longer_than_until_the_batch_is_full():
    made = Naps()
    for _ in range(9):
        made.after(0.01, 4000)
    assert made.next(2000) == pytest.approx(0.005)
    assert made.next(0.0) == NAP


def test_a_transaction_that_comes_at_once_is_held_up_for_no_longer_than_it_took(clock):
    """300 rows at the rate of a server that is behind, 50 in each 0.2 ms."""

    class Rush(Wire):
        def receive(self, limit: int, timeout: float) -> Received:
            del limit, timeout
            sent_by_now = min(int((clock.now - 1000) / NAP) * 50, 300)
            new, self.looks = sent_by_now - self.looks, sent_by_now
            if not new:
                return NOTHING if sent_by_now == 300 else came("B")
            return came("I" * (new - 1) + ("C" if sent_by_now == 300 else "I"))

    assert tags(receiver(Rush()).receive()).endswith("C")
    assert clock.now - 1000 <= 2 * 6 * NAP + NAP


def test_of_large_rows_no_more_is_taken_than_fits_into_a_batch():
    rows = Frames.of([b"w" + struct.pack(">QQq", 1, 1, 0) + b"I" * 975] * 1000)
    wire = Wire(Received(rows, None), came("C"))
    receiver(wire).receive()
    assert wire.limits == [SMALLEST_BATCH, SMALLEST_BATCH * MESSAGE_BYTES // 1000 - 1000]
