"""Running a captured workload through the command line, as it once ran through Debezium."""

import json
import re
import subprocess
import time
from pathlib import Path
from typing import Any

import psycopg
from processes import PGCDC, wait_until

GOLDEN = Path(__file__).parent.parent / "golden"
CASES = GOLDEN / "cases"
MORE = Path(__file__).parent.parent / "golden_more"
DATABASE = "golden"
SLOT = "golden_slot"


def cases(version: str, folder: Path = CASES) -> list[str]:
    """Names of the cases that were captured on this major version."""
    found = [path.parent for path in sorted(folder.glob("*/connector.json"))]
    return [case.name for case in found if connector(case)["_postgres.version"] == version]


def connector(case: Path) -> dict[str, Any]:
    return dict(json.loads((case / "connector.json").read_text()))


class GoldenRun:
    """One case on one server, from an empty database to the lines that pgcdc wrote."""

    def __init__(self, server: Any, case: Path, work: Path) -> None:
        self._server = server
        self._folder = case
        self.output = work / "events.jsonl"
        self.errors = work / "stderr"

    def run(self, *arguments: str) -> Path:
        with psycopg.connect(self._server.uri(), autocommit=True) as admin:
            admin.execute(f"CREATE DATABASE {DATABASE} TEMPLATE template0")
            try:
                self._stream(arguments)
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
        return self.output

    def _psql(self, script: str, *, strict: bool) -> None:
        line = [self._server.bin / "psql", "-X", "-q", self._server.uri(DATABASE)]
        line += ["-v", "ON_ERROR_STOP=1"] if strict else []
        environment = {"PGCLIENTENCODING": "UTF8", "PGTZ": "UTC", "PATH": "/usr/bin:/bin"}
        ended = subprocess.run(
            line, input=script, capture_output=True, text=True, check=False, env=environment, encoding="utf-8"
        )
        assert not strict or ended.returncode == 0, ended.stderr

    def _stream(self, arguments: tuple[str, ...]) -> None:
        self._psql((self._folder / "setup.sql").read_text("utf-8"), strict=True)
        line = [
            *PGCDC, "--debug", "stream", "-d", self._server.uri(DATABASE),
            "--format", "debezium", "--connector-config", str(self._folder / "connector.json"),
            "-f", str(self.output), "--create-slot", "-F", "50ms", "-s", "50ms", "--no-progress", *arguments,
        ]  # fmt: skip
        with self.errors.open("w") as errors, subprocess.Popen(line, stderr=errors) as process:
            try:
                self._caught_up(process)
                changes = (self._folder / "changes.sql").read_text("utf-8")
                strict = "-- errors-expected" not in changes
                for script in re.split(r"(?m)^-- pause.*$", changes):
                    self._psql(script, strict=strict)
                    self._caught_up(process)
                time.sleep(float(connector(self._folder).get("_wait", 0)))
            finally:
                process.terminate()
        assert process.returncode == 0, self.errors.read_text()

    def _caught_up(self, process: subprocess.Popen[bytes]) -> None:
        """Wait until all that the server has is confirmed."""
        with psycopg.connect(self._server.uri(DATABASE), autocommit=True) as watch:
            (target,) = watch.execute("SELECT pg_current_wal_insert_lsn()::text").fetchone()
            # Not streaming before a snapshot is through.
            query = (
                "SELECT 1 FROM pg_replication_slots JOIN pg_stat_replication ON pid = active_pid"
                " WHERE slot_name = %s AND state = 'streaming' AND confirmed_flush_lsn >= %s::pg_lsn"
            )

            def caught_up() -> bool:
                found = watch.execute(query, (SLOT, target)).fetchone() is not None
                assert found or process.poll() is None, self.errors.read_text()
                return found

            wait_until(caught_up)
