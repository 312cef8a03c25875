import contextlib
import struct

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pgcdc_cli.errors import ErrorKind, UndecodableError
from pgcdc_cli.frames import (
    PADDING,
    POSTGRES_EPOCH,
    Frames,
    Run,
    read_keepalive,
    standby_status,
    xlogdata_start,
)
from pgcdc_cli.lsn import Lsn

POSITIONS = st.integers(0, 2**63 - 1)


@given(POSITIONS, st.integers(-(2**62), 2**62), st.booleans())
def test_a_keepalive_reads_as_the_manual_lays_it_out(wal_end, micros, reply):
    keepalive = read_keepalive(struct.pack(">cqqB", b"k", wal_end, micros, reply))
    assert (keepalive.wal_end, keepalive.reply_requested) == (wal_end, reply)
    assert isinstance(keepalive.wal_end, Lsn)


@given(POSITIONS, POSITIONS, st.booleans())
def test_a_status_update_is_34_bytes_and_says_that_applied_is_flushed(written, flushed, reply):
    frame = standby_status(Lsn(written), Lsn(flushed), POSTGRES_EPOCH + 5, reply=reply)
    assert struct.unpack(">cqqqqB", frame) == (b"r", written, flushed, flushed, 5, reply)


@pytest.mark.parametrize(
    ("frame", "expected"),
    [
        (b"", "unknown type b''"),
        (b"x" + bytes(40), "unknown type b'x'"),
        (b"k" + bytes(16), "18 bytes expected, got 17"),
        (b"k" + bytes(18), "18 bytes expected, got 19"),
        (b"w" + bytes(23), "25 bytes expected, got 24"),
        (b"k\x80" + bytes(16), "sign bit"),
    ],
)
def test_any_other_frame_is_a_protocol_error_that_keeps_the_bytes(frame, expected):
    with pytest.raises(UndecodableError, match=expected) as caught:
        read_keepalive(frame)
    assert caught.value.kind is ErrorKind.PROTOCOL
    assert caught.value.data == frame


@given(st.binary(max_size=40))
def test_no_bytes_raise_anything_else(frame):
    with contextlib.suppress(UndecodableError):
        read_keepalive(frame)


def test_an_xlogdata_frame_says_where_its_record_begins():
    assert str(xlogdata_start(struct.pack(">cqqq", b"w", 0x1_0000_00FF, 0, 0) + b"B")) == "1/FF"


FRAMES = st.binary(min_size=1, max_size=40)


@st.composite
def runs(draw):
    """Frames, and a run of them with gaps, and other bytes before and behind them."""
    frames, gap = draw(st.lists(FRAMES, min_size=1, max_size=4)), draw(st.integers(0, 5))
    data, starts = draw(st.binary(max_size=5)), []
    for frame in frames:
        data += b"?" * gap
        starts.append(len(data))
        data += frame
    return frames, Run(data + draw(st.binary(max_size=5)) + PADDING, starts, len(data), gap)


@st.composite
def sequences(draw):
    """A list of frames, and the same as `Frames`."""
    parts = draw(st.lists(runs(), max_size=4))
    frames = Frames(run for _, run in parts)
    expected = [frame for part, _ in parts for frame in part]
    if draw(st.booleans()):
        more = draw(st.lists(FRAMES, max_size=3))
        frames, expected = frames + Frames.of(more), expected + more
    return expected, frames


@given(sequences(), st.slices(20))
def test_frames_are_a_sequence_whatever_is_between_them(sequence, part):
    expected, frames = sequence
    part = slice(part.start, part.stop)
    assert (list(frames), len(frames), bool(frames)) == (expected, len(expected), bool(expected))
    assert [frames[number] for number in range(-len(expected), len(expected))] == expected * 2
    assert list(frames[part]) == expected[part]
    assert list(frames[part][part] + frames) == expected[part][part] + expected


@given(sequences())
def test_frames_give_each_frames_parts(sequence):
    expected, frames = sequence
    assert frames.messages() == [frame[25:] for frame in expected]
    assert [frames.tag(number) for number in range(len(expected))] == [frame[25:26] for frame in expected]
    assert frames.sizes() == [len(frame) for frame in expected]
    assert [frames[number : number + 1].size for number in range(len(expected))] == frames.sizes()
    assert frames.size >= sum(map(len, expected))


@given(st.lists(POSITIONS, min_size=1, max_size=5))
def test_the_largest_start_is_that_of_any_frame(positions):
    frames = [struct.pack(">cqqq", b"w", position, 0, 0) for position in positions]
    assert sum((Frames.of([frame]) for frame in frames), Frames()).largest_start == max(positions)


def test_no_frames_are_none():
    assert not Frames.of([])
    with pytest.raises(IndexError):
        Frames().tag(-1)
