"""When rows of a directory are written, durable, and confirmed."""

import os
from threading import Event

import pytest
from sink_disks import FailingDisk
from sink_tools import (
    START,
    TXS,
    Clock,
    Feed,
    Lines,
    check_complete,
    error_of,
    expected,
    open_sink,
    reader,
    started,
    written,
)

from pgcdc_cli.directory.disk import Disk
from pgcdc_cli.errors import ErrorKind
from pgcdc_cli.lsn import Lsn
from pgcdc_cli.sinks import output_file


def test_nothing_is_durable_before_a_flush_and_all_up_to_the_edge_after(tmp_path):
    sink, feed = started(tmp_path / "d"), Feed(Lines())
    sink.write(feed.whole(TXS[0], TXS[1]))
    assert (sink.edge.lsn, sink.durable_lsn) == (TXS[1].end_lsn, START)
    sink.write(feed.part(TXS[3], 0, 1))
    sink.flush()
    assert (sink.edge.lsn, sink.durable_lsn) == (TXS[1].end_lsn, TXS[1].end_lsn)
    sink.close()
    assert reader(tmp_path / "d").lines(Lines())["public.a"] == expected(TXS[:2], "a")


def test_nothing_counts_as_written_while_rows_are_in_memory(tmp_path):
    """`synchronous_commit = remote_write` waits for the written position."""
    sink, feed = started(tmp_path / "d"), Feed(Lines())
    sink.write(feed.whole(TXS[0], TXS[1]))
    assert sink.written_lsn == START
    sink.flush()
    assert sink.written_lsn == TXS[1].end_lsn
    sink.advance(Lsn(TXS[1].end_lsn + 1))
    assert (sink.written_lsn, sink.durable_lsn) == (TXS[1].end_lsn + 1, TXS[1].end_lsn)
    sink.close()


class WaitingDisk(Disk):
    """A disk whose writes end only when they are `allowed`."""

    def __init__(self) -> None:
        super().__init__()
        self.allowed = Event()
        self.allowed.set()

    def write(self, fd, path, data):
        assert self.allowed.wait(60)
        super().write(fd, path, data)


def test_nothing_counts_as_written_while_a_thread_writes_it(tmp_path, monkeypatch):
    monkeypatch.setattr(output_file, "FRAME_SIZE", 1)
    monkeypatch.setattr("pgcdc_cli.directory.disk.BEHIND", 1)
    disk = WaitingDisk()
    sink = started(tmp_path / "d", disk=disk)
    disk.allowed.clear()
    sink.write(Feed(Lines()).whole(TXS[1]))
    assert sink.written_lsn == START
    disk.allowed.set()
    sink.flush()
    assert sink.written_lsn == TXS[1].end_lsn
    sink.close()


def test_after_an_unexpected_error_nothing_more_becomes_durable(tmp_path, monkeypatch):
    """Rows may be missing in what was taken."""
    sink, feed = written(tmp_path / "d", TXS[0]), Feed(Lines())
    with monkeypatch.context() as broken:
        broken.setattr(sink.outputs, "append", lambda _: 1 / 0)
        with pytest.raises(ZeroDivisionError):
            sink.write(feed.whole(TXS[1]))
    assert error_of(sink.flush).kind is ErrorKind.UNEXPECTED
    sink.close()
    assert sink.durable_lsn == TXS[0].end_lsn
    assert reader(tmp_path / "d").segments() == []


def test_rows_that_no_interval_makes_durable_are_written_at_each_status_interval(tmp_path):
    clock = Clock()
    sink = started(tmp_path / "d", clock=clock, fsync_interval=0, status_interval=10)
    sink.write(Feed(Lines()).whole(TXS[0], TXS[1]))
    clock.now += 9
    sink.tick()
    assert (sink.written_lsn, sink.durable_lsn) == (START, START)
    clock.now += 1
    sink.tick()
    assert (sink.written_lsn, sink.durable_lsn) == (TXS[1].end_lsn, START)
    sink.write(Feed(Lines()).whole(TXS[2]))
    assert sink.written_lsn == START
    sink.close()
    check_complete(reader(tmp_path / "d"), Lines(), TXS[:3])


def test_what_is_durable_is_not_written_again(tmp_path):
    disk = FailingDisk()
    sink = started(tmp_path / "d", disk=disk)
    sink.write(Feed(Lines()).whole(TXS[0]))
    sink.flush()
    calls = len(disk.calls)
    sink.flush()
    assert len(disk.calls) == calls
    sink.close()


def test_flush_and_rotation_follow_the_clock(tmp_path):
    clock = Clock()
    sink = started(tmp_path / "d", clock=clock, fsync_interval=10, rotate_interval=60, rotate_size=None)
    feed = Feed(Lines())
    clock.now += 9
    sink.write(feed.whole(TXS[0]))
    assert sink.durable_lsn == START
    clock.now += 1
    sink.tick()
    assert sink.durable_lsn == TXS[0].end_lsn
    clock.now += 58
    sink.tick()
    assert reader(tmp_path / "d").segments() == []
    clock.now += 1
    sink.tick()
    assert len(reader(tmp_path / "d").segments()) == 1
    clock.now += 9.5
    sink.write(feed.whole(TXS[1]))
    assert sink.durable_lsn == TXS[0].end_lsn
    sink.close()


def test_without_fsync_interval_rows_are_durable_at_rotation_only(tmp_path):
    clock = Clock()
    sink = started(tmp_path / "d", clock=clock, fsync_interval=0, rotate_interval=60)
    sink.write(Feed(Lines()).whole(TXS[0]))
    clock.now += 59
    sink.tick()
    sink.advance(Lsn(TXS[0].end_lsn + 1))
    assert sink.durable_lsn == START
    clock.now += 1
    sink.tick()
    assert sink.durable_lsn == TXS[0].end_lsn + 1
    sink.close()


def check_keepalives(sink, clock):
    """Of 25 keepalives, one a second, each tenth moves the checkpoint."""
    for _ in range(25):
        clock.now += 1
        sink.advance(Lsn(sink.edge.lsn + 1))
        assert sink.durable_lsn in {START, START + 10, START + 20}
    assert sink.durable_lsn == START + 20


def test_keepalives_move_the_checkpoint_once_per_status_interval_and_make_no_segment(tmp_path):
    clock = Clock()
    sink = started(tmp_path / "d", clock=clock, status_interval=10)
    check_keepalives(sink, clock)
    sink.close()
    assert sink.durable_lsn == START + 25
    assert reader(tmp_path / "d").segments() == []
    assert open_sink(tmp_path / "d").checkpoint.end_lsn == START + 25


@pytest.mark.parametrize("fsync_interval", [10, 0])
def test_without_status_interval_not_every_keepalive_is_a_checkpoint(tmp_path, fsync_interval):
    clock = Clock()
    sink = started(tmp_path / "d", clock=clock, status_interval=0, fsync_interval=fsync_interval)
    check_keepalives(sink, clock)
    sink.close()


def test_positions_never_go_down(tmp_path):
    sink = started(tmp_path / "d")
    sink.advance(Lsn(10_000))
    sink.advance(Lsn(5_000))
    sink.write(Feed(Lines()).whole(TXS[0]))
    assert sink.edge.lsn == 10_000
    sink.close()


class RecordingDisk(Disk):
    """Notes the size of a file each time write-back begins."""

    def __init__(self) -> None:
        super().__init__()
        self.begun: list[int] = []

    def write_back(self, fd: int) -> None:
        self.begun.append(os.fstat(fd).st_size)
        super().write_back(fd)


def test_the_disk_begins_with_large_files_before_they_are_fsynced(tmp_path, monkeypatch):
    monkeypatch.setattr(output_file, "FRAME_SIZE", 1)
    monkeypatch.setattr(output_file, "WRITE_BACK", 100)
    disk = RecordingDisk()
    sink, feed = started(tmp_path / "d", disk=disk), Feed(Lines())
    for tx in TXS:
        sink.write(feed.whole(tx))
    written = sink.outputs.size
    sink.close()
    assert min(disk.begun) >= 100
    assert 1 <= len(disk.begun) <= written // 100
    check_complete(reader(tmp_path / "d"), Lines(), TXS)
