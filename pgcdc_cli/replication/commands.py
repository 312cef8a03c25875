"""Replication commands, and what pgoutput is asked for: what a server of some version can do.

PostgreSQL manual, "Streaming Replication Protocol" and "Logical Streaming Replication Parameters"; quoting as
in `src/backend/replication/repl_scanner.l`: quotes are doubled, a backslash means itself.
"""

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Literal

from pgcdc_cli.errors import ErrorKind, PgcdcError
from pgcdc_cli.lsn import Lsn

PluginOptions = Mapping[str, str | None]
"""By name; None is an option without a value, which plugins take for true."""

StreamingOption = Literal["off", "on", "parallel"]
OriginOption = Literal["any", "none"]

PROTOCOLS = {1: 10, 2: 14, 3: 15, 4: 16}
"""Protocol version: the first major version of the server that knows it."""

_STREAMING_PROTOCOL = {"off": 1, "on": 2, "parallel": 4}
_TWO_PHASE_PROTOCOL = 3
_BINARY_SINCE = _MESSAGES_SINCE = 14
_ORIGIN_SINCE = 16

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
        for name, value in options.items()
    )
    tail = f" ({pairs})" if pairs else ""
    return f"START_REPLICATION SLOT {quote_identifier(slot)} LOGICAL {lsn}{tail}"


@dataclass(frozen=True, slots=True)
class Protocol:
    """What is asked of pgoutput; None stands for the best that the server knows.

    `newest` is what None stands for: protocol 1 where it is false.
    """

    version: int | None = None
    streaming: StreamingOption | None = None
    two_phase: bool = False
    binary: bool = False
    messages: bool = False
    origin: OriginOption | None = None
    newest: bool = True

    def __post_init__(self) -> None:
        """Raise USAGE for a version that is too low for the rest."""
        if self.version is not None and self.version < self._needed:
            what = "--two-phase" if self.two_phase else f"--streaming {self.streaming}"
            raise PgcdcError(
                ErrorKind.USAGE,
                f"could not use --proto-version {self.version}: {what} needs {self._needed}",
                hint="leave out --proto-version: the server's newest is the default",
            )

    def options(self, server_version: int) -> Mapping[str, str]:
        """Give START_REPLICATION's options; USAGE for what this server (180004 for 18.4) doesn't know."""
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
        """Choose. Not with messages: one at the start of a savepoint that is rolled back would stay.

        It comes under the top-level xid, so that nobody can tell whose it is (`pgoutput_message`).
        """
        if not self.newest or self.messages or version < _STREAMING_PROTOCOL["on"]:
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
                f"could not use {what}: the server is PostgreSQL {major}, {since} was the first to know it",
                hint="leave it out: the default is the best that the server knows",
            )


def publication_names(names: Iterable[str]) -> str:
    """Write a value of pgoutput's option `publication_names`."""
    return ",".join(quote_identifier(name) for name in names)


def split_names(value: str) -> tuple[str, ...]:
    """Read a value of `publication_names` as the server does (`SplitIdentifierString`)."""
    return tuple(
        quoted.replace('""', '"') if quoted else plain.lower() for quoted, plain in _NAME.findall(value)
    )


def quote_identifier(name: str) -> str:
    return '"' + _checked(name).replace('"', '""') + '"'


def quote_literal(value: str) -> str:
    return "'" + _checked(value).replace("'", "''") + "'"


def _checked(text: str) -> str:
    if "\0" in text:
        raise PgcdcError(ErrorKind.USAGE, f"could not use {text!r}: it has a zero byte")
    return text
