"""Which files of which tables a run merges: from each table's own mark to one segment for all."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace

from .columns import Column
from .control import ControlRow, Progress
from .debezium import check_exact
from .errors import MergeError
from .extras import PREFIX
from .lake import LakeTable
from .segments import DataFile, Segment, TableVersion

_ANEW = "merge into a new warehouse, from a directory that begins with a snapshot"


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
    names = [column.name.lower() for column in newest.columns]
    twice = [column.name for column in newest.columns if names.count(column.name.lower()) > 1]
    if twice:
        raise MergeError(
            f'could not merge "{work.table}": the columns "{twice[0]}" and "{twice[1]}" differ in case only',
            f'ALTER TABLE {work.table} RENAME COLUMN "{twice[1]}" TO ..., since lake tables ignore case',
        )
    for version in work.versions.values():
        check_exact(work.table, version)
        if version.oid != newest.oid:
            raise MergeError(
                f'could not merge "{work.table}": it was dropped and created anew, see "{newest.path}"', _ANEW
            )
        if _key_names(version) != _key_names(newest):
            raise MergeError(
                f'could not merge "{work.table}": its key changed from ({_key_names(version)}) to'
                f' ({_key_names(newest)}), see "{newest.path}"',
                _ANEW,
            )
        _check_columns(work.table, [(column.name, column.spark) for column in version.columns], newest)


def _key_names(version: TableVersion) -> str:
    return ", ".join(version.columns[place].name for place in version.key or ())


def check_target(work: TableFiles, target: LakeTable) -> None:
    """Raise a MergeError where the lake table isn't what the last run left, or has other columns."""
    merged_version = None if work.row is None else work.row.version
    if merged_version is not None and target.was_set_back(merged_version):
        now = "gone" if target.version is None else f"at version {target.version}"
        raise MergeError(
            f'could not merge "{work.table}": "{work.path}" is {now}, but was at version {merged_version}'
            " when it was merged last",
            f"restore it from a copy, or {_ANEW}",
        )
    if target.exists:
        columns = [column for column in target.columns() if not column[0].lower().startswith(PREFIX)]
        stored = [replace(column, spark=target.stored_type(column.spark)) for column in work.version.columns]
        _check_columns(work.table, columns, replace(work.version, columns=tuple(stored)))


def _check_columns(table: str, have: Sequence[tuple[str, str]], version: TableVersion) -> None:
    need = {column.name: column.spark for column in version.columns}
    for name, spark in have:
        if name not in need:
            raise _changed(table, name, f"of type {spark} is gone", version)
        if need[name] != spark:
            raise _changed(table, name, f"changed from {spark} to {need[name]}", version)
    for column in version.columns:
        if column.name not in dict(have):
            raise _changed(table, column.name, f"of type {column.spark} is new", version)


def _changed(table: str, name: str, what: str, version: TableVersion) -> MergeError:
    return MergeError(
        f'could not merge "{table}": its column "{name}" {what}, see "{version.path}"',
        f"changed columns can't be merged yet: undo the change, or {_ANEW}",
    )


def key_columns(version: TableVersion) -> list[Column]:
    """Return the key's columns in the key's order."""
    return [version.columns[place] for place in version.key or ()]
