"""pg_recvlogical, and `pgcdc recvlogical` in its place."""

import subprocess
from pathlib import Path
from typing import Any

import pytest
from warm_process import run_warm

BOTH = pytest.mark.parametrize("whose", ["ours", "theirs"])


def run_program(program: Path, *arguments: object, text: bool = True) -> subprocess.CompletedProcess[Any]:
    """Run PostgreSQL's program, or ours, without standard input."""
    line = [str(program), *map(str, arguments)]
    if program.resolve().name == "pgcdc":
        return run_warm(line, timeout=60, text=text)
    return subprocess.run(
        line, stdin=subprocess.DEVNULL, capture_output=True, check=False, timeout=60, text=text
    )
