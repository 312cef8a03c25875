"""Frames of one connection to encoded slices: decoded and formatted, or the plugin's bytes as they are."""

from collections.abc import Iterator, Sequence
from typing import Protocol

from pgcdc_cli.formats.base import EncodedSlice, Format
from pgcdc_cli.formats.raw import encode_frames
from pgcdc_cli.lsn import Lsn
from pgcdc_cli.pgoutput.streamed import Streams
from pgcdc_cli.replication.frames import xlogdata_start


class Pipeline(Protocol):
    """Frames of one connection to encoded slices; `ended` once the end position or count is reached.

    `in_transaction`: this is no edge. `in_block`: more comes at once that nobody waits for a part of.
    """

    @property
    def in_transaction(self) -> bool: ...

    @property
    def in_block(self) -> bool: ...

    @property
    def ended(self) -> bool: ...

    def encode(self, frames: Sequence[bytes]) -> Iterator[EncodedSlice]: ...


class ChangePipeline:
    """Decode, assemble, format; as much at a time as memory should hold."""

    def __init__(self, streams: Streams, encoding: Format) -> None:
        self._streams = streams
        self._encoding = encoding

    @property
    def in_transaction(self) -> bool:
        return self._streams.in_transaction

    @property
    def in_block(self) -> bool:
        return self._streams.in_block or self._streams.in_transaction

    @property
    def ended(self) -> bool:
        return self._streams.ended

    def encode(self, frames: Sequence[bytes]) -> Iterator[EncodedSlice]:
        return map(self._encoding.encode, self._streams.slices(frames))


class RawPipeline:
    """The plugin's messages as they are; a frame's start LSN tells whether it is beyond the end."""

    in_transaction = in_block = False

    def __init__(self, until: Lsn | None) -> None:
        self._until = until
        self.ended = False

    def encode(self, frames: Sequence[bytes]) -> Iterator[EncodedSlice]:
        wanted = frames if self._until is None else self._up_to(frames, self._until)
        if wanted:
            yield encode_frames(wanted)

    def _up_to(self, frames: Sequence[bytes], until: Lsn) -> Sequence[bytes]:
        for number, frame in enumerate(frames):
            if xlogdata_start(frame) > until:
                self.ended = True
                return frames[:number]
        return frames
