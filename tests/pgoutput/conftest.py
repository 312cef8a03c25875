"""Fixtures that run tests in each of the ways in which columns are made, and transactions are kept."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from pgcdc_cli.directory.disk import Disk, OpenFiles
from pgcdc_cli.pgoutput import decode_columns
from pgcdc_cli.sinks import spool_file
from pgcdc_cli.sinks.spool_file import SpoolFolder


@pytest.fixture(params=["few", "columns"], scope="module")
def either_way(request: pytest.FixtureRequest) -> Iterator[None]:
    """Columns of a few rows as slices of arrays, and as own arrays."""
    with pytest.MonkeyPatch.context() as patch:
        if request.param == "columns":
            patch.setattr(decode_columns, "FEW_ROWS", 0)
        yield


@pytest.fixture(
    params=[(1, 1 << 30), (100, 1 << 30), (1 << 30, 1), (1 << 30, 1 << 30)],
    ids=["on-disk", "both", "on-disk-together", "in-memory"],
)
def spools(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> SpoolFolder:
    monkeypatch.setattr(spool_file, "CHUNK_BYTES", request.param[0])
    monkeypatch.setattr(spool_file, "HELD_AT_MOST", request.param[1])
    return SpoolFolder(OpenFiles(Disk(), str(tmp_path)), "spool")
