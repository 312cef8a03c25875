"""How long a connection waits for a network that is gone."""

import os
import socket

import pytest

from pgcdc_cli.catalog import Catalog
from pgcdc_cli.catalog import server as catalog_server
from pgcdc_cli.replication import connection as replication
from pgcdc_cli.replication.connection import ReplicationConnection
from pgcdc_cli.replication.session import SessionConnection, connect

BY_DEFAULT = (10, 30, 10, 3, 60_000)


def waits(connection: SessionConnection) -> tuple[int, ...]:
    """Seconds to connect; the socket's keepalive idle time and interval (s), count, and user timeout (ms)."""
    with socket.socket(fileno=os.dup(connection.fileno())) as wire:
        assert wire.getsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE)
        options = socket.TCP_KEEPIDLE, socket.TCP_KEEPINTVL, socket.TCP_KEEPCNT, socket.TCP_USER_TIMEOUT
        asked = [wire.getsockopt(socket.IPPROTO_TCP, option) for option in options]
    return int(connection.info.get_parameters()["connect_timeout"]), *asked


@pytest.fixture
def uri(database18, proxy18):
    """The URI of a database over TCP, through the proxy."""
    return proxy18.uri(database18.name)


@pytest.fixture
def made(monkeypatch):
    """A list of the connections that are made."""
    found = []

    def note(*arguments, **options) -> SessionConnection:
        found.append(connect(*arguments, **options))
        return found[-1]

    monkeypatch.setattr(replication, "connect", note)
    monkeypatch.setattr(catalog_server, "connect", note)
    return found


def test_every_connection_notices_within_a_minute(uri, made):
    with ReplicationConnection(uri), Catalog(uri) as catalog:
        catalog.facts()
        assert [*map(waits, made)] == [BY_DEFAULT, BY_DEFAULT]


def test_what_the_connection_string_says_wins(uri):
    given = (
        "connect_timeout=20&keepalives_idle=40&keepalives_interval=5&keepalives_count=9&tcp_user_timeout=7000"
    )
    with connect(f"{uri}&{given}") as connection:
        assert waits(connection) == (20, 40, 5, 9, 7000)


def test_what_the_service_file_says_wins(uri, tmp_path, monkeypatch):
    (tmp_path / "services").write_text("[shop]\nconnect_timeout=21\nkeepalives_idle=41\n")
    monkeypatch.setenv("PGSERVICEFILE", str(tmp_path / "services"))
    with connect(f"{uri}&service=shop") as connection:
        assert waits(connection) == (21, 41, *BY_DEFAULT[2:])
    monkeypatch.setenv("PGSERVICE", "shop")
    with connect(uri) as connection:
        assert waits(connection) == (21, 41, *BY_DEFAULT[2:])


def test_what_the_environment_says_wins(uri, monkeypatch):
    monkeypatch.setenv("PGCONNECT_TIMEOUT", "22")
    with connect(uri) as connection:
        assert waits(connection) == (22, *BY_DEFAULT[1:])


def test_keepalives_may_be_turned_off(uri):
    with (
        connect(f"{uri}&keepalives=0") as connection,
        socket.socket(fileno=os.dup(connection.fileno())) as wire,
    ):
        assert not wire.getsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE)


@pytest.mark.parametrize("replication", [False, True])
def test_a_proxy_that_lets_a_session_in_and_hesitates_is_named(
    uri, proxy18, caplog, monkeypatch, replication
):
    """As PgBouncer does while all its connections to the server are in use."""
    monkeypatch.setattr("pgcdc_cli.replication.session.QUIET", 0.1)
    proxy18.delay(0.3)
    connect(uri, replication=replication).close()
    assert "let the session in, and has not answered since: if there is a proxy or a pooler" in caplog.text
