"""Run a captured workload through the command line, as it once ran through Debezium."""

import json
import os
import re
import signal
import subprocess
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import psycopg
from processes import PGCDC, wait_until
from warm_process import WarmProcess, borrowed

GOLDEN = Path(__file__).parent.parent / "golden"
CASES = GOLDEN / "cases"
MORE = Path(__file__).parent.parent / "golden_more"
DATABASE = "golden"
_CAUGHT_UP = """
SELECT 1 FROM pg_replication_slots JOIN pg_stat_replication ON pid = active_pid
WHERE slot_name = %s AND state = 'streaming' AND confirmed_flush_lsn >= %s::pg_lsn
"""
"""A walsender isn't in the state streaming before the snapshot is complete."""


def cases(version: str, folder: Path = CASES) -> list[str]:
    """Names of the cases that were captured on this major version."""
    found = [path.parent for path in sorted(folder.glob("*/connector.json"))]
    return [case.name for case in found if connector(case)["_postgres.version"] == version]


def connector(case: Path) -> dict[str, Any]:
    return dict(json.loads((case / "connector.json").read_text()))


class _Stream(NamedTuple):
    """A running `pgcdc stream`, its slot, and the file of its standard error."""

    slot: str
    process: WarmProcess
    errors: Path

    def confirmed(self, connection: psycopg.Connection, position: str) -> bool:
        found = connection.execute(_CAUGHT_UP, (self.slot, position)).fetchone() is not None
        assert found or self.process.poll() is None, self.errors.read_text()
        return found


class GoldenRun:
    """One case on one server, from an empty database to the lines that pgcdc writes.

    For each version of Debezium a stream follows the workload, from a slot of its own.
    """

    def __init__(self, server: Any, case: Path, work: Path) -> None:
        self._server = server
        self._folder = case
        self._work = work

    def run(self, versions: Sequence[str]) -> dict[str, Path]:
        """Run the case; return the output for each version."""
        with psycopg.connect(self._server.uri(), autocommit=True) as admin:
            admin.execute(f"CREATE DATABASE {DATABASE} TEMPLATE template0")
            try:
                self._stream(versions)
            finally:
                admin.execute(
                    "SELECT pg_terminate_backend(active_pid) FROM pg_replication_slots"
                    " WHERE active_pid IS NOT NULL"
                )
                admin.execute(
                    "DO $$ BEGIN WHILE EXISTS (SELECT FROM pg_replication_slots WHERE active) LOOP"
                    " PERFORM pg_sleep(0.01); END LOOP; END $$"
                )
                admin.execute("SELECT pg_drop_replication_slot(slot_name) FROM pg_replication_slots")
                admin.execute(f"DROP DATABASE {DATABASE} WITH (FORCE)")
        return {version: self._output(version) for version in versions}

    def _output(self, version: str) -> Path:
        return self._work / f"events-{version}.jsonl"

    def _psql(self, script: str, *, strict: bool) -> None:
        line = [self._server.bin / "psql", "-X", "-q", self._server.uri(DATABASE)]
        line += ["-v", "ON_ERROR_STOP=1"] if strict else []
        environment = {"PGCLIENTENCODING": "UTF8", "PGTZ": "UTC", "PATH": "/usr/bin:/bin"}
        ended = subprocess.run(
            line, input=script, capture_output=True, text=True, check=False, env=environment, encoding="utf-8"
        )
        assert not strict or ended.returncode == 0, ended.stderr

    def _stream(self, versions: Sequence[str]) -> None:
        self._psql((self._folder / "setup.sql").read_text("utf-8"), strict=True)
        with ExitStack() as ending:
            streams = [ending.enter_context(self._following(version)) for version in versions]
            self._caught_up(streams)
            changes = (self._folder / "changes.sql").read_text("utf-8")
            strict = "-- errors-expected" not in changes
            for script in re.split(r"(?m)^-- pause.*$", changes):
                self._psql(script, strict=strict)
                self._caught_up(streams)
            time.sleep(float(connector(self._folder).get("_wait", 0)))

    @contextmanager
    def _following(self, version: str) -> Iterator[_Stream]:
        slot = f"golden_{version.replace('.', '_')}"
        line = [
            *PGCDC, "--debug", "stream", "-d", self._server.uri(DATABASE),
            "--format", "debezium", "--connector-config", str(self._folder / "connector.json"),
            "-c", f"slot.name={slot}", "-c", f"debezium.version={version}",
            "-f", str(self._output(version)), "--create-slot", "-F", "50ms", "-s", "50ms", "--no-progress",
        ]  # fmt: skip
        path = self._work / f"stderr-{version}"
        with borrowed() as python:
            with path.open("wb") as errors:
                process = python.start(line, os.environ, stdout=errors, stderr=errors)
            try:
                yield _Stream(slot, process, path)
            finally:
                process.send_signal(signal.SIGTERM)
                process.wait()
        assert process.returncode == 0, path.read_text()

    def _caught_up(self, streams: Sequence[_Stream]) -> None:
        """Wait until the streams have confirmed all that the server has."""
        with psycopg.connect(self._server.uri(DATABASE), autocommit=True) as watch:
            (target,) = watch.execute("SELECT pg_current_wal_insert_lsn()::text").fetchone()
            for stream in streams:
                wait_until(partial(stream.confirmed, watch, target))
