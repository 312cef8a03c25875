"""The size of the fault tests and their seeds; what they tell goes to `faults_report.py`."""

import random
from collections.abc import Callable, Mapping

import pytest


@pytest.fixture
def size(pytestconfig) -> int:
    """How many times as large as in a usual run."""
    return pytestconfig.getoption("--faults")


@pytest.fixture
def seed(pytestconfig) -> int:
    """Of the dice of one test; printed, so that `--faults-seed` can give the same ones again."""
    given = pytestconfig.getoption("--faults-seed")
    chosen = random.SystemRandom().randrange(1 << 32) if given is None else given
    print(f"--faults-seed {chosen}")
    return chosen


@pytest.fixture
def tell(seed, record_property) -> Callable[[str, Mapping[str, int]], None]:
    """Say what a test did, as counts by name: `tell("what was done", counts)`."""

    def say(what: str, counts: Mapping[str, int]) -> None:
        print(f"{what}: {dict(counts)}")
        record_property("faults", [what, dict(counts), seed])

    return say
