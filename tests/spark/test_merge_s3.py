"""Segments and tables in an object store, as docs/spark.md describes for S3, with an S3 server."""

import os
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from deltalake import DeltaTable
from java_servers import fetched
from merge_commands import MergeCommand
from merge_directories import FORMATS, Directory, merged_rows
from merge_histories import History, random_history
from merge_oracle import Key, Row, fold
from proxy import Proxy
from pyiceberg.catalog.rest import RestCatalog
from pyspark.sql import SparkSession
from rest_catalog import CATALOG, jdbc_settings, rest_catalog
from s3_server import BUCKET, CREDENTIALS, S3Server, documented_packages
from segments import manifest
from servers import Database
from stream_runs import stream

from pgcdc_cli.changes.table import ReplicaIdentity

pytestmark = pytest.mark.timeout(1200)

DELIVERY = Path(__file__).parents[2] / "docs" / "delivery.md"
INPUT, TABLES = f"s3a://{BUCKET}/changes", f"s3a://{BUCKET}/tables"


@pytest.fixture(scope="module")
def packages() -> list[str]:
    """Fetch the jars that the manual names; skip the tests where that fails."""
    _, names, _, excluded = documented_packages()
    return fetched(*names.split(","), without=excluded.split(","))


@pytest.fixture
def s3(packages: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[S3Server]:
    for name, value in CREDENTIALS.items():
        monkeypatch.setenv(name, value)
    server = S3Server(tmp_path, packages)
    yield server
    server.stop()


def delta_rows(s3: S3Server, history: History) -> dict[Key, Row]:
    """Read a table's rows by key without Spark, each value as text."""
    table = DeltaTable(
        f"s3://{BUCKET}/tables/public/{history.table.name}", storage_options=s3.storage_options
    )
    return by_key(table.to_pyarrow_table(), history)


def by_key(table: pa.Table, history: History) -> dict[Key, Row]:
    rows = [{name: text(value) for name, value in row.items()} for row in table.to_pylist()]
    return {tuple(row[name] for name in history.key): row for row in rows}


def text(value: Any) -> str | None:
    return None if value is None else str(value)


def test_a_stream_is_copied_there_and_merged(
    database18: Database, s3: S3Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By the manual's script for `--on-segment` and the `aws` command; deltalake reads the server's rows."""
    database18.execute("CREATE TABLE orders (id int PRIMARY KEY, note text)")
    database18.execute("CREATE PUBLICATION pub FOR TABLE orders")
    recipe = DELIVERY.read_text().partition("```python\n")[2].partition("```")[0]
    (tmp_path / "copy-segment").write_text(recipe.replace("/usr/bin/env python3", sys.executable))
    (tmp_path / "copy-segment").chmod(0o755)
    monkeypatch.setenv(
        "PATH", os.pathsep.join([str(tmp_path), str(Path(sys.executable).parent), os.environ["PATH"]])
    )
    monkeypatch.setenv("BUCKET", f"s3://{BUCKET}/changes")
    monkeypatch.setenv("AWS_ENDPOINT_URL", s3.url)
    slot, out = database18.create_slot(), tmp_path / "out"
    for statement in (
        "INSERT INTO orders SELECT n, 'ä ' || n FROM generate_series(1, 50) n",
        "UPDATE orders SET note = NULL WHERE id % 2 = 0; DELETE FROM orders WHERE id % 5 = 0",
    ):
        database18.execute(statement)
        ran = stream(database18.uri, slot, "-D", str(out), "--on-segment", "copy-segment", "--endpos", "now")
        assert ran.returncode == 0, ran.stderr
    assert s3.read("changes/manifest.jsonl") == (out / "manifest.jsonl").read_bytes()

    summary = MergeCommand(INPUT, TABLES, tmp_path, extra=s3.extra).run()
    assert summary["segment"] == len(manifest(out)) == 2
    table = DeltaTable(f"s3://{BUCKET}/tables/public/orders", storage_options=s3.storage_options)
    rows = table.to_pyarrow_table().to_pylist()
    expected = database18.connection.execute("SELECT id, note FROM orders ORDER BY id").fetchall()
    assert sorted((row["id"], row["note"]) for row in rows) == expected


def segments(path: Path, history: History, *encodings: str) -> Directory:
    """Write one segment in each format."""
    directory = Directory(path, FORMATS[encodings[0]])
    for encoding, part in zip(encodings, history.parts(len(encodings)), strict=True):
        directory.encoding = FORMATS[encoding]
        directory.segment([(history.table, part)])
    return directory


@pytest.fixture
def history() -> History:
    return random_history("Käse 日本", ("a", "b"), ReplicaIdentity.DEFAULT, spaces=4)


@pytest.mark.long
def test_the_tables_alone_are_there(s3: S3Server, tmp_path: Path, history: History) -> None:
    segments(tmp_path / "in", history, "jsonl", "arrow+zstd", "debezium")
    MergeCommand("in", TABLES, tmp_path, extra=s3.extra).run()
    assert delta_rows(s3, history) == fold(history.changes, history.key)


@pytest.mark.long
def test_the_segments_alone_are_there(
    spark: SparkSession, s3: S3Server, tmp_path: Path, history: History
) -> None:
    segments(tmp_path / "in", history, "jsonl", "arrow+zstd", "debezium")
    s3.upload(tmp_path / "in", "changes")
    MergeCommand(INPUT, "wh", tmp_path, extra=s3.extra).run()
    assert merged_rows(spark, tmp_path / "wh", history.table) == fold(history.changes, history.key)


@pytest.mark.long
def test_killed_at_any_moment_nothing_is_lost_or_twice(
    s3: S3Server, tmp_path: Path, history: History
) -> None:
    """Runs are killed once they have written a number of objects; the last one isn't."""
    directory, kills = segments(tmp_path / "in", history, "jsonl"), 0
    for more in (2, 5, 8, 11, 14):
        before = len(history.changes)
        history.grow(10)
        directory.segment([(history.table, history.changes[before:])])
        s3.upload(tmp_path / "in", "changes")
        wanted = len(s3.objects("tables")) + more
        command = MergeCommand(INPUT, TABLES, tmp_path, ("--mode", "both"), s3.extra)
        kills += command.run_and_kill(lambda: len(s3.objects("tables")) >= wanted)  # noqa: B023 - at once
    assert kills >= 3
    assert command.run()["segment"] == 6
    assert delta_rows(s3, history) == fold(history.changes, history.key)
    log = DeltaTable(
        f"s3://{BUCKET}/tables/public/{history.table.name}.changelog", storage_options=s3.storage_options
    )
    logged = log.to_pyarrow_table(columns=["_pgcdc_lsn", "_pgcdc_seq"]).to_pylist()
    assert sorted((row["_pgcdc_lsn"], row["_pgcdc_seq"]) for row in logged) == sorted(
        (change.commit_lsn, change.seq) for change in history.changes
    )


@pytest.mark.long
def test_iceberg_tables_of_a_rest_catalog_are_there(
    database18: Database, proxy18: Proxy, s3: S3Server, tmp_path: Path, history: History
) -> None:
    segments(tmp_path / "in", history, "jsonl", "arrow+zstd", "debezium")
    s3.upload(tmp_path / "in", "changes")
    database = jdbc_settings(database18, proxy18)
    with rest_catalog(tmp_path, database, f"s3a://{BUCKET}/iceberg", s3.settings, s3.jars) as url:
        settings = {"": CATALOG, ".type": "rest", ".uri": url}
        settings[".io-impl"] = "org.apache.iceberg.hadoop.HadoopFileIO"
        catalog = [f"--conf=spark.sql.catalog.served{name}={value}" for name, value in settings.items()]
        options = ("--format", "iceberg", "--catalog", "served", "--mode", "both")
        command = MergeCommand(INPUT, TABLES, tmp_path, options, [*s3.extra, *catalog])
        assert command.run()["segment"] == 3
        found = RestCatalog("served", uri=url, **s3.pyiceberg_settings)
        table = found.load_table(("public", history.table.name)).scan().to_arrow()
    assert by_key(table, history) == fold(history.changes, history.key)
