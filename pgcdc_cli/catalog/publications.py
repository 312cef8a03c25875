"""Publications: what they publish, and the statements that create, alter and drop them."""

from collections.abc import Callable, Iterable, Iterator, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass
from typing import Any, Literal, TypeAlias

from psycopg import sql

from pgcdc_cli.catalog.server import Session
from pgcdc_cli.errors import ErrorKind, PgcdcError

GeneratedColumns: TypeAlias = Literal["none", "stored"]
"""`publish_generated_columns`: those published without a column list; stored ones from PostgreSQL 18 on."""

OPERATIONS = ("insert", "update", "delete", "truncate")

_PUBLICATIONS = """
SELECT p.pubname, p.puballtables, p.pubinsert, p.pubupdate, p.pubdelete, p.pubtruncate, p.pubviaroot,
       CASE to_jsonb(p) ->> 'pubgencols' WHEN 's' THEN 'stored' ELSE 'none' END,
       pg_get_userbyid(p.pubowner),
       ARRAY(SELECT n.nspname::text FROM pg_publication_namespace s JOIN pg_namespace n ON n.oid = s.pnnspid
             WHERE s.pnpubid = p.oid ORDER BY 1),
       (SELECT json_agg(json_build_array(n.nspname, c.relname,
                          (SELECT json_agg(a.attname ORDER BY a.attnum) FROM pg_attribute a
                           WHERE a.attrelid = c.oid AND a.attnum = ANY (r.prattrs::int2[])),
                          pg_get_expr(r.prqual, r.prrelid)) ORDER BY n.nspname, c.relname)
        FROM pg_publication_rel r JOIN pg_class c ON c.oid = r.prrelid
             JOIN pg_namespace n ON n.oid = c.relnamespace
        WHERE r.prpubid = p.oid)
FROM pg_publication p
WHERE %(name)s::text IS NULL OR p.pubname = %(name)s::text
ORDER BY p.pubname
"""

_TABLES = """
SELECT n.nspname, c.relname,
       (SELECT json_agg(json_build_array(an.nspname, ac.relname))
        FROM pg_partition_ancestors(c.oid) AS a (oid) JOIN pg_class ac ON ac.oid = a.oid
        JOIN pg_namespace an ON an.oid = ac.relnamespace WHERE a.oid <> c.oid)
FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace
WHERE c.relkind IN ('r', 'p') AND c.relpersistence = 'p' AND c.oid >= 16384
ORDER BY 1, 2
"""

_NAMES = """
SELECT c.oid::bigint, n.nspname, c.relname FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace
WHERE c.oid = ANY (%(oids)s::oid[])
"""

_PUBLISHED = """
SELECT DISTINCT t.schemaname::text, t.tablename::text,
       ARRAY(SELECT a.attname::text FROM pg_attribute a
             WHERE a.attrelid = c.oid AND a.attnum > 0 AND NOT a.attisdropped)
FROM pg_publication_tables t
JOIN pg_namespace n ON n.nspname = t.schemaname
JOIN pg_class c ON c.relnamespace = n.oid AND c.relname = t.tablename
WHERE t.pubname = ANY (%(names)s::text[])
"""

_MISSING = """
SELECT n FROM unnest(%(names)s::text[]) WITH ORDINALITY AS wanted (n, i)
WHERE NOT EXISTS (SELECT FROM pg_publication p WHERE p.pubname = n) ORDER BY i
"""

_CUT_OFF = """
SELECT n FROM unnest(%(names)s::text[]) WITH ORDINALITY AS given (n, i) WHERE n <> n::name ORDER BY i LIMIT 1
"""


@dataclass(frozen=True, slots=True)
class PublishedTable:
    """A table of a publication; `columns` is None for all, `row_filter` the expression after WHERE."""

    schema: str
    name: str
    columns: tuple[str, ...] | None = None
    row_filter: str | None = None


@dataclass(frozen=True, slots=True)
class Publication:
    """A publication; `owner` is "" for one that doesn't exist yet."""

    name: str
    all_tables: bool = False
    tables: tuple[PublishedTable, ...] = ()
    schemas: tuple[str, ...] = ()
    operations: tuple[str, ...] = OPERATIONS
    via_root: bool = False
    generated_columns: GeneratedColumns = "none"
    owner: str = ""


def read_publications(session: Session, name: str | None) -> list[Publication]:
    rows = session.ask(_PUBLICATIONS, {"name": name}, "read the publications")
    return [_publication(row) for row in rows]


def read_tables(session: Session, includes: Callable[[str, str], bool]) -> list[tuple[str, str]]:
    """List the included tables that can be published, by schema and name.

    Partitions are published with a table above them that is included, and left out of the list then.
    """
    rows = session.ask(_TABLES, {}, "list the tables")
    above = {(schema, name): set(map(tuple, ancestors or ())) for schema, name, ancestors in rows}
    included = {table for table in above if includes(*table)}
    return [table for table in above if table in included and not above[table] & included]


def read_table_names(session: Session, oids: Sequence[int]) -> dict[int, tuple[str, str]]:
    """Look up the schemas and names of those of these tables that exist."""
    rows = session.ask(_NAMES, {"oids": list(oids)}, "look up the names of tables", opens_no_table=True)
    return {oid: (schema, name) for oid, schema, name in rows}


def _publication(row: tuple[Any, ...]) -> Publication:
    name, all_tables, *published, via_root, generated_columns, owner, schemas, tables = row
    return Publication(
        name=name,
        all_tables=all_tables,
        tables=tuple(
            PublishedTable(schema, table, None if columns is None else tuple(columns), row_filter)
            for schema, table, columns, row_filter in tables or ()
        ),
        schemas=tuple(schemas),
        operations=tuple(operation for operation, on in zip(OPERATIONS, published, strict=True) if on),
        via_root=via_root,
        generated_columns=generated_columns,
        owner=owner,
    )


def read_published(session: Session, names: Sequence[str]) -> list[tuple[str, str, list[str]]]:
    """List the tables of publications, by schema and name, with their columns."""
    rows = session.ask(_PUBLISHED, {"names": list(names)}, "list the published tables")
    return [(schema, table, columns) for schema, table, columns in rows]


def missing_publications(session: Session, names: Sequence[str]) -> list[str]:
    """List those of `names` that don't exist, in their order."""
    rows = session.ask(_MISSING, {"names": list(names)}, "look for the publications", opens_no_table=True)
    return [name for (name,) in rows]


def check_names(session: Session, doing: str, publications: Iterable[Publication]) -> None:
    """Raise PgcdcError (USAGE) for a name that is too long: the server would cut it off, and take another."""
    names = [name for publication in publications for name in _names(publication)]
    for (name,) in session.ask(_CUT_OFF, {"names": names}, doing):
        message = f'could not {doing}: "{name}" is longer than any name'
        raise PgcdcError(ErrorKind.USAGE, message, hint="a name has at most 63 bytes")


def _names(publication: Publication) -> Iterator[str]:
    yield publication.name
    yield from publication.schemas
    for table in publication.tables:
        yield from (table.schema, table.name, *(table.columns or ()))


def create_statement(publication: Publication, *, only: bool = False) -> sql.Composed:
    """Write CREATE PUBLICATION; without tables and schemas it publishes nothing yet.

    Tables that inherit from a named one are published with it, unless `only` those named are meant.
    """
    settings = _settings(
        publication.operations,
        via_root=publication.via_root,
        # Servers before PostgreSQL 18 don't have this parameter.
        generated_columns=None if publication.generated_columns == "none" else publication.generated_columns,
    )
    return sql.SQL("CREATE PUBLICATION {}{} WITH ({})").format(
        sql.Identifier(publication.name), _objects(publication, only=only), settings
    )


def _settings(
    operations: tuple[str, ...] | None, *, via_root: bool | None, generated_columns: GeneratedColumns | None
) -> sql.Composed:
    """Write the parameters of a publication; None leaves one out."""
    given: list[sql.Composable] = []
    if operations is not None:
        given.append(sql.SQL("publish = {}").format(sql.Literal(", ".join(operations))))
    if via_root is not None:
        given.append(sql.SQL(f"publish_via_partition_root = {str(via_root).lower()}"))
    if generated_columns is not None:
        given.append(sql.SQL(f"publish_generated_columns = {generated_columns}"))
    return sql.SQL(", ").join(given)


@dataclass(frozen=True, slots=True)
class Alteration:
    """Changes to a publication; None leaves something as it is. `put` replaces its tables and schemas.

    Only the tables and schemas of `add`, `drop` and `put` are used. `only` is as in `create_statement`.
    """

    add: Publication | None = None
    drop: Publication | None = None
    put: Publication | None = None
    operations: tuple[str, ...] | None = None
    via_root: bool | None = None
    generated_columns: GeneratedColumns | None = None
    only: bool = False


def members(name: str, tables: Sequence[PublishedTable], schemas: Sequence[str] = ()) -> Publication | None:
    """Return what an `Alteration` adds, drops, or puts; None if that is nothing."""
    return Publication(name, tables=tuple(tables), schemas=tuple(schemas)) if tables or schemas else None


def limit(publication: Publication, tables: AbstractSet[tuple[str, str]]) -> Alteration | None:
    """Return what leaves a publication just these tables; None if it has them.

    Those that it has keep their columns and row filters. Only those that are new must be the owner's own, and
    tables that stay aren't locked.
    """
    name, before = publication.name, {(table.schema, table.name) for table in publication.tables}
    new = [PublishedTable(*table) for table in sorted(tables - before)]
    others = [PublishedTable(*table) for table in sorted(before - tables)]
    add, drop = members(name, new), members(name, others, publication.schemas)
    return Alteration(add, drop, only=True) if add or drop else None


def alter_statements(name: str, change: Alteration) -> list[sql.Composed]:
    """Write the statements, to be run in one transaction."""
    alter = sql.SQL("ALTER PUBLICATION {}").format(sql.Identifier(name))
    # DROP comes first, so that a table can be dropped and added again with other columns.
    acts = {"DROP": change.drop, "ADD": change.add, "SET": change.put}
    parts = [
        sql.SQL(f"{{}} {act}{{}}").format(alter, sql.SQL(_objects(which, only=change.only).as_string()[4:]))
        for act, which in acts.items()
        if which is not None
    ]
    settings = _settings(
        change.operations, via_root=change.via_root, generated_columns=change.generated_columns
    )
    if settings.as_string():
        parts.append(sql.SQL("{} SET ({})").format(alter, settings))
    return parts


def _objects(publication: Publication, *, only: bool) -> sql.Composable:
    if publication.all_tables:
        return sql.SQL(" FOR ALL TABLES")
    table = sql.SQL("TABLE ONLY {}" if only else "TABLE {}")
    parts: list[sql.Composable] = [table.format(_table(one)) for one in publication.tables]
    parts += [sql.SQL("TABLES IN SCHEMA {}").format(sql.Identifier(s)) for s in publication.schemas]
    return sql.SQL(" FOR {}").format(sql.SQL(", ").join(parts)) if parts else sql.SQL("")


def _table(table: PublishedTable) -> sql.Composable:
    text: sql.Composable = sql.Identifier(table.schema, table.name)
    if table.columns is not None:
        text += sql.SQL(" ({})").format(_identifiers(table.columns))
    if table.row_filter is not None:
        # A row filter is an SQL expression; it runs with the rights of whoever gave it.
        text += sql.SQL(" WHERE ({})").format(sql.SQL(table.row_filter))
    return text


def _identifiers(names: Iterable[str]) -> sql.Composed:
    return sql.SQL(", ").join(map(sql.Identifier, names))


def drop_statement(name: str) -> sql.Composed:
    return sql.SQL("DROP PUBLICATION {}").format(sql.Identifier(name))
