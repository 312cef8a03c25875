"""The tables that Relation messages define, and the current version of each."""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from functools import partial

import pyarrow as pa

from pgcdc_cli.changes.origin import Origin
from pgcdc_cli.changes.selection import EVERYTHING, Selected, Selection
from pgcdc_cli.changes.table import TableSchema
from pgcdc_cli.errors import ErrorKind, PgcdcError
from pgcdc_cli.pgoutput.messages import Relation
from pgcdc_cli.types.pg_type import builtin

_LEAVE_OUT = "leave out --binary"
_ASK = "leave out --binary; or only --no-catalog, if it is an enum or a domain, or an array of one"

Describe = Callable[[Sequence[Relation]], list[TableSchema]]
"""Adds catalog facts to Relation messages, all those of a batch at once."""

OriginNumber = Callable[[str], int | None]
"""Returns the number of the replication origin with this name; None if there is none."""


class Tables:
    """The tables that Relation messages define, with a number for each distinct version.

    `describe` looks up the catalog facts of Relation messages. It is called for each one, since the server
    sends another whenever the table may have changed, if only a default. `selection` are the tables and
    columns that are wanted. `origin_number` looks up the number of a replication origin, if that is wanted.
    `binary`: values come in binary format, and each type must have a reader for it.
    """

    def __init__(
        self,
        describe: Describe,
        *,
        selection: Selection = EVERYTHING,
        origin_number: OriginNumber | None = None,
        binary: bool = False,
    ) -> None:
        self.describe = describe
        self._selection = selection
        self._origin_number = origin_number
        self._binary = self._reads_binary = binary
        self._numbers: dict[Relation, int] = {}
        self._tables: list[TableSchema] = []
        self._current: dict[int, int] = {}
        self._selected: list[Selected | None] = []

    def __getitem__(self, number: int) -> TableSchema:
        return self._tables[number]

    def current(self, oid: int) -> int:
        """Return the number of the current version of the table with this OID, or -1."""
        return self._current.get(oid, -1)

    def learn(self, relation: Relation, table: TableSchema) -> None:
        """Make a Relation message and its described table the current version from here on.

        Raises PROTOCOL if `binary` is set and a type has no binary reader.
        """
        selected = self._selection.of(table)
        if self._binary and selected is not None:
            _check_readers(table)
        known = self._numbers.get(relation)
        if known is None or (self._tables[known], self._tables[known].facts) != (table, table.facts):
            self._tables.append(table)
            self._selected.append(selected)
            self._numbers[relation] = len(self._tables) - 1
        self._current[relation.oid] = self._numbers[relation]

    def numbered(self, origin: Origin) -> Origin:
        """Add the number to an origin, if origins are to be looked up."""
        if self._origin_number is None:
            return origin
        return replace(origin, number=self._origin_number(origin.name))

    def selected(self, number: int) -> Selected | None:
        """Return the selected columns of a table; None if the table is left out."""
        return self._selected[number]

    def reader(self, number: int) -> Callable[[int, pa.BinaryArray], pa.BinaryArray] | None:
        """Return a function that converts a column's binary values to text; None without binary."""
        return partial(_read, self._tables[number]) if self._reads_binary else None

    @contextmanager
    def reading_binary(self) -> Iterator[None]:
        """Take binary values meanwhile, whatever was asked for."""
        before, self._reads_binary = self._reads_binary, True
        try:
            yield
        finally:
            self._reads_binary = before


def _check_readers(table: TableSchema) -> None:
    from pgcdc_cli.types.binary import has_reader, sends_binary  # noqa: PLC0415 - only --binary needs them

    for column in table.columns:
        if sends_binary(column.type) and not has_reader(column.type):
            gone = table.facts is not None and column.type.name == "unknown"
            reason = "its type no longer exists" if gone else f"type {column.declared} has no binary reader"
            raise PgcdcError(
                ErrorKind.PROTOCOL,
                f'could not read column "{column.name}" of table "{table.display}" in binary: {reason}',
                hint=_LEAVE_OUT if table.facts is not None or builtin(column.type_oid, -1) else _ASK,
            )


def _read(table: TableSchema, column: int, values: pa.BinaryArray) -> pa.BinaryArray:
    from pgcdc_cli.types.binary import text_of  # noqa: PLC0415 - only --binary needs it

    return text_of(table.columns[column].type, values)
