"""`spark-submit --follow` as a service: real signals, real Spark."""

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from merge_directories import Directory
from merge_notes import ONE, insert
from processes import wait_until

from pgcdc_cli.spark.warehouse import read_record

RARELY = "1h"


def family(warehouse: Path) -> list[Path]:
    """Find the processes that were started for a warehouse: the command, Java, the job's Python."""
    found = []
    for line in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            found += [line] if str(warehouse).encode() in line.read_bytes() else []
        except OSError:
            continue
    return found


@pytest.mark.long
@pytest.mark.parametrize("last", [signal.SIGTERM, signal.SIGKILL])
def test_a_service_merges_on_hup_and_leaves_nothing_behind(
    directory: Directory, warehouse: Path, last: signal.Signals
) -> None:
    """SIGTERM ends the command in order; where it is killed, Spark ends by itself."""
    line = [sys.executable, "-m", "pgcdc_cli", "spark-submit", "--follow", RARELY]
    line += ["--input", str(directory.path), "--warehouse", str(warehouse)]
    directory.segment([(ONE, [insert(10, 1)])])
    with subprocess.Popen(
        line, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, start_new_session=True
    ) as running:
        assert running.stdout is not None
        assert running.stderr is not None
        said = [running.stdout.readline()]
        directory.segment([(ONE, [insert(20, 2)])])
        running.send_signal(signal.SIGHUP)
        said.append(running.stdout.readline())
        os.kill(running.pid, last)
        assert (running.stdout.read(), running.stderr.read()) == ("", "")
    assert [text.partition(", LSN")[0] for text in said] == [
        f"merged 1 table up to segment {number}" for number in (1, 2)
    ]
    assert running.returncode == (0 if last == signal.SIGTERM else -last)
    wait_until(lambda: not family(warehouse))
    assert {row.segment for row in read_record(str(warehouse)) or []} == {2}
