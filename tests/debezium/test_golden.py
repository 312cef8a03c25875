"""What a real Debezium wrote for 110 workloads, pgcdc writes too: same records, order, keys and numbers."""

import importlib.util
import re

import pytest
from golden_runs import CASES, GOLDEN, MORE, GoldenRun, cases

_NEWER = "expected-3.4.3.jsonl"
"""Only this one is right where 2.5.4 garbles names."""
_RUN = re.compile(r'(runId":(?:\{.*?"payload":)?")[0-9a-f-]{36}"')
"""A random number of each run's, which normalise.py leaves alone."""
_MESSAGE = re.compile(r',?\{"data_collection":"[^"]*LogicalDecodingMessageId@[0-9a-f]+","event_count":1\}')
"""A collection that stands where the address of a Java object puts it."""
_ADDED = re.compile(
    r'("(?:__|x_|h_)(?:source_|transaction_)?(?:ts_[mun]s|lsn|tx|txId|sequence|id)":(?:\{"schema":\{[^}]*\},"payload":)?)'
    r'(?:[1-9][0-9]*|"[][null,0-9:\\"]+")'
)
"""What message transforms add to rows and headers, and differs between runs."""


def differences(expected, output) -> str:
    spec = importlib.util.spec_from_file_location("normalise", GOLDEN / "normalise.py")
    normalise = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(normalise)

    def comparable(line):
        line = _MESSAGE.sub("", _RUN.sub(r'\1"', line)).replace("[,", "[")
        return _ADDED.sub(r"\1_", line)

    ours, theirs = (list(map(comparable, normalise.normalise(str(path)))) for path in (output, expected))
    return "\n".join(normalise.difflib.unified_diff(theirs, ours, "Debezium", "pgcdc", lineterm="", n=0))


def check(expected, server, tmp_path):
    run = GoldenRun(server, expected.parent, tmp_path)
    output = run.run(*(("-c", "debezium.version=3.4") if expected.name == _NEWER else ()))
    assert differences(expected, output) == ""


def captured(version):
    """Name what one version of Debezium wrote for each case."""
    return [
        CASES / case / (_NEWER if (CASES / case / _NEWER).exists() else "expected.jsonl")
        for case in cases(version)
    ]


def captured_more(version):
    """Name what each version of Debezium that was asked wrote for each case."""
    return [path for case in cases(version, MORE) for path in sorted((MORE / case).glob("expected*.jsonl"))]


def name(expected) -> str:
    return expected.parent.name + expected.stem.removeprefix("expected")


@pytest.mark.parametrize("expected", captured("18"), ids=name)
def test_a_workload_on_18(expected, golden18, tmp_path):
    check(expected, golden18, tmp_path)


@pytest.mark.parametrize("expected", captured("15"), ids=name)
def test_a_workload_on_15(expected, golden15, tmp_path):
    check(expected, golden15, tmp_path)


@pytest.mark.parametrize("expected", captured_more("18"), ids=name)
def test_a_workload_of_our_own_on_18(expected, golden18, tmp_path):
    check(expected, golden18, tmp_path)


@pytest.mark.parametrize("expected", captured_more("15"), ids=name)
def test_a_workload_of_our_own_on_15(expected, golden15, tmp_path):
    check(expected, golden15, tmp_path)
