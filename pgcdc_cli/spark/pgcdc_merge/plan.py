"""Which files of which tables a run merges: from each table's own mark to one segment for all."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import groupby

from .control import ControlRow, ModeProgress
from .debezium_segments import check_exact
from .fold import COMMIT_TS, DELETED, LSN, PREFIX, Extras
from .lake import Lake, LakeTable
from .merge_errors import MergeError
from .schema_evolution import ANEW, Goal, find_goal
from .segments import ChangeFile, FinishedSegment, TableVersion, folded, name_mark, with_all_columns


@dataclass(frozen=True)
class TableRange:
    """A table's files beyond what the control table says is merged; `versions` by schema file.

    `losses` are the files of all tables that say what these don't hold.
    """

    table: str
    path: str
    row: ControlRow | None
    files: Sequence[ChangeFile]
    versions: Mapping[str, TableVersion]
    losses: Sequence[ChangeFile] = ()
    planned: Goal | None = None

    @property
    def goal(self) -> Goal:
        """What all rows are brought to, once the lake table is known."""
        assert self.planned is not None
        return self.planned

    @property
    def history(self) -> list[TableVersion]:
        """The versions, oldest first."""
        last = {file.schema: number for number, file in enumerate(self.files)}
        return [self.versions[path] for path in sorted(last, key=lambda path: last[path])]

    @property
    def spans(self) -> list["TableRange"]:
        """Cut the range where the key changes."""
        runs = [
            list(run) for _, run in groupby(self.files, key=lambda file: self.versions[file.schema].key_names)
        ]
        return [replace(self, files=run, planned=self._goal_of(run[-1])) for run in runs]

    def _goal_of(self, file: ChangeFile) -> Goal:
        key = [column.name for column in self.versions[file.schema].key_columns]
        names = [column.name for column in self.goal.version.columns]
        return replace(self.goal, version=replace(self.goal.version, key=tuple(map(names.index, key))))

    @property
    def version(self) -> TableVersion:
        """The newest."""
        return self.versions[self.files[-1].schema]


def check_source(segments: Sequence[FinishedSegment], control: ModeProgress) -> str:
    """Return the stream's identity.

    Raises a MergeError if segments are of several streams, or of another than the warehouse's, or don't
    follow the merged ones.
    """
    known = control.all
    ids = [segment.stream_id for segment in segments]
    stream_id = known.stream_id if known is not None else ids[0]
    for segment in segments:
        if segment.stream_id != stream_id:
            raise MergeError(
                f"could not merge segment {segment.number}: it is of stream {segment.stream_id}, those before"
                f" it are of {stream_id}: changes in between may be lost",
                ANEW,
            )
    first, merged = segments[0].number, 0 if known is None else known.segment
    if first > merged + 1:
        raise MergeError(
            f"could not merge segment {first}: {merged + 1} to {first - 1} are neither here nor merged",
            "restore them, with their lines in the manifest, from a copy",
        )
    return stream_id


def table_ranges(
    segments: Sequence[FinishedSegment],
    versions: Mapping[str, TableVersion],
    control: ModeProgress,
    lake: Lake,
) -> list[TableRange]:
    """Gather the files of each table that the control table doesn't have as merged, in the order of names."""
    found: dict[tuple[str, str], list[ChangeFile]] = {}
    for segment in segments:
        for file in segment.files:
            version = versions[file.schema]
            found.setdefault((version.schema, version.name), []).append(file)
    gathered, places = [], _Places(control, lake)
    for (schema, name), files in sorted(found.items()):
        table = f"{schema}.{name}"
        row, place = control.of(table), places.of(schema, name)
        waiting = [file for file in files if row is None or file.segment > row.segment]
        if waiting:
            used = {file.schema: versions[file.schema] for file in waiting}
            if not any(file.unchanged for file in waiting):
                used = {
                    path: with_all_columns(version, may_be_unsent=False) for path, version in used.items()
                }
            merged = 0 if row is None else row.segment
            losses = [file for segment in segments for file in segment.losses if file.segment > merged]
            gathered.append(TableRange(table, place, row, waiting, used, losses))
    return gathered


class _Places:
    """Where tables are: where the control table has them, new ones where no other is."""

    def __init__(self, control: ModeProgress, lake: Lake) -> None:
        self._control = control
        self._lake = lake
        self._tables = {row.table for row in control.rows.values() if row.path is not None}

    def of(self, schema: str, name: str) -> str:
        """Return a table's place."""
        table = f"{schema}.{name}"
        row = self._control.of(table)
        if row is not None and row.path is not None:
            return self._lake.known_location(row.path)
        similar = {folded(other) for other in self._tables - {table}}
        self._tables.add(table)
        mark = name_mark(table) if folded(table) in similar else ""
        return self._lake.location(schema, name, self._control.mode, mark)


def check_followed(work: TableRange, first: FinishedSegment) -> None:
    """Raise a MergeError if segments that the table doesn't have are no longer in the directory."""
    if work.row is not None and first.number > work.row.segment + 1:
        raise MergeError(
            f'could not merge "{work.table}": segments {work.row.segment + 1} to {first.number - 1} are'
            " neither here nor merged into it",
            f"restore them, with their lines in the manifest, from a copy, or {ANEW}",
        )


def check_keyed(work: TableRange) -> None:
    """Raise a MergeError for a table that lost its key."""
    if work.version.key is None:
        raise MergeError(
            f'could not merge "{work.table}": it has no key any more, see "{work.version.path}"',
            f"ALTER TABLE {work.table} ADD PRIMARY KEY (...), or keep it as a changelog: --mode changelog",
        )


def check_versions(work: TableRange) -> None:
    """Raise a MergeError where the table changed within the range in a way that can't be merged."""
    newest = work.version
    for version in work.versions.values():
        check_exact(work.table, version)
        if version.oid != newest.oid:
            raise MergeError(
                f'could not merge "{work.table}": it was dropped and created anew, see "{newest.path}"', ANEW
            )
        if version.key is None and newest.key is not None:
            raise MergeError(
                f'could not merge "{work.table}": its key changed from ({version.key_names}) to'
                f' ({newest.key_names}), see "{newest.path}"',
                ANEW,
            )


def planned(work: TableRange, target: LakeTable) -> TableRange:
    """Find what the rows are to become.

    Raises a MergeError where the lake table isn't what the last run left, or columns changed in a way that
    can't be followed.
    """
    merged_version = None if work.row is None else work.row.version
    if merged_version is not None and target.was_set_back(merged_version):
        now = "gone" if target.version is None else f"at version {target.version}"
        raise MergeError(
            f'could not merge "{work.table}": "{work.path}" is {now}, but was at version {merged_version}'
            " when it was merged last",
            f"restore it from a copy, or {ANEW}",
        )
    if merged_version is not None:
        _check_untouched(work, target, merged_version)
    have = None
    if target.exists:
        have = {name: spark for name, spark in target.columns() if not name.lower().startswith(PREFIX)}
    types = {column.lake for version in work.history for column in version.columns}
    stored = {spark: target.stored_type(spark) for spark in types}
    return replace(work, planned=find_goal(work.history, have, stored, rescales=target.rescales))


def check_own(work: TableRange, target: LakeTable, done: int) -> None:
    """Raise a MergeError if there is a table already that no merge of this stream made."""
    if target.version is not None and done == 0 and (work.row is None or work.row.version is None):
        raise MergeError(
            f'could not merge "{work.table}": "{work.path}" is there already, and not from this stream',
            f"remove it, or {ANEW}",
        )


def _check_untouched(work: TableRange, target: LakeTable, version: int) -> None:
    others = target.written_since(version)
    if others is not None:
        raise MergeError(
            f'could not merge "{work.table}": "{work.path}" was changed by another program since it'
            f" was merged last, at version {version}: {others}",
            f"set it back to version {version}, or {ANEW}",
        )


def check_names(table: str, version: TableVersion) -> None:
    """Raise a MergeError if a column of the source has a name of ours."""
    taken = [column.name for column in version.columns if column.name.lower().startswith(PREFIX)]
    if taken:
        raise MergeError(
            f'could not merge "{table}": its column "{taken[0]}" has a name that this job uses itself',
            f'ALTER TABLE {table} RENAME COLUMN "{taken[0]}" TO ...',
        )


def check_extras(table: str, target: LakeTable, extras: Extras) -> None:
    """Raise a MergeError if the lake table was made with other extra columns."""
    if not target.exists:
        return
    have = {name for name, _ in target.columns() if name in (LSN, COMMIT_TS, DELETED)}
    for option, name in (("--metadata", LSN), ("--soft-delete", DELETED)):
        if (name in have) != (name in extras.columns):
            how, remedy = ("with", f"add {option}") if name in have else ("without", f"leave out {option}")
            raise MergeError(
                f'could not merge "{table}": it was made {how} {option}',
                f"{remedy}, or merge into a new warehouse",
            )
