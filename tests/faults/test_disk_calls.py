"""Each call of a run's disk goes wrong in each way, also for spools: nothing is lost or doubled.

An error ends the run with exit status 9 and a hint; a crash prints nothing; a short write is continued. The
next run recovers. Here commands write what a server sent; tests/sinks makes all calls of a script fail.
"""

import json
import random
import subprocess
import sys
from collections import Counter
from itertools import cycle
from pathlib import Path

import pytest
from failing_command import SLOW
from logs import Log
from processes import PGCDC, peak_memory, stream_command
from segments import contents
from servers import wait_until_free
from warm_process import run_warm

from pgcdc_cli.lsn import Lsn

COMMAND = Path(__file__).with_name("failing_command.py")
TABLES = "CREATE TABLE t (a int PRIMARY KEY, b text); CREATE PUBLICATION pub FOR TABLE t"
ERRORS = ("ENOSPC", "EIO", "EDQUOT", "EROFS", "EMFILE")
CRASHES = ("crash before", "crash after", "torn")
CONFIRMING = ("crash before", "crash after", "crash when sent")
TRIES = 5
"""Runs for each crash that is to happen: a run may end before it makes the call."""
ALL = (*ERRORS, *CRASHES, "short")
CHANGES = ("write", "fsync", "rename", "open", "mkdir", "unlink", "ftruncate", "rmdir")
"""The calls that change something; tests/sinks makes those fail that only look."""
FORMS = {
    "directory": ("-D", "--rotate-size", "400kB"),
    "file": ("-f",),
}
ROWS = "INSERT INTO t SELECT g, repeat('x', 100) FROM generate_series({}, {}) g"


@pytest.fixture(scope="module")
def log(own_server):
    """A log with small, streamed, rolled back and prepared transactions; `log.last` is its end."""
    settings = {"logical_decoding_work_mem": "64kB", "max_prepared_transactions": "5"}
    log = Log(own_server(18, settings | {"wal_sender_timeout": "2s"}), TABLES)
    log.slot = log.create_slot(two_phase=True)
    log.run(ROWS.format(1, 5))
    log.run("BEGIN", ROWS.format(10, 3000), "SAVEPOINT s", ROWS.format(3001, 5000), "ROLLBACK TO s", "COMMIT")
    log.run("BEGIN", ROWS.format(6000, 9000), "PREPARE TRANSACTION 'large'")
    log.run("BEGIN", ROWS.format(9001, 9003), "PREPARE TRANSACTION 'small'")
    log.run(ROWS.format(10_000, 12_000))
    log.run("COMMIT PREPARED 'large'")
    log.run("ROLLBACK PREPARED 'small'", "UPDATE t SET b = '' WHERE a < 3000")
    log.last = log.end()
    yield log
    log.drop()


def two_phase_copy(log) -> str:
    """A copy of the slot; the server's own isn't two-phase, of which a run warns."""
    slot = log.copy_slot(log.slot)
    assert run_warm([*PGCDC, "slot", "alter", slot, "-d", log.uri, "--two-phase"]).returncode == 0
    return slot


class Runs:
    """Commands with one form of output, each with a slot at the log's beginning; `fsync` is in seconds."""

    def __init__(self, log: Log, form: str, place: Path, fsync: str = "0.02") -> None:
        self._log, self._form, self._place, self._fsync, self._count = log, form, place, fsync, 0

    def try_one(self, how: str, target: tuple[str, str, int]) -> tuple[int, str, object, list[str]]:
        """Run with one call that goes wrong, then without; return status, errors, content and calls."""
        self._count += 1
        place = self._place / str(self._count)
        place.mkdir()
        option, *others = FORMS[self._form]
        out, calls = place / "out", place / "calls"
        slot = two_phase_copy(self._log)
        line = stream_command(
            self._log.uri,
            slot,
            *(
                option,
                out,
                *others,
                "--two-phase",
                "--endpos",
                self._log.last,
                "-F",
                self._fsync,
                "-s",
                "0.02",
            ),
        )
        failing = [sys.executable, COMMAND, how, *map(str, target), calls, *line[3:]]
        first = subprocess.run(failing, capture_output=True, text=True, timeout=120, check=False)
        wait_until_free(self._log, slot)
        assert self._log.confirmed(slot) <= self._durable(out), "more was confirmed than was durable"
        last = run_warm(line)
        assert (last.returncode, last.stderr) == (0, ""), (how, target)
        assert not list(place.rglob("*.spool")), (how, target)
        self._log.drop_slot(slot)
        content = contents(out) if self._form == "directory" else out.read_bytes()
        return first.returncode, first.stderr, content, calls.read_text().splitlines()

    def _durable(self, out: Path) -> Lsn:
        """The checkpoint's position; while there is none, no more is confirmed than at the start."""
        path = out / "checkpoint.json" if self._form == "directory" else Path(f"{out}.checkpoint")
        if not path.exists():
            return self._log.confirmed(self._log.slot)
        return Lsn.parse(json.loads(path.read_bytes())["end_lsn"])


@pytest.mark.timeout(0)
@pytest.mark.parametrize("form", FORMS)
def test_each_call_goes_wrong_in_each_way(log, form, tmp_path, size, seed, tell):
    runs, counts, dice = Runs(log, form, tmp_path), Counter(), random.Random(seed)
    status, errors, whole, calls = runs.try_one("nothing", ("", "", 0))
    assert (status, errors) == (0, "")
    met, ways = set(), cycle(dice.sample(ALL, len(ALL)))
    for target in targets(calls, size, dice):
        for _ in range(min(size, len(ALL))):
            how = next(ways)
            status, errors, content, _ = runs.try_one(how, target)
            assert content == whole, (how, target)
            check_end(how, status, errors, target)
            counts[how] += 1
            met.add(target[:2])
    assert {("write", ".spool"), ("fsync", ".spool")} <= met
    tell(f"calls of the disk, {form}", {"functions and files": len(met), **counts})


def targets(calls: list[str], size: int, dice: random.Random) -> list[tuple[str, str, int]]:
    """Choose some calls of each function on each kind of file: one, or `size`."""
    found: dict[tuple[str, str], list[int]] = {}
    for call in calls:
        function, kind, number = call.split("\t")
        if function in CHANGES:
            found.setdefault((function, kind), []).append(int(number))
    return [
        (*place, number)
        for place, numbers in found.items()
        for number in dice.sample(numbers, min(size, len(numbers)))
    ]


def check_end(how: str, status: int, errors: str, target: tuple[str, str, int]) -> None:
    """The run may also succeed: runs flush at different times, so it may end before it makes the call."""
    if (status, errors) == (0, ""):
        return
    if how in ERRORS:
        assert status == 9, (how, target, errors)
        error, hint = errors.splitlines()
        assert error.startswith("pgcdc: error: could not "), errors
        assert hint.startswith("hint: ")
    else:
        assert (status, errors) == (-9, ""), (how, target)
        assert how in {*CRASHES, *CONFIRMING}


@pytest.mark.timeout(0)
@pytest.mark.parametrize("form", ["directory", pytest.param("file", marks=pytest.mark.long)])
def test_a_confirmation_may_be_lost_with_the_run(log, form, tmp_path, size, seed, tell):
    """It is lost before it is sent, in libpq's buffer, or on its way: only durable changes are confirmed."""
    # With this interval more is written than is durable, most of the time.
    runs, counts, dice = Runs(log, form, tmp_path, "0.2"), Counter(), random.Random(seed)
    _, _, whole, calls = runs.try_one("nothing", ("", "", 0))
    number = sum(call.startswith("update\tfeedback") for call in calls)
    for how in CONFIRMING:
        for tries in range(TRIES * size):
            # The first update has the slot's old position; another run may end before it sends the last ones.
            # Each sends the second, which tells of the end at the latest.
            latest = max(1, number // 2) if tries % TRIES < TRIES - 1 else 1
            target = ("update", "feedback", dice.randint(1, latest))
            status, errors, content, _ = runs.try_one(how, target)
            assert content == whole, (how, target)
            check_end(how, status, errors, target)
            counts[how] += status == -9
            if counts[how] == size:
                break
        assert counts[how], how
    tell(f"confirmations, {form}", {"updates": number, **counts})


def test_a_directory_that_is_deleted_ends_the_run_and_is_never_taken_for_a_new_one(log, tmp_path):
    out, calls = tmp_path / "out", tmp_path / "calls"
    slot = log.copy_slot(log.slot)
    line = stream_command(log.uri, slot, "-D", out, "--endpos", log.last, "-F", "0.02", "-s", "0.02")
    failing = [sys.executable, COMMAND, "folder gone", "fsync", ".jsonl", "1", calls, *line[3:]]
    first = subprocess.run(failing, capture_output=True, text=True, timeout=120, check=False)
    assert first.returncode == 9, first.stderr
    assert "hint: " in first.stderr
    again = run_warm(line)
    confirmed = log.confirmed(slot)
    log.drop_slot(slot)
    if again.returncode == 0:
        # Nothing had been confirmed, so everything was written again.
        assert sum(len(lines) for lines in contents(out).values()) > 0
    else:
        assert again.returncode in {6, 10, 13}, (again.stderr, confirmed)


@pytest.mark.parametrize(
    ("function", "kind"), [("write", ".jsonl"), ("fsync", ".jsonl"), ("write", ".spool"), ("fsync", ".spool")]
)
def test_a_slow_disk_costs_no_connection(log, tmp_path, function, kind, size, tell):
    """One call takes longer than the server waits for a reader, and the run prints nothing about it."""
    seconds = 5 * size
    slot, out, calls = two_phase_copy(log), tmp_path / "out", tmp_path / "calls"
    line = stream_command(log.uri, slot, "-D", out, "--two-phase", "--endpos", log.last, "-F", "0.02")
    failing = [sys.executable, COMMAND, f"{SLOW}{seconds}", function, kind, "0", calls, *line[3:]]
    peak = peak_memory([*map(str, failing)])
    log.drop_slot(slot)
    assert f"{function}\t{kind}\t0" in calls.read_text().splitlines()
    tell(f"a slow {function} on {kind}", {"seconds": seconds, "memory in MB": peak >> 20})
