"""A spool: where the messages of a transaction wait that is not committed yet, as bytes.

Streaming fills spools, and reads them at the commit; an output says where they are.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import NamedTuple, Protocol

import numpy as np

from pgcdc_cli.changes.slice import Prepared
from pgcdc_cli.large_copies import joined
from pgcdc_cli.lsn import Lsn
from pgcdc_cli.types.kernels import Int64s

PADDING = bytes(8)
"""So that eight bytes can be gathered at any position of a message, whatever is done with them."""


@dataclass(frozen=True, slots=True, eq=False)
class SpoolChunk:
    """n messages, one after the other in `data` from `offset` on, and after them `PADDING`.

    `sizes` are their lengths in bytes, `lsn` their frames' start LSNs.
    """

    data: bytes
    sizes: Int64s
    lsn: Int64s
    offset: int = 0

    @classmethod
    def join(cls, chunks: "Sequence[SpoolChunk]") -> "SpoolChunk":
        """Put chunks together, one at least."""
        if len(chunks) == 1:
            return chunks[0]
        return cls(
            joined([*(chunk.body for chunk in chunks), PADDING]),
            np.concatenate([chunk.sizes for chunk in chunks]),
            np.concatenate([chunk.lsn for chunk in chunks]),
        )

    @property
    def body(self) -> memoryview:
        """The messages alone."""
        return memoryview(self.data)[self.offset : -len(PADDING)]

    def __len__(self) -> int:
        return len(self.sizes)

    def first(self, count: int) -> "SpoolChunk":
        """Give the first messages, at most so many."""
        if count >= len(self):
            return self
        end = self.offset + int(self.sizes[:count].sum())
        return SpoolChunk(self.data[self.offset : end] + PADDING, self.sizes[:count], self.lsn[:count])


class FinishedSpool(NamedTuple):
    """A spool that is complete: where it is, its size in bytes and their CRC-32."""

    path: str
    size: int
    crc32: int


class Spool(Protocol):
    """One transaction's messages, in the order in which they came."""

    def append(self, chunk: SpoolChunk) -> None: ...

    def cut(self, count: int) -> None:
        """Keep the first `count` messages only."""

    def chunks(self) -> Iterator[SpoolChunk]:
        """Read what is left, from the beginning."""
        ...

    def finish(self) -> FinishedSpool:
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
