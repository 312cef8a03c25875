"""The command line of merge.py: one merge, or with `--follow` a merge whenever segments are finished."""

import fcntl
import gc
import json
import os
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import closing
from pathlib import Path
from typing import Any

from pyspark import SparkConf
from pyspark.sql import SparkSession

from .hadoop_files import HadoopFiles, join
from .java_classes import java_class
from .job import LAKES, Kept, merge
from .lake import SETTINGS, STATIC
from .merge_errors import MergeError
from .options import FORMAT_VERSION, MERGE, PROGRESS, MergeOptions, merge_options, package_for, parser
from .summary import TableListener

FAILED = 14
"""Exit status of a failed merge, as in errors.py."""


_EXTENSIONS = "spark.sql.extensions"


def main(arguments: Sequence[str]) -> int:
    """Run a merge; return the exit status."""
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
    """Report nothing."""


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
            f"spark-submit --packages {package_for(table_format, spark.version)} merge.py ...",
        )
    return spark


def _joined(extension: str) -> str:
    """Add an extension to the ones that the user configured."""
    theirs = SparkConf().get(_EXTENSIONS, None)
    names = theirs.split(",") if theirs else []
    return ",".join(names if extension in names else [*names, extension])


def _has_class(spark: SparkSession, name: str) -> bool:
    """Whether the format's jars are there; Spark itself only warns if they aren't."""
    loader = java_class(spark, "java.lang.Thread").currentThread().getContextClassLoader()
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


_PATIENCE = 0.1
"""Seconds between looks at the launcher's file."""


class Launcher:
    """Requests of the command that started the job, made through a file.

    The job goes on while that command holds a lock on the file, so it also ends if the command is killed. A
    new modification time asks it to look for segments at once.
    """

    def __init__(self, path: str) -> None:
        # A cleanup of old temporary files removes its name, but the open file stays.
        self._file = Path(path).open("rb")  # noqa: SIM115 - until `close`
        self._changed = self._time()

    def close(self) -> None:
        self._file.close()

    def _time(self) -> int:
        return os.fstat(self._file.fileno()).st_mtime_ns

    def goes_on(self) -> bool:
        """Whether the job is to go on."""
        try:
            fcntl.flock(self._file, fcntl.LOCK_SH | fcntl.LOCK_NB)
        except BlockingIOError:
            return True
        return False

    def wait(self, seconds: float) -> bool:
        """Wait until the launcher asks to look or to end, or time is up; return whether it asks to look."""
        until = time.monotonic() + seconds
        while self.goes_on() and time.monotonic() < until:
            changed = self._time()
            if changed != self._changed:
                self._changed = changed
                return True
            time.sleep(min(_PATIENCE, seconds))
        return False


def follow(
    spark: SparkSession,
    options: MergeOptions,
    launcher: Launcher,
    report: Callable[[dict[str, Any]], None],
    listener: TableListener,
) -> None:
    """Merge what is there, then what is added, until the launcher ends it; report each merge.

    If another merge is running, it tries again later. Raises MergeError if nothing can be merged at all.
    """
    files = HadoopFiles(spark)
    manifest = join(files.qualify(options.input), "manifest.jsonl")
    assert options.follow is not None
    merged: int | None = None
    asked, kept = False, Kept()
    while launcher.goes_on():
        # The manifest only grows, so its size shows whether there are new segments.
        size = files.size(manifest)
        if size is not None and (asked or size != merged):
            merged = size if _merged(lambda: merge(spark, options, listener, kept), report) else None
        asked = launcher.wait(options.follow)


def _merged(run: Callable[[], dict[str, Any]], report: Callable[[dict[str, Any]], None]) -> bool:
    """Run a merge; return False if another one was running."""
    try:
        report(run())
    except MergeError as error:
        if not error.locked:
            raise
        return False
    finally:
        # Releases Java's objects of each session, which Python's references keep.
        gc.collect()
    return True
