"""The benchmark runs, on a small scale; its numbers are not checked."""

import json
import subprocess
import sys
from pathlib import Path

SCRIPT = Path(__file__).with_name("large_transaction.py")


def test_the_benchmark_measures_both_ways(tmp_path):
    report = tmp_path / "report.json"
    command = [sys.executable, SCRIPT, "--rows", "2000", "--runs", "1", "--json", report]
    ended = subprocess.run(command, capture_output=True, text=True, check=False)
    assert ended.returncode == 0, ended.stdout + ended.stderr
    results = json.loads(report.read_text())
    assert results.keys() == {"until_commit", "first_byte", "last_row"}
    assert all(result["streamed"] > 0 < result["whole"] for result in results.values())
