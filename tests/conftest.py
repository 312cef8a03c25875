"""Real servers for the tests: a PostgreSQL 16, 17 and 18 per session, and a fresh database per test."""

import os
import signal
import subprocess
import uuid
from collections.abc import Callable, Iterator
from dataclasses import asdict
from pathlib import Path

import hypothesis
import pytest
import scale
from faults_report import FaultsReport
from proxy import Proxy
from servers import VERSIONS, Database, Encoded, Servers, remove
from servers import start as start_server
from xdist.remote import Producer
from xdist.scheduler import LoadScopeScheduling

from pgcdc_cli.cli.printing import talk
from pgcdc_cli.demo.embedded_server import EmbeddedServer

pytest_plugins = ["skip_summary"]

KILLS = 20


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--scale", type=int, default=1, metavar="N", help="tests of any size, N times as large (default: 1)"
    )
    parser.addoption(
        "--kills", type=int, metavar="N", help=f"SIGKILLs for each kill test (default: {KILLS}N)"
    )
    parser.addoption(
        "--soak",
        type=float,
        metavar="SECONDS",
        help="seconds for each combination of the soak test (default: 4 s, a few of them)",
    )
    parser.addoption("--soak-seed", type=int, help="seed of the soak test (default: another in each run)")
    parser.addoption(
        "--faults", type=int, default=1, metavar="N", help="tests/faults N times as large (default: 1)"
    )
    parser.addoption("--faults-seed", type=int, help="seed of tests/faults (default: another in each run)")
    parser.addoption("--faults-report", metavar="FILE", help="write what tests/faults did as a page")
    parser.addoption("--long", action="store_true", help="run the variants that take long, too")


def pytest_configure(config: pytest.Config) -> None:
    """Handle signals that whoever started us in the background ignores: children inherit that, too.

    Examples of hypothesis have no deadline, because any may take long on a busy machine. Messages of
    pgcdc have no time, which a stream without an end puts before them otherwise (`--log-format`).
    """
    os.environ["PGCDC_LOG_FORMAT"] = "text"
    scale.factor = config.option.scale
    if page := config.option.faults_report:
        config.pluginmanager.register(FaultsReport(Path(page), config.option.faults))
    if config.option.kills is None:
        config.option.kills = KILLS * scale.factor
    hypothesis.settings.register_profile("untimed", deadline=None)
    hypothesis.settings.load_profile("untimed")
    signal.signal(signal.SIGINT, signal.default_int_handler)
    signal.signal(signal.SIGHUP, signal.SIG_DFL)


_BESIDE_SPARK = (
    "tests/demo/",
    "tests/spark/test_lake_readers",
    "tests/spark/test_launch",
    "tests/spark/test_merge_catalogs",
    "tests/spark/test_merge_cluster",
    "tests/spark/test_merge_hadoop",
    "tests/spark/test_merge_kills",
    "tests/spark/test_merge_s3",
    "tests/spark/test_merge_servers",
    "tests/spark/test_spark_command",
)


def _scope(nodeid: str) -> str:
    """Name the group of tests that share a process.

    Such a group is a file, or files that share a Spark, which takes long to start. There are two groups of
    those, so that they run side by side. Tests that start further Sparks or servers share the second group,
    so that they do it one at a time.
    """
    path = nodeid.partition("::")[0]
    if path.startswith(_BESIDE_SPARK):
        return "second spark"
    return "spark" if path.startswith("tests/spark/") else path


class ByScope(LoadScopeScheduling):
    """Gives each process one scope at a time."""

    def _split_scope(self, nodeid: str) -> str:
        return _scope(nodeid)


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Producer) -> ByScope:
    """Divide the tests among processes (`-n`)."""
    return ByScope(config, log)


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Skip tests that take long, begin with the largest scopes, and set no timeout for larger sizes."""
    first = {"spark": 0, "second spark": 1}
    items.sort(key=lambda item: first.get(_scope(item.nodeid), 2))
    size = config.option
    larger = size.scale > 1 or size.faults > 1 or size.kills > KILLS
    for item in items:
        if larger:
            item.add_marker(pytest.mark.timeout(0), append=False)
        if item.get_closest_marker("long") and not config.getoption("--long"):
            reason = "takes long, and others are like it: --long runs it, too"
            item.add_marker(pytest.mark.skip(reason=reason))


@pytest.fixture(autouse=True)
def talk_as_before() -> Iterator[None]:
    """Restore the settings of messages, which commands run in this process change."""
    before = asdict(talk)
    yield
    for name, value in before.items():
        setattr(talk, name, value)


@pytest.fixture(scope="session")
def servers() -> Iterator[Servers]:
    servers = Servers()
    yield servers
    servers.remove()


@pytest.fixture(params=VERSIONS, ids=lambda version: f"pg{version}")
def server(request: pytest.FixtureRequest, servers: Servers) -> EmbeddedServer:
    """A server of each major version: tests that use it run against both."""
    return servers[request.param]


@pytest.fixture
def server18(servers: Servers) -> EmbeddedServer:
    """PostgreSQL 18, for tests in which the version makes no difference."""
    return servers[18]


@pytest.fixture
def database(server: EmbeddedServer) -> Iterator[Database]:
    database = Database(server)
    yield database
    database.drop()


@pytest.fixture
def role(database):
    """A role that may log in, and nothing else."""
    name = f"r_{uuid.uuid4().hex[:12]}"
    database.execute(f"CREATE ROLE {name} LOGIN")
    yield name
    database.execute(f"DROP OWNED BY {name}; DROP ROLE {name}")


@pytest.fixture
def database18(server18: EmbeddedServer) -> Iterator[Database]:
    database = Database(server18)
    yield database
    database.drop()


@pytest.fixture
def proxy(database: Database) -> Iterator[Proxy]:
    """A proxy in front of the server of the fixture `database`."""
    proxy = Proxy(database.server)
    yield proxy
    proxy.close()


@pytest.fixture
def proxy18(database18: Database) -> Iterator[Proxy]:
    """A proxy in front of the server of the fixture `database18`."""
    proxy = Proxy(database18.server)
    yield proxy
    proxy.close()


@pytest.fixture
def encoded(server18: EmbeddedServer) -> Iterator[Callable[[str], Encoded]]:
    """A function that makes a database with an encoding, such as SQL_ASCII."""
    made: list[Encoded] = []

    def make(encoding: str) -> Encoded:
        made.append(Encoded(server18, encoding))
        return made[-1]

    yield make
    for one in made:
        one.drop()


StartOwnServer = Callable[..., EmbeddedServer]


@pytest.fixture(scope="module")
def own_server() -> Iterator[StartOwnServer]:
    """A function that starts servers of the module's own, which other tests can't use."""
    started: list[EmbeddedServer] = []

    def start(version: int = 18, settings: dict[str, str] | None = None, hba: str = "") -> EmbeddedServer:
        server = start_server(version, settings)
        started.append(server)
        if hba:
            file = server.data / "pg_hba.conf"
            file.write_text(hba + file.read_text())
            server.pg_ctl("restart")
        return server

    yield start
    for server in started:
        remove(server)


@pytest.fixture
def mount(tmp_path: Path) -> Iterator[Callable[[str], Path]]:
    """A function that mounts a file system of a size, such as `1m`."""
    place = tmp_path / "mounted"

    def mount(size: str) -> Path:
        place.mkdir()
        line = ["mount", "-t", "tmpfs", "-o", f"size={size}", "tmpfs", place]
        if (mounted := subprocess.run(line, capture_output=True, text=True, check=False)).returncode:
            pytest.skip(f"no file system can be mounted here: {mounted.stderr.strip()}")
        return place

    yield mount
    if place.is_mount():
        subprocess.run(["umount", place], check=True)
