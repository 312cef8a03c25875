"""Records of what is no row: truncates, logical decoding messages, transactions and heartbeats."""

from collections.abc import Iterator, Sequence

from pgcdc_cli.formats.debezium import names, schemas
from pgcdc_cli.formats.debezium.progress import Timeline
from pgcdc_cli.formats.debezium.record import Context, Record, record_line, source_parts
from pgcdc_cli.formats.debezium.schemas import Schema
from pgcdc_cli.formats.debezium.tables import EventTable, wrapping
from pgcdc_cli.formats.debezium.types.kind import token
from pgcdc_cli.formats.debezium.types.texts import encoded, java_map_order
from pgcdc_cli.formats.jsonobject import joined
from pgcdc_cli.pgoutput.changes import MessageChange, TransactionMark, TruncateChange
from pgcdc_cli.types.kernels import Part

_BEGIN, _END = "BEGIN", "END"


def truncate(
    context: Context, change: TruncateChange, table: EventTable, timeline: Timeline, now: int
) -> bytes:
    """Build the event of one table of a TRUNCATE."""
    relation = (change.table.schema, change.table.name)
    record = Record(context, table, relation, timeline.truncate(change), now)
    return _line(record.parts("t", (b"null",)))


def message(context: Context, change: MessageChange, timeline: Timeline, now: int) -> bytes:
    """Build a logical decoding message's event."""
    config = context.config
    prefix, content = token(change.prefix), encoded(config)(change.content)
    source = source_parts(context, ("", ""), timeline.place(change.stamp))
    transaction = b',"transaction":null' if context.newer else b""
    value: tuple[Part, ...] = (
        b'{"op":"m","ts_ms":%d,"source":' % (now // 1_000_000),
        *source,
        transaction + b',"message":{"prefix":%s,"content":%s}}' % (prefix, content),
    )
    key = _wrapped(
        schemas.MESSAGE_KEY, b'{"prefix":%s}' % prefix, enabled=config.key_converter_schemas_enable
    )
    head, tail = wrapping(schemas.message(config), enabled=config.value_converter_schemas_enable)
    topic = token(f"{config.topic_prefix}.message")
    return _line(record_line(context, topic, (key,), (head, *value, tail)))


def transactions(context: Context, timeline: Timeline) -> Iterator[tuple[TransactionMark, bytes]]:
    """Build the BEGIN and END records of a slice."""
    for mark, events in timeline.finished:
        if mark.kind == "B":
            yield mark, _transaction(context, mark, _BEGIN, b"null", b"null")
        else:
            counts = [
                b'{"data_collection":%s,"event_count":%d}' % (token(name), events[name])
                for name in java_map_order(events)
            ]
            collections = b"[" + b",".join(counts) + b"]"
            yield mark, _transaction(context, mark, _END, b"%d" % sum(events.values()), collections)


def _transaction(
    context: Context, mark: TransactionMark, status: str, count: bytes, collections: bytes
) -> bytes:
    config, stamp = context.config, mark.stamp
    identity = b'"%d:%d"' % (stamp.xid or 0, stamp.lsn)
    value = b'{"status":"%s","id":%s,"event_count":%s,"data_collections":%s,"ts_ms":%d}' % (
        status.encode(), identity, count, collections, (stamp.commit_ts or 0) // 1000,
    )  # fmt: skip
    topic = token(names.topic(config, config.topic_transaction))
    return _control(
        context, topic, (schemas.TRANSACTION_KEY, b'{"id":%s}' % identity), (schemas.TRANSACTION_VALUE, value)
    )


def heartbeat(context: Context, millis: int) -> bytes:
    """Build a heartbeat record."""
    config = context.config
    topic = token(config.topic_delimiter.join((config.topic_heartbeat_prefix, config.topic_prefix)))
    key = b'{"serverName":%s}' % token(config.topic_prefix)
    value = b'{"ts_ms":%d}' % millis
    return _control(context, topic, (schemas.HEARTBEAT_KEY, key), (schemas.HEARTBEAT_VALUE, value))


def _control(context: Context, topic: bytes, key: tuple[Schema, bytes], value: tuple[Schema, bytes]) -> bytes:
    config = context.config
    wrapped_key = _wrapped(*key, enabled=config.key_converter_schemas_enable)
    wrapped_value = _wrapped(*value, enabled=config.value_converter_schemas_enable)
    parts = record_line(context, topic, (wrapped_key,), (wrapped_value,))
    return b"".join(part for part in parts if isinstance(part, bytes))


def _wrapped(schema: Schema, payload: bytes, *, enabled: bool) -> bytes:
    head, tail = wrapping(schema, enabled=enabled)
    return head + payload + tail


def _line(parts: Sequence[Part]) -> bytes:
    line: bytes = joined(parts)[0].as_py()
    return line
