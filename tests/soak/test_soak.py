"""A stream follows a busy server, interrupted all the while: in the end its files hold what the log says.

`--soak SECONDS` runs every combination for so long, rather than a few of them for a moment; `--soak-seed`
gives sessions and interruptions the dice of an earlier run, though not its timing.
"""

import random
import time
from itertools import product, zip_longest
from pathlib import Path
from typing import Any, NamedTuple

import psycopg
import pytest
from logs import Log, log_of
from psycopg.rows import dict_row
from soak_load import FULL, KEYED, MANY, TABLES, Load
from soak_oracle import Change, Row, fold, read_log
from soak_output import (
    DEBEZIUM,
    Event,
    as_arrow_tells,
    as_debezium_tells,
    read_directory,
    read_events,
    read_lines,
)
from soak_reader import Interrupted

SECONDS = 4
KEYS = {f"public.{table}": "id" for table in (*KEYED, *FULL, *MANY, "indexed")}

FORMATS: dict[str, tuple[str, ...]] = {
    "lines": ("-f",),
    "directory": ("-D", "--rotate-interval", "1s"),
    "arrow": ("-D", "--rotate-interval", "1s", "--format", "arrow"),
    "debezium": (
        *("-f", "--format", "debezium"),
        *(word for name, value in DEBEZIUM.items() for word in ("-c", f"{name}={value}")),
    ),
}
"""Not pretty, which is for people, nor raw, which promises no exactly once."""


class Combination(NamedTuple):
    version: int
    protocol: str
    """Version and streaming, or the default."""
    two_phase: bool
    form: str
    messages: bool

    @property
    def arguments(self) -> tuple[str, ...]:
        version, _, streaming = self.protocol.partition(" ")
        protocol = ("--proto-version", version, "--streaming", streaming) if streaming else ()
        return (*protocol, *["--two-phase"] * self.two_phase, *["--messages"] * self.messages)

    @property
    def streams(self) -> bool:
        """Large transactions come before they commit."""
        tells_messages = self.messages or self.form == "debezium"
        return not tells_messages if self.protocol == "default" else "off" not in self.protocol

    @property
    def early(self) -> bool:
        """Some transactions are told before they commit."""
        return self.streams or self.two_phase

    @property
    def messages_written(self) -> str:
        """Keep to what a streamed transaction tells exactly (docs/protocols.md, "Streaming")."""
        if not (self.messages or self.form == "debezium"):
            return "none"
        return "outside of savepoints" if self.streams else "all"

    def __str__(self) -> str:
        words = [f"pg{self.version}", self.protocol, "two-phase" * self.two_phase, self.form]
        return "-".join(filter(None, [*words, "messages" * self.messages]))


FEW = [
    Combination(18, "default", False, "directory", False),
    Combination(18, "4 parallel", True, "arrow", True),
    Combination(18, "3 on", True, "debezium", False),
    Combination(18, "1 off", False, "lines", True),
    Combination(16, "default", True, "lines", False),
    Combination(16, "4 on", False, "arrow", False),
    Combination(16, "4 parallel", False, "debezium", False),
    Combination(15, "3 on", True, "directory", False),
    Combination(15, "2 on", False, "lines", True),
]
"""Each version with each format's kin, each way to stream, with and without two phases."""


def _all() -> list[Combination]:
    every = product([15, 16, 18], _protocols(), [False, True], FORMATS, [False, True])
    return [one for one in map(Combination._make, every) if _is_possible(one)]


def _protocols() -> list[str]:
    return [
        "default",
        "1 off",
        *(f"{version} {how}" for version in (2, 3, 4) for how in ("off", "on")),
        "4 parallel",
    ]


def _is_possible(one: Combination) -> bool:
    newest = one.version > 15 or one.protocol[0] != "4"
    return newest and not (one.two_phase and one.protocol[0] in "12")


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    if "combination" in metafunc.fixturenames:
        chosen = _all() if metafunc.config.getoption("--soak") else FEW
        metafunc.parametrize("combination", chosen, ids=str)


@pytest.mark.timeout(0)
def test_files_hold_what_the_log_says(combination, server_of, tmp_path, pytestconfig):
    seed = pytestconfig.getoption("--soak-seed") or random.SystemRandom().randrange(1 << 32)
    print(f"--soak-seed {seed}")
    with log_of(server_of(combination.version), TABLES) as log:
        slot = log.create_slot(two_phase=combination.two_phase)
        witness, out = log.copy_slot(slot), tmp_path / "out"
        follow(log, slot, out, combination, seed, pytestconfig.getoption("--soak") or SECONDS)
        messages = combination.messages_written != "none"
        said = list(read_log(log.uri, witness, messages=messages))
        compare(combination.form, out, said)
        assert_same(fold(said, KEYS), final_rows(log))
        assert not list(tmp_path.rglob("*.spool"))


def follow(log: Log, slot: str, out: Path, combination: Combination, seed: int, seconds: float) -> None:
    """Let the load go on for so long, or until all has happened that can."""
    option, *others = FORMATS[combination.form]
    arguments = (option, str(out), *others, *combination.arguments)
    with (
        Load(log.uri, seed, early=combination.early, messages=combination.messages_written) as load,
        Interrupted(log, slot, random.Random(seed), *arguments) as reader,
    ):
        end = time.monotonic() + seconds
        while time.monotonic() < end or load.missing() or reader.missing():
            reader.interrupt()
        load.stop()
        reader.finish()
        print(f"{dict(reader.hits)}; streamed: {log.streamed(slot)}; {dict(load.kinds)}")
    assert bool(log.streamed(slot)) == combination.streams


def compare(form: str, out: Path, said: list[Change]) -> None:
    bare = [change._replace(columns=()) for change in said]
    if form == "lines":
        assert_equal(read_lines(out), bare)
    elif form == "directory":
        assert_equal(read_directory(out), bare)
    elif form == "arrow":
        expected = [as_arrow_tells(change)._replace(columns=()) for change in said]
        assert_equal(read_directory(out), expected)
    else:
        assert_equal(read_events(out), list(as_debezium_tells(said, KEYS)))


def assert_equal(found: list[Change] | list[Event], said: list[Change] | list[Event]) -> None:
    """Tell the first difference rather than all that follows from it."""
    for number, (ours, theirs) in enumerate(zip_longest(found, said)):
        assert ours == theirs, f"change {number} of {len(said)}"


def final_rows(log: Log) -> dict[str, dict[Any, Row]]:
    with psycopg.connect(log.uri, row_factory=dict_row) as connection:
        tables = {table: connection.execute(f"SELECT * FROM {table}").fetchall() for table in KEYS}
    return {table: {row["id"]: row for row in rows} for table, rows in tables.items()}


def assert_same(folded: dict[str, dict[Any, Row]], final: dict[str, dict[Any, Row]]) -> None:
    for table, rows in final.items():
        assert folded[table].keys() == rows.keys(), table
        for key, row in rows.items():
            assert _kept(folded[table][key]) == _kept(row), table


def _kept(row: Row) -> list[str]:
    """Leave out columns that come and go: their first values are no changes."""
    label = row.get("label", row.get("title"))
    return [label, *(str(row.get(name)) for name in ("amount", "size", "flag", "body"))]
