"""SIGKILL at recognizable moments, and what each kill left for the next run to recover."""

import json
import os
import random
import signal
import subprocess
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

TO_CUT = "rows beyond the checkpoint"
TO_REMOVE = "a file that the checkpoint doesn't know"
TO_PUBLISH = "a rotation that has begun"
SPOOLED = "a spool"
MOVED = "the checkpoint moved"
ANY = "at work"
"""What a kill can hit; a kill counts only if the run has changed something."""


class Hits(Counter[str]):
    """How often each thing was hit; `aimed` counts what the kills aimed at."""

    def __init__(self) -> None:
        super().__init__()
        self.aimed = Counter[str]()

    def enough(self) -> bool:
        """Whether each aim was hit at least half as often as it was aimed at."""
        return all(2 * self[aim] >= times > 0 for aim, times in self.aimed.items())


def kill_when(process: subprocess.Popen[Any], seen: Callable[[], bool], dice: random.Random) -> None:
    """Stop and continue a process until `seen` is true of its work, and kill it there.

    If that is never seen, as on a slow machine, kill it after a minute all the same: the hits will show it.
    """
    until = time.monotonic() + 60
    while process.poll() is None and time.monotonic() < until:
        process.send_signal(signal.SIGSTOP)
        os.waitid(os.P_PID, process.pid, os.WSTOPPED | os.WEXITED | os.WNOWAIT)
        if seen():
            break
        process.send_signal(signal.SIGCONT)
        time.sleep(dice.uniform(0, 0.01))
    process.send_signal(signal.SIGKILL)
    errors = process.communicate(timeout=60)[1]
    assert process.returncode == -signal.SIGKILL, f"it had ended before it was killed: {errors}"


class Target:
    """A directory or file that runs write one after another, and its state after the last kill.

    It must exist already. It is read only while nobody writes: the run is stopped or dead.
    """

    def __init__(self, output: Path) -> None:
        self._folder = output if output.is_dir() else output.parent
        self._file = None if output.is_dir() else output
        self._checkpoint = output / "checkpoint.json" if output.is_dir() else Path(f"{output}.checkpoint")
        self._before, self.end_lsn = self._sizes(), self._state()["end_lsn"]

    def kill(self, process: subprocess.Popen[Any], aim: str, dice: random.Random, hits: Hits) -> None:
        """Kill a run that has done what the aim asks for, at a random moment after that is first seen."""
        later = dice.uniform(0, 0.3)
        times: list[float] = []

        def seen() -> bool:
            if aim not in self._found():
                return False
            times.append(time.monotonic())
            return times[-1] - times[0] >= later

        kill_when(process, seen, dice)
        hits.aimed[aim] += 1
        hits.update(self._found())
        self._before, self.end_lsn = self._sizes(), self._state()["end_lsn"]

    def _found(self) -> set[str]:
        """What the run has done, and what a kill would leave undone; empty if it has changed nothing."""
        sizes = self._sizes()
        if sizes == self._before:
            return set()
        state = self._state()
        moved = {MOVED} if state["end_lsn"] != self.end_lsn else set()
        return {ANY, *moved, *self._undone(sizes, state)}

    def _undone(self, sizes: Mapping[Path, tuple[int, int]], state: Mapping[str, Any]) -> Iterator[str]:
        named = {self._folder / file["path"]: file["size"] for file in state["files"]}
        pending = {self._folder / file["from"] for file in (state["pending"] or {"renames": ()})["renames"]}
        unfinished = {path: sizes[path][0] for path in sizes if path in named or path.suffix == ".partial"}
        if any(size > named.get(path, size) for path, size in unfinished.items()):
            yield TO_CUT
        if not unfinished.keys() <= named.keys() | pending:
            yield TO_REMOVE
        if pending:
            yield TO_PUBLISH
        if any(path.suffix == ".spool" for path in sizes):
            yield SPOOLED

    def _state(self) -> dict[str, Any]:
        return json.loads(self._checkpoint.read_bytes())

    def _sizes(self) -> dict[Path, tuple[int, int]]:
        """Sizes and inodes of the unfinished files, and of the checkpoint and the manifest."""
        paths = [self._checkpoint, self._folder / "manifest.jsonl", *self._folder.glob("_spool/*")]
        partial = [*self._folder.glob("*.partial"), *self._folder.glob("*/*.partial")]
        paths += partial if self._file is None else [self._file]
        found = {path: path.stat() for path in paths if path.exists()}
        return {path: (stat.st_size, stat.st_ino) for path, stat in found.items()}
