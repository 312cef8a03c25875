"""Lines of a slice's rows, and rows of several batches back in stream order."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from itertools import chain
from typing import Generic, TypeAlias, TypeVar, cast

import numpy as np
import pyarrow as pa

from pgcdc_cli.changes.slice import Slice, Stamp
from pgcdc_cli.changes.table import TableSchema
from pgcdc_cli.lsn import Lsn
from pgcdc_cli.types import kernels
from pgcdc_cli.types.kernels import ArrowArray, Booleans, Int64s

RowsT = TypeVar("RowsT")

MESSAGES = "_messages"
"""The target of logical messages, which belong to no table."""


@dataclass(frozen=True, slots=True, eq=False)
class Encoded(Generic[RowsT]):
    """Rows for one target, of one table or (None) of none; `index` is their place in the stream.

    `unchanged` says that there are rows with values that were not sent (unchanged TOAST).
    """

    target: str
    table: TableSchema | None
    index: Int64s
    commit_lsn: Int64s
    rows: RowsT
    unchanged: bool = False


@dataclass(frozen=True, slots=True)
class Arrange(Generic[RowsT]):
    """How a format's rows are put together: `concat` several, `take` some in a given order."""

    concat: Callable[[Sequence[RowsT]], RowsT]
    take: Callable[[RowsT, Int64s], RowsT]

    def in_order(self, parts: Sequence[Encoded[RowsT]]) -> list[Encoded[RowsT]]:
        """Join what goes to one target and table; each target's results are in stream order.

        There is more than one for a target where its table changed in between.
        """
        groups: dict[tuple[str, str], list[Encoded[RowsT]]] = {}
        for part in parts:
            groups.setdefault((part.target, part.table.fingerprint if part.table else ""), []).append(part)
        merged = [self._merge(group) for group in groups.values()]
        targets = dict.fromkeys(part.target for part in merged)
        versions = [[part for part in merged if part.target == target] for target in targets]
        return [piece for version in versions for piece in self._cut(version)]

    def _merge(self, parts: Sequence[Encoded[RowsT]]) -> Encoded[RowsT]:
        if len(parts) == 1:
            return self._sorted(parts[0])
        index = np.concatenate([part.index for part in parts])
        commit_lsn = np.concatenate([part.commit_lsn for part in parts])
        rows = self.concat([part.rows for part in parts])
        unchanged = any(part.unchanged for part in parts)
        return self._sorted(Encoded(parts[0].target, parts[0].table, index, commit_lsn, rows, unchanged))

    def _sorted(self, part: Encoded[RowsT]) -> Encoded[RowsT]:
        if (part.index[1:] > part.index[:-1]).all():
            return part
        return self._pick(part, np.argsort(part.index))

    def _pick(self, part: Encoded[RowsT], chosen: Int64s) -> Encoded[RowsT]:
        rows = self.take(part.rows, chosen)
        return replace(part, index=part.index[chosen], commit_lsn=part.commit_lsn[chosen], rows=rows)

    def _cut(self, versions: Sequence[Encoded[RowsT]]) -> list[Encoded[RowsT]]:
        """Interleave a table's versions (each sorted) in stream order, in as few pieces as that allows."""
        if len(versions) == 1:
            return list(versions)
        index = np.concatenate([version.index for version in versions])
        owner = np.repeat(np.arange(len(versions)), [len(version.index) for version in versions])
        order = np.argsort(index)
        runs = np.split(order, np.flatnonzero(np.diff(owner[order])) + 1)
        return [self._run(versions[owner[run[0]]], index[run[0]], index[run[-1]]) for run in runs]

    def _run(self, version: Encoded[RowsT], first: int, last: int) -> Encoded[RowsT]:
        chosen = np.flatnonzero((version.index >= first) & (version.index <= last))
        return version if len(chosen) == len(version.index) else self._pick(version, chosen)


def commit_range(part: Encoded[RowsT]) -> tuple[Lsn, Lsn]:
    """Find the commit LSNs of the first and the last row."""
    return Lsn(part.commit_lsn[0]), Lsn(part.commit_lsn[-1])


def place(stamp: Stamp) -> tuple[Int64s, Int64s]:
    """Give the `index` and `commit_lsn` of a single row."""
    return np.array([stamp.index], np.int64), np.array([stamp.commit_lsn], np.int64)


def tables_of(part: Slice) -> tuple[TableSchema, ...]:
    """All tables that a slice speaks of, each version once."""
    tables = [*(batch.table for batch in part.changes), *(truncate.table for truncate in part.truncates)]
    return tuple({table.fingerprint: table for table in tables}.values())


Lines: TypeAlias = "ArrowArray | list[bytes]"
EncodedLines: TypeAlias = "Encoded[Lines]"

MOST_ROWS = 24
"""Rows from about which on columns are quicker than one after the other."""


def are_few(rows: int) -> bool:
    """Say whether so many rows of a table and shape are quicker written one by one."""
    return rows <= MOST_ROWS


def _concat(parts: Sequence[Lines]) -> Lines:
    if all(isinstance(part, list) for part in parts):
        return list(chain.from_iterable(cast("Sequence[list[bytes]]", parts)))
    return kernels.concat_bytes([kernels.binary(part) if isinstance(part, list) else part for part in parts])


def _take(lines: Lines, rows: Int64s) -> Lines:
    return [lines[row] for row in rows.tolist()] if isinstance(lines, list) else kernels.take(lines, rows)


LINES: Arrange[Lines] = Arrange(_concat, _take)


def not_empty(lines: Lines) -> Booleans | None:
    """Say which rows have a text at all; None if all have."""
    if isinstance(lines, list):
        return None if all(lines) else np.array([len(line) > 0 for line in lines])
    mask: Booleans = np.diff(kernels.value_bytes(lines)[0]) > 0
    return None if mask.all() else mask


def joined_lines(lines: Lines) -> bytes | pa.Buffer:
    """Give lines as one piece of data."""
    return b"".join(lines) if isinstance(lines, list) else kernels.contiguous(lines)
