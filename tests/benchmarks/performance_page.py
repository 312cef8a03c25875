"""The page of documentation that tells what runs of stream.py measured.

    python tests/benchmarks/performance_page.py FILE... > docs/performance.md

Runs beside the same peer that are named one behind the other share a section.
"""

import json
import sys
from collections.abc import Callable, Iterator
from itertools import groupby
from pathlib import Path

from stream_workloads import WORKLOADS

TEMPLATE = Path(__file__).with_suffix(".md")
AGAINST = {
    "pgoutput": "Beside pg_recvlogical",
    "null": "Beside pg_recvlogical that throws away what it gets: the server alone",
    "wal2json": "Beside wal2json on the server",
}
Result = dict[str, object]


def table(title: str, results: list[Result], cell: Callable[[Result], str]) -> Iterator[str]:
    """Lay out a figure by workload and format."""
    formats = list(dict.fromkeys(result["format"] for result in results))
    cells = {(result["workload"], result["format"]): cell(result) for result in results}
    yield f"{title}:\n"
    yield f"| | {' | '.join(formats)} |"
    yield f"|---|{'---|' * len(formats)}"
    for workload, rows in {result["workload"]: result["rows"] for result in results}.items():
        found = " | ".join(cells.get((workload, format_), "") for format_ in formats)
        yield f"| {rows:,} rows: {WORKLOADS[workload].what} | {found} |"
    yield ""


def section(report: dict) -> Iterator[str]:
    """Tell one run: where, and its tables."""
    facts, results = report["machine"], report["results"]
    pairs = len(results[0]["pairs"])
    yield (
        f"PostgreSQL {facts['postgresql']}, Python {facts['python']}, {facts['cores']} cores; "
        f"{'one pair' if pairs == 1 else f'the median of {pairs} pairs'}.\n"
    )
    yield from table("Time", results, lambda result: f"{result['wall_ratio']:.2f}")
    yield from table("Processor time", results, lambda result: f"{result['cpu_ratio']:.2f}")
    yield from table("Rows a second", results, lambda result: f"{result['rows_a_second']:,.0f}")
    yield from table("Most memory, in MB", results, lambda result: f"{result['peak_rss']:.0f}")


def page(reports: list[dict]) -> str:
    """Write the page, a section for all reports beside the same."""
    lines = []
    for against, of_peer in groupby(reports, key=lambda report: report["machine"]["against"]):
        lines += [f"## {AGAINST[against]}\n", *(line for report in of_peer for line in section(report))]
    return TEMPLATE.read_text().format(sections="\n".join(lines).strip())


if __name__ == "__main__":
    sys.stdout.write(page([json.loads(Path(name).read_text()) for name in sys.argv[1:]]) + "\n")
