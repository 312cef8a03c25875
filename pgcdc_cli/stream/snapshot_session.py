"""One connection in a transaction that sees a snapshot, and the rows that it copies out."""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from typing import Any, cast

import psycopg
import pyarrow as pa
from psycopg import sql

from pgcdc_cli.errors import PgcdcError
from pgcdc_cli.replication.copy_out import copy_columns, copy_out
from pgcdc_cli.replication.session import ask, connect, database_encoding, server_failure, this_server
from pgcdc_cli.types.database_text import DatabaseText

Columns = tuple[pa.BinaryArray, ...]


class SnapshotSession:
    """A transaction that sees `snapshot`, by the name that another one exported; without, one of its own.

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
        """Begin a transaction, where the last one has ended; it sees what is there at the first query."""
        self._run(sql.SQL("BEGIN ISOLATION LEVEL REPEATABLE READ READ ONLY"))
        if snapshot is not None:
            self.see(snapshot)
        # Rows in the order of the table, wherever another scan of it may be.
        self._run(sql.SQL("SET LOCAL synchronize_seqscans = off"))
        # An error instead of rows that are left out.
        self._run(sql.SQL("SET LOCAL row_security = off"))

    def see(self, snapshot: str) -> None:
        """See what another transaction exported; nothing may have been asked before in this one."""
        self._run(sql.SQL("SET TRANSACTION SNAPSHOT {}").format(sql.Literal(snapshot)))

    def lock(self, tables: Sequence[tuple[str, str]]) -> bool:
        """Lock tables against ALTER and TRUNCATE before anything is seen; false where not all can be."""
        names = sql.SQL(", ").join(sql.Identifier(*name) for name in tables)
        try:
            # This alone takes no snapshot (`PlannedStmtRequiresSnapshot` in tcop/pquery.c).
            self._run(sql.SQL("LOCK TABLE {} IN ACCESS SHARE MODE").format(names))
        except PgcdcError:
            return False
        return True

    def limit_lock_waits(self, timeout: str) -> None:
        """Wait no longer for a lock in this transaction, as `lock_timeout` has it."""
        self._run(sql.SQL("SET LOCAL lock_timeout = {}").format(sql.Literal(timeout)))

    def end(self) -> None:
        """End the transaction; another may begin."""
        self._run(sql.SQL("COMMIT"))

    def close(self) -> None:
        """End the transaction, and the connection."""
        self._connection.close()

    @property
    def role(self) -> sql.Identifier:
        return sql.Identifier(self._connection.info.user)

    @property
    def database_encoding(self) -> str:
        """The encoding of the database, by PostgreSQL's name."""
        return database_encoding(self._connection)

    def ask(
        self,
        query: str,
        parameters: dict[str, Any] | None = None,
        doing: str = "read the snapshot",
        text: DatabaseText | None = None,
    ) -> list[tuple[Any, ...]]:
        """Read rows, with what is no text in them as `text` has it, by default escaped."""
        try:
            return ask(self._connection, query, parameters, text)
        except psycopg.Error as error:
            raise server_failure(doing, error) from error

    def export(self) -> str:
        """Name the snapshot for others, who can begin with it as long as this transaction lasts."""
        [(name,)] = self.ask("SELECT pg_export_snapshot()")
        return str(name)

    def check(self, query: sql.Composable, doing: str) -> None:
        """Let the server look at a query, and lock what it reads, without reading any of it."""
        self.ask((query + sql.SQL(" LIMIT 0")).as_string(self._connection), doing=doing)

    def copy(
        self, query: sql.Composable, width: int, text: DatabaseText, stopped: Callable[[], bool]
    ) -> Iterator[tuple[int, Columns]]:
        """Give a query's rows of `width` columns, many at a time: bytes that came, and columns.

        Raises psycopg.Error; KeyboardInterrupt once `stopped`, and the connection is of no more use then.
        """
        statement = sql.SQL("COPY ({}) TO STDOUT").format(query).as_string(self._connection)
        pgconn = self._connection.pgconn
        with self._unconverted(text):
            yield from copy_out(pgconn, statement.encode(text.codec), partial(_read, width), stopped)
            if stopped():
                # The connection is in the midst of it, perhaps.
                raise KeyboardInterrupt

    @contextmanager
    def _unconverted(self, text: DatabaseText) -> Iterator[None]:
        """Have the server send text as it is in the database, if that is how the stream has it.

        With SQL_ASCII it converts and checks nothing, and psycopg gives bytes.
        """
        if text.client_encoding != self._connection.info.parameter_status("server_encoding"):
            yield
            return
        self._connection.execute("SET client_encoding = SQL_ASCII")
        yield
        self._connection.execute("SET client_encoding = UTF8")

    def _run(self, statement: sql.Composable) -> None:
        try:
            self._connection.execute(cast("Any", statement))
        except psycopg.Error as error:
            raise server_failure("begin a snapshot", error) from error


def _read(width: int, rows: memoryview) -> tuple[int, Columns]:
    return len(rows), copy_columns(rows, width)
