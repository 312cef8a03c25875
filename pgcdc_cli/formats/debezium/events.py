"""Debezium's events: rows, truncates, logical decoding messages, transactions and heartbeats.

A delete makes two lines (the event and its tombstone), an update of the key three; they are kept together as
one text. Rows are written as columns; few rows are written one by one with the same result (`few_lines`): a
template, made once, holds all that a table's rows share, except the time of processing.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import lru_cache
from itertools import islice, repeat
from typing import NamedTuple, Self, cast

import numpy as np
import pyarrow as pa

from pgcdc_cli.changes.slice import (
    Boundaries,
    ChangeBatch,
    Image,
    MessageChange,
    Operation,
    Stamps,
    TruncateChange,
    texts_of,
)
from pgcdc_cli.changes.table import MANY_TABLES
from pgcdc_cli.formats.debezium.connector_config import ConnectorConfig
from pgcdc_cli.formats.debezium.event_sequence import MESSAGE_COLLECTION, TransactionCounts
from pgcdc_cli.formats.debezium.event_table import EventTable
from pgcdc_cli.formats.debezium.losses import Cells, FewCells, Losses
from pgcdc_cli.formats.debezium.record import (
    HANDLED,
    NONE,
    Fragments,
    Handled,
    Positions,
    RowRecords,
    Rows,
    RunContext,
    Tokens,
    Variable,
    Variables,
    json_object,
    key_header,
    lines_of,
    previous_commit,
    source_block,
    source_members,
    transaction_block,
)
from pgcdc_cli.formats.debezium.transformed_records import Members, control_line, row_records
from pgcdc_cli.formats.debezium.types import connect_schemas
from pgcdc_cli.formats.debezium.types.connect_schemas import Schema, wrapping
from pgcdc_cli.formats.debezium.types.java import buckets, java_hash
from pgcdc_cli.formats.debezium.types.kind import NULL, EventColumn, convert_together, few_tokens, token
from pgcdc_cli.formats.debezium.types.texts import encoded
from pgcdc_cli.formats.encoded_rows import LINES, Lines, are_few, joined_lines
from pgcdc_cli.formats.json_text import integer_text
from pgcdc_cli.types import kernels
from pgcdc_cli.types.kernels import ArrowArray, Booleans, Fragment, Int64s

_OPERATIONS = {"I": "c", "U": "u", "R": "r"}


def row_lines(
    batch: ChangeBatch, table: EventTable, records: RowRecords, config: ConnectorConfig, losses: Losses | None
) -> Lines:
    """Write a batch's lines, one text per change; report what they lose."""
    rows = len(batch)
    old, new = _image(table, batch.old), _image(table, batch.new, batch.old, losses)
    plain = row_event(batch.operation, table, records, config, (old, new))
    written = lines_of(plain, rows) if plain else _nothing(rows)
    if old is None or new is None:
        return written
    changed = _changed([(old[index], new[index]) for index in table.key or ()], rows)
    if not changed.any():
        return written
    moved = _moved(table, records, old, new, config)
    two = lines_of(moved, rows) if moved else _nothing(rows)
    either = np.arange(rows) + np.where(changed, 0, rows)
    return two if changed.all() else LINES.take(LINES.concat([two, written]), either)


def row_event(
    operation: Operation,
    table: EventTable,
    records: RowRecords,
    config: ConnectorConfig,
    images: Rows,
) -> Fragments:
    """Make fragments that, joined row by row, are changes without a new key; `images` are old and new."""
    old, new = images
    if new is None:
        assert old is not None
        key = _key(table, old)
        event = records.event("d", key, images)
        return [*event, *(records.tombstone(key) if config.tombstones_on_delete else ())]
    code = _OPERATIONS[operation]
    return () if code in config.skipped_operations else records.event(code, _key(table, new), images)


def event_counts(batch: ChangeBatch, table: EventTable, config: ConnectorConfig) -> Int64s:
    """Count each change's events: two for a changed key, none if skipped; tombstones don't count."""
    if batch.operation != "U":
        return np.ones(len(batch), np.int64)
    skipped = config.skipped_operations
    changed = _changed(_keys(batch, table), len(batch))
    return np.where(changed, ("d" not in skipped) + ("c" not in skipped), int("u" not in skipped))


def _keys(batch: ChangeBatch, table: EventTable) -> Iterator[tuple[Fragment, Fragment]]:
    """Yield the key columns' tokens in the old and the new rows, if the batch has both."""
    old, new = batch.old, batch.new
    if old is not None and new is not None:
        columns = [table.all_columns[index] for index in table.key or ()]
        yield from zip(_tokens(columns, old, None), _tokens(columns, new, old), strict=True)


def _nothing(rows: int) -> Lines:
    return [b""] * rows


def _moved(
    table: EventTable, records: RowRecords, old: Tokens, new: Tokens, config: ConnectorConfig
) -> Fragments:
    """Make the records of a changed key: a delete and a create, each with the other's key in a header."""
    old_key, new_key = _key(table, old), _key(table, new)
    to, away = key_header("__debezium.newkey", new_key), key_header("__debezium.oldkey", old_key)
    skipped, two = config.skipped_operations, list[Fragment]()
    if "d" not in skipped:
        two += records.event("d", old_key, (old, None), headers=to)
        two += records.tombstone(old_key, headers=to) if config.tombstones_on_delete else ()
    if "c" not in skipped:
        second = "d" not in skipped
        two += records.event("c", new_key, (None, new), headers=away, second=second)
    return two


def _image(
    table: EventTable,
    image: Image | None,
    old: Image | None = None,
    losses: Losses | None = None,
) -> Tokens | None:
    """Make every column's tokens: the row's, then those for the key or a transform alone."""
    if image is None:
        return None
    row = _tokens(table.columns, image, old, losses)
    return row + _tokens(table.all_columns[len(row) :], image, old)


def _tokens(
    columns: Sequence[EventColumn], image: Image, old: Image | None, losses: Losses | None = None
) -> Tokens:
    """Make columns' tokens; what they lose is reported to `losses`."""
    cells = [_cells(column.index, image, old) for column in columns]
    to_jsons = [column.field.to_json for column in columns]
    converted = convert_together(to_jsons, [values for values, _ in cells])
    return tuple(
        column.field.absent
        if values is None or tokens is None
        else _completed(column, tokens, (values, unchanged), losses)
        for column, (values, unchanged), tokens in zip(columns, cells, converted, strict=True)
    )


def _completed(
    column: EventColumn,
    tokens: pa.BinaryArray,
    cells: tuple[pa.BinaryArray, Booleans | None],
    losses: Losses | None,
) -> pa.BinaryArray:
    """Add the tokens of null and of unchanged values to converted ones."""
    field, (values, unchanged) = column.field, cells
    if tokens.null_count:
        tokens = kernels.coalesce(tokens, pa.scalar(field.null, pa.binary()))
    if losses is not None:
        losses.look(column.index, field, Cells(values, tokens, unchanged))
    if unchanged is not None:
        tokens = kernels.replace_where(tokens, unchanged, field.unavailable)
    return tokens


def _cells(index: int, image: Image, old: Image | None) -> tuple[pa.BinaryArray | None, Booleans | None]:
    """Return a column's values, and which of them the server did not send.

    An unchanged TOAST value is taken from the old row if the server sent that.
    """
    values = image.columns[index]
    if values is None:
        return None, None
    unchanged = image.unchanged_in(index)
    before = None if old is None else old.columns[index]
    if unchanged is None or before is None:
        return values, unchanged
    return _choose(unchanged, before, values), None


def _choose(mask: Booleans, one: pa.BinaryArray, other: pa.BinaryArray) -> pa.BinaryArray:
    rows = np.arange(len(mask)) + np.where(mask, 0, len(mask))
    return kernels.as_binary(kernels.take(kernels.concat_bytes([one, other]), rows))


def _key(table: EventTable, tokens: Tokens) -> Fragments:
    if table.key is None:
        return (NULL,)
    columns = table.all_columns
    members = json_object([(columns[index].label, tokens[index]) for index in table.key])
    return (table.key_head, *members, table.key_tail)


def _changed(keys: Iterable[tuple[Fragment, Fragment]], rows: int) -> Booleans:
    """Mark the rows whose key changes, by the old and new tokens of its columns."""
    changed = np.zeros(rows, np.bool_)
    for old, new in keys:
        changed |= ~_equal(old, new, rows)
    return changed


def _equal(one: Fragment, other: Fragment, rows: int) -> Booleans:
    if isinstance(one, bytes) and isinstance(other, bytes):
        return np.full(rows, one == other)
    if isinstance(one, bytes):
        one, other = other, one
    assert isinstance(one, pa.Array)
    if isinstance(other, bytes):
        return kernels.as_mask(kernels.equal(one, other))
    assert isinstance(other, pa.Array)
    return kernels.as_mask(kernels.same(one, other))


_BEGIN: Fragments = (b'"BEGIN"', b"null", b',"data_collections":null')


def truncate(
    context: RunContext, change: TruncateChange, table: EventTable, positions: Positions, handled: Handled
) -> bytes:
    """Write the event of one table of a TRUNCATE; for the arguments see `RowRecords`."""
    names = (change.table.schema, change.table.name)
    return _line(row_records(context, table, names, positions, handled).event("t", NONE, (None, None)))


def message(context: RunContext, change: MessageChange, positions: Positions, now: int) -> bytes:
    """Write a logical decoding message's event."""
    config = context.config
    prefix, content = token(change.prefix), encoded(config)(change.content)
    source = source_members(context, ("", ""), positions)
    millis = b"%d" % (now // 1_000_000)
    transaction = (b',"transaction":', *transaction_block(positions)) if context.newer else ()
    value: tuple[Fragment, ...] = (
        b'{"op":"m","ts_ms":' + millis + b',"source":',
        *source_block(context, source),
        *transaction,
        b',"message":{"prefix":%s,"content":%s}}' % (prefix, content),
    )
    key = _wrapped(
        connect_schemas.MESSAGE_KEY, [b'{"prefix":%s}' % prefix], enabled=config.key_converter_schemas_enable
    )
    head, tail = wrapping(connect_schemas.message(config), enabled=config.value_converter_schemas_enable)
    topic = f"{config.topic_prefix}.message"
    members: Members = {"": {"op": (b'"m"',), "ts_ms": (millis,)}, "source": source}
    return _line(control_line(context, topic, key, (head, *value, tail), members))


def transactions(
    context: RunContext, boundaries: Boundaries, totals: TransactionCounts
) -> Iterator[tuple[Int64s, Lines]]:
    """Write the BEGIN and END records of a slice: for each kind, the boundaries' indexes and their lines."""
    begins, ends = np.flatnonzero(boundaries.kinds == "B"), np.flatnonzero(boundaries.kinds != "B")
    if len(begins):
        yield begins, _transactions(context, boundaries.stamps, begins, _BEGIN)
    if len(ends):
        counts, collections = (kernels.take(column, ends) for column in _totals(totals, len(boundaries)))
        end = (b'"END"', counts, b',"data_collections":[', collections, b"]")
        yield ends, _transactions(context, boundaries.stamps, ends, end)


def _totals(totals: TransactionCounts, transactions: int) -> tuple[ArrowArray, ArrowArray]:
    """Write each transaction's number of events, and the elements of its list of data collections."""
    hashes = np.array([java_hash(name) for name in totals.names], np.int64)
    heads = kernels.binary([b'{"data_collection":%s,"event_count":' % token(name) for name in totals.names])
    transaction, table, events = totals.transaction, totals.table, totals.events
    # Each message is a collection of its own.
    single = np.array([name == MESSAGE_COLLECTION for name in totals.names], np.bool_)[table]
    times = np.where(single, events, 1)
    transaction, table = np.repeat(transaction, times), np.repeat(table, times)
    events = np.repeat(np.where(single, 1, events), times)
    sizes = np.bincount(transaction, minlength=transactions)
    order = np.lexsort((buckets(hashes[table], sizes[transaction]), transaction))
    elements = kernels.join([kernels.take(heads, table[order]), integer_text(events[order]), b"}"])
    offsets = np.append(0, np.cumsum(sizes))
    total = np.append(0, np.cumsum(events))
    return integer_text(np.diff(total[offsets])), kernels.join_lists(offsets, elements, b",")


def _transactions(context: RunContext, stamps: Stamps, rows: Int64s, members: Fragments) -> Lines:
    """Write transaction records; `members` are the status, the event count and the data collections."""
    identity = (b'"', integer_text(stamps.xid[rows]), b":", integer_text(stamps.lsn[rows]), b'"')
    status, *counts = members
    value = (b'{"status":', status, b',"id":', *identity, b',"event_count":', *counts)
    millis = integer_text(stamps.commit_ts[rows] // 1000)
    value = (*value, b',"ts_ms":', millis, b"}")
    topic = connect_schemas.topic(context.config, context.config.topic_transaction)
    key = (b'{"id":', *identity, b"}")
    record = _control(
        context,
        topic,
        (connect_schemas.TRANSACTION_KEY, key),
        (connect_schemas.TRANSACTION_VALUE, value),
        millis,
    )
    return lines_of(record, len(rows))


def heartbeat(context: RunContext, millis: int) -> bytes:
    """Write a heartbeat record."""
    config = context.config
    topic = config.topic_delimiter.join((config.topic_heartbeat_prefix, config.topic_prefix))
    key = b'{"serverName":%s}' % token(config.topic_prefix)
    at = b"%d" % millis
    value = (b'{"ts_ms":', at, b"}")
    record = _control(
        context, topic, (connect_schemas.HEARTBEAT_KEY, [key]), (connect_schemas.HEARTBEAT_VALUE, value), at
    )
    return _line(record)


def _control(
    context: RunContext,
    topic: str,
    key: tuple[Schema, Fragments],
    value: tuple[Schema, Fragments],
    millis: Fragment,
) -> Fragments:
    config = context.config
    wrapped_key = _wrapped(*key, enabled=config.key_converter_schemas_enable)
    wrapped_value = _wrapped(*value, enabled=config.value_converter_schemas_enable)
    return control_line(context, topic, wrapped_key, wrapped_value, {"": {"ts_ms": (millis,)}})


def _wrapped(schema: Schema, payload: Fragments, *, enabled: bool) -> Fragments:
    head, tail = wrapping(schema, enabled=enabled)
    return (head, *payload, tail)


def _line(record: Fragments) -> bytes:
    return bytes(joined_lines(lines_of(record, 1))) if record else b""


def few_lines(
    batch: ChangeBatch,
    table: EventTable,
    context: RunContext,
    positions: Positions,
    handled: Handled,
    losses: Losses | None,
) -> list[bytes] | None:
    """Write a batch's lines one by one, and report what they lose; None if it is left to the columns.

    These take a snapshot's rows, and old rows to compare with. For the arguments see `RowRecords`.
    """
    compared = batch.operation == "U" and batch.old is not None
    if not are_few(batch) or batch.operation == "R" or compared:
        return None
    names, image = (batch.table.schema, batch.table.name), batch.old if batch.new is None else batch.new
    assert image is not None
    template = row_template(context, table, names, batch.operation, numbered=positions.orders is not None)
    texts = _texts(positions, template.variables)
    texts |= {name: repeat(value) for name, value in zip(HANDLED, handled, strict=True)}
    for number, column in enumerate(table.all_columns):
        looked_at = losses if image is batch.new and number < len(table.columns) else None
        texts[b"%d" % number] = _tokens_of_few(column, image, looked_at)
    return template.lines(texts, len(batch))


class _EventTemplate(NamedTuple):
    """A line as a format for `%`, and its variables in order."""

    form: bytes
    variables: tuple[bytes, ...]

    @classmethod
    def of(cls, fragments: Fragments) -> Self:
        """Make the template from constants and variables."""
        texts = cast("Sequence[bytes]", fragments)
        forms = [b"%b" if isinstance(text, Variable) else text.replace(b"%", b"%%") for text in texts]
        return cls(b"".join(forms), tuple(text for text in texts if isinstance(text, Variable)))

    def lines(self, texts: Mapping[bytes, Iterable[bytes]], rows: int) -> list[bytes]:
        """Fill in each variable's texts, one per row (an endless iterable if all are the same)."""
        columns = [texts[variable] for variable in self.variables]
        if not columns:
            return [self.form % ()] * rows
        return [self.form % row for row in islice(zip(*columns, strict=False), rows)]


@lru_cache(MANY_TABLES)
def row_template(
    context: RunContext, table: EventTable, names: tuple[str, str], operation: Operation, *, numbered: bool
) -> _EventTemplate:
    columns = tuple(Variable(b"%d" % number) for number in range(len(table.all_columns)))
    records = row_records(context, table, names, Variables(numbered=numbered), HANDLED)
    images = (columns, None) if operation == "D" else (None, columns)
    return _EventTemplate.of(row_event(operation, table, records, context.config, images))


def _texts(positions: Positions, wanted: Sequence[bytes]) -> dict[bytes, Iterable[bytes]]:
    """Write the texts of those `Variables` that are wanted."""
    stamps, orders = positions.stamps, positions.orders
    numbers = {
        b"lsn": stamps.lsn,
        b"millis": stamps.commit_ts // 1000,
        b"micros": stamps.commit_ts,
        b"xid": stamps.xid,
        b"xid_or_null": stamps.xid,
    }
    if orders is not None:
        numbers |= {b"total": orders.total, b"of_table": orders.table}
    texts = {name: _digits(values) for name, values in numbers.items() if name in wanted}
    if b"xid_or_null" in wanted:
        texts[b"xid_or_null"] = [b"null" if one == b"0" else one for one in texts[b"xid_or_null"]]
    return {**texts, b"previous": list(map(previous_commit, positions.ends.tolist()))}


def _digits(values: Int64s) -> list[bytes]:
    return [b"%d" % value for value in values.tolist()]


def _tokens_of_few(column: EventColumn, image: Image, losses: Losses | None) -> Iterable[bytes]:
    """Write the same tokens as the column path does, one by one."""
    values, field = texts_of(image.columns, column.index), column.field
    if values is None:
        return repeat(field.absent)
    tokens = [one or field.null for one in few_tokens(field.to_json, values)]
    mask = image.unchanged_in(column.index)
    unchanged = None if mask is None else mask.tolist()
    if losses is not None:
        losses.look(column.index, field, FewCells(values, tokens, unchanged))
    if unchanged is None:
        return tokens
    return [field.unavailable if lacks else one for lacks, one in zip(unchanged, tokens, strict=True)]
