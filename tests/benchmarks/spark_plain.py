"""What one would write by hand for the benchmark's table alone, to compare the merge job with."""

import json
import sys
from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa
import pyarrow.compute as pc
from pyspark import cloudpickle
from pyspark.sql import DataFrame, SparkSession, Window
from pyspark.sql import functions as F  # noqa: N812 - PySpark's own habit
from pyspark.sql.datasource import DataSource, DataSourceReader, InputPartition
from pyspark.sql.types import StructType

# Spark's Python workers can't import this module.
cloudpickle.register_pickle_by_value(sys.modules[__name__])

_VALUES = ("a", "b", "c", "ts")
_ROW = "id bigint, a int, b string, c decimal(12,2), ts timestamp"
_ORDER = ("high", "low", "seq")


def rewrite(spark: SparkSession, encoding: str, paths: list[str], old: Path, new: Path) -> None:
    """Apply the changes in some files to a table, from one Parquet directory to another."""
    newest = Window.partitionBy("id").orderBy(*(F.desc(column) for column in _ORDER))
    changed = _READERS[encoding](spark, paths).withColumn("n", F.row_number().over(newest)).where("n = 1")
    joined = spark.read.parquet(str(old)).alias("old").join(changed.alias("new"), "id", "full_outer")
    kept = joined.where("new.op IS NULL OR new.op <> 'D'")
    values = [F.expr(f"IF(new.op IS NULL, old.{name}, new.{name})").alias(name) for name in _VALUES]
    kept.select("id", *values).write.mode("overwrite").parquet(str(new))


def _lines(spark: SparkSession, paths: list[str]) -> DataFrame:
    """Read JSON lines; an LSN's halves are padded to one length, so that they sort as text."""
    schema = f"op string, commit_lsn string, seq bigint, old struct<id bigint>, new struct<{_ROW}>"
    high, low = (F.lpad(F.split_part("commit_lsn", F.lit("/"), F.lit(part)), 8, "0") for part in (1, 2))
    return (
        spark.read.schema(schema)
        .json(paths)
        .select(
            "op",
            high.alias("high"),
            low.alias("low"),
            "seq",
            F.coalesce("new.id", "old.id").alias("id"),
            *(f"new.{name}" for name in _VALUES),
        )
    )


def _arrow(spark: SparkSession, paths: list[str]) -> DataFrame:
    spark.dataSource.register(ArrowFiles)
    return spark.read.format(ArrowFiles.name()).option("paths", json.dumps(paths)).load()


class ArrowFiles(DataSource):
    """A data source in which each file is a partition."""

    @classmethod
    def name(cls) -> str:
        return "arrow_files"

    def schema(self) -> str:
        return f"op string, high bigint, low bigint, seq bigint, id bigint, {_ROW.partition(', ')[2]}"

    def reader(self, schema: StructType) -> "ArrowFilesReader":
        return ArrowFilesReader(json.loads(self.options["paths"]), schema.names)


class ArrowFilesReader(DataSourceReader):
    """Yields record batches as they are in the files."""

    def __init__(self, paths: list[str], names: list[str]) -> None:
        self.paths, self.names = paths, names

    def partitions(self) -> list[InputPartition]:
        return [InputPartition(path) for path in self.paths]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        with pa.memory_map(partition.value) as file, pa.ipc.open_file(file) as stream:
            for batch in map(stream.get_batch, range(stream.num_record_batches)):
                key = pc.coalesce(batch.column("id"), pc.struct_field(batch.column("_old"), [0]))
                order = [batch.column(name) for name in ("_commit_lsn", "_seq", "_seq")]
                values = [batch.column(name) for name in _VALUES]
                yield pa.record_batch([batch.column("_op"), *order, key, *values], names=self.names)


def _events(spark: SparkSession, paths: list[str]) -> DataFrame:
    """Read Debezium's events; times are text in them."""
    event = f"before struct<id bigint>, after struct<{_ROW}>, source struct<lsn bigint, sequence string>"
    events = spark.read.schema(f"value struct<{event}, op string>").json(paths).select("value.*")
    previous = F.regexp_extract("source.sequence", '"([0-9]+)"', 1).cast("bigint")
    return events.select(
        F.when(F.col("op") == "d", "D").otherwise("U").alias("op"),
        F.coalesce(previous, F.lit(0)).alias("high"),
        F.col("source.lsn").alias("low"),
        F.lit(0).alias("seq"),
        F.coalesce("after.id", "before.id").alias("id"),
        *(f"after.{name}" for name in _VALUES),
    )


_READERS = {"jsonl": _lines, "jsonl.zst": _lines, "arrow": _arrow, "debezium": _events}
