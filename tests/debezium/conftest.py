"""Servers used only for captured workloads, whose databases and slots have fixed names."""

from collections.abc import Iterator

import pytest
from debian_server import DebianServer
from servers import started

from pgcdc_cli.demo.embedded_server import EmbeddedServer


@pytest.fixture(scope="session")
def golden18() -> Iterator[EmbeddedServer]:
    with started() as server:
        yield server


@pytest.fixture(scope="session")
def golden15() -> Iterator[DebianServer]:
    reason = DebianServer.missing()
    if reason is not None:
        pytest.skip(reason)
    server = DebianServer()
    yield server
    server.stop()
