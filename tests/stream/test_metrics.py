"""`--metrics-port` and `--metrics-file`: a run's metrics as Prometheus reads them."""

import os
import re
import socket
import stat
import subprocess
import sys
import time
from urllib.error import HTTPError
from urllib.request import urlopen

import psycopg
import pytest
from debian_server import free_port
from processes import PGCDC, stream_command, wait_until
from prometheus_client.parser import text_string_to_metric_families
from stream_runs import NOW, end_of_log, end_session, insert, make_slot, stream

from pgcdc_cli.cli import metrics
from pgcdc_cli.lsn import Lsn
from pgcdc_cli.stream.settings import RunTotals

DOCUMENT = "docs/metrics.md"
EACH_REPORT = """
import sys
from pgcdc_cli.cli.app import main
from pgcdc_cli.cli.running import ProgressLine

ProgressLine.__call__ = lambda self, totals: print(totals.wal_end, file=sys.stderr)
sys.exit(main())
"""


def values(text):
    """Each metric's value by name; the slot is the only label of all."""
    samples = [sample for family in text_string_to_metric_families(text) for sample in family.samples]
    assert len({sample.labels["slot"] for sample in samples}) == 1
    return {sample.name: sample.value for sample in samples}


@pytest.fixture
def port():
    return free_port()


def scraped(port):
    with urlopen(f"http://127.0.0.1:{port}/metrics") as answer:
        return values(answer.read().decode())


def test_a_running_stream_answers(source, follow, tmp_path, port):
    slot = source.create_slot()
    following = follow(source.uri, slot, tmp_path / "f", "-F", "0.1", "--metrics-port", str(port))
    insert(source, 1, 3)
    insert(source, 4, 5)
    wait_until(lambda: len(following.rows()) == 5)
    found = wait_until(
        lambda: (now := scraped(port))["pgcdc_rows_total"] == 5 and not now["pgcdc_lag_bytes"] and now
    )
    assert found["pgcdc_transactions_total"] == 2
    assert found["pgcdc_durable_lsn"] <= found["pgcdc_written_lsn"] <= end_of_log(source)
    assert found["pgcdc_start_timestamp_seconds"] < found["pgcdc_seen_timestamp_seconds"]
    assert "pgcdc_exit_status" not in found
    end_session(source, slot, following.process)
    insert(source, 6, 6)
    wait_until(lambda: scraped(port)["pgcdc_rows_total"] == 6)
    assert scraped(port)["pgcdc_reconnects_total"] == 1
    assert following.stop()[0] == 0


def test_a_run_that_reports_nothing_for_long_is_not_healthy(port, monkeypatch):
    """Before its first report, a stream may wait for its slot, however long."""
    output = metrics.MetricsOutput("host=/nowhere", "s", metrics.Address("127.0.0.1", port), None)
    with output.open():
        monkeypatch.setattr(metrics, "_SILENCE", 0)
        assert health(port) == (200, b"ok\n")
        output(RunTotals())
        assert health(port) == (503, b"no progress for 15 minutes\n")
        monkeypatch.undo()
        assert health(port) == (200, b"ok\n")
        assert scraped(port)["pgcdc_rows_total"] == 0


@pytest.mark.parametrize("hours", [1, -1])
def test_a_clock_that_is_set_makes_no_run_healthy_or_not(port, monkeypatch, hours):
    output = metrics.MetricsOutput("host=/nowhere", "s", metrics.Address("127.0.0.1", port), None)
    with output.open():
        output(RunTotals())
        reported, began = time.time(), time.monotonic()
        monkeypatch.setattr(time, "time", lambda: reported + hours * 3600)
        assert health(port) == (200, b"ok\n")
        monkeypatch.setattr(time, "monotonic", lambda: began + 1800)
        assert health(port) == (503, b"no progress for 15 minutes\n")


def health(port):
    try:
        with urlopen(f"http://127.0.0.1:{port}/healthz") as answer:
            return answer.status, answer.read()
    except HTTPError as error:
        return error.code, error.read()


def test_a_run_leaves_how_it_ended(source, tmp_path):
    slot, file = source.create_slot(), tmp_path / "pgcdc.prom"
    insert(source, 1, 3)
    run = stream(source.uri, slot, "-D", str(tmp_path / "d"), "--endpos", "now", "--metrics-file", str(file))
    assert (run.returncode, run.stderr) == (0, "")
    assert values(file.read_text())["pgcdc_rows_total"] == 3
    assert values(file.read_text())["pgcdc_exit_status"] == 0
    assert stream(source.uri, "missing", "-f", "-", "--metrics-file", str(file)).returncode == 5
    assert values(file.read_text())["pgcdc_exit_status"] == 5


@pytest.mark.parametrize(
    ("error", "status"), [(KeyboardInterrupt, 130), (BrokenPipeError, 141), (RuntimeError, 1)]
)
def test_a_run_that_ends_without_an_error_of_its_own_leaves_the_status_it_ends_with(tmp_path, error, status):
    file = tmp_path / "pgcdc.prom"
    output = metrics.MetricsOutput("host=/nowhere", "s", None, file)
    with pytest.raises(error), output.open():
        raise error
    assert values(file.read_text())["pgcdc_exit_status"] == status


def test_the_collector_is_another_user_and_may_read_the_file(source, tmp_path):
    file = tmp_path / "pgcdc.prom"
    run = stream(source.uri, source.create_slot(), "-f", "-", *NOW, "--metrics-file", str(file))
    assert (run.returncode, run.stderr) == (0, "")
    assert stat.filemode(file.stat().st_mode) == "-rw-r--r--"
    assert list(tmp_path.iterdir()) == [file]


def test_a_run_that_receives_nothing_has_positions_all_the_same(source, tmp_path):
    slot, file = source.create_slot(), tmp_path / "pgcdc.prom"
    insert(source, 1, 3)
    for rows in (3, 0):
        run = stream(source.uri, slot, "-D", str(tmp_path / "d"), *NOW, "--metrics-file", str(file))
        assert (run.returncode, run.stderr) == (0, "")
        found = values(file.read_text())
        assert found["pgcdc_rows_total"] == rows
        assert 0 < found["pgcdc_durable_lsn"] == found["pgcdc_written_lsn"]
        assert found["pgcdc_server_lsn"] > 0
        assert found["pgcdc_lag_bytes"] == 0


def test_a_run_that_is_behind_knows_from_its_first_report_where_the_servers_wal_ends(source, tmp_path):
    """A server that has to decode much before its first change to send says nothing meanwhile."""
    slot = source.create_slot()
    insert(source, 1, 1)
    source.execute("SELECT pg_logical_emit_message(false, '', repeat('x', 20000000))")
    insert(source, 2, 2)
    before = Lsn.parse(source.execute("SELECT pg_current_wal_flush_lsn()::text").fetchone()[0])
    line = stream_command(source.uri, slot, "-D", str(tmp_path / "d"), *NOW)
    run = subprocess.run(
        [sys.executable, "-c", EACH_REPORT, *line[len(PGCDC) :]], check=False, capture_output=True, text=True
    )
    assert run.returncode == 0
    assert min(map(Lsn.parse, run.stderr.split())) >= before


def test_the_guide_lists_every_metric(source, tmp_path, pytestconfig):
    file = tmp_path / "pgcdc.prom"
    stream(source.uri, source.create_slot(), "-f", "-", "--endpos", "now", "--metrics-file", str(file))
    guide = (pytestconfig.rootpath / DOCUMENT).read_text()
    listed = set(re.findall(r"^\| `(pgcdc_\w+)`", guide, re.MULTILINE))
    # By default the server sets no limit.
    assert listed - {"pgcdc_slot_safe_wal_bytes"} == set(values(file.read_text()))


def test_how_near_the_slot_is_to_being_lost(own_server, tmp_path, monkeypatch):
    server = own_server(18, settings={"max_slot_wal_keep_size": "1GB"})
    make_slot(server.uri(), "s")
    monkeypatch.setattr(metrics, "_SLOT_INTERVAL", 0.1)
    watch = metrics.SlotWatch(server.uri(), "s")
    with psycopg.connect(server.uri(), autocommit=True) as admin, watch.running():
        before = wait_until(lambda: watch.found)
        admin.execute("SELECT pg_logical_emit_message(false, '', repeat('x', 20000000))")
        now = wait_until(lambda: (now := watch.found) and now.retained_bytes > 20_000_000 and now)
        assert now.safe_wal_bytes < before.safe_wal_bytes
        server.pg_ctl("stop", "-m", "fast")
        wait_until(lambda: watch.found is None)
    server.pg_ctl("restart")
    file = tmp_path / "pgcdc.prom"
    run = stream(server.uri(), "s", "-D", str(tmp_path / "d"), *NOW, "--metrics-file", str(file))
    assert (run.returncode, run.stderr) == (0, "")
    found = values(file.read_text())
    assert found["pgcdc_slot_retained_bytes"] > 0
    assert found["pgcdc_slot_safe_wal_bytes"] > 900_000_000
    with psycopg.connect(server.uri(), autocommit=True) as admin:
        admin.execute("SELECT pg_drop_replication_slot('s')")
    run = stream(server.uri(), "s", "-D", str(tmp_path / "d"), *NOW, "--metrics-file", str(file))
    assert run.returncode == 5
    assert "pgcdc_slot_retained_bytes" not in values(file.read_text())


def test_what_can_not_be_had_is_refused_before_the_stream(source, tmp_path, port):
    slot = source.create_slot()
    with socket.create_server(("127.0.0.1", port)):
        refused = stream(source.uri, slot, "-f", "-", "--metrics-port", str(port))
    assert refused.returncode == 9
    assert refused.stderr == (
        f'pgcdc: error: could not listen on "127.0.0.1:{port}": Address already in use\n'
        "hint: give --metrics-port another port\n"
    )
    nowhere = tmp_path / "nowhere" / "pgcdc.prom"
    refused = stream(source.uri, slot, "-f", "-", "--metrics-file", str(nowhere))
    assert refused.returncode == 9
    assert f'could not write "{nowhere}": No such file or directory' in refused.stderr
    assert "hint: a folder of the path is missing: create it, or" in refused.stderr
    assert stream(source.uri, slot, "-f", "-", "--metrics-port", "web").returncode == 2


def test_what_is_no_file_is_not_replaced_by_one(source, tmp_path):
    """Root could otherwise replace even /dev/null, by a rename."""
    device = tmp_path / "device"
    os.mkfifo(device)
    refused = stream(source.uri, source.create_slot(), "-f", "-", *NOW, "--metrics-file", str(device))
    assert refused.returncode == 9
    assert f'could not write "{device}": it is not a regular file' in refused.stderr
    assert device.is_fifo()


def test_without_the_library_it_says_what_to_install(source, tmp_path, monkeypatch):
    (tmp_path / "prometheus_client.py").write_text("raise ImportError")
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    line = stream_command(source.uri, "s", "-f", "-", "--metrics-file", tmp_path / "file")
    refused = subprocess.run(line, capture_output=True, text=True, check=False)
    assert refused.returncode == 2
    assert refused.stderr == (
        "pgcdc: error: could not export metrics: prometheus_client isn't installed\n"
        "hint: pip install 'pgcdc-cli[metrics]'\n"
    )
