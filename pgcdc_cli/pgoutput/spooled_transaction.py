"""Spooled transactions: put their messages into a spool, and at the commit pass them to the assembler.

A spool has messages in the form of protocol 1, whatever form they came in, so that they are decoded as if the
transaction had been sent whole. A spool may be read on another connection, so it also has the definitions
(Relation messages) that its rows need, wherever they came.

For that, the newest definition of every table is remembered, inside and outside of spooled transactions. The
server sends a table's definition once, and again after a change. Within a streamed transaction it sends
definitions for that transaction alone; outside of it they apply from its commit on, unless newer ones came
since (`get_schema_sent_in_streamed_txn`, `cleanup_rel_sync_cache` in `replication/pgoutput/pgoutput.c`).
Those of a prepared transaction apply from its Stream Prepare on: PostgreSQL 15.20 doesn't send them again,
16.14 and 18.4 do.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, replace
from itertools import chain
from typing import NamedTuple

import numpy as np

from pgcdc_cli.changes.edge import Edge, Prepared
from pgcdc_cli.changes.slice import Slice
from pgcdc_cli.changes.spool import Spool, SpoolChunk
from pgcdc_cli.errors import ErrorKind, PgcdcError
from pgcdc_cli.frames import PADDING, POSTGRES_EPOCH
from pgcdc_cli.large_copies import joined
from pgcdc_cli.lsn import Lsn
from pgcdc_cli.pgoutput.assemble import Assembler
from pgcdc_cli.pgoutput.decode import BEGIN, COMMIT
from pgcdc_cli.pgoutput.message_batch import IS_ROW, MESSAGE_BYTES, MessageBuffer, tag_mask
from pgcdc_cli.pgoutput.messages import Tag, Truncate
from pgcdc_cli.types import kernels
from pgcdc_cli.types.database_text import STRICT, DatabaseText
from pgcdc_cli.types.kernels import Int64s

_IS_CHANGE = tag_mask(Tag.INSERT, Tag.UPDATE, Tag.DELETE, Tag.TRUNCATE, Tag.MESSAGE)
_HAS_NO_XID = tag_mask(Tag.ORIGIN)
_XID_SIZE = 4


def chunk_of(buffer: MessageBuffer) -> SpoolChunk:
    """Copy messages that have no xid after the tag."""
    return _packed(buffer, buffer.starts)


def chunk_of_block(buffer: MessageBuffer) -> SpoolChunk:
    """Copy the messages of a streamed block, without the xid after each tag."""
    return _packed(buffer, buffer.starts + np.where(_HAS_NO_XID[buffer.tags], 0, _XID_SIZE))


def _packed(buffer: MessageBuffer, starts: Int64s) -> SpoolChunk:
    """Copy messages from these positions on, and overwrite each first byte with the tag."""
    sizes = buffer.ends - starts
    body = kernels.all_bytes(buffer.pack(starts, buffer.ends))
    # Nobody else uses this copy yet, so it may be changed.
    body[np.cumsum(sizes) - sizes] = buffer.tags
    return SpoolChunk(joined([body.data, PADDING]), sizes, buffer.lsn)


def subtransaction_of(buffer: MessageBuffer) -> Int64s:
    """Return the xid of each message of a streamed block; -1 for those that have none."""
    return np.where(_HAS_NO_XID[buffer.tags], -1, buffer.int32)


def _subtransactions(buffer: MessageBuffer) -> dict[int, int]:
    """Return the xids in a streamed block, each with the index of its first message, in that order."""
    found, firsts = np.unique(subtransaction_of(buffer), return_index=True)
    order = np.argsort(firsts)
    return dict(zip(found[order].tolist(), firsts[order].tolist(), strict=True))


class UndecidedRollbackError(PgcdcError):
    """A subtransaction was rolled back, and which logical messages go with it is not known.

    The server sends them under the top-level xid, never the subtransaction's (`pgoutput_message`), and at the
    LSN of the record after them, so before or after a row of another subtransaction (`logicalmsg_decode`).
    Without streaming it sends only what isn't rolled back.
    """


class Definition(NamedTuple):
    """A Relation message without an xid.

    `order` is its number among all Relation messages of the connection; `ordinal` is its index among the
    messages that it came with, or is spooled with.
    """

    order: int
    oid: int
    ordinal: int
    message: bytes


def _definitions(buffer: MessageBuffer, order: int) -> list[Definition]:
    """Find the Relation messages, and number them from `order` on."""
    indexes, oids = np.flatnonzero(buffer.tags == Tag.RELATION).tolist(), buffer.int32
    return [
        Definition(order + i, int(oids[index]), index, buffer.message(index))
        for i, index in enumerate(indexes)
    ]


class _SpoolDefinitions:
    """The definitions in one spool, all versions of each table: a rollback may cut off the last ones."""

    def __init__(self) -> None:
        self._of: dict[int, list[Definition]] = {}

    def add(self, some: Iterable[Definition], before: int) -> None:
        """Add the definitions among messages that follow `before` others."""
        for one in some:
            self._of.setdefault(one.oid, []).append(one._replace(ordinal=before + one.ordinal))

    def cut(self, count: int) -> None:
        """Keep only the definitions among the first `count` messages."""
        for oid, versions in list(self._of.items()):
            while versions and versions[-1].ordinal >= count:
                versions.pop()
            if not versions:
                del self._of[oid]

    def order(self, oid: int) -> int:
        """Return the order of a table's last definition; -1 if it has none."""
        return self._of[oid][-1].order if oid in self._of else -1

    def last(self) -> dict[int, Definition]:
        """Return the last definition of each table, by OID."""
        return {oid: versions[-1] for oid, versions in self._of.items()}


class SpooledTransaction:
    """A transaction that isn't committed yet.

    `defined` are the definitions that came in it, `lent` those that were copied into its spool. `spool` is
    None if the transaction is prepared and known already: then its messages are dropped. `reopened`: the
    spool was written on an earlier connection.
    """

    def __init__(self, xid: int, spool: Spool | None, *, streamed: bool, reopened: bool = False) -> None:
        self.xid = xid
        self.spool = spool
        self.streamed = streamed
        self.defined, self.lent = _SpoolDefinitions(), _SpoolDefinitions()
        self.reopened = reopened
        self._count = 0
        self._first: dict[int, int] = {}
        self._has_messages = False
        self._undecided: int | None = None

    def lend(self, chunk: SpoolChunk, known: Sequence[Definition]) -> None:
        """Append definitions that came outside of it, for the messages that come next."""
        self.lent.add(known, self._count)
        self._append(chunk)

    def append(
        self, chunk: SpoolChunk, defined: Sequence[Definition], first: Mapping[int, int], *, messages: bool
    ) -> None:
        """Append messages, the definitions among them, and the first index of each subtransaction.

        `messages`: logical messages are among them.
        """
        self._has_messages |= messages
        self.defined.add(defined, self._count)
        for xid, index in first.items():
            self._first.setdefault(xid, self._count + index)
        self._append(chunk)

    def _append(self, chunk: SpoolChunk) -> None:
        self._count += len(chunk)
        if self.spool is not None:
            self.spool.append(chunk)

    def abort(self, subxid: int) -> None:
        """Cut off a subtransaction that was rolled back, with everything since its first message.

        All of that belongs to it, whatever its xid: a logical decoding message always has the top-level xid,
        and a released subtransaction is rolled back with its parent. The server sends definitions that are
        cut off again (`pgoutput_stream_abort`).

        If the transaction has logical messages, it is undecided from then on.
        """
        if self._has_messages and self.spool is not None:
            self._undecided = subxid
            return
        first = self._first.get(subxid, self._count)
        while self._first and next(reversed(self._first.values())) >= first:
            self._first.popitem()
        if self.spool is not None:
            self.spool.cut(first)
        self._count = first
        self.defined.cut(self._count)
        self.lent.cut(self._count)

    def check_decided(self) -> None:
        """Raise UndecidedRollbackError if a subtransaction was rolled back that may have logical messages.

        To be called when the transaction goes on. If it is rolled back, too, nothing must be decided: the
        server sends the aborts of its subtransactions first, also of those that were released.
        """
        if self._undecided is not None:
            raise UndecidedRollbackError(
                ErrorKind.SERVER_FAULT,
                f"could not undo subtransaction {self._undecided} of transaction {self.xid}:"
                " the server doesn't say which logical messages belong to it",
            )

    def buffers(self, text: DatabaseText, batch: Callable[[], int]) -> Iterator[MessageBuffer]:
        """Yield the messages, about as many at a time as `batch` returns; chunks aren't divided."""
        for chunk in () if self.spool is None else _joined(self.spool.chunks(), batch):
            buffer = MessageBuffer.of(chunk, text)
            if self.reopened:
                self.defined.add((one._replace(order=0) for one in _definitions(buffer, 0)), 0)
            yield buffer

    def remove(self) -> None:
        if self.spool is not None:
            self.spool.remove()


@dataclass(frozen=True, slots=True)
class TransactionEnd:
    """Where and when a transaction ended, as in a Commit; `time` is in microseconds since 1970-01-01 UTC."""

    commit_lsn: Lsn
    end_lsn: Lsn
    time: int
    gid: str | None = None


class Definitions:
    """The definitions of tables outside of spooled transactions, as they came."""

    def __init__(self) -> None:
        self._count = 0
        self._outside: dict[int, Definition] = {}

    def learn(self, buffer: MessageBuffer) -> None:
        """Remember the definitions among messages outside of spooled transactions."""
        self._learn(self._numbered(buffer))

    def spool(self, buffer: MessageBuffer, transaction: SpooledTransaction) -> None:
        """Spool messages of a transaction, and the definitions that they need from outside of it."""
        chunk = chunk_of_block(buffer) if transaction.streamed else chunk_of(buffer)
        plain = MessageBuffer.of(chunk, buffer.text)
        self._complete(plain, transaction)
        first = _subtransactions(buffer) if transaction.streamed else {}
        messages = bool((buffer.tags == Tag.MESSAGE).any())
        transaction.append(chunk, self._numbered(plain), first, messages=messages)

    def _complete(self, buffer: MessageBuffer, transaction: SpooledTransaction) -> None:
        """Add the definitions to a spool that its next messages need, and that came outside of it."""
        own = {one.oid: one.ordinal for one in reversed(_definitions(buffer, 0))}
        needed = {oid for oid, index in _tables(buffer).items() if index < own.get(oid, len(buffer))}
        oids = [oid for oid in sorted(needed & self._outside.keys()) if self._is_missing(oid, transaction)]
        if oids:
            known = [self._outside[oid]._replace(ordinal=ordinal) for ordinal, oid in enumerate(oids)]
            transaction.lend(chunk_of(_relations(known, buffer.text)), known)

    def _is_missing(self, oid: int, transaction: SpooledTransaction) -> bool:
        """Whether a spool has neither a definition of its own nor the newest from outside."""
        newest = self._outside[oid].order
        return transaction.defined.order(oid) < 0 and transaction.lent.order(oid) != newest

    def learn_from(self, transaction: SpooledTransaction) -> list[Definition]:
        """Remember a transaction's own definitions, unless newer ones came since; return these."""
        newer = [one for oid, one in transaction.defined.last().items() if one.order > self._order(oid)]
        self._learn(newer)
        return newer

    def newer_than(self, transaction: SpooledTransaction) -> list[Definition]:
        """Return the definitions that came while the transaction was spooled, of tables in its spool."""
        spooled = transaction.lent.last() | transaction.defined.last()
        return [self._outside[oid] for oid, one in spooled.items() if one.order < self._order(oid)]

    def _order(self, oid: int) -> int:
        return self._outside[oid].order if oid in self._outside else -1

    def _learn(self, definitions: Iterable[Definition]) -> None:
        self._outside.update((one.oid, one) for one in definitions)

    def _numbered(self, buffer: MessageBuffer) -> list[Definition]:
        """Find the definitions among these messages, and number them."""
        found = _definitions(buffer, self._count + 1)
        self._count += len(found)
        return found


class Replay:
    """Passes spooled transactions to the assembler, which has `definitions` again after each.

    `buffer` has the messages of a spool that are being decoded; `batch` returns how many are best decoded at
    once; `text` is the encoding of names.
    """

    def __init__(
        self, assembler: Assembler, definitions: Definitions, batch: Callable[[], int], text: DatabaseText
    ) -> None:
        self.assembler = assembler
        self.buffer: MessageBuffer | None = None
        self._definitions = definitions
        self._batch = batch
        self._text = text

    def share(self, transaction: SpooledTransaction) -> Iterator[Slice]:
        """Apply a prepared transaction's definitions outside of it, unless newer ones came since."""
        yield from self._define(self._definitions.learn_from(transaction))

    def replay(
        self,
        transaction: SpooledTransaction,
        end: TransactionEnd,
        prepared: tuple[Prepared, ...] | None = None,
    ) -> Iterator[Slice]:
        """Decode a transaction from its spool; `prepared` are the transactions still prepared at its end.

        A transaction without changes becomes a mere edge: in protocol 1 the server doesn't send it at all. If
        the transaction ends beyond the end position, nothing of it is yielded.
        """
        # Whoever filled the spool, an earlier run maybe, may have asked for binary values.
        with self.assembler.tables.reading_binary() if transaction.reopened else nullcontext():
            yield from self._replay(transaction, end, prepared)
        self._definitions.learn_from(transaction)
        yield from self._define(self._definitions.newer_than(transaction))

    def _replay(
        self, transaction: SpooledTransaction, end: TransactionEnd, prepared: tuple[Prepared, ...] | None
    ) -> Iterator[Slice]:
        buffers = _without_repeats(transaction.buffers(self._text, self._batch))
        first = _up_to_a_change(buffers)
        if first and _has_change(first[-1]):
            whole = chain(_begin(transaction.xid, end, first), first, buffers, _commit(end))
            for found in self._decode(whole):
                edge = None if found.edge is None else replace(found.edge, prepared=prepared)
                boundaries = tuple(replace(some, gid=end.gid) for some in found.boundaries)
                yield replace(found, edge=edge, boundaries=boundaries, gid=end.gid)
        else:
            yield from self._decode(first)
            if self.assembler.take_end(end.commit_lsn, end.end_lsn):
                yield Slice(Edge(end.end_lsn, prepared=prepared))

    def _decode(self, buffers: Iterable[MessageBuffer]) -> Iterator[Slice]:
        for buffer in buffers:
            self.buffer = buffer
            yield from self.assembler.assemble(buffer)
            if self.assembler.ended:
                break
        self.buffer = None

    def _define(self, definitions: Sequence[Definition]) -> Iterator[Slice]:
        """Have the assembler learn definitions from outside of a transaction."""
        if definitions:
            yield from self.assembler.assemble(_relations(definitions, self._text))


def _joined(chunks: Iterable[SpoolChunk], batch: Callable[[], int]) -> Iterator[SpoolChunk]:
    """Join chunks, up to the number of messages and bytes that are best decoded at once."""
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
    """Return the OIDs of the tables of rows and truncates, each with the index of its first message."""
    rows = np.flatnonzero(IS_ROW[buffer.tags])
    oids, firsts = np.unique(buffer.int32[rows], return_index=True)
    found: dict[int, int] = dict(zip(oids.tolist(), rows[firsts].tolist(), strict=True))
    for index in np.flatnonzero(buffer.tags == Tag.TRUNCATE).tolist():
        message = buffer.decode(index)
        assert isinstance(message, Truncate)
        found |= {oid: min(index, found.get(oid, index)) for oid in message.relation_oids}
    return found


def _without_repeats(buffers: Iterable[MessageBuffer]) -> Iterator[MessageBuffer]:
    """Leave out definitions that only repeat a table's last one.

    The server sends one after every rollback to a savepoint, and each would cost a query of the catalog. All
    of these queries would have the same answer, as they are made at one moment.
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
    """Take buffers up to and including the one with the first change."""
    taken: list[MessageBuffer] = []
    for buffer in buffers:
        taken.append(buffer)
        if _has_change(buffer):
            break
    return taken


def _has_change(buffer: MessageBuffer) -> bool:
    return bool(_IS_CHANGE[buffer.tags].any())


def _begin(xid: int, end: TransactionEnd, first: Sequence[MessageBuffer]) -> list[MessageBuffer]:
    """Make a Begin, followed by the Origin if there is one.

    As in protocol 1, its frame has the start LSN of the first change.
    """
    begin = BEGIN.pack(b"B", end.commit_lsn, end.time - POSTGRES_EPOCH, xid)
    origins = [w.message(n) for w in first for n in np.flatnonzero(w.tags == Tag.ORIGIN)[:1].tolist()]
    lsn = first[-1].lsn[_IS_CHANGE[first[-1].tags]][0]
    return [_buffer([begin, *origins[:1]], lsn, first[-1].text)]


def _commit(end: TransactionEnd) -> list[MessageBuffer]:
    message = COMMIT.pack(b"C", 0, end.commit_lsn, end.end_lsn, end.time - POSTGRES_EPOCH)
    return [_buffer([message], end.end_lsn, STRICT)]


def _relations(definitions: Iterable[Definition], text: DatabaseText) -> MessageBuffer:
    """Make a buffer of one or more Relation messages; as from the server, their LSN is 0."""
    return _buffer([definition.message for definition in definitions], 0, text)


def _buffer(messages: Sequence[bytes], lsn: int, text: DatabaseText) -> MessageBuffer:
    sizes = np.array([len(message) for message in messages], np.int64)
    return MessageBuffer.of(
        SpoolChunk(b"".join([*messages, PADDING]), sizes, np.full(len(messages), lsn, np.int64)), text
    )
