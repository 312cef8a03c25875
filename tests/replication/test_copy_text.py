"""COPY's text format, split into columns all at once, yields the values that were written."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pgcdc_cli.errors import ErrorKind, PgcdcError
from pgcdc_cli.replication import copy_text
from pgcdc_cli.replication.copy_text import GAP, copy_columns

ESCAPES = {ord(plain): "\\" + written for plain, written in zip("\\\b\f\n\r\t\v", "\\bfnrtv", strict=True)}
values = st.none() | st.text(st.sampled_from("\\\\\\N\b\f\n\r\t\vbfnrtv é"), max_size=6)
tables = st.integers(1, 4).flatmap(
    lambda width: st.lists(st.lists(values, min_size=width, max_size=width), min_size=1, max_size=9)
)


def written(rows: list[list[str | None]]) -> bytes:
    """Write rows as `CopyAttributeOutText` in copyto.c does, each after the head of its message."""
    lines = ("\t".join("\\N" if v is None else v.translate(ESCAPES) for v in row) for row in rows)
    return b"".join(GAP + f"{line}\n".encode() for line in lines)


@given(tables, st.sampled_from([2, 3, 4, 7, copy_text.BLOCK]))
def test_values_come_back(rows, block):
    """Also from between two blocks in which escapes are resolved."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(copy_text, "BLOCK", block)
        check(rows)


def check(rows):
    columns = [column.to_pylist() for column in copy_columns(written(rows), len(rows[0]))]
    wanted = [
        [None if value is None else value.encode() for value in column] for column in zip(*rows, strict=True)
    ]
    assert columns == wanted


@pytest.mark.parametrize("data", [b"1\t2\n3\n", b"1\t2\t3\n", b"1\n2\n", b"1\t2\n3\t4\t5\n6\n"])
def test_rows_of_other_widths_are_refused(data):
    with pytest.raises(PgcdcError, match="they do not have 2 columns") as refused:
        copy_columns(b"".join(GAP + row for row in data.splitlines(keepends=True)), 2)
    assert refused.value.kind is ErrorKind.PROTOCOL
