"""The promise: after a kill at any moment and a restart, the output is as if nothing had happened."""

import itertools
import json
import random
import subprocess
from pathlib import Path
from typing import Any

import pytest
from kills import ANY, MOVED, TO_CUT, TO_PUBLISH, TO_REMOVE, Hits, Target
from processes import stream_command
from segments import contents, manifest
from servers import wait_until_free
from stream_runs import TABLES, Load, position, stream

from pgcdc_cli.lsn import Lsn

DIRECTORY = {
    "jsonl": ["--rotate-size", "100kB"],
    "jsonl-zstd": ["--rotate-size", "15kB", "--compression", "zstd"],
    "jsonl-gzip-stream": ["--rotate-interval", "200ms", "--compression", "gzip", "--layout", "stream"],
    "arrow": ["--rotate-size", "100kB", "--format", "arrow"],
    "wal2json": [
        *("--rotate-size", "100kB", "--format", "wal2json", "--layout", "stream"),
        *("--wal2json-option", "include-lsn=on"),
    ],
    "debezium": [
        *("--rotate-size", "400kB", "--format", "debezium", "-c", "topic.prefix=shop"),
        *("-c", "snapshot.mode=no_data"),
        *("-c", "skipped.operations=none", "-c", "provide.transaction.metadata=true"),
        *("-c", "key.converter.schemas.enable=false", "-c", "value.converter.schemas.enable=false"),
    ],
}


class KilledRuns:
    """Runs of one command that are killed, one after another, while a load goes on."""

    def __init__(self, database, output: Path, arguments: list[str], seed: int) -> None:
        self._database = database
        self.slot = database.create_slot()
        self.other = database.copy_slot(self.slot)
        self._output = output
        self._command = stream_command(database.uri, self.slot, "-F", "0.05", "-s", "0.1", *arguments)
        self._random = random.Random(seed)

    def kill(self, times: int, aims: list[str], check) -> Hits:
        """Kill `times` runs, at the `aims` in turn."""
        assert subprocess.run([*self._command, "--endpos", "now"], check=False).returncode == 0
        target, hits = Target(self._output), Hits()
        load = Load(self._database.uri, seed=times)
        load.start()
        try:
            for aim in itertools.islice(itertools.cycle(aims), times):
                process = subprocess.Popen(self._command, stderr=subprocess.PIPE, text=True)
                target.kill(process, aim, self._random, hits)
                self._slot_is_not_beyond(target)
                check()
        finally:
            load.stop()
        wait_until_free(self._database, self.slot)
        assert load.transactions > times
        return hits

    def _slot_is_not_beyond(self, target: Target) -> None:
        """Check that the files have everything confirmed to the server, whenever the run was killed."""
        assert Lsn.parse(position(self._database, self.slot)) <= Lsn.parse(target.end_lsn)

    def end(self) -> str:
        position = self._database.execute("SELECT pg_current_wal_insert_lsn()::text").fetchone()[0]
        self._database.execute("SELECT pg_logical_emit_message(false, 'end', '')")
        return position


@pytest.mark.timeout(3600)
@pytest.mark.parametrize("form", DIRECTORY)
def test_a_directory_is_as_if_never_killed(database18, tmp_path: Path, pytestconfig, record_property, form):
    kills = pytestconfig.getoption("--kills")
    database18.execute(TABLES)
    killed, whole = tmp_path / "killed", tmp_path / "whole"
    runs = KilledRuns(database18, killed, ["-D", str(killed), *DIRECTORY[form]], seed=kills)
    finished: dict[Path, tuple[int, int]] = {}

    def finished_files_stay() -> None:
        for path, before in finished.items():
            assert (path.stat().st_mtime_ns, path.stat().st_ino) == before
        for path in killed.glob("*/0*"):
            if path.suffix != ".partial":
                finished[path] = (path.stat().st_mtime_ns, path.stat().st_ino)

    times = kills if form == "jsonl-zstd" else max(kills // 7, 2)
    hits = runs.kill(times, [TO_CUT, TO_PUBLISH, ANY, TO_REMOVE, MOVED], finished_files_stay)
    report(record_property, hits)
    end = runs.end()
    last = stream(
        database18.uri, runs.slot, "-D", str(killed), *DIRECTORY[form], "--endpos", end, timeout=600
    )
    assert (last.returncode, last.stderr) == (0, "")
    unbroken = stream(
        database18.uri, runs.other, "-D", str(whole), *DIRECTORY[form], "--endpos", end, timeout=600
    )
    assert (unbroken.returncode, unbroken.stderr) == (0, "")

    finished_files_stay()
    assert len(manifest(killed)) > 1
    content = events if form == "debezium" else contents
    assert content(killed) == content(whole)
    assert not list(killed.rglob("*.partial"))


@pytest.mark.timeout(1200)
def test_a_file_is_as_if_never_killed(database18, tmp_path: Path, pytestconfig, record_property):
    database18.execute(TABLES)
    killed, whole = tmp_path / "killed.jsonl", tmp_path / "whole.jsonl"
    # There are several status updates between two checkpoints, which must not confirm what isn't durable.
    runs = KilledRuns(database18, killed, ["-f", str(killed), "-F", "0.8", "-s", "0.05"], seed=1)

    times = max(pytestconfig.getoption("--kills") // 7, 2)
    report(record_property, runs.kill(times, [TO_CUT, MOVED, TO_CUT, ANY], lambda: None))
    end = runs.end()
    for slot, path in ((runs.slot, killed), (runs.other, whole)):
        last = stream(database18.uri, slot, "-f", str(path), "--endpos", end, timeout=600)
        assert (last.returncode, last.stderr) == (0, "")

    assert killed.read_bytes() == whole.read_bytes()
    assert killed.stat().st_size > 0


def report(record_property, hits: Hits) -> None:
    """Report what the kills hit, and fail if they hit too little to prove anything."""
    record_property("hits", dict(hits))
    print(hits)
    assert hits[ANY] == hits.aimed.total(), hits
    assert hits.enough(), hits


def events(directory: Path) -> dict[str, list[Any]]:
    """All lines, without the times at which Debezium events were made, which differ between runs."""
    found = {table: [json.loads(line) for line in some] for table, some in contents(directory).items()}
    for event in itertools.chain(*found.values()):
        if event["value"] is not None and "op" in event["value"]:
            del event["value"]["ts_ms"]
    return found
