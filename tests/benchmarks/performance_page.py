"""The page of documentation about what runs of this folder's benchmarks measured.

    python tests/benchmarks/performance_page.py FILE... > docs/performance.md

Each FILE is a report of stream.py, latency.py, growth.py or walsenders.py. Runs compared with the same peer
share a section if they are named one after the other, and so do those of growth.
"""

import argparse
import json
import sys
from collections.abc import Callable, Iterator
from itertools import groupby
from pathlib import Path

from stream_workloads import WORKLOADS

TEMPLATE = Path(__file__).with_suffix(".md")
AGAINST = {
    "pgoutput": "Compared with pg_recvlogical",
    "null": "Compared with pg_recvlogical discarding its output: the server alone",
    "wal2json": "Compared with wal2json on the server",
}
OVER = {
    "tls": "Compared with pg_recvlogical over TLS",
    "socket": "Compared with pg_recvlogical over a Unix socket",
}
TLS = """From runs of

    python tests/benchmarks/stream.py --connections tls --json FILE

Both programs have libpq read such a connection. A walsender sends each row in a TLS record of its own, and
libpq reads one record at a time.
"""
SOCKET = """From runs of

    python tests/benchmarks/stream.py --connections socket --json FILE

The buffer of a Unix socket holds some 250 rows, and a walsender waits while it is full. So pgcdc also reads
while it decodes, and while it lets a walsender send that is behind. It is about as fast as over TCP, where
small transactions take `pg_recvlogical` twice as long as here.
"""
LATENCY = """From runs of

    python tests/benchmarks/latency.py --json FILE

pgbench sustains a rate of transactions while one reader at a time follows the WAL into a file. The delay is
from a row's last statement to its line in the file. Processor time is the reader's, as a share of one core. A
directory gets rows at each flush only (`--fsync-interval`), so it has no delay here.
"""
GROWTH = """Time and processor time are ratios as above, from runs of

    python tests/benchmarks/growth.py --json FILE

As tables or columns grow in number, the number of values stays the same. The start costs the same for few
rows as for many, so it dominates the ratios for few rows. Each table costs a folder, two files, and their
fsyncs once, and 15 kB of memory; with 10,000 tables in turn, a batch has a few rows of each, and opens each
file again. Each column costs some 40 microseconds a batch, which is much if the batch has 150 rows, as of
1,600 columns.
"""
WALSENDERS = """From runs of

    python tests/benchmarks/walsenders.py --json FILE

Each process has its own slot, its own directory, and publications with a part of the tables. Each walsender
reads and decodes the whole WAL, and leaves out what its publications don't have. That takes a processor for
each walsender on the server, and one for each pgcdc. So it pays if the single walsender is the bottleneck and
processors are idle, but not if there are fewer processors than processes. [One
warehouse](spark.md#several-directories) brings the tables together again.
"""
Result = dict[str, object]


def table(title: str, results: list[Result], cell: Callable[[Result], str]) -> Iterator[str]:
    """Lay out a figure by workload and format."""
    formats = list(dict.fromkeys(map(way, results)))
    cells = {(result["workload"], way(result)): cell(result) for result in results}
    yield f"{title}:\n"
    yield f"| | {' | '.join(formats)} |"
    yield f"|---|{'---|' * len(formats)}"
    for workload, rows in {result["workload"]: result["rows"] for result in results}.items():
        found = " | ".join(cells.get((workload, format_), "") for format_ in formats)
        yield f"| {rows:,} rows: {WORKLOADS[workload].what} | {found} |"
    yield ""


def way(result: Result) -> str:
    """Name a format, and the connection if it isn't the usual one."""
    connection = {"tcp": "", "socket": " (socket)", "tls": " (TLS)"}[str(result["connection"])]
    return f"{result['format']}{connection}"


def where(report: dict, pairs: int) -> str:
    return f"{versions(report['machine'])}; {median_of(pairs, 'pair')}.\n"


def versions(facts: dict) -> str:
    """Describe the machine of the figures, and whether other work ran on it."""
    told = f"PostgreSQL {facts['postgresql']}, Python {facts['python']}, {facts['cores']} cores"
    # A benchmark that ended just before leaves a load, too.
    busy = facts["load"] > 2 * facts["cores"]
    return f"{told}, while other work ran (a load of {facts['load']:.0f})" if busy else told


def median_of(number: int, what: str) -> str:
    return f"one {what}" if number == 1 else f"the median of {number} {what}s"


def beside(report: dict) -> Iterator[str]:
    """Describe one run of stream.py: the machine, and its tables."""
    results = report["results"]
    yield where(report, len(results[0]["pairs"]))
    yield from table("Time", results, lambda result: f"{result['wall_ratio']:.2f}")
    yield from table("Processor time", results, lambda result: f"{result['cpu_ratio']:.2f}")
    yield from table("Rows a second", results, lambda result: f"{result['rows_a_second']:,.0f}")
    yield from table("Most memory, in MB", results, lambda result: f"{result['peak_rss']:.0f}")


def latency(report: dict) -> Iterator[str]:
    """Describe one run of latency.py."""
    yield f"{versions(report['machine'])}.\n"
    yield "| load | transactions a second | reader | median, ms | 99 of 100 within, ms | processor time |"
    yield "|---|---|---|---|---|---|"
    for result in report["latency"]:
        delays = " | ".join("" if result[name] is None else f"{result[name]:.1f}" for name in ("p50", "p99"))
        load = f"{result['workload']} | {result['wanted'] or ''}"
        yield f"| {load} | {result['way']} | {delays} | {result['busy']:.1%} |"
    yield ""


def growth(report: dict) -> Iterator[str]:
    """Describe one run of growth.py: a table for each axis and format."""
    results = report["growth"]
    yield where(report, len(results[0]["pairs"]))
    for (axis, format_), some in groupby(results, key=lambda result: (result["axis"], result["format"])):
        yield f"| {axis} ({format_}) | rows | time | processor time | rows a second | most memory, in MB |"
        yield "|---|---|---|---|---|---|"
        for result in some:
            ratios = f"{result['wall_ratio']:.2f} | {result['cpu_ratio']:.2f}"
            figures = f"{result['rows_a_second']:,.0f} | {result['peak_rss']:.0f}"
            yield f"| {result['size']:,} | {result['rows']:,} | {ratios} | {figures} |"
        yield ""


def walsenders(report: dict) -> Iterator[str]:
    """Describe one run of walsenders.py."""
    results = report["walsenders"]
    first = results[0]
    read = f"{first['rows']:,} rows of four tables, {first['format']}"
    yield f"{versions(report['machine'])}; {read}; {median_of(first['runs'], 'run')}.\n"
    yield "| processes | seconds | relative to the first line | rows a second |"
    yield "|---|---|---|---|"
    for result in results:
        seconds = result["seconds"]
        figures = f"{seconds:.1f} | {result['ratio']:.2f} | {result['rows'] / seconds:,.0f}"
        yield f"| {result['processes']} | {figures} |"
    yield ""


SECTIONS: dict[str, Callable[[dict], Iterator[str]]] = {
    **dict.fromkeys([*AGAINST.values(), *OVER.values()], beside),
    "From a commit to its line": latency,
    "Growth": growth,
    "More than one walsender": walsenders,
}
INTRODUCTIONS = {
    OVER["tls"]: TLS,
    OVER["socket"]: SOCKET,
    "From a commit to its line": LATENCY,
    "Growth": GROWTH,
    "More than one walsender": WALSENDERS,
}


def title(report: dict) -> str:
    """Name the section that a run belongs to."""
    if "latency" in report:
        return "From a commit to its line"
    if "growth" in report:
        return "Growth"
    if "walsenders" in report:
        return "More than one walsender"
    first, *others = {result["connection"] for result in report["results"]}
    if first in OVER and not others:
        return OVER[first]
    return AGAINST[report["machine"]["against"]]


def page(reports: list[dict]) -> str:
    """Write the page, with one section for consecutive reports of the same title."""
    lines = []
    for name, some in groupby(reports, key=title):
        lines.append(f"## {name}\n")
        lines += [INTRODUCTIONS[name]] if name in INTRODUCTIONS else []
        lines += [line for report in some for line in SECTIONS[name](report)]
    return TEMPLATE.read_text().format(sections="\n".join(lines).strip())


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("report", nargs="+", type=Path, help="a report of one of the benchmarks")
    files = parser.parse_args().report
    sys.stdout.write(page([json.loads(file.read_text()) for file in files]) + "\n")
