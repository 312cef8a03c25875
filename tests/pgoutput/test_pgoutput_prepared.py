"""Prepared transactions are kept until they are committed or rolled back, also over restarts."""

import pytest
from pgoutput_connection import after_restart, boundaries, connection, edges, taken, values
from pgoutput_orders import (
    BEGIN,
    COMMIT,
    COMMITTED,
    NARROW,
    ORDERS,
    PARTS,
    PREPARE,
    PREPARED,
    ROLLED_BACK,
    ROWS,
    TIME,
    XID,
    block,
    in_stream,
    insert,
    whole,
)
from pgoutput_pieces import GID

from pgcdc_cli.changes.edge import Prepared
from pgcdc_cli.errors import ErrorKind, PgcdcError, UndecodableError
from pgcdc_cli.lsn import Lsn
from pgcdc_cli.pgoutput import messages as m


def test_a_prepared_transaction_is_given_out_at_its_commit(spools):
    streams = connection(spools)
    (prepare,) = taken(streams, *PREPARED)
    assert (prepare.edge.end_lsn, len(prepare.edge.prepared)) == (995, 1)
    slices = taken(streams, COMMITTED)
    assert values(slices) == [(b"1", b"a")]
    assert {part.gid for part in slices} == {GID}
    assert [boundary.gid for boundary in boundaries(slices)] == [GID, GID]
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
    streams = after_restart(spools, part, skip_before=1095)
    spools.check(part.edge.prepared)
    assert spools.size == part.edge.prepared[0].size > 0
    taken(streams, *whole((1100, 1110), NARROW, insert(b"2")))
    slices = taken(streams, m.CommitPrepared(Lsn(1200), Lsn(1210), TIME, XID, GID))
    assert values(slices) == [(b"1", b"a")]
    assert values(taken(streams, *whole((1300, 1310), insert(b"3"), xid=9))) == [(b"3",)], (
        "a definition of this connection is the newer one"
    )


def test_a_prepared_transaction_s_spool_is_whole_after_a_rollback_to_a_savepoint(spools):
    streams = connection(spools)
    taken(streams, *block(in_stream(ORDERS), in_stream(insert(b"1", b"a"))))
    taken(streams, *block(in_stream(insert(b"2", b"b"), 8), first=False))
    (part,) = taken(streams, m.StreamAbort(XID, 8), m.StreamPrepare(*PREPARE))
    spools.check(part.edge.prepared)


def test_a_prepared_transaction_that_comes_again_is_kept_once(spools):
    (part,) = taken(connection(spools), *PREPARED)
    streams = after_restart(spools, part, skip_before=995)
    assert taken(streams, *PREPARED) == []
    assert values(taken(streams, COMMITTED)) == [(b"1", b"a")]


@pytest.mark.parametrize("end", [COMMITTED, ROLLED_BACK], ids=["committed", "rolled back"])
def test_a_prepared_transaction_that_is_streamed_after_a_restart(spools, tmp_path, end):
    """The server streams a transaction that is prepared already if another one takes too much memory.

    No Stream Prepare follows, and its blocks begin where the whole transaction did.
    """
    (part,) = taken(connection(spools), *PREPARED)
    streams = after_restart(spools, part, skip_before=995)
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
    assert (part.edge.end_lsn, len(part.edge.prepared)) == (995, 1)
    streams = after_restart(spools, part, skip_before=995)
    spools.check(part.edge.prepared)
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
    streams = after_restart(spools, part, skip_before=skip_before)
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
    assert [boundary.kind for boundary in boundaries(slices)] == ["B", "P"]
    assert spools.size == 0, "nothing is kept of what was given out"
    known = slices[-1].edge.prepared
    assert known == (Prepared(XID, GID, Lsn(990)),)
    streams = connection(spools, at_prepare=True, skip_before=995, known=known)
    assert taken(streams, *PREPARED) == []
    (part,) = taken(streams, end)
    ((found,),) = part.boundaries
    assert (found.kind, found.gid, found.stamp.commit_lsn) == (kind, GID, commit_lsn)
    assert part.edge.prepared == ()


@pytest.mark.parametrize(("end", "kind"), [(COMMITTED, "K"), (ROLLED_BACK, "r")])
def test_at_prepare_an_earlier_run_may_have_given_out_the_changes(spools, end, kind):
    (part,) = taken(connection(spools, at_prepare=True), end)
    assert [boundary.kind for boundary in boundaries([part])] == [kind]


@pytest.mark.parametrize("at_prepare", [False, True])
@pytest.mark.parametrize("end", [COMMITTED, ROLLED_BACK], ids=["committed", "rolled back"])
@pytest.mark.parametrize(("until", "comes"), [(1000, False), (1010, True), (1011, True)])
def test_nothing_of_a_prepared_transaction_comes_beyond_the_end_position(
    spools, at_prepare, end, until, comes
):
    (*_, part) = taken(connection(spools, at_prepare=at_prepare), *PREPARED)
    streams = after_restart(spools, part, skip_before=995, at_prepare=at_prepare, until=Lsn(until))
    assert edges(taken(streams, end)) == [1010] * comes
    assert streams.ended == (until <= 1010)


@pytest.mark.parametrize("at_prepare", [False, True])
@pytest.mark.parametrize(("until", "comes"), [(990, False), (995, True)])
def test_what_is_prepared_beyond_the_end_position_does_not_come(spools, at_prepare, until, comes):
    streams = connection(spools, until=Lsn(until), at_prepare=at_prepare)
    assert edges(taken(streams, *PREPARED)) == [995] * comes
    assert streams.ended


def test_a_gap_beyond_the_end_position_is_none(spools):
    assert taken(connection(spools, until=Lsn(1000)), COMMITTED) == []
