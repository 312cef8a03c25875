"""Split array literals into the texts of their elements.

See the PostgreSQL manual, "Array Input and Output Syntax". One-dimensional literals are split all at once;
literals with escapes, and any other, one by one.
"""

import re
from typing import NamedTuple

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from pgcdc_cli.types import kernels
from pgcdc_cli.types.kernels import Booleans, Int64s, as_mask

_ESCAPE = re.compile(r"\\(.)", re.DOTALL)
_ELEMENT = {
    delimiter: re.compile(
        rf'(?:"([^"\\]*(?:\\.[^"\\]*)*)"|([^"\\{{}}{delimiter}]+))([{delimiter}}}])', re.DOTALL
    )
    for delimiter in ",;"
}
_OPEN, _CLOSE, _QUOTE, _BACKSLASH = b'{}"\\'
_NULL = np.frombuffer(b"NULL", np.uint8)
_NOTHING = kernels.binary([])

FEW = 16
"""Up to this many literals, parsing one by one is faster."""


class Elements(NamedTuple):
    """The elements of n arrays: those of array i are `texts[offsets[i]:offsets[i + 1]]`, with null for NULL.

    A null array has no elements. Neither has an `irregular` one: with several dimensions, or a lower bound
    other than 1.
    """

    texts: pa.BinaryArray
    offsets: Int64s
    irregular: Booleans

    def rows_with(self, marked: Booleans) -> Booleans:
        """Mark the arrays that have a marked element."""
        found = np.zeros(len(self.irregular), np.bool_)
        found[np.searchsorted(self.offsets, np.flatnonzero(marked), side="right") - 1] = True
        return found


def parse_array(text: str, delimiter: str = ",") -> list[str | None] | None:
    """Split one array literal into its elements' texts; None unless it has one dimension from 1.

    `delimiter` is the element type's `pg_type.typdelim`.
    """
    if not text.startswith("{"):
        return None
    if text == "{}":
        return []
    elements: list[str | None] = []
    at, element = 1, _ELEMENT[delimiter]
    while match := element.match(text, at):
        quoted, bare, end = match.groups()
        elements.append(_unquoted(quoted, bare))
        at = match.end()
        if end == "}":
            return elements if at == len(text) else None
    return None


def _unquoted(quoted: str | None, bare: str | None) -> str | None:
    if quoted is None:
        return None if bare == "NULL" else bare
    return _ESCAPE.sub(r"\1", quoted) if "\\" in quoted else quoted


def split_arrays(column: pa.BinaryArray, delimiter: str = ",") -> Elements:
    """Split n literals as `parse_array` does. Raises PgcdcError (PROTOCOL) for invalid UTF-8."""
    kernels.as_text(column)
    usual = _usual(*kernels.value_bytes(column)) if len(column) > FEW else np.zeros(len(column), np.bool_)
    divided = _divide(column if usual.all() else column.filter(pa.array(usual)), ord(delimiter))
    if divided is None:
        usual[:] = False
        divided = _Divided(_NOTHING, np.empty(0, np.int64))
    texts, counts = divided.texts, np.zeros(len(column), np.int64)
    counts[usual] = divided.counts
    others = np.flatnonzero(as_mask(column.is_valid()) & ~usual)
    irregular = np.zeros(len(column), np.bool_)
    if len(others):
        parsed = [parse_array(column[row].as_py().decode(), delimiter) for row in others.tolist()]
        irregular[others] = [elements is None for elements in parsed]
        rows = np.repeat(np.arange(len(column)), counts)
        counts[others] = [len(elements or ()) for elements in parsed]
        rows = np.append(rows, np.repeat(others, counts[others]))
        single = kernels.binary([element for elements in parsed for element in elements or ()])
        texts = kernels.take(kernels.concat([texts, single]), np.argsort(rows, kind="stable"))
    return Elements(texts, np.append(0, np.cumsum(counts)), irregular)


def _usual(offsets: Int64s, data: NDArray[np.uint8]) -> Booleans:
    """Mark the literals with just the outer braces, no backslash, and an even number of quotes."""
    marks = np.flatnonzero((data == _OPEN) | (data == _CLOSE) | (data == _BACKSLASH))
    usual: Booleans = np.diff(np.searchsorted(marks, offsets)) == len("{}")
    for brace, place in ((_OPEN, offsets[:-1]), (_CLOSE, offsets[1:] - 1)):
        usual[usual] = data[place[usual]] == brace
    quotes = np.flatnonzero(data == _QUOTE)
    return usual & (np.diff(np.searchsorted(quotes, offsets)) % 2 == 0) if len(quotes) else usual


def as_json(column: pa.BinaryArray) -> pa.BinaryArray:
    """Write literals as JSON: other brackets, a small `null`, and quotes around each element without them.

    All must have one dimension from 1, and no escapes.
    """
    valid = as_mask(column.is_valid())
    offsets, data = kernels.value_bytes(column if valid.all() else column.filter(pa.array(valid)))
    at, _ = _find_separators(offsets, data, ord(","))
    starts, ends = at[data[at] != _CLOSE] + 1, at[data[at] != _OPEN]
    bare = (data[starts] != _QUOTE) & (ends > starts)
    null = _nulls(data, starts, ends - starts)
    bare[null] = False
    written = data.copy()
    written[offsets[:-1]], written[offsets[1:] - 1] = b"[]"
    written[starts[null, None] + np.arange(len(_NULL))] = np.frombuffer(b"null", np.uint8)
    places = np.stack([starts[bare], ends[bare]], axis=1).reshape(-1)
    moved = offsets + np.searchsorted(places, offsets)
    quoted = kernels.insert_before(written, places, b'"')
    return kernels.from_bytes(moved[np.append(0, np.cumsum(valid))], quoted, kernels.validity(column))


class _Divided(NamedTuple):
    """The elements' texts, and how many each literal has."""

    texts: pa.BinaryArray
    counts: Int64s


def _divide(column: pa.BinaryArray, delimiter: int) -> _Divided | None:
    """Split usual literals; None if the text between two delimiters is not one element."""
    offsets, data = kernels.value_bytes(column)
    at, quotes = _find_separators(offsets, data, delimiter)
    starts, ends = at[data[at] != _CLOSE] + 1, at[data[at] != _OPEN]
    quoted = data[starts] == _QUOTE
    sizes = ends - starts - 2 * quoted
    counts, none = np.diff(np.searchsorted(at, offsets)) - 1, np.diff(offsets) == len("{}")
    empty = (sizes == 0) & ~quoted
    if empty.sum() != none.sum() or len(quotes) != 2 * quoted.sum():
        return None
    if (sizes < 0).any() or (data[ends[quoted] - 1] != _QUOTE).any():
        return None
    left_out = np.zeros(len(data), np.bool_)
    left_out[at] = left_out[quotes] = True
    null = _nulls(data, starts, sizes)
    left_out[starts[null, None] + np.arange(len(_NULL))] = True
    sizes[null] = 0
    is_null = np.zeros(len(starts), np.bool_)
    is_null[null] = True
    texts = kernels.from_bytes(np.append(0, np.cumsum(sizes[~empty])), data[~left_out])
    return _Divided(kernels.nulled(texts, is_null[~empty]), np.where(none, 0, counts))


def _find_separators(offsets: Int64s, data: NDArray[np.uint8], delimiter: int) -> tuple[Int64s, Int64s]:
    """Find the positions of braces and delimiters outside quotes, and of the quotes."""
    is_mark = (data == delimiter) | (data == _QUOTE)
    is_mark[offsets[:-1]] = is_mark[offsets[1:] - 1] = True
    at = np.flatnonzero(is_mark)
    quote = data[at] == _QUOTE
    if not quote.any():
        return at, at[:0]
    return at[~(np.logical_xor.accumulate(quote) | quote)], at[quote]


def _nulls(data: NDArray[np.uint8], starts: Int64s, sizes: Int64s) -> Int64s:
    """Find the elements that are NULL, without quotes."""
    maybe = np.flatnonzero((data[starts] == _NULL[0]) & (sizes == len(_NULL)))
    found: Booleans = (data[starts[maybe, None] + np.arange(len(_NULL))] == _NULL).all(axis=1)
    return maybe[found]
