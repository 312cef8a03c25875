"""The page of the fault tests: a run replaces what an earlier run of the same tests wrote."""

from types import SimpleNamespace

from faults_report import FaultsReport


def run(path, size, *, failed=False, **counts):
    """Write the page of a run of one test, which reports `counts`."""
    report = FaultsReport(path, size)
    told = [("faults", [what, {"times": times}, 7]) for what, times in counts.items()]
    outcome = {"failed": failed, "passed": not failed, "when": "call", "user_properties": told}
    report.pytest_runtest_logreport(SimpleNamespace(nodeid="tests/faults/test_x.py::test_y", **outcome))
    report.pytest_sessionfinish()
    return [line for line in path.read_text().splitlines() if "times" in line or "failed**" in line]


def test_lines_of_other_runs_stay(tmp_path):
    page = tmp_path / "faults.md"
    assert run(page, 1, kill=3, cut=4) == ["| cut | times: 4 | 1 | 7 |", "| kill | times: 3 | 1 | 7 |"]
    assert run(page, 20, kill=60) == ["| cut | times: 4 | 1 | 7 |", "| kill | times: 60 | 20 | 7 |"]


def test_a_test_that_failed_stands_there_until_it_passes(tmp_path):
    page = tmp_path / "faults.md"
    run(page, 1, kill=3)
    assert run(page, 2, failed=True)[1] == "| test_x.py::test_y | **failed** | 2 |  |"
    assert run(page, 2, kill=6) == ["| kill | times: 6 | 2 | 7 |"]


def test_a_run_without_any_fault_leaves_a_page_that_the_next_one_can_read(tmp_path):
    page = tmp_path / "faults.md"
    assert run(page, 1) == []
    assert run(page, 1, kill=3) == ["| kill | times: 3 | 1 | 7 |"]
