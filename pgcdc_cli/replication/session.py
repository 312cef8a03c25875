"""Sessions with the server: how they are opened, and how they ask."""

import json
import logging
import select
import threading
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, nullcontext, suppress
from typing import Any, Literal

import psycopg
from psycopg import errors, waiting
from psycopg.abc import RV, Buffer, PQGen
from psycopg.adapt import AdaptersMap, Loader
from psycopg.conninfo import conninfo_to_dict, make_conninfo
from psycopg.pq import PGconn, TransactionStatus
from psycopg.rows import Row

from pgcdc_cli.replication.failures import INVALID_TEXT, connect_failure, server_failure
from pgcdc_cli.types.database_text import DatabaseText

log = logging.getLogger("pgcdc")

SessionKind = Literal["fixed", "default", "physical"]
"""The purpose of a session.

`fixed` is for output that is decoded: it has `SESSION_SETTINGS`. `default` formats values by the settings of
server, database and role, as pg_recvlogical's sessions do. In both, `search_path` is empty: names outside of
`pg_catalog` need their schemas, and are printed with them. `physical` is a walsender without a database,
which takes replication commands only.
"""

SessionConnection = psycopg.Connection[tuple[object, ...]]

_TIMEOUTS = dict.fromkeys(
    ("statement_timeout", "lock_timeout", "idle_in_transaction_session_timeout", "idle_session_timeout"), "0"
)

# A standby refuses serializable transactions; elsewhere, deferrable ones wait for all others. The first
# setting is for the transaction of these statements themselves.
_ISOLATION = dict.fromkeys(("transaction_isolation", "default_transaction_isolation"), "read committed")

SESSION_SETTINGS = {
    **_ISOLATION,
    **_TIMEOUTS,
    "TimeZone": "UTC",
    "DateStyle": "ISO",
    "IntervalStyle": "postgres",
    "extra_float_digits": "3",
    "bytea_output": "hex",
    "quote_all_identifiers": "off",
    "array_nulls": "on",
    "standard_conforming_strings": "on",
    "client_min_messages": "warning",
    "jit": "off",
    "gin_fuzzy_search_limit": "0",
    "synchronous_commit": "local",
}
"""Set by statement, and not by the connection parameter `options`, which is left to the user.

Timeouts of a role or a database are meant for shorter work; pg_dump disables them, too. Compiling queries of
the catalog (`jit`) takes far longer than running them. With `gin_fuzzy_search_limit` a row filter that an
index answers leaves out rows at random. Our commits, such as of a publication, wait for no standby: the only
one may be the stream that is about to begin.
"""

_NETWORK = {
    "connect_timeout": "10",
    "keepalives_idle": "30",
    "keepalives_interval": "10",
    "keepalives_count": "3",
    "tcp_user_timeout": "60000",
}
"""Connection parameters that libpq leaves to the system: it notices a dead network only after hours.

A minute is also how long walsender and standby wait for each other (`wal_sender_timeout`,
`wal_receiver_timeout`). Ten seconds for each host are plenty to connect, and failures are retried.
"""

_NAME: dict[str, str | int | None] = {"fallback_application_name": "pgcdc"}

_LOOK = 0.1
"""Seconds between chances for Python to handle signals while it waits for the server."""

_PATIENCE = 0.8
"""Seconds that an interrupt waits for the server, once for the cancel request and once for its answer."""

_MOMENT = 0.01
"""Seconds until a query is asked again."""

_BESIDE_DDL = 5.0
"""Seconds for which a query is asked again while it meets tables that others drop.

Functions of the server, such as the one behind pg_publication_tables, list tables and then open each.
"""

QUIET = 10.0
"""Seconds to wait for what other sessions hold up, until a warning says so."""

_SILENT = (
    "the server let the session in, and has not answered since: if there is a proxy or a pooler in between,"
    " see whether that still reaches the server"
)
_TOO_MANY_PORTS = "," * 999

# transaction_timeout is new in PostgreSQL 17.
_NO_TRANSACTION_TIMEOUT = (
    "SELECT set_config(name, '0', false) FROM pg_settings WHERE name = 'transaction_timeout'"
)
# The role's own search path is kept in a setting of ours. Whoever may create functions or operators in one of
# its schemas could have them called in place of the server's, with our role's rights (CVE-2018-1058).
_KEPT_SEARCH_PATH = (
    "SELECT pg_catalog.set_config('pgcdc.search_path', pg_catalog.current_setting('search_path'), false)"
)
_EMPTY_SEARCH_PATH = "SELECT pg_catalog.set_config('search_path', '', false)"


def _statements(settings: dict[str, str], *others: str) -> bytes:
    return ";".join([*(f"SET {name} = '{value}'" for name, value in settings.items()), *others]).encode()


_SET_UP: dict[SessionKind, bytes] = {
    "fixed": _statements(SESSION_SETTINGS, _KEPT_SEARCH_PATH, _EMPTY_SEARCH_PATH, _NO_TRANSACTION_TIMEOUT),
    "default": _statements(_ISOLATION | _TIMEOUTS, _EMPTY_SEARCH_PATH, _NO_TRANSACTION_TIMEOUT),
    "physical": b"",
}


class _SignalledConnection(psycopg.Connection[Row]):
    """A connection whose wait a signal ends: it cancels the query, and closes even if the server hangs."""

    _farewell: psycopg.Error | None = None

    def listen(self) -> None:
        """Keep the error that ends the session between two queries, which libpq takes for a notice."""

        def keep(notice: errors.Diagnostic) -> None:
            if notice.severity_nonlocalized == "FATAL":
                detail = f" ({notice.message_detail})" if notice.message_detail else ""
                self._farewell = psycopg.OperationalError(f"{notice.message_primary}{detail}")
                self._farewell.sqlstate = notice.sqlstate

        self.add_notice_handler(keep)

    def close(self) -> None:
        """Close it, and free what libpq has read: to psycopg a lost connection is closed already."""
        super().close()
        self.pgconn.finish()

    def wait(self, gen: PQGen[RV], interval: float = _LOOK, timeout: float | None = None) -> RV:
        limit = {} if timeout is None else {"timeout": timeout}
        try:
            return waiting.wait(gen, self.pgconn.socket, interval=interval, **limit)
        except KeyboardInterrupt:
            if self.pgconn.transaction_status == TransactionStatus.ACTIVE:
                with suppress(psycopg.Error):
                    self.cancel_safe(timeout=_PATIENCE)
                    # Once the server answers, what the command began, such as a slot, is gone.
                    answer = select.poll()
                    answer.register(self.pgconn.socket, select.POLLIN)
                    answer.poll(_PATIENCE * 1000)
                self.pgconn.finish()
            raise
        except psycopg.OperationalError:
            if self._farewell is not None:
                raise self._farewell from None
            raise


def connect(conninfo: str, *, replication: bool = False, kind: SessionKind = "fixed") -> SessionConnection:
    """Connect as libpq does (several hosts, service and password files, PG* variables).

    Statements use the simple query protocol, the only one that a walsender speaks. Raises CONNECTION or
    NOT_READY if a retry may help, AUTHENTICATION, RIGHTS, or USAGE for wrong parameters, such as a database
    that doesn't exist.
    """
    parameters = {"client_encoding": "UTF8"}
    if replication:
        parameters["replication"] = "true" if kind == "physical" else "database"
    try:
        given = conninfo_to_dict(conninfo)
        # The user's `replication` would turn an ordinary session into a walsender.
        given.pop("replication", None)
        conninfo = make_conninfo(_with_timeouts(make_conninfo("", **_NAME | given)), **parameters)
        connection = _SignalledConnection.connect(
            conninfo, autocommit=True, cursor_factory=psycopg.ClientCursor
        )
    except psycopg.Error as error:
        raise connect_failure(conninfo, error) from error
    connection.listen()
    try:
        if _SET_UP[kind]:
            with warning_if_it_takes_long(_SILENT):
                connection.execute(_SET_UP[kind])
    except psycopg.Error as error:
        connection.close()
        raise server_failure("set up the session", error) from error
    return connection


@contextmanager
def warning_if_it_takes_long(message: str) -> Iterator[None]:
    """Log a warning after `QUIET` seconds in the block."""
    said = threading.Timer(QUIET, log.warning, [message])
    said.daemon = True
    said.start()
    try:
        yield
    finally:
        said.cancel()


def database_encoding(connection: SessionConnection) -> str:
    """Return PostgreSQL's name for the encoding of the database."""
    return connection.info.parameter_status("server_encoding") or "UTF8"


_TEXT_TYPES = (0, "text", "name", "varchar", "bpchar", '"char"')
"""Types that psycopg loads as text; 0 stands for every type that it doesn't know."""


def ask(
    connection: SessionConnection,
    query: str,
    parameters: Mapping[str, Any] | None = None,
    text: DatabaseText | None = None,
) -> list[tuple[Any, ...]]:
    """Run a query and return its rows. `text` decodes strings; by default invalid bytes are escaped.

    One that fails because a table is dropped meanwhile is asked again, in a transaction with the same
    snapshot. Raises psycopg.Error.
    """
    until = time.monotonic() + _BESIDE_DDL
    begun = connection.info.transaction_status == TransactionStatus.INTRANS
    while True:
        try:
            with connection.transaction() if begun else nullcontext():
                return _ask_once(connection, query, parameters, text)
        except errors.InternalError_:
            if connection.closed or time.monotonic() > until:
                raise
        time.sleep(_MOMENT)


def _ask_once(
    connection: SessionConnection, query: str, parameters: Mapping[str, Any] | None, text: DatabaseText | None
) -> list[tuple[Any, ...]]:
    """Run a query, and once more if Python can't read a name.

    Names can be any bytes: in a database with encoding SQL_ASCII, and those of databases and roles, which all
    databases of a server share, whatever their encodings.
    """
    encoding = database_encoding(connection)
    shown = DatabaseText.shown(encoding)
    try:
        return _rows(connection, query, parameters, text or shown)
    except psycopg.Error as error:
        # Python knows fewer characters of multibyte encodings than the server, but can escape any bytes.
        by_python = DatabaseText.of(encoding, "escape", "escape")
        refused = text is None and error.sqlstate in INVALID_TEXT and by_python != shown
        if refused and connection.info.transaction_status == TransactionStatus.IDLE:
            return _rows(connection, query, parameters, by_python)
        raise


def _rows(
    connection: SessionConnection, query: str, parameters: Mapping[str, Any] | None, text: DatabaseText
) -> list[tuple[Any, ...]]:
    with connection.cursor() as cursor:
        _read_as(text, cursor.adapters)
        try:
            if text.client_encoding == "UTF8":
                return cursor.execute(query.encode(), parameters).fetchall()
            # The server takes the query in UTF-8, and sends the rows unconverted.
            unconverted = f"SET client_encoding = SQL_ASCII; {query}; SET client_encoding = UTF8"
            cursor.execute(unconverted.encode(), parameters).nextset()
            return cursor.fetchall()
        except UnicodeDecodeError as error:
            # The server's own words, for when it is the one that checks.
            message = f'invalid byte sequence for encoding "UTF8": {error.object[error.start]:#04x}'
            raise errors.CharacterNotInRepertoire(message) from error


def _read_as(text: DatabaseText, adapters: AdaptersMap) -> None:
    class TextLoader(Loader):
        def load(self, data: Buffer) -> str:
            return text.name(bytes(data))

    class JsonLoader(Loader):
        def load(self, data: Buffer) -> Any:  # noqa: ANN401 - whatever JSON has
            return json.loads(text.decode(bytes(data), backslashes=2)[0])

    for name in _TEXT_TYPES:
        adapters.register_loader(name, TextLoader)
    for name in ("json", "jsonb"):
        adapters.register_loader(name, JsonLoader)


def this_server(conninfo: str, connection: SessionConnection) -> str:
    """Return a connection string for the very server of a connection: `conninfo` may name several."""
    info = connection.info
    return make_conninfo(conninfo, host=info.host, hostaddr=info.hostaddr, port=info.port)


def _with_timeouts(conninfo: str) -> str:
    """Add network timeouts that connection string, service file and environment leave out.

    Only a PGconn knows all three. Too many ports make it invalid, so that it neither connects nor looks for a
    password.
    """
    attempt = PGconn.connect_start(make_conninfo(conninfo, port=_TOO_MANY_PORTS).encode())
    known = {option.keyword.decode(): option.val for option in attempt.info}
    attempt.finish()
    given = {name: value.decode() for name in _NETWORK if (value := known.get(name)) is not None}
    return make_conninfo(conninfo, **(_NETWORK | given))
