"""Choose stored changes by their content."""

from collections.abc import Iterator
from dataclasses import dataclass
from datetime import datetime
from typing import Any, TypeAlias

from pgcdc_cli.errors import ErrorKind, PgcdcError
from pgcdc_cli.formats.exact_json import Change, parse_line
from pgcdc_cli.formats.pretty import image
from pgcdc_cli.lsn import Lsn
from pgcdc_cli.reader.restored_change import MISREAD, unfit_line

Moment: TypeAlias = Lsn | datetime
"""A position in the log, or a commit time with time zone."""


@dataclass(frozen=True, slots=True)
class ChangeFilter:
    """Conditions on a change; all that are given must hold.

    `operations` are the letters of `op`. `key` are columns and their texts, in the new row or in the old one,
    whose missing columns are taken from the new one. `columns`: at least one of them has a value that isn't
    known to equal its old one. `since` and `until` are commits, inclusive. `at` is the LSN of a change or of
    its commit.
    """

    operations: frozenset[str] = frozenset()
    key: tuple[tuple[str, str], ...] = ()
    columns: frozenset[str] = frozenset()
    since: Moment | None = None
    until: Moment | None = None
    at: Lsn | None = None

    def wants(self, line: str) -> bool:
        """Whether a change, given as its JSON line, is wanted.

        Raises PgcdcError: PROTOCOL for a line with values that don't fit, and USAGE if the change's format
        has no such value.
        """
        if self == _EVERYTHING:
            return True
        try:
            return self._wants(parse_line(line))
        except MISREAD as error:
            raise unfit_line(line, error) from error

    def is_unsure(self, line: str) -> bool:
        """Whether a change's LSN, or its commit's, isn't known, so that it may be `at`."""
        if self.at is None:
            return False
        change = parse_line(line)
        return None in (change.get("lsn"), change.get("commit_lsn"))

    def lacks_position(self) -> PgcdcError:
        """Return the error for `at` if it is none of the LSNs that are known, and some are not."""
        return _untold("--at", "LSN, or not their commit's")

    def _wants(self, change: Change) -> bool:
        return (
            (not self.operations or change.get("op") in self.operations)
            and (not self.key or self._has_key(change))
            and (not self.columns or self._touches(change))
            and (self.since is None or _is_from(change, self.since))
            and (self.until is None or _is_up_to(change, self.until))
            and (self.at is None or self.at in _positions(change))
        )

    def _has_key(self, change: Change) -> bool:
        """Look for the key in the new row, and in the old one, which has it if the key was changed."""
        return any(
            all(values.get(name) == text for name, text in self.key)
            for values in (_texts(change, "new"), {**_texts(change, "new"), **_texts(change, "old")})
        )

    def _touches(self, change: Change) -> bool:
        new, old = image(change, "new"), image(change, "old")
        if not new:
            return not self.columns.isdisjoint(old)
        return any(name in new and new[name] != old.get(name) for name in self.columns)


_EVERYTHING = ChangeFilter()


def _texts(change: Change, label: str) -> dict[str, str]:
    """Return an image's values as text, other than strings in JSON's form; NULLs are left out."""
    values, look = change.get(label) or {}, image(change, label)
    return {
        name: str(value) if isinstance(value, str) else look[name]
        for name, value in values.items()
        if value is not None
    }


def _positions(change: Change) -> Iterator[Lsn]:
    for name in ("lsn", "commit_lsn"):
        if change.get(name) is not None:
            yield Lsn.parse(change[name])


def _is_from(change: Change, since: Moment) -> bool:
    commit = _commit(change, since)
    return commit is not None and commit >= since


def _is_up_to(change: Change, until: Moment) -> bool:
    commit = _commit(change, until)
    return commit is not None and commit <= until


def _commit(change: Change, like: Moment) -> Any:  # noqa: ANN401 - what can be compared to `like`
    """Return a change's commit LSN or commit time, whichever `like` is; None if the change has none."""
    by_position = isinstance(like, Lsn)
    name = "commit_lsn" if by_position else "ts"
    text = change.get(name)
    if text is None:
        if "op" in change and (name not in change or change.get("commit_lsn", "") is None):
            raise _untold("--since and --until", "commit's LSN" if by_position else "commit's time")
        return None
    return Lsn.parse(text) if by_position else datetime.fromisoformat(text)


def _untold(options: str, what: str) -> PgcdcError:
    return PgcdcError(
        ErrorKind.USAGE,
        f"could not choose changes by {options}: the file doesn't have their {what}",
        hint="Debezium's events have a change's LSN and its commit's time; wal2json's lines what include-lsn "
        "and include-timestamp asked for; streamed and prepared changes of a capture neither",
    )
