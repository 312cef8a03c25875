"""Kernels give the same whichever way they take."""

import pyarrow as pa
import pytest

from pgcdc_cli.types import kernels

VALUES = [b"", b"one", None, "zwölf".encode()]


@pytest.mark.parametrize("length", [1, 1000])
@pytest.mark.parametrize("count", [1, 20])
def test_fragments_are_joined_row_by_row(count, length):
    rows = [None if value is None else value * length for value in VALUES]
    column, other = pa.array(rows, pa.binary()), pa.array(["é", "", "f", None])
    joined = kernels.join([b"<", column, b"|", other, b">\n"] * count)
    texts = zip([row or b"" for row in rows], VALUES, ["é", "", "f", "null"], strict=True)
    lines = [b"<%b|%b>\n" % (b"null" if given is None else row, end.encode()) for row, given, end in texts]
    assert joined.to_pylist() == [line * count for line in lines]


def test_fragments_of_no_rows_make_no_rows():
    assert kernels.join([b"a", kernels.binary([])] * 50).to_pylist() == []


def test_fragments_of_a_part_of_a_column_are_those_of_its_rows():
    part = kernels.binary([b"1", None, b"3", b"4"])[1:3]
    assert kernels.join([b"a", part] * 50).to_pylist() == [b"anull" * 50, b"a3" * 50]
