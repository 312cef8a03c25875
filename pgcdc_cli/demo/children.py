"""The demo's child processes: pgcdc commands whose output is collected, and which never outlive the demo.

Each runs in a session of its own, so that Ctrl-C reaches only the demo, and the demo can end each one's whole
process group, such as spark-submit's Java and its Python.
"""

import os
import queue
import shlex
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from typing import Self

from pgcdc_cli.ending_signals import handling
from pgcdc_cli.errors import ErrorKind, PgcdcError

_PATIENCE = 5.0
"""Seconds that a child has to end after SIGTERM before it is killed."""


class Child:
    """A running pgcdc command; `said` are the lines that it has printed so far."""

    def __init__(self, arguments: Sequence[str], lines: "queue.SimpleQueue[str]") -> None:
        self.command = shlex.join(["pgcdc", *arguments])
        self._lines = lines
        self.said: list[str] = []
        self._process = subprocess.Popen(  # noqa: S603  our own program
            [sys.executable, "-m", "pgcdc_cli", *arguments],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            # `_failure` parses the child's error message, and people read it.
            env={**os.environ, "PGCDC_LOG_FORMAT": "text"},
            encoding="utf-8",
            errors="replace",
            start_new_session=True,
        )
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    @property
    def running(self) -> bool:
        return self._process.poll() is None

    def signal(self, number: signal.Signals) -> None:
        """Send a signal to the command and all that it has started."""
        with suppress(ProcessLookupError):
            os.killpg(self._process.pid, number)

    def wait(self) -> None:
        """Wait for its end, whatever its exit status, and for its last output."""
        self._process.wait()
        self._reader.join(_PATIENCE)

    def end(self) -> None:
        """End it and its process group if it still runs: SIGTERM first, then SIGKILL."""
        if not self.running:
            return
        self.signal(signal.SIGTERM)
        with suppress(subprocess.TimeoutExpired):
            self._process.wait(_PATIENCE)
        self.signal(signal.SIGKILL)
        self.wait()

    def check(self) -> None:
        """Raise the error of a failed command: with its own message, hint and kind."""
        status = self._process.returncode
        if status:
            raise _failure(self.command, status, self.said)

    def _read(self) -> None:
        assert self._process.stdout is not None
        with self._process.stdout as lines:
            for line in lines:
                self.said.append(line.rstrip("\n"))
                self._lines.put(line.rstrip("\n"))


class Children:
    """All children; on leaving the context, those that still run are ended.

    `command` is called with each command line as it starts, `output` with each line that a child prints, both
    in the calling thread.
    """

    def __init__(self, command: Callable[[str], None], output: Callable[[str], None]) -> None:
        self._command = command
        self._output = output
        self._lines: queue.SimpleQueue[str] = queue.SimpleQueue()
        self._children: list[Child] = []

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        with uninterruptible():
            for child in self._children:
                child.end()
        self.drain()

    def start(self, *arguments: str) -> Child:
        """Start a pgcdc command."""
        child = Child(arguments, self._lines)
        self._children.append(child)
        self._command(child.command)
        return child

    def run(self, *arguments: str) -> None:
        """Run a pgcdc command to its end. Raises PgcdcError if it fails."""
        self.wait(self.start(*arguments))

    def wait(self, child: Child) -> None:
        """Wait for a child's end. Raises PgcdcError if it fails."""
        while child.running:
            self.drain()
            time.sleep(0.02)
        child.wait()
        self.drain()
        child.check()

    def drain(self) -> None:
        """Pass on the lines that the children have printed."""
        with suppress(queue.Empty):
            while True:
                self._output(self._lines.get_nowait())


def _failure(command: str, status: int, said: Sequence[str]) -> PgcdcError:
    error = next((line for line in reversed(said) if line.startswith("pgcdc: error: ")), None)
    hint = next((line for line in reversed(said) if line.startswith("hint: ")), "hint: ")
    kind = next((kind for kind in ErrorKind if kind.rule.exit_status == status), ErrorKind.UNEXPECTED)
    if error is None:
        last = f": {said[-1].strip()}" if said else ""
        message = f'could not finish "{command}": exit status {status}{last}'
    else:
        message = error.removeprefix("pgcdc: error: ")
    return PgcdcError(kind, message, hint=hint.removeprefix("hint: ") or None)


@contextmanager
def uninterruptible() -> Iterator[None]:
    """Ignore these signals while the demo cleans up."""
    with handling(signal.SIG_IGN):
        yield
