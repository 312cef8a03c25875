"""Child processes: their output arrives, their failures are raised, and none of their children survives."""

import os
import signal
import threading
import time
from pathlib import Path

import pytest
from processes import wait_until

from pgcdc_cli.demo import children
from pgcdc_cli.demo.children import Children, uninterruptible
from pgcdc_cli.errors import ErrorKind, PgcdcError

FAMILY = """#!/bin/sh
sleep 1000 &
echo $! $$
trap '' TERM
wait
sleep 1000
"""


def alive(pid):
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except (FileNotFoundError, ProcessLookupError):
        return False


@pytest.fixture
def program(tmp_path, monkeypatch):
    """A function that makes a shell script run in place of pgcdc."""

    def write(script):
        path = tmp_path / "script"
        path.write_text(script)
        path.chmod(0o755)
        monkeypatch.setattr(children.sys, "executable", str(path))

    return write


def ignore(_line):
    pass


def test_command_lines_and_output_are_passed_on_from_the_waiting_thread():
    heard = []
    with Children(
        lambda line: heard.append(("command", line, threading.get_ident())),
        lambda line: heard.append(("output", line.split()[0], threading.get_ident())),
    ) as family:
        family.run("--version")
    me = threading.get_ident()
    assert heard == [("command", "pgcdc --version", me), ("output", "pgcdc", me)]


def test_a_failing_command_raises_its_own_error_kind_and_hint():
    with Children(ignore, ignore) as family, pytest.raises(PgcdcError) as raised:
        family.run("show", "/nowhere/at/all", "--limit", "many")
    assert raised.value.kind is ErrorKind.USAGE
    assert raised.value.message.startswith("could not read the command line: --limit")
    assert raised.value.hint == "see pgcdc show --help"


def test_a_command_that_dies_silently_is_named(program):
    program("#!/bin/sh\nkill -9 $$\n")
    with Children(ignore, ignore) as family, pytest.raises(PgcdcError, match='"pgcdc a b": exit status -9'):
        family.run("a", "b")


def test_leaving_ends_the_whole_family_of_a_child_that_refuses(program, monkeypatch):
    program(FAMILY)
    monkeypatch.setattr(children, "_PATIENCE", 0.3)
    said = []
    with Children(ignore, said.append) as family:
        family.start()
        while not said:
            family.drain()
        assert all(alive(int(pid)) for pid in said[0].split())
    for pid in map(int, said[0].split()):
        wait_until(lambda pid=pid: not alive(pid))


def test_nothing_interrupts_clearing_up():
    with uninterruptible():
        os.kill(os.getpid(), signal.SIGTERM)
        time.sleep(0.05)
