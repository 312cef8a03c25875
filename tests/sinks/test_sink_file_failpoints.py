"""Let every disk call of a run that writes one file fail in every way, or be the last."""

import random
from contextlib import suppress
from itertools import count

import pytest
from file_sink_tools import TXS, feed, lines, make_sink
from sink_disks import Crash, FailingDisk, PowerDisk
from sink_tools import SOURCE, START, Clock, ScriptedRun, expected, go_on, killed

from pgcdc_cli.directory.disk import Disk
from pgcdc_cli.errors import PgcdcError
from pgcdc_cli.sinks import output_file


@pytest.fixture(autouse=True)
def small_frames(monkeypatch):
    """Frames of few rows, of which a thread writes the larger ones."""
    monkeypatch.setattr(output_file, "FRAME_SIZE", 100)
    monkeypatch.setattr("pgcdc_cli.directory.disk.BEHIND", 100)


class Script(ScriptedRun):
    """A run with flushes, a lost connection, and a file that is moved and created again."""

    def __init__(self, path: str, disk: Disk) -> None:
        self.path, self.disk = path, disk
        super().__init__(make_sink(path, disk, Clock()))

    def steps(self):
        sink, data = self.sink, feed()
        yield lambda: sink.write(data.whole(TXS[0]))
        yield sink.flush
        yield lambda: sink.write(data.part(TXS[4], 0, 6))
        yield sink.flush
        yield sink.rollback
        yield lambda: sink.write(data.whole(*TXS[1:3]))
        yield sink.flush
        yield self.move
        yield sink.reopen
        yield sink.tick
        yield lambda: sink.write(data.part(TXS[3], 0, 1))
        yield lambda: sink.write(data.part(TXS[3], 1, edge=True))
        yield sink.flush
        yield lambda: sink.advance(TXS[3].end_lsn)
        yield lambda: sink.write(data.whole(TXS[4]))

    def move(self) -> None:
        self.disk.rename(self.path, self.path + ".1")


def recover_and_check(path: str, disk: Disk, confirmed, seed: int) -> None:
    sink = make_sink(path, disk)
    sink.open()
    go_on(sink, feed(), TXS, confirmed, seed)
    old = lines(path + ".1", disk) if disk.stat(path + ".1") is not None else []
    assert old + lines(path, disk) == expected(TXS)


@pytest.mark.parametrize("how", ["before", "after", "short", "ENOSPC", "EIO"])
def test_whatever_fails_at_any_call_each_transaction_is_there_once(tmp_path, how):
    counting = FailingDisk()
    Script(str(tmp_path / "counted"), counting).run()
    for at, call in enumerate(counting.calls):
        if how == "short" and call != "write":
            continue
        path = str(tmp_path / f"out{at}")
        disk = FailingDisk(at, how)
        script = Script(path, disk)
        with pytest.raises((Crash, PgcdcError)):
            script.run()
        with suppress(Crash):
            script.sink.close()
        disk.bury()
        recover_and_check(path, FailingDisk(), script.confirmed, at)


def moved_with_more_than_was_durable(path: str, disk: Disk) -> None:
    script = Script(path, disk)
    for step in (script.sink.open, lambda: script.sink.start(SOURCE, START)):
        step()
    script.sink.write(feed().whole(*TXS[:2]))
    script.sink.flush()
    script.sink.write(feed().whole(TXS[2]))
    killed(script.sink)
    script.move()


@pytest.mark.parametrize("how", ["before", "after", "EIO"])
def test_whatever_fails_at_any_call_while_a_moved_file_is_left_each_transaction_is_there_once(tmp_path, how):
    for at in count():
        path = str(tmp_path / f"out{at}")
        moved_with_more_than_was_durable(path, FailingDisk())
        disk = FailingDisk(at, how)
        sink = make_sink(path, disk)
        with suppress(Crash, PgcdcError):
            sink.open()
            sink.start(SOURCE, START, sink.checkpoint)
        with suppress(Crash, PgcdcError):
            sink.close()
        disk.bury()
        recover_and_check(path, FailingDisk(), TXS[1].end_lsn, at)
        if len(disk.calls) <= at:
            break
    assert "ftruncate" in disk.calls


def test_after_a_power_cut_at_any_call_each_transaction_is_there_once():
    counting = PowerDisk()
    Script("/data/out", counting).run()
    for at in range(counting.calls):
        for seed in range(4):
            disk = PowerDisk()
            disk.cut_at = at
            script = Script("/data/out", disk)
            with pytest.raises(Crash):
                script.run()
            disk.power_cut(random.Random(seed))
            recover_and_check("/data/out", disk, script.confirmed, seed)


def test_after_power_cuts_at_any_call_while_a_moved_file_is_left_each_transaction_is_there_once():
    """What the first one leaves behind the durable rows is cut off, and not brought back by the second."""
    for at in count():
        for seed in range(8):
            disk, dice = PowerDisk(), random.Random(seed)
            moved_with_more_than_was_durable("/data/out", disk)
            disk.power_cut(dice)
            disk.cut_at = first = disk.calls + at
            sink = make_sink("/data/out", disk)
            with suppress(Crash):
                sink.open()
                sink.start(SOURCE, START, sink.checkpoint)
                sink.close()
            made = disk.calls
            disk.power_cut(dice)
            recover_and_check("/data/out", disk, TXS[1].end_lsn, seed)
        if made < first:
            break


def test_after_a_power_cut_at_any_call_while_an_empty_file_is_left_each_transaction_is_there_once():
    for at in count():
        for seed in range(4):
            disk = PowerDisk()
            disk.cut_at = at
            sink = make_sink("/data/out", disk)
            with suppress(Crash):
                sink.open()
                sink.start(SOURCE, START, sink.checkpoint)
                sink.write(feed().part(TXS[4], 0, 6))
                sink.close()
            made = disk.calls
            disk.power_cut(random.Random(seed))
            recover_and_check("/data/out", disk, START, seed)
        if made < at:
            break
