"""The same transactions in pieces, as a server sends them with streaming and two-phase.

Every transaction defines the tables that it uses, since its place among the others changes.
"""

from dataclasses import dataclass, field, replace

from hypothesis import strategies as st
from pgoutput_encoder import frame

from pgcdc_cli.errors import UndecodableError
from pgcdc_cli.frames import XLOGDATA_HEADER
from pgcdc_cli.lsn import Lsn
from pgcdc_cli.pgoutput import messages as m
from pgcdc_cli.pgoutput.decode import decode

GID = "a \"gid\" of 'ours'"
_CHILD, _LOST_CHILD, _ROLLED_BACK = 1 << 29, 1 << 30, 1 << 31


@dataclass
class Unit:
    """A transaction with the Relation messages that it needs, or a non-transactional message."""

    frames: list
    needs: list
    plan: str = "plain"
    blocks: list = field(default_factory=list)

    @property
    def begin(self):
        return decode(self.frames[0][XLOGDATA_HEADER:])

    @property
    def commit(self):
        return decode(self.frames[-1][XLOGDATA_HEADER:])

    @property
    def end_lsn(self):
        return getattr(self.commit, "end_lsn", self.lsn)

    @property
    def lsn(self):
        return int.from_bytes(self.frames[0][1:9])


def units(frames):
    """Divide a stream of whole transactions into units."""
    found, known, open_unit = [], {}, None
    for one in frames:
        message = decode(one[XLOGDATA_HEADER:])
        if open_unit is None:
            open_unit = Unit([], list(known.values()))
            found.append(open_unit)
        open_unit.frames.append(one)
        if isinstance(message, m.Relation):
            known[message.oid] = one
        if isinstance(message, m.Commit) or getattr(message, "transactional", True) is False:
            open_unit = None
    return found


def as_sent(frames):
    """The stream with each Begin at the LSN of its first change, as a server sends it."""
    found = []
    for unit in units(frames):
        first = next((one for one in unit.frames[1:-1] if _is_change(one)), unit.frames[0])
        found += [unit.frames[0][:1] + first[1:9] + unit.frames[0][9:], *unit.frames[1:]]
    return found


@st.composite
def in_pieces(draw, frames):
    """Frames of the same transactions, which commit in the same order."""
    found = units(frames)
    xids = set()
    for unit in found:
        if any(map(_is_change, unit.frames[1:-1])) and _has_own_xids(unit, xids):
            unit.plan = draw(st.sampled_from(["plain", "streamed", "prepared", "both"]))
            xids |= {unit.begin.xid, unit.begin.xid ^ _ROLLED_BACK}
    slots = [[] for _ in found]
    for number, unit in enumerate(found):
        for piece in draw(_pieces(unit)):
            at = draw(st.integers(max([0, *unit.blocks]), number))
            unit.blocks.append(at)
            lsn = found[at - 1].end_lsn if at else Lsn(1)
            slots[at] += [_prepared_at(one, lsn) for one in piece]
    stream = []
    for unit, before in zip(found, slots, strict=True):
        if unit.plan != "plain" and draw(st.booleans()):
            stream += draw(_aborted(unit))
        stream += before + _end(unit)
    return stream


def _has_own_xids(unit, taken):
    """Whether all xids derived from the unit's own are valid, and aren't another transaction's."""
    return unit.begin.xid not in taken and unit.begin.xid % _CHILD != 0


@st.composite
def _pieces(draw, unit):
    """The pieces of a transaction that come before its commit, in order; others may come in between."""
    begin, rows = unit.begin, unit.frames[1:-1]
    if unit.plan == "plain":
        return []
    if unit.plan == "prepared":
        middle = (Lsn(0), Lsn(0), begin.commit_time, begin.xid, GID)
        head, tail = frame(m.BeginPrepare(*middle), unit.lsn), frame(m.Prepare(*middle))
        return [[*unit.needs, head, *rows, tail]]
    pieces = draw(_blocks(unit, begin.xid))
    if unit.plan == "both":
        pieces.append([frame(m.StreamPrepare(Lsn(0), Lsn(0), begin.commit_time, begin.xid, GID))])
    return pieces


def _prepared_at(one, lsn):
    """The frame with this prepare LSN and end LSN, if it belongs to a prepare."""
    if one[XLOGDATA_HEADER] not in b"bPp":
        return one
    prepare = replace(decode(one[XLOGDATA_HEADER:]), prepare_lsn=lsn, end_lsn=lsn)
    return frame(prepare, int.from_bytes(one[1:9]))


@st.composite
def _blocks(draw, unit, xid):
    """A transaction's blocks, some changes in subtransactions, and some more that are rolled back.

    With logical messages no subtransaction is rolled back: which of them go with it can't be known.
    """
    pieces = []
    contents = [*unit.needs, *unit.frames[1:-1]]
    decidable = not any(one[XLOGDATA_HEADER] == ord("M") for one in contents)
    while contents or not pieces:
        count = draw(st.integers(0, len(contents)))
        block, contents = contents[:count], contents[count:]
        children = [_in_block(one, draw(st.sampled_from([xid, xid ^ _CHILD]))) for one in block]
        start = frame(m.StreamStart(xid, not pieces), unit.lsn)
        lost = [
            _in_block(one, xid ^ _LOST_CHILD)
            for one in draw(st.permutations(children and block))
            if decidable and _is_change(one)
        ]
        pieces.append([start, *children, *lost, frame(m.StreamStop())])
        if lost:
            pieces[-1].append(frame(m.StreamAbort(xid, xid ^ _LOST_CHILD)))
    return pieces


@st.composite
def _aborted(draw, unit):
    """The blocks of a transaction that is rolled back as a whole, subtransactions first."""
    xid = unit.begin.xid ^ _ROLLED_BACK
    aborts = [frame(m.StreamAbort(xid, subxid)) for subxid in (xid ^ _CHILD, xid)]
    return [one for block in draw(_blocks(unit, xid)) for one in block] + aborts


def _in_block(one, xid):
    tag = one[XLOGDATA_HEADER : XLOGDATA_HEADER + 1]
    return one if tag == b"O" else one[: XLOGDATA_HEADER + 1] + xid.to_bytes(4) + one[XLOGDATA_HEADER + 1 :]


def _is_change(one):
    return one[XLOGDATA_HEADER : XLOGDATA_HEADER + 1] in {b"I", b"U", b"D", b"T", b"M"}


def _end(unit):
    if unit.plan == "plain":
        return [*unit.needs, *unit.frames]
    commit, begin = unit.commit, unit.begin
    if unit.plan == "streamed":
        end = m.StreamCommit(begin.xid, commit.commit_lsn, commit.end_lsn, begin.commit_time)
    else:
        end = m.CommitPrepared(commit.commit_lsn, commit.end_lsn, begin.commit_time, begin.xid, GID)
    return [frame(end)]


@st.composite
def rearranged(draw, frames):
    """A stream with parts repeated, moved, left out or cut off, and with more definitions and aborts."""
    frames = list(frames)
    for _ in range(draw(st.integers(1, 3))):
        start, stop = sorted((draw(st.integers(0, len(frames))), draw(st.integers(0, len(frames)))))
        at = draw(st.integers(0, len(frames)))
        match draw(st.sampled_from(["repeat", "move", "leave out", "cut", "abort", "forget", "tell"])):
            case "repeat":
                frames[at:at] = frames[start:stop]
            case "move":
                part, frames = frames[start:stop], frames[:start] + frames[stop:]
                frames[at:at] = part
            case "leave out":
                del frames[start:stop]
            case "cut":
                del frames[stop:]
            case "abort":
                frames[at:at] = draw(_abort(frames))
            case "forget":
                frames = [one for one in frames if one[XLOGDATA_HEADER] != ord("R") or draw(st.booleans())]
            case "tell":
                frames[at:at] = draw(_definition(frames))
    return frames


@st.composite
def _abort(draw, frames):
    """A Stream Abort of xids that occur, if there are any."""
    xids = sorted(
        {int.from_bytes(one[XLOGDATA_HEADER + 1 :][:4]) for one in frames if one[XLOGDATA_HEADER] in b"SIUDT"}
    )
    if not xids:
        return []
    return [frame(m.StreamAbort(draw(st.sampled_from(xids)), draw(st.sampled_from(xids))))]


@st.composite
def _definition(draw, frames):
    """A Relation message outside of blocks, for a table that occurs, maybe with fewer columns."""
    relations = [_relation(one) for one in frames if one[XLOGDATA_HEADER] == ord("R")]
    if not relations:
        return []
    relation = draw(st.sampled_from(relations))
    return [frame(replace(relation, columns=relation.columns[: draw(st.integers(0, 4))]))]


def _relation(one):
    try:
        return decode(one[XLOGDATA_HEADER:])
    except UndecodableError:
        return replace(decode(one[XLOGDATA_HEADER:], in_stream=True), xid=None)
