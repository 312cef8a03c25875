"""Redraw a view again and again, until it is ended (`--watch`)."""

import os
import select
import shutil
import sys
import termios
import time
import tty
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from functools import partial
from itertools import pairwise
from typing import Annotated, NamedTuple

import typer

from pgcdc_cli.cli import units
from pgcdc_cli.cli.printing import can_redraw, flush, human_bytes, write
from pgcdc_cli.ending_signals import early_ending
from pgcdc_cli.errors import PgcdcError
from pgcdc_cli.lsn import Lsn

_BARS = "▁▂▃▄▅▆▇█"
_LOOK = 0.2
"""Seconds between two looks at the size of the terminal."""

_REMEMBERED = 60
"""Views whose numbers are remembered, for rates and sparklines."""

Watch = Annotated[bool, typer.Option("--watch", help="Redraw until interrupted, or q is pressed.")]
Interval = Annotated[
    str,
    typer.Option(
        metavar="TIME",
        callback=units.checked(units.positive_duration),
        help="With --watch: time between redraws.",
    ),
]


def repeat(interval: float, view: Callable[[], Iterable[str]]) -> None:
    """Show a view again and again: in place on a terminal, otherwise (or on a dumb one) one after the other.

    It ends once q is pressed on the terminal. While the server can't be reached the view is its error; the
    server is asked again each time.
    """
    size, lines = shutil.get_terminal_size(), list(view())
    early_ending.check()
    in_place = can_redraw(sys.stdout)
    with _terminal() if in_place else nullcontext(_print) as show, _keys(in_place) as is_over:
        show(lines)
        while not is_over(interval, size):
            size, lines = shutil.get_terminal_size(), _or_error(view)
            show(lines)


def _print(lines: Iterable[str]) -> None:
    for line in lines:
        write(line)
    flush()


@contextmanager
def _terminal() -> Iterator[Callable[[Iterable[str]], None]]:
    from rich.live import Live
    from rich.text import Text

    with Live(screen=True, auto_refresh=False) as live:
        yield lambda lines: live.update(Text("\n".join(lines)), refresh=True)


@contextmanager
def _keys(wanted: bool) -> Iterator[Callable[[float, os.terminal_size], bool]]:
    """Yield a function that waits for so many seconds, and returns whether q was pressed meanwhile.

    It waits no longer once the terminal's size is another one: the view has to be drawn for that.
    """
    keyboard = sys.stdin.fileno() if wanted and sys.stdin.isatty() else None
    # A job in the background that changes its terminal is stopped.
    if keyboard is None or os.tcgetpgrp(keyboard) != os.getpgrp():
        yield _sleep
        return
    before = termios.tcgetattr(keyboard)
    tty.setcbreak(keyboard)
    try:
        yield partial(_pressed, keyboard)
    finally:
        termios.tcsetattr(keyboard, termios.TCSADRAIN, before)


def _sleep(interval: float, _size: os.terminal_size) -> bool:
    time.sleep(interval)
    return False


def _pressed(keyboard: int, interval: float, size: os.terminal_size) -> bool:
    until = time.monotonic() + interval
    while (left := until - time.monotonic()) > 0 and shutil.get_terminal_size() == size:
        if select.select([keyboard], [], [], min(left, _LOOK))[0]:
            keys = os.read(keyboard, 1024)
            if b"q" in keys:
                return True
            if not keys:
                return _sleep(left, size)
    return False


def _or_error(view: Callable[[], Iterable[str]]) -> list[str]:
    try:
        return list(view())
    except PgcdcError as error:
        if not error.kind.rule.transient:
            raise
        return [error.message]


class Sample(NamedTuple):
    """A slot at a time `at` (of the monotonic clock); `lag` and `safe` are in bytes of WAL.

    `log_end` is where the server's WAL ended; after `safe` bytes more the slot is lost, None if never.
    """

    at: float
    log_end: Lsn
    lag: int
    safe: int | None


class History:
    """The last samples, and the rates computed from them."""

    def __init__(self) -> None:
        self._samples: deque[Sample] = deque(maxlen=_REMEMBERED)

    def add(self, sample: Sample) -> None:
        self._samples.append(sample)

    def facts(self) -> list[tuple[str, str]]:
        """Describe how fast WAL is written, the reader's lag, and when the slot would be lost."""
        if len(self._samples) < 2:
            return []
        first, *_, last = self._samples
        rate = _rate(first, last)
        steps = [_rate(*pair) for pair in pairwise(self._samples)]
        lags = [sample.lag for sample in self._samples]
        found = [
            ("log written", f"{human_bytes(round(rate))}/s  {sparkline(steps)}"),
            ("lag, lately", f"{human_bytes(last.lag)}  {sparkline(lags)}"),
        ]
        if last.safe is not None and rate > 0:
            found.append(("slot lost in", f"{_spell(last.safe / rate)}, at this rate if it is not read"))
        return found


def _rate(sooner: Sample, later: Sample) -> float:
    """Return the bytes of WAL written per second."""
    return max(later.log_end - sooner.log_end, 0) / max(later.at - sooner.at, 0.001)


def sparkline(values: Sequence[float]) -> str:
    """Draw numbers as bars, from 0 to the largest."""
    highest = max(values, default=0)
    if highest <= 0:
        return _BARS[0] * len(values)
    return "".join(_BARS[round(max(value, 0) / highest * (len(_BARS) - 1))] for value in values)


def _spell(seconds: float) -> str:
    for unit, size in (("d", 86400), ("h", 3600), ("min", 60)):
        if seconds >= 2 * size:
            return f"{seconds / size:.0f} {unit}"
    return f"{max(seconds, 0):.0f} s"
