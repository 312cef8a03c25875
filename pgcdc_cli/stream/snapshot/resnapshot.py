"""Read tables again while they are streamed, in chunks by key; nothing is written to the server.

A chunk is read at an edge of the stream, with a snapshot that sees every transaction written so far (compared
by transaction IDs). So its rows are at least as new as the output. If they contain newer changes, the stream
brings these, too, up to the WAL position at the time of the read; the next chunk is read after that.
`docs/snapshots.md`, "While streaming", shows why the result matches the source.
"""

import logging
import math
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import ExitStack, closing
from dataclasses import replace
from typing import NamedTuple

import numpy as np

from pgcdc_cli.changes.edge import Edge, RowKey, TableResnapshot
from pgcdc_cli.changes.slice import ChangeBatch, EmptyTable, KeyImage, Slice, SnapshotPosition, texts_of
from pgcdc_cli.changes.table import TableSchema
from pgcdc_cli.errors import ErrorKind, PgcdcError
from pgcdc_cli.lsn import Lsn
from pgcdc_cli.replication.session import QUIET
from pgcdc_cli.sinks.sink import Sink
from pgcdc_cli.stream.snapshot.resnapshot_session import (
    BusyError,
    Look,
    ResnapshotSession,
    ResnapshotSource,
    Visibility,
    is_unknown_name,
)
from pgcdc_cli.stream.snapshot.snapshot_rows import Stamper, snapshot_batch
from pgcdc_cli.stream.snapshot.snapshot_session import Columns
from pgcdc_cli.stream.snapshot.snapshot_tables import SnapshotTable
from pgcdc_cli.types.database_text import DatabaseText
from pgcdc_cli.types.pg_type import is_name

log = logging.getLogger("pgcdc")

CHUNK_ROWS, CHUNK_BYTES = 32768, 16 << 20
"""Rows of a chunk, at most, and roughly their bytes: the stream waits while a chunk is read."""

FIRST_ROWS = 1024
"""Rows of the first chunk, which shows how large rows are."""

TURN = 1.0
"""Seconds of reading while the source writes nothing; otherwise the stream has a turn after each chunk."""

ATTEMPTS, PAUSE = 20, 0.005
"""How often, and after how many seconds, to check whether a snapshot sees what the stream brought."""

MOST_MOVED = 10_000
"""Keys of rows to read once more, at most: the checkpoint has them. Beyond, the table is read anew."""

RETRY = 0.5
"""Seconds until another attempt to read what could not be read."""

_AT = SnapshotPosition(first_table=False, last_table=False, begins=False, ends=False, incremental=True)

_DONE = (
    'table "%s" is not read once more: an earlier run read it again (%d rows); a run without --resnapshot'
    " forgets that"
)
_NO_TABLE = (
    "publish it first: ALTER PUBLICATION ... ADD TABLE; pgcdc publication show NAME says what is published;"
    " a connector's lists must have it, too"
)
_GONE = (
    'table "%s" is not read any further: it is no longer published under this name; a run that finds it again'
    " reads it from its first row"
)


class ResnapshotOutput(NamedTuple):
    """Where the rows go.

    `confirm` makes everything written durable and confirms it to the server; `abandon` takes back what was
    written after the last edge.
    """

    sink: Sink
    write: Callable[[Slice], None]
    confirm: Callable[[], None]
    abandon: Callable[[], None]


class Resnapshot:
    """Reads tables again during one connection of a stream. Methods raise PgcdcError."""

    def __init__(self, source: ResnapshotSource, output: ResnapshotOutput) -> None:
        self.watch = ResnapshotWatch(source.text.keeping())
        self._source = source
        self._output = output
        self._sessions = ExitStack()
        self._known: dict[int, _Known] = {}
        self._limits: dict[int, int] = {}
        self._renamed: set[int] = set()
        self._to_lock: Sequence[tuple[str, str]] = ()
        self._not_before = 0.0
        self._barrier = 0
        self._quiet_until = time.monotonic() + QUIET
        self._looked = False

    @property
    def finished(self) -> bool:
        """Whether nothing is left to read."""
        return self._looked and self._next() is None

    @property
    def caught_up_at(self) -> Lsn:
        """The position at which the stream has caught up with all rows read."""
        return max((one.caught_up_at for one in self.watch.state), default=Lsn(0))

    def begin(self, conninfo: str) -> None:
        """Find the tables to read, and how far earlier runs came; nothing is written before `record`.

        Of tables that are no longer requested only the position is kept at which the stream has caught up.
        Raises USAGE if a pattern matches no table, or a table has no key.
        """
        self.watch.tables = {one.oid: one for one in self._output.sink.edge.resnapshots}
        if self._source.patterns:
            self._session = ResnapshotSession(conninfo, self._source.text, self._source.stopped)
            self._sessions.enter_context(closing(self._session))
        self._look_around()

    def _look_around(self) -> bool:
        """Find the tables; false if one of them is busy for now."""
        if self._source.patterns:
            look, self._barrier = self._session.look(self._to_lock), self._session.barrier()
            self.watch.forget_seen(look.seen)
            self._forget(self._source.left_out(list(self.watch.tables)))
            try:
                found = self._source.find(self._session)
            except BusyError as error:
                return self._later(error.to_lock)
            self._check_keys(found)
            self._session.end()
            self._to_lock = ()
            tables = [table.schema for table in found]
            self._check_all_match(tables)
            self._known = {table.oid: _Known(table, look.position) for table in tables}
        self._forget([oid for oid in self.watch.tables if oid not in self._known])
        before = self.watch.tables
        wanted = [_begun(known.schema, before.pop(oid, None)) for oid, known in self._known.items()]
        self.watch.tables = before | {one.oid: one for one in wanted}
        self._tell(wanted)
        self._looked = True
        return True

    def _forget(self, oids: Iterable[int]) -> None:
        """Forget how far tables were read, except the position at which the stream has caught up.

        Their changes may be left out from here on, so that rows read before could be out of date.
        """
        for oid in oids:
            one = self.watch.tables.pop(oid)
            if one.caught_up_at > self._output.sink.edge.lsn:
                self.watch.tables[oid] = one.anew(one.key)

    def _check_keys(self, tables: Sequence[SnapshotTable]) -> None:
        """Raise USAGE for a table that is still to be read whose key can't be compared."""
        for table in tables:
            one = _begun(table.schema, self.watch.tables.get(table.schema.oid))
            if one.stage != "done":
                self._session.check_key(one, table)

    def _tell(self, tables: Sequence[TableResnapshot]) -> None:
        """Say, once a run, how far earlier runs came."""
        for one in tables:
            if one.oid not in self._source.told:
                self._source.told.add(one.oid)
                if one.stage == "done":
                    log.warning(_DONE, one.table, one.rows)
                elif one.after is not None:
                    log.info('table "%s" is read on, after %d rows', one.table, one.rows)

    def record(self) -> None:
        """Write an edge with the tables that were found, if they aren't those of the last one."""
        if self.watch.state != self._output.sink.edge.resnapshots:
            self._reach_edge()

    def _check_all_match(self, tables: Sequence[TableSchema]) -> None:
        for pattern in self._source.patterns:
            if not any(pattern.matches(table.schema, table.name) for table in tables):
                reason = f'nothing in the publications matches "{pattern.text}"'
                message = f"could not find a table to read again: {reason}"
                raise PgcdcError(ErrorKind.USAGE, message, hint=_NO_TABLE)

    def close(self) -> None:
        """Close the connection; what is written stays."""
        self._sessions.close()

    def step(self) -> None:
        """Read what can be read at this edge of the stream, for about `TURN` seconds."""
        until = time.monotonic() + TURN
        try:
            while self._read_next() and time.monotonic() < until:
                pass
        except KeyboardInterrupt:
            if not self._source.stopped():
                raise
            self._output.abandon()

    def _next(self) -> TableResnapshot | None:
        tables = self.watch.tables
        return next((tables[oid] for oid in self._known if tables[oid].stage != "done"), None)

    def _read_next(self) -> bool:
        """Read a chunk; false if there is none, or it can't be read yet."""
        if not self._looked:
            if time.monotonic() < self._not_before or not self._look_around():
                return False
            self.record()
            return True
        one, edge = self._next(), self._output.sink.edge
        if one is None or edge.some_tables_are_ahead or edge.lsn < self._known[one.oid].position:
            return False
        if one.stage == "moved" and not one.moved:
            log.info('table "%s" was read again: %d rows', one.table, one.rows)
            self._reach(replace(one, stage="done"))
            return True
        return time.monotonic() >= self._not_before and self._read(one)

    def _read(self, one: TableResnapshot) -> bool:
        look = self._look()
        if look is None:
            return self._later()
        known = self._known[one.oid]
        try:
            table = self._source.find_again(self._session, known.schema)
        except BusyError as error:
            return self._later(error.to_lock)
        self._to_lock = ()
        if table is None:
            log.warning(_GONE, one.table)
            # Changes may be missing until it is back, so that rows read before could be out of date.
            del self._known[one.oid]
            self._reach(one.anew(one.key))
        elif table.schema != known.schema:
            # The stream may not have reached this version of the table yet.
            self._known[one.oid] = _Known(table.schema, look.position)
            self._reach(_begun(table.schema, one))
        else:
            self._copy_known(self._in_order(one), table, look)
        self._session.end()
        return True

    def _in_order(self, one: TableResnapshot) -> TableResnapshot:
        """Begin again if the key is compared in another way than when the last row was read."""
        order = self._session.order(one)
        return replace(one if one.order in {"", order} else one.anew(one.key), order=order)

    def _look(self) -> Look | None:
        """Take a snapshot that sees all transactions written so far; None if that isn't possible yet."""
        for attempt in range(ATTEMPTS):
            look = self._session.look(self._to_lock)
            self.watch.forget_seen(look.seen)
            if look.seen.xmin < self._barrier:
                self._say_waiting(look.seen.xmin)
                break
            if not self.watch.xids:
                return look
            if attempt == ATTEMPTS - 1:
                break
            self._session.end()
            if attempt == 0:
                # Their commits may wait for our confirmation, if the slot's reader is a synchronous standby.
                self._output.confirm()
            time.sleep(PAUSE)
        return None

    def _later(self, to_lock: Sequence[tuple[str, str]] = ()) -> bool:
        self._session.end()
        self._to_lock = to_lock or self._to_lock
        self._not_before = time.monotonic() + RETRY
        return False

    def _say_waiting(self, xid: int) -> None:
        if time.monotonic() > self._quiet_until:
            self._quiet_until = math.inf
            log.warning("no table is read again until transaction %d, which started earlier, has ended", xid)

    def _copy_known(self, one: TableResnapshot, table: SnapshotTable, look: Look) -> None:
        """Write what `_copy` writes; begin again if a name in the last row's key isn't known any more.

        Only once, since the server may have refused anything else.
        """
        try:
            self._copy(one, table, look)
        except PgcdcError as error:
            if one.oid in self._renamed or not is_unknown_name(error):
                raise
            self._renamed.add(one.oid)
            self._output.abandon()
            self._reach(one.anew(one.key))

    def _copy(self, one: TableResnapshot, table: SnapshotTable, look: Look) -> None:
        """Write the rows to read once more and the next chunk, both from one snapshot."""
        limit = self._limits.get(one.oid, FIRST_ROWS)
        # Several tables may be read at the same edge.
        stamper = Stamper(self._output.sink.edge.lsn, 0, sum(table.rows for table in self.watch.state))
        moved = self._write(table, self._session.moved(one, table), stamper)
        read, stage = _NOTHING, one.stage
        if stage == "reading":
            read = self._write(table, self._session.chunk(one, table, limit), stamper)
            stage = "reading" if read.rows == limit else "moved"
            self._limits[one.oid] = min(CHUNK_ROWS, max(1, CHUNK_BYTES * read.rows // (read.size or 1)))
            if stage == "moved" and not one.rows + moved.rows + read.rows:
                empty = EmptyTable(table.schema, self._output.sink.edge.lsn)
                self._output.write(Slice(None, empty_tables=(empty,)))
        if self._source.stopped():
            raise KeyboardInterrupt
        self._reach(
            replace(
                one,
                rows=one.rows + moved.rows + read.rows,
                after=one.after if read.last is None else self._key(one, table, read.rows, read.last),
                moved=(),
                caught_up_at=look.position,
                stage=stage,
            )
        )

    def _write(
        self, table: SnapshotTable, chunks: Iterable[tuple[int, Columns]], stamper: Stamper
    ) -> "_WrittenRows":
        rows, size, last = 0, 0, None
        for received, columns in chunks:
            batch = snapshot_batch(table.schema, columns, stamper, _AT)
            self._output.write(Slice(None, (batch,)))
            rows, size, last = rows + len(batch), size + received, columns
        return _WrittenRows(rows, size, last)

    def _key(self, one: TableResnapshot, table: SnapshotTable, rows: int, columns: Columns) -> RowKey:
        """Return the key of the last of these rows."""
        where = {column.name: index for index, column in enumerate(table.schema.columns)}
        values = {name: columns[where[name]][-1].as_py() for name in one.key}
        texts = {name: self._source.text.keeping().name(value) for name, value in values.items()}
        return tuple((texts | self._session.last_oids(one, table, rows)).values())

    def _reach(self, one: TableResnapshot) -> None:
        """Record a table's progress, with an edge after the rows written."""
        self.watch.tables[one.oid] = one
        self._reach_edge()

    def _reach_edge(self) -> None:
        edge = Edge(self._output.sink.edge.lsn, resnapshots=self.watch.state)
        self._output.write(Slice(edge))


class _Known(NamedTuple):
    """A table's version as of a WAL position."""

    schema: TableSchema
    position: Lsn


class _WrittenRows(NamedTuple):
    """How many rows of a query were written, their bytes as received, and the last chunk of columns."""

    rows: int
    size: int
    last: Columns | None


_NOTHING = _WrittenRows(0, 0, None)


def _begun(table: TableSchema, before: TableResnapshot | None) -> TableResnapshot:
    """Continue an earlier run's progress if the key is the same, or begin."""
    key = _in_order_of_index(table)
    if before is None:
        return TableResnapshot(table.oid, table.display, key)
    return before if before.key == key or before.stage == "done" else before.anew(key)


def _in_order_of_index(table: TableSchema) -> RowKey:
    """Return the key in its index's order; in another order each chunk would sort the whole table."""
    key = table.key or ()
    for index in () if table.facts is None else (table.facts.primary_key, table.facts.unique):
        # An index may include other columns (INCLUDE) after its key.
        if index is not None and set(index[: len(key)]) == set(key):
            return index[: len(key)]
    return key


class ResnapshotWatch:
    """Follows what one connection streams of the tables that are being read.

    `tables` is their progress, by OID; the edge of a slice that adds `moved` rows has the new progress.
    `xids` are their transactions that the last snapshot did not see; none are noted before the first
    snapshot. `text` keeps bytes that aren't valid text.
    """

    def __init__(self, text: DatabaseText) -> None:
        self.tables: dict[int, TableResnapshot] = {}
        self.xids: set[int] = set()
        self._seen: Visibility | None = None
        self._text = text
        self._changed = False

    @property
    def state(self) -> tuple[TableResnapshot, ...]:
        """The progress of all tables, for an edge."""
        return tuple(self.tables.values())

    def follow(self, slice_: Slice) -> Slice:
        """Note the transactions and moved rows in a slice; return it, with the new progress in its edge."""
        for batch in slice_.changes:
            one = self.tables.get(batch.table.oid)
            if one is not None and one.stage != "done":
                self._note_xids(np.unique(batch.stamps.xid).tolist())
                self._note(one, batch)
        if slice_.edge is None or not self._changed:
            return slice_
        self._changed = False
        return replace(slice_, edge=replace(slice_.edge, resnapshots=self.state))

    def forget_seen(self, seen: Visibility) -> None:
        """Keep only transactions, now and later, that this snapshot doesn't see."""
        before, self.xids, self._seen = self.xids, set(), seen
        self._note_xids(before)

    def _note_xids(self, xids: Iterable[int]) -> None:
        seen = self._seen
        if seen is not None:
            self.xids.update(xid for xid in xids if not seen.sees(xid))

    def _note(self, one: TableResnapshot, batch: ChangeBatch) -> None:
        if one.after is None or not _came_without_values(batch):
            # Before the first chunk every row is still to be read.
            return
        found = list(_keys(batch, one.key, self._text))
        moved = dict.fromkeys([*one.moved, *(key for key in found if key is not None)])
        unknown = None in found or len(moved) > MOST_MOVED
        self.tables[one.oid] = one.anew(one.key) if unknown else replace(one, moved=tuple(moved))
        self._changed = True


def _came_without_values(batch: ChangeBatch) -> bool:
    """Whether rows are new under their key, and lack values (unchanged TOAST).

    An update that keeps the key is of a row that was read, or will be. One under replica identity FULL has
    all values in its old row.
    """
    comes = batch.operation == "I" or isinstance(batch.old, KeyImage)
    return comes and batch.lacks_any


def _keys(batch: ChangeBatch, names: Sequence[str], text: DatabaseText) -> Iterator[RowKey | None]:
    """Yield the keys of a batch's rows that lack values; None if a part of the key isn't known."""
    assert batch.new is not None
    masks = [mask for mask in batch.new.unchanged if mask is not None]
    where = {column.name: index for index, column in enumerate(batch.table.columns)}
    columns = [_values(batch, where[name]) for name in names if name in where]
    for number in np.flatnonzero(np.logical_or.reduce(masks)).tolist():
        values = [value for column in columns if (value := column[number]) is not None]
        yield tuple(map(text.name, values)) if len(values) == len(names) else None


def _values(batch: ChangeBatch, index: int) -> list[bytes | None]:
    """Return the values of a key column, None where they aren't known.

    Those that were not sent are taken from the old row.
    """
    assert batch.new is not None
    if is_name(batch.table.columns[index].type):
        # Others may give the name to another object.
        return [None] * len(batch)
    new = texts_of(batch.new.columns, index) or []
    old = None if batch.old is None else texts_of(batch.old.columns, index)
    return new if old is None else [old[n] if value is None else value for n, value in enumerate(new)]
