import struct

from pgcdc_cli.changes.edge import Edge
from pgcdc_cli.formats.raw import RawFormat
from pgcdc_cli.frames import Frames
from pgcdc_cli.lsn import Lsn


def frame(start: int, payload: bytes) -> bytes:
    return struct.pack(">cqqq", b"w", start, start + 100, 0) + payload


def test_each_payload_is_followed_by_a_line_break_whatever_is_in_it():
    encoded = RawFormat().encode_frames(
        Frames.of([frame(0x10, b"B\0\n"), frame(0x20, b""), frame(0x20, b"text")])
    )
    (piece,) = encoded.pieces
    assert bytes(RawFormat().frame([piece.data])) == b"B\0\n\n\ntext\n"
    assert (piece.rows, piece.target) == (3, "")
    assert (piece.first_commit_lsn, piece.last_commit_lsn) == (Lsn(0x10), Lsn(0x20))


def test_on_a_terminal_no_message_steers_it():
    form = RawFormat(for_terminal=True)
    encoded = form.encode_frames(
        Frames.of([frame(1, b"\x1b]0;title\x07\tcaf\xc3\xa9\n\xc2\x9b2J \xff"), frame(2, b"")])
    )
    (piece,) = encoded.pieces
    shown = bytes(form.frame([piece.data])).decode()
    assert shown == "\\u001b]0;title\\u0007\tcafé\n\\u009b2J \\xff\n\n"


def test_the_edge_is_the_last_position_even_if_another_transaction_began_before_it():
    encoded = RawFormat().encode_frames(
        Frames.of([frame(1, b"a"), frame(2**40, b"commit"), frame(2, b"begin")])
    )
    assert encoded.edge == Edge(Lsn(2**40), commit_lsn=Lsn(2**40))
