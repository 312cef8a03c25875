"""A primary and its standby swap roles, or a server is upgraded: a stream follows, or says what is wrong."""

import json
import shutil
import subprocess

import psycopg
import pytest
from processes import wait_until
from proxy import Proxy
from psycopg import sql
from servers import remove, start
from standbys import rejoin, standby, synchronize
from stream_runs import NOW, delivers, files, insert, make_slot, stream

SOON = ("--fsync-interval", "0.01")
UNUSED_PORT = 1
TERMINATE = """
SELECT pg_terminate_backend(pid) FROM pg_stat_activity
WHERE datname = current_database() AND application_name = 'pgcdc' AND backend_type = 'client backend'
"""


def connect(server) -> psycopg.Connection:
    return psycopg.connect(server.uri(), autocommit=True)


class Rows:
    """Rows that a running stream must have, each once; every step adds more."""

    def __init__(self, following) -> None:
        self._following = following
        self._written = 1

    def write(self, server, count: int = 500) -> None:
        with connect(server) as there:
            insert(there, self._written + 1, self._written + count)
        self._written += count

    def come(self) -> None:
        wait_until(lambda: len(self._following.rows()) >= self._written)
        assert self._following.rows() == list(range(1, self._written + 1))


@pytest.fixture
def address(synced):
    """A proxy that follows the primary to another server."""
    address = Proxy(synced[0])
    yield address
    address.close()


def test_a_stream_follows_an_address_from_primary_to_standby_and_back(synced, address, tmp_path, follow):
    """A clean switchover: the standby has every commit, also those after its copy of the slot."""
    path = tmp_path / "rows"
    following = follow(address.uri("postgres"), "s", path, *SOON)
    rows = Rows(following)
    for primary, other in (synced, synced[::-1]):
        rows.write(primary)
        rows.come()
        synchronize(primary, other)
        rows.write(primary)
        primary.pg_ctl("stop", "-m", "fast")
        other.pg_ctl("promote")
        address.move(other)
        rows.write(other)
        rows.come()
        rejoin(primary, other)
    status, errors = following.stop()
    assert (status, errors.count("warning: connected again after ")) == (0, 2)
    again = stream(address.uri("postgres"), "s", "-f", str(path), *NOW)
    assert (again.returncode, again.stderr) == (0, "")
    rows.come()


@pytest.mark.long
def test_a_stream_that_waits_for_standbys_is_never_ahead_of_the_one_that_is_promoted(
    synced, address, tmp_path, follow
):
    """The primary dies with rows that its standby never received; a new standby takes its place."""
    primary, second = synced
    following = follow(address.uri("postgres"), "s", tmp_path / "rows", *SOON)
    rows = Rows(following)
    rows.write(primary)
    rows.come()
    with connect(primary) as there, connect(second) as here:
        set_now(there, "synchronized_standby_slots", "standby")
        synchronize(primary, second)
        set_now(here, "primary_conninfo", "")
        wait_until(lambda: not here.execute("SELECT 1 FROM pg_stat_wal_receiver").fetchone())
        insert(there, 1_000_000, 1_000_100)
        waits = "SELECT 1 FROM pg_stat_activity WHERE wait_event = 'WaitForStandbyConfirmation'"
        wait_until(lambda: there.execute(waits).fetchone())
    primary.pg_ctl("stop", "-m", "immediate")
    second.pg_ctl("promote")
    address.move(second)
    rows.write(second)
    rows.come()
    with connect(second) as there:
        there.execute("ALTER SYSTEM RESET ALL")
        there.execute("SELECT pg_create_physical_replication_slot('standby')")
    third = standby(second, {"primary_slot_name": "standby", "hot_standby_feedback": "on"})
    try:
        synchronize(second, third)
        rows.write(second)
        second.pg_ctl("stop", "-m", "fast")
        third.pg_ctl("promote")
        address.move(third)
        rows.write(third)
        rows.come()
        assert following.stop()[0] == 0
    finally:
        remove(third)


def set_now(there, name: str, value: str) -> None:
    there.execute(f"ALTER SYSTEM SET {name} = '{value}'")
    there.execute("SELECT pg_reload_conf()")


@pytest.mark.long
def test_an_upgraded_server_is_another_source_whose_slot_goes_on_where_it_was(tmp_path):
    """Since 17, pg_upgrade keeps slots whose changes were all read, here in an upgrade from 18 to 18."""
    old, new = start(18), start(18)
    try:
        make_slot(old.uri(), "s")
        with connect(old) as there:
            insert(there, 2, 30)
        out = tmp_path / "out"
        assert delivers(old.uri(), "s", out) == list(range(1, 31))
        upgrade(old, new)
        with connect(new) as there:
            insert(there, 31, 40)
        before = files(out)
        run = stream(new.uri(), "s", "-D", str(out), *NOW)
        assert run.returncode == 13
        assert run.stderr.startswith(
            "pgcdc: error: could not continue from the checkpoint: it belongs to system identifier "
        )
        assert files(out) == before
        assert delivers(new.uri(), "s", tmp_path / "next") == list(range(31, 41))
    finally:
        remove(old)
        remove(new)


def upgrade(old, new) -> None:
    """Run pg_upgrade from one server to an empty new one, which runs afterwards."""
    old.pg_ctl("stop", "-m", "fast")
    how = (new.data / "postmaster.opts").read_bytes()
    new.pg_ctl("stop", "-m", "fast")
    work = new.data.with_name(f"{new.data.name}-upgrade")
    work.mkdir(mode=0o700)
    shutil.chown(work, new.data.owner())
    try:
        where = ["-b", old.bin, "-B", new.bin, "-d", old.data, "-D", new.data, "-s", work]
        command = [new.bin / "pg_upgrade", "-U", "postgres", *where]
        subprocess.run(command, cwd=work, user=new.data.owner(), check=True, stdout=subprocess.DEVNULL)
    finally:
        shutil.rmtree(work)
    (new.data / "postmaster.opts").write_bytes(how)
    new.pg_ctl("restart")


def test_what_is_streamed_is_described_by_the_server_that_streams_it(source, own_server, tmp_path, follow):
    """With several hosts, another one may answer when the catalog's connection is reopened."""
    slot, out = source.create_slot(), tmp_path / "out"
    proxies = [Proxy(UNUSED_PORT), Proxy(source.server)]
    old = own_server()
    with psycopg.connect(old.uri(), autocommit=True) as there:
        there.execute(sql.SQL("CREATE DATABASE {}").format(sql.Identifier(source.name)))
    ports = ",".join(str(proxy.port) for proxy in proxies)
    uri = f"host=127.0.0.1,127.0.0.1 port={ports} user=postgres dbname={source.name} sslmode=disable"
    try:
        following = follow(uri, slot, out)
        insert(source, 1, 1)
        wait_until(lambda: following.rows() == [1])
        proxies[0].move(old)
        # It may be closed already: it is after a few seconds in which nothing was asked.
        assert source.execute(TERMINATE).fetchall() in ([(True,)], [])
        source.execute(
            "CREATE DOMAIN count AS int; ALTER TABLE t ADD c count; INSERT INTO t VALUES (2, '', 5)"
        )
        wait_until(lambda: following.rows() == [1, 2])
        assert following.stop() == (0, "")
    finally:
        for proxy in proxies:
            proxy.close()
    assert json.loads(out.read_text().splitlines()[-1])["new"]["c"] == 5
