"""A column of wire text becomes a column of an Arrow type.

What the Arrow type can't hold is null in the typed column and marked in `unfit`, so that a format can give
PostgreSQL's text instead: nothing is rounded, clamped or dropped.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple, Protocol

import pyarrow as pa

from pgcdc_cli.types import kernels
from pgcdc_cli.types.kernels import Column, Mask, as_mask, as_text


class Typed(NamedTuple):
    """`values` is null where the text was null or unfit; `unfit` is None where every value fits."""

    values: Column
    unfit: Mask | None


class Conversion(Protocol):
    """What the types' files provide: the Arrow type, and the way to it."""

    @property
    def arrow(self) -> pa.DataType: ...

    def __call__(self, column: pa.BinaryArray) -> Typed: ...


@dataclass(frozen=True, slots=True)
class Plain:
    """Text as it is."""

    arrow: pa.DataType

    def __call__(self, column: pa.BinaryArray) -> Typed:
        return Typed(as_text(column), None)


@dataclass(frozen=True, slots=True)
class Parsed:
    """A vectorised cast, and one by one what it can't take.

    `cast` takes what the RE2 pattern `usual` matches. `rare` reads any other text into the Arrow type's
    storage (days, microseconds); None says that it doesn't fit.
    """

    arrow: pa.DataType
    cast: Callable[[pa.StringArray], Column]
    usual: str
    rare: Callable[[str], int | None] | None = None

    def __call__(self, column: pa.BinaryArray) -> Typed:
        text = as_text(column)
        try:
            return Typed(self.cast(text), None)
        except pa.ArrowInvalid:
            return self._mixed(text)

    def _mixed(self, text: pa.StringArray) -> Typed:
        given = as_mask(text.is_valid())
        rare = given & ~as_mask(kernels.matches(text, self.usual))
        values = self._usual(kernels.null_where(text, rare))
        values = kernels.replace_with_mask(values, rare, self._rare(text.filter(pa.array(rare))))
        unfit = given & as_mask(values.is_null())
        return Typed(values, unfit if unfit.any() else None)

    def _usual(self, text: pa.StringArray) -> Column:
        try:
            return self.cast(text)
        except pa.ArrowInvalid:
            return kernels.concat([self._single(text[i : i + 1]) for i in range(len(text))])

    def _single(self, text: pa.StringArray) -> Column:
        try:
            return self.cast(text)
        except pa.ArrowInvalid:
            return kernels.nulls(1, self.arrow)

    def _rare(self, text: pa.StringArray) -> Column:
        if self.rare is None:
            return kernels.nulls(len(text), self.arrow)
        storage = pa.int32() if self.arrow == pa.date32() else pa.int64()
        values: Column = pa.array([self.rare(str(value)) for value in text], storage)
        return values.cast(self.arrow)
