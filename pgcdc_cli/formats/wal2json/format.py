"""Lines as the plugin's, one object each: B and C, I, U, D, T and M.

The reference is wal2json 2.6 with format-version 2 in a session of the same role, with UTC. What differs, and
why, is in `docs/coming-from-wal2json.md`.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import ClassVar, Literal

import pyarrow as pa

from pgcdc_cli.changes.slice import MessageChange, Slice, Stamps, TransactionBoundary, TruncateChange
from pgcdc_cli.changes.table import TableSchema
from pgcdc_cli.formats.capabilities import Capabilities, Compression, Layout
from pgcdc_cli.formats.interface import Data, EncodedSlice
from pgcdc_cli.formats.json_object import one_string, quote
from pgcdc_cli.formats.lines import LINES, SUFFIXES, EncodedLines, compress, piece_of, target_of
from pgcdc_cli.formats.stamps import one_lsn
from pgcdc_cli.formats.stream_order import Encoded, tables_of
from pgcdc_cli.formats.wal2json.options import Wal2jsonOptions
from pgcdc_cli.formats.wal2json.rows import row_lines
from pgcdc_cli.formats.wal2json.stamps import one_stamp, one_transaction
from pgcdc_cli.formats.wal2json.tables import name_of


@dataclass(frozen=True, slots=True)
class Wal2jsonFormat:
    """`layout` "table" gives one target a table; it has no place for begins and commits."""

    name: ClassVar[str] = "wal2json"
    tail: ClassVar[bytes] = b""
    capabilities: ClassVar[Capabilities] = Capabilities(
        ("table", "stream"), ("none", "gzip", "zstd"), snapshot=False
    )
    decodes: ClassVar[Literal[True]] = True
    restartable: ClassVar[None] = None

    layout: Layout = "table"
    compression: Compression = "none"
    options: Wal2jsonOptions = field(default_factory=Wal2jsonOptions)

    @property
    def suffix(self) -> str:
        return ".jsonl" + SUFFIXES[self.compression]

    @property
    def wants_boundaries(self) -> bool:
        return self.options.include_transaction

    def encode(self, slice_: Slice) -> EncodedSlice:
        """Encode the wanted rows of a slice; a PROTOCOL error where a value is no valid UTF-8."""
        wanted = _wanted(slice_, self.options)
        pieces = tuple(piece_of(lines) for lines in LINES.in_order(list(self._lines(wanted))))
        return EncodedSlice(pieces, wanted.edge, tables_of(wanted))

    def frame(self, data: Sequence[Data]) -> bytes | memoryview | pa.Buffer:
        """Join lines; with a compression, into one frame."""
        return compress(data, self.compression)

    def _lines(self, slice_: Slice) -> Iterator[EncodedLines]:
        options = self.options
        for batch in slice_.changes:
            target = target_of(self.layout, batch.table)
            stamps, lines = batch.stamps, row_lines(batch, options)
            yield Encoded(*target, stamps.index, stamps.commit_lsn, lines, batch.lacks_any)
        for event in slice_.truncates:
            yield self._events(event.table, Stamps.of([event.stamp]), [_truncate(event, options)])
        if slice_.messages:
            stamps = Stamps.of([event.stamp for event in slice_.messages])
            yield self._events(None, stamps, [_message(event, options) for event in slice_.messages])
        for boundaries in slice_.boundaries if self.wants_boundaries else ():
            lines = [_boundary(event, options) for event in boundaries]
            yield self._events(None, boundaries.stamps, lines)

    def _events(self, table: TableSchema | None, stamps: Stamps, lines: list[bytes]) -> EncodedLines:
        return Encoded(*target_of(self.layout, table), stamps.index, stamps.commit_lsn, lines)


def _wanted(slice_: Slice, options: Wal2jsonOptions) -> Slice:
    changes = (one for one in slice_.changes if len(one) and one.operation in options.actions)
    truncates = slice_.truncates if "T" in options.actions else ()
    return replace(
        slice_,
        changes=tuple(one for one in changes if options.wants_table(one.table)),
        truncates=tuple(one for one in truncates if options.wants_table(one.table)),
        messages=tuple(one for one in slice_.messages if options.wants_message(one.prefix)),
    )


def _truncate(event: TruncateChange, options: Wal2jsonOptions) -> bytes:
    return b'{"action":"T"%b%b}\n' % (one_stamp(event.stamp, options), name_of(event.table, options))


def _message(event: MessageChange, options: Wal2jsonOptions) -> bytes:
    return b'{"action":"M"%b,"transactional":%b,"prefix":%b,"content":%b}\n' % (
        one_stamp(event.stamp, options),
        b"true" if event.transactional else b"false",
        quote(event.prefix),
        _content(event.content),
    )


def _content(content: bytes) -> bytes:
    """Give the text before a zero byte, as the plugin does; what is no UTF-8 is replaced."""
    return one_string(content.split(b"\0", 1)[0].decode(errors="replace").encode())


def _boundary(event: TransactionBoundary, options: Wal2jsonOptions) -> bytes:
    stamp, positions = event.stamp, b""
    if options.include_lsn:
        positions = b',"lsn":"%b"' % one_lsn(stamp.commit_lsn)
        # Where a transaction ends is known when it does.
        positions += b"" if event.kind == "B" else b',"nextlsn":"%b"' % one_lsn(stamp.lsn)
    return b'{"action":"%b"%b%b}\n' % (event.kind.encode(), one_transaction(stamp, options), positions)
