"""The command line of merge.py."""

import argparse
import json
import sys
from collections.abc import Sequence
from typing import Any

from pyspark.sql import SparkSession

from .errors import MergeError
from .job import EXTENSIONS, SETTINGS, Options, merge
from .segments import FORMAT_VERSION

FAILED = 14
"""Exit status, as pgcdc's own for a failed merge."""


def main(arguments: Sequence[str]) -> int:
    """Run a merge; returns the exit status."""
    parsed = _parser().parse_args(arguments)
    options = Options(parsed.input, parsed.warehouse, parsed.skip_keyless)
    try:
        summary = merge(_spark(), options)
    except MergeError as error:
        summary = {
            "format_version": FORMAT_VERSION,
            "segment": None,
            "error": {"message": error.message, "hint": error.hint},
        }
    print(json.dumps(summary) if parsed.json else _report(summary), flush=True)  # noqa: T201 - the result
    if summary["error"] is not None:
        sys.stderr.write(f"pgcdc: error: {summary['error']['message']}\nhint: {summary['error']['hint']}\n")
    return 0 if summary["error"] is None else FAILED


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="merge.py", description="Merge pgcdc's segments into Delta tables.")
    parser.add_argument("--input", required=True, metavar="DIR", help="what pgcdc stream -D wrote")
    parser.add_argument(
        "--warehouse", required=True, metavar="DIR", help="where the tables are: DIR/schema/table"
    )
    parser.add_argument("--skip-keyless", action="store_true", help="leave out tables without a key")
    parser.add_argument("--json", action="store_true", help="print the summary as one JSON object")
    return parser


def _spark() -> SparkSession:
    builder = SparkSession.builder.appName("pgcdc merge")
    for name, value in {**EXTENSIONS, **SETTINGS}.items():
        builder = builder.config(name, value)
    spark = builder.getOrCreate()
    if not has_delta(spark):
        raise MergeError(
            "could not start the merge: this Spark has no Delta",
            "spark-submit --packages io.delta:delta-spark_4.1_2.13:4.4.0 merge.py ...",
        )
    return spark


def has_delta(spark: SparkSession) -> bool:
    """Say whether Delta's jars are there; Spark itself only warns when they aren't."""
    jvm: Any = spark._jvm  # noqa: SLF001 - the only way to a class loader
    loader = jvm.java.lang.Thread.currentThread().getContextClassLoader()
    return loader.getResource("org/apache/spark/sql/delta/DeltaLog.class") is not None


def _report(summary: dict[str, Any]) -> str:
    if summary["segment"] is None:
        return "nothing was merged"
    lines = [f"{'table':<40} {'inserted':>10} {'updated':>10} {'deleted':>10} {'unfit':>7}  segment"]
    for table in summary["tables"]:
        counts = f"{table['inserted']:>10} {table['updated']:>10} {table['deleted']:>10} {table['unfit']:>7}"
        lines.append(f"{table['table']:<40} {counts}  {table['segment']}")
    lines += [f"warning: {warning}" for warning in summary["warnings"]]
    lines.append(f"merged up to segment {summary['segment']}, {summary['lsn']}, in {summary['seconds']} s")
    return "\n".join(lines)
