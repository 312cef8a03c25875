"""The shop's opening hours: load and stream side by side, the stream killed once, a first merge meanwhile."""

import signal
import time
from collections import Counter, deque
from dataclasses import dataclass

from pgcdc_cli.demo.actions import Kind
from pgcdc_cli.demo.children import Child
from pgcdc_cli.demo.report import Progress
from pgcdc_cli.demo.stage import PUBLICATION, SLOT, Stage
from pgcdc_cli.demo.workload import Workload
from pgcdc_cli.errors import ErrorKind, PgcdcError
from pgcdc_cli.lsn import Lsn

_LOOK = 0.25
"""Seconds between two looks at how things stand."""

_STANDING = """
SELECT confirmed_flush_lsn::text, pg_wal_lsn_diff(pg_current_wal_lsn(), confirmed_flush_lsn)::int8,
    (SELECT coalesce(sum(n_tup_ins + n_tup_upd + n_tup_del), 0)::int8 FROM pg_stat_user_tables)
FROM pg_replication_slots WHERE slot_name = %s
"""


@dataclass(frozen=True)
class Takings:
    """What the load did in how many seconds, and the longest lag in bytes."""

    counts: Counter[str]
    seconds: float
    lag: int


class Opening:
    """From the first transaction to the last change in the files."""

    def __init__(self, stage: Stage) -> None:
        self._stage = stage
        self._children = stage.children
        self._lag = 0
        self._stream = self._start_stream()
        self._merge: Child | None = None

    def run(self) -> Takings:
        """Keep the shop open as long as the settings say, and until the first merge has begun."""
        seconds = self._stage.settings.seconds
        plan = deque([(seconds / 3, self._crash), (seconds / 2, self._merge_early)])
        began = time.monotonic()
        with self._load() as load:
            while (elapsed := time.monotonic() - began) < seconds or plan:
                load.check()
                self._look(elapsed, load.counts)
                if plan and elapsed >= plan[0][0] and plan[0][1]():
                    plan.popleft()
                time.sleep(_LOOK)
            counts = load.stop()
        return Takings(counts, time.monotonic() - began, self._lag)

    def catch_up(self) -> float:
        """Stop the stream as a service manager would, then go on as cron would; gives the seconds."""
        began = time.monotonic()
        self._stage.reporter.note("asking the stream to stop (SIGTERM)")
        self._stream.signal(signal.SIGTERM)
        self._children.wait(self._stream)
        self._children.run(*self._stream_command(), "--endpos", "now")
        return time.monotonic() - began

    def finish_merge(self) -> None:
        """Let the merge that began while the shop was open come to its end."""
        assert self._merge is not None
        self._stage.finish_merge(self._merge)

    def _load(self) -> Workload:
        settings = self._stage.settings
        return Workload(self._stage.uri, seed=settings.seed, rate=settings.rate)

    def _stream_command(self) -> list[str]:
        source = ["-d", self._stage.uri, "-S", SLOT, "--publication", PUBLICATION]
        target = ["-D", str(self._stage.files), "--format", self._stage.settings.format]
        # So small and so often that some seconds of load make some segments, and lag is told as it is.
        rhythm = ["--rotate-size", "4MB", "--rotate-interval", "2s", "-s", "1", "-F", "1"]
        return ["stream", *source, *target, *rhythm]

    def _start_stream(self) -> Child:
        return self._children.start(*self._stream_command())

    def _crash(self) -> bool:
        self._stage.reporter.note("killing the stream (SIGKILL) and starting it again")
        self._stream.signal(signal.SIGKILL)
        self._stream.wait()
        self._stream = self._start_stream()
        return True

    def _merge_early(self) -> bool:
        """Merge the segments that are finished by now; not yet, if there is none."""
        segments = self._stage.segments()
        if not segments:
            return False
        self._stage.reporter.note("merging what is finished, while the shop is open and the stream goes on")
        self._merge = self._children.start(*self._stage.merge_command, "--until", segments[-1]["end_lsn"])
        return True

    def _look(self, elapsed: float, counts: Counter[str]) -> None:
        self._children.drain()
        if not self._stream.running:
            self._stream.check()
            raise PgcdcError(
                ErrorKind.UNEXPECTED, f'could not go on: "{self._stream.command}" ended by itself'
            )
        row = self._stage.connection.execute(_STANDING, (SLOT,)).fetchone()
        assert row is not None
        confirmed, lag, rows_changed = row
        self._lag = max(self._lag, lag)
        segments = len(self._stage.segments())
        self._stage.reporter.progress(
            Progress(elapsed, counts[Kind.TRANSACTION], rows_changed, segments, Lsn.parse(confirmed), lag)
        )
