"""Promoted standbys, and servers restored to an older state: nothing is lost, and no histories are mixed."""

import json
import signal
import subprocess
import sys
import threading
from dataclasses import replace

import psycopg
import pytest
from processes import PGCDC, stream_command, wait_until
from segments import contents
from servers import remove, start, wait_until_free
from standbys import base_backup, cold_copy, flush_log, put_back, replayed, standby, synchronize
from stream_runs import (
    NOW,
    SMALL,
    delivers,
    files,
    insert,
    make_slot,
    numbers,
    position,
    refused,
    stream,
)

from pgcdc_cli.directory.checkpoint import decode, encode
from pgcdc_cli.errors import ErrorKind, PgcdcError
from pgcdc_cli.lsn import Lsn
from pgcdc_cli.replication.connection import ReplicationConnection

OTHER_PLACE = "use another directory, or connect to the source that the checkpoint names"
SOON = ("--fsync-interval", "0.01")
PROMOTE = "nothing is lost: promote the standby, or connect to the primary"


def connect(server) -> psycopg.Connection:
    return psycopg.connect(server.uri(), autocommit=True)


def checkpoint(path) -> dict:
    return json.loads(path.read_text())


@pytest.fixture
def pair(request):
    """A server with the tables of `SMALL`, and a standby of it."""
    primary = start(getattr(request, "param", 18))
    try:
        with connect(primary) as there:
            there.execute(SMALL)
        follower = standby(primary)
        try:
            yield primary, follower
        finally:
            remove(follower)
    finally:
        remove(primary)


def make_own_slot(primary, follower) -> None:
    """Create slot `s` on a standby, which waits for a WAL record that only its primary can write."""
    create = [
        follower.bin / "psql", "-q", "-d", follower.uri(),
        "-c", "SELECT pg_create_logical_replication_slot('s', 'pgoutput')",
    ]  # fmt: skip
    replayed(follower, primary)
    with connect(primary) as there, subprocess.Popen(create, stdout=subprocess.DEVNULL) as making:
        while making.poll() is None:
            flush_log(there)
            threading.Event().wait(0.1)
    assert making.returncode == 0


@pytest.mark.parametrize("pair", [16, 18], ids=["pg16", "pg18"], indirect=True)
@pytest.mark.parametrize("end", [signal.SIGTERM, signal.SIGKILL], ids=["ended", "killed"])
def test_a_standby_is_promoted_while_it_is_streamed(pair, tmp_path, follow, end):
    primary, follower = pair
    make_own_slot(primary, follower)
    path = tmp_path / "rows"
    saved = tmp_path / "rows.checkpoint"
    with connect(primary) as there:
        insert(there, 1, 1)
    following = follow(follower.uri(), "s", path, *SOON)
    wait_until(lambda: following.rows() == [1])
    assert checkpoint(saved)["source"]["timeline"] == 1
    follower.pg_ctl("promote")
    with connect(follower) as here:
        insert(here, 2, 2)
        wait_until(lambda: following.rows() == [1, 2])
        wait_until(lambda: checkpoint(saved)["source"]["timeline"] == 2)
        following.stop(end)
        wait_until_free(here, "s")
        insert(here, 3, 3)
    again = stream(follower.uri(), "s", "-f", str(path), *NOW)
    assert (again.returncode, again.stderr) == (0, "")
    assert following.rows() == [1, 2, 3]


SIGNAL_ON_THE_WAY = """
import os, sys
from pgcdc_cli.cli.app import main
from pgcdc_cli.stream.timeline_watch import TimelineWatch

follow, number, left = TimelineWatch.follow, int(sys.argv.pop(1)), int(sys.argv.pop(1))

def signalled(self):
    global left
    left -= 1
    if left == 0:
        os.kill(os.getpid(), number)
    follow(self)

TimelineWatch.follow = signalled
sys.exit(main())
"""


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGALRM])
def test_a_run_that_is_to_end_while_a_batch_comes_ends_as_at_any_other_time(pair, tmp_path, number):
    """Everything written is durable and confirmed; what was just received is sent again."""
    primary, follower = pair
    make_own_slot(primary, follower)
    with connect(primary) as there:
        insert(there, 1, 1)
        insert(there, 2, 2)
    replayed(follower, primary)
    path = tmp_path / "rows"
    arguments = stream_command(follower.uri(), "s", "-f", path, "--max-time", "1h")[len(PGCDC) :]
    command = [sys.executable, "-c", SIGNAL_ON_THE_WAY, str(int(number)), "3", *arguments]
    with connect(follower) as here, subprocess.Popen(command, stderr=subprocess.PIPE, text=True) as run:
        try:
            errors = run.communicate(timeout=60)[1]
        finally:
            run.kill()
        assert (run.returncode, errors) == (0, "")
        # A run that a signal ends doesn't wait for long until the server has taken note of the end.
        wait_until(lambda: position(here, "s") == checkpoint(tmp_path / "rows.checkpoint")["end_lsn"])
    again = stream(follower.uri(), "s", "-f", str(path), *NOW)
    assert (again.returncode, again.stderr) == (0, "")
    assert numbers(path.read_text()) == [1, 2]


def catalog_rows_removed(there) -> None:
    """Remove rows of the catalogs that no session of the primary sees any more."""
    there.execute("CREATE TABLE gone ()")
    there.execute("DROP TABLE gone")
    there.execute("VACUUM pg_class")
    flush_log(there)


@pytest.mark.parametrize(
    ("pair", "reasons"),
    [(16, ["conflicting"] * 2), (18, ["rows_removed", "wal_level_insufficient"])],
    ids=["pg16", "pg18"],
    indirect=["pair"],
)
def test_a_slot_that_conflicts_with_what_the_standby_replays(pair, reasons, tmp_path, follow):
    """What came before is there, and the reason isn't called lost WAL."""
    primary, follower = pair
    for number, reason in enumerate(reasons):
        make_own_slot(primary, follower)
        following = follow(follower.uri(), "s", tmp_path / f"rows{number}", "-F", "0.1")
        with connect(primary) as there:
            insert(there, number, number)
            wait_until(lambda: following.rows() == [number])  # noqa: B023
            if number:
                there.execute("ALTER SYSTEM SET wal_level = replica")
                primary.pg_ctl("restart")
            else:
                # Rows that any session may still see stay, and so do those that came after what is confirmed.
                while following.process.poll() is None:
                    catalog_rows_removed(there)
        status, errors = following.wait()
        assert (status, following.rows()) == (6, [number]), errors
        assert errors.splitlines()[-2].endswith(f'could not stream slot "s": invalidated ({reason})')
        with connect(follower) as here:
            here.execute("SELECT pg_drop_replication_slot('s')")
    run = stream(follower.uri(), "s", "-f", str(tmp_path / "new"), *NOW, "--create-slot")
    assert run.returncode == 2
    hint = "set wal_level = logical in postgresql.conf, here and on the primary, and restart both"
    assert run.stderr.endswith(f"\nhint: {hint}\n")


def lines_in(folder) -> int:
    return sum(len(path.read_bytes().splitlines()) for path in folder.glob("*"))


@pytest.mark.long
@pytest.mark.parametrize("pair", [16, 18], ids=["pg16", "pg18"], indirect=True)
def test_a_table_is_read_again_on_a_standby(pair, tmp_path, follow):
    """With a row written before the table was published, which the stream never brings."""
    primary, follower = pair
    make_own_slot(primary, follower)
    out = tmp_path / "out"
    with connect(primary) as there, psycopg.connect(primary.uri()) as older:
        there.execute("CREATE TABLE late (a int PRIMARY KEY); INSERT INTO late VALUES (1)")
        older.execute("INSERT INTO late VALUES (2)")
        there.execute("ALTER PUBLICATION pub ADD TABLE late")
        replayed(follower, primary)
        again = ("-D", str(out), "--resnapshot", "public.late", *SOON)
        following = follow(follower.uri(), "s", out, *again)
        wait_until((out / "checkpoint.json").exists)
        for number in range(1, 4):
            insert(there, number, number)
            wait_until(lambda: lines_in(out / "public.t") == number)  # noqa: B023
        older.commit()
        wait_until(
            lambda: checkpoint(out / "checkpoint.json").get("resnapshot", [{}])[0].get("stage") == "done"
        )
        assert following.stop()[0] == 0
    rows = [json.loads(line)["new"]["a"] for line in contents(out)["public.late"]]
    assert rows == [1, 2]


def test_a_new_timeline_is_in_the_checkpoint_before_anything_of_it(pair, tmp_path, follow):
    primary, follower = pair
    make_own_slot(primary, follower)
    following = follow(follower.uri(), "s", tmp_path / "rows", *SOON)
    saved = tmp_path / "rows.checkpoint"
    wait_until(saved.exists)
    follower.pg_ctl("promote")
    with connect(follower) as here, ReplicationConnection(follower.uri()) as asked:
        for number in range(1, 30):
            insert(here, number, number)
            wait_until(lambda: following.rows()[-1:] == [number])  # noqa: B023
            [(_, left)] = asked.timeline_history(2)
            found = checkpoint(saved)
            assert found["source"]["timeline"] == 2 or Lsn.parse(found["end_lsn"]) <= left
    assert following.stop()[0] == 0


def test_a_checkpoint_that_was_left_behind_by_a_promotion(pair, tmp_path):
    primary, follower = pair
    make_own_slot(primary, follower)
    out = tmp_path / "out"
    follower.pg_ctl("promote")
    with connect(follower) as here:
        insert(here, 1, 1)
        assert delivers(follower.uri(), "s", out) == [1]
        saved = out / "checkpoint.json"
        ended = decode(saved.read_bytes())
        behind = replace(ended, source=replace(ended.source, timeline=1))
        insert(here, 2, 2)
        saved.write_bytes(encode(replace(behind, end_lsn=Lsn(behind.end_lsn + 8))))
        with ReplicationConnection(follower.uri()) as asked:
            [(_, left)] = asked.timeline_history(2)
        refused(
            stream(follower.uri(), "s", "-D", str(out), *NOW), 13,
            "continue from the checkpoint: it belongs to timeline 1 up to "
            f"{Lsn(behind.end_lsn + 8)}, not 2, which left it at {left}", OTHER_PLACE,
        )  # fmt: skip
        saved.write_bytes(encode(behind))
        assert delivers(follower.uri(), "s", out) == [1, 2]
    assert checkpoint(saved)["source"]["timeline"] == 2


def test_a_standby_that_is_behind_the_checkpoint_is_waited_for(pair, tmp_path):
    primary, follower = pair
    make_own_slot(primary, follower)
    out = tmp_path / "out"
    delivers(follower.uri(), "s", out)
    saved = out / "checkpoint.json"
    ahead = decode(saved.read_bytes())
    ahead = replace(ahead, end_lsn=Lsn(ahead.end_lsn + (1 << 20)))
    saved.write_bytes(encode(ahead))
    run = stream(follower.uri(), "s", "-D", str(out), *NOW)
    assert run.returncode == 3
    assert run.stderr.startswith(
        f"pgcdc: error: could not continue from {ahead.end_lsn}: the standby has only reached "
    )
    assert run.stderr.endswith("\nhint: run again when it has caught up with the primary\n")
    with connect(follower) as here:
        assert Lsn.parse(position(here, "s")) < ahead.end_lsn
    follower.pg_ctl("promote")
    with ReplicationConnection(follower.uri()) as asked:
        [(_, left)] = asked.timeline_history(2)
    refused(
        stream(follower.uri(), "s", "-D", str(out), *NOW), 13,
        f"continue from the checkpoint: it belongs to timeline 1 up to {ahead.end_lsn}, "
        f"not 2, which left it at {left}", OTHER_PLACE,
    )  # fmt: skip


def test_a_standbys_copy_of_a_slot_is_waited_for(synced, tmp_path, follow):
    primary, follower = synced
    both = f"postgresql://postgres@/postgres?host={primary.socket_directory},{follower.socket_directory}"
    following = follow(both, "s", tmp_path / "rows", *SOON)
    wait_until(lambda: following.rows() == [1])
    synchronize(primary, follower)
    primary.pg_ctl("stop", "-m", "fast")
    run = stream(follower.uri(), "s", "-f", str(tmp_path / "other"), *NOW, "-n")
    refused(run, 5, 'stream slot "s": this standby is synchronizing it from the primary', PROMOTE)
    with ReplicationConnection(follower.uri()) as connection, pytest.raises(PgcdcError) as caught:
        connection.start("s", Lsn(0), {"proto_version": "1", "publication_names": "pub"}.items())
    assert (caught.value.kind, caught.value.hint) == (ErrorKind.SLOT_SYNCED, PROMOTE)
    drop = [*PGCDC, "slot", "drop", "s", "-d", follower.uri()]
    dropped = subprocess.run(drop, capture_output=True, text=True, timeout=60, check=False)
    assert dropped.returncode == 5
    assert dropped.stderr.endswith("\nhint: drop it on the primary: the standby has a copy of it\n")
    waits = "this standby is synchronizing it from the primary; trying again\n"
    assert any(line.endswith(waits) for line in following.process.stderr)
    follower.pg_ctl("promote")
    with connect(follower) as here:
        insert(here, 2, 2)
    wait_until(lambda: following.rows() == [1, 2])
    assert following.stop()[0] == 0


@pytest.mark.long
def test_the_old_primary_is_refused_once_the_new_one_wrote(synced, tmp_path, follow):
    """Both run and accept writes (split brain), and `target_session_attrs` finds the old one first."""
    primary, follower = synced
    hosts = f"{primary.socket_directory},{follower.socket_directory}"
    both = f"postgresql://postgres@/postgres?host={hosts}&target_session_attrs=read-write"
    path = tmp_path / "rows"
    following = follow(both, "s", path, *SOON)
    wait_until(lambda: following.rows() == [1])
    synchronize(primary, follower)
    primary.pg_ctl("stop", "-m", "immediate")
    follower.pg_ctl("promote")
    with connect(follower) as here:
        insert(here, 2, 2)
        wait_until(lambda: following.rows() == [1, 2])
        assert following.stop()[0] == 0
        primary.pg_ctl("restart")
        with connect(primary) as there:
            insert(there, 666, 999)
            before = position(there, "s")
            run = stream(both, "s", "-f", str(path), *NOW)
            assert (run.returncode, position(there, "s")) == (13, before), run.stderr
        assert following.rows() == [1, 2]
        insert(here, 3, 3)
        again = stream(follower.uri(), "s", "-f", str(path), *NOW)
        assert (again.returncode, again.stderr) == (0, "")
    assert following.rows() == [1, 2, 3]


@pytest.mark.parametrize(
    "copy_of",
    [
        pytest.param(cold_copy, id="cold copy", marks=pytest.mark.long),
        pytest.param(base_backup, id="base backup"),
    ],
)
def test_an_older_copy_of_the_server_is_refused(tmp_path, copy_of):
    """One from a base backup has no slots, and creating one there would be wrong."""
    server = start(18)
    try:
        make_slot(server.uri(), "s")
        copy = copy_of(server)
        out = tmp_path / "out"
        assert delivers(server.uri(), "s", out) == [1]
        with connect(server) as here:
            insert(here, 2, 2000)
        delivers(server.uri(), "s", out)
        put_back(server, copy)
        end = checkpoint(out / "checkpoint.json")["end_lsn"]
        with connect(server) as here:
            insert(here, 3000, 3000)
        before = files(out)
        run = stream(server.uri(), "s", "-D", str(out), *NOW)
        assert (run.returncode, run.stdout) == (13, "")
        error, hint = run.stderr.splitlines()
        assert error.startswith(
            f"pgcdc: error: could not continue from {end}: the server's WAL ends before that, at "
        )
        assert hint == (
            "hint: the server is an older copy of itself: bring back the newer one,"
            " or use another directory and a new slot"
        )
        assert files(out) == before
        status = [*PGCDC, "status", "-d", server.uri(), str(out)]
        status = subprocess.run(status, capture_output=True, text=True, timeout=60, check=False)
        assert (status.returncode, status.stderr.splitlines()[1]) == (13, hint)
        with connect(server) as here:
            if here.execute("SELECT FROM pg_replication_slots").rowcount == 0:
                accept = ("--create-slot", "--accept-gap")
                run = stream(server.uri(), "s", "-D", str(out), *NOW, *accept)
                assert (run.returncode, run.stderr.splitlines()[1]) == (13, hint)
                assert here.execute("SELECT FROM pg_replication_slots").rowcount == 0
    finally:
        remove(server)
