"""How long after its commit a large transaction is written: streamed by the server, and sent whole.

    python tests/benchmarks/large_transaction.py [--rows 1000000] [--runs 3] [--json FILE]

pgcdc reads while one transaction inserts the rows. The times are those of the transaction itself, and from
the return of COMMIT until the first byte and until the last row is in the file. The two ways alternate, each
with its own transaction; the ratio is that of streamed to whole.
"""

import argparse
import json
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import NamedTuple

import psycopg

from pgcdc_cli.demo.embedded_server import EmbeddedServer

sys.path.append(str(Path(__file__).parents[1]))  # run as a script: the tools of all tests
from processes import stream_command, wait_until

TIME_LIMIT = 600.0
WAYS = {"streamed": [], "whole": ["--proto-version", "1"]}
wait = partial(wait_until, seconds=TIME_LIMIT, pause=0.002)
TABLE = "CREATE TABLE bench (id bigint PRIMARY KEY, a int, b text)"
INSERT = "INSERT INTO bench SELECT g, g %% 1000, 'row number ' || g FROM generate_series(%s::bigint, %s) g"


class Delay(NamedTuple):
    """Seconds until COMMIT returns, and from then on until the first byte and the last row are written."""

    until_commit: float
    first_byte: float
    last_row: float


@contextmanager
def reading(uri: str, slot: str, file: Path, options: list[str]) -> Iterator[None]:
    command = stream_command(uri, slot, "-f", file, *options, publications=["bench"])
    with file.with_suffix(".log").open("wb") as log:
        process = subprocess.Popen(command, stdout=log, stderr=log)
    try:
        yield
    finally:
        process.terminate()
        process.wait(TIME_LIMIT)


def measure(server: EmbeddedServer, rows: int, way: str, folder: Path) -> Delay:
    """Measure one transaction, read in one way."""
    file = folder / f"{way}.jsonl"
    with psycopg.connect(server.uri(), autocommit=True) as connection:
        connection.execute("TRUNCATE bench")
        connection.execute("SELECT pg_create_logical_replication_slot(%s, 'pgoutput')", (way,))
        with reading(server.uri(), way, file, WAYS[way]):
            wait(lambda: is_active(connection, way))
            begun = time.monotonic()
            connection.execute("BEGIN")
            connection.execute(INSERT, (1, rows))
            connection.execute("COMMIT")
            committed = time.monotonic()
            wait(lambda: file.exists() and file.stat().st_size > 0)
            first = time.monotonic() - committed
            wait(lambda: ends_with(file, rows))
            last = time.monotonic() - committed
        connection.execute("SELECT pg_drop_replication_slot(%s)", (way,))
    for path in folder.iterdir():
        path.unlink()
    return Delay(committed - begun, first, last)


def is_active(connection: psycopg.Connection, slot: str) -> bool:
    found = connection.execute("SELECT active FROM pg_replication_slots WHERE slot_name = %s", (slot,))
    return found.fetchone() == (True,)


def ends_with(file: Path, row: int) -> bool:
    with file.open("rb") as data:
        data.seek(max(0, file.stat().st_size - 1000))
        return f'"id":{row},'.encode() in data.read()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rows", type=int, default=1_000_000)
    parser.add_argument("--runs", type=int, default=3)
    parser.add_argument("--json", type=Path, metavar="FILE")
    options = parser.parse_args()
    work = Path(tempfile.mkdtemp(prefix="pgcdc-large-"))
    (work / "out").mkdir()
    server = EmbeddedServer(work / "data", settings={"max_wal_size": "16GB", "autovacuum": "off"})
    try:
        with psycopg.connect(server.uri(), autocommit=True) as connection:
            connection.execute(TABLE)
            connection.execute("CREATE PUBLICATION bench FOR TABLE bench")
        delays = [
            {way: measure(server, options.rows, way, work / "out") for way in WAYS}
            for _ in range(options.runs)
        ]
    finally:
        server.stop()
        shutil.rmtree(work, ignore_errors=True)
    results = {}
    for what in Delay._fields:
        seconds = {way: statistics.median(getattr(run[way], what) for run in delays) for way in WAYS}
        ratio = statistics.median(
            getattr(run["streamed"], what) / getattr(run["whole"], what) for run in delays
        )
        results[what] = {**seconds, "ratio": ratio}
        shown = "  ".join(f"{way} {value:.3f} s" for way, value in seconds.items())
        print(f"{what.replace('_', ' ')}: {shown}  ratio {ratio:.2f}")
    if options.json:
        options.json.write_text(json.dumps(results))


if __name__ == "__main__":
    main()
