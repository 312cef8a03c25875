"""`--on-segment`: a command is run for each finished segment, at least once, in order."""

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from processes import stream_command, wait_until
from segments import manifest
from stream_runs import NOW, checkpoint, in_directory, insert, stream

DOCUMENT = Path(__file__).parents[2] / "docs" / "delivery.md"
AWS = """#!/bin/sh
# Copies as `aws s3 cp` does, whole or not at all. Some of its calls fail, some come to no end.
calls=$(($(cat "$BUCKET.calls" 2>/dev/null) + 1))
echo $calls >"$BUCKET.calls"
case $calls in
    2 | 8) exit 1 ;;
    3 | 5 | 9 | 13) echo $$ >"$BUCKET.stuck"; exec sleep 600 ;;
esac
mkdir -p "$(dirname "$4")" && cat "$3" >"$4.new" && mv "$4.new" "$4"
"""
IGNORING = """
import os, signal, sys
signal.signal(signal.SIGCHLD, signal.SIG_IGN)
os.execv(sys.argv[1], sys.argv[1:])
"""
APPEND = 'cat >>"$PGCDC_DIRECTORY/../handed"'


@pytest.fixture
def handed(tmp_path):
    """A function that returns the segments as the command received them."""

    def read():
        path = tmp_path / "handed"
        return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []

    return read


@pytest.fixture
def run(source, tmp_path):
    slot = source.create_slot()

    def start(command, *arguments):
        out = str(tmp_path / "out")
        return stream(source.uri, slot, "-D", out, "--on-segment", command, "--endpos", "now", *arguments)

    return start


def test_each_segment_is_handed_over_once_it_is_finished(source, run, handed, tmp_path):
    for first in (1, 4, 7):
        insert(source, first, first + 2)
        assert (done := run(APPEND)).returncode == 0, done.stderr
    assert handed() == manifest(tmp_path / "out")
    assert len(handed()) == 3
    # The files that the line names are there when the command runs.
    last = handed()[-1]["files"][0]["path"]
    insert(source, 10, 10)
    assert run(f'test -s "$PGCDC_DIRECTORY/{last}" && {APPEND}').returncode == 0


@pytest.mark.parametrize("mode", ["0600", "0666"])
def test_a_command_has_the_umask_of_the_shell(source, tmp_path, mode):
    """`--file-mode` is for what pgcdc writes, not for what the user's command does."""
    out, mask = tmp_path / "out", tmp_path / "mask"
    how = ("--on-segment", f"umask >{mask}", "--file-mode", mode, *NOW)
    line = stream_command(source.uri, source.create_slot(), "-D", out, *how)
    insert(source, 1, 1)
    subprocess.run(line, umask=0o027, check=True)
    assert int(mask.read_text(), 8) == 0o027
    assert (out / "manifest.jsonl").stat().st_mode & 0o777 == int(mode, 8)


def test_a_run_is_not_idle_while_a_command_runs(source, tmp_path):
    """What comes meanwhile is still read."""
    out, go = tmp_path / "out", tmp_path / "go"
    command = f"touch {tmp_path}/runs; until test -e {go}; do sleep 0.1; done"
    limits = ("--rotate-interval", "500ms", "--idle-timeout", "2s")
    line = stream_command(source.uri, source.create_slot(), "-D", out, "--on-segment", command, *limits)
    insert(source, 1, 1)
    with subprocess.Popen(line) as process:
        wait_until((tmp_path / "runs").exists)
        insert(source, 2, 2)
        time.sleep(3)
        go.touch()
    assert process.returncode == 0
    assert in_directory(out) == [1, 2]


def test_a_command_that_fails_stops_the_run_and_gets_the_segment_again(source, run, handed, tmp_path):
    insert(source, 1, 2)
    failed = run("exit 3")
    assert failed.returncode == 9
    assert failed.stderr == (
        'pgcdc: error: could not hand over segment 1 to "exit 3": its exit status was 3\n'
        "hint: nothing is lost: the next run begins by handing over this segment\n"
    )
    insert(source, 3, 4)
    assert run("kill -9 $$").stderr.startswith(
        'pgcdc: error: could not hand over segment 1 to "kill -9 $$": signal 9 ended it\n'
    )
    assert run(APPEND).returncode == 0
    assert handed() == manifest(tmp_path / "out")
    assert in_directory(tmp_path / "out") == [1, 2, 3, 4]


def test_whoever_starts_us_with_sigchld_ignored_hides_no_failure(source, tmp_path):
    """Some daemons ignore SIGCHLD, and then the system keeps no exit statuses of commands."""
    slot, out = source.create_slot(), str(tmp_path / "out")
    insert(source, 1, 2)
    line = stream_command(source.uri, slot, "-D", out, *NOW, "--on-segment", "exit 3")
    started = [sys.executable, "-c", IGNORING, *line]
    failed = subprocess.run(started, capture_output=True, text=True, timeout=60, check=False)
    assert failed.returncode == 9, failed.stderr
    assert "its exit status was 3" in failed.stderr


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_says_that_the_command_is_waited_for_and_the_second_ends_at_once(
    source, follow, tmp_path, number
):
    slot, out = source.create_slot(), tmp_path / "out"
    insert(source, 1, 1)
    command = f"{APPEND}; echo $$ >$PGCDC_DIRECTORY/../pid; exec >/dev/null 2>&1 sleep 600"
    more = ("-D", str(out), "--on-segment", command, "--rotate-interval", "0.1s")
    following = follow(source.uri, slot, out, *more)
    pid = int(wait_until(lambda: (path := tmp_path / "pid").exists() and path.read_text().strip()))
    try:
        following.process.send_signal(number)
        said = following.process.stderr.readline()
        waiting = f'waiting for "{command}" to finish with segment 1; a second signal ends it at once'
        assert said.endswith(f"pgcdc: warning: {waiting}\n")
        assert following.stop(number) == (-number, "")
    finally:
        os.kill(pid, signal.SIGKILL)


def test_a_segment_is_handed_over_again_after_a_kill(source, follow, handed, tmp_path):
    slot, out = source.create_slot(), tmp_path / "out"
    insert(source, 1, 1)
    slow = f"exec 2>/dev/null; {APPEND}; exec sleep 600"
    more = ("-D", str(out), "--on-segment", slow, "--rotate-interval", "0.1s")
    following = follow(source.uri, slot, out, *more)
    wait_until(handed)
    following.process.send_signal(signal.SIGKILL)
    following.process.wait()
    done = stream(source.uri, slot, "-D", str(out), "--on-segment", APPEND, "--endpos", "now")
    assert done.returncode == 0, done.stderr
    assert [line["segment"] for line in handed()] == [1, 1]
    assert in_directory(out) == [1]


def test_in_a_directory_that_is_there_the_next_segment_is_the_first(written, source, handed):
    """Also if the first run with a command finishes none."""
    slot, out = written
    for end in ("0/1", "now"):
        run = stream(source.uri, slot, "-D", str(out), "--on-segment", APPEND, "--endpos", end)
        assert run.returncode == 0
    assert [line["segment"] for line in handed()] == [2]


@pytest.mark.parametrize(
    ("record", "reason"),
    [
        ('{"format_version":1}', "the file lacks segment"),
        ("{}", "it is not the record of --on-segment"),
        ('{"segment":1,"format_version":1}', "it names segment 1, but the last one is 0"),
        ('{"segment":0,"format_version":2}', "it has format version 2, this pgcdc reads 1"),
    ],
)
def test_a_damaged_record_is_refused(run, tmp_path, record, reason):
    assert run(APPEND).returncode == 0
    path = tmp_path / "out" / "handed-over.json"
    path.write_text(record)
    refused = run(APPEND)
    assert refused.returncode == 10
    assert f' "{path}": {reason}\n' in refused.stderr
    assert path.read_text() == record


def test_only_a_directory_has_segments(source, tmp_path):
    refused = stream(source.uri, "s", "-f", str(tmp_path / "f"), "--on-segment", "true")
    assert (refused.returncode, "--on-segment: only a directory (-D) has segments" in refused.stderr) == (
        2,
        True,
    )


def test_the_documented_copy_is_whole_at_every_moment(source, follow, tmp_path, monkeypatch):
    """However often run or command fail or are killed, the copy has the files that its manifest names."""
    recipe = DOCUMENT.read_text().partition("```python\n")[2].partition("```")[0]
    # A python3 found in PATH may put its own programs before ours.
    recipe = recipe.replace("/usr/bin/env python3", sys.executable).replace('"-"', '"/dev/stdin"')
    for name, text in (("copy-segment", recipe), ("aws", AWS)):
        (tmp_path / name).write_text(text)
        (tmp_path / name).chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path), prepend=":")
    bucket, out, slot = tmp_path / "bucket", tmp_path / "out", source.create_slot()
    monkeypatch.setenv("BUCKET", str(bucket))
    more = ("-D", str(out), "--on-segment", "copy-segment", "--rotate-interval", "0.1s")
    stuck, kills = tmp_path / "bucket.stuck", 0
    for number in range(1, 7):
        insert(source, number, number)
        following = follow(source.uri, slot, out, *more, "--endpos", "now")
        wait_until(lambda: stuck.exists() or following.process.poll() is not None)  # noqa: B023 - at once
        if stuck.exists():
            following.process.kill()
            os.kill(int(wait_until(stuck.read_text)), signal.SIGKILL)
            stuck.unlink()
            kills += 1
        following.process.wait()
        assert in_directory(bucket) == list(range(1, len(in_directory(bucket)) + 1))
    assert kills == 4
    while stream(source.uri, slot, *more, "--endpos", "now").returncode:
        pass
    assert (bucket / "manifest.jsonl").read_bytes() == (out / "manifest.jsonl").read_bytes()
    assert in_directory(bucket) == [1, 2, 3, 4, 5, 6]
    assert {path.name for path in bucket.glob("schemas/*")} == {path.name for path in out.glob("schemas/*")}


def test_a_signal_during_the_first_command_of_a_resnapshot(source, follow, handed, tmp_path):
    """A segment that a killed run left is full when the run begins, before the stream does."""
    slot, out = source.create_slot(), tmp_path / "out"
    insert(source, 1, 3)
    killed = follow(source.uri, slot, out, "-D", str(out), "-F", "0.01")
    wait_until(lambda: checkpoint(out).get("files"))
    killed.stop(signal.SIGKILL)
    command = f"kill -TERM $PPID; {APPEND}"
    again = ("--resnapshot", "public.t", "--rotate-size", "1B", "--on-segment", command)
    run = stream(source.uri, slot, "-D", str(out), *again)
    assert (run.returncode, run.stderr) == (0, "")
    assert json.loads((out / "handed-over.json").read_text())["segment"] == 1
    assert [segment["segment"] for segment in handed()] == [1]
