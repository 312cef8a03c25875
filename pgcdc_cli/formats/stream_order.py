"""A slice's encoded rows, back in stream order: batches hold them by table and shape."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Generic, TypeVar

import numpy as np

from pgcdc_cli.changes.slice import Slice
from pgcdc_cli.changes.table import TableSchema
from pgcdc_cli.lsn import Lsn
from pgcdc_cli.types.kernels import Int64s

RowsT = TypeVar("RowsT")

MESSAGES = "_messages"
"""The target of logical messages, which belong to no table."""


@dataclass(frozen=True, slots=True, eq=False)
class Encoded(Generic[RowsT]):
    """Rows for one target, of one table or (None) of none; `index` is where they stood in the stream.

    `unchanged` says that there are rows with values that were not sent (unchanged TOAST).
    """

    target: str
    table: TableSchema | None
    index: Int64s
    commit_lsn: Int64s
    rows: RowsT
    unchanged: bool = False

    @property
    def commit_range(self) -> tuple[Lsn, Lsn]:
        """The commit LSNs of the first and the last row."""
        return Lsn(self.commit_lsn[0]), Lsn(self.commit_lsn[-1])


@dataclass(frozen=True, slots=True)
class Arrange(Generic[RowsT]):
    """How a format's rows are put together: `concat` several, `take` some in a given order."""

    concat: Callable[[Sequence[RowsT]], RowsT]
    take: Callable[[RowsT, Int64s], RowsT]

    def in_order(self, encoded: Sequence[Encoded[RowsT]]) -> list[Encoded[RowsT]]:
        """Join what goes to one target and table; each target's results are in stream order.

        There is more than one for a target where its table changed in between.
        """
        groups: dict[tuple[str, str], list[Encoded[RowsT]]] = {}
        for one in encoded:
            groups.setdefault((one.target, one.table.fingerprint if one.table else ""), []).append(one)
        merged = [self._merge(group) for group in groups.values()]
        targets = dict.fromkeys(one.target for one in merged)
        versions = [[one for one in merged if one.target == target] for target in targets]
        return [run for version in versions for run in self._cut(version)]

    def _merge(self, group: Sequence[Encoded[RowsT]]) -> Encoded[RowsT]:
        if len(group) == 1:
            return self._sorted(group[0])
        index = np.concatenate([one.index for one in group])
        commit_lsn = np.concatenate([one.commit_lsn for one in group])
        rows = self.concat([one.rows for one in group])
        unchanged = any(one.unchanged for one in group)
        return self._sorted(Encoded(group[0].target, group[0].table, index, commit_lsn, rows, unchanged))

    def _sorted(self, encoded: Encoded[RowsT]) -> Encoded[RowsT]:
        if (encoded.index[1:] > encoded.index[:-1]).all():
            return encoded
        return self._pick(encoded, np.argsort(encoded.index))

    def _pick(self, encoded: Encoded[RowsT], chosen: Int64s) -> Encoded[RowsT]:
        rows = self.take(encoded.rows, chosen)
        return replace(encoded, index=encoded.index[chosen], commit_lsn=encoded.commit_lsn[chosen], rows=rows)

    def _cut(self, versions: Sequence[Encoded[RowsT]]) -> list[Encoded[RowsT]]:
        """Interleave a table's versions (each sorted) in stream order, in as few runs as that allows."""
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


def tables_of(slice_: Slice) -> tuple[TableSchema, ...]:
    """All tables that a slice speaks of, each version once."""
    tables = [*(batch.table for batch in slice_.changes), *(event.table for event in slice_.truncates)]
    return tuple({table.fingerprint: table for table in tables}.values())
