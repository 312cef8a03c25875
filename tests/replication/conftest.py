"""Streams from real servers, and a walsender that follows a test's script."""

from collections.abc import Callable, Iterator

import pytest
from scripted_walsender import ScriptedWalsender

from pgcdc_cli.frames import MESSAGE_TAG
from pgcdc_cli.lsn import Lsn
from pgcdc_cli.replication.connection import ReplicationConnection


@pytest.fixture
def walsender() -> Iterator[Callable[..., ScriptedWalsender]]:
    started = []

    def start(**options) -> ScriptedWalsender:
        started.append(ScriptedWalsender(**options))
        return started[-1]

    yield start
    for one in started:
        one.close()


class Stream:
    """A stream of one publication, and the frames received so far."""

    def __init__(self, uri: str, slot: str, publication: str = "p", lsn: int = 0, **options) -> None:
        self.connection = ReplicationConnection(uri, **options)
        self.slot = slot
        self.frames: list[bytes] = []
        self.options = {"proto_version": "1", "publication_names": f'"{publication}"'}
        self.lsn = Lsn(lsn)

    def start(self) -> "Stream":
        self.stream = self.connection.start(self.slot, self.lsn, self.options.items())
        return self

    @property
    def tags(self) -> str:
        """The pgoutput message types so far, such as BRIC."""
        return b"".join(frame[MESSAGE_TAG] for frame in self.frames).decode()

    @property
    def commit_ends(self) -> list[int]:
        return [int.from_bytes(f[35:43], "big") for f in self.frames if f[MESSAGE_TAG] == b"C"]

    def read(self, commits: int, limit: int = 8192) -> "Stream":
        """Receive until there are so many commits in total."""
        while len(self.commit_ends) < commits:
            self.frames += self.stream.receive(limit, 1.0).frames
        return self

    def read_to(self, lsn: int) -> "Stream":
        """Receive until a keepalive says that nothing before `lsn` is still to come."""
        while True:
            received = self.stream.receive(8192, 1.0)
            self.frames += received.frames
            if received.keepalive is not None and received.keepalive.wal_end >= lsn:
                return self


@pytest.fixture
def stream() -> Iterator[Callable[..., Stream]]:
    """A function that makes a stream, which isn't started yet; it is closed after the test."""
    made = []

    def make(*arguments, **options) -> Stream:
        made.append(Stream(*arguments, **options))
        return made[-1]

    yield make
    for one in made:
        one.connection.close()


@pytest.fixture
def table(database) -> str:
    """Create table `t`, published by `p`, and then a slot; returns the slot's name."""
    database.execute("CREATE TABLE t (id int PRIMARY KEY, v text)")
    database.execute("CREATE PUBLICATION p FOR TABLE t")
    return database.create_slot()


@pytest.fixture
def table18(database18) -> str:
    database18.execute("CREATE TABLE t (id int PRIMARY KEY, v text)")
    database18.execute("CREATE PUBLICATION p FOR TABLE t")
    return database18.create_slot()
