"""The Arrow compute functions that columns are made with, each with the one signature that is used here.

`pyarrow.compute` has them with many overloads, which the type checker can't tell apart for arrays of bytes.
"""

from collections.abc import Sequence
from typing import Any, TypeAlias, TypeVar, cast

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from pgcdc_cli.errors import ErrorKind, PgcdcError

Int64s = NDArray[np.int64]
Booleans = NDArray[np.bool_]
ArrowArray: TypeAlias = "pa.Array[Any]"
Fragment: TypeAlias = "bytes | pa.Array[Any]"
"""What `join` takes: a constant, or a value per row."""

ArrayT = TypeVar("ArrayT", bound=ArrowArray)

# Made once: without a type, pyarrow looks for pandas each time, which takes longer than most batches.
_FALSE = pa.scalar(False)
_INT64 = pa.int64()

INT32_MAX = 2**31 - 1

DAY = 86_400_000_000
"""Microseconds."""


def as_text(column: ArrowArray) -> pa.StringArray:
    """Take bytes for UTF-8; a PROTOCOL error if they aren't."""
    try:
        return cast("pa.StringArray", column.cast(pa.string()))
    except pa.ArrowInvalid as error:
        raise PgcdcError(ErrorKind.PROTOCOL, "could not decode a value: it is not valid UTF-8") from error


def as_mask(array: ArrowArray) -> Booleans:
    """Turn a boolean array into a mask; null is false."""
    filled = pc.call_function("coalesce", [array, _FALSE]).cast(pa.uint8())
    return np.frombuffer(filled.buffers()[1], np.bool_, len(filled), filled.offset)


def value_bytes(column: ArrowArray) -> tuple[Int64s, NDArray[np.uint8]]:
    """Show the memory of an array of bytes: n + 1 offsets from 0, and the bytes that they divide."""
    if len(column) == 0:
        return np.zeros(1, np.int64), np.empty(0, np.uint8)
    _, offset_buffer, data_buffer = column.buffers()
    assert offset_buffer is not None
    wide = column.type in (pa.large_binary(), pa.large_string())
    offsets = np.asarray(memoryview(offset_buffer)).view(np.int64 if wide else np.int32)
    offsets = offsets[column.offset : column.offset + len(column) + 1].astype(np.int64)
    data = np.asarray(memoryview(data_buffer or b"")).view(np.uint8)[offsets[0] : offsets[-1]]
    return offsets - offsets[0], data


def pack(data: pa.Buffer, starts: NDArray[np.integer], ends: NDArray[np.integer]) -> pa.BinaryArray:
    """Copy n values (one at least) out of a buffer, to stand one after the other.

    The offsets describe values and what is between them in turn, over the shared buffer, and only the values
    are taken. The gaps may be of negative length, as groups follow one another; nobody looks at them. `take`
    reserves the mean length of all elements for each it takes; the outer offsets are set to make that right.
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
    return cast("pa.BinaryArray", spaced.take(np.arange(1, elements, 2)))


def nulled(values: pa.BinaryArray, null: Booleans | None) -> pa.BinaryArray:
    """Give an array without nulls, and with offset 0, those of a mask; None for no mask."""
    if null is None or not null.any():
        return values
    buffers = [bitmap(~null), *values.buffers()[1:]]
    return cast("pa.BinaryArray", pa.BinaryArray.from_buffers(pa.binary(), len(values), buffers))


def from_bytes(offsets: Int64s, data: NDArray[np.uint8], validity: pa.Buffer | None = None) -> pa.BinaryArray:
    """Make an array of bytes; `offsets` are n + 1, from 0. The array is wide for 2**31 bytes or more."""
    wide = len(data) > INT32_MAX
    kind, ends = (pa.large_binary(), offsets) if wide else (pa.binary(), offsets.astype(np.int32))
    buffers = [validity, buffer(ends), buffer(data)]
    return cast("pa.BinaryArray", pa.Array.from_buffers(kind, len(offsets) - 1, buffers))


def insert_before(data: NDArray[np.uint8], at: Int64s, text: bytes) -> NDArray[np.uint8]:
    """Insert a text before each of these bytes."""
    # The bytes between two of them are an element of the one list whose elements the text separates.
    offsets = np.concatenate([np.zeros(1, np.int64), at, np.full(1, len(data), np.int64)])
    kind = pa.large_binary()
    pieces = pa.Array.from_buffers(kind, len(at) + 1, [None, buffer(offsets), buffer(data)])
    whole = join_lists(np.array([0, len(pieces)]), pieces, text)
    return value_bytes(whole)[1]


def widened(column: ArrowArray) -> pa.BinaryArray:
    """Give an array of bytes wide offsets, so that more than 2**31 bytes are no harm."""
    return cast("pa.BinaryArray", column.cast(pa.large_binary()))


def as_binary(column: ArrowArray) -> pa.BinaryArray:
    """Take strings, or bytes with wide offsets, for bytes; there must be less than 2**31."""
    return cast("pa.BinaryArray", column.cast(pa.binary()))


def buffer(array: NDArray[np.generic]) -> pa.Buffer:
    return pa.py_buffer(np.ascontiguousarray(array).data)


def bitmap(valid: Booleans) -> pa.Buffer:
    """Say which values are not null, as an array's first buffer does."""
    return buffer(np.packbits(valid, bitorder="little"))


def binary(values: Sequence[str | bytes | None]) -> pa.BinaryArray:
    return pa.array(values, pa.binary())


def numbers(values: Int64s, arrow: pa.DataType = _INT64, null: Booleans | None = None) -> ArrowArray:
    """Take values for an array, of a type that has 64 bits; `null` says which are."""
    # `pa.array` looks for pandas each time, which takes longer than most batches.
    validity = None if null is None or not null.any() else bitmap(~null)
    return pa.Array.from_buffers(arrow, len(values), [validity, buffer(values)])


def lists(offsets: NDArray[np.int32], values: ArrowArray, absent: Booleans) -> ArrowArray:
    """Divide values into n lists by n + 1 offsets; null where `absent`."""
    make = cast("Any", pa.ListArray.from_arrays)
    return cast("ArrowArray", make(pa.array(offsets), values, mask=pa.array(absent)))


def join_lists(offsets: Int64s, values: ArrowArray, separator: bytes) -> ArrowArray:
    """Join each of n lists of texts, which n + 1 offsets divide, with a separator."""
    parts = lists(offsets.astype(np.int32), values, np.zeros(len(offsets) - 1, np.bool_))
    return cast("ArrowArray", pc.call_function("binary_join", [parts, pa.scalar(separator, values.type)]))


def maps(offsets: NDArray[np.int32], keys: ArrowArray, items: ArrowArray, absent: Booleans) -> ArrowArray:
    """Divide keys and items into n maps by n + 1 offsets; null where `absent`."""
    # A null offset is a null map; the last one only ends the values.
    marked: ArrowArray = pa.array(offsets, mask=np.append(absent, [False]))
    return cast(
        "ArrowArray", pa.MapArray.from_arrays(cast("Any", marked), cast("Any", keys), cast("Any", items))
    )


def nulls(rows: int, arrow: pa.DataType) -> ArrowArray:
    return cast("ArrowArray", pa.nulls(rows, cast("Any", arrow)))


def concat(arrays: Sequence[ArrayT]) -> ArrayT:
    return cast("ArrayT", pa.concat_arrays(cast("Any", arrays)))


def concat_bytes(arrays: Sequence[ArrowArray]) -> ArrowArray:
    """Concatenate arrays of bytes; with wide offsets if there are 2**31 of them or more."""
    wide = any(array.type == pa.large_binary() for array in arrays)
    if wide or sum(array.nbytes for array in arrays) > INT32_MAX:
        arrays = [widened(array) for array in arrays]
    return concat(arrays)


def contiguous(array: ArrowArray) -> pa.Buffer:
    """Show the bytes of an array as the one buffer that they are."""
    _, data = value_bytes(array)
    return pa.py_buffer(data.data)


def take(array: ArrayT, rows: NDArray[np.integer]) -> ArrayT:
    return cast("ArrayT", pc.call_function("take", [array, pa.array(rows)]))


def equal(column: ArrowArray, value: bytes) -> ArrowArray:
    return cast("ArrowArray", pc.call_function("equal", [column, pa.scalar(value, column.type)]))


def same(one: ArrowArray, other: ArrowArray) -> ArrowArray:
    """Compare row by row."""
    return cast("ArrowArray", pc.call_function("equal", [one, other]))


def matches(column: ArrowArray, pattern: str) -> ArrowArray:
    """Say which texts, or bytes, contain a match of the RE2 pattern."""
    options = pc.MatchSubstringOptions(pattern)
    return cast("ArrowArray", pc.call_function("match_substring_regex", [column], options))


def contains(column: ArrowArray, text: bytes) -> ArrowArray:
    """Say which values contain this text."""
    options = pc.MatchSubstringOptions(text)  # type: ignore[arg-type]
    return cast("ArrowArray", pc.call_function("match_substring", [column], options))


def groups(column: pa.StringArray, pattern: str) -> list[ArrowArray]:
    """Give what each group of the RE2 pattern, which have names, matched.

    That is empty where a group took no part, and null where nothing matches.
    """
    options = pc.ExtractRegexOptions(pattern)
    found = cast("pa.StructArray", pc.call_function("extract_regex", [column], options))
    return found.flatten()


def replace_with_mask(values: ArrayT, mask: Booleans, replacements: ArrowArray) -> ArrayT:
    return cast("ArrayT", pc.call_function("replace_with_mask", [values, pa.array(mask), replacements]))


def if_else(condition: ArrowArray, true: bytes, false: bytes) -> pa.BinaryArray:
    """Choose a constant per row; null stays null."""
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
    """Give null where a column has it."""
    return null_where(values, as_mask(column.is_null())) if column.null_count else values


def replace_substring(column: pa.BinaryArray, old: bytes, new: bytes) -> pa.BinaryArray:
    # Bytes are what a column of bytes needs, though the stub wants str.
    options = pc.ReplaceSubstringOptions(old, new)  # type: ignore[arg-type]
    return cast("pa.BinaryArray", pc.call_function("replace_substring", [column], options))


def replace_pattern(column: pa.BinaryArray, pattern: str, new: str) -> pa.BinaryArray:
    """Replace every match of the RE2 pattern."""
    options = pc.ReplaceSubstringOptions(pattern, new)
    return cast("pa.BinaryArray", pc.call_function("replace_substring_regex", [column], options))


def find(column: ArrowArray, text: bytes) -> Int64s:
    """Say at which byte each value has this text first; -1 where it has none. None may be null."""
    options = pc.MatchSubstringOptions(text)  # type: ignore[arg-type]
    found = cast("ArrowArray", pc.call_function("find_substring", [column], options))
    return found.cast(pa.int64()).to_numpy()


def without_end(column: pa.StringArray, characters: str) -> pa.StringArray:
    """Leave out these characters at the end of each value."""
    options = pc.TrimOptions(characters)
    return cast("pa.StringArray", pc.call_function("ascii_rtrim", [column], options))


def without_start(column: pa.BinaryArray, count: int) -> pa.BinaryArray:
    """Leave out the first bytes of each value."""
    # Without an end, PyArrow 26 fails for every even number of values but 0.
    options = pc.SliceOptions(count, INT32_MAX)
    return cast("pa.BinaryArray", pc.call_function("binary_slice", [column], options))


def without_last(column: pa.BinaryArray, count: int) -> pa.BinaryArray:
    """Leave out the last bytes of each value."""
    return cast("pa.BinaryArray", pc.call_function("binary_slice", [column], pc.SliceOptions(0, -count)))


def join(fragments: Sequence[Fragment]) -> ArrowArray:
    """Concatenate per row: constants and columns (one of them at least); a null reads as `null`.

    The result has wide offsets if it may have 2**31 bytes or more.
    """
    arrays = [fragment for fragment in fragments if isinstance(fragment, pa.Array)]
    wide = sum(_size(fragment, len(arrays[0])) for fragment in fragments) > INT32_MAX
    target = pa.large_binary() if wide or any(a.type == pa.large_binary() for a in arrays) else pa.binary()
    arguments = [_argument(fragment, target) for fragment in (*fragments, b"")]
    options = pc.JoinOptions("replace", b"null")  # type: ignore[call-overload]
    return cast("ArrowArray", pc.call_function("binary_join_element_wise", arguments, options))


def _argument(fragment: Fragment, target: pa.DataType) -> Any:  # noqa: ANN401 - a column or a scalar
    if isinstance(fragment, bytes):
        return pa.scalar(fragment, target)
    return fragment if fragment.type == target else fragment.cast(target)


def _size(fragment: Fragment, rows: int) -> int:
    """Bytes that a fragment may add; a null adds four."""
    return len(fragment) * rows if isinstance(fragment, bytes) else fragment.nbytes
