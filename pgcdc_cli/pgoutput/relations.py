"""The tables that relation messages defined, and which of a table's versions counts by now."""

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial

import pyarrow as pa

from pgcdc_cli.changes.origin import Origin
from pgcdc_cli.changes.selection import EVERYTHING, Selected
from pgcdc_cli.changes.table import TableSchema
from pgcdc_cli.errors import ErrorKind, PgcdcError
from pgcdc_cli.pgoutput.messages import Relation

Describe = Callable[[Sequence[Relation]], list[TableSchema]]
"""Gives relation messages their catalog facts: all those of a batch at once."""

OriginNumber = Callable[[str], int | None]
"""Gives the number of an origin with this name; None where there is none."""


class Tables:
    """The tables that relation messages defined, numbered: one number for each distinct version.

    With `binary` each table's types must have a binary reader. `selection` says which tables and columns are
    wanted of those to come. `origin_number`, too, asks the catalog: for the number of an origin, by its name.
    """

    def __init__(self, describe: Describe, *, binary: bool = False) -> None:
        self._binary = binary
        self.describe = describe
        self._numbers: dict[Relation, int] = {}
        self._tables: list[TableSchema] = []
        self._current: dict[int, int] = {}
        self._selected: list[Selected | None] = []
        self.selection = EVERYTHING
        self.origin_number: OriginNumber | None = None

    def __getitem__(self, number: int) -> TableSchema:
        return self._tables[number]

    def current(self, oid: int) -> int:
        """Return the number of the table that has this OID by now, or -1."""
        return self._current.get(oid, -1)

    def learn(self, relation: Relation, table: TableSchema) -> None:
        """Take over a relation message and what was said of it: it counts from here on."""
        selected = self.selection.of(table)
        if self._binary and selected is not None:
            _check_readers(table)
        known = self._numbers.get(relation)
        if known is None or (self._tables[known], self._tables[known].facts) != (table, table.facts):
            self._tables.append(table)
            self._selected.append(selected)
            self._numbers[relation] = len(self._tables) - 1
        self._current[relation.oid] = self._numbers[relation]

    def numbered(self, origin: Origin) -> Origin:
        """Give an origin its number, where that is asked for."""
        if self.origin_number is None:
            return origin
        return replace(origin, number=self.origin_number(origin.name))

    def selected(self, number: int) -> Selected | None:
        """Give what is wanted of a table; None where nothing is."""
        return self._selected[number]

    def reader(self, number: int) -> Callable[[int, pa.BinaryArray], pa.BinaryArray] | None:
        """Give what reads binary values of a column; None where binary was not asked for."""
        return partial(_read, self._tables[number]) if self._binary else None


def _check_readers(table: TableSchema) -> None:
    from pgcdc_cli.types.binary import has_reader, sends_binary  # noqa: PLC0415 - only --binary needs them

    for column in table.columns:
        if sends_binary(column.type) and not has_reader(column.type):
            raise PgcdcError(
                ErrorKind.PROTOCOL,
                f'could not read column "{column.name}" of table "{table.display}" in binary:'
                f" type {column.declared} has no binary reader",
                hint="leave out --binary",
            )


def _read(table: TableSchema, column: int, values: pa.BinaryArray) -> pa.BinaryArray:
    from pgcdc_cli.types.binary import text_of  # noqa: PLC0415 - only --binary needs it

    return text_of(table.columns[column].type, values)
