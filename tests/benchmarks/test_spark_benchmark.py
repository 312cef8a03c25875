"""The benchmark runs, on a small scale; its numbers are not checked."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

SCRIPT = Path(__file__).with_name("spark.py")
SIZES = {"changes": 2000, "rows": 400, "segments": 2, "few": 10, "large": 2000, "small": 400}


@pytest.mark.long
@pytest.mark.parametrize("lake", ["delta", "iceberg"])
def test_the_benchmark_measures_every_part(tmp_path, lake):
    report = tmp_path / "report.json"
    options = [f"--{name}={size}" for name, size in SIZES.items()]
    options += ["--pairs=1", "--growth=4", "--tables=2", "--formats=jsonl,arrow,debezium", f"--lakes={lake}"]
    ended = subprocess.run(
        [sys.executable, SCRIPT, *options, "--master=local[2]", "--json", report],
        capture_output=True,
        text=True,
        check=False,
    )
    assert ended.returncode == 0, ended.stdout + ended.stderr
    results = json.loads(report.read_text())["results"]
    parts = [(result["part"], result["format"]) for result in results]
    rewritten = [("rewrite", encoding) for encoding in ("jsonl", "arrow", "debezium")]
    assert parts == [*rewritten, ("few", "arrow"), ("growth", "jsonl"), ("growth", "jsonl")]
    assert all(result["seconds"] > 0 < result["ratio"] for result in results)
    (few,) = (result for result in results if result["part"] == "few")
    assert 0 < few["written"] < few["copied"] <= few["whole"] * 1.5
