"""Where a run ends, what a signal or a lost connection does, and that the next run continues there."""

import json
import os
import re
import signal
import subprocess
import sys
import time
from itertools import chain

import psycopg
import pytest
from processes import PGCDC, peak_memory, stream_command, wait_until
from segments import contents, manifest
from stream_runs import NOW, SMALL, end_session, in_directory, insert, numbers, position, stream


def test_endpos_now_on_an_idle_server(source, tmp_path):
    slot = source.create_slot()
    run = stream(source.uri, slot, "-D", str(tmp_path / "out"), "--endpos", "now")
    assert (run.returncode, run.stdout, run.stderr) == (0, "", "")


def test_other_tables_traffic_moves_the_slot(source, tmp_path):
    slot = source.create_slot()
    before = position(source, slot)
    source.execute("INSERT INTO other SELECT generate_series(1, 1000)")
    assert stream(source.uri, slot, "-D", str(tmp_path / "out"), "--endpos", "now").returncode == 0
    assert position(source, slot) != before


def test_endpos_inside_a_transaction_leaves_it_whole_for_the_next_run(source, tmp_path):
    slot = source.create_slot()
    with psycopg.connect(source.uri) as writer:
        writer.execute("INSERT INTO t SELECT generate_series(1, 500)")
        middle = source.execute("SELECT pg_current_wal_insert_lsn()::text").fetchone()[0]
        writer.execute("INSERT INTO t SELECT generate_series(501, 1000)")
    out = tmp_path / "out"
    assert stream(source.uri, slot, "-D", str(out), "--endpos", middle).returncode == 0
    assert not (out / "manifest.jsonl").exists() or in_directory(out) == []
    assert stream(source.uri, slot, "-D", str(out), "--endpos", "now").returncode == 0
    assert in_directory(out) == list(range(1, 1001))


def test_endpos_at_the_end_of_a_commit_includes_it(source):
    slot = source.create_slot()
    insert(source, 1, 3)
    insert(source, 4, 5)
    lines = stream(source.uri, source.copy_slot(slot), "-f", "-", "--transactions", "--endpos", "now").stdout
    first = next(change for line in lines.splitlines() if (change := json.loads(line))["op"] == "C")
    run = stream(source.uri, slot, "-f", "-", "--endpos", first["end_lsn"])
    assert numbers(run.stdout) == [1, 2, 3]


def test_a_number_of_transactions(source, tmp_path):
    slot, out = source.create_slot(), tmp_path / "out"
    for number in range(10):
        insert(source, number, number)
    for expected in (3, 6):
        assert stream(source.uri, slot, "-D", str(out), "--max-transactions", "3").returncode == 0
        assert in_directory(out) == list(range(expected))


def test_time_is_up(source, tmp_path):
    slot = source.create_slot()
    out = ["-D", str(tmp_path / "out")]
    assert stream(source.uri, slot, *out, "--max-time", "1s").returncode == 0
    assert stream(source.uri, slot, *out, "--idle-timeout", "1s").returncode == 0
    run = stream(source.uri, slot, *out, "--max-time", "1s", "--endpos", "FF/0")
    assert run.returncode == 12
    assert run.stderr.startswith("pgcdc: error: could not reach the end position FF/0: time is up at ")


def test_time_is_up_for_a_pipe_that_nobody_reads(source, tmp_path):
    os.mkfifo(tmp_path / "pipe")
    run = stream(source.uri, source.create_slot(), "-f", str(tmp_path / "pipe"), "--max-time", "1s")
    assert (run.returncode, run.stderr.splitlines()[0]) == (
        12,
        "pgcdc: error: could not wait any longer for a reader of the output: time is up",
    )


def test_heartbeats_do_not_prolong_an_idle_run(source, tmp_path):
    slot, out = source.create_slot(), tmp_path / "out"
    beating = ["--format", "debezium", "-c", "topic.prefix=t", "-c", "heartbeat.interval.ms=100"]
    assert stream(source.uri, slot, "-D", str(out), *beating, "--idle-timeout", "1s").returncode == 0
    assert any("heartbeat" in file["path"] for line in manifest(out) for file in line["files"])


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_ends_it_cleanly_and_nothing_comes_twice(source, tmp_path, number, follow):
    slot = source.create_slot()
    following = follow(source.uri, slot, tmp_path / "out.jsonl", "-F", "100", "-s", "100")
    insert(source, 1, 5)
    wait_until(lambda: len(following.rows()) == 5)
    assert following.stop(number) == (0, "")
    insert(source, 6, 7)
    assert stream(source.uri, slot, "-f", str(following.path), "--endpos", "now").returncode == 0
    assert following.rows() == list(range(1, 8))


STOPPED_WITHIN = """
import os, signal, sys
from pgcdc_cli.cli.app import main
from pgcdc_cli.sinks.checkpointed_sink import CheckpointedSink

write = CheckpointedSink.write

def stopping(self, encoded):
    write(self, encoded)
    if encoded.edge is None:
        os.kill(os.getpid(), signal.SIGTERM)

CheckpointedSink.write = stopping
sys.exit(main())
"""


@pytest.mark.parametrize("streaming", ["on", "off"])
def test_a_signal_within_a_transaction_leaves_it_whole_for_the_next_run(source, tmp_path, streaming):
    """Its end may be at hand, or still on the wire."""
    slot, out = source.create_slot(), tmp_path / "out"
    insert(source, 1, 30_000)
    arguments = (source.uri, slot, "-D", out, "--streaming", streaming, *NOW)
    line = [sys.executable, "-c", STOPPED_WITHIN, *stream_command(*arguments)[len(PGCDC) :]]
    little = {**os.environ, "PGOPTIONS": "-c logical_decoding_work_mem=64kB"}
    run = subprocess.run(line, env=little, check=False, capture_output=True)
    assert (run.returncode, run.stderr, in_directory(out)) == (0, b"", [])
    assert stream(*map(str, arguments)).returncode == 0
    assert in_directory(out) == list(range(1, 30_001))


def test_hup_reopens_a_file_that_was_moved(source, tmp_path, follow):
    slot = source.create_slot()
    following = follow(source.uri, slot, tmp_path / "out.jsonl")
    insert(source, 1, 2)
    wait_until(lambda: len(following.rows()) == 2)
    following.path.rename(tmp_path / "out.1")
    following.process.send_signal(signal.SIGHUP)
    wait_until(following.path.exists)
    insert(source, 3, 3)
    wait_until(lambda: following.rows() == [3])
    assert following.stop() == (0, "")
    assert numbers((tmp_path / "out.1").read_text()) == [1, 2]


def test_hup_finishes_a_segment(source, tmp_path, follow):
    slot, out = source.create_slot(), tmp_path / "out"
    following = follow(source.uri, slot, out, "-D", str(out), "-F", "0.1")
    insert(source, 1, 2)
    wait_until(lambda: list(out.glob("public.t/*.partial")))
    following.process.send_signal(signal.SIGHUP)
    wait_until(lambda: (out / "manifest.jsonl").exists() and in_directory(out) == [1, 2])
    assert following.stop() == (0, "")


def test_a_terminated_walsender_is_connected_to_again(source, tmp_path, follow):
    slot = source.create_slot()
    following = follow(source.uri, slot, tmp_path / "out.jsonl", "-F", "100", "-s", "100")
    insert(source, 1, 3)
    wait_until(lambda: len(following.rows()) == 3)
    for number in (4, 5):
        end_session(source, slot, following.process)
        insert(source, number, number)
        wait_until(lambda number=number: len(following.rows()) == number)
    status, errors = following.stop()
    assert status == 0
    lost = r"pgcdc: warning: could not .*; trying again\n"
    assert re.fullmatch(rf"({lost}pgcdc: warning: connected again after \d+\.\d s\n){{2}}", errors), errors
    assert following.rows() == [1, 2, 3, 4, 5]


def test_standard_output_has_nothing_twice_as_long_as_a_run_lasts(source, tmp_path):
    """A new connection goes on behind what is written, which was not confirmed to the server."""
    slot, out = source.create_slot(), tmp_path / "out"

    def written(count: int) -> None:
        insert(source, count, count)
        wait_until(lambda: len(numbers(out.read_text())) >= count)

    command = stream_command(source.uri, slot, "-F", "100", "-s", "100")
    with out.open("w") as stdout, subprocess.Popen(command, stdout=stdout) as run:
        written(1)
        source.execute(
            "SELECT pg_terminate_backend(active_pid) FROM pg_replication_slots WHERE slot_name = %s", (slot,)
        )
        written(2)
        run.send_signal(signal.SIGTERM)
    assert run.returncode == 0
    assert numbers(out.read_text()) == [1, 2]


def test_without_a_loop_a_lost_connection_is_the_end(source, tmp_path, follow):
    slot = source.create_slot()
    following = follow(source.uri, slot, tmp_path / "out.jsonl", "-n")
    insert(source, 1, 3)
    wait_until(lambda: len(following.rows()) == 3)
    source.execute(
        "SELECT pg_terminate_backend(active_pid) FROM pg_replication_slots WHERE slot_name = %s", (slot,)
    )
    status, errors = following.wait()
    assert status == 3
    assert len(errors.splitlines()) == 2


def test_a_cut_wire_in_the_middle_of_a_transaction(source, proxy18, tmp_path, follow):
    slot = source.create_slot()
    insert(source, 1, 30_000)
    proxy18.cut_after(700_000, once=True)
    following = follow(proxy18.uri(source.name), slot, tmp_path / "out.jsonl", "--progress")
    wait_until(lambda: len(following.rows()) == 30_000)
    status, errors = following.stop()
    assert status == 0
    assert "trying again" in errors
    # Rows that were taken back count once.
    assert errors.endswith("; 30,000 rows in 1 transaction\n")
    assert following.rows() == list(range(1, 30_001))


def test_no_heartbeat_comes_within_a_transaction(source, proxy18, tmp_path, follow):
    """It ends with an edge, to which a run goes back that loses its connection."""
    slot, out = source.create_slot(), tmp_path / "out.jsonl"
    insert(source, 1, 30_000)
    proxy18.cut_after(700_000, once=True)
    settings = ("topic.prefix=t", "heartbeat.interval.ms=1", "value.converter.schemas.enable=false")
    beating = ("--format", "debezium", *chain.from_iterable(("-c", one) for one in settings))
    following = follow(proxy18.uri(source.name), slot, out, *beating, "--snapshot", "never")
    wait_until(lambda: out.exists() and b'"payload":{"a":30000}' in out.read_bytes())
    assert proxy18.cuts
    assert following.stop()[0] == 0
    records = [json.loads(line) for line in out.read_text().splitlines()]
    rows = [one["value"]["after"]["a"] for one in records if one["topic"] == "t.public.t"]
    assert rows == list(range(1, 30_001))
    assert {one["topic"] for one in records} == {"t.public.t", "__debezium-heartbeat.t"}


@pytest.mark.parametrize("mode", ["fast", "immediate"])
def test_a_server_that_restarts_does_so_at_once(own_server, tmp_path, mode, follow):
    """In a fast shutdown the server waits until everything is confirmed, however rarely that is done usually.

    Here that would be every 100 s, and pg_ctl gives up after 60.
    """
    server = own_server(18, {"fsync": "on", "wal_sender_timeout": "0"})
    with psycopg.connect(server.uri(), autocommit=True) as connection:
        connection.execute(SMALL)
        connection.execute("SELECT pg_create_logical_replication_slot('s', 'pgoutput')")
        connection.execute("INSERT INTO t VALUES (1)")
    following = follow(server.uri(), "s", tmp_path / "out.jsonl", "-F", "0", "-s", "100")
    wait_until(lambda: following.rows() == [1])
    server.pg_ctl("restart", "-m", mode)
    with psycopg.connect(server.uri(), autocommit=True) as connection:
        connection.execute("INSERT INTO t VALUES (2)")
    wait_until(lambda: following.rows() == [1, 2])
    status, errors = following.stop()
    assert status == 0
    *lost, found = errors.splitlines()
    assert all(re.fullmatch("pgcdc: warning: could not .*; trying again", line) for line in lost), errors
    assert lost
    assert found.startswith("pgcdc: warning: connected again after ")


def test_a_large_transaction_takes_little_memory(source, tmp_path):
    slot = source.create_slot()
    source.execute("INSERT INTO t SELECT g, repeat('x', 100) FROM generate_series(1, 300000) g")
    line = stream_command(source.uri, slot, "-D", str(tmp_path / "out"), "--endpos", "now")
    assert peak_memory(line) < 300 << 20
    (lines,) = contents(tmp_path / "out").values()
    assert [json.loads(line)["new"] for line in lines] == [
        {"a": number, "b": "x" * 100} for number in range(1, 300_001)
    ]
    assert len(in_directory(tmp_path / "out")) == 300_000


def test_a_signal_ends_a_run_whose_wire_is_dead(source, proxy18, tmp_path, follow, record_property):
    """With a checkpoint the end doesn't wait for a silent server: nothing is repeated because of that."""
    slot = source.create_slot()
    following = follow(proxy18.uri(source.name), slot, tmp_path / "out", "-F", "0.1")
    insert(source, 1, 3)
    wait_until(lambda: len(following.rows()) == 3)
    proxy18.stall()
    began = time.monotonic()
    ended = following.stop()
    took = time.monotonic() - began
    record_property("seconds", took)
    assert ended == (0, "")
    # Four times what it takes, and less than the wait for a server that must be told.
    assert took < 8
    assert following.rows() == [1, 2, 3]


def test_hup_counts_while_the_server_is_told_the_end(source, tmp_path):
    """Everything is durable by then, and the run only waits for the server.

    In another folder, the next run wouldn't find the file.
    """
    slot, out, ending = source.create_slot(), tmp_path / "out", tmp_path / "ending"
    (tmp_path / "old").mkdir()
    away = tmp_path / "old" / "out.1"
    insert(source, 1, 1)
    waiting = (
        "import pathlib, sys, time; from pgcdc_cli.replication import copy_both\n"
        f"ending = pathlib.Path({str(ending)!r})\n"
        "finish = copy_both.ReplicationStream.finish\n"
        "def wait(*given, **options):\n"
        "    ending.touch()\n"
        "    while ending.exists(): time.sleep(0.01)\n"
        "    return finish(*given, **options)\n"
        "copy_both.ReplicationStream.finish = wait\n"
        "from pgcdc_cli.cli.app import run; sys.exit(run(sys.argv[1:]))"
    )
    line = stream_command(source.uri, slot, "-f", str(out), *NOW)
    with subprocess.Popen([sys.executable, "-c", waiting, *line[3:]]) as process:
        wait_until(ending.exists)
        out.rename(away)
        process.send_signal(signal.SIGHUP)
        ending.unlink()
        assert process.wait(60) == 0
    insert(source, 2, 2)
    assert stream(source.uri, slot, "-f", str(out), *NOW).returncode == 0
    assert (numbers(away.read_text()), numbers(out.read_text())) == ([1], [2])
