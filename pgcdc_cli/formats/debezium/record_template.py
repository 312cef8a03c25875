"""The record lines of a few rows, written one by one: the bytes that `events.py` makes of columns.

All that rows of a table share, but the time of handling, is in a template that is made once.
"""

from collections.abc import Iterable, Mapping, Sequence
from functools import lru_cache
from itertools import islice, repeat
from typing import NamedTuple, Self, cast

from pgcdc_cli.changes.slice import ChangeBatch, FullImage, KeyImage, Operation, texts_of
from pgcdc_cli.formats.debezium.event_table import EventTable
from pgcdc_cli.formats.debezium.events import row_event
from pgcdc_cli.formats.debezium.losses import FewCells, Losses
from pgcdc_cli.formats.debezium.record import (
    HANDLED,
    Fragments,
    Handled,
    Positions,
    RunContext,
    Variable,
    Variables,
    previous_commit,
)
from pgcdc_cli.formats.debezium.transformed_records import row_records
from pgcdc_cli.formats.debezium.types.kind import EventColumn, single_token
from pgcdc_cli.formats.lines import are_few
from pgcdc_cli.types.kernels import Int64s


def is_few(batch: ChangeBatch) -> bool:
    """Say whether a batch's rows are written one by one: a few streamed ones, not compared with old ones."""
    compared = batch.operation == "U" and batch.old is not None
    return are_few(batch) and batch.operation != "R" and not compared


def few_lines(
    batch: ChangeBatch,
    table: EventTable,
    context: RunContext,
    positions: Positions,
    handled: Handled,
    losses: Losses | None,
) -> list[bytes]:
    """Write a batch's lines, of what `is_few` takes; reports what they lose.

    The other arguments are those of `RowRecords`.
    """
    names, image = (batch.table.schema, batch.table.name), batch.old if batch.new is None else batch.new
    assert image is not None
    template = row_template(context, table, names, batch.operation, numbered=positions.orders is not None)
    texts = _texts(positions)
    texts |= {name: repeat(value) for name, value in zip(HANDLED, handled, strict=True)}
    for number, column in enumerate(table.all_columns):
        looked_at = losses if image is batch.new and number < len(table.columns) else None
        texts[b"%d" % number] = _tokens(column, image, looked_at)
    return template.lines(texts, len(batch))


class _Template(NamedTuple):
    """A line, in the form that `%` takes, and the variables in it in their order."""

    form: bytes
    variables: tuple[bytes, ...]

    @classmethod
    def of(cls, fragments: Fragments) -> Self:
        """Put constants and variables together."""
        texts = cast("Sequence[bytes]", fragments)
        forms = [b"%b" if isinstance(text, Variable) else text.replace(b"%", b"%%") for text in texts]
        return cls(b"".join(forms), tuple(text for text in texts if isinstance(text, Variable)))

    def lines(self, texts: Mapping[bytes, Iterable[bytes]], rows: int) -> list[bytes]:
        """Fill in each variable's texts, of which there is one a row, or any number that all are alike."""
        columns = [texts[variable] for variable in self.variables]
        if not columns:
            return [self.form % ()] * rows
        return [self.form % row for row in islice(zip(*columns, strict=False), rows)]


@lru_cache(4096)
def row_template(
    context: RunContext, table: EventTable, names: tuple[str, str], operation: Operation, *, numbered: bool
) -> _Template:
    columns = tuple(Variable(b"%d" % number) for number in range(len(table.all_columns)))
    records = row_records(context, table, names, Variables(numbered=numbered), HANDLED)
    images = (columns, None) if operation == "D" else (None, columns)
    return _Template.of(row_event(operation, table, records, context.config, images))


def _texts(positions: Positions) -> dict[bytes, Iterable[bytes]]:
    """Write what goes into `Variables`."""
    stamps, orders = positions.stamps, positions.orders
    micros, xid = stamps.commit_ts.tolist(), _digits(stamps.xid)
    texts: dict[bytes, Iterable[bytes]] = {
        b"lsn": _digits(stamps.lsn),
        b"millis": [b"%d" % (at // 1000) for at in micros],
        b"micros": [b"%d" % at for at in micros],
        b"xid": xid,
        b"xid_or_null": [b"null" if one == b"0" else one for one in xid],
        b"previous": list(map(previous_commit, positions.ends.tolist())),
    }
    if orders is not None:
        texts |= {b"total": _digits(orders.total), b"of_table": _digits(orders.table)}
    return texts


def _digits(values: Int64s) -> list[bytes]:
    return [b"%d" % value for value in values.tolist()]


def _tokens(column: EventColumn, image: FullImage | KeyImage, losses: Losses | None) -> Iterable[bytes]:
    """Give the tokens that the columns give, one by one."""
    values, field = texts_of(image.columns, column.index), column.field
    if values is None:
        return repeat(field.absent)
    tokens = [
        field.null if value is None else single_token(field.to_json, value) or field.null for value in values
    ]
    mask = image.unchanged[column.index] if isinstance(image, FullImage) else None
    unchanged = None if mask is None else mask.tolist()
    if losses is not None:
        losses.look(column.index, field, FewCells(values, tokens, unchanged))
    if unchanged is None:
        return tokens
    return [field.unavailable if lacks else one for lacks, one in zip(unchanged, tokens, strict=True)]
