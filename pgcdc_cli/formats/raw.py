"""What `pg_recvlogical` writes: every message of the plugin, whichever it is, followed by a line break."""

from collections.abc import Sequence
from typing import ClassVar, Literal

import pyarrow as pa

from pgcdc_cli.changes.slice import Edge
from pgcdc_cli.formats.encoded_rows import join_bytes
from pgcdc_cli.formats.interface import Capabilities, Data, EncodedSlice, Piece
from pgcdc_cli.frames import XLOGDATA_HEADER, largest_start, xlogdata_start


class RawFormat:
    """Frames instead of slices: what is decoded has lost its bytes."""

    name: ClassVar[str] = "raw"
    suffix: ClassVar[str] = ".raw"
    tail: ClassVar[None] = None
    capabilities: ClassVar[Capabilities] = Capabilities(layouts=("stream",))
    decodes: ClassVar[Literal[False]] = False
    restartable: ClassVar[None] = None

    def encode_frames(self, frames: Sequence[bytes]) -> EncodedSlice:
        """Unwrap XLogData frames, at least one.

        A plugin's message doesn't say where a transaction ends, so the edge is the largest start LSN: that
        of a transaction's last message is its end, and the next one may begin before it.
        """
        messages = [frame[XLOGDATA_HEADER:] for frame in frames]
        lines = b"\n".join([*messages, b""])
        first, last = xlogdata_start(frames[0]), largest_start(frames)
        return EncodedSlice((Piece("", len(frames), first, last, lines),), Edge(last, last, 0))

    def frame(self, data: Sequence[Data]) -> bytes | memoryview | pa.Buffer:
        return join_bytes(data)
