"""Servers of all versions that stream; they stream transactions larger than 64 kB."""

from collections.abc import Callable

import pytest
from debian_server import DebianServer

SETTINGS = {"logical_decoding_work_mem": "64kB", "max_prepared_transactions": "20"}


@pytest.fixture(scope="module")
def server_of(own_server) -> Callable[[int], object]:
    """A function that returns the server of a major version; 15 is Debian's."""
    started: dict[int, object] = {}

    def give(version: int) -> object:
        if version not in started:
            started[version] = _debian() if version == 15 else own_server(version, SETTINGS)
        return started[version]

    yield give
    if 15 in started:
        started[15].stop()


def _debian() -> DebianServer:
    if reason := DebianServer.missing():
        pytest.skip(reason)
    return DebianServer(SETTINGS)
