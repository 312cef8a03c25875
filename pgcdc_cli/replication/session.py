"""Sessions with the server: how they are opened, and what their errors mean, in any language.

SQLSTATEs are those of the PostgreSQL manual, "PostgreSQL Error Codes". libpq has none for a refused
connection. There its English text is matched; if the server's `lc_messages` is another language, `PQping`
tells a server that refuses us from one that isn't there or isn't ready.
"""

import json
import os
import re
import select
from collections.abc import Mapping
from contextlib import suppress
from typing import Any, Literal

import psycopg
from psycopg import errors, sql, waiting
from psycopg.abc import RV, Buffer, PQGen
from psycopg.adapt import AdaptersMap, Loader
from psycopg.conninfo import conninfo_to_dict, make_conninfo
from psycopg.pq import Conninfo, PGconn, Ping, TransactionStatus
from psycopg.rows import Row

from pgcdc_cli.errors import ErrorKind, PgcdcError, mask, nearest
from pgcdc_cli.replication.commands import SLOT_NAME_HINT
from pgcdc_cli.replication.refusal import ACCEPTED, sqlstate_of_refusal
from pgcdc_cli.types.database_text import DatabaseText

SessionKind = Literal["fixed", "default", "physical"]
"""The purpose of a session.

`fixed` is for output that is decoded: it has `SESSION_SETTINGS`. `default` formats values by the settings of
server, database and role, as pg_recvlogical's sessions do. In both, `search_path` is empty: names outside of
`pg_catalog` need their schemas, and are printed with them. `physical` is a walsender without a database,
which takes replication commands only.
"""

SessionConnection = psycopg.Connection[tuple[object, ...]]
Kinds = dict[str, ErrorKind]

_TIMEOUTS = dict.fromkeys(
    ("statement_timeout", "lock_timeout", "idle_in_transaction_session_timeout", "idle_session_timeout"), "0"
)

SESSION_SETTINGS = {
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
}
"""Set by statement, and not by the connection parameter `options`, which is left to the user.

Timeouts of a role or a database are meant for shorter work; pg_dump disables them, too. Compiling queries of
the catalog (`jit`) takes far longer than running them.
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
    "default": _statements(_TIMEOUTS, _EMPTY_SEARCH_PATH, _NO_TRANSACTION_TIMEOUT),
    "physical": b"",
}

UNDEFINED_OBJECT = "42704"
INVALID_TEXT = ("22021", "22P05")
"""A character is invalid, or has no equivalent in the client's encoding."""
NOT_IN_PREREQUISITE_STATE = "55000"
DISK_FULL, OUT_OF_MEMORY, LIMIT_EXCEEDED = "53100", "53200", "53400"

_KINDS = {
    "3D000": ErrorKind.USAGE,
    "3F000": ErrorKind.USAGE,
    "25006": ErrorKind.USAGE,
    **dict.fromkeys(INVALID_TEXT, ErrorKind.PROTOCOL),
    "0A000": ErrorKind.USAGE,
    "42501": ErrorKind.RIGHTS,
    "42710": ErrorKind.SLOT_EXISTS,
    UNDEFINED_OBJECT: ErrorKind.SLOT_MISSING,
    NOT_IN_PREREQUISITE_STATE: ErrorKind.SLOT_INVALIDATED,
    "55006": ErrorKind.SLOT_ACTIVE,
    "58P01": ErrorKind.SLOT_INVALIDATED,
    "58030": ErrorKind.CONNECTION,
    "53000": ErrorKind.CONNECTION,
    DISK_FULL: ErrorKind.CONNECTION,
    OUT_OF_MEMORY: ErrorKind.CONNECTION,
    "53300": ErrorKind.CONNECTION,
    LIMIT_EXCEEDED: ErrorKind.USAGE,
    "40001": ErrorKind.CONNECTION,
    "40P01": ErrorKind.CONNECTION,
    "25P03": ErrorKind.CONNECTION,
    "25P04": ErrorKind.CONNECTION,
    "55P03": ErrorKind.CONNECTION,
    "57014": ErrorKind.CONNECTION,
    "57P01": ErrorKind.NOT_READY,
    "57P02": ErrorKind.NOT_READY,
    "57P03": ErrorKind.NOT_READY,
    "57P05": ErrorKind.CONNECTION,
}
_CANCELLED = "it was cancelled, by a timeout of the server or with pg_cancel_backend: run again"
_INVALID_NAME = (
    "a name or default in the catalog is not valid text: change it, or continue with --invalid-text replace"
    " or escape, or with --no-catalog"
)
_CLASSES = {
    "08": ErrorKind.CONNECTION,
    "22": ErrorKind.USAGE,
    "28": ErrorKind.AUTHENTICATION,
    "42": ErrorKind.USAGE,
    "P0": ErrorKind.USAGE,
}
_HINTS = {
    **dict.fromkeys(INVALID_TEXT, _INVALID_NAME),
    "3D000": "check -d",
    "25006": (
        "connect to the primary: a standby is read only; if default_transaction_read_only is on, set"
        " PGOPTIONS='-c default_transaction_read_only=off'"
    ),
    "40001": "run again; hot_standby_feedback = on keeps a standby from having to cancel queries",
    "25P03": _CANCELLED,
    "25P04": _CANCELLED,
    "42602": SLOT_NAME_HINT,
    "53000": "the server's log says what it lacks: allow it more open files, for example",
    DISK_FULL: "make room on the server's disk",
    OUT_OF_MEMORY: "give the server more memory",
    "53300": "raise max_connections or max_wal_senders, or end other sessions",
    LIMIT_EXCEEDED: "raise max_replication_slots, or drop a slot that is not in use: pgcdc slot list",
    "55P03": _CANCELLED,
    "57014": _CANCELLED,
    "58030": "the server can't read or write on its disk: see its log",
    "P0001": "a function of the database refuses it, such as one that an event trigger calls",
}
_CHECK_SETTINGS = "check the connection string, the service file and the PG* variables, such as PGOPTIONS"
_ALLOW_PLUGIN = "add the plugin to output_plugin_libraries in postgresql.conf, and reload the server"
_CHECK_KEY = "check sslkey, a file that only its owner may read (chmod 600), and sslpassword"
_NOT_THAT_ONE = "wait until one is what target_session_attrs asks for, as in a failover, or name others"
_REFUSED = (
    (r"private key", ErrorKind.USAGE, _CHECK_KEY),
    (
        r"starting up|shutting down|not (yet )?accepting|recovery mode|terminating connection",
        ErrorKind.NOT_READY,
        None,
    ),
    (
        (
            r'invalid (integer|port)|configuration parameter|(for|set) parameter "|parameter ".*" cannot'
            r"|requires a .*value|command-line argument"
        ),
        ErrorKind.USAGE,
        _CHECK_SETTINGS,
    ),
    (r"session is (not )?read-only|server is (not )?in hot standby", ErrorKind.CONNECTION, _NOT_THAT_ONE),
    (r"Is the server running|timeout expired|translate host|resolve host", ErrorKind.CONNECTION, None),
    (r"too many|remaining connection slots|max_wal_senders", ErrorKind.CONNECTION, _HINTS["53300"]),
    (r"WAL sender|walsender|permission denied", ErrorKind.RIGHTS, None),
    (r"database .* does not exist", ErrorKind.USAGE, _HINTS["3D000"]),
    (r"authentication|pg_hba\.conf|password|role .* does not exist|log in", ErrorKind.AUTHENTICATION, None),
    (
        r"client certificate",
        ErrorKind.AUTHENTICATION,
        "give a certificate that the server accepts: sslcert, sslkey",
    ),
    (r"certificate|does not support SSL", ErrorKind.USAGE, "check sslmode, sslrootcert and sslcert"),
    (
        r"closed the connection unexpectedly|Connection reset|Broken pipe|unexpected eof|EOF detected",
        ErrorKind.CONNECTION,
        None,
    ),
)
_CONNECTION_STRINGS = 'as in -d "host=localhost dbname=shop" or -d postgresql://user@localhost/shop'
_UNKNOWN_PARAMETER = re.compile(r'invalid (?:connection option|URI query parameter:) "(.*)"')
_QUOTED_WORD = re.compile(r'^((?:missing "=" after )?[^"]*)".*"')
_FAILED = re.compile(r"^(connection failed: |connection is bad: )+")
_ATTEMPT = re.compile(
    r"^- host: (?:None|'(.*?)'), port: (?:None|'(.*?)'), hostaddr: (?:None|'(.*?)'): ", re.MULTILINE
)
_WHERE = re.compile(r"^connection to server (?:at|on) .*? failed: ")
_REFUSED_WITH = {
    ACCEPTED: ErrorKind.CONNECTION,
    "22": ErrorKind.USAGE,
    "28": ErrorKind.AUTHENTICATION,
    UNDEFINED_OBJECT: ErrorKind.USAGE,
    NOT_IN_PREREQUISITE_STATE: ErrorKind.NOT_READY,
}
"""What codes mean when a connection is refused: a setting that doesn't exist, or a database that lets nobody
in. They matter if the server's words, in another language, match none of `_REFUSED`.
"""
_PINGS = {
    Ping.OK: ErrorKind.AUTHENTICATION,
    Ping.REJECT: ErrorKind.NOT_READY,
    Ping.NO_ATTEMPT: ErrorKind.USAGE,
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
            connection.execute(_SET_UP[kind])
    except psycopg.Error as error:
        connection.close()
        raise server_failure("set up the session", error) from error
    return connection


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

    Names can be any bytes: in a database with encoding SQL_ASCII, and those of databases and roles, which all
    databases of a server share, whatever their encodings. Raises psycopg.Error.
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


def connect_failure(conninfo: str, error: psycopg.Error) -> PgcdcError:
    """Make the error for a connection that failed."""
    if isinstance(error, psycopg.ProgrammingError):
        return conninfo_failure(conninfo, error)
    # psycopg doesn't name a host that comes from the environment.
    said = str(error).replace("resolve host None", f"resolve host {os.environ.get('PGHOST')!r}")
    text = _one_line(_FAILED.sub("", said, count=1))
    kind, hint = _refusal(conninfo, text)
    text = "; ".join([*_unresolved(conninfo, str(error)), _of_several_hosts(str(error)) or text])
    hint = _connect_grant(text, error) or hint
    if error.pgconn is not None and error.pgconn.needs_password:
        kind, hint = ErrorKind.AUTHENTICATION, None
    return PgcdcError(kind, f"could not connect to the server: {text}", hint=hint)


def conninfo_failure(conninfo: str, error: psycopg.Error) -> PgcdcError:
    """Make the error for a connection string that libpq can't parse.

    libpq quotes the word that stopped it. In a string with a password that may be a part of the password, so
    only the parameter that it resembles is named.
    """
    text = _one_line(str(error))
    word = _UNKNOWN_PARAMETER.fullmatch(text)
    near = nearest(word[1], [one.keyword.decode() for one in Conninfo.get_defaults()], 1) if word else []
    if "pass" in conninfo.lower() or "@" in conninfo:
        text = _QUOTED_WORD.sub(r'\1"..."', text)
    meant = f'did you mean "{near[0]}"? ' if near else ""
    # The value may also come from a service file or an environment variable.
    hint = _CHECK_SETTINGS if text.startswith("bad value") else f"{meant}{_CONNECTION_STRINGS}"
    return PgcdcError(ErrorKind.USAGE, f"could not read the connection string: {text}", hint=hint)


def _connect_grant(text: str, error: psycopg.Error) -> str | None:
    """Return the GRANT for a role that lacks the CONNECT privilege; None for other errors."""
    refused = re.search(r'permission denied for database "(.+?)"', text)
    if refused is None or error.pgconn is None:
        return None
    role = sql.Identifier(error.pgconn.user.decode()).as_string()
    return f"GRANT CONNECT ON DATABASE {sql.Identifier(refused[1]).as_string()} TO {role}"


def _of_several_hosts(text: str) -> str | None:
    """Shorten psycopg's message about several attempts, which repeats the last; None for a single one."""
    _, *parts = _ATTEMPT.split(text)
    attempts = zip(parts[::4], parts[1::4], parts[2::4], parts[3::4], strict=True)
    said = (f"{_address(host or address, port)}: {_brief(why)}" for host, port, address, why in attempts)
    return "; ".join(dict.fromkeys(said)) or None


def _unresolved(conninfo: str, text: str) -> list[str]:
    """Name the hosts that psycopg leaves out of its message, since it could not resolve their names.

    A message that names no host doesn't tell which ones were tried.
    """
    hosts = str(conninfo_to_dict(conninfo).get("host") or "").split(",")
    named = [host for host in hosts if f'"{host}"' in text or f"'{host}'" in text]
    left_out = [host for host in hosts if host and host not in named and not host.startswith(("/", "@"))]
    return [f'"{host}": its name could not be resolved' for host in dict.fromkeys(left_out)] if named else []


def _address(host: str | None, port: str | None) -> str:
    return f'"{host}", port {port}' if port else f'"{host}"'


def _brief(failure: str) -> str:
    """Return only the reason of a failed attempt."""
    reason = _FAILED.sub("", failure, count=1).partition("\n\tIs the server running")[0]
    return _one_line(_WHERE.sub("", reason, count=1))


def _refusal(conninfo: str, text: str) -> tuple[ErrorKind, str | None]:
    for pattern, kind, hint in _REFUSED:
        if re.search(pattern, text):
            return kind, hint
    state = sqlstate_of_refusal(conninfo)
    kind = kind_of(state, _REFUSED_WITH) if state else ErrorKind.SERVER_FAULT
    if state and kind is not ErrorKind.SERVER_FAULT:
        return kind, _HINTS.get(state) or (_CHECK_SETTINGS if kind is ErrorKind.USAGE else None)
    kind = _PINGS.get(Ping(PGconn.ping(conninfo.encode())), ErrorKind.CONNECTION)
    return kind, _CHECK_SETTINGS if kind is ErrorKind.USAGE else None


def server_failure(doing: str, error: psycopg.Error, kinds: Kinds | None = None) -> PgcdcError:
    """Make `could not {doing}: reason`, for a command that the server refused or a lost connection."""
    kind = kind_of(error.sqlstate, kinds)
    if error.sqlstate is None and not isinstance(error, psycopg.OperationalError):
        kind = ErrorKind.UNEXPECTED
    hint = _HINTS.get(error.sqlstate or "")
    if error.sqlstate == NOT_IN_PREREQUISITE_STATE and "wal_level" in str(error):
        kind, hint = ErrorKind.USAGE, "set wal_level = logical in postgresql.conf and restart the server"
    if error.sqlstate == LIMIT_EXCEEDED and "temp_file_limit" in str(error):
        hint = "raise temp_file_limit, or work_mem: ALTER ROLE ... SET work_mem = '64MB'"
    if "output_plugin_libraries" in (error.diag.message_hint or ""):
        hint = _ALLOW_PLUGIN
    return PgcdcError(kind, f"could not {doing}: {reason(error)}", hint=hint)


def kind_of(sqlstate: str | None, kinds: Kinds | None = None) -> ErrorKind:
    """Look up an SQLSTATE; None is a lost connection. `kinds` has the caller's own, by code or class.

    Any other code is a fault of the server: internal errors above all, as beside DDL.
    """
    if sqlstate is None:
        return ErrorKind.CONNECTION
    for table in (kinds or {}, _KINDS, _CLASSES):
        for code in (sqlstate, sqlstate[:2]):
            if code in table:
                return table[code]
    return ErrorKind.SERVER_FAULT


def reason(error: psycopg.Error) -> str:
    """Format the server's message and detail (or libpq's text) as one line without passwords."""
    primary = error.diag.message_primary
    if primary is None:
        return _one_line(str(error))
    detail = error.diag.message_detail
    return _one_line(f"{primary} ({detail})" if detail else primary)


def _one_line(text: str) -> str:
    lines = (line.strip() for line in text.splitlines())
    return mask(" ".join(line for line in lines if line))
