"""Transaction edges: where whole transactions end, and what must be known to go on from there.

A checkpoint is made of this, so it imports neither NumPy nor PyArrow: a command that only reads checkpoints
starts without them.
"""

from dataclasses import KW_ONLY, dataclass, field, replace
from typing import Literal, NamedTuple

from pgcdc_cli.lsn import Lsn


@dataclass(frozen=True, slots=True)
class Prepared:
    """A prepared transaction that is neither committed nor rolled back yet.

    Its messages are in the spool at `path` (relative, of `size` bytes with this CRC-32). The spool must be
    durable before the position of the prepare is confirmed to the server. `path` is None if the changes were
    written at the prepare.
    """

    xid: int
    gid: str
    prepare_lsn: Lsn
    path: str | None = None
    size: int = 0
    crc32: int = 0


class TableRead(NamedTuple):
    """A table, by OID, whose snapshot rows are complete as of a position."""

    oid: int
    position: Lsn


RowKey = tuple[str, ...]
ResnapshotStage = Literal["reading", "moved", "done"]


@dataclass(frozen=True, slots=True)
class TableResnapshot:
    """The progress of reading a table again while it is streamed; `table` is its name, for people.

    `rows` counts the rows read so far, in the order of `key`, up to the one with the key `after`, None before
    the first. `moved` are new keys of rows that the stream brought without all of their values (unchanged
    TOAST): these rows must be read once more. At `caught_up_at` the stream has caught up with the rows read
    last. In stage "moved" only the `moved` rows are left to read. `order` tells whether the key is still
    compared as it was when `after` was read; "" if that isn't known.
    """

    oid: int
    table: str
    key: RowKey
    rows: int = 0
    after: RowKey | None = None
    moved: tuple[RowKey, ...] = ()
    caught_up_at: Lsn = Lsn(0)  # noqa: RUF009 - an int, immutable
    stage: ResnapshotStage = "reading"
    order: str = ""

    def anew(self, key: RowKey) -> "TableResnapshot":
        """Start over from the first row, in the order of this key."""
        return replace(self, key=key, after=None, moved=(), stage="reading")


@dataclass(frozen=True, slots=True)
class Edge:
    """A transaction edge: everything before it belongs to whole transactions.

    `end_lsn` and `commit_lsn` are those of the last transaction before the edge. Without one, as at the end
    of a snapshot or a prepare, they are the edge's own position and 0. `transactions` counts the transactions
    that ended in the slice, empty ones included. `commit_ts` is the commit time of the last one, 0 if there
    were only non-transactional messages. `prepared` are the transactions that are prepared at the edge,
    `resnapshots` the progress of tables that are read while they are streamed; None for either means
    unchanged. `read` is the snapshot table that ends here, so that another run can go on with the next one.
    """

    end_lsn: Lsn
    _: KW_ONLY
    commit_lsn: Lsn = Lsn(0)  # noqa: RUF009 - an int, immutable
    transactions: int = 0
    commit_ts: int = field(default=0, compare=False)
    prepared: tuple[Prepared, ...] | None = None
    read: TableRead | None = None
    resnapshots: tuple[TableResnapshot, ...] | None = None


class LastCommit(NamedTuple):
    """The end LSN and commit time of the last transaction before a position.

    `commit_ts` is in microseconds since 1970-01-01 UTC, 0 if unknown.
    """

    end_lsn: Lsn
    commit_ts: int

    @classmethod
    def after(cls, before: "LastCommit | None", edge: Edge) -> "LastCommit":
        """Advance to an edge; one without a commit time (a non-transactional message) keeps the last one."""
        return cls(edge.end_lsn, edge.commit_ts or (0 if before is None else before.commit_ts))


@dataclass(slots=True)
class LastEdge:
    """The last transaction edge that a sink took.

    - `lsn`: the end of the last commit, or a later keepalive's position.
    - `last_commit`: the last transaction taken, None before the first.
    - `prepared`: the transactions that are prepared, but not ended, at the edge.
    - `read`: the tables whose snapshot rows are written, until `lsn` reaches the last one's position.
    - `resnapshots`: the progress of tables that are read while they are streamed.
    """

    lsn: Lsn = Lsn(0)  # noqa: RUF009 - an int, immutable
    last_commit: LastCommit | None = None
    prepared: tuple[Prepared, ...] = ()
    read: tuple[TableRead, ...] = ()
    resnapshots: tuple[TableResnapshot, ...] = ()

    @property
    def some_tables_are_ahead(self) -> bool:
        """Whether some tables are as of a later position: then the files match no state of the database."""
        return bool(self.read) or any(one.caught_up_at > self.lsn for one in self.resnapshots)

    def advance(self, lsn: Lsn) -> None:
        """Advance to a position, never back."""
        self.lsn = max(self.lsn, lsn)
        if all(one.position <= self.lsn for one in self.read):
            self.read = ()

    def reach(self, edge: Edge) -> None:
        """Advance to the edge of a slice."""
        if edge.read is not None:
            self.read += (edge.read,)
        self.advance(edge.end_lsn)
        if edge.commit_lsn:
            self.last_commit = LastCommit.after(self.last_commit, edge)
        if edge.prepared is not None:
            self.prepared = edge.prepared
        if edge.resnapshots is not None:
            self.resnapshots = edge.resnapshots
