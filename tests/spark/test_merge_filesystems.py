"""Directory and warehouse on another file system than the machine's own, such as Hadoop's viewfs."""

import json
from pathlib import Path

import pytest
from merge_directories import FORMATS, Directory, merged_rows
from merge_histories import random_history
from merge_oracle import fold
from pyspark.sql import SparkSession

from pgcdc_cli.changes.table import ReplicaIdentity
from pgcdc_cli.spark.pgcdc_merge.job import merge
from pgcdc_cli.spark.pgcdc_merge.merge_errors import MergeError, hint_for
from pgcdc_cli.spark.pgcdc_merge.options import MergeOptions


@pytest.fixture
def elsewhere(spark: SparkSession, tmp_path: Path) -> str:
    """Mount `tmp_path` in viewfs; return its URI."""
    name = tmp_path.name.replace("_", "-")
    configuration = spark._jsc.hadoopConfiguration()
    configuration.set(f"fs.viewfs.mounttable.{name}.link./data", f"file:{tmp_path}")
    return f"viewfs://{name}/data"


def test_every_format_is_read_and_merged_there(spark: SparkSession, tmp_path: Path, elsewhere: str) -> None:
    history = random_history("Käse [1]", ("a", "b"), ReplicaIdentity.DEFAULT, spaces=4)
    directory = Directory(tmp_path / "in", FORMATS["jsonl"])
    commits = sorted({change.commit_lsn for change in history.changes})
    options = MergeOptions(f"{elsewhere}/in", f"{elsewhere}/wh")
    for number, encoding in enumerate(["arrow+zstd", "jsonl", "debezium", "arrow"]):
        directory.encoding = FORMATS[encoding]
        some = set(commits[len(commits) * number // 4 : len(commits) * (number + 1) // 4])
        directory.segment([(history.table, [c for c in history.changes if c.commit_lsn in some])])
        if number % 2:
            summary = merge(spark, options)
            assert (summary["segment"], summary["error"]) == (number + 1, None)
    assert merged_rows(spark, tmp_path / "wh", history.table) == fold(history.changes, history.key)
    (record,) = json.loads((tmp_path / "wh" / "_pgcdc.json").read_text())["rows"][:1]
    assert record["segment"] == 4
    assert not (tmp_path / "wh" / "_pgcdc.lock").exists()


def test_damage_there_is_found(spark: SparkSession, tmp_path: Path, elsewhere: str) -> None:
    history = random_history("t", ("a",), ReplicaIdentity.DEFAULT, spaces=1)
    directory = Directory(tmp_path / "in", FORMATS["arrow"])
    directory.segment([(history.table, history.changes)])
    (file,) = (tmp_path / "in" / "public.t").iterdir()
    file.write_bytes(file.read_bytes()[:-1] + b"!")
    with pytest.raises(MergeError, match="has the checksum"):
        merge(spark, MergeOptions(f"{elsewhere}/in", f"{elsewhere}/wh"))


@pytest.mark.parametrize(
    "cause",
    ['No FileSystem for scheme "s3"', "Class org.apache.hadoop.fs.s3a.S3AFileSystem not found"],
)
def test_a_file_system_that_spark_lacks(cause: str) -> None:
    assert "org.apache.hadoop:hadoop-aws:VERSION" in hint_for(cause)
