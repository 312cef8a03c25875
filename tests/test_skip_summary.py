"""Skipped tests are listed, so that nobody believes that they were run."""

import os
import subprocess
import sys
from pathlib import Path

EXAMPLE = """
import pytest

@pytest.mark.skip(reason="no server")
@pytest.mark.parametrize("n", range(3))
def test_marked(n): pass

@pytest.fixture
def disk():
    pytest.skip("no disk")

def test_by_a_fixture(disk): pass
def test_run(): pass
"""


def run(folder: Path, *arguments: str) -> str:
    environment = {**os.environ, "PYTHONPATH": str(Path(__file__).parent), "PYTEST_ADDOPTS": ""}
    line = [sys.executable, "-m", "pytest", "-p", "skip_summary", "--rootdir", folder, folder, *arguments]
    return subprocess.run(
        line, capture_output=True, text=True, check=True, env=environment, cwd=folder
    ).stdout


def test_each_reason_has_a_line_with_its_count(tmp_path: Path) -> None:
    (tmp_path / "test_example.py").write_text(EXAMPLE)
    for processes in ("0", "2"):
        lines = run(tmp_path, "-n", processes).splitlines()
        told = next(number for number, line in enumerate(lines) if " not run: 4 " in line)
        assert lines[told + 1 : told + 3] == ["    3  no server", "    1  no disk"]


def test_a_run_that_left_nothing_out_says_nothing(tmp_path: Path) -> None:
    (tmp_path / "test_example.py").write_text("def test_run(): pass\n")
    assert "not run" not in run(tmp_path)
