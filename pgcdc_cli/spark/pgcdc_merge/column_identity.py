"""Which columns are which: a column is its number in the source's table, and names may come to be others'.

All versions of a table, and the lake table, are brought to the names that columns have last. A column whose
name is another's by then is no more: the other has its place.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace

from .column_types import LakeColumn
from .control import KnownColumn
from .segments import TableVersion


@dataclass(frozen=True)
class Identified:
    """Versions that know what their columns are called last, and what those of the lake table are (`called`).

    There, None is for one that is gone. `doubtful` columns may have changed names, in a way that isn't known.
    `positions` are the columns' numbers, by their last names, `types` the types that those of the lake table
    had at the source, where they are known.
    """

    versions: Sequence[TableVersion]
    called: Mapping[str, str | None]
    doubtful: Sequence[str]
    positions: Mapping[str, int]
    types: Mapping[str, str]

    def known_after(self, columns: Sequence[LakeColumn]) -> tuple[KnownColumn, ...]:
        """Give what is to be remembered of the lake table's columns."""
        types = {
            **self.types,
            **{column.name: column.source for column in columns if column.source is not None},
        }
        names = [column.name for column in columns]
        return tuple(KnownColumn(name, self.positions.get(name), types.get(name)) for name in names)


@dataclass
class _Places:
    """The numbers that names have, as they come to be known."""

    numbers: dict[str, int]
    doubtful: dict[str, None] = field(default_factory=dict)

    def learn(self, found: Mapping[str, int]) -> None:
        taken = set(found.values())
        left = {name: number for name, number in self.numbers.items() if number not in taken}
        self.numbers = left | {**found}

    def doubt(self, names: Iterable[str]) -> None:
        self.doubtful |= dict.fromkeys(names)
        self.numbers = {name: number for name, number in self.numbers.items() if name not in self.doubtful}


def identify(
    versions: Sequence[TableVersion], known: Sequence[KnownColumn], have: Sequence[str]
) -> Identified:
    """Find what columns are called last, in versions, oldest first, and in a lake table that has some."""
    lake = _numbers_in_lake(versions, known, have)
    places = _Places(dict(lake))
    found = []
    for number, version in enumerate(versions):
        positions = version.positions or _supposed(version, versions[number + 1 :], places)
        places.learn(positions)
        found.append(positions)
    last = {number: name for name, number in places.numbers.items()}
    renamed = [_renamed(version, positions, last) for version, positions in zip(versions, found, strict=True)]
    called = _called(lake, last)
    pairs = ((called.get(one.name, one.name), one.type) for one in known if one.name in have)
    types = {name: source for name, source in pairs if name is not None and source is not None}
    return Identified(renamed, called, list(places.doubtful), places.numbers, types)


def _renamed(version: TableVersion, numbers: Mapping[str, int], last: Mapping[int, str]) -> TableVersion:
    """Have a version know what its columns are called last: no other's name."""
    called = _called(numbers, last)
    unknown = (column.name for column in version.columns if column.name not in numbers)
    return replace(version, called=called | {name: None for name in unknown if name in called.values()})


def _called(numbers: Mapping[str, int], last: Mapping[int, str]) -> dict[str, str | None]:
    """Give columns' last names, where they are others; None where another has the only one that is known."""
    taken = set(last.values())
    names = {name: last.get(number, None if name in taken else name) for name, number in numbers.items()}
    return {name: now for name, now in names.items() if now != name}


def _numbers_in_lake(
    versions: Sequence[TableVersion], known: Sequence[KnownColumn], have: Sequence[str]
) -> dict[str, int]:
    """Give the numbers of a lake table's columns; where it isn't known, that which the name has first."""
    numbers = {one.name: one.position for one in known if one.position is not None and one.name in have}
    supposed = _Places(numbers)
    for name in have:
        first = next((version.positions[name] for version in versions if name in version.positions), None)
        if name not in numbers and first is not None:
            supposed.learn({name: first})
    return supposed.numbers


def _supposed(version: TableVersion, later: Sequence[TableVersion], places: _Places) -> dict[str, int]:
    """Suppose that names are what they were, or else what they are next, unless their order says otherwise.

    Columns come in the order of their numbers.
    """
    names = [column.name for column in version.columns]
    following = next((one.positions for one in later if one.positions), {})
    around = places.numbers if any(name in places.numbers for name in names) else following
    found = {name: around[name] for name in names if name in around}
    doubtful = _out_of_order(found)
    places.doubt(doubtful)
    return {name: number for name, number in found.items() if name not in doubtful}


def _out_of_order(numbers: Mapping[str, int]) -> list[str]:
    """List the names that have a larger number before them, or a smaller one behind."""
    pairs = [*numbers.items()]
    return [
        name
        for at, (name, number) in enumerate(pairs)
        if any(other > number for _, other in pairs[:at]) or any(other < number for _, other in pairs[at:])
    ]
