"""The numbers of events in their transactions, for all of a slice at once."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from pgcdc_cli.pgoutput.changes import Int64s


@dataclass(frozen=True, slots=True, eq=False)
class Changes:
    """n changes of one table, by its name: where they stand in the stream, and how many events each is."""

    table: str
    index: Int64s
    counts: Int64s


class Orders(NamedTuple):
    """A change's first event, counted from 1: in its transaction, and among its table's there."""

    total: Int64s
    table: Int64s


@dataclass(frozen=True, slots=True, eq=False)
class Sums:
    """How many events of which table each transaction has, in the order of the tables' first events there.

    The arrays have an element for each transaction and table with an event: the transaction's number (a
    transaction is what stands before a mark and behind the one before), the table's in `names`, the events.
    """

    names: Sequence[str]
    transaction: Int64s
    table: Int64s
    events: Int64s

    def of(self, transaction: int) -> dict[str, int]:
        """Give one transaction's by the tables' names."""
        chosen = self.transaction == transaction
        tables = [self.names[table] for table in self.table[chosen].tolist()]
        return dict(zip(tables, self.events[chosen].tolist(), strict=True))


def count(changes: Sequence[Changes], marks: Int64s, before: Mapping[str, int]) -> tuple[list[Orders], Sums]:
    """Number the events of changes, for each in turn, and sum them up.

    `marks` are where transactions begin and end, ascending, and `before` are the events by table that the
    first one had before the slice.
    """
    parts = [_before(table, events) for table, events in before.items()] + list(changes)
    names = list(dict.fromkeys(part.table for part in parts))
    sizes = [len(part.index) for part in parts]
    tables = np.repeat(np.array([names.index(part.table) for part in parts], np.int64), sizes)
    index, counts = _joined([part.index for part in parts]), _joined([part.counts for part in parts])
    order = np.argsort(index, kind="stable")
    transaction = np.searchsorted(marks, index[order])
    group = transaction * len(names) + tables[order]
    by_group = np.argsort(group, kind="stable")
    grouped = order[by_group]
    total, of_table = np.empty_like(counts), np.empty_like(counts)
    total[order] = _numbers(counts[order], transaction)
    of_table[grouped] = _numbers(counts[grouped], group[by_group])
    cuts = np.cumsum(sizes)
    orders = list(map(Orders, np.split(total, cuts), np.split(of_table, cuts)))
    return orders[len(before) : -1], _sums(names, group[by_group], counts[grouped], by_group)


def _before(table: str, events: int) -> Changes:
    return Changes(table, np.array([-1], np.int64), np.array([events], np.int64))


def _joined(columns: Sequence[Int64s]) -> Int64s:
    return np.concatenate([np.empty(0, np.int64), *columns])


def _numbers(counts: Int64s, groups: Int64s) -> Int64s:
    """Number each row's first event in its group, where the rows of a group stand together."""
    before = np.cumsum(counts) - counts
    first = _firsts(groups)
    numbers: Int64s = before - np.repeat(before[first], np.diff(first, append=len(groups))) + 1
    return numbers


def _firsts(groups: Int64s) -> Int64s:
    return np.flatnonzero(np.diff(groups, prepend=-1))


def _sums(names: Sequence[str], groups: Int64s, counts: Int64s, places: Int64s) -> Sums:
    """Sum up the rows of each group, which stand together; `places` are theirs in the stream."""
    some = counts > 0
    groups, counts, places = groups[some], counts[some], places[some]
    first = _firsts(groups)
    order = np.argsort(places[first])
    transaction, table = np.divmod(groups[first][order], len(names) or 1)
    return Sums(names, transaction, table, np.add.reduceat(counts, first)[order] if len(first) else counts)
