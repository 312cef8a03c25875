"""Change batches, truncates and logical messages as record batches of the schemas in `arrowschema.py`."""

from collections.abc import Sequence
from typing import Any, NamedTuple, TypeAlias, cast

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from pgcdc_cli.formats.arrowschema import MESSAGE_SCHEMA, NAMES, UNFIT
from pgcdc_cli.formats.stamps import INVALID_XID
from pgcdc_cli.pgoutput.changes import (
    ChangeBatch,
    FullImage,
    Int64s,
    KeyImage,
    MessageChange,
    Stamp,
    Stamps,
    TruncateChange,
)
from pgcdc_cli.table import TableSchema
from pgcdc_cli.types import kernels
from pgcdc_cli.types.column import Typed
from pgcdc_cli.types.convert import arrow_type, to_arrow
from pgcdc_cli.types.kernels import Column, Mask

Image: TypeAlias = FullImage | KeyImage


class Unfit(NamedTuple):
    """Values of one column that its Arrow type can't hold: `texts[rows]`."""

    name: str
    rows: Mask
    texts: Column


def batch_of_changes(batch: ChangeBatch, schema: pa.Schema) -> pa.RecordBatch:
    """Convert n changes; a PROTOCOL error where a value is no valid UTF-8."""
    rows, table = len(batch), batch.table
    new, new_unfit = _image(table, batch.new, rows, "")
    old, old_unfit = _image(table, batch.old, rows, "_old.")
    columns = [
        *_stamps(batch.operation, batch.stamps),
        _unchanged(table, batch.new, rows),
        kernels.nulls(rows, NAMES),
        *new,
        _struct(old, schema) if batch.old is not None else kernels.nulls(rows, schema.field("_old").type),
        _unfit([*new_unfit, *old_unfit], rows),
    ]
    return _record_batch(columns, schema)


def batch_of_truncate(event: TruncateChange, schema: pa.Schema) -> pa.RecordBatch:
    """Make the one row of a T: `_truncate` and nothing else."""
    options = {"cascade": event.cascade, "restart_identity": event.restart_identity}
    names = [name for name, given in options.items() if given]
    values = {**_stamp("T", event.stamp), "_truncate": names}
    return _record_batch([pa.array([values.get(f.name)], f.type) for f in schema], schema)


def batch_of_message(event: MessageChange) -> pa.RecordBatch:
    """Make the one row of an M."""
    values = {
        **_stamp("M", event.stamp),
        "transactional": event.transactional,
        "prefix": event.prefix,
        "content": event.content,
    }
    return _record_batch([pa.array([values[f.name]], f.type) for f in MESSAGE_SCHEMA], MESSAGE_SCHEMA)


def _record_batch(columns: Sequence[Column], schema: pa.Schema) -> pa.RecordBatch:
    return pa.RecordBatch.from_arrays(cast("Any", columns), schema=schema)


def _stamp(operation: str, stamp: Stamp) -> dict[str, Any]:
    return {
        "_op": operation,
        "_lsn": int(stamp.lsn),
        "_commit_lsn": int(stamp.commit_lsn),
        "_commit_ts": stamp.commit_ts,
        "_xid": stamp.xid,
        "_seq": stamp.seq,
    }


def _stamps(operation: str, stamps: Stamps) -> list[Column]:
    commit_ts: Column = pa.array(stamps.commit_ts)
    return [
        pa.repeat(pa.scalar(operation), len(stamps)),
        pa.array(stamps.lsn),
        pa.array(stamps.commit_lsn),
        commit_ts.cast(pa.timestamp("us", "UTC")),
        pa.array(stamps.xid, mask=stamps.xid == INVALID_XID),
        pa.array(stamps.seq),
    ]


def _image(
    table: TableSchema, image: Image | None, rows: int, label: str
) -> tuple[list[Column], list[Unfit]]:
    """Convert an image's columns, null where it has none; `label` precedes the names of what doesn't fit."""
    columns, unfit = [], []
    for index, column in enumerate(table.columns):
        wire = None if image is None else image.columns[index]
        typed = (
            Typed(kernels.nulls(rows, arrow_type(column.type)), None)
            if wire is None
            else to_arrow(column.type, wire)
        )
        columns.append(typed.values)
        if wire is not None and typed.unfit is not None:
            unfit.append(Unfit(label + column.name, typed.unfit, wire))
    return columns, unfit


def _struct(columns: Sequence[Column], schema: pa.Schema) -> Column:
    kind: Any = schema.field("_old").type
    return cast("Column", pa.StructArray.from_arrays(cast("Any", columns), fields=list(kind)))


def _unchanged(table: TableSchema, image: FullImage | None, rows: int) -> Column:
    marked = (
        []
        if image is None
        else [
            (column.name, mask)
            for column, mask in zip(table.columns, image.unchanged, strict=True)
            if mask is not None
        ]
    )
    if not marked:
        return kernels.nulls(rows, NAMES)
    masks = np.stack([mask for _, mask in marked], axis=1)
    names = kernels.take(pa.array([name for name, _ in marked]), np.nonzero(masks)[1])
    counts = masks.sum(axis=1)
    return kernels.lists(_offsets(counts), names, counts == 0)


def _unfit(unfit: Sequence[Unfit], rows: int) -> Column:
    if not unfit:
        return kernels.nulls(rows, UNFIT)
    at = np.concatenate([np.flatnonzero(one.rows) for one in unfit])
    order = np.argsort(at, kind="stable")
    names = pa.array([one.name for one in unfit])
    owners = np.repeat(np.arange(len(unfit)), [one.rows.sum() for one in unfit])
    texts = kernels.concat([kernels.as_text(one.texts.filter(pa.array(one.rows))) for one in unfit])
    counts = np.bincount(at, minlength=rows)
    entries = kernels.take(names, owners[order]), kernels.take(texts, order)
    return kernels.maps(_offsets(counts), *entries, counts == 0)


def _offsets(counts: Int64s) -> NDArray[np.int32]:
    return np.concatenate([np.zeros(1, np.int32), np.cumsum(counts, dtype=np.int32)])
