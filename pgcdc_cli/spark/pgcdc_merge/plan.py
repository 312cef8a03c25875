"""Check that tables can be merged, and plan what their rows become.

All tables are merged to the same segment; `table_range.py` finds the files of each, from its own mark.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from py4j.protocol import Py4JJavaError  # type: ignore[import-untyped]  # it has no annotations
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812 - PySpark's own habit

from .control import NOBODY, ControlRow, Former, KnownColumn, ModeProgress, TableMode
from .debezium_segments import check_exact
from .fold import COMMIT_TS, DELETED, LSN, PREFIX, Extras
from .lake import CommitMark, Lake, LakeTable, quoted
from .merge_errors import MergeError, cause_of
from .options import CHANGELOG, MERGE, parse_lsn
from .schema_evolution import (
    ANEW,
    Goal,
    Identified,
    as_called,
    find_added,
    find_converted,
    find_goal,
    identify,
    with_later_columns,
    with_other_values,
    with_unknown,
)
from .segments import FinishedSegment
from .table_range import PlannedRange, TableRange
from .table_version import TableVersion

_EXTRAS = frozenset({LSN, COMMIT_TS, DELETED})


def check_source(segments: Sequence[FinishedSegment], control: ModeProgress) -> str:
    """Return the stream id.

    Raises MergeError if segments are of several streams, or of another one than the warehouse's, or don't
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


def range_ends(
    segments: Sequence[FinishedSegment], everything: ControlRow | None, until: int | None
) -> Iterator[FinishedSegment]:
    """Yield the last segment of each range to merge: an unfinished run's, unchanged, then the newest.

    `everything` is the control table's row for all tables.
    """
    wanted = [segment for segment in segments if until is None or parse_lsn(segment.end_lsn) <= until]
    merged, begun = (0, 0) if everything is None else (everything.segment, everything.planned_segment or 0)
    unfinished = [segment for segment in segments if merged < segment.number == begun]
    if unfinished and until is not None and unfinished[0] not in wanted:
        raise MergeError(
            f"could not end the merge there: a run that was interrupted has begun to merge up to segment"
            f" {begun}, {unfinished[0].end_lsn}",
            "run it once without --until, or with one that isn't before that",
        )
    yield from unfinished
    if wanted and wanted[-1] not in unfinished:
        yield wanted[-1]


def left_behind(
    works: Sequence[TableRange],
    merged: Mapping[TableMode, ControlRow],
    rows: Mapping[TableMode, ControlRow],
) -> dict[TableMode, ControlRow]:
    """Update the rows of lake tables whose tables have another name now; `rows` are the earlier rows."""
    found = {}
    for work in (one for last in works for one in (*last.gone, last)):
        row = None if work.base is None else rows.get((work.base.table, MERGE))
        if row is None or row.table == work.table or row.oid not in (None, work.oid):
            continue
        if (work.table, MERGE) in merged:
            note = f'it is called "{work.table}" now, and these are its earlier rows'
            found[row.key] = replace(row, oid=NOBODY, warning=note)
        else:
            assert work.base is not None
            found[row.key] = replace(row, segment=work.base.segment)
    return found


def check_followed(work: TableRange, first: FinishedSegment) -> None:
    """Raise MergeError if segments that the table lacks are no longer in the directory."""
    if work.forgotten and first.number > 1:
        raise MergeError(
            f'could not merge "{work.table}": its earlier rows are no longer kept, and segments 1 to'
            f" {first.number - 1}, which have them, are not here",
            f"restore them, with their lines in the manifest, from a copy, or {ANEW}",
        )
    lacking = work.first_missing(first)
    if lacking is not None:
        raise MergeError(
            f'could not merge "{work.table}": segments {lacking} to {first.number - 1} are'
            " neither here nor merged into it",
            f"restore them, with their lines in the manifest, from a copy, or {ANEW}",
        )


def check_keyed(work: TableRange, rows: Mapping[TableMode, ControlRow]) -> None:
    """Raise MergeError for a table that lost its key, or that got one after it had rows.

    `rows` are the control table's.
    """
    if work.base is None and any(_logged_without_key(work, row) for row in rows.values()):
        raise MergeError(
            f'could not merge "{work.table}": it had no key before, and rows that it had then are only in its'
            f' changelog, see "{work.version.path}"',
            ANEW,
        )
    if work.version.key is None:
        raise MergeError(
            f'could not merge "{work.table}": it no longer has a key, see "{work.version.path}"',
            f"ALTER TABLE {work.table} ADD PRIMARY KEY (...), or keep it as a changelog: --mode changelog",
        )


def _logged_without_key(work: TableRange, row: ControlRow) -> bool:
    """Whether a changelog has rows of a table from before it had a key."""
    if row.mode == CHANGELOG and any(one.oid == work.oid for one in row.former):
        return True
    # Earlier versions of pgcdc recorded no OID.
    same = row.oid == work.oid or (row.oid is None and row.table == work.table)
    return same and (row.keyless or (row.mode == CHANGELOG and row.keyed_by == ()))


def _check_key(plan: PlannedRange, before: DataFrame, *, soft_delete: bool) -> None:
    """Raise MergeError if earlier rows can't be matched by the key that the changes begin with."""
    work, version = plan.work, plan.spans[0].goal.version
    known = None if work.anew or work.row is None else work.row.keyed_by
    known = known and tuple(str(plan.called.get(name, name)) for name in known)
    key = tuple(column.name for column in version.key_columns)
    if key == known:
        return
    if soft_delete and known is not None:
        raise changed_key_of_deleted(work.version)
    missing = [name for name in key if name not in before.columns and name not in plan.goal.missing]
    if missing and not before.isEmpty():
        raise _lacks_key(version, missing[0])
    check_has_key(version, before)


def check_has_key(version: TableVersion, rows: DataFrame) -> None:
    """Raise MergeError if a row has NULL in the key: its changes would be taken for another row's."""
    names = [column.name for column in version.key_columns if column.name in rows.columns]
    for name in names:
        if not rows.where(f"{quoted(name)} IS NULL").isEmpty():
            raise _lacks_key(version, name)


def changed_key_of_deleted(version: TableVersion) -> MergeError:
    """Make the error for deleted rows that are kept under the old key."""
    return MergeError(
        f'could not merge "{version.display}": its key changed, see "{version.path}", and deleted rows'
        " are kept by their old key",
        f"leave out --soft-delete, or {ANEW}",
    )


def _lacks_key(version: TableVersion, name: str) -> MergeError:
    return MergeError(
        f'could not merge "{version.display}": its key is ({version.key_names}) now, and rows from before'
        f' have no value in "{name}", see "{version.path}"',
        f"change the key, or the name of its column, back, or {ANEW}",
    )


def _check_versions(work: TableRange) -> None:
    """Raise MergeError if the table changed within the range in a way that can't be merged.

    A changelog needs no key.
    """
    newest = work.version
    for version in work.versions.values():
        check_exact(work.table, version)
        if not work.is_changelog and version.key is None and newest.key is not None:
            raise MergeError(
                f'could not merge "{work.table}": its key changed from ({version.key_names}) to'
                f' ({newest.key_names}), see "{newest.path}"',
                ANEW,
            )


def check_same(work: TableRange) -> None:
    """Raise MergeError if the lake table's rows would be replaced by those of another source table."""
    before = work.gone[-1].oid if work.gone else work.held
    if before not in (None, work.oid):
        raise MergeError(
            f'could not merge "{work.table}": it is not the same table as before, but was dropped and'
            f' recreated, or renamed: its OID was {before}, and is {work.oid}, see "{work.version.path}"',
            "leave out --recreated stop: its rows then replace the others, which older versions keep",
        )


def _known_columns(work: TableRange, done: int) -> tuple[KnownColumn, ...]:
    """Return what is known of the columns of a lake table that is merged up to segment `done`.

    It may have a part of the range that the control table doesn't know of yet.
    """
    known = () if work.base is None else work.base.columns
    had = [file for file in work.files if file.segment <= done]
    if work.anew or not had:
        return known
    past = replace(work, files=had)
    found = identify(past.history, known, [column.name for column in known])
    types = {column.name: column.source for column in past.version.columns}
    converted, _ = find_converted(list(map(as_called, found.versions)), found.types, found.converted)
    return tuple(
        KnownColumn(name, number, types.get(name), name in converted)
        for name, number in found.positions.items()
    )


def merged_before(work: TableRange, target: LakeTable, own: CommitMark, mark: CommitMark) -> Former | None:
    """Find what an earlier run merged of a table that no longer has its name; None if nothing.

    That run may have ended at an earlier segment.
    """
    last = work.files[-1].segment
    done = target.merged_segment(own.app_id)
    if done >= last:
        return Former(work.oid, target.version_of(own.app_id), done)
    done = target.merged_segment(mark.app_id)
    if done < last:
        return None
    # It still had the name then, or had been left out.
    version = target.version_of(mark.app_id) if work.has_name_at(done) else None
    return Former(work.oid, version, done)


@dataclass(frozen=True)
class OpenedRange:
    """A range, its lake table, and what its rows become there; `waiting` is the part that isn't merged yet.

    `before` are the rows that it starts from, with their columns' present names; None if there are none.
    """

    plan: PlannedRange
    waiting: PlannedRange
    target: LakeTable
    before: DataFrame | None
    mark: CommitMark

    @property
    def base(self) -> DataFrame | None:
        """The rows to start from, if these aren't the lake table's."""
        return self.before if self.plan.rewrites else None


def open_range(
    session: SparkSession, lake: Lake, work: TableRange, mark: CommitMark, extras: Extras
) -> OpenedRange:
    """Open the lake table, plan what a range's rows become, and find the files that the table doesn't have.

    Raises MergeError if that can't be planned. The rest is left to `check_fits`, since what the rows will
    lack is to be known even if they don't fit.
    """
    _check_versions(work)
    target = lake.open(session, work.path)
    done = target.merged_segment(mark.app_id)
    # The lake table may be ahead of the control table; whose rows it has decides what the range starts from.
    work = work.with_holder_at(done)
    before = _rows_before(session, lake, work, target)
    # The plan needs the names that columns have in these rows; whatever comes later, their present ones.
    plan = _plan_range(work, target, before, _known_columns(work, done))
    # The goal also has the columns that only earlier rows have.
    plain = mark.mode == MERGE and not extras.columns
    _check_names(work.table, plan.goal.version, lake, plain=plain)
    waiting = replace(plan, work=plan.work.beyond(done, mark.segment))
    before = None if before is None else _with_present_names(before, plan.called)
    return OpenedRange(plan, waiting, target, before, mark)


def check_fits(opened: OpenedRange, extras: Extras) -> None:
    """Raise MergeError if the rows of a range don't fit those that are there already."""
    work, before, merges = opened.plan.work, opened.before, opened.mark.mode == MERGE
    if merges:
        _check_extras(work.table, before, extras)
    _check_own(work, opened.target, opened.mark)
    if merges and opened.waiting.work.files and before is not None:
        _check_key(opened.waiting, before, soft_delete=extras.soft_delete)


def _rows_before(session: SparkSession, lake: Lake, work: TableRange, target: LakeTable) -> DataFrame | None:
    """Return the rows that a range starts from: the lake table's, or those of this OID elsewhere."""
    if not work.anew:
        return target.read() if target.exists else None
    if work.base is None:
        return None
    try:
        return lake.open(session, work.base.path).read(work.base.version)
    except (PySparkException, Py4JJavaError) as error:
        raise MergeError(
            f'could not merge "{work.table}": its earlier rows are in "{work.base.path}" at version'
            f" {work.base.version}, which can't be read: {cause_of(error)}",
            ANEW,
        ) from error


def _with_present_names(rows: DataFrame, names: Mapping[str, str | None]) -> DataFrame:
    """Rename columns, and leave out those without a name."""
    pairs = ((name, names.get(name, name)) for name in rows.columns)
    return rows.select(*(F.col(quoted(old)).alias(new) for old, new in pairs if new is not None))


def _plan_range(
    work: TableRange, target: LakeTable, before: DataFrame | None, known: Sequence[KnownColumn]
) -> PlannedRange:
    """Plan the goal of a range, which starts from earlier rows with `known` columns.

    Raises MergeError if the lake table isn't as the last run left it, or if columns changed in a way that
    can't be followed.
    """
    _check_untouched(work, target)
    have = None
    if before is not None:
        found = ((field.name, field.dataType.simpleString()) for field in before.schema)
        have = {name: spark for name, spark in found if not _is_taken(name, plain=not work.is_changelog)}
    if work.is_changelog:
        # It has what was sent, and no more.
        goal = find_goal(work.history, have, _stored(work, target), rescales=target.rescales)
        return PlannedRange(work, goal, {}, ())
    return _plan_with_last_names(work, target, have, known)


def _plan_with_last_names(
    work: TableRange, target: LakeTable, have: Mapping[str, str] | None, known: Sequence[KnownColumn]
) -> PlannedRange:
    """Plan with the columns' last names."""
    found = identify(work.history, known, list(have or ()))
    versions = _without_lost_values(work, found)
    history = list(map(as_called, versions))
    if have is not None:
        pairs = ((found.called.get(name, name), spark) for name, spark in have.items())
        have = {name: spark for name, spark in pairs if name is not None}
    stored = _stored(work, target)
    goal = find_goal(history, have, stored, rescales=target.rescales, placed=found.positions)
    _check_key_is_known(work.version, found.doubtful)
    later = zip(versions, with_later_columns(history), strict=True)
    converted, unfound = find_converted(history, found.types, found.converted)
    _check_key_is_unconverted(work.version, unfound)
    columns = found.known_after(goal.version.columns, converted)
    goal = _with_doubts(work, goal, have)
    work = replace(work, versions={version.path: replace(version, later=one.later) for version, one in later})
    return PlannedRange(work, goal, found.called, columns)


def _without_lost_values(work: TableRange, found: Identified) -> list[TableVersion]:
    """Describe versions without values of earlier rows that changed while a column wasn't published."""
    left_out = _left_out(work)
    return [with_unknown(version, left_out) for version in found.versions]


def _left_out(work: TableRange) -> frozenset[int]:
    return work.left_out.union(*(version.left_out for version in work.history))


def _with_doubts(work: TableRange, goal: Goal, have: Mapping[str, str] | None) -> Goal:
    """Add what earlier rows may lack.

    It is found from the columns that the control table has: since then, a run that died may have changed the
    lake table's, and nobody knows its warnings.
    """
    recorded = () if work.base is None else work.base.columns
    names = None if work.base is None else [one.name for one in recorded] or list(have or ())
    found = identify(work.history, recorded, names or ())
    history = [*map(as_called, _without_lost_values(work, found))]
    before = None if names is None else {found.called.get(name, name) for name in names}
    _, added = find_added(goal.version, history, before, found.positions)
    newest = _left_out(work).intersection(history[-1].positions.values())
    again = (name for name, number in found.positions.items() if number in newest)
    retyped = dict.fromkeys([*goal.retyped, *with_other_values(history, found.types)])
    unknown = dict.fromkeys([*added, *again])
    return replace(goal, unknown=list(unknown), doubtful=found.doubtful, retyped=list(retyped))


def _check_key_is_known(version: TableVersion, doubtful: Sequence[str]) -> None:
    """Raise MergeError if a column of the key may have been another one."""
    names = [column.name for column in version.key_columns if column.name in doubtful]
    if names:
        raise MergeError(
            f'could not merge "{version.display}": column "{names[0]}" of its key was renamed, or dropped'
            f' and added again, and which of these can no longer be known, see "{version.path}"',
            ANEW,
        )


def _check_key_is_unconverted(version: TableVersion, converted: Sequence[str]) -> None:
    """Raise MergeError if the source may have converted values of a key: earlier rows have the old ones."""
    if converted:
        raise MergeError(
            f'could not merge "{version.display}": column "{converted[0]}" of its key has another type now,'
            f' but earlier rows have the values as they were, see "{version.path}"',
            ANEW,
        )


def _stored(work: TableRange, target: LakeTable) -> dict[str, str]:
    """Return the types in which the table format stores those of the range."""
    types = {column.lake for version in work.history for column in version.columns}
    return {spark: target.stored_type(spark) for spark in types}


def _check_own(work: TableRange, target: LakeTable, mark: CommitMark) -> None:
    """Raise MergeError if a table exists already that no merge of this stream made."""
    if target.version is None or (work.row is not None and work.row.version is not None):
        return
    marks = [mark, *(replace(mark, gone=one.oid) for one in work.gone)]
    if not any(target.merged_segment(one.app_id) for one in marks):
        raise MergeError(
            f'could not merge "{work.table}": "{work.path}" already exists, and is not from this stream',
            "remove it, or if it is another table's, merge this one into another warehouse (--table, --mode)",
        )


def _check_untouched(work: TableRange, target: LakeTable) -> None:
    """Raise MergeError if the lake table isn't as the last run left it."""
    version = None if work.row is None else work.row.version
    if version is None:
        return
    if target.was_set_back(version):
        now = "gone" if target.version is None else f"at version {target.version}"
        raise MergeError(
            f'could not merge "{work.table}": "{work.path}" is {now}, but was at version {version}'
            " when it was last merged",
            f"restore it from a copy, or {ANEW}",
        )
    others = target.written_since(version)
    if others is not None:
        raise MergeError(
            f'could not merge "{work.table}": "{work.path}" was changed by another program since it'
            f" was last merged, at version {version}: {others}",
            f"set it back to version {version}, or {ANEW}",
        )


def _check_names(table: str, version: TableVersion, lake: Lake, *, plain: bool) -> None:
    """Raise MergeError for a column with a reserved name; `plain`: the lake table has no extra columns."""
    for name in (column.name for column in version.columns):
        if name in lake.reserved or _is_taken(name, plain=plain):
            user = f"{lake.title} uses" if name in lake.reserved else "this job uses"
            raise MergeError(
                f'could not merge "{table}": its column "{name}" has a name that {user} itself',
                f'ALTER TABLE {table} RENAME COLUMN "{name}" TO ..., or if it is gone, {ANEW}',
            )


def _is_taken(name: str, *, plain: bool) -> bool:
    """Whether a column name is reserved; in a plain table only a few are."""
    return name in _EXTRAS if plain else name.lower().startswith(PREFIX)


def _check_extras(table: str, before: DataFrame | None, extras: Extras) -> None:
    """Raise MergeError if the earlier rows have other extra columns."""
    if before is None:
        return
    have = _EXTRAS.intersection(before.columns)
    for option, name in (("--metadata", LSN), ("--soft-delete", DELETED)):
        if (name in have) != (name in extras.columns):
            how, remedy = ("with", f"add {option}") if name in have else ("without", f"leave out {option}")
            raise MergeError(
                f'could not merge "{table}": it was made {how} {option}',
                f"{remedy}, or merge into a new warehouse",
            )
