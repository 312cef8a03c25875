"""The benchmark runs, on a small scale; its numbers are not checked."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

SCRIPT = Path(__file__).with_name("follow.py")


@pytest.mark.long
def test_the_benchmark_follows_beside_another_checkout(tmp_path):
    report = tmp_path / "report.json"
    small = ["--merges", "2", "--tables", "1", "--beside", SCRIPT.parents[2], "--json", report]
    ended = subprocess.run([sys.executable, SCRIPT, *small], capture_output=True, text=True, check=False)
    assert ended.returncode == 0, ended.stdout + ended.stderr
    results = json.loads(report.read_text())
    assert results.keys() == {"seconds", "cpu"}
    assert all(told["to beside"] > 0 < told["warm"] for told in results.values())
