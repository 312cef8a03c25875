"""Readers of lake tables without Spark: each returns a table's rows as plain values, in the order of `id`."""

import datetime as dt
import math
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import duckdb
import pandas as pd
import polars as pl
import pyarrow as pa
from deltalake import DeltaTable, QueryBuilder
from pyiceberg.table import StaticTable
from pyspark.sql import DataFrame

Rows = list[dict[str, Any]]

REFUSALS = (Exception, pl.exceptions.PanicException)
"""What readers raise for a table that they can't read: each has errors of its own."""


def pandas(path: str) -> Rows:
    frame = DeltaTable(path).to_pandas(types_mapper=pd.ArrowDtype)
    return plain(dict(zip(frame.columns, row, strict=True)) for row in frame.itertuples(index=False))


def dataset(path: str) -> Rows:
    return plain(DeltaTable(path).to_pyarrow_dataset().to_table().to_pylist())


def query_builder(path: str) -> Rows:
    found = QueryBuilder().register("t", DeltaTable(path)).execute("SELECT * FROM t")
    return plain(pa.table(found.read_all()).to_pylist())


def polars(path: str) -> Rows:
    return plain(pl.read_delta(path).to_arrow().to_pylist())


def over_duckdb(path: str) -> Rows:
    changes = DeltaTable(path).to_pyarrow_dataset()
    with duckdb.connect() as connection:
        connection.register("changes", changes)
        connection.execute("SET TimeZone = 'UTC'")
        return plain(connection.sql("SELECT * FROM changes").to_arrow_table().to_pylist())


def _metadata(path: str) -> str:
    """Find the current metadata file of a table in an Iceberg Hadoop catalog."""
    folder = Path(path) / "metadata"
    version = (folder / "version-hint.text").read_text().strip()
    return str(folder / f"v{version}.metadata.json")


def pyiceberg(path: str) -> Rows:
    return plain(StaticTable.from_metadata(_metadata(path)).scan().to_arrow().to_pylist())


def polars_iceberg(path: str) -> Rows:
    return plain(pl.scan_iceberg(_metadata(path)).collect().to_arrow().to_pylist())


def duckdb_iceberg(path: str) -> Rows:
    with duckdb.connect() as connection:
        connection.execute("SET TimeZone = 'UTC'")
        found = StaticTable.from_metadata(_metadata(path)).scan().to_duckdb("t", connection)
        return plain(found.sql("SELECT * FROM t").to_arrow_table().to_pylist())


Readers = Mapping[str, Callable[[str], Rows]]
"""Functions that read the table at a path, by the reader's name."""

READERS: Readers = {
    "deltalake, to_pandas": pandas,
    "deltalake, to_pyarrow_dataset": dataset,
    "deltalake, QueryBuilder": query_builder,
    "polars": polars,
    "DuckDB, over deltalake's dataset": over_duckdb,
}

ICEBERG_READERS: Readers = {
    "pyiceberg": pyiceberg,
    "polars": polars_iceberg,
    "DuckDB, over pyiceberg's scan": duckdb_iceberg,
}


def spark(frame: DataFrame) -> Rows:
    """Return Spark's rows, with which those of the others are compared."""
    return plain(frame.toArrow().to_pylist())


def plain(rows: Any) -> Rows:
    """Make the values of all libraries comparable."""
    found = [{name: _plain(value) for name, value in row.items()} for row in rows]
    return sorted(found, key=lambda row: (row["id"], str(row.get("_pgcdc_lsn")), str(row)))


def _plain(value: Any) -> Any:
    if value is None or value is pd.NaT or value is pd.NA:
        return None
    if hasattr(value, "tolist") and not isinstance(value, pd.Timestamp):
        value = value.tolist()
    if isinstance(value, dt.datetime):
        moment = value.astimezone(dt.UTC) if value.tzinfo else value
        return moment.strftime("%Y-%m-%d %H:%M:%S.%f").zfill(26)
    if isinstance(value, float) and math.isnan(value):
        return "NaN"
    if isinstance(value, list | tuple):
        return [_plain(one) for one in value]
    if isinstance(value, dict):
        return {name: _plain(one) for name, one in value.items()}
    return value
