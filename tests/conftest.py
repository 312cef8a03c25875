"""Real servers for the tests: PostgreSQL 16 and 18, one of each a session, a fresh database a test."""

import contextlib
import shutil
import signal
import socket
import tempfile
import threading
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path

import hypothesis
import psycopg
import pytest
from psycopg import sql
from xdist.remote import Producer
from xdist.scheduler import LoadScopeScheduling

from pgcdc_cli.demo.embedded_server import EmbeddedServer


def pytest_configure() -> None:
    """Take no signal as ignored: whoever starts us in the background hands that down, to our children too.

    And let no made-up example have a deadline: on a busy machine any may take long.
    """
    hypothesis.settings.register_profile("untimed", deadline=None)
    hypothesis.settings.load_profile("untimed")
    signal.signal(signal.SIGINT, signal.default_int_handler)
    signal.signal(signal.SIGHUP, signal.SIG_DFL)


def _scope(nodeid: str) -> str:
    """Name the tests that run in one process.

    That is a file's, but all that share a Spark, whose start takes long; and all that start one themselves,
    so that there is one such at a time.
    """
    path = nodeid.partition("::")[0]
    if path.startswith(("tests/demo/", "tests/spark/test_launch")):
        return "own spark"
    return "spark" if path.startswith("tests/spark/") else path


class ByScope(LoadScopeScheduling):
    """Gives each process a scope at a time."""

    def _split_scope(self, nodeid: str) -> str:
        return _scope(nodeid)


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Producer) -> ByScope:
    """Divide the tests among processes (`-n`)."""
    return ByScope(config, log)


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Leave out what takes long, and begin with the largest scopes."""
    first = {"spark": 0, "own spark": 1}
    items.sort(key=lambda item: first.get(_scope(item.nodeid), 2))
    for item in items:
        if item.get_closest_marker("long") and not config.getoption("--long"):
            reason = "takes long, and others are like it: --long runs it, too"
            item.add_marker(pytest.mark.skip(reason=reason))


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--kills", type=int, default=50, help="SIGKILLs for each kill test (default: 50)")
    parser.addoption(
        "--soak",
        type=float,
        help="seconds for each combination of the soak test (default: 4 s, a few of them)",
    )
    parser.addoption("--soak-seed", type=int, help="seed of the soak test (default: another in each run)")
    parser.addoption("--long", action="store_true", help="run the variants that take long, too")


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
        # So that what a test writes does not depend on where it runs.
        self.connection = psycopg.connect(self.uri, autocommit=True, options="-c TimeZone=UTC")
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
            admin.execute(
                "SELECT pg_terminate_backend(active_pid) FROM pg_replication_slots"
                " WHERE database = %s AND active",
                (self.name,),
            )
            for _ in range(100):
                busy = admin.execute(
                    "SELECT count(*) FROM pg_replication_slots WHERE database = %s AND active", (self.name,)
                ).fetchone()
                if busy == (0,):
                    break
                admin.execute("SELECT pg_sleep(0.05)")
            admin.execute(
                "SELECT pg_drop_replication_slot(slot_name) FROM pg_replication_slots WHERE database = %s",
                (self.name,),
            )
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


class Proxy:
    """A TCP port in front of a server's Unix socket, for everything that can go wrong on a wire."""

    def __init__(self, server: EmbeddedServer) -> None:
        self._target = f"{server.socket_directory}/.s.PGSQL.5432"
        self._listener = socket.create_server(("127.0.0.1", 0))
        self._flowing = threading.Event()
        self._flowing.set()
        self._budget: int | None = None
        self._sockets: list[socket.socket] = []
        self._threads = [threading.Thread(target=self._accept, daemon=True)]
        self._threads[0].start()

    def uri(self, database: str, user: str = "postgres") -> str:
        return f"postgresql://{user}@127.0.0.1:{self._listener.getsockname()[1]}/{database}?sslmode=disable"

    def stall(self) -> None:
        """Let nothing through any more, in either direction, without closing anything."""
        self._flowing.clear()

    def resume(self) -> None:
        self._flowing.set()

    def cut(self) -> None:
        """Close all connections."""
        for one in self._sockets:
            with contextlib.suppress(OSError):
                one.shutdown(socket.SHUT_RDWR)

    def cut_after(self, size: int) -> None:
        """Close all connections once `size` more bytes have come from the server."""
        self._budget = size

    def close(self) -> None:
        self.resume()
        with contextlib.suppress(OSError):
            self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        self.cut()
        for thread in self._threads:
            thread.join()
        for one in self._sockets:
            one.close()

    def _accept(self) -> None:
        while True:
            try:
                client = self._listener.accept()[0]
            except OSError:
                return
            upstream = socket.socket(socket.AF_UNIX)
            upstream.connect(self._target)
            self._sockets += [client, upstream]
            for source, sink in ((client, upstream), (upstream, client)):
                pump = threading.Thread(
                    target=self._pump, args=(source, sink, source is upstream), daemon=True
                )
                self._threads.append(pump)
                pump.start()

    def _pump(self, source: socket.socket, sink: socket.socket, from_server: bool) -> None:
        with contextlib.suppress(OSError):
            while data := source.recv(65536):
                self._flowing.wait()
                if from_server and self._budget is not None:
                    data = data[: self._budget]
                    self._budget -= len(data)
                sink.sendall(data)
                if self._budget == 0:
                    self.cut()
        with contextlib.suppress(OSError):
            sink.shutdown(socket.SHUT_RDWR)


@pytest.fixture
def proxy(database: Database) -> Iterator[Proxy]:
    """In front of the server of the fixture `database`."""
    proxy = Proxy(database.server)
    yield proxy
    proxy.close()


@pytest.fixture
def proxy18(database18: Database) -> Iterator[Proxy]:
    """In front of the server of the fixture `database18`."""
    proxy = Proxy(database18.server)
    yield proxy
    proxy.close()


StartOwnServer = Callable[..., EmbeddedServer]


@pytest.fixture(scope="module")
def own_server() -> Iterator[StartOwnServer]:
    """Start servers of the module's own, for what other tests could not live with."""
    started: list[EmbeddedServer] = []

    def start(version: int = 18, settings: dict[str, str] | None = None, hba: str = "") -> EmbeddedServer:
        server = EmbeddedServer(Path(tempfile.mkdtemp(prefix="pgcdc-own-")), version, settings)
        started.append(server)
        if hba:
            file = server.data / "pg_hba.conf"
            file.write_text(hba + file.read_text())
            server.pg_ctl("restart")
        return server

    yield start
    for server in started:
        server.stop()
        shutil.rmtree(server.data, ignore_errors=True)
