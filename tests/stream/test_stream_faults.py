"""Servers, connections, and readers that fail or are silent: a run waits, tries again, or ends."""

import fcntl
import re
import signal
import socket
import subprocess
import sys
import termios
import time
from contextlib import closing
from pathlib import Path

import psycopg
import pytest
import scripted_walsender
from processes import stream_command, wait_until
from proxy import Proxy
from stream_runs import NOW, SMALL, end_of_log, in_directory, insert, numbers, position, refused, stream

from pgcdc_cli.lsn import Lsn
from pgcdc_cli.stream.reconnect import SAME_FAULTS


def test_a_stream_that_the_server_ends_is_not_waited_for(source, proxy18, tmp_path):
    slot, out = source.create_slot(), tmp_path / "out"
    insert(source, 1, 1)
    source.execute("INSERT INTO t VALUES (2, 'marker')")
    # CopyDone, behind the row.
    proxy18.replace(b"t\0\0\0\6marker", b"t\0\0\0\6markerc\0\0\0\4")
    run = stream(proxy18.uri(source.name), slot, "-f", str(out), "-n", "--max-time", "20s")
    assert (run.returncode, run.stderr.splitlines()[0]) == (
        3, "pgcdc: error: could not continue: the server ended the stream",
    )  # fmt: skip
    assert stream(source.uri, slot, "-f", str(out), *NOW).returncode == 0
    assert numbers(out.read_text()) == [1, 2]


@pytest.mark.parametrize(("refusals", "status"), [(1, 0), (2, 0), (3, 0), (100, 3)])
def test_a_server_that_is_just_starting_is_waited_for(source, proxy18, refusals, status):
    slot = source.create_slot()
    insert(source, 1, 1)
    proxy18.refuse(refusals)
    run = stream(proxy18.uri(source.name), slot, *NOW)
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


def test_a_blocked_reader_costs_neither_connection_nor_rows(own_server, tmp_path):
    """`wal_sender_timeout` is two seconds; the reader of the output sleeps four times as long."""
    server = own_server(18, {"wal_sender_timeout": "2s"})
    with psycopg.connect(server.uri(), autocommit=True) as admin:
        admin.execute(SMALL)
        admin.execute("SELECT pg_create_logical_replication_slot('s', 'pgoutput')")
        admin.execute("INSERT INTO t SELECT g, repeat('x', 500) FROM generate_series(1, 20000) g")
    with (tmp_path / "errors").open("w") as errors:
        line = stream_command(server.uri(), "s", *NOW)
        process = subprocess.Popen(line, stdout=subprocess.PIPE, stderr=errors, text=True)
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


class Mute(scripted_walsender.ScriptedWalsender):
    """A server that accepts the login, answers so many commands, and is silent then."""

    def __init__(self, answers: int) -> None:
        self._answers = answers
        super().__init__()

    def _command(self) -> bool:
        while not self._answers:
            self._read()
        self._answers -= 1
        return super()._command()


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
    hint = "run again to continue from where it stopped"
    refused(run, 12, "wait for the server any longer: time is up", hint)


def test_a_slot_that_waits_for_a_transaction_does_not_outlast_the_time_given(source, tmp_path):
    with psycopg.connect(source.uri) as blocking:
        blocking.execute("SELECT txid_current()")
        run = stream(source.uri, "waited_for", "-f", str(tmp_path / "f"), "--create-slot", "--max-time", "1s")
        assert run.returncode == 12
        # `blocking` is still open, for which the server would wait.
        slots = "SELECT 1 FROM pg_replication_slots WHERE slot_name = 'waited_for'"
        wait_until(lambda: not source.execute(slots).fetchall())


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
        end = end_of_log(admin)
        options = (where, str(out), "-F", "0.2", "--max-transactions", "3")
        line = stream_command(proxy.uri("postgres"), "s", *options)[3:]
        line = [sys.executable, "-c", IMPATIENT, *line]
        process = subprocess.Popen(line, stderr=subprocess.PIPE, text=True)
        try:
            wait_until(lambda: Lsn.parse(position(admin, "s")) >= end)
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
