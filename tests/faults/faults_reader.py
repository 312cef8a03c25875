"""`pgcdc stream` under faults of signals, servers and connections, over and over."""

import math
import random
import signal
import subprocess
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from logs import Log, Running
from processes import stream_command, wait_until
from proxy import Proxy
from servers import AnyServer
from soak_reader import Interrupted, check, early_ends
from warm_process import WarmPython

from pgcdc_cli.demo.embedded_server import EmbeddedServer

SENDER_TIMEOUT = 1.0
"""The server's `wal_sender_timeout`, in seconds."""
LONGER = 2.5 * SENDER_TIMEOUT
SHARES = {
    "SIGKILL": 10,
    **dict.fromkeys(["SIGTERM", "SIGINT", "SIGHUP", "two signals"], 1),
    **dict.fromkeys(["walsender terminated", "postmaster killed"], 0.5),
    **dict.fromkeys(["server stopped fast", "server stopped immediately"], 0.5),
}
"""How often each fault happens, times the size; the share of others is `RARE`."""
RARE = 0.25
NO_FIRST_CONNECTION = b"pgcdc: error: could not connect to the server: "
"""How a run ends that never had a connection; one that had any retries for minutes."""


class WiredLog(Log):
    """A log whose readers come through a proxy."""

    def __init__(self, server: AnyServer, statements: str, proxy: Proxy) -> None:
        super().__init__(server, statements)
        self._proxy = proxy

    def command(self, slot: str, *arguments: str) -> list[str]:
        return stream_command(self._proxy.uri(self.name), slot, *arguments)


class Faulted(Interrupted):
    """A reader that meets each fault, in random order."""

    def __init__(
        self,
        log: WiredLog,
        server: EmbeddedServer,
        proxy: Proxy,
        slot: str,
        python: WarmPython,
        *arguments: str,
        dice: random.Random,
    ) -> None:
        self._python = python
        super().__init__(log, slot, dice, *arguments)
        self._server = server
        self._proxy = proxy
        self.longest: Counter[str] = Counter()
        """The longest times in milliseconds: reported, not asserted, because the machine may be busy."""
        self.ways = {
            "SIGKILL": self._kill,
            "SIGTERM": self._stop,
            "SIGINT": lambda: self._signalled(signal.SIGINT),
            "SIGHUP": self._hang_up,
            "two signals": self._two_signals,
            "SIGSTOP beyond wal_sender_timeout": self._pause,
            "walsender terminated": self._cut_off,
            "server stopped fast": lambda: self._stop_server("fast"),
            "server stopped immediately": lambda: self._stop_server("immediate"),
            "postmaster killed": self._kill_postmaster,
            "wire delayed": lambda: self._while_wire(lambda: proxy.delay(0.05)),
            "wire stalled": lambda: self._while_wire(proxy.stall),
            "wire cut in a frame": self._cut_in_a_frame,
            "wire half closed": self._half_close,
        }

    def _start(self) -> Running:
        return Running(self._log, self._slot, *self._arguments, start=self._python.follow)

    def interrupt_all(self, size: int) -> None:
        """Meet each fault as often as its share says, in random order."""
        times = {how: math.ceil(size * SHARES.get(how, RARE)) for how in self.ways}
        self._next = [how for how, count in times.items() for _ in range(count)]
        self._dice.shuffle(self._next)
        while self._next:
            self.interrupt()

    def _runs(self) -> bool:
        return self._run.process.poll() is None

    def _reads(self) -> bool:
        """Whether the run goes on; if it never connected it may have given up, and then nothing was hit."""
        if not self._runs():
            errors = self._run.wait()[1]
            check(well=errors.startswith(NO_FIRST_CONNECTION), errors=errors)
            self._ended = True
        return not self._ended

    def _hang_up(self) -> bool:
        self._run.process.send_signal(signal.SIGHUP)
        with suppress(subprocess.TimeoutExpired):
            self._run.process.wait(0.2)
        return self._runs() or self._ends_by(signal.SIGHUP)

    def _ends_by(self, number: signal.Signals) -> bool:
        with self._timed("ms to end at a signal, at most"):
            return super()._ends_by(number)

    @contextmanager
    def _timed(self, what: str) -> Iterator[None]:
        began = time.monotonic()
        yield
        self.longest[what] = max(self.longest[what], round(1000 * (time.monotonic() - began)))

    def _two_signals(self) -> bool:
        """The second signal may find the run ending, or waiting for something."""
        first, second = self._dice.choices([signal.SIGTERM, signal.SIGINT, signal.SIGHUP], k=2)
        self._run.process.send_signal(first)
        self._work_or_end(self._dice.uniform(0, 0.05))
        self._run.process.send_signal(second)
        self._work_or_end(self._dice.uniform(0, 0.05))
        self._run.process.send_signal(signal.SIGTERM)
        status, errors = self._run.wait()
        self._ended = True
        check(well=status in {0}.union(*map(early_ends, (first, second, signal.SIGTERM))), errors=errors)
        return True

    def _work(self, seconds: float) -> None:
        """Let the run work; if it gave up because of the last fault, start it again."""
        self._work_or_end(seconds)
        if not self._reads():
            self._run, self._ended = self._start(), False

    def _work_or_end(self, seconds: float) -> None:
        with suppress(subprocess.TimeoutExpired):
            self._run.process.wait(seconds)

    def _pause(self) -> bool:
        self._run.process.send_signal(signal.SIGSTOP)
        time.sleep(LONGER)
        self._run.process.send_signal(signal.SIGCONT)
        return self._reads()

    def _stop_server(self, mode: str) -> bool:
        self._server.pg_ctl("stop", "-m", mode)
        return self._return_later()

    def _kill_postmaster(self) -> bool:
        """Wait until its children notice and end by themselves; until then no other may start."""
        locks = [self._server.data / "postmaster.pid"]
        locks.append(Path(self._server.socket_directory) / ".s.PGSQL.5432.lock")
        pid = int(locks[0].read_text().split()[0])
        children = subprocess.run(
            ["ps", "-o", "pid=", "--ppid", str(pid)], capture_output=True, text=True, check=True
        ).stdout.split()
        subprocess.run(["kill", "-KILL", str(pid)], check=True)
        wait_until(lambda: not any(_lives(child) for child in children))
        # A postmaster that nobody reaps would be taken for a running server.
        for path in locks:
            path.unlink(missing_ok=True)
        return self._return_later()

    def _return_later(self) -> bool:
        """Start the server with the same options as before, and wait until the run reads again."""
        time.sleep(self._dice.uniform(0, 0.5))
        self._server.pg_ctl("restart")
        with self._timed("ms from a server's return to its stream, at most"):
            wait_until(lambda: not self._runs() or self._holds_slot())
        return self._reads()

    def _while_wire(self, change: Callable[[], None]) -> bool:
        change()
        time.sleep(LONGER)
        self._proxy.resume()
        return self._reads()

    def _cut_in_a_frame(self) -> bool:
        """Cut the connection after any number of bytes; the server's keepalives alone are enough of them."""
        self._proxy.cut_after(self._dice.randrange(1, 3000))
        self._work_or_end(self._dice.uniform(0.2, 1))
        self._proxy.resume()
        self._proxy.cut()
        return self._reads()

    def _half_close(self) -> bool:
        self._proxy.half_close()
        return self._reads()


def _lives(pid: str) -> bool:
    """Whether a process exists and is not a zombie."""
    found = subprocess.run(["ps", "-o", "stat=", "-p", pid], capture_output=True, text=True, check=False)
    return found.stdout.strip()[:1] not in {"", "Z"}
