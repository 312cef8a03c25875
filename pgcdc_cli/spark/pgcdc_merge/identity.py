"""Which rows a table's changes belong to: a table is its OID, and its name may come to be another's.

The lake's table of a name holds the rows of one OID. Within a range a name may pass from one OID to another
(a table that is dropped and created anew, a swap), and an OID from one name to another (a rename): its rows
are then those that the lake has under the name before.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import chain

from .control import NOBODY, ControlRow, Former, KnownColumn, ModeProgress
from .segments import ChangeFile, FinishedSegment, TableVersion

Name = tuple[str, str]
"""Schema and table."""

_REMEMBERED = 8
"""Former holders of a name whose rows can still be found."""


@dataclass(frozen=True)
class KeptRows:
    """Where the lake has the rows of an OID: a version of a table, merged up to a segment.

    `current` if they are what the table has now: then its segment is that of all changes that were looked at,
    and `columns` are what is known of its columns.
    """

    table: str
    path: str
    version: int
    segment: int
    current: bool
    columns: tuple[KnownColumn, ...] = ()


@dataclass
class Sightings:
    """Where OIDs and names were met among changes: files in the stream's order, segments under each name."""

    files: dict[int, list[ChangeFile]] = field(default_factory=dict)
    names: dict[Name, list[tuple[int, int]]] = field(default_factory=dict)
    _order: dict[str, int] = field(default_factory=dict)

    def last(self, files: Sequence[ChangeFile]) -> int:
        """Number the last of some files, in the stream's order."""
        return self._order[files[-1].path]

    def holder_at(self, name: Name, segment: int) -> int | None:
        """Give the OID that had a name at the end of a segment, or else the first that had it."""
        met = self.names.get(name, [])
        before = [oid for number, oid in met if number <= segment]
        return next(iter([*before[-1:], *(oid for _, oid in met)]), None)

    def files_of_names(self, versions: Mapping[str, TableVersion]) -> dict[Name, list[ChangeFile]]:
        """Gather the files under each name."""
        found: dict[Name, list[ChangeFile]] = {}
        for file in sorted(chain(*self.files.values()), key=lambda file: self._order[file.path]):
            version = versions[file.schema]
            found.setdefault((version.schema, version.name), []).append(file)
        return found

    def add(self, file: ChangeFile, version: TableVersion) -> None:
        self._order[file.path] = len(self._order)
        self.files.setdefault(version.oid, []).append(file)
        self.names.setdefault((version.schema, version.name), []).append((file.segment, version.oid))


def sightings(segments: Iterable[FinishedSegment], versions: Mapping[str, TableVersion]) -> Sightings:
    """Look through the manifest, whose files stand in the order in which they were begun."""
    found = Sightings()
    for segment in segments:
        for file in segment.files:
            found.add(file, versions[file.schema])
    return found


def holder(row: ControlRow | None, name: Name, met: Sightings) -> int | None:
    """Give the OID whose rows a lake table has; None if there is no such table yet."""
    if row is None or row.version is None:
        return None
    # Those before pgcdc looked at OIDs were stopped when theirs changed.
    return row.oid if row.oid is not None else met.holder_at(name, row.segment)


def kept_rows(control: ModeProgress, met: Sightings) -> dict[int, KeptRows]:
    """Find the newest rows that the lake has of each OID."""
    names = {f"{schema}.{table}": (schema, table) for schema, table in met.names}
    found: dict[int, KeptRows] = {}
    for row in control.rows.values():
        if row.mode != control.mode or row.path is None or row.version is None:
            continue
        oid = row.oid if row.table not in names else holder(row, names[row.table], met)
        places = [(former.oid, former.version, former.segment, False) for former in row.former]
        if oid is not None:
            places.append((oid, row.version, row.segment, True))
        for one, version, segment, current in places:
            kept = KeptRows(row.table, row.path, version, segment, current, row.columns if current else ())
            if one != NOBODY and (one not in found or found[one].segment < kept.segment):
                found[one] = kept
    return found


def former_rows(row: ControlRow | None, held: int | None) -> list[Former]:
    """List whose rows a lake table had, and has until it is written anew."""
    if row is None or row.version is None:
        return []
    return [*row.former, Former(held or NOBODY, row.version, row.segment)]


def remembered(former: Iterable[Former], now: int) -> tuple[Former, ...]:
    """Keep the last entry of each former holder, of the newest ones."""
    last = {entry.oid: entry for entry in former if entry.oid not in (NOBODY, now)}
    return tuple(last.values())[-_REMEMBERED:]
