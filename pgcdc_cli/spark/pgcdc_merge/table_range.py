"""A range: a table's files that a run merges, the rows they start from, and whose rows they change.

A table is its OID, while its name may pass to another table. A lake table has the rows of one OID. Within a
range, a name may pass from one OID to another (a table is dropped and created again, or two are swapped), and
an OID from one name to another (a rename): its rows are then in the lake under the previous name.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import chain, groupby

from .control import NOBODY, ControlRow, Former, KnownColumn, ModeProgress
from .folder_names import folded, name_mark
from .lake import Lake
from .options import MERGE
from .schema_evolution import Goal
from .segments import ChangeFile, FinishedSegment
from .table_version import TableVersion, with_all_columns

Name = tuple[str, str]
"""Schema and table."""

_REMEMBERED = 8
"""Most former OIDs of a name whose rows can still be found."""

_KNOWN = 1000
"""Most former OIDs of a name of which it is known that they had it."""


@dataclass(frozen=True)
class KeptRows:
    """Where the lake has an OID's rows: a version of a table (None: nowhere), merged up to a segment.

    `current`: they are the table's rows now; its segment is then the last whose changes were looked at, and
    `columns` are what is known of its columns.
    """

    table: str
    path: str
    version: int | None
    segment: int
    current: bool
    columns: tuple[KnownColumn, ...] = ()


@dataclass
class Sightings:
    """Files of each OID, in the stream's order, and for each name the segments and OIDs found under it."""

    files: dict[int, list[ChangeFile]] = field(default_factory=dict)
    names: dict[Name, list[tuple[int, int]]] = field(default_factory=dict)
    _order: dict[str, int] = field(default_factory=dict)

    def last(self, files: Sequence[ChangeFile]) -> int:
        """Return the place of the last of these files in the stream's order."""
        return self._order[files[-1].path]

    def holder_at(self, name: Name, segment: int) -> int | None:
        """Return the OID that had a name at the end of a segment; else the first that had it."""
        met = self.names.get(name, [])
        before = [oid for number, oid in met if number <= segment]
        return next(iter([*before[-1:], *(oid for _, oid in met)]), None)

    def files_of_names(self, versions: Mapping[str, TableVersion]) -> dict[Name, list[ChangeFile]]:
        """Collect the files under each name."""
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
    """Go through the manifest; its files are in the order in which they were begun."""
    found = Sightings()
    for segment in segments:
        for file in segment.files:
            found.add(file, versions[file.schema])
    return found


def holder(row: ControlRow | None, name: Name, met: Sightings) -> int | None:
    """Return the OID whose rows a lake table has; None if there is no such table yet."""
    if row is None or row.version is None:
        return None
    # Versions of pgcdc that recorded no OID refused a table whose OID changed.
    return row.oid if row.oid is not None else met.holder_at(name, row.segment)


def kept_rows(control: ModeProgress, met: Sightings) -> dict[int, KeptRows]:
    """Find the newest rows that the lake has of each OID."""
    names = {f"{schema}.{table}": (schema, table) for schema, table in met.names}
    found: dict[int, KeptRows] = {}
    for row in control.rows.values():
        if row.mode != control.mode or row.path is None or row.version is None:
            continue
        oid = row.oid if row.table not in names else holder(row, names[row.table], met)
        places: list[tuple[int, int | None, int, bool]] = [
            (former.oid, former.version, former.segment, False) for former in row.former
        ]
        if oid is not None:
            places.append((oid, row.version, row.segment, True))
        for one, version, segment, current in places:
            kept = KeptRows(row.table, row.path, version, segment, current, row.columns if current else ())
            if one != NOBODY and (one not in found or found[one].segment < kept.segment):
                found[one] = kept
    return found


def former_rows(row: ControlRow | None, held: int | None) -> list[Former]:
    """List the OIDs whose rows a lake table had, or has until it is rewritten."""
    if row is None or row.version is None:
        return []
    return [*row.former, Former(held or NOBODY, row.version, row.segment)]


def remembered(former: Iterable[Former], now: int) -> tuple[Former, ...]:
    """Keep the last entry of each former OID, and only the newest versions; of very many OIDs, the newest."""
    last: dict[int, Former] = {}
    for entry in former:
        # An OID that is put aside again is among the newest again.
        last.pop(entry.oid, None)
        if entry.oid not in (NOBODY, now):
            last[entry.oid] = entry
    found = [entry.oid for entry in last.values() if entry.version is not None][-_REMEMBERED:]
    entries = [entry if entry.oid in found else replace(entry, version=None) for entry in last.values()]
    return tuple(entries[-_KNOWN:])


@dataclass(frozen=True)
class TableRange:
    """A table's files after those merged according to the control table, where its row is `row`.

    `versions` are those of the files, by schema file; `losses` are files of all tables that report what other
    files lack. The range is of one `oid`, unless it is a changelog's, and starts from the rows of `base`;
    `forgotten`: it had rows that can't be found any more. The lake table has the rows of `held` (None if
    there is no table). `holders` has the segments in which its name was found, with the OIDs; `gone` are the
    ranges of tables that had the name before it, and have files here, too. `anew`: the lake table has other
    rows than those that this range starts from. `left_out` are the numbers of columns that weren't published
    when the last merged change was made.
    """

    table: str
    path: str
    row: ControlRow | None
    files: Sequence[ChangeFile]
    versions: Mapping[str, TableVersion]
    losses: Sequence[ChangeFile] = ()
    oid: int = NOBODY
    base: KeptRows | None = None
    held: int | None = None
    holders: Sequence[tuple[int, int]] = ()
    gone: tuple["TableRange", ...] = ()
    anew: bool = False
    forgotten: bool = False
    left_out: frozenset[int] = frozenset()

    @property
    def is_changelog(self) -> bool:
        """Whether it has all changes under a name, of whatever OID."""
        return self.oid == NOBODY

    @property
    def followed(self) -> int | None:
        """The segment up to which its changes were looked at; None if there may have been none."""
        if not self.is_changelog and self.base is not None and self.base.current:
            return self.base.segment
        waits = self.row is not None and (self.is_changelog or self.row.version is None)
        return self.row.segment if self.row is not None and waits else None

    def first_missing(self, first: FinishedSegment) -> int | None:
        """Return the first segment that is gone, and may have had changes of the table; None if none is.

        `first` is the first segment that is still there.
        """
        followed = self.followed
        return None if followed is None or first.number <= followed + 1 else followed + 1

    def with_holder_at(self, done: int) -> "TableRange":
        """Determine `held` and `anew` for a lake table that is merged up to segment `done`.

        A run that died may have made it, and the control table doesn't know of it yet.
        """
        known = [oid for segment, oid in self.holders if segment <= done]
        held = self.held if self.held is not None or not known else known[-1]
        elsewhere = self.base is not None and self.base.path != self.path
        return replace(self, held=held, anew=self.anew or elsewhere or held not in (None, self.oid))

    def has_name_at(self, segment: int) -> bool:
        """Whether this OID had its name at the end of a segment."""
        return [oid for number, oid in self.holders if number <= segment][-1:] == [self.oid]

    def beyond(self, done: int, last: int) -> "TableRange":
        """Leave out files up to `done`, which the lake table has; the range ends at `last`."""
        if self.anew and done < last:
            return self
        return replace(self, files=[file for file in self.files if file.segment > done])

    @property
    def never_had_a_key(self) -> bool:
        """Whether the table has no key, and no rows that were matched by one."""
        return self.version.key is None and (self.row is None or self.row.version is None)

    @property
    def keyless_oids(self) -> list[Former]:
        """The OIDs of which a changelog has rows from before they had a key."""
        if not self.is_changelog:
            return []
        found = [one.oid for one in self.versions.values() if one.key is None]
        if self.row is not None and self.row.oid is not None and self.row.keyed_by == ():
            found.append(self.row.oid)
        return [Former(oid, None, self.files[-1].segment) for oid in sorted(set(found))]

    @property
    def keyed_by(self) -> tuple[str, ...]:
        """The key to record; a changelog that has rows from before there was a key keeps none."""
        if any(one.oid == self.version.oid for one in self.keyless_oids):
            return ()
        return tuple(column.name for column in self.version.key_columns)

    @property
    def may_be_put_aside(self) -> bool:
        """Whether it can be merged under a name that another table has by now."""
        return not self.forgotten and all(version.key is not None for version in self.versions.values())

    @property
    def lacks_rows(self) -> bool:
        """Whether the source may have rows from before it was published, which were never sent."""
        return self.anew and self.base is None and self.held is not None and self.version.listed

    @property
    def history(self) -> list[TableVersion]:
        """The versions, oldest first."""
        last = {file.schema: number for number, file in enumerate(self.files)}
        return [self.versions[path] for path in sorted(last, key=lambda path: last[path])]

    @property
    def version(self) -> TableVersion:
        """The newest version."""
        return self.versions[self.files[-1].schema]


@dataclass(frozen=True)
class PlannedRange:
    """What the rows of a range, `work`, become: all are converted to the `goal`.

    `called` are current names of earlier rows' columns, if they differ (None: the column is gone), and
    `columns` what is known of the lake table's columns after the range.
    """

    work: TableRange
    goal: Goal
    called: Mapping[str, str | None]
    columns: tuple[KnownColumn, ...]

    @property
    def rewrites(self) -> bool:
        """Whether the lake table is rewritten from the earlier rows, in one commit."""
        return self.work.anew or bool(self.called)

    @property
    def spans(self) -> list["PlannedRange"]:
        """The range, split where the key changes."""
        versions = self.work.versions
        runs = [
            list(run)
            for _, run in groupby(self.work.files, key=lambda file: versions[file.schema].key_in_lake)
        ]
        return [
            replace(self, work=replace(self.work, files=run), goal=self._goal_of(run[-1])) for run in runs
        ]

    def _goal_of(self, file: ChangeFile) -> Goal:
        key = self.work.versions[file.schema].key_in_lake
        names: list[str | None] = [column.name for column in self.goal.version.columns]
        return replace(self.goal, version=replace(self.goal.version, key=tuple(map(names.index, key))))


@dataclass(frozen=True)
class _Waiting:
    """Files of an OID, or those under a name for its changelog, that come after segment `merged`.

    The other fields are those of the range that they become.
    """

    files: Sequence[ChangeFile]
    merged: int
    oid: int = NOBODY
    base: KeptRows | None = None
    forgotten: bool = False
    left_out: frozenset[int] = frozenset()


def table_ranges(
    segments: Sequence[FinishedSegment],
    versions: Mapping[str, TableVersion],
    control: ModeProgress,
    lake: Lake,
) -> list[TableRange]:
    """Collect each table's files that aren't merged according to the control table, ordered by name.

    A changelog has the changes under a name; a merged table has those of the OID that has the name last.
    """
    met, locations = sightings(segments, versions), _TableLocations(control, lake)
    keys = _keys(met.names, control, lake)
    gathered = []
    for name, waiting in sorted(_by_name(met, versions, control, lake, keys).items()):
        row = control.of(keys[name])
        location = locations.choose(*name, row)
        held, holders = (holder(row, name, met), met.names[name]) if control.mode == MERGE else (None, [])
        found = [
            TableRange(
                keys[name],
                location,
                row,
                one.files,
                _used_by(one.files, versions),
                [file for segment in segments for file in segment.losses if file.segment > one.merged],
                one.oid,
                one.base,
                held,
                holders,
                anew=number > 0,
                forgotten=one.forgotten,
                left_out=one.left_out,
            )
            for number, one in enumerate(_in_turn(waiting, row, held, met))
        ]
        # All may have been left out; else the last has the name now, and the others are gone.
        gone: tuple[TableRange, ...] = ()
        for one in found[:-1]:
            gone = (*gone, _that_is_gone(replace(one, gone=gone), segments[0]))
        gathered += [replace(last, gone=gone) for last in found[-1:]]
    return gathered


def _keys(names: Iterable[Name], control: ModeProgress, lake: Lake) -> dict[Name, str]:
    """Choose the names of tables in the control table.

    Two names may read the same, as `a."b.c"` and `"a.b".c`: the one that comes later is quoted there.
    """
    found: dict[Name, str] = {}
    before = set[str]()
    for name in sorted(names):
        found[name] = plain = ".".join(name)
        if plain.count(".") > 1:
            exact = ".".join(f'"{part}"' if "." in part else part for part in name)
            taken = control.of(exact) is not None or plain in before
            found[name] = exact if taken or _is_anothers(name, control, lake) else plain
            before.add(found[name])
    return found


def _is_anothers(name: Name, control: ModeProgress, lake: Lake) -> bool:
    """Whether a row is of another table whose name reads the same; its location tells."""
    plain = ".".join(name)
    row = control.of(plain)
    if row is None or row.path is None:
        return False
    location, parts = lake.known_location(row.path), plain.split(".")
    names = [(".".join(parts[:end]), ".".join(parts[end:])) for end in range(1, len(parts))]
    marks = ("", name_mark(plain))
    return any(
        lake.location(*other, control.mode, mark) == location
        for other in names
        if other != name
        for mark in marks
    )


def _by_name(
    met: Sightings,
    versions: Mapping[str, TableVersion],
    control: ModeProgress,
    lake: Lake,
    keys: Mapping[Name, str],
) -> dict[Name, list[_Waiting]]:
    """Group what is to be merged by name; all waiting files of an OID are under its last name."""
    found: dict[Name, list[_Waiting]] = {}
    if control.mode == MERGE:
        kept = kept_rows(control, met)
        for oid, files in met.files.items():
            base = kept.get(oid)
            if base is None or files[-1].segment > base.segment:
                newest = versions[files[-1].schema]
                one = _of_oid(oid, files, versions, base, lake)
                found.setdefault((newest.schema, newest.name), []).append(one)
        return found
    for name, files in met.files_of_names(versions).items():
        row = control.of(keys[name])
        merged = 0 if row is None else row.segment
        waiting = [file for file in files if file.segment > merged]
        if waiting:
            found[name] = [_Waiting(waiting, merged)]
    return found


def _of_oid(
    oid: int,
    files: Sequence[ChangeFile],
    versions: Mapping[str, TableVersion],
    base: KeptRows | None,
    lake: Lake,
) -> _Waiting:
    """Find what is not in an OID's earlier rows, or take all if these can't be found any more."""
    if base is None or base.version is None:
        return _Waiting(files, 0, oid, forgotten=base is not None)
    merged = [file for file in files if file.segment <= base.segment]
    waiting = [file for file in files if file.segment > base.segment]
    left_out = versions[merged[-1].schema].left_out if merged else frozenset()
    base = replace(base, path=lake.known_location(base.path))
    return _Waiting(waiting, base.segment, oid, base, left_out=left_out)


def _in_turn(
    waiting: Sequence[_Waiting], row: ControlRow | None, held: int | None, met: Sightings
) -> list[_Waiting]:
    """Order the OIDs that had a name one after the other; leave out those gone before."""
    merged = 0 if row is None or held is None else row.segment
    left = [one for one in waiting if one.oid == held or one.files[-1].segment > merged]
    return sorted(left, key=lambda one: met.last(one.files))


def _used_by(files: Iterable[ChangeFile], versions: Mapping[str, TableVersion]) -> dict[str, TableVersion]:
    """Select the versions of files; if these have all values, none may be missing."""
    used = {file.schema: versions[file.schema] for file in files}
    if any(file.unchanged for file in files):
        return used
    return {path: with_all_columns(version, may_be_unsent=False) for path, version in used.items()}


def _that_is_gone(work: TableRange, first: FinishedSegment) -> TableRange:
    """Count a range that lacks segments as forgotten: it stops nothing, since its name is another table's."""
    return replace(work, forgotten=work.forgotten or work.first_missing(first) is not None)


class _TableLocations:
    """Locations of tables: those in the control table; new ones where no other table is."""

    def __init__(self, control: ModeProgress, lake: Lake) -> None:
        self._control = control
        self._lake = lake
        self._tables = {row.table for row in control.rows.values() if row.path is not None}

    def choose(self, schema: str, name: str, row: ControlRow | None) -> str:
        """Choose a table's location; `row` is its row in the control table."""
        table = f"{schema}.{name}"
        if row is not None and row.path is not None:
            return self._lake.known_location(row.path)
        similar = {folded(other) for other in self._tables - {table}}
        self._tables.add(table)
        mark = name_mark(table) if folded(table) in similar else ""
        return self._lake.location(schema, name, self._control.mode, mark)
