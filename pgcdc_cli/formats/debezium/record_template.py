"""The record lines of a few rows, written one by one: the bytes that `events.py` makes of columns.

All that rows of a table share, but the time of handling, is in a template that is made once.
"""

from collections.abc import Iterable
from functools import lru_cache
from itertools import repeat

from pgcdc_cli.changes.slice import ChangeBatch, FullImage, KeyImage, Operation, texts_of
from pgcdc_cli.formats.debezium.event_table import EventColumn, EventTable, Losses
from pgcdc_cli.formats.debezium.events import event_parts
from pgcdc_cli.formats.debezium.record import Context, Places, Record, Slot, Slots, Template, previous_part
from pgcdc_cli.formats.debezium.types.kind import single_token
from pgcdc_cli.formats.lines import are_few
from pgcdc_cli.types.kernels import Int64s


def is_few(batch: ChangeBatch, losses: Losses | None) -> bool:
    """Say whether a batch's rows are written one by one: a few streamed ones, not compared with old ones."""
    compared = batch.operation == "U" and batch.old is not None
    return are_few(len(batch)) and losses is None and batch.operation != "R" and not compared


def few_lines(
    batch: ChangeBatch, table: EventTable, context: Context, places: Places, handled: bytes
) -> list[bytes]:
    """Write a batch's lines, of what `is_few` takes; the arguments are those of `Record`."""
    names, image = (batch.table.schema, batch.table.name), batch.old if batch.new is None else batch.new
    assert image is not None
    template = _template(context, table, names, batch.operation, numbered=places.orders is not None)
    texts = _place(places)
    texts[b"handled"] = repeat(handled)
    for number, column in enumerate(table.all_columns):
        texts[b"%d" % number] = _tokens(column, image)
    return template.lines(texts, len(batch))


@lru_cache(4096)
def _template(
    context: Context, table: EventTable, names: tuple[str, str], operation: Operation, *, numbered: bool
) -> Template:
    columns = tuple(Slot(b"%d" % number) for number in range(len(table.all_columns)))
    record = Record(context, table, names, Slots(numbered=numbered), Slot(b"handled"))
    images = (columns, None) if operation == "D" else (None, columns)
    return Template.of(event_parts(operation, table, record, context.config, images))


def _place(places: Places) -> dict[bytes, Iterable[bytes]]:
    """Write what goes into `Slots`."""
    stamps, orders = places.stamps, places.orders
    micros, xid = stamps.commit_ts.tolist(), _digits(stamps.xid)
    texts: dict[bytes, Iterable[bytes]] = {
        b"lsn": _digits(stamps.lsn),
        b"millis": [b"%d" % (at // 1000) for at in micros],
        b"micros": [b"%d" % at for at in micros],
        b"xid": xid,
        b"xid_or_null": [b"null" if one == b"0" else one for one in xid],
        b"previous": list(map(previous_part, places.ends.tolist())),
    }
    if orders is not None:
        texts |= {b"total": _digits(orders.total), b"of_table": _digits(orders.table)}
    return texts


def _digits(values: Int64s) -> list[bytes]:
    return [b"%d" % value for value in values.tolist()]


def _tokens(column: EventColumn, image: FullImage | KeyImage) -> Iterable[bytes]:
    """Give the tokens that the columns give, one by one."""
    values, field = texts_of(image.columns, column.index), column.field
    if values is None:
        return repeat(field.absent)
    tokens = [
        field.null if value is None else single_token(field.to_json, value) or field.null for value in values
    ]
    unchanged = image.unchanged[column.index] if isinstance(image, FullImage) else None
    if unchanged is None:
        return tokens
    return [
        field.unavailable if lacks else one for lacks, one in zip(unchanged.tolist(), tokens, strict=True)
    ]
