import contextlib
import struct

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pgcdc_cli.errors import ErrorKind, UndecodableError
from pgcdc_cli.frames import POSTGRES_EPOCH, read_keepalive, standby_status, xlogdata_start
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
