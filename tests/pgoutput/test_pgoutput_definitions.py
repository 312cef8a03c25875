"""Which Relation message counts for a row, in whatever pieces the transactions around it come."""

import pytest
from pgoutput_connection import after_restart, connection, taken, values
from pgoutput_orders import (
    BEGIN,
    COMMIT,
    END,
    NARROW,
    ORDERS,
    PARTS,
    PREPARED,
    TIME,
    XID,
    block,
    in_stream,
    insert,
    whole,
)
from pgoutput_pieces import GID

from pgcdc_cli.changes.origin import Origin
from pgcdc_cli.errors import UndecodableError
from pgcdc_cli.lsn import Lsn
from pgcdc_cli.pgoutput import messages as m


def test_a_definition_that_was_rolled_back_is_not_used(spools):
    """A real server would send the definition again after the abort (`cleanup_rel_sync_cache`)."""
    streams = connection(spools)
    first = block(Origin(Lsn(0), "elsewhere"), in_stream(ORDERS, 8))
    rest = block(in_stream(insert(b"1", b"a")), first=False)
    with pytest.raises(UndecodableError, match="no Relation message was received for OID 16385"):
        taken(streams, *first, m.StreamAbort(XID, 8), *rest, m.StreamCommit(XID, *END))


def test_a_rolled_back_subtransactions_definition_of_a_table_counts_no_more(spools):
    streams = connection(spools)
    taken(streams, BEGIN, ORDERS, COMMIT)
    rows = block(in_stream(insert(b"1", b"a")), in_stream(NARROW, 8), in_stream(insert(b"2"), 8))
    end = (Lsn(1100), Lsn(1110), TIME)
    slices = taken(streams, *rows, m.StreamAbort(XID, 8), m.StreamCommit(XID, *end))
    assert values(slices) == [(b"1", b"a")]
    assert values(taken(streams, *whole((1200, 1210), insert(b"3", b"c"), xid=9))) == [(b"3", b"c")]
    streamed = block(in_stream(insert(b"4", b"d"), 10), xid=10)
    end = (Lsn(1300), Lsn(1310), TIME)
    assert values(taken(streams, *streamed, m.StreamCommit(10, *end))) == [(b"4", b"d")]


def test_a_committed_transaction_s_definitions_count_for_those_that_follow(spools):
    streams = connection(spools)
    taken(streams, *block(in_stream(ORDERS), in_stream(insert(b"1", b"a"))), m.StreamCommit(XID, *END))
    assert values(taken(streams, *whole((1100, 1110), insert(b"2", b"b")))) == [(b"2", b"b")]


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
    taken(streams, *whole((900, 910), NARROW, insert(b"2")))
    assert values(taken(streams, m.StreamCommit(XID, *END))) == [(b"1", b"a")]
    assert values(taken(streams, *whole((1100, 1110), insert(b"3"), xid=9))) == [(b"3",)]


def test_a_newer_definition_that_came_meanwhile_counts_for_the_rows_after_it(spools):
    """As after ALTER PUBLICATION SET TABLE t (columns), too."""
    streams = connection(spools)
    taken(streams, BEGIN, ORDERS, COMMIT)
    taken(streams, *block(in_stream(insert(b"1", b"a"))))
    taken(streams, *whole((1100, 1110), NARROW, insert(b"2")))
    end = m.StreamCommit(XID, Lsn(1200), Lsn(1210), TIME)
    slices = taken(streams, *block(in_stream(insert(b"3")), first=False), end)
    assert values(slices) == [(b"1", b"a"), (b"3",)]


def test_a_spool_has_the_definition_that_counts_before_its_own_one(spools):
    """As after ALTER TABLE in the transaction."""
    streams = connection(spools)
    taken(streams, BEGIN, ORDERS, COMMIT)
    later = (Lsn(1090), Lsn(1095), TIME, XID, GID)
    rows = insert(b"1", b"a"), NARROW, insert(b"2")
    (part,) = taken(streams, m.BeginPrepare(*later), *rows, m.Prepare(*later))
    streams = after_restart(spools, part, skip_before=1095)
    slices = taken(streams, m.CommitPrepared(Lsn(1200), Lsn(1210), TIME, XID, GID))
    assert values(slices) == [(b"1", b"a"), (b"2",)]


def prepared(xid, lsn, *messages, streamed):
    """Messages of a transaction up to its prepare, whose end LSN is `lsn`."""
    prepare = (Lsn(lsn - 5), Lsn(lsn), TIME, xid, f"gid {xid}")
    if streamed:
        return [*block(*(in_stream(one, xid) for one in messages), xid=xid), m.StreamPrepare(*prepare)]
    return [m.BeginPrepare(*prepare), *messages, m.Prepare(*prepare)]


def committed(xid, lsn):
    return m.CommitPrepared(Lsn(lsn - 5), Lsn(lsn), TIME, xid, f"gid {xid}")


TOLD = (ORDERS, insert(b"0", b"z"))

STREAMED_FIRST = block(*(in_stream(one, 5) for one in TOLD), xid=5)

TEACHERS = {
    "a whole one": whole((95, 100), *TOLD, xid=5),
    "a prepared one": prepared(5, 100, *TOLD, streamed=False),
    "a streamed one": [*STREAMED_FIRST, m.StreamCommit(5, Lsn(95), Lsn(100), TIME)],
    "a streamed and prepared one": prepared(5, 100, *TOLD, streamed=True),
    "one that was committed since": [*prepared(5, 90, *TOLD, streamed=True), committed(5, 100)],
    "one that was rolled back since": [
        *prepared(5, 90, *TOLD, streamed=True),
        m.RollbackPrepared(Lsn(90), Lsn(100), TIME, TIME, 5, "gid 5"),
    ],
}


@pytest.mark.parametrize("before", TEACHERS.values(), ids=TEACHERS)
def test_a_definition_that_came_in_another_transaction(spools, before):
    """PostgreSQL 15.20 doesn't send a definition again after a Stream Prepare either."""
    streams = connection(spools)
    taken(streams, *before)
    assert values(taken(streams, *whole((195, 200), insert(b"1", b"a"), xid=6))) == [(b"1", b"a")]


@pytest.mark.parametrize("streamed", [False, True], ids=["whole", "streamed"])
@pytest.mark.parametrize("before", TEACHERS.values(), ids=TEACHERS)
def test_a_spool_has_the_definitions_that_came_in_another_transaction(spools, before, streamed):
    streams = connection(spools)
    taken(streams, *before)
    *_, part = taken(streams, *prepared(6, 200, insert(b"1", b"a"), streamed=streamed))
    streams = after_restart(spools, part, skip_before=200)
    spools.check(part.edge.prepared)
    assert values(taken(streams, committed(6, 300))) == [(b"1", b"a")]


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
    streams = after_restart(spools, part, skip_before=1095)
    end = m.CommitPrepared(Lsn(1200), Lsn(1210), TIME, XID, GID)
    assert values(taken(streams, end)) == [(b"1", b"a"), (b"2", b"b"), (b"1", b"a")]


def test_a_prepared_transaction_s_older_definition_doesn_t_replace_a_newer_one(spools):
    streams = connection(spools)
    first, prepare = prepared(5, 100, *TOLD, streamed=True)[:-1], prepared(5, 100, streamed=True)[-1]
    taken(streams, *first)
    taken(streams, *whole((90, 95), NARROW, insert(b"2")))
    taken(streams, prepare)
    assert values(taken(streams, *whole((195, 200), insert(b"3"), xid=9))) == [(b"3",)]


def test_a_prepared_transaction_that_is_known_already_tells_of_its_tables(spools):
    (part,) = taken(connection(spools), *PREPARED)
    streams = after_restart(spools, part, skip_before=995)
    taken(streams, *PREPARED)
    assert values(taken(streams, *whole((1100, 1110), insert(b"2", b"b")))) == [(b"2", b"b")]
