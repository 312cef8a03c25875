"""Frames of one connection to encoded slices: decoded and formatted, or the plugin's bytes as they are."""

from collections.abc import Sequence
from typing import Protocol

from pgcdc_cli.formats.base import EncodedSlice, Format
from pgcdc_cli.formats.raw import encode_frames
from pgcdc_cli.lsn import Lsn
from pgcdc_cli.pgoutput.transactions import Assembler
from pgcdc_cli.replication.frames import xlogdata_start


class Pipeline(Protocol):
    """Frames of one connection to encoded slices; `ended` once the end position or count is reached."""

    @property
    def in_transaction(self) -> bool: ...

    @property
    def ended(self) -> bool: ...

    def encode(self, frames: Sequence[bytes]) -> list[EncodedSlice]: ...


class ChangePipeline:
    """Decode, assemble, format."""

    def __init__(self, assembler: Assembler, encoding: Format) -> None:
        self._assembler = assembler
        self._encoding = encoding

    @property
    def in_transaction(self) -> bool:
        return self._assembler.in_transaction

    @property
    def ended(self) -> bool:
        return self._assembler.ended

    def encode(self, frames: Sequence[bytes]) -> list[EncodedSlice]:
        return [self._encoding.encode(part) for part in self._assembler.assemble(frames)]


class RawPipeline:
    """The plugin's messages as they are; a frame's start LSN tells whether it is beyond the end."""

    in_transaction = False

    def __init__(self, until: Lsn | None) -> None:
        self._until = until
        self.ended = False

    def encode(self, frames: Sequence[bytes]) -> list[EncodedSlice]:
        wanted = frames if self._until is None else self._up_to(frames, self._until)
        return [encode_frames(wanted)] if wanted else []

    def _up_to(self, frames: Sequence[bytes], until: Lsn) -> Sequence[bytes]:
        for number, frame in enumerate(frames):
            if xlogdata_start(frame) > until:
                self.ended = True
                return frames[:number]
        return frames
