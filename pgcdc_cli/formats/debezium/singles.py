"""Records of what is no row: truncates, logical decoding messages, transactions and heartbeats."""

from collections.abc import Iterator, Sequence

import numpy as np

from pgcdc_cli.formats.debezium import names, schemas
from pgcdc_cli.formats.debezium.counting import Sums
from pgcdc_cli.formats.debezium.record import (
    Context,
    Part,
    Places,
    Record,
    lines_of,
    record_line,
    source_parts,
)
from pgcdc_cli.formats.debezium.schemas import Schema
from pgcdc_cli.formats.debezium.tables import EventTable, wrapping
from pgcdc_cli.formats.debezium.types.javamap import buckets, java_hash
from pgcdc_cli.formats.debezium.types.kind import token
from pgcdc_cli.formats.debezium.types.texts import encoded
from pgcdc_cli.formats.lines import Lines, joined_lines
from pgcdc_cli.formats.stamps import integer_text
from pgcdc_cli.pgoutput.changes import Int64s, Marks, MessageChange, Stamps, TruncateChange
from pgcdc_cli.types import kernels
from pgcdc_cli.types.kernels import Column

_BEGIN: Sequence[Part] = (b'"BEGIN"', b"null", b',"data_collections":null')


def truncate(context: Context, change: TruncateChange, table: EventTable, places: Places, now: int) -> bytes:
    """Build the event of one table of a TRUNCATE."""
    relation = (change.table.schema, change.table.name)
    record = Record(context, table, relation, places, now)
    return _line(record.parts("t", (b"null",)))


def message(context: Context, change: MessageChange, places: Places, now: int) -> bytes:
    """Build a logical decoding message's event."""
    config = context.config
    prefix, content = token(change.prefix), encoded(config)(change.content)
    source = source_parts(context, ("", ""), places)
    transaction = b',"transaction":null' if context.newer else b""
    value: tuple[Part, ...] = (
        b'{"op":"m","ts_ms":%d,"source":' % (now // 1_000_000),
        *source,
        transaction + b',"message":{"prefix":%s,"content":%s}}' % (prefix, content),
    )
    key = _wrapped(
        schemas.MESSAGE_KEY, [b'{"prefix":%s}' % prefix], enabled=config.key_converter_schemas_enable
    )
    head, tail = wrapping(schemas.message(config), enabled=config.value_converter_schemas_enable)
    topic = token(f"{config.topic_prefix}.message")
    return _line(record_line(context, topic, key, (head, *value, tail)))


def transactions(context: Context, marks: Marks, sums: Sums) -> Iterator[tuple[Int64s, Lines]]:
    """Build the BEGIN and END records of a slice: which of the marks they are, and their lines."""
    begins, ends = np.flatnonzero(marks.kinds == "B"), np.flatnonzero(marks.kinds != "B")
    if len(begins):
        yield begins, _transactions(context, marks.stamps, begins, _BEGIN)
    if len(ends):
        counts, collections = (kernels.take(column, ends) for column in _sums(sums, len(marks)))
        end = (b'"END"', counts, b',"data_collections":[', collections, b"]")
        yield ends, _transactions(context, marks.stamps, ends, end)


def _sums(sums: Sums, transactions: int) -> tuple[Column, Column]:
    """Write how many events each transaction has, and the members of the list that says of which tables."""
    hashes = np.array([java_hash(name) for name in sums.names], np.int64)
    heads = kernels.binary([b'{"data_collection":%s,"event_count":' % token(name) for name in sums.names])
    ended = sums.transaction < transactions
    transaction, table, events = sums.transaction[ended], sums.table[ended], sums.events[ended]
    sizes = np.bincount(transaction, minlength=transactions)
    order = np.lexsort((buckets(hashes[table], sizes[transaction]), transaction))
    members = kernels.join([kernels.take(heads, table[order]), integer_text(events[order]), b"}"])
    offsets = np.append(0, np.cumsum(sizes))
    total = np.append(0, np.cumsum(events))
    return integer_text(np.diff(total[offsets])), kernels.join_lists(offsets, members, b",")


def _transactions(context: Context, stamps: Stamps, rows: Int64s, told: Sequence[Part]) -> Lines:
    """Write records of which `told` begins with the status and ends with the tables."""
    identity = (b'"', integer_text(stamps.xid[rows]), b":", integer_text(stamps.lsn[rows]), b'"')
    status, *counts = told
    value = (b'{"status":', status, b',"id":', *identity, b',"event_count":', *counts)
    value = (*value, b',"ts_ms":', integer_text(stamps.commit_ts[rows] // 1000), b"}")
    topic = token(names.topic(context.config, context.config.topic_transaction))
    key = (b'{"id":', *identity, b"}")
    parts = _control(context, topic, (schemas.TRANSACTION_KEY, key), (schemas.TRANSACTION_VALUE, value))
    return lines_of(parts, len(rows))


def heartbeat(context: Context, millis: int) -> bytes:
    """Build a heartbeat record."""
    config = context.config
    topic = token(config.topic_delimiter.join((config.topic_heartbeat_prefix, config.topic_prefix)))
    key = b'{"serverName":%s}' % token(config.topic_prefix)
    value = b'{"ts_ms":%d}' % millis
    parts = _control(context, topic, (schemas.HEARTBEAT_KEY, [key]), (schemas.HEARTBEAT_VALUE, [value]))
    return b"".join(part for part in parts if isinstance(part, bytes))


def _control(
    context: Context, topic: bytes, key: tuple[Schema, Sequence[Part]], value: tuple[Schema, Sequence[Part]]
) -> Sequence[Part]:
    config = context.config
    wrapped_key = _wrapped(*key, enabled=config.key_converter_schemas_enable)
    wrapped_value = _wrapped(*value, enabled=config.value_converter_schemas_enable)
    return record_line(context, topic, wrapped_key, wrapped_value)


def _wrapped(schema: Schema, payload: Sequence[Part], *, enabled: bool) -> Sequence[Part]:
    head, tail = wrapping(schema, enabled=enabled)
    return (head, *payload, tail)


def _line(parts: Sequence[Part]) -> bytes:
    return bytes(joined_lines(lines_of(parts, 1)))
