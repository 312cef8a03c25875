"""Let every disk call of a scripted run fail in every way, or be the last."""

import random

import pytest
import scale
from sink_disks import Crash, FailingDisk, PowerDisk
from sink_tools import (
    START,
    Clock,
    Feed,
    Framed,
    Lines,
    MemoryOrRealReader,
    ScriptedRun,
    check_complete,
    go_on,
    make_directory,
    transactions,
)

from pgcdc_cli.directory.disk import Disk
from pgcdc_cli.errors import ErrorKind, PgcdcError
from pgcdc_cli.sinks import output_file

SOURCE_ROWS = ("ab", "a", "aacb", "bc", "aaaaaaaaabbbbbb" * 3, "c", "ad", "b", "abcd", "d", "a", "bb")
TXS = transactions(*SOURCE_ROWS[:10], "E", "D", "d", *SOURCE_ROWS[10:])
SETTINGS = {"rotate_size": 1200, "rotate_interval": 60.0, "fsync_interval": 5.0, "status_interval": 5.0}


def stride() -> int:
    """Every sixteenth call, at the size of 1: other tests try each of them."""
    return max(16 // scale.factor, 1)


@pytest.fixture(autouse=True)
def small_frames(monkeypatch):
    """Frames of few rows, of which a thread writes the larger ones."""
    monkeypatch.setattr(output_file, "FRAME_SIZE", 150)
    monkeypatch.setattr("pgcdc_cli.directory.disk.BEHIND", 150)


@pytest.fixture(params=[Lines, Framed], ids=["lines", "framed"])
def encoding(request):
    return request.param()


class Script(ScriptedRun):
    """A run with open transactions, flushes, parts, every cause of a rotation, and lost connections."""

    def __init__(self, path: str, encoding, disk: Disk) -> None:
        self.clock = Clock()
        self.disk = disk
        self.feed = Feed(encoding)
        super().__init__(make_directory(path, encoding, disk, self.clock, **SETTINGS))

    def steps(self):
        sink, feed = self.sink, self.feed

        def write(part):
            return lambda: sink.write(part)

        yield write(feed.whole(TXS[0], TXS[1]))
        yield write(feed.part(TXS[2], 0, 2))
        yield sink.flush
        yield write(feed.part(TXS[2], 2, edge=True))
        yield lambda: self.sleep(6)
        yield sink.tick
        yield write(feed.whole(TXS[3]))
        yield from (write(feed.part(TXS[4], at, at + 5)) for at in range(0, 40, 5))
        yield sink.flush
        yield sink.rollback
        yield from (write(feed.part(TXS[4], at, at + 5)) for at in range(0, 40, 5))
        yield write(feed.part(TXS[4], 40, edge=True))
        yield write(feed.whole(TXS[5]))
        yield write(feed.part(TXS[6], 0, 1))
        yield sink.rollback
        yield sink.flush
        yield write(feed.whole(TXS[6]))
        yield sink.reopen
        yield sink.tick
        yield lambda: sink.advance(TXS[6].end_lsn)
        yield lambda: self.sleep(6)
        yield sink.tick
        yield write(feed.whole(TXS[7]))
        yield lambda: self.sleep(61)
        yield write(feed.part(TXS[8], 0, 3))
        yield write(feed.part(TXS[8], 3, edge=True))
        yield write(feed.whole(TXS[9]))
        yield sink.flush
        yield write(feed.whole(TXS[10]))
        yield sink.rollback
        yield sink.flush
        yield lambda: self.sleep(61)
        yield sink.tick
        yield write(feed.whole(TXS[11]))
        yield sink.flush
        yield write(feed.whole(TXS[12]))
        yield write(feed.whole(TXS[13]))
        yield write(feed.part(TXS[14], 0, 1))

    def sleep(self, seconds: float) -> None:
        self.clock.now += seconds


def count_calls(tmp_path, encoding) -> list[str]:
    disk = FailingDisk()
    script = Script(str(tmp_path / "counted"), encoding, disk)
    script.run()
    return disk.calls


def recover_and_check(path: str, encoding, confirmed, *, disk: Disk | None = None, seed: int = 0) -> None:
    reader = MemoryOrRealReader(disk or Disk(), path)
    before = reader.finished() if reader.disk.stat(path) is not None else {}
    sink = make_directory(path, encoding, disk, Clock(), **SETTINGS)
    sink.open()
    go_on(sink, Feed(encoding), TXS, confirmed, seed)
    check_complete(reader, encoding, TXS)
    after = reader.finished()
    assert {name: after[name] for name in before} == before, "a finished file changed"


def test_the_script_meets_what_it_should(tmp_path, encoding):
    path = str(tmp_path / "d")
    script = Script(path, encoding, FailingDisk())
    script.run()
    recover_and_check(path, encoding, script.confirmed)
    reader = MemoryOrRealReader(Disk(), path)
    parts = [file.path for segment in reader.segments() for file in segment.files if "-2." in file.path]
    assert len(reader.segments()) >= 5
    assert parts, "no huge transaction went on in another part"
    assert {"ftruncate", "unlink", "rename", "mkdir", "fsync", "write"} <= set(script.disk.calls)


@pytest.mark.parametrize("how", ["before", "after", "short"])
def test_a_crash_at_any_call_loses_and_doubles_nothing(tmp_path, encoding, how, pytestconfig):
    calls = count_calls(tmp_path, encoding)
    # A crash before a call is nearly one after the call before it.
    step = 1 if how != "before" or pytestconfig.getoption("--long") else 5
    for at in [n for n, call in enumerate(calls) if how != "short" or call == "write"][::step]:
        path = str(tmp_path / f"d{at}")
        disk = FailingDisk(at, how)
        script = Script(path, encoding, disk)
        with pytest.raises(Crash):
            script.run()
        disk.bury()
        recover_and_check(path, encoding, script.confirmed, disk=FailingDisk(), seed=at)


@pytest.mark.parametrize("code", ["ENOSPC", "EIO", "EROFS", "EMFILE", "EDQUOT"])
def test_an_error_at_any_call_ends_the_run_and_loses_nothing(tmp_path, encoding, code, pytestconfig):
    calls = count_calls(tmp_path, encoding)
    step = 1 if code == "ENOSPC" or pytestconfig.getoption("--long") else 7
    for at in range(0, len(calls), step):
        path = str(tmp_path / f"d{at}")
        disk = FailingDisk(at, code)
        script = Script(path, encoding, disk)
        with pytest.raises(PgcdcError) as caught:
            script.run()
        assert caught.value.kind is ErrorKind.OUTPUT
        assert caught.value.message.startswith("could not ")
        script.sink.close()
        assert not disk.descriptors, "a descriptor was left open"
        recover_and_check(path, encoding, script.confirmed, disk=FailingDisk(), seed=at)


def test_after_a_failed_fsync_nothing_is_tried_again(tmp_path, encoding):
    calls = count_calls(tmp_path, encoding)
    for at in [n for n, call in enumerate(calls) if call == "fsync"]:
        disk = FailingDisk(at, "EIO")
        script = Script(str(tmp_path / f"d{at}"), encoding, disk)
        with pytest.raises(PgcdcError):
            script.run()
        with pytest.raises(PgcdcError):
            script.sink.flush()
        script.sink.close()
        assert set(disk.calls[at + 1 :]) <= {"close"}


def test_a_short_write_is_continued(tmp_path, encoding):
    calls = count_calls(tmp_path, encoding)
    for at in [n for n, call in enumerate(calls) if call == "write"][::3]:
        path = str(tmp_path / f"d{at}")
        script = Script(path, encoding, FailingDisk(at, "short-and-go-on"))
        script.run()
        recover_and_check(path, encoding, script.confirmed)


def test_a_crash_of_the_recovery_itself_loses_nothing(tmp_path, encoding):
    """Crash in the run, then at every call of the recovery, then recover."""
    total = len(count_calls(tmp_path, encoding))
    rng = random.Random(7)
    for first in rng.sample(range(total), 12):
        for at in range(0, 400, 3):
            path = str(tmp_path / f"d{first}-{at}")
            script = Script(path, encoding, FailingDisk(first, "after"))
            with pytest.raises(Crash):
                script.run()
            script.disk.bury()
            disk = FailingDisk(at, rng.choice(["before", "after", "short"]))
            sink = make_directory(path, encoding, disk, Clock(), **SETTINGS)
            try:
                sink.open()
            except Crash:
                disk.bury()
                recover_and_check(path, encoding, script.confirmed, disk=FailingDisk(), seed=at)
            else:
                disk.at = -1
                sink.close()
                disk.bury()
                break


@pytest.mark.parametrize("part", range(4))
def test_a_power_cut_at_any_call_loses_and_doubles_nothing(encoding, part):
    cut_power(encoding, part, 4)


def test_a_power_cut_while_many_files_are_fsynced_at_once_loses_and_doubles_nothing(encoding, monkeypatch):
    monkeypatch.setattr("pgcdc_cli.directory.disk.MANY", 1)
    cut_power(encoding, 0, stride())


@pytest.mark.parametrize("how", ["after", "EIO"])
def test_an_end_while_many_files_are_fsynced_at_once_loses_and_doubles_nothing(
    tmp_path, encoding, how, monkeypatch
):
    monkeypatch.setattr("pgcdc_cli.directory.disk.MANY", 1)
    for at in range(0, len(count_calls(tmp_path, encoding)), stride()):
        path = str(tmp_path / f"d{at}")
        failing = FailingDisk(at, how)
        script = Script(path, encoding, failing)
        with pytest.raises((Crash, PgcdcError)):
            script.run()
        failing.bury()
        recover_and_check(path, encoding, script.confirmed, disk=FailingDisk(), seed=at)


def cut_power(encoding, first: int, step: int) -> None:
    """Cut the power at every `step`-th call."""
    counting = PowerDisk()
    Script("/data/d", encoding, counting).run()
    for at in range(first, counting.calls, step):
        disk = PowerDisk()
        rng = random.Random(at)
        disk.cut_at = at
        script = Script("/data/d", encoding, disk)
        with pytest.raises(Crash):
            script.run()
        disk.power_cut(rng)
        recover_and_check("/data/d", encoding, script.confirmed, disk=disk, seed=at)


def test_power_cuts_one_after_another(encoding):
    rng = random.Random(11)
    for seed in range(150):
        disk = PowerDisk()
        disk.cut_at = rng.randint(1, 300)
        script = Script("/data/d", encoding, disk)
        confirmed = START
        try:
            script.run()
        except Crash:
            confirmed = script.confirmed
        for attempt in range(4):
            disk.power_cut(rng)
            disk.calls, disk.cut_at = 0, rng.randint(1, 200)
            sink = make_directory("/data/d", encoding, disk, Clock(), **SETTINGS)
            try:
                sink.open()
                go_on(sink, Feed(encoding), TXS, confirmed, seed * 10 + attempt)
            except Crash:
                if sink._started:
                    confirmed = max(confirmed, sink.durable_lsn)
        disk.power_cut(rng)
        recover_and_check("/data/d", encoding, confirmed, disk=disk, seed=seed)
