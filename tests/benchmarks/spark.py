"""How fast the Spark job merges, compared with a plain Parquet rewrite of the same data written by hand.

    python tests/benchmarks/spark.py [--parts rewrite,few,growth] [--changes 5000000] [--json FILE]

Everything is done in one warm Spark, in turn:

rewrite: changes of all keys of a table, compared with Spark code as one would write it for this table alone:
    read the same files, keep the newest change of each key, join with the old rows, write Parquet.
few: a merge of few changes into a large table, compared with one that rewrites each file with a changed row.
growth: as many rows in many segments, and in many tables, compared with one of each.
"""

import argparse
import json
import os
import platform
import shutil
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pyspark
from pyspark.sql import SparkSession
from spark_data import FORMATS, Changes, Directory, changes, rows, table
from spark_plain import rewrite

import pgcdc_cli
from pgcdc_cli.spark.launch import java_settings
from pgcdc_cli.spark.packages import DELTA, ICEBERG, NOT_NEEDED
from pgcdc_cli.spark.pgcdc_merge.job import LAKES, merge
from pgcdc_cli.spark.pgcdc_merge.lake import SETTINGS, STATIC, LakeTable, new_session
from pgcdc_cli.spark.pgcdc_merge.options import MergeOptions

COPYING = {
    "delta": "'delta.enableDeletionVectors' = 'false', 'delta.autoOptimize.optimizeWrite' = 'false'",
    "iceberg": "'write.merge.mode' = 'copy-on-write'",
}
"""Table properties with which a merge rewrites every file in which a row changes."""

COLUMNS = {
    "part": 9,
    "lake": 9,
    "format": 10,
    "what": 34,
    "s": 9,
    "beside s": 10,
    "ratio": 8,
    "MB": 9,
    "of MB": 9,
}


def start(options: argparse.Namespace) -> SparkSession:
    """Start Spark as `pgcdc spark-submit` does on one machine."""
    java = java_settings(Path(options.work, "java"))
    os.environ |= {name: value for name, value in java.items() if value is not None}
    os.environ["PYSPARK_PYTHON"] = sys.executable
    settings = {
        **LAKES["delta"].extensions,
        **STATIC,
        **SETTINGS,
        "spark.sql.extensions": ",".join(lake.extensions["spark.sql.extensions"] for lake in LAKES.values()),
        "spark.jars.packages": f"{DELTA},{ICEBERG}",
        "spark.jars.excludes": ",".join(NOT_NEEDED),
        "spark.driver.memory": options.memory,
        "spark.local.dir": str(options.work),
        "spark.log.level": "ERROR",
        "spark.sql.shuffle.partitions": "8",
        "spark.ui.enabled": "false",
        "spark.ui.showConsoleProgress": "false",
    }
    builder = SparkSession.builder.master(options.master)
    for name, value in settings.items():
        builder = builder.config(name, value)
    return builder.getOrCreate()


class Bench:
    """Measures merges into copies of one warehouse."""

    def __init__(self, spark: SparkSession, options: argparse.Namespace) -> None:
        self.spark = spark
        self.options = options
        self.work = Path(options.work)
        self.results: list[dict[str, Any]] = []

    def directory(self, encoding: str) -> Directory:
        path = self.work / "in"
        shutil.rmtree(path, ignore_errors=True)
        return Directory(path, FORMATS[encoding]())

    def load(self, directory: Directory, lake: str) -> Path:
        """Merge a directory's snapshot into a new warehouse, and keep a copy of it."""
        for folder in (self.work / lake, self.kept(lake)):
            shutil.rmtree(folder, ignore_errors=True)
        self.merge(directory, lake)
        shutil.copytree(self.work / lake, self.kept(lake))
        return self.work / lake

    def kept(self, lake: str) -> Path:
        return self.work / f"kept-{lake}"

    def restore(self, lake: str) -> None:
        """Put the loaded warehouse back to its old place: Iceberg's files name it."""
        shutil.rmtree(self.work / lake)
        shutil.copytree(self.kept(lake), self.work / lake)
        self.spark._jvm.org.apache.spark.sql.delta.DeltaLog.clearCache()

    def merge(self, directory: Directory, lake: str) -> float:
        """Merge, and return the seconds that it took; SystemExit if it could not."""
        began = time.monotonic()
        readers = "modern" if lake == "delta" else None
        options = MergeOptions(str(directory.path), str(self.work / lake), format=lake, readers=readers)
        summary = merge(self.spark, options)
        if summary["error"] is not None:
            raise SystemExit(summary["error"]["message"])
        return time.monotonic() - began

    def table(self, lake: str) -> tuple[SparkSession, LakeTable]:
        made = LAKES[lake](f"file:{self.work / lake}")
        session = new_session(self.spark, made)
        return session, made.open(session, made.location("public", "bench", "merge"))

    def alter(self, lake: str, properties: str) -> None:
        session, found = self.table(lake)
        session.sql(f"ALTER TABLE {found.name} SET TBLPROPERTIES ({properties})")

    def old_rows(self, lake: str, target: Path) -> None:
        """Write a table's rows as plain Parquet."""
        _, found = self.table(lake)
        found.read().write.mode("overwrite").parquet(str(target))

    def alternate(self, ours: Callable[[], float], theirs: Callable[[], float]) -> dict[str, float]:
        """Measure pairs, after one pair to warm up."""
        pairs = [(theirs(), ours()) for _ in range(self.options.pairs + 1)][1:]
        return {
            "seconds": statistics.median(our for _, our in pairs),
            "beside": statistics.median(their for their, _ in pairs),
            "ratio": statistics.median(our / their for their, our in pairs),
        }

    def report(self, result: dict[str, Any]) -> None:
        self.results.append(result)
        keys = ("part", "lake", "format", "what", "seconds", "beside", "ratio", "written", "whole")
        cells = [result.get(key, "") for key in keys]
        print(line([f"{cell:.2f}" if isinstance(cell, float) else str(cell) for cell in cells]), flush=True)


def line(cells: list[str]) -> str:
    return " ".join(
        cell.ljust(width) if index < 4 else cell.rjust(width)
        for index, (cell, width) in enumerate(zip(cells, COLUMNS.values(), strict=True))
    )


def measure_rewrite(bench: Bench, lake: str, encoding: str) -> None:
    options = bench.options
    directory = bench.directory(encoding)
    directory.segment([(table(), rows(options.rows))])
    bench.load(directory, lake)
    bench.old_rows(lake, bench.work / "old")
    some = changes(options.changes, options.rows, options.rows)
    for number in range(options.segments):
        directory.segment([(table(), some.part(number, options.segments))])
    paths = sorted(str(path) for path in (directory.path / "public.bench").iterdir())[1:]

    def theirs() -> float:
        began = time.monotonic()
        rewrite(bench.spark, encoding, paths, bench.work / "old", bench.work / "new")
        return time.monotonic() - began

    def ours() -> float:
        bench.restore(lake)
        return bench.merge(directory, lake)

    what = f"{options.changes} changes into {options.rows} rows"
    which = {"part": "rewrite", "lake": lake, "format": encoding, "what": what}
    bench.report({**which, **bench.alternate(ours, theirs)})


def written(warehouse: Path, before: set[Path]) -> float:
    """The MB that were added to a table's files; its log and metadata don't count."""
    return sum(path.stat().st_size for path in data_files(warehouse) - before) / 1e6


def data_files(warehouse: Path) -> set[Path]:
    suffixes = {".parquet", ".bin", ".puffin"}
    found = {path for path in (warehouse / "public").rglob("*") if path.suffix in suffixes}
    return {path for path in found if "_delta_log" not in path.parts}


def measure_few(bench: Bench, lake: str) -> None:
    options = bench.options
    directory = bench.directory("arrow")
    directory.segment([(table(), rows(options.large))])
    warehouse = bench.load(directory, lake)
    before = data_files(warehouse)
    directory.segment([(table(), changes(options.few, options.large, options.large))])
    sizes: dict[str, float] = {}

    def timed(properties: str | None) -> float:
        bench.restore(lake)
        if properties is not None:
            bench.alter(lake, properties)
        seconds = bench.merge(directory, lake)
        sizes["copied" if properties else "written"] = written(warehouse, before)
        return seconds

    found = bench.alternate(lambda: timed(None), lambda: timed(COPYING[lake]))
    what = f"{options.few} changes into {options.large} rows"
    which = {"part": "few", "lake": lake, "format": "arrow", "what": what, **sizes}
    bench.report({**which, "whole": written(warehouse, data_files(warehouse) - before), **found})


def measure_growth(bench: Bench, lake: str) -> None:
    """Merge into empty warehouses, so that only what grows counts."""
    options = bench.options
    some = rows(options.small)
    one = lambda: merged_anew(bench, lake, [some], ["bench"])  # noqa: E731 - the one to compare with
    for count in options.growth:
        parts = [some.part(number, count) for number in range(count)]
        found = bench.alternate(lambda parts=parts: merged_anew(bench, lake, parts, ["bench"]), one)
        what = f"{options.small} rows in {count} segments"
        bench.report({"part": "growth", "lake": lake, "format": "jsonl", "what": what, **found})
    names = [f"bench{number}" for number in range(options.tables)]
    found = bench.alternate(lambda: merged_anew(bench, lake, [some.part(0, options.tables)], names), one)
    what = f"{options.small} rows in {options.tables} tables"
    bench.report({"part": "growth", "lake": lake, "format": "jsonl", "what": what, **found})


def merged_anew(bench: Bench, lake: str, segments: list[Changes], names: list[str]) -> float:
    directory = bench.directory("jsonl")
    for part in segments:
        directory.segment([(table(name, 16384 + number), part) for number, name in enumerate(names)])
    shutil.rmtree(bench.work / lake, ignore_errors=True)
    bench.spark._jvm.org.apache.spark.sql.delta.DeltaLog.clearCache()
    return bench.merge(directory, lake)


def machine(options: argparse.Namespace) -> dict[str, object]:
    return {
        "cores": len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count(),
        "load": os.getloadavg()[0],
        "system": platform.platform(),
        "spark": pyspark.__version__,
        "master": options.master,
        "memory": options.memory,
        "pgcdc": pgcdc_cli.__version__,
    }


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--parts", default="rewrite,few,growth")
    parser.add_argument("--lakes", default="delta,iceberg")
    parser.add_argument("--formats", default="jsonl,arrow", help=f"of {', '.join(FORMATS)}")
    parser.add_argument("--changes", type=int, default=5_000_000, help="of rewrite")
    parser.add_argument("--rows", type=int, default=1_000_000, help="and into so many rows")
    parser.add_argument("--segments", type=int, default=10, help="the changes come in")
    parser.add_argument("--few", type=int, default=10_000, help="changes of few")
    parser.add_argument("--large", type=int, default=10_000_000, help="and into so many rows")
    parser.add_argument("--small", type=int, default=100_000, help="rows of growth")
    parser.add_argument("--growth", type=lambda text: [*map(int, text.split(","))], default=[10, 100, 1000])
    parser.add_argument("--tables", type=int, default=50)
    parser.add_argument("--pairs", type=int, default=3)
    parser.add_argument("--master", default="local[*]")
    parser.add_argument("--memory", default="1g", help="the driver's, in which all is done")
    parser.add_argument("--json", type=Path, metavar="FILE")
    parser.add_argument("--directory", type=Path, help="where the tables go (a temporary directory)")
    return parser.parse_args()


def benchmark(bench: Bench) -> Iterator[None]:
    """Measure what is asked for, part by part."""
    lakes, parts = bench.options.lakes.split(","), bench.options.parts.split(",")
    for lake in lakes:
        for encoding in bench.options.formats.split(",") if "rewrite" in parts else ():
            yield measure_rewrite(bench, lake, encoding)
        if "few" in parts:
            yield measure_few(bench, lake)
        if "growth" in parts:
            yield measure_growth(bench, lake)


def main() -> None:
    options = arguments()
    with tempfile.TemporaryDirectory(prefix="pgcdc-bench-", dir=options.directory) as work:
        options.work = work
        spark = start(options)
        facts = machine(options)
        print("  ".join(f"{name} {value}" for name, value in facts.items()))
        print(line(list(COLUMNS)))
        bench = Bench(spark, options)
        for _ in benchmark(bench):
            pass
        spark.stop()
    if options.json:
        options.json.write_text(json.dumps({"machine": facts, "results": bench.results}, indent=2) + "\n")


if __name__ == "__main__":
    main()
