"""Bad input to `pgcdc stream`: one line, a hint, an exit status, and nothing lost."""

import ctypes
import json
import re
import resource
import signal
import subprocess
import time
from collections.abc import Callable
from pathlib import Path

import psycopg
import pytest
from debian_server import free_port
from processes import stream_command, wait_until
from stream_runs import (
    NOW,
    SMALL,
    delivers,
    end_of_log,
    files,
    in_directory,
    insert,
    numbers,
    position,
    refused,
    stream,
    taken,
)

SEE_HELP = "see pgcdc stream --help"
START_SERVER = "check that the server is running and reachable, and -h, -p and -d"
MAKE_ROOM = "only what was written was confirmed: make room (df -h, df -i) and run again"
CHECK_MODE = "check the owner and mode of the path and its folder, and which user runs pgcdc"
OTHER_PLACE = "move away what has that name, or write to another directory or file"
LOCK_LOST = "only what was written was confirmed: put the folder back, and run again"
MISSING = "a folder of the path is missing: create it, or put it back if it was removed"
OTHER_SLOT = "choose another slot: pgcdc slot list shows them, pgcdc slot create makes one"

# linux/prctl.h, linux/capability.h
PR_CAPBSET_DROP, CAP_DAC_OVERRIDE, CAP_DAC_READ_SEARCH = 24, 1, 2


def limited(limit: Callable[[], object], line: list[str]) -> subprocess.CompletedProcess[str]:
    return subprocess.run(line, capture_output=True, text=True, timeout=60, check=False, preexec_fn=limit)


def test_no_server(other, shop, tmp_path):
    place = Path(other.socket_directory) / ".s.PGSQL.5432"
    away = place.rename(place.with_name("away"))
    runs = [stream(shop, "s", "-D", str(tmp_path / "out"), *NOW, *loop) for loop in ((), ("-n",))]
    away.rename(place)
    message = f'connection to server on socket "{place}" failed: No such file or directory'
    for run in runs:
        refused(run, 3, f"connect to the server: {message}", START_SERVER)
    assert delivers(shop, "s", tmp_path / "out") == [1]


def test_no_server_at_a_port(tmp_path):
    port = free_port()
    run = stream(f"host=127.0.0.1 port={port} dbname=shop", "s", "-D", str(tmp_path / "out"), "-n")
    message = f'connection to server at "127.0.0.1", port {port} failed: Connection refused'
    refused(run, 3, f"connect to the server: {message}", START_SERVER)


@pytest.mark.usefixtures("shop")
def test_a_wrong_password(other, tmp_path):
    uri = f"postgresql://careful:{{}}@/shop?host={other.socket_directory}"
    run = stream(uri.format("wr0ng"), "s", "-D", str(tmp_path / "out"), *NOW)
    refused(
        run, 4,
        f'connect to the server: connection to server on socket "{other.socket_directory}/.s.PGSQL.5432" '
        'failed: FATAL: password authentication failed for user "careful"',
        "check user, password (PGPASSWORD, ~/.pgpass or -W) and pg_hba.conf",
    )  # fmt: skip
    assert delivers(uri.format("r1ght"), "s", tmp_path / "out") == [1]


@pytest.mark.usefixtures("shop")
@pytest.mark.parametrize("talk", ["--debug", "-vv"])
@pytest.mark.parametrize("password", ["wr0ng", "r1ght"])
def test_no_password_is_ever_printed_or_kept(other, tmp_path, talk, password):
    uri = f"postgresql://careful:{password}@/shop?host={other.socket_directory}"
    line = stream_command(uri, "s", "-D", str(tmp_path / "out"), *NOW)
    line.insert(line.index("stream"), talk)
    run = subprocess.run(line, capture_output=True, text=True, timeout=60, check=False)
    assert run.returncode == (0 if password == "r1ght" else 4)
    assert password not in run.stdout + run.stderr
    assert not [path for path, data in files(tmp_path).items() if password.encode() in data]


def test_wal_level_replica(own_server, tmp_path):
    server = own_server(18, {"wal_level": "replica"})
    with psycopg.connect(server.uri(), autocommit=True) as admin:
        admin.execute(SMALL)
    for arguments, message in (
        (("--create-slot",), 'create slot "s": logical decoding requires "wal_level" >= "logical"'),
        ((), "decode the WAL: wal_level is replica"),
    ):
        run = stream(server.uri(), "s", "-D", str(tmp_path / "out"), *NOW, *arguments)
        refused(run, 2, message, "set wal_level = logical and restart the server: pgcdc doctor says how")
    with psycopg.connect(server.uri(), autocommit=True) as admin:
        admin.execute("ALTER SYSTEM SET wal_level = logical")
    server.pg_ctl("restart")
    made = stream(server.uri(), "s", "-D", str(tmp_path / "out"), *NOW, "--create-slot")
    assert (made.returncode, made.stderr) == (0, "")
    with psycopg.connect(server.uri(), autocommit=True) as admin:
        insert(admin, 1, 1)
    assert delivers(server.uri(), "s", tmp_path / "out") == [1]


def test_a_role_without_replication(source, tmp_path):
    slot, role = source.create_slot(), f"r_{source.name}"
    insert(source, 1, 1)
    before = position(source, slot)
    source.execute(f"CREATE ROLE {role} LOGIN")
    uri = source.server.uri(source.name, role)
    try:
        refused(
            stream(uri, slot, "-D", str(tmp_path / "out"), *NOW), 4,
            "connect to the server: connection to server on socket "
            f'"{source.server.socket_directory}/.s.PGSQL.5432" '
            "failed: FATAL: permission denied to start WAL sender "
            "(Only roles with the REPLICATION attribute may start a WAL sender process.)",
            "the role needs REPLICATION, and SELECT on what it reads:"
            f" see pgcdc doctor --role {role}",
        )  # fmt: skip
        assert position(source, slot) == before
        source.execute(f"ALTER ROLE {role} REPLICATION")
        assert delivers(uri, slot, tmp_path / "out") == [1]
    finally:
        source.execute(f"DROP ROLE {role}")


def test_no_such_slot(source, tmp_path):
    name = "nothing_like_another"
    run = stream(source.uri, name, "-D", str(tmp_path / "out"), *NOW)
    refused(run, 5, f'find slot "{name}"', f"create it with: pgcdc slot create {name}, or add --create-slot")
    source.create_slot(name)
    near = "nothing_like_anothr"
    hint = f'did you mean "{name}"; or create it with: pgcdc slot create {near}, or add --create-slot'
    refused(stream(source.uri, near, *NOW), 5, f'find slot "{near}"', hint)
    # No slot can have this name, so there is none to create.
    hint = f'did you mean "{name}"; or see which exist with: pgcdc slot list'
    refused(stream(source.uri, name.upper(), *NOW), 5, f'find slot "{name.upper()}"', hint)
    insert(source, 1, 1)
    assert delivers(source.uri, name, tmp_path / "out") == [1]


def test_a_slot_that_exists_is_not_created_again(source, tmp_path):
    slot = source.create_slot()
    insert(source, 1, 1)
    before = position(source, slot)
    run = stream(source.uri, slot, "--create-slot", "-D", str(tmp_path / "out"), *NOW)
    refused(
        run, 5, f'create slot "{slot}": replication slot "{slot}" already exists',
        "drop it first, or add --if-not-exists",
    )  # fmt: skip
    assert position(source, slot) == before
    assert delivers(source.uri, slot, tmp_path / "out", "--create-slot", "--if-not-exists") == [1]


def test_a_slot_and_a_directory_that_are_in_use(source, tmp_path, follow):
    slot, out = source.create_slot(), tmp_path / "out"
    query = "SELECT active_pid FROM pg_replication_slots WHERE slot_name = %s"
    other_run = follow(source.uri, slot, out, "-D", str(out), "-F", "0")
    wait_until(lambda: source.execute(query, (slot,)).fetchone()[0] is not None)
    pid = source.execute(query, (slot,)).fetchone()[0]
    insert(source, 1, 3)
    # From here on the slot stays: moving it would be a gap for runs without this checkpoint.
    written = end_of_log(source)
    wait_until(lambda: taken(source, slot) >= written)
    refused(
        stream(source.uri, slot, "-D", str(out), *NOW), 11,
        f'lock "{out}/.lock": another process holds it', "another run is writing here: wait for it to end",
    )  # fmt: skip
    two = ["-D", str(tmp_path / "two"), *NOW]
    active = f'start streaming from slot "{slot}": replication slot "{slot}" is active for PID {pid}'
    hint = f"another process is using it: see pgcdc slot show {slot}"
    refused(stream(source.uri, slot, *two, "-n"), 5, active, hint)
    limited = stream(source.uri, slot, *two, "--max-time", "3s")
    waits = f"pgcdc: warning: could not {active}; trying again\n"
    assert limited.returncode == 12
    assert limited.stderr.startswith(waits)
    assert limited.stderr.count("warning: ") == 1
    assert other_run.stop() == (0, "")
    insert(source, 4, 5)
    assert delivers(source.uri, slot, out) == [1, 2, 3, 4, 5]


def test_a_slot_that_is_in_use_is_waited_for(source, tmp_path, follow):
    """The server may take a minute to notice that the host of the last reader has died."""
    slot = source.create_slot()
    first = follow(source.uri, slot, tmp_path / "first")
    insert(source, 1, 1)
    wait_until(lambda: first.rows() == [1])
    first.process.send_signal(signal.SIGSTOP)
    second = follow(source.uri, slot, tmp_path / "second")
    assert second.process.stderr.readline().endswith("; trying again\n")
    insert(source, 2, 2)
    # Longer than the first attempts to connect take, all together.
    time.sleep(3)
    source.execute(
        "SELECT pg_terminate_backend(active_pid) FROM pg_replication_slots WHERE slot_name = %s", (slot,)
    )
    wait_until(lambda: second.rows()[-1:] == [2])
    assert second.stop()[0] == 0


def test_no_such_publication(database, tmp_path):
    database.execute("CREATE TABLE t (a int PRIMARY KEY, b text)")
    slot = database.create_slot()
    before = position(database, slot)
    insert(database, 1, 1)
    run = stream(database.uri, slot, "-D", str(tmp_path / "out"), *NOW)
    refused(
        run, 7, 'find publication "pub"',
        "see which exist with: pgcdc publication list;"
        " or create it with: pgcdc publication create pub, then recreate the slot",
    )  # fmt: skip
    assert position(database, slot) == before


@pytest.mark.parametrize("option", [("--create-slot",), ("--snapshot", "initial")])
def test_a_slot_that_is_yet_to_be_made_need_not_be_recreated(database, tmp_path, option):
    run = stream(database.uri, f"new_{database.name}", "-D", str(tmp_path / "out"), *NOW, *option)
    refused(
        run, 7, 'find publication "pub"',
        "see which exist with: pgcdc publication list; or create it with: pgcdc publication create pub",
    )  # fmt: skip


def test_a_publication_made_after_the_slot_loses_nothing(database, tmp_path):
    """PostgreSQL 18 only warns here, and would move the slot past changes that it did not send."""
    database.execute("CREATE TABLE t (a int PRIMARY KEY, b text)")
    slot, out = database.create_slot(), tmp_path / "out"
    insert(database, 1, 1)
    database.execute("CREATE PUBLICATION pub FOR TABLE t")
    (there,) = database.execute("SELECT pg_current_wal_insert_lsn()::text").fetchone()
    insert(database, 2, 2)
    before = position(database, slot)
    message = (
        f'receive from slot "{slot}": publication "pub" does not exist'
        if database.connection.info.server_version < 180000
        else 'stream publication "pub": it does not exist at this point of the WAL'
    )
    hint = "create the publication if there is none; then recreate the slot, or advance it past this point"
    refused(stream(database.uri, slot, "-D", str(out), *NOW), 7, message, hint)
    assert position(database, slot) == before
    database.execute("SELECT pg_replication_slot_advance(%s, %s)", (slot, there))
    assert delivers(database.uri, slot, out, "--accept-gap") == [2]


@pytest.mark.parametrize("where", ["-D", "-f"])
def test_a_start_position_beside_a_checkpoint(source, tmp_path, where):
    slot, out = source.create_slot(), tmp_path / "out"
    insert(source, 1, 1)
    assert stream(source.uri, slot, where, str(out), *NOW).returncode == 0
    (checkpoint,) = (path for path in files(tmp_path) if "checkpoint" in path.name)
    end = json.loads(checkpoint.read_text())["end_lsn"]
    insert(source, 2, 2)
    before = position(source, slot), files(tmp_path)
    refused(
        stream(source.uri, slot, where, str(out), "-I", "0/1", *NOW), 2,
        f"start at 0/1: there is a checkpoint, at {end}",
        "leave out -I/--startpos, or write to another directory or file",
    )  # fmt: skip
    assert (position(source, slot), files(tmp_path)) == before
    assert stream(source.uri, slot, where, str(out), *NOW).returncode == 0
    assert (in_directory(out) if where == "-D" else numbers(out.read_text())) == [1, 2]


@pytest.mark.parametrize("where", ["-D", "-f"])
def test_a_full_disk_loses_nothing(source, tmp_path, where):
    slot, out = source.create_slot(), tmp_path / "out"
    for first in range(1, 5000, 500):
        insert(source, first, first + 499)
    line = stream_command(source.uri, slot, where, str(out), "-F", "0.01", *NOW)
    run = limited(lambda: resource.setrlimit(resource.RLIMIT_FSIZE, (200_000, 200_000)), line)
    full = next(out.rglob("*.partial")) if where == "-D" else out
    hint = "raise the limit on the size of a file (ulimit -f), or write smaller files: -D with --rotate-size"
    refused(run, 9, f'write "{full}": File too large', hint)
    assert stream(source.uri, slot, where, str(out), *NOW).returncode == 0
    assert (in_directory(out) if where == "-D" else numbers(out.read_text())) == list(range(1, 5001))


def test_a_full_device(source, tmp_path):
    slot = source.create_slot()
    insert(source, 1, 1)
    before = position(source, slot)
    run = stream(source.uri, slot, "-f", "/dev/full", *NOW)
    refused(run, 9, 'write "/dev/full": No space left on device', MAKE_ROOM)
    assert position(source, slot) == before
    assert delivers(source.uri, slot, tmp_path / "out") == [1]


def test_a_directory_that_may_only_be_read(source, written):
    slot, out = written
    before = position(source, slot)
    for folder in (out, out.parent):
        folder.chmod(0o555)
    for where, path, doing in (
        ("-D", out, f'open "{out}/checkpoint.json.tmp"'),
        ("-f", out.parent / "file", f'lock "{out.parent}/file.lock"'),
    ):
        line = stream_command(source.uri, slot, where, str(path), *NOW)
        run = limited(lambda: ctypes.CDLL(None).prctl(PR_CAPBSET_DROP, CAP_DAC_OVERRIDE, 0, 0, 0), line)
        refused(run, 9, f"{doing}: Permission denied", CHECK_MODE)
    for folder in (out, out.parent):
        folder.chmod(0o755)
    assert position(source, slot) == before
    assert delivers(source.uri, slot, out) == [1, 2]


def as_nobody_special() -> None:
    """Let root access files like any other user; for `limited`."""
    for capability in (CAP_DAC_OVERRIDE, CAP_DAC_READ_SEARCH):
        ctypes.CDLL(None).prctl(PR_CAPBSET_DROP, capability, 0, 0, 0)


def test_the_root_of_a_file_system_of_its_own(source, proxy18, tmp_path):
    """It has a `lost+found` that only root may read, and that isn't ours."""
    slot, out = source.create_slot(), tmp_path / "out"
    (out / "lost+found").mkdir(parents=True)
    (out / "lost+found").chmod(0)
    for number in (1, 2):
        insert(source, number, number)
        command = stream_command(proxy18.uri(source.name), slot, "-D", str(out), *NOW)
        run = limited(as_nobody_special, command)
        assert (run.returncode, run.stderr) == (0, "")
    (out / "lost+found").chmod(0o700)
    assert in_directory(out) == [1, 2]


def test_a_file_where_a_directory_should_be(source, tmp_path):
    slot, file = source.create_slot(), tmp_path / "file"
    file.touch()
    run = stream(source.uri, slot, "-D", str(file / "out"))
    hint = "a file is in the place of a folder: move it away, or write to another directory or file"
    refused(run, 9, f'examine "{file}/out": Not a directory', hint)
    run = stream(source.uri, slot, "-D", str(file))
    refused(
        run, 9, f'open "{file}": it is not a directory', "write to a file with -f, or name another directory"
    )


def test_a_file_where_a_table_s_folder_should_be(source, tmp_path):
    slot, out = source.create_slot(), tmp_path / "out"
    out.mkdir()
    (out / "public.t").touch()
    insert(source, 1, 1)
    run = stream(source.uri, slot, "-D", str(out), *NOW)
    assert re.fullmatch(
        f'pgcdc: error: could not open "{out}/public.t/.*": Not a directory\n'
        "hint: a file is in the place of a folder: move it away, or write to another directory or file\n",
        run.stderr,
    )
    (out / "public.t").unlink()
    assert delivers(source.uri, slot, out) == [1]


def test_a_directory_where_a_file_should_be(source, tmp_path):
    run = stream(source.uri, source.create_slot(), "-f", str(tmp_path), *NOW)
    hint = "a folder is in the place of a file: move it away, or name a file in it"
    refused(run, 9, f'open "{tmp_path}": Is a directory', hint)


def test_a_directory_in_a_folder_that_is_missing(source, tmp_path):
    slot, out = source.create_slot(), tmp_path / "missing" / "out"
    insert(source, 1, 1)
    run = stream(source.uri, slot, "-D", str(out), *NOW)
    refused(run, 9, f'create folder "{out}": No such file or directory', MISSING)
    out.parent.mkdir()
    assert delivers(source.uri, slot, out) == [1]


def test_a_directory_that_is_a_link_to_nowhere(source, tmp_path):
    (tmp_path / "out").symlink_to("nowhere")
    run = stream(source.uri, source.create_slot(), "-D", str(tmp_path / "out"), *NOW)
    refused(run, 9, f'create folder "{tmp_path}/out": File exists', OTHER_PLACE)


@pytest.mark.parametrize("where", ["-D", "-f"])
def test_a_start_that_fails_leaves_nothing_behind(source, tmp_path, where):
    """Neither a folder nor a lock; but an existing folder stays."""
    refused(
        stream(source.uri, "mistyped", where, str(tmp_path / "out"), *NOW), 5,
        'find slot "mistyped"',
        "create it with: pgcdc slot create mistyped, or add --create-slot",
    )  # fmt: skip
    assert list(tmp_path.iterdir()) == []
    (tmp_path / "there").mkdir()
    out = tmp_path / ("there" if where == "-D" else "there/out")
    assert stream(source.uri, "mistyped", where, str(out), *NOW).returncode == 5
    assert stream(source.uri, "mistyped", "-f", str(tmp_path / "raw"), "--format", "raw").returncode == 5
    assert list(tmp_path.rglob("*")) == [tmp_path / "there"]


def test_a_file_that_is_a_link_to_nowhere_is_written_through_it(source, tmp_path):
    """As a shell's > does; the new file has the mode of our files."""
    slot, out, target = source.create_slot(), tmp_path / "out", tmp_path / "place" / "target"
    out.symlink_to("place/target")
    insert(source, 1, 1)
    run = stream(source.uri, slot, "-f", str(out), *NOW)
    refused(run, 9, f'open "{target}": No such file or directory', MISSING)
    target.parent.mkdir()
    for last in (1, 2):
        assert stream(source.uri, slot, "-f", str(out), *NOW).returncode == 0
        assert numbers(target.read_text()) == list(range(1, last + 1))
        insert(source, last + 1, last + 1)
    assert out.is_symlink()
    assert target.stat().st_mode & 0o777 == 0o600


def test_a_directory_that_is_removed_meanwhile(source, tmp_path, follow):
    slot, out = source.create_slot(), tmp_path / "out"
    run = follow(source.uri, slot, out, "-D", str(out), "-F", "0.1")
    insert(source, 1, 1)
    wait_until(lambda: list(out.glob("public.t/*.partial")))
    wait_until(lambda: b".partial" in (out / "checkpoint.json").read_bytes())
    out.rename(tmp_path / "away")
    insert(source, 2, 2)
    status, errors = run.wait()
    # The run may be at any step of a checkpoint at that moment.
    steps = (f'{step} "{out}/checkpoint.json.tmp"' for step in ("open", "rename"))
    found = [f"could not {step}: No such file or directory" for step in (*steps, f'fsync "{out}"')]
    assert status == 9
    expected = {f"pgcdc: error: {message}\nhint: {MISSING}\n" for message in found}
    lost = f'could not continue: the lock "{out}/.lock" was removed, or its folder was moved'
    assert errors in expected | {f"pgcdc: error: {lost}\nhint: {LOCK_LOST}\n"}
    (tmp_path / "away").rename(out)
    assert delivers(source.uri, slot, out) == [1, 2]


def test_no_more_open_files(source, tmp_path, follow):
    slot, out = source.create_slot(), tmp_path / "out"
    run = follow(source.uri, slot, out, "-D", str(out), "-F", "0.1")
    insert(source, 1, 1)
    wait_until(lambda: list(out.glob("public.t/*.partial")))
    resource.prlimit(run.process.pid, resource.RLIMIT_NOFILE, (3, 4096))
    insert(source, 2, 2)
    status, errors = run.wait()
    assert status == 9, errors
    assert re.fullmatch(
        f'pgcdc: error: could not (open|fsync) "{out}.*": Too many open files\n'
        "hint: raise the number of files that a process may open: ulimit -n\n",
        errors,
    )
    assert delivers(source.uri, slot, out) == [1, 2]


def test_a_reader_that_goes_away(source, tmp_path):
    slot = source.create_slot()
    insert(source, 1, 20_000)
    line = stream_command(source.uri, slot, *NOW)
    process = subprocess.Popen(line, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    process.stdout.readline()
    process.stdout.close()
    assert process.stderr.read() == b""
    process.stderr.close()
    assert process.wait(timeout=30) == 128 + signal.SIGPIPE
    assert delivers(source.uri, slot, tmp_path / "out") == list(range(1, 20_001))
