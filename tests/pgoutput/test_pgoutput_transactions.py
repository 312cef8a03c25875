"""Batches of frames become slices with the plain decoder's changes, however the stream is divided."""

from dataclasses import replace
from itertools import chain

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pgoutput_orders import BEGIN, COMMIT, NARROW, ORDERS, PARTS, TIME, frames_of, insert
from pgoutput_orders import FrameAssembler as Assembler
from pgoutput_reference import describe, described, flat, merged, reference
from pgoutput_strategies import cuts, mutations, streams

from pgcdc_cli.changes.edge import Edge
from pgcdc_cli.changes.table import TableFacts
from pgcdc_cli.errors import UndecodableError
from pgcdc_cli.frames import XLOGDATA_HEADER, Frames
from pgcdc_cli.lsn import Lsn
from pgcdc_cli.pgoutput import message_batch
from pgcdc_cli.pgoutput import messages as m
from pgcdc_cli.pgoutput.decode import decode


def assemble(batches, *, skip_before=-1, **options):
    """All batches through one assembler, as `reference` gives them."""
    assembler = Assembler(describe, skip_before=Lsn(skip_before), **options)
    runs = []
    for batch in batches:
        slices = assembler.assemble(batch)
        assert len(slices) <= 2
        assert [part.edge is None for part in slices] in ([], [False], [True], [False, True])
        runs.append(flat(slices))
    found = merged(runs)
    found.in_transaction, found.ended = assembler.in_transaction, assembler.ended
    return found


@pytest.mark.usefixtures("either_way")
@given(st.data(), streams(), st.booleans())
@settings(max_examples=300, deadline=None)
def test_any_cut_of_a_stream_gives_the_changes_of_the_plain_decoder(data, frames, boundaries):
    expected = reference(frames, boundaries=boundaries)
    assert assemble([frames], boundaries=boundaries) == expected
    assert assemble([[one] for one in frames], boundaries=boundaries) == expected
    assert assemble(data.draw(cuts(frames)), boundaries=boundaries) == expected


@given(streams(), st.integers(26, 500))
@settings(max_examples=100, deadline=None)
def test_a_batch_larger_than_a_buffer_gives_the_same_changes(frames, largest):
    assembler = Assembler(describe, skip_before=Lsn(-1), boundaries=True)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(message_batch, "LARGEST", largest)
        found = flat(assembler.assemble(sum((Frames.of([one]) for one in frames), Frames())))
    found.in_transaction, found.ended = assembler.in_transaction, assembler.ended
    assert found == reference(frames, boundaries=True)


@st.composite
def limits(draw, frames):
    """Positions at and next to those that occur in the stream."""
    spoken = {lsn + near for one in frames for lsn in positions(one) for near in (-1, 0, 1)} | {0}
    lsns = st.sampled_from(sorted(spoken)).map(Lsn)
    return {
        "skip_before": draw(st.one_of(st.just(Lsn(0)), lsns)),
        "until": draw(st.one_of(st.none(), lsns)),
        "max_transactions": draw(st.one_of(st.none(), st.integers(1, 4))),
        "boundaries": draw(st.booleans()),
    }


def positions(one):
    match decode(one[XLOGDATA_HEADER:]):
        case m.Begin(final_lsn):
            return [final_lsn]
        case m.Commit(commit_lsn, end_lsn):
            return [commit_lsn, end_lsn]
        case m.LogicalMessage(lsn=lsn):
            return [lsn]
    return []


@given(st.data(), streams(most_changes=3))
@settings(max_examples=400, deadline=None)
def test_limits_keep_the_same_transactions_wherever_the_stream_is_cut(data, frames):
    options = data.draw(limits(frames))
    expected = reference(frames, **options)
    assert assemble([frames], **options) == expected
    assert assemble(data.draw(cuts(frames)), **options) == expected


@given(st.data(), streams())
@settings(max_examples=600, deadline=None)
def test_mutated_streams_are_refused_or_read_as_the_plain_decoder_does(data, frames):
    if frames:
        frames = data.draw(mutations(frames))
    try:
        expected = reference(frames)
    except UndecodableError:
        with pytest.raises(UndecodableError):
            assemble([frames])
        with pytest.raises(UndecodableError):
            assemble(data.draw(cuts(frames)))
    else:
        assert assemble([frames]) == expected
        assert assemble(data.draw(cuts(frames))) == expected


def one_slice(*messages, **options):
    (part,) = Assembler(describe, skip_before=Lsn(0), **options).assemble(frames_of(*messages))
    return part


def test_a_transaction_is_one_slice_up_to_its_edge():
    part = one_slice(BEGIN, ORDERS, insert(b"1", b"x"), insert(b"2", None), COMMIT)
    assert part.edge == Edge(Lsn(1010), commit_lsn=Lsn(1000), transactions=1)
    (rows,) = part.changes
    assert (rows.operation, rows.table, len(rows), rows.old) == ("I", described(ORDERS), 2, None)
    assert [column.to_pylist() for column in rows.new.columns] == [[b"1", b"2"], [b"x", None]]
    assert rows.new.unchanged == (None, None)
    stamps = rows.stamps
    assert (stamps.lsn.tolist(), stamps.seq.tolist(), stamps.index.tolist()) == ([502, 503], [0, 1], [0, 1])
    assert (stamps.commit_lsn.tolist(), stamps.commit_ts.tolist()) == ([1000] * 2, [TIME] * 2)
    assert stamps.xid.tolist() == [7, 7]


def test_a_batch_ends_with_the_open_remainder():
    assembler = Assembler(describe, skip_before=Lsn(0))
    later = m.Begin(Lsn(1100), TIME, 8)
    whole, rest = assembler.assemble(
        frames_of(BEGIN, ORDERS, insert(b"1", b"x"), COMMIT, later, insert(b"2", b"y"))
    )
    assert (whole.edge, rest.edge) == (Edge(Lsn(1010), commit_lsn=Lsn(1000), transactions=1), None)
    assert rest.changes[0].stamps.commit_lsn.tolist() == [1100]
    assert assembler.in_transaction
    assert assembler.assemble([]) == []
    (end,) = assembler.assemble(frames_of(m.Commit(Lsn(1100), Lsn(1110), TIME)))
    assert (end.edge, end.changes) == (Edge(Lsn(1110), commit_lsn=Lsn(1100), transactions=1), ())
    assert not assembler.in_transaction


def noting(asked: list):
    return lambda relations: asked.extend(relations) or describe(relations)


def test_a_relation_message_that_changes_nothing_asks_the_catalog_but_splits_no_rows():
    asked = []
    assembler = Assembler(noting(asked), skip_before=Lsn(0))
    (part,) = assembler.assemble(
        frames_of(BEGIN, ORDERS, insert(b"1", b"x"), ORDERS, insert(b"2", b"y"), COMMIT)
    )
    assert [len(rows) for rows in part.changes] == [2]
    assert asked == [ORDERS, ORDERS]


def test_rows_after_a_default_was_changed_have_the_new_facts():
    """The Relation message is the same then: only the catalog tells."""
    facts = [TableFacts(("id",), None, {}), TableFacts((), None, {})]
    left = iter(facts)
    assembler = Assembler(
        lambda relations: [replace(described(one), facts=next(left)) for one in relations], skip_before=Lsn(0)
    )
    rows = insert(b"1", b"x"), ORDERS, insert(b"2", b"y")
    (part,) = assembler.assemble(frames_of(BEGIN, ORDERS, *rows, COMMIT))
    assert [changes.table.facts for changes in part.changes] == facts


def test_rows_before_a_changed_relation_message_have_the_old_columns_and_rows_behind_it_the_new():
    asked = []
    assembler = Assembler(noting(asked), skip_before=Lsn(0))
    (part,) = assembler.assemble(
        frames_of(BEGIN, ORDERS, insert(b"1", b"x"), NARROW, insert(b"2"), ORDERS, insert(b"3", b"z"), COMMIT)
    )
    seqs = {rows.table: rows.stamps.seq.tolist() for rows in part.changes}
    assert seqs == {described(ORDERS): [0, 2], described(NARROW): [1]}
    assert asked == [ORDERS, NARROW, ORDERS]


def test_a_truncate_is_one_change_for_each_table_in_wire_order():
    truncate = m.Truncate((16386, 16385), cascade=True, restart_identity=False)
    part = one_slice(BEGIN, ORDERS, PARTS, insert(b"1", b"x"), truncate, insert(b"2", b"y"), COMMIT)
    found = [(change.table.name, change.stamp.seq, change.stamp.index) for change in part.truncates]
    assert found == [("parts", 1, 1), ("orders", 2, 2)]
    assert {(change.cascade, change.restart_identity) for change in part.truncates} == {(True, False)}
    assert part.changes[0].stamps.seq.tolist() == [0, 3]


def test_a_message_outside_of_transactions_is_a_transaction_of_its_own():
    message = m.LogicalMessage(False, Lsn(900), "p", b"content")
    part = one_slice(message)
    assert part.edge == Edge(Lsn(900), commit_lsn=Lsn(900), transactions=1)
    (change,) = part.messages
    assert (change.stamp.commit_lsn, change.stamp.seq, change.stamp.xid) == (900, 0, None)
    assert (change.prefix, change.content, change.transactional) == ("p", b"content", False)


def test_boundaries_enclose_the_changes():
    part = one_slice(BEGIN, ORDERS, insert(b"1", b"x"), COMMIT, boundaries=True)
    found = [
        (boundary.kind, boundary.stamp.lsn, boundary.stamp.index, boundary.stamp.seq)
        for boundary in chain.from_iterable(part.boundaries)
    ]
    assert found == [("B", Lsn(500), 0, 0), ("C", Lsn(1010), 2, 1)]
    assert part.changes[0].stamps.index.tolist() == [1]


@pytest.mark.parametrize(("skip_before", "changes"), [(1000, 1), (1001, 0), (1010, 0)])
def test_a_transaction_whose_commit_lsn_is_below_the_checkpoint_is_dropped_whole(skip_before, changes):
    assembler = Assembler(describe, skip_before=Lsn(skip_before), boundaries=True)
    stream = [BEGIN, ORDERS, insert(b"1", b"x"), COMMIT]
    assert len(assembler.assemble(frames_of(*stream))) == changes
    later = [m.Begin(Lsn(1100), TIME, 8), insert(b"2", b"y"), m.Commit(Lsn(1100), Lsn(1110), TIME)]
    (part,) = assembler.assemble(frames_of(*later))
    assert part.edge == Edge(Lsn(1110), commit_lsn=Lsn(1100), transactions=1)
    assert part.changes[0].table == described(ORDERS)


@pytest.mark.parametrize(("skip_before", "kept"), [(899, True), (900, False)])
def test_a_message_of_its_own_is_dropped_unless_it_is_beyond_the_checkpoint(skip_before, kept):
    assembler = Assembler(describe, skip_before=Lsn(skip_before))
    assert bool(assembler.assemble(frames_of(m.LogicalMessage(False, Lsn(900), "p", b"")))) is kept


@pytest.mark.parametrize(
    ("until", "edge"), [(1000, None), (1001, 1010), (1010, 1010), (1011, 1010), (1101, 1110)]
)
def test_what_begins_at_the_end_position_or_later_is_not_looked_at(until, edge):
    assembler = Assembler(describe, skip_before=Lsn(0), until=Lsn(until))
    later = [m.Begin(Lsn(1100), TIME, 8), m.Commit(Lsn(1100), Lsn(1110), TIME)]
    slices = assembler.assemble(frames_of(BEGIN, COMMIT, *later, b"?nonsense"))
    assert [part.edge.end_lsn for part in slices] == ([] if edge is None else [edge])
    assert (assembler.ended, assembler.in_transaction) == (True, False)
    assert assembler.assemble([b"?"]) == []


def test_a_stream_short_of_the_end_position_goes_on():
    assembler = Assembler(describe, skip_before=Lsn(0), until=Lsn(1011))
    assembler.assemble(frames_of(BEGIN, COMMIT))
    assert not assembler.ended


def test_transactions_are_counted_across_batches():
    assembler = Assembler(describe, skip_before=Lsn(0), max_transactions=2)
    message = m.LogicalMessage(False, Lsn(900), "p", b"")
    assert len(assembler.assemble(frames_of(message))) == 1
    assert not assembler.ended
    (part,) = assembler.assemble(frames_of(BEGIN, COMMIT, message, b"?"))
    assert (part.edge, part.messages) == (Edge(Lsn(1010), commit_lsn=Lsn(1000), transactions=1), ())
    assert assembler.ended
