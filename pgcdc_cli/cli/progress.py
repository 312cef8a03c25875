"""The live line of `pgcdc stream --progress`, and its last word."""

import shutil
import sys
import time
from typing import TYPE_CHECKING

from pgcdc_cli.cli.printing import human_bytes, talk, write_error

if TYPE_CHECKING:
    from pgcdc_cli.stream.settings import Totals

INTERVAL = 0.5
"""Seconds between two looks of the line."""


class Reporter:
    """Rewrites one line on standard error; where that is no terminal, writes a line every ten seconds.

    With `shown` false it says nothing.
    """

    def __init__(self, *, shown: bool) -> None:
        self._shown = shown
        self._live = sys.stderr.isatty()
        self._interval = INTERVAL if self._live else 10.0
        self._shown_at = self._began = time.monotonic()
        self._rows = 0

    def __call__(self, totals: "Totals") -> None:
        """Show the totals if it is time to."""
        now = time.monotonic()
        if not self._shown or now - self._shown_at < self._interval:
            return
        # Fewer than before are those that a lost connection took back.
        rate = max(totals.rows - self._rows, 0) / (now - self._shown_at)
        self._shown_at, self._rows = now, totals.rows
        self._write(self._text(totals, rate))

    def end(self, totals: "Totals") -> None:
        """The whole run in one line, if there was one."""
        if not self._shown or not totals.durable_lsn:
            return
        rate = totals.rows / max(time.monotonic() - self._began, 0.001)
        write_error(f"pgcdc: {self._text(totals, rate)}")

    def _text(self, totals: "Totals", rate: float) -> str:
        lag = human_bytes(max(totals.wal_end - totals.durable_lsn, 0))
        transactions = (
            "1 transaction" if totals.transactions == 1 else f"{totals.transactions:,} transactions"
        )
        return (
            f"{rate:,.0f} rows/s, lag {lag}, durable to {totals.durable_lsn};"
            f" {totals.rows:,} rows in {transactions}"
        )

    def _write(self, text: str) -> None:
        if not self._live:
            write_error(f"pgcdc: {text}")
            return
        width = shutil.get_terminal_size().columns
        sys.stderr.write(f"\r\x1b[K{text[: width - 1]}")
        sys.stderr.flush()
        talk.live = True
