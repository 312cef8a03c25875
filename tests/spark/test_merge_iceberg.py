"""Iceberg tables keep the same promises; what they can't keep is refused."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from merge_directories import FORMATS, Directory, merge_into, merged_rows, read_table
from merge_histories import TEXT, pg_type, random_history, table_schema
from merge_notes import COLUMNS, delete, insert, update
from merge_oracle import Change, fold
from pyspark.sql import SparkSession

from pgcdc_cli.changes.table import ColumnFacts, ReplicaIdentity, TableFacts
from pgcdc_cli.spark.pgcdc_merge import job
from pgcdc_cli.spark.pgcdc_merge.control import ControlTable
from pgcdc_cli.spark.pgcdc_merge.iceberg import IcebergLake
from pgcdc_cli.spark.pgcdc_merge.merge_errors import MergeError

ONE = table_schema("One ä`x", COLUMNS, ("id",), schema="Shop.1")
INT2 = 21


def iceberg(spark: SparkSession, directory: Directory, warehouse: Path, **options: Any) -> dict[str, Any]:
    return merge_into(spark, directory, warehouse, format="iceberg", **options)


def test_merged_tables_are_what_the_oracle_says(
    spark: SparkSession, directory: Directory, warehouse: Path
) -> None:
    """From files of two formats; the changelog beside each table has every change once."""
    default, full = ReplicaIdentity.DEFAULT, ReplicaIdentity.FULL
    histories = [
        random_history("full", ("a", "b"), full, spaces=10),
        random_history("truncated", ("a", "b"), default, spaces=2, truncates=True),
    ]
    for part, encoding in enumerate(["jsonl", "arrow"]):
        directory.encoding = FORMATS[encoding]
        directory.segment([(h.table, h.parts(2)[part]) for h in histories])
        summary = iceberg(spark, directory, warehouse, mode="both")
        assert summary["error"] is None
    for history in histories:
        expected = fold(history.changes, history.key)
        assert merged_rows(spark, warehouse, history.table, "iceberg") == expected
        logged = read_table(spark, warehouse, history.table, "iceberg", "changelog")
        positions = [(row["_pgcdc_op"], row["_pgcdc_lsn"], row["_pgcdc_seq"]) for row in logged.collect()]
        assert sorted(positions) == sorted((c.op, c.commit_lsn, c.seq) for c in history.changes)


def test_a_catalog_that_is_not_configured_is_told_of(
    spark: SparkSession, directory: Directory, warehouse: Path
) -> None:
    directory.segment([(ONE, [insert(1, 1)])])
    with pytest.raises(MergeError, match=r'control table "`nowhere`\.`_pgcdc`\.`control`"') as raised:
        iceberg(spark, directory, warehouse, catalog="nowhere")
    assert raised.value.hint.startswith("check the catalog's settings (-- --conf spark.sql.catalog.NAME...)")


def segments_of_snapshots(spark: SparkSession, warehouse: Path, mode: str) -> list[str]:
    name = IcebergLake(f"file:{warehouse}").location(ONE.schema, ONE.name, mode)
    session = read_table(spark, warehouse, ONE, "iceberg").sparkSession
    query = f"SELECT summary['pgcdc.segment'] FROM {name}.snapshots ORDER BY committed_at"
    return [row[0] for row in session.sql(query).collect()]


def test_each_range_is_one_snapshot_whatever_happens(
    spark: SparkSession, directory: Directory, warehouse: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The counts are of rows; a range that was committed is not repeated where the control table lacks it."""
    directory.segment([(ONE, [insert(10, 1), insert(11, 2), insert(12, 3)])])
    first = iceberg(spark, directory, warehouse, soft_delete=True, metadata=True)
    assert first["tables"][0]["inserted"] == 3
    directory.segment([(ONE, [insert(20, 4), delete(21, 1), update(22, 2, "u")])])
    with monkeypatch.context() as patch:
        patch.setattr(ControlTable, "finish", lambda *_: pytest.fail("died"))
        with pytest.raises(pytest.fail.Exception):
            iceberg(spark, directory, warehouse, soft_delete=True, metadata=True)
    again = iceberg(spark, directory, warehouse, soft_delete=True, metadata=True)
    assert (again["segment"], again["error"]) == (2, None)
    directory.segment([(ONE, [Change("T", 30, 0)])])
    last = iceberg(spark, directory, warehouse, soft_delete=True, metadata=True)
    assert last["tables"][0]["updated"] == 3
    rows = read_table(spark, warehouse, ONE, "iceberg").orderBy("id").collect()
    assert [(row["id"], row["note"], row["_pgcdc_lsn"], row["_pgcdc_deleted"]) for row in rows] == [
        (1, "new", 21, True),
        (2, "u", 30, True),
        (3, "new", 30, True),
        (4, "new", 30, True),
    ]
    assert segments_of_snapshots(spark, warehouse, "merge") == ["1", "2", "3"]
    table = read_table(spark, warehouse, ONE, "iceberg")
    name = IcebergLake(f"file:{warehouse}").location(ONE.schema, ONE.name, "merge")
    version = last["tables"][0]["version"]
    assert table.sparkSession.sql(f"SELECT * FROM {name} VERSION AS OF {version}").count() == 4


def test_two_merges_at_once_cannot_both_commit(
    spark: SparkSession, directory: Directory, warehouse: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As on a file system without locks: the later commit finds that its snapshot isn't the current one."""
    directory.segment([(ONE, [insert(10, 1)])])
    iceberg(spark, directory, warehouse, mode="both")
    directory.segment([(ONE, [insert(20, 2)])])
    overtaken = []

    def overtaking(name: str) -> Any:
        real = getattr(job, name)

        def run(*arguments: Any) -> Any:
            if name not in overtaken:
                overtaken.append(name)
                iceberg(spark, directory, warehouse, mode="both")
            return real(*arguments)

        return run

    with monkeypatch.context() as patch:
        patch.setattr(job, "locked", lambda _: job.nullcontext())
        for name in ("merge_table", "append_changes"):
            patch.setattr(job, name, overtaking(name))
        with pytest.raises(MergeError, match="another merge wrote it at the same time") as caught:
            iceberg(spark, directory, warehouse, mode="both")
    assert caught.value.locked
    assert iceberg(spark, directory, warehouse, mode="both")["error"] is None
    assert len(merged_rows(spark, warehouse, ONE, "iceberg")) == 2
    assert read_table(spark, warehouse, ONE, "iceberg", "changelog").count() == 2
    for mode in ("merge", "changelog"):
        assert segments_of_snapshots(spark, warehouse, mode) == ["1", "2"]


def test_small_integers_and_tables_that_were_set_back(
    spark: SparkSession, directory: Directory, warehouse: Path
) -> None:
    """Iceberg has no SMALLINT: it is kept as INT."""
    small = table_schema("small", {"id": pg_type(INT2), "note": pg_type(TEXT)}, ("id",))
    directory.segment([(small, [insert(10, 1)])])
    iceberg(spark, directory, warehouse)
    directory.segment([(small, [insert(20, 2)])])
    assert iceberg(spark, directory, warehouse)["error"] is None
    table = read_table(spark, warehouse, small, "iceberg")
    assert table.schema.simpleString() == "struct<id:int,note:string>"
    name = IcebergLake(f"file:{warehouse}").location("public", "small", "merge")
    first = table.sparkSession.sql(f"SELECT snapshot_id FROM {name}.snapshots ORDER BY committed_at").first()
    assert first is not None
    table.sparkSession.sql(f"CALL pgcdc.system.rollback_to_snapshot('{name}', {first[0]})")
    directory.segment([(small, [insert(30, 3)])])
    summary = iceberg(spark, directory, warehouse)
    assert "when it was last merged" in summary["error"]["message"]


def test_properties_are_the_users_once_the_table_is_there(
    spark: SparkSession, directory: Directory, warehouse: Path
) -> None:
    """Also where the table is written anew: for a column with a default, or another key."""
    facts = {"id": ColumnFacts(position=1), "note": ColumnFacts(position=2)}
    facts["more"] = ColumnFacts(default="'5'", position=3, missing="5")
    columns = {**COLUMNS, "more": pg_type(TEXT)}
    wide, keyed = (
        replace(table_schema(ONE.name, columns, key, schema=ONE.schema), facts=TableFacts(key, None, facts))
        for key in (("id",), ("note",))
    )
    directory.segment([(ONE, [insert(10, 1, "a")])])
    assert iceberg(spark, directory, warehouse)["error"] is None
    name = IcebergLake(f"file:{warehouse}").location(ONE.schema, ONE.name, "merge")

    def properties() -> dict[str, str]:
        session = read_table(spark, warehouse, ONE, "iceberg").sparkSession
        return {row[0]: row[1] for row in session.sql(f"SHOW TBLPROPERTIES {name}").collect()}

    session = read_table(spark, warehouse, ONE, "iceberg").sparkSession
    wanted = "'write.merge.mode' = 'copy-on-write', 'format-version' = '3'"
    session.sql(f"ALTER TABLE {name} SET TBLPROPERTIES ({wanted})")
    added = [Change("I", 20, 0, {"id": "2", "note": "b", "more": "7"})]
    for changes in (
        [(wide, added)],
        [(wide, [delete(30, 1)]), (keyed, [Change("D", 31, 0, old={"note": "b"})])],
    ):
        directory.segment(changes)
        assert iceberg(spark, directory, warehouse)["error"] is None
        found = properties()
        assert (found["write.merge.mode"], found["format-version"]) == ("copy-on-write", "3")
        assert found["pgcdc.id"].startswith("pgcdc:")


def test_what_cannot_be_done_exactly_once_is_refused(
    spark: SparkSession, directory: Directory, warehouse: Path
) -> None:
    with pytest.raises(
        MergeError, match=r'Iceberg tables in "s3a://lake": its file system can\'t rename'
    ) as caught:
        IcebergLake("s3a://lake")
    assert "--catalog NAME" in caught.value.hint
    named = IcebergLake("s3a://lake", "shop").location("a", "B`c", "changelog")
    assert named == "`shop`.`a`.`B``c_changelog`"
    directory.segment([(ONE, [insert(10, 1)])])
    iceberg(spark, directory, warehouse)
    with pytest.raises(MergeError, match="its tables are Iceberg's"):
        merge_into(spark, directory, warehouse)
