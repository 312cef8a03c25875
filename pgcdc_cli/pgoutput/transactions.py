"""Decode transactions, also those that come before their commit: these are spooled until then.

Protocol 2 streams large transactions in blocks, protocol 3 sends prepared ones at their PREPARE, protocol 4
adds details to aborts. Whatever isn't committed goes to a spool; at its commit a Begin, the spool and a
Commit pass through the assembler, as protocol 1 would have sent them. So everything after this module sees
protocol 1.

A message that doesn't fit those before it is accepted if nothing can be lost by that, and is an error
otherwise. PostgreSQL's apply worker (`replication/logical/worker.c`) compared with this module:

    message                                       apply worker                           here
    Stream Abort, unknown transaction             nothing to undo (a subtransaction's)   nothing to undo
    Stream Abort, unknown subtransaction          nothing to undo                        nothing to undo
    Stream Start, first segment, known xid        begins anew, or error (parallel)       error
    Stream Start, later segment, unknown xid      error                                  error
    Stream Commit or Prepare, unknown xid         error                                  error
    Stream Start of a prepared transaction        kept until the worker ends             dropped
    Prepare without Begin Prepare                 error                                  no changes
    Commit Prepared, never prepared               error                                  gap, if not on record
    Rollback Prepared, never prepared             nothing to undo                        nothing to undo
    Relation or Type outside of a transaction     accepted                               accepted
    Origin outside, or after a change             error                                  accepted
    xid 0 in a block or its Stream Start          error                                  error
    a transaction or block within another         error, or an assertion                 error
    an empty block or transaction                 accepted                               an edge, no change
"""

from collections.abc import Callable, Iterator

import numpy as np

from pgcdc_cli.changes.slice import Slice
from pgcdc_cli.changes.spool import Spools
from pgcdc_cli.errors import UndecodableError
from pgcdc_cli.frames import Frames
from pgcdc_cli.lsn import Lsn
from pgcdc_cli.pgoutput import messages as m
from pgcdc_cli.pgoutput.assemble import Assembler
from pgcdc_cli.pgoutput.message_batch import SMALLEST_BATCH, MessageBuffer, tag_mask
from pgcdc_cli.pgoutput.messages import Tag
from pgcdc_cli.pgoutput.prepared import PreparedPolicy, PreparedTransactions
from pgcdc_cli.pgoutput.small_batch import is_small
from pgcdc_cli.pgoutput.spooled_transaction import (
    Definitions,
    Replay,
    SpooledTransaction,
    TransactionEnd,
    subtransaction_of,
)
from pgcdc_cli.types.database_text import STRICT, DatabaseText

_IS_CONTROL = tag_mask(
    Tag.STREAM_START,
    Tag.STREAM_STOP,
    Tag.STREAM_COMMIT,
    Tag.STREAM_ABORT,
    Tag.STREAM_PREPARE,
    Tag.BEGIN_PREPARE,
    Tag.PREPARE,
    Tag.COMMIT_PREPARED,
    Tag.ROLLBACK_PREPARED,
)
_MAY_STAND_INSIDE = tag_mask(
    Tag.ORIGIN, Tag.RELATION, Tag.TYPE, Tag.INSERT, Tag.UPDATE, Tag.DELETE, Tag.TRUNCATE, Tag.MESSAGE
)
_TAG_AND_XID = 5
_NO_XID = 0
_BEGIN, _COMMIT = bytes([Tag.BEGIN]), bytes([Tag.COMMIT])
_OPEN_PART = 8
"""The beginning of a transaction is held back for the rest if it is at most 1/8 of a batch."""
_LONG_ABORT = 25
"""Bytes of a Stream Abort that has LSN and time."""


class PgoutputDecoder:
    """Decodes all transactions of one connection, whole ones and those that come in pieces.

    `batch` is how many messages are best decoded at once; the encoder that formats them sets it. After an
    error the decoder can't be used any more.
    """

    def __init__(
        self,
        assembler: Assembler,
        spools: Spools,
        policy: PreparedPolicy,
        text: DatabaseText = STRICT,
    ) -> None:
        self._text = text
        self._assembler = assembler
        self._spools = spools
        self.batch = SMALLEST_BATCH
        self._definitions = Definitions()
        self._replay = Replay(assembler, self._definitions, lambda: self.batch, text)
        self._prepared = PreparedTransactions(self._replay, spools, policy)
        self._open: dict[int, SpooledTransaction] = {}
        self._block: SpooledTransaction | None = None
        self._preparing: m.BeginPrepare | None = None
        self._held = Frames()
        self._readers: dict[type[m.Message], Callable[..., Iterator[Slice]]] = {
            m.StreamStart: self._stream_start,
            m.StreamStop: self._stream_stop,
            m.StreamCommit: self._stream_commit,
            m.StreamAbort: self._stream_abort,
            m.StreamPrepare: self._stream_prepare,
            m.BeginPrepare: self._begin_prepare,
            m.Prepare: self._prepare,
            m.CommitPrepared: self._commit_prepared,
            m.RollbackPrepared: self._rollback_prepared,
        }

    @property
    def in_transaction(self) -> bool:
        """Whether more of a transaction must come before there is an edge."""
        is_prepare = self._block is not None and not self._block.streamed
        return self._assembler.in_transaction or is_prepare or bool(self._held)

    @property
    def held(self) -> Frames:
        """Frames of an open transaction that are held back, to be decoded with those that come next."""
        return self._held

    @property
    def ended(self) -> bool:
        return self._assembler.ended

    @property
    def replayed(self) -> MessageBuffer | None:
        """The messages of a spool that are being decoded; None while messages are decoded as they come."""
        return self._replay.buffer

    def slices(self, frames: Frames) -> Iterator[Slice]:
        """Decode whole XLogData frames, header included; a spooled transaction yields several slices.

        Raises what the assembler and the spools raise, and GAP for the commit of a prepared transaction whose
        changes never came.
        """
        frames = Frames() if self.ended else self._hold_open(frames)
        small = self._assembler.assemble_small(frames) if self._block is None and is_small(frames) else None
        if small is not None:
            yield from small
            return
        for buffer in MessageBuffer.join(frames, self._text):
            yield from self._read(buffer)

    def _hold_open(self, frames: Frames) -> Frames:
        """Hold a Begin back for the message after it, which may be the transaction's Origin.

        The few rows after it at the end of a large batch are held back, too: as a slice of their own they
        would cost as much for each table as all rows before them.
        """
        frames, self._held = self._held + frames, Frames()
        start = _last_begin(frames)
        if start is not None:
            frames, self._held = frames[:start], frames[start:]
        return frames

    def _read(self, buffer: MessageBuffer) -> Iterator[Slice]:
        at = 0
        for number in np.flatnonzero(_IS_CONTROL[buffer.tags]).tolist():
            yield from self._run(buffer, at, number)
            if not self.ended:
                yield from self._control(buffer, number)
            if self.ended:
                return
            at = number + 1
        yield from self._run(buffer, at, len(buffer))

    def _run(self, buffer: MessageBuffer, start: int, stop: int) -> Iterator[Slice]:
        """Pass messages other than control messages to the assembler, or to a spool."""
        if start == stop:
            return
        run = buffer if stop - start == len(buffer) else buffer.select(slice(start, stop))
        if self._block is None:
            self._definitions.learn(run)
            yield from self._assembler.assemble(run)
        else:
            self._check_changes(run, streamed=self._block.streamed)
            self._definitions.spool(run, self._block)

    def _check_changes(self, buffer: MessageBuffer, *, streamed: bool) -> None:
        good = _MAY_STAND_INSIDE[buffer.tags] & (buffer.ends - buffer.starts >= _TAG_AND_XID)
        if streamed:
            good &= subtransaction_of(buffer) != _NO_XID
        for number in np.flatnonzero(~good)[:1].tolist():
            message = buffer.decode(number, in_stream=streamed)
            zero = getattr(message, "xid", None) == _NO_XID
            reason = f"its xid is {_NO_XID}" if zero else "it is inside another transaction"
            raise _misplaced(buffer, number, reason)

    def _control(self, buffer: MessageBuffer, number: int) -> Iterator[Slice]:
        parallel = len(buffer.message(number)) == _LONG_ABORT
        message = buffer.decode(number, streaming_parallel=parallel)
        try:
            yield from self._readers[type(message)](message, Lsn(int(buffer.lsn[number])))
        except _MisplacedError as error:
            raise _misplaced(buffer, number, str(error)) from None

    def _check_outside(self) -> None:
        if self._block is not None or self._assembler.in_transaction:
            raise _MisplacedError("it is inside another transaction")

    def _stream_start(self, message: m.StreamStart, lsn: Lsn) -> Iterator[Slice]:
        self._check_outside()
        if message.xid == _NO_XID:
            raise _MisplacedError(f"its xid is {_NO_XID}")
        if message.first_segment == (message.xid in self._open):
            state = "began already" if message.first_segment else "never began"
            raise _MisplacedError(f"transaction {message.xid} {state}")
        if message.first_segment:
            known = self._prepared.has(message.xid)
            spool = None if known else self._spools.create(message.xid, lsn)
            self._open[message.xid] = SpooledTransaction(message.xid, spool, streamed=True)
        self._block = self._open[message.xid]
        self._block.check_decided()
        yield from ()

    def _stream_stop(self, _message: m.StreamStop, _lsn: Lsn) -> Iterator[Slice]:
        if self._block is None or not self._block.streamed:
            raise _MisplacedError("no streamed block is open")
        self._block = None
        yield from ()

    def _find(self, xid: int) -> SpooledTransaction:
        self._check_outside()
        if xid not in self._open:
            raise _MisplacedError(f"transaction {xid} never began")
        self._open[xid].check_decided()
        return self._open[xid]

    def _stream_commit(self, message: m.StreamCommit, _lsn: Lsn) -> Iterator[Slice]:
        transaction = self._find(message.xid)
        if transaction.spool is None:
            raise _MisplacedError(f"transaction {message.xid} is prepared")
        yield from self._replay.replay(
            transaction, TransactionEnd(message.commit_lsn, message.end_lsn, message.commit_time)
        )
        transaction.remove()
        del self._open[message.xid]

    def _stream_abort(self, message: m.StreamAbort, _lsn: Lsn) -> Iterator[Slice]:
        """Undo a subtransaction or transaction; one that never began has nothing to undo.

        Since PostgreSQL 18 the server drops a transaction that it finds aborted before its first block, and
        still sends the aborts of its subtransactions (`ReorderBufferCheckAndTruncateAbortedTXN`).
        """
        self._check_outside()
        transaction = self._open.get(message.xid)
        if transaction is not None and message.subxid == message.xid:
            transaction.remove()
            del self._open[message.xid]
        elif transaction is not None:
            transaction.abort(message.subxid)
        yield from ()

    def _stream_prepare(self, message: m.StreamPrepare, _lsn: Lsn) -> Iterator[Slice]:
        transaction = self._find(message.xid)
        del self._open[message.xid]
        # One that is prepared already has no spool: Stream Start saw its xid.
        self._check_xid(message)
        yield from self._prepared.prepare(message, transaction)

    def _begin_prepare(self, message: m.BeginPrepare, lsn: Lsn) -> Iterator[Slice]:
        self._check_outside()
        self._preparing = message
        self._block = self._spooled_transaction(message, lsn)
        yield from ()

    def _spooled_transaction(self, message: m.BeginPrepare | m.Prepare, lsn: Lsn) -> SpooledTransaction:
        self._check_xid(message)
        known = (message.xid, message.gid) in self._prepared
        spool = None if known else self._spools.create(message.xid, lsn)
        return SpooledTransaction(message.xid, spool, streamed=False)

    def _check_xid(self, message: m.BeginPrepare | m.Prepare | m.StreamPrepare) -> None:
        """Check that no other transaction has this xid; this one may be prepared already, and sent again."""
        known = (message.xid, message.gid) in self._prepared
        if message.xid in self._open or (self._prepared.has(message.xid) and not known):
            raise _MisplacedError(f"transaction {message.xid} began already")

    def _prepare(self, message: m.Prepare, lsn: Lsn) -> Iterator[Slice]:
        """End a prepared transaction; one without a Begin Prepare has no changes.

        PostgreSQL 18.4 sends one for a transaction that only locked rows or tables (`ReorderBufferPrepare`).
        """
        begin, block = self._preparing, self._block
        self._preparing = self._block = None
        if block is None:
            self._check_outside()
            block = self._spooled_transaction(message, lsn)
        elif begin is None or _name(begin) != _name(message):
            raise _MisplacedError("it is inside another transaction")
        yield from self._prepared.prepare(message, block)

    def _commit_prepared(self, message: m.CommitPrepared, _lsn: Lsn) -> Iterator[Slice]:
        self._check_outside()
        self._forget(message.xid)
        yield from self._prepared.commit(message)

    def _rollback_prepared(self, message: m.RollbackPrepared, _lsn: Lsn) -> Iterator[Slice]:
        self._check_outside()
        self._forget(message.xid)
        yield from self._prepared.roll_back(message)

    def _forget(self, xid: int) -> None:
        """Drop what was streamed of a transaction that was prepared earlier, so has no Stream Prepare."""
        transaction = self._open.pop(xid, None)
        if transaction is not None:
            transaction.remove()


def _last_begin(frames: Frames) -> int | None:
    """Find the Begin of a transaction that is open at the end of the frames, among the last few."""
    first = max(len(frames) - max(len(frames) // _OPEN_PART, 1), 0)
    tags = frames[first:].tags()
    begin = tags.rfind(_BEGIN)
    return first + begin if begin > tags.rfind(_COMMIT) else None


def _name(message: m.BeginPrepare | m.Prepare) -> tuple[int, str, Lsn]:
    return message.xid, message.gid, message.prepare_lsn


class _MisplacedError(Exception):
    """A message in a place where it isn't allowed."""


def _misplaced(buffer: MessageBuffer, number: int, reason: str) -> UndecodableError:
    return buffer.error(number, f"could not assemble {buffer.title(number)} message: {reason}")
