"""Servers of the captured workloads' own: their databases and slots have fixed names."""

import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest
from debian_server import DebianServer

from pgcdc_cli.demo.embedded_server import EmbeddedServer


@pytest.fixture(scope="session")
def golden18() -> Iterator[EmbeddedServer]:
    server = EmbeddedServer(Path(tempfile.mkdtemp(prefix="pgcdc-golden-")))
    yield server
    server.stop()
    shutil.rmtree(server.data, ignore_errors=True)


@pytest.fixture(scope="session")
def golden15() -> Iterator[DebianServer]:
    reason = DebianServer.missing()
    if reason is not None:
        pytest.skip(reason)
    server = DebianServer()
    yield server
    server.stop()
