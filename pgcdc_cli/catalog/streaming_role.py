"""The rights that a role needs to stream, and none more, as SQL."""

from collections.abc import Sequence

from psycopg import sql

from pgcdc_cli.catalog.server import Session

_PUBLISHED = """
SELECT DISTINCT schemaname, tablename FROM pg_publication_tables
WHERE %(names)s::text[] = '{}' OR pubname = ANY (%(names)s::text[]) ORDER BY 1, 2
"""
_ROLE = "SELECT current_database(), EXISTS (SELECT FROM pg_roles WHERE rolname = %(role)s)"


def create_grant(session: Session) -> str:
    """Say what the role needs to create a publication."""
    [(database, role)] = session.ask(
        "SELECT current_database(), current_user", {}, "look at the role's rights"
    )
    statement = sql.SQL("GRANT CREATE ON DATABASE {} TO {}").format(
        sql.Identifier(database), sql.Identifier(role)
    )
    return (
        f"it takes: {statement.as_string()}; and owning the tables, or a superuser for all or schemas' tables"
    )


def grants(session: Session, role: str, publications: Sequence[str]) -> list[str]:
    """Write the statements for a role that streams these publications, or all that there are.

    SELECT is what a snapshot needs; the stream itself needs no right on tables.
    """
    [(database, exists)] = session.ask(_ROLE, {"role": role}, "look for the role")
    tables = session.ask(_PUBLISHED, {"names": list(publications)}, "list the published tables")
    verb = "ALTER" if exists else "CREATE"
    name = sql.Identifier(role)
    statements = [
        sql.SQL(f"{verb} ROLE {{}} LOGIN REPLICATION").format(name),
        sql.SQL("GRANT CONNECT ON DATABASE {} TO {}").format(sql.Identifier(database), name),
    ]
    statements += [
        sql.SQL("GRANT USAGE ON SCHEMA {} TO {}").format(sql.Identifier(schema), name)
        for schema in dict.fromkeys(schema for schema, _ in tables)
    ]
    statements += [
        sql.SQL("GRANT SELECT ON TABLE {} TO {}").format(sql.Identifier(*table), name) for table in tables
    ]
    return [statement.as_string() + ";" for statement in statements]
