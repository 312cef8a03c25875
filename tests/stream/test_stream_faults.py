"""Networks, disks, slots and readers that fail: what was not written is never confirmed."""

import contextlib
import fcntl
import os
import re
import signal
import socket
import subprocess
import sys
import termios
import threading
import time
from contextlib import closing
from pathlib import Path

import psycopg
import pytest
import scripted_walsender
from processes import stream_command, wait_until
from proxy import Proxy
from segments import contents
from servers import wait_until_free
from stream_runs import (
    NOW,
    SMALL,
    delivers,
    in_directory,
    insert,
    numbers,
    position,
    stream,
)

from pgcdc_cli.stream.reconnect import SAME_FAULTS


class Tamperer:
    """A TCP proxy that replaces bytes in what a server sends.

    It closes the first `refusals` connections at once.
    """

    def __init__(self, server, before: bytes, after: bytes, refusals: int = 0) -> None:
        self._refusals = refusals
        self._target = f"{server.socket_directory}/.s.PGSQL.5432"
        self._change = (before, after)
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port = self._listener.getsockname()[1]
        self._threads: list[threading.Thread] = []
        self._run(self._accept)

    def close(self) -> None:
        self._listener.shutdown(socket.SHUT_RDWR)
        for thread in self._threads:
            thread.join()
        self._listener.close()

    def _run(self, target, *arguments) -> None:
        self._threads.append(threading.Thread(target=target, args=arguments, daemon=True))
        self._threads[-1].start()

    def _accept(self) -> None:
        while True:
            try:
                client = self._listener.accept()[0]
            except OSError:
                return
            if self._refusals:
                self._refusals -= 1
                client.close()
            else:
                self._run(self._serve, client)

    def _serve(self, client: socket.socket) -> None:
        with client, socket.socket(socket.AF_UNIX) as server:
            server.connect(self._target)
            back = threading.Thread(target=_pump, args=(server, client, self._change))
            back.start()
            _pump(client, server, (b"", b""))
            back.join()


def _pump(source: socket.socket, target: socket.socket, change: tuple[bytes, bytes]) -> None:
    with contextlib.suppress(OSError):
        while data := source.recv(1 << 20):
            target.sendall(data.replace(*change) if change[0] else data)
    for one in (source, target):
        with contextlib.suppress(OSError):
            one.shutdown(socket.SHUT_RDWR)


@pytest.fixture
def tampered(source):
    """A function that returns a connection string to the fixture `source` through a tamperer."""
    started = []

    def start(*arguments, **settings) -> str:
        started.append(Tamperer(source.server, *arguments, **settings))
        return f"postgresql://postgres@127.0.0.1:{started[-1].port}/{source.name}?sslmode=disable"

    yield start
    for one in started:
        one.close()


@pytest.mark.parametrize("where", ["-D", "-f"])
def test_an_undecodable_message_is_kept_and_not_confirmed(source, tampered, tmp_path, where):
    slot = source.create_slot()
    insert(source, 1, 2)
    source.execute("INSERT INTO t VALUES (3, 'marker')")
    insert(source, 4, 5)
    before, out = position(source, slot), tmp_path / "out"
    # A column kind that does not exist, instead of a text of six bytes.
    uri = tampered(b"t\0\0\0\6marker", b"?\0\0\0\6marker")
    run = stream(uri, slot, where, str(out), "--endpos", "now")
    bad = (out if where == "-D" else tmp_path) / f"{slot}.bad"
    error, hint = run.stderr.splitlines()
    assert run.returncode == 8
    assert re.fullmatch(
        "pgcdc: error: could not decode Insert message: column 2 kind at byte 14 is 0x3F,"
        r" not one of n, u, t, b \(LSN [0-9A-F]+/[0-9A-F]+\)",
        error,
    )
    assert hint == f'hint: none of it was confirmed: report it and attach "{bad}"'
    assert bad.read_bytes().startswith(b"I")
    assert bad.read_bytes().endswith(b"?\0\0\0\6marker")
    assert position(source, slot) == before
    assert stream(source.uri, slot, where, str(out), "--endpos", "now").returncode == 0
    assert (in_directory(out) if where == "-D" else numbers(out.read_text())) == [1, 2, 3, 4, 5]


BREAKING = """
import sys
from pgcdc_cli.cli.app import main
from pgcdc_cli.formats import jsonl
from pgcdc_cli.pgoutput import spooled_transaction

def broken(encoding, batch, gid):
    if batch.table.name == "other":
        raise RuntimeError("a bug")
    return written(encoding, batch, gid)

def broken_spool(wire):
    raise RuntimeError("a bug")

written = jsonl.JsonlFormat._changes
if sys.argv.pop(1) == "format":
    jsonl.JsonlFormat._changes = broken
else:
    spooled_transaction.chunk_of_block = broken_spool
sys.argv[0] = "pgcdc"
main()
"""


@pytest.mark.parametrize(
    ("bug", "streaming", "place"),
    [
        ("format", "off", 'changes of table "public.other"'),
        ("format", "on", 'changes of table "public.other"'),
        ("spool", "on", "messages"),
    ],
)
def test_a_bug_of_ours_leaves_the_place_and_the_bytes(source, tmp_path, bug, streaming, place):
    """In a format, on rows of a whole or a streamed transaction; or in a spool, before any row is written."""
    source.execute("ALTER PUBLICATION pub ADD TABLE other")
    slot, out = source.create_slot(), tmp_path / "out"
    uri = f"{source.uri}&options=-c%20logical_decoding_work_mem%3D64kB"
    count = 5000 if streaming == "on" else 1
    source.execute("INSERT INTO other SELECT 770 FROM generate_series(1, %s::int)", (count,))
    before = position(source, slot)
    broken = [sys.executable, "-c", BREAKING, bug, *stream_command(uri, slot, "-D", str(out))[3:]]
    run = subprocess.run([*broken, "--streaming", streaming], capture_output=True, text=True, check=False)
    error, hint = run.stderr.splitlines()
    assert run.returncode == 1
    assert re.fullmatch(
        f"pgcdc: error: could not handle {place}: unexpected RuntimeError: a bug"
        r" \(LSN [0-9A-F]+/[0-9A-F]+ to [0-9A-F]+/[0-9A-F]+\)",
        error,
    )
    bad = out / f"{slot}.bad"
    assert hint == (
        f'hint: none of it was confirmed: report it and attach "{bad}" and the traceback that --debug shows'
    )
    assert b"t\0\0\0\x03770" in bad.read_bytes()
    assert position(source, slot) == before


def test_an_undecodable_message_that_cannot_be_kept(source, tampered, tmp_path):
    slot = source.create_slot()
    source.execute("INSERT INTO t VALUES (1, 'marker')")
    uri, out = tampered(b"t\0\0\0\6marker", b"?\0\0\0\6marker"), tmp_path / "out"
    (out / f"{slot}.bad").mkdir(parents=True)
    run = stream(uri, slot, "-D", str(out), "--endpos", "now")
    assert run.returncode == 8
    assert run.stderr.splitlines()[1] == (
        f'hint: none of it was confirmed; it could not be kept in "{out}/{slot}.bad": Is a directory'
    )


def test_a_frame_that_is_none_of_the_protocol(source, tampered, tmp_path):
    slot = source.create_slot()
    source.execute("INSERT INTO t VALUES (1, 'marker')")
    uri = tampered(b"d\0\0\0\x16k", b"d\0\0\0\x16z")
    run = stream(uri, slot, "-D", str(tmp_path / "out"), "--max-time", "20s")
    assert run.returncode == 8
    assert run.stderr.startswith("pgcdc: error: could not read a frame: unknown type b'z'\nhint: none of it")


def test_a_stream_that_the_server_ends_is_not_waited_for(source, tampered, tmp_path):
    slot, out = source.create_slot(), tmp_path / "out"
    insert(source, 1, 1)
    source.execute("INSERT INTO t VALUES (2, 'marker')")
    # CopyDone, behind the row.
    uri = tampered(b"t\0\0\0\6marker", b"t\0\0\0\6markerc\0\0\0\4")
    run = stream(uri, slot, "-f", str(out), "-n", "--max-time", "20s")
    assert (run.returncode, run.stderr.splitlines()[0]) == (
        3, "pgcdc: error: could not continue: the server ended the stream",
    )  # fmt: skip
    assert stream(source.uri, slot, "-f", str(out), "--endpos", "now").returncode == 0
    assert numbers(out.read_text()) == [1, 2]


@pytest.mark.parametrize(("refusals", "status"), [(1, 0), (2, 0), (3, 0), (100, 3)])
def test_a_server_that_is_just_starting_is_waited_for(source, tampered, refusals, status):
    slot = source.create_slot()
    insert(source, 1, 1)
    uri = tampered(b"", b"", refusals=refusals)
    run = stream(uri, slot, "--endpos", "now")
    assert run.returncode == status
    assert numbers(run.stdout) == [1] * (status == 0)
    assert run.stderr.count("\n") == (0 if status == 0 else 2)


def test_a_connection_that_is_lost_at_any_step_of_the_start_is_tried_again(source, proxy18):
    """What was asked over it may be asked over another one, so that nothing has told that it is lost."""
    insert(source, 1, 2)
    twin = source.create_slot()
    insert(source, 3, 4)
    for size in range(50, 2200, 150):
        slot = source.copy_slot(twin)
        proxy18.cut_after(size, once=True)
        run = stream(proxy18.uri(source.name), slot, *NOW)
        assert (run.returncode, numbers(run.stdout)) == (0, [3, 4]), run.stderr


@pytest.fixture
def small_disk(tmp_path):
    place = tmp_path / "disk"
    place.mkdir()
    mounted = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", "size=2m", "tmpfs", place], capture_output=True, check=False
    )
    if mounted.returncode:
        pytest.skip(f"mounting is not allowed here: {mounted.stderr.decode().strip()}")
    yield place
    subprocess.run(["umount", place], check=True)


@pytest.mark.parametrize("form", [["jsonl"], ["arrow", "--rotate-size", "200kB"]])
def test_a_full_file_system(source, small_disk, form):
    slot, out = source.create_slot(), small_disk / "out"
    insert(source, 1, 1000)
    assert stream(source.uri, slot, "-D", str(out), "--format", *form, "--endpos", "now").returncode == 0
    filler = small_disk / "filler"
    filler.write_bytes(bytes(1_500_000))
    for low in range(1001, 30_001, 1000):
        insert(source, low, low + 999)
    before = position(source, slot)
    run = stream(source.uri, slot, "-D", str(out), "--format", *form, "--endpos", "now", "-F", "0")
    assert run.returncode == 9
    error, hint = run.stderr.splitlines()
    assert re.fullmatch(
        'pgcdc: error: could not (write|open|fsync|create folder) ".*": No space left on device', error
    )
    assert hint.endswith("make room (df -h, df -i) and run again")
    if form == ["jsonl"]:
        assert position(source, slot) == before
    filler.unlink()
    subprocess.run(["mount", "-o", "remount,size=64m", small_disk], check=True)
    assert stream(source.uri, slot, "-D", str(out), "--format", *form, "--endpos", "now").returncode == 0
    found = in_directory(out) if form == ["jsonl"] else arrow_numbers(out)
    assert found == list(range(1, 30_001))


def test_a_file_system_that_may_only_be_read(source, small_disk):
    slot, out = source.create_slot(), small_disk / "out"
    insert(source, 1, 1)
    subprocess.run(["mount", "-o", "remount,ro", small_disk], check=True)
    run = stream(source.uri, slot, "-D", str(out), "--endpos", "now")
    assert run.returncode == 9
    assert run.stderr == (
        f'pgcdc: error: could not create folder "{out}": Read-only file system\n'
        "hint: mount the file system for writing, or write to another directory or file\n"
    )
    subprocess.run(["mount", "-o", "remount,rw", small_disk], check=True)
    assert stream(source.uri, slot, "-D", str(out), "--endpos", "now").returncode == 0
    assert in_directory(out) == [1]


def arrow_numbers(directory: Path) -> list[int]:
    return [row["a"] for row in contents(directory)["public.t"] if isinstance(row, dict)]


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can become somebody else")
def test_a_directory_that_may_not_be_written(source):
    place = Path("/tmp") / f"pgcdc-readonly-{os.getpid()}"
    place.mkdir(mode=0o755)
    slot = source.create_slot()
    before = position(source, slot)
    try:
        # Another user may not be able to read this Python, so it is loaded first, and then the user changes.
        code = (
            "import os, sys; from pgcdc_cli.cli.app import run; "
            "sys.path[:] = sys.path; os.setresuid(65534, 65534, 65534); sys.exit(run(sys.argv[1:]))"
        )
        preloaded = (
            "import pgcdc_cli.stream.run, pgcdc_cli.cli.stream; "
            "import pgcdc_cli.sinks.directory_sink, pgcdc_cli.sinks.file_sink; "
        )
        line = stream_command(source.uri, slot, "-D", str(place / "out"), "--endpos", "now")
        run = subprocess.run(
            [sys.executable, "-c", preloaded + code, *line[3:]], capture_output=True, text=True, check=False
        )
        assert run.stderr == (
            f'pgcdc: error: could not create folder "{place}/out": Permission denied\n'
            "hint: check the owner and mode of the path and its folder, and which user runs pgcdc\n"
        )
        assert run.returncode == 9
    finally:
        place.rmdir()
    assert position(source, slot) == before


def test_a_disk_that_is_not_mounted_takes_nothing_from_the_slot(source, tmp_path):
    slot = source.create_slot()
    insert(source, 1, 1)
    before = position(source, slot)
    out = tmp_path / "cdc" / "changes"
    run = stream(source.uri, slot, "-D", str(out), "--endpos", "now")
    assert run.returncode == 9
    assert f'could not create folder "{out}": No such file or directory' in run.stderr
    assert list(tmp_path.iterdir()) == []
    assert position(source, slot) == before


def test_standard_output_that_is_closed(source):
    slot = source.create_slot()
    insert(source, 1, 1)
    before = position(source, slot)
    line = stream_command(source.uri, slot, "--endpos", "now")
    run = subprocess.run(["sh", "-c", '"$@" >&-', "sh", *line], capture_output=True, text=True, check=False)
    assert run.returncode == 9
    assert re.fullmatch("pgcdc: error: could not .*\nhint: .*\n", run.stderr)
    assert position(source, slot) == before


@pytest.mark.parametrize("version", [16, 17, 18])
def test_an_invalidated_slot(own_server, tmp_path, version):
    server = own_server(
        version, {"max_slot_wal_keep_size": "1MB", "min_wal_size": "32MB", "max_wal_size": "32MB"}
    )
    with psycopg.connect(server.uri(), autocommit=True) as admin:
        admin.execute(SMALL)
        admin.execute("SELECT pg_create_logical_replication_slot('s', 'pgoutput')")
        assert delivers(server.uri(), "s", tmp_path / "out") == []
        for _ in range(4):
            admin.execute("INSERT INTO other VALUES (1)")
            admin.execute("SELECT pg_switch_wal()")
        admin.execute("CHECKPOINT")
        [status] = admin.execute("SELECT wal_status FROM pg_replication_slots").fetchone()
    assert status == "lost"
    creates = ("--create-slot", "--accept-gap")
    for out, more in (("out", ()), ("out", creates), ("new", ()), ("new", creates)):
        run = stream(server.uri(), "s", "-D", str(tmp_path / out), "--endpos", "now", *more)
        assert run.returncode == 6
        assert run.stderr == (
            'pgcdc: error: could not stream slot "s": invalidated (wal_removed)\n'
            "hint: its changes are lost: drop it, and start over, with a snapshot, in another directory or"
            " file\n"
        )


def test_a_slot_dropped_while_it_was_read(source, tmp_path, follow):
    slot = source.create_slot()
    following = follow(source.uri, slot, tmp_path / "out")
    insert(source, 1, 1)
    wait_until(lambda: following.rows() == [1])
    following.process.send_signal(signal.SIGSTOP)
    source.execute(
        "SELECT pg_terminate_backend(active_pid) FROM pg_replication_slots WHERE slot_name = %s", (slot,)
    )
    wait_until_free(source, slot)
    source.drop_slot(slot)
    status, errors = following.stop(signal.SIGCONT)
    assert status == 5
    assert errors.splitlines()[-2] == f'pgcdc: error: could not find slot "{slot}"'


def test_a_publication_dropped_while_it_was_read(database, tmp_path, follow):
    database.execute(SMALL)
    slot = database.create_slot()
    following = follow(database.uri, slot, tmp_path / "out", "-F", "0.1")
    insert(database, 1, 1)
    wait_until(lambda: following.rows() == [1])
    database.execute("DROP PUBLICATION pub")
    insert(database, 2, 2)
    status, errors = following.wait()
    assert status == 7
    assert re.fullmatch("pgcdc: error: could not .*pub.*\nhint: .*\n", errors)
    behind = database.execute(
        "SELECT pg_current_wal_lsn() > confirmed_flush_lsn FROM pg_replication_slots WHERE slot_name = %s",
        (slot,),
    ).fetchone()
    assert behind == (True,)
    assert following.rows() == [1]


def test_what_was_published_before_the_publication_was_dropped_is_delivered(database, tmp_path):
    """A slot that is older than the publication never gets past changes made while there was none."""
    database.execute(SMALL)
    slot, out = database.create_slot(), tmp_path / "out"
    insert(database, 1, 1)
    database.execute("DROP PUBLICATION pub")
    insert(database, 2, 2)
    database.execute("CREATE PUBLICATION pub FOR TABLE t")
    for _ in range(2):
        failed = stream(database.uri, slot, "-D", str(out), *NOW)
        assert failed.returncode == 7
        assert in_directory(out) == [1]


def test_a_blocked_reader_costs_neither_connection_nor_rows(own_server, tmp_path):
    """`wal_sender_timeout` is two seconds; the reader of the output sleeps four times as long."""
    server = own_server(18, {"wal_sender_timeout": "2s"})
    with psycopg.connect(server.uri(), autocommit=True) as admin:
        admin.execute(SMALL)
        admin.execute("SELECT pg_create_logical_replication_slot('s', 'pgoutput')")
        admin.execute("INSERT INTO t SELECT g, repeat('x', 500) FROM generate_series(1, 20000) g")
    with (tmp_path / "errors").open("w") as errors:
        process = subprocess.Popen(
            stream_command(server.uri(), "s", "--endpos", "now"),
            stdout=subprocess.PIPE,
            stderr=errors,
            text=True,
        )
    first = process.stdout.readline()
    time.sleep(8)
    text = first + process.stdout.read()
    process.stdout.close()
    assert (process.wait(), (tmp_path / "errors").read_text()) == (0, "")
    assert numbers(text) == list(range(1, 20_001))


def test_a_server_that_never_answers_does_not_outlast_a_signal():
    with socket.create_server(("127.0.0.1", 0)) as deaf:
        deaf.settimeout(20)
        uri = f"postgresql://u@127.0.0.1:{deaf.getsockname()[1]}/d"
        process = subprocess.Popen(stream_command(uri, "s"), stderr=subprocess.PIPE, text=True)
        with deaf.accept()[0] as client:
            assert client.recv(8), "it waits for an answer to its first message"
            process.send_signal(signal.SIGINT)
            assert process.communicate(timeout=60)[1] == ""
            assert process.returncode == 0


class Mute:
    """A server that accepts every login, answers `answers` commands, and is silent then."""

    def __init__(self, answers: int) -> None:
        self._answers = answers
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.uri = (
            f"postgresql://u@127.0.0.1:{self._listener.getsockname()[1]}/d?sslmode=disable&gssencmode=disable"
        )
        self._thread = threading.Thread(target=self._serve, daemon=True)
        self._thread.start()

    def close(self) -> None:
        self._thread.join()
        self._listener.close()

    def _serve(self) -> None:
        with self._listener.accept()[0] as client:
            client.recv(8192)
            client.sendall(b"R\0\0\0\x08\0\0\0\0" + READY)
            for _ in range(self._answers):
                client.recv(8192)
                client.sendall(b"C\0\0\0\x08SET\0" + READY)
            while client.recv(8192):
                pass


READY = b"Z\0\0\0\5I"


@pytest.mark.parametrize("answers", [0, 1])
def test_a_server_that_lets_us_in_and_is_silent_does_not_outlast_the_time_given(answers):
    """Neither during the session's setup, nor at IDENTIFY_SYSTEM."""
    with closing(Mute(answers)) as mute:
        assert stream(mute.uri, "s", "--max-time", "1s").returncode == 12


@pytest.mark.parametrize("end", [[], ["--endpos", "now"]])
def test_a_server_that_never_answers_does_not_outlast_the_time_given(end):
    with socket.create_server(("127.0.0.1", 0)) as deaf:
        uri = f"postgresql://u@127.0.0.1:{deaf.getsockname()[1]}/d?connect_timeout=1000"
        run = stream(uri, "s", "--max-time", "1s", *end)
    assert run.returncode == 12
    assert run.stderr == (
        "pgcdc: error: could not wait for the server any longer: time is up\n"
        "hint: run again to continue from where it stopped\n"
    )


def test_a_slot_that_waits_for_a_transaction_does_not_outlast_the_time_given(source, tmp_path):
    with psycopg.connect(source.uri) as blocking:
        blocking.execute("SELECT txid_current()")
        run = stream(source.uri, "waited_for", "-f", str(tmp_path / "f"), "--create-slot", "--max-time", "1s")
        assert run.returncode == 12
        # `blocking` is still open, for which the server would wait.
        slots = "SELECT 1 FROM pg_replication_slots WHERE slot_name = 'waited_for'"
        wait_until(lambda: not source.execute(slots).fetchall())


def taken(admin, written: str) -> bool:
    """Whether everything up to a position is confirmed to the server."""
    query = "SELECT confirmed_flush_lsn >= %s::pg_lsn FROM pg_replication_slots WHERE slot_name = 's'"
    return admin.execute(query, (written,)).fetchone() == (True,)


IMPATIENT = """
import functools, sys
from pgcdc_cli.cli.app import main
from pgcdc_cli.stream import run
run.ReplicationConnection = functools.partial(run.ReplicationConnection, wal_receiver_timeout=3.0)
sys.argv[0] = "pgcdc"
main()
"""


@pytest.mark.parametrize("where", ["-D", "-f"])
def test_a_connection_on_which_nothing_comes_any_more_is_left_for_another(own_server, tmp_path, where):
    """The catalog's connection, too. The server releases the slot after two seconds without a message."""
    server, out = own_server(18, {"wal_sender_timeout": "2s"}), tmp_path / "out"
    proxy = Proxy(server)
    with closing(proxy), psycopg.connect(server.uri(), autocommit=True) as admin:
        admin.execute(SMALL)
        admin.execute("SELECT pg_create_logical_replication_slot('s', 'pgoutput')")
        insert(admin, 1, 5)
        [written] = admin.execute("SELECT pg_current_wal_lsn()::text").fetchone()
        options = (where, str(out), "-F", "0.2", "--max-transactions", "3")
        line = stream_command(proxy.uri("postgres"), "s", *options)[3:]
        process = subprocess.Popen(
            [sys.executable, "-c", IMPATIENT, *line], stderr=subprocess.PIPE, text=True
        )
        try:
            wait_until(lambda: taken(admin, written))
            proxy.strand()
            insert(admin, 6, 20_000)
            insert(admin, 20_001, 20_002)
            errors = process.communicate(timeout=120)[1]
        finally:
            process.kill()
            process.communicate()
    assert process.returncode == 0, errors
    assert re.match(
        'pgcdc: warning: could not receive from slot "s": the server has been silent for [0-9]+ s; trying'
        " again\n",
        errors,
    )
    found = in_directory(out) if where == "-D" else numbers(out.read_text())
    assert found == list(range(1, 20_003))


def waiting(pipe) -> int:
    """How many bytes are in a pipe, which has room for 65,536."""
    return int.from_bytes(fcntl.ioctl(pipe, termios.FIONREAD, bytes(4)), sys.byteorder)


def handles(pid: int, number: int) -> bool:
    """Whether a process has a handler for a signal; after the first SIGTERM it has none for that."""
    status = Path(f"/proc/{pid}/status").read_text()
    return bool(int(re.search(r"SigCgt:\s*(\w+)", status)[1], 16) >> number - 1 & 1)


@pytest.mark.parametrize("first", [signal.SIGINT, signal.SIGTERM])
def test_a_second_signal_ends_it_at_once(source, first):
    slot = source.create_slot()
    source.execute("INSERT INTO t SELECT g, repeat('x', 500) FROM generate_series(1, 20000) g")
    process = subprocess.Popen(
        stream_command(source.uri, slot), stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    process.stdout.readline()
    # Nobody reads the pipe any more: once it is full, the run waits in a write, and doesn't check signals.
    wait_until(lambda: waiting(process.stdout) >= 60_000)
    process.send_signal(first)
    wait_until(lambda: not handles(process.pid, signal.SIGTERM))
    assert process.poll() is None
    process.send_signal(signal.SIGTERM)
    assert process.wait(60) == -signal.SIGTERM
    process.communicate()


def test_a_fault_of_the_server_ends_a_run_only_where_it_recurs(database18, proxy18, tmp_path, follow):
    """Beside DDL a server may fail to decode its WAL, and succeed the next time."""
    database18.execute(SMALL)
    slot = database18.create_slot()
    run = follow(proxy18.uri(database18.name), slot, tmp_path / "out.jsonl")
    fault = scripted_walsender.error("XX000", "could not map filenumber")
    for number in range(1, SAME_FAULTS + 2):
        insert(database18, number, number)
        wait_until(lambda number=number: run.rows() == [*range(1, number + 1)])
        proxy18.end_with(fault)
    # Only a reader that has reported a position is receiving: earlier, the fault would be another one.
    receiving = (
        "SELECT active_pid FROM pg_replication_slots JOIN pg_stat_replication ON pid = active_pid"
        " WHERE slot_name = %s AND write_lsn IS NOT NULL"
    )
    failed = [None]
    while run.process.poll() is None:
        found = database18.execute(receiving, (slot,)).fetchone()
        if found and found[0] != failed[-1]:
            failed.append(found[0])
            proxy18.end_with(fault)
        time.sleep(0.05)
    status, errors = run.wait()
    assert status == 1
    assert errors.count("trying again") >= SAME_FAULTS
    error, hint = errors.splitlines()[-2:]
    assert error == f'pgcdc: error: could not receive from slot "{slot}": could not map filenumber'
    assert "see its log" in hint
    assert run.rows() == [*range(1, SAME_FAULTS + 2)]
