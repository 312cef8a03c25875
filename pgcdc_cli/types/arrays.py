r"""Array literals (`array_out` in arrayfuncs.c): `{1,NULL,"a \"b\""}`, one dimension counted from 1.

An array of several dimensions or with another lower bound (`[0:1]={...}`) doesn't fit a list; neither does
one with an element that doesn't fit the element's type.
"""

import re
from dataclasses import dataclass

import numpy as np
import pyarrow as pa

from pgcdc_cli.types import kernels
from pgcdc_cli.types.column import Conversion, Typed
from pgcdc_cli.types.kernels import as_text

_ESCAPED = re.compile(r"\\(.)", re.DOTALL)
_TOKEN = {
    delimiter: re.compile(
        rf'(?:"([^"\\]*(?:\\.[^"\\]*)*)"|([^"\\{{}}{delimiter}]+))([{delimiter}}}])', re.DOTALL
    )
    for delimiter in ",;"
}


def parse_array(text: str, delimiter: str = ",") -> list[str | None] | None:
    """Split one array literal into its elements' texts; None if it isn't of one dimension from 1.

    `delimiter` is the element type's `pg_type.typdelim`.
    """
    if not text.startswith("{"):
        return None
    if text == "{}":
        return []
    elements: list[str | None] = []
    at, token = 1, _TOKEN[delimiter]
    while match := token.match(text, at):
        quoted, bare, end = match.groups()
        elements.append(_element(quoted, bare))
        at = match.end()
        if end == "}":
            return elements if at == len(text) else None
    return None


def _element(quoted: str | None, bare: str | None) -> str | None:
    if quoted is None:
        return None if bare == "NULL" else bare
    return _ESCAPED.sub(r"\1", quoted) if "\\" in quoted else quoted


@dataclass(frozen=True, slots=True)
class ArrayOf:
    """Lists of what `element` gives."""

    element: Conversion
    delimiter: str = ","

    @property
    def arrow(self) -> pa.DataType:
        return pa.list_(self.element.arrow)

    def __call__(self, column: pa.BinaryArray) -> Typed:
        texts = as_text(column).to_pylist()
        parsed = [None if text is None else parse_array(text, self.delimiter) for text in texts]
        flat = [element for elements in parsed if elements is not None for element in elements]
        offsets = np.zeros(len(texts) + 1, np.int32)
        np.cumsum([0 if elements is None else len(elements) for elements in parsed], out=offsets[1:])
        values, unfit_elements = self.element(kernels.binary(flat))
        absent = np.array([elements is None for elements in parsed], np.bool_)
        if unfit_elements is not None:
            absent[np.searchsorted(offsets, np.flatnonzero(unfit_elements), side="right") - 1] = True
        lists = kernels.lists(offsets, values, absent)
        unfit = absent & np.array([text is not None for text in texts], np.bool_)
        return Typed(lists, unfit if unfit.any() else None)
