"""Merging whenever segments are finished, in one session that stays."""

import fcntl
import gc
import os
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from pyspark.sql import SparkSession

from .job import merge
from .merge_errors import MergeError
from .options import MergeOptions
from .segments import HadoopFiles, join
from .summary import TableListener

_PATIENCE = 0.1
"""Seconds after which the launcher is looked at again."""


class Launcher:
    """What the command that started the job wants, by a file.

    As long as it holds a lock on it the job goes on: so it ends, too, where the command was killed. A change
    of the file's time asks it to look for segments at once.
    """

    def __init__(self, path: str) -> None:
        # What clears away old temporary files takes its name, but not what is open.
        self._file = Path(path).open("rb")  # noqa: SIM115 - until `close`
        self._changed = self._time()

    def close(self) -> None:
        self._file.close()

    def _time(self) -> int:
        return os.fstat(self._file.fileno()).st_mtime_ns

    def goes_on(self) -> bool:
        """Say whether the job is to go on."""
        try:
            fcntl.flock(self._file, fcntl.LOCK_SH | fcntl.LOCK_NB)
        except BlockingIOError:
            return True
        return False

    def wait(self, seconds: float) -> bool:
        """Wait so long, or until it asks to look, or to end; says whether it asks to look."""
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
    """Merge what there is, then what comes, until the launcher ends it; reports each merge.

    A run that finds another at work comes again. Raises a MergeError where nothing can be merged at all.
    """
    files = HadoopFiles(spark)
    manifest = join(files.qualify(options.input), "manifest.jsonl")
    assert options.follow is not None
    merged: int | None = None
    asked = False
    while launcher.goes_on():
        # It only grows.
        size = files.size(manifest)
        if size is not None and (asked or size != merged):
            merged = size if _merged(spark, options, report, listener) else None
        asked = launcher.wait(options.follow)


def _merged(
    spark: SparkSession,
    options: MergeOptions,
    report: Callable[[dict[str, Any]], None],
    listener: TableListener,
) -> bool:
    """Merge; says whether it could, as another run wasn't at work."""
    try:
        report(merge(spark, options, listener))
    except MergeError as error:
        if not error.locked:
            raise
        return False
    finally:
        # What Java has for each session goes with Python's names for it.
        gc.collect()
    return True
