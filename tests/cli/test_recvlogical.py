"""`pgcdc recvlogical` in place of pg_recvlogical; what both have in common is checked with it, too."""

import os
import re
import signal
import stat
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path

import pytest
from debian_server import DebianServer
from processes import wait_until
from recvlogical_programs import BOTH, run_program
from servers import VERSIONS, Database, new_slot_name

MARK = re.compile(rb"mark(\d+);")

MARKS = "INSERT INTO t SELECT g, 'mark' || g || ';' FROM generate_series(%s::int, %s::int) g"

EACH = pytest.mark.parametrize("version", [15, *VERSIONS])


@dataclass(frozen=True)
class Node:
    """A database with a table, its server's plugin, and two programs: pg_recvlogical and ours."""

    database: Database
    plugin: str
    options: tuple[str, ...]
    programs: dict[str, Path]

    def run(self, *arguments: object, whose: str = "ours") -> subprocess.CompletedProcess[bytes]:
        return run_program(self.programs[whose], "-d", self.database.uri, *arguments, text=False)

    def succeed(self, *arguments: object, whose: str = "ours") -> bytes:
        ran = self.run(*arguments, whose=whose)
        assert (ran.returncode, ran.stderr) == (0, b"")
        return ran.stdout

    def created(self, *arguments: object) -> str:
        slot = new_slot_name()
        self.succeed("-S", slot, "--create-slot", "-P", self.plugin, *arguments)
        return slot

    def stream(
        self, slot: str, *arguments: object, whose: str = "ours"
    ) -> subprocess.CompletedProcess[bytes]:
        """Stream to standard output, without a loop."""
        start = ("-S", slot, "--start", *self.options, "-n", "-f", "-")
        return self.run(*start, *arguments, whose=whose)

    def fetched(self, slot: str, *arguments: object, whose: str = "ours", end: str = "") -> bytes:
        """Stream what there is, or up to an end position, and return it."""
        ran = self.stream(slot, "-E", end or self.end(), *arguments, whose=whose)
        assert (ran.returncode, ran.stderr) == (0, b"")
        return ran.stdout

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
        connect = [self.programs["ours"], "-d", self.database.uri, "-S", slot]
        line = [*map(str, [*connect, "--start", *self.options, *arguments])]
        with subprocess.Popen(line, stderr=subprocess.PIPE, text=True) as process:
            try:
                yield process
            finally:
                process.kill()


def marks(data: bytes) -> list[int]:
    return [int(number) for number in MARK.findall(data)]


def marks_in(path: Path) -> list[int]:
    return marks(path.read_bytes()) if path.exists() else []


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


@BOTH
@pytest.mark.parametrize("version", [18])
@pytest.mark.parametrize(
    ("option", "value"), [("-U", "nobody_of_this_name"), ("-h", "/no_such_folder"), ("-p", "1")]
)
def test_an_option_wins_over_the_connection_string(node, whose, option, value):
    ran = node.run("-S", "s", "--drop-slot", option, value, whose=whose)
    assert ran.returncode == 1
    assert value in ran.stderr.decode()


@BOTH
@pytest.mark.parametrize("version", [18])
def test_an_option_that_is_empty_is_as_good_as_none(node, whose):
    slot = node.created()
    node.insert(1, 2)
    assert marks(node.fetched(slot, "-h", "", "-p", "", "-U", "", whose=whose)) == [1, 2]


@EACH
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
    """Time zone, dates and names of types are the same as in pg_recvlogical's session."""
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


@BOTH
@EACH
def test_a_slot_is_created_streamed_and_dropped(node, whose):
    slot = new_slot_name()
    assert node.succeed("-S", slot, "--create-slot", "-P", node.plugin, whose=whose) == b""
    assert node.slot(slot, "plugin") == node.plugin
    node.insert(1, 10)
    assert marks(node.fetched(slot, whose=whose)) == list(range(1, 11))
    assert node.succeed("-S", slot, "--drop-slot", whose=whose) == b""
    assert node.slot(slot, "plugin") is None


@pytest.mark.parametrize("version", [18])
def test_a_slot_can_be_created_and_streamed_at_once(node, tmp_path):
    slot, out = new_slot_name(), tmp_path / "out"
    with node.following(slot, "--create-slot", "-P", node.plugin, "-f", out) as process:
        wait_until(lambda: node.slot(slot, "confirmed_flush_lsn"))
        node.insert(1, 2)
        wait_until(lambda: marks_in(out) == [1, 2])
        process.terminate()
        assert process.wait(30) == 0


@BOTH
@pytest.mark.parametrize("version", [15, 18])
def test_a_slot_that_exists_is_an_error_unless_it_may_exist(node, whose):
    slot = node.created()
    create = ["-S", slot, "--create-slot", "-P", node.plugin]
    assert node.succeed(*create, "--if-not-exists", whose=whose) == b""
    ran = node.run(*create, whose=whose)
    assert (ran.returncode, ran.stdout) == (1, b"")
    assert ran.stderr.startswith(b"pg_recvlogical: error: could not ")
    assert b"already exists" in ran.stderr


@BOTH
@EACH
def test_a_slot_is_dropped_without_the_name_of_a_database(node, version, whose):
    if whose == "theirs" and version < 18:
        pytest.skip("before 18, pg_recvlogical asks for one")
    slot = node.created()
    host = node.database.uri.partition("host=")[2]
    # There is no database with the user's name either.
    options = ("-h", host, "-U", "nobody_s_database", "-S", slot, "--drop-slot")
    node.database.execute("CREATE ROLE nobody_s_database LOGIN REPLICATION")
    try:
        ran = run_program(node.programs[whose], *options)
    finally:
        node.database.execute("DROP ROLE nobody_s_database")
    assert (ran.returncode, ran.stdout, ran.stderr) == (0, "", "")
    assert node.slot(slot, "plugin") is None


@EACH
@pytest.mark.parametrize("option", ["-t", "--two-phase", "--enable-two-phase"])
def test_a_slot_with_two_phase_sends_what_is_prepared(node, option):
    slot = node.created(option)
    assert node.slot(slot, "two_phase") is True
    node.database.execute("BEGIN")
    node.insert(1, 2)
    node.database.execute("PREPARE TRANSACTION 'p'")
    options = ["-o", "two_phase"] if node.plugin == "pgoutput" else []
    newer = replace(node, options=tuple(word.replace("version=1", "version=3") for word in node.options))
    assert marks(newer.fetched(slot, *options)) == [1, 2]
    node.database.execute("COMMIT PREPARED 'p'")
    committed = newer.fetched(slot)
    assert committed
    assert marks(committed) == []


@BOTH
@pytest.mark.parametrize("version", [18])
def test_a_slot_can_be_kept_on_standbys(node, whose):
    slot = new_slot_name()
    node.succeed("-S", slot, "--create-slot", "--enable-failover", "-P", "pgoutput", whose=whose)
    assert node.slot(slot, "failover") is True


@EACH
def test_after_a_lost_connection_nothing_comes_twice(node, tmp_path):
    slot, out = node.created(), tmp_path / "out"
    with node.following(slot, "-f", out, "-F", 1, "-s", 100, "-v") as process:
        node.insert(1, 3)
        wait_until(lambda: marks_in(out) == [1, 2, 3])
        walsender = node.slot(slot, "active_pid")
        node.database.execute("SELECT pg_terminate_backend(%s)", (walsender,))
        wait_until(lambda: node.slot(slot, "active_pid") not in {None, walsender})
        node.insert(4, 5)
        wait_until(lambda: 5 in marks_in(out))
        process.terminate()
        said = process.stderr.read()
        assert process.wait(30) == 0
    assert marks_in(out) == [1, 2, 3, 4, 5]
    assert re.search(r"^pg_recvlogical: warning: could not .*; trying again$", said, re.MULTILINE)
    assert re.search(rf"^pg_recvlogical: confirming write up to .* \(slot {slot}\)$", said, re.MULTILINE)
    assert said.count("\npg_recvlogical: streaming initiated\n") == 2
    assert said.endswith("\npg_recvlogical: received interrupt signal, exiting\n")


@EACH
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_what_was_written_before_a_signal_is_confirmed(node, number, tmp_path):
    slot, out = node.created(), tmp_path / "out"
    with node.following(slot, "-f", out, "-F", 100, "-s", 100) as process:
        node.insert(1, 3)
        wait_until(lambda: marks_in(out) == [1, 2, 3])
        process.send_signal(number)
        assert process.wait(30) == 0
    node.insert(4, 4)
    node.succeed("-S", slot, "--start", *node.options, "-E", node.end(), "-n", "-f", out)
    assert marks_in(out) == [1, 2, 3, 4]


@pytest.mark.parametrize("version", [18])
@pytest.mark.parametrize("loop", [True, False])
def test_without_a_loop_a_lost_connection_is_an_error(node, loop, tmp_path):
    slot, out = node.created(), tmp_path / "out"
    with node.following(slot, "-f", out, *([] if loop else ["-n"])) as process:
        # The slot is in use a moment before the stream begins.
        node.insert(1, 1)
        wait_until(lambda: marks_in(out) == [1])
        walsender = node.slot(slot, "active_pid")
        node.database.execute("SELECT pg_terminate_backend(%s)", (walsender,))
        if loop:
            wait_until(lambda: node.slot(slot, "active_pid") not in {None, walsender})
        else:
            assert process.wait(30) == 1
            assert process.stderr.read().startswith("pg_recvlogical: error: could not receive from slot")


@BOTH
@pytest.mark.parametrize("version", [15, 18])
def test_a_transaction_that_begins_where_the_end_is_stays_there(node, whose):
    """The end of a transaction is the position where the next one's first record begins."""
    slot = node.created()
    node.insert(1, 1)
    end = node.end()
    node.insert(2, 2)
    assert marks(node.fetched(slot, whose=whose, end=end)) == [1]
    assert node.slot(slot, "confirmed_flush_lsn") == end
    assert marks(node.fetched(slot)) == [2]


@pytest.mark.parametrize("version", [18])
def test_a_start_position_leaves_out_what_was_before(node):
    slot = node.created()
    node.insert(1, 1)
    position = node.end()
    node.insert(2, 2)
    assert marks(node.fetched(slot, "--startpos", position)) == [2]


@pytest.mark.parametrize("version", [18])
def test_a_hangup_opens_the_file_anew(node, tmp_path):
    slot, out, old = node.created(), tmp_path / "out", tmp_path / "old"
    with node.following(slot, "-f", out) as process:
        node.insert(1, 1)
        wait_until(lambda: marks_in(out) == [1])
        out.rename(old)
        process.send_signal(signal.SIGHUP)
        wait_until(out.exists)
        node.insert(2, 2)
        wait_until(lambda: marks_in(out) == [2])
    assert marks_in(old) == [1]


@pytest.mark.parametrize("version", [18])
def test_without_fsyncs_progress_is_confirmed_all_the_same(node, tmp_path):
    slot, out = node.created(), tmp_path / "out"
    before = node.slot(slot, "confirmed_flush_lsn")
    with node.following(slot, "-f", out, "--fsync-interval=0", "--status-interval=1"):
        node.insert(1, 1)
        wait_until(lambda: node.slot(slot, "confirmed_flush_lsn") != before)


@pytest.mark.parametrize(("folder", "mode"), [(0o700, 0o600), (0o750, 0o640)])
def test_the_file_is_readable_by_the_group_where_the_servers_own_are(
    folder, mode, own_server, link, tmp_path
):
    server, out = own_server(18), tmp_path / "out"
    if stat.S_IMODE(server.data.stat().st_mode) != folder:
        server.data.chmod(folder)
        server.pg_ctl("restart")
    connect = [link, "-d", server.uri(), "-S", "s"]
    subprocess.run([*connect, "--create-slot", "-P", "pgoutput"], check=True)
    options = ["-o", "proto_version=1", "-o", "publication_names=p", "-E", "0/1"]
    subprocess.run([*connect, "--start", *options, "-f", out], check=True, umask=0)
    assert stat.S_IMODE(out.stat().st_mode) == mode


@pytest.mark.parametrize("version", [18])
def test_an_error_of_the_server_is_one_line_and_a_hint(node):
    ran = node.run("-S", "missing", "--start", "-f", "-")
    assert (ran.returncode, ran.stdout) == (1, b"")
    assert ran.stderr.decode().splitlines() == [
        'pg_recvlogical: error: could not find slot "missing"',
        "pg_recvlogical: hint: create it first, with --create-slot",
    ]


@BOTH
@pytest.mark.parametrize("version", [18])
def test_an_option_that_comes_twice_is_passed_on_twice(node, whose):
    """Of two publications only the last would be read, and the other's changes confirmed with it."""
    slot = node.created()
    before = node.slot(slot, "confirmed_flush_lsn")
    ran = node.stream(slot, "-o", "publication_names=other", "-E", node.end(), whose=whose)
    assert (ran.returncode, ran.stdout) == (1, b"")
    assert b"conflicting or redundant options" in ran.stderr
    assert node.slot(slot, "confirmed_flush_lsn") == before


@BOTH
@pytest.mark.parametrize("version", [18])
def test_what_a_connection_string_says_of_replication_is_no_obstacle(node, whose):
    slot = node.created()
    node.insert(1, 2)
    connect = ("-d", f"{node.database.uri}&replication=true", "-S", slot)
    options = (*node.options, "-n", "-f", "-", "-E", node.end())
    ran = run_program(node.programs[whose], *connect, "--start", *options, text=False)
    assert (ran.returncode, ran.stderr, marks(ran.stdout)) == (0, b"", [1, 2])


@pytest.mark.parametrize("version", [18])
def test_a_pipe_that_nobody_reads_does_not_keep_it_from_ending(node, tmp_path):
    os.mkfifo(tmp_path / "pipe")
    with node.following(node.created(), "-f", tmp_path / "pipe", "-v") as process:
        assert process.stderr.readline().startswith("pg_recvlogical: starting log streaming")
        process.terminate()
        assert process.wait(30) == 0


@pytest.mark.parametrize("version", [18])
def test_a_missing_slot_is_not_created_to_be_dropped(node):
    ran = node.run("-S", "missing", "--drop-slot")
    assert ran.returncode == 1
    assert ran.stderr.decode().splitlines() == [
        'pg_recvlogical: error: could not drop slot "missing": replication slot "missing" does not exist',
        "pg_recvlogical: hint: see which exist with: pgcdc slot list",
    ]


@pytest.mark.parametrize("version", [15])
def test_a_plugin_that_the_server_does_not_allow_is_told_with_the_setting(node):
    setting = "SELECT FROM pg_settings WHERE name = 'output_plugin_libraries'"
    if not node.database.execute(setting).rowcount:
        pytest.skip("this minor release takes any library")
    ran = node.run("-S", new_slot_name(), "--create-slot", "-P", "pgcrypto")
    assert ran.returncode == 1
    hint = "add the plugin to output_plugin_libraries in postgresql.conf, and reload the server"
    assert ran.stderr.decode().splitlines()[1] == f"pg_recvlogical: hint: {hint}"


@pytest.mark.parametrize("version", [18])
def test_a_start_position_that_the_server_has_not_written_moves_no_slot(node):
    """Everything before that position would be skipped for good, even changes that are made later."""
    slot = node.created()
    before = node.slot(slot, "confirmed_flush_lsn")
    ran = node.stream(slot, "-I", "7FFFFFFF/0", "-E", "0/2")
    assert ran.returncode == 1
    reason = b"could not start at 7FFFFFFF/0: the server's WAL ends before that, at "
    assert ran.stderr.startswith(b"pg_recvlogical: error: " + reason)
    assert node.slot(slot, "confirmed_flush_lsn") == before


@BOTH
@pytest.mark.parametrize("version", [18])
def test_a_start_position_beyond_the_end_moves_no_slot(node, whose):
    """Nothing came, and what is before the start position may still be wanted."""
    slot = node.created()
    before = node.slot(slot, "confirmed_flush_lsn")
    node.insert(1, 1)
    end = node.end()
    node.insert(2, 2)
    begin = node.end()
    node.insert(3, 3)
    node.insert(4, 4)
    assert node.fetched(slot, "-I", begin, whose=whose, end=end) == b""
    assert node.slot(slot, "confirmed_flush_lsn") == before
    assert marks(node.fetched(slot)) == [1, 2, 3, 4]


@pytest.mark.parametrize("version", [18])
def test_who_waits_for_a_slot_goes_on_where_the_one_before_ended(node, tmp_path):
    slot = node.created()
    with node.following(slot, "-f", tmp_path / "first") as first:
        wait_until(lambda: node.slot(slot, "active"))
        with node.following(slot, "-f", tmp_path / "second") as second:
            assert second.stderr.readline().endswith("; trying again\n")
            node.insert(1, 1)
            wait_until(lambda: marks_in(tmp_path / "first") == [1])
            first.terminate()
            assert first.wait(30) == 0
            wait_until(lambda: node.slot(slot, "active") or second.poll())
            node.insert(2, 2)
            wait_until(lambda: marks_in(tmp_path / "second") or second.poll())
            assert (marks_in(tmp_path / "second"), second.poll()) == ([2], None)


@pytest.mark.parametrize("version", [18])
@BOTH
def test_verbose_tells_of_start_and_end(node, whose):
    slot = node.created()
    node.insert(1, 3)
    ran = node.stream(slot, "-v", "-E", node.end(), whose=whose)
    said = [line.removeprefix("pg_recvlogical: ") for line in ran.stderr.decode().splitlines()]
    # Whether the second half has leading zeros depends on the server's version.
    assert re.fullmatch(rf"starting log streaming at 0/0+ \(slot {slot}\)", said[0])
    assert said[1] == "streaming initiated"
    confirming = r"confirming write up to \w+/\w+, flush to \w+/\w+ \(slot .*\)"
    assert any(re.fullmatch(confirming, line) for line in said[2:])
    assert any(re.match(r"end position \w+/\w+ reached ", line) for line in said[2:])


@pytest.mark.parametrize("version", [18])
def test_the_hint_on_a_gap_names_no_option_of_another_command(node, tmp_path):
    slot, out = node.created(), tmp_path / "out"
    with node.following(slot, "-f", out, "-F", 1, "-s", 1) as process:
        node.insert(1, 1)
        wait_until(lambda: marks_in(out) == [1])
        process.send_signal(signal.SIGSTOP)
        node.database.execute("SELECT pg_terminate_backend(%s)", (node.slot(slot, "active_pid"),))
        wait_until(lambda: not node.slot(slot, "active"))
        node.insert(2, 2)
        node.database.execute("SELECT pg_replication_slot_advance(%s, pg_current_wal_lsn())", (slot,))
        process.send_signal(signal.SIGCONT)
        said = process.stderr.read().splitlines()
        assert process.wait(30) == 1
    assert re.match(f'pg_recvlogical: error: could not continue with slot "{slot}": it is at ', said[-2])
    hint = "changes in between are lost: start it again to continue without them"
    assert said[-1] == f"pg_recvlogical: hint: {hint}"
