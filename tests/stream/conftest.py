"""A small published table, and streams in the background that no failing test leaves behind."""

from collections.abc import Callable, Iterator

import psycopg
import pytest
from debian_server import DebianServer
from servers import VERSIONS, Database, remove, start, wait_until_free
from standbys import standby
from stream_runs import SMALL, Following, delivers, insert, make_slot

from pgcdc_cli.demo.embedded_server import EmbeddedServer


@pytest.fixture(scope="module")
def server15() -> Iterator[DebianServer]:
    if reason := DebianServer.missing():
        pytest.skip(reason)
    server = DebianServer()
    yield server
    server.stop()


@pytest.fixture
def database15(server15) -> Iterator[Database]:
    database = Database(server15)
    yield database
    database.drop()


@pytest.fixture(params=[15, *VERSIONS], ids=lambda version: f"pg{version}")
def any_database(request, servers) -> Iterator[Database]:
    """A database of each major version of the server: tests that use it run against all of them."""
    server = request.getfixturevalue("server15") if request.param == 15 else servers[request.param]
    database = Database(server)
    yield database
    database.drop()


@pytest.fixture(scope="module")
def standby18(servers) -> Iterator[EmbeddedServer]:
    """A standby of the server of the fixture `database18`."""
    started = standby(servers[18])
    yield started
    remove(started)


@pytest.fixture
def source(database18):
    """A database with the tables of `SMALL`, of which `pub` publishes t."""
    database18.execute(SMALL)
    return database18


@pytest.fixture
def follow() -> Iterator[Callable[..., Following]]:
    """Start `pgcdc stream` in the background: `follow(uri, slot, path, *arguments)`."""
    started = []

    def start(*arguments, **settings) -> Following:
        started.append(Following(*arguments, **settings))
        return started[-1]

    yield start
    for one in started:
        one.process.kill()
        one.process.communicate()


@pytest.fixture(scope="module")
def other(own_server):
    """A server that a test may stop, with a role `careful`, which needs a password."""
    server = own_server(18, hba="local all careful scram-sha-256\n")
    with psycopg.connect(server.uri(), autocommit=True) as admin:
        admin.execute("CREATE ROLE careful LOGIN REPLICATION PASSWORD 'r1ght'")
    return server


@pytest.fixture
def shop(other):
    """The URI of a database in `other`, with slot `s` and one row."""
    with psycopg.connect(other.uri(), autocommit=True) as admin:
        admin.execute("CREATE DATABASE shop")
        make_slot(other.uri("shop"), "s")
        yield other.uri("shop")
        wait_until_free(admin, "s")
        admin.execute("SELECT pg_drop_replication_slot('s')")
        admin.execute("DROP DATABASE shop WITH (FORCE)")


@pytest.fixture
def written(source, tmp_path):
    """A slot, and a directory that has the first of its rows but not the second."""
    slot = source.create_slot()
    insert(source, 1, 1)
    out = tmp_path / "out"
    assert delivers(source.uri, slot, out) == [1]
    insert(source, 2, 2)
    return slot, out


@pytest.fixture
def synced():
    """A server with slot `s` and a row, and its standby, which has a copy of the slot."""
    primary = start(18)
    try:
        with psycopg.connect(primary.uri(), autocommit=True) as there:
            there.execute(SMALL)
            there.execute("SELECT pg_create_physical_replication_slot('standby')")
            there.execute("SELECT pg_create_logical_replication_slot('s', 'pgoutput', false, false, true)")
            settings = {"primary_slot_name": "standby", "hot_standby_feedback": "on"}
            follower = standby(primary, settings)
            try:
                insert(there, 1, 1)
                yield primary, follower
            finally:
                remove(follower)
    finally:
        remove(primary)
