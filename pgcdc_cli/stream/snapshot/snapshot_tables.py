"""Find the tables that a snapshot reads, their rows and columns, and check that the role may read them."""

import logging
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple, cast

from psycopg import errors, sql

from pgcdc_cli.changes.selection import EVERYTHING, Selection, every_table
from pgcdc_cli.changes.table import ReplicaIdentity, TableColumn, TableSchema
from pgcdc_cli.errors import ErrorKind, PgcdcError
from pgcdc_cli.pgoutput.messages import Relation, RelationColumn
from pgcdc_cli.pgoutput.relations import Describe
from pgcdc_cli.stream.snapshot.snapshot_session import GONE, ResultColumn, SnapshotSession
from pgcdc_cli.types.database_text import DatabaseText

log = logging.getLogger("pgcdc")

PART = 1024
"""Pages of a part: so few that most of its rows fit into what a thread reads ahead."""

# Column lists and row filters of publications are new in PostgreSQL 15, scans of a range of pages in 14.
# PostgreSQL 15 also lists generated columns, which are published since 18.
_PUBLISHED = """
    SELECT c.oid, n.nspname, json_agg(to_jsonb(t) -> 'attnames') -> 0 AS names,
           current_setting('server_version_num')::int >= 180000 AS with_generated,
           CASE WHEN bool_and(to_jsonb(t) ->> 'rowfilter' IS NOT NULL)
                THEN string_agg(to_jsonb(t) ->> 'rowfilter', ' OR ') END AS filters
    FROM pg_publication_tables t
    JOIN pg_namespace n ON n.nspname = t.schemaname
    JOIN pg_class c ON c.relnamespace = n.oid AND c.relname = t.tablename
    WHERE t.pubname = ANY (%(publications)s) AND {} GROUP BY 1, 2"""

# A standby has no rows of unlogged tables.
_ALL = """
    SELECT c.oid, n.nspname, CASE WHEN %(generated)s THEN
               (SELECT json_agg(a.attname) FROM pg_attribute a
                WHERE a.attrelid = c.oid AND a.attnum > 0 AND NOT a.attisdropped) END AS names,
           true AS with_generated, NULL AS filters
    FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace
    WHERE c.relkind IN ('r', 'p') AND c.oid >= 16384
          AND (c.relpersistence = 'p' OR c.relpersistence = 'u' AND NOT pg_is_in_recovery()) AND {}"""

# The server computes this array first, so that it doesn't look up columns and filters of other tables.
_ONLY = """
    (%(only)s IS NULL
     OR c.oid = ANY (%(only)s::oid || ARRAY(SELECT a::oid FROM pg_partition_ancestors(%(only)s::oid) a)))"""

# As in the stream, an index that is deferrable or invalid is no key, and neither are its INCLUDE columns. Who
# may read only some columns may not name ctid, by which a table is divided.
_TABLES = """
WITH read AS ({})
SELECT c.oid::bigint, r.nspname, c.relname, c.relreplident,
       (SELECT json_agg(json_build_array(a.attname, a.atttypid::bigint, a.atttypmod,
                   c.relreplident = 'f' OR a.attnum = ANY ((i.indkey::int2[])[0:i.indnkeyatts - 1]), a.attnum)
                   ORDER BY a.attnum)
        FROM pg_attribute a
        WHERE a.attrelid = c.oid AND a.attnum > 0 AND NOT a.attisdropped
              AND CASE json_typeof(r.names)
                  WHEN 'array' THEN a.attname IN (SELECT json_array_elements_text(r.names))
                                    AND (r.with_generated OR a.attgenerated = '')
                  ELSE a.attgenerated = '' END),
       r.filters, c.relkind <> 'p', coalesce(has_schema_privilege(c.relnamespace, 'USAGE'), true),
       ARRAY(SELECT a.attname::text FROM pg_attribute a
             WHERE a.attrelid = c.oid AND a.attnum > 0 AND NOT a.attisdropped
                   AND NOT has_column_privilege(c.oid, a.attnum, 'SELECT')),
       row_security_active(c.oid),
       c.reltuples::bigint,
       CASE WHEN current_setting('server_version_num')::int >= 140000
                 AND c.relkind = 'r' AND m.amname = 'heap' AND has_table_privilege(c.oid, 'SELECT')
            THEN pg_relation_size(c.oid) / current_setting('block_size')::int ELSE 0 END,
       ARRAY(SELECT a.attname::text FROM pg_constraint k
             JOIN pg_attribute a ON a.attrelid = k.conrelid AND a.attnum = ANY (k.conkey)
             WHERE k.conrelid = c.oid AND k.contype = 'n' AND NOT k.convalidated),
       ARRAY(SELECT a.oid::bigint FROM pg_partition_ancestors(c.oid) AS a (oid) WHERE a.oid <> c.oid)
FROM read r
JOIN pg_class c ON c.oid = r.oid
LEFT JOIN pg_am m ON m.oid = c.relam
LEFT JOIN pg_index i ON i.indrelid = c.oid AND i.indimmediate AND i.indisvalid
     AND CASE c.relreplident WHEN 'd' THEN i.indisprimary WHEN 'i' THEN i.indisreplident ELSE false END
ORDER BY 2, 3
"""

# pg_relation_filenode() returns the current file, and pg_partition_tree() the current partitions, of which
# rows are read; the catalog has those of the snapshot. inhdetachpending is new in PostgreSQL 14.
_ALTERED = """
WITH RECURSIVE parts (root, oid) AS (
    SELECT t, t FROM unnest(%(tables)s::oid[]) t
    UNION SELECT p.root, i.inhrelid FROM parts p JOIN pg_inherits i ON i.inhparent = p.oid
    JOIN pg_class c ON c.oid = i.inhrelid AND c.relispartition
    WHERE (to_jsonb(i) ->> 'inhdetachpending') IS DISTINCT FROM 'true')
SELECT n.nspname || '.' || c.relname FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace
WHERE c.oid IN (SELECT oid FROM parts) AND c.relfilenode <> pg_relation_filenode(c.oid)
   OR c.relkind = 'p' AND c.oid = ANY (%(tables)s::oid[])
      AND ARRAY(SELECT p.oid FROM parts p WHERE p.root = c.oid ORDER BY 1)
          <> ARRAY(SELECT relid::oid FROM pg_partition_tree(c.oid) ORDER BY 1)
"""

# Who may read only some columns may not name tableoid.
_PARTITIONS = """
SELECT t::bigint, ARRAY(SELECT relid::oid::bigint FROM pg_partition_tree(t) WHERE isleaf)
FROM unnest(%(roots)s::oid[]) t WHERE has_table_privilege(t, 'SELECT')
"""

# A table that was dropped, and has no successor of the same name; functions see the present catalog.
_DROPPED = "SELECT has_table_privilege(%(oid)s::oid, 'SELECT') IS NULL AND to_regclass(%(name)s) IS NULL"

_RIGHTS_HINT = "it needs: {}"
_COLUMNS_HINT = "it lacks the column, or the publication leaves it out; --table chooses among tables"
_WHERE_HINT = (
    "check --where, which must fit every table that is read, and needs the schemas of names that aren't the"
    " system's; --table chooses among tables"
)
_POLICY_HINT = "let the role read all rows: ALTER ROLE {} BYPASSRLS"
_NAME_HINT = "no statement can name it: rename it, or leave it out, with --exclude-table or --exclude-column"
_FILTER_HINT = "change it: ALTER PUBLICATION; or leave the table out, with --exclude-table"


class ChangedTableError(PgcdcError):
    """A table was changed since the snapshot, which must be taken again.

    `tables` are all tables to read, by schema and name.
    """

    def __init__(self, name: str, tables: Sequence["SnapshotTable"]) -> None:
        message = f'could not read the rows of table "{name}": it was changed since the snapshot'
        super().__init__(ErrorKind.CONNECTION, message, hint="run again")
        self.tables = [(one.schema.schema, one.schema.name) for one in tables]


@dataclass(frozen=True, slots=True)
class WantedRows:
    """Which rows are wanted: those of the tables in `publications`, or of all tables if that is empty.

    `includes` (by schema and name) and the selection choose among the tables; `where` is an SQL condition on
    their rows, and `sample` reads about so many percent of them. With `only`, an OID, just that table and its
    ancestors are looked up.
    """

    publications: Sequence[str]
    includes: Callable[[str, str], bool] = every_table
    selection: Selection = EVERYTHING
    where: str | None = None
    sample: float | None = None
    only: int | None = None


class SnapshotFacts(NamedTuple):
    """More facts about a table to read: the publication's row filter, privileges and size.

    `alone` reads ONLY the table, without tables that inherit from it. `enters_schema`: the role has USAGE on
    its schema. `unreadable` are columns without the SELECT privilege, `hidden` says that row-level security
    applies to the role. `pages` is the size, 0 if the table can't be divided, `rows` the estimated number, -1
    if unknown. `unvalidated` are columns that may hold a NULL from before they were NOT NULL (`NOT VALID`,
    PostgreSQL 18). `numbers` are the columns' `attnum`. `partitions` are those of the snapshot, by OID, since
    no lock of ours keeps others from being attached; None if there are none, or the role can't choose them.
    """

    row_filter: str | None
    alone: bool
    enters_schema: bool
    unreadable: frozenset[str]
    hidden: bool
    pages: int
    rows: int
    unvalidated: frozenset[str]
    numbers: Mapping[str, int]
    partitions: Sequence[int] | None = None


@dataclass(frozen=True, slots=True)
class SnapshotTable:
    """A table to read; `where` and `sample` as in `WantedRows`."""

    schema: TableSchema
    facts: SnapshotFacts
    where: str | None
    sample: float | None

    @property
    def reading(self) -> str:
        """The action, for error messages."""
        return f'read the rows of table "{self.schema.display}"'

    def unfit(self, error: PgcdcError) -> PgcdcError:
        """Let the hint name --where if the server refuses the query with it."""
        if self.where is not None and error.kind is ErrorKind.USAGE:
            error.hint = _WHERE_HINT
        return error

    def has(self, column: TableColumn, found: ResultColumn) -> bool:
        """Whether the names of table and column still mean the same; others may have swapped them.

        Without facts of the catalog, nothing is known of a domain's base type.
        """
        same_type = self.schema.facts is None or found.type_oid == column.type.oid
        return same_type and found[:2] == (self.schema.oid, self.facts.numbers[column.name])

    @property
    def counted(self) -> bool:
        """Whether the number of rows to read can be estimated."""
        chooses = self.facts.row_filter is not None or self.where is not None or self.sample is not None
        return self.facts.rows >= 0 and not chooses

    def parts(self) -> "Iterator[TablePart]":
        """Divide the table; together the parts have all rows, even if its size has changed since."""
        firsts = range(0, self.facts.pages if self.sample is None else 0, PART)
        for first in firsts[:-1]:
            yield TablePart(self, first, first + PART)
        yield TablePart(self, firsts[-1] if firsts else 0, None)

    def query(self, *more: sql.Composable) -> sql.Composed:
        """Return the SELECT of its rows, limited to those that meet `more` conditions."""
        names = sql.SQL(", ").join(sql.Identifier(column.name) for column in self.schema.columns)
        only = sql.SQL("ONLY " if self.facts.alone else "")
        source = only + sql.Identifier(self.schema.schema, self.schema.name)
        if self.sample is not None:
            source += sql.SQL(" TABLESAMPLE BERNOULLI ({})").format(sql.Literal(self.sample))
        if self.facts.partitions is not None:
            more = (*more, sql.SQL("tableoid = ANY ({}::oid[])").format(sql.Literal(self.facts.partitions)))
        # The server made the row filter; the user gave --where, which runs with the user's own privileges.
        given = [text for text in (self.facts.row_filter, self.where) if text is not None]
        conditions = [*more, *(sql.SQL("({}\n)").format(sql.SQL(cast("Any", text))) for text in given)]
        query = sql.SQL("SELECT {} FROM {}").format(names, source)
        return query + sql.SQL(" WHERE ") + sql.SQL(" AND ").join(conditions) if conditions else query


def rows_to_come(tables: Sequence[SnapshotTable]) -> int | None:
    """Estimate the rows of tables, as of their last ANALYZE; None unless it is known for all of them."""
    return sum(table.facts.rows for table in tables) if all(table.counted for table in tables) else None


class TablePart(NamedTuple):
    """The pages of a table from `first` up to, but not including, `end`; None: to the last page."""

    table: SnapshotTable
    first: int
    end: int | None

    def query(self) -> sql.Composed:
        """Return the SELECT of its rows."""
        bounds = {">=": self.first or None, "<": self.end}
        return self.table.query(
            *(
                sql.SQL("ctid {} {}").format(sql.SQL(which), sql.Literal(f"({page},0)"))
                for which, page in bounds.items()
                if page is not None
            )
        )


@dataclass(frozen=True, slots=True)
class _Found:
    """A table found in the catalog; `invalid` are those of its names and row filter that aren't text."""

    relation: Relation
    facts: SnapshotFacts
    ancestors: frozenset[int]
    invalid: frozenset[str]

    @property
    def names(self) -> tuple[str, str]:
        return self.relation.namespace, self.relation.name

    def check_text(self, columns: Iterable[TableColumn] = ()) -> None:
        """Raise PROTOCOL if the table's name, its row filter or one of these columns isn't valid text."""
        what = f'table "{self.relation.namespace}.{self.relation.name}"'
        column = next((one.name for one in columns if one.name in self.invalid), None)
        if self.facts.row_filter in self.invalid:
            raise _no_text(f"the row filter of {what}", _FILTER_HINT)
        if self.invalid.intersection(self.names):
            raise _no_text(f"the name of {what}", _NAME_HINT)
        if column is not None:
            raise _no_text(f'the name of column "{column}" of {what}', _NAME_HINT)


def _no_text(what: str, hint: str) -> PgcdcError:
    return PgcdcError(ErrorKind.PROTOCOL, f"could not read rows: {what} is not valid text", hint=hint)


def find_tables(
    session: SnapshotSession,
    wanted: WantedRows,
    describe: Describe,
    unmatched: Callable[[list[str]], None] = lambda _: None,
) -> list[SnapshotTable]:
    """Return the wanted tables, sorted by schema and name, and lock them against ALTER and TRUNCATE.

    A partition is left out if a partitioned table above it is read: in publications, if one of them has
    `publish_via_partition_root`, as in the stream. `unmatched` is called with the patterns that match
    nothing. Raises RIGHTS, which names everything that the role may not read, USAGE if a table lacks a
    column, and ChangedTableError.
    """
    found = list(_found(session, wanted))
    known = [(*one.names, [column.name for column in one.relation.columns]) for one in found]
    unmatched(wanted.selection.unmatched(known))
    if not wanted.publications:
        found = [one for one in found if wanted.selection.includes(*one.names)]
    read = {one.relation.oid for one in found}
    found = [one for one in found if not one.ancestors & read and wanted.includes(*one.names)]
    found = [one for one in found if one.relation.columns and wanted.selection.includes(*one.names)]
    for one in found:
        one.check_text()
    described = describe([one.relation for one in found])
    tables = []
    for one, table in zip(found, described, strict=True):
        selected = wanted.selection.of(table)
        if selected is not None:
            one.check_text(selected.table.columns)
            tables.append(SnapshotTable(selected.table, one.facts, wanted.where, wanted.sample))
    _check_columns(tables, wanted.selection.columns)
    _check_rights(session, tables)
    tables = [table for table in tables if _lock(session, table, tables)]
    tables = _with_partitions(session, tables)
    _check_not_altered(session, tables)
    return tables


def _with_partitions(session: SnapshotSession, tables: list[SnapshotTable]) -> list[SnapshotTable]:
    """Let partitioned tables know their partitions, which `_check_not_altered` then compares."""
    roots = [table.schema.oid for table in tables if not table.facts.alone]
    found = dict(session.ask(_PARTITIONS, {"roots": roots})) if roots else {}
    return [replace(one, facts=one.facts._replace(partitions=found.get(one.schema.oid))) for one in tables]


def _lock(session: SnapshotSession, table: SnapshotTable, tables: Sequence[SnapshotTable]) -> bool:
    """Lock one of these tables; false if it was dropped since the snapshot, so that nobody can read it."""
    try:
        columns = session.check(replace(table, where=None).query(), table.reading)
    except PgcdcError as error:
        if isinstance(error.__cause__, errors.DeadlockDetected):
            raise ChangedTableError(table.schema.display, tables) from error
        # A name in the snapshot's catalog no longer exists.
        if not isinstance(error.__cause__, GONE):
            raise
        name = sql.Identifier(table.schema.schema, table.schema.name).as_string()
        [(dropped,)] = session.ask(_DROPPED, {"oid": table.schema.oid, "name": name})
        if not dropped:
            raise ChangedTableError(table.schema.display, tables) from error
        log.warning('table "%s" was dropped a moment ago: none of its rows are read', table.schema.display)
        return False
    if not all(map(table.has, table.schema.columns, columns)):
        raise ChangedTableError(table.schema.display, tables)
    if table.where is not None:
        try:
            session.check(table.query(), table.reading)
        except PgcdcError as error:
            raise table.unfit(error) from error.__cause__
    return True


def _found(session: SnapshotSession, wanted: WantedRows) -> Iterator[_Found]:
    query = _TABLES.format((_PUBLISHED if wanted.publications else _ALL).format(_ONLY))
    parameters = {
        "publications": list(wanted.publications),
        "generated": bool(wanted.selection.columns),
        "only": wanted.only,
    }
    shown = DatabaseText.shown(session.database_encoding)
    for row in session.ask(query, parameters, text=shown.keeping()):
        oid, schema, name, identity, columns, *facts, ancestors = row
        row_filter, alone, enters, unreadable, hidden, rows, pages, unvalidated = facts
        kept = [schema, name, *(column[0] for column in columns or ()), row_filter or ""]
        mended = {one: shown.mended(one) for one in [*kept, *unreadable, *unvalidated]}
        known = tuple(RelationColumn(mended[column], *others) for column, *others, _ in columns or ())
        numbers = {mended[column]: number for column, *_, number in columns or ()}
        relation = Relation(oid, mended[schema], mended[name], ReplicaIdentity(identity), known)
        row_filter = row_filter and mended[row_filter]
        hidden_columns, may_be_null = (
            frozenset(mended[one] for one in names) for names in (unreadable, unvalidated)
        )
        more = SnapshotFacts(
            row_filter, alone, enters, hidden_columns, hidden, pages, rows, may_be_null, numbers
        )
        invalid = frozenset(text for one, text in mended.items() if text != one)
        yield _Found(relation, more, frozenset(ancestors), invalid)


def _check_columns(tables: Sequence[SnapshotTable], wanted: Sequence[str]) -> None:
    for table in tables:
        names = {column.name for column in table.schema.columns}
        missing = [name for name in wanted if name not in names]
        if missing:
            message = f'could not find column "{missing[0]}" in table "{table.schema.display}"'
            raise PgcdcError(ErrorKind.USAGE, message, hint=_COLUMNS_HINT)


def _check_not_altered(session: SnapshotSession, tables: Sequence[SnapshotTable]) -> None:
    """Raise ChangedTableError if one was rewritten, or has other partitions, before it was locked.

    The snapshot sees no rows of a table that ALTER or TRUNCATE rewrote, and those of a partition that was
    detached are not among those of its root.
    """
    altered = session.ask(_ALTERED, {"tables": [table.schema.oid for table in tables]})
    if altered:
        raise ChangedTableError(altered[0][0], tables)


def _check_rights(session: SnapshotSession, tables: Sequence[SnapshotTable]) -> None:
    refused = [table for table in tables if _missing(table, "")]
    hidden = [table.schema.display for table in tables if table.facts.hidden]
    if not (refused or hidden):
        return
    role = session.role.as_string()
    if refused:
        statements = dict.fromkeys(grant for table in refused for grant in _missing(table, role))
        hint = _RIGHTS_HINT.format("; ".join(statements))
        names = _quoted(table.schema.display for table in refused)
        raise PgcdcError(ErrorKind.RIGHTS, f"could not read {names}: permission denied", hint=hint)
    message = f"could not read {_quoted(hidden)}: row-level security would leave rows out"
    raise PgcdcError(ErrorKind.RIGHTS, message, hint=_POLICY_HINT.format(role))


def _missing(table: SnapshotTable, role: str) -> list[str]:
    """Return the GRANTs that a role lacks to read a table's columns."""
    schema, name = sql.Identifier(table.schema.schema), sql.Identifier(table.schema.schema, table.schema.name)
    grants = [] if table.facts.enters_schema else [f"GRANT USAGE ON SCHEMA {schema.as_string()} TO {role}"]
    if any(column.name in table.facts.unreadable for column in table.schema.columns):
        grants.append(f"GRANT SELECT ON TABLE {name.as_string()} TO {role}")
    return grants


def _quoted(tables: Iterable[str]) -> str:
    return ", ".join(f'table "{table}"' for table in tables)
