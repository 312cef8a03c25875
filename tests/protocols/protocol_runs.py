"""Databases whose log several runs of `pgcdc stream` read, and what these leave."""

import json
import os
import re
import signal
import subprocess
import sys
import time
import uuid
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Self

import psycopg
import pyarrow as pa
from psycopg import sql

from pgcdc_cli.demo.embedded_server import EmbeddedServer
from pgcdc_cli.lsn import Lsn

PROTOCOL_1 = ("--streaming", "off", "--proto-version", "1")

IMMEDIATE = {"PGOPTIONS": "-c debug_logical_replication_streaming=immediate"}
"""Stream every single change: a server's setting for developers."""


class Log:
    """A database, and its log from `slot` on; publications as in `command`."""

    def __init__(
        self, server: EmbeddedServer, statements: str, publications: tuple[str, ...] = ("pub",)
    ) -> None:
        self.server = server
        self.name = f"p_{uuid.uuid4().hex[:12]}"
        self.uri = server.uri(self.name)
        self._publications = publications
        with psycopg.connect(server.uri(), autocommit=True) as admin:
            admin.execute(sql.SQL("CREATE DATABASE {}").format(sql.Identifier(self.name)))
        self.execute(statements)

    def execute(self, *statements: str) -> list[tuple]:
        """Execute each on its own; gives the last one's rows."""
        with psycopg.connect(self.uri, autocommit=True) as admin:
            for statement in statements:
                cursor = admin.execute(statement)
            return cursor.fetchall() if cursor.description else []

    def slot(self, *, two_phase: bool = False) -> str:
        name = f"s_{uuid.uuid4().hex[:12]}"
        self.execute(f"SELECT pg_create_logical_replication_slot('{name}', 'pgoutput', false, {two_phase})")
        return name

    def copy(self, slot: str) -> str:
        name = f"s_{uuid.uuid4().hex[:12]}"
        self.execute(f"SELECT pg_copy_logical_replication_slot('{slot}', '{name}')")
        return name

    def drop_slot(self, slot: str) -> None:
        self.execute(f"SELECT pg_drop_replication_slot('{slot}')")

    def end(self) -> str:
        """Where the log ends now; later records lie beyond it."""
        [(end,)] = self.execute("SELECT pg_current_xact_id()", "SELECT pg_current_wal_insert_lsn()::text")
        self.execute("SELECT pg_current_xact_id()")
        return end

    def confirmed(self, slot: str) -> Lsn:
        query = f"SELECT confirmed_flush_lsn::text FROM pg_replication_slots WHERE slot_name = '{slot}'"
        return Lsn.parse(self.execute(query)[0][0])

    def streamed(self, slot: str) -> int:
        """How many transactions the server streamed to it."""
        query = f"SELECT stream_txns FROM pg_stat_replication_slots WHERE slot_name = '{slot}'"
        return self.execute(query)[0][0]

    def command(self, slot: str, *arguments: str) -> list[str]:
        line = [sys.executable, "-m", "pgcdc_cli", "stream", "-d", self.uri, "-S", slot]
        return [*line, *(word for name in self._publications for word in ("--publication", name)), *arguments]

    def stream(
        self, slot: str, *arguments: str, environment: dict[str, str] | None = None, timeout: float = 120
    ) -> subprocess.CompletedProcess[bytes]:
        return subprocess.run(
            self.command(slot, *arguments),
            capture_output=True,
            timeout=timeout,
            check=False,
            env=os.environ | (environment or {}),
        )

    def read(self, slot: str, *arguments: str, environment: dict[str, str] | None = None) -> bytes:
        """Stream with success and without a word on standard error; gives standard output."""
        run = self.stream(slot, *arguments, environment=environment)
        assert (run.returncode, run.stderr) == (0, b""), run.stderr
        return run.stdout

    def drop(self) -> None:
        with psycopg.connect(self.server.uri(), autocommit=True) as admin:
            slots = "FROM pg_replication_slots WHERE database = %s"
            admin.execute(f"SELECT pg_terminate_backend(active_pid) {slots} AND active", (self.name,))
            wait_until(lambda: admin.execute(f"SELECT {slots} AND active", (self.name,)).fetchone() is None)
            for (gid,) in psycopg_rows(self.uri, "SELECT gid FROM pg_prepared_xacts"):
                self.execute(sql.SQL("ROLLBACK PREPARED {}").format(sql.Literal(gid)))
            admin.execute(f"SELECT pg_drop_replication_slot(slot_name) {slots}", (self.name,))
            admin.execute(sql.SQL("DROP DATABASE {} WITH (FORCE)").format(sql.Identifier(self.name)))


def psycopg_rows(uri: str, query: str) -> list[tuple]:
    with psycopg.connect(uri, autocommit=True) as connection:
        return connection.execute(query).fetchall()


@contextmanager
def log_of(
    server: EmbeddedServer, statements: str, publications: tuple[str, ...] = ("pub",)
) -> Iterator[Log]:
    log = Log(server, statements, publications)
    try:
        yield log
    finally:
        log.drop()


class Running:
    """`pgcdc stream` in the background; `fsync` is in seconds."""

    def __init__(
        self,
        log: Log,
        slot: str,
        *arguments: str,
        environment: dict[str, str] | None = None,
        fsync: float = 0.2,
    ) -> None:
        self._log = log
        self._slot = slot
        self.process = subprocess.Popen(
            log.command(slot, *arguments, "-s", "0.2", "-F", str(fsync)),
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            env=os.environ | (environment or {}),
        )

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_exception: object) -> None:
        self.process.kill()
        self.process.communicate()

    def started(self) -> None:
        query = f"SELECT active FROM pg_replication_slots WHERE slot_name = '{self._slot}'"
        wait_until(lambda: self.process.poll() is not None or self._log.execute(query) == [(True,)])
        assert self.process.poll() is None, self.process.stderr.read()

    def confirms(self, end: str) -> None:
        """Wait until all up to `end` is durable, or the run has ended."""
        wait_until(
            lambda: self.process.poll() is not None or self._log.confirmed(self._slot) >= Lsn.parse(end)
        )

    def ends(self, end: str) -> tuple[int, bytes]:
        self.confirms(end)
        return self.stop()

    def kill(self) -> None:
        self.process.send_signal(signal.SIGKILL)
        status, errors = self.wait()
        assert status == -signal.SIGKILL, errors

    def stop(self) -> tuple[int, bytes]:
        self.process.send_signal(signal.SIGTERM)
        return self.wait()

    def wait(self) -> tuple[int, bytes]:
        errors = self.process.communicate(timeout=60)[1]
        return self.process.returncode, errors


def peak_memory(line: list[str], environment: dict[str, str]) -> int:
    """Run a command line that succeeds; gives its largest resident set in bytes.

    Not wait4's: that counts the moment before exec, too, when the process was a copy of this one.
    """
    with subprocess.Popen(line, env=os.environ | environment) as process:
        peak = 0
        while process.poll() is None:
            with suppress(FileNotFoundError, ProcessLookupError):
                status = Path(f"/proc/{process.pid}/status").read_text()
                found = re.search(r"VmHWM:\s*(\d+) kB", status)
                peak = max(peak, int(found[1]) << 10 if found else 0)
            time.sleep(0.005)
    assert process.returncode == 0
    assert peak
    return peak


def wait_until(true: Callable[[], bool], seconds: float = 60) -> None:
    deadline = time.monotonic() + seconds
    while not true():
        assert time.monotonic() < deadline
        time.sleep(0.02)


def contents(directory: Path) -> dict[str, list[object]]:
    """By table, the lines of the finished segments; Arrow rows, each schema before its own."""
    found: dict[str, list[object]] = {}
    schemas: dict[str, pa.Schema] = {}
    manifest = directory / "manifest.jsonl"
    for text in manifest.read_text().splitlines() if manifest.exists() else ():
        for file in json.loads(text)["files"]:
            path, kept = directory / file["path"], found.setdefault(file["table"], [])
            if path.suffix == ".arrow":
                with pa.ipc.open_stream(path) as reader:
                    if reader.schema != schemas.get(file["table"]):
                        schemas[file["table"]] = reader.schema
                        kept.append(reader.schema)
                    kept += reader.read_all().to_pylist()
            else:
                kept += path.read_bytes().splitlines()
    return found
