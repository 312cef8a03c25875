"""A plain reference for transactions that come in pieces: a list of messages for each.

When such a transaction ends, it is whole, and `pgoutput_reference` has the rules.
"""

from dataclasses import dataclass, field

from pgoutput_reference import Plain

from pgcdc_cli.errors import ErrorKind, PgcdcError
from pgcdc_cli.frames import XLOGDATA_HEADER
from pgcdc_cli.lsn import Lsn
from pgcdc_cli.pgoutput import messages as m
from pgcdc_cli.pgoutput.decode import decode

LONG_ABORT = 25
CONTROL, IN_BLOCK, ROWS, CHANGES = b"SEcAbPKrp", b"ORYIUDTM", b"IUD", b"IUDTM"


@dataclass
class Definition:
    """A Relation message without an xid; `order` is its number among all of them."""

    order: int
    oid: int
    data: bytes


@dataclass
class Item:
    """A message without its xid, and the definitions from outside of its transaction that it needs."""

    data: bytes
    lsn: Lsn
    xid: int | None
    defined: Definition | None
    lent: list


@dataclass
class Pending:
    """A transaction that isn't committed yet; `dropped`: it is prepared, so its messages are dropped.

    `undecided`: a subtransaction was rolled back that may have logical messages.
    """

    xid: int
    streamed: bool
    dropped: bool
    undecided: bool = False
    begin: m.BeginPrepare | None = None
    items: list = field(default_factory=list)

    def definitions(self):
        return {item.defined.oid: item.defined for item in self.items if item.defined}


def reference_of_pieces(frames, *, skip_before=0):
    """Do what `PgoutputDecoder` does, one message at a time; a Begin at the end waits for what follows.

    Raises PgcdcError. In the result, `prepared` are the names of the transactions prepared at the end,
    `pending` says whether something is spooled.
    """
    pieces = Pieces(skip_before)
    held = bool(frames) and frames[-1][XLOGDATA_HEADER:].startswith(b"B")
    for frame in frames[:-1] if held else frames:
        pieces.take(frame[XLOGDATA_HEADER:], Lsn(int.from_bytes(frame[1:9])))
    preparing = pieces.block is not None and not pieces.block.streamed
    found = pieces.plain.found
    found.in_transaction = held or preparing or pieces.plain.begin is not None
    found.prepared = set(pieces.prepared)
    found.pending = bool(pieces.open or pieces.prepared or pieces.unrecorded or pieces.block)
    return found


class Pieces:
    def __init__(self, skip_before):
        self.skip_before = skip_before
        self.plain = Plain(skip_before, None, None, True, False)
        self.open = {}
        self.block = None
        self.prepared, self.unrecorded = {}, {}
        self.outside = {}
        self.count = 0

    def require(self, condition):
        self.plain.require(condition)

    def outside_of_all(self):
        self.require(self.block is None and self.plain.begin is None)

    def take(self, data, lsn):
        if data[0] in CONTROL:
            message = decode(data, streaming_parallel=len(data) == LONG_ABORT)
            self.control(message)
        elif self.block is not None:
            self.arrive(data, lsn)
        else:
            self.learn(self.definition(data))
            self.plain.take(decode(data), lsn)

    def definition(self, data):
        if not data.startswith(b"R"):
            return None
        self.count += 1
        return Definition(self.count, int.from_bytes(data[1:5]), data)

    def learn(self, definition):
        """Remember the newest definition of a table, which applies outside of pending transactions."""
        if definition is not None:
            known = self.outside.get(definition.oid)
            if known is None or known.order < definition.order:
                self.outside[definition.oid] = definition

    def arrive(self, data, lsn):
        self.require(data[0] in IN_BLOCK and len(data) >= 5)
        xid = None
        if self.block.streamed and not data.startswith(b"O"):
            xid = int.from_bytes(data[1:5])
            self.require(xid != 0)
            data = data[:1] + data[5:]
        oids = {int.from_bytes(data[1:5])} if data[0] in ROWS else set()
        if data.startswith(b"T"):
            oids = set(decode(data).relation_oids)
        defined = self.block.definitions()
        lent = [self.outside[oid] for oid in oids if oid in self.outside and oid not in defined]
        self.block.items.append(Item(data, lsn, xid, self.definition(data), lent))

    def control(self, message):  # noqa: C901  # one case for each kind of message
        match message:
            case m.StreamStop():
                self.require(self.block is not None and self.block.streamed)
                self.block = None
                return
            case m.Prepare() if self.block is not None:
                begin = self.block.begin
                self.require(begin is not None and name(begin) == name(message))
                self.require(begin.prepare_lsn == message.prepare_lsn)
                pending, self.block = self.block, None
                self.prepare(message, pending)
                return
        self.outside_of_all()
        match message:
            case m.StreamStart():
                self.require(message.xid != 0 and message.first_segment == (message.xid not in self.open))
                new = Pending(message.xid, streamed=True, dropped=self.is_prepared(message.xid))
                self.block = self.open.setdefault(message.xid, new)
                self.require(not self.block.undecided)
            case m.StreamAbort():
                self.abort(message)
            case m.StreamCommit():
                self.require(message.xid in self.open and not self.open[message.xid].dropped)
                self.require(not self.open[message.xid].undecided)
                self.end(self.open.pop(message.xid), message)
            case m.StreamPrepare():
                self.require(message.xid in self.open)
                pending = self.open.pop(message.xid)
                self.require(not pending.undecided)
                pending.dropped = self.comes_again(message)
                self.prepare(message, pending)
            case m.BeginPrepare():
                self.block = Pending(message.xid, streamed=False, dropped=self.comes_again(message))
                self.block.begin = message
            case m.Prepare():
                self.prepare(message, Pending(message.xid, streamed=False, dropped=self.comes_again(message)))
            case m.CommitPrepared():
                self.commit_prepared(message)
            case m.RollbackPrepared():
                self.open.pop(message.xid, None)
                if self.unrecorded.pop(name(message), None) is None and self.prepared.pop(
                    name(message), None
                ):
                    self.edge(message.rollback_end_lsn)

    def is_prepared(self, xid):
        return any(known == xid for known, _ in [*self.prepared, *self.unrecorded])

    def comes_again(self, message):
        again = name(message) in self.prepared or name(message) in self.unrecorded
        self.require(message.xid not in self.open and (again or not self.is_prepared(message.xid)))
        return again

    def abort(self, message):
        pending = self.open.get(message.xid)
        if pending is not None and message.subxid == message.xid:
            del self.open[message.xid]
        elif pending is not None and not pending.dropped and any(_is_message(item) for item in pending.items):
            pending.undecided = True
        elif pending is not None:
            places = [place for place, item in enumerate(pending.items) if item.xid == message.subxid]
            del pending.items[min(places, default=len(pending.items)) :]

    def prepare(self, message, pending):
        self.share(pending)
        if pending.dropped:
            return
        if message.prepare_lsn < self.skip_before:
            self.unrecorded[name(message)] = pending
        else:
            self.prepared[name(message)] = pending
            self.edge(message.end_lsn)

    def share(self, pending):
        for definition in pending.definitions().values():
            self.learn(definition)
            self.mean(self.outside[definition.oid])

    def mean(self, definition):
        self.plain.take(decode(definition.data), Lsn(0))

    def edge(self, end_lsn):
        self.plain.found.last_edge = (Lsn(0), end_lsn)

    def commit_prepared(self, message):
        self.open.pop(message.xid, None)
        pending = self.prepared.pop(name(message), None) or self.unrecorded.pop(name(message), None)
        if message.commit_lsn < self.skip_before:
            self.edge(message.end_lsn)
        elif pending is None:
            raise PgcdcError(ErrorKind.GAP, "never prepared")
        else:
            self.end(pending, message)

    def end(self, pending, message):
        changes = [item for item in pending.items if item.data[0] in CHANGES]
        if changes:
            begin = m.Begin(message.commit_lsn, message.commit_time, pending.xid)
            self.plain.take(begin, changes[0].lsn)
        for item in pending.items:
            for definition in item.lent:
                self.mean(definition)
            self.plain.take(decode(item.data), item.lsn)
        if changes:
            commit = m.Commit(message.commit_lsn, message.end_lsn, message.commit_time)
            self.plain.take(commit, message.end_lsn)
        else:
            self.edge(message.end_lsn)
        self.share(pending)
        for definition in [one for item in pending.items for one in item.lent]:
            self.mean(self.outside[definition.oid])


def name(message):
    return message.xid, message.gid


def _is_message(item):
    return item.data.startswith(b"M")
