"""How fast pgcdc writes Debezium's events, compared with Debezium itself on the same log.

    python tests/benchmarks/debezium.py [--rows 300000] [--pairs 3] [--schemas off,on] [--json FILE]

Both read the same transactions over TCP from copies of one slot, in turn, and write the same lines into a
file on the same file system. Debezium runs in its embedded engine (DebeziumEngine.java), with the defaults of
the connector and of the virtual machine; it uses version 1 of the protocol, and so does pgcdc here.

Both are timed by the growth of their files: from the start of the process to the last event, which includes
the start of the virtual machine, and from the first events to the last. Memory is the peak resident set.

It needs a JDK, and downloads Debezium's jars once.
"""

import argparse
import json
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass, replace
from functools import partial
from pathlib import Path

import pyspark
from stream import (
    DEBEZIUM,
    MEGABYTE,
    NO_SCHEMAS,
    SETTINGS,
    TIME_LIMIT,
    WORKLOADS,
    Log,
    copy_of_slot,
    listen,
    machine,
    uri,
    write_log,
)

from pgcdc_cli.demo.embedded_server import EmbeddedServer

sys.path.append(str(Path(__file__).parents[1]))  # run as a script: the tools of all tests
from processes import resident_peak, stream_command

VERSION = "2.5.4.Final"
IVY = """<ivy-module version="2.0"><info organisation="pgcdc" module="benchmark"/>
<dependencies defaultconf="default->compile,runtime,master">
<dependency org="io.debezium" name="debezium-embedded" rev="{0}"/>
<dependency org="io.debezium" name="debezium-connector-postgres" rev="{0}"/>
<dependency org="org.slf4j" name="slf4j-simple" rev="1.7.36"/>
</dependencies></ivy-module>
"""
ENGINE = Path(__file__).with_name("DebeziumEngine.java")
DEFAULTS = "max.batch.size 2048, max.queue.size 8192, poll.interval.ms 500"
CONNECTOR = {
    "name": "bench",
    "connector.class": "io.debezium.connector.postgresql.PostgresConnector",
    "plugin.name": "pgoutput",
    "topic.prefix": "pg",
    "snapshot.mode": "never",
    "publication.name": "bench",
    "publication.autocreate.mode": "disabled",
    "database.hostname": "127.0.0.1",
    "database.user": "postgres",
    "offset.storage": "org.apache.kafka.connect.storage.MemoryOffsetBackingStore",
}


@dataclass(frozen=True)
class Engine:
    """How Debezium is started."""

    java: str
    classpath: str

    def command(self, *arguments: str) -> list[str]:
        return [self.java, "-cp", self.classpath, ENGINE.stem, *arguments]


@dataclass(frozen=True)
class Usage:
    """Rows a second from the start of the process and from the first events on, and peak memory in MB."""

    life: float
    steady: float
    peak_rss: float


def install(cache: Path, work: Path) -> Engine:
    """Download the jars unless they are in the cache, and compile the engine; exit status 2 without a JDK."""
    compiler, java = shutil.which("javac"), shutil.which("java")
    if compiler is None or java is None:
        print(
            "could not build Debezium's engine: there is no javac on the path; install a JDK", file=sys.stderr
        )
        raise SystemExit(2)
    jars = cache / f"debezium-{VERSION}"
    if not jars.is_dir():
        fetch(java, jars, work)
    classpath = f"{jars}/*"
    subprocess.run([compiler, "-cp", classpath, "-d", work, ENGINE], check=True)
    return Engine(java, f"{classpath}{os.pathsep}{work}")


def fetch(java: str, jars: Path, work: Path) -> None:
    """Download Debezium from Maven Central; the folder appears when it is complete."""
    ivy = work / "ivy.xml"
    ivy.write_text(IVY.format(VERSION))
    jars.parent.mkdir(parents=True, exist_ok=True)
    fetched = Path(tempfile.mkdtemp(dir=jars.parent))
    program = [java, "-cp", str(Path(pyspark.__path__[0], "jars", "*")), "org.apache.ivy.Main"]
    options = ["-ivy", str(ivy), "-cache", str(work / "ivy"), "-types", "jar", "bundle"]
    retrieve = ["-retrieve", f"{fetched}/[artifact]-[revision].[ext]"]
    ended = subprocess.run([*program, *options, *retrieve], capture_output=True, text=True, check=False)
    if ended.returncode != 0:
        raise SystemExit(
            f"could not fetch Debezium: exit status {ended.returncode}\n{ended.stdout}{ended.stderr}"
        )
    fetched.rename(jars)


def debezium(engine: Engine, converters: list[str], log: Log, slot: str, target: Path) -> list[str]:
    host = dict(part.split("=") for part in log.uri.partition("?")[2].split("&"))
    settings = {
        **CONNECTOR,
        "database.port": host["port"],
        "database.dbname": log.name,
        "slot.name": slot,
        **dict(setting.split("=") for setting in converters if setting != "-c"),
    }
    properties = target.with_suffix(".properties")
    properties.write_text("".join(f"{name}={value}\n" for name, value in settings.items()))
    return engine.command(str(properties), str(target), str(log.rows))


def pgcdc(converters: list[str], log: Log, slot: str, target: Path) -> list[str]:
    options = ["--proto-version", "1", "--no-loop", "--endpos", log.end, *DEBEZIUM, *converters]
    return stream_command(log.uri, slot, *options, "-f", target, publications=["bench"])


def measure(command: list[str], target: Path, rows: int) -> Usage:
    """Run a command to its end, and watch its file grow meanwhile.

    SystemExit with its output if it fails, takes too long, or doesn't write each row once.
    """
    said = target.with_suffix(".log")
    start = time.monotonic()
    with said.open("wb") as output:
        process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=output, stderr=output)
    growth = [(0.0, 0)]
    peak = 0.0
    while process.poll() is None:
        size = target.stat().st_size if target.exists() else 0
        if size != growth[-1][1]:
            growth.append((time.monotonic() - start, size))
        peak = max(peak, resident_peak(process.pid) / MEGABYTE)
        if time.monotonic() - start > TIME_LIMIT:
            process.kill()
        time.sleep(0.005)
    written = count_lines(target) if target.exists() else 0
    if process.returncode != 0 or written != rows:
        wrong = f"exit status {process.returncode}, {written} rows instead of {rows}"
        raise SystemExit(f"{' '.join(command)}: {wrong}\n{said.read_text()}")
    (first, begun), (last, size) = growth[1], growth[-1]
    return Usage(rows / last, rows * (size - begun) / size / (last - first), peak)


def count_lines(path: Path) -> int:
    with path.open("rb") as lines:
        return sum(1 for _ in lines)


def run(command: Callable[[str, Path], list[str]], log: Log, target: Path) -> Usage:
    """Measure one run with its own copy of the slot, and remove its files."""
    with copy_of_slot(log) as slot:
        usage = measure(command(slot, target), target, log.rows)
    for path in target.parent.iterdir():
        path.unlink()
    return usage


def compare(engine: Engine, log: Log, schemas: str, pairs: int, work: Path) -> dict[str, object]:
    """Measure `pairs` pairs, every other one in reverse order."""
    converters = [] if schemas == "on" else NO_SCHEMAS
    ours = partial(run, partial(pgcdc, converters, log), log, work / "pgcdc.jsonl")
    theirs = partial(run, partial(debezium, engine, converters, log), log, work / "debezium.jsonl")
    measured = []
    for number in range(pairs):
        if number % 2:
            our, their = ours(), theirs()
        else:
            their, our = theirs(), ours()
        measured.append((our, their))
    return summary(log, schemas, measured)


def summary(log: Log, schemas: str, pairs: list[tuple[Usage, Usage]]) -> dict[str, object]:
    def ratio(what: str) -> float:
        return float(statistics.median(getattr(our, what) / getattr(their, what) for our, their in pairs))

    def rate(what: str, place: int) -> float:
        return float(statistics.median(getattr(pair[place], what) for pair in pairs))

    return {
        "workload": log.name,
        "schemas": schemas,
        "rows": log.rows,
        "transactions": log.transactions,
        "steady_ratio": ratio("steady"),
        "life_ratio": ratio("life"),
        "peak_rss_ratio": ratio("peak_rss"),
        "pgcdc_steady": rate("steady", 0),
        "debezium_steady": rate("steady", 1),
        "pgcdc_life": rate("life", 0),
        "debezium_life": rate("life", 1),
        "pgcdc_peak_rss": max(our.peak_rss for our, _ in pairs),
        "debezium_peak_rss": max(their.peak_rss for _, their in pairs),
        "pairs": [{"pgcdc": asdict(our), "debezium": asdict(their)} for our, their in pairs],
    }


COLUMNS = {
    "workload": ("workload", ""),
    "schemas": ("schemas", ""),
    "steady_ratio": ("steady ratio", ".2f"),
    "life_ratio": ("life ratio", ".2f"),
    "peak_rss_ratio": ("RSS ratio", ".3f"),
    "pgcdc_steady": ("pgcdc rows/s", ",.0f"),
    "debezium_steady": ("Debezium", ",.0f"),
    "pgcdc_life": ("life: pgcdc", ",.0f"),
    "debezium_life": ("Debezium", ",.0f"),
    "pgcdc_peak_rss": ("MB: pgcdc", ".0f"),
    "debezium_peak_rss": ("Debezium", ".0f"),
}


def table_line(cells: list[str]) -> str:
    return "".join(cell.ljust(10) if place < 2 else cell.rjust(14) for place, cell in enumerate(cells))


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rows", type=int, default=300_000)
    parser.add_argument("--pairs", type=int, default=3)
    parser.add_argument("--schemas", default="off,on", help="off, on or both")
    parser.add_argument("--workloads", default="one,many", help=f"of {', '.join(WORKLOADS)}")
    parser.add_argument("--json", type=Path, metavar="FILE")
    parser.add_argument("--directory", type=Path, help="where server and output go (a temporary directory)")
    home = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    parser.add_argument(
        "--cache", type=Path, default=home / "pgcdc-benchmarks", help="where the jars are kept"
    )
    return parser.parse_args()


def benchmark(
    options: argparse.Namespace, engine: Engine, server: EmbeddedServer, work: Path
) -> dict[str, object]:
    jvm = subprocess.run(engine.command(), capture_output=True, text=True, check=True).stdout.strip()
    facts = {**machine(server), "debezium": VERSION, "jvm": jvm, "connector": DEFAULTS}
    print("  ".join(f"{name} {value}" for name, value in facts.items()))
    print(table_line([heading for heading, _ in COLUMNS.values()]))
    results = []
    uris = partial(uri, server, port=listen(server))
    for workload in options.workloads.split(","):
        written = write_log(uris, workload, WORKLOADS[workload], options.rows)
        log = replace(written, connection="tcp", uri=uris(workload, "tcp"))
        for schemas in options.schemas.split(","):
            result = compare(engine, log, schemas, options.pairs, work)
            cells = [format(result[key], spec) for key, (_, spec) in COLUMNS.items()]
            print(table_line(cells), flush=True)
            results.append(result)
    return {"machine": facts, "results": results}


def main() -> None:
    options = arguments()
    with tempfile.TemporaryDirectory(prefix="pgcdc-bench-", dir=options.directory) as directory:
        work = Path(directory)
        (work / "output").mkdir()
        (work / "engine").mkdir()
        engine = install(options.cache, work / "engine")
        server = EmbeddedServer(work / "data", settings=SETTINGS)
        try:
            report = benchmark(options, engine, server, work / "output")
        finally:
            server.pg_ctl("-m", "fast", "stop")
            server.stop()
    if options.json:
        options.json.write_text(json.dumps(report, indent=2) + "\n")


if __name__ == "__main__":
    main()
