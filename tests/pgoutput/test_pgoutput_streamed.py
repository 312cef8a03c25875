"""Transactions that come in pieces have the same changes as those that come whole."""

from itertools import chain

import pytest
from pgoutput_connection import connection
from pgoutput_encoder import frame
from pgoutput_orders import BEGIN, COMMIT, NARROW, ORDERS, PARTS, TIME, frames_of, full, insert
from pgoutput_pieces import GID
from pgoutput_reference import flat

from pgcdc_cli.changes.edge import Prepared
from pgcdc_cli.changes.origin import Origin
from pgcdc_cli.directory.disk import Disk, OpenFiles
from pgcdc_cli.errors import ErrorKind, PgcdcError, UndecodableError
from pgcdc_cli.frames import XLOGDATA_HEADER
from pgcdc_cli.lsn import Lsn
from pgcdc_cli.pgoutput import messages as m
from pgcdc_cli.pgoutput.decode import decode
from pgcdc_cli.pgoutput.spooled_transaction import UndecidedRollbackError
from pgcdc_cli.sinks import spool_file
from pgcdc_cli.sinks.spool_file import SpoolFolder

XID = 7
END = (Lsn(1000), Lsn(1010), TIME)


@pytest.fixture(
    params=[(1, 1 << 30), (100, 1 << 30), (1 << 30, 1), (1 << 30, 1 << 30)],
    ids=["on-disk", "both", "on-disk-together", "in-memory"],
)
def spools(request, tmp_path, monkeypatch):
    monkeypatch.setattr(spool_file, "CHUNK_BYTES", request.param[0])
    monkeypatch.setattr(spool_file, "HELD_AT_MOST", request.param[1])
    return SpoolFolder(OpenFiles(Disk(), str(tmp_path)), "spool")


def in_stream(message, xid=XID):
    """A message inside of a block, with an xid after its tag."""
    data = frame(message)[XLOGDATA_HEADER:]
    return data[:1] + xid.to_bytes(4) + data[1:]


def block(*messages, first=True, xid=XID):
    return [m.StreamStart(xid, first), *messages, m.StreamStop()]


def taken(streams, *messages):
    return list(streams.slices(frames_of(*messages)))


def values(slices):
    """The new rows, in stream order."""
    return [event[3] for event in flat(slices).events if event[0] in {"I", "U"}]


def edges(slices):
    return [part.edge.end_lsn for part in slices if part.edge is not None]


def test_nothing_shows_before_the_commit(spools, tmp_path):
    streams = connection(spools)
    rows = [in_stream(ORDERS), in_stream(insert(b"1", b"a"))]
    assert taken(streams, *block(*rows)) == []
    assert not streams.in_transaction, "keepalives are confirmed meanwhile"
    (*_, end) = slices = taken(streams, m.StreamCommit(XID, *END))
    assert values(slices) == [(b"1", b"a")]
    assert end.edge.end_lsn == 1010
    assert not list(tmp_path.glob("spool/*")), "a spool ends with its transaction"


@pytest.mark.parametrize(("batch", "slices"), [(1, 7), (3, 3), (100, 1)])
def test_a_spool_is_read_as_many_messages_at_a_time_as_are_wanted(spools, monkeypatch, batch, slices):
    monkeypatch.setattr(spool_file, "CHUNK_BYTES", 1)
    streams = connection(spools, batch=batch)
    for number in range(7):
        rows = [in_stream(ORDERS)] * (number == 0) + [in_stream(insert(b"%d" % number, b"a"))]
        assert taken(streams, *block(*rows, first=number == 0)) == []
    found = taken(streams, m.StreamCommit(XID, *END))
    assert [key for key, _ in values(found)] == [b"%d" % number for number in range(7)]
    assert sum(bool(some.changes) for some in found) == slices


def test_a_transaction_that_is_rolled_back_leaves_nothing(spools, tmp_path):
    streams = connection(spools)
    assert (
        taken(streams, *block(in_stream(ORDERS), in_stream(insert(b"1", b"a"))), m.StreamAbort(XID, XID))
        == []
    )
    assert not list(tmp_path.glob("spool/*"))


MESSAGE = m.LogicalMessage(True, Lsn(501), "whose", b"")


def block_with_message(streams):
    """A block of transaction XID with subtransaction 8, and a message of either."""
    rows = [in_stream(ORDERS), in_stream(insert(b"0", b"z")), in_stream(insert(b"1", b"y"), 8)]
    assert not taken(streams, *block(*rows, in_stream(MESSAGE)))


@pytest.mark.parametrize(
    "then",
    [
        block(in_stream(insert(b"2", b"x")), first=False),
        [m.StreamCommit(XID, *END)],
        [m.StreamPrepare(*END, XID, "gid")],
    ],
    ids=["a block", "its commit", "its prepare"],
)
def test_a_rolled_back_subtransaction_that_may_have_messages_is_not_decided(spools, then):
    """A logical decoding message has the top-level xid, even if a subtransaction emitted it."""
    streams = connection(spools)
    block_with_message(streams)
    assert not taken(streams, m.StreamAbort(XID, 8))
    with pytest.raises(UndecidedRollbackError, match="which logical messages belong to it"):
        taken(streams, *then)


def test_a_transaction_with_messages_is_rolled_back_whole(spools, tmp_path):
    """The server sends the aborts of its subtransactions first, though they were released."""
    streams = connection(spools)
    block_with_message(streams)
    assert not taken(streams, m.StreamAbort(XID, 8), m.StreamAbort(XID, XID))
    block_with_message(streams)
    end = taken(streams, m.StreamCommit(XID, *END))
    assert values(end) == [(b"0", b"z"), (b"1", b"y")]
    assert not list(tmp_path.glob("spool/*"))


def test_a_definition_that_was_rolled_back_is_not_used(spools):
    """A real server would send the definition again after the abort (`cleanup_rel_sync_cache`)."""
    streams = connection(spools)
    first = block(Origin(Lsn(0), "elsewhere"), in_stream(ORDERS, 8))
    rest = block(in_stream(insert(b"1", b"a")), first=False)
    with pytest.raises(UndecodableError, match="no Relation message was received for OID 16385"):
        taken(streams, *first, m.StreamAbort(XID, 8), *rest, m.StreamCommit(XID, *END))


def test_what_a_subtransaction_cuts_off_is_forgotten(spools):
    """The aborts of subtransactions that began later have nothing left to cut off."""
    streams = connection(spools)
    first = block(in_stream(ORDERS), *(in_stream(insert(b"%d" % xid, b"a"), xid) for xid in (8, 9, 10)))
    rows = [in_stream(insert(b"%d" % number, b"b")) for number in range(5)]
    rest = block(in_stream(ORDERS), *rows, first=False)
    aborts = [m.StreamAbort(XID, xid) for xid in (8, 9, 10)]
    slices = taken(streams, *first, aborts[0], *rest, *aborts[1:], m.StreamCommit(XID, *END))
    assert [key for key, _ in values(slices)] == [b"%d" % number for number in range(5)]


def test_the_abort_of_a_subtransaction_that_sent_nothing(spools):
    streams = connection(spools)
    rows = block(in_stream(ORDERS), in_stream(insert(b"1", b"a")))
    slices = taken(streams, *rows, m.StreamAbort(XID, 99), m.StreamCommit(XID, *END))
    assert values(slices) == [(b"1", b"a")]


@pytest.mark.parametrize("subxid", [XID, 8], ids=["whole", "a subtransaction"])
def test_the_abort_of_a_transaction_that_never_began(spools, subxid):
    """PostgreSQL 18 sends it: there is nothing to undo, and what follows is read as usual."""
    streams = connection(spools)
    other = block(in_stream(ORDERS, 9), in_stream(insert(b"1", b"a"), 9), xid=9)
    assert taken(streams, *other, m.StreamAbort(XID, subxid)) == []
    assert not streams.in_transaction
    assert values(taken(streams, m.StreamCommit(9, *END))) == [(b"1", b"a")]
    own = block(in_stream(ORDERS), in_stream(insert(b"2", b"b")))
    end = m.StreamCommit(XID, Lsn(1100), Lsn(1110), TIME)
    assert values(taken(streams, *own, end)) == [(b"2", b"b")]


def test_a_rolled_back_subtransactions_definition_of_a_table_counts_no_more(spools):
    streams = connection(spools)
    taken(streams, BEGIN, ORDERS, COMMIT)
    rows = block(in_stream(insert(b"1", b"a")), in_stream(NARROW, 8), in_stream(insert(b"2"), 8))
    end = (Lsn(1100), Lsn(1110), TIME)
    slices = taken(streams, *rows, m.StreamAbort(XID, 8), m.StreamCommit(XID, *end))
    assert values(slices) == [(b"1", b"a")]
    later = m.Begin(Lsn(1200), TIME, 9), insert(b"3", b"c"), m.Commit(Lsn(1200), Lsn(1210), TIME)
    assert values(taken(streams, *later)) == [(b"3", b"c")]
    streamed = block(in_stream(insert(b"4", b"d"), 10), xid=10)
    end = (Lsn(1300), Lsn(1310), TIME)
    assert values(taken(streams, *streamed, m.StreamCommit(10, *end))) == [(b"4", b"d")]


def test_a_committed_transaction_s_definitions_count_for_those_that_follow(spools):
    streams = connection(spools)
    taken(streams, *block(in_stream(ORDERS), in_stream(insert(b"1", b"a"))), m.StreamCommit(XID, *END))
    later = m.Begin(Lsn(1100), TIME, 8), insert(b"2", b"b"), m.Commit(Lsn(1100), Lsn(1110), TIME)
    assert values(taken(streams, *later)) == [(b"2", b"b")]


def test_a_transaction_s_own_definition_counts_in_its_later_blocks_too(spools):
    streams = connection(spools)
    taken(streams, BEGIN, ORDERS, COMMIT)
    blocks = block(in_stream(NARROW), in_stream(insert(b"1"))) + block(in_stream(insert(b"2")), first=False)
    end = m.StreamCommit(XID, Lsn(1100), Lsn(1110), TIME)
    assert values(taken(streams, *blocks, end)) == [(b"1",), (b"2",)]


def test_a_definition_that_comes_back_counts_again(spools):
    """As after ALTER TABLE, and its rollback to a savepoint; only what repeats the last one is left out."""
    streams = connection(spools)
    rows = [ORDERS, ORDERS, insert(b"1", b"a"), NARROW, insert(b"2"), ORDERS, insert(b"3", b"c")]
    slices = taken(streams, *block(*map(in_stream, rows)), m.StreamCommit(XID, *END))
    assert values(slices) == [(b"1", b"a"), (b"2",), (b"3", b"c")]


def test_an_older_definition_doesn_t_replace_a_newer_one(spools):
    """As after ALTER PUBLICATION SET TABLE t (columns), which no lock of the open transaction prevents."""
    streams = connection(spools)
    taken(streams, *block(in_stream(ORDERS), in_stream(insert(b"1", b"a"))))
    taken(streams, m.Begin(Lsn(900), TIME, 8), NARROW, insert(b"2"), m.Commit(Lsn(900), Lsn(910), TIME))
    assert values(taken(streams, m.StreamCommit(XID, *END))) == [(b"1", b"a")]
    later = m.Begin(Lsn(1100), TIME, 9), insert(b"3"), m.Commit(Lsn(1100), Lsn(1110), TIME)
    assert values(taken(streams, *later)) == [(b"3",)]


def test_a_newer_definition_that_came_meanwhile_counts_for_the_rows_after_it(spools):
    """As after ALTER PUBLICATION SET TABLE t (columns), too."""
    streams = connection(spools)
    taken(streams, BEGIN, ORDERS, COMMIT)
    taken(streams, *block(in_stream(insert(b"1", b"a"))))
    taken(streams, m.Begin(Lsn(1100), TIME, 8), NARROW, insert(b"2"), m.Commit(Lsn(1100), Lsn(1110), TIME))
    end = m.StreamCommit(XID, Lsn(1200), Lsn(1210), TIME)
    slices = taken(streams, *block(in_stream(insert(b"3")), first=False), end)
    assert values(slices) == [(b"1", b"a"), (b"3",)]


@pytest.mark.parametrize("cut", [1, 2, 3, 4])
def test_a_begin_knows_where_its_transaction_came_from_wherever_a_batch_ends(spools, cut):
    """The first origin counts, if a transaction has several."""
    streams = connection(spools)
    origin = Origin(Lsn(77), "elsewhere")
    messages = [BEGIN, origin, ORDERS, insert(b"1", b"a"), Origin(Lsn(78), "later"), COMMIT]
    slices = taken(streams, *messages[:cut])
    assert streams.in_transaction
    slices += taken(streams, *messages[cut:])
    assert [
        (boundary.kind, boundary.stamp.origin)
        for part in slices
        for boundary in chain.from_iterable(part.boundaries)
    ] == [
        ("B", origin),
        ("C", origin),
    ]


@pytest.mark.parametrize(
    ("rows_before", "slices"), [(30, [(30, True)]), (3, [(3, True), (2, False)])], ids=["large", "small"]
)
def test_a_transaction_s_few_first_rows_at_the_end_of_a_large_batch_wait_for_the_rest(
    spools, rows_before, slices
):
    streams, row = connection(spools), insert(b"1", b"a")
    first = taken(streams, BEGIN, ORDERS, *[row] * rows_before, COMMIT, BEGIN, row, row)
    assert [(len(values([part])), part.edge is not None) for part in first] == slices
    assert streams.in_transaction
    last = taken(streams, row, COMMIT)
    assert len(values(first + last)) == rows_before + 3
    assert not streams.in_transaction


def test_a_streamed_transaction_s_begin_knows_it_too(spools):
    origin = Origin(Lsn(0), "elsewhere")
    rows = block(origin, in_stream(ORDERS), in_stream(insert(b"1", b"a")))
    slices = taken(connection(spools), *rows, m.StreamCommit(XID, *END))
    assert {
        boundary.stamp.origin for part in slices for boundary in chain.from_iterable(part.boundaries)
    } == {origin}


@pytest.mark.parametrize("content", [[], [in_stream(ORDERS)]], ids=["nothing", "a definition"])
def test_a_transaction_without_a_change_is_only_an_edge(spools, content):
    streams = connection(spools)
    (part,) = taken(streams, *block(*content), m.StreamCommit(XID, *END))
    assert (part.edge.end_lsn, part.edge.transactions, part.boundaries) == (1010, 0, ())


PREPARE = (Lsn(990), Lsn(995), TIME, XID, GID)
ROWS = (ORDERS, insert(b"1", b"a"))
PREPARED = (m.BeginPrepare(*PREPARE), *ROWS, m.Prepare(*PREPARE))
COMMITTED = m.CommitPrepared(*END, XID, GID)
ROLLED_BACK = m.RollbackPrepared(Lsn(995), Lsn(1010), TIME, TIME, XID, GID)


def test_a_prepared_transaction_is_given_out_at_its_commit(spools):
    streams = connection(spools)
    (prepare,) = taken(streams, *PREPARED)
    assert (prepare.edge.end_lsn, len(prepare.edge.prepared)) == (995, 1)
    slices = taken(streams, COMMITTED)
    assert values(slices) == [(b"1", b"a")]
    assert {part.gid for part in slices} == {GID}
    assert [boundary.gid for part in slices for boundary in chain.from_iterable(part.boundaries)] == [
        GID,
        GID,
    ]
    assert slices[-1].edge.prepared == ()


def test_only_a_prepared_transaction_that_has_begun_is_an_open_one_for_keepalives(spools):
    """Once a position beyond its PREPARE is confirmed, it doesn't come again, as a streamed one does."""
    streams = connection(spools)
    taken(streams, *PREPARED[:-1])
    assert streams.in_transaction
    taken(streams, PREPARED[-1])
    assert not streams.in_transaction
    taken(streams, m.StreamStart(8, True), in_stream(insert(b"1", b"a"), 8))
    assert not streams.in_transaction


@pytest.mark.parametrize("sent", [(), PREPARED], ids=["commit", "prepare and commit"])
def test_the_commit_of_a_prepared_transaction_below_the_position_is_no_gap(spools, sent):
    """Its changes were written before."""
    streams = connection(spools, skip_before=1001)
    slices = taken(streams, *sent, COMMITTED)
    assert (values(slices), [part.boundaries for part in slices]) == ([], [()])
    assert slices[-1].edge.end_lsn == 1010


@pytest.mark.parametrize("end", [COMMITTED, ROLLED_BACK], ids=["committed", "rolled back"])
def test_the_spool_of_a_prepared_transaction_stays_until_another_checkpoint_is_written(spools, end):
    """The one that names it is needed after a crash until then."""
    streams = connection(spools)
    (prepare,) = taken(streams, *PREPARED)
    taken(streams, end)
    spools.check(prepare.edge.prepared)


@pytest.mark.parametrize("own", [(), (PARTS, NARROW, ORDERS)], ids=["none", "several"])
def test_a_prepared_transaction_survives_the_connection(spools, own):
    """Definitions that came before it are in its spool, since they don't come on the next connection."""
    streams = connection(spools)
    taken(streams, BEGIN, ORDERS, COMMIT)
    later = (Lsn(1090), Lsn(1095), TIME, XID, GID)
    (part,) = taken(streams, m.BeginPrepare(*later), *own, insert(b"1", b"a"), m.Prepare(*later))
    known = part.edge.prepared
    spools.clear(known)
    spools.check(known)
    assert spools.size == known[0].size > 0
    streams = connection(spools, skip_before=1095, known=known)
    taken(streams, m.Begin(Lsn(1100), TIME, 8), NARROW, insert(b"2"), m.Commit(Lsn(1100), Lsn(1110), TIME))
    slices = taken(streams, m.CommitPrepared(Lsn(1200), Lsn(1210), TIME, XID, GID))
    assert values(slices) == [(b"1", b"a")]
    later = m.Begin(Lsn(1300), TIME, 9), insert(b"3"), m.Commit(Lsn(1300), Lsn(1310), TIME)
    assert values(taken(streams, *later)) == [(b"3",)], "a definition of this connection is the newer one"


def test_a_spool_has_the_definition_that_counts_before_its_own_one(spools):
    """As after ALTER TABLE in the transaction."""
    streams = connection(spools)
    taken(streams, BEGIN, ORDERS, COMMIT)
    later = (Lsn(1090), Lsn(1095), TIME, XID, GID)
    rows = insert(b"1", b"a"), NARROW, insert(b"2")
    (part,) = taken(streams, m.BeginPrepare(*later), *rows, m.Prepare(*later))
    spools.clear(part.edge.prepared)
    streams = connection(spools, skip_before=1095, known=part.edge.prepared)
    slices = taken(streams, m.CommitPrepared(Lsn(1200), Lsn(1210), TIME, XID, GID))
    assert values(slices) == [(b"1", b"a"), (b"2",)]


def test_a_prepared_transaction_s_spool_is_whole_after_a_rollback_to_a_savepoint(spools):
    streams = connection(spools)
    taken(streams, *block(in_stream(ORDERS), in_stream(insert(b"1", b"a"))))
    taken(streams, *block(in_stream(insert(b"2", b"b"), 8), first=False))
    (part,) = taken(streams, m.StreamAbort(XID, 8), m.StreamPrepare(*PREPARE))
    spools.check(part.edge.prepared)


def _prepared(xid, lsn, *messages, streamed):
    """Messages of a transaction up to its prepare, whose end LSN is `lsn`."""
    prepare = (Lsn(lsn - 5), Lsn(lsn), TIME, xid, f"gid {xid}")
    if streamed:
        return [*block(*(in_stream(one, xid) for one in messages), xid=xid), m.StreamPrepare(*prepare)]
    return [m.BeginPrepare(*prepare), *messages, m.Prepare(*prepare)]


def _committed(xid, lsn):
    return m.CommitPrepared(Lsn(lsn - 5), Lsn(lsn), TIME, xid, f"gid {xid}")


TOLD = (ORDERS, insert(b"0", b"z"))
STREAMED_FIRST = block(*(in_stream(one, 5) for one in TOLD), xid=5)
TEACHERS = {
    "a whole one": [m.Begin(Lsn(95), TIME, 5), *TOLD, m.Commit(Lsn(95), Lsn(100), TIME)],
    "a prepared one": _prepared(5, 100, *TOLD, streamed=False),
    "a streamed one": [*STREAMED_FIRST, m.StreamCommit(5, Lsn(95), Lsn(100), TIME)],
    "a streamed and prepared one": _prepared(5, 100, *TOLD, streamed=True),
    "one that was committed since": [*_prepared(5, 90, *TOLD, streamed=True), _committed(5, 100)],
    "one that was rolled back since": [
        *_prepared(5, 90, *TOLD, streamed=True),
        m.RollbackPrepared(Lsn(90), Lsn(100), TIME, TIME, 5, "gid 5"),
    ],
}


@pytest.mark.parametrize("before", TEACHERS.values(), ids=TEACHERS)
def test_a_definition_that_came_in_another_transaction(spools, before):
    """PostgreSQL 15.20 doesn't send a definition again after a Stream Prepare either."""
    streams = connection(spools)
    taken(streams, *before)
    whole = m.Begin(Lsn(195), TIME, 6), insert(b"1", b"a"), m.Commit(Lsn(195), Lsn(200), TIME)
    assert values(taken(streams, *whole)) == [(b"1", b"a")]


@pytest.mark.parametrize("streamed", [False, True], ids=["whole", "streamed"])
@pytest.mark.parametrize("before", TEACHERS.values(), ids=TEACHERS)
def test_a_spool_has_the_definitions_that_came_in_another_transaction(spools, before, streamed):
    streams = connection(spools)
    taken(streams, *before)
    *_, part = taken(streams, *_prepared(6, 200, insert(b"1", b"a"), streamed=streamed))
    known = part.edge.prepared
    spools.clear(known)
    spools.check(known)
    streams = connection(spools, skip_before=200, known=known)
    assert values(taken(streams, _committed(6, 300))) == [(b"1", b"a")]


@pytest.mark.parametrize("blocks", [1, 2], ids=["before it", "in it"])
def test_a_spool_has_the_definitions_that_it_got_for_a_subtransaction_that_is_rolled_back(spools, blocks):
    """What was spooled before the subtransaction stays there; what came in between is needed again."""
    streams = connection(spools)
    taken(streams, BEGIN, PARTS, ORDERS, COMMIT)
    row = insert(b"1", b"a", oid=PARTS.oid)
    first = block(in_stream(insert(b"1", b"a")), in_stream(row if blocks == 1 else insert(b"3", b"c"), 8))
    if blocks == 2:
        first += block(in_stream(row, 8), first=False)
    rest = block(in_stream(insert(b"2", b"b")), in_stream(row), first=False)
    prepare = m.StreamPrepare(Lsn(1090), Lsn(1095), TIME, XID, GID)
    *_, part = taken(streams, *first, m.StreamAbort(XID, 8), *rest, prepare)
    spools.clear(part.edge.prepared)
    streams = connection(spools, skip_before=1095, known=part.edge.prepared)
    end = m.CommitPrepared(Lsn(1200), Lsn(1210), TIME, XID, GID)
    assert values(taken(streams, end)) == [(b"1", b"a"), (b"2", b"b"), (b"1", b"a")]


def test_a_prepared_transaction_s_older_definition_doesn_t_replace_a_newer_one(spools):
    streams = connection(spools)
    first, prepare = _prepared(5, 100, *TOLD, streamed=True)[:-1], _prepared(5, 100, streamed=True)[-1]
    taken(streams, *first)
    taken(streams, m.Begin(Lsn(90), TIME, 8), NARROW, insert(b"2"), m.Commit(Lsn(90), Lsn(95), TIME))
    taken(streams, prepare)
    later = m.Begin(Lsn(195), TIME, 9), insert(b"3"), m.Commit(Lsn(195), Lsn(200), TIME)
    assert values(taken(streams, *later)) == [(b"3",)]


def test_a_prepared_transaction_that_is_known_already_tells_of_its_tables(spools):
    (part,) = taken(connection(spools), *PREPARED)
    spools.clear(part.edge.prepared)
    streams = connection(spools, skip_before=995, known=part.edge.prepared)
    taken(streams, *PREPARED)
    later = m.Begin(Lsn(1100), TIME, 8), insert(b"2", b"b"), m.Commit(Lsn(1100), Lsn(1110), TIME)
    assert values(taken(streams, *later)) == [(b"2", b"b")]


def test_a_prepared_transaction_that_comes_again_is_kept_once(spools):
    (part,) = taken(connection(spools), *PREPARED)
    spools.clear(part.edge.prepared)
    streams = connection(spools, skip_before=995, known=part.edge.prepared)
    assert taken(streams, *PREPARED) == []
    assert values(taken(streams, COMMITTED)) == [(b"1", b"a")]


@pytest.mark.parametrize("end", [COMMITTED, ROLLED_BACK], ids=["committed", "rolled back"])
def test_a_prepared_transaction_that_is_streamed_after_a_restart(spools, tmp_path, end):
    """The server streams a transaction that is prepared already if another one takes too much memory.

    No Stream Prepare follows, and its blocks begin where the whole transaction did.
    """
    (part,) = taken(connection(spools), *PREPARED)
    spools.clear(part.edge.prepared)
    streams = connection(spools, skip_before=995, known=part.edge.prepared)
    again = block(*map(in_stream, ROWS)), block(in_stream(insert(b"2", b"b")), first=False)
    assert taken(streams, *again[0]) + taken(streams, *again[1]) == []
    assert values(taken(streams, end)) == ([(b"1", b"a")] if end is COMMITTED else [])
    with pytest.raises(UndecodableError, match="transaction 7 never began"):
        taken(streams, m.StreamCommit(XID, Lsn(1100), Lsn(1110), TIME))
    spools.close(())
    assert not list(tmp_path.glob("spool/*"))


def test_a_prepare_without_a_begin_has_no_changes(spools):
    """PostgreSQL 18.4 sends it for a transaction that only locked rows."""
    (part,) = taken(connection(spools), m.Prepare(*PREPARE))
    known = part.edge.prepared
    assert (part.edge.end_lsn, len(known)) == (995, 1)
    spools.clear(known)
    spools.check(known)
    streams = connection(spools, skip_before=995, known=known)
    assert taken(streams, m.Prepare(*PREPARE)) == [], "and once more"
    (part,) = taken(streams, COMMITTED)
    assert (part.edge.end_lsn, part.edge.transactions, part.edge.prepared) == (1010, 0, ())
    assert not streams.in_transaction


def test_a_prepared_transaction_that_is_rolled_back(spools):
    streams = connection(spools)
    taken(streams, *PREPARED)
    (part,) = taken(streams, ROLLED_BACK)
    assert (part.edge.end_lsn, part.edge.prepared, part.changes) == (1010, (), ())


def test_one_that_ended_before_the_checkpoint_is_dropped(spools):
    streams = connection(spools, skip_before=2000)
    slices = taken(streams, *PREPARED, COMMITTED)
    assert values(slices) == []
    assert taken(streams, *PREPARED, ROLLED_BACK) == []


@pytest.mark.parametrize(("skip_before", "prepared"), [(990, [1]), (991, [])])
def test_a_prepare_that_begins_where_the_output_ends_is_recorded(spools, skip_before, prepared):
    slices = taken(connection(spools, skip_before=skip_before), *PREPARED)
    assert [len(part.edge.prepared) for part in slices] == prepared


@pytest.mark.parametrize(("skip_before", "rows"), [(1000, [(b"1", b"a")]), (1001, [])])
def test_a_commit_that_begins_where_the_output_ends_is_not_in_it(spools, skip_before, rows):
    (part,) = taken(connection(spools), *PREPARED)
    spools.clear(part.edge.prepared)
    streams = connection(spools, skip_before=skip_before, known=part.edge.prepared)
    assert values(taken(streams, COMMITTED)) == rows


@pytest.mark.parametrize("at_prepare", [False, True])
def test_one_that_was_prepared_before_two_phases_leaves_nothing_if_it_is_rolled_back(
    spools, tmp_path, at_prepare
):
    streams = connection(spools, skip_before=999, at_prepare=at_prepare)
    assert taken(streams, *PREPARED, ROLLED_BACK) == []
    assert not list(tmp_path.glob("spool/*"))


def test_one_that_was_prepared_before_two_phases_comes_at_its_commit(spools):
    streams = connection(spools, skip_before=999)
    assert taken(streams, *PREPARED) == [], "it needs no record: it would come again"
    assert values(taken(streams, COMMITTED)) == [(b"1", b"a")]


def test_a_commit_of_what_was_never_seen_is_a_gap(spools):
    with pytest.raises(PgcdcError) as error:
        taken(connection(spools), COMMITTED)
    assert error.value.kind is ErrorKind.GAP
    streams = connection(spools, accept_gap=True)
    (part,) = taken(streams, COMMITTED)
    assert part.edge.end_lsn == 1010
    assert len(streams.warnings) == 1


@pytest.mark.parametrize(("end", "kind", "commit_lsn"), [(COMMITTED, "K", 1000), (ROLLED_BACK, "r", 990)])
def test_at_prepare_the_changes_come_at_once_and_their_end_later(spools, end, kind, commit_lsn):
    streams = connection(spools, at_prepare=True)
    slices = taken(streams, *PREPARED)
    assert values(slices) == [(b"1", b"a")]
    assert [boundary.kind for part in slices for boundary in chain.from_iterable(part.boundaries)] == [
        "B",
        "P",
    ]
    assert spools.size == 0, "nothing is kept of what was given out"
    known = slices[-1].edge.prepared
    assert known == (Prepared(XID, GID, Lsn(990)),)
    streams = connection(spools, at_prepare=True, skip_before=995, known=known)
    assert taken(streams, *PREPARED) == []
    (part,) = taken(streams, end)
    ((found,),) = part.boundaries
    assert (found.kind, found.gid, found.stamp.commit_lsn) == (kind, GID, commit_lsn)
    assert part.edge.prepared == ()


@pytest.mark.parametrize("at_prepare", [False, True])
@pytest.mark.parametrize("end", [COMMITTED, ROLLED_BACK], ids=["committed", "rolled back"])
@pytest.mark.parametrize(("until", "comes"), [(1000, False), (1010, True), (1011, True)])
def test_nothing_of_a_prepared_transaction_comes_beyond_the_end_position(
    spools, at_prepare, end, until, comes
):
    (*_, part) = taken(connection(spools, at_prepare=at_prepare), *PREPARED)
    known = part.edge.prepared
    spools.clear(known)
    settings = {"at_prepare": at_prepare, "skip_before": 995, "known": known}
    streams = connection(spools, until=Lsn(until), **settings)
    assert edges(taken(streams, end)) == [1010] * comes
    assert streams.ended == (until <= 1010)


@pytest.mark.parametrize("at_prepare", [False, True])
@pytest.mark.parametrize(("until", "comes"), [(990, False), (995, True)])
def test_what_is_prepared_beyond_the_end_position_does_not_come(spools, at_prepare, until, comes):
    streams = connection(spools, until=Lsn(until), at_prepare=at_prepare)
    assert edges(taken(streams, *PREPARED)) == [995] * comes
    assert streams.ended


@pytest.mark.parametrize(("until", "comes"), [(1000, False), (1010, True)])
def test_a_streamed_transaction_without_changes_does_not_come_beyond_the_end_position(spools, until, comes):
    streams = connection(spools, until=Lsn(until))
    found = taken(streams, *block(), m.StreamCommit(XID, *END))
    assert edges(found) == [1010] * comes
    assert streams.ended


def test_nothing_counts_after_the_last_transaction_that_is_wanted(spools):
    """Otherwise the checkpoint would be beyond those between them."""
    streams = connection(spools, transactions=1)
    taken(streams, *block())
    others = m.Begin(Lsn(1100), TIME, 8), insert(b"2", b"b"), m.Commit(Lsn(1100), Lsn(1110), TIME)
    streamed = m.StreamCommit(XID, Lsn(1200), Lsn(1210), TIME)
    assert edges(taken(streams, BEGIN, *ROWS, COMMIT, *others, streamed)) == [1010]


def test_a_gap_beyond_the_end_position_is_none(spools):
    assert taken(connection(spools, until=Lsn(1000)), COMMITTED) == []


@pytest.mark.parametrize(("end", "kind"), [(COMMITTED, "K"), (ROLLED_BACK, "r")])
def test_at_prepare_an_earlier_run_may_have_given_out_the_changes(spools, end, kind):
    (part,) = taken(connection(spools, at_prepare=True), end)
    assert [boundary.kind for boundary in chain.from_iterable(part.boundaries)] == [kind]


@pytest.mark.parametrize(
    ("messages", "reason"),
    [
        ([m.StreamStart(XID, False)], "transaction 7 never began"),
        ([*block(), m.StreamStart(XID, True)], "transaction 7 began already"),
        ([m.StreamStart(XID, True), m.StreamStart(8, True)], "it is inside another transaction"),
        ([BEGIN, m.StreamStart(XID, True)], "it is inside another transaction"),
        ([m.StreamStart(XID, True), BEGIN, COMMIT], "it is inside another transaction"),
        ([m.StreamStop()], "no streamed block is open"),
        ([m.StreamCommit(XID, *END)], "transaction 7 never began"),
        ([*PREPARED, *block(), m.StreamCommit(XID, *END)], "transaction 7 is prepared"),
        ([m.StreamStart(XID, True), m.StreamAbort(XID, 8)], "it is inside another transaction"),
        ([*PREPARED[:1], m.StreamStop()], "no streamed block is open"),
        ([*PREPARED[:1], COMMITTED], "it is inside another transaction"),
        ([*PREPARED[:1], m.Prepare(*PREPARE[:3], 8, GID)], "it is inside another transaction"),
        ([*PREPARED[:1], m.Prepare(*PREPARE[:4], "other")], "it is inside another transaction"),
        ([*PREPARED[:1], m.Prepare(Lsn(991), *PREPARE[1:])], "it is inside another transaction"),
        ([BEGIN, m.Prepare(*PREPARE)], "it is inside another transaction"),
        ([m.StreamStart(XID, True), m.Prepare(*PREPARE)], "it is inside another transaction"),
        ([m.StreamPrepare(*PREPARE)], "transaction 7 never began"),
        ([*PREPARED, m.BeginPrepare(*PREPARE[:4], "other")], "transaction 7 began already"),
        ([*PREPARED, *block(), m.StreamPrepare(*PREPARE[:4], "other")], "transaction 7 began already"),
        ([m.StreamStart(0, True)], "could not assemble Stream Start message: its xid is 0"),
        (block(in_stream(ORDERS, 0)), "could not assemble Relation message: its xid is 0"),
        ([BEGIN, ROLLED_BACK], "it is inside another transaction"),
    ],
)
def test_a_message_out_of_place(spools, messages, reason):
    with pytest.raises(UndecodableError, match=reason):
        taken(connection(spools), *messages)


def test_every_cut_of_a_message_in_a_block_is_an_error_at_once_or_at_the_commit(spools):
    whole = in_stream(insert(b"1", b"a"))
    for size in range(1, len(whole)):
        streams = connection(spools)
        with pytest.raises(UndecodableError):
            taken(streams, *block(in_stream(ORDERS), whole[:size]), m.StreamCommit(XID, *END))
        spools.clear(())


def test_a_limit_stops_before_anything_is_written_beyond_it(tmp_path, monkeypatch):
    monkeypatch.setattr(spool_file, "CHUNK_BYTES", 1)
    spools = SpoolFolder(OpenFiles(Disk(), str(tmp_path)), "spool", limit=2000)
    streams = connection(spools)
    rows = [in_stream(insert(b"%d" % number, b"a")) for number in range(1000)]
    blocks = [block(row, first=number == 0) for number, row in enumerate(rows)]
    with pytest.raises(PgcdcError, match="the spool would grow beyond 2000 bytes") as error:
        taken(streams, *chain.from_iterable(blocks))
    assert error.value.kind is ErrorKind.OUTPUT
    assert sum(file.stat().st_size for file in tmp_path.glob("spool/*")) <= 2000


def test_nothing_of_what_was_rolled_back_is_written_with_the_others(tmp_path, monkeypatch):
    monkeypatch.setattr(spool_file, "HELD_AT_MOST", 300)
    streams = connection(SpoolFolder(OpenFiles(Disk(), str(tmp_path)), "spool"))
    taken(streams, *block(in_stream(ORDERS), in_stream(insert(b"1", b"a"))), m.StreamAbort(XID, XID))
    taken(streams, *block(in_stream(insert(b"2", b"b" * 300), 8), xid=8))
    assert [path.name.partition("-")[0] for path in tmp_path.glob("spool/*")] == ["8"]


@pytest.mark.parametrize("held", [1, 1 << 20])
def test_what_is_put_aside_is_counted_until_its_commit(spools, monkeypatch, held):
    monkeypatch.setattr(spool_file, "CHUNK_BYTES", held)
    streams = connection(spools)
    assert spools.size == 0
    taken(streams, *block(in_stream(ORDERS), in_stream(insert(b"1", b"a" * 400))))
    assert spools.size > 0
    taken(streams, m.StreamCommit(XID, *END))
    assert spools.size == 0


def test_many_transactions_at_once_share_the_memory(spools, monkeypatch):
    """Even if the first of them has been written, and has nothing in memory."""
    monkeypatch.setattr(spool_file, "CHUNK_BYTES", 400)
    monkeypatch.setattr(spool_file, "HELD_AT_MOST", 1000)
    streams, xids = connection(spools), range(1, 40)
    for xid in xids:
        row = in_stream(insert(b"%d" % xid, b"a" * (400 if xid == 1 else 100)), xid)
        taken(streams, *block(in_stream(ORDERS, xid), row, xid=xid))
    ends = [m.StreamCommit(xid, Lsn(1000 + xid), Lsn(1001 + xid), TIME) for xid in xids]
    assert [key for key, _ in values(taken(streams, *ends))] == [b"%d" % xid for xid in xids]


def test_a_large_value_comes_back_whole(spools):
    value = bytes(range(256)) * 40_000
    streams = connection(spools)
    row = in_stream(m.Insert(16385, full(b"1", value)))
    assert values(taken(streams, *block(in_stream(ORDERS), row), m.StreamCommit(XID, *END))) == [
        (b"1", value)
    ]


def test_the_messages_that_hypothesis_makes_are_those_of_a_server():
    assert decode(in_stream(ORDERS), in_stream=True).xid == XID
