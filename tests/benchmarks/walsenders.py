"""How fast several processes read, each a part of the tables with its own slot, compared with one process.

    python tests/benchmarks/walsenders.py [--rows 1000000] [--processes 1,2,4] [--runs 3] [--json FILE]

The rows of the log are of four tables in turn. Each walsender decodes all of it, and sends what its
publications have. Every way reads the same log, in turn. The time is from the start of the first process to
the end of the last one.
"""

import argparse
import json
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from contextlib import ExitStack
from functools import partial
from pathlib import Path

sys.path.append(str(Path(__file__).parent))
from stream import (
    PEERS,
    PGCDC,
    TIME_LIMIT,
    Log,
    copy_of_slot,
    listen,
    machine,
    replace,
    rows_in,
    running,
    stream_command,
    uri,
    write_log,
)
from stream_workloads import Workload

TABLES = 4
MAKE = ";".join(
    f"CREATE TABLE bench_{i} (id bigint PRIMARY KEY, a int, b text, c numeric(12,2), ts timestamptz);"
    f"CREATE PUBLICATION part_{i} FOR TABLE bench_{i}"
    for i in range(TABLES)
)
SELECT = """SELECT g, g % 1000, 'row number ' || g || ' xx', (g % 100000)::numeric / 100,
    '2024-01-01'::timestamptz + g * interval '1 second' FROM generate_series({0}, {1}) g"""
INSERT = ";".join(f"INSERT INTO bench_{i} {SELECT} WHERE g % {TABLES} = {i}" for i in range(TABLES))
WORKLOAD = Workload("four tables, 1,000 rows a transaction", MAKE, INSERT, 1000)


def publications(processes: int, number: int) -> list[str]:
    """The publications that one of so many processes reads."""
    return [f"part_{table}" for table in range(TABLES) if table % processes == number]


def measure(log: Log, processes: int, format_: str, work: Path) -> float:
    """Read all of the log with so many processes; return the seconds that it took."""
    with ExitStack() as stack:
        slots = [
            stack.enter_context(copy_of_slot(log, "pgoutput", str(number))) for number in range(processes)
        ]
        targets = [work / slot for slot in slots]
        commands = []
        for number, (slot, target) in enumerate(zip(slots, targets, strict=True)):
            stop = ["--no-loop", "--endpos", log.end]
            some = publications(processes, number)
            commands.append(stream_command(log.uri, slot, *stop, *PGCDC[format_], target, publications=some))
        begun = time.monotonic()
        running_ = [subprocess.Popen(command, stderr=subprocess.PIPE, text=True) for command in commands]
        for process in running_:
            _, said = process.communicate(timeout=TIME_LIMIT)
            if process.returncode:
                raise SystemExit(said)
        seconds = time.monotonic() - begun
    if (rows := sum(map(rows_in, targets))) != log.rows:
        raise SystemExit(f"{rows} rows instead of {log.rows}")
    for target in targets:
        shutil.rmtree(target)
    return seconds


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rows", type=int, default=1_000_000)
    parser.add_argument("--processes", default="1,2,4")
    parser.add_argument("--runs", type=int, default=3)
    parser.add_argument("--format", default="jsonl", choices=PGCDC)
    parser.add_argument("--json", type=Path, metavar="FILE")
    parser.add_argument("--directory", type=Path, help="where servers and output go (a temporary directory)")
    return parser.parse_args()


def main() -> None:
    options = arguments()
    numbers = [int(number) for number in options.processes.split(",")]
    with tempfile.TemporaryDirectory(prefix="pgcdc-walsenders-", dir=options.directory) as directory:
        work = Path(directory, "output")
        work.mkdir()
        with running(PEERS["pgoutput"], Path(directory, "data")) as server:
            facts = machine(server)
            uris = partial(uri, server, port=listen(server))
            log = replace(write_log(uris, "bench", WORKLOAD, options.rows), uri=uris("bench", "tcp"))
            runs = [
                {number: measure(log, number, options.format, work) for number in numbers}
                for _ in range(options.runs)
            ]
    results = []
    for number in numbers:
        seconds = statistics.median(run[number] for run in runs)
        ratio = statistics.median(run[number] / run[numbers[0]] for run in runs)
        results.append(
            {
                "processes": number,
                "rows": log.rows,
                "format": options.format,
                "runs": len(runs),
                "seconds": seconds,
                "ratio": ratio,
            }
        )
        print(f"{number} processes: {seconds:.2f} s  {log.rows / seconds:,.0f} rows/s  ratio {ratio:.2f}")
    if options.json:
        options.json.write_text(json.dumps({"machine": facts, "walsenders": results}, indent=2) + "\n")


if __name__ == "__main__":
    main()
