"""What `pg_recvlogical` writes: every message of the plugin, whichever it is, followed by a line break."""

from collections.abc import Sequence

import pyarrow as pa

from pgcdc_cli.errors import ErrorKind, PgcdcError
from pgcdc_cli.formats.base import Data, EncodedSlice, Piece
from pgcdc_cli.formats.compress import join_bytes
from pgcdc_cli.lsn import Lsn
from pgcdc_cli.pgoutput.changes import Edge, Slice

_HEADER = 25
"""Bytes of an XLogData frame before the plugin's message; its start LSN are those from 1 to 8."""


def encode_frames(frames: Sequence[bytes]) -> EncodedSlice:
    """Unwrap XLogData frames, at least one.

    A plugin's message doesn't say where a transaction ends, so the edge is the last message's start LSN.
    """
    lines = b"".join([part for frame in frames for part in (frame[_HEADER:], b"\n")])
    first, last = (Lsn.from_bytes(frame[1:9], "big") for frame in (frames[0], frames[-1]))
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
