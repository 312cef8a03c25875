"""What every kind of file gives."""

from collections.abc import Mapping
from fnmatch import fnmatchcase
from typing import NamedTuple, TypeAlias

from pgcdc_cli.errors import ErrorKind, PgcdcError
from pgcdc_cli.pgoutput.messages import Message, Relation

Order: TypeAlias = tuple[int, int, int]
"""Place in history: commit LSN, 0 for rows of a snapshot else 1, number in the transaction."""


class Record(NamedTuple):
    """One change, or another message of a capture.

    `table` is `schema.table`, `_messages`, or empty for what has none; `line` is JSON, in one line without
    its line break. `capture` is the message itself, and the relations known before it. `schema` is the path
    of the table's schema file in its directory, where that knows it. `exact` says that no line break of a
    json value became a blank in the line.
    """

    order: Order
    table: str
    line: str
    capture: tuple[Message, Mapping[int, Relation]] | None = None
    schema: str | None = None
    exact: bool = False


def damaged(path: str, reason: str) -> PgcdcError:
    """Refuse a file that isn't what it was when it was finished."""
    return PgcdcError(
        ErrorKind.CHECKPOINT,
        f'could not read "{path}": {reason}',
        hint="the file was damaged or changed after it was written: restore it from a copy",
    )


def undecodable(path: str, reason: str) -> PgcdcError:
    """Refuse a file that holds something else than pgcdc or pg_recvlogical writes."""
    return PgcdcError(
        ErrorKind.PROTOCOL,
        f'could not read "{path}": {reason}',
        hint="pgcdc shows its own files (JSON lines, Arrow) and what pg_recvlogical captured of pgoutput",
    )


class TableFilter:
    """Patterns such as `public.*`, with the wildcards *, ? and [...]; none lets everything through."""

    def __init__(self, patterns: tuple[str, ...]) -> None:
        self._patterns = patterns

    def __call__(self, table: str) -> bool:
        return not self._patterns or any(fnmatchcase(table, pattern) for pattern in self._patterns)
