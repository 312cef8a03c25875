"""The plain decoder: one message's bytes to one typed object, or to one error.

PostgreSQL manual, "Logical Replication Message Formats"; `src/backend/replication/logical/proto.c`. Rules:
nothing is read beyond the message; a count or length from the buffer is held against the bytes that are left
before anything is done with it; whatever the bytes, the only exception is UndecodableError. Offsets in its
text count from the message's tag. The rows of a batch are decoded at once, by `decode_columns.py`.
"""

import struct
from collections.abc import Callable

from pgcdc_cli.changes.origin import Origin
from pgcdc_cli.changes.table import ReplicaIdentity
from pgcdc_cli.errors import UndecodableError
from pgcdc_cli.frames import POSTGRES_EPOCH
from pgcdc_cli.lsn import Lsn
from pgcdc_cli.pgoutput import messages as m
from pgcdc_cli.pgoutput.messages import BINARY, NULL, TEXT, UNCHANGED_TOAST, Message, Tag
from pgcdc_cli.types.database_text import INVALID_NAME_HINT, STRICT, DatabaseText

LATEST_WIRE_TIME = 2**63 - 1 - POSTGRES_EPOCH
"""A later one would not fit 64 bits once it counts from 1970."""

BEGIN = struct.Struct(">cQqI")
"""A whole Begin message: tag, final LSN, time, xid."""

COMMIT = struct.Struct(">cBQQq")
"""A whole Commit message: tag, flags, commit LSN, end LSN, time."""

_UINT16 = struct.Struct(">H")
_INT32 = struct.Struct(">i")
_UINT32 = struct.Struct(">I")
_INT64 = struct.Struct(">q")

_KEY_COLUMN = 1
_TRUNCATE_CASCADE = 1
_TRUNCATE_RESTART_IDENTITY = 2
_TRANSACTIONAL = 1
_SMALLEST_COLUMN = 10
"""Bytes of a relation message's column with an empty name."""


def decode(
    data: bytes,
    *,
    in_stream: bool = False,
    streaming_parallel: bool = False,
    text: DatabaseText = STRICT,
) -> Message:
    """Decode the one message that `data` is.

    `in_stream`: it came between Stream Start and Stream Stop, so that changes begin with an xid.
    `streaming_parallel`: protocol 4 with `streaming 'parallel'`, so that Stream Abort has LSN and time.
    `text`: how names are written. UndecodableError if it is short, long, or no message.
    """
    message, end = decode_next(data, 0, in_stream=in_stream, streaming_parallel=streaming_parallel, text=text)
    if end != len(data):
        left = _are_left(len(data) - end)
        raise UndecodableError(f"could not decode {_title(data[0])}: it ends at byte {end}, {left}", data)
    return message


def decode_next(
    data: bytes,
    offset: int,
    *,
    in_stream: bool = False,
    streaming_parallel: bool = False,
    text: DatabaseText = STRICT,
) -> tuple[Message, int]:
    """Decode the message at `offset` of several that follow one another; returns it and where it ends."""
    reader = _MessageReader(data, offset, in_stream, streaming_parallel, text)
    read = _READERS.get(reader.tag)
    if read is None:
        raise reader.error("no such message in protocol 1 to 4")
    return read(reader), reader.offset


def _title(tag: int) -> str:
    if tag in _READERS:
        return f"{Tag(tag).title} message"
    return f"message with tag 0x{tag:02X}"


def _bytes(number: int) -> str:
    return "1 byte" if number == 1 else f"{number} bytes"


def _are_left(number: int) -> str:
    return f"{number} {'is' if number == 1 else 'are'} left"


class _MessageReader:
    """Reads one message front to back; each read says what it is after, for the error."""

    __slots__ = ("data", "in_stream", "offset", "start", "streaming_parallel", "tag", "text")

    def __init__(
        self, data: bytes, start: int, in_stream: bool, streaming_parallel: bool, text: DatabaseText
    ) -> None:
        if start >= len(data):
            raise UndecodableError(
                "could not decode message: its tag at byte 0 wants 1 byte, 0 are left", b""
            )
        self.data = data
        self.start = start
        self.tag = data[start]
        self.offset = start + 1
        self.in_stream = in_stream
        self.streaming_parallel = streaming_parallel
        self.text = text

    @property
    def at(self) -> int:
        return self.offset - self.start

    @property
    def left(self) -> int:
        return len(self.data) - self.offset

    def error(self, reason: str) -> UndecodableError:
        return UndecodableError(f"could not decode {_title(self.tag)}: {reason}", self.data[self.start :])

    def _advance(self, size: int, what: str) -> int:
        if size > self.left:
            raise self.error(f"{what} at byte {self.at} wants {_bytes(size)}, {_are_left(self.left)}")
        offset = self.offset
        self.offset += size
        return offset

    def uint8(self, what: str) -> int:
        return self.data[self._advance(1, what)]

    def uint16(self, what: str) -> int:
        value: int = _UINT16.unpack_from(self.data, self._advance(2, what))[0]
        return value

    def int32(self, what: str) -> int:
        value: int = _INT32.unpack_from(self.data, self._advance(4, what))[0]
        return value

    def uint32(self, what: str) -> int:
        value: int = _UINT32.unpack_from(self.data, self._advance(4, what))[0]
        return value

    def int64(self, what: str) -> int:
        value: int = _INT64.unpack_from(self.data, self._advance(8, what))[0]
        return value

    def lsn(self, what: str) -> Lsn:
        value = self.int64(what)
        if value < 0:
            raise self.error(f"{what} at byte {self.at - 8} is {Lsn(value + 2**64)}, with the sign bit set")
        return Lsn(value)

    def time(self, what: str) -> int:
        value = self.int64(what)
        if value > LATEST_WIRE_TIME:
            raise self.error(f"{what} at byte {self.at - 8} is {value}, beyond {LATEST_WIRE_TIME}")
        return value + POSTGRES_EPOCH

    def no_flags(self) -> None:
        flags = self.uint8("flags")
        if flags:
            raise self.error(f"flags at byte {self.at - 1} are 0x{flags:02X}, not 0")

    def string(self, what: str) -> str:
        end = self.data.find(0, self.offset)
        if end < 0:
            raise self.error(f"{what} at byte {self.at} has no terminator, {_are_left(self.left)}")
        text = self.data[self.offset : end]
        try:
            decoded = self.text.name(text)
        except UnicodeDecodeError as error:
            failure = self.error(
                f"{what} at byte {self.at} is not UTF-8: {error.reason} at byte {self.at + error.start}"
            )
            failure.hint = failure.remedy = INVALID_NAME_HINT
            raise failure from None
        self.offset = end + 1
        return decoded

    def sized(self, what: str) -> bytes:
        """Read bytes that follow their Int32 length."""
        size = self.int32(f"{what} length")
        if size < 0:
            raise self.error(f"{what} length at byte {self.at - 4} is {size}")
        offset = self._advance(size, what)
        return self.data[offset : offset + size]

    def whole_text(self) -> m.Text | None:
        """Read a column's text if there is a whole one: the usual value, for which no error is worded."""
        data, start = self.data, self.offset + 5
        if start > len(data) or data[self.offset] != TEXT:
            return None
        end = start + int.from_bytes(data[start - 4 : start], "big")
        if end > len(data):
            return None
        self.offset = end
        return m.Text(data[start:end])

    def check_count(self, count: int, size: int, what: str) -> int:
        """Hold the count just read against what is left, at `size` bytes or more for each."""
        if count * size > self.left:
            raise self.error(
                f"{count} {what} at byte {self.at} want {count * size} bytes, {_are_left(self.left)}"
            )
        return count

    def stream_xid(self) -> int | None:
        return self.uint32("xid") if self.in_stream else None


def _read_begin(r: _MessageReader) -> m.Begin:
    return m.Begin(r.lsn("final LSN"), r.time("commit time"), r.uint32("xid"))


def _read_commit(r: _MessageReader) -> m.Commit:
    r.no_flags()
    return m.Commit(r.lsn("commit LSN"), r.lsn("end LSN"), r.time("commit time"))


def _read_origin(r: _MessageReader) -> Origin:
    return Origin(r.lsn("commit LSN"), r.string("name"))


def _read_relation(r: _MessageReader) -> m.Relation:
    xid = r.stream_xid()
    oid = r.uint32("relation OID")
    namespace = r.string("namespace") or "pg_catalog"
    name = r.string("name")
    identity = _read_identity(r)
    count = r.check_count(r.uint16("column count"), _SMALLEST_COLUMN, "columns")
    columns = tuple(_read_column(r, number) for number in range(1, count + 1))
    return m.Relation(oid, namespace, name, identity, columns, xid)


def _read_identity(r: _MessageReader) -> ReplicaIdentity:
    letter = r.uint8("replica identity")
    try:
        return ReplicaIdentity(chr(letter))
    except ValueError:
        raise r.error(
            f"replica identity at byte {r.at - 1} is 0x{letter:02X}, not one of d, n, f, i"
        ) from None


def _read_column(r: _MessageReader, number: int) -> m.RelationColumn:
    what = f"column {number}"
    key = bool(r.uint8(f"{what} flags") & _KEY_COLUMN)
    return m.RelationColumn(
        r.string(f"{what} name"), r.uint32(f"{what} type OID"), r.int32(f"{what} type modifier"), key
    )


def _read_type(r: _MessageReader) -> m.Type:
    xid = r.stream_xid()
    oid = r.uint32("type OID")
    return m.Type(oid, r.string("namespace") or "pg_catalog", r.string("name"), xid)


def _read_insert(r: _MessageReader) -> m.Insert:
    xid = r.stream_xid()
    relation_oid = r.uint32("relation OID")
    _read_marker(r, "N")
    return m.Insert(relation_oid, _read_full_tuple(r), xid)


def _read_update(r: _MessageReader) -> m.Update:
    xid = r.stream_xid()
    relation_oid = r.uint32("relation OID")
    marker = _read_marker(r, "KON")
    old = None if marker == "N" else _read_old(r, marker)
    if old is not None:
        _read_marker(r, "N")
    return m.Update(relation_oid, old, _read_full_tuple(r), xid)


def _read_delete(r: _MessageReader) -> m.Delete:
    xid = r.stream_xid()
    relation_oid = r.uint32("relation OID")
    return m.Delete(relation_oid, _read_old(r, _read_marker(r, "KO")), xid)


def _read_marker(r: _MessageReader, allowed: str) -> str:
    marker = chr(r.uint8("tuple marker"))
    if marker not in allowed:
        raise r.error(f"tuple marker at byte {r.at - 1} is 0x{ord(marker):02X}, not {' or '.join(allowed)}")
    return marker


def _read_old(r: _MessageReader, marker: str) -> m.KeyTuple | m.FullTuple:
    if marker == "O":
        return _read_full_tuple(r)
    count = r.check_count(r.uint16("column count"), 1, "columns")
    return m.KeyTuple(tuple([r.whole_text() or _read_key_value(r, number) for number in range(1, count + 1)]))


def _read_full_tuple(r: _MessageReader) -> m.FullTuple:
    count = r.check_count(r.uint16("column count"), 1, "columns")
    return m.FullTuple(tuple([r.whole_text() or _read_value(r, number) for number in range(1, count + 1)]))


def _read_key_value(r: _MessageReader, number: int) -> m.Null | m.Text | m.Binary:
    # The server detoasts what identifies a row before it logs it (ExtractReplicaIdentity in heapam.c).
    at = r.at
    value = _read_value(r, number)
    if isinstance(value, m.UnchangedToast):
        raise r.error(f"column {number} at byte {at} is unchanged TOAST in a key")
    return value


def _read_value(r: _MessageReader, number: int) -> m.TupleValue:
    kind = r.uint8(f"column {number} kind")
    if kind == TEXT:
        return m.Text(r.sized(f"column {number}"))
    if kind == BINARY:
        return m.Binary(r.sized(f"column {number}"))
    if kind == NULL:
        return m.Null()
    if kind == UNCHANGED_TOAST:
        return m.UnchangedToast()
    raise r.error(f"column {number} kind at byte {r.at - 1} is 0x{kind:02X}, not one of n, u, t, b")


def _read_truncate(r: _MessageReader) -> m.Truncate:
    xid = r.stream_xid()
    count = r.uint32("relation count")
    options = r.uint8("options")
    r.check_count(count, 4, "relations")
    oids = tuple(r.uint32("relation OID") for _ in range(count))
    return m.Truncate(
        oids, bool(options & _TRUNCATE_CASCADE), bool(options & _TRUNCATE_RESTART_IDENTITY), xid
    )


def _read_message(r: _MessageReader) -> m.LogicalMessage:
    xid = r.stream_xid()
    transactional = bool(r.uint8("flags") & _TRANSACTIONAL)
    return m.LogicalMessage(transactional, r.lsn("LSN"), r.string("prefix"), r.sized("content"), xid)


def _read_stream_start(r: _MessageReader) -> m.StreamStart:
    return m.StreamStart(r.uint32("xid"), r.uint8("first segment") == 1)


def _read_stream_stop(r: _MessageReader) -> m.StreamStop:  # noqa: ARG001  # a reader like the others
    return m.StreamStop()


def _read_stream_commit(r: _MessageReader) -> m.StreamCommit:
    xid = r.uint32("xid")
    r.no_flags()
    return m.StreamCommit(xid, r.lsn("commit LSN"), r.lsn("end LSN"), r.time("commit time"))


def _read_stream_abort(r: _MessageReader) -> m.StreamAbort:
    xid, subxid = r.uint32("xid"), r.uint32("subtransaction xid")
    if not r.streaming_parallel:
        return m.StreamAbort(xid, subxid)
    return m.StreamAbort(xid, subxid, r.lsn("abort LSN"), r.time("abort time"))


def _prepared(r: _MessageReader, first: str, time: str) -> tuple[Lsn, Lsn, int, int, str]:
    return r.lsn(first), r.lsn("end LSN"), r.time(time), r.uint32("xid"), r.string("gid")


def _read_begin_prepare(r: _MessageReader) -> m.BeginPrepare:
    return m.BeginPrepare(*_prepared(r, "prepare LSN", "prepare time"))


def _read_prepare(r: _MessageReader) -> m.Prepare:
    r.no_flags()
    return m.Prepare(*_prepared(r, "prepare LSN", "prepare time"))


def _read_commit_prepared(r: _MessageReader) -> m.CommitPrepared:
    r.no_flags()
    return m.CommitPrepared(*_prepared(r, "commit LSN", "commit time"))


def _read_rollback_prepared(r: _MessageReader) -> m.RollbackPrepared:
    r.no_flags()
    return m.RollbackPrepared(
        r.lsn("prepare end LSN"),
        r.lsn("rollback end LSN"),
        r.time("prepare time"),
        r.time("rollback time"),
        r.uint32("xid"),
        r.string("gid"),
    )


def _read_stream_prepare(r: _MessageReader) -> m.StreamPrepare:
    r.no_flags()
    return m.StreamPrepare(*_prepared(r, "prepare LSN", "prepare time"))


_READERS: dict[int, Callable[[_MessageReader], Message]] = {
    Tag.BEGIN: _read_begin,
    Tag.COMMIT: _read_commit,
    Tag.ORIGIN: _read_origin,
    Tag.RELATION: _read_relation,
    Tag.TYPE: _read_type,
    Tag.INSERT: _read_insert,
    Tag.UPDATE: _read_update,
    Tag.DELETE: _read_delete,
    Tag.TRUNCATE: _read_truncate,
    Tag.MESSAGE: _read_message,
    Tag.STREAM_START: _read_stream_start,
    Tag.STREAM_STOP: _read_stream_stop,
    Tag.STREAM_COMMIT: _read_stream_commit,
    Tag.STREAM_ABORT: _read_stream_abort,
    Tag.BEGIN_PREPARE: _read_begin_prepare,
    Tag.PREPARE: _read_prepare,
    Tag.COMMIT_PREPARED: _read_commit_prepared,
    Tag.ROLLBACK_PREPARED: _read_rollback_prepared,
    Tag.STREAM_PREPARE: _read_stream_prepare,
}
