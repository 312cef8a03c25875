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


@pytest.mark.parametrize("limits", [(0, 1 << 40), (1 << 40, 0), (kernels._MANY, kernels._SHORT)])
@pytest.mark.parametrize("count", [1, 79, 80, 200])
@pytest.mark.parametrize("size", [0, 1, 19, 21, 1000])
def test_fragments_are_joined_to_the_same_wherever_the_other_way_begins(monkeypatch, limits, count, size):
    """How many fragments are many, and how long is short, are matters of speed alone."""
    monkeypatch.setattr(kernels, "_MANY", limits[0])
    monkeypatch.setattr(kernels, "_SHORT", limits[1])
    values = [[b"x" * size, None, b""], [None, b"y", b"z" * size], [None] * 3]
    # The first is a part of a column; the last has no bytes at all.
    columns = [
        kernels.binary([b"-", *values[0], None])[1:-1],
        pa.array(values[1], pa.string()),
        kernels.nulls(3, pa.binary()),
    ]
    turns = [n % 4 for n in range(count)]
    joined = kernels.join([columns[0], *(b"," * size if turn == 3 else columns[turn] for turn in turns)])
    joined.validate(full=True)
    for row, text in enumerate(joined.to_pylist()):
        parts = [b"null" if column[row] is None else column[row] for column in values]
        assert text == parts[0] + b"".join([*parts, b"," * size][turn] for turn in turns)


@pytest.mark.parametrize("count", [1, 100])
def test_what_may_be_too_long_for_32_bit_offsets_gets_64_bits(monkeypatch, count):
    monkeypatch.setattr(kernels, "INT32_MAX", 10)
    joined = kernels.join([kernels.binary([b"one two", None]), b"!"] * count)
    assert joined.type == pa.large_binary()
    assert joined.to_pylist() == [b"one two!" * count, b"null!" * count]


def test_fragments_of_no_rows_make_no_rows():
    assert kernels.join([b"a", kernels.binary([])] * 50).to_pylist() == []


def test_fragments_of_a_part_of_a_column_are_those_of_its_rows():
    part = kernels.binary([b"1", None, b"3", b"4"])[1:3]
    assert kernels.join([b"a", part] * 50).to_pylist() == [b"anull" * 50, b"a3" * 50]
