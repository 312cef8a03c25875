"""pgoutput's messages, a type for each of the 19 kinds of protocol 1 to 4; `decode.py` decodes them.

Names and fields are those of the PostgreSQL manual, "Logical Replication Message Formats", and of
`src/include/replication/logicalproto.h`. Times are microseconds since 1970-01-01 UTC. A change has an `xid`
only inside of a streamed transaction, where it is the subtransaction's.
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
    """`B`: a committed transaction follows. `final_lsn` is the LSN of its commit record."""

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
"""The kinds of a value in a tuple: the byte before it."""


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
    """`K`: the values of the replica identity; those of other columns are Null and meaningless."""

    values: tuple[Null | Text | Binary, ...]


@dataclass(frozen=True, slots=True)
class Insert:
    """`I`: a new row. It can have unchanged TOAST, too, if a row filter turned an update into it."""

    relation_oid: int
    new: FullTuple
    xid: int | None = None


@dataclass(frozen=True, slots=True)
class Update:
    """`U`: `old` is the key if that changed, the whole row under replica identity FULL, else None."""

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
    """`M`: a logical decoding message, written by `pg_logical_emit_message`."""

    transactional: bool
    lsn: Lsn
    prefix: str
    content: bytes
    xid: int | None = None


@dataclass(frozen=True, slots=True)
class StreamStart:
    """`S`: a block of a streamed transaction begins, which isn't committed yet."""

    xid: int
    first_segment: bool


@dataclass(frozen=True, slots=True)
class StreamStop:
    """`E`: the block of a streamed transaction ends."""


@dataclass(frozen=True, slots=True)
class StreamCommit:
    """`c`: a streamed transaction committed."""

    xid: int
    commit_lsn: Lsn
    end_lsn: Lsn
    commit_time: int


@dataclass(frozen=True, slots=True)
class StreamAbort:
    """`A`: the subtransaction `subxid` was rolled back, or the whole transaction if `subxid` is `xid`.

    LSN and time come only with protocol 4 and parallel streaming.
    """

    xid: int
    subxid: int
    abort_lsn: Lsn | None = None
    abort_time: int | None = None


@dataclass(frozen=True, slots=True)
class BeginPrepare:
    """`b`: a prepared transaction follows, which isn't committed yet."""

    prepare_lsn: Lsn
    end_lsn: Lsn
    prepare_time: int
    xid: int
    gid: str


@dataclass(frozen=True, slots=True)
class Prepare:
    """`P`: the changes of a prepared transaction end; it may still commit or roll back."""

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
