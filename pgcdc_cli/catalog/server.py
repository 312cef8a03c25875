"""The catalog's connection, and what a stream depends on: server version, settings and rights."""

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext, suppress
from dataclasses import dataclass
from typing import Any

import psycopg
from psycopg import sql

from pgcdc_cli.catalog.managed_service import BY_SETTING, REPLICATION_ROLE, ManagedService
from pgcdc_cli.errors import ErrorKind, PgcdcError
from pgcdc_cli.lsn import Lsn
from pgcdc_cli.replication.failures import Kinds, server_failure
from pgcdc_cli.replication.session import SessionConnection, ask, connect, warning_if_it_takes_long
from pgcdc_cli.types.database_text import DatabaseText

_RESTS_AFTER = 5.0
"""Seconds without a question after which a session that a stream may need again is closed."""

_WAITS = (
    "it takes long to {}; to see whose locks that waits for:"
    " SELECT pid, xact_start, query FROM pg_stat_activity WHERE pid = ANY (pg_blocking_pids({}))"
)

Waiting = Callable[[], AbstractContextManager[None]]
"""Makes a context for a wait for a server, such as one in which a signal ends the wait."""


class Session:
    """An autocommit connection that is opened on first use, and again after it was lost.

    Each wait for the server is inside `waiting()`.
    """

    def __init__(self, conninfo: str, waiting: Waiting = nullcontext) -> None:
        self._conninfo = conninfo
        self._waiting = waiting
        self._connection: SessionConnection | None = None
        self._lent: SessionConnection | None = None
        self._asked = 0.0

    def turn_to(self, conninfo: str) -> None:
        """Query this server from now on."""
        if conninfo != self._conninfo:
            self.close()
            self._conninfo = conninfo

    @contextmanager
    def over(self, connection: SessionConnection) -> Iterator[None]:
        """Ask what opens no table over a walsender that has nothing else to do: one connection less to open.

        A walsender keeps what it knows of each table that it has opened, also beyond START_REPLICATION: it
        would decode changes from before an ALTER TABLE with the table's present columns. Then values are
        lost, and where a type changed, the server crashes.
        """
        self._lent = connection
        try:
            yield
        finally:
            self._lent = None

    def close(self) -> None:
        if self._connection is not None:
            self._connection.close()

    def rest(self) -> None:
        """Close a connection that nothing was asked over for a while; the next question opens another.

        A smart shutdown waits for every session but walsenders, and so would wait for the end of a stream.
        """
        if time.monotonic() - self._asked > _RESTS_AFTER:
            self.close()

    def ask(
        self,
        query: str,
        parameters: dict[str, Any],
        doing: str,
        text: DatabaseText | None = None,
        *,
        opens_no_table: bool = False,
    ) -> list[tuple[Any, ...]]:
        """Read rows; `text` says how to decode them, by default with invalid bytes escaped.

        `opens_no_table`: the query opens only the server's own catalogs, and may be asked inside of `over`. A
        connection that was lost since its last use is opened again, once. Raises PgcdcError.
        """
        lent = _still_open(self._lent) if opens_no_table else None
        reused = lent or _still_open(self._connection)
        try:
            with self._waiting():
                return ask(lent or self._open(), query, parameters, text)
        except psycopg.Error as error:
            if reused is not None and reused.closed:
                return self.ask(query, parameters, doing, text, opens_no_table=opens_no_table)
            raise server_failure(doing, error) from error

    @contextmanager
    def impatient(self) -> Iterator[None]:
        """Wait at most a second for a lock; after that, the error's cause is LockNotAvailable."""
        self.ask("SELECT set_config('lock_timeout', '1s', false)", {}, "limit how long a lock is waited for")
        try:
            yield
        finally:
            # The setting is gone with a lost connection.
            connection = _still_open(self._connection)
            if connection is not None:
                with suppress(psycopg.Error):
                    connection.execute("SET lock_timeout = 0")

    def run(self, statements: Sequence[sql.Composable], doing: str, kinds: Kinds) -> None:
        """Execute statements in one transaction; `kinds` are error kinds by SQLSTATE that only they have.

        The server refuses a text that has more than one, such as that of a row filter with a semicolon:
        `binary` asks for the extended query protocol, which isn't needed otherwise.
        """
        try:
            with self._waiting():
                connection = self._open()
                waits = _WAITS.format(doing, connection.info.backend_pid)
                with warning_if_it_takes_long(waits), connection.transaction():
                    for statement in statements:
                        psycopg.Cursor(connection).execute(statement.as_string().encode(), binary=True)
        except psycopg.Error as error:
            raise server_failure(doing, error, kinds) from error

    def _open(self) -> SessionConnection:
        self._connection = _still_open(self._connection) or connect(self._conninfo)
        self._asked = time.monotonic()
        return self._connection


def _still_open(connection: SessionConnection | None) -> SessionConnection | None:
    return None if connection is None or connection.closed else connection


_FACTS = """
SELECT current_setting('server_version_num')::int, current_database(), current_setting('wal_level'),
       (SELECT setting::int FROM pg_settings WHERE name = 'wal_sender_timeout'),
       pg_is_in_recovery(),
       EXISTS (SELECT FROM pg_roles WHERE rolname = current_user AND (rolsuper OR rolreplication))
       OR EXISTS (SELECT FROM pg_roles WHERE rolname = %(role)s AND pg_has_role(oid, 'MEMBER')),
       EXISTS (SELECT FROM pg_roles WHERE rolname = %(role)s),
       (SELECT min(name) FROM unnest(%(settings)s::text[]) AS s (name)
        WHERE current_setting(name, true) IS NOT NULL)
"""


@dataclass(frozen=True, slots=True)
class ServerFacts:
    """`version` is 180004 for 18.4; `wal_sender_timeout` is this role's, in seconds, 0 for none.

    `by_membership`: members of a role may replicate, no role gets the attribute REPLICATION.
    """

    version: int
    database: str
    wal_level: str
    wal_sender_timeout: float
    in_recovery: bool
    may_replicate: bool
    by_membership: bool
    service: ManagedService | None


def read_facts(session: Session) -> ServerFacts:
    names = {"role": REPLICATION_ROLE, "settings": list(BY_SETTING)}
    [row] = session.ask(_FACTS, names, "read the server's settings", opens_no_table=True)
    version, database, wal_level, milliseconds, in_recovery, may_replicate, by_membership, setting = row
    return ServerFacts(
        version,
        database,
        wal_level,
        milliseconds / 1000,
        in_recovery,
        may_replicate,
        by_membership,
        BY_SETTING.get(setting),
    )


_IDENTITY = """
SELECT system_identifier::text, CASE WHEN NOT pg_is_in_recovery() THEN pg_current_wal_lsn()::text END
FROM pg_control_system()
"""


def read_identity(session: Session) -> tuple[str, Lsn | None]:
    """Read the system identifier and the end of the WAL, None on a standby."""
    [(system_id, log_end)] = session.ask(_IDENTITY, {}, "identify the server")
    return system_id, None if log_end is None else Lsn.parse(log_end)


_PUBLISHED = """
SELECT DISTINCT schemaname, tablename FROM pg_publication_tables
WHERE %(names)s::text[] = '{}' OR pubname = ANY (%(names)s::text[]) ORDER BY 1, 2
"""
_ROLES = """
SELECT current_database(), ARRAY(SELECT rolname::text FROM pg_roles WHERE rolname = ANY (%(roles)s))
"""


def create_grant(session: Session) -> str:
    """Make the hint that says what the role needs to create a publication."""
    [(database, role)] = session.ask(
        "SELECT current_database(), current_user", {}, "look at the role's rights"
    )
    statement = sql.SQL("GRANT CREATE ON DATABASE {} TO {}").format(
        sql.Identifier(database), sql.Identifier(role)
    )
    return (
        f"it needs: {statement.as_string()}; and to own the tables, or a superuser for all tables or schemas"
    )


@contextmanager
def naming_replication_right(session: Session) -> Iterator[None]:
    """Let the error for a role that may not use slots say what it needs."""
    try:
        yield
    except PgcdcError as error:
        if error.kind is ErrorKind.RIGHTS:
            error.hint = _replication_grant(session) or error.hint
        raise


def _replication_grant(session: Session) -> str | None:
    """Make the hint that says what the role needs to use slots; None if it has that."""
    facts = read_facts(session)
    if facts.may_replicate:
        return None
    [(name,)] = session.ask("SELECT current_user", {}, "look at the role's rights")
    role = sql.Identifier(name)
    needed = _membership(role) if facts.by_membership else sql.SQL("ALTER ROLE {} REPLICATION").format(role)
    return f"it needs: {needed.as_string()}"


def _membership(role: sql.Identifier) -> sql.Composed:
    return sql.SQL("GRANT {} TO {}").format(sql.Identifier(REPLICATION_ROLE), role)


def grants(session: Session, role: str, publications: Sequence[str]) -> list[str]:
    """Write the statements for a role that streams these publications; [] means all that exist.

    A snapshot needs SELECT; streaming needs no right on tables.
    """
    [(database, found)] = session.ask(_ROLES, {"roles": [role, REPLICATION_ROLE]}, "look for the role")
    tables = session.ask(_PUBLISHED, {"names": list(publications)}, "list the published tables")
    verb = "ALTER" if role in found else "CREATE"
    name = sql.Identifier(role)
    statements = [
        *_replication_right(verb, name, by_membership=REPLICATION_ROLE in found),
        sql.SQL("GRANT CONNECT ON DATABASE {} TO {}").format(sql.Identifier(database), name),
    ]
    statements += [
        sql.SQL("GRANT USAGE ON SCHEMA {} TO {}").format(sql.Identifier(schema), name)
        for schema in dict.fromkeys(schema for schema, _ in tables)
    ]
    statements += [
        sql.SQL("GRANT SELECT ON TABLE {} TO {}").format(sql.Identifier(*table), name) for table in tables
    ]
    return [statement.as_string() + ";" for statement in statements]


def _replication_right(verb: str, role: sql.Identifier, *, by_membership: bool) -> list[sql.Composed]:
    """Write the statements that let a role log in and replicate; `verb` is CREATE or ALTER."""
    if by_membership:
        return [sql.SQL(f"{verb} ROLE {{}} LOGIN").format(role), _membership(role)]
    return [sql.SQL(f"{verb} ROLE {{}} LOGIN REPLICATION").format(role)]
