"""What a real Debezium wrote for 110 workloads, pgcdc writes too: same records, order, keys and numbers."""

import importlib.util
import re

import pytest
from golden_runs import CASES, GOLDEN, MORE, GoldenRun, cases

_NEWER = "expected-3.4.3.jsonl"
"""Only this one is right where 2.5.4 garbles names."""
_RUN = re.compile(r'runId":"[0-9a-f-]{36}"')
"""A random number of each run's, which normalise.py leaves alone."""


def differences(folder, output) -> str:
    spec = importlib.util.spec_from_file_location("normalise", GOLDEN / "normalise.py")
    normalise = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(normalise)
    expected = folder / (_NEWER if (folder / _NEWER).exists() else "expected.jsonl")
    ours, theirs = (
        [_RUN.sub('"runId":""', line) for line in normalise.normalise(str(path))]
        for path in (output, expected)
    )
    return "\n".join(normalise.difflib.unified_diff(theirs, ours, "Debezium", "pgcdc", lineterm="", n=0))


def check(case, server, tmp_path, cases_folder=CASES):
    newer = (cases_folder / case / _NEWER).exists()
    run = GoldenRun(server, case, tmp_path, cases_folder)
    output = run.run(*(("-c", "debezium.version=3.4") if newer else ()))
    assert differences(cases_folder / case, output) == ""


@pytest.mark.parametrize("case", cases("18"))
def test_a_workload_on_18(case, golden18, tmp_path):
    check(case, golden18, tmp_path)


@pytest.mark.parametrize("case", cases("15"))
def test_a_workload_on_15(case, golden15, tmp_path):
    check(case, golden15, tmp_path)


@pytest.mark.parametrize("case", cases("18", MORE))
def test_a_workload_of_our_own_on_18(case, golden18, tmp_path):
    check(case, golden18, tmp_path, MORE)


@pytest.mark.parametrize("case", cases("15", MORE))
def test_a_workload_of_our_own_on_15(case, golden15, tmp_path):
    check(case, golden15, tmp_path, MORE)
