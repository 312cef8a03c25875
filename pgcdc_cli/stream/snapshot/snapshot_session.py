"""A connection with a transaction that sees a snapshot, and copies rows out."""

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, suppress
from typing import Any, NamedTuple, Self, cast

import psycopg
import pyarrow as pa
from psycopg import errors, sql

from pgcdc_cli.errors import ErrorKind, PgcdcError
from pgcdc_cli.replication.copy_out import is_encrypted
from pgcdc_cli.replication.copy_text import copy_text
from pgcdc_cli.replication.failures import NOT_IN_PREREQUISITE_STATE, UNDEFINED_OBJECT, server_failure
from pgcdc_cli.replication.session import (
    ask,
    connect,
    database_encoding,
    this_server,
    warning_if_it_takes_long,
)
from pgcdc_cli.types.database_text import DatabaseText
from pgcdc_cli.types.pg_type import PgType

Columns = tuple[pa.BinaryArray, ...]

BRIEFLY = "2s"
"""How long to wait for a table that is to be locked before there is a snapshot."""

FOREVER = "0"
"""No limit to a wait for locks."""

_WAITS = (
    "the tables to read are not found and locked yet; to see whose locks that waits for:"
    " SELECT pid, xact_start, query FROM pg_stat_activity WHERE pid = ANY (pg_blocking_pids({}))"
)
_STANDBY_WAITS = (
    "; a standby holds the locks of its primary's sessions, and may itself wait for this snapshot before it"
    " releases them, forever if max_standby_streaming_delay is -1: then end this run, and run again"
)

# Rows come in the table's order: not from where a concurrent scan of it is, nor as workers find them. The
# server raises an error instead of leaving out rows (`row_security`).
_SETTINGS = sql.SQL(
    "SET LOCAL synchronize_seqscans = off; SET LOCAL max_parallel_workers_per_gather = 0;"
    " SET LOCAL row_security = off"
)

GONE = (errors.UndefinedColumn, errors.UndefinedTable, errors.InvalidSchemaName)
"""What the server says of names that others dropped or changed."""

READING = dict.fromkeys((UNDEFINED_OBJECT, NOT_IN_PREREQUISITE_STATE), ErrorKind.USAGE)
"""Errors of a query that reads rows: neither means a slot."""

_LOCK = sql.SQL("LOCK TABLE {} IN ACCESS SHARE MODE")

_NO_LONGER_EXPORTED = (
    errors.InvalidParameterValue,
    errors.UndefinedObject,
    errors.ObjectNotInPrerequisiteState,
)
"""What servers say of a snapshot whose session has ended: up to PostgreSQL 16, later, and at that moment."""


class ResultColumn(NamedTuple):
    """A column of a query's result: the OID of its table, its `attnum`, and its type's OID, domains resolved.

    They are what the names in the query mean now, whatever they meant when the snapshot was taken
    ("RowDescription" in "Message Formats").
    """

    table: int
    number: int
    type_oid: int


class SnapshotSession:
    """A transaction that sees `snapshot`, exported by another one under this name, or a snapshot of its own.

    Methods raise PgcdcError.
    """

    def __init__(self, conninfo: str, snapshot: str | None = None) -> None:
        self._connection = connect(conninfo)
        self.here = this_server(conninfo, self._connection)
        try:
            self.begin(snapshot)
        except BaseException:
            self._connection.close()
            raise

    def begin(self, snapshot: str | None = None) -> None:
        """Begin a transaction after the last one has ended; without `snapshot` its first query takes one."""
        self._run(sql.SQL("BEGIN ISOLATION LEVEL REPEATABLE READ READ ONLY"))
        if snapshot is not None:
            self.see(snapshot)
        self._run(_SETTINGS)

    def see(self, snapshot: str) -> None:
        """Import a snapshot that another transaction exported; only before the first query of this one."""
        try:
            self._run(sql.SQL("SET TRANSACTION SNAPSHOT {}").format(sql.Literal(snapshot)))
        except PgcdcError as error:
            # A standby cancels sessions that conflict with what it replays, also the exporting one.
            if isinstance(error.__cause__, _NO_LONGER_EXPORTED):
                error.kind, error.hint = ErrorKind.CONNECTION, "run again"
            raise

    def lock(self, tables: Sequence[tuple[str, str]], timeout: str = BRIEFLY) -> bool:
        """Lock those tables that exist against ALTER and TRUNCATE, before a snapshot is taken.

        False if that fails, or takes long, unless the connection is lost; then nothing is locked.
        """
        self.limit_lock_waits(timeout)
        try:
            with self.waiting():
                for name in tables:
                    # These take no snapshot (`PlannedStmtRequiresSnapshot` in tcop/pquery.c).
                    with suppress(*GONE), self._connection.transaction():
                        self._connection.execute(_LOCK.format(sql.Identifier(*name)))
        except psycopg.Error as error:
            if self._connection.closed:
                raise server_failure("begin a snapshot", error) from error
            self.end()
            self.begin()
            return False
        return True

    def sees_waiting(self, other: Self) -> bool:
        """Whether another session waits for a lock."""
        query = "SELECT EXISTS (SELECT FROM pg_locks WHERE pid = %(pid)s AND NOT granted)"
        [(waiting,)] = self.ask(query, {"pid": other._connection.info.backend_pid})
        return bool(waiting)

    def waiting(self) -> AbstractContextManager[None]:
        """Warn who may hold a lock that the block waits for, if it takes long."""
        info = self._connection.info
        on_standby = info.parameter_status("in_hot_standby") == "on"
        waits = _WAITS.format(info.backend_pid)
        return warning_if_it_takes_long(waits + _STANDBY_WAITS if on_standby else waits)

    def limit_lock_waits(self, timeout: str) -> None:
        """Set `lock_timeout` for this transaction."""
        self._run(sql.SQL("SET LOCAL lock_timeout = {}").format(sql.Literal(timeout)))

    def end(self) -> None:
        """End the transaction; `begin` may start another."""
        self._run(sql.SQL("COMMIT"))

    def close(self) -> None:
        """End the transaction, and close the connection."""
        self._connection.close()

    @property
    def role(self) -> sql.Identifier:
        """The role whose privileges count; the setting `role`, as in PGOPTIONS, may make it another one."""
        [(name,)] = self.ask("SELECT current_user")
        return sql.Identifier(name)

    @property
    def database_encoding(self) -> str:
        """PostgreSQL's name for the encoding of the database."""
        return database_encoding(self._connection)

    def ask(
        self,
        query: str,
        parameters: dict[str, Any] | None = None,
        doing: str = "read the snapshot",
        text: DatabaseText | None = None,
    ) -> list[tuple[Any, ...]]:
        """Run a query and return its rows. `text` decodes strings; by default invalid bytes are escaped."""
        try:
            return ask(self._connection, query, parameters, text)
        except psycopg.Error as error:
            raise server_failure(doing, error) from error

    def export(self) -> str:
        """Export the snapshot, and return its name; it can be imported as long as this transaction lasts."""
        # Not with `ask`, since the server refuses it inside of a savepoint.
        [(name,)] = self._run(sql.SQL("SELECT pg_export_snapshot()"))
        return str(name)

    def check(self, query: sql.Composable, doing: str) -> list[ResultColumn]:
        """Have the server check a query, and lock the tables that it reads, without reading rows.

        If it fails, the transaction can be used further.
        """
        # In one message, because there may be many tables.
        checked = sql.SQL("SAVEPOINT checked; {} LIMIT 0; RELEASE SAVEPOINT checked").format(query)
        try:
            with self._connection.cursor() as cursor:
                cursor.execute(checked.as_string(self._connection).encode())
                cursor.nextset()
                result = cursor.pgresult
                assert result is not None, "the query was executed"
                numbers = range(result.nfields)
                return [ResultColumn(result.ftable(n), result.ftablecol(n), result.ftype(n)) for n in numbers]
        except psycopg.Error as error:
            with suppress(psycopg.Error):
                # There is no savepoint after a syntax error.
                self._connection.execute("ROLLBACK TO SAVEPOINT checked; RELEASE SAVEPOINT checked")
            raise server_failure(doing, error, READING) from error

    def copy(
        self,
        query: sql.Composable,
        types: Sequence[PgType],
        text: DatabaseText,
        stopped: Callable[[], bool],
        *,
        typed: bool = False,
    ) -> Iterator[tuple[int, Columns]]:
        """Yield a query's rows, many at a time: bytes received, and columns, one of each of these types.

        If `typed`, columns may be of their Arrow types, as `arrow_values` makes them.

        Raises psycopg.Error, and KeyboardInterrupt once `stopped`; then the connection can't be used any
        more.
        """
        pgconn = self._connection.pgconn
        copy_binary = _binary_way(types) if typed and text.passes and not is_encrypted(pgconn) else None
        copy = sql.SQL("COPY ({}) TO STDOUT (FORMAT binary)" if copy_binary else "COPY ({}) TO STDOUT")
        statement = copy.format(query).as_string(self._connection).encode(text.codec)
        with self._unconverted(text):
            if copy_binary:
                yield from copy_binary(pgconn, statement, types, stopped)
            else:
                yield from copy_text(pgconn, statement, len(types), stopped)
            if stopped():
                # The connection may be in the middle of the COPY.
                raise KeyboardInterrupt

    @contextmanager
    def _unconverted(self, text: DatabaseText) -> Iterator[None]:
        """Have the server send text in the database's encoding, if the stream's text has that, too.

        With SQL_ASCII the server neither converts nor checks text, and psycopg returns bytes.
        """
        if text.client_encoding != self._connection.info.parameter_status("server_encoding"):
            yield
            return
        self._connection.execute("SET client_encoding = SQL_ASCII")
        yield
        self._connection.execute("SET client_encoding = UTF8")

    def _run(self, statement: sql.Composable) -> Iterable[tuple[Any, ...]]:
        try:
            return self._connection.execute(cast("Any", statement))
        except psycopg.Error as error:
            raise server_failure("begin a snapshot", error) from error


def _binary_way(types: Sequence[PgType]) -> Callable[..., Any] | None:
    """Return `copy_binary` if it can read these types. Streams without a snapshot start sooner without it."""
    from pgcdc_cli.replication.copy_binary import copy_binary  # noqa: PLC0415 - only snapshots need it
    from pgcdc_cli.types.binary.arrow_values import can_read  # noqa: PLC0415 - as above

    return copy_binary if can_read(types) else None
