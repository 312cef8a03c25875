"""Rows decoded one by one equal those of the columnar decoder, to which unusual batches are left."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pgoutput_encoder import frame
from pgoutput_orders import BEGIN, COMMIT, ORDERS, PARTS, FrameAssembler, frames_of, full, insert
from pgoutput_reference import describe, described, flat, merged, reference
from pgoutput_strategies import cuts, mutations, streams

from pgcdc_cli.errors import UndecodableError
from pgcdc_cli.frames import XLOGDATA_HEADER, Frames
from pgcdc_cli.lsn import Lsn
from pgcdc_cli.pgoutput import messages as m
from pgcdc_cli.pgoutput import small_batch
from pgcdc_cli.pgoutput.assemble import assemble
from pgcdc_cli.pgoutput.message_batch import DecodeLimits, MessageBuffer, State
from pgcdc_cli.pgoutput.relations import Tables
from pgcdc_cli.pgoutput.small_batch import MOST_MESSAGES, is_small

KEY = m.KeyTuple((m.Text(b"1"), m.Null()))
ROWS = {
    "insert": insert(b"1", b"a"),
    "insert with unchanged TOAST": m.Insert(16385, m.FullTuple((m.Text(b"1"), m.UnchangedToast()))),
    "insert of NULL": insert(b"1", None),
    "update": m.Update(16385, None, full(b"1", b"b")),
    "update of the key": m.Update(16385, KEY, full(b"2", b"b")),
    "update of a full identity": m.Update(16386, full(b"1", None), full(b"2", b"b")),
    "delete": m.Delete(16385, KEY),
    "delete of a full identity": m.Delete(16386, full(b"1", b"a")),
}
LEFT = {
    "whole row behind a key's marker": m.Delete(16385, m.KeyTuple((m.Text(b"1"), m.Text(b"a")))),
    "binary": m.Insert(16385, m.FullTuple((m.Binary(b"1"), m.Null()))),
    "unchanged TOAST in a key": m.Delete(16385, m.KeyTuple((m.UnchangedToast(), m.Null()))),
    "too few columns": insert(b"1"),
    "bytes left": frame(insert(b"1", b"a"))[XLOGDATA_HEADER:] + b"x",
    "cut off": frame(insert(b"1", b"a"))[XLOGDATA_HEADER:-1],
    "unknown table": insert(b"1", b"a", oid=9),
    "another commit": m.Commit(Lsn(999), Lsn(1010), 0),
    "begin in a transaction": BEGIN,
}


def knowing(**options):
    """An assembler that has the definitions of both tables."""
    assembler = FrameAssembler(describe, skip_before=Lsn(0), **options)
    assembler.assemble(frames_of(ORDERS, PARTS))
    return assembler


@pytest.mark.parametrize("name", ROWS)
def test_each_shape_is_taken_as_the_columns_take_it(name):
    frames = frames_of(BEGIN, ROWS[name], ROWS["insert"], ROWS[name], COMMIT, BEGIN, ROWS[name])
    small, columns = knowing(boundaries=True), knowing(boundaries=True)
    assert is_small(frames)
    found, expected = small.assemble_small(frames), columns.assemble(frames)
    assert flat(found) == flat(expected)
    assert [part.edge for part in found] == [part.edge for part in expected]
    assert small.in_transaction
    assert columns.in_transaction


@pytest.mark.parametrize("name", ROWS)
def test_each_shape_leaves_the_state_that_the_columns_leave(name):
    tables = Tables(describe)
    for relation in (ORDERS, PARTS):
        tables.learn(relation, described(relation))
    small = columns = State(DecodeLimits(Lsn(0), until=Lsn(2000)))
    for messages in ([BEGIN, ROWS[name]], [ROWS[name], ROWS[name]], [ROWS[name], COMMIT], [BEGIN, COMMIT]):
        frames = frames_of(*messages)
        (buffer,) = MessageBuffer.join(frames)
        _, small = small_batch.assemble(frames, small, tables, boundaries=True)
        _, columns = assemble(buffer, columns, tables, boundaries=True)
        assert small == columns


@pytest.mark.parametrize("name", LEFT)
def test_what_is_not_usual_is_left_to_the_columns_with_nothing_of_it_taken(name):
    small, columns = knowing(), knowing()
    frames = frames_of(BEGIN, insert(b"1", b"a"), LEFT[name])
    assert small.assemble_small(frames) is None
    assert not small.in_transaction
    for assembler in (small, columns):
        assembler.assemble(frames_of(BEGIN))
    rest = frames_of(insert(b"2", b"b"), COMMIT)
    assert flat(small.assemble_small(rest)) == flat(columns.assemble(rest))


@pytest.mark.parametrize("options", [{"until": Lsn(1000)}, {"until": Lsn(1010)}, {"max_transactions": 1}])
def test_where_the_stream_ends_is_left_to_the_columns(options):
    assert knowing(**options).assemble_small(frames_of(BEGIN, insert(b"1", b"a"), COMMIT)) is None


def test_a_transaction_that_is_skipped_is_left_to_the_columns():
    assembler = FrameAssembler(describe, skip_before=Lsn(1001))
    assembler.assemble(frames_of(ORDERS))
    assert assembler.assemble_small(frames_of(BEGIN, insert(b"1", b"a"), COMMIT)) is None


@pytest.mark.parametrize("rest", [[insert(b"1", b"a")], [COMMIT]], ids=["row", "commit"])
def test_the_rest_of_one_that_is_skipped_is_left_to_the_columns(rest):
    """It is in the output already: its rows would be there twice."""
    assembler = FrameAssembler(describe, skip_before=Lsn(1001))
    assembler.assemble(frames_of(BEGIN, ORDERS))
    assert assembler.assemble_small(frames_of(*rest)) is None


def test_relations_and_larger_batches_are_not_small():
    assert not is_small(frames_of(BEGIN, ORDERS, insert(b"1", b"a"), COMMIT))
    assert is_small(frames_of(*[BEGIN] * MOST_MESSAGES))
    assert not is_small(frames_of(*[BEGIN] * (MOST_MESSAGES + 1)))


def assembled(assembler, batches, *, small=True):
    """Decode batches as the stream does, or as columns only."""
    runs = []
    for frames in map(Frames.of, batches):
        few = assembler.assemble_small(frames) if small and is_small(frames) else None
        runs.append(flat(assembler.assemble(frames) if few is None else few))
    found = merged(runs)
    found.in_transaction, found.ended = assembler.in_transaction, assembler.ended
    return found


@given(st.data(), streams(), st.booleans())
@settings(max_examples=300, deadline=None)
def test_any_cut_of_a_stream_gives_the_changes_of_the_plain_decoder(data, frames, boundaries):
    for batches in ([[one] for one in frames], data.draw(cuts(frames))):
        assembler = FrameAssembler(describe, skip_before=Lsn(0), boundaries=boundaries)
        assert assembled(assembler, batches) == reference(frames, boundaries=boundaries)


@given(st.data(), streams(most_transactions=3))
@settings(max_examples=300, deadline=None)
def test_mutated_streams_are_refused_or_read_as_the_columns_do(data, frames):
    if frames:
        frames = data.draw(mutations(frames))
    batches = data.draw(cuts(frames))
    assert outcome(batches, small=True) == outcome(batches, small=False)


def outcome(batches, *, small):
    """The result of batches, or the error that ends them."""
    assembler = FrameAssembler(describe, skip_before=Lsn(0))
    try:
        return assembled(assembler, batches, small=small)
    except UndecodableError as error:
        return error.message
