"""The command line of merge.py."""

import json
import sys
from collections.abc import Mapping, Sequence
from contextlib import closing
from typing import Any

from pyspark import SparkConf
from pyspark.sql import SparkSession

from .follow import Launcher, follow
from .job import LAKES, merge
from .lake import SETTINGS, STATIC
from .merge_errors import MergeError
from .options import FORMAT_VERSION, MERGE, PACKAGES, PROGRESS, merge_options, parser

FAILED = 14
"""Exit status, as pgcdc's own for a failed merge."""


_EXTENSIONS = "spark.sql.extensions"


def main(arguments: Sequence[str]) -> int:
    """Run a merge; returns the exit status."""
    parsed = vars(parser().parse_args(arguments))
    as_json, progress, launcher = (parsed.pop(name) for name in ("json", "progress", "launcher"))
    listener = _write_progress if progress else _ignore
    options = merge_options(parsed)
    try:
        spark = _spark(options.format)
        if options.follow is not None and launcher is not None:
            with closing(Launcher(launcher)) as one:
                follow(spark, options, one, _write_summary, listener)
            return 0
        summary = merge(spark, options, listener)
    except MergeError as error:
        summary = {
            "format_version": FORMAT_VERSION,
            "segment": None,
            "error": {"message": error.message, "hint": error.hint, "locked": error.locked},
        }
    print(json.dumps(summary) if as_json else _report(summary), flush=True)  # noqa: T201 - the result
    if summary["error"] is not None:
        sys.stderr.write(f"pgcdc: error: {summary['error']['message']}\nhint: {summary['error']['hint']}\n")
    return 0 if summary["error"] is None else FAILED


def _ignore(_: Mapping[str, Any]) -> None:
    """Say nothing."""


def _write_summary(summary: Mapping[str, Any]) -> None:
    print(json.dumps(summary), flush=True)  # noqa: T201 - the result


def _write_progress(done: Mapping[str, Any]) -> None:
    sys.stderr.write(f"{PROGRESS}{json.dumps(done)}\n")
    sys.stderr.flush()


def _spark(table_format: str) -> SparkSession:
    lake = LAKES[table_format]
    builder = SparkSession.builder
    for name, value in {**lake.extensions, **STATIC, **SETTINGS}.items():
        builder = builder.config(name, _joined(value) if name == _EXTENSIONS else value)
    spark = builder.getOrCreate()
    if not _has_class(spark, lake.class_file):
        raise MergeError(
            f"could not start the merge: this Spark has no {lake.title}",
            f"spark-submit --packages {PACKAGES[table_format]} merge.py ...",
        )
    return spark


def _joined(extension: str) -> str:
    """Add an extension to those that the user configured."""
    theirs = SparkConf().get(_EXTENSIONS, None)
    names = theirs.split(",") if theirs else []
    return ",".join(names if extension in names else [*names, extension])


def _has_class(spark: SparkSession, name: str) -> bool:
    """Say whether a format's jars are there; Spark itself only warns when they aren't."""
    jvm: Any = spark._jvm  # noqa: SLF001 - the only way to a class loader
    loader = jvm.java.lang.Thread.currentThread().getContextClassLoader()
    return loader.getResource(name) is not None


def _report(summary: dict[str, Any]) -> str:
    if summary["segment"] is None:
        return "nothing was merged"
    counted = ["inserted", "updated", "deleted", "unfit"]
    counted += ["missing"] if any(table["missing"] for table in summary["tables"]) else []
    lines = [f"{'table':<40}{''.join(f' {name:>10}' for name in counted)}  segment"]
    for table in summary["tables"]:
        name = table["table"] if table["mode"] == MERGE else f"{table['table']} ({table['mode']})"
        lines.append(f"{name:<40}{''.join(f' {table[count]:>10}' for count in counted)}  {table['segment']}")
    lines += [f"warning: {warning}" for warning in summary["warnings"]]
    lines.append(f"merged up to segment {summary['segment']}, {summary['lsn']}, in {summary['seconds']} s")
    return "\n".join(lines)
