"""Encode what comes over one connection: decode, assemble and format it, or pass the plugin's bytes on.

`pgoutput/transactions.py` decodes frames and assembles them into slices of changes, `formats/` formats these.
"""

from collections.abc import Callable, Iterator
from typing import Protocol

import pyarrow as pa

from pgcdc_cli.changes.edge import LastCommit
from pgcdc_cli.changes.slice import Slice
from pgcdc_cli.errors import ErrorKind, PgcdcError, UndecodableError
from pgcdc_cli.formats.interface import EncodedSlice, Format, Piece
from pgcdc_cli.formats.raw import RawFormat
from pgcdc_cli.frames import Frames, xlogdata_start
from pgcdc_cli.lsn import Lsn
from pgcdc_cli.pgoutput.message_batch import LARGEST_BATCH, SMALLEST_BATCH
from pgcdc_cli.pgoutput.messages import Tag
from pgcdc_cli.pgoutput.transactions import PgoutputDecoder
from pgcdc_cli.stream.invalid_text import TextMender, invalid_value
from pgcdc_cli.types.database_text import DatabaseText

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
"""Tags of messages that are never the last one of a transaction or streamed block."""

_GATHER = 0.005
"""Seconds to wait for more of an open transaction before decoding what has arrived."""

_MANY_FRAMES = 16
"""Frames of any plugin at once that suggest that more are coming."""

_FEW_ROWS, _MANY_ROWS = 64, 256
"""Average rows of a table and shape below which batches grow, and above which they shrink."""

_LARGEST_OUTPUT = 24 << 20
"""Bytes of output that one full batch should make, at most."""


def next_batch(size: int, decoded: Slice, encoded: EncodedSlice) -> int:
    """Return the best size in messages for the next batch, given a slice of a batch of this size.

    More if the rows are divided among many tables, which then cost more than the rows; fewer if they no
    longer are, or if the output is large.
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


def portions(frames: Frames, size: int | None) -> Iterator[Frames]:
    """Divide frames into portions of at least `size` bytes that end with a commit; None: don't divide."""
    if size is None or frames.size <= size:
        yield frames
        return
    start = taken = 0
    for number, length in enumerate(frames.sizes(), 1):
        taken += length
        if taken >= size and frames.tag(number - 1) == _COMMIT:
            yield frames[start:number]
            start, taken = number, 0
    if start < len(frames):
        yield frames[start:]


class FrameEncoder(Protocol):
    """Encodes the frames of one connection; `ended` once the end position or count is reached.

    `in_transaction`: a transaction is open. `batch` is how many frames are best encoded at once.
    """

    @property
    def batch(self) -> int: ...

    @property
    def in_transaction(self) -> bool: ...

    @property
    def ended(self) -> bool: ...

    def linger(self, frames: Frames, came: int) -> float | None:
        """Return the seconds to wait for more after these, of which `came` came last; None: don't wait."""
        ...

    def encode(self, frames: Frames) -> Iterator[EncodedSlice]: ...


class SliceEncoder:
    """Formats the slices of one connection to `database`, whose values it first converts to UTF-8."""

    def __init__(self, format_: Format, mender: TextMender, database: str) -> None:
        self._format = format_
        self._mender = mender
        self._database = database

    @property
    def text(self) -> DatabaseText:
        """How text is received."""
        return self._mender.text

    @property
    def typed(self) -> bool:
        """Whether it also takes columns of their Arrow types."""
        return self._format.capabilities.typed

    def restart(self, last_commit: LastCommit | None) -> None:
        """Go back to the last edge; `last_commit` is the last transaction before it, or None."""
        if self._format.restartable is not None:
            self._format.restartable.restart(self._database, last_commit)

    def encode(self, slice_: Slice) -> EncodedSlice:
        """Encode a slice. Raises PROTOCOL, naming the first value that isn't valid UTF-8."""
        mended = self._mender.mend(slice_)
        try:
            return self._mender.counted(self._format.encode(mended))
        except MemoryError:
            raise
        except Exception as error:
            invalid = invalid_value(mended)
            if invalid is None:
                raise
            raise invalid from error

    def failing_table(self, slice_: Slice) -> str | None:
        """Return the name of the first table whose changes alone can't be formatted, None if all can."""
        for batch in slice_.changes:
            try:
                self._format.encode(Slice(None, (batch,)))
            except Exception:  # noqa: BLE001 - whatever it is, it is this table's
                return batch.table.display
        return None


class ChangeEncoder:
    """Decodes, assembles and formats frames, as much at a time as memory should hold.

    `look_at` is given each slice before it is formatted, and returns the slice to format.
    """

    def __init__(
        self,
        decoder: PgoutputDecoder,
        encoder: SliceEncoder,
        look_at: Callable[[Slice], Slice],
    ) -> None:
        self._decoder = decoder
        self._encoder = encoder
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

    def linger(self, frames: Frames, came: int) -> float | None:  # noqa: ARG002 - the contract's
        """Wait after a message that begins a transaction or a streamed block, or is inside of one."""
        return _GATHER if frames.tag(-1) in _GOES_ON else None

    def encode(self, frames: Frames) -> Iterator[EncodedSlice]:
        """Encode frames. Raises what decoder and format raise.

        Any other exception becomes an UndecodableError, so that it can be reported: it would recur at every
        start.
        """
        taken = self._decoder.held + frames
        try:
            for decoded in self._decoder.slices(frames):
                encoded = self._encode(self._look_at(decoded), taken)
                self._decoder.batch = next_batch(self._decoder.batch, decoded, encoded)
                yield encoded
        except (PgcdcError, MemoryError):
            raise
        except Exception as error:
            raise self._unexpected(error, "messages", taken) from error

    def _encode(self, decoded: Slice, frames: Frames) -> EncodedSlice:
        try:
            return self._encoder.encode(decoded)
        except (PgcdcError, MemoryError):
            raise
        except Exception as error:
            raise self._unexpected(error, self._whose(decoded), frames) from error

    def _unexpected(self, error: Exception, what: str, frames: Frames) -> UndecodableError:
        buffer = self._decoder.replayed
        if buffer is None:
            messages = frames.messages()
            first, last = xlogdata_start(frames[0]), xlogdata_start(frames[-1])
        else:
            messages = [buffer.message(number) for number in range(len(buffer))]
            first, last = Lsn(int(buffer.lsn[0])), Lsn(int(buffer.lsn[-1]))
        reason = (
            f"could not handle {what}: unexpected {type(error).__name__}: {error} (LSN {first} to {last})"
        )
        return UndecodableError(reason, b"".join(one + b"\n" for one in messages), ErrorKind.UNEXPECTED)

    def _whose(self, decoded: Slice) -> str:
        table = self._encoder.failing_table(decoded)
        return "a transaction" if table is None else f'changes of table "{table}"'


class RawEncoder:
    """Passes the plugin's messages on unchanged; a frame's start LSN is compared with the end position.

    The first frame at the end position is the last one wanted, as in pg_recvlogical: a transaction that
    begins where another ended has its first message at the same position.
    """

    batch = SMALLEST_BATCH
    in_transaction = False

    def __init__(self, format_: RawFormat, until: Lsn | None) -> None:
        self._format = format_
        self._until = until
        self.ended = False

    def linger(self, frames: Frames, came: int) -> float | None:  # noqa: ARG002 - the contract's
        """Look for more, without waiting, after many frames: a plugin's transactions can't be recognized."""
        return 0.0 if came >= _MANY_FRAMES else None

    def encode(self, frames: Frames) -> Iterator[EncodedSlice]:
        wanted = frames if self._until is None else self._up_to(frames, self._until)
        if wanted:
            yield self._format.encode_frames(wanted)

    def _up_to(self, frames: Frames, until: Lsn) -> Frames:
        if frames.largest_start < until:
            return frames
        self.ended = True
        number, start = next(
            (number, start)
            for number, frame in enumerate(frames)
            if (start := xlogdata_start(frame)) >= until
        )
        return frames[: number + (start == until)]
