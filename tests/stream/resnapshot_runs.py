"""Runs that read a table again in small chunks, killed or held up at a given step, and what they wrote."""

import os
import signal
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from processes import PGCDC, stream_command, wait_until
from row_changes import RowChange, row_changes
from stream_runs import NOW, checkpoint

AGAIN = ("--resnapshot", "public.items")
OFTEN = ("-F", "0.001")

TABLES = """
CREATE TABLE items (kind text, id int, n int, doc text, PRIMARY KEY (kind, id));
ALTER TABLE items ALTER doc SET STORAGE EXTERNAL;
CREATE TABLE other (id int PRIMARY KEY);
CREATE PUBLICATION pub FOR TABLE items, other;
"""
FILL = """
INSERT INTO items SELECT 'it''s \\' || g % 3, g, g, repeat(md5(g::text), 80) FROM generate_series(1, {}) g
"""

SMALL_CHUNKS = """
import os, signal, sys
import psycopg
from pgcdc_cli.cli.app import main
from pgcdc_cli.sinks.checkpointed_sink import CheckpointedSink
from pgcdc_cli.stream.snapshot import resnapshot
from pgcdc_cli.stream.snapshot.resnapshot import Resnapshot

resnapshot.CHUNK_ROWS = resnapshot.FIRST_ROWS = int(sys.argv.pop(1))
resnapshot.MOST_MOVED = int(os.environ.get("MOST_MOVED", resnapshot.MOST_MOVED))
where, left = sys.argv.pop(1), int(sys.argv.pop(1))
steps = {"inside": (Resnapshot, "_write"), "behind": (Resnapshot, "_reach")}
steps["durable"], steps["between"] = (CheckpointedSink, "_save"), (Resnapshot, "_read")
steps["begun"] = (Resnapshot, "record")

def deadly(owner, name):
    step = getattr(owner, name)
    def wrapped(*arguments, **settings):
        global left
        found = step(*arguments, **settings)
        left -= 1
        if left == 0 and "STATEMENTS" in os.environ:
            with psycopg.connect(os.environ["SERVER"], autocommit=True) as connection:
                connection.execute(os.environ["STATEMENTS"])
        elif left == 0:
            os.kill(os.getpid(), int(os.environ.get("SIGNAL", signal.SIGKILL)))
        return found
    setattr(owner, name, wrapped)

if where:
    deadly(*steps[where])
sys.exit(main())
"""


def create_items(connection, rows: int = 0) -> None:
    """Create the tables, with this many rows in the one that is read again."""
    connection.execute(TABLES + FILL.format(rows))


class Resnapshots:
    """Runs that read a table again into the same directory, 50 rows at a time."""

    def __init__(self, database, out: Path, *options: str, again: Sequence[str] = AGAIN) -> None:
        self.uri, self.slot, self.out = database.uri, database.create_slot(), out
        self.options = ("-D", str(out), *again, *options)

    def command(self, *more: str, where: str = "", step: int = 0) -> list[str]:
        """A command line that kills itself, or executes its STATEMENTS, at a given step."""
        line = stream_command(self.uri, self.slot, "--snapshot", "never", *self.options, *more)
        return [sys.executable, "-c", SMALL_CHUNKS, "50", where, str(step), *line[len(PGCDC) :]]

    def end(self, *more: str, statements: str = "", step: int = 3) -> str:
        """Read all that is there up to now, with statements between two chunks; return standard error."""
        line = self.command(*NOW, *more, where="between" if statements else "", step=step)
        environment = self._executing(statements)
        run = subprocess.run(line, capture_output=True, text=True, check=False, env=environment, timeout=240)
        assert run.returncode == 0, run.stderr
        return run.stderr

    def is_killed_after(self, chunks: int) -> None:
        command = self.command(where="behind", step=chunks)
        killed = subprocess.run(command, check=False, timeout=60)
        assert (killed.returncode, self.progress["stage"]) == (-signal.SIGKILL, "reading")

    @contextmanager
    def running(
        self, *more: str, statements: str = "", where: str = "", step: int = 0, seconds: float = 240
    ) -> Iterator[None]:
        """Run in the background, with statements at a step, until the rows are read."""
        command = self.command(*more, where=where, step=step)
        with subprocess.Popen(command, env=self._executing(statements)) as run:
            try:
                yield
                wait_until(lambda: self.progress["stage"] == "done", seconds)
                run.send_signal(signal.SIGTERM)
                assert run.wait(60) == 0
            finally:
                run.kill()

    def _executing(self, statements: str) -> dict[str, str]:
        return {**os.environ, "SERVER": self.uri, "STATEMENTS": statements}

    @property
    def progress(self) -> dict[str, Any]:
        return checkpoint(self.out).get("resnapshot", [{"stage": "none", "rows": 0}])[0]

    def changes(self, table: str = "public.items") -> list[RowChange]:
        return list(row_changes(self.out, table))

    def rows_read(self) -> list[dict[str, Any]]:
        return [change.after for change in self.changes() if change.op == "R"]

    def keys_read(self) -> set[tuple[str, int]]:
        return {(row["kind"], row["id"]) for row in self.rows_read()}

    def folded(self) -> dict[tuple, tuple]:
        """The rows by key that result from the files; a value that no change has is None."""
        found: dict[tuple, dict] = {}
        changes = self.changes()
        for op, _, before, after, lacks in changes:
            row = found.pop((before["kind"], before["id"]), {}) if op in {"U", "D"} else {}
            if op != "D":
                values = {name: row.get(name) if name in lacks else after.get(name) for name in ("n", "doc")}
                found[after["kind"], after["id"]] = values
        # The order of the files is that of the positions.
        places = [change.place for change in changes]
        assert places == sorted(set(places))
        return {key: tuple(row.values()) for key, row in found.items()}


def source(database) -> dict[tuple, tuple]:
    """The rows by key that are in the table."""
    rows = database.execute("SELECT kind, id, n, doc FROM items").fetchall()
    return {(kind, number): tuple(values) for kind, number, *values in rows}


def killed_half_way(database, out: Path, *statements: str) -> Resnapshots:
    """Read 150 of 300 rows again, then kill the run."""
    create_items(database, 300)
    for statement in statements:
        database.execute(statement)
    runs = Resnapshots(database, out, *OFTEN)
    runs.is_killed_after(3)
    assert runs.progress["rows"] == 150
    return runs


def read_meanwhile(database, out: Path, statements: str) -> Resnapshots:
    """Read 300 rows again, and make these changes meanwhile, between two chunks."""
    create_items(database, 300)
    # Otherwise a chunk's reader may set hint bits, and the stream has a turn to catch up with their WAL.
    database.execute("VACUUM items")
    runs = Resnapshots(database, out)
    runs.end(statements=statements)
    return runs
