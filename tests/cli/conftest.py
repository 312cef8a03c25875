"""pgcdc as its users run it: a process with arguments, an exit status, and two streams of text."""

import os
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import pytest
from processes import PGCDC, stream_command
from show_tools import with_changes
from warm_process import run_warm


@dataclass(frozen=True)
class Ran:
    status: int
    out: str
    err: str


@pytest.fixture
def pgcdc(tmp_path) -> Callable[..., Ran]:
    """Run pgcdc in an empty directory, without variables of this environment that it would read.

    If `new`, or with settings of its environment or of `subprocess.run`, it is a Python of its own.
    """
    clean = {
        name: value for name, value in os.environ.items() if not name.startswith(("PG", "PGCDC_", "NO_COLOR"))
    }

    def run(
        *arguments: object, new: bool = False, env: dict[str, str] | None = None, **settings: object
    ) -> Ran:
        line = [*PGCDC, *map(str, arguments)]
        variables = {**clean, "HOME": str(tmp_path), **(env or {})}
        if new or env or settings:
            result = subprocess.run(
                line,
                capture_output=True,
                text=True,
                encoding="utf-8",
                timeout=120,
                cwd=tmp_path,
                env=variables,
                stdin=subprocess.DEVNULL,
                check=False,
                **settings,
            )
        else:
            result = run_warm(line, cwd=tmp_path, env=variables)
        return Ran(result.returncode, result.stdout, result.stderr)

    return run


@pytest.fixture
def refused(pgcdc) -> Callable[..., None]:
    """Run pgcdc, which must fail with exactly this status, error line and hint, and print no data."""

    def check(*arguments: object, status: int, error: str, hint: str, **settings: object) -> None:
        ran = pgcdc(*arguments, **settings)
        assert (ran.status, ran.err, ran.out) == (status, f"pgcdc: error: {error}\nhint: {hint}\n", "")

    return check


@pytest.fixture
def shop(database18):
    return with_changes(database18)


@pytest.fixture
def stream(shop, pgcdc):
    """Stream the shop's changes; each call reads them from the start."""

    def run(*arguments):
        line = stream_command(shop.uri, shop.copy_slot(shop.slot), "--messages", publications=["p"])
        ran = pgcdc(*line[len(PGCDC) :], "--endpos", "now", *arguments)
        assert (ran.status, ran.err) == (0, "")
        return ran.out

    return run


@pytest.fixture
def lines(stream):
    """The slot's changes as JSON lines."""
    return stream("-f", "-", "--format", "jsonl")


@pytest.fixture(scope="session")
def link(tmp_path_factory) -> Path:
    """pgcdc under the name of pg_recvlogical."""
    link = tmp_path_factory.mktemp("bin") / "pg_recvlogical"
    link.symlink_to(Path(sys.executable).with_name("pgcdc"))
    return link
