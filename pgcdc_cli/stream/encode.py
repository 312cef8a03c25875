"""Frames of one connection to encoded slices: decode, assemble, format; or the plugin's bytes as they are.

Frames are decoded and assembled into slices of changes by `pgoutput/transactions.py`, and formatted by
`formats/`.
"""

from collections.abc import Callable, Iterator, Sequence
from typing import Protocol

import pyarrow as pa

from pgcdc_cli.changes.slice import Slice
from pgcdc_cli.errors import ErrorKind, PgcdcError, UndecodableError
from pgcdc_cli.formats.interface import EncodedSlice, Format, Piece
from pgcdc_cli.formats.raw import RawFormat
from pgcdc_cli.frames import MESSAGE_TAG, XLOGDATA_HEADER, largest_start, xlogdata_start
from pgcdc_cli.lsn import Lsn
from pgcdc_cli.pgoutput.message_batch import LARGEST_BATCH, SMALLEST_BATCH
from pgcdc_cli.pgoutput.messages import Tag
from pgcdc_cli.pgoutput.transactions import PgoutputDecoder
from pgcdc_cli.stream.invalid_text import TextMender

_COMMIT = bytes([Tag.COMMIT])
_GOES_ON = frozenset(
    bytes([tag])
    for tag in (
        Tag.BEGIN,
        Tag.BEGIN_PREPARE,
        Tag.STREAM_START,
        Tag.ORIGIN,
        Tag.RELATION,
        Tag.TYPE,
        Tag.INSERT,
        Tag.UPDATE,
        Tag.DELETE,
        Tag.TRUNCATE,
    )
)
"""What is never the last message of a transaction or streamed block."""

_GATHER = 0.005
"""Seconds to wait for more of an open transaction before what is there is decoded."""

_MANY_FRAMES = 16
"""Frames of any plugin that come at once only while there are more."""

_FEW_ROWS, _MANY_ROWS = 64, 256
"""Rows of a table and shape, on average: each such group of a batch has its price, whatever is in it."""

_LARGEST_OUTPUT = 24 << 20
"""Bytes that should come of one full batch, at most."""


def next_batch(size: int, decoded: Slice, encoded: EncodedSlice) -> int:
    """Say how many messages are best taken at once after such a slice of a batch of this size.

    More where its rows are divided among many tables, which cost more than the rows; fewer where that is
    over, or what comes of them is large.
    """
    rows, groups = sum(map(len, decoded.changes)), len(decoded.changes)
    if not rows:
        return size
    output = sum(map(_size, encoded.pieces)) * size // rows
    if rows > groups * _MANY_ROWS or output > _LARGEST_OUTPUT:
        return max(size // 2, SMALLEST_BATCH)
    is_full = rows >= size // 4
    if is_full and rows < groups * _FEW_ROWS and 2 * output <= _LARGEST_OUTPUT:
        return min(2 * size, LARGEST_BATCH)
    return size


def _size(piece: Piece) -> int:
    data = piece.data
    return data.get_total_buffer_size() if isinstance(data, pa.RecordBatch) else len(data)


def portions(frames: Sequence[bytes], size: int | None) -> Iterator[Sequence[bytes]]:
    """Divide frames where a transaction ends, each time there are `size` bytes of them; None for never."""
    if size is None or sum(map(len, frames)) <= size:
        yield frames
        return
    start = taken = 0
    for number, frame in enumerate(frames, 1):
        taken += len(frame)
        if taken >= size and frame[MESSAGE_TAG] == _COMMIT:
            yield frames[start:number]
            start, taken = number, 0
    if start < len(frames):
        yield frames[start:]


class FrameEncoder(Protocol):
    """Encodes the frames of one connection; `ended` once the end position or count is reached.

    `in_transaction`: this is no edge. `batch` is how many frames are best encoded at once.
    """

    @property
    def batch(self) -> int: ...

    @property
    def in_transaction(self) -> bool: ...

    @property
    def ended(self) -> bool: ...

    def patience(self, last: bytes, came: int) -> float | None:
        """Say how many seconds to wait for what goes on after the last of `came` frames; None for nothing."""
        ...

    def encode(self, frames: Sequence[bytes]) -> Iterator[EncodedSlice]: ...


class ChangeEncoder:
    """Decodes, assembles, formats; as much at a time as memory should hold.

    `look_at` takes each slice before it is formatted, and gives what of it is to be.
    """

    def __init__(
        self,
        decoder: PgoutputDecoder,
        encoding: Format,
        mender: TextMender,
        look_at: Callable[[Slice], Slice],
    ) -> None:
        self._decoder = decoder
        self._encoding = encoding
        self._mender = mender
        self._look_at = look_at

    @property
    def batch(self) -> int:
        return self._decoder.batch

    @property
    def in_transaction(self) -> bool:
        return self._decoder.in_transaction

    @property
    def ended(self) -> bool:
        return self._decoder.ended

    def patience(self, last: bytes, came: int) -> float | None:  # noqa: ARG002 - the contract's
        """Wait after all that begins a transaction or a streamed block, or stands in one."""
        return _GATHER if last[MESSAGE_TAG] in _GOES_ON else None

    def encode(self, frames: Sequence[bytes]) -> Iterator[EncodedSlice]:
        """Raise what decoder and format raise; any other exception becomes an UndecodableError.

        So it can be reported: it would come again at every start.
        """
        held = self._decoder.held
        taken = [*held, *frames] if held else frames
        try:
            for decoded in self._decoder.slices(frames):
                encoded = self._encode(self._look_at(decoded), taken)
                self._decoder.batch = next_batch(self._decoder.batch, decoded, encoded)
                yield encoded
        except (PgcdcError, MemoryError):
            raise
        except Exception as error:
            raise self._unexpected(error, "messages", taken) from error

    def _encode(self, decoded: Slice, frames: Sequence[bytes]) -> EncodedSlice:
        try:
            return self._mender.encode(self._encoding, decoded)
        except (PgcdcError, MemoryError):
            raise
        except Exception as error:
            raise self._unexpected(error, self._whose(decoded), frames) from error

    def _unexpected(self, error: Exception, what: str, frames: Sequence[bytes]) -> UndecodableError:
        buffer = self._decoder.replayed
        if buffer is None:
            messages = [frame[XLOGDATA_HEADER:] for frame in frames]
            first, last = xlogdata_start(frames[0]), xlogdata_start(frames[-1])
        else:
            messages = [buffer.message(number) for number in range(len(buffer))]
            first, last = Lsn(int(buffer.lsn[0])), Lsn(int(buffer.lsn[-1]))
        reason = (
            f"could not handle {what}: unexpected {type(error).__name__}: {error} (LSN {first} to {last})"
        )
        return UndecodableError(reason, b"".join(one + b"\n" for one in messages), ErrorKind.UNEXPECTED)

    def _whose(self, decoded: Slice) -> str:
        """Name the table whose changes can't be encoded by themselves, either."""
        for batch in decoded.changes:
            try:
                self._encoding.encode(Slice(None, (batch,)))
            except Exception:  # noqa: BLE001 - whatever it is, it is this table's
                return f'changes of table "{batch.table.display}"'
        return "a transaction"


class RawEncoder:
    """The plugin's messages as they are; a frame's start LSN tells whether it is at the end, or beyond it.

    The first one at the end is the last one wanted, as pg_recvlogical has it: a transaction that begins where
    another ended has its first message at the same position.
    """

    batch = SMALLEST_BATCH
    in_transaction = False

    def __init__(self, encoding: RawFormat, until: Lsn | None) -> None:
        self._encoding = encoding
        self._until = until
        self.ended = False

    def patience(self, last: bytes, came: int) -> float | None:  # noqa: ARG002 - the contract's
        """Look once more where many came at once: what they belong to nobody knows, the plugin may be any."""
        return 0.0 if came >= _MANY_FRAMES else None

    def encode(self, frames: Sequence[bytes]) -> Iterator[EncodedSlice]:
        wanted = frames if self._until is None else self._up_to(frames, self._until)
        if wanted:
            yield self._encoding.encode_frames(wanted)

    def _up_to(self, frames: Sequence[bytes], until: Lsn) -> Sequence[bytes]:
        if largest_start(frames) < until:
            return frames
        self.ended = True
        number, start = next(
            (number, start)
            for number, frame in enumerate(frames)
            if (start := xlogdata_start(frame)) >= until
        )
        return frames[: number + (start == until)]
