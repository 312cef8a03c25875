"""The one connection that the catalog's questions go over."""

from typing import Any

import psycopg
from psycopg import sql

from pgcdc_cli.replication.failures import Kinds, server_failure
from pgcdc_cli.replication.session import Connection, connect


class Session:
    """An autocommit connection that is opened when first used, and again when it was lost."""

    def __init__(self, conninfo: str) -> None:
        self._conninfo = conninfo
        self._connection: Connection | None = None

    def close(self) -> None:
        if self._connection is not None:
            self._connection.close()
            self._connection = None

    def ask(self, query: str, parameters: dict[str, Any], doing: str) -> list[tuple[Any, ...]]:
        """Read rows. A connection that was lost since it was last used is opened anew, once."""
        reused = self._connection is not None and not self._connection.closed
        try:
            return self._open().execute(query.encode(), parameters).fetchall()
        except psycopg.Error as error:
            if reused and self._connection is not None and self._connection.closed:
                return self.ask(query, parameters, doing)
            raise server_failure(doing, error) from error

    def run(self, statement: sql.Composable, doing: str, kinds: Kinds) -> None:
        """Execute a statement without a result; `kinds` are the kinds of error that it alone has."""
        try:
            self._open().execute(statement.as_string().encode())
        except psycopg.Error as error:
            raise server_failure(doing, error, kinds) from error

    def _open(self) -> Connection:
        if self._connection is None or self._connection.closed:
            self._connection = connect(self._conninfo)
        return self._connection
