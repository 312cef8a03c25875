"""`pgcdc show` on a terminal, through a pager, and into pipes and disks that take no more."""

import json
import os
import shlex
import shutil
import subprocess
import sys
import threading
from contextlib import contextmanager
from pathlib import Path

import pytest
from processes import PGCDC, wait_until
from show_tools import on_a_terminal


def test_on_a_terminal_it_is_pretty_and_coloured_unless_told_otherwise(stream, tmp_path):
    stream("-D", "d")
    assert "\x1b[32mINSERT\x1b[0m" in on_a_terminal(["show", "d"], tmp_path)
    for env in ({"NO_COLOR": "1"}, {"TERM": "dumb"}):
        plain = on_a_terminal(["show", "d"], tmp_path, **env)
        assert "INSERT public.orders" in plain
        assert "\x1b" not in plain


def test_on_a_dumb_terminal_only_the_pager_that_is_asked_for_pages(stream, tmp_path, monkeypatch):
    """On one, less waits for a key before it shows anything."""
    stream("-D", "d")
    less = tmp_path / "bin" / "less"
    less.parent.mkdir()
    less.write_text("#!/bin/sh\nsed 's/^/|/'\n")
    less.chmod(0o755)
    monkeypatch.setenv("PATH", str(less.parent), prepend=":")
    for term, paged in (("xterm", True), ("dumb", False)):
        shown = on_a_terminal(["show", "d"], tmp_path, TERM=term, PAGER=None)
        assert shown.startswith("|") is paged
    assert on_a_terminal(["show", "d"], tmp_path, TERM="dumb", PAGER="less").startswith("|")


def test_on_a_terminal_it_goes_through_the_pager(stream, tmp_path):
    stream("-D", "d")
    whole = on_a_terminal(["show", "d"], tmp_path, PAGER="")
    assert on_a_terminal(["show", "d"], tmp_path, PAGER="sed s/^/|/") == "".join(
        f"|{line}" for line in whole.splitlines(keepends=True)
    )
    # A pager that ends early, one that only copies, and one that doesn't exist.
    assert on_a_terminal(["show", "d"], tmp_path, PAGER="head -n 1") == whole.splitlines(keepends=True)[0]
    for pager in ("cat", "/nowhere/less"):
        assert on_a_terminal(["show", "d"], tmp_path, PAGER=pager) == whole


IN_A_SHELL = "trap : INT; stty -a >before; {} 2>errors; echo $? >status; stty -a >later; mv later after"


@contextmanager
def typed(tmp_path, *arguments, **env):
    """Run pgcdc under a shell with its own terminal, as in a window.

    Yields two functions: one types keys, one returns what the terminal has shown so far.
    """
    command = IN_A_SHELL.format(shlex.join([*PGCDC, *arguments]))
    spawn = "import pty, sys; pty.spawn(['sh', '-c', sys.argv[1]])"
    clean = {name: value for name, value in os.environ.items() if name not in {"LESS", "NO_COLOR"}}
    window = {"TERM": "xterm", "LINES": "24", "COLUMNS": "80"}
    line = [sys.executable, "-c", spawn, command]
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "bufsize": 0}
    shown = []
    with subprocess.Popen(line, cwd=tmp_path, env={**clean, **window, **env}, **pipes) as process:
        reader = threading.Thread(target=lambda: shown.extend(iter(lambda: process.stdout.read(65536), b"")))
        reader.start()
        try:
            yield process.stdin.write, lambda: b"".join(shown)
            wait_until((tmp_path / "after").exists)
        finally:
            process.terminate()
            reader.join()


@pytest.mark.parametrize("times", [1, 3])
@pytest.mark.skipif(shutil.which("less") is None, reason="less is not installed")
def test_ctrl_c_in_the_pager_is_the_pagers(stream, tmp_path, times):
    stream("-D", "d")
    # This is far more than a pipe holds, so pgcdc is still writing when the key is pressed.
    with typed(tmp_path, "show", *["d"] * 300, LESS="R") as (keys, shown):
        wait_until(lambda: b"INSERT" in shown())
        for _ in range(times):
            keys(b"\x03")
        # The pager can go on to the last line that arrived.
        wait_until(lambda: keys(b"G") and b"(END)" in shown(), pause=0.5)
        keys(b"q")
    assert shown().count(b"\x1b[?1049h") == shown().count(b"\x1b[?1049l") == 1
    assert b"\x1b[?1049l" in shown()[-200:]
    assert (tmp_path / "status").read_text() == "0\n"
    assert (tmp_path / "errors").read_text() == ""
    assert (tmp_path / "after").read_text() == (tmp_path / "before").read_text()


TWICE = """
import os, signal, sys
from pgcdc_cli.cli import printing, show
from pgcdc_cli.cli.app import main
def press(*_):
    os.kill(os.getpid(), signal.SIGINT)
go_back = printing._return_to
printing._return_to = lambda terminal: (press(), go_back(terminal))
show._write = press
sys.argv = ["pgcdc", "show", "d", "--table", "unread"]
main()
"""


def test_ctrl_c_once_more_leaves_no_pager_behind(stream, tmp_path):
    """Nor is there an error about tables that may be in the part that was not read."""
    stream("-D", "d")
    pager = "sh -c 'cat >/dev/null; echo end'"
    assert on_a_terminal(["-c", TWICE], tmp_path, program=[sys.executable], PAGER=pager) == "end\r\n"


def test_no_value_steers_the_terminal(stream, lines, tmp_path):
    stream("-D", "d")
    for arguments in (["--format", "jsonl"], []):
        text = on_a_terminal(["show", "d", *arguments], tmp_path, NO_COLOR="1")
        assert text.replace("\r\n", "").isprintable()
    shown = on_a_terminal(["show", "d", "--format", "jsonl"], tmp_path).splitlines()
    assert [json.loads(line) for line in shown] == [json.loads(line) for line in lines.splitlines()]


def test_a_reader_that_goes_away_ends_it_as_sigpipe_would(stream, tmp_path):
    stream("-D", "d")
    command = (
        f"{sys.executable} -m pgcdc_cli show d d d d d d d d d d d d | head -n 1; echo ${{PIPESTATUS[0]}}"
    )
    ran = subprocess.run(["bash", "-c", command], cwd=tmp_path, capture_output=True, text=True, check=True)
    assert ran.stderr == ""
    assert ran.stdout.splitlines()[1] in ("0", "141")


def test_a_closed_pipe_is_quiet(stream, tmp_path):
    stream("-D", "d")
    command = f"exec {sys.executable} -m pgcdc_cli show d > >(exec 0<&-; sleep 1)"
    ran = subprocess.run(
        ["bash", "-c", f"({command}); echo $?"], cwd=tmp_path, capture_output=True, text=True, check=True
    )
    assert (ran.stdout, ran.stderr) == ("141\n", "")


def into(device, tmp_path, mode="w"):
    with Path(device).open(mode) as output:
        line, streams = [*PGCDC, "show", "d"], {"stdout": output, "stderr": subprocess.PIPE}
        return subprocess.run(line, **streams, text=True, cwd=tmp_path, check=False)


def test_a_full_disk_is_said(stream, tmp_path):
    stream("-D", "d")
    ran = into("/dev/full", tmp_path)
    assert ran.returncode == 9
    assert ran.stderr == (
        'pgcdc: error: could not write "standard output": No space left on device\n'
        "hint: make room and run again\n"
    )


def test_output_that_cant_be_written_needs_no_room(stream, tmp_path):
    stream("-D", "d")
    ran = into("/dev/null", tmp_path, mode="r")
    assert ran.returncode == 9
    assert ran.stderr == (
        'pgcdc: error: could not write "standard output": Bad file descriptor\n'
        "hint: check where standard output goes\n"
    )


@pytest.mark.parametrize("encoding", ["ascii", "latin-1:replace"])
def test_what_is_printed_is_utf8_whatever_python_is_told(tmp_path, encoding):
    line = (
        '{"op":"I","lsn":"0/1","commit_lsn":"0/1","seq":0,"xid":1,"ts":"2026-01-01T00:00:00Z",'
        '"schema":"public","table":"Käse","key":{"a":1},"new":{"a":1,"b":"日本"}}\n'
    )
    (tmp_path / "changes.jsonl").write_text(line, "utf-8")
    command = [*PGCDC, "show", str(tmp_path / "changes.jsonl"), "--format", "jsonl"]
    ran = subprocess.run(
        command, env=os.environ | {"PYTHONIOENCODING": encoding}, capture_output=True, check=False
    )
    assert (ran.returncode, ran.stderr, ran.stdout.decode()) == (0, b"", line)
