"""Tests that use it run with a few rows' columns as parts of longer arrays, and with arrays of their own."""

from collections.abc import Iterator

import pytest

from pgcdc_cli.pgoutput import decode_columns


@pytest.fixture(params=["few", "columns"], scope="module")
def either_way(request: pytest.FixtureRequest) -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        if request.param == "columns":
            patch.setattr(decode_columns, "FEW_ROWS", 0)
        yield
