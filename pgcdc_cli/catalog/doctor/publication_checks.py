"""Checks of publications: would they lose changes, or make updates fail on the source?

They look at the tables of publications, at each partition by itself: their keys, and what is published.
"""

import shlex
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from pgcdc_cli.catalog.doctor.finding import Finding, Level, Setup, literal, quoted
from pgcdc_cli.catalog.publications import OPERATIONS
from pgcdc_cli.catalog.server import Session
from pgcdc_cli.errors import nearest, quoted_list

# A partitioned table has rows only in its leaf partitions, each with a replica identity of its own. The
# columns of a row filter are taken from its expression tree: pg_depend has them together with those of a
# column list. Servers before PostgreSQL 18 don't mind generated columns that aren't published.
_PUBLISHED = r"""
WITH published AS (
    SELECT t.pubname, c.oid AS root, coalesce(t.attnames, '{}') AS attnames, t.rowfilter,
           r.prattrs IS NOT NULL AS has_list,
           ARRAY(SELECT DISTINCT a.attname::text
                 FROM regexp_matches(r.prqual::text, ':varattno (\d+)', 'g') m
                 JOIN pg_attribute a ON a.attrelid = r.prrelid AND a.attnum = m[1]::int
                 ORDER BY 1) AS filtered_by,
           has_schema_privilege(n.oid, 'USAGE')
               AND (has_table_privilege(c.oid, 'SELECT')
                    OR (SELECT bool_and(has_column_privilege(c.oid, name::text, 'SELECT'))
                        FROM unnest(t.attnames) name)) AS may_select
    FROM pg_publication_tables t
    JOIN pg_publication p ON p.pubname = t.pubname
    JOIN pg_namespace n ON n.nspname = t.schemaname
    JOIN pg_class c ON c.relnamespace = n.oid AND c.relname = t.tablename
    LEFT JOIN pg_publication_rel r ON r.prpubid = p.oid AND r.prrelid = c.oid
    WHERE t.pubname = ANY (ARRAY(SELECT pubname FROM pg_publication
                                 WHERE oid = ANY (%(publications)s::oid[]))))
SELECT p.pubname, rn.nspname, rc.relname, n.nspname, c.relname, c.relreplident = 'f',
       ARRAY(SELECT a.attname::text
             FROM pg_index i CROSS JOIN unnest((i.indkey::int2[])[0:i.indnkeyatts - 1]) k (attnum)
             JOIN pg_attribute a ON a.attrelid = c.oid AND a.attnum = k.attnum
             WHERE i.indrelid = c.oid AND i.indimmediate
                   AND CASE c.relreplident WHEN 'd' THEN i.indisprimary WHEN 'i' THEN i.indisreplident END),
       EXISTS (SELECT FROM pg_index i WHERE i.indrelid = c.oid AND i.indisprimary AND i.indimmediate),
       ARRAY(SELECT a.attname::text
             FROM pg_index i CROSS JOIN unnest((i.indkey::int2[])[0:i.indnkeyatts - 1]) k (attnum)
             JOIN pg_attribute a ON a.attrelid = c.oid AND a.attnum = k.attnum
             WHERE i.indrelid = c.oid AND i.indisprimary AND NOT i.indimmediate),
       (SELECT min(x.relname::text) FROM pg_index i JOIN pg_class x ON x.oid = i.indexrelid
        WHERE i.indrelid = c.oid AND i.indisunique AND i.indimmediate AND i.indisvalid
              AND i.indpred IS NULL AND i.indexprs IS NULL
              AND NOT EXISTS (SELECT FROM pg_attribute a
                              WHERE a.attrelid = c.oid
                                    AND a.attnum = ANY ((i.indkey::int2[])[0:i.indnkeyatts - 1])
                                    AND (NOT a.attnotnull
                                         OR EXISTS (SELECT FROM pg_constraint k
                                                    WHERE k.conrelid = c.oid AND k.contype = 'n'
                                                          AND NOT k.convalidated
                                                          AND a.attnum = ANY (k.conkey))))),
       p.attnames::text[], p.rowfilter, p.has_list, p.filtered_by, p.may_select,
       ARRAY(SELECT a.attname::text FROM pg_attribute a
             WHERE a.attrelid = c.oid AND a.attgenerated <> ''
                   AND a.attname <> ALL (p.attnames)
                   AND current_setting('server_version_num')::int >= 180000),
       EXISTS (SELECT FROM pg_attribute a WHERE a.attrelid = c.oid AND a.attgenerated = 'v'),
       EXISTS (SELECT FROM pg_publication_rel r JOIN pg_publication o ON o.oid = r.prpubid
               WHERE r.prattrs IS NOT NULL AND (o.pubupdate OR o.pubdelete)
                     AND (r.prrelid = c.oid OR r.prrelid IN (SELECT pg_partition_ancestors(c.oid)))),
       ARRAY(SELECT a.attname::text
             FROM pg_index i CROSS JOIN unnest((i.indkey::int2[])[0:i.indnkeyatts - 1]) k (attnum)
             JOIN pg_attribute a ON a.attrelid = p.root AND a.attnum = k.attnum
             WHERE i.indrelid = p.root AND i.indisvalid AND i.indimmediate
                   AND CASE rc.relreplident WHEN 'i' THEN i.indisreplident ELSE i.indisprimary END)
FROM published p
JOIN pg_class rc ON rc.oid = p.root JOIN pg_namespace rn ON rn.oid = rc.relnamespace
CROSS JOIN LATERAL (SELECT relid::oid FROM pg_partition_tree(p.root) UNION SELECT p.root) leaf (oid)
JOIN pg_class c ON c.oid = leaf.oid JOIN pg_namespace n ON n.oid = c.relnamespace
WHERE c.relkind = 'r'
ORDER BY 1, 2, 3, 4, 5
"""

_UNLOGGED = """
SELECT p.pubname, n.nspname, c.relname
FROM pg_publication p, pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace
WHERE p.oid = ANY (%(publications)s::oid[]) AND c.relkind = 'r' AND c.relpersistence = 'u'
      AND (p.puballtables OR EXISTS (SELECT FROM pg_publication_namespace s
                                     WHERE s.pnpubid = p.oid AND s.pnnspid = n.oid))
ORDER BY 1, 2, 3
"""

_FOREIGN = """
SELECT p.pubname, n.nspname, c.relname
FROM pg_publication p, pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace
WHERE p.oid = ANY (%(publications)s::oid[]) AND c.relkind = 'f' AND c.relispartition
      AND (p.puballtables
           OR EXISTS (SELECT FROM pg_partition_ancestors(c.oid) t (oid) JOIN pg_class a USING (oid)
                      LEFT JOIN pg_publication_rel r ON r.prpubid = p.oid AND r.prrelid = a.oid
                      LEFT JOIN pg_publication_namespace s ON s.pnpubid = p.oid AND s.pnnspid = a.relnamespace
                      WHERE r.oid IS NOT NULL OR s.oid IS NOT NULL))
ORDER BY 1, 2, 3
"""

# Of such a partition the server takes the last of no ancestors (`get_rel_sync_entry` in pgoutput.c).
_DETACHING = """
SELECT p.pubname, n.nspname, c.relname, an.nspname, a.relname
FROM pg_publication p, pg_inherits i
JOIN pg_class c ON c.oid = i.inhrelid JOIN pg_namespace n ON n.oid = c.relnamespace
JOIN pg_class a ON a.oid = i.inhparent JOIN pg_namespace an ON an.oid = a.relnamespace
WHERE p.oid = ANY (%(publications)s::oid[]) AND p.puballtables AND p.pubviaroot
      AND c.relkind = 'r' AND i.inhdetachpending
ORDER BY 1, 2, 3
"""

_ROOTS = """
SELECT p.pubname, n.nspname, c.relname
FROM pg_publication p, pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace
WHERE p.oid = ANY (%(publications)s::oid[]) AND NOT p.pubviaroot AND c.relkind = 'p' AND NOT c.relispartition
      AND (p.puballtables
           OR EXISTS (SELECT FROM pg_publication_namespace s WHERE s.pnpubid = p.oid AND s.pnnspid = n.oid)
           OR EXISTS (SELECT FROM pg_publication_rel r WHERE r.prpubid = p.oid AND r.prrelid = c.oid))
ORDER BY 1, 2, 3
"""

# What was there before a NOT NULL that is NOT VALID (PostgreSQL 18) may be NULL, in a replica identity, too.
_UNVALIDATED = """
SELECT n.nspname, c.relname, a.attname, k.conname
FROM pg_constraint k JOIN pg_class c ON c.oid = k.conrelid JOIN pg_namespace n ON n.oid = c.relnamespace
JOIN pg_attribute a ON a.attrelid = c.oid AND a.attnum = ANY (k.conkey)
WHERE k.contype = 'n' AND NOT k.convalidated
ORDER BY 1, 2, 3
"""

_FOREIGN_ADVICE = "stream it from its own server; a snapshot may read its rows, but no change follows them"

TableName = tuple[str, str]
"""Schema and name."""


@dataclass(frozen=True, slots=True)
class PublishedRelation:
    """A table whose rows a publication sends; for a partition, `published_as` is the published ancestor.

    `identity` are the columns of the replica identity's index, empty without such an index; with
    `identity_full` all columns are the identity. A primary key that is deferrable can't be one: its columns
    are `deferrable_key`. `usable_index` is a unique index over NOT NULL columns, which could be one.
    `columns` are the published columns; `has_list`: a column list chooses them. `filtered_by` are the columns
    of the row filter. `unpublished` are generated columns that the server refuses in a replica identity;
    those of a table with `has_virtual` can't all be published. `refuses_full`: some publication of updates or
    deletes, even one that isn't looked at, has a column list for it, which the server refuses with FULL.
    `published_key` is the key of `published_as`.
    """

    publication: str
    published_as: TableName
    table: TableName
    identity_full: bool
    identity: tuple[str, ...]
    has_primary_key: bool
    deferrable_key: tuple[str, ...]
    usable_index: str | None
    columns: tuple[str, ...]
    row_filter: str | None
    has_list: bool
    filtered_by: tuple[str, ...]
    may_select: bool
    unpublished: tuple[str, ...]
    has_virtual: bool
    refuses_full: bool
    published_key: tuple[str, ...]


def read_relations(session: Session, publications: Sequence[int]) -> list[PublishedRelation]:
    """List the tables of publications, given by OID, with each partition by itself."""
    rows = session.ask(_PUBLISHED, {"publications": list(publications)}, "look at the published tables")
    return [_relation(*row[:5], facts=row[5:]) for row in rows]


def _relation(
    publication: str, root_schema: str, root: str, schema: str, table: str, *, facts: Sequence[object]
) -> PublishedRelation:
    values = [tuple(fact) if isinstance(fact, list) else fact for fact in facts]
    # The query's columns from the sixth on are the class's fields from the fourth on.
    return PublishedRelation(publication, (root_schema, root), (schema, table), *values)  # type: ignore[arg-type]


def read_unlogged(session: Session, publications: Sequence[int]) -> list[tuple[str, TableName]]:
    """List unlogged tables, which a publication of all tables or of a schema skips."""
    return _by_publication(session, _UNLOGGED, publications)


def read_foreign(session: Session, publications: Sequence[int]) -> list[tuple[str, TableName]]:
    """List foreign tables that are partitions of what a publication sends."""
    return _by_publication(session, _FOREIGN, publications)


def read_split_roots(session: Session, publications: Sequence[int]) -> list[tuple[str, TableName]]:
    """List partitioned tables whose changes a publication sends under their partitions' names."""
    return _by_publication(session, _ROOTS, publications)


def _by_publication(session: Session, query: str, publications: Sequence[int]) -> list[tuple[str, TableName]]:
    rows = session.ask(query, {"publications": list(publications)}, "look at the published tables")
    return [(publication, (schema, table)) for publication, schema, table in rows]


_MAY_CREATE = "SELECT has_database_privilege(current_database(), 'CREATE')"


def publication_missing(setup: Setup) -> Iterator[Finding]:
    """Do the named publications exist, or any at all?"""
    existing = [one.name for one in setup.all_publications]
    missing = [name for name in setup.publication_names if name not in existing]
    slot, here = setup.named_slot, setup.facts.database
    elsewhere = None if slot is None or slot.database == here else slot.database
    for name in missing:
        statements: tuple[str, ...] = ()
        if elsewhere is not None:
            there = f"-d {shlex.quote(elsewhere)}"
            advice = f"the slot is of another database, and its publications are there: {there}"
        elif near := nearest(name, existing):
            advice = f"did you mean {quoted_list(near)}?"
        else:
            statements = (*_create_right(setup), f"CREATE PUBLICATION {quoted(name)} FOR ALL TABLES;")
            advice = (
                "a slot that is older than the publication must be recreated; FOR TABLE instead of FOR ALL"
                " TABLES needs no superuser"
            )
        message = f'publication "{name}" does not exist'
        yield Finding("publication-missing", "error", message, name, statements, advice)
    if not existing and not missing:
        message = f'there is no publication in database "{setup.facts.database}"'
        advice = "create one with: pgcdc publication create NAME, before the slot"
        yield Finding("publication-missing", "warning", message, advice=advice)


def _create_right(setup: Setup) -> Iterator[str]:
    [(may,)] = setup.session.ask(_MAY_CREATE, {}, "look at the role's rights")
    if not may:
        yield f"GRANT CREATE ON DATABASE {quoted(setup.facts.database)} TO {quoted(setup.role)};"


def publication_empty(setup: Setup) -> Iterator[Finding]:
    """Do publications have any tables?"""
    counts = dict.fromkeys((one.name for one in setup.publications), 0)
    for relation in _relations(setup):
        counts[relation.publication] += 1
    for name, count in counts.items():
        if count:
            plural = "1 table" if count == 1 else f"{count} tables"
            yield Finding("publication-empty", "ok", f'publication "{name}" has {plural}', name)
            continue
        statement = f"ALTER PUBLICATION {quoted(name)} ADD TABLES IN SCHEMA public;"
        message = f'publication "{name}" has no tables: nothing is sent'
        advice = f"or one table: pgcdc publication alter {shlex.quote(name)} --add-table TABLE"
        yield Finding("publication-empty", "warning", message, name, (statement,), advice)


def operations(setup: Setup) -> Iterator[Finding]:
    """Are some operations not published?"""
    for one in setup.publications:
        left_out = [operation for operation in OPERATIONS if operation not in one.operations]
        if left_out:
            publish = literal(", ".join(OPERATIONS))
            statement = f"ALTER PUBLICATION {quoted(one.name)} SET (publish = {publish});"
            message = (
                f'publication "{one.name}" leaves out {", ".join(left_out)}: copies of tables will differ'
                " from them"
            )
            yield Finding("operations", "warning", message, one.name, (statement,))


def replica_identity(setup: Setup) -> Iterator[Finding]:
    """Does the server refuse updates and deletes of published tables? They fail on the source then."""
    changing = {one.name for one in setup.publications if {"update", "delete"} & set(one.operations)}
    for relation in _relations(setup):
        if relation.publication in changing:
            yield from _refused(relation)


def _refused(relation: PublishedRelation) -> Iterator[Finding]:
    """Check what `CheckCmdReplicaIdentity` in src/backend/executor/execReplication.c checks, in its words."""
    if not relation.identity_full and not relation.identity:
        yield _finding("replica-identity", relation, "it has no replica identity", _identity(relation))
        return
    unlisted = [name for name in relation.identity if name not in relation.columns]
    if relation.has_list and (relation.identity_full or unlisted):
        why = "though its identity is FULL" if relation.identity_full else f"without {', '.join(unlisted)}"
        problem = f'publication "{relation.publication}" has a column list for it, {why}'
        yield _finding("column-list", relation, problem, _publish_again(relation, unlisted))
    generated = [name for name in relation.unpublished if relation.identity_full or name in relation.identity]
    if generated and not relation.has_list:
        problem = (
            f'its replica identity has generated columns that publication "{relation.publication}" doesn\'t'
            f" publish: {', '.join(generated)}"
        )
        yield _finding("generated-column", relation, problem, _publish_generated(relation))
    unfilterable = [name for name in relation.filtered_by if name not in relation.identity]
    if unfilterable and not relation.identity_full:
        problem = (
            f'the row filter of publication "{relation.publication}" uses {", ".join(unfilterable)},'
            " outside the replica identity"
        )
        yield _finding("row-filter", relation, problem, _without_filter(relation))


def _finding(check: str, relation: PublishedRelation, problem: str, statements: tuple[str, ...]) -> Finding:
    name = ".".join(relation.table)
    message = f'updates and deletes of table "{name}" fail on the source: {problem}'
    return Finding(check, "error", message, name, statements)


def _identity(relation: PublishedRelation) -> tuple[str, ...]:
    """Write the statements that set a replica identity: all columns, or a key if there is one or must be."""
    is_refused = relation.unpublished or relation.refuses_full
    if relation.usable_index is not None or is_refused:
        return _key(relation)
    return (f"ALTER TABLE {quoted(*relation.table)} REPLICA IDENTITY FULL;",)


def _publish_generated(relation: PublishedRelation) -> tuple[str, ...]:
    """Write the statements that publish generated columns, or take virtual ones out of the identity."""
    if relation.has_virtual:
        return _key(relation)
    return (f"ALTER PUBLICATION {quoted(relation.publication)} SET (publish_generated_columns = stored);",)


def _publish_again(relation: PublishedRelation, more: list[str]) -> tuple[str, ...]:
    """Write the statements that publish a table with more columns, or with all if its identity is FULL."""
    columns = "" if relation.identity_full else f" ({', '.join(map(quoted, (*more, *relation.columns)))})"
    where = "" if relation.row_filter is None else f" WHERE ({relation.row_filter})"
    return _in_place(relation, columns + where)


def _without_filter(relation: PublishedRelation) -> tuple[str, ...]:
    if not relation.refuses_full and not relation.unpublished:
        return (f"ALTER TABLE {quoted(*relation.table)} REPLICA IDENTITY FULL;",)
    # With FULL, a column list would be refused, and so would generated columns.
    return _in_place(relation, f" ({', '.join(map(quoted, relation.columns))})" if relation.has_list else "")


def _in_place(relation: PublishedRelation, definition: str) -> tuple[str, ...]:
    """Write statements that replace a publication's table in one transaction, so that no change is lost."""
    alter, table = f"ALTER PUBLICATION {quoted(relation.publication)}", quoted(*relation.published_as)
    return ("BEGIN;", f"{alter} DROP TABLE {table};", f"{alter} ADD TABLE {table}{definition};", "COMMIT;")


def different_columns(setup: Setup) -> Iterator[Finding]:
    """Do publications send different columns of a table? A stream of both ends at its first change."""
    level: Level = "error" if setup.publication_names else "warning"
    advice = (
        "stream each from a slot of its own, or make their column lists equal before the next change: ALTER"
        " PUBLICATION ... SET TABLE"
    )
    firsts: dict[TableName, PublishedRelation] = {}
    seen = set()
    for relation in _relations(setup):
        first = firsts.setdefault(relation.published_as, relation)
        if set(relation.columns) == set(first.columns) or relation.published_as in seen:
            continue
        seen.add(relation.published_as)
        name = _text(relation.published_as)
        message = (
            f'publications "{first.publication}" and "{relation.publication}" send different columns of table'
            f' "{name}": no stream can read both'
        )
        yield Finding("different-columns", level, message, name, advice=advice)


def keyless_tables(setup: Setup) -> Iterator[Finding]:
    """Do published tables lack a key? Their changes can be streamed, but not merged into a table."""
    seen = set()
    for relation in _relations(setup):
        if relation.has_primary_key or relation.identity or relation.table in seen:
            continue
        seen.add(relation.table)
        name = ".".join(relation.table)
        lack = "no primary key but a deferrable one" if relation.deferrable_key else "no primary key"
        message = f'table "{name}" has {lack}: its changes can be streamed, but not merged by key'
        yield Finding("keyless-table", "warning", message, name, _key(relation))


def _key(relation: PublishedRelation) -> tuple[str, ...]:
    """Write the statements that make a key the replica identity, or add one; FULL stays if it may."""
    schema, name = relation.table
    table = quoted(schema, name)
    identity = f"ALTER TABLE {table} REPLICA IDENTITY"
    if relation.has_primary_key:
        return (f"{identity} DEFAULT;",)
    if relation.usable_index is not None:
        return (f"{identity} USING INDEX {quoted(relation.usable_index)};",)
    if relation.deferrable_key:
        index, columns = quoted(f"{name}_pgcdc_key"), ", ".join(map(quoted, relation.deferrable_key))
        create = f"CREATE UNIQUE INDEX {index} ON {table} ({columns});"
        return (create, f"{identity} USING INDEX {index};")
    key = "pgcdc_key bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY"
    add = f"ALTER TABLE {table} ADD COLUMN {key};"
    return (add, f"{identity} DEFAULT;") if relation.unpublished else (add,)


def unvalidated_keys(setup: Setup) -> Iterator[Finding]:
    """May keys be NULL? The server takes such a replica identity, but no row can be found by it."""
    keys = {relation.table: relation.identity for relation in _relations(setup)}
    rows = setup.session.ask(_UNVALIDATED, {}, "look at the keys")
    for schema, table, column, constraint in rows:
        if column in keys.get((schema, table), ()):
            name = f"{schema}.{table}"
            message = (
                f'column "{column}" of the key of table "{name}" may be NULL: it is NOT NULL, but NOT VALID'
            )
            statement = f"ALTER TABLE {quoted(schema, table)} VALIDATE CONSTRAINT {quoted(constraint)};"
            yield Finding("unvalidated-key", "warning", message, name, (statement,))


def select_right(setup: Setup) -> Iterator[Finding]:
    """May the role read the tables, as a snapshot requires?"""
    tables = dict.fromkeys(one.published_as for one in _relations(setup) if not one.may_select)
    for schema, table in tables:
        name, role = f"{schema}.{table}", quoted(setup.role)
        statements = (
            f"GRANT USAGE ON SCHEMA {quoted(schema)} TO {role};",
            f"GRANT SELECT ON {quoted(schema, table)} TO {role};",
        )
        message = f'role "{setup.role}" may not read table "{name}": it can stream it, but take no snapshot'
        yield Finding("select-right", "warning", message, name, statements)


def partition_roots(setup: Setup) -> Iterator[Finding]:
    """Are changes of partitions sent under the partitions' names?"""
    for publication, table in read_split_roots(setup.session, setup.publication_oids):
        message = (
            f'publication "{publication}" sends changes of "{_text(table)}" under its partitions\' names:'
            " a row that moves between them is deleted here and inserted there"
        )
        statement = f"ALTER PUBLICATION {quoted(publication)} SET (publish_via_partition_root = true);"
        yield Finding("partition-root", "warning", message, _text(table), (statement,))


def partition_identities(setup: Setup) -> Iterator[Finding]:
    """Is a partitioned table's key in what the server sends of a partition's old rows?"""
    for relation in _relations(setup):
        lacking = [name for name in relation.published_key if name not in relation.identity]
        if not relation.identity or not lacking:
            continue
        root, name = _text(relation.published_as), _text(relation.table)
        message = (
            f'updates and deletes of partition "{name}" come without column "{lacking[0]}" of the key of'
            f' "{root}": the partition has another replica identity'
        )
        how = "DEFAULT" if relation.refuses_full else "FULL"
        statement = f"ALTER TABLE {quoted(*relation.table)} REPLICA IDENTITY {how};"
        yield Finding("partition-identity", "warning", message, name, (statement,))


def pending_detaches(setup: Setup) -> Iterator[Finding]:
    """Are there partitions whose changes crash the server, since DETACH ... CONCURRENTLY was interrupted?"""
    publications = {"publications": list(setup.publication_oids)}
    rows = setup.session.ask(_DETACHING, publications, "look at the published tables")
    for publication, schema, table, *root in rows:
        name = _text((schema, table))
        message = (
            f'partition "{name}" is still being detached: publication "{publication}" publishes all tables'
            " under their roots, and the server crashes when it decodes a change of this one"
        )
        statement = f"ALTER TABLE {quoted(*root)} DETACH PARTITION {quoted(schema, table)} FINALIZE;"
        yield Finding("pending-detach", "error", message, name, (statement,))


def unlogged_tables(setup: Setup) -> Iterator[Finding]:
    """Are there tables that don't write WAL at all?"""
    for publication, table in read_unlogged(setup.session, setup.publication_oids):
        message = f'publication "{publication}" sends nothing of "{_text(table)}": it is unlogged'
        statement = f"ALTER TABLE {quoted(*table)} SET LOGGED;"
        yield Finding("unlogged-table", "warning", message, _text(table), (statement,))


def foreign_partitions(setup: Setup) -> Iterator[Finding]:
    """Are there partitions on other servers, whose WAL has their changes?"""
    for publication, table in read_foreign(setup.session, setup.publication_oids):
        message = f'publication "{publication}" sends nothing of "{_text(table)}": it is a foreign table'
        yield Finding("foreign-partition", "warning", message, _text(table), (), _FOREIGN_ADVICE)


def _relations(setup: Setup) -> list[PublishedRelation]:
    return read_relations(setup.session, setup.publication_oids)


def _text(table: TableName) -> str:
    return ".".join(table)
