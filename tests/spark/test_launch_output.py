"""What a user hears of Spark's output while it runs and when it fails: with a script in place of Spark."""

import errno
import os
import signal
import subprocess
import time
from pathlib import Path
from typing import Any

import pytest
from executables import executable
from processes import PGCDC

from pgcdc_cli.errors import ErrorKind, PgcdcError
from pgcdc_cli.spark import output
from pgcdc_cli.spark.launch import SparkOptions, submit
from pgcdc_cli.spark.pgcdc_merge.options import MergeOptions


def test_a_failure_says_why_and_keeps_the_log(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    lines = "echo 'java.io.IOException: no space' >&2; echo bye >&2; exit 7"
    executable(tmp_path / "spark" / "bin" / "spark-submit", lines)
    monkeypatch.setenv("SPARK_HOME", str(tmp_path / "spark"))
    monkeypatch.setattr(output.tempfile, "tempdir", str(tmp_path))
    with pytest.raises(PgcdcError) as caught:
        submit(MergeOptions("hdfs:/in", "wh"), SparkOptions())
    assert caught.value.message == (
        "could not merge: spark-submit ended with status 7: java.io.IOException: no space"
    )
    (log,) = tmp_path.glob("pgcdc-spark-*.log")
    assert caught.value.hint == f"Spark's whole output is in {log}"
    assert log.read_text() == "java.io.IOException: no space\nbye\n"


def test_a_log_that_has_no_room_ends_the_run_with_a_hint() -> None:
    listener = output.Listener(None, lambda _: None, verbose=False)
    with pytest.raises(PgcdcError) as caught:
        listener.copy([b"WARN a line\n"], Path("/dev/full"))
    assert caught.value.kind is ErrorKind.OUTPUT
    assert caught.value.message == 'could not write "/dev/full": No space left on device'
    assert "TMPDIR" in (caught.value.hint or "")


def test_a_failure_says_why_although_the_log_can_not_be_kept(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    executable(tmp_path / "spark" / "bin" / "spark-submit", "echo 'OSError: no room'; exit 1")
    monkeypatch.setenv("SPARK_HOME", str(tmp_path / "spark"))
    monkeypatch.setattr(output.tempfile, "tempdir", str(tmp_path))
    monkeypatch.setattr(output.shutil, "copyfile", full)
    with pytest.raises(PgcdcError, match=r"ended with status 1: OSError: no room$") as caught:
        submit(MergeOptions("hdfs:/in", "wh"), SparkOptions())
    assert caught.value.hint == "Spark's whole output could not be kept: No space left on device"


def test_what_the_job_died_of_is_the_reason(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    executable(tmp_path / "spark" / "bin" / "spark-submit", "echo 'OSError: no room'; printf bye; exit 1")
    monkeypatch.setenv("SPARK_HOME", str(tmp_path / "spark"))
    monkeypatch.setattr(output.tempfile, "tempdir", str(tmp_path))
    with pytest.raises(PgcdcError, match=r"ended with status 1: OSError: no room$"):
        submit(MergeOptions("hdfs:/in", "wh"), SparkOptions())
    (log,) = tmp_path.glob("pgcdc-spark-*.log")
    assert log.read_text() == "OSError: no room\nbye\n"


def saying(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, *lines: str) -> tuple[PgcdcError, list[str]]:
    """Run a Spark that prints these lines and fails; return the error, and the remarks before it."""
    (tmp_path / "said").write_text("".join(f"{line}\n" for line in lines))
    executable(tmp_path / "spark" / "bin" / "spark-submit", f"cat {tmp_path}/said >&2; exit 1")
    monkeypatch.setenv("SPARK_HOME", str(tmp_path / "spark"))
    monkeypatch.setattr(output.tempfile, "tempdir", str(tmp_path))
    said: list[str] = []
    with pytest.raises(PgcdcError) as caught:
        submit(MergeOptions("hdfs:/in", "wh"), SparkOptions("spark://there:7077"), None, said.append)
    return caught.value, said


def test_what_keeps_spark_waiting_is_said_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    starved = (
        "26/11/21 11:00:00 WARN TaskSchedulerImpl: Initial job has not accepted any resources; check your"
        " cluster UI to ensure that workers are registered and have sufficient resources"
    )
    retried = (
        "26/11/21 11:00:00 INFO Client: Retrying connect to server: rm/10.0.0.1:8032. Already tried 0 time(s)"
    )
    _, said = saying(tmp_path, monkeypatch, starved, retried, starved, retried)
    waiting, unreached = said
    assert waiting.startswith("Spark is waiting for executors: ")
    assert unreached == "Spark can't reach rm/10.0.0.1:8032, and is trying again"


def test_a_master_that_does_not_answer(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    error, said = saying(
        tmp_path,
        monkeypatch,
        "26/11/21 11:00:00 WARN StandaloneAppClient$ClientEndpoint: Failed to connect to master there:7077",
        "java.io.IOException: Failed to connect to there:7077",
        "ERROR StandaloneSchedulerBackend: Application has been killed. Reason: All masters are"
        " unresponsive! Giving up.",
        "py4j.protocol.Py4JJavaError: An error occurred",
        "\tat io.netty.channel.unix.Errors.handleConnectErrno(Errors.java:131)",
    )
    assert said == ["Spark can't reach the master there:7077, and is trying again"]
    assert error.message == "could not merge: the Spark master doesn't answer"
    assert error.kind is ErrorKind.SPARK


def test_a_cluster_that_ends_the_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    reason = "Application has been killed. Reason: Master removed our application: FAILED"
    error, _ = saying(tmp_path, monkeypatch, f"ERROR X: {reason}", "IllegalStateException: stopped")
    assert error.message == "could not merge: the cluster ended it: Master removed our application: FAILED"


def test_stack_frames_are_no_reason(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    error, _ = saying(tmp_path, monkeypatch, "java.io.IOException: no", "\tat a.Errors.b(Errors.java:1)")
    assert error.message.endswith("status 1: java.io.IOException: no")


def test_spark_ends_with_a_command_that_is_ended_while_it_starts_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    started = []

    class Interrupted(subprocess.Popen):
        def __init__(self, command: list[Any], **options: Any) -> None:
            super().__init__(command, **options)
            if str(command[0]).endswith("spark-submit"):
                started.append(self)
                signal.raise_signal(signal.SIGINT)

    executable(tmp_path / "spark" / "bin" / "spark-submit", "exec sleep 1000")
    monkeypatch.setenv("SPARK_HOME", str(tmp_path / "spark"))
    monkeypatch.setattr(subprocess, "Popen", Interrupted)
    with pytest.raises(KeyboardInterrupt):
        submit(MergeOptions("hdfs:/in", "wh"), SparkOptions("spark://there:7077"), None, print)
    assert [spark.poll() for spark in started] == [-signal.SIGTERM]


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP])
def test_spark_ends_with_the_command(tmp_path: Path, number: int) -> None:
    executable(tmp_path / "spark" / "bin" / "spark-submit", f"echo $$ > {tmp_path}/pid; exec sleep 1000")
    line = [*PGCDC, "spark-submit", "--input", "hdfs:/in", "--warehouse", "wh"]
    ran = subprocess.Popen(line, cwd=tmp_path, env={**os.environ, "SPARK_HOME": str(tmp_path / "spark")})
    while not (tmp_path / "pid").is_file() or not (tmp_path / "pid").read_text().endswith("\n"):
        assert ran.poll() is None
        time.sleep(0.05)
    ran.send_signal(number)
    assert ran.wait(60) == 130
    with pytest.raises(ProcessLookupError):
        os.kill(int((tmp_path / "pid").read_text()), 0)
