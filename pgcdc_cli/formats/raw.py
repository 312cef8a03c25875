"""What `pg_recvlogical` writes: every message of the plugin, whichever it is, followed by a line break."""

from collections.abc import Sequence

import pyarrow as pa

from pgcdc_cli.errors import ErrorKind, PgcdcError
from pgcdc_cli.formats.base import Data, EncodedSlice, Piece
from pgcdc_cli.formats.compress import join_bytes
from pgcdc_cli.pgoutput.changes import Edge, Slice
from pgcdc_cli.xlogdata import XLOGDATA_HEADER, xlogdata_start


def encode_frames(frames: Sequence[bytes]) -> EncodedSlice:
    """Unwrap XLogData frames, at least one.

    A plugin's message doesn't say where a transaction ends, so the edge is the last message's start LSN.
    """
    lines = b"".join([part for frame in frames for part in (frame[XLOGDATA_HEADER:], b"\n")])
    first, last = xlogdata_start(frames[0]), xlogdata_start(frames[-1])
    return EncodedSlice((Piece("", len(frames), first, last, lines),), Edge(last, last, 0))


class RawFormat:
    """How sinks write what `encode_frames` gave; what is decoded has lost its bytes, and is refused."""

    name = "raw"
    suffix = ".raw"
    tail = b""

    def encode(self, part: Slice) -> EncodedSlice:  # noqa: ARG002 - the contract's
        raise PgcdcError(ErrorKind.UNEXPECTED, "could not write raw messages: they are decoded already")

    def frame(self, data: Sequence[Data]) -> bytes | memoryview | pa.Buffer:
        return join_bytes(data)
