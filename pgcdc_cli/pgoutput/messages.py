"""pgoutput's messages, one type each: all 19 kinds of protocol 1 to 4.

Names and fields are those of the PostgreSQL manual, "Logical Replication Message Formats", and of
`src/include/replication/logicalproto.h`. Times are microseconds since 1970-01-01 UTC. The `xid` of a change
is given only inside a streamed transaction, where it is the subtransaction's. `decode.py` reads them.
"""

from dataclasses import dataclass
from enum import IntEnum
from typing import TypeAlias

from pgcdc_cli.changes.origin import Origin
from pgcdc_cli.changes.table import ReplicaIdentity
from pgcdc_cli.lsn import Lsn


class Tag(IntEnum):
    """A message's first byte: `LogicalRepMsgType`."""

    BEGIN = ord("B")
    COMMIT = ord("C")
    ORIGIN = ord("O")
    RELATION = ord("R")
    TYPE = ord("Y")
    INSERT = ord("I")
    UPDATE = ord("U")
    DELETE = ord("D")
    TRUNCATE = ord("T")
    MESSAGE = ord("M")
    STREAM_START = ord("S")
    STREAM_STOP = ord("E")
    STREAM_COMMIT = ord("c")
    STREAM_ABORT = ord("A")
    BEGIN_PREPARE = ord("b")
    PREPARE = ord("P")
    COMMIT_PREPARED = ord("K")
    ROLLBACK_PREPARED = ord("r")
    STREAM_PREPARE = ord("p")

    @property
    def title(self) -> str:
        """The manual's name: `Stream Start`."""
        return self.name.replace("_", " ").title()


@dataclass(frozen=True, slots=True)
class Begin:
    """`B`: a whole transaction follows. `final_lsn` is the commit record's."""

    final_lsn: Lsn
    commit_time: int
    xid: int


@dataclass(frozen=True, slots=True)
class Commit:
    """`C`: `commit_lsn` is where the commit record begins, `end_lsn` where the transaction ends."""

    commit_lsn: Lsn
    end_lsn: Lsn
    commit_time: int


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


@dataclass(frozen=True, slots=True)
class Type:
    """`Y`: the name of a type that is not built in."""

    oid: int
    namespace: str
    name: str
    xid: int | None = None


NULL, UNCHANGED_TOAST, TEXT, BINARY = b"nutb"
"""The kind of a value in a tuple: the byte before it."""


@dataclass(frozen=True, slots=True)
class Null:
    """`n`: SQL NULL."""


@dataclass(frozen=True, slots=True)
class UnchangedToast:
    """`u`: a value stored out of line that the update left alone; the server does not send it."""


@dataclass(frozen=True, slots=True)
class Text:
    """`t`: the type's output format."""

    data: bytes


@dataclass(frozen=True, slots=True)
class Binary:
    """`b`: the type's send format."""

    data: bytes


TupleValue: TypeAlias = Null | UnchangedToast | Text | Binary


@dataclass(frozen=True, slots=True)
class FullTuple:
    """`N` or `O`: a value for each column."""

    values: tuple[TupleValue, ...]


@dataclass(frozen=True, slots=True)
class KeyTuple:
    """`K`: the replica identity's values; the other columns' are Null and mean nothing."""

    values: tuple[Null | Text | Binary, ...]


@dataclass(frozen=True, slots=True)
class Insert:
    """`I`: a new row. It, too, can carry unchanged TOAST (a row filter made it of an update)."""

    relation_oid: int
    new: FullTuple
    xid: int | None = None


@dataclass(frozen=True, slots=True)
class Update:
    """`U`: `old` is the key where that changed, the whole row under replica identity FULL, else None."""

    relation_oid: int
    old: KeyTuple | FullTuple | None
    new: FullTuple
    xid: int | None = None


@dataclass(frozen=True, slots=True)
class Delete:
    """`D`: `old` is the key, or the whole row under replica identity FULL."""

    relation_oid: int
    old: KeyTuple | FullTuple
    xid: int | None = None


@dataclass(frozen=True, slots=True)
class Truncate:
    """`T`: all tables of one TRUNCATE."""

    relation_oids: tuple[int, ...]
    cascade: bool
    restart_identity: bool
    xid: int | None = None


@dataclass(frozen=True, slots=True)
class LogicalMessage:
    """`M`: what `pg_logical_emit_message` wrote."""

    transactional: bool
    lsn: Lsn
    prefix: str
    content: bytes
    xid: int | None = None


@dataclass(frozen=True, slots=True)
class StreamStart:
    """`S`: a block of a transaction that is not committed yet."""

    xid: int
    first_segment: bool


@dataclass(frozen=True, slots=True)
class StreamStop:
    """`E`: the end of such a block."""


@dataclass(frozen=True, slots=True)
class StreamCommit:
    """`c`: a streamed transaction committed."""

    xid: int
    commit_lsn: Lsn
    end_lsn: Lsn
    commit_time: int


@dataclass(frozen=True, slots=True)
class StreamAbort:
    """`A`: `subxid` was rolled back; all of the transaction where `subxid` is `xid`.

    LSN and time come only with protocol 4 and parallel streaming.
    """

    xid: int
    subxid: int
    abort_lsn: Lsn | None = None
    abort_time: int | None = None


@dataclass(frozen=True, slots=True)
class BeginPrepare:
    """`b`: a whole transaction follows that is prepared, not committed."""

    prepare_lsn: Lsn
    end_lsn: Lsn
    prepare_time: int
    xid: int
    gid: str


@dataclass(frozen=True, slots=True)
class Prepare:
    """`P`: PREPARE TRANSACTION: its changes end here, whether it commits is open."""

    prepare_lsn: Lsn
    end_lsn: Lsn
    prepare_time: int
    xid: int
    gid: str


@dataclass(frozen=True, slots=True)
class CommitPrepared:
    """`K`: a prepared transaction committed."""

    commit_lsn: Lsn
    end_lsn: Lsn
    commit_time: int
    xid: int
    gid: str


@dataclass(frozen=True, slots=True)
class RollbackPrepared:
    """`r`: a prepared transaction was rolled back."""

    prepare_end_lsn: Lsn
    rollback_end_lsn: Lsn
    prepare_time: int
    rollback_time: int
    xid: int
    gid: str


@dataclass(frozen=True, slots=True)
class StreamPrepare:
    """`p`: a streamed transaction was prepared."""

    prepare_lsn: Lsn
    end_lsn: Lsn
    prepare_time: int
    xid: int
    gid: str


Message: TypeAlias = (
    Begin
    | Commit
    | Origin
    | Relation
    | Type
    | Insert
    | Update
    | Delete
    | Truncate
    | LogicalMessage
    | StreamStart
    | StreamStop
    | StreamCommit
    | StreamAbort
    | BeginPrepare
    | Prepare
    | CommitPrepared
    | RollbackPrepared
    | StreamPrepare
)
