"""Tables whose rows were read as of later than the stream begins: they have what changed before."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, TypeVar

import numpy as np
import pyarrow as pa

from pgcdc_cli.changes.slice import ChangeBatch, FewColumns, FullImage, KeyImage, Slice, Stamps
from pgcdc_cli.lsn import Lsn
from pgcdc_cli.types import kernels
from pgcdc_cli.types.kernels import Booleans

ImageT = TypeVar("ImageT", FullImage, FullImage | KeyImage)


class TableStarts:
    """By OID, the position as of which a table was read: only what commits there or later is news of it."""

    def __init__(self, starts: Mapping[int, Lsn]) -> None:
        self._starts = starts

    def news(self, slice_: Slice) -> Slice:
        """Leave out the changes that the rows have."""
        if not self._starts:
            return slice_
        changes = tuple(news for batch in slice_.changes if len(news := self._of(batch)))
        truncates = tuple(
            one for one in slice_.truncates if one.stamp.commit_lsn >= self._starts.get(one.table.oid, 0)
        )
        return replace(slice_, changes=changes, truncates=truncates)

    def _of(self, batch: ChangeBatch) -> ChangeBatch:
        start = self._starts.get(batch.table.oid)
        if start is None:
            return batch
        kept = batch.stamps.commit_lsn >= start
        return batch if kept.all() else _rows(batch, kept)


def _rows(batch: ChangeBatch, kept: Booleans) -> ChangeBatch:
    new = None if batch.new is None else _image(batch.new, kept)
    old = None if batch.old is None else _image(batch.old, kept)
    return replace(batch, stamps=_stamps(batch.stamps, kept), new=new, old=old)


def _stamps(stamps: Stamps, kept: Booleans) -> Stamps:
    return replace(
        stamps,
        index=stamps.index[kept],
        lsn=stamps.lsn[kept],
        commit_lsn=stamps.commit_lsn[kept],
        commit_ts=stamps.commit_ts[kept],
        xid=stamps.xid[kept],
        seq=stamps.seq[kept],
        origin=None if stamps.origin is None else stamps.origin[kept],
    )


def _image(image: ImageT, kept: Booleans) -> ImageT:
    columns = _columns(image.columns, kept)
    if isinstance(image, FullImage):
        unchanged = tuple(None if mask is None else mask[kept] for mask in image.unchanged)
        return FullImage(columns, unchanged)
    return KeyImage(columns)


def _columns(columns: Sequence[pa.BinaryArray | None], kept: Booleans) -> Sequence[Any]:
    numbers = np.flatnonzero(kept)
    if isinstance(columns, FewColumns):
        return FewColumns(
            [None if texts is None else [texts[number] for number in numbers] for texts in columns.texts]
        )
    return tuple(None if column is None else kernels.take(column, numbers) for column in columns)
