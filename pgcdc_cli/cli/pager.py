"""The user's pager: `less`, or what PAGER names."""

import os
import shlex
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from types import FrameType

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
    before = signal.signal(signal.SIGINT, _interrupt_once)
    try:
        # Ctrl-C ends what comes, not the reading.
        with suppress(BrokenPipeError, KeyboardInterrupt):
            os.dup2(pager.stdin.fileno(), 1)
            yield
            flush()
    finally:
        signal.signal(signal.SIGINT, signal.SIG_IGN)
        _return_to(terminal)
        with suppress(BrokenPipeError):
            pager.stdin.close()
        pager.wait()
        signal.signal(signal.SIGINT, before)


def _interrupt_once(_number: int, _frame: FrameType | None) -> None:
    """End what comes; from then on the keys are the pager's alone, which must not be left behind."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    raise KeyboardInterrupt


def _return_to(terminal: int) -> None:
    """Let standard output be the terminal again, without what the pager did not take."""
    nowhere = os.open(os.devnull, os.O_WRONLY)
    os.dup2(nowhere, 1)
    os.close(nowhere)
    flush()
    os.dup2(terminal, 1)
    os.close(terminal)


def _start() -> subprocess.Popen[bytes] | None:
    command = shlex.split(os.environ.get("PAGER", "less"))
    if not command or command == ["cat"]:
        return None
    # It ends at once where all fits the screen, and lets colours through, as git has it.
    settings = {"LESS": "FRX", **os.environ}
    with suppress(OSError):
        return subprocess.Popen(command, stdin=subprocess.PIPE, env=settings)  # noqa: S603 - the user's own
    return None
