"""Statistics of stored changes: numbers by table and operation, transactions, first and last commit."""

import heapq
from collections import Counter
from collections.abc import Collection, Iterable
from dataclasses import dataclass, field
from typing import NamedTuple

from pgcdc_cli.formats.exact_json import Change, parse_line
from pgcdc_cli.reader.restored_change import MISREAD, unfit_line

_LARGEST = 5
"""Number of transactions that are listed."""

_CHANGES = frozenset("IUDTMR")


class Transaction(NamedTuple):
    """A transaction's number of changes; the rest is None if unknown (as for a snapshot)."""

    changes: int
    commit_lsn: str | None
    xid: int | None
    ts: str | None


class StoredCommit(NamedTuple):
    """Commit LSN and time of a transaction, as far as known."""

    lsn: str | None
    ts: str | None


@dataclass
class Statistics:
    """`operations` counts changes by table and letter of `op`; `largest` are transactions, the largest first.

    `transactions` is None if the files don't say to which one a change belongs; then `largest` is empty.
    """

    operations: Counter[tuple[str, str]] = field(default_factory=Counter)
    transactions: int | None = 0
    largest: list[Transaction] = field(default_factory=list)
    first: StoredCommit | None = None
    last: StoredCommit | None = None

    def see(self, change: Transaction) -> None:
        """Extend the time span to a change's commit, or to when a snapshot's row was read."""
        commit = StoredCommit(change.commit_lsn, change.ts)
        if commit != (None, None):
            self.first = self.first or commit
            self.last = commit

    def end_of(self, transaction: Transaction) -> None:
        """Count a transaction whose changes are complete."""
        self.see(transaction)
        if self.transactions is None:
            return
        self.transactions += 1
        self.largest = heapq.nlargest(_LARGEST, [*self.largest, transaction], key=lambda one: one.changes)


def count(lines: Iterable[tuple[str, str]], empty: Collection[str] = ()) -> Statistics:
    """Count changes, each given as its table and JSON line, in the order in which they happened.

    Begins and ends of transactions aren't counted, but separate them. A snapshot's rows belong to none.
    `empty` are tables of which a snapshot had no rows. Memory holds the tables and the largest transactions.
    Raises PgcdcError (PROTOCOL) for a line with values that don't fit.
    """
    statistics = Statistics()
    current: Transaction | None = None
    shared, bounded = None, False
    for table, line in lines:
        operation, identity, begun = _read(line)
        if operation in ("B", "C"):
            _ended(statistics, current)
            current, bounded = None, operation == "B"
        if operation not in _CHANGES:
            continue
        statistics.operations[table, operation] += 1
        if operation == "R":
            _ended(statistics, current)
            current = None
            statistics.see(begun)
            continue
        if identity is None and not bounded:
            _ended(statistics, current)
            current = None
            statistics.transactions, statistics.largest = None, []
        if current is not None and identity == shared:
            current = current._replace(changes=current.changes + 1)
        else:
            _ended(statistics, current)
            current, shared = begun, identity
    _ended(statistics, current)
    unchanged = set(empty) - {table for table, _ in statistics.operations}
    statistics.operations.update({(table, "R"): 0 for table in unchanged})
    return statistics


def _ended(statistics: Statistics, transaction: Transaction | None) -> None:
    if transaction is not None:
        statistics.end_of(transaction)


def _read(line: str) -> tuple[str, object, Transaction]:
    """Read a change's operation ("" for another message), identity, and transaction, as its first change."""
    try:
        change = parse_line(line)
        xid = change.get("xid")
        commit_lsn, ts = (_text(change.get(name)) for name in ("commit_lsn", "ts"))
        begun = Transaction(1, commit_lsn, None if xid is None else int(xid), ts)
        return _text(change.get("op")) or "", _identity(change), begun
    except MISREAD as error:
        raise unfit_line(line, error) from error


def _text(value: object) -> str | None:
    """Raises TypeError for a value that is neither text nor null."""
    if value is None or isinstance(value, str):
        return value
    raise TypeError


def _identity(change: Change) -> object:
    """Return a value that all changes of a transaction share; None if unknown.

    For changes outside of transactions, as in a snapshot, it is the LSN.
    """
    if "commit_lsn" in change:
        return change["commit_lsn"]
    return (change["xid"] or change.get("lsn")) if "xid" in change else None
