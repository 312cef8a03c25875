"""`pgcdc` over and over without its imports, which take longer than what happens after them.

Each run is forked from a process that has imported everything, and is `pgcdc` from there on.
"""

import importlib
import json
import os
import select
import signal
import subprocess
import sys
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Self

from pgcdc_cli.__main__ import main

IMPORTED_LATE = (
    "pgcdc_cli.cli.app",
    "pgcdc_cli.stream.run",
    "pgcdc_cli.sinks.directory_sink",
    "pgcdc_cli.sinks.file_sink",
    "pgcdc_cli.formats.jsonl",
    "pgcdc_cli.formats.arrow",
    "pgcdc_cli.formats.debezium.debezium_format",
)
ERRORS = 2


class WarmPython:
    """The process from which runs are forked, one after another."""

    def __init__(self, errors: Path) -> None:
        self._errors = errors
        self._process = subprocess.Popen(
            [sys.executable, __file__], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, bufsize=1
        )

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_exception: object) -> None:
        self._process.communicate()

    def start(self, line: Sequence[str], _environment: object) -> "WarmProcess":
        """Run a command line of `stream_command` in our environment; the last run must have ended."""
        _python, _m, _module, *arguments = line
        self._errors.write_bytes(b"")
        self._process.stdin.write(json.dumps([arguments, str(self._errors)]) + "\n")
        return WarmProcess(self._answer(), self)

    def ended(self, seconds: float | None) -> int | None:
        """Wait for the run's end; return its exit status, negative for a signal, or None after `seconds`."""
        found, _, _ = select.select([self._process.stdout], [], [], seconds)
        return self._answer() if found else None

    def read_errors(self) -> bytes:
        return self._errors.read_bytes()

    def _answer(self) -> int:
        return int(self._process.stdout.readline())


class WarmProcess:
    """The part of `subprocess.Popen` that tests need, for a forked run."""

    def __init__(self, pid: int, python: WarmPython) -> None:
        self.pid = pid
        self.returncode: int | None = None
        self._python = python

    def poll(self) -> int | None:
        with suppress(subprocess.TimeoutExpired):
            self.wait(0)
        return self.returncode

    def wait(self, timeout: float | None = None) -> int:
        if self.returncode is None:
            self.returncode = self._python.ended(timeout)
        if self.returncode is None:
            raise subprocess.TimeoutExpired("pgcdc", timeout)
        return self.returncode

    def send_signal(self, number: int) -> None:
        if self.poll() is None:
            os.kill(self.pid, number)

    def kill(self) -> None:
        self.send_signal(signal.SIGKILL)

    def communicate(self, timeout: float | None = None) -> tuple[None, bytes]:
        self.wait(timeout)
        return None, self._python.read_errors()


def _serve() -> None:
    """Fork a run for each line read; print its process ID, and later its exit status."""
    signal.signal(signal.SIGINT, signal.SIG_DFL)
    for name in IMPORTED_LATE:
        importlib.import_module(name)
    while line := sys.stdin.readline():
        arguments, errors = json.loads(line)
        if not (pid := os.fork()):
            _become(arguments, errors)
        print(pid, flush=True)
        print(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]), flush=True)


def _become(arguments: list[str], errors: str) -> None:
    """Become `pgcdc`."""
    nothing = os.open(os.devnull, os.O_RDWR)
    for opened, number in [(nothing, 0), (nothing, 1), (os.open(errors, os.O_WRONLY | os.O_APPEND), ERRORS)]:
        os.dup2(opened, number)
    sys.argv = ["pgcdc", *arguments]
    main()
    sys.exit(0)


if __name__ == "__main__":
    _serve()
