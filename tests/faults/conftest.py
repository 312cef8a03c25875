"""The size of the fault tests and their seeds; `faults_report.py` collects what they report."""

import random
from collections.abc import Callable, Mapping

import pytest


@pytest.fixture
def size(pytestconfig) -> int:
    """How many times as large as in a usual run."""
    return pytestconfig.getoption("--faults")


@pytest.fixture
def seed(pytestconfig) -> int:
    """The seed of a test's random choices; it is printed, so that `--faults-seed` can repeat them."""
    given = pytestconfig.getoption("--faults-seed")
    chosen = random.SystemRandom().randrange(1 << 32) if given is None else given
    print(f"--faults-seed {chosen}")
    return chosen


@pytest.fixture
def tell(seed, record_property) -> Callable[[str, Mapping[str, int]], None]:
    """A function that reports what a test did, as counts by name: `tell("what was done", counts)`."""

    def say(what: str, counts: Mapping[str, int]) -> None:
        print(f"{what}: {dict(counts)}")
        record_property("faults", [what, dict(counts), seed])

    return say
