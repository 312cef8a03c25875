"""pgoutput's messages, one type each, and the decoder of a single message.

Names and fields are those of the PostgreSQL manual, "Logical Replication Message Formats", and of
`src/include/replication/logicalproto.h`. No socket, file or clock.
"""

from dataclasses import dataclass
from enum import Enum


class ReplicaIdentity(Enum):
    """What the server sends of the old row: `pg_class.relreplident`."""

    DEFAULT = "d"
    NOTHING = "n"
    FULL = "f"
    INDEX = "i"


@dataclass(frozen=True, slots=True)
class RelationColumn:
    name: str
    type_oid: int
    typmod: int
    key: bool


@dataclass(frozen=True, slots=True)
class Relation:
    """`R`: a table as it is from here on; `xid` only inside a streamed transaction."""

    oid: int
    namespace: str
    name: str
    replica_identity: ReplicaIdentity
    columns: tuple[RelationColumn, ...]
    xid: int | None = None
