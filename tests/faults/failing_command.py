"""`pgcdc` with one call that goes wrong: `failing_command.py HOW FUNCTION KIND NUMBER CALLS ...`.

It is call NUMBER, from 0, of FUNCTION of `os` on files of a KIND (a suffix in `KINDS`, or `folder`), or of
`update`, which sends a new position to the server, on `feedback`. HOW is the name of an errno, one of `WAYS`,
or `SLOW` with seconds. All such calls are written to the file CALLS, one per line.
"""

import errno
import os
import shutil
import signal
import sys
import time
from pathlib import Path

from pgcdc_cli import directory
from pgcdc_cli.cli.app import main
from pgcdc_cli.directory.disk import Disk
from pgcdc_cli.lsn import Lsn
from pgcdc_cli.replication.copy_both import Feedback

KINDS = (
    "feedback",
    ".spool",
    "_spool",
    "checkpoint.json",
    ".checkpoint",
    "manifest.jsonl",
    "schemas",
    ".json",
    ".jsonl",
)
WAYS = ("crash before", "crash after", "crash when sent", "torn", "short", "folder gone")
SLOW = "slow "
"""Followed by the seconds that a call is to take."""


class FailingDisk:
    """Replaces `Disk._os`."""

    def __init__(self, how: str, target: tuple[str, str, int], calls: Path) -> None:
        self._how = how
        self._target = target
        self._seen: dict[tuple[str, str], int] = {}
        self._paths: dict[int, str] = {}
        self._calls = calls.open("w", buffering=1)

    def call(self, _disk, function, *args, **kwargs):
        path = self._paths.get(args[0], "") if isinstance(args[0], int) else str(args[0])
        place = function.__name__, kind_of(path)
        number = self._seen[place] = self._seen.get(place, -1) + 1
        print(*place, number, sep="\t", file=self._calls)
        wrong = (*place, number) == self._target
        result = self._wrong(function, path, *args, **kwargs) if wrong else function(*args, **kwargs)
        if function is os.open:
            self._paths[result] = path
        return result

    def _wrong(self, function, path, *args, **kwargs):
        match self._how:
            case "crash before":
                os.kill(os.getpid(), signal.SIGKILL)
            case "crash after":
                function(*args, **kwargs)
                os.kill(os.getpid(), signal.SIGKILL)
            case "crash when sent":
                function(*args, **kwargs)
                args[1].frames.flush()
                os.kill(os.getpid(), signal.SIGKILL)
            case "torn":
                if function is os.write:
                    os.write(args[0], bytes(args[1])[: len(args[1]) // 2])
                os.kill(os.getpid(), signal.SIGKILL)
            case "short" if function is os.write:
                return os.write(args[0], bytes(args[1])[: max(1, len(args[1]) // 2)])
            case "folder gone":
                shutil.rmtree(folder_of(path))
            case slow if slow.startswith(SLOW):
                time.sleep(float(slow.removeprefix(SLOW)))
            case code if code not in WAYS:
                number = getattr(errno, code)
                raise OSError(number, os.strerror(number))
        return function(*args, **kwargs)


class FailingFeedback:
    """Replaces `Feedback._put`."""

    def __init__(self, disk: FailingDisk) -> None:
        self._disk = disk
        self._put = Feedback._put
        self._told = Lsn(0)

    def put(self, feedback: Feedback) -> None:
        if feedback.flush_lsn > self._told:
            self._told = feedback.flush_lsn
            self._disk.call(None, self.update, "feedback", feedback)
        else:
            self._put(feedback)

    def update(self, _kind: str, feedback: Feedback) -> None:
        self._put(feedback)


def kind_of(path: str) -> str:
    """Name a path's kind by its suffix, without the suffixes that it has while it is written."""
    bare = path.removesuffix(".tmp").removesuffix(".partial")
    return next((kind for kind in KINDS if bare.endswith(kind)), "folder")


def folder_of(path: str) -> Path:
    """The output directory that a path is in, or is; no other is named `out`."""
    return next(one for one in (Path(path), *Path(path).parents) if one.name == "out")


if __name__ == "__main__":
    how, function, kind, number, calls = sys.argv[1:6]
    disk = FailingDisk(how, (function, kind, int(number)), Path(calls))
    Disk._os = lambda *args, **kwargs: disk.call(*args, **kwargs)  # noqa: PLW0108  a bound method would come without the disk
    directory.disk.BEHIND = 1000  # the thread that writes gets a share of the calls
    feedback = FailingFeedback(disk)
    Feedback._put = lambda one: feedback.put(one)  # noqa: PLW0108  the same
    sys.argv[:] = ["pgcdc", *sys.argv[6:]]
    main()
