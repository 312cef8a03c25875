"""A connection that reads tables again and again, each time with a new snapshot."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, NamedTuple

import psycopg
from psycopg import sql

from pgcdc_cli.changes.slice import TableResnapshot
from pgcdc_cli.lsn import Lsn
from pgcdc_cli.replication.session import server_failure
from pgcdc_cli.stream.snapshot_session import Columns, SnapshotSession
from pgcdc_cli.stream.snapshot_tables import SnapshotTable
from pgcdc_cli.types.database_text import DatabaseText

LOCK_TIMEOUT = "200ms"
"""How long the stream waits for a locked table before it goes on, and tries again later."""

# The snapshot is taken before the position is read, so everything that it sees committed before that. On a
# standby it can see a commit shortly before the replay position covers it, but none that was not received.
_LOOK = """
SELECT txid_current_snapshot()::text, position::text, position > flushed
FROM (SELECT CASE WHEN pg_is_in_recovery() THEN greatest(pg_last_wal_replay_lsn(), pg_last_wal_receive_lsn())
             ELSE pg_current_wal_insert_lsn() END,
             CASE WHEN pg_is_in_recovery() THEN 'FFFFFFFF/FFFFFFFF' ELSE pg_current_wal_flush_lsn() END)
     AS log (position, flushed)
"""

# A number above those of all running transactions. A standby assigns none, but age() counts from the next
# transaction ID in its replayed WAL; that lacks the epoch, which is that of a snapshot's xmax, or the next.
_BARRIER = """
SELECT CASE WHEN pg_is_in_recovery() THEN seen + mod(mod(age('3'::xid) + 3 - seen, epoch) + epoch, epoch)
       ELSE txid_current() END
FROM (SELECT txid_snapshot_xmax(txid_current_snapshot()), 4294967296) AS snapshot (seen, epoch)
"""

# The operators of an extension's type are in the schema of the type.
_KEY_SCHEMAS = """
WITH RECURSIVE types AS (
    SELECT a.atttypid AS oid FROM pg_attribute a WHERE a.attrelid = %(table)s AND a.attname = ANY (%(key)s)
    UNION SELECT t.typbasetype FROM types JOIN pg_type t USING (oid) WHERE t.typtype = 'd'
)
SELECT set_config('search_path', 'pg_catalog, ' || string_agg(DISTINCT quote_ident(n.nspname), ', '), true)
FROM types JOIN pg_type t USING (oid) JOIN pg_namespace n ON n.oid = t.typnamespace
"""


_XIDS = 1 << 32


@dataclass(frozen=True, slots=True)
class Visibility:
    """Which transactions a snapshot sees: those before `xmax`, except the `running` ones, from `xmin` on."""

    xmin: int
    xmax: int
    running: frozenset[int]

    @classmethod
    def parse(cls, text: str) -> "Visibility":
        """Parse a `pg_snapshot`, such as `10:20:10,14`."""
        xmin, xmax, running = text.split(":")
        return cls(int(xmin), int(xmax), frozenset(int(xid) % _XIDS for xid in running.split(",") if xid))

    def sees(self, xid: int) -> bool:
        """Whether the snapshot sees a transaction, given by its 32-bit ID in the stream."""
        beyond = (xid - self.xmax) % _XIDS < _XIDS // 2
        return not beyond and xid not in self.running


class Look(NamedTuple):
    """A snapshot: every transaction that `seen` sees committed before `position`."""

    seen: Visibility
    position: Lsn


class ResnapshotSession:
    """A session with one transaction, and so one snapshot, from `look` to `end`. Methods raise PgcdcError."""

    def __init__(self, conninfo: str, text: DatabaseText, stopped: Callable[[], bool]) -> None:
        self.snapshot = SnapshotSession(conninfo)
        self._text = text
        self._stopped = stopped
        self.end()

    def barrier(self) -> int:
        """Return a transaction ID above those of all transactions that have written so far."""
        [(xid,)] = self._ask(_BARRIER)
        return int(xid)

    def look(self) -> Look:
        """Begin a transaction and take its snapshot; waits for locks are short in it."""
        self.snapshot.begin()
        self.snapshot.limit_lock_waits(LOCK_TIMEOUT)
        [(seen, position, unflushed)] = self._ask(_LOOK)
        if unflushed:
            # With a transaction ID, this transaction's end flushes the WAL, and the stream can get there.
            self._ask("SELECT txid_current()")
        return Look(Visibility.parse(seen), Lsn.parse(position))

    def end(self) -> None:
        """End the transaction: release its snapshot and its locks."""
        self.snapshot.end()

    def close(self) -> None:
        """Close the connection."""
        self.snapshot.close()

    def chunk(self, one: TableResnapshot, table: SnapshotTable, limit: int) -> Iterator[tuple[int, Columns]]:
        """Yield the next rows in the order of the key, at most `limit`: bytes received, and columns."""
        beyond = [] if one.after is None else [sql.SQL("{} > {}").format(_names(one.key), _values(one.after))]
        order = sql.SQL(", ").join(map(sql.Identifier, one.key))
        tail = sql.SQL(" ORDER BY {} LIMIT {}").format(order, sql.Literal(limit))
        return self._copy(one, table, table.query(*beyond) + tail)

    def moved(self, one: TableResnapshot, table: SnapshotTable) -> Iterator[tuple[int, Columns]]:
        """Yield the rows to read once more, those that still exist: bytes received, and columns."""
        if not one.moved:
            return iter(())
        keys = sql.SQL(", ").join(map(_values, one.moved))
        return self._copy(one, table, table.query(sql.SQL("{} IN ({})").format(_names(one.key), keys)))

    def _copy(
        self, one: TableResnapshot, table: SnapshotTable, query: sql.Composable
    ) -> Iterator[tuple[int, Columns]]:
        self._ask(_KEY_SCHEMAS, {"table": one.oid, "key": list(one.key)})
        try:
            yield from self.snapshot.copy(query, len(table.schema.columns), self._text, self._stopped)
        except psycopg.Error as error:
            raise server_failure(table.reading, error) from error

    def _ask(self, query: str, parameters: dict[str, Any] | None = None) -> list[tuple[Any, ...]]:
        return self.snapshot.ask(query, parameters, doing="look at the tables that are read again")


def _names(key: tuple[str, ...]) -> sql.Composed:
    return sql.SQL("({})").format(sql.SQL(", ").join(map(sql.Identifier, key)))


def _values(key: tuple[str, ...]) -> sql.Composed:
    return sql.SQL("({})").format(sql.SQL(", ").join(map(sql.Literal, key)))
