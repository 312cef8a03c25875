"""Run every test of a format with columns, and with few rows written one by one."""

from collections.abc import Iterator

import pytest

from pgcdc_cli.formats import encoded_rows
from pgcdc_cli.pgoutput import decode_columns


@pytest.fixture(params=["columns", "few"], autouse=True, scope="module")
def either_way(request: pytest.FixtureRequest) -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        if request.param == "columns":
            patch.setattr(encoded_rows, "FEW_ROWS", 0)
            patch.setattr(decode_columns, "FEW_ROWS", 0)
        yield
