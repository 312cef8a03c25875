"""What is rolled back before it is sent: PostgreSQL 18 notices, and sends the aborts all the same."""

import random
from concurrent.futures import ThreadPoolExecutor
from typing import NamedTuple

from logs import IMMEDIATE, PROTOCOL_1, Running, log_of
from wire_capture import Sent, capture
from workloads import TABLES, Stage, rows

from pgcdc_cli.pgoutput.messages import StreamAbort, StreamStart

STREAMED = {"proto_version": "4", "streaming": "parallel"}


class Streamed(NamedTuple):
    """The xids of transactions that a server began to send, and of those that it aborted."""

    begun: set[int]
    aborted: set[int]


def streamed(sent: list[Sent]) -> Streamed:
    found = [one.message for one in sent]
    return Streamed(
        {message.xid for message in found if isinstance(message, StreamStart)},
        {message.xid for message in found if isinstance(message, StreamAbort)},
    )


def test_a_transaction_that_was_rolled_back_before_it_was_read(server):
    """18 sends aborts of its subtransactions, though it never began to send it; 16 sends all of it."""
    with log_of(server, TABLES) as log:
        slot = log.create_slot()
        with Stage(log.uri) as do:
            do(0, "BEGIN", "SAVEPOINT a", rows("parts", 1), "SAVEPOINT b", rows("shapes", 1), "ROLLBACK")
            do(0, rows("audit", 1, 3))
            do(0, "BEGIN", rows("accounts", 1000), "COMMIT")
        begun, aborted = streamed(capture(log.uri, log.copy_slot(slot), **STREAMED))
        assert len(aborted - begun) == (1 if server.version >= 18 else 0)
        other, end = log.copy_slot(slot), log.end()
        assert log.read(slot, "--endpos", end) == log.read(other, *PROTOCOL_1, "--endpos", end)


def test_read_while_transactions_are_rolled_back(server, tmp_path):
    with log_of(server, TABLES) as log:
        slot, out = log.create_slot(), tmp_path / "out"
        other = log.copy_slot(slot)
        with Running(log, slot, "-f", str(out), "--transactions") as reader, Stage(log.uri) as do:
            reader.started()
            with ThreadPoolExecutor(4) as sessions:
                for number in range(4):
                    do.session(number)
                for done in [sessions.submit(_load, do, number) for number in range(4)]:
                    done.result()
            end = log.end()
            assert reader.ends(end) == (0, b"")
        assert log.streamed(slot)
        assert out.read_bytes() == log.read(other, *PROTOCOL_1, "--transactions", "--endpos", end)


def _load(do: Stage, number: int) -> None:
    """One session's transactions; a third of the savepoints are rolled back, and some whole transactions."""
    dice = random.Random(number)
    table = ("accounts", "parts", "audit", "shapes")[number]
    for turn in range(25):
        do(number, "BEGIN")
        for step in range(dice.randrange(1, 4)):
            low = turn * 10_000 + step * 1000
            do(number, "SAVEPOINT a", rows(table, low, dice.choice([5, 450])))
            do(number, dice.choice(["RELEASE a", "RELEASE a", "ROLLBACK TO a"]))
        do(number, dice.choice(["COMMIT", "ROLLBACK"]))


def test_a_transaction_that_servers_read_only_whole_has_a_hint(server):
    """The transaction rolls back to a savepoint after which another session truncated a table."""
    with log_of(
        server, "CREATE TABLE t (id int); CREATE TABLE u (id int); CREATE PUBLICATION pub FOR TABLE t, u"
    ) as log:
        slot, fill = log.create_slot(), "INSERT INTO t SELECT generate_series(1, 500)"
        with Stage(log.uri) as do:
            do(0, "BEGIN", "SAVEPOINT a", "INSERT INTO t VALUES (1)")
            do(1, "TRUNCATE u")
            do(0, fill, "ROLLBACK TO a", "INSERT INTO u VALUES (7)", "COMMIT")
        end, copy = log.end(), log.copy_slot(slot)
        run = log.stream(copy, "--streaming", "on", "--endpos", end, environment=IMMEDIATE)
        whole = log.read(slot, "--streaming", "off", "--endpos", end)
    assert whole.count(b'"new":{"id":7}') == 1
    if run.returncode == 0:
        assert run.stdout == whole, "a server that has learnt it"
    else:
        assert run.returncode == 1
        assert run.stderr.endswith(
            b"\nhint: some transactions fail this way only if the server streams them: --streaming off\n"
        )
