"""A transaction that is put aside until it commits."""

from collections.abc import Iterator, Mapping, Sequence
from typing import NamedTuple

import numpy as np

from pgcdc_cli.pgoutput.messages import Tag
from pgcdc_cli.pgoutput.spooling import Chunk, Spool
from pgcdc_cli.pgoutput.wire import Wire


class Definition(NamedTuple):
    """A relation message without its xid.

    `order` counts all of them as they came; `place` is its number among the messages that it came with.
    """

    order: int
    oid: int
    place: int
    message: bytes


def definitions(wire: Wire, order: int) -> list[Definition]:
    """Find the relation messages; the first one gets this order, those after it the next ones."""
    numbers = np.flatnonzero(wire.tags == Tag.RELATION).tolist()
    return [
        Definition(order + i, int(wire.head[number] >> 24 & 0xFFFFFFFF), number, wire.message(number))
        for i, number in enumerate(numbers)
    ]


class Aside:
    """A transaction that is not committed yet.

    Without a spool it is known already, and what comes is dropped. `reopened`: its spool is of an earlier
    connection.
    """

    def __init__(self, xid: int, spool: Spool | None, *, streamed: bool, reopened: bool = False) -> None:
        self.xid = xid
        self.spool = spool
        self.streamed = streamed
        self._reopened = reopened
        self._count = 0
        self._told: list[Definition] = []
        self._lent: list[Definition] = []
        self._first: dict[int, int] = {}

    @property
    def defined(self) -> dict[int, Definition]:
        """The last definition of each table that came in it, by OID."""
        return {one.oid: one for one in self._told}

    @property
    def lent(self) -> dict[int, Definition]:
        """The last definition of each table that was put into the spool from elsewhere, by OID."""
        return {one.oid: one for one in self._lent}

    def lend(self, chunk: Chunk, known: Sequence[Definition]) -> None:
        """Take over definitions that came elsewhere, for the messages that come next."""
        self._lent += self._placed(known)
        self._append(chunk)

    def append(
        self, chunk: Chunk, told: Sequence[Definition], first: Mapping[int, int] | None = None
    ) -> None:
        """Take over messages, the definitions among them, and where each subtransaction is first."""
        self._told += self._placed(told)
        for xid, place in (first or {}).items():
            self._first.setdefault(xid, self._count + place)
        self._append(chunk)

    def _placed(self, some: Sequence[Definition]) -> list[Definition]:
        return [one._replace(place=self._count + one.place) for one in some]

    def _append(self, chunk: Chunk) -> None:
        self._count += len(chunk)
        if self.spool is not None:
            self.spool.append(chunk)

    def abort(self, subxid: int) -> None:
        """Cut off a subtransaction that was rolled back: all since its first message is of it.

        That is so whatever xid it came under: a logical message always comes under the top-level one, and a
        released subtransaction is rolled back with its parent. What the cut-off part told of tables is told
        again (`pgoutput_stream_abort`).
        """
        first = self._first.get(subxid, self._count)
        while self._first and next(reversed(self._first.values())) >= first:
            self._first.popitem()
        if first < self._count and self.spool is not None:
            self.spool.cut(first)
        self._count = min(first, self._count)
        self._told = [one for one in self._told if one.place < self._count]
        self._lent = [one for one in self._lent if one.place < self._count]

    def wires(self) -> Iterator[Wire]:
        """Give the messages back."""
        for wire in () if self.spool is None else self.spool.wires():
            if self._reopened:
                self._told += [one._replace(order=0) for one in definitions(wire, 0)]
            yield wire

    def remove(self) -> None:
        if self.spool is not None:
            self.spool.remove()
