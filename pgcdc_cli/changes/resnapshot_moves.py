"""What the stream brings of tables that are being read again: which transactions, which rows that moved."""

from collections.abc import Iterator, Sequence
from dataclasses import replace

import numpy as np

from pgcdc_cli.changes.resnapshot_state import Key, TableResnapshot, Visibility
from pgcdc_cli.changes.slice import ChangeBatch, KeyImage, Slice, texts_of

MOST_MOVED = 10_000
"""Keys of rows to be read once more, at most: a checkpoint has to hold them. Beyond, all is read anew."""


class StreamedTables:
    """What one connection brought of the tables that are being read: `xids` of their transactions.

    `tables` by OID; a slice that adds rows that moved says so with its edge. `codec` is the text's.
    """

    def __init__(self, codec: str) -> None:
        self.tables: dict[int, TableResnapshot] = {}
        self.xids: set[int] = set()
        self._codec = codec
        self._changed = False

    @property
    def state(self) -> tuple[TableResnapshot, ...]:
        """All of them, for an edge."""
        return tuple(self.tables.values())

    def follow(self, slice_: Slice) -> Slice:
        """Note what a slice has of these tables."""
        for batch in slice_.changes:
            one = self.tables.get(batch.table.oid)
            if one is not None and one.stage != "done":
                self.xids.update(np.unique(batch.stamps.xid).tolist())
                self._note(one, batch)
        if slice_.edge is None or not self._changed:
            return slice_
        self._changed = False
        return replace(slice_, edge=replace(slice_.edge, resnapshots=self.state))

    def forget_seen(self, seen: Visibility) -> None:
        """Keep of the transactions those that a snapshot doesn't see."""
        self.xids = {xid for xid in self.xids if not seen.sees(xid)}

    def _note(self, one: TableResnapshot, batch: ChangeBatch) -> None:
        if one.after is None or not _came_without_values(batch):
            # As long as nothing is read, everything is yet to be.
            return
        found = list(_keys(batch, one.key, self._codec))
        moved = dict.fromkeys([*one.moved, *(key for key in found if key is not None)])
        unknown = None in found or len(moved) > MOST_MOVED
        self.tables[one.oid] = one.anew(one.key) if unknown else replace(one, moved=tuple(moved))
        self._changed = True


def _came_without_values(batch: ChangeBatch) -> bool:
    """Are there rows that are new under their key, and lack values?

    An update that changes no key is of a row that was, or will be, read. One under replica identity FULL has
    all values of the old row.
    """
    comes = batch.operation == "I" or isinstance(batch.old, KeyImage)
    return batch.operation != "R" and comes and batch.lacks_any


def _keys(batch: ChangeBatch, names: Sequence[str], codec: str) -> Iterator[Key | None]:
    """Give the keys of a batch's rows that lack values; None where a part of it isn't known."""
    assert batch.new is not None
    masks = [mask for mask in batch.new.unchanged if mask is not None]
    where = {column.name: index for index, column in enumerate(batch.table.columns)}
    columns = [_values(batch, where[name]) for name in names if name in where]
    for number in np.flatnonzero(np.logical_or.reduce(masks)).tolist():
        values = [value for column in columns if (value := column[number]) is not None]
        yield tuple(value.decode(codec) for value in values) if len(values) == len(names) else None


def _values(batch: ChangeBatch, index: int) -> list[bytes | None]:
    """Give a column of the key; what is not sent of it is as it was."""
    assert batch.new is not None
    new = texts_of(batch.new.columns, index) or []
    old = None if batch.old is None else texts_of(batch.old.columns, index)
    return new if old is None else [old[n] if value is None else value for n, value in enumerate(new)]
