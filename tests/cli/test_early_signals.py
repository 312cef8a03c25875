"""Signals that arrive before a command can handle them."""

import signal
import subprocess
import sys

import pytest

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


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_one_that_comes_while_python_imports_ends_it_without_a_traceback(number):
    line = [sys.executable, "-c", STARTING, str(int(number)), "--version"]
    run = subprocess.run(line, capture_output=True, text=True, timeout=60, check=False)
    assert (run.returncode, run.stdout, run.stderr) == (-number, "", "")


IMPORTING = """
import sys
from pgcdc_cli.cli import app, root_command

number = int(sys.argv.pop(1))
made = "import os; os.kill(os.getpid(), number); list(range(10 ** 7))"
root_command.run_command = lambda *_: exec(made, globals())
app.main()
"""


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_one_that_interrupts_code_made_of_a_text_gives_the_same_status(number, tmp_path):
    """Dataclasses have such code while they are imported."""
    (tmp_path / "importing.py").write_text(IMPORTING)
    line = [sys.executable, "-m", "importing", str(int(number)), "slot", "list"]
    run = subprocess.run(line, cwd=tmp_path, capture_output=True, text=True, timeout=60, check=False)
    assert (run.returncode, run.stdout, run.stderr) == (130, "", "")
