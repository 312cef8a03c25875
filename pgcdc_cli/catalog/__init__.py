"""What the server's catalogs say: tables, slots, publications, and what a stream depends on."""

from collections.abc import Sequence
from typing import Self

from pgcdc_cli.catalog.publications import (
    OPERATIONS,
    Publication,
    PublishedTable,
    create_statement,
    drop_statement,
    missing_publications,
    read_publications,
    read_published,
    read_tables,
    set_statement,
)
from pgcdc_cli.catalog.server import ServerFacts, Session, read_facts
from pgcdc_cli.catalog.slots import Slot, read_slots
from pgcdc_cli.catalog.table_facts import describe
from pgcdc_cli.changes.table import TableSchema
from pgcdc_cli.errors import ErrorKind, PgcdcError
from pgcdc_cli.pgoutput.messages import Relation

__all__ = ["OPERATIONS", "Catalog", "Publication", "PublishedTable", "ServerFacts", "Slot"]


class Catalog:
    """The catalogs of one database, asked over one ordinary connection.

    It is opened when first needed, and again when it was lost. Every method raises PgcdcError.
    """

    def __init__(self, conninfo: str) -> None:
        self._session = Session(conninfo)

    def close(self) -> None:
        self._session.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def describe(self, relation: Relation) -> TableSchema:
        """Complete a relation message with what it doesn't say: types behind domains, keys, nullability."""
        return describe(self._session, relation)

    def facts(self) -> ServerFacts:
        """Say what a stream depends on."""
        return read_facts(self._session)

    def check_wal_level(self) -> None:
        """Raise USAGE unless the server's wal_level allows logical decoding."""
        level = self.facts().wal_level
        if level != "logical":
            raise PgcdcError(
                ErrorKind.USAGE,
                f"could not decode the log: wal_level is {level}",
                hint="set wal_level = logical in postgresql.conf and restart the server",
            )

    def slots(self) -> list[Slot]:
        """List the server's slots by name, physical ones and other databases' included."""
        return read_slots(self._session, None)

    def slot(self, name: str) -> Slot | None:
        """Find a slot."""
        found = read_slots(self._session, name)
        return found[0] if found else None

    def publications(self) -> list[Publication]:
        """List the database's publications by name."""
        return read_publications(self._session, None)

    def publication(self, name: str) -> Publication | None:
        """Find a publication."""
        found = read_publications(self._session, name)
        return found[0] if found else None

    def check_publications(self, names: Sequence[str]) -> None:
        """Raise PUBLICATION if one of these doesn't exist."""
        missing = missing_publications(self._session, names)
        if missing:
            raise PgcdcError(
                ErrorKind.PUBLICATION,
                f'could not find publication "{missing[0]}"',
                hint=f"create it with: pgcdc publication create {missing[0]}, then make the slot anew",
            )

    def published(self, names: Sequence[str]) -> list[tuple[str, str, list[str]]]:
        """List the tables of publications, by schema and name, and their columns."""
        return read_published(self._session, names)

    def create_publication(self, publication: Publication) -> None:
        """Create a publication of tables, of all tables in schemas, or of all tables."""
        doing = f'create publication "{publication.name}"'
        self._session.run(create_statement(publication), doing, {"42710": ErrorKind.PUBLICATION})

    def tables(self) -> list[tuple[str, str]]:
        """List the tables that can be published, by schema and name; partitions go with their root."""
        return read_tables(self._session)

    def set_publication_tables(self, publication: Publication) -> None:
        """Let an existing publication have these tables, and no others."""
        doing = f'change publication "{publication.name}"'
        self._session.run(set_statement(publication), doing, {"42704": ErrorKind.PUBLICATION})

    def drop_publication(self, name: str, *, if_exists: bool = False) -> None:
        """Drop a publication."""
        statement = drop_statement(name, if_exists=if_exists)
        self._session.run(statement, f'drop publication "{name}"', {"42704": ErrorKind.PUBLICATION})
