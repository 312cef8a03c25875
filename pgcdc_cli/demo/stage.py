"""What the demo's steps share: settings, spectator, child processes, a connection, and where things lie."""

import json
import shutil
import subprocess
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import chain, count
from pathlib import Path
from typing import Any

import psycopg

from pgcdc_cli.demo.children import Child, Children, uninterruptible
from pgcdc_cli.demo.report import DemoSettings, Reporter
from pgcdc_cli.demo.server import EmbeddedServer
from pgcdc_cli.errors import ErrorKind, PgcdcError

SLOT = "shop"
PUBLICATION = "shop"
WITNESS = "witness"

_LOOK = 0.25
"""Seconds between two looks at a merge under way."""


@dataclass(frozen=True)
class Stage:
    """One demo under way."""

    settings: DemoSettings
    reporter: Reporter
    children: Children
    connection: psycopg.Connection[Any]
    uri: str
    directory: Path

    @property
    def files(self) -> Path:
        return self.directory / "files"

    @property
    def warehouse(self) -> Path:
        return self.directory / "warehouse"

    @property
    def merge_command(self) -> list[str]:
        return ["spark-submit", "--input", str(self.files), "--warehouse", str(self.warehouse)]

    def finish_merge(self, merge: Child) -> None:
        """Wait for a merge's end, and show the line that sums it up. Raises what it failed of."""
        began = time.monotonic()
        while merge.running:
            self.children.drain()
            self.reporter.waiting(time.monotonic() - began)
            time.sleep(_LOOK)
        self.children.wait(merge)
        for line in merge.said:
            if line.startswith("merged "):
                self.reporter.note(line)

    def segments(self) -> list[dict[str, Any]]:
        """Read the finished segments out of the manifest, as it is while a stream may be writing to it."""
        try:
            text = (self.files / "manifest.jsonl").read_text()
        except FileNotFoundError:
            return []
        return [json.loads(line) for line in text.splitlines(keepends=True) if line.endswith("\n")]


def new_directory(keep: Path | None) -> Path:
    """Make the directory that the demo leaves, by default `pgcdc-demo`, or `pgcdc-demo-2` and so on.

    Raises USAGE if there is something in it, OUTPUT if it can't be made.
    """
    if keep is None:
        numbered = (Path(f"pgcdc-demo-{number}") for number in count(2))
        keep = next(path for path in chain([Path("pgcdc-demo")], numbered) if not path.exists())
    try:
        keep.mkdir(parents=True, exist_ok=True)
        occupied = any(keep.iterdir())
    except OSError as error:
        message = f'could not create directory "{keep}": {error.strerror}'
        raise PgcdcError(ErrorKind.OUTPUT, message, hint="choose another with --keep") from error
    if occupied:
        message = f'could not use directory "{keep}": it is not empty'
        raise PgcdcError(ErrorKind.USAGE, message, hint="choose another with --keep")
    return keep


@contextmanager
def running_server() -> Iterator[EmbeddedServer]:
    """Run a server in a temporary directory, which goes with it. Raises UNEXPECTED if it doesn't start."""
    home = Path(tempfile.mkdtemp(prefix="pgcdc-demo-"))
    try:
        server = _start(home / "data")
        try:
            yield server
        finally:
            with uninterruptible():
                server.stop()
    finally:
        with uninterruptible():
            _remove(home)


def _remove(home: Path) -> None:
    """Remove a directory into which a server that was interrupted at its start may write for a moment yet."""
    for _ in range(20):
        shutil.rmtree(home, ignore_errors=True)
        if not home.exists():
            return
        time.sleep(0.1)


def _start(data: Path) -> EmbeddedServer:
    try:
        return EmbeddedServer(data)
    except (OSError, subprocess.SubprocessError) as error:
        message = f"could not start the embedded PostgreSQL: {' '.join(str(error).split())}"
        hint = "see whether the temporary directory has room, or set TMPDIR to another"
        raise PgcdcError(ErrorKind.UNEXPECTED, message, hint=hint) from error
