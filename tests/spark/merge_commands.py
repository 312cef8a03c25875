"""`pgcdc spark-submit` as a process, with input and warehouse wherever they are."""

import json
import os
import signal
import subprocess
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from processes import PGCDC
from spark_cluster import QUICK


@dataclass(frozen=True)
class MergeCommand:
    """The command, with `extra` behind the dashes and more in its environment."""

    input: str
    warehouse: str
    folder: Path
    options: Sequence[str] = ()
    extra: Sequence[str] = ()
    environment: Mapping[str, str] = field(default_factory=dict)

    def _start(self, said: Path) -> subprocess.Popen[bytes]:
        line = [*PGCDC, "spark-submit", "--json", "--input", self.input, "--warehouse", self.warehouse]
        line += [*self.options, "--", "--conf", f"spark.driver.extraJavaOptions={QUICK}", *self.extra]
        environment = {**os.environ, "SPARK_LOCAL_IP": "127.0.0.1", **self.environment}
        with said.open("wb") as output:
            return subprocess.Popen(
                line, cwd=self.folder, env=environment, stdout=output, stderr=output, start_new_session=True
            )

    def run(self) -> dict[str, Any]:
        """Merge all; gives the summary."""
        said = self.folder / "said"
        status = self._start(said).wait(600)
        assert status == 0, said.read_text()
        summary: dict[str, Any] = json.loads(said.read_text().splitlines()[-1])
        assert summary["error"] is None, summary
        return summary

    def run_and_kill(self, reached: Callable[[], bool]) -> bool:
        """Merge until something is reached, and kill all of it; says whether there was something to kill."""
        process = self._start(self.folder / "said")
        try:
            while process.poll() is None and not reached():
                time.sleep(0.05)
            return process.poll() is None
        finally:
            # The group is there as long as one of it is.
            with suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()
