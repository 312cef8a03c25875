"""How long `pgcdc spark-submit --follow` takes to merge few changes into some small tables.

    python tests/benchmarks/follow.py [--merges 12] [--lake delta] [--beside DIR] [--json FILE]

One segment after the other is finished, and the time until its merge is reported is measured. That includes
the time until the command looks at its directory, up to a second. `cpu` is the processor time of the command,
Spark included. The figures are the median of the later half, when Spark is warm, and its ratio to the second
merge, the first one that changes rows. With `--beside` another checkout's command follows the same segments,
in turn; the ratio is ours to its.
"""

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from spark_data import FORMATS, Changes, Directory, changes, rows, table

OURS = Path(__file__).parents[2]
TICKS = os.sysconf("SC_CLK_TCK")


@dataclass
class Follower:
    """A command that follows its own directory."""

    running: subprocess.Popen[str]
    directory: Directory
    merges: list[dict[str, float]] = field(default_factory=list)

    def merge(self, number: int, options: argparse.Namespace) -> None:
        """Finish a segment, and wait until it is merged; SystemExit if it could not be."""
        names = [f"bench{at}" for at in range(options.tables)]
        parts = [(table(name, 16384 + at), changed(number, at, options)) for at, name in enumerate(names)]
        before = processor_time(self.running.pid)
        began = time.monotonic()
        self.directory.segment(parts)
        assert self.running.stdout is not None
        summary = json.loads(self.running.stdout.readline() or '{"error": "it ended"}')
        if summary["error"] is not None:
            raise SystemExit(f"could not merge: {summary['error']}")
        after = processor_time(self.running.pid)
        self.merges.append({"seconds": time.monotonic() - began, "cpu": after - before})


def changed(number: int, at: int, options: argparse.Namespace) -> Changes:
    """A table's first rows, or later changes to them."""
    if number == 0:
        return rows(options.rows)
    return changes(options.changes, options.rows, options.rows, seed=number * options.tables + at)


def processor_time(root: int) -> float:
    """The seconds of processor time that a process and its living descendants have used."""
    parents, used = {}, {}
    for stat in Path("/proc").glob("[0-9]*/stat"):
        try:
            fields = stat.read_text().rpartition(")")[2].split()
        except OSError:
            continue
        pid = int(stat.parent.name)
        parents[pid], used[pid] = int(fields[1]), sum(map(int, fields[11:15])) / TICKS
    family = {root}
    while more := {pid for pid, parent in parents.items() if parent in family} - family:
        family |= more
    return sum(used[pid] for pid in family)


@contextmanager
def following(checkout: Path, work: Path, lake: str) -> Iterator[Follower]:
    directory = Directory(work / "in", FORMATS["jsonl"]())
    line = [sys.executable, "-m", "pgcdc_cli", "spark-submit", "--format", lake, "--follow", "--json"]
    line += ["--input", str(directory.path), "--warehouse", str(work / "lake")]
    environment = {**os.environ, "PYTHONPATH": str(checkout)}
    with subprocess.Popen(line, stdout=subprocess.PIPE, text=True, cwd=work, env=environment) as running:
        try:
            yield Follower(running, directory)
        finally:
            running.terminate()


def report(found: Follower, beside: Sequence[Follower]) -> Iterator[tuple[str, dict[str, float]]]:
    for what in ("seconds", "cpu"):
        second = found.merges[1][what]
        warm = warm_median(found, what)
        told = {"first": found.merges[0][what], "second": second, "warm": warm, "ratio": warm / second}
        for other in beside:
            told |= {"beside": warm_median(other, what), "to beside": warm / warm_median(other, what)}
        yield what, told


def warm_median(found: Follower, what: str) -> float:
    return statistics.median(merge[what] for merge in found.merges[len(found.merges) // 2 :])


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--merges", type=int, default=12)
    parser.add_argument("--tables", type=int, default=6)
    parser.add_argument("--rows", type=int, default=500, help="in each table, from the first merge on")
    parser.add_argument("--changes", type=int, default=4, help="to each table, in each merge after it")
    parser.add_argument("--lake", choices=("delta", "iceberg"), default="delta")
    parser.add_argument("--beside", type=Path, metavar="DIR", help="another checkout, measured in turn")
    parser.add_argument("--json", type=Path, metavar="FILE")
    return parser.parse_args()


def main() -> None:
    options = arguments()
    checkouts = [OURS, *([options.beside.resolve()] if options.beside else [])]
    with tempfile.TemporaryDirectory(prefix="pgcdc-bench-") as work, ExitStack() as stack:
        folders = [Path(work, str(number)) for number, _ in enumerate(checkouts)]
        followers = [
            stack.enter_context(following(checkout, folder, options.lake))
            for checkout, folder in zip(checkouts, folders, strict=True)
        ]
        for number in range(options.merges):
            for follower in followers:
                follower.merge(number, options)
        found = dict(report(followers[0], followers[1:]))
    for what, told in found.items():
        print(f"{what:<8}", *(f"{name} {value:.2f}" for name, value in told.items()), sep="  ")
    if options.json:
        options.json.write_text(json.dumps(found, indent=2) + "\n")


if __name__ == "__main__":
    main()
