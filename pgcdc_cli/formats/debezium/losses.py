"""Where an event says less than the change, and a line in a file of its own says so.

Whoever reads the events as Debezium's misses nothing, and whoever makes tables of them knows where they would
be wrong.
"""

import json
from collections.abc import Iterator
from dataclasses import dataclass, field

import numpy as np
import pyarrow as pa

from pgcdc_cli.changes.table import TableSchema
from pgcdc_cli.formats.debezium.types.kind import Field
from pgcdc_cli.lsn import Lsn
from pgcdc_cli.types import kernels
from pgcdc_cli.types.kernels import Booleans, Int64s

LOSSES = "_losses"
"""The target of the lines that say what events don't."""


@dataclass(frozen=True, slots=True, eq=False)
class Cells:
    """A column's wire texts and tokens; `unchanged` are those that the server did not send."""

    values: pa.BinaryArray
    tokens: pa.BinaryArray
    unchanged: Booleans | None


@dataclass(slots=True)
class Losses:
    """Finds what events of one table lose; `lines` reports each kind of loss once.

    `lsn` are the changes' own; `reported` are the losses that were reported before, and is added to.
    """

    table: TableSchema
    lsn: Int64s
    reported: set[tuple[str, ...]]
    lines: list[bytes] = field(default_factory=list)

    def report(self, row: int, why: str, column: str | None = None) -> None:
        """Say that a change is not, or not all, in its event."""
        loss = (self.table.schema, self.table.name, column or "", why)
        if loss in self.reported:
            return
        self.reported.add(loss)
        lsn = str(Lsn(self.lsn[row]))
        report = {"schema": loss[0], "table": loss[1], "column": column, "lsn": lsn, "why": why}
        self.lines.append(json.dumps(report, ensure_ascii=False).encode() + b"\n")

    def look(self, index: int, field: Field, cells: Cells) -> None:
        """Look at the table's column at this index."""
        for why, lost in _losses(field, cells):
            if lost.any():
                self.report(int(np.argmax(lost)), why, self.table.columns[index].name)


def _losses(field: Field, cells: Cells) -> Iterator[tuple[str, Booleans]]:
    values, unchanged = cells.values, cells.unchanged
    if values.null_count and field.null != b"null":
        null = kernels.as_mask(values.is_null())
        yield "value.converter.replace.null.with.default", null if unchanged is None else null & ~unchanged
    if field.loss is not None:
        yield field.loss.why, kernels.as_mask(kernels.matches(kernels.as_text(values), field.loss.pattern))
    if unchanged is not None and field.unavailable == b"null":
        yield "Debezium writes null for an unchanged TOAST value of this type", unchanged
    if field.unavailable != b"null":
        alike = kernels.as_mask(kernels.equal(cells.tokens, field.unavailable))
        yield "unavailable.value.placeholder", alike if unchanged is None else alike & ~unchanged
