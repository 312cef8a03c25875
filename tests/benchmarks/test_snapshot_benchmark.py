"""The benchmark runs, on a small scale; its numbers are not checked."""

import json
import subprocess
import sys
from pathlib import Path

SCRIPT = Path(__file__).with_name("snapshot.py")


def test_the_benchmark_measures_every_format_against_psql(tmp_path):
    report = tmp_path / "report.json"
    options = ["--rows", "2000", "--pairs", "1", "--tables", "narrow", "--workers", "2", "--json", report]
    command = [sys.executable, SCRIPT, *options]
    ended = subprocess.run(command, capture_output=True, text=True, check=False)
    assert ended.returncode == 0, ended.stdout + ended.stderr
    results = json.loads(report.read_text())["results"]
    formats = [result["format"] for result in results]
    assert formats[:5] == ["jsonl", "jsonl-zstd", "arrow", "debezium", "pg_dump"]
    assert all(
        result["rows"] == 2000 and result["wall_ratio"] > 0 < result["cpu_ratio"] for result in results
    )
