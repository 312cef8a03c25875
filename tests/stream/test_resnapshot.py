"""`--resnapshot`: a table's rows are read again while it is streamed, and what is written is the source."""

import json
import random
import signal
import subprocess
import sys
import threading
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import psycopg
import pytest
import scale
from processes import PGCDC, stream_command, wait_until
from segments import contents, manifest
from stream_runs import NOW, refused, stream
from test_stream_snapshot import FORMATS, any_database, checkpoint, server15

__all__ = ["any_database", "server15"]

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
import os, random, signal, sys
from pgcdc_cli.cli.app import main
from pgcdc_cli.sinks.checkpointed_sink import CheckpointedSink
from pgcdc_cli.stream import resnapshot
from pgcdc_cli.stream.resnapshot import Resnapshot

resnapshot.CHUNK_ROWS = resnapshot.FIRST_ROWS = int(sys.argv.pop(1))
chance, dice = float(sys.argv.pop(1)), random.Random(int(sys.argv.pop(1)))

def deadly(owner, name, where):
    step = getattr(owner, name)
    def wrapped(*arguments, **settings):
        found = step(*arguments, **settings)
        if dice.random() < chance:
            print(where, file=sys.stderr, flush=True)
            os.kill(os.getpid(), signal.SIGKILL)
        return found
    setattr(owner, name, wrapped)

if chance:
    deadly(Resnapshot, "_write", "inside of a chunk")
    deadly(Resnapshot, "_reach", "behind a chunk")
    deadly(CheckpointedSink, "_make_durable", "durable")
sys.exit(main())
"""


def small_chunks(uri: str, slot: str, *arguments: object, chance: float = 0, seed: int = 0) -> list[str]:
    """A command line of `pgcdc stream` that reads 50 rows at a time, and may kill itself at any step."""
    command = stream_command(uri, slot, *arguments)[len(PGCDC) :]
    return [sys.executable, "-c", SMALL_CHUNKS, "50", str(chance), str(seed), *command]


class Load(threading.Thread):
    """One session of several: rows come, go, change their keys and their other values; TOAST is left alone."""

    def __init__(self, uri: str, seed: int, rows: int) -> None:
        super().__init__(daemon=True)
        self._uri, self._dice, self._rows = uri, random.Random(seed), rows
        self._ended = threading.Event()
        self.transactions = 0

    def run(self) -> None:
        with psycopg.connect(self._uri, autocommit=True) as connection:
            while not self._ended.is_set():
                try:
                    with connection.transaction(force_rollback=self._dice.random() < 0.1):
                        for _ in range(self._dice.randrange(1, 4)):
                            self._change(connection)
                except (psycopg.errors.UniqueViolation, psycopg.errors.DeadlockDetected):
                    continue
                self.transactions += 1
                self._ended.wait(0.005)

    def stop(self) -> None:
        self._ended.set()
        self.join()

    def _change(self, connection: psycopg.Connection) -> None:
        low = self._dice.randrange(self._rows)
        some = f"WHERE id BETWEEN {low} AND {low + 3}"
        kind = f"it's \\{self._dice.randrange(3)}"
        match self._dice.randrange(6):
            case 0:
                connection.execute(f"UPDATE items SET n = n + 1 {some}")
            case 1:
                connection.execute(f"UPDATE items SET doc = repeat(md5(random()::text), 80) {some}")
            case 2:
                connection.execute(f"UPDATE items SET kind = %s, n = -n {some}", (kind,))
            case 3:
                connection.execute(f"UPDATE items SET id = id + %s {some}", (self._dice.randrange(-99, 99),))
            case 4:
                connection.execute(f"DELETE FROM items {some}")
            case 5:
                connection.execute(
                    "INSERT INTO items SELECT %s, g, 0, repeat(md5(random()::text), 80)"
                    " FROM generate_series(%s::int, %s) g ON CONFLICT DO NOTHING",
                    (kind, low, low + 6),
                )


@pytest.fixture
def load() -> Iterator[list[Load]]:
    """Sessions that are at work; they end with the test."""
    sessions: list[Load] = []
    yield sessions
    for session in sessions:
        session.stop()


def start(load: list[Load], uri: str, rows: int) -> None:
    for seed in range(3):
        load.append(Load(uri, seed, rows))
        load[-1].start()
    wait_until(lambda: all(one.transactions > 5 for one in load))


def lines(out: Path, table: str = "public.items") -> Iterator[tuple[str, tuple, dict, dict, list[str]]]:
    """Operation, place in history, the row before, the row after, what it lacks; of any format."""
    for number, item in enumerate(contents(out).get(table, [])):
        if isinstance(item, bytes) and "value" in (line := json.loads(item)):
            event = line["value"]
            if event is not None:
                after = event["after"] or {}
                lacks = [name for name, value in after.items() if value == "__debezium_unavailable_value"]
                # A change of the key comes as the delete of the old one and an insert.
                yield event["op"].upper().replace("C", "I"), (number,), line["key"], after, lacks
        elif isinstance(item, bytes):
            at = int(line["commit_lsn"].replace("/", ""), 16) if "/" in line["commit_lsn"] else 0
            high, low = line["commit_lsn"].split("/")
            at = (int(high, 16) << 32) + int(low, 16)
            before = line.get("old") or line.get("key") or {}
            place = (at, line["op"] != "R", line["seq"])
            yield line["op"], place, before, line.get("new") or {}, line.get("unchanged", [])
        elif isinstance(item, dict):
            place = (item["_commit_lsn"], item["_op"] != "R", item["_seq"])
            yield item["_op"], place, item["_old"] or item, item, item["_unchanged"] or []


def folded(out: Path) -> dict[tuple, tuple]:
    """The rows by key, as files leave them; a value that nothing has is None."""
    found: dict[tuple, dict] = {}
    places = []
    for op, place, before, after, lacks in lines(out):
        places.append(place)
        row = {}
        if op in {"U", "D"}:
            row = found.pop((before["kind"], before["id"]), {})
        if op != "D":
            sent = {name: after[name] for name in ("kind", "id", "n", "doc") if name not in lacks}
            found[after["kind"], after["id"]] = {"doc": row.get("doc"), **sent}
    # Whoever goes by positions finds the same order.
    assert places == sorted(places)
    return {key: (row["n"], row["doc"]) for key, row in found.items()}


def source(database) -> dict[tuple, tuple]:
    rows = database.execute("SELECT kind, id, n, doc FROM items").fetchall()
    return {(kind, number): rest for kind, number, *rest in rows} and {
        (kind, number): (n, doc) for kind, number, n, doc in rows
    }


def progress(out: Path) -> dict:
    found = checkpoint(out).get("resnapshot", [{"stage": "none", "rows": 0}])
    return found[0]


@pytest.mark.parametrize("form", FORMATS)
def test_all_is_the_source_under_load(database, tmp_path, form, load):
    rows = 1500 * scale.factor
    database.execute(TABLES)
    database.execute(FILL.format(rows))
    slot, out = database.create_slot(), tmp_path / "out"
    start(load, database.uri, rows)
    command = small_chunks(database.uri, slot, "-D", out, *FORMATS[form], *AGAIN)
    with subprocess.Popen([*command, "-F", "0.1"]) as run:
        wait_until(lambda: progress(out)["stage"] == "done")
        run.send_signal(signal.SIGTERM)
    assert run.returncode == 0
    for one in load:
        one.stop()
    subprocess.run([*command, *NOW], check=True)
    assert folded(out) == source(database)
