"""`pgcdc recvlogical` in pg_recvlogical's place. What both show alike is asked of the original, too."""

import re
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import pytest
from debian_server import DebianServer
from servers import Database, new_slot_name

TRY_HELP = 'pg_recvlogical: hint: Try "pg_recvlogical --help" for more information.\n'
MARK = re.compile(rb"mark(\d+);")
MARKS = "INSERT INTO t SELECT g, 'mark' || g || ';' FROM generate_series(%s::int, %s::int) g"

VERSIONS = pytest.mark.parametrize("version", [15, 16, 18])
BOTH = pytest.mark.parametrize("whose", ["ours", "theirs"])


@dataclass(frozen=True)
class Node:
    """A database with a table, the plugin that its server has, and pg_recvlogical of its version and ours."""

    database: Database
    plugin: str
    options: tuple[str, ...]
    programs: dict[str, Path]

    def line(self, *arguments: object, whose: str = "ours") -> list[str]:
        return [str(self.programs[whose]), "-d", self.database.uri, *map(str, arguments)]

    def run(self, *arguments: object, whose: str = "ours") -> subprocess.CompletedProcess[bytes]:
        line = self.line(*arguments, whose=whose)
        return subprocess.run(line, capture_output=True, check=False, timeout=60)

    def succeed(self, *arguments: object, whose: str = "ours") -> bytes:
        ran = self.run(*arguments, whose=whose)
        assert (ran.returncode, ran.stderr) == (0, b"")
        return ran.stdout

    def created(self, *arguments: object) -> str:
        slot = new_slot_name()
        self.succeed("-S", slot, "--create-slot", "-P", self.plugin, *arguments)
        return slot

    def fetched(self, slot: str, *arguments: object, whose: str = "ours") -> bytes:
        """Stream what there is to standard output."""
        end = self.end()
        return self.succeed(
            "-S", slot, "--start", *self.options, "-E", end, "-n", "-f", "-", *arguments, whose=whose
        )

    def insert(self, first: int, last: int) -> None:
        self.database.execute(MARKS, (first, last))

    def end(self) -> str:
        (position,) = self.database.execute("SELECT pg_current_wal_insert_lsn()").fetchone()
        return position

    def slot(self, slot: str, column: str) -> object:
        query = f"SELECT {column} FROM pg_replication_slots WHERE slot_name = %s"
        row = self.database.execute(query, (slot,)).fetchone()
        return None if row is None else row[0]

    @contextmanager
    def following(self, slot: str, *arguments: object) -> Iterator[subprocess.Popen[str]]:
        line = self.line("-S", slot, "--start", *self.options, *arguments)
        process = subprocess.Popen(line, stderr=subprocess.PIPE, text=True)
        try:
            yield process
        finally:
            process.kill()
            process.communicate()


def marks(data: bytes) -> list[int]:
    return [int(number) for number in MARK.findall(data)]


def marks_in(path: Path) -> list[int]:
    return marks(path.read_bytes()) if path.exists() else []


@pytest.fixture(scope="session")
def link(tmp_path_factory) -> Path:
    """pgcdc under the name of pg_recvlogical."""
    link = tmp_path_factory.mktemp("bin") / "pg_recvlogical"
    link.symlink_to(Path(sys.executable).with_name("pgcdc"))
    return link


@pytest.fixture(scope="module")
def debian():
    if reason := DebianServer.missing():
        pytest.skip(reason)
    server = DebianServer({"max_prepared_transactions": "5"})
    yield server
    server.stop()


@pytest.fixture
def node(version, servers, link, request) -> Iterator[Node]:
    server = request.getfixturevalue("debian") if version == 15 else servers[version]
    database = Database(server)
    database.execute("CREATE TABLE t (a int PRIMARY KEY, b text)")
    database.execute("CREATE PUBLICATION p FOR TABLE t")
    plugin, options = "test_decoding", ()
    if version != 15:
        plugin, options = "pgoutput", ("-o", "proto_version=1", "-o", "publication_names=p")
    yield Node(database, plugin, options, {"ours": link, "theirs": server.bin / "pg_recvlogical"})
    database.drop()


REFUSED = {
    "no slot": ([], "no slot specified"),
    "no database": (["-S", "s"], "no database specified"),
    "no action": (["-S", "s", "-d", "d"], "at least one action needs to be specified"),
    "no file": (["-S", "s", "-d", "d", "--start"], "no target file specified"),
    "drop and start": (
        ["-S", "s", "-d", "d", "--drop-slot", "--start", "-f", "-"],
        "cannot use --create-slot or --start together with --drop-slot",
    ),
    "startpos and create": (
        ["-S", "s", "-d", "d", "--create-slot", "-I", "0/1"],
        "cannot use --create-slot or --drop-slot together with --startpos",
    ),
    "endpos without start": (
        ["-S", "s", "-d", "d", "--create-slot", "--endpos=0/1"],
        "--endpos may only be specified with --start",
    ),
    "two-phase without create": (
        ["-S", "s", "-d", "d", "--start", "-f", "-", "-t"],
        "--enable-two-phase may only be specified with --create-slot",
    ),
    "failover without create": (
        ["-S", "s", "-d", "d", "--start", "-f", "-", "--enable-failover"],
        "--enable-failover may only be specified with --create-slot",
    ),
    "an argument": (["-S", "s", "extra"], 'too many command-line arguments (first is "extra")'),
}


@BOTH
@pytest.mark.parametrize(("arguments", "reason"), REFUSED.values(), ids=REFUSED)
def test_what_pg_recvlogical_refuses_is_refused_in_its_words(arguments, reason, whose, link, server18):
    program = link if whose == "ours" else server18.bin / "pg_recvlogical"
    ran = subprocess.run([program, *arguments], capture_output=True, text=True, check=False)
    assert (ran.returncode, ran.stdout) == (1, "")
    assert ran.stderr == f"pg_recvlogical: error: {reason}\n{TRY_HELP}"


@pytest.mark.parametrize(
    ("arguments", "reason"),
    [
        (["-F", "soon"], 'invalid value "soon" for option "-F/--fsync-interval"'),
        (["-s", "-1"], "-s/--status-interval must be in range 0..2147483"),
        (["-I", "nowhere"], 'could not parse start position "nowhere"'),
        (["-E", "0/1x"], 'could not parse end position "0/1x"'),
        (["--nothing"], "option --nothing not recognized"),
        (["-S"], "option -S requires argument"),
    ],
)
def test_what_cannot_be_read_is_said_with_the_way_to_help(arguments, reason, link):
    ran = subprocess.run([link, *arguments], capture_output=True, text=True, check=False)
    assert (ran.returncode, ran.stdout) == (1, "")
    assert ran.stderr == f"pg_recvlogical: error: {reason}\n{TRY_HELP}"


@BOTH
@pytest.mark.parametrize("option", ["--help", "-?", "--version", "-V"])
def test_help_and_version_are_on_standard_output(option, whose, link, server18):
    program = link if whose == "ours" else server18.bin / "pg_recvlogical"
    ran = subprocess.run([program, option], capture_output=True, text=True, check=False)
    assert (ran.returncode, ran.stderr) == (0, "")
    assert "pg_recvlogical" in ran.stdout
    assert max(map(len, ran.stdout.splitlines())) <= 95


def test_as_a_command_of_pgcdc_it_has_that_name(pgcdc):
    ran = pgcdc("recvlogical", "--slot", "s")
    assert (ran.status, ran.out) == (1, "")
    assert ran.err == (
        "pgcdc recvlogical: error: no database specified\n"
        'pgcdc recvlogical: hint: Try "pgcdc recvlogical --help" for more information.\n'
    )


def test_nothing_of_pgcdcs_environment_decides_over_it(pgcdc):
    ran = pgcdc("recvlogical", "--drop-slot", env={"PGCDC_SLOT": "s", "PGCDC_CREATE_SLOT": "1"})
    assert (ran.status, ran.err.splitlines()[0]) == (1, "pgcdc recvlogical: error: no slot specified")


@VERSIONS
def test_the_output_is_byte_for_byte_that_of_pg_recvlogical(node):
    slot = node.created()
    node.insert(1, 3)
    node.database.execute("UPDATE t SET b = 'Grüße' || chr(10) || b WHERE a = 2")
    node.database.execute("DELETE FROM t WHERE a = 3")
    copies = {whose: node.database.copy_slot(slot) for whose in node.programs}
    found = {whose: node.fetched(copy, whose=whose) for whose, copy in copies.items()}
    assert marks(found["ours"])[:3] == [1, 2, 3]
    assert found["ours"] == found["theirs"]


@pytest.mark.parametrize("version", [15])
def test_values_are_written_as_the_database_has_them(node):
    """Time zone, dates and names of types are those of pg_recvlogical's session."""
    name = node.database.name
    node.database.execute(f"ALTER DATABASE {name} SET TimeZone = 'Asia/Tokyo'")
    node.database.execute(f"ALTER DATABASE {name} SET DateStyle = 'German'")
    node.database.execute("CREATE TYPE mood AS ENUM ('ok'); CREATE TABLE u (m mood, at timestamptz, f float)")
    slot = node.created()
    node.database.execute("INSERT INTO u VALUES ('ok', '2026-01-02 03:04:05Z', 0.1)")
    copies = {whose: node.database.copy_slot(slot) for whose in node.programs}
    options = ["-o", "skip-empty-xacts", "-o", "include-xids=0"]
    found = {whose: node.fetched(copy, *options, whose=whose) for whose, copy in copies.items()}
    assert found["ours"] == (
        b"BEGIN\ntable public.u: INSERT: m[public.mood]:'ok'"
        b" at[timestamp with time zone]:'02.01.2026 12:04:05 JST' f[double precision]:0.1\nCOMMIT\n"
    )
    assert found["ours"] == found["theirs"]
