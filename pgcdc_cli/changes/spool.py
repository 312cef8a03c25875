"""Spools: where the encoded messages of a transaction wait until it commits.

`pgoutput/` fills spools and reads them back at the commit; `sinks/` decides where they are stored.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import NamedTuple, Protocol

import numpy as np

from pgcdc_cli.changes.edge import Prepared
from pgcdc_cli.frames import PADDING
from pgcdc_cli.large_copies import joined
from pgcdc_cli.lsn import Lsn
from pgcdc_cli.types.kernels import Int64s


@dataclass(frozen=True, slots=True, eq=False)
class SpoolChunk:
    """n messages, one after the other in `data` from `offset` on, followed by `PADDING`.

    `sizes` are their lengths in bytes, `lsn` the start LSNs of their frames.
    """

    data: bytes
    sizes: Int64s
    lsn: Int64s
    offset: int = 0

    @classmethod
    def join(cls, chunks: "Sequence[SpoolChunk]") -> "SpoolChunk":
        """Concatenate one or more chunks."""
        if len(chunks) == 1:
            return chunks[0]
        return cls(
            joined([*(chunk.body for chunk in chunks), PADDING]),
            np.concatenate([chunk.sizes for chunk in chunks]),
            np.concatenate([chunk.lsn for chunk in chunks]),
        )

    @property
    def body(self) -> memoryview:
        """The bytes of the messages, without offset and padding."""
        return memoryview(self.data)[self.offset : -len(PADDING)]

    def __len__(self) -> int:
        return len(self.sizes)

    def first(self, count: int) -> "SpoolChunk":
        """Return the first `count` messages, or all if there are fewer."""
        if count >= len(self):
            return self
        end = self.offset + int(self.sizes[:count].sum())
        return SpoolChunk(self.data[self.offset : end] + PADDING, self.sizes[:count], self.lsn[:count])


class FinishedSpool(NamedTuple):
    """A complete spool: its path, its size in bytes and their CRC-32."""

    path: str
    size: int
    crc32: int


class Spool(Protocol):
    """One transaction's messages, in the order in which they were received."""

    def append(self, chunk: SpoolChunk) -> None: ...

    def cut(self, count: int) -> None:
        """Keep the first `count` messages only."""

    def chunks(self) -> Iterator[SpoolChunk]:
        """Read all messages, from the beginning."""
        ...

    def finish(self) -> FinishedSpool:
        """Write what is still in memory, so that the checkpoint can name the spool; appending ends here."""
        ...

    def remove(self) -> None:
        """Delete it."""


class Spools(Protocol):
    """Creates spools."""

    def create(self, xid: int, first_lsn: Lsn) -> Spool:
        """Begin the spool of a top-level transaction."""
        ...

    def reopen(self, prepared: Prepared) -> Spool:
        """Open the existing spool of a prepared transaction."""
        ...
