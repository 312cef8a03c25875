"""Prepared transactions: between PREPARE TRANSACTION and COMMIT PREPARED or ROLLBACK PREPARED.

The server sends one at its prepare and not again, so it must be durable, and the checkpoint name it, before
the prepare's position is confirmed. An exception are those that were prepared before the slot knew of two
phases: they come whole right before their commit, with a prepare LSN from before the checkpoint.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import chain
from typing import Literal

import numpy as np

from pgcdc_cli.changes.slice import Boundaries, Edge, Prepared, Slice, Stamp, TransactionBoundary
from pgcdc_cli.changes.spool import Spools
from pgcdc_cli.errors import ErrorKind, PgcdcError
from pgcdc_cli.lsn import Lsn
from pgcdc_cli.pgoutput import messages as m
from pgcdc_cli.pgoutput.spooled_transaction import Replay, SpooledTransaction, TransactionEnd

PreparedName = tuple[int, str]
"""A prepared transaction: xid and gid."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PreparedPolicy:
    """What is to be done about prepared transactions.

    `known` are those of the checkpoint. `at_prepare` gives out their changes at the PREPARE. `accept_gap`
    goes on where one committed whose changes were never seen, and tells `warn`.
    """

    known: Sequence[Prepared] = ()
    at_prepare: bool = False
    accept_gap: bool = False
    warn: Callable[[str], None]


class PreparedTransactions:
    """Those whose end has not come yet, by xid and gid.

    `skip_before` is the assembler's: what ended before it is on record.
    """

    def __init__(self, replay: Replay, spools: Spools, policy: PreparedPolicy, skip_before: Lsn) -> None:
        self._replay = replay
        self._spools = spools
        self._policy = policy
        self._skip_before = skip_before
        self._prepared = {(one.xid, one.gid): one for one in policy.known}
        self._spooled: dict[PreparedName, SpooledTransaction] = {}

    def __contains__(self, name: PreparedName) -> bool:
        return name in self._prepared or name in self._spooled

    def has(self, xid: int) -> bool:
        """Say whether this transaction is one of them."""
        return any(known == xid for known, _ in chain(self._prepared, self._spooled))

    def prepare(
        self, message: m.Prepare | m.StreamPrepare, transaction: SpooledTransaction
    ) -> Iterator[Slice]:
        """Remember a transaction; one that is known already has no spool.

        One from before the checkpoint that the checkpoint doesn't name has ended before it, too, or is one
        of the exceptions. Either way its end is still to come, and nothing has to last until then.
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
        yield Slice(self._edge(message.end_lsn))

    def _give_out(
        self, message: m.Prepare | m.StreamPrepare, transaction: SpooledTransaction
    ) -> Iterator[Slice]:
        end = TransactionEnd(message.prepare_lsn, message.end_lsn, message.prepare_time, message.gid)
        for found in self._replay.replay(transaction, end, self._all):
            yield replace(found, boundaries=tuple(map(_at_prepare, found.boundaries)))
        transaction.remove()

    def commit(self, message: m.CommitPrepared) -> Iterator[Slice]:
        """Give out the changes; GAP if they were never seen."""
        name = message.xid, message.gid
        prepared, transaction = self._prepared.pop(name, None), self._spooled.pop(name, None)
        end = TransactionEnd(message.commit_lsn, message.end_lsn, message.commit_time, message.gid)
        if message.commit_lsn < self._skip_before:
            yield Slice(self._edge(message.end_lsn))
        elif transaction is None and self._given_out(prepared):
            yield self._outcome("K", end, message.xid)
        elif transaction is None and prepared is None:
            self._miss(message)
            yield Slice(self._edge(message.end_lsn))
        else:
            yield from self._replay.replay(transaction or self._reopen(prepared), end, self._all)
        if prepared is None and transaction is not None and not self._replay.assembler.ended:
            transaction.remove()

    def roll_back(self, message: m.RollbackPrepared) -> Iterator[Slice]:
        """Forget the changes; one that is not known never had any here."""
        name = message.xid, message.gid
        prepared, transaction = self._prepared.pop(name, None), self._spooled.pop(name, None)
        if prepared is None and transaction is not None:
            transaction.remove()
        elif self._given_out(prepared):
            lsn = message.prepare_end_lsn if prepared is None else prepared.prepare_lsn
            end = TransactionEnd(lsn, message.rollback_end_lsn, message.rollback_time, message.gid)
            yield self._outcome("r", end, message.xid)
        elif prepared is not None:
            yield Slice(self._edge(message.rollback_end_lsn))

    def _given_out(self, prepared: Prepared | None) -> bool:
        """Say whether the changes were given out at the prepare; of one not known, by an earlier run."""
        return self._policy.at_prepare if prepared is None else prepared.path is None

    @property
    def _all(self) -> tuple[Prepared, ...]:
        return tuple(self._prepared.values())

    def _edge(self, end_lsn: Lsn) -> Edge:
        """Make an edge at which no changes end, only what is prepared differs."""
        return Edge(Lsn(0), end_lsn, 0, prepared=self._all)

    def _reopen(self, prepared: Prepared | None) -> SpooledTransaction:
        assert prepared is not None
        spool = self._spools.reopen(prepared)
        return SpooledTransaction(prepared.xid, spool, streamed=False, reopened=True)

    def _miss(self, message: m.CommitPrepared) -> None:
        reason = (
            f'could not write prepared transaction "{message.gid}":'
            f" its changes came before {self._skip_before} and are not here"
        )
        if not self._policy.accept_gap:
            raise PgcdcError(ErrorKind.GAP, reason)
        self._policy.warn(f"{reason}; going on without them")

    def _outcome(self, kind: Literal["K", "r"], end: TransactionEnd, xid: int) -> Slice:
        """Tell what became of a transaction whose changes were given out at its prepare."""
        stamp = Stamp(0, end.end_lsn, end.commit_lsn, end.time, xid, 0)
        boundary = TransactionBoundary(kind, stamp, end.gid)
        return Slice(self._edge(end.end_lsn), boundaries=(Boundaries.of([boundary]),))


def _at_prepare(boundaries: Boundaries) -> Boundaries:
    return replace(boundaries, kinds=np.where(boundaries.kinds == "C", "P", boundaries.kinds))
