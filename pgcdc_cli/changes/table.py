"""A table as it is decoded: what its relation message says, and the catalog facts first used with it.

Passes from the assembler (which has it from `catalog/`) to formats and sinks; its JSON form is what the
schema files of a directory hold.
"""

import hashlib
import json
from dataclasses import dataclass, field
from enum import Enum
from functools import cached_property
from typing import Any, NamedTuple

from pgcdc_cli.types.pg_type import PgType


class ReplicaIdentity(Enum):
    """What the server sends of the old row: `pg_class.relreplident`."""

    DEFAULT = "d"
    NOTHING = "n"
    FULL = "f"
    INDEX = "i"


@dataclass(frozen=True)
class TableColumn:
    """A column. `type_oid`, `typmod` and `declared` are of its type as the table declares it.

    `type` is the same with domains resolved. `replica_identity` says whether it is part of that. `position`
    is its number in the table, where that is known and isn't its place among those that are sent: a column
    that was dropped and added again is another.
    """

    name: str
    type_oid: int
    typmod: int
    type: PgType
    declared: str
    replica_identity: bool
    not_null: bool | None = None
    dimensions: int = 0
    position: int | None = None

    @classmethod
    def of(cls, name: str, type_: PgType, *, replica_identity: bool) -> "TableColumn":
        """Make a column of a type that is no domain, with no more known of it."""
        return cls(name, type_.oid, type_.typmod, type_, type_.name, replica_identity)

    def to_json(self) -> dict[str, Any]:
        """What the schema file says of it."""
        return {
            "name": self.name,
            "type_oid": self.type_oid,
            "typmod": self.typmod,
            "type": self.type.to_json(),
            "declared": self.declared,
            "replica_identity": self.replica_identity,
            "not_null": self.not_null,
            "dimensions": self.dimensions,
            **({} if self.position is None else {"position": self.position}),
        }

    @classmethod
    def from_json(cls, data: dict[str, Any]) -> "TableColumn":
        """Read what `to_json` gave; KeyError, TypeError or ValueError if it is something else."""
        return cls(
            data["name"],
            data["type_oid"],
            data["typmod"],
            PgType.from_json(data["type"]),
            data["declared"],
            data["replica_identity"],
            data["not_null"],
            data["dimensions"],
            data.get("position"),
        )


class BaseType(NamedTuple):
    """What a domain is over, another domain maybe: `pg_type.typbasetype`.

    `declared` is it with the domain's modifiers, as `format_type` prints it; `name` is its `typname`.
    """

    oid: int
    declared: str
    name: str


@dataclass(frozen=True, slots=True)
class ColumnFacts:
    """What the catalog says of a column beyond its type.

    `default` is its default expression as `pg_get_expr` prints it; `labels` are the labels, in their order,
    of an enum (or an array of one). `position` is its number in the table, `not_null` whether the column by
    itself, not its domain, forbids NULL; None where there is no such column any more. `missing` is the text
    of what rows have that were there before the column was added, and not written since. `type_default` is
    the default of its type, a domain, which a column without one of its own has; `type_name` is the
    `pg_type.typname` of its type, as declared; `base` is the type that a domain is over.
    """

    default: str | None = None
    labels: tuple[str, ...] | None = None
    position: int | None = None
    not_null: bool | None = None
    in_primary_key: bool = False
    missing: str | None = None
    type_default: str | None = None
    type_name: str | None = None
    base: BaseType | None = None


@dataclass(frozen=True, slots=True)
class TableFacts:
    """What the catalog says of a table beyond its columns' types; names are columns'.

    `primary_key` is in the order of the key. `unique` is that of the unique index which stands in for a
    primary key where there is none. `listed` says whether a publication names the table or one it is part of:
    one that none names was published when it was made. None where the catalog wasn't asked.
    """

    primary_key: tuple[str, ...] | None
    unique: tuple[str, ...] | None
    columns: dict[str, ColumnFacts] = field(hash=False)
    listed: bool | None = None

    def to_json(self) -> dict[str, Any]:
        """What the schema file says of it."""
        return {
            "primary_key": None if self.primary_key is None else list(self.primary_key),
            "unique": None if self.unique is None else list(self.unique),
            "listed": self.listed,
            "columns": {
                name: {
                    "default": facts.default,
                    "labels": None if facts.labels is None else list(facts.labels),
                    "position": facts.position,
                    "not_null": facts.not_null,
                    "in_primary_key": facts.in_primary_key,
                    "missing": facts.missing,
                    "type_default": facts.type_default,
                    "type_name": facts.type_name,
                    "base": None if facts.base is None else list(facts.base),
                }
                for name, facts in self.columns.items()
            },
        }

    @classmethod
    def from_json(cls, data: dict[str, Any]) -> "TableFacts":
        """Read what `to_json` gave; KeyError or TypeError if it is something else."""
        columns = {
            name: ColumnFacts(
                facts["default"],
                _names(facts["labels"]),
                # An earlier version of pgcdc asked for less.
                facts.get("position"),
                facts.get("not_null"),
                facts.get("in_primary_key", False),
                facts.get("missing"),
                facts.get("type_default"),
                facts.get("type_name"),
                BaseType(*facts["base"]) if facts.get("base") else None,
            )
            for name, facts in data["columns"].items()
        }
        return cls(_names(data["primary_key"]), _names(data["unique"]), columns, data.get("listed"))


def _names(names: list[str] | None) -> tuple[str, ...] | None:
    return None if names is None else tuple(names)


@dataclass(frozen=True, eq=False)
class TableSchema:
    """One version of one table; two are equal that have one fingerprint.

    `key` names the columns that identify a row on the wire as the merge understands it: the relation
    message's key columns under replica identity DEFAULT and INDEX, the primary key (unless deferrable) under
    FULL; None for a table without one. `facts` are None where the catalog was not asked; they make no
    difference between versions. `events` tells a reader of Debezium's events how they hold the table; it is
    there for schema files only.
    """

    oid: int
    schema: str
    name: str
    replica_identity: ReplicaIdentity
    columns: tuple[TableColumn, ...]
    key: tuple[str, ...] | None
    facts: TableFacts | None = None
    events: dict[str, Any] | None = None

    def __eq__(self, other: object) -> bool:
        """Compare quickly: tables are looked up for every batch, and after a reconnect others are there."""
        return self is other or (isinstance(other, TableSchema) and self.fingerprint == other.fingerprint)

    def __hash__(self) -> int:
        return hash(self.fingerprint)

    @property
    def display(self) -> str:
        """`schema.table`, for messages and the manifest."""
        return f"{self.schema}.{self.name}"

    def to_json(self) -> dict[str, Any]:
        """The schema file's content, without its fingerprint and version."""
        return {
            "oid": self.oid,
            "schema": self.schema,
            "table": self.name,
            "replica_identity": self.replica_identity.value,
            "key": None if self.key is None else list(self.key),
            "columns": [column.to_json() for column in self.columns],
            **({} if self.events is None else {"events": self.events}),
            **({} if self.facts is None else {"facts": self.facts.to_json()}),
        }

    @classmethod
    def from_json(cls, data: dict[str, Any]) -> "TableSchema":
        """Read what `to_json` gave; KeyError, TypeError or ValueError if it is something else."""
        facts = data.get("facts")
        return cls(
            data["oid"],
            data["schema"],
            data["table"],
            ReplicaIdentity(data["replica_identity"]),
            tuple(TableColumn.from_json(column) for column in data["columns"]),
            _names(data["key"]),
            None if facts is None else TableFacts.from_json(facts),
            data.get("events"),
        )

    @cached_property
    def fingerprint(self) -> str:
        """Sixteen hexadecimal digits that differ when anything of `to_json` but the facts does."""
        content = {name: value for name, value in self.to_json().items() if name != "facts"}
        text = json.dumps(content, sort_keys=True, ensure_ascii=True)
        return hashlib.sha256(text.encode()).hexdigest()[:16]
