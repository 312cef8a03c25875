"""What a reader of a directory needs to know to make rows of Debezium's events again.

Schema files say how each column is written, so that a reader needs no connector configuration. Where an event
says less than the change, a line in a file of its own says so: whoever reads the events as Debezium's misses
nothing, and whoever makes tables of them knows where they would be wrong.
"""

import json
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from functools import lru_cache
from typing import Any

import numpy as np
import pyarrow as pa

from pgcdc_cli.formats.debezium.config import ConnectorConfig
from pgcdc_cli.formats.debezium.field import Field
from pgcdc_cli.formats.debezium.tables import EventTable, event_table
from pgcdc_cli.formats.debezium.types.kind import inexact
from pgcdc_cli.lsn import Lsn
from pgcdc_cli.pgoutput.changes import Int64s
from pgcdc_cli.table import TableFacts, TableSchema
from pgcdc_cli.types import kernels
from pgcdc_cli.types.kernels import Mask

LOSSES = "_losses"
"""The target of the lines that say what events don't."""


@lru_cache(4096)
def described(
    table: TableSchema, facts: TableFacts | None, config: ConnectorConfig, *, values_only: bool
) -> TableSchema:
    """Add to a table how its events are to be read; `facts` are its own."""
    layout = event_table(table, facts, config, snapshot=False)
    events = {
        "record": "value" if values_only else "full",
        "schemas": config.value_converter_schemas_enable,
        "columns": _columns(table, layout, config),
    }
    return replace(table, facts=facts, events=events)


def _columns(table: TableSchema, layout: EventTable, config: ConnectorConfig) -> dict[str, Any]:
    """Describe each column by name; null for one that the configuration leaves out."""
    fields = {table.columns[column.index].name: column.field for column in layout.columns}
    names = [field.name for field in fields.values()]
    columns: dict[str, Any] = {}
    for column in table.columns:
        if not config.includes_column(table.schema, table.name, column.name):
            columns[column.name] = None
        elif column.name not in fields:
            columns[column.name] = inexact(
                f"Debezium leaves out {column.type.name}: include.unknown.datatypes"
            )
        elif names.count(fields[column.name].name) > 1:
            columns[column.name] = inexact("field.name.adjustment.mode")
        else:
            columns[column.name] = _column(fields[column.name])
    return columns


def _column(field: Field) -> dict[str, Any]:
    unavailable = json.loads(field.unavailable)
    if unavailable is not None and not isinstance(unavailable, str):
        # A reader gets the text of what is no string as it stands in the line.
        unavailable = field.unavailable.decode()
    return {"field": field.name, **field.form, "unavailable": unavailable}


@dataclass(frozen=True, slots=True, eq=False)
class Cells:
    """A column's wire texts and tokens; `unchanged` are those that the server did not send."""

    values: pa.BinaryArray
    tokens: pa.BinaryArray
    unchanged: Mask | None


@dataclass(slots=True)
class Losses:
    """Finds what events of one table lose; `lines` tells each kind of loss once.

    `lsn` are the changes' places in the WAL; `told` are the losses that were told before, and is added to.
    """

    table: TableSchema
    lsn: Int64s
    told: set[tuple[str, ...]]
    lines: list[bytes] = field(default_factory=list)

    def tell(self, row: int, why: str, column: str | None = None) -> None:
        """Say that a change is not, or not all, in its event."""
        loss = (self.table.schema, self.table.name, column or "", why)
        if loss in self.told:
            return
        self.told.add(loss)
        lsn = str(Lsn(self.lsn[row]))
        told = {"schema": loss[0], "table": loss[1], "column": column, "lsn": lsn, "why": why}
        self.lines.append(json.dumps(told, ensure_ascii=False).encode() + b"\n")

    def look(self, index: int, field: Field, cells: Cells) -> None:
        """Look at the table's column at this index."""
        for why, lost in _losses(field, cells):
            if lost.any():
                self.tell(int(np.argmax(lost)), why, self.table.columns[index].name)


def _losses(field: Field, cells: Cells) -> Iterator[tuple[str, Mask]]:
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
