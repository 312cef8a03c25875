"""The oldest server that sends prepared transactions; it streams, but not in parallel."""

import json
from collections.abc import Iterator

import psycopg
import pytest
from debian_server import DebianServer
from logs import PROTOCOL_1, Log, Running, log_of
from processes import PGCDC
from segments import contents
from warm_process import run_warm
from workloads import PLAYS, ROW_COUNT, TABLES, Stage, rows

PUBLICATIONS = ("pub", "special")


@pytest.fixture(scope="module")
def server15() -> Iterator[DebianServer]:
    if reason := DebianServer.missing():
        pytest.skip(reason)
    server = DebianServer({"max_prepared_transactions": "10", "logical_decoding_work_mem": "64kB"})
    yield server
    server.stop()


def read(log: Log, slot: str, end: str, *arguments: str) -> list[bytes]:
    copy = log.copy_slot(slot)
    written = log.read(copy, "--transactions", "--endpos", end, *arguments)
    log.drop_slot(copy)
    return written.splitlines()


def test_the_output_is_that_of_protocol_1(server15):
    with log_of(server15, TABLES, PUBLICATIONS) as log, Stage(log.uri) as do:
        slot = log.create_slot()
        for play in PLAYS:
            play(do)
        end = log.end()
        plain = read(log, slot, end, *PROTOCOL_1)
        assert read(log, slot, end) == plain
        assert read(log, slot, end, "--streaming", "on", "--binary") == plain


def test_prepared_transactions(server15, tmp_path):
    with log_of(server15, TABLES) as log, Stage(log.uri) as do:
        slot, out = log.create_slot(two_phase=True), tmp_path / "out"
        with Running(log, slot, "-f", str(out)) as reader:
            reader.started()
            do(0, "BEGIN", rows("parts", 1))
            do.catch_up()
            do(
                0,
                "PREPARE TRANSACTION 'large'",
                "BEGIN",
                rows("parts", 1000, 1),
                "PREPARE TRANSACTION 'small'",
            )
            reader.confirms(log.end())
            reader.kill()
        assert log.streamed(slot) == 1
        assert out.read_bytes() == b""
        do(0, "COMMIT PREPARED 'small'", "COMMIT PREPARED 'large'")
        log.read(slot, "-f", str(out), "--two-phase", "--endpos", log.end())
        gids = [json.loads(line)["gid"] for line in out.read_bytes().splitlines()]
        assert gids == ["small", *["large"] * ROW_COUNT]


@pytest.mark.parametrize("end", ["COMMIT", "ROLLBACK"])
def test_tables_that_only_a_prepared_transaction_told_of(server15, tmp_path, end):
    """After Stream Prepare the server doesn't send their definitions again, however the transaction ends."""
    with log_of(server15, TABLES) as log, Stage(log.uri) as do:
        slot, other = log.create_slot(two_phase=True), log.create_slot()
        arguments = ("-D", str(tmp_path / "out"), "--layout", "stream", "--two-phase")
        with Running(log, slot, *arguments) as reader:
            reader.started()
            do(0, "BEGIN", rows("parts", 1))
            do.catch_up()
            do(0, "PREPARE TRANSACTION 'large'", rows("parts", 1000, 1))
            do(0, "BEGIN", rows("parts", 2000, 1), "PREPARE TRANSACTION 'small'")
            do(0, f"{end} PREPARED 'large'", rows("parts", 3000, 1))
            do(0, "BEGIN", rows("parts", 4000), "PREPARE TRANSACTION 'large, too'")
            reader.confirms(log.end())
            reader.kill()
        assert log.streamed(slot) == 2
        do(0, "COMMIT PREPARED 'large, too'", "COMMIT PREPARED 'small'")
        log.read(slot, *arguments, "--endpos", log.end())
        found = [json.loads(line) for line in contents(tmp_path / "out")[None]]
        bare = [{name: value for name, value in line.items() if name != "gid"} for line in found]
        whole = log.read(other, *PROTOCOL_1, "--endpos", log.end()).splitlines()
        assert bare == [json.loads(line) for line in whole]


@pytest.mark.parametrize("option", ["--streaming parallel", "--origin none", "--proto-version 4"])
def test_what_it_does_not_know_is_refused_before_a_slot_is_created(server15, option):
    slot = f"for_{option.split()[0].strip('-').replace('-', '_')}"
    with log_of(server15, TABLES) as log:
        run = log.stream(slot, *option.split(), "--create-slot", "--endpos", "now")
        query = "SELECT count(*) FROM pg_replication_slots WHERE slot_name = %s"
        created = log.execute(query, (slot,)).fetchone()
    what = "--origin" if "origin" in option else option
    assert (run.returncode, run.stdout) == (2, b"")
    assert run.stderr.decode() == (
        f"pgcdc: error: could not use {what}: the server is PostgreSQL 15, and only 16 or newer has it\n"
        "hint: leave it out: the default is the best that the server supports\n"
    )
    assert created == (0,)


@pytest.fixture
def standby15(monkeypatch):
    """A standby whose messages are in German, with a slot that it had as a primary."""
    if reason := DebianServer.missing():
        pytest.skip(reason)
    monkeypatch.setenv("LANGUAGE", "de")
    server = DebianServer({"lc_messages": "C.UTF-8"})
    with psycopg.connect(server.uri(), autocommit=True) as admin:
        admin.execute("CREATE PUBLICATION pub")
        admin.execute("SELECT pg_create_logical_replication_slot('there', 'pgoutput')")
    server.pg_ctl("stop", "-m", "fast")
    (server.data / "standby.signal").touch()
    server.pg_ctl("start")
    yield server
    server.stop()


def test_a_standby_says_which_one_could_decode(standby15):
    for doing, line in (
        ('create slot "s"', ["slot", "create", "s"]),
        ('start streaming from slot "there"', ["stream", "-S", "there", "--publication", "pub", "-f", "-"]),
    ):
        ran = run_warm([*PGCDC, *line, "-d", standby15.uri()])
        error, hint = ran.stderr.splitlines()
        assert (ran.returncode, error.startswith(f"pgcdc: error: could not {doing}: ")) == (2, True)
        assert hint == "hint: connect to the primary: a standby can decode WAL since PostgreSQL 16"
