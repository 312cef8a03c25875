"""How fast pgcdc streams, compared with pg_recvlogical on the same log.

    python tests/benchmarks/stream.py [--rows 1000000] [--pairs 5] [--formats jsonl,arrow] [--json FILE]

With --against null pg_recvlogical discards what it receives, which shows the rate of the server alone; with
--against wal2json the server prints JSON by that plugin (PostgreSQL 15 of Debian).

Both read the same transactions from copies of one slot, in turn, up to the same end position, into files on
the same file system. The time is that of the whole life of each process, its start included. The log ends
with one more transaction beyond the end position, so that neither waits for a keepalive to learn that it has
reached the end.

Over TCP, as from another host, the kernel has room for what the server sends while we decode; a Unix socket
holds some 250 rows. With --connections tls, as most servers are reached, all is measured with PostgreSQL 15
of Debian, since the embedded servers are built without TLS.
"""

import argparse
import json
import os
import platform
import re
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, replace
from functools import partial
from itertools import product
from pathlib import Path

import psycopg

import pgcdc_cli
from pgcdc_cli.demo.embedded_server import EmbeddedServer

sys.path.append(str(Path(__file__).parents[1]))  # run as a script: the tools of all tests
from certificates import Authority
from debian_server import DebianServer, free_port
from processes import PGCDC as COMMAND
from processes import resident_peak, stream_command
from stream_workloads import WORKLOADS, Workload

MEGABYTE = 1 << 20
TIME_LIMIT = 3600.0
SETTINGS = {
    "max_replication_slots": "40",
    "max_wal_size": "16GB",
    "checkpoint_timeout": "1h",
    "autovacuum": "off",
}
ROW = re.compile(rb'[IUD]\0[\0-\7](?:..[NO]|.?\n)|\{"(?:(?:op|action)":"[IUD]|topic)"', re.DOTALL)
"""How a row's line begins; in raw output with a tag, a small OID (in which a line may end), and a tuple."""
DEBEZIUM = [
    "--format",
    "debezium",
    "-c",
    "topic.prefix=pg",
    "-c",
    "snapshot.mode=never",
    "-c",
    "tombstones.on.delete=false",
]
NO_SCHEMAS = ["-c", "key.converter.schemas.enable=false", "-c", "value.converter.schemas.enable=false"]
WAL2JSON = ["--format", "wal2json", "--wal2json-option", "include-transaction=false"]
PGCDC = {
    "jsonl": ["--format", "jsonl", "-D"],
    "jsonl-zstd": ["--format", "jsonl", "--compression", "zstd", "-D"],
    "jsonl-file": ["--format", "jsonl", "-f"],
    "jsonl-unstreamed": ["--streaming", "off", "--format", "jsonl", "-D"],
    "jsonl-binary": ["--binary", "--format", "jsonl", "-D"],
    "arrow": ["--format", "arrow", "-D"],
    "arrow-binary": ["--binary", "--format", "arrow", "-D"],
    "wal2json": [*WAL2JSON, "-D"],
    "wal2json-unstreamed": ["--streaming", "off", *WAL2JSON, "-D"],
    "raw": ["--format", "raw", "-f"],
    "recvlogical": [],
    "debezium": [*DEBEZIUM, *NO_SCHEMAS, "-D"],
    "debezium-unstreamed": ["--streaming", "off", *DEBEZIUM, *NO_SCHEMAS, "-D"],
    "debezium-file": [*DEBEZIUM, *NO_SCHEMAS, "-f"],
    "debezium-schemas": [*DEBEZIUM, "-D"],
}


@dataclass(frozen=True)
class Peer:
    """The plugin and options for pg_recvlogical, and whether it keeps what it receives."""

    plugin: str
    options: tuple[str, ...]
    keeps: bool = True


PUBLISHED = ("proto_version=1", "publication_names=bench")
PEERS = {
    "pgoutput": Peer("pgoutput", PUBLISHED),
    "null": Peer("pgoutput", PUBLISHED, keeps=False),
    "wal2json": Peer("wal2json", ("format-version=2", "include-transaction=false")),
}


@dataclass(frozen=True)
class Usage:
    """What one process used: seconds and MB."""

    wall: float
    cpu: float
    peak_rss: float


@dataclass(frozen=True)
class Log:
    """Transactions that wait in a slot, up to an end position; `uri` is the way to read them."""

    name: str
    connection: str
    uri: str
    slot: str
    end: str
    rows: int
    transactions: int


Server = EmbeddedServer | DebianServer


@contextmanager
def running(peer: Peer, data: Path, *, tls: bool = False) -> Iterator[Server]:
    """Start a server that has the plugin, and takes encrypted connections if these are wanted."""
    embedded = peer.plugin == "pgoutput" and not tls
    server = EmbeddedServer(data, settings=SETTINGS) if embedded else DebianServer(SETTINGS)
    if not embedded:
        server.allow_plugin(peer.plugin)
    if tls:
        by_itself = Authority(data.parent, "localhost")
        server.allow_tls(by_itself.certificate, by_itself.key, by_itself.certificate)
    try:
        yield server
    finally:
        if embedded:
            server.pg_ctl("-m", "fast", "stop")
        server.stop()


def listen(server: Server) -> int:
    """Restart the server so that it listens on a TCP port of the loopback interface, too."""
    port = free_port()
    options = f"-h 127.0.0.1 -p {port} -k {server.socket_directory}"
    server.pg_ctl("-m", "fast", "-o", options, "restart")
    return port


def uri(server: Server, database: str, connection: str, port: int) -> str:
    host = server.socket_directory if connection == "socket" else "127.0.0.1"
    mode = "require" if connection == "tls" else "disable"
    return f"postgresql://postgres@/{database}?host={host}&port={port}&sslmode={mode}"


def write_log(uris: Callable[[str, str], str], name: str, workload: Workload, rows: int) -> Log:
    """Make a database of this name with a slot, and write a workload's share of so many rows."""
    rows = int(rows * workload.share)
    with psycopg.connect(uris("postgres", "socket"), autocommit=True) as admin:
        admin.execute(f"CREATE DATABASE {name}")
    with psycopg.connect(uris(name, "socket"), autocommit=True) as connection:
        connection.execute(workload.table.replace("{rows}", str(rows)))
        connection.execute("CREATE PUBLICATION bench FOR ALL TABLES")
        connection.execute("SELECT pg_create_logical_replication_slot(%s, 'pgoutput')", (name,))
        for statement in workload.statements(rows):
            connection.execute(statement)
        (end,) = connection.execute("SELECT pg_current_wal_insert_lsn()").fetchone()
        # A record at the end position counts as before it, so none of the next transaction may lie there.
        connection.execute("SELECT pg_create_restore_point('bench')")
        connection.execute("CREATE TABLE beyond AS SELECT 1 AS id")
    transactions = len(workload.transactions(rows))
    return Log(name, "socket", uris(name, "socket"), name, end, rows, transactions)


@contextmanager
def copy_of_slot(log: Log, plugin: str, end: str = "copy") -> Iterator[str]:
    name = f"{log.slot}_{end}"
    copy = "SELECT pg_copy_logical_replication_slot(%s, %s, false, %s)"
    with psycopg.connect(log.uri, autocommit=True) as connection:
        connection.execute(copy, (log.slot, name, plugin))
        try:
            yield name
        finally:
            connection.execute("SELECT pg_drop_replication_slot(%s)", (name,))


def recvlogical(program: Sequence[str], peer: Peer, log: Log, slot: str, target: Path) -> list[str]:
    """The command line of pg_recvlogical, or of a program that replaces it."""
    options = [word for option in peer.options for word in ("-o", option)]
    stop = ["--no-loop", "--endpos", log.end]
    file = str(target) if peer.keeps else os.devnull
    return [*program, "-d", log.uri, "-S", slot, "--start", *options, *stop, "-f", file]


def pgcdc(format_: str, log: Log, slot: str, target: Path) -> list[str]:
    if format_ == "recvlogical":
        return recvlogical([*COMMAND, "recvlogical"], PEERS["pgoutput"], log, slot, target)
    options = ["--no-loop", "--endpos", log.end, *PGCDC[format_], target]
    return stream_command(log.uri, slot, *options, publications=["bench"])


def measure(command: list[str], log: Path) -> Usage:
    """Run a command to its end; SystemExit with its output if it fails or takes too long."""
    start = time.monotonic()
    with log.open("wb") as output:
        process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=output, stderr=output)
    peak, status = 0.0, None
    while status is None:
        time.sleep(0.005)
        peak = max(peak, resident_peak(process.pid) / MEGABYTE)
        pid, code, used = os.wait4(process.pid, os.WNOHANG)
        if pid:
            status = os.waitstatus_to_exitcode(code)
        elif time.monotonic() - start > TIME_LIMIT:
            process.send_signal(signal.SIGKILL)
    process.returncode = status
    wall = time.monotonic() - start
    if status != 0:
        raise SystemExit(f"{' '.join(command)}: exit status {status}\n{log.read_text()}")
    return Usage(wall, used.ru_utime + used.ru_stime, peak or used.ru_maxrss / 1024)


def rows_in(target: Path) -> int:
    """Count the rows that a run has written: by its manifest or, in one file, by lines or messages."""
    if target.is_dir():
        lines = (target / "manifest.jsonl").read_text().splitlines()
        files = [file for line in lines for file in json.loads(line)["files"]]
        return sum(file["rows"] for file in files if file["table"] != "_losses")
    with target.open("rb") as lines:
        return sum(ROW.match(line) is not None for line in lines)


def run(command: Callable[[str, Path], list[str]], plugin: str, log: Log, target: Path) -> Usage:
    """Measure one run with its own copy of the slot, check that all rows are there, and clear up."""
    with copy_of_slot(log, plugin) as slot:
        usage = measure(command(slot, target), target.with_suffix(".log"))
    if target.exists() and (rows := rows_in(target)) != log.rows:
        raise SystemExit(f"{target}: {rows} rows instead of {log.rows}")
    clear_up(target)
    return usage


def clear_up(target: Path) -> None:
    """Empty the files of a run and move them away; they are removed at the end.

    For minutes after files are removed, ext4 passes over the inode of each one whenever it creates a file. A
    second run into a thousand tables would take twice as long, and one into a single file would not.
    """
    for path in target.parent.rglob("*"):
        if path.is_file():
            os.truncate(path, 0)
    target.parent.rename(tempfile.mkdtemp(prefix="output-", dir=target.parent.parent))
    target.parent.mkdir()


@dataclass(frozen=True)
class Pairing:
    """One of our formats, and one peer to compare it with, in this folder."""

    format: str
    peer: Peer
    program: Path
    work: Path

    def ours(self, log: Log) -> Usage:
        suffix = ".jsonl" if self.format.endswith("-file") else ""
        return run(partial(pgcdc, self.format, log), "pgoutput", log, self.work / f"ours{suffix}")

    def theirs(self, log: Log) -> Usage:
        command = partial(recvlogical, [str(self.program)], self.peer, log)
        return run(command, self.peer.plugin, log, self.work / "theirs")


def compare(pairing: Pairing, log: Log, pairs: int) -> dict[str, object]:
    """Measure `pairs` pairs, every other one in reverse order."""
    pairing.theirs(log)
    measured = []
    for number in range(pairs):
        if number % 2:
            our, their = pairing.ours(log), pairing.theirs(log)
        else:
            their, our = pairing.theirs(log), pairing.ours(log)
        measured.append((our, their))
    return summary(log, pairing.format, measured)


def summary(log: Log, format_: str, pairs: list[tuple[Usage, Usage]]) -> dict[str, object]:
    wall = statistics.median(ours.wall for ours, _ in pairs)
    return {
        "workload": log.name,
        "connection": log.connection,
        "rows": log.rows,
        "transactions": log.transactions,
        "format": format_,
        "wall_ratio": statistics.median(ours.wall / theirs.wall for ours, theirs in pairs),
        "cpu_ratio": statistics.median(ours.cpu / theirs.cpu for ours, theirs in pairs),
        "wall": wall,
        "rows_a_second": log.rows / wall,
        "peak_rss": max(ours.peak_rss for ours, _ in pairs),
        "pg_recvlogical_wall": statistics.median(theirs.wall for _, theirs in pairs),
        "pg_recvlogical_peak_rss": max(theirs.peak_rss for _, theirs in pairs),
        "pairs": [{"pgcdc": asdict(ours), "pg_recvlogical": asdict(theirs)} for ours, theirs in pairs],
    }


def machine(server: Server) -> dict[str, object]:
    version = subprocess.run([server.bin / "postgres", "-V"], capture_output=True, text=True, check=True)
    return {
        "cores": len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count(),
        "load": os.getloadavg()[0],
        "system": platform.platform(),
        "python": platform.python_version(),
        "postgresql": version.stdout.split()[2],
        "pgcdc": pgcdc_cli.__version__,
    }


HEADINGS = (
    "workload",
    "connection",
    "format",
    "wall ratio",
    "CPU ratio",
    "pgcdc s",
    "recvlogical s",
    "rows/s",
    "RSS MB",
    "recvl. MB",
)
KEYS = {
    "workload": "",
    "connection": "",
    "format": "",
    "wall_ratio": ".2f",
    "cpu_ratio": ".2f",
    "wall": ".2f",
    "pg_recvlogical_wall": ".2f",
    "rows_a_second": ",.0f",
    "peak_rss": ".0f",
    "pg_recvlogical_peak_rss": ".0f",
}


def table_line(cells: list[str] | tuple[str, ...]) -> str:
    return "".join(
        cell.ljust(18 if place == 2 else 12) if place < 3 else cell.rjust(14)
        for place, cell in enumerate(cells)
    )


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rows", type=int, default=1_000_000)
    parser.add_argument("--pairs", type=int, default=5)
    parser.add_argument("--formats", default="jsonl,arrow", help=f"of {', '.join(PGCDC)}")
    parser.add_argument("--workloads", default="one,many", help=f"of {', '.join(WORKLOADS)}")
    parser.add_argument("--connections", default="tcp,socket", help="of tcp, socket, tls")
    parser.add_argument(
        "--against", choices=PEERS, default="pgoutput", help="pg_recvlogical's plugin, or null"
    )
    parser.add_argument("--json", type=Path, metavar="FILE")
    parser.add_argument("--directory", type=Path, help="where servers and output go (a temporary directory)")
    return parser.parse_args()


def benchmark(options: argparse.Namespace, server: Server, work: Path) -> dict[str, object]:
    facts = machine(server) | {"against": options.against}
    print("  ".join(f"{name} {value}" for name, value in facts.items()))
    print(table_line(HEADINGS))
    results = []
    uris = partial(uri, server, port=listen(server))
    for workload in options.workloads.split(","):
        written = write_log(uris, workload, WORKLOADS[workload], options.rows)
        ways = product(options.connections.split(","), options.formats.split(","))
        for connection, format_ in ways:
            log = replace(written, connection=connection, uri=uris(workload, connection))
            pairing = Pairing(format_, PEERS[options.against], server.bin / "pg_recvlogical", work)
            result = compare(pairing, log, options.pairs)
            print(table_line([format(result[key], spec) for key, spec in KEYS.items()]), flush=True)
            results.append(result)
    return {"machine": facts, "results": results}


def main() -> None:
    options = arguments()
    with tempfile.TemporaryDirectory(prefix="pgcdc-bench-", dir=options.directory) as directory:
        work = Path(directory, "output")
        work.mkdir()
        tls = "tls" in options.connections.split(",")
        with running(PEERS[options.against], Path(directory, "data"), tls=tls) as server:
            report = benchmark(options, server, work)
    if options.json:
        options.json.write_text(json.dumps(report, indent=2) + "\n")


if __name__ == "__main__":
    main()
