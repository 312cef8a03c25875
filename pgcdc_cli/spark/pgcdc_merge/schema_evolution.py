"""Tables whose columns change: one description for all versions in a range and for the lake table.

A column is its attribute number in the source table, while its name may pass to another column. All versions
of a table, and the lake table, get the last names of their columns; a column whose name has passed to another
one is dropped. An added column is added to the lake table, and is NULL in earlier rows until they change. A
dropped one stays, and is NULL in rows written from then on. A renamed one gets its new name; if the rename
isn't known, it counts as dropped and added. A type may become wider. Any other change is an error that names
the column and the schema file.
"""

from collections.abc import Collection, Container, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TypeVar

from .column_types import DECIMAL, INFINITY, VARIANT, LakeColumn, keeps_keys, keeps_numbers, keeps_values
from .control import KnownColumn
from .merge_errors import MergeError
from .table_version import TableVersion


@dataclass(frozen=True)
class Identified:
    """Versions that know the last names of their columns; `called` has those of the lake table's columns.

    In `called`, None means that the column is gone. `doubtful` columns may have changed names in an unknown
    way. `positions` are the columns' numbers by their last names, `types` the known source types of the lake
    table's columns, and `converted` those of them that have values from before a conversion.
    """

    versions: Sequence[TableVersion]
    called: Mapping[str, str | None]
    doubtful: Sequence[str]
    positions: Mapping[str, int]
    types: Mapping[str, str]
    converted: frozenset[str]

    def known_after(
        self, columns: Sequence[LakeColumn], converted: Collection[str]
    ) -> tuple[KnownColumn, ...]:
        """Return what to record of the lake table's columns, of which some were `converted`."""
        types = {
            **self.types,
            **{column.name: column.source for column in columns if column.source is not None},
        }
        names = [column.name for column in columns]
        return tuple(
            KnownColumn(name, self.positions.get(name), types.get(name), name in converted) for name in names
        )


@dataclass
class _ColumnNumbers:
    """The numbers of columns by name, as far as known yet."""

    by_name: dict[str, int]
    doubtful: dict[str, None] = field(default_factory=dict)

    def learn(self, found: Mapping[str, int]) -> None:
        taken = set(found.values())
        left = {name: number for name, number in self.by_name.items() if number not in taken}
        self.by_name = left | {**found}

    def doubt(self, names: Iterable[str]) -> None:
        self.doubtful |= dict.fromkeys(names)
        self.by_name = {name: number for name, number in self.by_name.items() if name not in self.doubtful}


def identify(
    versions: Sequence[TableVersion], known: Sequence[KnownColumn], have: Sequence[str]
) -> Identified:
    """Find the last names of the columns of versions, oldest first, and of a lake table that has some."""
    lake = _numbers_in_lake(versions, known, have)
    numbers = _ColumnNumbers(dict(lake))
    found = []
    for number, version in enumerate(versions):
        positions = _numbers_of(version, versions[number + 1 :], numbers)
        numbers.learn(positions)
        found.append(positions)
    last = {number: name for name, number in numbers.by_name.items()}
    renamed = [
        _with_last_names(version, positions, last) for version, positions in zip(versions, found, strict=True)
    ]
    called = _called(lake, last)
    pairs = ((called.get(one.name, one.name), one.type) for one in known if one.name in have)
    types = {name: source for name, source in pairs if name is not None and source is not None}
    names = (called.get(one.name, one.name) for one in known if one.converted and one.name in have)
    converted = frozenset(name for name in names if name is not None)
    return Identified(renamed, called, list(numbers.doubtful), numbers.by_name, types, converted)


def _with_last_names(
    version: TableVersion, numbers: Mapping[str, int], last: Mapping[int, str]
) -> TableVersion:
    """Give a version the last names of its columns, none of them another column's."""
    called = _called(numbers, last)
    unknown = (column.name for column in version.columns if column.name not in numbers)
    return replace(version, called=called | {name: None for name in unknown if name in called.values()})


def _called(numbers: Mapping[str, int], last: Mapping[int, str]) -> dict[str, str | None]:
    """Return columns' last names, if they differ; None if another column has the only name that is known."""
    taken = set(last.values())
    names = {name: last.get(number, None if name in taken else name) for name, number in numbers.items()}
    return {name: now for name, now in names.items() if now != name}


def _numbers_in_lake(
    versions: Sequence[TableVersion], known: Sequence[KnownColumn], have: Sequence[str]
) -> dict[str, int]:
    """Return the numbers of a lake table's columns; if unknown, the first number of that name."""
    numbers = {one.name: one.position for one in known if one.position is not None and one.name in have}
    supposed = _ColumnNumbers(numbers)
    for name in have:
        first = next((version.positions[name] for version in versions if name in version.positions), None)
        if name not in numbers and first is not None:
            supposed.learn({name: first})
    return supposed.by_name


def _numbers_of(
    version: TableVersion, later: Sequence[TableVersion], numbers: _ColumnNumbers
) -> dict[str, int]:
    """Return the columns' numbers.

    If they aren't all known, assume that names have their previous numbers, or else their next ones, unless
    the order contradicts: columns are sent in the order of their numbers.
    """
    names = [column.name for column in version.columns]
    if len(version.positions) == len(names):
        return {**version.positions}
    following = next((one.positions for one in later if one.positions), {})
    around = numbers.by_name if any(name in numbers.by_name for name in names) else following
    found = {name: around[name] for name in names if name in around}
    doubtful = _out_of_order(found)
    if doubtful and version.positions:
        found, doubtful = {**version.positions}, [name for name in names if name not in version.positions]
    numbers.doubt(doubtful)
    return {name: number for name, number in found.items() if name not in doubtful}


def _out_of_order(numbers: Mapping[str, int]) -> list[str]:
    """List the names with a larger number before them, or a smaller one after them."""
    pairs = [*numbers.items()]
    return [
        name
        for at, (name, number) in enumerate(pairs)
        if any(other > number for _, other in pairs[:at]) or any(other < number for _, other in pairs[at:])
    ]


ANEW = "merge into a new warehouse, from a directory that begins with a snapshot"

Value = TypeVar("Value")

_WIDER = {"smallint": ("int", "bigint"), "int": ("bigint",), "float": ("double",)}


@dataclass(frozen=True)
class Goal:
    """What the rows of a range are converted to, and what the lake table needs for that: names and types.

    `missing` are the texts of earlier rows' values in added columns, as far as known; `unknown` are added
    columns for which they aren't; `retyped` are columns whose type has changed. `doubtful` ones may have been
    other columns before.
    """

    version: TableVersion
    added: Sequence[tuple[str, str]] = ()
    widened: Sequence[tuple[str, str]] = ()
    missing: Mapping[str, str] = field(default_factory=dict)
    unknown: Sequence[str] = ()
    retyped: Sequence[str] = ()
    doubtful: Sequence[str] = ()


def find_goal(
    versions: Sequence[TableVersion],
    have: Mapping[str, str] | None,
    stored: Mapping[str, str],
    *,
    rescales: bool,
    placed: Collection[str] = (),
) -> Goal:
    """Describe a table for its versions, oldest first, and for the lake table.

    `have` are the lake table's columns and types, None if there is no such table; `stored` maps types to
    those in which the lake stores them; `rescales`: it can give a decimal a larger scale; `placed` are
    columns whose identity is known. Raises MergeError for a change that can't be followed.
    """
    newest = versions[-1]
    columns = [_column(name, versions, have) for name in _names(versions, have or {})]
    _check_case(newest, columns, followed=bool(placed))
    names = [column.name for column in columns]
    key = (
        None if newest.key is None else tuple(names.index(newest.columns[index].name) for index in newest.key)
    )
    version = replace(newest, columns=tuple(columns), key=key, events=None)
    goal = _with_added_columns(Goal(version), versions, have, placed)
    if have is None:
        return goal
    added = [(column.name, column.lake) for column in columns if column.name not in have]
    kept = [(column, stored.get(column.lake, column.lake)) for column in columns if column.name in have]
    widened = [(column, lake) for column, lake in kept if have[column.name] != lake]
    for column, lake in widened:
        _check_option(newest, column, have[column.name], lake)
        _check_wider(newest, column.name, have[column.name], lake)
        if not rescales and have[column.name].partition(",")[2] != lake.partition(",")[2]:
            raise _unfollowed(newest, column.name, have[column.name], lake, "Iceberg can't follow")
    retyped = dict.fromkeys([*goal.retyped, *(column.name for column, _ in widened)])
    types = [(column.name, lake) for column, lake in widened]
    return replace(goal, added=added, widened=types, retyped=list(retyped))


def as_called(version: TableVersion) -> TableVersion:
    """Describe a version with the lake table's column names."""
    if not version.called:
        return version
    if None in version.key_in_lake:
        raise MergeError(
            f'could not merge "{version.display}": a column of its key ({version.key_names}) was dropped, and'
            f' another has its name now, see "{version.path}"',
            ANEW,
        )
    pairs = [(version.in_lake(column.name), column) for column in version.columns]
    columns = tuple(replace(column, name=name) for name, column in pairs if name is not None)
    names = [column.name for column in columns]
    return replace(
        version,
        columns=columns,
        key=version.key and tuple(names.index(str(name)) for name in version.key_in_lake),
        without_default=frozenset(filter(None, map(version.in_lake, version.without_default))),
        missing=_renamed(version, version.missing),
        positions=_renamed(version, version.positions),
        called={},
    )


def _renamed(version: TableVersion, values: Mapping[str, Value]) -> dict[str, Value]:
    pairs = ((version.in_lake(name), value) for name, value in values.items())
    return {name: value for name, value in pairs if name is not None}


def _with_added_columns(
    goal: Goal, versions: Sequence[TableVersion], have: Collection[str] | None, placed: Container[str]
) -> Goal:
    """Add what is known of columns that were added or changed after the first rows."""
    missing, unknown = find_added(goal.version, versions, have, placed)
    types = {column.name: column.lake for column in goal.version.columns}
    found = (column for version in versions for column in version.columns)
    retyped = dict.fromkeys(column.name for column in found if column.lake != types[column.name])
    return replace(goal, missing=missing, unknown=unknown, retyped=list(retyped))


def find_added(
    newest: TableVersion,
    versions: Sequence[TableVersion],
    have: Iterable[str | None] | None,
    placed: Container[str],
) -> tuple[dict[str, str], list[str]]:
    """Find the newest version's columns that earlier rows lack: their values there by name, and unknown ones.

    `have` are the names of the columns that earlier rows have, None if there are no such rows.
    """
    before = {column.name for column in versions[0].columns} if have is None else set(filter(None, have))
    known = {column.name: version for version in reversed(versions) for column in version.columns}
    names = [column.name for column in newest.columns if column.name not in before]
    first = {name: known[name] for name in names if name in known}
    missing = {name: one.missing[name] for name, one in first.items() if name in one.missing}
    unknown = [
        name
        for name, one in first.items()
        if name not in missing
        and (name not in one.without_default or _may_be_renamed(name, one, before, placed))
    ]
    return missing, unknown


def _may_be_renamed(name: str, version: TableVersion, before: set[str], placed: Container[str]) -> bool:
    """Whether a new column may be one of those that are gone, renamed."""
    gone = (other for other in before if not version.has(other))
    return any(name not in placed or other not in placed for other in gone)


def with_unknown(version: TableVersion, numbers: Collection[int]) -> TableVersion:
    """Describe a version without what it says of earlier rows' values in columns with these numbers."""
    lost = {name for name, number in version.positions.items() if number in numbers}
    known = {name: text for name, text in version.missing.items() if name not in lost}
    return replace(version, missing=known)


def with_later_columns(versions: Sequence[TableVersion]) -> list[TableVersion]:
    """Add to each version, oldest first, the values of its rows in columns that were added later."""
    return [replace(one, later=_later(one, versions[number:])) for number, one in enumerate(versions)]


def _later(version: TableVersion, following: Sequence[TableVersion]) -> dict[str, str]:
    found: dict[str, str | None] = {}
    for one in following:
        for column in one.columns:
            found.setdefault(column.name, one.missing.get(column.name))
    return {name: text for name, text in found.items() if text is not None and not version.has(name)}


def with_other_values(versions: Sequence[TableVersion], before: Mapping[str, str]) -> list[str]:
    """List the columns whose values the source converted to a new type; `before` are the earlier types."""
    types = dict(before)
    changes = (change for version in versions for change in _with_types(version, types))
    return list(dict.fromkeys(column.name for column, old, new in changes if not keeps_values(old, new)))


def _with_types(version: TableVersion, types: dict[str, str]) -> Iterator[tuple[LakeColumn, str, str]]:
    """Yield a version's columns, each with its type before and now; `types` are changed to those."""
    for column in version.columns:
        assert column.source is not None
        yield column, types.get(column.name, column.source), column.source
        types[column.name] = column.source


_NUMBERS = ("smallint", "int", "bigint", "float", "double", "decimal")
"""Spark types whose values are compared as numbers, however the source writes them."""


def find_converted(
    versions: Sequence[TableVersion], before: Mapping[str, str], known: Iterable[str]
) -> tuple[set[str], list[str]]:
    """Find the columns of which earlier rows have other values, as keys, than the source has now.

    The second list has those of them that are, or became, part of a key. `before` are the types before these
    versions, `known` the columns that were converted even before.
    """
    types, converted, keys = dict(before), set(known), dict[str, None]()
    for version in versions:
        for column, old, new in _with_types(version, types):
            # A decimal of --decimal may stay the same when the server rounds.
            compared = column.lake.startswith(_NUMBERS) and (not column.late or keeps_numbers(old, new))
            if not compared and not keeps_keys(old, new):
                converted.add(column.name)
        keys |= dict.fromkeys(column.name for column in version.key_columns if column.name in converted)
    return converted, list(keys)


def _names(versions: Sequence[TableVersion], have: Mapping[str, str]) -> list[str]:
    """List columns in the lake table's order, then in the newest version's, then those that are gone."""
    known = [column.name for version in reversed(versions) for column in version.columns]
    return list(dict.fromkeys([*have, *known]))


def _column(name: str, versions: Sequence[TableVersion], have: Mapping[str, str] | None) -> LakeColumn:
    """Describe a column for all versions; each type must fit into the newest version's."""
    found = [(version, column) for version in versions for column in version.columns if column.name == name]
    if not found:
        assert have is not None
        kind = have[name]
        return LakeColumn(
            name, kind, kind, None, is_json=False, delimiter=",", in_old=False, may_be_unsent=False
        )
    version, last = found[-1]
    for _, column in found:
        if column.lake != last.lake:
            _check_wider(version, name, column.lake, last.lake)
    in_old, may_be_unsent = (
        any(getattr(column, flag) for _, column in found) for flag in ("in_old", "may_be_unsent")
    )
    late = next((column.spark for _, column in found if column.late), last.spark)
    return replace(last, spark=late, in_old=in_old, may_be_unsent=may_be_unsent)


def _check_case(version: TableVersion, columns: Sequence[LakeColumn], *, followed: bool) -> None:
    """Raise MergeError for columns that lake tables take for one; `followed`: a rename will be known."""
    now = {column.name for column in version.columns}
    ordered = sorted((column.name for column in columns), key=lambda name: name in now)
    names = [name.lower() for name in ordered]
    twice = [name for name in ordered if names.count(name.lower()) > 1]
    if twice:
        rename = f'ALTER TABLE {version.display} RENAME COLUMN "{twice[1]}" TO ...'
        raise MergeError(
            f'could not merge "{version.display}": the columns "{twice[0]}" and "{twice[1]}" differ in case'
            " only, which lake tables ignore",
            rename if followed else f"{rename}, and {ANEW}",
        )


def _check_option(version: TableVersion, column: LakeColumn, have: str, lake: str) -> None:
    """Raise MergeError if the lake table's type comes from another choice of the column's option."""
    kinds = {INFINITY: ("date", "timestamp"), DECIMAL: ("decimal",), VARIANT: ("variant",)}
    known = ("string", *kinds.get(column.option or "", ()))
    chosen = all(kind.removeprefix("array<").startswith(known) for kind in (have, lake))
    if column.option is None or not chosen or _is_wider(have, lake):
        return
    raise MergeError(
        f'could not merge "{version.display}": its column "{column.name}" is {have} in the table, and {lake}'
        f' with these options, see "{version.path}"',
        f"{_remedy(column.option, have)}, or {ANEW}",
    )


def _remedy(option: str, have: str) -> str:
    text = have.removeprefix("array<").startswith("string")
    if text != (option == INFINITY):
        return f"leave out {option}"
    digits = have.partition("(")[2].partition(")")[0]
    return f"add {option}{ {INFINITY: ' string', DECIMAL: f' {digits}', VARIANT: ''}[option] }"


def _check_wider(version: TableVersion, name: str, old: str, new: str) -> None:
    if not _is_wider(old, new):
        raise _unfollowed(version, name, old, new, "doesn't hold all of its values")


def _unfollowed(version: TableVersion, name: str, old: str, new: str, why: str) -> MergeError:
    return MergeError(
        f'could not merge "{version.display}": its column "{name}" changed from {old} to {new}, which {why},'
        f' see "{version.path}"',
        f"change its type back, or {ANEW}",
    )


def _is_wider(old: str, new: str) -> bool:
    """Whether a type holds all values of another."""
    if new in _WIDER.get(old, ()):
        return True
    if not (old.startswith("decimal") and new.startswith("decimal")):
        return False
    (old_digits, old_scale), (new_digits, new_scale) = (_decimal(spark) for spark in (old, new))
    return new_scale >= old_scale and new_digits - new_scale >= old_digits - old_scale


def _decimal(spark: str) -> tuple[int, int]:
    digits, _, scale = spark[len("decimal(") : -1].partition(",")
    return int(digits), int(scale)
