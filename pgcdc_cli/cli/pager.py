"""The user's pager: `less`, or what PAGER names."""

import os
import shlex
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress

from pgcdc_cli.cli.printing import flush


@contextmanager
def paged() -> Iterator[None]:
    """Let standard output go through the pager, if it is a terminal; wait until the reader has done.

    Where PAGER is empty or `cat`, or there is no such program, nothing happens. A reader who leaves early
    ends the `with` block without an error.
    """
    pager = _start() if sys.stdout.isatty() else None
    if pager is None or pager.stdin is None:
        yield
        return
    flush()
    terminal = os.dup(1)
    os.dup2(pager.stdin.fileno(), 1)
    try:
        # Ctrl-C ends what comes, not the reading.
        with suppress(BrokenPipeError, KeyboardInterrupt):
            yield
            flush()
    finally:
        _return_to(terminal)
        with suppress(BrokenPipeError):
            pager.stdin.close()
        _wait(pager)


def _return_to(terminal: int) -> None:
    """Let standard output be the terminal again, without what the pager did not take."""
    nowhere = os.open(os.devnull, os.O_WRONLY)
    os.dup2(nowhere, 1)
    os.close(nowhere)
    flush()
    os.dup2(terminal, 1)
    os.close(terminal)


def _wait(pager: subprocess.Popen[bytes]) -> None:
    before = signal.signal(signal.SIGINT, signal.SIG_IGN)
    pager.wait()
    signal.signal(signal.SIGINT, before)


def _start() -> subprocess.Popen[bytes] | None:
    command = shlex.split(os.environ.get("PAGER", "less"))
    if not command or command == ["cat"]:
        return None
    # It ends at once where all fits the screen, and lets colours through, as git has it.
    settings = {"LESS": "FRX", **os.environ}
    with suppress(OSError):
        return subprocess.Popen(command, stdin=subprocess.PIPE, env=settings)  # noqa: S603 - the user's own
    return None
