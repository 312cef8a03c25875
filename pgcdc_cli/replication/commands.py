"""The text of replication commands.

PostgreSQL manual, "Streaming Replication Protocol"; quoting as in `src/backend/replication/repl_scanner.l`:
quotes are doubled, a backslash means itself.
"""

import re
from collections.abc import Iterable, Mapping

from pgcdc_cli.errors import ErrorKind, PgcdcError
from pgcdc_cli.lsn import Lsn

_NAME = re.compile(r'\s*(?:"((?:[^"]|"")*)"|([^",\s]+))\s*(?:,|$)')


def quote_identifier(name: str) -> str:
    return '"' + _checked(name).replace('"', '""') + '"'


def quote_literal(value: str) -> str:
    return "'" + _checked(value).replace("'", "''") + "'"


def _checked(text: str) -> str:
    if "\0" in text:
        raise PgcdcError(ErrorKind.USAGE, f"could not use {text!r}: it has a zero byte")
    return text


def publication_names(names: Iterable[str]) -> str:
    """Write a value of pgoutput's option `publication_names`."""
    return ",".join(quote_identifier(name) for name in names)


def split_names(value: str) -> tuple[str, ...]:
    """Read a value of `publication_names` as the server does (`SplitIdentifierString`)."""
    return tuple(
        quoted.replace('""', '"') if quoted else plain.lower() for quoted, plain in _NAME.findall(value)
    )


def create_slot(
    slot: str, plugin: str, flags: Iterable[str], *, temporary: bool, export: bool = False
) -> str:
    kind = "TEMPORARY LOGICAL" if temporary else "LOGICAL"
    options = ", ".join([f"SNAPSHOT '{'export' if export else 'nothing'}'", *flags])
    return f"CREATE_REPLICATION_SLOT {quote_identifier(slot)} {kind} {quote_identifier(plugin)} ({options})"


def drop_slot(slot: str, *, wait: bool) -> str:
    return f"DROP_REPLICATION_SLOT {quote_identifier(slot)}{' WAIT' if wait else ''}"


def start_replication(slot: str, lsn: Lsn, options: Mapping[str, str]) -> str:
    pairs = ", ".join(f"{quote_identifier(name)} {quote_literal(value)}" for name, value in options.items())
    tail = f" ({pairs})" if pairs else ""
    return f"START_REPLICATION SLOT {quote_identifier(slot)} LOGICAL {lsn}{tail}"
