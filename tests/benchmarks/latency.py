"""How long after a row was written it can be read, while a load of small transactions goes on.

    python tests/benchmarks/latency.py [--seconds 10] [--rates 500,2000] [--ways jsonl,debezium] [--json FILE]

pgbench sustains a rate of transactions (of one row each, or TPC-B). Meanwhile one reader at a time follows
the log: pg_recvlogical, raw into a file, and pgcdc in each way. The last statement of each transaction writes
the time into its row; the delay is from then until the row's bytes can be read in the file or the pipe. A
directory gets rows only at each flush, so only the processor time counts there.

`busy` is the reader's processor time as a fraction of one core. `grows` is the median delay in the load's
last quarter divided by that in its first: if a reader keeps up, it stays about 1.
"""

import argparse
import json
import os
import re
import shutil
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path

import psycopg

from pgcdc_cli.demo.embedded_server import EmbeddedServer

sys.path.append(str(Path(__file__).parents[1]))  # run as a script: the tools of all tests
sys.path.append(str(Path(__file__).parent))
from processes import PGCDC as COMMAND
from processes import stream_command, wait_until
from stream import machine

SETTINGS = {"max_wal_size": "8GB", "checkpoint_timeout": "1h", "autovacuum": "off"}
STAMP = "'@' || (extract(epoch FROM clock_timestamp()) * 1000000)::bigint || '@'"
STAMPED = re.compile(rb"@(\d{16})@")
TABLES = """
CREATE TABLE one (id bigserial PRIMARY KEY, a int, at text);
CREATE TABLE branches (bid int PRIMARY KEY, bbalance int, filler char(88));
CREATE TABLE tellers (tid int PRIMARY KEY, bid int, tbalance int, filler char(84));
CREATE TABLE accounts (aid int PRIMARY KEY, bid int, abalance int, filler char(84));
CREATE TABLE history (tid int, bid int, aid int, delta int, mtime timestamp, filler text);
INSERT INTO branches SELECT g, 0 FROM generate_series(1, 50) g;
INSERT INTO tellers SELECT g, (g - 1) / 10 + 1, 0 FROM generate_series(1, 500) g;
INSERT INTO accounts SELECT g, g % 50 + 1, 0, '' FROM generate_series(1, 50000) g;
CREATE PUBLICATION bench FOR ALL TABLES;
"""
WORKLOADS = {
    "one row": f"INSERT INTO one (a, at) VALUES (1, {STAMP});",
    "TPC-B": f"""\\set aid random(1, 50000)
\\set bid random(1, 50)
\\set tid random(1, 500)
\\set delta random(-5000, 5000)
BEGIN;
UPDATE accounts SET abalance = abalance + :delta WHERE aid = :aid;
SELECT abalance FROM accounts WHERE aid = :aid;
UPDATE tellers SET tbalance = tbalance + :delta WHERE tid = :tid;
UPDATE branches SET bbalance = bbalance + :delta WHERE bid = :bid;
INSERT INTO history VALUES (:tid, :bid, :aid, :delta, CURRENT_TIMESTAMP, {STAMP});
END;""",
}
DEBEZIUM = ["--format", "debezium", "-c", "topic.prefix=pg", "-c", "snapshot.mode=never"]
NO_SCHEMAS = ["-c", "key.converter.schemas.enable=false", "-c", "value.converter.schemas.enable=false"]
RECVLOGICAL = "pg_recvlogical"
PGCDC = {
    "jsonl": ["--format", "jsonl", "-f", "FILE"],
    "jsonl-stdout": ["--format", "jsonl", "-f", "-"],
    "jsonl-directory": ["--format", "jsonl", "-D", "FILE"],
    "debezium": [*DEBEZIUM, *NO_SCHEMAS, "-f", "FILE"],
    "debezium-stdout": [*DEBEZIUM, *NO_SCHEMAS, "-f", "-"],
    "debezium-directory": [*DEBEZIUM, *NO_SCHEMAS, "-D", "FILE"],
    "arrow-directory": ["--format", "arrow", "-D", "FILE"],
    "pretty": ["--format", "pretty", "-f", "FILE"],
    "raw": ["--format", "raw", "-f", "FILE"],
    "recvlogical": [],
}
HEADINGS = ("reached", "busy", "p50 ms", "p99 ms", "grows")
LOOK = 0.0003
"""Seconds between two looks at a file."""


@dataclass(frozen=True)
class Result:
    """Delays in milliseconds, `None` if nothing can be read meanwhile; `rate` is what pgbench reached."""

    workload: str
    wanted: int
    way: str
    rate: float
    busy: float
    p50: float | None = None
    p99: float | None = None
    grows: float | None = None


class Watcher(threading.Thread):
    """Notes when which bytes of a pipe, or of a file that may not exist yet, could be read."""

    def __init__(self, source: Path | int) -> None:
        super().__init__(daemon=True)
        self._source = source
        self._ended = threading.Event()
        self.seen: list[tuple[float, bytes]] = []

    def run(self) -> None:
        if isinstance(self._source, int):
            while data := os.read(self._source, 1 << 20):
                self.seen.append((time.time(), data))
            return
        while not self._source.exists():
            time.sleep(LOOK)
        with self._source.open("rb", buffering=0) as file:
            while not self._ended.is_set():
                if data := file.read(1 << 20):
                    self.seen.append((time.time(), data))
                else:
                    time.sleep(LOOK)

    def stop(self) -> None:
        self._ended.set()
        self.join()

    def delays(self) -> list[float]:
        """Each row's delay in milliseconds, in the order in which the rows were written."""
        found = []
        rest = b""
        for at, data in self.seen:
            matches = list(STAMPED.finditer(rest + data))
            found += [(int(match[1]), at * 1000 - int(match[1]) / 1000) for match in matches]
            rest = (rest + data)[max(-40, (matches[-1].end() if matches else 0) - len(rest + data)) or None :]
        return [delay for _, delay in sorted(found)]


def command(server: EmbeddedServer, way: str, slot: str, target: Path) -> list[str]:
    programs = {RECVLOGICAL: [str(server.bin / RECVLOGICAL)], "recvlogical": [*COMMAND, "recvlogical"]}
    if way in programs:
        plugin = ["-o", "proto_version=1", "-o", "publication_names=bench"]
        return [*programs[way], "-d", server.uri(), "-S", slot, "--start", *plugin, "-f", str(target)]
    where = [str(target) if argument == "FILE" else argument for argument in PGCDC[way]]
    return stream_command(server.uri(), slot, *where, publications=["bench"])


@contextmanager
def reading(
    server: EmbeddedServer, way: str, slot: str, folder: Path
) -> Iterator[tuple[subprocess.Popen[bytes], Watcher]]:
    target = folder / "out"
    with (folder / "log").open("wb") as log:
        process = subprocess.Popen(command(server, way, slot, target), stdout=subprocess.PIPE, stderr=log)
    watcher = Watcher(process.stdout.fileno() if way.endswith("stdout") else target)
    try:
        if not way.endswith("directory"):
            watcher.start()
        yield process, watcher
    finally:
        process.terminate()
        process.wait(60)
        if watcher.is_alive():
            watcher.stop()


def processor_time(pid: int) -> float:
    """The seconds of processor time that a process has used."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def load(server: EmbeddedServer, workload: str, rate: int, seconds: int, folder: Path) -> float:
    """Run pgbench; return the transactions a second that it reached."""
    script = folder / "script.sql"
    script.write_text(WORKLOADS[workload])
    pgbench = [str(server.bin / "pgbench"), "-n", "-M", "prepared", "-c", "4", "-f", str(script)]
    limits = ["-R", str(rate), "-T", str(seconds), server.uri()]
    run = subprocess.run([*pgbench, *limits], capture_output=True, text=True, check=True)
    return float(re.search(r"tps = ([\d.]+)", run.stdout)[1])


def measure(server: EmbeddedServer, workload: str, rate: int, way: str, seconds: int, folder: Path) -> Result:
    slot = "bench_slot"
    with psycopg.connect(server.uri(), autocommit=True) as admin:
        admin.execute("SELECT pg_create_logical_replication_slot(%s, 'pgoutput')", (slot,))
        with reading(server, way, slot, folder) as (process, watcher):
            wait_until_active(admin, slot)
            load(server, workload, min(rate, 200), 1, folder)
            before, began, warm = processor_time(process.pid), time.monotonic(), time.time()
            reached = load(server, workload, rate, seconds, folder)
            time.sleep(0.2)
            busy = (processor_time(process.pid) - before) / (time.monotonic() - began)
        admin.execute("SELECT pg_drop_replication_slot(%s)", (slot,))
    watcher.seen = [seen for seen in watcher.seen if seen[0] >= warm]
    return Result(workload, rate, way, reached, busy, *summary(watcher.delays()))


def summary(delays: list[float]) -> tuple[float | None, float | None, float | None]:
    if len(delays) < 100:
        return None, None, None
    quarter = len(delays) // 4
    grows = statistics.median(delays[-quarter:]) / statistics.median(delays[:quarter])
    return statistics.median(delays), sorted(delays)[len(delays) * 99 // 100], grows


def idle(server: EmbeddedServer, way: str, seconds: int, folder: Path) -> Result:
    with psycopg.connect(server.uri(), autocommit=True) as admin:
        admin.execute("SELECT pg_create_logical_replication_slot('bench_slot', 'pgoutput')")
        with reading(server, way, "bench_slot", folder) as (process, _):
            wait_until_active(admin, "bench_slot")
            time.sleep(1)
            before = processor_time(process.pid)
            time.sleep(seconds)
            busy = (processor_time(process.pid) - before) / seconds
        admin.execute("SELECT pg_drop_replication_slot('bench_slot')")
    return Result("idle", 0, way, 0.0, busy)


def wait_until_active(admin: psycopg.Connection, slot: str) -> None:
    query = "SELECT active FROM pg_replication_slots WHERE slot_name = %s"
    wait_until(lambda: admin.execute(query, (slot,)).fetchone() == (True,))


def clear(folder: Path) -> None:
    for path in folder.iterdir():
        shutil.rmtree(path) if path.is_dir() else path.unlink()


def line(result: Result) -> str:
    delays = (result.p50, result.p99, result.grows)
    shown = "".join(f"{'-' if value is None else format(value, '.2f'):>9}" for value in delays)
    head = f"{result.workload:9}{result.wanted:>7}  {result.way:20}"
    return f"{head}{result.rate:>9.0f}{result.busy:>9.1%}{shown}"


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--seconds", type=int, default=10)
    parser.add_argument("--rates", default="500,2000", help="transactions a second")
    parser.add_argument("--workloads", default=",".join(WORKLOADS))
    parser.add_argument("--ways", default=",".join(PGCDC), help=f"of {', '.join(PGCDC)}")
    parser.add_argument("--json", type=Path, metavar="FILE")
    return parser.parse_args()


def benchmark(options: argparse.Namespace, server: EmbeddedServer, folder: Path) -> Iterator[Result]:
    ways = [RECVLOGICAL, *options.ways.split(",")]
    for workload in options.workloads.split(","):
        for rate in map(int, options.rates.split(",")):
            for way in ways:
                yield measure(server, workload, rate, way, options.seconds, folder)
                clear(folder)
    for way in ways:
        yield idle(server, way, options.seconds, folder)
        clear(folder)


def main() -> None:
    options = arguments()
    work = Path(tempfile.mkdtemp(prefix="pgcdc-latency-"))
    (work / "out").mkdir()
    server = EmbeddedServer(work / "data", settings=SETTINGS)
    facts, results = machine(server), []
    headings = "".join(f"{heading:>9}" for heading in HEADINGS)
    print(f"{'workload':9}{'rate':>7}  {'way':20}{headings}")
    try:
        with psycopg.connect(server.uri(), autocommit=True) as connection:
            connection.execute(TABLES)
        for result in benchmark(options, server, work / "out"):
            print(line(result), flush=True)
            results.append(asdict(result))
    finally:
        server.stop()
        shutil.rmtree(work, ignore_errors=True)
    if options.json:
        options.json.write_text(json.dumps({"machine": facts, "latency": results}, indent=2) + "\n")


if __name__ == "__main__":
    main()
