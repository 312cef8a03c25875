"""Every kind of error: its exit status, whether a retry may help, and a hint what to do about it.

The exit statuses are part of the command line's contract (`docs/exit-status.md`).
"""

import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from difflib import get_close_matches
from enum import Enum, unique
from typing import NamedTuple

INTERRUPTED = 130
"""The exit status of a command that a signal ended: as a shell reports it for SIGINT, 128 + 2."""

READER_GONE = 141
"""The exit status of a program that SIGPIPE ended, as a shell reports it: 128 + 13."""

_SECRETS = (
    re.compile(r"(://[^:@/?#\s]*:)\S*(@)"),
    re.compile(
        r"((?:^|[?&\s\"'(])\w*(?:password|secret|scram_\w+_key)\s*=\s*)"
        r"(?:'(?:[^'\\]|\\.)*'?|(?:\\.|[^\s&\\])+)()",
        re.IGNORECASE,
    ),
)


def mask(text: str) -> str:
    """Replace passwords and secrets in a text's connection URIs and conninfo strings by asterisks."""
    for secret in _SECRETS:
        text = secret.sub(r"\1***\2", text)
    return text


class Rule(NamedTuple):
    exit_status: int
    transient: bool
    hint: str


@unique
class ErrorKind(Enum):
    """What went wrong, as a caller of pgcdc would tell the cases apart."""

    UNEXPECTED = Rule(1, False, "run again with --debug and report the traceback")
    SERVER_FAULT = Rule(1, True, "the server failed, and its log may say more: run again")
    USAGE = Rule(2, False, "see --help")
    CONNECTION = Rule(3, True, "check that the server is running and reachable, and -h, -p and -d")
    NOT_READY = Rule(3, True, "the server is starting up or shutting down, or ended the session: run again")
    AUTHENTICATION = Rule(4, False, "check user, password (PGPASSWORD, ~/.pgpass or -W) and pg_hba.conf")
    RIGHTS = Rule(
        4, False, "the role needs REPLICATION, and SELECT on what it reads: see pgcdc doctor --role NAME"
    )
    SLOT_MISSING = Rule(5, False, "see which exist with: pgcdc slot list; or add --create-slot")
    SLOT_EXISTS = Rule(5, False, "drop it first, or add --if-not-exists")
    SLOT_ACTIVE = Rule(5, True, "another process is using it: see pgcdc slot list")
    SLOT_SYNCED = Rule(5, True, "nothing is lost: promote the standby, or connect to the primary")
    SLOT_INVALIDATED = Rule(
        6,
        False,
        "its changes are lost: drop it, and start over, with a snapshot, in another directory or file",
    )
    GAP = Rule(6, False, "changes in between are lost: --accept-gap continues without them")
    PUBLICATION = Rule(7, False, "see which exist with: pgcdc publication list")
    PROTOCOL = Rule(8, False, "none of it was confirmed: report it and attach the .bad file")
    OUTPUT = Rule(9, False, "only what was written was confirmed: fix the cause and run again")
    CHECKPOINT = Rule(
        10, False, "restore the file from a copy, or start over with an empty directory and a new slot"
    )
    LOCKED = Rule(11, False, "another run is writing here: wait for it to end")
    TIMEOUT = Rule(12, False, "run again to continue from where it stopped")
    SOURCE_CHANGED = Rule(
        13, False, "use another directory, or connect to the source that the checkpoint names"
    )
    SPARK = Rule(14, False, "see the output of spark-submit above; add --verbose")
    UNFIT = Rule(15, False, "the statements under each error fix it: run them, then pgcdc doctor again")

    @property
    def rule(self) -> Rule:
        return self.value


class PgcdcError(Exception):
    """A failure that is reported to the user in one line, `could not X "name": reason`, and a hint.

    `hint` replaces the kind's default hint where it can name the exact statement or option that helps.
    """

    def __init__(self, kind: ErrorKind, message: str, *, hint: str | None = None) -> None:
        super().__init__(message)
        self.kind = kind
        self.message = message
        self.hint = hint or kind.rule.hint


def exit_status(error: BaseException) -> int:
    """Return the exit status of a command that ends with this error."""
    if isinstance(error, PgcdcError):
        return error.kind.rule.exit_status
    if isinstance(error, KeyboardInterrupt):
        return INTERRUPTED
    return READER_GONE if isinstance(error, BrokenPipeError) else ErrorKind.UNEXPECTED.rule.exit_status


class MalformedError(ValueError):
    """A value that is not its type's send format; `row` is its index in the column."""

    def __init__(self, reason: str, row: int = 0) -> None:
        super().__init__(reason)
        self.reason = reason
        self.row = row


class UndecodableError(PgcdcError):
    """Bytes from the server that are not a valid protocol message.

    `data` is the message, or the whole frame if the frame is malformed. `kind` is UNEXPECTED where the
    message may well be valid, and pgcdc itself failed on it. `remedy` is a hint for cases that need no bug
    report.
    """

    def __init__(
        self, message: str, data: bytes, kind: ErrorKind = ErrorKind.PROTOCOL, *, remedy: str | None = None
    ) -> None:
        super().__init__(kind, message, hint=remedy)
        self.data = data
        self.remedy = remedy


@contextmanager
def hints(by_kind: Mapping[ErrorKind, str]) -> Iterator[None]:
    """Replace the hints of errors of these kinds by hints that fit what is done."""
    try:
        yield
    except PgcdcError as error:
        error.hint = by_kind.get(error.kind, error.hint)
        raise


def nearest(name: str, existing: Sequence[str], most: int = 3) -> list[str]:
    """Return up to `most` existing names that resemble one that doesn't exist; case is ignored."""
    by_folded = {one.casefold(): one for one in existing}
    return [by_folded[one] for one in get_close_matches(name.casefold(), by_folded, most)]


def quoted_list(names: Sequence[str]) -> str:
    """Format names as `"a", "b"`."""
    return ", ".join(f'"{name}"' for name in names)
