"""A table as it is decoded: its Relation message, and the catalog facts that were first used with it.

It passes from the assembler (which gets it from `catalog/`) to formats and sinks. Its JSON form is the
content of a directory's schema files.
"""

import hashlib
import json
from dataclasses import dataclass, field
from enum import Enum
from functools import cached_property
from typing import Any, NamedTuple

from pgcdc_cli.types.pg_type import PgType

MANY_TABLES = 1 << 15
"""Tables, or shapes of their rows, for which what was made once is remembered.

If more of them are changed in turn, all is made anew for each batch, which takes far longer than its rows.
"""


class ReplicaIdentity(Enum):
    """What the server sends of the old row: `pg_class.relreplident`."""

    DEFAULT = "d"
    NOTHING = "n"
    FULL = "f"
    INDEX = "i"


@dataclass(frozen=True)
class TableColumn:
    """A column. `type_oid`, `typmod` and `declared` describe its type as the table declares it.

    `type` is the same type with domains resolved. `position` is `pg_attribute.attnum`, by which a column that
    was dropped and added again is told from the old one; None if it is unknown, or equals the column's place
    in the Relation message.
    """

    name: str
    type_oid: int
    typmod: int
    type: PgType
    declared: str
    in_replica_identity: bool
    not_null: bool | None = None
    dimensions: int = 0
    position: int | None = None

    @classmethod
    def of(cls, name: str, type_: PgType, *, in_replica_identity: bool) -> "TableColumn":
        """Make a column of a type that is no domain, without further facts."""
        return cls(name, type_.oid, type_.typmod, type_, type_.name, in_replica_identity)

    def to_json(self) -> dict[str, Any]:
        """The column as a schema file has it."""
        return {
            "name": self.name,
            "type_oid": self.type_oid,
            "typmod": self.typmod,
            "type": self.type.to_json(),
            "declared": self.declared,
            "replica_identity": self.in_replica_identity,
            "not_null": self.not_null,
            "dimensions": self.dimensions,
            **({} if self.position is None else {"position": self.position}),
        }

    @classmethod
    def from_json(cls, data: dict[str, Any]) -> "TableColumn":
        """Read the result of `to_json`. Raises KeyError, TypeError or ValueError for anything else."""
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
    """The type that a domain is based on, which may be a domain, too: `pg_type.typbasetype`.

    `declared` is that type with the domain's modifier, as `format_type` prints it; `name` is its `typname`.
    """

    oid: int
    declared: str
    name: str


@dataclass(frozen=True, slots=True)
class ColumnFacts:
    """What the catalog says of a column beyond its type.

    `default` is its default expression as `pg_get_expr` prints it. `labels` are the labels of an enum (or an
    array of one) in their sort order. `position` is `pg_attribute.attnum`, and `not_null` says whether the
    column itself, not its domain, forbids NULL; None if the column no longer exists. `missing` is the text of
    `pg_attribute.attmissingval`: the value in rows older than the column. `type_default` is the default of a
    domain, for a column that has none of its own. `type_name` is the `pg_type.typname` of the declared type,
    `base` the type that a domain is based on.
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
    """What the catalog says of a table beyond its columns' types; names are those of columns.

    `primary_key` is in the order of its index; its last `included` columns are those of INCLUDE. `unique` are
    the columns of the unique index that replaces a missing primary key. `listed` says whether a publication
    names the table or a partitioned table above it; otherwise it is published FOR ALL TABLES or with its
    schema. None if the catalog wasn't asked. `left_out` are the attribute numbers of columns that aren't
    sent, if a publication has a column list.
    """

    primary_key: tuple[str, ...] | None
    unique: tuple[str, ...] | None
    columns: dict[str, ColumnFacts] = field(hash=False)
    listed: bool | None = None
    included: int = 0
    left_out: tuple[int, ...] = ()

    def to_json(self) -> dict[str, Any]:
        """The facts as a schema file has them."""
        return {
            "primary_key": None if self.primary_key is None else list(self.primary_key),
            "unique": None if self.unique is None else list(self.unique),
            "listed": self.listed,
            **({"included": self.included} if self.included else {}),
            **({"left_out": list(self.left_out)} if self.left_out else {}),
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
        """Read the result of `to_json`. Raises KeyError or TypeError for anything else."""
        columns = {
            name: ColumnFacts(
                facts["default"],
                _names(facts["labels"]),
                # Schema files of earlier versions lack these facts.
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
        indexes = _names(data["primary_key"]), _names(data["unique"])
        included, left_out = data.get("included", 0), tuple(data.get("left_out", ()))
        return cls(*indexes, columns, data.get("listed"), included, left_out)


def _names(names: list[str] | None) -> tuple[str, ...] | None:
    return None if names is None else tuple(names)


@dataclass(frozen=True, eq=False)
class TableSchema:
    """One version of one table; two are equal if their fingerprints are.

    `key` names the columns by which the merge identifies a row: the Relation message's key columns under
    replica identity DEFAULT and INDEX, the primary key (unless deferrable) under FULL; None for a table
    without a key. `facts` are None if the catalog was not asked, and don't tell versions apart. `events`
    describes how Debezium events represent the table; only schema files have it.
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
        """Compare identity first, for speed: every batch looks tables up. A reconnect makes new objects."""
        return self is other or (isinstance(other, TableSchema) and self.fingerprint == other.fingerprint)

    def __hash__(self) -> int:
        return hash(self.fingerprint)

    @property
    def display(self) -> str:
        """`schema.table`, for messages and the manifest."""
        return f"{self.schema}.{self.name}"

    def to_json(self) -> dict[str, Any]:
        """The content of a schema file, without its fingerprint and format version."""
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
        """Read the result of `to_json`. Raises KeyError, TypeError or ValueError for anything else."""
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
        """Sixteen hexadecimal digits of a SHA-256 over `to_json` without the facts."""
        content = {name: value for name, value in self.to_json().items() if name != "facts"}
        text = json.dumps(content, sort_keys=True, ensure_ascii=True)
        return hashlib.sha256(text.encode()).hexdigest()[:16]
