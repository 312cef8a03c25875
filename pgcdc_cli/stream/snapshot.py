"""The rows that are there before a stream begins, all as of one moment: a snapshot exported with a slot.

A temporary slot of its own exports it, so that the stream's slot may be older: every transaction that
commits before the snapshot's position is in it, every later one in the stream from that position on.
PostgreSQL manual, "Streaming Replication Protocol", CREATE_REPLICATION_SLOT with SNAPSHOT 'export'.
"""

import secrets
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import islice
from typing import Any, cast

import numpy as np
import psycopg
from psycopg import sql

from pgcdc_cli.changes.selection import EVERYTHING, Selection
from pgcdc_cli.changes.slice import ChangeBatch, Edge, FullImage, Slice, SnapshotPosition, Stamps
from pgcdc_cli.changes.table import ReplicaIdentity, TableSchema
from pgcdc_cli.lsn import Lsn
from pgcdc_cli.pgoutput.messages import Relation, RelationColumn
from pgcdc_cli.replication.connection import ReplicationConnection
from pgcdc_cli.replication.session import connect, server_failure
from pgcdc_cli.types import kernels
from pgcdc_cli.types.database_text import STRICT, DatabaseText

ROWS = 8192
"""Rows of a slice, at most."""

# Columns and row filters of a publication came with version 15.
_TABLES = """
SELECT c.oid::bigint, n.nspname, c.relname, c.relreplident,
       (SELECT json_agg(json_build_array(a.attname, a.atttypid::bigint, a.atttypmod,
                   c.relreplident = 'f' OR a.attnum = ANY (i.indkey::int2[])) ORDER BY a.attnum)
        FROM pg_attribute a
        WHERE a.attrelid = c.oid AND a.attnum > 0 AND NOT a.attisdropped
              AND CASE json_typeof(p.names)
                  WHEN 'array' THEN a.attname IN (SELECT json_array_elements_text(p.names))
                  ELSE a.attgenerated = '' END),
       p.filters
FROM (SELECT schemaname, tablename,
             json_agg(to_jsonb(t) -> 'attnames') -> 0 AS names,
             CASE WHEN bool_and(to_jsonb(t) ->> 'rowfilter' IS NOT NULL)
                  THEN string_agg(to_jsonb(t) ->> 'rowfilter', ' OR ') END AS filters
      FROM pg_publication_tables t WHERE pubname = ANY (%(publications)s) GROUP BY 1, 2) p
JOIN pg_namespace n ON n.nspname = p.schemaname
JOIN pg_class c ON c.relnamespace = n.oid AND c.relname = p.tablename
LEFT JOIN pg_index i ON i.indrelid = c.oid
     AND CASE c.relreplident WHEN 'd' THEN i.indisprimary WHEN 'i' THEN i.indisreplident ELSE false END
ORDER BY 2, 3
"""


@dataclass(frozen=True, slots=True)
class _Table:
    schema: TableSchema
    row_filter: str | None


class Snapshot:
    """One snapshot. `position` is where the stream begins that has everything after it.

    `text` says how text comes. Methods raise PgcdcError.
    """

    def __init__(self, conninfo: str, publications: Sequence[str], text: DatabaseText = STRICT) -> None:
        self._publications = list(publications)
        self._text = text
        self._connection = connect(conninfo)
        try:
            self.position = self._begin(conninfo)
        except BaseException:
            self._connection.close()
            raise

    def close(self) -> None:
        """End the transaction that holds the snapshot."""
        self._connection.close()

    def _begin(self, conninfo: str) -> Lsn:
        with ReplicationConnection(conninfo) as exporting:
            name = f"pgcdc_snapshot_{secrets.token_hex(6)}"
            position, snapshot = exporting.export_snapshot(name)
            self._run(sql.SQL("BEGIN ISOLATION LEVEL REPEATABLE READ READ ONLY"))
            self._run(sql.SQL("SET TRANSACTION SNAPSHOT {}").format(sql.Literal(snapshot)))
        # Rows in the order of the table, wherever another scan of it may be.
        self._run(sql.SQL("SET LOCAL synchronize_seqscans = off"))
        return position

    def slices(
        self,
        includes: Callable[[str, str], bool],
        describe: Callable[[Relation], TableSchema],
        selection: Selection = EVERYTHING,
    ) -> Iterator[Slice]:
        """Read the published tables that `includes` and the selection let through.

        The last slice, with an edge, is empty.
        """
        tables = [
            _Table(selected.table, row_filter)
            for relation, row_filter in self._relations()
            if relation.columns and includes(relation.namespace, relation.name)
            if (selected := selection.of(describe(relation))) is not None
        ]
        filled = [table for table in tables if self._has_rows(table)]
        stamp = _Stamper(self.position, self._transaction())
        for table in filled:
            for number, (rows, ends) in enumerate(_chunks(self._rows(table))):
                at = SnapshotPosition(table is tables[0], table is filled[-1], begins=not number, ends=ends)
                yield Slice(None, (_batch(table.schema, rows, stamp.next(len(rows)), at),))
        yield Slice(Edge(Lsn(0), self.position, 0))

    def _relations(self) -> Iterator[tuple[Relation, str | None]]:
        for oid, schema, name, identity, columns, row_filter in self._ask(
            sql.SQL(cast("Any", _TABLES)), {"publications": self._publications}
        ):
            known = tuple(RelationColumn(*column) for column in columns or ())
            yield Relation(oid, schema, name, ReplicaIdentity(identity), known), row_filter

    def _transaction(self) -> int:
        [(xid,)] = self._ask(sql.SQL("SELECT txid_current() % 4294967296"))
        return int(xid)

    def _has_rows(self, table: _Table) -> bool:
        [(found,)] = self._ask(sql.SQL("SELECT EXISTS ({})").format(_select(table)))
        return bool(found)

    def _rows(self, table: _Table) -> Iterator[tuple[Any, ...]]:
        query = sql.SQL("COPY ({}) TO STDOUT").format(_select(table)).as_string(self._connection)
        doing = f'read the rows of table "{table.schema.display}"'
        try:
            with (
                self._unconverted(),
                self._connection.cursor() as cursor,
                cursor.copy(query.encode(self._text.codec)) as copy,
            ):
                yield from copy.rows()
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
    query = sql.SQL("SELECT {} FROM {}").format(sql.SQL(", ").join(names), source)
    if table.row_filter is None:
        return query
    # An expression of the server's own making.
    return query + sql.SQL(" WHERE ") + sql.SQL(cast("Any", table.row_filter))


def _chunks(rows: Iterator[tuple[Any, ...]]) -> Iterator[tuple[list[tuple[Any, ...]], bool]]:
    """Divide rows; True comes with the last of them."""
    chunk = list(islice(rows, ROWS))
    while chunk:
        following = list(islice(rows, ROWS))
        yield chunk, not following
        chunk = following


def _batch(
    table: TableSchema, rows: list[tuple[Any, ...]], stamps: Stamps, position: SnapshotPosition
) -> ChangeBatch:
    columns = tuple(kernels.binary(values) for values in zip(*rows, strict=True))
    image = FullImage(columns, (None,) * len(columns))
    return ChangeBatch(table, "R", stamps, image, None, position)
