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
NOT_MIGRATED = (
    "pg_upgrade migrates slots from PostgreSQL 17 on only: if nobody has written since, add --create-slot"
)
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


@pytest.fixture(params=[16, 17], ids=["from16", "from17"])
def upgraded(request, tmp_path):
    """PostgreSQL 18 after an upgrade; the directory `out` has all that was written to the old server."""
    old, new = start(request.param), start(18)
    try:
        make_slot(old.uri(), "s")
        with connect(old) as there:
            insert(there, 2, 30)
        assert delivers(old.uri(), "s", tmp_path / "out") == list(range(1, 31))
        upgrade(old, new)
        yield new
    finally:
        remove(old)
        remove(new)


@pytest.fixture
def create(upgraded):
    """The option that the first stream of the upgraded server needs, if any."""
    with connect(upgraded) as there:
        migrated = there.execute("SELECT FROM pg_replication_slots").rowcount
    return () if migrated else ("--create-slot",)


def test_a_stream_goes_on_where_it_was_on_an_upgraded_server(upgraded, create, tmp_path):
    """Since 17, pg_upgrade migrates slots whose changes were all read; before, one is created anew.

    What a killed run wrote beyond the checkpoint is not cut off: it may not come again.
    """
    out, uri, missing = tmp_path / "out", upgraded.uri(), 5 if create else 6
    before, checkpoint = files(out), json.loads((out / "checkpoint.json").read_bytes())

    def run(*accept: str) -> tuple[int, str]:
        ran = stream(uri, "s", "-D", str(out), *NOW, *accept)
        return ran.returncode, ran.stderr

    with connect(upgraded) as there:
        status, errors = run(*create)
        assert (status, errors.partition("hint: ")[2][:31]) == (13, "if it was upgraded (pg_upgrade)")
        if create:
            status, errors = run("--accept-upgrade")
            assert (status, errors.splitlines()[-1]) == (missing, f"hint: {NOT_MIGRATED}")
        assert files(out) == before
        killed = out / "public.t/000009-0000000001AF5A78-1.jsonl.partial"
        killed.write_bytes(b'{"op":"I"')
        status, errors = run("--accept-upgrade", *create)
        assert (status, f'hint: "public.t/{killed.name}" has changes beyond' in errors) == (missing, True)
        killed.unlink()
        status, errors = run("--accept-upgrade", *create)
        assert (status, errors.count("\n")) == (0, 1)
        assert errors.startswith(
            f"pgcdc: warning: system identifier {checkpoint['source']['system_id']} was upgraded to "
        )
        insert(there, 31, 40)
    assert delivers(uri, "s", out) == list(range(1, 41))
    assert json.loads((out / "checkpoint.json").read_bytes())["stream_id"] == checkpoint["stream_id"]


def upgrade(old, new) -> None:
    """Run pg_upgrade from one server to an empty new one, which runs afterwards."""
    old.pg_ctl("stop", "-m", "fast")
    how = (new.data / "postmaster.opts").read_bytes()
    new.pg_ctl("stop", "-m", "fast")
    # From 18 on, initdb enables checksums, and both servers must be alike.
    checksums = [new.bin / "pg_checksums", "--disable", "-D", new.data]
    subprocess.run(checksums, user=new.data.owner(), check=True, stdout=subprocess.DEVNULL)
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
