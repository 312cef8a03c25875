"""Bad input to `pgcdc stream`: one line, a hint, its exit status, and nothing lost."""

import re
import resource
import signal
import subprocess
import sys
import time
from pathlib import Path

import psycopg
import pytest
from stream_runs import SMALL, command, contents, position, stream


def rows(path: Path) -> int:
    return sum(len(lines) for lines in contents(path).values())


def refused(run: subprocess.CompletedProcess[str], status: int, message: str, hint: str) -> None:
    """Exactly two lines on standard error; `message` and `hint` are regular expressions."""
    assert run.returncode == status, run.stderr
    lines = run.stderr.splitlines()
    assert len(lines) == 2, run.stderr
    assert re.fullmatch(f"pgcdc: error: could not {message}", lines[0]), lines[0]
    assert re.fullmatch(f"hint: .*{hint}.*", lines[1]), lines[1]


def test_no_server(tmp_path):
    run = stream(f"host={tmp_path} dbname=shop", "s", "-D", str(tmp_path / "out"), "-n")
    refused(run, 3, "connect to the server: .*No such file.*", "check that the server is running")


def test_a_wrong_password_is_not_printed(own_server, tmp_path):
    server = own_server(18, hba="local all careful scram-sha-256\n")
    with psycopg.connect(server.uri(), autocommit=True) as admin:
        admin.execute("CREATE ROLE careful LOGIN REPLICATION PASSWORD 'right'")
    uri = f"postgresql://careful:wr0ng@/postgres?host={server.socket_directory}"
    run = stream(uri, "s", "-D", str(tmp_path / "out"))
    refused(run, 4, "connect to the server: .*password authentication failed.*", "PGPASSWORD")
    assert "wr0ng" not in run.stdout + run.stderr


def test_wal_level_replica(own_server, tmp_path):
    server = own_server(18, {"wal_level": "replica"})
    with psycopg.connect(server.uri(), autocommit=True) as admin:
        admin.execute(SMALL)
    run = stream(server.uri(), "s", "--create-slot", "-D", str(tmp_path / "out"))
    refused(run, 2, 'create slot "s": .*wal_level.*', "wal_level")


def test_a_role_without_replication(source, tmp_path):
    slot = source.create_slot()
    source.execute("DROP ROLE IF EXISTS plain; CREATE ROLE plain LOGIN")
    uri = source.server.uri(source.name, "plain")
    run = stream(uri, slot, "-D", str(tmp_path / "out"))
    refused(run, 4, ".*permission denied.*", "REPLICATION")


def test_no_such_slot(source, tmp_path):
    run = stream(source.uri, "nowhere", "-D", str(tmp_path / "out"), "--endpos", "now")
    refused(run, 5, 'find slot "nowhere"', "pgcdc slot create")


def test_a_slot_that_exists_is_not_created_again(source, tmp_path):
    slot = source.create_slot()
    out = ["-D", str(tmp_path / "out"), "--endpos", "now"]
    refused(stream(source.uri, slot, "--create-slot", *out), 5, ".*already exists.*", "--if-not-exists")
    assert stream(source.uri, slot, "--create-slot", "--if-not-exists", *out).returncode == 0


def test_a_slot_in_use_and_a_directory_in_use(source, tmp_path):
    slot = source.create_slot()
    other = subprocess.Popen(command(source.uri, slot, "-D", str(tmp_path / "out"), "-s", "0.1"))
    deadline = time.monotonic() + 20
    while not (tmp_path / "out" / "checkpoint.json").exists() and time.monotonic() < deadline:
        time.sleep(0.05)
    time.sleep(0.3)
    try:
        refused(stream(source.uri, slot, "-D", str(tmp_path / "out")), 11, ".*", "another run")
        refused(stream(source.uri, slot, "-D", str(tmp_path / "two"), "-n"), 5, ".*is active.*", "slot show")
    finally:
        other.send_signal(signal.SIGTERM)
        assert other.wait() == 0


def test_no_such_publication(database, tmp_path):
    database.execute("CREATE TABLE t (a int)")
    slot = database.create_slot()
    before = position(database, slot)
    run = stream(database.uri, slot, "-D", str(tmp_path / "out"), "--endpos", "now")
    refused(run, 7, 'find publication "pub"', "pgcdc publication create pub")
    assert position(database, slot) == before


def test_a_publication_made_after_the_slot_loses_nothing(database, tmp_path):
    """PostgreSQL 18 only warns here, and would move the slot past what it did not send."""
    database.execute("CREATE TABLE t (a int PRIMARY KEY)")
    slot = database.create_slot()
    database.execute("INSERT INTO t VALUES (1)")
    database.execute("CREATE PUBLICATION pub FOR TABLE t")
    database.execute("INSERT INTO t VALUES (2)")
    before = position(database, slot)
    run = stream(database.uri, slot, "-D", str(tmp_path / "out"), "--endpos", "now")
    refused(run, 7, '.*publication "pub".*', "slot anew, or advance it")
    assert position(database, slot) == before


@pytest.fixture
def written(source, tmp_path):
    """A directory that holds one row, with its slot."""
    slot = source.create_slot()
    source.execute("INSERT INTO t VALUES (1, 'x')")
    out = tmp_path / "out"
    assert stream(source.uri, slot, "-D", str(out), "--endpos", "now").returncode == 0
    assert rows(out) == 1
    return slot, out


def test_a_checkpoint_of_another_slot(source, written):
    _, out = written
    run = stream(source.uri, source.create_slot(), "-D", str(out), "--endpos", "now")
    refused(run, 13, ".*slot.*", "another directory")


@pytest.mark.usefixtures("source")
def test_a_checkpoint_of_another_server(written, own_server):
    slot, out = written
    server = own_server()
    with psycopg.connect(server.uri(), autocommit=True) as admin:
        admin.execute(SMALL)
        admin.execute("SELECT pg_create_logical_replication_slot(%s, 'pgoutput')", (slot,))
    run = stream(server.uri(), slot, "-D", str(out), "--endpos", "now")
    refused(run, 13, ".*system identifier.*", "another directory")


def test_another_set_of_publications(source, written):
    slot, out = written
    source.execute("CREATE PUBLICATION more FOR TABLE t")
    arguments = ["-D", str(out), "--endpos", "now", "--publication", "more"]
    refused(stream(source.uri, slot, *arguments), 13, ".*publications.*", "--accept-publications")


@pytest.mark.parametrize("content", [b"", b"{}", b"not json", None])
def test_a_damaged_checkpoint(source, written, content):
    slot, out = written
    checkpoint = out / "checkpoint.json"
    data = checkpoint.read_bytes()
    checkpoint.write_bytes(data.replace(b"0/", b"1/", 1) if content is None else content)
    source.execute("INSERT INTO t VALUES (2, 'y')")
    refused(stream(source.uri, slot, "-D", str(out), "--endpos", "now"), 10, ".*checkpoint.json.*", "copy")
    checkpoint.write_bytes(data)
    assert stream(source.uri, slot, "-D", str(out), "--endpos", "now").returncode == 0
    assert rows(out) == 2


def test_a_slot_beyond_the_checkpoint_is_a_gap(source, written):
    slot, out = written
    source.execute("INSERT INTO t VALUES (2, 'lost')")
    source.execute("SELECT pg_replication_slot_advance(%s, pg_current_wal_lsn())", (slot,))
    source.execute("INSERT INTO t VALUES (3, 'after')")
    refused(stream(source.uri, slot, "-D", str(out), "--endpos", "now"), 6, ".*", "--accept-gap")
    assert stream(source.uri, slot, "-D", str(out), "--endpos", "now", "--accept-gap").returncode == 0
    assert rows(out) == 2


def test_a_slot_made_anew_is_a_gap(source, written):
    slot, out = written
    source.execute("SELECT pg_drop_replication_slot(%s)", (slot,))
    source.execute("INSERT INTO t VALUES (2, 'lost')")
    source.create_slot(slot)
    refused(stream(source.uri, slot, "-D", str(out), "--endpos", "now"), 6, ".*", "--accept-gap")


def test_a_start_position_beside_a_checkpoint(source, written):
    slot, out = written
    run = stream(source.uri, slot, "-D", str(out), "-I", "0/1", "--endpos", "now")
    refused(run, 2, ".*checkpoint.*", "-I")


@pytest.mark.parametrize("where", ["-D", "-f"])
def test_a_full_disk_loses_nothing(source, tmp_path, where):
    slot = source.create_slot()
    source.execute("INSERT INTO t SELECT g, repeat('x', 100) FROM generate_series(1, 5000) g")
    out = str(tmp_path / "out")
    limited = subprocess.run(
        command(source.uri, slot, where, out, "--endpos", "now"),
        capture_output=True,
        text=True,
        check=False,
        preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_FSIZE, (200_000, 200_000)),
    )
    refused(limited, 9, 'write ".*": File too large', "make room")
    assert stream(source.uri, slot, where, out, "--endpos", "now").returncode == 0
    path = Path(out)
    assert (rows(path) if where == "-D" else len(path.read_text().splitlines())) == 5000


def test_a_full_device(source):
    slot = source.create_slot()
    source.execute("INSERT INTO t VALUES (1, 'x')")
    before = position(source, slot)
    run = stream(source.uri, slot, "-f", "/dev/full", "--endpos", "now")
    refused(run, 9, 'write "/dev/full": No space left on device', "make room")
    assert position(source, slot) == before


def test_a_reader_that_goes_away(source):
    slot = source.create_slot()
    source.execute("INSERT INTO t SELECT g, repeat('x', 100) FROM generate_series(1, 20000) g")
    process = subprocess.Popen(
        command(source.uri, slot, "--endpos", "now"), stdout=subprocess.PIPE, stderr=subprocess.PIPE
    )
    process.stdout.readline()
    process.stdout.close()
    assert process.stderr.read() == b""
    process.stderr.close()
    assert process.wait() == 141


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--format", "parquet"], ".*parquet.*"),
        (["-E", "0x1/0"], '.*"0x1/0" is no LSN.*'),
        (["-I", "1"], '.*"1" is no LSN.*'),
        (["--rotate-size", "12 parsecs"], ".*12 parsecs.*"),
        (["--max-time", "soon"], ".*soon.*"),
        (["--max-transactions", "0"], ".*"),
        (["-o", "novalue"], ".*novalue.*"),
        (["-f", "x"], ".*-f and -D exclude each other"),
        (["--format", "pretty"], ".*pretty.*"),
        (["--format", "arrow", "--layout", "stream"], ".*"),
        (["--format", "arrow", "--compression", "gzip"], ".*gzip.*"),
        (["--proto-version", "2"], ".*--proto-version 2.*"),
        (["--streaming", "on"], ".*--streaming on.*"),
        (["--two-phase"], ".*two-phase.*"),
        (["-o", "streaming=on"], ".*streaming.*"),
        (["-o", "binary=true"], ".*binary.*"),
        (["--if-not-exists"], ".*--create-slot.*"),
    ],
)
def test_a_command_line_that_cannot_be_meant(tmp_path, arguments, message):
    run = stream("dbname=never_asked", "s", "-D", str(tmp_path / "out"), *arguments)
    refused(run, 2, message, "")
    assert not (tmp_path / "out").exists()


def test_slots_that_cannot_be_decoded(source, tmp_path):
    slot = source.create_slot()
    for name, create in {
        f"{slot}_p": "pg_create_physical_replication_slot(%s)",
        f"{slot}_t": "pg_create_logical_replication_slot(%s, 'pgoutput', false, true)",
    }.items():
        source.execute(f"SELECT {create}", (name,))
        run = stream(source.uri, name, "-D", str(tmp_path / "out"))
        refused(run, 2, f'stream slot "{name}": .*', "pgcdc slot")
        source.execute("SELECT pg_drop_replication_slot(%s)", (name,))


def test_arrow_needs_a_directory():
    run = stream("dbname=never_asked", "s", "--format", "arrow", "-f", "x.arrow")
    refused(run, 2, ".*needs a directory.*", "")


def test_a_directory_that_cannot_be_made(source, tmp_path):
    slot = source.create_slot()
    (tmp_path / "file").touch()
    refused(stream(source.uri, slot, "-D", str(tmp_path / "file" / "out")), 9, ".*Not a directory", "")
    refused(stream(source.uri, slot, "-D", str(tmp_path / "file")), 9, ".*no directory", "")


def test_debug_shows_the_traceback_and_nothing_else_does():
    base = [sys.executable, "-m", "pgcdc_cli"]
    line = ["stream", "-d", "host=/nowhere", "-S", "s", "--publication", "p", "-n"]
    quiet = subprocess.run([*base, *line], capture_output=True, text=True, check=False)
    loud = subprocess.run([*base, "--debug", *line], capture_output=True, text=True, check=False)
    assert "Traceback" not in quiet.stderr
    assert "Traceback" in loud.stderr
