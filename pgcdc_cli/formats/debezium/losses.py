"""Report where an event holds less than the change, as a line in a file of its own.

A consumer of Debezium's events misses nothing that Debezium itself would write; the report is for those who
make tables of the events, and shows where these would be wrong.
"""

import json
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import lru_cache
from itertools import repeat

import numpy as np
import pyarrow as pa

from pgcdc_cli.changes.table import TableSchema
from pgcdc_cli.formats.debezium.types.kind import Field
from pgcdc_cli.lsn import Lsn
from pgcdc_cli.types import kernels
from pgcdc_cli.types.kernels import Booleans, Int64s

LOSSES = "_losses"
"""The target of the reports."""


@dataclass(frozen=True, slots=True, eq=False)
class Cells:
    """A column's wire texts and tokens; `unchanged` marks values that the server did not send."""

    values: pa.BinaryArray
    tokens: pa.BinaryArray
    unchanged: Booleans | None


@dataclass(frozen=True, slots=True, eq=False)
class FewCells:
    """`Cells` of a few rows."""

    values: Sequence[bytes | None]
    tokens: Sequence[bytes]
    unchanged: Sequence[bool] | None


@dataclass(slots=True)
class Losses:
    """Finds what one table's events lose; `lines` has one report for each kind of loss.

    `lsn` are the LSNs of the changes. `reported` are the losses reported so far; new ones are added to it.
    """

    table: TableSchema
    lsn: Int64s
    reported: set[tuple[str, ...]]
    lines: list[bytes] = field(default_factory=list)

    def report(self, row: int, why: str, column: str | None = None) -> None:
        """Report that an event lacks its change, or a part of it."""
        loss = self._loss(why, column)
        if loss in self.reported:
            return
        self.reported.add(loss)
        lsn = str(Lsn(self.lsn[row]))
        report = {"schema": loss[0], "table": loss[1], "column": column, "lsn": lsn, "why": why}
        self.lines.append(json.dumps(report, ensure_ascii=False).encode() + b"\n")

    def look(self, index: int, field: Field, cells: Cells | FewCells) -> None:
        """Look for losses in the table's column with this index."""
        name = self.table.columns[index].name
        if field.loss is not None and self._loss(field.loss.why, name) in self.reported:
            field = replace(field, loss=None)
        found = _losses(field, cells) if isinstance(cells, Cells) else _few_losses(field, cells)
        for why, lost in found:
            row = int(np.argmax(lost))
            if lost[row]:
                self.report(row, why, name)

    def _loss(self, why: str, column: str | None) -> tuple[str, ...]:
        return self.table.schema, self.table.name, column or "", why


_NULL_REPLACED = "value.converter.replace.null.with.default"
_NULL_FOR_UNCHANGED = "Debezium writes null for an unchanged TOAST value of this type"
_PLACEHOLDER = "unavailable.value.placeholder"


def _losses(field: Field, cells: Cells) -> Iterator[tuple[str, Booleans]]:
    values, unchanged = cells.values, cells.unchanged
    if values.null_count and field.null != b"null":
        null = kernels.as_mask(values.is_null())
        yield _NULL_REPLACED, null if unchanged is None else null & ~unchanged
    loss = field.loss
    if loss is not None and (loss.none_in is None or not loss.none_in(values)):
        yield loss.why, kernels.as_mask(kernels.matches(kernels.as_text(values), loss.pattern))
    if unchanged is not None and field.unavailable == b"null":
        yield _NULL_FOR_UNCHANGED, unchanged
    if field.unavailable != b"null" and len(field.unavailable) in np.diff(kernels.offsets(cells.tokens)):
        alike = kernels.as_mask(kernels.equal(cells.tokens, field.unavailable))
        yield _PLACEHOLDER, alike if unchanged is None else alike & ~unchanged


def _few_losses(field: Field, cells: FewCells) -> Iterator[tuple[str, Sequence[bool]]]:
    """Find losses as `_losses` does, one by one."""
    values, lacking = cells.values, cells.unchanged or repeat(False)
    if field.null != b"null":
        yield _NULL_REPLACED, [one is None and not lacks for one, lacks in zip(values, lacking, strict=False)]
    if field.loss is not None:
        search = _pattern(field.loss.pattern).search
        yield field.loss.why, [one is not None and search(one) is not None for one in values]
    if cells.unchanged is not None and field.unavailable == b"null":
        yield _NULL_FOR_UNCHANGED, cells.unchanged
    if field.unavailable != b"null" and field.unavailable in cells.tokens:
        alike = [one == field.unavailable for one in cells.tokens]
        yield _PLACEHOLDER, [one and not lacks for one, lacks in zip(alike, lacking, strict=False)]


@lru_cache(1024)
def _pattern(pattern: str) -> re.Pattern[bytes]:
    return re.compile(pattern.encode())
