"""Servers that stream whatever is larger than 64 kB, and that wait for nobody longer than five seconds."""

import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from pgcdc_cli.demo.embedded_server import EmbeddedServer

SETTINGS = {
    "logical_decoding_work_mem": "64kB",
    "wal_sender_timeout": "5s",
    "max_prepared_transactions": "20",
}


class Servers(dict[int, EmbeddedServer]):
    """By major version, started when first asked for."""

    def __missing__(self, version: int) -> EmbeddedServer:
        data = Path(tempfile.mkdtemp(prefix=f"pgcdc-small-pg{version}-"))
        self[version] = EmbeddedServer(data, version, SETTINGS)
        return self[version]


@pytest.fixture(scope="session")
def small_servers() -> Iterator[Servers]:
    servers = Servers()
    yield servers
    for server in servers.values():
        server.stop()
        shutil.rmtree(server.data, ignore_errors=True)


@pytest.fixture(params=[16, 18], ids=["pg16", "pg18"])
def server(request: pytest.FixtureRequest, small_servers: Servers) -> EmbeddedServer:
    return small_servers[request.param]


@pytest.fixture
def server18(small_servers: Servers) -> EmbeddedServer:
    return small_servers[18]
