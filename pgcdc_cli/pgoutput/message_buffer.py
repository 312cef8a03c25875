"""A batch of XLogData frames in one buffer, and big-endian integers gathered from it for all at once."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from pgcdc_cli.changes.spool import PADDING, Chunk
from pgcdc_cli.errors import UndecodableError
from pgcdc_cli.frames import START_LSN, XLOGDATA_HEADER
from pgcdc_cli.lsn import Lsn
from pgcdc_cli.pgoutput.decode import decode
from pgcdc_cli.pgoutput.messages import Message, Tag
from pgcdc_cli.types import kernels
from pgcdc_cli.types.database_text import STRICT, DatabaseText
from pgcdc_cli.types.kernels import Booleans, Int64s

LARGEST = 2**31 - 1
"""Bytes in one buffer: Arrow's binary offsets have 32 bits. So has CopyData's length: no frame is larger."""

SMALLEST_BATCH, LARGEST_BATCH = 1 << 13, 1 << 16
"""Messages decoded at once, at most: the cost of a batch vanishes, and they stay in cache.

Where many tables share them, the cost of each table in it counts, and there may be more.
"""

MESSAGE_BYTES = 128
"""Bytes of a message up to which a batch has as many as it may; of larger ones, fewer are enough."""


@dataclass(frozen=True, slots=True, eq=False)
class MessageBuffer:
    """n messages: message i is `data[starts[i]:ends[i]]`.

    `lsn` is its frame's start LSN, `head` its first eight bytes, as if zeroes followed the last message.
    `words[p]` is the 64-bit integer at byte p. `text` says how names are written.
    """

    data: bytes
    arrow: pa.Buffer
    words: Int64s
    starts: Int64s
    ends: Int64s
    lsn: Int64s
    head: Int64s
    text: DatabaseText = STRICT

    @classmethod
    def join(cls, frames: Sequence[bytes], text: DatabaseText = STRICT) -> "Iterator[MessageBuffer]":
        """Put frames into as few buffers as `LARGEST` allows.

        UndecodableError for a frame without a message, or with a sign-bit LSN.
        """
        sizes = np.fromiter(map(len, frames), np.int64, len(frames))
        ends = np.cumsum(sizes)
        start = done = 0
        while start < len(frames):
            stop = max(start + 1, int(np.searchsorted(ends, done + LARGEST, "right")))
            yield cls._join(frames[start:stop], sizes[start:stop], text)
            start, done = stop, int(ends[stop - 1])

    @classmethod
    def _join(cls, frames: Sequence[bytes], sizes: Int64s, text: DatabaseText) -> "MessageBuffer":
        if int(sizes.min()) <= XLOGDATA_HEADER:
            short = frames[int(np.argmin(sizes))]
            wanted = XLOGDATA_HEADER + 1
            raise UndecodableError(
                f"could not decode XLogData frame: it wants {wanted} bytes or more, has {len(short)}", short
            )
        data = b"".join([*frames, PADDING])
        words = _words(data)
        ends = np.cumsum(sizes)
        starts = ends - sizes
        lsn = _checked(native(words[starts + START_LSN.start]), frames)
        starts += XLOGDATA_HEADER
        return cls(data, pa.py_buffer(data), words, starts, ends, lsn, native(words[starts]), text)

    @classmethod
    def of(cls, chunk: Chunk, text: DatabaseText = STRICT) -> "MessageBuffer":
        """Take messages without their frames' headers."""
        data, words = chunk.data, _words(chunk.data)
        ends = chunk.offset + np.cumsum(chunk.sizes)
        starts = ends - chunk.sizes
        return cls(data, pa.py_buffer(data), words, starts, ends, chunk.lsn, native(words[starts]), text)

    def select(self, which: "slice | Booleans") -> "MessageBuffer":
        """Take some of the messages; they stay where they are."""
        starts, ends, lsn, head = (column[which] for column in (self.starts, self.ends, self.lsn, self.head))
        return replace(self, starts=starts, ends=ends, lsn=lsn, head=head)

    def __len__(self) -> int:
        return len(self.starts)

    @property
    def tags(self) -> Int64s:
        return self.head >> 56 & 0xFF

    def message(self, number: int) -> bytes:
        return self.data[int(self.starts[number]) : int(self.ends[number])]

    def decode(self, number: int, *, in_stream: bool = False, streaming_parallel: bool = False) -> Message:
        """Decode one message, as `decode` does; the error says where in the log it is."""
        try:
            return decode(
                self.message(number),
                in_stream=in_stream,
                streaming_parallel=streaming_parallel,
                text=self.text,
            )
        except UndecodableError as error:
            failure = self.error(number, error.message)
            if error.remedy is not None:
                failure.hint = failure.remedy = error.remedy
            raise failure from None

    def sizes(self, numbers: Int64s) -> Int64s:
        return self.ends[numbers] - self.starts[numbers]

    def field(self, numbers: Int64s, offset: int) -> Int64s:
        """Gather the 64 bits at `offset` of each message; they mean nothing where the message is shorter."""
        return self.int64(np.minimum(self.starts[numbers] + offset, len(self.words) - 1))

    def int64(self, positions: Int64s) -> Int64s:
        return native(self.words[positions])

    def pack(self, starts: Int64s, ends: Int64s) -> pa.BinaryArray:
        """Copy n values out of the buffer, to stand one behind the other."""
        return kernels.pack(self.arrow, starts, ends)

    def error(self, number: int, message: str) -> UndecodableError:
        """Make an error about one message that says where in the log it is."""
        # What tells of a table or a type has none, and stands before the change that has.
        later = self.lsn[number:]
        lsn = int(later[np.argmax(later > 0)])
        return UndecodableError(f"{message} (LSN {Lsn(lsn)})", self.message(number))


def as_buffer(values: NDArray[np.int32] | NDArray[np.uint8]) -> pa.Buffer:
    return pa.py_buffer(values.data)


def _words(data: bytes) -> Int64s:
    return np.ndarray((len(data) - 7,), ">i8", data, strides=(1,))


def tag_mask(*tags: Tag) -> NDArray[np.bool_]:
    """Make a table that says of every byte whether it is one of these tags."""
    found = np.zeros(256, np.bool_)
    found[list(tags)] = True
    return found


def native(values: NDArray[np.int64]) -> Int64s:
    """In this machine's byte order."""
    return values.astype(np.int64)


def _checked(lsn: Int64s, frames: Sequence[bytes]) -> Int64s:
    wrong = np.flatnonzero(lsn < 0)
    if len(wrong):
        number = int(wrong[0])
        text = Lsn(int(lsn[number]) + 2**64)
        raise UndecodableError(
            f"could not decode XLogData frame: start LSN at byte 1 is {text}, with the sign bit set",
            frames[number],
        )
    return lsn
