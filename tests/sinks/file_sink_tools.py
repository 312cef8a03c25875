"""Sinks for one file, fed with transactions, for the tests of `file_sink.py`."""

from sink_tools import SOURCE, START, Clock, Feed, Framed, Lines, Tx, transactions

from pgcdc_cli.directory.disk import Disk
from pgcdc_cli.sinks.checkpointed_sink import CheckpointedSink
from pgcdc_cli.sinks.file_sink import file_sink
from pgcdc_cli.sinks.sink import SinkSettings

TXS = transactions("ab", "a", "aacb", "bc", "abcabcabc", "c", "ad")


class Plain(Lines):
    """Lines in frames without head and tail, which truncating at a wrong place would break."""

    name = "plain"
    frame = Framed.frame

    @classmethod
    def read(cls, content: bytes, *, finished: bool) -> list[bytes]:
        return Framed.read(b"HEAD" + content, finished=finished)


def make_sink(path, disk: Disk | None = None, clock: Clock | None = None) -> CheckpointedSink:
    settings = SinkSettings(fsync_interval=5.0, status_interval=5.0)
    return file_sink(str(path), Plain(), settings, disk, clock)


def opened(path) -> CheckpointedSink:
    sink = make_sink(path)
    sink.open()
    return sink


def started(path, *txs: Tx) -> CheckpointedSink:
    """A sink that has written these transactions."""
    sink = opened(path)
    sink.start(SOURCE, START, sink.checkpoint)
    if txs:
        sink.write(feed().whole(*txs))
    return sink


def feed() -> Feed:
    return Feed(Plain(), layout="stream")


def lines(path, disk: Disk | None = None) -> list[bytes]:
    return Plain.read((disk or Disk()).read(str(path)), finished=False)
