"""The benchmarks of growth and of several walsenders run, on a small scale."""

import json
import subprocess
import sys
from pathlib import Path

FOLDER = Path(__file__).parent


def ran(script, *arguments):
    command = [sys.executable, FOLDER / script, *map(str, arguments)]
    ended = subprocess.run(command, capture_output=True, text=True, check=False)
    assert ended.returncode == 0, ended.stdout + ended.stderr
    return ended.stdout


def test_growth_and_several_walsenders_get_a_section_each(tmp_path):
    grown, divided = tmp_path / "growth.json", tmp_path / "walsenders.json"
    few = ["--rows", "100", "--tables", "3", "--columns", "1600", "--values", "3200"]
    ran("growth.py", *few, "--json", grown)
    measured = [(one["axis"], one["size"], one["rows"]) for one in json.loads(grown.read_text())["growth"]]
    assert measured == [("rows", 100, 100), ("tables", 3, 1600), ("columns", 1600, 2)]
    ran("walsenders.py", "--rows", 2000, "--processes", "1,3", "--runs", 1, "--json", divided)
    page = ran("performance_page.py", grown, divided)
    assert [line for line in page.splitlines() if line.startswith("## ")] == [
        "## Growth",
        "## More than one walsender",
        "## Where the time goes",
    ]
    assert "| columns (jsonl) | rows |" in page
    assert "| 1,600 | 2 |" in page
    assert "2,000 rows of four tables, jsonl; one run." in page
