"""`pgcdc spark-submit` as a process; input and warehouse may be on any file system."""

import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from processes import PGCDC, wait_until
from spark_cluster import QUICK

from pgcdc_cli.spark.launch import find_spark_home, java_settings

_PATIENCE = 600
"""Seconds that a run may take."""

_SELECT = """
import json, sys
from pyspark.sql import SparkSession
rows = SparkSession.builder.getOrCreate().sql(sys.argv[1]).collect()
print(json.dumps([row.asDict() for row in rows], default=str))
"""


def selected(query: str, folder: Path, *arguments: str) -> list[dict[str, Any]]:
    """Run a query in a new Spark process, with arguments for spark-submit; return the rows."""
    script = folder / "query.py"
    script.write_text(_SELECT)
    home = find_spark_home()
    changed = java_settings(folder / "java") | {"SPARK_HOME": str(home), "PYSPARK_PYTHON": sys.executable}
    environment = {name: value for name, value in {**os.environ, **changed}.items() if value is not None}
    line = [str(home / "bin" / "spark-submit"), "--master", "local[2]", *arguments, str(script), query]
    ran = subprocess.run(
        line, cwd=folder, env=environment, capture_output=True, text=True, encoding="utf-8", check=False
    )
    assert ran.returncode == 0, f"{ran.stdout}\n{ran.stderr}"
    rows: list[dict[str, Any]] = json.loads(ran.stdout.splitlines()[-1])
    return rows


@dataclass(frozen=True)
class MergeCommand:
    """A command line; `extra` are arguments for spark-submit, `environment` is added to the tests' own."""

    input: str
    warehouse: str
    folder: Path
    options: Sequence[str] = ()
    extra: Sequence[str] = ()
    environment: Mapping[str, str] = field(default_factory=dict)

    @contextmanager
    def running(self) -> Iterator[subprocess.Popen[bytes]]:
        """Start the command, its output in the file `said`; at the end kill its process group."""
        line = [*PGCDC, "spark-submit", "--json", "--input", self.input, "--warehouse", self.warehouse]
        line += [*self.options, "--", "--conf", f"spark.driver.extraJavaOptions={QUICK}", *self.extra]
        environment = {**os.environ, "SPARK_LOCAL_IP": "127.0.0.1", **self.environment}
        with self._said.open("wb") as output:
            process = subprocess.Popen(
                line, cwd=self.folder, env=environment, stdout=output, stderr=output, start_new_session=True
            )
        try:
            yield process
        finally:
            with suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()

    @property
    def _said(self) -> Path:
        return self.folder / "said"

    def run(self) -> dict[str, Any]:
        """Merge everything; return the summary."""
        with self.running() as process:
            status = process.wait(_PATIENCE)
        said = self._said.read_text()
        assert status == 0, said
        summary: dict[str, Any] = json.loads(said.splitlines()[-1])
        assert summary["error"] is None, summary
        return summary

    def run_and_kill(self, reached: Callable[[], bool]) -> bool:
        """Merge until `reached` is true, then kill all; return whether the command was still running."""
        with self.running() as process:
            wait_until(lambda: process.poll() is not None or reached(), _PATIENCE, pause=0.05)
            return process.poll() is None
