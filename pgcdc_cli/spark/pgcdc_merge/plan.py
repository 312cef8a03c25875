"""Which files of which tables a run merges: from each table's own mark to one segment for all."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import groupby

from .column_types import Column
from .control import ControlRow, Progress
from .debezium_segments import check_exact
from .fold import PREFIX
from .lake import LakeTable
from .merge_errors import MergeError
from .schema_evolution import ANEW as _ANEW
from .schema_evolution import Goal, find_goal
from .segments import DataFile, Segment, TableVersion, with_all


@dataclass(frozen=True)
class TableFiles:
    """A table's files beyond what the control table says is merged; `versions` by schema file.

    `losses` are the files of all tables that tell what these don't hold.
    """

    table: str
    path: str
    row: ControlRow | None
    files: Sequence[DataFile]
    versions: Mapping[str, TableVersion]
    losses: Sequence[DataFile] = ()
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
    def spans(self) -> list["TableFiles"]:
        """Cut the range where the key changes."""
        runs = [
            list(run)
            for _, run in groupby(self.files, key=lambda file: _key_names(self.versions[file.schema]))
        ]
        return [replace(self, files=run, planned=self._goal_of(run[-1])) for run in runs]

    def _goal_of(self, file: DataFile) -> Goal:
        key = [column.name for column in key_columns(self.versions[file.schema])]
        names = [column.name for column in self.goal.version.columns]
        return replace(self.goal, version=replace(self.goal.version, key=tuple(map(names.index, key))))

    @property
    def version(self) -> TableVersion:
        """The newest."""
        return self.versions[self.files[-1].schema]


def check_source(segments: Sequence[Segment], control: Progress) -> str:
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
                _ANEW,
            )
    first, merged = segments[0].number, 0 if known is None else known.segment
    if first > merged + 1:
        raise MergeError(
            f"could not merge segment {first}: {merged + 1} to {first - 1} are neither here nor merged",
            "restore them, with their lines in the manifest, from a copy",
        )
    return stream_id


def table_files(
    segments: Sequence[Segment],
    versions: Mapping[str, TableVersion],
    control: Progress,
    place: Callable[[str, str], str],
) -> list[TableFiles]:
    """Gather the files of each table that the control table doesn't have as merged, in the order of names."""
    found: dict[tuple[str, str], list[DataFile]] = {}
    for segment in segments:
        for file in segment.files:
            version = versions[file.schema]
            found.setdefault((version.schema, version.name), []).append(file)
    gathered = []
    for (schema, name), files in sorted(found.items()):
        table = f"{schema}.{name}"
        row = control.of(table)
        waiting = [file for file in files if row is None or file.segment > row.segment]
        if waiting:
            used = {file.schema: versions[file.schema] for file in waiting}
            if not any(file.unchanged for file in waiting):
                used = {path: with_all(version, may_lack=False) for path, version in used.items()}
            merged = 0 if row is None else row.segment
            losses = [file for segment in segments for file in segment.losses if file.segment > merged]
            gathered.append(TableFiles(table, place(schema, name), row, waiting, used, losses))
    return gathered


def check_followed(work: TableFiles, first: Segment) -> None:
    """Raise a MergeError if segments that the table doesn't have are no longer in the directory."""
    if work.row is not None and first.number > work.row.segment + 1:
        raise MergeError(
            f'could not merge "{work.table}": segments {work.row.segment + 1} to {first.number - 1} are'
            " neither here nor merged into it",
            f"restore them, with their lines in the manifest, from a copy, or {_ANEW}",
        )


def check_versions(work: TableFiles) -> None:
    """Raise a MergeError where the table changed within the range in a way that can't be merged."""
    newest = work.version
    for version in work.versions.values():
        check_exact(work.table, version)
        if version.oid != newest.oid:
            raise MergeError(
                f'could not merge "{work.table}": it was dropped and created anew, see "{newest.path}"', _ANEW
            )
        if version.key is None and newest.key is not None:
            raise MergeError(
                f'could not merge "{work.table}": its key changed from ({_key_names(version)}) to'
                f' ({_key_names(newest)}), see "{newest.path}"',
                _ANEW,
            )


def _key_names(version: TableVersion) -> str:
    return ", ".join(version.columns[place].name for place in version.key or ())


def planned(work: TableFiles, target: LakeTable) -> TableFiles:
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
            f"restore it from a copy, or {_ANEW}",
        )
    if merged_version is not None:
        _check_untouched(work, target, merged_version)
    have = None
    if target.exists:
        have = {name: spark for name, spark in target.columns() if not name.lower().startswith(PREFIX)}
    types = {column.lake for version in work.history for column in version.columns}
    stored = {spark: target.stored_type(spark) for spark in types}
    return replace(work, planned=find_goal(work.history, have, stored, rescales=target.rescales))


def check_own(work: TableFiles, target: LakeTable, done: int) -> None:
    """Raise a MergeError if there is a table already that no merge of this stream made."""
    if target.version is not None and done == 0 and (work.row is None or work.row.version is None):
        raise MergeError(
            f'could not merge "{work.table}": "{work.path}" is there already, and not from this stream',
            f"remove it, or {_ANEW}",
        )


def _check_untouched(work: TableFiles, target: LakeTable, version: int) -> None:
    others = target.written_since(version)
    if others is not None:
        raise MergeError(
            f'could not merge "{work.table}": "{work.path}" was changed by another program since it'
            f" was merged last, at version {version}: {others}",
            f"set it back to version {version}, or {_ANEW}",
        )


def key_columns(version: TableVersion) -> list[Column]:
    """Return the key's columns in the key's order."""
    return [version.columns[place] for place in version.key or ()]
