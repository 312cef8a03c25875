"""Values in their types' send format: the columnar decoder returns the same text as the reference."""

import contextlib
import struct

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pgoutput_orders import BEGIN, COMMIT, ORDERS, frames_of
from pgoutput_recording import record
from pgoutput_reference import describe, flat, reference
from pgoutput_strategies import binaries, cuts, mutations, streams
from test_pgoutput_transactions import Assembler, assemble

from pgcdc_cli.catalog.table_facts import describe_alone
from pgcdc_cli.errors import ErrorKind, PgcdcError, UndecodableError
from pgcdc_cli.frames import XLOGDATA_HEADER
from pgcdc_cli.lsn import Lsn
from pgcdc_cli.pgoutput import messages as m
from pgcdc_cli.pgoutput.decode import decode


@given(st.data(), streams(binary=True), st.booleans())
@settings(max_examples=100, deadline=None)
def test_any_cut_of_a_binary_stream_gives_the_changes_of_the_plain_decoder(data, frames, boundaries):
    expected = reference(frames, boundaries=boundaries, binary=True)
    assert assemble([frames], boundaries=boundaries, binary=True) == expected
    assert assemble([[one] for one in frames], boundaries=boundaries, binary=True) == expected
    assert assemble(data.draw(cuts(frames)), boundaries=boundaries, binary=True) == expected


def knows_all_types(frames):
    """A mutated Relation message may have types that the reference can't read."""
    for one in frames:
        with contextlib.suppress(UndecodableError):
            message = decode(one[XLOGDATA_HEADER:])
            if isinstance(message, m.Relation) and any(c.type_oid not in binaries for c in message.columns):
                return False
    return True


@given(st.data(), streams(binary=True))
@settings(max_examples=150, deadline=None)
def test_mutated_binary_streams_are_refused_or_read_as_the_plain_decoder_does(data, frames):
    if frames:
        frames = data.draw(mutations(frames).filter(knows_all_types))
    try:
        expected = reference(frames, binary=True)
    except UndecodableError:
        with pytest.raises(UndecodableError):
            assemble([frames], binary=True)
        with pytest.raises(UndecodableError):
            assemble(data.draw(cuts(frames)), binary=True)
    else:
        assert assemble([frames], binary=True) == expected
        assert assemble(data.draw(cuts(frames)), binary=True) == expected


def row(*values, lsn=500):
    return frames_of(BEGIN, ORDERS, m.Insert(16385, m.FullTuple(values)), COMMIT, lsn=lsn)


def assembled(frames, describe=describe):
    return flat(Assembler(describe, skip_before=Lsn(0), binary=True).assemble(frames)).events


def test_text_and_binary_values_may_stand_in_one_row_and_in_one_column():
    number = m.Binary(struct.pack(">q", -7))
    inserts = [(number, m.Text(b"x")), (m.Text(b"8"), m.Binary(b"y")), (m.Null(), m.Null())]
    frames = frames_of(BEGIN, ORDERS, *(m.Insert(16385, m.FullTuple(values)) for values in inserts), COMMIT)
    assert [event[3] for event in assembled(frames)] == [(b"-7", b"x"), (b"8", b"y"), (None, None)]


@pytest.mark.parametrize("before", [[], [m.Null()], [m.Text(b"1")], [m.Binary(bytes(8))] * 3])
def test_a_malformed_value_is_an_error_that_names_column_message_and_lsn(before):
    numbers = [*before, m.Binary(b"123"), m.Binary(bytes(8))]
    inserts = [m.Insert(16385, m.FullTuple((number, m.Null()))) for number in numbers]
    frames = frames_of(BEGIN, ORDERS, *inserts, COMMIT)
    with pytest.raises(UndecodableError) as caught:
        assembled(frames)
    assert caught.value.message == (
        'could not decode Insert message: column "id" is not what its type sends in binary:'
        f" it does not have 8 bytes (LSN {Lsn(502 + len(before))})"
    )
    assert caught.value.data == frames[2 + len(before)][XLOGDATA_HEADER:]


def test_a_type_without_a_reader_is_an_error_as_soon_as_its_table_is_defined(database):
    database.execute("CREATE TABLE a (id int PRIMARY KEY, price money)")
    database.execute("CREATE PUBLICATION p FOR TABLE a")
    slot = database.create_slot()
    database.execute("INSERT INTO a VALUES (7, NULL)")
    with pytest.raises(PgcdcError) as caught:
        assembled(record(database, slot, binary="true"), describe_alone)
    assert caught.value.message == (
        'could not read column "price" of table "public.a" in binary: type money has no binary reader'
    )
    assert (caught.value.kind, caught.value.hint) == (ErrorKind.PROTOCOL, "leave out --binary")


def test_a_type_that_has_no_send_function_comes_as_text(database):
    database.execute("CREATE TABLE a (id int PRIMARY KEY, rights aclitem)")
    database.execute("CREATE PUBLICATION p FOR TABLE a")
    slot = database.create_slot()
    database.execute("INSERT INTO a VALUES (7, '=r/postgres')")
    (event,) = assembled(record(database, slot, binary="true"), describe_alone)
    assert event[3] == (b"7", b"=r/postgres")
