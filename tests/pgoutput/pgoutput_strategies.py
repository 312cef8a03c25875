"""Hypothesis's strategies for streams of whole transactions: frames with growing LSNs."""

import struct

from hypothesis import strategies as st
from pgoutput_encoder import frame
from pgoutput_reference import BYTEA, INT4, TEXT

from pgcdc_cli.changes.origin import Origin
from pgcdc_cli.changes.table import ReplicaIdentity
from pgcdc_cli.frames import XLOGDATA_HEADER
from pgcdc_cli.lsn import Lsn
from pgcdc_cli.pgoutput import messages as m

OIDS = (16385, 16386, 2**32 - 1)
TIME = 1_700_000_000_000_000

texts = st.binary(max_size=6).map(m.Text)
binaries = {
    BYTEA: st.binary(max_size=6).map(m.Binary),
    INT4: st.binary(min_size=4, max_size=4).map(m.Binary),
    TEXT: st.binary(max_size=6).map(m.Binary),
}


def sent(column, *, binary):
    """A value of one column; with `binary` maybe in its type's send format."""
    usual = binaries[column.type_oid] if binary else texts
    return st.one_of(usual, texts, st.just(m.Null()))


def values(column, *, binary):
    return st.one_of(sent(column, binary=binary), st.just(m.UnchangedToast()))


@st.composite
def relations(draw, oid, *, binary=False):
    types = st.sampled_from(list(binaries)) if binary else st.just(TEXT)
    keys = draw(st.lists(st.tuples(st.booleans(), types), max_size=4))
    columns = tuple(m.RelationColumn(f"c{i}", type_, -1, key) for i, (key, type_) in enumerate(keys))
    return m.Relation(oid, "public", f"t{oid}", draw(st.sampled_from(ReplicaIdentity)), columns)


@st.composite
def rows(draw, relation, *, binary=False):
    full = st.tuples(*(values(column, binary=binary) for column in relation.columns)).map(m.FullTuple)
    key = st.tuples(*(sent(column, binary=binary) for column in relation.columns)).map(m.KeyTuple)
    oid = st.just(relation.oid)
    return draw(
        st.one_of(
            st.builds(m.Insert, oid, full),
            st.builds(m.Update, oid, st.one_of(st.none(), key, full), full),
            st.builds(m.Delete, oid, st.one_of(key, full)),
        )
    )


@st.composite
def streams(draw, *, most_transactions=4, most_changes=6, binary=False):
    """Frames of transactions and of non-transactional messages between them."""
    stream = _Stream(draw, binary=binary)
    for _ in range(draw(st.integers(0, most_transactions))):
        if draw(st.integers(0, 3)) == 0:
            stream.lone_message()
        else:
            stream.transaction(most_changes)
    return stream.frames


class _Stream:
    def __init__(self, draw, *, binary):
        self.draw, self.binary = draw, binary
        self.frames = []
        self.relations = {}
        self.lsn = 100

    def step(self):
        self.lsn += self.draw(st.integers(1, 3))
        return Lsn(self.lsn)

    def add(self, message):
        self.frames.append(frame(message, self.lsn))

    def lone_message(self):
        lsn = self.step()
        content = self.draw(st.binary(max_size=3))
        self.add(m.LogicalMessage(False, lsn, "lone", content))

    def transaction(self, most_changes):
        draw = self.draw
        count = draw(st.integers(0, most_changes))
        final = Lsn(self.step() + 10 * count + 10)
        self.add(m.Begin(final, TIME + self.lsn, draw(st.integers(3, 2**32 - 1))))
        if draw(st.integers(0, 4)) == 0:
            self.add(Origin(final, "elsewhere"))
        for _ in range(count):
            self.step()
            self.change()
        self.lsn = final
        self.add(m.Commit(final, self.step(), TIME))

    def change(self):
        draw = self.draw
        kind = draw(st.integers(0, 11))
        oid = draw(st.sampled_from(OIDS))
        if kind == 0:
            self.add(m.LogicalMessage(True, Lsn(self.lsn), "inside", draw(st.binary(max_size=3))))
        elif kind == 1:
            self.add(m.Type(oid, "public", "mood"))
        elif kind == 2:
            oids = draw(st.lists(st.sampled_from(OIDS), max_size=3))
            for oid in oids:
                self.relation(oid, again=False)
            self.add(m.Truncate(tuple(oids), draw(st.booleans()), draw(st.booleans())))
        else:
            self.relation(oid, again=kind == 3)
            self.add(draw(rows(self.relations[oid], binary=self.binary)))

    def relation(self, oid, *, again):
        """Add a Relation message if the table has none yet; with `again` in any case, changed or not."""
        known = self.relations.get(oid)
        if known is None or again:
            changed = known is None or self.draw(st.booleans())
            self.relations[oid] = self.draw(relations(oid, binary=self.binary)) if changed else known
            self.add(self.relations[oid])


@st.composite
def cuts(draw, frames):
    """The frames in pieces, some of them empty."""
    places = sorted(draw(st.lists(st.integers(0, len(frames)), max_size=5)))
    return [frames[start:stop] for start, stop in zip([0, *places], [*places, len(frames)], strict=True)]


@st.composite
def mutations(draw, frames):
    """The frames with some bytes after a header replaced, or messages moved, dropped or doubled."""
    frames = list(frames)
    for _ in range(draw(st.integers(1, 3))):
        at = draw(st.integers(0, len(frames) - 1))
        match draw(st.sampled_from(["bytes", "count", "drop", "double", "swap"])):
            case "bytes":
                data = bytearray(frames[at])
                start = draw(st.integers(XLOGDATA_HEADER, len(data)))
                data[start : start + draw(st.integers(0, 3))] = draw(st.binary(max_size=3))
                frames[at] = bytes(data) if len(data) > XLOGDATA_HEADER else frames[at]
            case "count":
                data = bytearray(frames[at])
                start = draw(st.integers(26, max(26, len(data) - 4)))
                data[start : start + 4] = struct.pack(">i", draw(st.integers(-(2**31), 2**31 - 1)))
                frames[at] = bytes(data)
            case "drop":
                del frames[at]
                if not frames:
                    return frames
            case "double":
                frames.insert(at, frames[at])
            case "swap":
                other = draw(st.integers(0, len(frames) - 1))
                frames[at], frames[other] = frames[other], frames[at]
    return frames
