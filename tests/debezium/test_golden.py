"""pgcdc writes what Debezium itself wrote for 110 workloads: the same records, order, keys and numbers."""

import importlib.util
import re
import shutil
from pathlib import Path

import pytest
from golden_runs import CASES, GOLDEN, MORE, GoldenRun, cases

_EXPECTED = {"2.5": "expected.jsonl", "3.4": "expected-3.4.3.jsonl"}
"""Files of expected records, by `debezium.version`."""
_GARBLED = "names_non_ascii"
"""A case in which 2.5.4 garbles names, and pgcdc doesn't."""
_RUN = re.compile(r'(runId":(?:\{.*?"payload":)?")[0-9a-f-]{36}"')
"""The run's random id, which normalise.py doesn't replace."""
_MESSAGE = re.compile(r',?\{"data_collection":"[^"]*LogicalDecodingMessageId@[0-9a-f]+","event_count":1\}')
"""A logical decoding message's collection, whose place in the list depends on a Java object's address."""
_ADDED = re.compile(
    r'("(?:__|x_|h_)(?:source_|transaction_)?(?:ts_[mun]s|lsn|tx|txId|sequence|id)":(?:\{"schema":\{[^}]*\},"payload":)?)'
    r'(?:[1-9][0-9]*|"[][null,0-9:\\"]+")'
)
"""Members that message transforms add to rows and headers, and that differ between runs."""


def differences(expected, output) -> str:
    spec = importlib.util.spec_from_file_location("normalise", GOLDEN / "normalise.py")
    normalise = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(normalise)

    def comparable(line):
        line = _MESSAGE.sub("", _RUN.sub(r'\1"', line)).replace("[,", "[")
        return _ADDED.sub(r"\1_", line)

    ours, theirs = (list(map(comparable, normalise.normalise(str(path)))) for path in (output, expected))
    return "\n".join(normalise.difflib.unified_diff(theirs, ours, "Debezium", "pgcdc", lineterm="", n=0))


def check(case, server, tmp_path):
    expected = captured(case)
    written = GoldenRun(server, case, tmp_path).run(list(expected))
    for version, path in expected.items():
        assert differences(path, written[version]) == "", version


def captured(case) -> dict[str, Path]:
    """Find the captured output of each version of Debezium for a case."""
    found = {version: case / name for version, name in _EXPECTED.items() if (case / name).exists()}
    if case.name == _GARBLED:
        del found["2.5"]
    return found


def on(version, folder=CASES) -> pytest.MarkDecorator:
    """Run a test with each case that was captured on this major version of PostgreSQL."""
    return pytest.mark.parametrize(
        "case", [folder / case for case in cases(version, folder)], ids=lambda case: case.name
    )


@on("18")
def test_a_workload_on_18(case, golden18, tmp_path):
    check(case, golden18, tmp_path)


@on("15")
def test_a_workload_on_15(case, golden15, tmp_path):
    check(case, golden15, tmp_path)


@on("18", MORE)
def test_a_workload_of_our_own_on_18(case, golden18, tmp_path):
    check(case, golden18, tmp_path)


@on("15", MORE)
def test_a_workload_of_our_own_on_15(case, golden15, tmp_path):
    check(case, golden15, tmp_path)


def test_records_of_the_servers_own_make_no_difference(golden18, tmp_path):
    """A message's position is the next record's, which may be one that the server writes for itself."""
    case = Path(shutil.copytree(MORE / "newer_messages", tmp_path / "case"))
    changes = (case / "changes.sql").read_text()
    (case / "changes.sql").write_text(changes.replace(";", "; SELECT pg_log_standby_snapshot();"))
    check(case, golden18, tmp_path)
