"""The text of arrays, divided into that of their elements.

PostgreSQL manual, "Array Input and Output Syntax". Literals of one dimension are divided all at once; those
with escapes, and whatever is unusual, one by one.
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
"""Literals up to which one by one is quicker."""


class Elements(NamedTuple):
    """The elements of n arrays: those of array i are `texts[offsets[i]:offsets[i + 1]]`, null for NULL.

    An array that is null has none, and so has one that is `irregular`: not of one dimension from 1.
    """

    texts: pa.BinaryArray
    offsets: Int64s
    irregular: Booleans

    def rows_with(self, marked: Booleans) -> Booleans:
        """Say which arrays have a marked element."""
        found = np.zeros(len(self.irregular), np.bool_)
        found[np.searchsorted(self.offsets, np.flatnonzero(marked), side="right") - 1] = True
        return found


def parse_array(text: str, delimiter: str = ",") -> list[str | None] | None:
    """Divide one array literal into its elements' texts; None if it isn't of one dimension from 1.

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
    """Divide n literals as `parse_array` does; a PROTOCOL error if one is no valid UTF-8."""
    kernels.as_text(column)
    usual = _divide(column, ord(delimiter)) if len(column) > FEW else _undivided(column)
    parsed = {int(row): parse_array(column[int(row)].as_py().decode(), delimiter) for row in usual.others}
    irregular = np.zeros(len(column), np.bool_)
    irregular[[row for row, elements in parsed.items() if elements is None]] = True
    texts, rows = usual.texts, usual.rows
    others = [(row, element) for row, elements in parsed.items() for element in elements or ()]
    if others:
        rows = np.append(rows, [row for row, _ in others])
        order = np.argsort(rows, kind="stable")
        texts = kernels.concat([texts, kernels.binary([element for _, element in others])])
        texts, rows = kernels.take(texts, order), rows[order]
    offsets = np.append(0, np.cumsum(np.bincount(rows, minlength=len(column))))
    return Elements(texts, offsets, irregular)


class _Divided(NamedTuple):
    """Elements' texts and the rows they are of, in order; `others` are rows to be looked at by themselves."""

    texts: pa.BinaryArray
    rows: Int64s
    others: Int64s


def _undivided(column: pa.BinaryArray) -> _Divided:
    return _Divided(_NOTHING, np.empty(0, np.int64), np.flatnonzero(as_mask(column.is_valid())))


class _Marks(NamedTuple):
    """Braces, delimiters, quotes and backslashes: where, what, of which row, and how many quotes up to it."""

    at: Int64s
    kind: NDArray[np.uint8]
    row: Int64s
    quotes: Int64s

    def select(self, which: Booleans) -> "_Marks":
        return _Marks(self.at[which], self.kind[which], self.row[which], self.quotes[which])


def _divide(column: pa.BinaryArray, delimiter: int) -> _Divided:
    offsets, data = kernels.value_bytes(column)
    marks, usual = _find_marks(offsets, data, delimiter)
    marks = marks.select(usual[marks.row])
    begin, end = marks.select(marks.kind != _CLOSE), marks.select(marks.kind != _OPEN)
    starts, ends, rows = begin.at + 1, end.at, end.row
    quotes, empty = end.quotes - begin.quotes, starts == ends
    quoted = (quotes == 2) & (data[starts] == _QUOTE) & (data[ends - 1] == _QUOTE)
    none = empty & (np.diff(offsets)[rows] == len("{}"))
    usual[rows[~quoted & ~none & (empty | (quotes > 0))]] = False
    wanted = usual[rows] & ~none
    starts, ends, rows, quoted = starts[wanted], ends[wanted], rows[wanted], quoted[wanted]
    null = ~quoted & _is_null(data, starts, ends)
    starts, ends = starts + quoted, np.where(null, starts, ends - quoted)
    texts = kernels.pack(kernels.buffer(data), starts, ends) if len(rows) else _NOTHING
    return _Divided(kernels.nulled(texts, null), rows, np.flatnonzero(as_mask(column.is_valid()) & ~usual))


def _find_marks(offsets: Int64s, data: NDArray[np.uint8], delimiter: int) -> tuple[_Marks, Booleans]:
    """Find braces and delimiters outside of quotes, and the rows that have braces around them only.

    Rows with a backslash are left out, as what is a quote can't be told there.
    """
    is_mark = np.zeros(256, np.bool_)
    is_mark[[_OPEN, _CLOSE, _QUOTE, _BACKSLASH, delimiter]] = True
    at = np.flatnonzero(is_mark[data])
    kind, first = data[at], np.searchsorted(at, offsets)
    row, quotes = np.repeat(np.arange(len(offsets) - 1), np.diff(first)), np.cumsum(kind == _QUOTE)
    before = np.append(0, quotes)[first]
    outside = ((quotes - before[row]) % 2 == 0) & (kind != _QUOTE)
    usual = np.diff(before) % 2 == 0
    usual[row[kind == _BACKSLASH]] = False
    for brace, place in ((_OPEN, offsets[:-1]), (_CLOSE, offsets[1:] - 1)):
        usual &= np.bincount(row[outside & (kind == brace)], minlength=len(usual)) == 1
        usual[usual] = data[place[usual]] == brace
    return _Marks(at, kind, row, quotes).select(outside), usual


def _is_null(data: NDArray[np.uint8], starts: Int64s, ends: Int64s) -> Booleans:
    found: Booleans = ends - starts == len(_NULL)
    found[found] = (data[starts[found, None] + np.arange(len(_NULL))] == _NULL).all(axis=1)
    return found
