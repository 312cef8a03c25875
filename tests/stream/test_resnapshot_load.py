"""A table that is read again while sessions change it is the source's, however often a run is killed."""

import json
import os
import random
import signal
import subprocess
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import psycopg
import pytest
import scale
from processes import PGCDC, wait_until
from resnapshot_runs import OFTEN, Resnapshots, create_items, source
from segments import contents
from stream_runs import FORMATS, NOW, Load


class RowsLoad(Load):
    """One of several sessions that insert, delete and change rows and keys, often with unchanged TOAST."""

    def __init__(self, uri: str, seed: int, rows: int) -> None:
        super().__init__(uri, seed, pause=0.005)
        self._rows = rows

    def _transaction(self, connection: psycopg.Connection) -> None:
        for _ in range(self._random.randrange(1, 4)):
            self._change(connection)

    def _change(self, connection: psycopg.Connection) -> None:
        low = self._random.randrange(self._rows)
        some = f"WHERE id BETWEEN {low} AND {low + 3}"
        kind = f"it's \\{self._random.randrange(3)}"
        match self._random.randrange(6):
            case 0:
                connection.execute(f"UPDATE items SET n = n + 1 {some}")
            case 1:
                connection.execute(f"UPDATE items SET doc = repeat(md5(random()::text), 80) {some}")
            case 2:
                connection.execute(f"UPDATE items SET kind = %s, n = -n {some}", (kind,))
            case 3:
                connection.execute(
                    f"UPDATE items SET id = id + %s {some}", (self._random.randrange(-99, 99),)
                )
            case 4:
                connection.execute(f"DELETE FROM items {some}")
            case 5:
                connection.execute(
                    "INSERT INTO items SELECT %s, g, 0, repeat(md5(random()::text), 80)"
                    " FROM generate_series(%s::int, %s) g ON CONFLICT DO NOTHING",
                    (kind, low, low + 6),
                )


@contextmanager
def load(uri: str, rows: int) -> Iterator[None]:
    sessions = [RowsLoad(uri, seed, rows) for seed in range(3)]
    for session in sessions:
        session.start()
    try:
        wait_until(lambda: all(one.transactions > 5 for one in sessions))
        yield
    finally:
        for session in sessions:
            session.stop()


def is_the_source_under_load(database, out: Path, form: str) -> None:
    rows = 500 * scale.factor
    create_items(database, rows)
    runs = Resnapshots(database, out, *FORMATS[form])
    with load(database.uri, rows), runs.running("-F", "0.1", seconds=240 * scale.factor):
        pass
    runs.end()
    assert runs.folded() == source(database)
    assert len(runs.rows_read()) == runs.progress["rows"]
    assert form != "debezium" or markers(out) == {"r": {"incremental"}, "other": {"false"}}


def markers(out: Path) -> dict[str, set[str]]:
    """The `source.snapshot` of Debezium events: of rows read, and of changes."""
    found: dict[str, set[str]] = {}
    for event in (json.loads(line)["value"] for line in contents(out)["public.items"]):
        if event is not None:
            found.setdefault("r" if event["op"] == "r" else "other", set()).add(event["source"]["snapshot"])
    return found


def test_all_is_the_source_under_load(database, tmp_path):
    is_the_source_under_load(database, tmp_path / "out", "jsonl")


@pytest.mark.long
@pytest.mark.parametrize("form", FORMATS)
def test_all_is_the_source_under_load_in_every_format(any_database, tmp_path, form):
    is_the_source_under_load(any_database, tmp_path / "out", form)


def survives_kills(database, out: Path, form: str, kills: int) -> None:
    """Kill runs within a chunk, after one, or once it is durable; then let one run end."""
    dice, rows = random.Random(kills), 150 * kills
    create_items(database, rows)
    runs = Resnapshots(database, out, *FORMATS[form], *OFTEN)
    hits: Counter[str] = Counter()
    with load(database.uri, rows):
        for where in ["inside", "behind", "durable"] * (kills // 3):
            command = runs.command(*NOW, where=where, step=dice.randrange(2, 6))
            ended = subprocess.run(command, check=False, timeout=60)
            hits[where] += ended.returncode == -signal.SIGKILL and runs.progress["stage"] == "reading"
    runs.end()
    assert runs.folded() == source(database)
    # Durable chunks are not read again, and others are not in the output twice.
    assert len(runs.rows_read()) == runs.progress["rows"]
    assert min(hits.values()) >= kills // 6, hits


def test_kills_at_any_step_lose_nothing_and_double_nothing(database18, tmp_path):
    survives_kills(database18, tmp_path / "out", "jsonl", 3)


@pytest.mark.long
@pytest.mark.parametrize("form", FORMATS)
def test_many_kills_lose_nothing_and_double_nothing(any_database, tmp_path, form, request):
    survives_kills(any_database, tmp_path / "out", form, request.config.option.kills)


def test_a_signal_takes_back_half_a_chunk(database18, tmp_path):
    create_items(database18, 300)
    runs = Resnapshots(database18, tmp_path / "out")
    environment = {**os.environ, "SIGNAL": str(int(signal.SIGTERM))}
    line = runs.command(where="inside", step=6)
    run = subprocess.run(line, capture_output=True, env=environment, timeout=60, check=True)
    assert (run.stderr, runs.progress["rows"]) == (b"", 100)
    line = [*PGCDC, "status", str(runs.out)]
    status = subprocess.run(line, capture_output=True, text=True, check=True).stdout
    assert "\nread again    public.items: 100 rows, going on\n" in status
    runs.end()
    assert runs.folded() == source(database18)
    assert len(runs.rows_read()) == 300
