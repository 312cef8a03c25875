"""`pgcdc stream`, killed, stopped and disconnected at random, and started again each time."""

import random
import signal
import subprocess
from collections import Counter
from contextlib import suppress
from typing import TYPE_CHECKING, Self

import pytest
from logs import Log, Running

if TYPE_CHECKING:
    from collections.abc import Callable

SERVER_FAILED = b"the server failed to decode its WAL"
"""How servers end all reading in cases that `soak_load.SHARED` doesn't prevent: internal errors of theirs.

See docs/protocols.md, "What servers get wrong here".
"""


def check(*, well: bool, errors: bytes) -> None:
    """Fail if a run didn't end as it should; skip the test if the server can't read its own log."""
    if SERVER_FAILED in errors:
        pytest.skip(f"a known fault of servers, which can't read their own log: {errors.decode()}")
    assert well, errors.decode()


def early_ends(number: signal.Signals) -> set[int]:
    """The exit statuses of a run that gets a signal before it reads, or before it handles any."""
    return {-number, 130}


class Interrupted:
    """A reader of a slot; `hits` counts by kind the interruptions that hit a run at work."""

    def __init__(self, log: Log, slot: str, dice: random.Random, *arguments: str) -> None:
        self.hits: Counter[str] = Counter()
        self.ways: dict[str, Callable[[], bool]] = {
            "killed": self._kill,
            "stopped": self._stop,
            "cut off": self._cut_off,
        }
        """The ways to interrupt it; each returns whether it hit a run at work."""
        self._log = log
        self._slot = slot
        self._dice = dice
        self._arguments = arguments
        self._next: list[str] = []
        self._run, self._ended = self._start(), False

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_exception: object) -> None:
        self._run.__exit__()

    def _start(self) -> Running:
        return Running(self._log, self._slot, *self._arguments)

    def missing(self) -> set[str]:
        """The ways in which it has not been interrupted yet."""
        return self.ways.keys() - self.hits.keys()

    def interrupt(self) -> None:
        """Let it work for a moment, then interrupt it in one of the ways, each in turn in random order.

        A way that hit no run at work is the next one again.
        """
        if not self._next:
            self._next = self._dice.sample([*self.ways], len(self.ways))
        self._await_start()
        self._work(self._dice.expovariate(2))
        how = self._next.pop()
        if self.ways[how]():
            self.hits[how] += 1
        else:
            self._next.append(how)
        if self._ended:
            self._run, self._ended = self._start(), False

    def _await_start(self) -> None:
        """Wait until it reads, mostly: a run may be interrupted before that, too."""
        while self._dice.random() < 0.95 and not self._holds_slot():
            self._work(0.1)

    def _holds_slot(self) -> bool:
        query = f"SELECT active FROM pg_replication_slots WHERE slot_name = '{self._slot}'"
        return self._log.run(query) == [(True,)]

    def _work(self, seconds: float) -> None:
        with suppress(subprocess.TimeoutExpired):
            self._run.process.wait(seconds)
        if self._run.process.poll() is not None:
            check(well=False, errors=self._run.wait()[1])

    def _kill(self) -> bool:
        self._run.kill_only()
        self._ended = True
        return True

    def _stop(self) -> bool:
        return self._signalled(signal.SIGTERM)

    def _signalled(self, number: signal.Signals) -> bool:
        """Send a signal that ends the run, even if the run isn't ready for it yet."""
        self._run.process.send_signal(number)
        return self._ends_by(number)

    def _ends_by(self, number: signal.Signals) -> bool:
        status, errors = self._run.wait()
        self._ended = True
        # Python prints this if SIGINT arrives before it can do anything else.
        unborn = number == signal.SIGINT and errors.startswith(b"Could not import runpy module")
        check(well=status in {0, *early_ends(number)} or unborn, errors=errors)
        return status == 0

    def _cut_off(self) -> bool:
        query = (
            "SELECT pg_terminate_backend(active_pid) FROM pg_replication_slots"
            f" WHERE slot_name = '{self._slot}' AND active"
        )
        return self._log.run(query) == [(True,)]

    def finish(self, timeout: float = 600) -> None:
        """Stop it, and read what is left within so many seconds."""
        self._stop()
        run = self._log.stream(self._slot, *self._arguments, "--endpos", self._log.end(), timeout=timeout)
        check(well=run.returncode == 0, errors=run.stderr)
