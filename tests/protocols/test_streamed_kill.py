"""Kills while transactions are streamed, or written at their prepare, make no difference to the output."""

import itertools
import json
import random

import pytest
from kills import ANY, MOVED, SPOOLED, TO_CUT, Hits, Target
from logs import PROTOCOL_1, Running, log_of
from segments import contents
from servers import wait_until_free
from workloads import ROW_COUNT, TABLES, Stage, rows


@pytest.mark.timeout(1200)
def test_killed_while_transactions_are_streamed(server18, tmp_path, pytestconfig, record_property):
    """Three of them are open at each kill, most of them begun before one or two earlier kills."""
    kills = max(pytestconfig.getoption("--kills") // 10, 2)
    dice, hits = random.Random(kills), Hits()
    with log_of(server18, TABLES) as log, Stage(log.uri) as do:
        slot = log.create_slot()
        other = log.copy_slot(slot)
        arguments = ("--layout", "stream", "--transactions")
        log.read(slot, "-D", str(tmp_path / "out"), *arguments, "--endpos", log.end())
        target = Target(tmp_path / "out")
        for turn, aim in zip(range(kills), itertools.cycle([SPOOLED, MOVED, ANY]), strict=False):
            with Running(log, slot, "-D", str(tmp_path / "out"), *arguments) as reader:
                reader.started()
                _go_on(do, turn)
                target.kill(reader.process, aim, dice, hits)
        record_property("hits", dict(hits))
        print(hits)
        do(0, "COMMIT")
        end = log.end()
        wait_until_free(log, slot)
        log.read(slot, "-D", str(tmp_path / "out"), *arguments, "--endpos", end)
        log.read(other, "-D", str(tmp_path / "whole"), *arguments, *PROTOCOL_1, "--endpos", end)
        assert contents(tmp_path / "out") == contents(tmp_path / "whole")
        assert not list(tmp_path.rglob("*.spool"))
        assert hits[ANY] == kills, hits
        assert hits.enough(), hits


def _go_on(do: Stage, turn: int) -> None:
    """Continue all three transactions; rows of one of them are spooled to a file at once."""
    for number, table in enumerate(("accounts", "parts", "documents")):
        if turn % 3 == number and turn >= 3:
            do(number, "ROLLBACK" if turn % 2 else "COMMIT")
        if turn % 3 == number or turn == 0:
            do(number, "BEGIN")
        low = turn * 10_000
        do(number, rows(table, low), "SAVEPOINT a", rows(table, low + 5000), "ROLLBACK TO a")
        do(5, rows("audit", low, 2))


@pytest.mark.parametrize("confirmed", [True, False])
def test_killed_after_changes_were_given_out_at_their_prepare(server18, tmp_path, confirmed):
    """Either the changes were confirmed, or they were in the file but not yet in the checkpoint."""
    dice, hits = random.Random("prepare"), Hits()
    with log_of(server18, TABLES) as log, Stage(log.uri) as do:
        slot, out = log.create_slot(two_phase=True), tmp_path / "out"
        arguments = ("-f", str(out), "--transactions", "--two-phase-at", "prepare")
        steps = (
            ("BEGIN", rows("parts", 1), "PREPARE TRANSACTION 'large'"),
            ("BEGIN", rows("parts", 1000, 1), "PREPARE TRANSACTION 'small'"),
            ("COMMIT PREPARED 'large'",),
            ("ROLLBACK PREPARED 'small'",),
        )
        log.read(slot, *arguments, "--endpos", log.end())
        target = Target(out)
        for step in steps:
            with Running(log, slot, *arguments, fsync=0.2 if confirmed else 600) as reader:
                reader.started()
                do(0, *step)
                if confirmed:
                    reader.confirms(log.end())
                    reader.kill()
                else:
                    target.kill(reader.process, TO_CUT, dice, hits)
        wait_until_free(log, slot)
        log.read(slot, *arguments, "--endpos", log.end())
        found = [json.loads(line) for line in out.read_bytes().splitlines()]
        assert "".join(line["op"] for line in found) == "B" + "I" * ROW_COUNT + "P" + "BIP" + "Kr"
        assert [line["gid"] for line in found if line["op"] in "PKr"] == ["large", "small", "large", "small"]
        assert confirmed or hits.enough(), hits
