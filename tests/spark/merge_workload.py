"""A random workload on a real server, and runs of `pgcdc stream` that write it to directories."""

import contextlib
import json
import random
import shutil
import subprocess
import threading
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import psycopg
from processes import PGCDC
from psycopg import sql

from pgcdc_cli.changes.table import TableSchema

LONG = "repeat(md5(random()::text), 100)"
KEYS = 9
COLUMNS = "n int DEFAULT 0, price numeric(10,2), doc text"
SETUP = f"""
CREATE TABLE plain (k int PRIMARY KEY, {COLUMNS});
CREATE TABLE pair (k int, b text DEFAULT 'ä', {COLUMNS}, PRIMARY KEY (b, k));
ALTER TABLE pair REPLICA IDENTITY FULL;
CREATE TABLE indexed (id int PRIMARY KEY DEFAULT (random() * 1e9)::int, k int NOT NULL, {COLUMNS});
CREATE UNIQUE INDEX by_k ON indexed (k);
ALTER TABLE indexed REPLICA IDENTITY USING INDEX by_k;
CREATE SCHEMA "Größe";
CREATE TABLE "Größe"."Ta ble" (k int PRIMARY KEY, "N.ö" int GENERATED ALWAYS AS IDENTITY, {COLUMNS});
CREATE TABLE swapped (k int PRIMARY KEY DEFERRABLE INITIALLY DEFERRED, {COLUMNS});
ALTER TABLE swapped REPLICA IDENTITY FULL;
CREATE TABLE nothing (k int PRIMARY KEY, {COLUMNS});
ALTER TABLE nothing REPLICA IDENTITY NOTHING;
"""
KEYED = ["public.plain", "public.pair", "public.indexed", "Größe.Ta ble"]
KEYLESS = ["public.nothing", "public.swapped"]
TABLES = [*KEYED, "public.swapped"]
"""The tables that start with rows, and are changed in every way."""
REFUSED = (
    psycopg.errors.UniqueViolation,
    psycopg.errors.DeadlockDetected,
    psycopg.errors.LockNotAvailable,
    psycopg.errors.ObjectInUse,
)
"""How transactions fail that conflict with each other."""


def quoted(table: str) -> str:
    return '"' + table.replace(".", '"."') + '"'


def external(table: str) -> str:
    return f"ALTER TABLE {quoted(table)} ALTER doc SET STORAGE EXTERNAL"


def seed(table: str) -> str:
    return f"INSERT INTO {quoted(table)} (k, doc) SELECT g, {LONG} FROM generate_series(1, 4) g"


def statements(pick: random.Random) -> list[str]:
    """Random statements for a part of a transaction, most of them on one table."""
    table, k, m = quoted(pick.choice(TABLES)), pick.randrange(KEYS), pick.randrange(KEYS)

    def move(old: int, new: int) -> str:
        free = f"NOT EXISTS (SELECT FROM {table} WHERE k = {new})"
        return f"UPDATE {table} SET k = {new}, n = n + 1 WHERE k = {old} AND {free}"

    def insert() -> str:
        doc = pick.choice([LONG, LONG, "'kurz ä'", "NULL"])
        return (
            f"INSERT INTO {table} (k, price, doc) SELECT {k}, {k}.50, {doc}"
            f" WHERE NOT EXISTS (SELECT FROM {table} WHERE k = {k})"
        )

    delete = f"DELETE FROM {table} WHERE k = {k}"
    acts = [
        [insert()],
        [insert()],
        [f"UPDATE {table} SET n = n + 1, price = n WHERE k IN ({k}, {m})"],
        [f"UPDATE {table} SET doc = {LONG} WHERE k = {k}"],
        [delete],
        [delete, insert(), f"UPDATE {table} SET n = 7 WHERE k = {k}", delete, insert()],
        [move(k, m)],
        [move(k, -9), move(m, k), move(-9, m)],
        [move(k, -8), move(-8, m), move(m, 50 + m), move(50 + m, k)],
        [f"UPDATE swapped SET k = {k + m} - k WHERE k IN ({k}, {m})"],
        [f"UPDATE indexed SET id = id + 1 WHERE k = {k}"],
        ["INSERT INTO nothing SELECT count(*) FROM nothing"],
        ["SAVEPOINT s", f"UPDATE {table} SET k = k + 100", "ROLLBACK TO s"],
    ]
    if pick.random() < 0.02:
        return [f"TRUNCATE {', '.join(map(quoted, pick.sample(TABLES, 2)))}", insert()]
    return pick.choice(acts)


def write(uri: str, name: str, transactions: int) -> None:
    """Run random transactions, some of them prepared."""
    pick = random.Random(name)
    with psycopg.connect(uri, autocommit=True) as connection:
        connection.execute("SET lock_timeout = '100ms'")
        for number in range(transactions):
            parts = [part for _ in range(pick.choice([1, 2, 5])) for part in statements(pick)]
            ends = ["COMMIT"] * 6 + ["ROLLBACK", "COMMIT PREPARED", "ROLLBACK PREPARED"]
            with contextlib.suppress(*REFUSED):
                transact(connection, parts, pick.choice(ends), f"{name} {number}")
            connection.execute("ROLLBACK")


def transact(connection: psycopg.Connection[Any], parts: list[str], end: str, gid: str) -> None:
    for part in ["BEGIN", *parts]:
        connection.execute(part.encode())
    if "PREPARED" in end:
        connection.execute(f"PREPARE TRANSACTION '{gid}'".encode())
        end += f" '{gid}'"
    connection.execute(end.encode())


def work(uri: str, name: str, transactions: int, writers: int = 3) -> None:
    """Write from several connections at once."""
    names = [f"{name} {number}" for number in range(writers)]
    threads = [threading.Thread(target=write, args=(uri, one, transactions)) for one in names]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()


def rows_of(connection: psycopg.Connection[Any], table: str) -> Counter[tuple[str | None, ...]]:
    """Read a table's rows as text, in the order of its columns."""
    names = [c.name for c in connection.execute(f"SELECT * FROM {quoted(table)}".encode()).description or ()]
    texts = sql.SQL(", ").join(sql.SQL("{}::text").format(sql.Identifier(name)) for name in names)
    query = sql.SQL("SELECT {} FROM {}").format(texts, sql.Identifier(*table.split(".")))
    return Counter(connection.execute(query).fetchall())


@dataclass
class Reader:
    """A slot, and the directory that a stream writes from it; `snapshot` starts with the existing rows."""

    uri: str
    path: Path
    encoding: str
    slot: str
    snapshot: bool = False
    gathered: int = 0
    described: dict[str, TableSchema] = field(default_factory=dict)

    def up_to_now(self, *more: str) -> None:
        line = [*PGCDC, "stream", "-d", self.uri, "-D", str(self.path)]
        line += ["--publication", "p", "--format", self.encoding, "--endpos", "now", *more]
        line += ["-S", self.slot] if not self.snapshot else ["-c", f"slot.name={self.slot}"]
        if self.encoding == "debezium":
            line += ["-c", "topic.prefix=shop", "-c", "skipped.operations=none"]
            line += ["-c", "snapshot.mode=" + ("initial" if self.snapshot else "no_data")]
        subprocess.run(line, check=True, timeout=120)

    def lines(self) -> Iterator[dict[str, Any]]:
        """Yield the manifest's new lines."""
        lines = (self.path / "manifest.jsonl").read_text().splitlines()
        yield from map(json.loads, lines[self.gathered :])
        self.gathered = len(lines)


@dataclass
class Gathered:
    """One directory made of several readers' segments, as if one stream had changed its format."""

    path: Path
    segments: int = 0

    def take(self, reader: Reader) -> None:
        """Copy a reader's new segments, under the next numbers and one stream ID."""
        added = []
        for line in reader.lines():
            self.segments += 1
            for file in line["files"]:
                self._copy(reader.path / file["path"], file["path"])
                if file["schema"] is not None:
                    described = f"schemas/{self.segments}-{Path(file['schema']).name}"
                    self._copy(reader.path / file["schema"], described)
                    file["schema"] = described
            added.append(json.dumps({**line, "segment": self.segments, "stream_id": "one"}) + "\n")
        with (self.path / "manifest.jsonl").open("a") as manifest:
            manifest.writelines(added)

    def _copy(self, source: Path, name: str) -> None:
        (self.path / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(source, self.path / name)


def tables_in(directory: Path) -> dict[str, TableSchema]:
    """Read the tables that a directory's schema files describe, by name."""
    paths = (directory / "schemas").iterdir()
    found = [TableSchema.from_json(json.loads(path.read_text())) for path in paths]
    return {table.display: table for table in found}
