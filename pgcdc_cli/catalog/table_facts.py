"""Complete Relation messages from the catalog, which may already be newer than the message.

If the table, a column or a type no longer exists, only the message's content is known.
"""

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import count
from typing import Any, Literal

import psycopg

from pgcdc_cli.catalog.server import Session
from pgcdc_cli.changes.table import (
    BaseType,
    ColumnFacts,
    ReplicaIdentity,
    TableColumn,
    TableFacts,
    TableSchema,
)
from pgcdc_cli.errors import PgcdcError
from pgcdc_cli.pgoutput.messages import Relation, RelationColumn
from pgcdc_cli.types.database_text import DatabaseText
from pgcdc_cli.types.pg_type import PgType, builtin

# One round trip for all messages, with a row for each: its types as declared; the table's current columns;
# the columns of the primary key (unless deferrable) and of the replica identity, each with whether it may
# be left out of the publication; all types behind those that are not built in, with an enum's labels and
# what their send function sends; the primary key and all unique indexes; whether a publication lists the
# table; whether one lists some of its columns; and what the partitions of a root send of old rows, each set
# of columns with one partition (`pg_partition_tree` would wait for locks). Types and expressions are
# printed under the role's own search path, which is set for the time of the query, after its names were
# resolved: a volatile function in FROM is always called.
_FACTS = """
SELECT ARRAY(SELECT format_type(t, m) FROM unnest(sent.types, sent.typmods)
                    WITH ORDINALITY AS c (t, m, n) ORDER BY n),
       (SELECT json_agg(json_build_array(a.attname, a.atttypid::bigint, a.attnotnull OR t.typnotnull,
                                         a.attndims,
                                         CASE a.attgenerated WHEN '' THEN pg_get_expr(adbin, 0) ELSE '' END,
                                         a.attnum, a.attnotnull,
                                         CASE WHEN a.attmissingval::text ^@ '{"'
                                              THEN (a.attmissingval::text::text[])[1]
                                              ELSE btrim(a.attmissingval::text, '{}') END,
                                         t.typdefault, t.typname,
                                         (SELECT json_build_array(b.oid::bigint,
                                                                  format_type(b.oid, t.typtypmod), b.typname)
                                          FROM pg_type b WHERE b.oid = t.typbasetype)))
        FROM pg_attribute a JOIN pg_type t ON t.oid = a.atttypid
        LEFT JOIN pg_attrdef d ON d.adrelid = a.attrelid AND d.adnum = a.attnum
        WHERE a.attrelid = sent.oid AND a.attnum > 0 AND NOT a.attisdropped),
       (SELECT json_agg(json_build_array(a.attname, i.indisprimary, i.indisreplident,
                                         a.attgenerated <> '' OR has_list) ORDER BY k.n)
        FROM pg_index i CROSS JOIN unnest(i.indkey) WITH ORDINALITY AS k (attnum, n)
        JOIN pg_attribute a ON a.attrelid = i.indrelid AND a.attnum = k.attnum,
        LATERAL (SELECT EXISTS (SELECT FROM pg_publication_rel r
                                WHERE r.prrelid = i.indrelid AND r.prattrs IS NOT NULL) AS has_list) l
        WHERE i.indrelid = sent.oid AND i.indimmediate AND i.indisvalid AND k.n <= i.indnkeyatts
              AND (i.indisprimary OR i.indisreplident)),
       (WITH RECURSIVE behind AS (
            SELECT t.* FROM pg_type t WHERE t.oid = ANY (sent.unknown)
            UNION
            SELECT t.* FROM behind b JOIN pg_type t ON t.oid IN (b.typbasetype, b.typelem))
        SELECT json_agg(json_build_array(oid::bigint, typname, typtype, typbasetype::bigint, typtypmod,
                                         CASE WHEN typcategory = 'A' THEN typelem::bigint ELSE 0 END,
                                         ARRAY(SELECT enumlabel FROM pg_enum WHERE enumtypid = behind.oid
                                               ORDER BY enumsortorder),
                                         CASE WHEN typsend = 0 THEN 'nothing'
                                              WHEN ARRAY(SELECT prosrc FROM pg_proc p JOIN pg_language l
                                                         ON l.oid = prolang AND lanname = 'internal'
                                                         WHERE p.oid IN (typoutput, typsend) ORDER BY 1)
                                                   = '{textout,textsend}' AND typdelim = ','
                                              THEN 'text' ELSE 'own' END))
        FROM behind),
       (SELECT json_agg(json_build_array(i.indisprimary, columns, i.indnatts - i.indnkeyatts)
                        ORDER BY i.indisclustered DESC, c.relname)
        FROM pg_index i JOIN pg_class c ON c.oid = i.indexrelid,
        LATERAL (SELECT array_agg(a.attname ORDER BY k.n) AS columns
                 FROM unnest(i.indkey) WITH ORDINALITY AS k (attnum, n)
                 JOIN pg_attribute a ON a.attrelid = i.indrelid AND a.attnum = k.attnum) k
        WHERE i.indrelid = sent.oid AND i.indisunique AND i.indexprs IS NULL),
       listings.listed, listings.has_list,
       (WITH RECURSIVE parts AS (
            SELECT inhrelid AS oid FROM pg_inherits JOIN pg_partitioned_table ON partrelid = inhparent
            WHERE inhparent = sent.oid
            UNION
            SELECT inhrelid FROM parts JOIN pg_inherits ON inhparent = parts.oid)
        SELECT json_object_agg(name, columns)
        FROM (SELECT min(concat(n.nspname, '.', c.relname)) AS name, columns
              FROM parts JOIN pg_class c USING (oid) JOIN pg_namespace n ON n.oid = c.relnamespace
              JOIN pg_index i ON i.indrelid = c.oid
                   AND (c.relreplident = 'd' AND i.indisprimary OR c.relreplident = 'i' AND i.indisreplident),
              LATERAL (SELECT array_agg(a.attname ORDER BY a.attname) AS columns FROM pg_attribute a
                       WHERE a.attrelid = c.oid
                             AND a.attnum = ANY ((i.indkey::int2[])[0:i.indnkeyatts - 1])) k
              WHERE c.relkind = 'r' GROUP BY columns) sets)
FROM json_to_recordset(%(relations)s::json)
     AS sent (number int, oid oid, types oid[], typmods int[], unknown oid[]),
     LATERAL (SELECT count(*) > 0 AS listed, count(prattrs) > 0 AS has_list FROM pg_publication_rel
              WHERE prrelid IN (SELECT sent.oid UNION ALL SELECT pg_partition_ancestors(sent.oid))) listings,
     (SELECT set_config('search_path', current_setting('pgcdc.search_path'), true)) AS role
ORDER BY sent.number
"""

# pg_get_expr needs the table's OID for expressions with columns, and then locks the table as a SELECT does.
_EXPRESSIONS = """
SELECT a.attrelid::bigint, a.attname, pg_get_expr(adbin, adrelid)
FROM pg_attribute a JOIN pg_attrdef d ON d.adrelid = a.attrelid AND d.adnum = a.attnum,
     (SELECT set_config('search_path', current_setting('pgcdc.search_path'), true)) AS role
WHERE a.attrelid = ANY (%(tables)s::oid[]) AND a.attgenerated <> ''
"""
_GENERATED = ""
"""The default of a generated column until its expression is known."""


@dataclass(frozen=True, slots=True)
class _TypeFacts:
    """A row of pg_type; `element` is 0 if it is no array."""

    name: str
    kind: str
    base: int
    typmod: int
    element: int
    labels: list[str]
    sends: Literal["own", "text", "nothing"]


_Types = dict[int, _TypeFacts]


def describe(
    session: Session,
    relations: Sequence[Relation],
    text: DatabaseText,
    warn: Callable[[str], None] = lambda _: None,
) -> list[TableSchema]:
    """Complete Relation messages. Raises PgcdcError, which names one of them, if the query fails.

    `warn` is told of keys that partitions' old rows lack. It never waits for a table's lock: its holder may
    be waiting for the stream, as a synchronous standby.
    """
    if not relations:
        return []
    first, *others = relations
    more = f" and {len(others)} more" if others else ""
    doing = f'describe table "{first.namespace}.{first.name}"{more}'
    sent = json.dumps(list(map(_sent, count(), relations)))
    try:
        rows = session.ask(_FACTS, {"relations": sent}, doing, text)
    except PgcdcError:
        if not others:
            raise
        return [table for relation in relations for table in describe(session, [relation], text, warn)]
    for relation, (_, _, keys, *_, parts) in zip(relations, rows, strict=True):
        for warning in _lacking(relation, keys or [], parts or {}):
            warn(warning)
    return _with_expressions(session, list(map(_complete, relations, rows)), doing, text)


def _with_expressions(
    session: Session, tables: list[TableSchema], doing: str, text: DatabaseText
) -> list[TableSchema]:
    """Add the expressions of generated columns, unless a table is locked."""
    generated = [table.oid for table in tables if any(_generated(table))]
    if not generated:
        return tables
    try:
        with session.impatient():
            rows = session.ask(_EXPRESSIONS, {"tables": generated}, doing, text)
    except PgcdcError as error:
        if isinstance(error.__cause__, psycopg.errors.LockNotAvailable):
            return tables
        raise
    found = {(oid, name): expression for oid, name, expression in rows}
    return [_with_defaults(table, found) for table in tables]


def _generated(table: TableSchema) -> Iterator[str]:
    columns = {} if table.facts is None else table.facts.columns
    return (name for name, facts in columns.items() if facts.default == _GENERATED)


def _with_defaults(table: TableSchema, expressions: Mapping[tuple[int, str], str]) -> TableSchema:
    if table.facts is None:
        return table
    columns = {
        name: replace(facts, default=expressions.get((table.oid, name), facts.default))
        for name, facts in table.facts.columns.items()
    }
    return replace(table, facts=replace(table.facts, columns=columns))


def _sent(number: int, relation: Relation) -> dict[str, Any]:
    columns = relation.columns
    return {
        "number": number,
        "oid": relation.oid,
        "types": [c.type_oid for c in columns],
        "typmods": [c.typmod for c in columns],
        "unknown": [c.type_oid for c in columns if builtin(c.type_oid, c.typmod) is None],
    }


def _complete(relation: Relation, row: tuple[Any, ...]) -> TableSchema:
    declared, now, keys, behind, unique, listed, has_list, _ = row
    types = {oid: _TypeFacts(*facts) for oid, *facts in behind or ()}
    present = {(name, type_oid): facts for name, type_oid, *facts in now or ()}
    described = tuple(
        _column(column, resolve(types, column.type_oid, column.typmod), text, present)
        for column, text in zip(relation.columns, declared, strict=True)
    )
    facts = _facts(relation, present, types, unique or [], keys or [])
    facts = replace(facts, listed=listed, left_out=_left_out(relation, present) if has_list else ())
    return _table(relation, _placed(described, facts), keys or [], facts)


def _lacking(relation: Relation, keys: list[list[Any]], parts: Mapping[str, Sequence[str]]) -> Iterator[str]:
    """Say which partitions' old rows come without a column of the key."""
    for part, columns in parts.items():
        missing = [name for name in _key(relation, keys) or () if name not in columns]
        if missing:
            yield (
                f'old rows of partition "{part}" come without column "{missing[0]}" of the key of'
                f' "{relation.namespace}.{relation.name}": a delete, or a change of the key, can\'t be'
                " matched with its row; pgcdc doctor says what to do"
            )


def _left_out(relation: Relation, present: dict[tuple[str, int], list[Any]]) -> tuple[int, ...]:
    """List the attribute numbers of the columns that aren't sent."""
    sent = {(column.name, column.type_oid) for column in relation.columns}
    return tuple(sorted(facts[3] for column, facts in present.items() if column not in sent))


def _placed(columns: tuple[TableColumn, ...], facts: TableFacts) -> tuple[TableColumn, ...]:
    """Set the positions of columns whose attnum differs from their place in the message.

    Columns are sent in the order of attnum. If the current ones aren't in that order, names were exchanged
    since, and the positions are unknown.
    """
    numbers = [facts.columns[column.name].position or 0 for column in columns]
    if 0 in numbers or numbers != sorted(numbers):
        return columns
    pairs = zip(columns, numbers, count(1), strict=False)
    return tuple(
        column if number == place else replace(column, position=number) for column, number, place in pairs
    )


def describe_alone(relations: Sequence[Relation]) -> list[TableSchema]:
    """Make tables of Relation messages without the catalog."""
    return list(map(_alone, relations))


def _alone(relation: Relation) -> TableSchema:
    columns = tuple(
        TableColumn.of(
            column.name, resolve({}, column.type_oid, column.typmod), in_replica_identity=column.key
        )
        for column in relation.columns
    )
    return _table(relation, columns, [])


def _table(
    relation: Relation,
    columns: tuple[TableColumn, ...],
    keys: list[list[Any]],
    facts: TableFacts | None = None,
) -> TableSchema:
    return TableSchema(
        relation.oid,
        relation.namespace,
        relation.name,
        relation.replica_identity,
        columns,
        _key(relation, keys),
        facts,
    )


def _facts(
    relation: Relation,
    present: dict[tuple[str, int], list[Any]],
    types: _Types,
    unique: list[tuple[bool, list[str], int]],
    keys: list[list[Any]],
) -> TableFacts:
    primary = {name for name, is_primary, _, _ in keys if is_primary}
    indexes = {is_primary: tuple(columns) for is_primary, columns, _ in reversed(unique)}
    included = next((included for is_primary, _, included in unique if is_primary), 0)
    columns = {}
    for column in relation.columns:
        _, _, default, position, not_null, missing, type_default, type_name, base = present.get(
            (column.name, column.type_oid), [None] * 9
        )
        labels = _labels(types, column.type_oid)
        columns[column.name] = ColumnFacts(
            default,
            labels,
            position,
            not_null,
            column.name in primary,
            missing,
            type_default,
            type_name,
            None if base is None else BaseType(*base),
        )
    return TableFacts(indexes.get(True), indexes.get(False), columns, included=included)


def _labels(types: _Types, oid: int) -> tuple[str, ...] | None:
    """Return the labels of an enum, of a domain over one, or of an array's elements; None for others."""
    facts = types.get(oid)
    if facts is None:
        return None
    return tuple(facts.labels) if facts.kind == "e" else _labels(types, facts.base or facts.element)


def _column(
    column: RelationColumn, type_: PgType, declared: str, present: dict[tuple[str, int], list[Any]]
) -> TableColumn:
    not_null, dimensions, *_ = present.get((column.name, column.type_oid), (None, 0))
    if declared == "???":
        declared = type_.name
    return TableColumn(
        column.name, column.type_oid, column.typmod, type_, declared, column.key, not_null, dimensions
    )


def resolve(types: _Types, oid: int, typmod: int) -> PgType:
    """Find the type behind domains; `types` has the types that are not built in."""
    known = builtin(oid, typmod)
    if known is not None:
        return known
    facts = types.get(oid)
    if facts is None:
        return PgType(oid, typmod, "unknown", "other")
    if facts.kind == "d":
        return resolve(types, facts.base, facts.typmod)
    if facts.element:
        element = resolve(types, facts.element, typmod)
        return PgType(oid, typmod, f"{element.name}[]", "array", element)
    category = "enum" if facts.kind == "e" else "other"
    return PgType(oid, typmod, facts.name, category, sends=facts.sends)


def _key(relation: Relation, keys: list[list[Any]]) -> tuple[str, ...] | None:
    """Name the columns that identify a row in the stream; None unless all of them are published."""
    published = {column.name for column in relation.columns}
    identity = relation.replica_identity
    if identity is ReplicaIdentity.FULL:
        primary = tuple(name for name, is_primary, _, _ in keys if is_primary)
        return primary if primary and published.issuperset(primary) else None
    in_identity = 1 if identity is ReplicaIdentity.DEFAULT else 2
    flagged = tuple(column.name for column in relation.columns if column.key)
    hidden = any(row[in_identity] and row[3] and row[0] not in published for row in keys)
    return flagged if flagged and not hidden else None
