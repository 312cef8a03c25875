"""The promise: killed at any moment and started again, the output is as if nothing had happened."""

import json
import random
import signal
import subprocess
import time
from pathlib import Path

import pytest
from stream_runs import TABLES, Load, command, contents, manifest, position, stream

from pgcdc_cli.lsn import Lsn

DIRECTORY = {
    "jsonl": ["--rotate-size", "100kB"],
    "jsonl-zstd": ["--rotate-size", "15kB", "--compression", "zstd"],
    "jsonl-gzip-stream": ["--rotate-interval", "200ms", "--compression", "gzip", "--layout", "stream"],
    "arrow": ["--rotate-size", "100kB", "--format", "arrow"],
}


class KilledRuns:
    """Runs of one command that are killed, one after another, while a load goes on."""

    def __init__(self, database, arguments: list[str], seed: int) -> None:
        self._database = database
        self.slot = database.create_slot()
        self.other = database.copy_slot(self.slot)
        self._command = command(database.uri, self.slot, *arguments, "-F", "0.05", "-s", "0.1")
        self._random = random.Random(seed)

    def kill(self, times: int, check) -> None:
        began = time.monotonic()
        assert subprocess.run([*self._command, "--endpos", "now"], check=False).returncode == 0
        whole = time.monotonic() - began
        load = Load(self._database.uri, seed=times)
        load.start()
        for _ in range(times):
            process = subprocess.Popen(self._command, stderr=subprocess.PIPE, text=True)
            # At first it only imports modules; then there is everything from recovery to rotation.
            time.sleep(self._random.uniform(0.6 * whole, whole + 0.4))
            process.send_signal(signal.SIGKILL)
            assert process.wait() == -signal.SIGKILL, process.stderr.read()
            process.stderr.close()
            check()
        load.stop()
        assert load.transactions > times

    def end(self) -> str:
        position = self._database.execute("SELECT pg_current_wal_insert_lsn()::text").fetchone()[0]
        self._database.execute("SELECT pg_logical_emit_message(false, 'end', '')")
        return position


@pytest.mark.timeout(600)
@pytest.mark.parametrize("form", DIRECTORY)
def test_a_directory_is_as_if_never_killed(database18, tmp_path: Path, pytestconfig, form):
    kills = pytestconfig.getoption("--kills")
    database18.execute(TABLES)
    killed, whole = tmp_path / "killed", tmp_path / "whole"
    runs = KilledRuns(database18, ["-D", str(killed), *DIRECTORY[form]], seed=kills)
    finished: dict[Path, tuple[int, int]] = {}

    def the_slot_is_not_beyond_the_files() -> None:
        """What the server was told to be durable is in the files, whenever we were killed."""
        if (killed / "checkpoint.json").exists():
            checkpoint = json.loads((killed / "checkpoint.json").read_text())
            confirmed = position(database18, runs.slot)
            assert Lsn.parse(confirmed) <= Lsn.parse(checkpoint["end_lsn"])

    def finished_files_stay() -> None:
        for path, before in finished.items():
            assert (path.stat().st_mtime_ns, path.stat().st_ino) == before
        for path in killed.glob("*/0*"):
            if path.suffix != ".partial":
                finished[path] = (path.stat().st_mtime_ns, path.stat().st_ino)

    def check() -> None:
        the_slot_is_not_beyond_the_files()
        finished_files_stay()

    runs.kill(kills if form == "jsonl-zstd" else max(kills // 7, 2), check)
    end = runs.end()
    last = stream(database18.uri, runs.slot, "-D", str(killed), *DIRECTORY[form], "--endpos", end)
    assert (last.returncode, last.stderr) == (0, "")
    unbroken = stream(database18.uri, runs.other, "-D", str(whole), *DIRECTORY[form], "--endpos", end)
    assert (unbroken.returncode, unbroken.stderr) == (0, "")

    finished_files_stay()
    assert len(manifest(killed)) > 1
    assert contents(killed) == contents(whole)
    assert not list(killed.rglob("*.partial"))


@pytest.mark.timeout(300)
def test_a_file_is_as_if_never_killed(database18, tmp_path: Path, pytestconfig):
    database18.execute(TABLES)
    killed, whole = tmp_path / "killed.jsonl", tmp_path / "whole.jsonl"
    runs = KilledRuns(database18, ["-f", str(killed)], seed=1)

    runs.kill(max(pytestconfig.getoption("--kills") // 7, 2), lambda: None)
    end = runs.end()
    for slot, path in ((runs.slot, killed), (runs.other, whole)):
        last = stream(database18.uri, slot, "-f", str(path), "--endpos", end)
        assert (last.returncode, last.stderr) == (0, "")

    assert killed.read_bytes() == whole.read_bytes()
    assert killed.stat().st_size > 0
