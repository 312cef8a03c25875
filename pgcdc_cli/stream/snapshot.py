"""The rows that are there before a stream begins, all as of one moment: a snapshot exported with a slot.

A temporary slot exports it: every transaction that commits before the slot's position is in the snapshot,
every later one in the stream from that position on. The stream's slot may be older; or it is made as a copy
of the temporary one once all rows are read (`keep_slot`). A run that is killed before leaves no slot behind.
PostgreSQL manual, "Streaming Replication Protocol", CREATE_REPLICATION_SLOT with SNAPSHOT 'export'.
"""

import secrets
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import ExitStack, closing, contextmanager
from dataclasses import dataclass
from functools import partial
from typing import Any, TypeVar, cast

import numpy as np
import psycopg
import pyarrow as pa
from psycopg import sql

from pgcdc_cli.changes.selection import EVERYTHING, Selection
from pgcdc_cli.changes.slice import ChangeBatch, Edge, FullImage, Slice, SnapshotPosition, Stamps
from pgcdc_cli.changes.table import ReplicaIdentity, TableSchema
from pgcdc_cli.errors import ErrorKind, PgcdcError
from pgcdc_cli.lsn import Lsn
from pgcdc_cli.pgoutput.messages import Relation, RelationColumn
from pgcdc_cli.replication.connection import ReplicationConnection
from pgcdc_cli.replication.copy_out import copy_out
from pgcdc_cli.replication.session import connect, server_failure
from pgcdc_cli.types.copy_text import copy_columns
from pgcdc_cli.types.database_text import STRICT, DatabaseText

# Columns and row filters of a publication came with version 15. A partition goes with its root where one of
# the publications has that (`publish_via_partition_root`), as in the stream.
_TABLES = """
WITH published AS (
    SELECT c.oid, n.nspname, json_agg(to_jsonb(t) -> 'attnames') -> 0 AS names,
           CASE WHEN bool_and(to_jsonb(t) ->> 'rowfilter' IS NOT NULL)
                THEN string_agg(to_jsonb(t) ->> 'rowfilter', ' OR ') END AS filters
    FROM pg_publication_tables t
    JOIN pg_namespace n ON n.nspname = t.schemaname
    JOIN pg_class c ON c.relnamespace = n.oid AND c.relname = t.tablename
    WHERE t.pubname = ANY (%(publications)s) GROUP BY 1, 2)
SELECT c.oid::bigint, p.nspname, c.relname, c.relreplident,
       (SELECT json_agg(json_build_array(a.attname, a.atttypid::bigint, a.atttypmod,
                   c.relreplident = 'f' OR a.attnum = ANY (i.indkey::int2[])) ORDER BY a.attnum)
        FROM pg_attribute a
        WHERE a.attrelid = c.oid AND a.attnum > 0 AND NOT a.attisdropped
              AND CASE json_typeof(p.names)
                  WHEN 'array' THEN a.attname IN (SELECT json_array_elements_text(p.names))
                  ELSE a.attgenerated = '' END),
       p.filters, c.relkind <> 'p', has_schema_privilege(c.relnamespace, 'USAGE'),
       ARRAY(SELECT a.attname::text FROM pg_attribute a
             WHERE a.attrelid = c.oid AND a.attnum > 0 AND NOT a.attisdropped
                   AND NOT has_column_privilege(c.oid, a.attnum, 'SELECT')),
       row_security_active(c.oid)
FROM published p
JOIN pg_class c ON c.oid = p.oid
LEFT JOIN pg_index i ON i.indrelid = c.oid
     AND CASE c.relreplident WHEN 'd' THEN i.indisprimary WHEN 'i' THEN i.indisreplident ELSE false END
WHERE NOT EXISTS (SELECT FROM pg_partition_ancestors(c.oid) AS a (oid) JOIN published q ON q.oid = a.oid
                  WHERE a.oid <> c.oid)
ORDER BY 2, 3
"""

_Columns = tuple[pa.BinaryArray, ...]
Item = TypeVar("Item")

_RIGHTS_HINT = "what it takes: {}"
_NO_SLOT_HINT = "raise max_replication_slots, or drop a slot that nobody reads: pgcdc slot list"
_POLICY_HINT = "let the role read all rows: ALTER ROLE {} BYPASSRLS"


@dataclass(frozen=True, slots=True)
class _Table:
    """A published table as it is read; `alone` leaves out the rows of tables that inherit from it.

    `unreadable` are columns that the role may not read, `hidden` says that policies keep rows from it.
    """

    schema: TableSchema
    row_filter: str | None
    alone: bool
    enters_schema: bool
    unreadable: frozenset[str]
    hidden: bool


class Snapshot:
    """One snapshot. `position` is where the stream begins that has everything after it.

    `text` says how text comes. `bytes` is how much of the rows did. Methods raise PgcdcError, and a wait for
    rows KeyboardInterrupt once `stopped`.
    """

    def __init__(
        self,
        conninfo: str,
        publications: Sequence[str],
        text: DatabaseText = STRICT,
        stopped: Callable[[], bool] = lambda: False,
    ) -> None:
        self._publications = list(publications)
        self._stopped = stopped
        self._text = text
        self._slot = f"pgcdc_snapshot_{secrets.token_hex(6)}"
        self._closing = ExitStack()
        self.bytes = 0
        try:
            self._connection = self._closing.enter_context(closing(connect(conninfo)))
            self._exporting = self._closing.enter_context(ReplicationConnection(conninfo))
            self.position = self._begin()
        except BaseException:
            self._closing.close()
            raise

    def close(self) -> None:
        """End the transaction that holds the snapshot; the temporary slot is gone, too."""
        self._closing.close()

    def check_free_slot(self, name: str) -> None:
        """Raise USAGE where there can be no slot more: better now than when all rows are read."""
        query = "SELECT count(*) < current_setting('max_replication_slots')::int FROM pg_replication_slots"
        [(free,)] = self._ask(sql.SQL(query))
        if not free:
            message = f'could not create slot "{name}": the server has no free one beside the snapshot\'s'
            raise PgcdcError(ErrorKind.USAGE, message, hint=_NO_SLOT_HINT)

    def keep_slot(self, name: str) -> None:
        """Make the stream's slot, at `position`."""
        self._exporting.copy_slot(self._slot, name)

    def _begin(self) -> Lsn:
        position, snapshot = self._exporting.export_snapshot(self._slot)
        self._run(sql.SQL("BEGIN ISOLATION LEVEL REPEATABLE READ READ ONLY"))
        self._run(sql.SQL("SET TRANSACTION SNAPSHOT {}").format(sql.Literal(snapshot)))
        # Rows in the order of the table, wherever another scan of it may be.
        self._run(sql.SQL("SET LOCAL synchronize_seqscans = off"))
        # An error instead of rows that are left out.
        self._run(sql.SQL("SET LOCAL row_security = off"))
        return position

    def slices(
        self,
        includes: Callable[[str, str], bool],
        describe: Callable[[Relation], TableSchema],
        selection: Selection = EVERYTHING,
        *,
        with_xid: bool = True,
    ) -> Iterator[Slice]:
        """Read the published tables that `includes` and the selection let through.

        With `with_xid` rows have the transaction that reads them, else none. The last slice, with an edge, is
        empty. RIGHTS names all that may not be read, before anything is.
        """
        tables = [
            _Table(selected.table, *more)
            for relation, more in self._relations()
            if relation.columns and includes(relation.namespace, relation.name)
            if (selected := selection.of(describe(relation))) is not None
        ]
        self._check_rights(tables)
        stamp = _Stamper(self.position, self._transaction() if with_xid else 0)
        before = None
        for (table, columns), following in _with_next(self._chunks(tables)):
            ends = following is None or following[0] is not table
            at = SnapshotPosition(table is tables[0], following is None, table is not before, ends)
            before = table
            yield Slice(None, (_batch(table.schema, columns, stamp, at),))
        yield Slice(Edge(Lsn(0), self.position, 0))

    def _relations(self) -> Iterator[tuple[Relation, tuple[Any, ...]]]:
        for oid, schema, name, identity, columns, row_filter, alone, enters, unreadable, hidden in self._ask(
            sql.SQL(cast("Any", _TABLES)), {"publications": self._publications}
        ):
            known = tuple(RelationColumn(*column) for column in columns or ())
            relation = Relation(oid, schema, name, ReplicaIdentity(identity), known)
            yield relation, (row_filter, alone, enters, frozenset(unreadable), hidden)

    def _check_rights(self, tables: Sequence[_Table]) -> None:
        role = sql.Identifier(self._connection.info.user).as_string()
        refused = {table.schema.display: grants for table in tables if (grants := _missing(table, role))}
        hidden = [table.schema.display for table in tables if table.hidden]
        if refused:
            statements = dict.fromkeys(grant for grants in refused.values() for grant in grants)
            hint = _RIGHTS_HINT.format("; ".join(statements))
            raise PgcdcError(
                ErrorKind.RIGHTS, f"could not read {_quoted(refused)}: permission denied", hint=hint
            )
        if hidden:
            message = f"could not read {_quoted(hidden)}: row-level security would leave rows out"
            raise PgcdcError(ErrorKind.RIGHTS, message, hint=_POLICY_HINT.format(role))

    def _transaction(self) -> int:
        [(xid,)] = self._ask(sql.SQL("SELECT txid_current() % 4294967296"))
        return int(xid)

    def _chunks(self, tables: Iterable[_Table]) -> Iterator[tuple[_Table, _Columns]]:
        for table in tables:
            for columns in self._rows(table):
                yield table, columns

    def _rows(self, table: _Table) -> Iterator[_Columns]:
        width = len(table.schema.columns)
        query = sql.SQL("COPY ({}) TO STDOUT").format(_select(table)).as_string(self._connection)
        doing = f'read the rows of table "{table.schema.display}"'
        try:
            with self._unconverted():
                pgconn, statement = self._connection.pgconn, query.encode(self._text.codec)
                for size, columns in copy_out(pgconn, statement, partial(_read, width), self._stopped):
                    self.bytes += size
                    yield columns
                if self._stopped():
                    # The connection is in the midst of it, perhaps.
                    raise KeyboardInterrupt
        except psycopg.Error as error:
            raise server_failure(doing, error) from error

    @contextmanager
    def _unconverted(self) -> Iterator[None]:
        """Have the server send text as it is in the database, if that is how the stream has it.

        With SQL_ASCII it converts and checks nothing, and psycopg gives bytes.
        """
        encoding = self._connection.info.parameter_status("server_encoding")
        if self._text.client_encoding != encoding:
            yield
            return
        self._connection.execute("SET client_encoding = SQL_ASCII")
        yield
        self._connection.execute("SET client_encoding = UTF8")

    def _ask(self, query: sql.Composable, parameters: dict[str, Any] | None = None) -> list[tuple[Any, ...]]:
        try:
            return self._connection.execute(cast("Any", query), parameters).fetchall()
        except psycopg.Error as error:
            raise server_failure("read the snapshot", error) from error

    def _run(self, statement: sql.Composable) -> None:
        try:
            self._connection.execute(cast("Any", statement))
        except psycopg.Error as error:
            raise server_failure("begin a snapshot", error) from error


class _Stamper:
    """Stamps of rows that all stand at one position, in one transaction."""

    def __init__(self, position: Lsn, xid: int) -> None:
        self._position = position
        self._xid = xid
        self._now = time.time_ns() // 1000
        self._rows = 0

    def next(self, rows: int) -> Stamps:
        numbers = np.arange(self._rows, self._rows + rows, dtype=np.int64)
        self._rows += rows
        at, now, xid = (np.full(rows, value, np.int64) for value in (self._position, self._now, self._xid))
        return Stamps(numbers, at, at, now, xid, numbers)


def _select(table: _Table) -> sql.Composed:
    names = [sql.Identifier(column.name) for column in table.schema.columns]
    source = sql.Identifier(table.schema.schema, table.schema.name)
    only = sql.SQL("ONLY " if table.alone else "")
    query = sql.SQL("SELECT {} FROM {}{}").format(sql.SQL(", ").join(names), only, source)
    if table.row_filter is None:
        return query
    # An expression of the server's own making.
    return query + sql.SQL(" WHERE ") + sql.SQL(cast("Any", table.row_filter))


def _missing(table: _Table, role: str) -> list[str]:
    """Write the statements that let a role read a table's columns; none where it may."""
    schema, name = sql.Identifier(table.schema.schema), sql.Identifier(table.schema.schema, table.schema.name)
    grants = [] if table.enters_schema else [f"GRANT USAGE ON SCHEMA {schema.as_string()} TO {role}"]
    if any(column.name in table.unreadable for column in table.schema.columns):
        grants.append(f"GRANT SELECT ON TABLE {name.as_string()} TO {role}")
    return grants


def _quoted(tables: Iterable[str]) -> str:
    return ", ".join(f'table "{table}"' for table in tables)


def _read(width: int, rows: memoryview) -> tuple[int, _Columns]:
    return len(rows), copy_columns(rows, width)


def _with_next(items: Iterator[Item]) -> Iterator[tuple[Item, Item | None]]:
    """Give each item with the one behind it, the last one with None."""
    item = next(items, None)
    while item is not None:
        following = next(items, None)
        yield item, following
        item = following


def _batch(table: TableSchema, columns: _Columns, stamp: _Stamper, position: SnapshotPosition) -> ChangeBatch:
    image = FullImage(columns, (None,) * len(columns))
    return ChangeBatch(table, "R", stamp.next(len(columns[0])), image, None, position)
