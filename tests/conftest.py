"""Real servers for the tests: PostgreSQL 16 and 18, one of each a session, a fresh database a test."""

import shutil
import tempfile
import uuid
from collections.abc import Iterator
from pathlib import Path

import psycopg
import pytest
from psycopg import sql

from pgcdc_cli.demo.server import EmbeddedServer


@pytest.fixture(scope="session")
def servers() -> Iterator[dict[int, EmbeddedServer]]:
    """Servers by major version, started when first asked for (see `start_server`)."""
    started: dict[int, EmbeddedServer] = {}
    yield started
    for server in started.values():
        server.stop()
        shutil.rmtree(server.data, ignore_errors=True)


def start_server(servers: dict[int, EmbeddedServer], version: int) -> EmbeddedServer:
    if version not in servers:
        servers[version] = EmbeddedServer(Path(tempfile.mkdtemp(prefix=f"pgcdc-pg{version}-")), version)
    return servers[version]


@pytest.fixture(params=[16, 18], ids=["pg16", "pg18"])
def server(request: pytest.FixtureRequest, servers: dict[int, EmbeddedServer]) -> EmbeddedServer:
    """Each test that takes it runs against both major versions."""
    return start_server(servers, request.param)


@pytest.fixture
def server18(servers: dict[int, EmbeddedServer]) -> EmbeddedServer:
    """For tests in which the server's version can make no difference."""
    return start_server(servers, 18)


class Database:
    """A database of a test's own; slots in it are dropped with it."""

    def __init__(self, server: EmbeddedServer) -> None:
        self.server = server
        self.name = f"t_{uuid.uuid4().hex[:12]}"
        self.uri = server.uri(self.name)
        with psycopg.connect(server.uri(), autocommit=True) as admin:
            admin.execute(sql.SQL("CREATE DATABASE {}").format(sql.Identifier(self.name)))
        self.connection = psycopg.connect(self.uri, autocommit=True)
        self.execute = self.connection.execute

    def create_slot(self, name: str | None = None, plugin: str = "pgoutput") -> str:
        """Create a slot (names are server-wide, so by default one that no other test has)."""
        name = name or f"s_{uuid.uuid4().hex[:12]}"
        self.execute("SELECT pg_create_logical_replication_slot(%s, %s)", (name, plugin))
        return name

    def copy_slot(self, slot: str) -> str:
        """A second reader from the same point."""
        name = f"s_{uuid.uuid4().hex[:12]}"
        self.execute("SELECT pg_copy_logical_replication_slot(%s, %s)", (slot, name))
        return name

    def drop(self) -> None:
        self.connection.close()
        with psycopg.connect(self.server.uri(), autocommit=True) as admin:
            admin.execute("SELECT pg_terminate_backend(active_pid) FROM pg_replication_slots"
                          " WHERE database = %s AND active", (self.name,))
            for _ in range(100):
                busy = admin.execute("SELECT count(*) FROM pg_replication_slots WHERE database = %s AND active",
                                     (self.name,)).fetchone()
                if busy == (0,):
                    break
                admin.execute("SELECT pg_sleep(0.05)")
            admin.execute("SELECT pg_drop_replication_slot(slot_name) FROM pg_replication_slots"
                          " WHERE database = %s", (self.name,))
            admin.execute(sql.SQL("DROP DATABASE {} WITH (FORCE)").format(sql.Identifier(self.name)))


@pytest.fixture
def database(server: EmbeddedServer) -> Iterator[Database]:
    database = Database(server)
    yield database
    database.drop()


@pytest.fixture
def database18(server18: EmbeddedServer) -> Iterator[Database]:
    database = Database(server18)
    yield database
    database.drop()
