"""A standalone Spark cluster on this machine's loopback: a master, and workers of one core and 1 GB each."""

import os
import re
import signal
import subprocess
from pathlib import Path

from processes import wait_until

from pgcdc_cli.spark.launch import find_spark_home, java_settings

PATIENCE = 120
"""Seconds that a daemon may take to start: many processes may share few cores."""

QUICK = "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC -XX:ReservedCodeCacheSize=240m"
"""For a Java that runs for seconds: compiling well takes longer than it saves."""

INTERPRETED = {"spark.sql.codegen.wholeStage": "false", "spark.sql.codegen.factoryMode": "NO_CODEGEN"}
"""For few rows, compiling a plan takes longest; `--long` and most runs of the command itself do compile."""

_MASTER = re.compile(r"Starting Spark master at (spark://\S+)")
_REGISTERED = re.compile("Successfully registered with master")


class Cluster:
    """Daemons that log to `folder`; each leads a process group of its own, which `stop` kills.

    They run in the locale C, as services do on some machines.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._home = find_spark_home()
        changed = java_settings(folder / "java") | {"SPARK_HOME": str(self._home), "LC_ALL": "C"}
        changed |= {
            "SPARK_DAEMON_JAVA_OPTS": QUICK,
            "SPARK_DAEMON_MEMORY": "256m",
            "SPARK_LOCAL_IP": "127.0.0.1",
            "PYSPARK_PYTHON": None,
        }
        environment = {**os.environ, **changed}
        self._environment = {name: value for name, value in environment.items() if value is not None}
        self._running: list[subprocess.Popen[bytes]] = []
        self.workers: list[subprocess.Popen[bytes]] = []
        try:
            self.url = self._start("master", "Master", _MASTER)
        except BaseException:
            self.stop()
            raise

    def add_worker(self) -> None:
        name = f"worker{len(self._running)}"
        room = ["--cores", "1", "--memory", "1g", "--work-dir", str(self._folder / name)]
        self._start(name, "Worker", _REGISTERED, *room, self.url)
        self.workers.append(self._running[-1])

    def _start(self, name: str, kind: str, sign: re.Pattern[str], *arguments: str) -> str:
        """Start a daemon on free ports; return what its log says once it is up."""
        line = [str(self._home / "bin" / "spark-class"), f"org.apache.spark.deploy.{kind.lower()}.{kind}"]
        line += ["--host", "127.0.0.1", "--port", "0", "--webui-port", "0", *arguments]
        log = self._folder / f"{name}.log"
        with log.open("wb") as said:
            process = subprocess.Popen(
                line,
                cwd=self._folder,
                env=self._environment,
                stdout=said,
                stderr=said,
                start_new_session=True,
            )
        self._running.append(process)
        wait_until(lambda: process.poll() is not None or sign.search(log.read_text()), PATIENCE)
        found = sign.search(log.read_text())
        assert found is not None, log.read_text()
        return found[found.re.groups]

    def kill_worker(self) -> None:
        """Kill a worker and its executors."""
        _kill(self.workers.pop(0))

    def stop(self) -> None:
        for process in self._running:
            _kill(process)


def _kill(process: subprocess.Popen[bytes]) -> None:
    """Kill a daemon's process group, unless it is dead already."""
    if process.returncode is None:
        os.killpg(process.pid, signal.SIGKILL)
        process.wait()
