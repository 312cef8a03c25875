"""The benchmark runs, on a small scale; its numbers are not checked."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

SCRIPT = Path(__file__).with_name("latency.py")


@pytest.mark.long
def test_the_benchmark_measures_every_way_under_both_loads(tmp_path):
    report = tmp_path / "report.json"
    small = [
        "--seconds",
        "1",
        "--rates",
        "200",
        "--ways",
        "jsonl,recvlogical,arrow-directory",
        "--json",
        report,
    ]
    ended = subprocess.run([sys.executable, SCRIPT, *small], capture_output=True, text=True, check=False)
    assert ended.returncode == 0, ended.stdout + ended.stderr
    results = json.loads(report.read_text())["latency"]
    ways = {"pg_recvlogical", "jsonl", "recvlogical", "arrow-directory"}
    for workload in ("one row", "TPC-B"):
        rows = {result["way"]: result for result in results if result["workload"] == workload}
        assert rows.keys() == ways
        assert all(rows[way]["p99"] >= rows[way]["p50"] > 0 for way in ways - {"arrow-directory"})
    assert {result["way"] for result in results if result["workload"] == "idle"} == ways
