"""Damage to a directory, a warehouse or a table between merges: the result is right, or an error."""

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from merge_directories import FORMATS, Directory, merge_into, merged_rows, read_table, table_path
from merge_notes import ONE, TWO, delete, insert
from merge_oracle import fold
from pyspark.sql import SparkSession

from pgcdc_cli.spark.pgcdc_merge.control import ControlTable
from pgcdc_cli.spark.pgcdc_merge.iceberg import IcebergLake
from pgcdc_cli.spark.pgcdc_merge.merge_errors import MergeError

FIRST, SECOND = [insert(10, 1), insert(20, 2)], [delete(40, 1), insert(50, 3)]
THIRD = [insert(60, 1)]


@pytest.fixture
def directory(tmp_path: Path) -> Directory:
    directory = Directory(tmp_path / "in", FORMATS["jsonl"])
    directory.segment([(ONE, FIRST), (TWO, FIRST)])
    directory.segment([(ONE, SECOND)])
    return directory


def replace_line(directory: Directory, number: int, line: str) -> None:
    lines = (directory.path / "manifest.jsonl").read_text().splitlines(keepends=True)
    lines[number : number + 1] = [line]
    (directory.path / "manifest.jsonl").write_text("".join(lines))


def cut_in_the_middle(directory: Directory) -> None:
    replace_line(directory, 0, json.dumps(directory.lines[0])[:70] + "\n")


def twice(directory: Directory) -> None:
    replace_line(directory, 1, 2 * (json.dumps(directory.lines[1]) + "\n"))


def empty_line(directory: Directory) -> None:
    replace_line(directory, 1, "\n" + json.dumps(directory.lines[1]) + "\n")


def of_another_stream(directory: Directory) -> None:
    """Put another stream's file in place of one, of the same size and name."""
    (path,) = (directory.path / "public.one").glob("000002-*")
    path.write_bytes(path.read_bytes().replace(b'"new"', b'"old"'))


def schema_cut(directory: Directory) -> None:
    for path in (directory.path / "schemas").iterdir():
        path.write_bytes(path.read_bytes()[:-20])


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        (cut_in_the_middle, 'manifest.jsonl": line 1 is damaged: '),
        (twice, 'manifest.jsonl": segment 2 follows segment 2'),
        (empty_line, 'manifest.jsonl": line 2 is damaged: '),
        (of_another_stream, 'could not merge segment 2: "public.one/000002-.*" has the checksum'),
        (schema_cut, "it is damaged: "),
    ],
)
def test_a_damaged_directory_stops_the_run(
    spark: SparkSession,
    directory: Directory,
    warehouse: Path,
    damage: Callable[[Directory], None],
    message: str,
) -> None:
    damage(directory)
    with pytest.raises(MergeError, match=message) as caught:
        merge_into(spark, directory, warehouse)
    assert "\n" not in caught.value.message
    assert not (warehouse / "public").exists()


def test_a_control_table_that_is_gone_is_made_anew(
    spark: SparkSession, directory: Directory, warehouse: Path
) -> None:
    """The tables know what was merged into them, so nothing is merged twice, in the changelog either."""
    assert merge_into(spark, directory, warehouse, mode="both")["error"] is None
    shutil.rmtree(warehouse / "_pgcdc")
    (warehouse / "_pgcdc.json").unlink()
    summary = merge_into(spark, directory, warehouse, mode="both")
    assert (summary["error"], summary["segment"]) == (None, 2)
    directory.segment([(ONE, THIRD), (TWO, THIRD)])
    (warehouse / "_pgcdc.json").unlink()
    assert merge_into(spark, directory, warehouse, mode="both")["error"] is None
    assert merged_rows(spark, warehouse, ONE) == fold(FIRST + SECOND + THIRD, ("id",))
    assert merged_rows(spark, warehouse, TWO) == fold(FIRST + THIRD, ("id",))
    assert read_table(spark, warehouse, ONE, mode="changelog").count() == 5

    (warehouse / "_pgcdc.json").write_text("{")
    merge_into(spark, directory, warehouse, mode="both")
    record = json.loads((warehouse / "_pgcdc.json").read_text())
    assert {row["segment"] for row in record["rows"]} == {3}


def test_a_control_table_that_is_damaged_is_one_clear_line(
    spark: SparkSession, directory: Directory, warehouse: Path
) -> None:
    assert merge_into(spark, directory, warehouse)["error"] is None
    directory.segment([(ONE, THIRD)])
    for path in (warehouse / "_pgcdc").rglob("*.parquet"):
        path.write_bytes(b"PAR1 no more")
        path.with_name(f".{path.name}.crc").unlink(missing_ok=True)
    with pytest.raises(MergeError, match=r'could not read the control table ".*/wh/_pgcdc": ') as caught:
        merge_into(spark, directory, warehouse)
    assert "\n" not in caught.value.message
    assert "or remove it" in caught.value.hint
    assert merged_rows(spark, warehouse, ONE) == fold(FIRST + SECOND, ("id",))
    shutil.rmtree(warehouse / "_pgcdc")
    assert merge_into(spark, directory, warehouse)["error"] is None
    assert merged_rows(spark, warehouse, ONE) == fold(FIRST + SECOND + THIRD, ("id",))


def delta(spark: SparkSession, warehouse: Path, statement: str) -> None:
    spark.sql(statement.format(f"delta.`{table_path(warehouse, ONE)}`"))


def problem_of(summary: dict[str, Any]) -> str:
    (shown,) = (table["problem"] for table in summary["tables"] if table["table"] == "public.one")
    return str(shown)


def test_a_table_whose_checksums_are_missing(
    spark: SparkSession, directory: Directory, warehouse: Path
) -> None:
    """A run killed right after a commit leaves no checksum file; Delta then reads its last checkpoint."""
    merge_into(spark, directory, warehouse, until=0x24)
    delta(spark, warehouse, "ALTER TABLE {} SET TBLPROPERTIES ('delta.checkpointInterval' = '1')")
    merge_into(spark, directory, warehouse)
    log = table_path(warehouse, ONE) / "_delta_log"
    assert list(log.glob("*.checkpoint.parquet"))
    for path in log.glob("*.crc"):
        path.unlink()
    spark._jvm.org.apache.spark.sql.delta.DeltaLog.clearCache()  # type: ignore[union-attr]  # it is classic
    directory.segment([(ONE, THIRD)])
    assert merge_into(spark, directory, warehouse)["error"] is None
    assert merged_rows(spark, warehouse, ONE) == fold(FIRST + SECOND + THIRD, ("id",))


@pytest.mark.parametrize(
    ("statement", "shown"),
    [
        ("DELETE FROM {} WHERE id = 3", "DELETE (version 2)"),
        pytest.param("RESTORE TABLE {} TO VERSION AS OF 0", "RESTORE (version 2)", marks=pytest.mark.long),
        pytest.param("INSERT INTO {} VALUES (7, 'foreign')", "WRITE (version 2)", marks=pytest.mark.long),
    ],
)
def test_a_table_that_another_program_wrote_is_left_alone(
    spark: SparkSession, directory: Directory, warehouse: Path, statement: str, shown: str
) -> None:
    """Until it is restored to the recorded version; maintenance may have added commits to its log."""
    merge_into(spark, directory, warehouse, tables=["public.one"], until=0x24, readers="modern")
    merge_into(spark, directory, warehouse)
    delta(spark, warehouse, statement)
    merge_into(spark, directory, warehouse, compact=True, readers="any")
    directory.segment([(ONE, THIRD), (TWO, THIRD)])
    summary = merge_into(spark, directory, warehouse)
    assert problem_of(summary) == (
        f'could not merge "public.one": "file:{table_path(warehouse, ONE)}" was changed by another program'
        f" since it was last merged, at version 1: {shown}"
    )
    assert merged_rows(spark, warehouse, TWO) == fold(FIRST + THIRD, ("id",))
    delta(spark, warehouse, "RESTORE TABLE {} TO VERSION AS OF 1")
    delta(spark, warehouse, "OPTIMIZE {}")
    delta(spark, warehouse, "ALTER TABLE {} DROP FEATURE deletionVectors")
    assert merge_into(spark, directory, warehouse)["error"] is None
    assert merged_rows(spark, warehouse, ONE) == fold(FIRST + SECOND + THIRD, ("id",))


def test_a_table_that_is_an_older_copy_is_left_alone(
    spark: SparkSession, directory: Directory, warehouse: Path, tmp_path: Path
) -> None:
    merge_into(spark, directory, warehouse, until=0x24)
    shutil.copytree(table_path(warehouse, ONE), tmp_path / "copy")
    merge_into(spark, directory, warehouse)
    shutil.rmtree(table_path(warehouse, ONE))
    shutil.copytree(tmp_path / "copy", table_path(warehouse, ONE))
    directory.segment([(ONE, THIRD)])
    problem = problem_of(merge_into(spark, directory, warehouse))
    assert problem.endswith("is at version 0, but was at version 1 when it was last merged")


def test_a_merge_that_was_undone_before_it_was_recorded_is_not_taken_for_done(
    spark: SparkSession, directory: Directory, warehouse: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Delta keeps the mark of a merge's commit through a RESTORE."""

    def died(*_: Any) -> None:
        raise KeyboardInterrupt

    merge_into(spark, directory, warehouse, until=0x24)
    with monkeypatch.context() as patch:
        patch.setattr(ControlTable, "finish", died)
        with pytest.raises(KeyboardInterrupt):
            merge_into(spark, directory, warehouse)
    delta(spark, warehouse, "RESTORE TABLE {} TO VERSION AS OF 0")
    problem = problem_of(merge_into(spark, directory, warehouse))
    assert problem.endswith("since it was last merged, at version 0: WRITE (version 1)")


def test_an_iceberg_table_that_another_program_wrote_is_left_alone(
    spark: SparkSession, directory: Directory, warehouse: Path
) -> None:
    assert merge_into(spark, directory, warehouse, format="iceberg")["error"] is None
    name = IcebergLake(f"file:{warehouse}").location(ONE.schema, ONE.name, "merge")
    session = read_table(spark, warehouse, ONE, "iceberg").sparkSession
    merged = session.sql(f"SELECT snapshot_id FROM {name}.snapshots").first()
    assert merged is not None
    session.sql(f"INSERT INTO {name} VALUES (7, 'foreign')")
    directory.segment([(ONE, THIRD)])
    problem = problem_of(merge_into(spark, directory, warehouse, format="iceberg"))
    assert f"since it was last merged, at version {merged[0]}: append (snapshot " in problem
    session.sql(f"CALL pgcdc.system.rollback_to_snapshot('{name}', {merged[0]})")
    session.sql(
        f"CALL pgcdc.system.rewrite_data_files(table => '{name}', options => map('rewrite-all', 'true'))"
    )
    session.sql(
        f"CALL pgcdc.system.expire_snapshots(table => '{name}', older_than => now(), retain_last => 1)"
    )
    assert session.sql(f"SELECT * FROM {name}.snapshots").count() == 1
    assert merge_into(spark, directory, warehouse, format="iceberg")["error"] is None
    assert merged_rows(spark, warehouse, ONE, "iceberg") == fold(FIRST + SECOND + THIRD, ("id",))


@pytest.mark.parametrize("lake", ["delta", pytest.param("iceberg", marks=pytest.mark.long)])
def test_a_table_that_was_there_before_is_not_merged_into(
    spark: SparkSession, directory: Directory, warehouse: Path, lake: str
) -> None:
    """For example an earlier stream's, without its control table."""
    merge_into(spark, directory, warehouse, format=lake)
    shutil.rmtree(warehouse / "_pgcdc")
    for line in directory.lines:
        line["stream_id"] = "other"
    directory.write_manifest()
    summary = merge_into(spark, directory, warehouse, format=lake)
    assert problem_of(summary).endswith(" already exists, and is not from this stream")
    assert merged_rows(spark, warehouse, ONE, lake) == fold(FIRST + SECOND, ("id",))
