"""A fixture that runs tests twice: with columns of a few rows as slices of arrays, and as own arrays."""

from collections.abc import Iterator

import pytest

from pgcdc_cli.pgoutput import decode_columns


@pytest.fixture(params=["few", "columns"], scope="module")
def either_way(request: pytest.FixtureRequest) -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        if request.param == "columns":
            patch.setattr(decode_columns, "FEW_ROWS", 0)
        yield
