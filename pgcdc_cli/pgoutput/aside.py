"""A transaction that is put aside until it commits."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
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


class Definitions:
    """Relation messages of one spool: all of each table, since the last of them may be cut off."""

    def __init__(self) -> None:
        self._of: dict[int, list[Definition]] = {}

    def add(self, some: Iterable[Definition], before: int) -> None:
        """Take over those among messages that come behind so many others."""
        for one in some:
            self._of.setdefault(one.oid, []).append(one._replace(place=before + one.place))

    def cut(self, count: int) -> None:
        """Keep those among the first `count` messages only."""
        for oid, told in list(self._of.items()):
            while told and told[-1].place >= count:
                told.pop()
            if not told:
                del self._of[oid]

    def order(self, oid: int) -> int:
        """Give the order of a table's last one; -1 if it has none."""
        return self._of[oid][-1].order if oid in self._of else -1

    def last(self) -> dict[int, Definition]:
        """Give the last one of each table, by its OID."""
        return {oid: told[-1] for oid, told in self._of.items()}


class Aside:
    """A transaction that is not committed yet.

    `defined` came in it, `lent` was put into its spool from elsewhere. Without a spool it is known already,
    and what comes is dropped. `reopened`: its spool is of an earlier connection.
    """

    def __init__(self, xid: int, spool: Spool | None, *, streamed: bool, reopened: bool = False) -> None:
        self.xid = xid
        self.spool = spool
        self.streamed = streamed
        self.defined, self.lent = Definitions(), Definitions()
        self._reopened = reopened
        self._count = 0
        self._first: dict[int, int] = {}

    def lend(self, chunk: Chunk, known: Sequence[Definition]) -> None:
        """Take over definitions that came elsewhere, for the messages that come next."""
        self.lent.add(known, self._count)
        self._append(chunk)

    def append(
        self, chunk: Chunk, told: Sequence[Definition], first: Mapping[int, int] | None = None
    ) -> None:
        """Take over messages, the definitions among them, and where each subtransaction is first."""
        self.defined.add(told, self._count)
        for xid, place in (first or {}).items():
            self._first.setdefault(xid, self._count + place)
        self._append(chunk)

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
        self.defined.cut(self._count)
        self.lent.cut(self._count)

    def wires(self) -> Iterator[Wire]:
        """Give the messages back."""
        for wire in () if self.spool is None else self.spool.wires():
            if self._reopened:
                self.defined.add((one._replace(order=0) for one in definitions(wire, 0)), 0)
            yield wire

    def remove(self) -> None:
        if self.spool is not None:
            self.spool.remove()
