"""The benchmark runs, on a small scale; its numbers are not checked."""

import json
import subprocess
import sys
from itertools import product
from pathlib import Path

import certificates
import pytest
from debian_server import DebianServer
from stream_workloads import WORKLOADS

SCRIPT = Path(__file__).with_name("stream.py")
PAGE = Path(__file__).with_name("performance_page.py")
NO_TLS = DebianServer.missing() or certificates.MISSING


def measured(report, *options):
    ended = subprocess.run(
        [sys.executable, SCRIPT, "--rows", "2000", "--pairs", "1", *options, "--json", report],
        capture_output=True,
        text=True,
        check=False,
    )
    assert ended.returncode == 0, ended.stdout + ended.stderr
    results = json.loads(report.read_text())["results"]
    assert all(result["wall_ratio"] > 0 < result["cpu_ratio"] for result in results)
    assert all(result["peak_rss"] > result["pg_recvlogical_peak_rss"] > 0 for result in results)
    assert ended.stdout.count("\n") == 2 + len(results)
    return {
        (result["workload"], result["connection"], result["format"], result["transactions"])
        for result in results
    }


def test_the_benchmark_measures_every_format_against_pg_recvlogical(tmp_path):
    ways = list(product(("tcp", "socket"), ("jsonl-file", "arrow", "recvlogical")))
    found = measured(tmp_path / "report.json", "--formats", "jsonl-file,arrow,recvlogical")
    assert found == {("one", *way, 1) for way in ways} | {("many", *way, 20) for way in ways}


def test_it_measures_small_transactions_of_several_tables(tmp_path):
    report = tmp_path / "report.json"
    options = ["--workloads", "tpcb", "--connections", "tcp", "--formats", "debezium,raw"]
    found = measured(report, *options, "--against", "null")
    assert found == {("tpcb", "tcp", format_, 200) for format_ in ("debezium", "raw")}
    page = subprocess.run([sys.executable, PAGE, report], capture_output=True, text=True, check=True).stdout
    assert "## Compared with pg_recvlogical discarding its output" in page
    assert page.count("| | debezium | raw |") == page.count("| 800 rows: pgbench's TPC-B |") == 4


@pytest.mark.skipif(NO_TLS is not None, reason=NO_TLS or "")
def test_it_measures_encrypted_connections(tmp_path):
    report = tmp_path / "report.json"
    found = measured(report, "--workloads", "one", "--connections", "tls", "--formats", "jsonl")
    assert found == {("one", "tls", "jsonl", 1)}
    page = subprocess.run([sys.executable, PAGE, report], capture_output=True, text=True, check=True).stdout
    assert "## Compared with pg_recvlogical over TLS" in page


@pytest.mark.long
@pytest.mark.skipif(
    DebianServer.missing("wal2json") is not None, reason=DebianServer.missing("wal2json") or ""
)
def test_it_measures_every_workload_beside_the_server_s_own_json(tmp_path):
    options = ["--workloads", ",".join(WORKLOADS), "--connections", "tcp", "--formats", "wal2json"]
    found = measured(tmp_path / "report.json", *options, "--against", "wal2json")
    assert {workload for workload, *_ in found} == set(WORKLOADS)
