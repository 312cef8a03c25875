"""How much of a received batch goes into one slice."""

import time

import pytest

from pgcdc_cli.changes.edge import Edge, LastEdge
from pgcdc_cli.formats.interface import EncodedSlice
from pgcdc_cli.frames import Frames, Received
from pgcdc_cli.lsn import Lsn
from pgcdc_cli.pgoutput.message_batch import SMALLEST_BATCH
from pgcdc_cli.stream.encode import portions
from pgcdc_cli.stream.loop import Heartbeats, SliceWriter, StreamLoop
from pgcdc_cli.stream.settings import RunEnd, RunLimits, Signals

FRAME = 26
"""Bytes of a frame that `sent` makes."""


def sent(tags: str) -> Frames:
    return Frames.of([bytes(FRAME - 1) + tag.encode() for tag in tags])


def divided(tags: str, size: int | None) -> list[str]:
    return ["".join(chr(frame[-1]) for frame in part) for part in portions(sent(tags), size)]


@pytest.mark.parametrize(
    ("size", "parts"),
    [
        (None, ["BICBIICBCBI"]),
        (11 * FRAME, ["BICBIICBCBI"]),
        (0, ["BIC", "BIIC", "BC", "BI"]),
        (3 * FRAME, ["BIC", "BIIC", "BCBI"]),
        (4 * FRAME, ["BICBIIC", "BCBI"]),
        (8 * FRAME, ["BICBIICBC", "BI"]),
    ],
)
def test_portions_end_with_a_transaction_once_they_are_large_enough(size, parts):
    assert divided("BICBIICBCBI", size) == parts


def test_what_ends_with_a_commit_has_nothing_behind_it():
    assert divided("BICBIC", 0) == ["BIC", "BIC"]


class Encoder:
    """Encodes half a transaction from the first portion, and whole ones from those after it."""

    batch = SMALLEST_BATCH
    in_transaction = ended = False

    def __init__(self) -> None:
        self._edges = [
            None,
            Edge(Lsn(2), commit_lsn=Lsn(1), transactions=1),
            Edge(Lsn(4), commit_lsn=Lsn(3), transactions=1),
        ]

    def linger(self, frames: Frames, came: int) -> None:
        del frames, came

    def encode(self, frames):
        del frames
        yield EncodedSlice((), self._edges.pop(0))


class Sink:
    pace, portion, edge, written_lsn, durable_lsn, spooled = 0.0, 0, LastEdge(), Lsn(0), Lsn(0), 0

    def __init__(self) -> None:
        self.edges: list[Edge | None] = []

    def write(self, encoded: EncodedSlice) -> None:
        self.edges.append(encoded.edge)

    def tick(self) -> None:
        pass


class Stopped:
    """A connection on which three transactions arrive at once, together with a signal."""

    has_little_room = False

    def __init__(self, signals: Signals) -> None:
        self._signals = signals

    def receive(self, limit: int, timeout: float) -> Received:
        del limit, timeout
        self._signals.stop = True
        return Received(sent("BICBICBIC"), None)

    def confirm(self, written: Lsn, flushed: Lsn) -> None:
        pass


class Beating:
    """A format whose heartbeats are all the same."""

    def heartbeat(self, commit_lsn: Lsn) -> EncodedSlice:
        del commit_lsn
        return EncodedSlice((), None)


def test_a_heartbeat_comes_once_in_an_interval(monkeypatch):
    now = [100.0]
    monkeypatch.setattr(time, "monotonic", lambda: now[0])
    beats, found = Heartbeats(Beating(), 10.0), []
    for now[0] in (105.0, 110.0, 111.0, 119.0, 120.5):
        beat = beats.due(Lsn(7))
        found += [] if beat is None else [(now[0], beat.edge)]
    assert found == [(110.0, Edge(Lsn(7))), (120.5, Edge(Lsn(7)))]


def test_behind_a_transaction_that_a_signal_cuts_short_nothing_is_written():
    signals, sink = Signals(), Sink()
    loop = StreamLoop(
        sink,
        SliceWriter(sink, signals, lambda _: None),
        RunEnd(RunLimits()),
        Heartbeats(None, 0),
        signals,
        lambda _: None,
    )
    loop.run(Stopped(signals), Encoder(), lambda: None, lambda: None)
    assert sink.edges == []
