"""Query the server's catalogs: tables, slots, publications, and what a stream depends on."""

import logging
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from shlex import quote
from typing import TYPE_CHECKING, Self

import psycopg

from pgcdc_cli.catalog.publications import (
    OPERATIONS,
    Alteration,
    Publication,
    PublishedTable,
    alter_statements,
    check_names,
    create_statement,
    drop_statement,
    limit,
    members,
    missing_publications,
    read_publications,
    read_published,
    read_table_names,
    read_tables,
)
from pgcdc_cli.catalog.server import (
    ServerFacts,
    Session,
    Waiting,
    create_grant,
    grants,
    read_facts,
    read_identity,
)
from pgcdc_cli.catalog.slots import Slot, advance_slot, copy_slot, log_end, read_slots
from pgcdc_cli.catalog.table_facts import describe
from pgcdc_cli.changes.table import TableSchema
from pgcdc_cli.errors import ErrorKind, PgcdcError, hints, nearest, quoted_list
from pgcdc_cli.lsn import Lsn
from pgcdc_cli.pgoutput.messages import Relation
from pgcdc_cli.replication.failures import WAL_LEVEL_HINT
from pgcdc_cli.replication.session import SessionConnection
from pgcdc_cli.types.database_text import STRICT, DatabaseText

if TYPE_CHECKING:
    from pgcdc_cli.catalog.doctor import Finding

log = logging.getLogger("pgcdc")

# A 32-bit ID means the number, with epoch, nearest to the snapshot's xmax. None from there on has ended.
_ENDED = """
SELECT xid FROM unnest(%(xids)s::bigint[]) AS sent (xid),
     (SELECT txid_snapshot_xmax(txid_current_snapshot())) AS snapshot (xmax),
     LATERAL (SELECT mod(xid - mod(xmax, 1::bigint << 32) + (3::bigint << 31), 1::bigint << 32)) AS apart (d),
     LATERAL (SELECT xmax + d - (1::bigint << 31)) AS known (number)
WHERE CASE WHEN number BETWEEN 3 AND xmax - 1 THEN txid_status(number) IS DISTINCT FROM 'in progress' END
"""
_OWNERS = "only its owner or a superuser may: pgcdc publication show {} names the owner"
_NO_TEXT = "the name of the one that resembles it is not valid text: rename it"
_SHOWN = 5
"""How many tables are warned about by name."""

__all__ = [
    "OPERATIONS",
    "Alteration",
    "Catalog",
    "Publication",
    "PublishedTable",
    "ServerFacts",
    "Slot",
    "limit",
    "members",
]


class Catalog:
    """The catalogs of one database, queried over an ordinary connection.

    The connection is opened on first use, and again after it was lost. Every method raises PgcdcError. Each
    wait for the server is inside `waiting()`.
    """

    def __init__(self, conninfo: str, waiting: Waiting = nullcontext) -> None:
        self._session = Session(conninfo, waiting)
        self._warned: set[str] = set()

    def turn_to(self, conninfo: str) -> None:
        """Query this server from now on: the one that streams, since `conninfo` may have named several."""
        self._session.turn_to(conninfo)

    def over(self, connection: SessionConnection) -> AbstractContextManager[None]:
        """Ask for slots, settings, and missing publications over a walsender: one connection less to open.

        The rest is asked over the catalog's own connection, since it may open tables (`Session.over`).
        """
        return self._session.over(connection)

    def close(self) -> None:
        self._session.close()

    def rest(self) -> None:
        """Close the connection if it was not used for a while."""
        self._session.rest()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def describe(
        self, relations: Sequence[Relation], text: DatabaseText = STRICT, *, changes: bool = True
    ) -> list[TableSchema]:
        """Complete Relation messages with what they lack: base types of domains, keys, nullability.

        `text` says how their names were decoded. If `changes` of the tables come, warn once of those that
        can't be matched with rows.
        """
        return describe(self._session, relations, text, self._warn if changes else lambda _: None)

    def _warn(self, warning: str) -> None:
        if warning not in self._warned:
            self._warned.add(warning)
            log.warning(warning)

    def origin_number(self, name: str) -> int | None:
        """Look up `roident` of the replication origin with this name; None if there is none."""
        query = "SELECT roident::int FROM pg_replication_origin WHERE roname = %(name)s"
        found = self._session.ask(query, {"name": name}, f'look for replication origin "{name}"')
        return found[0][0] if found else None

    def ended_transactions(self, xids: Sequence[int]) -> list[int]:
        """Find out which of these transactions, by 32-bit ID, have committed or rolled back.

        A standby may not know of all that are prepared: don't ask it.
        """
        rows = self._session.ask(
            _ENDED, {"xids": list(xids)}, "look for prepared transactions", opens_no_table=True
        )
        return [xid for (xid,) in rows]

    def facts(self) -> ServerFacts:
        """Read the facts that a stream depends on."""
        return read_facts(self._session)

    def identity(self) -> tuple[str, Lsn | None]:
        """Read the system identifier and the end of the WAL, None on a standby."""
        return read_identity(self._session)

    def check_wal_level(self) -> None:
        """Raise PgcdcError (USAGE) unless the server's wal_level allows logical decoding."""
        level = self.facts().wal_level
        if level != "logical":
            raise PgcdcError(
                ErrorKind.USAGE,
                f"could not decode the WAL: wal_level is {level}",
                hint=WAL_LEVEL_HINT,
            )

    def diagnose(self, slot: str | None, publications: Sequence[str]) -> "list[Finding]":
        """Look for what would stop such a stream or lose changes; None and [] mean all that exist."""
        from pgcdc_cli.catalog.doctor import diagnose  # noqa: PLC0415 - a stream needs none of it

        return diagnose(self._session, slot, publications)

    def streaming_grants(self, role: str, publications: Sequence[str]) -> list[str]:
        """Write the statements that grant a role the rights to stream, and no others."""
        return grants(self._session, role, publications)

    def slots(self) -> list[Slot]:
        """List the server's slots by name, including physical ones and those of other databases."""
        return read_slots(self._session, None)

    def slot(self, name: str) -> Slot | None:
        """Find a slot; None if it doesn't exist."""
        found = read_slots(self._session, name)
        return found[0] if found else None

    def log_end(self) -> Lsn:
        """Read the end of the WAL inserted so far, even if not on disk; on a standby, of the WAL replayed."""
        return log_end(self._session)

    def advance_slot(self, name: str, position: Lsn | None) -> Lsn:
        """Advance a slot (None: to the end of the WAL, never beyond it); return its new position."""
        return advance_slot(self._session, name, position)

    def copy_slot(self, old: str, new: str) -> Lsn:
        """Copy a logical slot; return the copy's position."""
        return copy_slot(self._session, old, new)

    def other_slots(self, missing: str, remedy: str) -> str:
        """Make the hint for a slot that doesn't exist: similar names, and another remedy."""
        near = nearest(missing, [slot.name for slot in self.slots()])
        return f"did you mean {quoted_list(near)}; or {remedy}" if near else remedy

    def publications(self) -> list[Publication]:
        """List the database's publications by name."""
        return read_publications(self._session, None)

    def publication(self, name: str) -> Publication | None:
        """Find a publication by its name, or by what `publications` shows if that is not valid text."""
        found = read_publications(self._session, name)
        found = found or [one for one in self.publications() if one.name == name]
        return found[0] if found else None

    def missing_publications(self, names: Sequence[str]) -> list[str]:
        """List the names that don't exist, or are only what is shown for a name that is not valid text."""
        return missing_publications(self._session, names)

    def check_publications(self, names: Sequence[str], *, for_slot: bool) -> None:
        """Raise PgcdcError (PUBLICATION) if one of these doesn't exist; `for_slot`: a slot is read with them.

        A slot reads a publication only from the point on where it was created.
        """
        for missing in self.missing_publications(names)[:1]:
            create = f"create it with: pgcdc publication create {quote(missing)}"
            raise PgcdcError(
                ErrorKind.PUBLICATION,
                f'could not find publication "{missing}"',
                hint=self.other_publications(
                    missing, f"{create}, then recreate the slot" if for_slot else create
                ),
            )

    def other_publications(self, missing: str, remedy: str | None = None) -> str:
        """Make the hint for a publication that doesn't exist: similar names, and another remedy."""
        names = [one.name for one in self.publications()]
        if missing in names:
            return _NO_TEXT
        parts = missing.split(",")
        if set(parts) <= set(names):
            return f"name each of them: {' '.join(f'--publication {quote(part)}' for part in parts)}"
        near = nearest(missing, names)
        first = (
            f"did you mean {quoted_list(near)}" if near else "see which exist with: pgcdc publication list"
        )
        return f"{first}; or {remedy}" if remedy else first

    def published(self, names: Sequence[str]) -> list[tuple[str, str, list[str]]]:
        """List the tables of publications, by schema and name, with their columns.

        The server locks each table for that; the error's cause is LockNotAvailable if it can't within a
        second.
        """
        with self._session.impatient():
            return read_published(self._session, names)

    def create_publication(self, publication: Publication, *, only: bool = False) -> None:
        """Create a publication of tables, of all tables in schemas, or of all tables.

        `only`: without tables that inherit from those named.
        """
        doing = f'create publication "{publication.name}"'
        check_names(self._session, doing, [publication])
        try:
            statement = create_statement(publication, only=only)
            self._session.run([statement], doing, {"42710": ErrorKind.PUBLICATION})
        except PgcdcError as error:
            if error.kind is ErrorKind.RIGHTS:
                error.hint = create_grant(self._session)
            # A column that is named twice has the same SQLSTATE.
            if error.kind is ErrorKind.PUBLICATION and self.publication(publication.name) is None:
                error.kind, error.hint = ErrorKind.USAGE, ErrorKind.USAGE.rule.hint
            raise

    def warn_of_refused_changes(self, publication: str) -> None:
        """Warn about published tables whose updates the server now refuses: applications would fail.

        If a table is locked, it can't be known, and nothing is said.
        """
        from pgcdc_cli.catalog.doctor import refused_changes  # noqa: PLC0415 - few commands need it

        try:
            with self._session.impatient():
                findings = refused_changes(self._session, publication)
        except PgcdcError as error:
            if not isinstance(error.__cause__, psycopg.errors.LockNotAvailable):
                raise
            return
        for finding in findings[:_SHOWN]:
            log.warning("%s", finding.message)
        if findings:
            more = f"{len(findings) - _SHOWN} more like these; " if len(findings) > _SHOWN else ""
            log.warning("%sto fix this: pgcdc doctor --publication %s", more, quote(publication))

    def table_names(self, oids: Sequence[int]) -> dict[int, tuple[str, str]]:
        """Look up the schemas and names of those of these tables that exist."""
        return read_table_names(self._session, oids)

    def tables(self, includes: Callable[[str, str], bool]) -> list[tuple[str, str]]:
        """List the included tables that can be published, by schema and name.

        Partitions are published with a table above them that is included, and left out of the list then.
        """
        return read_tables(self._session, includes)

    def alter_publication(self, name: str, change: Alteration) -> None:
        """Alter a publication in one transaction."""
        doing = f'alter publication "{name}"'
        check_names(self._session, doing, filter(None, (change.add, change.drop, change.put)))
        unfit = dict.fromkeys(("42704", "42710", "55000"), ErrorKind.PUBLICATION)
        rights = f"{_OWNERS.format(quote(name))}; tables must be its owner's, too"
        with hints({ErrorKind.RIGHTS: rights}):
            self._session.run(alter_statements(name, change), doing, unfit)

    def drop_publication(self, name: str, *, if_exists: bool = False) -> None:
        """Drop a publication."""
        doing = f'drop publication "{name}"'
        # The server would cut off a name that is too long, and drop another publication.
        if not self.missing_publications([name]):
            with hints({ErrorKind.RIGHTS: _OWNERS.format(quote(name))}):
                self._session.run([drop_statement(name)], doing, {"42704": ErrorKind.PUBLICATION})
        elif not if_exists:
            hint = self.other_publications(name)
            raise PgcdcError(ErrorKind.PUBLICATION, f"could not {doing}: it does not exist", hint=hint)
