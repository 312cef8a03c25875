"""One file of any kind: what it is shows in its first bytes."""

from collections.abc import Callable, Iterator

from pgcdc_cli.reader.arrow import read_arrow
from pgcdc_cli.reader.jsonlines import read_json_lines
from pgcdc_cli.reader.raw import TAGS, read_capture
from pgcdc_cli.reader.record import Record, undecodable
from pgcdc_cli.reader.stored import Promise, Stored, open_stored

_ARROW = b"\xff\xff\xff\xff"
"""Begins a message of an IPC stream ("Encapsulated message format" in Arrow's "Columnar Format")."""


def read_file(path: str, promise: Promise | None = None) -> Iterator[Record]:
    """Read JSON lines (compressed or not), an Arrow stream, or raw pgoutput; nothing from an empty file.

    `promise` is what the file must be. Raises PgcdcError: PROTOCOL for a file of another kind or with damaged
    content, CHECKPOINT where it isn't as promised, USAGE where it isn't there.
    """
    with open_stored(path, promise) as file:
        start = _peek(file)
        if start:
            yield from _reader(path, start)(path, file)


def _peek(file: Stored) -> bytes:
    return file.peek(4)[:4]


def _reader(path: str, start: bytes) -> Callable[[str, Stored], Iterator[Record]]:
    if start == _ARROW:
        return read_arrow
    if start[:1] == b"{":
        return read_json_lines
    if start[0] in TAGS:
        return read_capture
    raise undecodable(path, "it is neither JSON lines nor Arrow nor pgoutput")
