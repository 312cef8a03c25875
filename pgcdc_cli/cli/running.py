"""Carry out a run: a line that shows its progress, and the signals that end it."""

import shutil
import signal
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

from pgcdc_cli.cli.printing import (
    can_redraw,
    counted,
    human_bytes,
    talk,
    write_as_far_as_possible,
    write_message,
)
from pgcdc_cli.ending_signals import early_ending, early_hangup, replaced

if TYPE_CHECKING:
    from types import FrameType

    from pgcdc_cli.cli.target import StreamTarget
    from pgcdc_cli.stream.run import StreamRun
    from pgcdc_cli.stream.settings import RunTotals, Signals
    from pgcdc_cli.stream.snapshot.snapshot_run import SnapshotRun

_INTERVAL = 0.5
"""Seconds between two updates of the line."""


class ProgressLine:
    """Shows a run's progress on standard error: a line that is rewritten; where none can be, one every 10 s.

    With `shown` false it shows nothing.
    """

    def __init__(self, *, shown: bool) -> None:
        self._shown = shown
        self._live = can_redraw(sys.stderr) and not talk.as_json
        self._interval = _INTERVAL if self._live else 10.0
        self._shown_at = self._began = time.monotonic()
        self._rows = 0

    def __call__(self, totals: "RunTotals") -> None:
        """Show the totals if the interval has passed."""
        now = time.monotonic()
        if not self._shown or now - self._shown_at < self._interval:
            return
        # There are fewer rows than before if a lost connection took some back.
        rate = max(totals.rows - self._rows, 0) / (now - self._shown_at)
        self._shown_at, self._rows = now, totals.rows
        self._write(self._text(totals, rate))

    def end(self, totals: "RunTotals") -> None:
        """Sum up the run in one line, if it has durable output."""
        if not self._shown or not totals.durable_lsn:
            return
        rate = totals.rows / max(time.monotonic() - self._began, 0.001)
        # A run that mostly waited has no rate worth a word.
        write_message("info", self._text(totals, rate) if rate >= 1 else reached(totals))

    def _text(self, totals: "RunTotals", rate: float) -> str:
        if totals.snapshot_bytes is not None:
            return f"{rate:,.0f} rows/s; {reached(totals)}{_time_left(totals, rate)}"
        spooled = f"{human_bytes(totals.spooled)} of large transactions spooled"
        begun = f"{rate:,.0f} rows/s" if rate or not totals.spooled else spooled
        return f"{begun}, {reached(totals)}"

    def _write(self, text: str) -> None:
        if not self._live:
            write_message("info", text)
            return
        width = shutil.get_terminal_size().columns
        write_as_far_as_possible(f"\r\x1b[K{text[: width - 1]}")
        talk.live = True


def reached(totals: "RunTotals") -> str:
    """Say how far a run is."""
    if totals.snapshot_bytes is not None:
        expected = "" if totals.snapshot_rows is None else f" of about {totals.snapshot_rows:,}"
        return f"snapshot: {totals.rows:,}{expected} rows, {human_bytes(totals.snapshot_bytes)}"
    lag = human_bytes(max(totals.wal_end - totals.durable_lsn, 0))
    done = f"{counted(totals.rows, 'row')} in {counted(totals.transactions, 'transaction')}"
    return f"lag {lag}, durable to {totals.durable_lsn}; {done}"


def _time_left(totals: "RunTotals", rate: float) -> str:
    rows = (totals.snapshot_rows or 0) - totals.rows
    if rows <= 0 or rate < 1:
        return ""
    seconds = rows / rate
    return f", {seconds:,.0f} s left" if seconds < 120 else f", {seconds / 60:,.0f} min left"


def shows_progress(target: "StreamTarget") -> bool:
    """Whether standard error is a terminal that doesn't also show the output."""
    return sys.stderr.isatty() and not (target.stdout and sys.stdout.isatty())


def carry_out(run: "StreamRun | SnapshotRun", signals: "Signals", progress: ProgressLine) -> None:
    """Run until the end, or until a signal; a last line sums it up."""
    with handled(signals):
        try:
            run.run()
        finally:
            progress.end(run.totals)


@contextmanager
def handled(signals: "Signals") -> Iterator[None]:
    """Handle signals: INT and TERM ask for a clean end, and a second one ends at once; HUP reopens files."""

    def stop(_number: int, _frame: "FrameType | None") -> None:
        signals.stop = True
        for ending in (signal.SIGINT, signal.SIGTERM):
            signal.signal(ending, signal.SIG_DFL)
        if signals.waiting:
            raise KeyboardInterrupt

    def hangup(_number: int, _frame: "FrameType | None") -> None:
        signals.hangup = True

    with replaced({signal.SIGINT: stop, signal.SIGTERM: stop, signal.SIGHUP: hangup}):
        early_ending.check()
        signals.hangup |= early_hangup.came
        yield


@contextmanager
def timed(signals: "Signals", seconds: float | None) -> Iterator[None]:
    """Interrupt a wait for the server when time is up; between batches the run checks the time itself."""

    def time_up(_number: int, _frame: "FrameType | None") -> None:
        signals.time_up = True
        if signals.waiting:
            raise KeyboardInterrupt

    with replaced({signal.SIGALRM: time_up}):
        signal.setitimer(signal.ITIMER_REAL, min(seconds or 0, threading.TIMEOUT_MAX))
        try:
            yield
        finally:
            signal.setitimer(signal.ITIMER_REAL, 0)
