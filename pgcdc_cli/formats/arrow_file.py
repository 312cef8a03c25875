"""Arrow's IPC file format: a stream between two magic strings, with a footer that says where its batches are.

The stream comes first, so that a file grows by appending, and its footer is made when it is finished, from
the messages' own metadata. See "IPC File Format" in Arrow's "Columnar Format", File.fbs and Message.fbs; the
metadata are FlatBuffers (https://flatbuffers.dev, "FlatBuffer Binary Format").
"""

import struct
from collections.abc import Callable, Iterator
from typing import NamedTuple, TypeAlias

MAGIC = b"ARROW1\0\0"
"""Begins a file, padded to 8 bytes; ends it without the padding."""

END_OF_STREAM = b"\xff\xff\xff\xff\0\0\0\0"
"""Continuation marker and a metadata length of 0 (Arrow columnar format, "IPC Streaming Format")."""

ReadAt: TypeAlias = Callable[[int, int], bytes]
"""Reads at an offset so many bytes of a file, or as many as there are."""

_PREFIX = struct.Struct("<4xi")
"""Of a message: continuation marker, length of its metadata."""

_FOOTER = struct.Struct("<I6HihxxIII")
"""Root offset; vtable with sizes and four fields; table: offset to the vtable, and these fields."""

_BLOCK = struct.Struct("<qi4xq")
"""Offset of a message, length of its prefix and metadata, length of its body."""

_VERSION, _HEADER, _BODY_LENGTH = 0, 2, 3
"""The fields of a Message that a footer tells of."""


class _Message(NamedTuple):
    """A message's metadata, a FlatBuffer, and where in the file the message is."""

    offset: int
    metadata: bytes

    def field(self, number: int) -> int | None:
        """Find a field; None where it isn't there, for it has its default value."""
        (table,) = struct.unpack_from("<I", self.metadata)
        vtable = table - struct.unpack_from("<i", self.metadata, table)[0]
        at = vtable + 4 + 2 * number
        if at >= vtable + struct.unpack_from("<H", self.metadata, vtable)[0]:
            return None
        (offset,) = struct.unpack_from("<H", self.metadata, at)
        return table + offset if offset else None

    def integer(self, number: int, layout: str) -> int:
        at = self.field(number)
        return 0 if at is None else int(struct.unpack_from(layout, self.metadata, at)[0])

    @property
    def body(self) -> int:
        """Bytes behind the metadata."""
        return self.integer(_BODY_LENGTH, "<q")

    @property
    def end(self) -> int:
        return self.offset + _PREFIX.size + len(self.metadata) + self.body


def file_end(read: ReadAt) -> bytes:
    """Make what ends a file: the stream's end and the footer.

    What doesn't begin as a file is a stream, as earlier versions wrote it, and gets a stream's end.
    """
    if read(0, len(MAGIC)) != MAGIC:
        return END_OF_STREAM
    schema, *batches = _messages(read)
    footer = _footer(schema, batches)
    return END_OF_STREAM + footer + struct.pack("<i", len(footer)) + MAGIC.rstrip(b"\0")


def _messages(read: ReadAt) -> Iterator[_Message]:
    at = len(MAGIC)
    while prefix := read(at, _PREFIX.size):
        message = _Message(at, read(at + _PREFIX.size, _PREFIX.unpack(prefix)[0]))
        yield message
        at = message.end


def _footer(schema: _Message, batches: list[_Message]) -> bytes:
    """Make a Footer, which has the whole Message of the schema in it, to refer to the schema in there."""
    header = schema.field(_HEADER)
    assert header is not None
    in_message = header + struct.unpack_from("<I", schema.metadata, header)[0]
    dictionaries = _FOOTER.size
    blocks = dictionaries + 8
    message = blocks + 4 + _BLOCK.size * len(batches)
    version = schema.integer(_VERSION, "<h")
    # The table's fields are 4, 8, 12 and 16 bytes behind its begin at 16; offsets count from themselves.
    table = (16 - 4, version, message + in_message - 24, dictionaries - 28, blocks - 32)
    return b"".join(
        [
            _FOOTER.pack(16, 12, 20, 4, 8, 12, 16, *table),
            struct.pack("<I4xI", 0, len(batches)),
            *(_BLOCK.pack(b.offset, _PREFIX.size + len(b.metadata), b.body) for b in batches),
            schema.metadata,
        ]
    )
