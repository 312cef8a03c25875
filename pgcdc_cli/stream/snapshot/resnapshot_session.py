"""A connection that reads tables again and again, each time with a new snapshot, and the tables it finds."""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import psycopg
from psycopg import sql

from pgcdc_cli.changes.edge import RowKey, TableResnapshot
from pgcdc_cli.changes.selection import NamePattern
from pgcdc_cli.changes.table import TableColumn, TableSchema
from pgcdc_cli.errors import ErrorKind, PgcdcError
from pgcdc_cli.lsn import Lsn
from pgcdc_cli.pgoutput.relations import Describe
from pgcdc_cli.replication.failures import server_failure
from pgcdc_cli.stream.snapshot.snapshot_session import READING, Columns, SnapshotSession
from pgcdc_cli.stream.snapshot.snapshot_tables import (
    ChangedTableError,
    SnapshotTable,
    WantedRows,
    find_tables,
)
from pgcdc_cli.types.database_text import DatabaseText
from pgcdc_cli.types.pg_type import is_name

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

# The search path gets the schemas of base types that an extension made, for their operators; `_AS_STREAMED`
# empties it again. The types are asked for, since an untyped value would be read as the operator's argument:
# any record for a row type, a number for regclass. Of a domain of an enum, only the enum has operators.
#
# An index may tell rows apart that are equal in the column's own collation, or by its type's own operators
# (strategy 3 is equality).
_KEY = """
WITH RECURSIVE types AS (
    SELECT k.n, a.atttypid AS oid FROM unnest(%(key)s::text[]) WITH ORDINALITY AS k (name, n)
    JOIN pg_attribute a ON a.attrelid = %(table)s AND a.attname = k.name
    UNION SELECT n, t.typbasetype FROM types JOIN pg_type t USING (oid) WHERE t.typtype = 'd'
)
SELECT set_config('search_path', concat_ws(', ', 'pg_catalog',
           string_agg(DISTINCT quote_ident(n.nspname), ', ')
               FILTER (WHERE t.typtype = 'b' AND t.typcategory <> 'A')), true),
       json_agg(json_build_array(n.nspname, t.typname, t.typtype = 'e') ORDER BY types.n)
           FILTER (WHERE t.typtype <> 'd'),
       (SELECT json_object_agg(a.attname, json_build_array(cn.nspname, c.collname))
        FROM pg_index i CROSS JOIN unnest(i.indkey, i.indcollation) AS k (attnum, collation_oid)
        JOIN pg_attribute a ON a.attrelid = i.indrelid AND a.attnum = k.attnum
        JOIN pg_collation c ON c.oid = k.collation_oid JOIN pg_namespace cn ON cn.oid = c.collnamespace
        WHERE i.indrelid = %(table)s AND i.indisreplident AND k.collation_oid <> a.attcollation),
       EXISTS (SELECT FROM pg_index i CROSS JOIN unnest(i.indkey, i.indclass) AS k (attnum, opclass)
               JOIN pg_attribute a ON a.attrelid = i.indrelid AND a.attnum = k.attnum
               JOIN pg_opclass o ON o.oid = k.opclass
               JOIN pg_opclass d ON d.opcmethod = o.opcmethod AND d.opcdefault
                    AND d.opcintype IN (a.atttypid, o.opcintype)
               JOIN pg_amop oe ON oe.amopfamily = o.opcfamily AND oe.amopstrategy = 3
                    AND oe.amoplefttype = o.opcintype AND oe.amoprighttype = o.opcintype
               JOIN pg_amop de ON de.amopfamily = d.opcfamily AND de.amopstrategy = 3
                    AND de.amoplefttype = d.opcintype AND de.amoprighttype = d.opcintype
               WHERE i.indrelid = %(table)s AND i.indisreplident AND oe.amopopr <> de.amopopr)
FROM types JOIN pg_type t USING (oid) JOIN pg_namespace n ON n.oid = t.typnamespace
"""

# The server finds operators before this condition, and prints names after it, which it computes once.
_AS_STREAMED = sql.SQL("(SELECT set_config('search_path', '', true)) = ''")

# Another type or collation has another order, or may have. Labels of an enum, also within another type, may
# have been swapped.
_ORDER = """
WITH RECURSIVE key (name, n) AS (SELECT * FROM unnest(%(key)s::text[]) WITH ORDINALITY),
types AS (
    SELECT key.n, a.atttypid AS oid FROM key
    JOIN pg_attribute a ON a.attrelid = %(table)s AND a.attname = key.name
    UNION SELECT types.n, unnest(ARRAY[t.typbasetype, t.typelem] || ARRAY(
        SELECT rngsubtype FROM pg_range WHERE rngtypid = t.oid
        UNION ALL SELECT atttypid FROM pg_attribute WHERE attrelid = t.typrelid))
    FROM types JOIN pg_type t USING (oid)
)
SELECT concat_ws(' ', string_agg(concat(a.atttypid, '/', a.attcollation, '/' || labels), ' ' ORDER BY key.n),
                 (SELECT indcollation::text FROM pg_index WHERE indrelid = %(table)s AND indisreplident))
FROM key JOIN pg_attribute a ON a.attrelid = %(table)s AND a.attname = key.name
LEFT JOIN LATERAL (
    SELECT md5(string_agg(enumlabel, E'\\n' ORDER BY enumtypid, enumsortorder)) FROM pg_enum
    WHERE enumtypid IN (SELECT oid FROM types WHERE types.n = key.n)
) AS e (labels) ON true
"""

_UNKNOWN_NAMES = {"22P02", "42P01", "42704", "3F000"}
"""What the server says of a name that was renamed: of an enum's value, or, in a row type, of an object."""

_OTHER_OPERATORS = "the index of its key has an operator class that tells apart what is equal otherwise"
_OTHER_WAY = "read it into another directory or file, with pgcdc snapshot"
_NO_ORDER = f"its key can't be compared: {_OTHER_WAY}"

_NO_KEY = (
    "give it a primary key or REPLICA IDENTITY USING INDEX, or read it into another directory or file:"
    " pgcdc snapshot"
)
_NULL_KEY = "validate it first: ALTER TABLE ... VALIDATE CONSTRAINT ..."

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

    def look(self, to_lock: Sequence[tuple[str, str]] = ()) -> Look:
        """Begin a transaction and take its snapshot; waits for locks are short in it.

        Tables `to_lock`, by schema and name, are locked before that if possible.
        """
        self.snapshot.begin()
        if to_lock:
            self.snapshot.lock(to_lock, LOCK_TIMEOUT)
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

    def order(self, one: TableResnapshot) -> str:
        """Return a text that changes if the key is compared in another way."""
        [(order,)] = self._ask(_ORDER, {"table": one.oid, "key": list(one.key)})
        return str(order)

    def check_key(self, one: TableResnapshot, table: SnapshotTable) -> None:
        """Raise USAGE if the key can't be compared, as it is from the second chunk on."""
        query = table.query(self._key(one).beyond_nothing)
        try:
            self.snapshot.check(query, table.reading)
        except PgcdcError as error:
            if isinstance(error.__cause__, psycopg.errors.UndefinedFunction):
                error.hint = _NO_ORDER
            raise

    def chunk(self, one: TableResnapshot, table: SnapshotTable, limit: int) -> Iterator[tuple[int, Columns]]:
        """Yield the next rows in the order of the key, at most `limit`: bytes received, and columns."""
        return self._copy(table, self._next_rows(one, table, limit), table.schema.columns)

    def last_oids(self, one: TableResnapshot, table: SnapshotTable, rows: int) -> dict[str, str]:
        """Return the OIDs of those columns in the key of a chunk's last row whose text is a name.

        Others may give the name to another object before the next chunk is read.
        """
        columns = [
            column for column in table.schema.columns if column.name in one.key and is_name(column.type)
        ]
        if not columns:
            return {}
        oids = sql.SQL(", ").join(map(_as_oid, columns))
        last = self._next_rows(one, table, 1, rows - 1)
        query = sql.SQL("SELECT {} FROM ({}) AS last").format(oids, last)
        [(_, found)] = self._copy(table, query, columns)
        return {
            column.name: values[0].as_py().decode() for column, values in zip(columns, found, strict=True)
        }

    def moved(self, one: TableResnapshot, table: SnapshotTable) -> Iterator[tuple[int, Columns]]:
        """Yield the rows to read once more, those that still exist: bytes received, and columns."""
        if not one.moved:
            return iter(())
        key = self._key(one)
        values = sql.SQL(", ").join(map(key.values, one.moved))
        these = sql.SQL("{} IN ({})").format(key.row, values)
        return self._copy(table, table.query(_AS_STREAMED, these), table.schema.columns)

    def _next_rows(
        self, one: TableResnapshot, table: SnapshotTable, limit: int, skip: int = 0
    ) -> sql.Composed:
        key = self._key(one)
        beyond = [] if one.after is None else [sql.SQL("{} > {}").format(key.row, key.values(one.after))]
        order = sql.SQL(", ").join(key.columns)
        tail = sql.SQL(" ORDER BY {} LIMIT {} OFFSET {}").format(order, limit, skip)
        return table.query(_AS_STREAMED, *beyond) + tail

    def _key(self, one: TableResnapshot) -> "_Key":
        """See how the key's columns are compared, and let their operators be found. May raise USAGE."""
        [(_, types, collations, other)] = self._ask(_KEY, {"table": one.oid, "key": list(one.key)})
        if other:
            message = f'could not read table "{one.table}" again: {_OTHER_OPERATORS}'
            raise PgcdcError(ErrorKind.USAGE, message, hint=_OTHER_WAY)
        columns = [_collated(name, (collations or {}).get(name)) for name in one.key]
        names = [sql.Identifier(schema, name) for schema, name, _ in types]
        enums = [is_enum for *_, is_enum in types]
        return _Key(columns, names, enums, self._text.keeping())

    def _copy(
        self, table: SnapshotTable, query: sql.Composable, columns: Sequence[TableColumn]
    ) -> Iterator[tuple[int, Columns]]:
        try:
            types = [column.type for column in columns]
            yield from self.snapshot.copy(query, types, self._text, self._stopped)
        except psycopg.Error as error:
            raise server_failure(table.reading, error, READING) from error

    def _ask(self, query: str, parameters: dict[str, Any] | None = None) -> list[tuple[Any, ...]]:
        return self.snapshot.ask(query, parameters, doing="look at the tables that are read again")


def is_unknown_name(error: PgcdcError) -> bool:
    """Whether the server may have refused a key because a name in it was renamed."""
    cause = error.__cause__
    return isinstance(cause, psycopg.Error) and cause.sqlstate in _UNKNOWN_NAMES


def _collated(column: str, collation: Sequence[str] | None) -> sql.Composed:
    """Name a column, with the collation that isn't its own."""
    name = sql.SQL("{}").format(sql.Identifier(column))
    return name if collation is None else sql.SQL("{} COLLATE {}").format(name, sql.Identifier(*collation))


def _as_oid(column: TableColumn) -> sql.Composed:
    """Write a value's OID, or an array's OIDs, as text."""
    oid = sql.SQL("oid[]" if column.type.element else "oid")
    return sql.SQL("CAST(CAST({} AS {}) AS text)").format(sql.Identifier(column.name), oid)


_CAST = sql.SQL("CAST({} AS {})")


class _Key(NamedTuple):
    """The columns of a key, in the order of their index, and their types; `text` is how their values came.

    `enums` tells which are enums, or domains of one.
    """

    columns: Sequence[sql.Composable]
    types: Sequence[sql.Identifier]
    enums: Sequence[bool]
    text: DatabaseText

    @property
    def row(self) -> sql.Composed:
        """The columns as they are compared; the index can be used all the same."""
        each = zip(self.columns, self.types, self.enums, strict=True)
        compared = [_CAST.format(column, type_) if is_enum else column for column, type_, is_enum in each]
        return sql.SQL("({})").format(sql.SQL(", ").join(compared))

    @property
    def beyond_nothing(self) -> sql.Composed:
        """A comparison like that with the last row of a chunk."""
        return sql.SQL("{} > {}").format(self.row, self._typed([sql.NULL] * len(self.types)))

    def values(self, texts: RowKey) -> sql.Composed:
        """Write the key of one row."""
        return self._typed(map(self._value, texts))

    def _typed(self, values: Iterable[sql.Composable]) -> sql.Composed:
        return sql.SQL("({})").format(sql.SQL(", ").join(map(_CAST.format, values, self.types)))

    def _value(self, kept: str) -> sql.Composable:
        """Write a value, or its bytes if they aren't valid text."""
        raw = kept.encode(self.text.codec, "surrogateescape")
        if self.text.decode(raw) == (kept, True):
            return sql.Literal(kept)
        return sql.SQL("convert_from({}, getdatabaseencoding())").format(sql.Literal(raw))


@dataclass(frozen=True, slots=True)
class ResnapshotSource:
    """Which tables are read (those of `wanted` that match one of the `patterns`), and how.

    `names` looks up schemas and names by OID. `told` are the OIDs of those of which this run has said how far
    earlier ones came.
    """

    wanted: WantedRows
    patterns: Sequence[NamePattern]
    describe: Describe
    names: Callable[[Sequence[int]], Mapping[int, tuple[str, str]]]
    text: DatabaseText
    stopped: Callable[[], bool]
    told: set[int]

    def find(self, session: ResnapshotSession) -> list[SnapshotTable]:
        """Return all of them. Raises USAGE if one has no key, and BusyError."""
        return self._find(session, replace(self.wanted, includes=self._includes))

    def left_out(self, oids: Sequence[int]) -> list[int]:
        """Return those of these tables that names alone leave out: it is known even if others are busy."""
        names = self.names(oids) if oids else {}
        return [oid for oid in oids if oid not in names or not self._includes(*names[oid])]

    def _includes(self, schema: str, table: str) -> bool:
        matches = any(pattern.matches(schema, table) for pattern in self.patterns)
        selected = self.wanted.includes(schema, table) and self.wanted.selection.includes(schema, table)
        return matches and selected

    def find_again(self, session: ResnapshotSession, known: TableSchema) -> SnapshotTable | None:
        """Return the current version of a table; None if there is none of this name any more."""
        wanted = replace(
            self.wanted, includes=lambda *names: names == (known.schema, known.name), only=known.oid
        )
        return next(iter(self._find(session, wanted)), None)

    def _find(self, session: ResnapshotSession, wanted: WantedRows) -> list[SnapshotTable]:
        try:
            found = find_tables(session.snapshot, wanted, self.describe)
        except ChangedTableError as error:
            raise BusyError(error.tables) from error
        except PgcdcError as error:
            if isinstance(error.__cause__, psycopg.errors.LockNotAvailable):
                raise BusyError from error
            raise
        for table in found:
            _check_key(table)
        return found


def _check_key(table: SnapshotTable) -> None:
    """Raise USAGE where rows can't be read by their key."""
    key = table.schema.key
    if not key:
        message = f'could not read table "{table.schema.display}" again: it has no key'
        raise PgcdcError(ErrorKind.USAGE, message, hint=_NO_KEY)
    for column in key:
        if column in table.facts.unvalidated:
            reason = f'column "{column}" of its key may be NULL: NOT NULL was added as NOT VALID'
            message = f'could not read table "{table.schema.display}" again: {reason}'
            raise PgcdcError(ErrorKind.USAGE, message, hint=_NULL_KEY)


class BusyError(Exception):
    """Another session holds a lock on a table, or changed it since the snapshot: it can't be read for now.

    `to_lock` are the tables, by schema and name, to lock before the next snapshot is taken.
    """

    def __init__(self, to_lock: Sequence[tuple[str, str]] = ()) -> None:
        super().__init__()
        self.to_lock = to_lock
