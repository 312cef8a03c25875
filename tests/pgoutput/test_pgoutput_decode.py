"""One message's bytes become one typed message or one error: whole, cut off, too long, mutated."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pgoutput_encoder import encode
from pgoutput_samples import FINAL, SAMPLES, TIME

from pgcdc_cli.changes.table import ReplicaIdentity
from pgcdc_cli.errors import ErrorKind, UndecodableError
from pgcdc_cli.pgoutput import messages as m
from pgcdc_cli.pgoutput.decode import decode, decode_next

samples = pytest.mark.parametrize("sample", SAMPLES, ids=lambda sample: sample.id)


def encoded(sample):
    parallel = sample.options.get("streaming_parallel", False)
    return encode(sample.message, streaming_parallel=parallel)


def test_the_samples_are_of_all_nineteen_kinds():
    assert len({type(sample.message) for sample in SAMPLES}) == 19
    assert {encoded(sample)[0] for sample in SAMPLES} == {int(tag) for tag in m.Tag}


@samples
def test_a_message_is_decoded_as_it_was_encoded(sample):
    assert decode(encoded(sample), **sample.options) == sample.message


@samples
def test_messages_that_follow_one_another_are_decoded_one_by_one(sample):
    data = b"\n\n" + encoded(sample)
    assert decode_next(data + b"\n", 2, **sample.options) == (sample.message, len(data))


@samples
def test_a_message_cut_at_any_byte_is_the_one_error(sample):
    data = encoded(sample)
    for size in range(len(data)):
        with pytest.raises(UndecodableError, match=r"^could not decode .*(left|terminator)"):
            decode(data[:size], **sample.options)


@samples
def test_a_message_with_trailing_bytes_is_the_one_error(sample):
    data = encoded(sample)
    with pytest.raises(UndecodableError, match=f"it ends at byte {len(data)}, 2 are left$") as caught:
        decode(data + b"\0x", **sample.options)
    assert caught.value.kind is ErrorKind.PROTOCOL
    assert caught.value.data == data + b"\0x"


flags = st.fixed_dictionaries({"in_stream": st.booleans(), "streaming_parallel": st.booleans()})


@given(st.sampled_from(SAMPLES), flags, st.data())
@settings(max_examples=2000, deadline=None)
def test_a_mutated_message_is_a_message_or_the_one_error(sample, options, data):
    mutated = bytearray(encoded(sample))
    for _ in range(data.draw(st.integers(1, 4))):
        at = data.draw(st.integers(0, len(mutated)))
        mutated[at : at + data.draw(st.integers(0, 4))] = data.draw(st.binary(max_size=4))
    check_only_error(bytes(mutated), options)


@given(st.sampled_from([int(tag) for tag in m.Tag]), st.binary(max_size=60), flags)
@settings(max_examples=2000, deadline=None)
def test_any_bytes_are_a_message_or_the_one_error(tag, rest, options):
    check_only_error(bytes([tag]) + rest, options)
    check_only_error(rest, options)


def check_only_error(data, options):
    try:
        message, end = decode_next(data, 0, **options)
    except UndecodableError as caught:
        error = caught
    else:
        assert isinstance(message, m.Message)
        assert 0 < end <= len(data)
        return
    assert error.message.startswith("could not decode ")
    assert "\n" not in error.message


BEGIN = encode(m.Begin(FINAL, TIME, 771))
INSERT = encode(m.Insert(1, m.FullTuple((m.Text(b"a"), m.Null(), m.Text(b"value")))))
RELATION = encode(m.Relation(1, "s", "t", ReplicaIdentity.FULL, (m.RelationColumn("a", 23, -1, True),)))


@pytest.mark.parametrize(
    ("data", "reason"),
    [
        (b"", "could not decode message: its tag at byte 0 wants 1 byte, 0 are left"),
        (b"?", "could not decode message with tag 0x3F: no such message in protocol 1 to 4"),
        (BEGIN[:20], "could not decode Begin message: xid at byte 17 wants 4 bytes, 3 are left"),
        (BEGIN[:2], "could not decode Begin message: final LSN at byte 1 wants 8 bytes, 1 is left"),
        (
            INSERT[:18],
            "could not decode Insert message: column 3 length at byte 16 wants 4 bytes, 2 are left",
        ),
        (INSERT[:22], "could not decode Insert message: column 3 at byte 20 wants 5 bytes, 2 are left"),
        (
            INSERT[:16] + b"\xff\xff\xff\xff",
            "could not decode Insert message: column 3 length at byte 16 is -1",
        ),
        (
            INSERT[:6] + b"\xff\xff",
            "could not decode Insert message: 65535 columns at byte 8 want 65535 bytes, 0 are left",
        ),
        (
            INSERT[:8] + b"x",
            "could not decode Insert message: 3 columns at byte 8 want 3 bytes, 1 is left",
        ),
        (
            INSERT[:8] + b"x" + INSERT[9:],
            "could not decode Insert message: column 1 kind at byte 8 is 0x78, not one of n, u, t, b",
        ),
        (
            INSERT[:5] + b"K" + INSERT[6:],
            "could not decode Insert message: tuple marker at byte 5 is 0x4B, not N",
        ),
        (
            b"D" + INSERT[1:],
            "could not decode Delete message: tuple marker at byte 5 is 0x4E, not K or O",
        ),
        (
            b"D\0\0\0\1K\0\1u",
            "could not decode Delete message: column 1 at byte 8 is unchanged TOAST in a key",
        ),
        (
            b"T\xff\xff\xff\xff\0",
            (
                "could not decode Truncate message: 4294967295 relations at byte 6 want 17179869180 bytes, "
                "0 are left"
            ),
        ),
        (
            RELATION[:9] + b"x" + RELATION[10:],
            "could not decode Relation message: replica identity at byte 9 is 0x78, not one of d, n, f, i",
        ),
        (
            RELATION[:5] + b"\xff" + RELATION[6:],
            (
                "could not decode Relation message: namespace at byte 5 is not UTF-8:"
                " invalid start byte at byte 5"
            ),
        ),
        (
            RELATION[:6],
            "could not decode Relation message: namespace at byte 5 has no terminator, 1 is left",
        ),
        (
            b"B" + b"\x80" + bytes(19),
            "could not decode Begin message: final LSN at byte 1 is 80000000/0, with the sign bit set",
        ),
        (
            b"B" + bytes(8) + b"\x7f" + b"\xff" * 7 + bytes(4),
            (
                f"could not decode Begin message: commit time at byte 9 is {2**63 - 1},"
                " beyond 9222425352054775807"
            ),
        ),
        (
            b"C\1" + bytes(24),
            "could not decode Commit message: flags at byte 1 are 0x01, not 0",
        ),
    ],
)
def test_the_error_names_message_offset_expected_and_actual(data, reason):
    with pytest.raises(UndecodableError) as caught:
        decode(data)
    assert caught.value.message == reason


def test_an_abort_has_lsn_and_time_only_with_parallel_streaming():
    data = encode(m.StreamAbort(1, 2, FINAL, TIME), streaming_parallel=True)
    assert decode(data, streaming_parallel=True) == m.StreamAbort(1, 2, FINAL, TIME)
    with pytest.raises(UndecodableError, match="16 are left"):
        decode(data)


def test_a_count_from_the_wire_allocates_nothing():
    relation = b"R\0\0\0\1s\0t\0d\xff\xff" + bytes(10)
    with pytest.raises(UndecodableError, match="65535 columns at byte 12 want 655350 bytes, 10 are left"):
        decode(relation)
