"""Two small tables and transactions, for tests that build their messages by hand."""

from pgoutput_encoder import frame
from pgoutput_pieces import GID

from pgcdc_cli.changes.table import ReplicaIdentity
from pgcdc_cli.frames import XLOGDATA_HEADER, Frames
from pgcdc_cli.lsn import Lsn
from pgcdc_cli.pgoutput import messages as m
from pgcdc_cli.pgoutput.assemble import Assembler
from pgcdc_cli.pgoutput.message_batch import DecodeLimits, MessageBuffer
from pgcdc_cli.pgoutput.relations import Tables

TIME = 1_700_000_000_000_000
COLUMNS = (m.RelationColumn("id", 20, -1, True), m.RelationColumn("doc", 25, -1, False))
ORDERS = m.Relation(16385, "public", "orders", ReplicaIdentity.DEFAULT, COLUMNS)
NARROW = m.Relation(16385, "public", "orders", ReplicaIdentity.DEFAULT, COLUMNS[:1])
PARTS = m.Relation(16386, "public", "parts", ReplicaIdentity.FULL, COLUMNS)
XID = 7
END = (Lsn(1000), Lsn(1010), TIME)
BEGIN, COMMIT = m.Begin(Lsn(1000), TIME, XID), m.Commit(*END)


def full(*values):
    return m.FullTuple(tuple(m.Null() if value is None else m.Text(value) for value in values))


def insert(*values, oid=16385):
    return m.Insert(oid, full(*values))


def whole(lsns, *messages, xid=8):
    """A transaction that comes whole; `lsns` are those of its commit and of its end."""
    commit, end = map(Lsn, lsns)
    return m.Begin(commit, TIME, xid), *messages, m.Commit(commit, end, TIME)


def in_stream(message, xid=XID):
    """A message inside of a block, with an xid after its tag."""
    data = frame(message)[XLOGDATA_HEADER:]
    return data[:1] + xid.to_bytes(4) + data[1:]


def block(*messages, first=True, xid=XID):
    return [m.StreamStart(xid, first), *messages, m.StreamStop()]


def frames_of(*messages, lsn=500):
    return Frames.of([frame(message, lsn + number) for number, message in enumerate(messages)])


PREPARE = (Lsn(990), Lsn(995), TIME, XID, GID)
ROWS = (ORDERS, insert(b"1", b"a"))
PREPARED = (m.BeginPrepare(*PREPARE), *ROWS, m.Prepare(*PREPARE))
COMMITTED = m.CommitPrepared(*END, XID, GID)
ROLLED_BACK = m.RollbackPrepared(Lsn(995), Lsn(1010), TIME, TIME, XID, GID)
"""A prepared transaction, and its end."""


class FrameAssembler(Assembler):
    """The assembler over whole frames, buffer by buffer."""

    def __init__(
        self, describe, *, skip_before, until=None, max_transactions=None, boundaries=False, binary=False
    ):
        limits = DecodeLimits(skip_before, until, max_transactions)
        super().__init__(Tables(describe, binary=binary), limits, boundaries=boundaries)

    def assemble(self, frames):
        found = []
        for buffer in [] if self.ended else MessageBuffer.join(frames):
            found += super().assemble(buffer)
        return found
