"""A plain reference for the assembler: one message after another, one object per row.

A row is `(operation, table, stamp, new, old)`; a value is bytes, None for NULL, or UNCHANGED; a key image is
a dictionary of its columns by position. `flat` turns slices into the same form.
"""

from dataclasses import dataclass, field, replace
from itertools import chain

from pgcdc_cli.changes.origin import Origin
from pgcdc_cli.changes.slice import KeyImage
from pgcdc_cli.changes.table import TableColumn, TableSchema
from pgcdc_cli.errors import UndecodableError
from pgcdc_cli.frames import XLOGDATA_HEADER
from pgcdc_cli.lsn import Lsn
from pgcdc_cli.pgoutput import messages as m
from pgcdc_cli.pgoutput.decode import decode
from pgcdc_cli.types.pg_type import PgType

UNCHANGED = "unchanged TOAST"
BYTEA, INT4, TEXT = 17, 23, 25


def describe(relations):
    """Tables made from Relation messages alone, without a catalog."""
    return [described(relation) for relation in relations]


def described(relation):
    columns = tuple(
        TableColumn.of(
            column.name, PgType(column.type_oid, column.typmod, "text"), in_replica_identity=column.key
        )
        for column in relation.columns
    )
    return TableSchema(
        relation.oid,
        relation.namespace,
        relation.name,
        relation.replica_identity,
        columns,
        tuple(column.name for column in relation.columns if column.key),
    )


@dataclass
class Assembled:
    """All changes in stream order, and the edges: the last one, and how many transactions ended."""

    events: list = field(default_factory=list)
    last_edge: tuple | None = None
    transactions: int = 0
    in_transaction: bool = False
    ended: bool = False


def flat(slices):
    """The changes of slices in the form of `reference`; also checks what holds for every slice."""
    found = Assembled()
    for part in slices:
        events = [*_rows(part), *_others(part)]
        indexes = [index for index, _ in events]
        assert len(set(indexes)) == len(indexes)
        found.events += [event for _, event in sorted(events, key=lambda pair: pair[0])]
        if part.edge is not None:
            found.last_edge = (part.edge.commit_lsn, part.edge.end_lsn)
            found.transactions += part.edge.transactions
    return found


def _rows(part):
    for changes in part.changes:
        stamps = changes.stamps
        places = zip(
            stamps.index.tolist(),
            zip(stamps.lsn, stamps.commit_lsn, stamps.commit_ts, stamps.xid, stamps.seq, strict=True),
            _images(changes.new, len(changes)),
            _images(changes.old, len(changes)),
            strict=True,
        )
        for index, stamp, new, old in places:
            place = tuple(map(int, stamp))
            yield index, (changes.operation, changes.table, place, new, old)


def _images(image, rows):
    if image is None:
        return [None] * rows
    for column in image.columns:
        if column is not None:
            column.validate(full=True)
            assert (len(column), column.offset) == (rows, 0)
    if isinstance(image, KeyImage):
        keys = {i: column.to_pylist() for i, column in enumerate(image.columns) if column is not None}
        return [{i: values[row] for i, values in keys.items()} for row in range(rows)]
    columns = [
        _with_unchanged(column.to_pylist(), mask)
        for column, mask in zip(image.columns, image.unchanged, strict=True)
    ]
    return list(zip(*columns, strict=True)) if columns else [()] * rows


def _with_unchanged(values, mask):
    if mask is None:
        return values
    assert mask.any()
    assert all(value is None for value, unchanged in zip(values, mask, strict=True) if unchanged)
    return [UNCHANGED if unchanged else value for value, unchanged in zip(values, mask, strict=True)]


def _others(part):
    for change in part.truncates:
        place = _place(change.stamp)
        yield (
            change.stamp.index,
            ("T", change.table, place, change.cascade, change.restart_identity),
        )
    for change in part.messages:
        place = _place(change.stamp)
        yield change.stamp.index, ("M", place, change.transactional, change.prefix, change.content)
    for boundary in chain.from_iterable(part.boundaries):
        yield boundary.stamp.index, (boundary.kind, _place(boundary.stamp))


def _place(stamp):
    return (stamp.lsn, stamp.commit_lsn, stamp.commit_ts, stamp.xid, stamp.seq)


def reference(frames, *, skip_before=-1, until=None, max_transactions=None, boundaries=False, binary=False):
    """The same as `Assembler`, one message at a time."""
    assembler = Plain(skip_before, until, max_transactions, boundaries, binary)
    for frame in frames:
        if assembler.found.ended:
            break
        assembler.take(decode(frame[XLOGDATA_HEADER:]), Lsn(int.from_bytes(frame[1:9])))
    assembler.found.in_transaction = assembler.begin is not None
    return assembler.found


class Plain:
    def __init__(self, skip_before, until, max_transactions, boundaries, binary):
        self.found = Assembled()
        self.skip_before, self.until, self.max_transactions = skip_before, until, max_transactions
        self.boundaries, self.binary = boundaries, binary
        self.tables = {}
        self.begin = None
        self.seq = 0

    def take(self, message, lsn):  # noqa: C901  # one case for each kind of message
        match message:
            case m.Relation():
                self.tables[message.oid] = described(message)
            case m.Type() | Origin():
                pass
            case m.Begin():
                self.require(self.begin is None)
                if self.until is not None and message.final_lsn >= self.until:
                    self.found.ended = True
                    return
                self.begin, self.seq = message, 0
                self.boundary("B", lsn)
            case m.Commit():
                self.require(self.begin is not None and self.begin.final_lsn == message.commit_lsn)
                self.boundary("C", message.end_lsn)
                if self.kept():
                    self.edge(message.commit_lsn, message.end_lsn)
                self.reached(message.end_lsn)
                self.begin = None
            case m.LogicalMessage(transactional=False):
                self.require(self.begin is None)
                self.lone(message, lsn)
            case m.LogicalMessage():
                self.change(lsn, lambda place: ("M", place, True, message.prefix, message.content))
            case m.Truncate():
                self.require(self.begin is not None)
                for oid in message.relation_oids if self.kept() else ():
                    self.truncate(oid, message, lsn)
            case m.Insert() | m.Update() | m.Delete():
                self.row(message, lsn)
            case _:
                self.require(False)

    def require(self, condition):
        if not condition:
            raise UndecodableError("out of place", b"")

    def kept(self):
        return self.begin.final_lsn >= self.skip_before

    def edge(self, commit_lsn, end_lsn):
        self.found.last_edge = (commit_lsn, end_lsn)
        self.found.transactions += 1
        self.found.ended = self.found.transactions == self.max_transactions

    def reached(self, lsn):
        self.found.ended |= self.until is not None and lsn >= self.until

    def boundary(self, kind, lsn):
        if self.boundaries and self.kept():
            begin = self.begin
            self.found.events.append((kind, (lsn, begin.final_lsn, begin.commit_time, begin.xid, self.seq)))

    def change(self, lsn, event):
        self.require(self.begin is not None)
        if self.kept():
            begin = self.begin
            self.found.events.append(event((lsn, begin.final_lsn, begin.commit_time, begin.xid, self.seq)))
            self.seq += 1

    def lone(self, message, lsn):
        if self.until is not None and message.lsn > self.until:
            self.found.ended = True
        elif message.lsn > self.skip_before:
            place = (lsn, message.lsn, None, None, 0)
            self.found.events.append(("M", place, False, message.prefix, message.content))
            self.edge(message.lsn, message.lsn)
        self.reached(message.lsn)

    def truncate(self, oid, message, lsn):
        self.require(oid in self.tables)
        table, options = self.tables[oid], (message.cascade, message.restart_identity)
        self.change(lsn, lambda place: ("T", table, place, *options))

    def row(self, message, lsn):
        self.require(self.begin is not None)
        if not self.kept():
            return
        self.require(message.relation_oid in self.tables)
        table = self.tables[message.relation_oid]
        new = self.image(getattr(message, "new", None), table)
        old = self.image(getattr(message, "old", None), table)
        self.change(lsn, lambda place: (type(message).__name__[0], table, place, new, old))

    def image(self, image, table):
        if image is None:
            return None
        self.require(len(image.values) == len(table.columns))
        self.require(self.binary or not any(isinstance(value, m.Binary) for value in image.values))
        pairs = list(zip(image.values, table.columns, strict=True))
        if isinstance(image, m.FullTuple) or is_whole(pairs):
            return tuple(self.value(*pair) for pair in pairs)
        return {i: self.value(*pair) for i, pair in enumerate(pairs) if pair[1].in_replica_identity}

    def value(self, value, column):
        if isinstance(value, m.UnchangedToast):
            return UNCHANGED
        if isinstance(value, m.Binary):
            return self.text(value.data, column.type_oid)
        return value.data if isinstance(value, m.Text) else None

    def text(self, data, type_oid):
        """The text of a binary value, for the three types that `streams` sends in binary."""
        if type_oid == INT4:
            self.require(len(data) == 4)
            return b"%d" % int.from_bytes(data, signed=True)
        return b"\\x" + data.hex().encode() if type_oid == BYTEA else data


def is_whole(pairs):
    """Whether a key tuple has the key and more: a whole row."""
    there = [(column.in_replica_identity, not isinstance(value, m.Null)) for value, column in pairs]
    return (False, True) in there and (True, False) not in there


def merged(runs):
    """The results of several calls, combined."""
    found = Assembled()
    for run in runs:
        found.events += run.events
        found.transactions += run.transactions
        found = replace(found, last_edge=run.last_edge or found.last_edge)
    return found
