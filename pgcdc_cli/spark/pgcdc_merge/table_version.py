"""Schema files: a table as one of its versions, in the types of the lake."""

import json
from collections.abc import Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from typing import Any

from .column_types import Choices, LakeColumn
from .hadoop_files import HadoopFiles, join
from .merge_errors import MergeError
from .segments import FILES_AT_ONCE, RESTORE


@dataclass(frozen=True)
class DebeziumEvents:
    """How Debezium's events contain a table; `forms` has an element for each column."""

    record: str
    schemas: bool
    forms: tuple[dict[str, Any], ...]


@dataclass(frozen=True)
class TableVersion:
    """A table as one schema file describes it; `key` has indexes of `columns`, None without a key.

    `events` is set in schema files of Debezium's events, which may leave columns out. `without_default` are
    nullable columns that are known to have no default. `listed`: a publication names the table, so it may
    have had rows before. `missing` are the texts that columns have in rows from before they were added;
    `later` are the same for columns that were added after this version. `positions` are the columns'
    attribute numbers, as far as known; `left_out` are those of columns that weren't published. `called`
    are columns' names in the lake table, if they differ; None for a column that isn't there.
    """

    oid: int
    schema: str
    name: str
    columns: tuple[LakeColumn, ...]
    key: tuple[int, ...] | None
    path: str
    events: DebeziumEvents | None = None
    without_default: frozenset[str] = frozenset()
    listed: bool = True
    missing: Mapping[str, str] = field(default_factory=dict)
    later: Mapping[str, str] = field(default_factory=dict)
    positions: Mapping[str, int] = field(default_factory=dict)
    left_out: frozenset[int] = frozenset()
    called: Mapping[str, str | None] = field(default_factory=dict)

    def has(self, name: str) -> bool:
        """Whether there is such a column."""
        return any(column.name == name for column in self.columns)

    @property
    def display(self) -> str:
        return f"{self.schema}.{self.name}"

    @property
    def key_columns(self) -> list[LakeColumn]:
        """The key's columns in the key's order."""
        return [self.columns[index] for index in self.key or ()]

    @property
    def key_names(self) -> str:
        return ", ".join(column.name for column in self.key_columns)

    def in_lake(self, name: str) -> str | None:
        """Return a column's name in the lake table; None if it isn't there."""
        return self.called.get(name, name)

    @property
    def key_in_lake(self) -> list[str | None]:
        """Names of the key's columns in the lake table."""
        return [self.in_lake(column.name) for column in self.key_columns]

    @property
    def maybe_unsent(self) -> list[int]:
        """Indexes of the columns that an update may lack; the key is always sent."""
        found = (index for index, column in enumerate(self.columns) if column.may_be_unsent)
        return [index for index in found if index not in (self.key or ())]


def read_schemas(
    files: HadoopFiles, directory: str, paths: Iterable[str], choices: Choices
) -> dict[str, TableVersion]:
    """Read schema files, by their path in the directory."""
    wanted = sorted(set(paths))
    with ThreadPoolExecutor(FILES_AT_ONCE) as pool:
        return dict(
            zip(
                wanted,
                pool.map(lambda path: _read_schema(files, directory, path, choices), wanted),
                strict=True,
            )
        )


def _read_schema(files: HadoopFiles, directory: str, path: str, choices: Choices) -> TableVersion:
    data = files.read(join(directory, path))
    if data is None:
        raise MergeError(f'could not read "{join(directory, path)}": there is no such file', RESTORE)
    try:
        return _table_version(json.loads(data), path, choices)
    except (ValueError, KeyError, TypeError) as error:
        raise MergeError(
            f'could not read "{join(directory, path)}": it is damaged: {error}', RESTORE
        ) from error


def _table_version(data: dict[str, Any], path: str, choices: Choices) -> TableVersion:
    full, described = data["replica_identity"] == "f", data.get("events")
    sent = [c for c in data["columns"] if described is None or described["columns"][c["name"]] is not None]
    # Variants can't be compared, so a key has none.
    keyed = replace(choices, variant=False)
    columns = tuple(
        LakeColumn.from_json(column, keyed if column["name"] in (data["key"] or ()) else choices, full=full)
        for column in sent
    )
    names = [column.name for column in columns]
    whole = data["key"] is not None and set(data["key"]) <= set(names)
    key = tuple(names.index(name) for name in data["key"]) if whole else None
    events = None
    if described is not None:
        forms = tuple(described["columns"][name] for name in names)
        events = DebeziumEvents(described["record"], described["schemas"], forms)
    known = data.get("facts") or {"columns": {}}
    facts, listed = known["columns"], known.get("listed") is not False
    plain = frozenset(
        column["name"]
        for column in sent
        if not column["not_null"] and _has_no_default(facts.get(column["name"]))
    )
    missing = {name: fact["missing"] for name, fact in facts.items() if fact.get("missing") is not None}
    return TableVersion(
        data["oid"],
        data["schema"],
        data["table"],
        columns,
        key,
        path,
        events,
        plain,
        listed,
        missing,
        positions=_positions(data["columns"], facts),
        left_out=frozenset(known.get("left_out", ())),
    )


def _positions(columns: Sequence[dict[str, Any]], facts: Mapping[str, Any]) -> dict[str, int]:
    """Return columns' attribute numbers, as far as known.

    If the facts are of a later state, a column may be gone: its number is known if no other fits between its
    neighbors'. If names were exchanged since, the numbers aren't ascending, and none is known.
    """
    names = [one["name"] for one in columns]
    known = {name: facts.get(name, {}).get("position") for name in names}
    found = {name: number for name, number in known.items() if number}
    if [*found.values()] != sorted(set(found.values())):
        return {}
    before, between, numbers = 0, list[str](), dict[str, int]()
    for name in names:
        between.append(name)
        if name in found:
            some = range(before + 1, found[name] + 1)
            numbers |= zip(between, some, strict=True) if len(some) == len(between) else {name: found[name]}
            before, between = found[name], []
    return numbers


def _has_no_default(facts: dict[str, Any] | None) -> bool:
    """Whether a column is known to have no default; unknown if it no longer exists (no position)."""
    if facts is None or facts.get("position", 0) is None:
        return False
    return facts["default"] is None and facts.get("type_default") is None


def with_all_columns(version: TableVersion, *, may_be_unsent: bool) -> TableVersion:
    """Describe a table of which any value may be missing (whole old rows are read for it), or none."""
    columns = tuple(replace(column, may_be_unsent=may_be_unsent) for column in version.columns)
    return replace(version, columns=columns)
