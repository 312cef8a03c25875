"""Transactions that come in pieces have the same changes as those that come whole."""

from itertools import chain

import pytest
from pgoutput_connection import boundaries, connection, edges, taken, values
from pgoutput_orders import (
    BEGIN,
    COMMIT,
    COMMITTED,
    END,
    ORDERS,
    PREPARE,
    PREPARED,
    ROLLED_BACK,
    ROWS,
    TIME,
    XID,
    block,
    full,
    in_stream,
    insert,
    whole,
)
from pgoutput_pieces import GID

from pgcdc_cli.changes.origin import Origin
from pgcdc_cli.directory.disk import Disk, OpenFiles
from pgcdc_cli.errors import ErrorKind, PgcdcError, UndecodableError
from pgcdc_cli.lsn import Lsn
from pgcdc_cli.pgoutput import messages as m
from pgcdc_cli.pgoutput.decode import decode
from pgcdc_cli.pgoutput.spooled_transaction import UndecidedRollbackError
from pgcdc_cli.sinks import spool_file
from pgcdc_cli.sinks.spool_file import SpoolFolder


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


@pytest.mark.parametrize("cut", [1, 2, 3, 4])
def test_a_begin_knows_where_its_transaction_came_from_wherever_a_batch_ends(spools, cut):
    """The first origin counts, if a transaction has several."""
    streams = connection(spools)
    origin = Origin(Lsn(77), "elsewhere")
    messages = [BEGIN, origin, ORDERS, insert(b"1", b"a"), Origin(Lsn(78), "later"), COMMIT]
    slices = taken(streams, *messages[:cut])
    assert streams.in_transaction
    slices += taken(streams, *messages[cut:])
    found = [(boundary.kind, boundary.stamp.origin) for boundary in boundaries(slices)]
    assert found == [("B", origin), ("C", origin)]


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
    assert {boundary.stamp.origin for boundary in boundaries(slices)} == {origin}


@pytest.mark.parametrize("content", [[], [in_stream(ORDERS)]], ids=["nothing", "a definition"])
def test_a_transaction_without_a_change_is_only_an_edge(spools, content):
    streams = connection(spools)
    (part,) = taken(streams, *block(*content), m.StreamCommit(XID, *END))
    assert (part.edge.end_lsn, part.edge.transactions, part.boundaries) == (1010, 0, ())


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
    others = whole((1100, 1110), insert(b"2", b"b"))
    streamed = m.StreamCommit(XID, Lsn(1200), Lsn(1210), TIME)
    assert edges(taken(streams, BEGIN, *ROWS, COMMIT, *others, streamed)) == [1010]


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
