"""The tables behind publications, each partition for itself: their keys, and what is published of them."""

from collections.abc import Sequence
from dataclasses import dataclass

from pgcdc_cli.catalog.server import Session

# A partitioned table has rows only in its leaves, and each of these has a replica identity of its own. The
# columns of a row filter are in its tree only: pg_depend doesn't tell them from those of a column list.
_PUBLISHED = r"""
WITH published AS (
    SELECT t.pubname, c.oid AS root, t.attnames, t.rowfilter, r.prattrs IS NOT NULL AS has_list,
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
    WHERE t.pubname = ANY (%(names)s))
SELECT p.pubname, rn.nspname, rc.relname, n.nspname, c.relname, c.relreplident = 'f', c.relreplident = 'n',
       ARRAY(SELECT a.attname::text
             FROM pg_index i CROSS JOIN unnest(i.indkey) k (attnum)
             JOIN pg_attribute a ON a.attrelid = c.oid AND a.attnum = k.attnum
             WHERE i.indrelid = c.oid AND i.indisvalid AND i.indimmediate
                   AND CASE c.relreplident WHEN 'd' THEN i.indisprimary WHEN 'i' THEN i.indisreplident END),
       EXISTS (SELECT FROM pg_index i WHERE i.indrelid = c.oid AND i.indisprimary),
       (SELECT min(x.relname::text) FROM pg_index i JOIN pg_class x ON x.oid = i.indexrelid
        WHERE i.indrelid = c.oid AND i.indisunique AND i.indimmediate AND i.indisvalid
              AND i.indpred IS NULL AND i.indexprs IS NULL
              AND NOT EXISTS (SELECT FROM pg_attribute a
                              WHERE a.attrelid = c.oid AND a.attnum = ANY (i.indkey::int2[])
                                    AND NOT a.attnotnull)),
       p.attnames::text[], p.rowfilter, p.has_list, p.filtered_by, p.may_select
FROM published p
JOIN pg_class rc ON rc.oid = p.root JOIN pg_namespace rn ON rn.oid = rc.relnamespace
CROSS JOIN LATERAL (SELECT relid::oid FROM pg_partition_tree(p.root) WHERE isleaf
                    UNION SELECT p.root WHERE rc.relkind <> 'p') leaf (oid)
JOIN pg_class c ON c.oid = leaf.oid JOIN pg_namespace n ON n.oid = c.relnamespace
WHERE c.relkind <> 'p'
ORDER BY 1, 2, 3, 4, 5
"""

_UNLOGGED = """
SELECT p.pubname, n.nspname, c.relname
FROM pg_publication p, pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace
WHERE p.pubname = ANY (%(names)s) AND c.relkind = 'r' AND c.relpersistence = 'u' AND c.oid >= 16384
      AND (p.puballtables OR EXISTS (SELECT FROM pg_publication_namespace s
                                     WHERE s.pnpubid = p.oid AND s.pnnspid = n.oid))
ORDER BY 1, 2, 3
"""

_ROOTS = """
SELECT p.pubname, n.nspname, c.relname
FROM pg_publication p, pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace
WHERE p.pubname = ANY (%(names)s) AND NOT p.pubviaroot AND c.relkind = 'p' AND NOT c.relispartition
      AND (p.puballtables
           OR EXISTS (SELECT FROM pg_publication_namespace s WHERE s.pnpubid = p.oid AND s.pnnspid = n.oid)
           OR EXISTS (SELECT FROM pg_publication_rel r WHERE r.prpubid = p.oid AND r.prrelid = c.oid))
ORDER BY 1, 2, 3
"""

TableName = tuple[str, str]
"""Schema and name."""


@dataclass(frozen=True, slots=True)
class PublishedRelation:
    """A table whose rows a publication sends; for a partition, `published_as` is what the publication names.

    `identity` are the columns of the replica identity's index, none where there is no such index; with
    `identity_full` all columns are the identity. `usable_index` could be one: unique, over columns that are
    NOT NULL. `columns` are those that are published, `has_list` whether a list chooses them, `filtered_by`
    those that the row filter looks at.
    """

    publication: str
    published_as: TableName
    table: TableName
    identity_full: bool
    identity_nothing: bool
    identity: tuple[str, ...]
    has_primary_key: bool
    usable_index: str | None
    columns: tuple[str, ...]
    row_filter: str | None
    has_list: bool
    filtered_by: tuple[str, ...]
    may_select: bool


def read_relations(session: Session, names: Sequence[str]) -> list[PublishedRelation]:
    rows = session.ask(_PUBLISHED, {"names": list(names)}, "look at the published tables")
    return [_relation(*row[:5], facts=row[5:]) for row in rows]


def _relation(
    publication: str, root_schema: str, root: str, schema: str, table: str, *, facts: Sequence[object]
) -> PublishedRelation:
    values = [tuple(fact) if isinstance(fact, list) else fact for fact in facts]
    # The query's columns from the sixth on are the class's fields from the fourth on.
    return PublishedRelation(publication, (root_schema, root), (schema, table), *values)  # type: ignore[arg-type]


def read_unlogged(session: Session, names: Sequence[str]) -> list[tuple[str, TableName]]:
    """List unlogged tables that a publication of all tables or of a schema passes over."""
    return _by_publication(session, _UNLOGGED, names)


def read_split_roots(session: Session, names: Sequence[str]) -> list[tuple[str, TableName]]:
    """List partitioned tables whose changes a publication sends under their partitions' names."""
    return _by_publication(session, _ROOTS, names)


def _by_publication(session: Session, query: str, names: Sequence[str]) -> list[tuple[str, TableName]]:
    rows = session.ask(query, {"names": list(names)}, "look at the published tables")
    return [(publication, (schema, table)) for publication, schema, table in rows]
