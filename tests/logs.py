"""Databases whose log is read by several runs of `pgcdc stream`, and such runs in the background."""

import os
import signal
import subprocess
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Self

import psycopg
from processes import stream_command, wait_until
from servers import AnyServer, Database, wait_until_free
from warm_process import run_warm

from pgcdc_cli.lsn import Lsn

PROTOCOL_1 = ("--streaming", "off", "--proto-version", "1")

IMMEDIATE = {"PGOPTIONS": "-c debug_logical_replication_streaming=immediate"}
"""Stream every single change: a developer option of the server."""


class Log(Database):
    """A database whose log is read by several runs; publications as in `stream_command`."""

    def __init__(self, server: AnyServer, statements: str, publications: tuple[str, ...] = ("pub",)) -> None:
        super().__init__(server)
        self._publications = publications
        self.run(statements)

    def run(self, *statements: str) -> list[tuple]:
        """Execute each statement on its own; return the rows of the last one.

        The session is a new one, because the server may have crashed since the last one.
        """
        with psycopg.connect(self.uri, autocommit=True) as session:
            for statement in statements:
                cursor = session.execute(statement)
            return cursor.fetchall() if cursor.description else []

    def end(self) -> str:
        """The position at which the log ends now, with later records beyond it."""
        [(end,)] = self.run("SELECT pg_current_xact_id()", "SELECT pg_current_wal_insert_lsn()::text")
        self.run("SELECT pg_current_xact_id()")
        return end

    def confirmed(self, slot: str) -> Lsn:
        query = f"SELECT confirmed_flush_lsn::text FROM pg_replication_slots WHERE slot_name = '{slot}'"
        return Lsn.parse(self.run(query)[0][0])

    def streamed(self, slot: str) -> int:
        """The number of transactions that the server has streamed to the slot."""
        query = f"SELECT stream_txns FROM pg_stat_replication_slots WHERE slot_name = '{slot}'"
        return self.run(query)[0][0]

    def command(self, slot: str, *arguments: str) -> list[str]:
        return stream_command(self.uri, slot, *arguments, publications=self._publications)

    def stream(
        self, slot: str, *arguments: str, environment: dict[str, str] | None = None, timeout: float = 120
    ) -> subprocess.CompletedProcess[bytes]:
        variables = os.environ | (environment or {})
        return run_warm(self.command(slot, *arguments), timeout=timeout, env=variables, text=False)

    def read(self, slot: str, *arguments: str, environment: dict[str, str] | None = None) -> bytes:
        """Stream with success and nothing on standard error; return standard output."""
        run = self.stream(slot, *arguments, environment=environment)
        assert (run.returncode, run.stderr) == (0, b""), run.stderr
        return run.stdout


@contextmanager
def log_of(server: AnyServer, statements: str, publications: tuple[str, ...] = ("pub",)) -> Iterator[Log]:
    log = Log(server, statements, publications)
    try:
        yield log
    finally:
        log.drop()


def new_process(line: list[str], environment: dict[str, str]) -> subprocess.Popen[bytes]:
    return subprocess.Popen(line, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, env=environment)


class Running:
    """`pgcdc stream` in the background; `fsync` is in seconds."""

    def __init__(
        self,
        log: Log,
        slot: str,
        *arguments: str,
        environment: dict[str, str] | None = None,
        fsync: float = 0.2,
        start: Callable[[list[str], dict[str, str]], subprocess.Popen[bytes]] = new_process,
    ) -> None:
        self._log = log
        self._slot = slot
        line = log.command(slot, *arguments, "-s", "0.2", "-F", str(fsync))
        self.process = start(line, os.environ | (environment or {}))

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_exception: object) -> None:
        self.process.kill()
        self.process.communicate()

    def started(self) -> None:
        query = f"SELECT active FROM pg_replication_slots WHERE slot_name = '{self._slot}'"
        wait_until(lambda: self.process.poll() is not None or self._log.run(query) == [(True,)])
        assert self.process.poll() is None, self.process.stderr.read()

    def confirms(self, end: str) -> None:
        """Wait until everything up to `end` is confirmed, or the run has ended."""
        wait_until(
            lambda: self.process.poll() is not None or self._log.confirmed(self._slot) >= Lsn.parse(end)
        )

    def ends(self, end: str) -> tuple[int, bytes]:
        self.confirms(end)
        return self.stop()

    def kill(self) -> None:
        """Kill the run, and wait until the slot is free."""
        self.kill_only()
        wait_until_free(self._log, self._slot)

    def kill_only(self) -> None:
        self.process.send_signal(signal.SIGKILL)
        status, errors = self.wait()
        assert status == -signal.SIGKILL, errors

    def stop(self) -> tuple[int, bytes]:
        self.process.send_signal(signal.SIGTERM)
        return self.wait()

    def wait(self) -> tuple[int, bytes]:
        errors = self.process.communicate(timeout=60)[1]
        return self.process.returncode, errors
