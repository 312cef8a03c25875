"""A server that isn't ready at the first connection is waited for like one that was lost."""

import contextlib
import os
import signal
import threading
import time

import psycopg
import pytest
from processes import wait_until
from psycopg.conninfo import make_conninfo
from stream_runs import NOW, insert, make_slot, numbers, stream

from pgcdc_cli.stream.reconnect import FIRST_ATTEMPTS


@pytest.fixture
def restarting(own_server):
    """A server with slot `s` and one row, which the test restarts, and this fixture stops."""
    server = own_server(18)
    make_slot(server.uri(), "s")
    yield server
    server.pg_ctl("stop", "-m", "immediate")


@contextlib.contextmanager
def starting_up(server):
    """Keep a server in recovery, waiting for WAL from an archive, until the block ends."""
    archive = server.data / "archive.opened"
    with (server.data / "postgresql.conf").open("a") as conf:
        conf.write(f"restore_command = 'until [ -e {archive} ]; do sleep 0.1; done; false'\n")
    (server.data / "recovery.signal").touch()
    server.pg_ctl("restart", "-m", "fast", "-W")
    try:
        yield
    finally:
        archive.touch()


class Told(threading.Thread):
    """Collects the lines of a run's standard error as they come."""

    def __init__(self, process) -> None:
        super().__init__(daemon=True)
        self._process = process
        self.lines: list[str] = []
        self.start()

    def run(self) -> None:
        self.lines.extend(self._process.stderr)

    def times(self, text: str) -> int:
        return sum(text in line for line in self.lines)


def test_a_server_that_goes_down_and_starts_up_is_waited_for(restarting, tmp_path, follow):
    uri = restarting.uri()
    with psycopg.connect(uri):
        restarting.pg_ctl("stop", "-m", "smart", "-W")
        wait_until(lambda: not accepts(uri))
        stays_as_long_as_the_options_say(uri)
        following = follow(uri, "s", tmp_path / "out", "--verbose")
        told = Told(following.process)
        wait_until(lambda: told.times("shutting down; trying again"))
    with starting_up(restarting):
        wait_until(lambda: told.times("starting up; trying again") and len(told.lines) > FIRST_ATTEMPTS)
    wait_until(lambda: following.rows() == [1])
    following.process.terminate()
    assert following.process.wait(timeout=60) == 0
    told.join()
    found = [line for line in told.lines if not line.endswith("; trying again\n")]
    assert [line for line in found if line.startswith("pgcdc: warning: connected again after ")]


def test_a_server_that_answers_but_has_no_connection_for_more_is_waited_for(database18, tmp_path, follow):
    """The first run of a stream ended after half a second, as if nobody had answered."""
    database18.execute("CREATE TABLE t (a int PRIMARY KEY); CREATE PUBLICATION pub FOR TABLE t")
    role = f"r_{database18.name}"
    database18.execute(f"CREATE ROLE {role} LOGIN REPLICATION CONNECTION LIMIT 1")
    database18.execute(f"GRANT SELECT ON t TO {role}; INSERT INTO t VALUES (1)")
    uri = make_conninfo(database18.uri, user=role)
    again = ("--resnapshot", "public.t", "--verbose")
    following = follow(uri, database18.create_slot(), tmp_path / "out", *again)
    told = Told(following.process)
    refused = "too many connections for role"
    wait_until(lambda: told.times(refused) > FIRST_ATTEMPTS or following.process.poll() is not None)
    assert following.process.poll() is None
    database18.execute(f"ALTER ROLE {role} CONNECTION LIMIT 9")
    wait_until(lambda: following.rows() == [1])
    following.process.terminate()
    assert following.process.wait(timeout=60) == 0
    database18.execute(f"DROP OWNED BY {role}; DROP ROLE {role}")


def test_a_query_that_is_cancelled_before_the_stream_begins_is_asked_again(restarting, tmp_path, follow):
    """As a standby does that replays a conflicting change: whoever answers so is there."""
    cancelled = set()
    cancel = """
        SELECT pid, pg_cancel_backend(pid) FROM pg_stat_activity JOIN pg_locks USING (pid)
        WHERE NOT granted AND relation = 'pg_publication'::regclass
    """
    with psycopg.connect(restarting.uri()) as holder, psycopg.connect(restarting.uri()) as admin:
        admin.autocommit = True
        holder.execute("LOCK TABLE pg_publication")
        following = follow(restarting.uri(), "s", tmp_path / "out")
        while len(cancelled) <= FIRST_ATTEMPTS and following.process.poll() is None:
            cancelled.update(pid for pid, _ in admin.execute(cancel))
    wait_until(lambda: following.rows() == [1] or following.process.poll() is not None)
    assert following.process.poll() is None
    status, errors = following.stop()
    assert status == 0, errors
    assert "canceling statement" in errors


def test_a_smart_shutdown_does_not_wait_for_a_stream(restarting, tmp_path, follow):
    """It waits for sessions, such as the one that asked for the table's key, but not for walsenders."""
    following = follow(restarting.uri(), "s", tmp_path / "out")
    wait_until(lambda: following.rows() == [1])
    restarting.pg_ctl("stop", "-m", "smart")
    restarting.pg_ctl("restart")
    with psycopg.connect(restarting.uri(), autocommit=True) as admin:
        insert(admin, 2, 2)
    wait_until(lambda: following.rows() == [1, 2])


@pytest.mark.parametrize("ends", [False, True])
def test_hup_reopens_a_file_while_the_server_is_away(restarting, tmp_path, follow, ends):
    """It is moved into another folder, where the next run wouldn't find it."""
    uri, path = restarting.uri(), tmp_path / "out"
    (tmp_path / "old").mkdir()
    away = tmp_path / "old" / "out.1"
    following = follow(uri, "s", path)
    wait_until(lambda: following.rows() == [1])
    restarting.pg_ctl("stop", "-m", "fast")
    told = Told(following.process)
    wait_until(lambda: told.times("trying again"))
    path.rename(away)
    following.process.send_signal(signal.SIGHUP)
    if not ends:
        wait_until(path.exists)
    following.process.terminate()
    assert following.process.wait(timeout=60) == 0
    restarting.pg_ctl("restart")
    with psycopg.connect(uri, autocommit=True) as there:
        insert(there, 2, 2)
    assert stream(uri, "s", "-f", str(path), *NOW).returncode == 0
    assert (numbers(away.read_text()), following.rows()) == ([1], [2])


def test_a_run_that_ends_when_idle_does_so_while_the_server_is_away(restarting, tmp_path, follow):
    following = follow(restarting.uri(), "s", tmp_path / "out", "--idle-timeout", "6s")
    wait_until(lambda: following.rows() == [1])
    restarting.pg_ctl("stop", "-m", "fast")
    status, errors = following.wait()
    restarting.pg_ctl("restart")
    assert status == 3
    assert "trying again\n" in errors
    assert errors.splitlines()[-2].startswith("pgcdc: error: could not ")
    assert following.rows() == [1]


def test_connections_that_bring_nothing_do_not_prolong_a_run(restarting, tmp_path, follow):
    uri = restarting.uri()
    following = follow(uri, "s", tmp_path / "out", "--idle-timeout", "8s")
    wait_until(lambda: following.rows() == [1])
    with psycopg.connect(uri, autocommit=True) as there:
        while following.process.poll() is None:
            there.execute("SELECT pg_terminate_backend(active_pid) FROM pg_replication_slots WHERE active")
            time.sleep(0.5)
    assert following.wait()[0] in {0, 3}


def test_a_run_is_not_idle_while_it_connects_again(source, tmp_path, follow, proxy18):
    """What waits at the server then is still read."""
    following = follow(
        proxy18.uri(source.name), source.create_slot(), tmp_path / "out", "--idle-timeout", "4s"
    )
    insert(source, 1, 1)
    wait_until(lambda: following.rows() == [1])
    proxy18.delay(0.5)
    proxy18.cut()
    insert(source, 2, 100)
    assert following.wait()[0] == 0
    assert following.rows() == [*range(1, 101)]


def accepts(uri: str) -> bool:
    with contextlib.suppress(psycopg.OperationalError), psycopg.connect(uri):
        return True
    return False


def stays_as_long_as_the_options_say(uri: str) -> None:
    once = stream(uri, "s", "-f", os.devnull, "-n")
    error, hint = once.stderr.splitlines()
    assert once.returncode == 3
    assert error.endswith("FATAL: the database system is shutting down")
    assert hint == "hint: the server is starting up or shutting down, or ended the session: run again"
    limited = stream(uri, "s", "-f", os.devnull, "--max-time", "1s")
    assert limited.returncode == 12
    assert "trying again" in limited.stderr
