"""Whether a stream may go on from a checkpoint, with this source and this slot."""

from contextlib import nullcontext
from dataclasses import replace
from types import SimpleNamespace

import pytest
from sink_tools import SOURCE, START, Feed, Lines, started, transactions

from pgcdc_cli.changes.edge import Prepared
from pgcdc_cli.directory.checkpoint import Checkpoint
from pgcdc_cli.errors import ErrorKind, PgcdcError
from pgcdc_cli.lsn import Lsn
from pgcdc_cli.replication.connection import SystemIdentity
from pgcdc_cli.stream.known_prepared import KnownPrepared
from pgcdc_cli.stream.settings import Signals
from pgcdc_cli.stream.source_checks import check_source
from pgcdc_cli.stream.timeline_watch import TimelineWatch

ONE = Checkpoint(source=SOURCE, end_lsn=Lsn.parse("0/1A2B3C8"), options={}, segment=13)


@pytest.mark.parametrize("accept_gap", [False, True])
def test_the_same_source_goes_on_where_the_output_ends(accept_gap):
    """Where the slot is behind, too: the last confirmation may not have reached the server."""
    for position in (ONE.end_lsn, Lsn(1)):
        assert check_source(ONE, SOURCE, slot_position=position, accept_gap=accept_gap) == ONE


@pytest.mark.parametrize(
    "change",
    [
        {"system_id": "1"},
        {"database": "other"},
        {"slot": "s2"},
        {"publications": ("p1", "p2")},
        {"timeline": 0},
    ],
)
def test_another_source_is_refused(change):
    with pytest.raises(PgcdcError) as caught:
        check_source(ONE, replace(SOURCE, **change), slot_position=Lsn(1))
    assert caught.value.kind is ErrorKind.SOURCE_CHANGED
    assert ("--accept-publications" in caught.value.hint) == ("publications" in change)


def test_other_publications_are_taken_over_when_accepted():
    source = replace(SOURCE, publications=("p2", "p1", "p2"))
    checked = check_source(ONE, source, slot_position=Lsn(1), accept_publications=True)
    assert checked == replace(ONE, source=source)
    assert checked.source.publications == ("p1", "p2")


def test_the_order_of_publications_makes_no_difference():
    ours = replace(ONE, source=replace(SOURCE, publications=("b", "a")))
    assert check_source(ours, replace(SOURCE, publications=("a", "b")), slot_position=Lsn(1)) == ours


@pytest.mark.parametrize(
    ("history", "fine"),
    [
        ([(1, Lsn(ONE.end_lsn))], True),
        ([(1, Lsn(ONE.end_lsn + 1)), (2, Lsn(2**40))], True),
        ([(1, Lsn(ONE.end_lsn - 1))], False),
        ([(2, Lsn(2**40))], False),
        ([], False),
    ],
)
def test_a_later_timeline_must_descend_from_ours_after_our_position(history, fine):
    source = replace(SOURCE, timeline=3)
    if fine:
        assert check_source(ONE, source, slot_position=Lsn(1), history=lambda: history).source == source
    else:
        with pytest.raises(PgcdcError) as caught:
            check_source(ONE, source, slot_position=Lsn(1), history=lambda: history)
        assert caught.value.kind is ErrorKind.SOURCE_CHANGED


def test_a_timeline_that_left_ours_earlier_is_the_one_we_wrote_if_its_slot_is_where_we_are():
    source = replace(SOURCE, timeline=2)
    history = [(1, Lsn(ONE.end_lsn - 8))]
    checked = check_source(ONE, source, slot_position=ONE.end_lsn, history=lambda: history)
    assert checked == replace(ONE, source=source)
    for elsewhere in (-9, -8, -1, 1):
        with pytest.raises(PgcdcError) as caught:
            check_source(
                ONE,
                source,
                slot_position=Lsn(ONE.end_lsn + elsewhere),
                accept_gap=True,
                history=lambda: history,
            )
        assert caught.value.kind is ErrorKind.SOURCE_CHANGED
    with pytest.raises(PgcdcError, match="does not descend"):
        check_source(ONE, source, slot_position=ONE.end_lsn, history=list)


def test_a_slot_beyond_the_checkpoint_is_a_gap():
    beyond = Lsn(ONE.end_lsn + 1)
    with pytest.raises(PgcdcError) as caught:
        check_source(ONE, SOURCE, slot_position=beyond)
    assert caught.value.kind is ErrorKind.GAP
    checked = check_source(ONE, SOURCE, slot_position=beyond, accept_gap=True)
    assert checked.end_lsn == beyond
    assert checked.stream_id != ONE.stream_id
    assert checked.segment == ONE.segment


class Promoted:
    """The second connection to a standby, which is promoted after the first question."""

    in_recovery = True
    closed = False
    timeline = 1

    def identify_system(self):
        found = SystemIdentity("7300000000000000001", self.timeline, Lsn(1000), "shop")
        self.in_recovery = self.timeline == 1
        self.timeline = 2
        return found

    def close(self):
        self.closed = True


def test_a_new_timeline_is_taken_over_when_all_before_it_is_durable_and_no_other_can_come(tmp_path):
    """Otherwise rows in memory would be written later, with the position that was durable before."""
    sink, (tx,), asked, durable = started(tmp_path / "d"), transactions("a"), Promoted(), []
    start = SimpleNamespace(prepare=lambda *_: durable.append(sink.durable_lsn))
    stream = SimpleNamespace(in_recovery=True, beside=lambda: asked)
    watch = TimelineWatch(start, sink, Signals()).begin(stream, SystemIdentity("1", 1, Lsn(0), "shop"))
    sink.write(Feed(Lines()).whole(tx))
    watch.follow()
    assert (durable, sink.durable_lsn, asked.closed) == ([], START, False)
    watch.follow()
    assert (durable, asked.closed) == ([tx.end_lsn], False)
    watch.follow()
    assert (durable, asked.closed) == ([tx.end_lsn], True)
    sink.close()


def test_a_primary_is_not_asked_by_a_second_walsender():
    """It must restart for a new timeline."""
    asked = []
    stream = SimpleNamespace(in_recovery=False, beside=lambda: asked.append("beside"))
    watch = TimelineWatch(None, None, Signals()).begin(stream, SystemIdentity("1", 1, Lsn(0), "shop"))
    watch.follow()
    watch.close()
    assert not asked


def test_only_a_primary_is_asked_which_prepared_transactions_have_ended():
    """A standby that is behind may still bring an end that was seen on the primary."""
    prepared, written = Prepared(7, "gid", Lsn(50)), []
    edge = SimpleNamespace(lsn=Lsn(100), prepared=(prepared,))
    sink = SimpleNamespace(edge=edge, write=written.append, flush=lambda: None)
    catalog = SimpleNamespace(over=lambda _: nullcontext(), ended_transactions=lambda xids: xids)
    primary, standby = (
        SimpleNamespace(in_recovery=is_standby, own_session=None) for is_standby in (False, True)
    )
    known = KnownPrepared("s", sink, catalog)
    for asked in (standby, primary, standby):
        known.look(asked)
    known.forget_missed(Lsn(90))
    assert not written
    known.look(primary)
    known.forget_missed(Lsn(101))
    assert not written
    known.forget_missed(Lsn(100))
    assert [one.edge.prepared for one in written] == [()]
