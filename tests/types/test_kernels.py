"""Kernels give the same whichever way they take, and of a part of a column what its rows have."""

import numpy as np
import pyarrow as pa
import pytest

from pgcdc_cli.errors import ErrorKind, PgcdcError
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


@pytest.mark.parametrize("kind", [pa.binary(), pa.string(), pa.large_binary(), pa.large_string()])
@pytest.mark.parametrize(("start", "end"), [(0, 4), (1, 4), (2, 3), (3, 3)])
def test_a_part_of_a_column_has_its_own_bytes_and_nulls(kind, start, end):
    values = ["one", None, "three", "4"]
    part, rows = pa.array(values, kind)[start:end], values[start:end]
    texts = [(row or "").encode() for row in rows]
    offsets, data = kernels.value_bytes(part)
    assert offsets.tolist() == [0, *np.cumsum(list(map(len, texts)))]
    assert data.tobytes() == kernels.all_bytes(part).tobytes() == b"".join(texts)
    assert kernels.is_null(part).tolist() == [row is None for row in rows]
    again = kernels.from_bytes(offsets, data, kernels.validity(part))
    assert again.to_pylist() == [None if row is None else row.encode() for row in rows]
    assert kernels.as_mask(pa.array([row and len(row) > 3 for row in values])[start:end]).tolist() == [
        bool(row) and len(row) > 3 for row in rows
    ]


def test_a_column_of_no_rows_may_have_no_memory():
    none = pa.Array.from_buffers(pa.binary(), 0, [None, pa.py_buffer(b""), pa.py_buffer(b"")])
    assert (kernels.offsets(none).tolist(), kernels.all_bytes(none).tobytes()) == ([0], b"")


@pytest.mark.parametrize(("size", "kind"), [(10, pa.binary()), (11, pa.large_binary())])
def test_more_bytes_than_32_bit_offsets_reach_get_64_bits(monkeypatch, size, kind):
    monkeypatch.setattr(kernels, "INT32_MAX", 10)
    made = kernels.from_bytes(np.array([0, 1, size]), np.full(size, ord("x"), np.uint8))
    assert (made.type, made.to_pylist()) == (kind, [b"x", b"x" * (size - 1)])


def test_columns_are_concatenated_with_64_bits_if_one_has_them_or_together_they_need_them(monkeypatch):
    short, wide = kernels.binary([b"a", None]), kernels.widened(kernels.binary([b"b"]))
    assert kernels.concat_bytes([short, short]).type == pa.binary()
    both = kernels.concat_bytes([short, wide])
    assert (both.type, both.to_pylist()) == (pa.large_binary(), [b"a", None, b"b"])
    monkeypatch.setattr(kernels, "INT32_MAX", 10)
    assert kernels.concat_bytes([short, short]).type == pa.large_binary()


@pytest.mark.parametrize("count", [1, 100])
def test_one_wide_column_makes_the_joined_one_wide(count):
    wide, plain = kernels.widened(kernels.binary([b"w", None])), kernels.binary([b"p", b"q"])
    joined = kernels.join([wide, b"+", plain] * count)
    assert (joined.type, joined.to_pylist()) == (pa.large_binary(), [b"w+p" * count, b"null+q" * count])


def test_values_are_packed_from_anywhere_in_a_buffer():
    """In any order, with gaps, overlapping, and empty at its end."""
    data = pa.py_buffer(b"abcdef")
    starts, ends = np.array([4, 0, 1, 6, 2]), np.array([6, 3, 1, 6, 4])
    packed = kernels.pack(data, starts, ends)
    packed.validate(full=True)
    assert packed.to_pylist() == [b"ef", b"abc", b"", b"", b"cd"]
    assert kernels.nulled(packed, np.array([False, True, False, False, True])).to_pylist() == [
        *(b"ef", None, b"", b"", None)
    ]


def test_memory_is_reserved_for_what_is_packed_alone():
    """Not for the whole buffer, of which each column takes a part."""
    count, pool = 1000, pa.default_memory_pool()
    data, starts = pa.py_buffer(np.zeros(1 << 28, np.uint8).data), np.arange(count) * 4
    before = pool.max_memory()
    packed = kernels.pack(data, starts, starts + 4)
    assert pool.max_memory() - before < 1 << 20
    assert len(packed) == count


@pytest.mark.parametrize("absent", [[False, False, False], [True, False, True]])
def test_lists_and_maps_are_null_where_they_are_absent(absent):
    offsets, mask = np.array([0, 0, 2, 2], np.int32), np.array(absent)
    keys, items = kernels.binary([b"k", b"l"]), kernels.binary([b"v", None])
    found = [None if gone else row for gone, row in zip(absent, [[], [b"k", b"l"], []], strict=True)]
    assert kernels.lists(offsets, keys, mask).to_pylist() == found
    pairs = [[], [(b"k", b"v"), (b"l", None)], []]
    assert kernels.maps(offsets, keys, items, mask).to_pylist() == [
        None if gone else row for gone, row in zip(absent, pairs, strict=True)
    ]


@pytest.mark.parametrize("rows", range(6))
def test_bytes_are_cut_off_at_either_end(rows):
    column = kernels.binary([b"abc", b"", b"de", None, b"f"][:rows])
    for cut, left in ((kernels.without_start, slice(1, None)), (kernels.without_last, slice(-1))):
        assert cut(column, 1).to_pylist() == [one and one[left] for one in column.to_pylist()]


def test_a_text_is_inserted_before_each_place():
    data = np.frombuffer(b"abcd", np.uint8)
    assert kernels.insert_before(data, np.array([0, 2, 4]), b"--").tobytes() == b"--ab--cd--"
    assert kernels.insert_before(data, np.array([], np.int64), b"--").tobytes() == b"abcd"


def test_a_null_counts_as_false_whatever_is_in_its_place():
    bits, valid = (pa.py_buffer(bytes([bitmap])) for bitmap in (0b111, 0b101))
    assert kernels.as_mask(pa.Array.from_buffers(pa.bool_(), 3, [valid, bits])).tolist() == [
        True,
        False,
        True,
    ]


def test_nulls_are_those_of_another_column():
    values, column = kernels.binary([b"a", b"b"]), kernels.binary([b"x", None])
    assert kernels.nulled_like(values, column).to_pylist() == [b"a", None]


def test_constants_count_for_each_row(monkeypatch):
    monkeypatch.setattr(kernels, "INT32_MAX", 100)
    assert kernels.join([b"x" * 40, kernels.binary([b"", b"", b""])]).type == pa.large_binary()


def test_bytes_that_are_no_text_are_an_error():
    with pytest.raises(PgcdcError, match="not valid UTF-8") as caught:
        kernels.as_text(kernels.binary([b"\xff"]))
    assert caught.value.kind is ErrorKind.PROTOCOL
