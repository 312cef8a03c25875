"""Outputs that can't be written: what was not written is never confirmed."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
from processes import PGCDC, stream_command
from segments import contents
from stream_runs import NOW, in_directory, insert, position, refused, stream


@pytest.fixture
def small_disk(mount):
    return mount("2m")


@pytest.mark.parametrize("form", [["jsonl"], ["arrow", "--rotate-size", "200kB"]])
def test_a_full_file_system(source, small_disk, form):
    slot, out = source.create_slot(), small_disk / "out"
    insert(source, 1, 1000)
    assert stream(source.uri, slot, "-D", str(out), "--format", *form, *NOW).returncode == 0
    filler = small_disk / "filler"
    filler.write_bytes(bytes(1_500_000))
    for low in range(1001, 30_001, 1000):
        insert(source, low, low + 999)
    before = position(source, slot)
    run = stream(source.uri, slot, "-D", str(out), "--format", *form, *NOW, "-F", "0")
    assert run.returncode == 9
    error, hint = run.stderr.splitlines()
    assert re.fullmatch(
        'pgcdc: error: could not (write|open|fsync|create folder) ".*": No space left on device', error
    )
    assert hint.endswith("make room (df -h, df -i) and run again")
    if form == ["jsonl"]:
        assert position(source, slot) == before
    filler.unlink()
    subprocess.run(["mount", "-o", "remount,size=64m", small_disk], check=True)
    assert stream(source.uri, slot, "-D", str(out), "--format", *form, *NOW).returncode == 0
    found = in_directory(out) if form == ["jsonl"] else arrow_numbers(out)
    assert found == list(range(1, 30_001))


def test_a_file_system_that_may_only_be_read(source, small_disk):
    slot, out = source.create_slot(), small_disk / "out"
    insert(source, 1, 1)
    subprocess.run(["mount", "-o", "remount,ro", small_disk], check=True)
    run = stream(source.uri, slot, "-D", str(out), *NOW)
    hint = "mount the file system for writing, or write to another directory or file"
    refused(run, 9, f'create folder "{out}": Read-only file system', hint)
    subprocess.run(["mount", "-o", "remount,rw", small_disk], check=True)
    assert stream(source.uri, slot, "-D", str(out), *NOW).returncode == 0
    assert in_directory(out) == [1]


def arrow_numbers(directory: Path) -> list[int]:
    return [row["a"] for row in contents(directory)["public.t"] if isinstance(row, dict)]


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can become somebody else")
def test_a_directory_that_may_not_be_written(source):
    place = Path("/tmp") / f"pgcdc-readonly-{os.getpid()}"
    place.mkdir(mode=0o755)
    slot = source.create_slot()
    before = position(source, slot)
    try:
        # Another user may not be able to read this Python, so it is loaded first, and then the user changes.
        code = (
            "import os, sys, pgcdc_cli.stream.run, pgcdc_cli.cli.stream, pgcdc_cli.sinks.directory_sink;"
            "from pgcdc_cli.cli.app import run; import pgcdc_cli.sinks.file_sink;"
            "sys.path[:] = sys.path; os.setresuid(65534, 65534, 65534); sys.exit(run(sys.argv[1:]))"
        )
        line = stream_command(source.uri, slot, "-D", str(place / "out"), *NOW)[len(PGCDC) :]
        line = [sys.executable, "-c", code, *line]
        run = subprocess.run(line, capture_output=True, text=True, check=False)
        hint = "check the owner and mode of the path and its folder, and which user runs pgcdc"
        refused(run, 9, f'create folder "{place}/out": Permission denied', hint)
    finally:
        place.rmdir()
    assert position(source, slot) == before


def test_a_disk_that_is_not_mounted_takes_nothing_from_the_slot(source, tmp_path):
    slot = source.create_slot()
    insert(source, 1, 1)
    before = position(source, slot)
    out = tmp_path / "cdc" / "changes"
    run = stream(source.uri, slot, "-D", str(out), *NOW)
    assert run.returncode == 9
    assert f'could not create folder "{out}": No such file or directory' in run.stderr
    assert list(tmp_path.iterdir()) == []
    assert position(source, slot) == before


def test_standard_output_that_is_closed(source):
    slot = source.create_slot()
    insert(source, 1, 1)
    before = position(source, slot)
    line = stream_command(source.uri, slot, *NOW)
    run = subprocess.run(["sh", "-c", '"$@" >&-', "sh", *line], capture_output=True, text=True, check=False)
    assert run.returncode == 9
    assert re.fullmatch("pgcdc: error: could not .*\nhint: .*\n", run.stderr)
    assert position(source, slot) == before
