"""Finished Arrow files can be opened by readers that don't know pgcdc."""

import json

import duckdb
import pandas as pd
import polars as pl
import pyarrow as pa
import pytest
from pyarrow import dataset, feather

READERS = {
    "pyarrow's file reader": lambda path: pa.ipc.open_file(path).read_all().to_pylist(),
    "pyarrow's Feather reader": lambda path: feather.read_table(path).to_pylist(),
    "pyarrow's dataset": lambda path: dataset.dataset(path.parent, format="arrow").to_table().to_pylist(),
    "pandas": lambda path: pd.read_feather(path, dtype_backend="pyarrow").to_dict("records"),
    "polars": lambda path: pl.read_ipc(path).to_dicts(),
    "polars, lazily": lambda path: pl.scan_ipc(path).collect().to_dicts(),
    "DuckDB over a dataset": lambda path: _by_duckdb(dataset.dataset(path.parent, format="arrow")),
}


def _by_duckdb(changes: dataset.Dataset) -> list[dict]:
    with duckdb.connect() as connection:
        found = connection.register("changes", changes).execute("SELECT _op, _seq FROM changes")
        return [{"_op": op, "_seq": seq} for op, seq in found.fetchall()]


@pytest.mark.parametrize("compression", ["none", "zstd"])
def test_every_reader_opens_a_finished_file_by_its_suffix(stream, tmp_path, compression):
    stream("-D", "d", "--format", "arrow", "--compression", compression)
    [file] = (tmp_path / "d" / "public.items").iterdir()
    written = [json.loads(line) for line in stream("-f", "-", "--format", "jsonl").splitlines()]
    expected = [(change["op"], change["seq"]) for change in written if change.get("table") == "items"]
    assert len(expected) > 1
    for name, read in READERS.items():
        assert [(row["_op"], row["_seq"]) for row in read(file)] == expected, name
