"""What is put aside of transactions that are not committed yet: runs of messages, still encoded.

The messages have protocol 1's form whatever they came in, so that what comes back can be decoded as if the
transaction had been sent whole.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import NamedTuple, Protocol

import numpy as np

from pgcdc_cli.lsn import Lsn
from pgcdc_cli.pgoutput.changes import Int64s, Prepared
from pgcdc_cli.pgoutput.messages import Tag
from pgcdc_cli.pgoutput.wire import PADDING, Wire, tag_mask

_HAS_NO_XID = tag_mask(Tag.ORIGIN)
_XID_SIZE = 4


@dataclass(frozen=True, slots=True, eq=False)
class Chunk:
    """n messages, one behind the other in `data` from `offset` on, and after them `PADDING`.

    `sizes` are their lengths in bytes, `lsn` their frames' start LSNs.
    """

    data: bytes
    sizes: Int64s
    lsn: Int64s
    offset: int = 0

    def __len__(self) -> int:
        return len(self.sizes)

    @classmethod
    def of(cls, wire: Wire) -> "Chunk":
        """Copy messages that have no xid of their own."""
        return cls._pack(wire, wire.starts)

    @classmethod
    def of_stream(cls, wire: Wire) -> "Chunk":
        """Copy messages of a streamed block, without the xid behind each one's tag."""
        chunk = cls._pack(wire, wire.starts + np.where(_HAS_NO_XID[wire.tags], 0, _XID_SIZE))
        data = bytearray(chunk.data)
        np.frombuffer(data, np.uint8)[np.cumsum(chunk.sizes) - chunk.sizes] = wire.tags
        return cls(bytes(data), chunk.sizes, chunk.lsn)

    @classmethod
    def _pack(cls, wire: Wire, starts: Int64s) -> "Chunk":
        data = wire.pack(starts, wire.ends).buffers()[2]
        sizes = wire.ends - starts
        body = memoryview(data or b"")[: int(sizes.sum())]
        return cls(b"".join([body, PADDING]), sizes, wire.lsn)

    def first(self, count: int) -> "Chunk":
        """Give the first messages, at most so many."""
        if count >= len(self):
            return self
        end = self.offset + int(self.sizes[:count].sum())
        return Chunk(self.data[self.offset : end] + PADDING, self.sizes[:count], self.lsn[:count])

    def wire(self) -> Wire:
        return Wire.of(self.data, self.sizes, self.lsn, offset=self.offset)


def subtransaction_of(wire: Wire) -> Int64s:
    """Give the xid of each of a streamed block's messages; -1 for those that have none."""
    return np.where(_HAS_NO_XID[wire.tags], -1, wire.head >> 24 & 0xFFFFFFFF)


def subtransactions(wire: Wire) -> dict[int, int]:
    """Give the xids of a streamed block's messages, and the number of the first one of each, in order."""
    found, places = np.unique(subtransaction_of(wire), return_index=True)
    order = np.argsort(places)
    return dict(zip(found[order].tolist(), places[order].tolist(), strict=True))


class Marked(NamedTuple):
    """A spool that is complete: where it is, its size in bytes and their CRC-32."""

    path: str
    size: int
    crc32: int


class Spool(Protocol):
    """One transaction's messages, in the order in which they came."""

    def append(self, chunk: Chunk) -> None: ...

    def cut(self, count: int) -> None:
        """Keep the first `count` messages only."""

    def wires(self) -> Iterator[Wire]:
        """Read what is left, from the beginning."""
        ...

    def finish(self) -> Marked:
        """Write all of it, for the checkpoint to name; nothing is appended any more."""
        ...

    def remove(self) -> None:
        """Delete it."""


class Spools(Protocol):
    """Where spools are made."""

    def create(self, xid: int, first_lsn: Lsn) -> Spool:
        """Begin the spool of a top-level transaction."""
        ...

    def reopen(self, prepared: Prepared) -> Spool:
        """Find the spool of a prepared transaction again."""
        ...
