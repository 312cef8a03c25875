"""The origin of a change: this server, or another one whose changes are replicated to it."""

import json
from collections.abc import Iterator

import pytest
from logs import PROTOCOL_1, Log, log_of
from processes import wait_until
from workloads import ROW_COUNT, TABLES, Stage, rows

PAIR = "CREATE TABLE t (id int PRIMARY KEY, note text); CREATE PUBLICATION pub FOR TABLE t"


def lines(log: Log, slot: str, *arguments: str) -> list[dict]:
    written = log.read(log.copy_slot(slot), *arguments, "--endpos", log.end())
    return [json.loads(line) for line in written.splitlines()]


def without_lsn(line: dict) -> dict:
    """Drop `origin_lsn`, which servers don't send with streamed transactions."""
    return {name: value for name, value in line.items() if name != "origin_lsn"}


def subscribe(log: Log, other: Log) -> None:
    conninfo = other.uri.replace("'", "''")
    log.run(
        f"CREATE SUBSCRIPTION {log.name} CONNECTION '{conninfo}' PUBLICATION pub"
        " WITH (copy_data = false, origin = none)"
    )


@pytest.fixture
def pair(small_servers) -> Iterator[tuple[Log, Log]]:
    """Two servers, each with a subscription to what the other one's clients write."""
    with log_of(small_servers[16], PAIR) as one, log_of(small_servers[18], PAIR) as two:
        subscribe(one, two)
        subscribe(two, one)
        yield one, two
        for log in (one, two):
            log.run(f"DROP SUBSCRIPTION {log.name}")


def test_a_pair_that_replicates_both_ways(pair):
    slots = [log.create_slot() for log in pair]
    for number, log in enumerate(pair):
        log.run(f"INSERT INTO t VALUES ({number}, 'small')")
        fill = f"SELECT 2 * g + {number}, repeat('large', 20) FROM generate_series(1, {ROW_COUNT}) g"
        log.run(f"INSERT INTO t {fill}")
    for log in pair:
        wait_until(lambda: log.run("SELECT count(*) FROM t") == [(2 * ROW_COUNT + 2,)])  # noqa: B023
    for number, (log, slot) in enumerate(zip(pair, slots, strict=True)):
        own = lines(log, slot, "--origin", "none")
        assert [line["new"]["id"] % 2 for line in own] == [number] * (ROW_COUNT + 1)
        assert not [line for line in own if "origin" in line]
        every = lines(log, slot, "--transactions", "--origin", "any")
        foreign = [line for line in every if line.get("new", {}).get("id", number) % 2 != number]
        assert len(foreign) == ROW_COUNT + 1
        assert len({line["origin"] for line in foreign}) == 1
        assert every == lines(log, slot, "--transactions")
        plain = lines(log, slot, "--transactions", *PROTOCOL_1)
        assert all("origin_lsn" in line for line in plain if "origin" in line)
        assert [without_lsn(line) for line in every] == [without_lsn(line) for line in plain]


def test_what_a_session_says_of_its_origin(server, tmp_path):
    """In small, streamed and prepared transactions; the origin's LSN is known unless they are streamed."""
    with log_of(server, TABLES) as log:
        slot, origin, out = log.create_slot(two_phase=True), f"elsewhere {log.name}", tmp_path / "out"
        log.run(f"SELECT pg_replication_origin_create('{origin}')")
        written = ((1, "COMMIT"), (ROW_COUNT, "COMMIT"), (1, "PREPARE TRANSACTION 'gid'"))
        with Stage(log.uri) as do:
            do(0, f"SELECT pg_replication_origin_session_setup('{origin}')")
            for number, (count, end) in enumerate(written):
                do(0, "BEGIN", rows("parts", 1000 * number, count))
                do(0, f"SELECT pg_replication_origin_xact_setup('7/{number}', '2001-02-03 04:05:06+00')", end)
            do(0, "COMMIT PREPARED 'gid'", "SELECT pg_replication_origin_session_reset()")
            do(0, rows("parts", 10_000, 1), f"SELECT pg_replication_origin_drop('{origin}')")
        log.read(slot, "-f", str(out), "--two-phase", "--endpos", log.end())
        found = [json.loads(line) for line in out.read_bytes().splitlines()]
    assert [line.get("origin_lsn") for line in found] == ["7/0", *[None] * ROW_COUNT, "7/2", None]
    assert [line.get("origin") for line in found] == [origin] * (ROW_COUNT + 2) + [None]
