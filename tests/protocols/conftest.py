"""Servers that stream transactions larger than 64 kB, and wait at most five seconds for a reader."""

from collections.abc import Iterator

import pytest
from servers import VERSIONS, Servers

from pgcdc_cli.demo.embedded_server import EmbeddedServer

SETTINGS = {
    "logical_decoding_work_mem": "64kB",
    "wal_sender_timeout": "5s",
    "max_prepared_transactions": "20",
}


@pytest.fixture(scope="session")
def small_servers() -> Iterator[Servers]:
    servers = Servers(SETTINGS)
    yield servers
    servers.remove()


@pytest.fixture(params=VERSIONS, ids=lambda version: f"pg{version}")
def server(request: pytest.FixtureRequest, small_servers: Servers) -> EmbeddedServer:
    return small_servers[request.param]


@pytest.fixture
def server18(small_servers: Servers) -> EmbeddedServer:
    return small_servers[18]
