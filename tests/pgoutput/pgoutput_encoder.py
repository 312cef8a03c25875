"""Encode messages, for tests only: for the table of samples, and for hypothesis's streams.

`frame` wraps a message in an XLogData frame, as a server does.
"""

import struct
from functools import singledispatch

from pgcdc_cli.changes.origin import Origin
from pgcdc_cli.frames import POSTGRES_EPOCH
from pgcdc_cli.pgoutput import messages as m


def frame(message, lsn=0, **options):
    """`w`, start LSN, end LSN, send time, message; the message may be bytes already."""
    data = message if isinstance(message, bytes) else encode(message, **options)
    return b"w" + struct.pack(">QQq", lsn, lsn, 0) + data


def encode(message, *, streaming_parallel=False):
    data = _encode(message)
    if isinstance(message, m.StreamAbort) and streaming_parallel:
        data += _lsn(message.abort_lsn) + _time(message.abort_time)
    return data


def _lsn(value):
    return struct.pack(">Q", value)


def _time(value):
    return struct.pack(">q", value - POSTGRES_EPOCH)


def _int32(value):
    return struct.pack(">I", value)


def _string(value):
    return value.encode() + b"\0"


def _xid(message):
    return b"" if message.xid is None else _int32(message.xid)


def _namespace(value):
    return _string("" if value == "pg_catalog" else value)


def tuple_data(values):
    return struct.pack(">H", len(values)) + b"".join(map(_value, values))


def _value(value):
    match value:
        case m.Null():
            return b"n"
        case m.UnchangedToast():
            return b"u"
        case m.Text(data):
            return b"t" + _int32(len(data)) + data
        case m.Binary(data):
            return b"b" + _int32(len(data)) + data


def _old(image):
    return (b"K" if isinstance(image, m.KeyTuple) else b"O") + tuple_data(image.values)


@singledispatch
def _encode(message):
    raise TypeError(message)


@_encode.register
def _(message: m.Begin):
    return b"B" + _lsn(message.final_lsn) + _time(message.commit_time) + _int32(message.xid)


@_encode.register
def _(message: m.Commit):
    return b"C\0" + _lsn(message.commit_lsn) + _lsn(message.end_lsn) + _time(message.commit_time)


@_encode.register
def _(message: Origin):
    return b"O" + _lsn(message.commit_lsn) + _string(message.name)


@_encode.register
def _(message: m.Relation):
    head = b"R" + _xid(message) + _int32(message.oid) + _namespace(message.namespace) + _string(message.name)
    columns = b"".join(
        struct.pack(">B", column.key)
        + _string(column.name)
        + struct.pack(">Ii", column.type_oid, column.typmod)
        for column in message.columns
    )
    return head + message.replica_identity.value.encode() + struct.pack(">H", len(message.columns)) + columns


@_encode.register
def _(message: m.Type):
    return b"Y" + _xid(message) + _int32(message.oid) + _namespace(message.namespace) + _string(message.name)


@_encode.register
def _(message: m.Insert):
    return b"I" + _xid(message) + _int32(message.relation_oid) + b"N" + tuple_data(message.new.values)


@_encode.register
def _(message: m.Update):
    old = b"" if message.old is None else _old(message.old)
    return b"U" + _xid(message) + _int32(message.relation_oid) + old + b"N" + tuple_data(message.new.values)


@_encode.register
def _(message: m.Delete):
    return b"D" + _xid(message) + _int32(message.relation_oid) + _old(message.old)


@_encode.register
def _(message: m.Truncate):
    options = message.cascade | message.restart_identity << 1
    oids = b"".join(map(_int32, message.relation_oids))
    return b"T" + _xid(message) + struct.pack(">IB", len(message.relation_oids), options) + oids


@_encode.register
def _(message: m.LogicalMessage):
    flags = struct.pack(">B", message.transactional)
    content = _int32(len(message.content)) + message.content
    return b"M" + _xid(message) + flags + _lsn(message.lsn) + _string(message.prefix) + content


@_encode.register
def _(message: m.StreamStart):
    return b"S" + struct.pack(">IB", message.xid, message.first_segment)


@_encode.register
def _(message: m.StreamStop):  # noqa: ARG001  # the dispatch goes by its type
    return b"E"


@_encode.register
def _(message: m.StreamCommit):
    times = _lsn(message.commit_lsn) + _lsn(message.end_lsn) + _time(message.commit_time)
    return b"c" + _int32(message.xid) + b"\0" + times


@_encode.register
def _(message: m.StreamAbort):
    return b"A" + _int32(message.xid) + _int32(message.subxid)


def _prepared(message, first, time):
    return _lsn(first) + _lsn(message.end_lsn) + _time(time) + _int32(message.xid) + _string(message.gid)


@_encode.register
def _(message: m.BeginPrepare):
    return b"b" + _prepared(message, message.prepare_lsn, message.prepare_time)


@_encode.register
def _(message: m.Prepare):
    return b"P\0" + _prepared(message, message.prepare_lsn, message.prepare_time)


@_encode.register
def _(message: m.CommitPrepared):
    return b"K\0" + _prepared(message, message.commit_lsn, message.commit_time)


@_encode.register
def _(message: m.RollbackPrepared):
    lsns = _lsn(message.prepare_end_lsn) + _lsn(message.rollback_end_lsn)
    times = _time(message.prepare_time) + _time(message.rollback_time)
    return b"r\0" + lsns + times + _int32(message.xid) + _string(message.gid)


@_encode.register
def _(message: m.StreamPrepare):
    return b"p\0" + _prepared(message, message.prepare_lsn, message.prepare_time)
