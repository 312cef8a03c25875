"""A transaction that was put aside, given to the assembler as if it had been sent whole.

Beside it, the newest relation message of every table, inside and outside of such transactions. The server
sends a table's definition once, and again after a change. In a streamed transaction it does so for that one
alone: its definitions count outside of it from its commit on, unless newer ones came since
(`get_schema_sent_in_streamed_txn`, `cleanup_rel_sync_cache` in `replication/pgoutput/pgoutput.c`).
"""

import struct
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field, replace
from itertools import chain
from typing import NamedTuple

import numpy as np

from pgcdc_cli.lsn import Lsn
from pgcdc_cli.pgoutput.changes import Edge, Prepared, Slice
from pgcdc_cli.pgoutput.decode import POSTGRES_EPOCH
from pgcdc_cli.pgoutput.messages import Tag, Truncate
from pgcdc_cli.pgoutput.spooling import Chunk, Spool
from pgcdc_cli.pgoutput.transactions import Assembler
from pgcdc_cli.pgoutput.wire import PADDING, Wire, tag_mask

_IS_CHANGE = tag_mask(Tag.INSERT, Tag.UPDATE, Tag.DELETE, Tag.TRUNCATE, Tag.MESSAGE)
_IS_ROW = tag_mask(Tag.INSERT, Tag.UPDATE, Tag.DELETE)
_BEGIN = struct.Struct(">cQqI")
_COMMIT = struct.Struct(">cBQQq")


class Definition(NamedTuple):
    """A relation message without its xid; `order` counts all of them as they came."""

    order: int
    message: bytes


Definitions = dict[int, Definition]
"""By the relation's OID."""


@dataclass(slots=True, eq=False)
class Aside:
    """A transaction that is put aside. Without a spool it is known already, and what comes is dropped.

    `first_lsn` is where the frame of its first message started. `reopened`: its spool is of an earlier
    connection.
    """

    xid: int
    first_lsn: Lsn
    spool: Spool | None
    streamed: bool
    reopened: bool = False
    defined: Definitions = field(default_factory=dict)

    def remove(self) -> None:
        if self.spool is not None:
            self.spool.remove()


@dataclass(frozen=True, slots=True)
class End:
    """Where and when a transaction ended, as a Commit would say; `time` in microseconds since 1970."""

    commit_lsn: Lsn
    end_lsn: Lsn
    time: int
    gid: str | None = None


class Replay:
    """What reaches the assembler: messages as they come, and transactions that were put aside."""

    def __init__(self, assembler: Assembler) -> None:
        self.assembler = assembler
        self._count = 0
        self._outside: Definitions = {}

    def pass_on(self, wire: Wire) -> Iterator[Slice]:
        """Take messages that stand outside of all that is put aside."""
        self._outside |= self._definitions(wire)
        yield from self.assembler.assemble([wire])

    def put_aside(self, wire: Wire, aside: Aside) -> Iterator[Slice]:
        """Take messages of a transaction's block; what they define outside of it is learned at once."""
        if aside.streamed:
            chunk = Chunk.of_stream(wire, aside.xid)
            aside.defined |= self._definitions(chunk.wire())
        else:
            self._complete(wire, aside)
            chunk = Chunk.of(wire, aside.xid)
            found = self._definitions(wire)
            if found:
                self._outside |= found
                aside.defined |= found
                yield from self.assembler.assemble([_messages(found.values())])
        if aside.spool is not None:
            aside.spool.append(chunk)

    def _complete(self, wire: Wire, aside: Aside) -> None:
        """Give a spool the definitions that were sent before it, since it may outlive the connection."""
        missing = _tables(wire) - aside.defined.keys()
        found = {oid: self._outside[oid] for oid in sorted(missing & self._outside.keys())}
        aside.defined |= found
        if found and aside.spool is not None:
            aside.spool.append(Chunk.of(_messages(found.values()), aside.xid))

    def whole(self, aside: Aside, end: End, prepared: tuple[Prepared, ...] | None = None) -> Iterator[Slice]:
        """Decode a transaction from its spool; `prepared` are those that still are at its end.

        Without a change in it there is only an edge: in protocol 1, the server doesn't send it at all. Where
        the end position is reached it stops short, and nothing of the transaction was given.
        """
        wires = self._wires(aside)
        first = _up_to_a_change(wires)
        if first and _has_change(first[-1]):
            for part in self._decode(chain(_begin(aside, end), first, wires, _commit(end))):
                edge = None if part.edge is None else replace(part.edge, prepared=prepared)
                marks = tuple(replace(mark, gid=end.gid) for mark in part.marks)
                yield replace(part, edge=edge, marks=marks, gid=end.gid)
        else:
            yield from self._decode(first)
            yield Slice(Edge(Lsn(0), end.end_lsn, 0, prepared=prepared))
        if not self.assembler.ended:
            yield from self._restore(aside)

    def _decode(self, wires: Iterable[Wire]) -> Iterator[Slice]:
        for wire in wires:
            yield from self.assembler.assemble([wire])
            if self.assembler.ended:
                return

    def _wires(self, aside: Aside) -> Iterator[Wire]:
        for wire in () if aside.spool is None else aside.spool.wires():
            if aside.reopened:
                found = self._definitions(wire)
                aside.defined |= {oid: one._replace(order=0) for oid, one in found.items()}
            yield wire

    def _restore(self, aside: Aside) -> Iterator[Slice]:
        """Let the newest definitions count again, where some came while the transaction was put aside."""
        newer: Definitions = {}
        for oid, own in aside.defined.items():
            latest = self._outside.get(oid)
            if latest is not None and latest.order > own.order:
                newer[oid] = latest
            else:
                self._outside[oid] = own
        if newer:
            yield from self.assembler.assemble([_messages(newer.values())])

    def _definitions(self, wire: Wire) -> Definitions:
        """Find the last definition of each table that these messages define."""
        found: Definitions = {}
        for number in np.flatnonzero(wire.tags == Tag.RELATION).tolist():
            self._count += 1
            message = wire.message(number)
            found[int.from_bytes(message[1:5], "big")] = Definition(self._count, message)
        return found


def _tables(wire: Wire) -> set[int]:
    """Give the OIDs of the tables that rows and truncates are of."""
    found = set(np.unique(wire.head[_IS_ROW[wire.tags]] >> 24 & 0xFFFFFFFF).tolist())
    for number in np.flatnonzero(wire.tags == Tag.TRUNCATE).tolist():
        message = wire.decode(number)
        assert isinstance(message, Truncate)
        found |= set(message.relation_oids)
    return found


def _messages(definitions: Iterable[Definition]) -> Wire:
    """Give relation messages, one or more, as if they had just come; the server gives them LSN 0."""
    messages = [definition.message for definition in definitions]
    sizes = np.array([len(message) for message in messages], np.int64)
    return Wire.of(b"".join([*messages, PADDING]), sizes, np.zeros(len(messages), np.int64))


def _up_to_a_change(wires: Iterator[Wire]) -> list[Wire]:
    """Take from the front what comes before the first change, and that."""
    taken: list[Wire] = []
    for wire in wires:
        taken.append(wire)
        if _has_change(wire):
            break
    return taken


def _has_change(wire: Wire) -> bool:
    return bool(_IS_CHANGE[wire.tags].any())


def _begin(aside: Aside, end: End) -> list[Wire]:
    message = _BEGIN.pack(b"B", end.commit_lsn, end.time - POSTGRES_EPOCH, aside.xid)
    return [_single(message, aside.first_lsn)]


def _commit(end: End) -> list[Wire]:
    message = _COMMIT.pack(b"C", 0, end.commit_lsn, end.end_lsn, end.time - POSTGRES_EPOCH)
    return [_single(message, end.end_lsn)]


def _single(message: bytes, lsn: Lsn) -> Wire:
    return Wire.of(message + PADDING, np.array([len(message)], np.int64), np.array([lsn], np.int64))
