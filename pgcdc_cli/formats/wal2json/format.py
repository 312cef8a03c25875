"""Lines as the plugin's, one object each: B and C, I, U, D, T and M; or, in version 1, a transaction's.

The reference is wal2json 2.6 in a session of the same role, with UTC. What differs, and
why, is in `docs/coming-from-wal2json.md`.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import ClassVar, Literal

import pyarrow as pa

from pgcdc_cli.changes.slice import MessageChange, Slice, Stamps, TransactionBoundary, TruncateChange
from pgcdc_cli.changes.table import TableSchema
from pgcdc_cli.formats.interface import Capabilities, Compression, Data, EncodedSlice, Layout
from pgcdc_cli.formats.json_object import one_string, quote
from pgcdc_cli.formats.lines import LINES, SUFFIXES, EncodedLines, compress, piece_of, target_of
from pgcdc_cli.formats.stamps import one_lsn
from pgcdc_cli.formats.stream_order import Encoded, tables_of
from pgcdc_cli.formats.wal2json.objects import Commas, change_objects, line_end
from pgcdc_cli.formats.wal2json.options import Wal2jsonOptions
from pgcdc_cli.formats.wal2json.row_lines import one_stamp, one_transaction, row_lines
from pgcdc_cli.formats.wal2json.tables import name_of
from pgcdc_cli.types.kernels import Int64s


@dataclass(frozen=True, slots=True)
class Wal2jsonFormat:
    """`layout` "table" gives one target a table; it has no place for begins and commits."""

    name: ClassVar[str] = "wal2json"
    tail: ClassVar[None] = None
    capabilities: ClassVar[Capabilities] = Capabilities(
        ("table", "stream"), ("none", "gzip", "zstd"), snapshot=False
    )
    decodes: ClassVar[Literal[True]] = True
    restartable: ClassVar[None] = None

    layout: Layout = "table"
    compression: Compression = "none"
    options: Wal2jsonOptions = field(default_factory=Wal2jsonOptions)
    _commas: Commas = field(default_factory=Commas, init=False)

    @property
    def suffix(self) -> str:
        return ".jsonl" + SUFFIXES[self.compression]

    @property
    def wants_boundaries(self) -> bool:
        return self.options.has_boundaries

    def encode(self, slice_: Slice) -> EncodedSlice:
        """Encode the wanted rows of a slice; a PROTOCOL error where a value is no valid UTF-8."""
        wanted = _wanted(slice_, self.options)
        lines = self._lines if self.options.format_version == 2 else self._objects
        pieces = tuple(piece_of(some) for some in LINES.in_order(list(lines(wanted))))
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

    def _objects(self, slice_: Slice) -> Iterator[EncodedLines]:
        """Give the parts of version 1's objects, which have no truncates."""
        options, firsts = self.options, self._commas.firsts(slice_)
        for batch in slice_.changes:
            objects = change_objects(batch, options, firsts)
            yield Encoded("", None, batch.stamps.index, batch.stamps.commit_lsn, objects, batch.lacks_any)
        for event in slice_.messages:
            stamps = Stamps.of([event.stamp])
            yield self._events(None, stamps, [_message_object(event, options, firsts)])
        for boundaries in slice_.boundaries:
            parts = [_object_edge(event, options) for event in boundaries]
            yield self._events(None, boundaries.stamps, parts)

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


def _message_object(event: MessageChange, options: Wal2jsonOptions, firsts: Int64s) -> bytes:
    """Write a message among a transaction's changes; one outside of any is an object of its own."""
    change = b'{"kind":"message","transactional":%b,"prefix":%b,"content":%b}' % (
        b"true" if event.transactional else b"false",
        quote(event.prefix),
        _content(event.content),
    )
    if not event.transactional:
        return b'{"change":[%b]}\n' % change
    return (b"" if event.stamp.index in firsts else b",") + change + line_end(options)


def _object_edge(event: TransactionBoundary, options: Wal2jsonOptions) -> bytes:
    """Begin or end a transaction's object; where it ends is known at its end."""
    if event.kind == "B":
        members = one_transaction(event.stamp, options)
        return b"{%b" % (members[1:] + b"," if members else b"") + b'"change":[' + line_end(options)
    position = b',"nextlsn":"%b"' % one_lsn(event.stamp.lsn) if options.include_lsn else b""
    return b"]%b}\n" % position


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
