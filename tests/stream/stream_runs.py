"""Running `pgcdc stream` as users do, and reading what it left."""

import json
import random
import signal
import subprocess
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import psycopg
from processes import stream_command
from segments import contents
from warm_process import run_warm

from pgcdc_cli.lsn import Lsn

TABLES = """
CREATE TABLE accounts (id bigint PRIMARY KEY, owner text, balance numeric(12,2), seen timestamptz);
CREATE TABLE documents (id uuid PRIMARY KEY, title text, body text);
ALTER TABLE documents ALTER body SET STORAGE EXTERNAL;
CREATE TABLE audit (account bigint, note text);
ALTER TABLE audit REPLICA IDENTITY FULL;
CREATE PUBLICATION pub FOR TABLE accounts, documents, audit;
"""

SMALL = """
CREATE TABLE t (a int PRIMARY KEY, b text);
CREATE TABLE other (a int);
CREATE PUBLICATION pub FOR TABLE t;
"""

NOW = ("--endpos", "now")

FORMATS = {
    "jsonl": ("--compression", "zstd"),
    "arrow": ("--format", "arrow"),
    "debezium": (
        *("--format", "debezium", "-c", "topic.prefix=shop", "-c", "decimal.handling.mode=string"),
        *("-c", "skipped.operations=none"),
        *("-c", "key.converter.schemas.enable=false", "-c", "value.converter.schemas.enable=false"),
    ),
}


def stream(uri: str, slot: str, *arguments: str, timeout: float = 60) -> subprocess.CompletedProcess[str]:
    return run_warm(stream_command(uri, slot, *arguments), timeout=timeout)


def refused(run: subprocess.CompletedProcess[str], status: int, message: str, hint: str) -> None:
    expected = f"pgcdc: error: could not {message}\nhint: {hint}\n"
    assert (run.returncode, run.stdout, run.stderr) == (status, "", expected)


@contextmanager
def repeating(uri: str, statement: str, pause: float = 0) -> Iterator[None]:
    """Run a statement again and again in a session of its own, `pause` seconds after the last time."""
    ended = threading.Event()

    def repeat() -> None:
        with psycopg.connect(uri, autocommit=True) as other:
            while not ended.wait(pause):
                other.execute(statement)

    thread = threading.Thread(target=repeat)
    thread.start()
    try:
        yield
    finally:
        ended.set()
        thread.join()


class Following:
    """`pgcdc stream` in the background, writing to a file as transactions come, or to a directory."""

    def __init__(self, uri: str, slot: str, path: Path, *arguments: str) -> None:
        self.path = path
        where = () if {"-D", "-f"} & set(arguments) else ("-f", str(path))
        self.process = subprocess.Popen(
            stream_command(uri, slot, *where, "-s", "0.2", *arguments), stderr=subprocess.PIPE, text=True
        )

    def rows(self) -> list[int]:
        return numbers(self.path.read_text()) if self.path.exists() else []

    def stop(self, number: int = signal.SIGTERM) -> tuple[int, str]:
        self.process.send_signal(number)
        return self.wait()

    def wait(self) -> tuple[int, str]:
        errors = self.process.communicate(timeout=60)[1]
        return self.process.returncode, errors


def insert(database, low: int, high: int) -> None:
    database.execute("INSERT INTO t SELECT g, 'row' FROM generate_series(%s::int, %s) g", (low, high))


def end_session(database, slot: str, reader: subprocess.Popen) -> None:
    """Terminate the walsender of a slot's reader, once; the reader goes on when the slot is free again.

    A reader that connects again before the server has cleaned up would lose that connection, too.
    """
    reader.send_signal(signal.SIGSTOP)
    try:
        terminate = "SELECT pg_terminate_backend(active_pid, 240000) FROM pg_replication_slots"
        ended = database.execute(f"{terminate} WHERE slot_name = %s", (slot,)).fetchone()
        assert ended == (True,)
    finally:
        reader.send_signal(signal.SIGCONT)


def position(database, slot: str) -> str | None:
    """The position up to which the slot was confirmed, over any connection; None for a physical one."""
    query = "SELECT confirmed_flush_lsn::text FROM pg_replication_slots WHERE slot_name = %s"
    return database.execute(query, (slot,)).fetchone()[0]


def end_of_log(database) -> Lsn:
    return Lsn.parse(database.execute("SELECT pg_current_wal_insert_lsn()::text").fetchone()[0])


def taken(database, slot: str) -> Lsn:
    """The written position that a slot's reader has reported to the server; 0/0 before the first report."""
    query = (
        "SELECT write_lsn::text FROM pg_stat_replication"
        " JOIN pg_replication_slots ON pid = active_pid WHERE slot_name = %s"
    )
    found = database.execute(query, (slot,)).fetchone()
    return Lsn.parse(found[0] if found and found[0] else "0/0")


def numbers(text: str) -> list[int]:
    """The values of column a, in order; a line that is still being written doesn't count."""
    return [json.loads(line)["new"]["a"] for line in text.splitlines(keepends=True) if line.endswith("\n")]


def in_directory(path: Path) -> list[int]:
    lines = contents(path).get("public.t", [])
    return numbers("".join(line.decode() + "\n" for line in lines))


class Load(threading.Thread):
    """A short mixed load: multi-row transactions, key changes, unchanged TOAST, rollbacks to savepoints."""

    def __init__(self, uri: str, seed: int, pause: float = 0.02) -> None:
        super().__init__(daemon=True)
        self._uri, self._pause = uri, pause
        self._random = random.Random(seed)
        self._ended = threading.Event()
        self.transactions = 0

    def run(self) -> None:
        with psycopg.connect(self._uri, autocommit=True) as connection:
            while not self._ended.is_set():
                with suppress(psycopg.errors.UniqueViolation, psycopg.errors.DeadlockDetected):
                    with connection.transaction(force_rollback=self._random.random() < 0.1):
                        self._transaction(connection)
                    self.transactions += 1
                self._ended.wait(self._pause)

    def stop(self) -> None:
        self._ended.set()
        self.join()

    def _transaction(self, connection: psycopg.Connection) -> None:
        low = self._random.randrange(10_000)
        connection.execute(
            "INSERT INTO accounts SELECT g, 'owner ' || g, g, now() FROM generate_series(%s::int, %s) g"
            " ON CONFLICT (id) DO UPDATE SET balance = accounts.balance + 1",
            (low, low + self._random.randrange(40)),
        )
        connection.execute(
            "INSERT INTO documents"
            " VALUES (gen_random_uuid(), 'a \"title\"\n', repeat(md5(random()::text), 200))"
        )
        connection.execute(
            "UPDATE documents SET title = 'again' WHERE id IN (SELECT id FROM documents LIMIT 2)"
        )
        connection.execute("INSERT INTO audit VALUES (%s, NULL), (%s, 'ä')", (low, low))
        with connection.transaction(force_rollback=True):
            connection.execute("DELETE FROM accounts WHERE id BETWEEN %s AND %s", (low - 9, low + 9))
        if self._random.random() < 0.3:
            connection.execute("DELETE FROM accounts WHERE -id BETWEEN %s AND %s", (low, low + 3))
            connection.execute("UPDATE accounts SET id = -id WHERE id BETWEEN %s AND %s", (low, low + 3))
            connection.execute("DELETE FROM audit WHERE account < %s", (low,))
        if self._random.random() < 0.05:
            connection.execute("TRUNCATE audit, documents")


def delivers(uri: str, slot: str, out: Path, *arguments: str) -> list[int]:
    """Stream into directory `out` up to now; return its values."""
    run = stream(uri, slot, "-D", str(out), *NOW, *arguments)
    assert run.returncode == 0, run.stderr
    return in_directory(out)


def checkpoint(out: Path) -> dict:
    """The checkpoint of a directory; without one, only `end_lsn`, which is None."""
    path = out / "checkpoint.json"
    return json.loads(path.read_bytes()) if path.exists() else {"end_lsn": None}


def files(folder: Path) -> dict[Path, bytes]:
    return {path: path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def make_slot(uri: str, slot: str) -> None:
    """Create the tables, the slot and one row in a server of the test's own."""
    with psycopg.connect(uri, autocommit=True) as admin:
        admin.execute(SMALL)
        admin.execute("SELECT pg_create_logical_replication_slot(%s, 'pgoutput')", (slot,))
        insert(admin, 1, 1)
