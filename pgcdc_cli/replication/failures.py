"""What the errors of the server, of libpq, and of psycopg mean, in any language.

SQLSTATEs are those of the PostgreSQL manual, "PostgreSQL Error Codes". libpq has none for a refused
connection. There its English text is matched; if the server's `lc_messages` is another language, `PQping`
tells a server that refuses us from one that isn't there or isn't ready.
"""

import os
import re
import select
import sys
import time
from shlex import quote
from typing import TYPE_CHECKING

import psycopg
from psycopg import sql
from psycopg.conninfo import conninfo_to_dict
from psycopg.pq import Conninfo, ConnStatus, PGconn, Ping, PollingStatus

from pgcdc_cli.errors import ErrorKind, PgcdcError, mask, nearest
from pgcdc_cli.replication.commands import SLOT_NAME_HINT

if TYPE_CHECKING:
    from psycopg.pq.abc import PGconn as Attempt

Kinds = dict[str, ErrorKind]

UNDEFINED_OBJECT = "42704"
INVALID_TEXT = ("22021", "22P05")
"""A character is invalid, or has no equivalent in the client's encoding."""
NOT_IN_PREREQUISITE_STATE = "55000"
FEATURE_NOT_SUPPORTED, PROGRAM_LIMIT_EXCEEDED = "0A000", "54000"
INSUFFICIENT_RESOURCES = "53"
"""The class of the next three."""
DISK_FULL, OUT_OF_MEMORY, LIMIT_EXCEEDED = "53100", "53200", "53400"

_LOADING = {"internal_load_library", "LoadOutputPlugin"}
"""The server's functions that find out that a file is no library, or a library no plugin."""

_MAY_DECODE = "CheckLogicalDecodingRequirements"
"""The server's function that refuses a standby before PostgreSQL 16."""

_ACCEPTED = "00000"
_ATTEMPT_PATIENCE = 10.0
"""Seconds for an attempt to connect: the server has just answered another one."""
_TRACED_CODE = re.compile(rb'\tErrorResponse\t.*? C "(\w{5})"')

_KINDS = {
    "3D000": ErrorKind.USAGE,
    "3F000": ErrorKind.USAGE,
    "25006": ErrorKind.USAGE,
    **dict.fromkeys(INVALID_TEXT, ErrorKind.PROTOCOL),
    FEATURE_NOT_SUPPORTED: ErrorKind.USAGE,
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
_MORE_LOCKS = "raise max_locks_per_transaction, and restart the server: a snapshot locks all of its tables"
_ALLOW_PLUGIN = "add the plugin to output_plugin_libraries in postgresql.conf, and reload the server"
OLD_STANDBY_HINT = "connect to the primary: a standby can decode WAL since PostgreSQL 16"
_CHECK_KEY = "check sslkey, a file that only its owner may read (chmod 600), and sslpassword"
_CHECK_METHOD = "check require_auth and channel_binding, which needs SSL (sslmode), and pg_hba.conf"
_NO_REASON = "no reason given"
_TICKET = "check the ticket (klist; kinit gets one), -U, and -h: the server's name in its principal"
_ENCRYPTION = (
    "check user and pg_hba.conf: hostssl asks for TLS (sslmode), hostgssenc for GSSAPI (gssencmode=prefer,"
    " as psql has it)"
)
_POOLER = "this is a connection pooler: connect to the server itself (PgBouncer 1.23 and later may stay)"
_NOT_THAT_ONE = "wait until one is what target_session_attrs asks for, as in a failover, or name others"
_REFUSED = (
    (r"private key", ErrorKind.USAGE, _CHECK_KEY),
    (r"unsupported startup parameter", ErrorKind.USAGE, _POOLER),
    (r"local user with ID", ErrorKind.USAGE, "name the role: -U, PGUSER, or user= in the connection string"),
    (r"support(ed)? .*GSSAPI|GSSAPI .*support", ErrorKind.USAGE, "check gssencmode"),
    (_NO_REASON, ErrorKind.CONNECTION, "see the server's log"),
    (r"contact any KDC", ErrorKind.CONNECTION, "check that the Kerberos server (KDC) can be reached"),
    (r"GSSAPI", ErrorKind.AUTHENTICATION, _TICKET),
    # libpq then tries without TLS, too, which a server that asks for it refuses for want of encryption.
    (r"password authentication failed", ErrorKind.AUTHENTICATION, None),
    (r"no encryption", ErrorKind.AUTHENTICATION, _ENCRYPTION),
    (r"channel binding|authentication method requirement", ErrorKind.AUTHENTICATION, _CHECK_METHOD),
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
_DETAIL = re.compile(r" DETAIL: +(.+?)(?= HINT: |$)")
_FAILED = re.compile(r"^(connection failed: |connection is bad: )+")
_ATTEMPT = re.compile(
    r"^- host: (?:None|'(.*?)'), port: (?:None|'(.*?)'), hostaddr: (?:None|'(.*?)'): ", re.MULTILINE
)
_WHERE = re.compile(r"^connection to server (?:at|on) .*? failed: ")
_REFUSED_WITH = {
    _ACCEPTED: ErrorKind.CONNECTION,
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

_STREAM = {
    **dict.fromkeys(INVALID_TEXT, ErrorKind.PROTOCOL),
    UNDEFINED_OBJECT: ErrorKind.PUBLICATION,
    FEATURE_NOT_SUPPORTED: ErrorKind.PUBLICATION,
    "22": ErrorKind.PUBLICATION,
    NOT_IN_PREREQUISITE_STATE: ErrorKind.CONNECTION,
}
"""Errors while streaming: text can't be converted; the publication doesn't exist, its column lists contradict
each other, or a row filter fails. NOT_IN_PREREQUISITE_STATE needn't mean that the slot is lost: the next
connection checks the slot.
"""

_POSITION = re.compile(r"\b[0-9A-F]{1,8}/[0-9A-F]{1,8}$", re.MULTILINE)
"""The WAL position at the end of a line of an error's context, in any language."""

_TOO_LARGE_HINT = "as text it is longer than a server can send (1 GB): --binary halves bytea"
_UNCONVERTED_HINT = (
    "--peek --invalid-text escape shows which column it is: fix it in the source before it is read, or"
    " continue with --invalid-text replace or escape"
)
_SERVER_FAILED = "the server failed to decode its WAL, see its log: run again; if that fails, too,"
_START_OVER = "start over with a new slot and a snapshot"
_SPOOL_HINT = "or let pgcdc spool the transactions: --streaming on"
WAL_LEVEL_HINT = "set wal_level = logical and restart the server: pgcdc doctor says how"
PUBLICATION_HINT = (
    "create the publication if there is none; then recreate the slot, or advance it past this point"
)
_UNFIT_HINT = (
    "fix its row filter: ALTER PUBLICATION ... SET TABLE ... WHERE (...);"
    " then recreate the slot, or advance it past this point"
)
_COLUMNS_HINT = (
    "stream the publications apart, each from a slot of its own (pgcdc slot copy; --publication NAME"
    " --accept-publications): equal column lists (ALTER PUBLICATION ... SET TABLE) help only later changes"
)


def connect_failure(conninfo: str, error: psycopg.Error) -> PgcdcError:
    """Make the error for a connection that failed."""
    if isinstance(error, psycopg.ProgrammingError):
        return conninfo_failure(conninfo, error)
    # psycopg doesn't name a host that comes from the environment.
    said = str(error).replace("resolve host None", f"resolve host {os.environ.get('PGHOST')!r}")
    text = _one_line(_FAILED.sub("", said, count=1))
    text = f"{text} {_NO_REASON}" if text.endswith(" failed:") else text
    kind, hint = _refusal(conninfo, text)
    # As in other errors; the hint says to check that the server is running.
    text = _DETAIL.sub(r" (\1)", text.partition(" Is the server running")[0])
    text = "; ".join([*_unresolved(conninfo, str(error)), _of_several_hosts(str(error)) or text])
    hint = _connect_grant(text, error) or hint
    if kind is ErrorKind.RIGHTS and hint is None and error.pgconn is not None:
        hint = kind.rule.hint.replace("NAME", quote(error.pgconn.user.decode(errors="surrogateescape")))
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
    state = _sqlstate_of_refusal(conninfo)
    kind = kind_of(state, _REFUSED_WITH) if state else ErrorKind.SERVER_FAULT
    if state and kind is not ErrorKind.SERVER_FAULT:
        return kind, _HINTS.get(state) or (_CHECK_SETTINGS if kind is ErrorKind.USAGE else None)
    kind = _PINGS.get(Ping(PGconn.ping(conninfo.encode())), ErrorKind.CONNECTION)
    return kind, _CHECK_SETTINGS if kind is ErrorKind.USAGE else None


def _sqlstate_of_refusal(conninfo: str) -> str | None:
    """Connect once more and return the SQLSTATE of the refusal; `_ACCEPTED` if there is none by now.

    libpq returns only the text of a refusal, which the server translates (`lc_messages`), but its trace has
    the code. Returns None if the server gives no reason, and where libpq can't trace: on macOS.
    """
    if sys.platform != "linux":
        return None
    # The trace has the password, so it stays in memory.
    trace = os.memfd_create("trace")
    try:
        attempt = PGconn.connect_start(conninfo.encode())
        attempt.trace(trace)
        accepted = _is_accepted(attempt)
        attempt.untrace()
        attempt.finish()
        codes = _TRACED_CODE.findall(os.pread(trace, 1 << 20, 0))
    finally:
        os.close(trace)
    if accepted:
        return _ACCEPTED
    return codes[-1].decode() if codes else None


def _is_accepted(attempt: "Attempt") -> bool:
    deadline = time.monotonic() + _ATTEMPT_PATIENCE
    events = {PollingStatus.READING: select.POLLIN, PollingStatus.WRITING: select.POLLOUT}
    state = PollingStatus.WRITING
    while attempt.status != ConnStatus.BAD and state in events and time.monotonic() < deadline:
        ready = select.poll()
        ready.register(attempt.socket, events[state])
        ready.poll(_ATTEMPT_PATIENCE * 1000)
        state = PollingStatus(attempt.connect_poll())
    return state == PollingStatus.OK


def server_failure(doing: str, error: psycopg.Error, kinds: Kinds | None = None) -> PgcdcError:
    """Make `could not {doing}: reason`, for a command that the server refused or a lost connection."""
    kind = kind_of(error.sqlstate, kinds)
    if error.sqlstate is None and not isinstance(error, psycopg.OperationalError):
        kind = ErrorKind.UNEXPECTED
    hint = _HINTS.get(error.sqlstate or "")
    if error.sqlstate == NOT_IN_PREREQUISITE_STATE and "wal_level" in str(error):
        kind, hint = ErrorKind.USAGE, WAL_LEVEL_HINT
    if error.sqlstate == FEATURE_NOT_SUPPORTED and error.diag.source_function == _MAY_DECODE:
        hint = OLD_STANDBY_HINT
    if error.sqlstate == LIMIT_EXCEEDED and "temp_file_limit" in str(error):
        hint = "raise temp_file_limit, or work_mem: ALTER ROLE ... SET work_mem = '64MB'"
    if "max_locks_per_transaction" in (error.diag.message_hint or ""):
        hint = _MORE_LOCKS
    if "output_plugin_libraries" in (error.diag.message_hint or ""):
        hint = _ALLOW_PLUGIN
    return PgcdcError(kind, f"could not {doing}: {reason(error)}", hint=hint)


def stream_failure(slot: str, error: psycopg.Error, *, streams: bool) -> PgcdcError:
    """Make the error for a stream that the server ended; `streams`: it sends transactions in progress."""
    failure = server_failure(f'receive from slot "{slot}"', error, _STREAM)
    if error.sqlstate in INVALID_TEXT:
        position = _POSITION.search(error.diag.context or "")
        where = f" (LSN {position[0]})" if position else ""
        return PgcdcError(failure.kind, f"{failure.message}{where}", hint=_UNCONVERTED_HINT)
    if failure.kind is ErrorKind.PUBLICATION:
        failure.hint = PUBLICATION_HINT if error.sqlstate == UNDEFINED_OBJECT else _UNFIT_HINT
    if error.sqlstate == FEATURE_NOT_SUPPORTED:
        failure.hint = _COLUMNS_HINT
    if error.sqlstate == PROGRAM_LIMIT_EXCEEDED or "invalid memory alloc request size" in str(error):
        return PgcdcError(ErrorKind.PROTOCOL, failure.message, hint=_TOO_LARGE_HINT)
    if failure.kind is ErrorKind.SERVER_FAULT:
        remedy = f"try --streaming off, or {_START_OVER}" if streams else _START_OVER
        failure.hint = f"{_SERVER_FAILED} {remedy}"
    if not streams and error.sqlstate in {DISK_FULL, OUT_OF_MEMORY}:
        failure.hint = f"{failure.hint}, {_SPOOL_HINT}"
    return failure


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


def is_no_plugin(error: BaseException | None) -> bool:
    """Whether a slot could not be created for its plugin; a name with a quote is a syntax error."""
    if isinstance(error, psycopg.errors.UndefinedFile | psycopg.errors.SyntaxError):
        return True
    # Such an error has the SQLSTATE of any internal one.
    return isinstance(error, psycopg.errors.InternalError_) and error.diag.source_function in _LOADING


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
