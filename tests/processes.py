"""`pgcdc` as a process: its command lines, its memory, and waiting for what it does."""

import os
import re
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import TypeVar

PGCDC = (sys.executable, "-m", "pgcdc_cli")

Found = TypeVar("Found")


def stream_command(
    uri: str, slot: str, *arguments: object, publications: Sequence[str] = ("pub",)
) -> list[str]:
    """Make a command line of `pgcdc stream`."""
    named = [word for name in publications for word in ("--publication", name)]
    return [*PGCDC, "stream", "-d", uri, "-S", slot, *named, *map(str, arguments)]


def path_without(program: str, folder: Path) -> str:
    """Make a folder of links to this machine's programs but one; return a PATH of it alone."""
    folder.mkdir()
    for tool in (*Path("/usr/bin").iterdir(), *Path("/bin").iterdir()):
        if tool.name != program and not (folder / tool.name).is_symlink():
            (folder / tool.name).symlink_to(tool)
    assert shutil.which(program, path=str(folder)) is None
    return str(folder)


def wait_until(found: Callable[[], Found], seconds: float = 240, *, pause: float = 0.01) -> Found:
    """Call `found` until its answer is true; return the answer."""
    deadline = time.monotonic() + seconds
    while not (answer := found()):
        assert time.monotonic() < deadline, "it takes too long"
        time.sleep(pause)
    return answer


def shown_on(terminal: int) -> bytes:
    """Read what comes from a terminal until its other side is closed, and close it."""
    shown = b""
    # On Linux, the end is an error.
    with suppress(OSError):
        while more := os.read(terminal, 1 << 16):
            shown += more
    os.close(terminal)
    return shown


def resident_peak(pid: int) -> int:
    """Read the largest resident set of a process so far, in bytes; 0 if the process is gone.

    The value from wait4 is no use: it includes the time before exec, when the process was a copy of this one.
    """
    with suppress(FileNotFoundError, ProcessLookupError):
        found = re.search(r"VmHWM:\s*(\d+) kB", Path(f"/proc/{pid}/status").read_text())
        return int(found[1]) << 10 if found else 0
    return 0


def peak_memory(line: Sequence[str], environment: Mapping[str, str] | None = None) -> int:
    """Run a command line that must succeed without messages, such as one about a reconnection.

    Returns its largest resident set in bytes.
    """
    with tempfile.TemporaryFile() as errors:
        with subprocess.Popen(line, stderr=errors, env={**os.environ, **(environment or {})}) as process:
            peak = 0
            while process.poll() is None:
                peak = max(peak, resident_peak(process.pid))
                time.sleep(0.005)
        errors.seek(0)
        said = errors.read()
    assert (process.returncode, said) == (0, b""), said
    assert peak
    return peak
