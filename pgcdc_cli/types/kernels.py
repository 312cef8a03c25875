"""Arrow's compute functions for columns, each with the one signature that is used here.

`pyarrow.compute` overloads them, and the type checker can't tell the overloads for binary arrays apart. They
come from `pyarrow._compute`, where `pyarrow.compute` has them from: importing the latter takes ten times as
long, since it makes and documents a function for each kernel there is. Runs that receive nothing, or a few
rows, need none of them.
"""

from collections.abc import Sequence
from functools import lru_cache
from typing import Any, TypeAlias, TypeVar, cast

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray
from pyarrow import _compute as pc

from pgcdc_cli.errors import ErrorKind, PgcdcError

Int64s = NDArray[np.int64]
Booleans = NDArray[np.bool_]
ArrowArray: TypeAlias = "pa.Array[Any]"
Fragment: TypeAlias = "bytes | pa.Array[Any]"
"""An argument of `join`: a constant, or a column with one value per row."""

ArrayT = TypeVar("ArrayT", bound=ArrowArray)

# Made once: if no type is given, pyarrow tries to import pandas each time; that takes longer than most
# batches.
_INT64, _BINARY = pa.int64(), pa.binary()
_WIDE = frozenset([pa.large_binary().id, pa.large_string().id])
_UNCHECKED = pc.TakeOptions(boundscheck=False)
_LARGE = 8 << 20
"""Bytes from which on jemalloc gives an allocation back to the kernel as soon as it is freed."""

INT32_MAX, INT64_MAX = 2**31 - 1, 2**63 - 1

SECOND = 1_000_000
DAY = 86_400 * SECOND
"""A second and a day in microseconds."""


def as_text(column: ArrowArray) -> pa.StringArray:
    """Cast bytes to UTF-8 strings. Raises PgcdcError (PROTOCOL) for invalid UTF-8."""
    try:
        return cast("pa.StringArray", convert(column, pa.string()))
    except pa.ArrowInvalid as error:
        raise PgcdcError(ErrorKind.PROTOCOL, "could not decode a value: it is not valid UTF-8") from error


def as_mask(array: ArrowArray) -> Booleans:
    """Turn a boolean array into a mask; null becomes false."""
    mask = _unpacked(array, array.buffers()[1])
    return mask & ~is_null(array) if array.null_count else mask


def is_null(array: ArrowArray) -> Booleans:
    """Make a mask of the null values."""
    if not array.null_count:
        return np.zeros(len(array), np.bool_)
    return ~_unpacked(array, array.buffers()[0])


def _unpacked(array: ArrowArray, bits: pa.Buffer | None) -> Booleans:
    """Unpack one of an array's bitmaps; False for each value if it is missing."""
    if bits is None:
        return np.zeros(len(array), np.bool_)
    end = array.offset + len(array)
    unpacked = np.unpackbits(np.frombuffer(memoryview(bits), np.uint8), count=end, bitorder="little")
    return unpacked[array.offset :].view(np.bool_)


def validity(array: ArrowArray) -> pa.Buffer | None:
    """Return a validity bitmap that starts at the first value; None if no value is null."""
    if not array.null_count:
        return None
    return bitmap(~is_null(array)) if array.offset else array.buffers()[0]


def convert(array: ArrowArray, arrow: pa.DataType) -> ArrowArray:
    """Cast values to another type. Raises ArrowInvalid if one can't be represented."""
    # The array's own method would have pyarrow.compute imported.
    return cast("ArrowArray", pc.call_function("cast", [array], pc.CastOptions.safe(arrow)))


def value_bytes(column: ArrowArray) -> tuple[Int64s, NDArray[np.uint8]]:
    """View the memory of a binary array: n + 1 offsets from 0, and the bytes that they delimit."""
    ends = offsets(column)
    return ends.astype(np.int64) - ends[0], _bytes_of(column, ends)


def all_bytes(column: ArrowArray) -> NDArray[np.uint8]:
    """View the bytes of all values, one after the other."""
    return _bytes_of(column, offsets(column))


def _bytes_of(column: ArrowArray, ends: NDArray[Any]) -> NDArray[np.uint8]:
    data = column.buffers()[2]
    return np.asarray(memoryview(data or b"")).view(np.uint8)[ends[0] : ends[-1]]


def offsets(column: ArrowArray) -> NDArray[Any]:
    """View the n + 1 offsets that delimit the values of a binary array."""
    if len(column) == 0:
        return np.zeros(1, np.int32)
    found = column.buffers()[1]
    assert found is not None
    every = np.frombuffer(memoryview(found), np.int64 if column.type.id in _WIDE else np.int32)
    return every[column.offset : column.offset + len(column) + 1]


def _pool_for(size: int) -> pa.MemoryPool | None:
    """Allocate much in the C library's memory, which keeps it for the next batch (`stream/memory.py`)."""
    return pa.system_memory_pool() if size >= _LARGE else None


def pack(data: pa.Buffer, starts: NDArray[np.integer], ends: NDArray[np.integer]) -> pa.BinaryArray:
    """Copy n values (at least one) from a buffer into a new array, one after the other.

    The offsets delimit values and gaps in turn over the shared buffer; `take` copies only the values. A gap's
    length may be negative, since the values needn't be in the buffer's order; gaps are never read. `take`
    reserves, per element taken, the mean length of all elements: the outer offsets make that mean right.
    """
    count = len(starts)
    elements = 2 * count + 1
    offsets = np.empty(elements + 1, np.int32)
    offsets[0] = 0
    offsets[1:-1:2] = starts
    offsets[2::2] = ends
    total = int((ends - starts).sum())
    offsets[-1] = min(total * elements // count + elements, data.size)
    spaced = pa.BinaryArray.from_buffers(pa.binary(), elements, [None, buffer(offsets), data])
    taken = pc.call_function("take", [spaced, _second_ones(elements)], _UNCHECKED, _pool_for(total))
    return cast("pa.BinaryArray", taken)


@lru_cache(16)
def _second_ones(elements: int) -> ArrowArray:
    """Number every second element: the same for all columns of a batch."""
    return pa.array(np.arange(1, elements, 2, dtype=np.int32))


def nulled(values: pa.BinaryArray, null: Booleans | None) -> pa.BinaryArray:
    """Set the masked values of an array to null; it must have no nulls yet, and offset 0."""
    if null is None or not null.any():
        return values
    buffers = [bitmap(~null), *values.buffers()[1:]]
    return cast("pa.BinaryArray", pa.BinaryArray.from_buffers(pa.binary(), len(values), buffers))


def from_bytes(offsets: Int64s, data: NDArray[np.uint8], validity: pa.Buffer | None = None) -> pa.BinaryArray:
    """Make a binary array from n + 1 offsets from 0; a large_binary one from 2**31 bytes on."""
    wide = len(data) > INT32_MAX
    kind, ends = (pa.large_binary(), offsets) if wide else (pa.binary(), offsets.astype(np.int32))
    buffers = [validity, buffer(ends), buffer(data)]
    return cast("pa.BinaryArray", pa.Array.from_buffers(kind, len(offsets) - 1, buffers))


def insert_before(data: NDArray[np.uint8], at: Int64s, text: bytes) -> NDArray[np.uint8]:
    """Insert a text before each of the bytes at these positions."""
    # The bytes between two positions become an element of one list, joined with the text as separator.
    offsets = np.concatenate([np.zeros(1, np.int64), at, np.full(1, len(data), np.int64)])
    kind = pa.large_binary()
    pieces = pa.Array.from_buffers(kind, len(at) + 1, [None, buffer(offsets), buffer(data)])
    return all_bytes(join_lists(np.array([0, len(pieces)]), pieces, text))


def widened(column: ArrowArray) -> pa.BinaryArray:
    """Cast to large_binary, whose 64-bit offsets hold more than 2**31 bytes."""
    return cast("pa.BinaryArray", convert(column, pa.large_binary()))


def as_binary(column: ArrowArray) -> pa.BinaryArray:
    """Cast strings or large_binary to binary; they must have less than 2**31 bytes."""
    return cast("pa.BinaryArray", column if column.type == _BINARY else convert(column, _BINARY))


def at_each_byte(data: bytes | NDArray[np.uint8], code: str) -> NDArray[Any]:
    """View bytes as big-endian numbers (`i8`, `u2`, ...), or items (`V26`), one that begins at each byte."""
    dtype = np.dtype(f">{code}")
    return np.ndarray((len(data) - dtype.itemsize + 1,), dtype, data, strides=(1,))


def items_at(data: NDArray[np.uint8], starts: Int64s, size: int) -> NDArray[np.uint8]:
    """Copy `size` bytes from each of n places: an n by `size` matrix."""
    return at_each_byte(data, f"V{size}")[starts].view(np.uint8).reshape(-1, size)


def buffer(array: NDArray[np.generic]) -> pa.Buffer:
    return pa.py_buffer(np.ascontiguousarray(array).data)


def bitmap(valid: Booleans) -> pa.Buffer:
    """Make a validity bitmap, an array's first buffer."""
    return buffer(np.packbits(valid, bitorder="little"))


def binary(values: Sequence[str | bytes | None]) -> pa.BinaryArray:
    return pa.array(values, pa.binary())


def numbers(values: Int64s, arrow: pa.DataType = _INT64, null: Booleans | None = None) -> ArrowArray:
    """Make an array of a 64-bit type from its values; `null` marks the nulls."""
    # `pa.array` tries to import pandas each time; that takes longer than most batches.
    validity = None if null is None or not null.any() else bitmap(~null)
    return pa.Array.from_buffers(arrow, len(values), [validity, buffer(values)])


def lists(offsets: NDArray[np.int32], values: ArrowArray, absent: Booleans) -> ArrowArray:
    """Split values into n lists at n + 1 offsets; null where `absent`."""
    make = cast("Any", pa.ListArray.from_arrays)
    return cast("ArrowArray", make(pa.array(offsets), values, mask=pa.array(absent)))


def join_lists(offsets: Int64s, values: ArrowArray, separator: bytes) -> ArrowArray:
    """Join the texts of each of n lists, given by n + 1 offsets, with a separator; none may be null."""
    bounds = [None, buffer(offsets.astype(np.int32))]
    parts = pa.Array.from_buffers(pa.list_(values.type), len(offsets) - 1, bounds, children=[values])
    return cast("ArrowArray", pc.call_function("binary_join", [parts, pa.scalar(separator, values.type)]))


def maps(offsets: NDArray[np.int32], keys: ArrowArray, items: ArrowArray, absent: Booleans) -> ArrowArray:
    """Split keys and items into n maps at n + 1 offsets; null where `absent`."""
    # A null offset makes its map null; the last offset only ends the values.
    marked: ArrowArray = pa.array(offsets, mask=np.append(absent, [False]))
    return cast(
        "ArrowArray", pa.MapArray.from_arrays(cast("Any", marked), cast("Any", keys), cast("Any", items))
    )


def nulls(rows: int, arrow: pa.DataType) -> ArrowArray:
    return cast("ArrowArray", pa.nulls(rows, cast("Any", arrow)))


def concat(arrays: Sequence[ArrayT]) -> ArrayT:
    return cast("ArrayT", pa.concat_arrays(cast("Any", arrays)))


def concat_bytes(arrays: Sequence[ArrowArray]) -> ArrowArray:
    """Concatenate binary arrays, as large_binary if one is that or they have 2**31 bytes or more."""
    wide = any(array.type == pa.large_binary() for array in arrays)
    if wide or sum(array.nbytes for array in arrays) > INT32_MAX:
        arrays = [widened(array) for array in arrays]
    return concat(arrays)


def contiguous(array: ArrowArray) -> pa.Buffer:
    """View the bytes of all values as one buffer."""
    return pa.py_buffer(all_bytes(array).data)


def take(array: ArrayT, rows: NDArray[np.integer]) -> ArrayT:
    return cast("ArrayT", pc.call_function("take", [array, pa.array(rows)]))


def equal(column: ArrowArray, value: bytes) -> ArrowArray:
    return cast("ArrowArray", pc.call_function("equal", [column, pa.scalar(value, column.type)]))


def same(one: ArrowArray, other: ArrowArray) -> ArrowArray:
    """Compare row by row."""
    return cast("ArrowArray", pc.call_function("equal", [one, other]))


def matches(column: ArrowArray, pattern: str) -> ArrowArray:
    """Mark the texts, or bytes, that contain a match of the RE2 pattern."""
    options = pc.MatchSubstringOptions(pattern)
    return cast("ArrowArray", pc.call_function("match_substring_regex", [column], options))


def contains(column: ArrowArray, text: bytes) -> ArrowArray:
    """Mark the values that contain this text."""
    options = pc.MatchSubstringOptions(text)  # type: ignore[arg-type]
    return cast("ArrowArray", pc.call_function("match_substring", [column], options))


def groups(column: pa.StringArray, pattern: str) -> list[ArrowArray]:
    """Return one array per group of the RE2 pattern, whose groups must be named, with what it matched.

    A value is empty where its group took no part in the match, and null where the pattern doesn't match.
    """
    options = pc.ExtractRegexOptions(pattern)
    found = cast("pa.StructArray", pc.call_function("extract_regex", [column], options))
    return found.flatten()


def replace_with_mask(values: ArrayT, mask: Booleans, replacements: ArrowArray) -> ArrayT:
    return cast("ArrayT", pc.call_function("replace_with_mask", [values, pa.array(mask), replacements]))


def if_else(condition: ArrowArray, true: bytes, false: bytes) -> pa.BinaryArray:
    """Choose one of two constants per row; null stays null."""
    arguments = [condition, pa.scalar(true, pa.binary()), pa.scalar(false, pa.binary())]
    return cast("pa.BinaryArray", pc.call_function("if_else", arguments))


def replace_where(values: ArrayT, mask: Booleans, value: bytes) -> ArrayT:
    replacement = pa.scalar(value, values.type)
    return cast("ArrayT", pc.call_function("if_else", [pa.array(mask), replacement, values]))


def choose(mask: Booleans, where: ArrayT, elsewhere: ArrayT) -> ArrayT:
    return cast("ArrayT", pc.call_function("if_else", [pa.array(mask), where, elsewhere]))


def coalesce(first: ArrayT, second: "ArrowArray | pa.Scalar[Any]") -> ArrayT:
    return cast("ArrayT", pc.call_function("coalesce", [first, second]))


def null_where(values: ArrayT, mask: Booleans) -> ArrayT:
    missing = pa.scalar(None, values.type)
    return cast("ArrayT", pc.call_function("if_else", [pa.array(mask), missing, values]))


def nulled_like(values: ArrayT, column: ArrowArray) -> ArrayT:
    """Set values to null where the column is null."""
    return null_where(values, is_null(column)) if column.null_count else values


def replace_substring(column: pa.BinaryArray, old: bytes, new: bytes) -> pa.BinaryArray:
    # The stub wants str, but a binary column needs bytes.
    options = pc.ReplaceSubstringOptions(old, new)  # type: ignore[arg-type]
    return cast("pa.BinaryArray", pc.call_function("replace_substring", [column], options))


def replace_pattern(column: ArrayT, pattern: str, new: str) -> ArrayT:
    """Replace every match of the RE2 pattern."""
    options = pc.ReplaceSubstringOptions(pattern, new)
    return cast("ArrayT", pc.call_function("replace_substring_regex", [column], options))


def find(column: ArrowArray, text: bytes) -> Int64s:
    """Find the byte offset of a text's first occurrence in each value, or -1; no value may be null."""
    options = pc.MatchSubstringOptions(text)  # type: ignore[arg-type]
    found = cast("ArrowArray", pc.call_function("find_substring", [column], options))
    return convert(found, pa.int64()).to_numpy()


def without_end(column: pa.StringArray, characters: str) -> pa.StringArray:
    """Strip these characters from the end of each value."""
    options = pc.TrimOptions(characters)
    return cast("pa.StringArray", pc.call_function("ascii_rtrim", [column], options))


def without_start(column: pa.BinaryArray, count: int) -> pa.BinaryArray:
    """Cut off the first bytes of each value."""
    # Without a stop, PyArrow 26 fails for every even number of values but 0.
    options = pc.SliceOptions(count, INT32_MAX)
    return cast("pa.BinaryArray", pc.call_function("binary_slice", [column], options))


def without_last(column: pa.BinaryArray, count: int) -> pa.BinaryArray:
    """Cut off the last bytes of each value."""
    return cast("pa.BinaryArray", pc.call_function("binary_slice", [column], pc.SliceOptions(0, -count)))


_MANY, _SHORT = 80, 20
"""From so many fragments on, of so many bytes on average at most, `take` copies them faster than a join."""


def join(fragments: Sequence[Fragment]) -> ArrowArray:
    """Concatenate constants and columns (at least one) per row; null becomes `null`.

    The result is large_binary if it may have 2**31 bytes or more.
    """
    arrays = [fragment for fragment in fragments if isinstance(fragment, pa.Array)]
    size = sum(_size(fragment, len(arrays[0])) for fragment in fragments)
    wide = size > INT32_MAX or any(array.type == pa.large_binary() for array in arrays)
    short = size <= _SHORT * len(fragments) * len(arrays[0])
    if short and len(fragments) >= _MANY and not wide:
        return _join_short(fragments, [_argument(array, pa.binary()) for array in arrays], size)
    target = pa.large_binary() if wide else pa.binary()
    arguments = [_argument(fragment, target) for fragment in (*fragments, b"")]
    options = pc.JoinOptions("replace", b"null")  # type: ignore[call-overload]
    return cast(
        "ArrowArray", pc.call_function("binary_join_element_wise", arguments, options, _pool_for(size))
    )


def _join_short(fragments: Sequence[Fragment], arrays: Sequence[ArrowArray], size: int) -> ArrowArray:
    """Join by taking all fragments of the first row, then of the next, from one array of them all."""
    rows = len(arrays[0])
    is_column = np.array([isinstance(fragment, pa.Array) for fragment in fragments])
    constants = binary([fragment for fragment in fragments if isinstance(fragment, bytes)] + [b"null"])
    every = concat([*arrays, constants])
    first = np.where(
        is_column, (is_column.cumsum() - 1) * rows, len(arrays) * rows + (~is_column).cumsum() - 1
    )
    places = first.astype(np.int32) + is_column * np.arange(rows, dtype=np.int32)[:, None]
    for number, array in zip(np.flatnonzero(is_column), arrays, strict=True):
        if array.null_count:
            places[is_null(array), number] = len(every) - 1
    taken = pc.call_function("take", [every, pa.array(places.reshape(-1))], _UNCHECKED, _pool_for(size))
    ends = offsets(taken)[:: len(fragments)]
    return cast(
        "ArrowArray", pa.Array.from_buffers(pa.binary(), rows, [None, buffer(ends), taken.buffers()[2]])
    )


def _argument(fragment: Fragment, target: pa.DataType) -> Any:  # noqa: ANN401 - a column or a scalar
    if isinstance(fragment, bytes):
        return pa.scalar(fragment, target)
    return fragment if fragment.type == target else convert(fragment, target)


def _size(fragment: Fragment, rows: int) -> int:
    """Estimate the bytes that a fragment adds; a null adds four."""
    return len(fragment) * rows if isinstance(fragment, bytes) else fragment.nbytes
