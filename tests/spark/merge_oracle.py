"""The expected result of a merge, computed by a plain function over a list of changes: an oracle for Spark.

Values are PostgreSQL's text, None for NULL; a row is a dict by column name.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

Value = str | None
Row = dict[str, Value]
Key = tuple[Value, ...]

MISSING = "<never sent>"
"""In place of an unchanged TOAST value that no earlier change has."""


@dataclass(frozen=True)
class Change:
    """`op` is I, U, D, T or R; `old` is the old image as sent: none, the key, or (`old_full`) all of it."""

    op: str
    commit_lsn: int
    seq: int
    new: Row | None = None
    old: Row | None = None
    old_full: bool = False
    unchanged: frozenset[str] = field(default_factory=frozenset)


def insert(lsn: int, **values: str | None) -> Change:
    return Change("I", lsn, 0, values)


def update(lsn: int, old: Row | None = None, unsent: str = "", **values: str | None) -> Change:
    """Make an update; `unsent` names a column whose value is an unchanged TOAST value."""
    unchanged = frozenset({unsent} if unsent else ())
    return Change("U", lsn, 0, {**values, **dict.fromkeys(unchanged)}, old, unchanged=unchanged)


def delete(lsn: int, **key: str) -> Change:
    return Change("D", lsn, 0, old=dict(key))


def order(change: Change) -> tuple[int, bool, int]:
    """Sort key for changes: at the same commit LSN, snapshot rows come first."""
    return change.commit_lsn, change.op != "R", change.seq


def fold(changes: Iterable[Change], key: Sequence[str]) -> dict[Key, Row]:
    """Apply changes one by one to an empty table; a value that can't be known is MISSING."""
    table: dict[Key, Row] = {}
    for change in sorted(changes, key=order):
        if change.op == "T":
            table.clear()
            continue
        before: Row = {}
        if change.op in "UD":
            image = {**(change.new or {}), **(change.old or {})}
            before = {**table.pop(tuple(image[name] for name in key), {}), **(change.old or {})}
        if change.new is not None:
            sent = {name: value for name, value in change.new.items() if name not in change.unchanged}
            row = {**{name: before.get(name, MISSING) for name in change.unchanged}, **sent}
            table[tuple(row[name] for name in key)] = row
    return table
