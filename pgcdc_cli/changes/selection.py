"""Which changes are wanted: by patterns of tables and columns, as in psql and pg_dump, and by position."""

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from pgcdc_cli.changes.slice import ChangeBatch, FewColumns, FullImage, KeyImage, Slice
from pgcdc_cli.changes.table import ReplicaIdentity, TableSchema
from pgcdc_cli.lsn import Lsn
from pgcdc_cli.types.database_text import folded

_PARTS = re.compile(r'(?:"(?:[^"]|"")*"|[^".])+|\.')
_PIECES = re.compile(r'"((?:[^"]|"")*)"|([*?])|([^"*?]+)')


class NamePattern:
    """A pattern of two or three parts, `schema.table` or `schema.table.column`.

    `*` matches any characters, `?` any single one. A to Z are folded to lower case; within double quotes
    every character is literal. A table's name alone, without wildcards, is in the schema `public`.
    """

    def __init__(self, text: str, parts: int) -> None:
        """Parse a pattern. Raises ValueError, with a reason, unless it has this number of parts."""
        found = _PARTS.findall(text)
        if parts == 2 and found == [text] and not any(wild for _, wild, _ in _PIECES.findall(text)):
            text, found = f"public.{text}", ["public", ".", text]
        if "".join(found) != text or found[1::2] != ["."] * (parts - 1) or len(found) != 2 * parts - 1:
            wanted = ".".join(("schema", "table", "column")[:parts])
            raise ValueError(f'"{text}" is not a pattern of the form {wanted}')
        self.text = text
        self._parts = [re.compile(_expression(part), re.DOTALL) for part in found[::2]]

    def matches(self, *names: str) -> bool:
        """Whether the names, one for each part, match."""
        return all(part.fullmatch(name) for part, name in zip(self._parts, names, strict=True))


def _expression(part: str) -> str:
    return "".join(
        {"*": ".*", "?": "."}[wild] if wild else re.escape(quoted.replace('""', '"') or folded(plain))
        for quoted, wild, plain in _PIECES.findall(part)
    )


PATTERN_HINT = "a pattern is schema.table, with names that have capitals in double quotes: 'public.\"Users\"'"


@dataclass(frozen=True)
class Selection:
    """Which tables and columns to include: by default all of them.

    `columns` are the only columns to keep, by name; the rest are patterns. Columns of the key, or of a
    replica identity other than FULL, are always kept: without them a row can't be identified.
    """

    tables: tuple[NamePattern, ...] = ()
    excluded_tables: tuple[NamePattern, ...] = ()
    excluded_columns: tuple[NamePattern, ...] = ()
    columns: tuple[str, ...] = ()

    def includes(self, schema: str, table: str) -> bool:
        """Whether a table is included."""
        wanted = not self.tables or any(one.matches(schema, table) for one in self.tables)
        return wanted and not any(one.matches(schema, table) for one in self.excluded_tables)

    def of(self, table: TableSchema) -> "Selected | None":
        """Select a table's columns; None if the table is left out."""
        if not self.includes(table.schema, table.name):
            return None
        key = _key_names(table)
        kept = tuple(
            n for n, one in enumerate(table.columns) if one.name in key or self._keeps(table, one.name)
        )
        if len(kept) == len(table.columns):
            return Selected(table)
        return Selected(_narrowed(table, kept), kept)

    def _keeps(self, table: TableSchema, column: str) -> bool:
        if self.columns and column not in self.columns:
            return False
        names = table.schema, table.name, column
        return not any(one.matches(*names) for one in self.excluded_columns)

    def unmatched(self, published: Iterable[tuple[str, str, Sequence[str]]]) -> list[str]:
        """List the patterns that match none of these tables: schema, name and column names of each."""
        known = list(published)
        tables = [
            one.text
            for one in (*self.tables, *self.excluded_tables)
            if not any(one.matches(schema, table) for schema, table, _ in known)
        ]
        columns = [
            one.text
            for one in self.excluded_columns
            if not any(one.matches(schema, table, name) for schema, table, names in known for name in names)
        ]
        return tables + columns

    @property
    def options(self) -> dict[str, str]:
        """The selection as options for a checkpoint, independent of the order of patterns."""
        given = {
            "table": {one.text for one in self.tables},
            "exclude_table": {one.text for one in self.excluded_tables},
            "exclude_column": {one.text for one in self.excluded_columns},
            "columns": set(self.columns),
        }
        return {name: " ".join(sorted(some)) for name, some in given.items() if some}

    def chooses_as(self, options: Mapping[str, str]) -> bool:
        """Whether a checkpoint has the same patterns of tables among its options."""
        ours = self.options
        return all(ours.get(name) == options.get(name) for name in ("table", "exclude_table"))


EVERYTHING = Selection()


def every_table(_schema: str, _table: str) -> bool:
    """Include every table."""
    return True


@dataclass(frozen=True, slots=True)
class Selected:
    """A table with the selected columns; `kept` are their indexes in the whole table, None for all."""

    table: TableSchema
    kept: tuple[int, ...] | None = None

    def narrow(self, batch: ChangeBatch) -> ChangeBatch:
        """Drop the columns that aren't selected from a batch of the table's changes."""
        if self.kept is None:
            return batch
        new = None if batch.new is None else self._full(batch.new)
        old = self._full(batch.old) if isinstance(batch.old, FullImage) else self._key(batch.old)
        return replace(batch, table=self.table, new=new, old=old)

    def _full(self, image: FullImage) -> FullImage:
        assert self.kept is not None
        unchanged = tuple(image.unchanged[number] for number in self.kept)
        return FullImage(_picked(image.columns, self.kept), unchanged)

    def _key(self, image: KeyImage | None) -> KeyImage | None:
        assert self.kept is not None
        return None if image is None else KeyImage(_picked(image.columns, self.kept))


def _picked(columns: Sequence[Any], numbers: Sequence[int]) -> Sequence[Any]:
    if isinstance(columns, FewColumns):
        return FewColumns([columns.texts[number] for number in numbers])
    return tuple(columns[number] for number in numbers)


def _key_names(table: TableSchema) -> set[str]:
    names = set(table.key or ())
    if table.facts is not None:
        names |= {*(table.facts.primary_key or ()), *(table.facts.unique or ())}
    if table.replica_identity is not ReplicaIdentity.FULL:
        names |= {column.name for column in table.columns if column.in_replica_identity}
    return names


def _narrowed(table: TableSchema, kept: Sequence[int]) -> TableSchema:
    columns = tuple(table.columns[number] for number in kept)
    facts = table.facts
    if facts is not None:
        names = {column.name for column in columns}
        known = {name: one for name, one in facts.columns.items() if name in names}
        facts = replace(facts, columns=known)
    return replace(table, columns=columns, facts=facts)


class TableStarts:
    """The positions, by OID, as of which tables were read: only commits from there on are new for them.

    A table that isn't among them was gone, or not published, when the last one was read, so its rows were
    not read either. Only a table without columns has no rows to read.
    """

    def __init__(self, starts: Mapping[int, Lsn]) -> None:
        self._starts = starts
        self._last = max(starts.values(), default=Lsn(0))

    def without_read(self, slice_: Slice) -> Slice:
        """Leave out changes that the rows read already contain."""
        if not self._starts:
            return slice_
        changes = tuple(left for batch in slice_.changes if len(left := self._of(batch)))
        truncates = tuple(one for one in slice_.truncates if one.stamp.commit_lsn >= self._start(one.table))
        return replace(slice_, changes=changes, truncates=truncates)

    def _of(self, batch: ChangeBatch) -> ChangeBatch:
        kept = batch.stamps.commit_lsn >= self._start(batch.table)
        return batch if kept.all() else batch.where(kept)

    def _start(self, table: TableSchema) -> Lsn:
        return self._starts.get(table.oid, self._last if table.columns else Lsn(0))
