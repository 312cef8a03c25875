"""Merged tables equal the server's own tables at the same LSN."""

from collections import Counter
from pathlib import Path
from typing import Any

import psycopg
import pytest
from merge_directories import read_table
from merge_workload import (
    KEYED,
    KEYLESS,
    SETUP,
    TABLES,
    Gathered,
    Reader,
    external,
    rows_of,
    seed,
    tables_in,
    work,
)
from pyspark.sql import DataFrame, SparkSession

from pgcdc_cli.changes.table import TableSchema
from pgcdc_cli.spark.pgcdc_merge.job import merge
from pgcdc_cli.spark.pgcdc_merge.merge_errors import MergeError
from pgcdc_cli.spark.pgcdc_merge.options import MergeOptions
from pgcdc_cli.spark.warehouse import read_record
from pgcdc_cli.stream_status import as_of

Rows = Counter[tuple[str | None, ...]]

LAKES = ("delta", "iceberg")


def texts(frame: DataFrame) -> Rows:
    shown = [f"CAST(`{name}` AS STRING)" for name in frame.columns if not name.startswith("_pgcdc_")]
    return Counter(tuple(row) for row in frame.selectExpr(*shown).collect())


def replayed(log: DataFrame, table: TableSchema) -> Rows:
    """Compute a table's rows from a changelog that has all old rows."""
    names = [f"`{column.name}`" for column in table.columns]
    last = log.where("_pgcdc_op = 'T'").selectExpr("max(struct(_pgcdc_lsn, _pgcdc_seq)) AS at").first()
    if last is not None and last["at"] is not None:
        log = log.where(f"struct(_pgcdc_lsn, _pgcdc_seq) > struct({last['at'][0]}L, {last['at'][1]}L)")
    came = texts(log.where("_pgcdc_op IN ('R', 'I', 'U')").select(*names))
    went = texts(log.where("_pgcdc_op IN ('U', 'D')").select(*(f"_pgcdc_old.{name}" for name in names)))
    came.subtract(went)
    return Counter({row: number for row, number in came.items() if number})


def streams(database: Any, path: Path, encoding: str) -> list[Reader]:
    """Set up the database; return the stream of each round."""
    for statement in [*SETUP.split(";\n"), *map(external, TABLES)]:
        database.execute(statement)
    database.execute("CREATE PUBLICATION p FOR ALL TABLES")
    if encoding != "mixed":
        return [Reader(database.uri, path / "0", encoding, database.create_slot())] * 3
    for table in TABLES:
        database.execute(seed(table))
    snapshot = Reader(database.uri, path / "0", "debezium", f"s_{database.name}", snapshot=True)
    snapshot.up_to_now()
    return [snapshot, *(Reader(database.uri, path / name, name, "") for name in ("arrow", "jsonl"))]


def merge_and_compare(spark: SparkSession, database: Any, directory: Path, lake: str) -> dict[str, Rows]:
    """Merge everything, compare each table with the server's, and return the rows of those with a key."""
    warehouse = directory.parent / lake
    summary = merge(spark, MergeOptions(str(directory), str(warehouse), format=lake))
    assert summary["error"] is None, summary
    assert [w.partition(" ")[0] for w in summary["warnings"]] == ['"public.nothing"', '"public.swapped"']
    described = tables_in(directory)
    found = {}
    for table in KEYED:
        rows = found[table] = rows_of(database.connection, table)
        assert texts(read_table(spark, warehouse, described[table], lake)) == rows, (lake, table)
    for table in KEYLESS:
        log = read_table(spark, warehouse, described[table], lake, "changelog")
        assert replayed(log, described[table]) == rows_of(database.connection, table), (lake, table)
    return found


@pytest.mark.timeout(900)
@pytest.mark.parametrize(
    ("server", "encoding"),
    [
        (18, "mixed"),
        pytest.param(16, "mixed", marks=pytest.mark.long),
        pytest.param(18, "jsonl", marks=pytest.mark.long),
        pytest.param(18, "arrow", marks=pytest.mark.long),
        pytest.param(16, "debezium", marks=pytest.mark.long),
    ],
    indirect=["server"],
)
def test_merged_tables_are_the_servers(
    spark: SparkSession, tmp_path: Path, database: Any, encoding: str, request: pytest.FixtureRequest
) -> None:
    """Stream and merge, stream twice and merge; the versions recorded first still read as they were."""
    long = request.config.getoption("--long")
    directory = Gathered(tmp_path / "in")
    recorded: dict[str, tuple[list[Any], dict[str, Rows]]] = {}
    for number, reader in enumerate(streams(database, tmp_path, encoding)):
        reader.slot = reader.slot or database.create_slot()
        work(database.uri, f"{encoding} {number}", 150 if long else 25)
        reader.up_to_now()
        directory.take(reader)
        lakes = {0: LAKES if long else LAKES[:1], 2: LAKES}
        for lake in lakes.get(number, ()):
            found = merge_and_compare(spark, database, directory.path, lake)
            recorded.setdefault(lake, (read_record(str(tmp_path / lake)) or [], found))
    for lake, (rows, found) in recorded.items():
        for row in rows:
            if row.table in found:
                session = read_table(
                    spark, tmp_path / lake, tables_in(directory.path)["public.plain"], lake
                ).sparkSession
                assert texts(session.sql(as_of(row) or "")) == found[row.table], (lake, row.table)


def test_what_is_prepared_is_merged_once_it_is_committed(
    spark: SparkSession, tmp_path: Path, database18: Any
) -> None:
    """A directory with changes written at PREPARE TRANSACTION, and their outcome after them, is refused."""
    database18.execute("CREATE TABLE t (id int PRIMARY KEY); CREATE PUBLICATION p FOR ALL TABLES")
    create = "SELECT pg_create_logical_replication_slot(%s, 'pgoutput', false, true)"
    readers = [
        Reader(database18.uri, tmp_path / name, "jsonl", f"{name}_{database18.name}")
        for name in ("at", "before")
    ]
    for reader in readers:
        database18.execute(create, (reader.slot,))
    ends = {1: "ROLLBACK PREPARED 'a'", 2: "COMMIT PREPARED 'b'", 3: None}
    for id_, gid in zip(ends, "abc", strict=True):
        with psycopg.connect(database18.uri, autocommit=True) as connection:
            connection.execute(f"BEGIN; INSERT INTO t VALUES ({id_}); PREPARE TRANSACTION '{gid}'")
    database18.execute("CREATE TABLE other (id int PRIMARY KEY); INSERT INTO other VALUES (1)")
    merged = MergeOptions(str(tmp_path / "at"), str(tmp_path / "wh"))
    readers[0].up_to_now("--two-phase")
    readers[1].up_to_now("--two-phase-at", "prepare", "--layout", "stream")
    assert [table["table"] for table in merge(spark, merged)["tables"]] == ["public.other"]
    for end in filter(None, ends.values()):
        database18.execute(end)
    readers[0].up_to_now("--two-phase")
    readers[1].up_to_now("--two-phase-at", "prepare", "--layout", "stream")
    assert merge(spark, merged)["error"] is None
    table = tables_in(tmp_path / "at")["public.t"]
    assert texts(read_table(spark, tmp_path / "wh", table)) == Counter([("2",)])
    raw = "".join(path.read_text() for path in (tmp_path / "before").glob("**/0*.jsonl"))
    assert all(f'"op":"{op}"' in raw for op in ("I", "P", "K", "r"))
    with pytest.raises(MergeError, match="it holds all tables in one file"):
        merge(spark, MergeOptions(str(tmp_path / "before"), str(tmp_path / "no")))
    assert not (tmp_path / "no" / "public").exists()
    database18.execute("ROLLBACK PREPARED 'c'")
