"""`pgcdc` over and over without its imports, which take longer than what happens after them.

Each run is forked from a process that has imported everything, and is `pgcdc` from there on.
"""

import atexit
import gc
import importlib
import json
import os
import select
import signal
import socket
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import IO, Any, Self

from processes import PGCDC

from pgcdc_cli.__main__ import main

IMPORTED_LATE = (
    "pgcdc_cli.cli.app",
    "pgcdc_cli.cli.recvlogical",
    "pgcdc_cli.cli.show",
    "pgcdc_cli.cli.slot",
    "pgcdc_cli.stream.run",
    "pgcdc_cli.stream.snapshot.snapshot_session",
    "pgcdc_cli.sinks.directory_sink",
    "pgcdc_cli.sinks.file_sink",
    "pgcdc_cli.formats.jsonl",
    "pgcdc_cli.formats.arrow",
    "pgcdc_cli.formats.pretty",
    "pgcdc_cli.formats.debezium.debezium_format",
    "pgcdc_cli.formats.wal2json.wal2json_format",
    "pgcdc_cli.reader.arrow_reader",
    "pgcdc_cli.reader.debezium_reader",
    "pgcdc_cli.reader.directory_reader",
    "pgcdc_cli.reader.jsonl_reader",
    "pgcdc_cli.reader.wal2json_reader",
)
LONGEST = 1 << 18
"""Bytes of a run's arguments and environment."""


class WarmPython:
    """The process from which runs are forked, one after another."""

    def __init__(self) -> None:
        self._calls, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self._calls.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, LONGEST)
        with theirs:
            self._process = subprocess.Popen([sys.executable, __file__], stdin=theirs)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_exception: object) -> None:
        self.close()

    def close(self) -> None:
        self._calls.close()
        self._process.wait()

    def start(
        self,
        line: Sequence[str],
        environment: Mapping[str, str],
        *,
        stdout: IO[Any],
        stderr: IO[Any],
        cwd: Path | None = None,
        umask: int = 0o022,
    ) -> "WarmProcess":
        """Run a command line of pgcdc, or of a link to it, without standard input; the last one has ended."""
        with_python = tuple(line[: len(PGCDC)]) == PGCDC
        words = ["pgcdc", *line[len(PGCDC) :]] if with_python else [*line]
        assert Path(words[0]).name in {"pgcdc", "pg_recvlogical"}
        call = words, dict(environment), str(cwd or Path.cwd()), umask
        socket.send_fds(self._calls, [json.dumps(call).encode()], [stdout.fileno(), stderr.fileno()])
        return WarmProcess(self._answer(), self)

    def follow(self, line: Sequence[str], environment: Mapping[str, str]) -> "WarmProcess":
        """Run a command line that prints only errors, which `communicate` returns."""
        with Path(os.devnull).open("wb") as nothing, tempfile.TemporaryFile() as errors:
            process = self.start(line, environment, stdout=nothing, stderr=errors)
            process.errors = os.dup(errors.fileno())
        return process

    def ended(self, seconds: float | None) -> int | None:
        """Wait for the run's end; return its exit status, negative for a signal, or None after `seconds`."""
        found, _, _ = select.select([self._calls], [], [], seconds)
        return self._answer() if found else None

    def _answer(self) -> int:
        return int(self._calls.recv(LONGEST))


class WarmProcess:
    """The part of `subprocess.Popen` that tests need, for a forked run."""

    def __init__(self, pid: int, python: WarmPython) -> None:
        self.pid = pid
        self.returncode: int | None = None
        self.errors: int | None = None
        self._python = python
        self._said = b""

    def poll(self) -> int | None:
        with suppress(subprocess.TimeoutExpired):
            self.wait(0)
        return self.returncode

    def wait(self, timeout: float | None = None) -> int:
        if self.returncode is None:
            self.returncode = self._python.ended(timeout)
        if self.returncode is None:
            raise subprocess.TimeoutExpired("pgcdc", timeout or 0)
        return self.returncode

    def send_signal(self, number: int) -> None:
        if self.poll() is None:
            os.kill(self.pid, number)

    def kill(self) -> None:
        self.send_signal(signal.SIGKILL)

    def communicate(self, timeout: float | None = None) -> tuple[None, bytes]:
        self.wait(timeout)
        if self.errors is not None:
            with os.fdopen(self.errors, "rb") as errors:
                errors.seek(0)
                self._said, self.errors = errors.read(), None
        return None, self._said


_idle: list[WarmPython] = []


@contextmanager
def borrowed() -> Iterator[WarmPython]:
    """Lend an idle process: several threads may run something."""
    if _idle:
        python = _idle.pop()
    else:
        python = WarmPython()
        atexit.register(python.close)
    yield python
    _idle.append(python)


def run_warm(
    line: Sequence[str],
    *,
    timeout: float = 120,
    cwd: Path | None = None,
    env: Mapping[str, str] | None = None,
    text: bool = True,
    umask: int = 0o022,
) -> subprocess.CompletedProcess[Any]:
    """Run a command line of pgcdc to its end, as `subprocess.run` does with `capture_output`."""
    with borrowed() as python, ThreadPoolExecutor(2) as readers, _pipe() as out, _pipe() as err:
        process = python.start(line, env or os.environ, stdout=out[1], stderr=err[1], cwd=cwd, umask=umask)
        out[1].close()
        err[1].close()
        outputs = [readers.submit(end.read) for end in (out[0], err[0])]
        try:
            status = process.wait(timeout)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
            raise
        said = [output.result().decode() if text else output.result() for output in outputs]
        return subprocess.CompletedProcess([*line], status, *said)


@contextmanager
def _pipe() -> Iterator[tuple[IO[bytes], IO[bytes]]]:
    reading, writing = os.pipe()
    with os.fdopen(reading, "rb") as output, os.fdopen(writing, "wb") as end:
        yield output, end


def _serve() -> None:
    """Fork a run for each call; answer with its process ID, and later with its exit status."""
    signal.signal(signal.SIGINT, signal.SIG_DFL)
    for name in IMPORTED_LATE:
        importlib.import_module(name)
    gc.freeze()
    calls = socket.socket(fileno=os.dup(0))
    while True:
        call, outputs, _, _ = socket.recv_fds(calls, LONGEST, 2)
        if not call:
            return
        if not (pid := os.fork()):
            calls.close()
            _become(*json.loads(call), outputs)
        for output in outputs:
            os.close(output)
        calls.send(str(pid).encode())
        calls.send(str(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])).encode())


def _become(
    words: list[str], environment: Mapping[str, str], folder: str, umask: int, outputs: list[int]
) -> None:
    """Become `pgcdc`, or what a link to it is called."""
    for opened, number in zip([os.open(os.devnull, os.O_RDONLY), *outputs], range(3), strict=True):
        os.dup2(opened, number)
        os.close(opened)
    sys.stdin, sys.stdout = os.fdopen(0), os.fdopen(1, "w")
    sys.stderr = os.fdopen(2, "w", buffering=1, errors="backslashreplace")
    os.chdir(folder)
    os.umask(umask)
    os.environ.clear()
    os.environ.update(environment)
    signal.signal(signal.SIGINT, signal.default_int_handler)
    sys.argv = words
    main()
    sys.exit(0)


if __name__ == "__main__":
    _serve()
