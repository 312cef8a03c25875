"""Spooled transactions: how messages get into a spool, and at its commit from there to the assembler.

A spool has messages in protocol 1's form, whatever they came in, so that they can be decoded as if the
transaction had been sent whole. It may be read on another connection, so it has the definitions that its
rows need, wherever they came.

For that the newest relation message of every table is remembered, inside and outside of such transactions.
The server sends a table's definition once, and again after a change. In a streamed transaction it does so for
that one alone: its definitions count outside of it from its commit on, unless newer ones came since
(`get_schema_sent_in_streamed_txn`, `cleanup_rel_sync_cache` in `replication/pgoutput/pgoutput.c`). Those of
one that is prepared do so from its Stream Prepare on: PostgreSQL 15.20 doesn't send them again, 16.14 and
18.4 do.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import chain
from typing import NamedTuple

import numpy as np

from pgcdc_cli.changes.slice import Edge, Prepared, Slice
from pgcdc_cli.changes.spool import PADDING, Spool, SpoolChunk
from pgcdc_cli.frames import POSTGRES_EPOCH
from pgcdc_cli.large_copies import joined
from pgcdc_cli.lsn import Lsn
from pgcdc_cli.pgoutput.assemble import Assembler
from pgcdc_cli.pgoutput.decode import BEGIN, COMMIT
from pgcdc_cli.pgoutput.message_batch import IS_ROW, MESSAGE_BYTES, SMALLEST_BATCH, MessageBuffer, tag_mask
from pgcdc_cli.pgoutput.messages import Tag, Truncate
from pgcdc_cli.types import kernels
from pgcdc_cli.types.database_text import STRICT, DatabaseText
from pgcdc_cli.types.kernels import Int64s

_IS_CHANGE = tag_mask(Tag.INSERT, Tag.UPDATE, Tag.DELETE, Tag.TRUNCATE, Tag.MESSAGE)
_HAS_NO_XID = tag_mask(Tag.ORIGIN)
_XID_SIZE = 4


def chunk_of(buffer: MessageBuffer) -> SpoolChunk:
    """Copy messages that have no xid of their own."""
    return _packed(buffer, buffer.starts)


def chunk_of_block(buffer: MessageBuffer) -> SpoolChunk:
    """Copy messages of a streamed block, without the xid after each one's tag."""
    return _packed(buffer, buffer.starts + np.where(_HAS_NO_XID[buffer.tags], 0, _XID_SIZE))


def _packed(buffer: MessageBuffer, starts: Int64s) -> SpoolChunk:
    """Copy messages from these positions on, each with its tag as the first byte."""
    sizes = buffer.ends - starts
    body = kernels.all_bytes(buffer.pack(starts, buffer.ends))
    # Nobody else has this copy yet.
    body[np.cumsum(sizes) - sizes] = buffer.tags
    return SpoolChunk(joined([body.data, PADDING]), sizes, buffer.lsn)


def subtransaction_of(buffer: MessageBuffer) -> Int64s:
    """Give the xid of each of a streamed block's messages; -1 for those that have none."""
    return np.where(_HAS_NO_XID[buffer.tags], -1, buffer.int32)


def _subtransactions(buffer: MessageBuffer) -> dict[int, int]:
    """Give the xids of a streamed block's messages, and the index of the first one of each, in order."""
    found, firsts = np.unique(subtransaction_of(buffer), return_index=True)
    order = np.argsort(firsts)
    return dict(zip(found[order].tolist(), firsts[order].tolist(), strict=True))


class Definition(NamedTuple):
    """A relation message without its xid.

    `order` counts all of them as they came; `ordinal` is that among the messages that it came with.
    """

    order: int
    oid: int
    ordinal: int
    message: bytes


def _definitions(buffer: MessageBuffer, order: int) -> list[Definition]:
    """Find the relation messages; the first one gets this order, those after it the next ones."""
    indexes, oids = np.flatnonzero(buffer.tags == Tag.RELATION).tolist(), buffer.int32
    return [
        Definition(order + i, int(oids[index]), index, buffer.message(index))
        for i, index in enumerate(indexes)
    ]


class _SpoolDefinitions:
    """Relation messages of one spool: all of each table, since the last of them may be cut off."""

    def __init__(self) -> None:
        self._of: dict[int, list[Definition]] = {}

    def add(self, some: Iterable[Definition], before: int) -> None:
        """Take over those among messages that come after so many others."""
        for one in some:
            self._of.setdefault(one.oid, []).append(one._replace(ordinal=before + one.ordinal))

    def cut(self, count: int) -> None:
        """Keep those among the first `count` messages only."""
        for oid, versions in list(self._of.items()):
            while versions and versions[-1].ordinal >= count:
                versions.pop()
            if not versions:
                del self._of[oid]

    def order(self, oid: int) -> int:
        """Give the order of a table's last one; -1 if it has none."""
        return self._of[oid][-1].order if oid in self._of else -1

    def last(self) -> dict[int, Definition]:
        """Give the last one of each table, by its OID."""
        return {oid: versions[-1] for oid, versions in self._of.items()}


class SpooledTransaction:
    """A transaction that is not committed yet.

    `defined` came in it, `lent` was put into its spool from elsewhere. Without a spool it is known already,
    and what comes is dropped. `reopened`: its spool is of an earlier connection.
    """

    def __init__(self, xid: int, spool: Spool | None, *, streamed: bool, reopened: bool = False) -> None:
        self.xid = xid
        self.spool = spool
        self.streamed = streamed
        self.defined, self.lent = _SpoolDefinitions(), _SpoolDefinitions()
        self._reopened = reopened
        self._count = 0
        self._first: dict[int, int] = {}

    def lend(self, chunk: SpoolChunk, known: Sequence[Definition]) -> None:
        """Take over definitions that came elsewhere, for the messages that come next."""
        self.lent.add(known, self._count)
        self._append(chunk)

    def append(
        self, chunk: SpoolChunk, defined: Sequence[Definition], first: Mapping[int, int] | None = None
    ) -> None:
        """Take over messages, the definitions among them, and the index of each subtransaction's first."""
        self.defined.add(defined, self._count)
        for xid, index in (first or {}).items():
            self._first.setdefault(xid, self._count + index)
        self._append(chunk)

    def _append(self, chunk: SpoolChunk) -> None:
        self._count += len(chunk)
        if self.spool is not None:
            self.spool.append(chunk)

    def abort(self, subxid: int) -> None:
        """Cut off a subtransaction that was rolled back: all since its first message is of it.

        That is so whatever xid it came under: a logical message always comes under the top-level one, and a
        released subtransaction is rolled back with its parent. The definitions in what is cut off are sent
        again (`pgoutput_stream_abort`).
        """
        first = self._first.get(subxid, self._count)
        while self._first and next(reversed(self._first.values())) >= first:
            self._first.popitem()
        if first < self._count and self.spool is not None:
            self.spool.cut(first)
        self._count = min(first, self._count)
        self.defined.cut(self._count)
        self.lent.cut(self._count)

    def buffers(self, text: DatabaseText, batch: Callable[[], int]) -> Iterator[MessageBuffer]:
        """Give the messages back, as many at a time as `batch` says, if a chunk has no more."""
        for chunk in () if self.spool is None else _joined(self.spool.chunks(), batch):
            buffer = MessageBuffer.of(chunk, text)
            if self._reopened:
                self.defined.add((one._replace(order=0) for one in _definitions(buffer, 0)), 0)
            yield buffer

    def remove(self) -> None:
        if self.spool is not None:
            self.spool.remove()


@dataclass(frozen=True, slots=True)
class TransactionEnd:
    """Where and when a transaction ended, as a Commit would say; `time` in microseconds since 1970."""

    commit_lsn: Lsn
    end_lsn: Lsn
    time: int
    gid: str | None = None


class Replay:
    """Gives the assembler what was spooled, and spools the definitions that it needs.

    `buffer` are the messages of a spool that are being decoded, `batch` how many may be at once; `text` says
    how names are written.
    """

    def __init__(self, assembler: Assembler, text: DatabaseText) -> None:
        self.assembler = assembler
        self._text = text
        self.buffer: MessageBuffer | None = None
        self.batch = SMALLEST_BATCH
        self._count = 0
        self._outside: dict[int, Definition] = {}

    def learn(self, buffer: MessageBuffer) -> None:
        """Remember the definitions among messages that stand outside of all that is spooled."""
        self._learn(self._numbered(buffer))

    def spool(self, buffer: MessageBuffer, transaction: SpooledTransaction) -> None:
        """Take messages of a transaction's block, and what they need that came outside of it."""
        chunk = chunk_of_block(buffer) if transaction.streamed else chunk_of(buffer)
        plain = MessageBuffer.of(chunk, buffer.text)
        self._complete(plain, transaction)
        first = _subtransactions(buffer) if transaction.streamed else {}
        transaction.append(chunk, self._numbered(plain), first)

    def _complete(self, buffer: MessageBuffer, transaction: SpooledTransaction) -> None:
        """Give a spool the definitions that its next messages need and that came outside of it."""
        own = {one.oid: one.ordinal for one in reversed(_definitions(buffer, 0))}
        needed = {oid for oid, index in _tables(buffer).items() if index < own.get(oid, len(buffer))}
        oids = [oid for oid in sorted(needed & self._outside.keys()) if self._is_missing(oid, transaction)]
        if oids:
            known = [self._outside[oid]._replace(ordinal=ordinal) for ordinal, oid in enumerate(oids)]
            transaction.lend(chunk_of(_relations(known, buffer.text)), known)

    def _is_missing(self, oid: int, transaction: SpooledTransaction) -> bool:
        """Say whether a spool has neither a definition of its own nor the newest from elsewhere."""
        newest = self._outside[oid].order
        return transaction.defined.order(oid) < 0 and transaction.lent.order(oid) != newest

    def share(self, transaction: SpooledTransaction) -> Iterator[Slice]:
        """Let a prepared transaction's definitions count outside of it, unless newer ones came since."""
        newer = self._learn_newer(transaction)
        if newer:
            yield from self.assembler.assemble(_relations(newer, self._text))

    def _learn_newer(self, transaction: SpooledTransaction) -> list[Definition]:
        newer = [one for oid, one in transaction.defined.last().items() if one.order > self._order(oid)]
        self._learn(newer)
        return newer

    def _order(self, oid: int) -> int:
        return self._outside[oid].order if oid in self._outside else -1

    def _learn(self, definitions: Iterable[Definition]) -> None:
        self._outside.update((one.oid, one) for one in definitions)

    def _numbered(self, buffer: MessageBuffer) -> list[Definition]:
        """Find the tables that these messages define, and count them."""
        found = _definitions(buffer, self._count + 1)
        self._count += len(found)
        return found

    def replay(
        self,
        transaction: SpooledTransaction,
        end: TransactionEnd,
        prepared: tuple[Prepared, ...] | None = None,
    ) -> Iterator[Slice]:
        """Decode a transaction from its spool; `prepared` are those that still are at its end.

        Without a change in it there is only an edge: in protocol 1, the server doesn't send it at all. Where
        the end position is reached it stops short, and nothing of the transaction was given.
        """
        buffers = _without_repeats(transaction.buffers(self._text, lambda: self.batch))
        first = _up_to_a_change(buffers)
        if first and _has_change(first[-1]):
            whole = chain(_begin(transaction.xid, end, first), first, buffers, _commit(end))
            for found in self._decode(whole):
                edge = None if found.edge is None else replace(found.edge, prepared=prepared)
                boundaries = tuple(replace(some, gid=end.gid) for some in found.boundaries)
                yield replace(found, edge=edge, boundaries=boundaries, gid=end.gid)
        else:
            yield from self._decode(first)
            yield Slice(Edge(Lsn(0), end.end_lsn, 0, prepared=prepared))
        if not self.assembler.ended:
            yield from self._restore(transaction)

    def _decode(self, buffers: Iterable[MessageBuffer]) -> Iterator[Slice]:
        for buffer in buffers:
            self.buffer = buffer
            yield from self.assembler.assemble(buffer)
            if self.assembler.ended:
                break
        self.buffer = None

    def _restore(self, transaction: SpooledTransaction) -> Iterator[Slice]:
        """Let the newest definitions count again, where some came while the transaction was spooled."""
        self._learn_newer(transaction)
        spooled = transaction.lent.last() | transaction.defined.last()
        newer = [self._outside[oid] for oid, one in spooled.items() if one.order < self._order(oid)]
        if newer:
            yield from self.assembler.assemble(_relations(newer, self._text))


def _joined(chunks: Iterable[SpoolChunk], batch: Callable[[], int]) -> Iterator[SpoolChunk]:
    """Put chunks together, as long as no more messages or bytes come of it than are best decoded at once."""
    some: list[SpoolChunk] = []
    messages = size = 0
    for chunk in chunks:
        messages, size = messages + len(chunk), size + len(chunk.data)
        if some and (messages > batch() or size > batch() * MESSAGE_BYTES):
            yield SpoolChunk.join(some)
            some, messages, size = [], len(chunk), len(chunk.data)
        some.append(chunk)
    if some:
        yield SpoolChunk.join(some)


def _tables(buffer: MessageBuffer) -> dict[int, int]:
    """Give the OIDs of the tables that rows and truncates are of, and the index of each one's first."""
    rows = np.flatnonzero(IS_ROW[buffer.tags])
    oids, firsts = np.unique(buffer.int32[rows], return_index=True)
    found: dict[int, int] = dict(zip(oids.tolist(), rows[firsts].tolist(), strict=True))
    for index in np.flatnonzero(buffer.tags == Tag.TRUNCATE).tolist():
        message = buffer.decode(index)
        assert isinstance(message, Truncate)
        found |= {oid: min(index, found.get(oid, index)) for oid in message.relation_oids}
    return found


def _without_repeats(buffers: Iterable[MessageBuffer]) -> Iterator[MessageBuffer]:
    """Leave out definitions that say again what the last one said.

    There is one after every savepoint that was rolled back, and the catalog would be asked for each; here all
    of them would be answered at one moment.
    """
    last: dict[int, bytes] = {}
    for buffer in buffers:
        kept = np.ones(len(buffer), np.bool_)
        for one in _definitions(buffer, 0):
            kept[one.ordinal] = last.get(one.oid) != one.message
            last[one.oid] = one.message
        if kept.any():
            yield buffer if kept.all() else buffer.select(kept)


def _up_to_a_change(buffers: Iterator[MessageBuffer]) -> list[MessageBuffer]:
    """Take from the front what comes before the first change, and that."""
    taken: list[MessageBuffer] = []
    for buffer in buffers:
        taken.append(buffer)
        if _has_change(buffer):
            break
    return taken


def _has_change(buffer: MessageBuffer) -> bool:
    return bool(_IS_CHANGE[buffer.tags].any())


def _begin(xid: int, end: TransactionEnd, first: Sequence[MessageBuffer]) -> list[MessageBuffer]:
    """Give a Begin, and the Origin if there is one.

    As protocol 1's, its frame starts where that of the first change does.
    """
    begin = BEGIN.pack(b"B", end.commit_lsn, end.time - POSTGRES_EPOCH, xid)
    origins = [w.message(n) for w in first for n in np.flatnonzero(w.tags == Tag.ORIGIN)[:1].tolist()]
    lsn = first[-1].lsn[_IS_CHANGE[first[-1].tags]][0]
    return [_buffer([begin, *origins[:1]], lsn, first[-1].text)]


def _commit(end: TransactionEnd) -> list[MessageBuffer]:
    message = COMMIT.pack(b"C", 0, end.commit_lsn, end.end_lsn, end.time - POSTGRES_EPOCH)
    return [_buffer([message], end.end_lsn, STRICT)]


def _relations(definitions: Iterable[Definition], text: DatabaseText) -> MessageBuffer:
    """Give relation messages, one or more, as if they had just come; the server gives them LSN 0."""
    return _buffer([definition.message for definition in definitions], 0, text)


def _buffer(messages: Sequence[bytes], lsn: int, text: DatabaseText) -> MessageBuffer:
    sizes = np.array([len(message) for message in messages], np.int64)
    return MessageBuffer.of(
        SpoolChunk(b"".join([*messages, PADDING]), sizes, np.full(len(messages), lsn, np.int64)), text
    )
