"""`pgcdc stream` that is killed, stopped and cut off at random, and started again each time."""

import random
import signal
import subprocess
from collections import Counter
from contextlib import suppress
from typing import Self

import pytest
from logs import Log, Running

INTERRUPTIONS = ("killed", "stopped", "cut off")
LOST_FILE = b"could not map filenumber"
"""How servers end all reading at what `soak_load.SHARED` doesn't keep them from: a fault of theirs."""


def check(*, well: bool, errors: bytes) -> None:
    """Fail where a run didn't end as it should; skip the rest where the server can't read its own log."""
    if LOST_FILE in errors:
        pytest.skip(f"the server stopped: {errors.decode()}")
    assert well, errors.decode()


class Interrupted:
    """A reader of a slot; `hits` counts the interruptions of each kind that met a run at work."""

    def __init__(self, log: Log, slot: str, dice: random.Random, *arguments: str) -> None:
        self.hits: Counter[str] = Counter()
        self._log = log
        self._slot = slot
        self._dice = dice
        self._arguments = arguments
        self._next: list[str] = []
        self._run = self._start()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_exception: object) -> None:
        self._run.__exit__()

    def _start(self) -> Running:
        return Running(self._log, self._slot, *self._arguments)

    def missing(self) -> set[str]:
        """Tell what has not yet happened to it."""
        return set(INTERRUPTIONS) - self.hits.keys()

    def interrupt(self) -> None:
        """Let it work for a moment, and interrupt it in one of the ways, each in turn, in any order."""
        if not self._next:
            self._next = self._dice.sample(INTERRUPTIONS, len(INTERRUPTIONS))
        self._await_start()
        self._work(self._dice.uniform(0, 1.2))
        how = self._next.pop()
        if {"killed": self._kill, "stopped": self._stop, "cut off": self._cut_off}[how]():
            self.hits[how] += 1
        if how != "cut off":
            self._run = self._start()

    def _await_start(self) -> None:
        """Mostly; a run may be interrupted before it reads, too."""
        query = f"SELECT active FROM pg_replication_slots WHERE slot_name = '{self._slot}'"
        while self._dice.random() < 0.95 and self._log.run(query) != [(True,)]:
            self._work(0.1)

    def _work(self, seconds: float) -> None:
        with suppress(subprocess.TimeoutExpired):
            self._run.process.wait(seconds)
        if self._run.process.poll() is not None:
            check(well=False, errors=self._run.wait()[1])

    def _kill(self) -> bool:
        self._run.kill()
        return True

    def _stop(self) -> bool:
        status, errors = self._run.stop()
        check(well=status in {0, -signal.SIGTERM}, errors=errors)
        return status == 0

    def _cut_off(self) -> bool:
        query = (
            "SELECT pg_terminate_backend(active_pid) FROM pg_replication_slots"
            f" WHERE slot_name = '{self._slot}' AND active"
        )
        return self._log.run(query) == [(True,)]

    def finish(self) -> None:
        """Stop it, and read what is left."""
        self._stop()
        run = self._log.stream(self._slot, *self._arguments, "--endpos", self._log.end(), timeout=600)
        check(well=run.returncode == 0, errors=run.stderr)
