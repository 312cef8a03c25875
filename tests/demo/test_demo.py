"""`pgcdc demo` from end to end: as a newcomer runs it, and interrupted early."""

import os
import re
import shutil
import signal
import subprocess
import tempfile
from pathlib import Path

import psutil
import pytest
from processes import PGCDC, path_without, wait_until

from pgcdc_cli.cli.app import run
from pgcdc_cli.demo import demonstrate as demo_run
from pgcdc_cli.demo import shop
from pgcdc_cli.demo.report import DemoResult, LakeView, Moment, OrderView, TableResult
from pgcdc_cli.lsn import Lsn


def processes_that_mention(text):
    commands = [process.info["cmdline"] or [] for process in psutil.process_iter(["cmdline"])]
    return [command for command in commands if any(text in word for word in command)]


@pytest.fixture
def environment():
    """Give the demo its own folder for temporary files, by which its processes are recognized.

    It isn't one of pytest's, which are closed to other users: if root runs the demo, its server runs as one.
    """
    folder = tempfile.mkdtemp(prefix="pgcdc-test-")
    yield {**os.environ, "TMPDIR": folder}
    shutil.rmtree(folder)


@pytest.fixture
def without_java(environment, tmp_path):
    """A machine without a Java, whose locale has no UTF-8: the packaged Java merges."""
    kept = {name: value for name, value in environment.items() if name != "JAVA_HOME"}
    return {**kept, "PATH": path_without("java", tmp_path / "tools"), "LC_ALL": "C"}


def run_demo(keep, environment, file_format):
    options = ["--seconds", "5", "--rate", "300", "--format", file_format, "--keep", keep]
    ended = subprocess.run(
        [*PGCDC, "demo", *options],
        capture_output=True,
        text=True,
        env=environment,
        cwd=keep.parent,
        check=False,
    )
    assert ended.returncode == 0, ended.stderr
    assert list(keep.parent.iterdir()) == [keep]
    # Rows, and merged rows; then rows of the snapshot, changes that the server counts after it, and events.
    counts = r"^shop\.(\w+) +[\d,]+ +[\d,]+ +([\d,]+) +([\d,]+) +([\d,]+) .* yes$"
    found = re.findall(counts, ended.stdout, re.MULTILINE)
    assert sorted(name for name, *_ in found) == sorted(shop.TABLES)
    for name, *numbers in found:
        read, changed, events = (int(number.replace(",", "")) for number in numbers)
        assert read > 0 or name == "promotions"  # the shop empties it at times
        assert events == read + changed > read
    assert "killing the stream (SIGKILL)" in ended.stderr
    assert len(re.findall(r"^      merged 6 tables up to segment", ended.stderr, re.MULTILINE)) == 2
    assert re.search(
        r"^orders +[\d,]+ in version (\d+) +[\d,]+ in version (?!\1$)", ended.stdout, re.MULTILINE
    )
    assert re.search(r"^referring to no row +0 +0$", ended.stdout, re.MULTILINE)
    return ended.stdout


@pytest.mark.timeout(900)
def test_the_demo_ends_with_equal_tables_and_suggests_commands_that_work(tmp_path, without_java):
    (tmp_path / "empty").mkdir()
    said = run_demo(tmp_path / "empty" / "kept", without_java, "jsonl")
    suggestions = said.partition("Look around:")[2].strip().splitlines()
    assert len(suggestions) == 3
    for command in suggestions:
        looked = subprocess.run(command, shell=True, capture_output=True, text=True, check=False)
        assert looked.returncode == 0, looked.stderr
        assert looked.stdout.strip()


@pytest.mark.long
@pytest.mark.timeout(900)
def test_a_demo_with_arrow_files_leaves_its_directory_and_nothing_else(tmp_path, environment):
    run_demo(tmp_path / "kept", environment, "arrow")
    assert sorted(path.name for path in (tmp_path / "kept").iterdir()) == ["files", "warehouse"]
    assert processes_that_mention(str(tmp_path)) == processes_that_mention(environment["TMPDIR"]) == []
    assert list(Path(environment["TMPDIR"]).glob("pgcdc-*")) == []


@pytest.fixture
def demo(tmp_path, environment):
    """A demo that has started its stream."""
    command = [*PGCDC, "demo", "--seconds", "60", "--rate", "50", "--keep", tmp_path / "kept"]
    with subprocess.Popen(command, stderr=subprocess.PIPE, text=True, env=environment) as demo:
        assert any(line.startswith("      $ pgcdc stream") for line in demo.stderr)
        yield demo
        demo.terminate()


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_nothing_outlives_a_demo_that_is_interrupted(environment, demo, number):
    wait_until(lambda: demo.poll() is not None or len(processes_that_mention(environment["TMPDIR"])) >= 2)
    assert demo.poll() is None
    demo.send_signal(number)
    said = demo.stderr.read()
    assert demo.wait(timeout=60) == 130, said
    assert "Traceback" not in said
    assert processes_that_mention(environment["TMPDIR"]) == []


def test_a_directory_in_use_is_refused_before_anything_starts(tmp_path, capfd):
    (tmp_path / "thesis").touch()
    assert run(["demo", "--keep", str(tmp_path)]) == 2
    assert f'pgcdc: error: could not use directory "{tmp_path}": it is not empty' in capfd.readouterr().err


def result(tmp_path, differences=(), orphans=0):
    table = TableResult("shop.orders", 2, 2, 1, 2, 3, 1, 100, differences)
    views = [LakeView(Moment(Lsn(1), {"orders": 0}), {"orders": 2}, found) for found in (0, orphans)]
    orders = [OrderView(7, "new, 1.00", None)]
    return DemoResult(tmp_path, [table], views, orders, 3, {}, 1, 1.0, 0, 0.1, 9.0, [])


@pytest.mark.parametrize(
    ("found", "status", "errors"),
    [
        ({}, 0, []),
        (
            {"differences": ["id=1, column total: 1 in the source"]},
            1,
            ["id=1, column total: 1 in the source", "could not get equal tables: shop.orders"],
        ),
        ({"orphans": 2}, 1, ["could not get consistent versions: 2 rows refer to no row"]),
    ],
)
def test_only_equal_and_consistent_tables_are_success(tmp_path, monkeypatch, capfd, found, status, errors):
    ended = result(tmp_path, **found)
    monkeypatch.setattr(demo_run, "run_demo", lambda _settings, _reporter: ended)
    assert run(["demo"]) == status
    said = capfd.readouterr().err
    assert [error for error in errors if error not in said] == []
