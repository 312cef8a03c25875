"""One write at a time may be left to a thread; everything else waits for it."""

import os
import threading
import time

import pytest

from pgcdc_cli.directory import disk
from pgcdc_cli.directory.disk import Disk, OpenFiles
from pgcdc_cli.errors import ErrorKind, PgcdcError

MUCH = bytes(disk.BEHIND)


class SlowDisk(Disk):
    """A disk whose writes end only when they are `allowed`, with an error if `full`."""

    def __init__(self):
        super().__init__()
        self.allowed, self.full = threading.Event(), False
        self.calls = []

    def _os(self, function, *args, **kwargs):
        if function is os.write:
            assert self.allowed.wait(60)
            if self.full:
                raise OSError(28, "No space left on device")
        result = function(*args, **kwargs)
        self.calls.append(function.__name__)
        return result


@pytest.fixture
def slow(tmp_path):
    files = OpenFiles(SlowDisk(), str(tmp_path))
    files.create("a")
    return files


def test_much_is_written_meanwhile(slow):
    slow.append_behind("a", MUCH)
    assert slow.writing
    slow.disk.allowed.set()
    slow.wait_for_writes()
    assert not slow.writing


def test_write_back_begins_after_the_write_and_nobody_waits_for_it(slow, monkeypatch):
    monkeypatch.setattr(slow.disk, "write_back", lambda fd: slow.disk.calls.append(os.fstat(fd).st_size))
    slow.append_behind("a", MUCH, write_back=True)
    assert slow.writing
    slow.disk.allowed.set()
    slow.wait_for_writes()
    assert slow.disk.calls[-1] == len(MUCH)


def test_little_is_written_at_once(slow):
    slow.disk.allowed.set()
    slow.append_behind("a", b"little")
    assert not slow.writing
    assert slow.read("a") == b"little"


STEPS = {
    "append": lambda files: files.append("a", b"more"),
    "append behind": lambda files: files.append_behind("a", MUCH),
    "fsync": lambda files: files.fsync_all({"a": len(MUCH)}),
    "fsync folders": lambda files: files.fsync_folders(),
    "truncate": lambda files: files.truncate("a", 0),
    "rename": lambda files: files.rename("a", "b"),
    "remove": lambda files: files.remove("a"),
    "close": lambda files: files.close("a"),
    "close all": lambda files: files.close_all(),
    "create": lambda files: files.create("b"),
    "stat": lambda files: files.stat("a"),
    "read": lambda files: files.read("a"),
}


@pytest.mark.parametrize("step", STEPS.values(), ids=STEPS)
def test_every_other_step_comes_after_it(slow, step):
    slow.append_behind("a", MUCH)
    before = len(slow.disk.calls)
    threading.Timer(0.05, slow.disk.allowed.set).start()
    step(slow)
    slow.wait_for_writes()
    assert slow.disk.calls[before] == "write"


@pytest.mark.parametrize("step", STEPS.values(), ids=STEPS)
def test_its_error_is_raised_by_the_next_step(slow, step):
    slow.append_behind("a", MUCH)
    slow.disk.full = True
    slow.disk.allowed.set()
    with pytest.raises(PgcdcError, match="could not write") as raised:
        step(slow)
    assert raised.value.kind is ErrorKind.OUTPUT
    slow.close_all()


def test_a_failed_write_is_never_taken_for_a_finished_one(slow):
    slow.append_behind("a", MUCH)
    slow.disk.full = True
    slow.disk.allowed.set()
    for _ in range(100):
        assert slow.writing
        time.sleep(0.001)
    with pytest.raises(PgcdcError):
        slow.wait_for_writes()
