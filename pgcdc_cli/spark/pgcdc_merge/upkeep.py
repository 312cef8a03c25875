"""Upkeep after a merge: small files written together, and what only old versions need removed.

It follows the control table's last word, which then holds what the marks of removed versions said. The
versions after compaction are recorded before anything is removed, so that recorded ones can always be read.
"""

from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from typing import TypeVar

from py4j.protocol import Py4JJavaError  # type: ignore[import-untyped]  # it has no annotations
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession

from .control import Control, ControlRow
from .lake import Lake, LakeTable
from .options import Options
from .reasons import reason
from .sessions import AT_ONCE, new_session
from .summary import Summary

Item = TypeVar("Item")
Result = TypeVar("Result")


@dataclass(frozen=True)
class Upkeep:
    """What it works with."""

    spark: SparkSession
    lake: Lake
    options: Options

    def open(self, place: str) -> LakeTable:
        return self.lake.open(new_session(self.spark, self.lake), place)


def maintain(upkeep: Upkeep, control: Control, summary: Summary) -> None:
    """Keep up the tables that the run changed, if asked; what can't be done is a warning."""
    rows = [row for row in summary.changed.values() if row.path is not None]
    if upkeep.options.compact and rows:
        found = _each(rows, lambda row: _compacted(upkeep, row, summary))
        compacted = {row.key: row for row in found}
        control.finish(compacted)
        summary.changed |= compacted
    hours = upkeep.options.retain
    if hours is not None and rows:
        places = [upkeep.lake.control_place, *(str(row.path) for row in rows)]
        _each(places, lambda place: _expired(upkeep, place, hours, summary))


def _each(items: Sequence[Item], work: Callable[[Item], Result]) -> list[Result]:
    with ThreadPoolExecutor(AT_ONCE) as pool:
        return list(pool.map(work, items))


def _compacted(upkeep: Upkeep, row: ControlRow, summary: Summary) -> ControlRow:
    try:
        return replace(row, version=upkeep.open(str(row.path)).compact())
    except (PySparkException, Py4JJavaError) as error:
        summary.warn(f'could not compact "{row.table}": {reason(error)}')
        return row


def _expired(upkeep: Upkeep, place: str, hours: int, summary: Summary) -> None:
    try:
        upkeep.open(place).expire(hours)
    except (PySparkException, Py4JJavaError) as error:
        summary.warn(f'could not remove old versions of "{place}": {reason(error)}')
