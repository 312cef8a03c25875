"""The format of `pg_recvlogical`: every message of the output plugin, followed by a line feed."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar, Literal

import pyarrow as pa

from pgcdc_cli.changes.edge import Edge
from pgcdc_cli.formats.encoded_rows import join_bytes
from pgcdc_cli.formats.interface import Capabilities, Data, EncodedSlice, Piece
from pgcdc_cli.formats.terminal import safe_lines
from pgcdc_cli.frames import Frames, xlogdata_start


@dataclass(frozen=True, slots=True)
class RawFormat:
    """Takes frames instead of slices, since decoding doesn't keep the original bytes.

    With `for_terminal`, nothing in a message steers the terminal; such output is to be looked at only.
    """

    name: ClassVar[str] = "raw"
    suffix: ClassVar[str] = ".raw"
    tail: ClassVar[None] = None
    capabilities: ClassVar[Capabilities] = Capabilities(layouts=("stream",))
    decodes: ClassVar[Literal[False]] = False
    restartable: ClassVar[None] = None

    for_terminal: bool = False

    def encode_frames(self, frames: Frames) -> EncodedSlice:
        """Strip the XLogData headers of frames; there must be at least one.

        A plugin's message doesn't say where a transaction ends, so the edge is the largest start LSN: a
        transaction's last message starts at its end LSN, and the next transaction's first may start before.
        """
        lines = b"\n".join([*frames.messages(), b""])
        if self.for_terminal:
            lines = safe_lines(lines)
        first, last = xlogdata_start(frames[0]), frames.largest_start
        return EncodedSlice((Piece("", len(frames), first, last, lines),), Edge(last, commit_lsn=last))

    def frame(self, data: Sequence[Data]) -> bytes | memoryview | pa.Buffer:
        return join_bytes(data)
