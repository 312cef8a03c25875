"""What stored changes amount to: how many of which table, in which transactions, from when to when."""

import heapq
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import NamedTuple

from pgcdc_cli.formats.pretty import Change, parse_line

_LARGEST = 5
"""Transactions that are listed."""

_CHANGES = frozenset("IUDTMR")


class Transaction(NamedTuple):
    """A transaction's changes; `xid` and `ts` are None where nothing tells (of a snapshot, say)."""

    changes: int
    commit_lsn: str
    xid: int | None
    ts: str | None


class Commit(NamedTuple):
    """Where and when a transaction ended."""

    lsn: str
    ts: str | None


@dataclass
class Statistics:
    """`operations` counts by table and letter of `op`; `largest` are transactions, the largest first."""

    operations: Counter[tuple[str, str]] = field(default_factory=Counter)
    transactions: int = 0
    largest: list[Transaction] = field(default_factory=list)
    first: Commit | None = None
    last: Commit | None = None

    def end_of(self, transaction: Transaction) -> None:
        """Count a transaction whose changes have all come."""
        commit = Commit(transaction.commit_lsn, transaction.ts)
        self.transactions += 1
        self.first = self.first or commit
        self.last = commit
        self.largest = heapq.nlargest(_LARGEST, [*self.largest, transaction], key=lambda one: one.changes)


def count(lines: Iterable[tuple[str, str]]) -> Statistics:
    """Count changes, each a table and its JSON line, in the order in which they happened.

    Beginnings and ends of transactions are none. Memory holds the tables and the largest transactions.
    """
    statistics = Statistics()
    current: Transaction | None = None
    for table, line in lines:
        change = parse_line(line)
        if change.get("op") not in _CHANGES:
            continue
        statistics.operations[table, change["op"]] += 1
        if current is not None and current.commit_lsn == change["commit_lsn"]:
            current = current._replace(changes=current.changes + 1)
            continue
        if current is not None:
            statistics.end_of(current)
        current = _begun(change)
    if current is not None:
        statistics.end_of(current)
    return statistics


def _begun(change: Change) -> Transaction:
    xid = change.get("xid")
    return Transaction(1, change["commit_lsn"], None if xid is None else int(xid), change.get("ts"))
