"""A run that ends after every transaction leaves the same records as one that never ends."""

import re

import pytest
from processes import stream_command
from warm_process import run_warm

WORKLOAD = """
CREATE TABLE t (id int PRIMARY KEY, v text);
ALTER TABLE t REPLICA IDENTITY FULL;
CREATE TABLE u (id int PRIMARY KEY);
CREATE PUBLICATION pub FOR ALL TABLES;
"""
CHANGES = (
    "INSERT INTO t VALUES (1, 'a'), (2, 'b')",
    "SELECT pg_logical_emit_message(false, 'p', 'between')",
    "UPDATE t SET id = 3 WHERE id = 1",
    "SELECT pg_logical_emit_message(true, 'p', 'inside')",
    "DELETE FROM t",
    "TRUNCATE t, u",
    "INSERT INTO u VALUES (1)",
)
CONFIG = {
    "topic.prefix": "srv",
    "snapshot.mode": "never",
    "provide.transaction.metadata": "true",
    "skipped.operations": "none",
    "key.converter.schemas.enable": "false",
    "value.converter.schemas.enable": "false",
}
HANDLED = re.compile(r'(?<="op":".",)"ts_ms":\d+(?:,"ts_us":\d+,"ts_ns":\d+)?|(?<=runId":)"[^"]*"')
"""The time of processing and, in 3.4, the run's id are all that differs between two runs."""


def stream(database, slot, file, *arguments) -> None:
    properties = [word for name, value in CONFIG.items() for word in ("-c", f"{name}={value}")]
    options = ["--format", "debezium", *properties, "-f", file, "--endpos", "now", *arguments]
    line = stream_command(database.uri, slot, *options)
    ended = run_warm(line)
    assert ended.returncode == 0, ended.stderr


def records(file) -> list[str]:
    return [HANDLED.sub("", line) for line in file.read_text("utf-8").splitlines()]


@pytest.mark.parametrize("version", ["2.5", "3.4"])
def test_a_run_per_transaction_leaves_the_records_of_one_run(database, tmp_path, version):
    database.execute(WORKLOAD)
    slot = database.create_slot()
    twin = database.copy_slot(slot)
    for statement in CHANGES:
        database.execute(statement)
    whole, pieces = tmp_path / "whole.jsonl", tmp_path / "pieces.jsonl"
    stream(database, slot, whole, "-c", f"debezium.version={version}")
    expected, found = records(whole), []
    assert len(expected) > 2 * len(CHANGES)
    while len(found) < len(expected):
        stream(database, twin, pieces, "--max-transactions", "1", "-c", f"debezium.version={version}")
        assert len(records(pieces)) > len(found)
        found = records(pieces)
        # Moves the checkpoint beyond the last commit.
        database.execute("SELECT pg_switch_wal()")
    assert found == expected
