"""A table of sample messages for encoder and decoder: every kind, inside and outside of a stream."""

from dataclasses import dataclass, field, replace

from pgcdc_cli.changes.origin import Origin
from pgcdc_cli.lsn import Lsn
from pgcdc_cli.pgoutput import messages as m
from pgcdc_cli.pgoutput.messages import ReplicaIdentity

TIME = 1_767_323_045_678_901
FINAL, END = Lsn.parse("16/B374D848"), Lsn.parse("16/B374D878")
PREPARED = (FINAL, END, TIME, 771, "gid-ü")
VALUES = (
    m.Text(b"1"),
    m.Null(),
    m.UnchangedToast(),
    m.Text(b""),
    m.Text("naïve\0".encode()),
    m.Binary(b"\0\1"),
)
COLUMNS = (m.RelationColumn("id", 20, -1, True), m.RelationColumn("größe", 1700, 786438, False))
FULL, KEY = m.FullTuple(VALUES), m.KeyTuple((m.Text(b"1"), m.Null(), m.Binary(b"x")))


@dataclass(frozen=True)
class Sample:
    message: m.Message
    options: dict[str, bool] = field(default_factory=dict)

    @property
    def id(self):
        return "-".join([type(self.message).__name__, *self.options])


_CHANGES = [
    m.Relation(16385, "public", "orders", ReplicaIdentity.DEFAULT, COLUMNS),
    m.Relation(2**32 - 1, "pg_catalog", "ünï", ReplicaIdentity.FULL, ()),
    m.Type(16390, "shop", "mood"),
    m.Insert(16385, FULL),
    m.Insert(16385, m.FullTuple(())),
    m.Update(16385, None, FULL),
    m.Update(16385, KEY, FULL),
    m.Update(16385, FULL, m.FullTuple(())),
    m.Delete(16385, KEY),
    m.Delete(16385, FULL),
    m.Truncate((16385, 16386), cascade=True, restart_identity=False),
    m.Truncate((), cascade=False, restart_identity=True),
    m.LogicalMessage(True, FINAL, "prefix", b"\xff\0content"),
    m.LogicalMessage(False, FINAL, "", b""),
]
_OTHERS = [
    m.Begin(FINAL, TIME, 771),
    m.Begin(Lsn(2**63 - 1), -(2**62), 2**32 - 1),
    m.Commit(FINAL, END, TIME),
    Origin(FINAL, "other server"),
    m.StreamStart(771, True),
    m.StreamStart(771, False),
    m.StreamStop(),
    m.StreamCommit(771, FINAL, END, TIME),
    m.StreamAbort(771, 772),
    m.BeginPrepare(*PREPARED),
    m.Prepare(*PREPARED),
    m.CommitPrepared(*PREPARED),
    m.RollbackPrepared(FINAL, END, TIME, TIME + 1, 771, ""),
    m.StreamPrepare(*PREPARED),
]
SAMPLES = [
    *map(Sample, _CHANGES + _OTHERS),
    *(Sample(replace(message, xid=772), {"in_stream": True}) for message in _CHANGES),
    Sample(m.StreamAbort(771, 771, FINAL, TIME), {"streaming_parallel": True}),
]
