"""The text of replication commands, and pgoutput's options by server version.

PostgreSQL manual, "Streaming Replication Protocol" and "Logical Streaming Replication Parameters". Quoting as
in `src/backend/replication/repl_scanner.l`: quotes are doubled, a backslash is literal.
"""

import re
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass
from typing import Literal

from psycopg import sql

from pgcdc_cli.errors import ErrorKind, PgcdcError
from pgcdc_cli.lsn import Lsn
from pgcdc_cli.types.database_text import folded

PluginOptions = Collection[tuple[str, str | None]]
"""Names and values, in order; None is an option without a value, which plugins take for true.

What a name that comes twice means is for the plugin to say: pgoutput refuses it, others add the values up.
"""

StreamingOption = Literal["off", "on", "parallel"]
OriginOption = Literal["any", "none"]

PROTOCOLS = {1: 10, 2: 14, 3: 15, 4: 16}
"""The first major version of the server that supports a protocol version, by that version."""

_STREAMING_PROTOCOL = {"off": 1, "on": 2, "parallel": 4}
_TWO_PHASE_PROTOCOL = 3
_BINARY_SINCE = _MESSAGES_SINCE = 14
_ORIGIN_SINCE = 16

SLOT_NAME_HINT = "a slot's name has lower case letters, digits and underscores, 63 at most"

# The function begins by emptying the session's caches of tables, and ends after one record.
_FORGET_TABLES = "SELECT count(*) FROM pg_logical_slot_peek_binary_changes({}, '0/1', 1, VARIADIC {}::text[])"

_CHANGE_THE_SLOT = {"two_phase", "two-phase"}
"""Options of pgoutput, and of test_decoding."""

_SLOT_NAME = re.compile("[a-z0-9_]{1,63}")
_NAME = re.compile(r'\s*(?:"((?:[^"]|"")*)"|([^",\s]+))\s*(?:,|$)')


def create_slot(
    slot: str, plugin: str, flags: Iterable[str], *, temporary: bool, export: bool = False
) -> str:
    kind = "TEMPORARY LOGICAL" if temporary else "LOGICAL"
    options = ", ".join([f"SNAPSHOT '{'export' if export else 'nothing'}'", *flags])
    return f"CREATE_REPLICATION_SLOT {quote_identifier(slot)} {kind} {quote_identifier(plugin)} ({options})"


def drop_slot(slot: str, *, wait: bool) -> str:
    return f"DROP_REPLICATION_SLOT {quote_identifier(slot)}{' WAIT' if wait else ''}"


def alter_slot(slot: str, flags: Mapping[str, bool]) -> str:
    pairs = ", ".join(f"{flag} {'true' if on else 'false'}" for flag, on in flags.items())
    return f"ALTER_REPLICATION_SLOT {quote_identifier(slot)} ({pairs})"


def start_replication(slot: str, lsn: Lsn, options: PluginOptions) -> str:
    pairs = ", ".join(
        quote_identifier(name) + ("" if value is None else f" {quote_literal(value)}")
        for name, value in options
    )
    tail = f" ({pairs})" if pairs else ""
    return f"START_REPLICATION SLOT {quote_identifier(slot)} LOGICAL {lsn}{tail}"


def forget_tables(slot: str, options: PluginOptions) -> sql.Composed:
    """Write a query that makes a walsender forget the tables that are open in it.

    It would decode changes from before an ALTER TABLE with their present columns. `two_phase` is left out: it
    changes the slot.
    """
    kept = [(name, value or "on") for name, value in options if name not in _CHANGE_THE_SLOT]
    words = [word for pair in kept for word in pair]
    return sql.SQL(_FORGET_TABLES).format(sql.Literal(slot), sql.Literal(words))


@dataclass(frozen=True, slots=True)
class Protocol:
    """The options to request from pgoutput; None means the best that the server supports.

    With `newest` false, None means the lowest version that the other options need, and no streaming.
    """

    version: int | None = None
    streaming: StreamingOption | None = None
    two_phase: bool = False
    binary: bool = False
    messages: bool = False
    origin: OriginOption | None = None
    newest: bool = True

    def __post_init__(self) -> None:
        """Raise USAGE if the version is too low for the other options."""
        if self.version is not None and self.version < self._needed:
            what = "--two-phase" if self.two_phase else f"--streaming {self.streaming}"
            raise PgcdcError(
                ErrorKind.USAGE,
                f"could not use --proto-version {self.version}: {what} needs {self._needed}",
                hint="leave out --proto-version: the server's newest is the default",
            )

    def options(self, server_version: int) -> Mapping[str, str]:
        """Return the options for START_REPLICATION.

        `server_version` is like 180004 for 18.4. Raises USAGE for an option that the server doesn't support.
        """
        major = server_version // 10000
        version = self._version(major)
        streaming = self.streaming or self._best_streaming(version)
        self._check(streaming, major, version)
        found = {"proto_version": str(version)}
        if streaming != "off":
            found["streaming"] = streaming
        wanted = {"two_phase": self.two_phase, "binary": self.binary, "messages": self.messages}
        found |= {name: "true" for name, on in wanted.items() if on}
        return found if self.origin is None else found | {"origin": self.origin}

    def _version(self, major: int) -> int:
        if self.version is not None:
            return self.version
        newest = max(version for version, since in PROTOCOLS.items() if since <= major)
        return newest if self.newest else self._needed

    @property
    def _needed(self) -> int:
        return max(_STREAMING_PROTOCOL[self.streaming or "off"], _TWO_PHASE_PROTOCOL if self.two_phase else 1)

    def _best_streaming(self, version: int) -> StreamingOption:
        if not self.newest or version < _STREAMING_PROTOCOL["on"]:
            return "off"
        return "parallel" if version >= _STREAMING_PROTOCOL["parallel"] else "on"

    def _check(self, streaming: StreamingOption, major: int, version: int) -> None:
        needs = (
            (f"--proto-version {version}", PROTOCOLS[version], True),
            (f"--streaming {streaming}", PROTOCOLS[_STREAMING_PROTOCOL[streaming]], True),
            ("--two-phase", PROTOCOLS[_TWO_PHASE_PROTOCOL], self.two_phase),
            ("--binary", _BINARY_SINCE, self.binary),
            ("--messages", _MESSAGES_SINCE, self.messages),
            ("--origin", _ORIGIN_SINCE, self.origin is not None),
        )
        wanted = [(what, since) for what, since, asked in needs if asked and since > major]
        for what, since in sorted(wanted, key=lambda need: -need[1])[:1]:
            raise PgcdcError(
                ErrorKind.USAGE,
                f"could not use {what}: the server is PostgreSQL {major}, and only {since} or newer has it",
                hint="leave it out: the default is the best that the server supports",
            )


def publication_names(names: Iterable[str]) -> str:
    """Format a value for pgoutput's option `publication_names`."""
    return ",".join(quote_identifier(name) for name in names)


def split_names(value: str) -> tuple[str, ...]:
    """Parse a value of `publication_names` as the server does (`SplitIdentifierString`)."""
    return tuple(
        quoted.replace('""', '"') if quoted else folded(plain) for quoted, plain in _NAME.findall(value)
    )


def quote_identifier(name: str) -> str:
    return '"' + _checked(name).replace('"', '""') + '"'


def quote_literal(value: str) -> str:
    return "'" + _checked(value).replace("'", "''") + "'"


def _checked(text: str) -> str:
    if "\0" in text:
        raise PgcdcError(ErrorKind.USAGE, f"could not use {text!r}: it has a zero byte")
    return text


def is_slot_name(name: str) -> bool:
    return _SLOT_NAME.fullmatch(name) is not None


def check_slot_name(name: str) -> None:
    """Raise USAGE for an invalid slot name: the server would refuse it only later, or truncate it."""
    if not is_slot_name(name):
        message = f'could not create slot "{name}": that is not a valid name for a slot'
        raise PgcdcError(ErrorKind.USAGE, message, hint=SLOT_NAME_HINT)
