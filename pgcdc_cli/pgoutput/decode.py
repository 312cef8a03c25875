"""The plain decoder: decodes the bytes of one message into one typed object, or raises one error.

PostgreSQL manual, "Logical Replication Message Formats"; `src/backend/replication/logical/proto.c`. Rules:
nothing is read beyond the message; a count or length is checked against the remaining bytes before it is
used; whatever the bytes, the only exception is UndecodableError. Offsets in its text count from the message's
tag. The rows of a batch are decoded together, by `decode_columns.py`.
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
"""The latest timestamp on the wire that fits 64 bits when it counts from 1970."""

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
"""Bytes of a column with an empty name in a Relation message."""


def decode(
    data: bytes,
    *,
    in_stream: bool = False,
    streaming_parallel: bool = False,
    text: DatabaseText = STRICT,
) -> Message:
    """Decode `data`, which is one message.

    `in_stream`: it came between Stream Start and Stream Stop, so that changes begin with an xid.
    `streaming_parallel`: protocol 4 with `streaming 'parallel'`, so that Stream Abort has LSN and time.
    `text`: the encoding of names. Raises UndecodableError if `data` is too short, too long, or no message.
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
    """Decode the message at `offset` of several in a row; return it and the offset of its end."""
    cursor = _Cursor(data, offset, in_stream, streaming_parallel, text)
    reader = _READERS.get(cursor.tag)
    if reader is None:
        raise cursor.error("no such message in protocol 1 to 4")
    message = reader(cursor)
    return message, cursor.offset


def _title(tag: int) -> str:
    if tag in _READERS:
        return f"{Tag(tag).title} message"
    return f"message with tag 0x{tag:02X}"


def _bytes(number: int) -> str:
    return "1 byte" if number == 1 else f"{number} bytes"


def _are_left(number: int) -> str:
    return f"{number} {'is' if number == 1 else 'are'} left"


class _Cursor:
    """Reads one message front to back; each read is given the name of its field, for errors."""

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

    def error(self, reason: str, remedy: str | None = None) -> UndecodableError:
        message = f"could not decode {_title(self.tag)}: {reason}"
        return UndecodableError(message, self.data[self.start :], remedy=remedy)

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
            where = f"{error.reason} at byte {self.at + error.start}"
            reason = f"{what} at byte {self.at} is not UTF-8: {where}"
            raise self.error(reason, INVALID_NAME_HINT) from None
        self.offset = end + 1
        return decoded

    def sized(self, what: str) -> bytes:
        """Read an Int32 length, and as many bytes."""
        size = self.int32(f"{what} length")
        if size < 0:
            raise self.error(f"{what} length at byte {self.at - 4} is {size}")
        offset = self._advance(size, what)
        return self.data[offset : offset + size]

    def whole_text(self) -> m.Text | None:
        """Read a column's text value if there is a complete one, else None: the fast path of tuples."""
        data, start = self.data, self.offset + 5
        if start > len(data) or data[self.offset] != TEXT:
            return None
        end = start + int.from_bytes(data[start - 4 : start], "big")
        if end > len(data):
            return None
        self.offset = end
        return m.Text(data[start:end])

    def check_count(self, count: int, size: int, what: str) -> int:
        """Check a count just read against the remaining bytes, with at least `size` for each item."""
        if count * size > self.left:
            raise self.error(
                f"{count} {what} at byte {self.at} want {count * size} bytes, {_are_left(self.left)}"
            )
        return count

    def stream_xid(self) -> int | None:
        return self.uint32("xid") if self.in_stream else None


def _read_begin(c: _Cursor) -> m.Begin:
    return m.Begin(c.lsn("final LSN"), c.time("commit time"), c.uint32("xid"))


def _read_commit(c: _Cursor) -> m.Commit:
    c.no_flags()
    return m.Commit(c.lsn("commit LSN"), c.lsn("end LSN"), c.time("commit time"))


def _read_origin(c: _Cursor) -> Origin:
    return Origin(c.lsn("commit LSN"), c.string("name"))


def _read_relation(c: _Cursor) -> m.Relation:
    xid = c.stream_xid()
    oid = c.uint32("relation OID")
    namespace = c.string("namespace") or "pg_catalog"
    name = c.string("name")
    identity = _read_identity(c)
    count = c.check_count(c.uint16("column count"), _SMALLEST_COLUMN, "columns")
    columns = tuple(_read_column(c, number) for number in range(1, count + 1))
    return m.Relation(oid, namespace, name, identity, columns, xid)


def _read_identity(c: _Cursor) -> ReplicaIdentity:
    letter = c.uint8("replica identity")
    try:
        return ReplicaIdentity(chr(letter))
    except ValueError:
        raise c.error(
            f"replica identity at byte {c.at - 1} is 0x{letter:02X}, not one of d, n, f, i"
        ) from None


def _read_column(c: _Cursor, number: int) -> m.RelationColumn:
    what = f"column {number}"
    key = bool(c.uint8(f"{what} flags") & _KEY_COLUMN)
    return m.RelationColumn(
        c.string(f"{what} name"), c.uint32(f"{what} type OID"), c.int32(f"{what} type modifier"), key
    )


def _read_type(c: _Cursor) -> m.Type:
    xid = c.stream_xid()
    oid = c.uint32("type OID")
    return m.Type(oid, c.string("namespace") or "pg_catalog", c.string("name"), xid)


def _read_insert(c: _Cursor) -> m.Insert:
    xid = c.stream_xid()
    relation_oid = c.uint32("relation OID")
    _read_marker(c, "N")
    return m.Insert(relation_oid, _read_full_tuple(c), xid)


def _read_update(c: _Cursor) -> m.Update:
    xid = c.stream_xid()
    relation_oid = c.uint32("relation OID")
    marker = _read_marker(c, "KON")
    old = None if marker == "N" else _read_old(c, marker)
    if old is not None:
        _read_marker(c, "N")
    return m.Update(relation_oid, old, _read_full_tuple(c), xid)


def _read_delete(c: _Cursor) -> m.Delete:
    xid = c.stream_xid()
    relation_oid = c.uint32("relation OID")
    return m.Delete(relation_oid, _read_old(c, _read_marker(c, "KO")), xid)


def _read_marker(c: _Cursor, allowed: str) -> str:
    marker = chr(c.uint8("tuple marker"))
    if marker not in allowed:
        raise c.error(f"tuple marker at byte {c.at - 1} is 0x{ord(marker):02X}, not {' or '.join(allowed)}")
    return marker


def _read_old(c: _Cursor, marker: str) -> m.KeyTuple | m.FullTuple:
    if marker == "O":
        return _read_full_tuple(c)
    count = c.check_count(c.uint16("column count"), 1, "columns")
    return m.KeyTuple(tuple([c.whole_text() or _read_key_value(c, number) for number in range(1, count + 1)]))


def _read_full_tuple(c: _Cursor) -> m.FullTuple:
    count = c.check_count(c.uint16("column count"), 1, "columns")
    return m.FullTuple(tuple([c.whole_text() or _read_value(c, number) for number in range(1, count + 1)]))


def _read_key_value(c: _Cursor, number: int) -> m.Null | m.Text | m.Binary:
    # The server detoasts a replica identity before it is logged (ExtractReplicaIdentity in heapam.c).
    at = c.at
    value = _read_value(c, number)
    if isinstance(value, m.UnchangedToast):
        raise c.error(f"column {number} at byte {at} is unchanged TOAST in a key")
    return value


def _read_value(c: _Cursor, number: int) -> m.TupleValue:
    kind = c.uint8(f"column {number} kind")
    if kind == TEXT:
        return m.Text(c.sized(f"column {number}"))
    if kind == BINARY:
        return m.Binary(c.sized(f"column {number}"))
    if kind == NULL:
        return m.Null()
    if kind == UNCHANGED_TOAST:
        return m.UnchangedToast()
    raise c.error(f"column {number} kind at byte {c.at - 1} is 0x{kind:02X}, not one of n, u, t, b")


def _read_truncate(c: _Cursor) -> m.Truncate:
    xid = c.stream_xid()
    count = c.uint32("relation count")
    options = c.uint8("options")
    c.check_count(count, 4, "relations")
    oids = tuple(c.uint32("relation OID") for _ in range(count))
    return m.Truncate(
        oids, bool(options & _TRUNCATE_CASCADE), bool(options & _TRUNCATE_RESTART_IDENTITY), xid
    )


def _read_message(c: _Cursor) -> m.LogicalMessage:
    xid = c.stream_xid()
    transactional = bool(c.uint8("flags") & _TRANSACTIONAL)
    return m.LogicalMessage(transactional, c.lsn("LSN"), c.string("prefix"), c.sized("content"), xid)


def _read_stream_start(c: _Cursor) -> m.StreamStart:
    return m.StreamStart(c.uint32("xid"), c.uint8("first segment") == 1)


def _read_stream_stop(c: _Cursor) -> m.StreamStop:  # noqa: ARG001  # a reader like the others
    return m.StreamStop()


def _read_stream_commit(c: _Cursor) -> m.StreamCommit:
    xid = c.uint32("xid")
    c.no_flags()
    return m.StreamCommit(xid, c.lsn("commit LSN"), c.lsn("end LSN"), c.time("commit time"))


def _read_stream_abort(c: _Cursor) -> m.StreamAbort:
    xid, subxid = c.uint32("xid"), c.uint32("subtransaction xid")
    if not c.streaming_parallel:
        return m.StreamAbort(xid, subxid)
    return m.StreamAbort(xid, subxid, c.lsn("abort LSN"), c.time("abort time"))


def _prepared(c: _Cursor, first: str, time: str) -> tuple[Lsn, Lsn, int, int, str]:
    return c.lsn(first), c.lsn("end LSN"), c.time(time), c.uint32("xid"), c.string("gid")


def _read_begin_prepare(c: _Cursor) -> m.BeginPrepare:
    return m.BeginPrepare(*_prepared(c, "prepare LSN", "prepare time"))


def _read_prepare(c: _Cursor) -> m.Prepare:
    c.no_flags()
    return m.Prepare(*_prepared(c, "prepare LSN", "prepare time"))


def _read_commit_prepared(c: _Cursor) -> m.CommitPrepared:
    c.no_flags()
    return m.CommitPrepared(*_prepared(c, "commit LSN", "commit time"))


def _read_rollback_prepared(c: _Cursor) -> m.RollbackPrepared:
    c.no_flags()
    return m.RollbackPrepared(
        c.lsn("prepare end LSN"),
        c.lsn("rollback end LSN"),
        c.time("prepare time"),
        c.time("rollback time"),
        c.uint32("xid"),
        c.string("gid"),
    )


def _read_stream_prepare(c: _Cursor) -> m.StreamPrepare:
    c.no_flags()
    return m.StreamPrepare(*_prepared(c, "prepare LSN", "prepare time"))


_READERS: dict[int, Callable[[_Cursor], Message]] = {
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
