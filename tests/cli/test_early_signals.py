"""Signals that arrive before a command can handle them."""

import signal
import subprocess
import sys

import pytest

from pgcdc_cli.cli import app

STARTING = """
import os, sys

class Signalling:
    @staticmethod
    def find_spec(name, path, target):
        if name == "pgcdc_cli.cli":
            sys.meta_path.remove(Signalling)
            os.kill(os.getpid(), int(sys.argv.pop(1)))

from pgcdc_cli.__main__ import main
sys.meta_path.insert(0, Signalling)
main()
"""


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_one_that_comes_while_python_imports_ends_it_without_a_traceback(number):
    line = [sys.executable, "-c", STARTING, str(int(number)), "--version"]
    run = subprocess.run(line, capture_output=True, text=True, timeout=60, check=False)
    assert (run.returncode, run.stdout, run.stderr) == (-number, "", "")


def test_a_hangup_that_comes_early_ends_what_reopens_no_file():
    line = [sys.executable, "-c", STARTING, str(int(signal.SIGHUP)), "slot", "list", "-d", "host=/nowhere"]
    run = subprocess.run(line, capture_output=True, text=True, timeout=60, check=False)
    assert (run.returncode, run.stdout, run.stderr) == (130, "", "")
    unheeded = ["sh", "-c", 'trap "" HUP; exec "$@"', "sh", *line]
    run = subprocess.run(unheeded, capture_output=True, text=True, timeout=60, check=False)
    assert run.returncode == 3


def test_a_hangup_that_comes_early_is_what_a_stream_begins_with(database18):
    """It begins a new segment, or opens its file once more."""
    database18.execute("CREATE TABLE t (id int); CREATE PUBLICATION pub FOR TABLE t")
    slots = database18.create_slot(), database18.create_slot(plugin="pgoutput")
    database18.execute("INSERT INTO t VALUES (1)")
    starting = [sys.executable, "-c", STARTING, str(int(signal.SIGHUP))]
    common = ["-d", database18.uri, "-f", "-", "-S"]
    stream = [*starting, "stream", *common, slots[0], "--publication", "pub", "--endpos", "now"]
    run = subprocess.run(stream, capture_output=True, text=True, timeout=60, check=False)
    assert (run.returncode, run.stderr, run.stdout.count("\n")) == (0, "", 1)
    now = database18.execute("SELECT pg_current_wal_lsn()").fetchone()[0]
    options = ["-o", "proto_version=1", "-o", "publication_names=pub"]
    raw = [*starting, "recvlogical", *common, slots[1], "--start", "--endpos", now, *options]
    run = subprocess.run(raw, capture_output=True, timeout=60, check=False)
    assert (run.returncode, run.stderr) == (0, b"")
    assert run.stdout.startswith(b"B")


SWALLOWING = """
import os, sys

number, module = int(sys.argv.pop(1)), sys.argv.pop(1)

class Swallowing:
    @staticmethod
    def find_spec(name, path, target):
        if name == module:
            sys.meta_path.remove(Swallowing)
            try:
                os.kill(os.getpid(), number)
                list(range(10 ** 7))
            except KeyboardInterrupt:
                pass

from pgcdc_cli.__main__ import main
sys.meta_path.insert(0, Swallowing)
main()
"""


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
@pytest.mark.parametrize(
    ("command", "module"),
    [
        (("stream", "-f", "-", "--publication", "pub"), "pgcdc_cli.stream.run"),
        (("snapshot", "-f", "-", "--publication", "pub"), "pgcdc_cli.stream.snapshot.snapshot_run"),
        (("slot", "list", "--watch"), "pgcdc_cli.cli.slot"),
    ],
)
def test_one_that_python_swallows_while_it_imports_ends_it_all_the_same(database18, number, command, module):
    """Python ignores exceptions in callbacks of its import locks."""
    database18.execute("CREATE TABLE t (id int); CREATE PUBLICATION pub FOR TABLE t")
    slot = ["-S", database18.create_slot()] if command[0] == "stream" else []
    line = [sys.executable, "-c", SWALLOWING, str(int(number)), module, *command, "-d", database18.uri, *slot]
    run = subprocess.run(line, capture_output=True, text=True, timeout=60, check=False)
    assert (run.returncode, run.stderr) == (130, "")


IMPORTING = """
import sys
from pgcdc_cli.cli import app, root_command

number = int(sys.argv.pop(1))
made = "import os; os.kill(os.getpid(), number); list(range(10 ** 7))"
root_command.run_command = lambda *_: exec(made, globals())
app.main()
"""


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_one_that_interrupts_code_made_of_a_text_gives_the_same_status(number, tmp_path):
    """Dataclasses have such code while they are imported."""
    (tmp_path / "importing.py").write_text(IMPORTING)
    line = [sys.executable, "-m", "importing", str(int(number)), "slot", "list"]
    run = subprocess.run(line, cwd=tmp_path, capture_output=True, text=True, timeout=60, check=False)
    assert (run.returncode, run.stdout, run.stderr) == (130, "", "")


def test_one_that_interrupts_a_class_being_made_gives_the_same_status(monkeypatch, capfd):
    """Before 3.12, Python makes a RuntimeError of it."""

    class Interrupting:
        def __set_name__(self, owner, name):
            raise KeyboardInterrupt

    monkeypatch.setattr(app, "_run", lambda *_: type("Made", (), {"field": Interrupting()}))
    assert app.run([]) == 130
    assert capfd.readouterr().err == ""
