"""A stream follows a busy server and is interrupted all the time: in the end its files match the log.

`--soak SECONDS` runs every combination for so long, instead of a few for a moment; `--soak-seed` repeats the
random choices of an earlier run's sessions and interruptions, though not its timing.
"""

import random
import time
from itertools import product
from pathlib import Path

import pytest
from logs import Log, log_of
from servers import VERSIONS
from soak_comparison import FORMATS, Combination, check_output
from soak_load import TABLES, Load
from soak_reader import Interrupted

SECONDS = 4
FEW = [
    Combination(18, "default", False, "directory", False),
    Combination(18, "4 parallel", True, "arrow", True),
    Combination(18, "3 on", True, "debezium", False),
    Combination(18, "1 off", False, "lines", True),
    Combination(17, "4 parallel", True, "lines", True),
    Combination(16, "default", True, "lines", True),
    Combination(16, "4 on", False, "arrow", False),
    Combination(16, "4 parallel", False, "debezium", False),
    Combination(15, "3 on", True, "directory", False),
    Combination(15, "2 on", False, "lines", True),
]
"""They cover all versions, kinds of formats and ways to stream, with and without two-phase."""


def _all() -> list[Combination]:
    every = product([15, *VERSIONS], _protocols(), [False, True], FORMATS, [False, True])
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
        check_output(log, witness, out, combination)
        assert not list(tmp_path.rglob("*.spool"))


def follow(log: Log, slot: str, out: Path, combination: Combination, seed: int, seconds: float) -> None:
    """Follow the load for so long at least, and until all has happened that can."""
    option, *others = FORMATS[combination.form]
    arguments = (option, str(out), *others, *combination.arguments)
    with (
        Load(log.uri, seed, early=combination.early, messages=combination.tells_messages) as load,
        Interrupted(log, slot, random.Random(seed), *arguments) as reader,
    ):
        end = time.monotonic() + seconds
        while time.monotonic() < end or load.missing() or reader.missing():
            reader.interrupt()
        load.stop()
        # A reader interrupted every second falls behind: after a long load, more may be left than was read.
        reader.finish(max(600, 6 * seconds))
        print(f"{dict(reader.hits)}; streamed: {log.streamed(slot)}; {dict(load.kinds)}")
    assert bool(log.streamed(slot)) == combination.streams
