"""Prepared transactions, from PREPARE TRANSACTION to COMMIT PREPARED or ROLLBACK PREPARED.

The server sends a prepared transaction at its prepare and not again. So it must be durable, and named by the
checkpoint, before the position of the prepare is confirmed. Exceptions are transactions that were prepared
before two-phase was enabled for the slot: they come whole right before their commit, with a prepare LSN that
can be below the checkpoint.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import chain
from typing import Literal

import numpy as np

from pgcdc_cli.changes.edge import Edge, Prepared
from pgcdc_cli.changes.slice import Boundaries, Slice, Stamp, TransactionBoundary
from pgcdc_cli.changes.spool import Spools
from pgcdc_cli.errors import ErrorKind, PgcdcError
from pgcdc_cli.lsn import Lsn
from pgcdc_cli.pgoutput import messages as m
from pgcdc_cli.pgoutput.spooled_transaction import Replay, SpooledTransaction, TransactionEnd

PreparedName = tuple[int, str]
"""What identifies a prepared transaction: xid and gid."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PreparedPolicy:
    """How to handle prepared transactions.

    `known` are those of the checkpoint. With `at_prepare` changes are written at the PREPARE. With
    `accept_gap` the commit of a transaction whose changes never came is not an error, but passed to `warn`.
    """

    known: Sequence[Prepared] = ()
    at_prepare: bool = False
    accept_gap: bool = False
    warn: Callable[[str], None]


class PreparedTransactions:
    """The prepared transactions that have neither committed nor rolled back yet, by xid and gid.

    Everything that ended before the assembler's `skip_before` is in the output.
    """

    def __init__(self, replay: Replay, spools: Spools, policy: PreparedPolicy) -> None:
        self._replay = replay
        self._spools = spools
        self._policy = policy
        self._skip_before = replay.assembler.skip_before
        self._prepared = {(one.xid, one.gid): one for one in policy.known}
        self._spooled: dict[PreparedName, SpooledTransaction] = {}

    def __contains__(self, name: PreparedName) -> bool:
        return name in self._prepared or name in self._spooled

    def has(self, xid: int) -> bool:
        """Whether the transaction with this xid is prepared."""
        return any(known == xid for known, _ in chain(self._prepared, self._spooled))

    def prepare(
        self, message: m.Prepare | m.StreamPrepare, transaction: SpooledTransaction
    ) -> Iterator[Slice]:
        """Remember a prepared transaction; one that is known already has no spool.

        One that was prepared before the checkpoint, which doesn't name it, also ended before it, or is one of
        the exceptions above. Either way its end comes on this connection, so its spool needn't be durable.
        """
        yield from self._replay.share(transaction)
        if transaction.spool is None:
            return
        name = message.xid, message.gid
        if message.prepare_lsn < self._skip_before:
            self._spooled[name] = transaction
            return
        prepared = Prepared(message.xid, message.gid, message.prepare_lsn)
        if self._policy.at_prepare:
            self._prepared[name] = prepared
            yield from self._give_out(message, transaction)
            return
        path, size, crc32 = transaction.spool.finish()
        self._prepared[name] = replace(prepared, path=path, size=size, crc32=crc32)
        self._spooled[name] = transaction
        if self._replay.assembler.take_end(message.prepare_lsn, message.end_lsn):
            yield Slice(self._edge(message.end_lsn))

    def _give_out(
        self, message: m.Prepare | m.StreamPrepare, transaction: SpooledTransaction
    ) -> Iterator[Slice]:
        end = TransactionEnd(message.prepare_lsn, message.end_lsn, message.prepare_time, message.gid)
        for found in self._replay.replay(transaction, end, self._all):
            yield replace(found, boundaries=tuple(map(_at_prepare, found.boundaries)))
        transaction.remove()

    def commit(self, message: m.CommitPrepared) -> Iterator[Slice]:
        """Yield the changes of a transaction that commits. Raises GAP if they never came."""
        name = message.xid, message.gid
        prepared, transaction = self._prepared.pop(name, None), self._spooled.pop(name, None)
        end = TransactionEnd(message.commit_lsn, message.end_lsn, message.commit_time, message.gid)
        if message.commit_lsn < self._skip_before:
            yield Slice(self._edge(message.end_lsn))
        elif transaction is not None or not (prepared is None or self._given_out(prepared)):
            yield from self._replay.replay(transaction or self._reopen(prepared), end, self._all)
        elif self._replay.assembler.take_end(message.commit_lsn, message.end_lsn):
            yield self._outcome("K", end, message.xid) if self._given_out(prepared) else self._miss(message)
        if prepared is None and transaction is not None:
            transaction.remove()

    def roll_back(self, message: m.RollbackPrepared) -> Iterator[Slice]:
        """Drop the changes of a transaction that rolls back; an unknown one has none here.

        The message lacks the LSN of the rollback itself, which is below its end.
        """
        name = message.xid, message.gid
        prepared, transaction = self._prepared.pop(name, None), self._spooled.pop(name, None)
        if prepared is None and transaction is not None:
            transaction.remove()
        elif not self._replay.assembler.take_end(Lsn(message.rollback_end_lsn - 1), message.rollback_end_lsn):
            return
        elif self._given_out(prepared):
            lsn = message.prepare_end_lsn if prepared is None else prepared.prepare_lsn
            end = TransactionEnd(lsn, message.rollback_end_lsn, message.rollback_time, message.gid)
            yield self._outcome("r", end, message.xid)
        elif prepared is not None:
            yield Slice(self._edge(message.rollback_end_lsn))

    def _given_out(self, prepared: Prepared | None) -> bool:
        """Whether the changes were written at the prepare; those of an unknown one by an earlier run."""
        return self._policy.at_prepare if prepared is None else prepared.path is None

    @property
    def _all(self) -> tuple[Prepared, ...]:
        return tuple(self._prepared.values())

    def _edge(self, end_lsn: Lsn) -> Edge:
        """Make an edge without changes, for a new set of prepared transactions."""
        return Edge(end_lsn, prepared=self._all)

    def _reopen(self, prepared: Prepared | None) -> SpooledTransaction:
        assert prepared is not None
        spool = self._spools.reopen(prepared)
        return SpooledTransaction(prepared.xid, spool, streamed=False, reopened=True)

    def _miss(self, message: m.CommitPrepared) -> Slice:
        """Make the slice of a transaction whose changes never came. Raises GAP unless that is accepted."""
        reason = (
            f'could not write prepared transaction "{message.gid}":'
            f" its changes came before {self._skip_before} and are not here"
        )
        if not self._policy.accept_gap:
            raise PgcdcError(ErrorKind.GAP, reason)
        self._policy.warn(f"{reason}; continuing without them")
        return Slice(self._edge(message.end_lsn))

    def _outcome(self, kind: Literal["K", "r"], end: TransactionEnd, xid: int) -> Slice:
        """Make the slice with the outcome of a transaction whose changes were written at its prepare."""
        stamp = Stamp(0, end.end_lsn, end.commit_lsn, end.time, xid, 0)
        boundary = TransactionBoundary(kind, stamp, end.gid)
        return Slice(self._edge(end.end_lsn), boundaries=(Boundaries.of([boundary]),))


def _at_prepare(boundaries: Boundaries) -> Boundaries:
    return replace(boundaries, kinds=np.where(boundaries.kinds == "C", "P", boundaries.kinds))
