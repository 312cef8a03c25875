"""Checks of publications: would they lose changes, or let the source's own updates fail?"""

from collections.abc import Iterator

from pgcdc_cli.catalog.doctor.finding import Finding, Setup, literal, quoted
from pgcdc_cli.catalog.doctor.published_tables import (
    PublishedRelation,
    TableName,
    read_relations,
    read_split_roots,
    read_unlogged,
)
from pgcdc_cli.catalog.names import nearest, quoted_list
from pgcdc_cli.catalog.publications import OPERATIONS

_MAY_CREATE = "SELECT has_database_privilege(current_database(), 'CREATE')"


def publication_missing(setup: Setup) -> Iterator[Finding]:
    """Are the publications there that were named, or any?"""
    existing = [one.name for one in setup.all_publications]
    missing = [name for name in setup.publication_names if name not in existing]
    for name in missing:
        statements: tuple[str, ...] = ()
        if near := nearest(name, existing):
            advice = f"did you mean {quoted_list(near)}?"
        else:
            statements = (*_create_right(setup), f"CREATE PUBLICATION {quoted(name)} FOR ALL TABLES;")
            advice = (
                "a slot that is older than the publication must be made anew; FOR TABLE instead of FOR ALL"
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
    """Do publications publish anything?"""
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
        advice = "or one table: pgcdc publication alter NAME --add-table TABLE"
        yield Finding("publication-empty", "warning", message, name, (statement,), advice)


def operations(setup: Setup) -> Iterator[Finding]:
    """Are there kinds of changes that are not published?"""
    for one in setup.publications:
        left_out = [operation for operation in OPERATIONS if operation not in one.operations]
        if left_out:
            publish = literal(", ".join(OPERATIONS))
            statement = f"ALTER PUBLICATION {quoted(one.name)} SET (publish = {publish});"
            message = (
                f'publication "{one.name}" leaves out {", ".join(left_out)}: tables will differ from theirs'
            )
            yield Finding("operations", "warning", message, one.name, (statement,))


def replica_identity(setup: Setup) -> Iterator[Finding]:
    """Would the server refuse updates and deletes of published tables? It does so at their source."""
    changing = {one.name for one in setup.publications if {"update", "delete"} & set(one.operations)}
    for relation in _relations(setup):
        if relation.publication in changing:
            yield from _refused(relation)


def _refused(relation: PublishedRelation) -> Iterator[Finding]:
    """What `CheckCmdReplicaIdentity` (src/backend/executor/execReplication.c) looks at, in its words."""
    if not relation.identity_full and not relation.identity:
        yield _finding("replica-identity", relation, "it has no replica identity", (_identity(relation),))
        return
    unlisted = [name for name in relation.identity if name not in relation.columns]
    if relation.has_list and (relation.identity_full or unlisted):
        why = "though its identity is FULL" if relation.identity_full else f"without {', '.join(unlisted)}"
        problem = f'publication "{relation.publication}" has a column list for it, {why}'
        yield _finding("column-list", relation, problem, _publish_again(relation, unlisted))
    unfilterable = [name for name in relation.filtered_by if name not in relation.identity]
    if unfilterable and not relation.identity_full:
        problem = (
            f'the row filter of publication "{relation.publication}" looks at {", ".join(unfilterable)},'
            " outside the replica identity"
        )
        yield _finding("row-filter", relation, problem, _without_filter(relation))


def _finding(check: str, relation: PublishedRelation, problem: str, statements: tuple[str, ...]) -> Finding:
    name = ".".join(relation.table)
    message = f'updates and deletes of table "{name}" fail on the source: {problem}'
    return Finding(check, "error", message, name, statements)


def _identity(relation: PublishedRelation) -> str:
    """Write the statement that gives a replica identity: of a key if there is one, or of all columns."""
    if relation.has_primary_key and relation.identity_nothing:
        kind = "DEFAULT"
    elif relation.usable_index is not None:
        kind = f"USING INDEX {quoted(relation.usable_index)}"
    else:
        kind = "FULL"
    return f"ALTER TABLE {quoted(*relation.table)} REPLICA IDENTITY {kind};"


def _publish_again(relation: PublishedRelation, more: list[str]) -> tuple[str, ...]:
    """Write the statements that publish a table with more columns; with all, if its identity is FULL."""
    columns = "" if relation.identity_full else f" ({', '.join(map(quoted, (*more, *relation.columns)))})"
    where = "" if relation.row_filter is None else f" WHERE ({relation.row_filter})"
    return _in_place(relation, columns + where)


def _without_filter(relation: PublishedRelation) -> tuple[str, ...]:
    if not relation.has_list:
        return (f"ALTER TABLE {quoted(*relation.table)} REPLICA IDENTITY FULL;",)
    # FULL would let the column list be refused.
    return _in_place(relation, f" ({', '.join(map(quoted, relation.columns))})")


def _in_place(relation: PublishedRelation, definition: str) -> tuple[str, ...]:
    """Write what replaces a table of a publication, in one transaction: no change falls in between."""
    alter, table = f"ALTER PUBLICATION {quoted(relation.publication)}", quoted(*relation.published_as)
    return ("BEGIN;", f"{alter} DROP TABLE {table};", f"{alter} ADD TABLE {table}{definition};", "COMMIT;")


def keyless_tables(setup: Setup) -> Iterator[Finding]:
    """Have published tables no key? Their changes can be streamed, but not merged into a table."""
    seen = set()
    for relation in _relations(setup):
        if relation.has_primary_key or relation.identity or relation.table in seen:
            continue
        seen.add(relation.table)
        name = ".".join(relation.table)
        message = f'table "{name}" has no primary key: its changes can be streamed, but not merged by key'
        yield Finding("keyless-table", "warning", message, name, (_key(relation),))


def _key(relation: PublishedRelation) -> str:
    """Write the statement that lets a unique index be the key, or makes a key of its own."""
    if relation.usable_index is not None:
        return _identity(relation)
    key = "pgcdc_key bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY"
    return f"ALTER TABLE {quoted(*relation.table)} ADD COLUMN {key};"


def select_right(setup: Setup) -> Iterator[Finding]:
    """May the role read the tables, for a snapshot of what is there before?"""
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
    """Are partitions' changes sent under the partitions' names?"""
    for publication, table in read_split_roots(setup.session, _names(setup)):
        message = (
            f'publication "{publication}" sends changes of "{_text(table)}" under its partitions\' names:'
            " a row that moves between them is deleted here and inserted there"
        )
        statement = f"ALTER PUBLICATION {quoted(publication)} SET (publish_via_partition_root = true);"
        yield Finding("partition-root", "warning", message, _text(table), (statement,))


def unlogged_tables(setup: Setup) -> Iterator[Finding]:
    """Are there tables that are not in the log at all?"""
    for publication, table in read_unlogged(setup.session, _names(setup)):
        message = f'publication "{publication}" sends nothing of "{_text(table)}": it is unlogged'
        statement = f"ALTER TABLE {quoted(*table)} SET LOGGED;"
        yield Finding("unlogged-table", "warning", message, _text(table), (statement,))


def _relations(setup: Setup) -> list[PublishedRelation]:
    return read_relations(setup.session, _names(setup))


def _names(setup: Setup) -> list[str]:
    return [one.name for one in setup.publications]


def _text(table: TableName) -> str:
    return ".".join(table)
