"""What the assembler refuses: one error that names the message, its LSN and the reason."""

import pytest
from pgoutput_encoder import encode, frame
from pgoutput_orders import BEGIN, COMMIT, ORDERS, TIME, frames_of, full, insert
from pgoutput_orders import FrameAssembler as Assembler
from pgoutput_reference import describe

from pgcdc_cli.errors import ErrorKind, PgcdcError, UndecodableError
from pgcdc_cli.frames import XLOGDATA_HEADER
from pgcdc_cli.lsn import Lsn
from pgcdc_cli.pgoutput import messages as m

PREPARED = (Lsn(1000), Lsn(1010), TIME, 7, "gid")


@pytest.mark.parametrize(
    ("messages", "reason"),
    [
        ([insert(b"1")], "assemble Insert message: it is outside any transaction (LSN 0/1F4)"),
        ([COMMIT], "assemble Commit message: it is outside any transaction (LSN 0/1F4)"),
        ([BEGIN, BEGIN], "assemble Begin message: it is inside another transaction (LSN 0/1F5)"),
        (
            [BEGIN, m.LogicalMessage(False, Lsn(1), "p", b"")],
            "assemble Message message: it is inside another transaction (LSN 0/1F5)",
        ),
        (
            [m.LogicalMessage(True, Lsn(1), "p", b"")],
            "assemble Message message: it is outside any transaction (LSN 0/1F4)",
        ),
        (
            [BEGIN, m.Commit(Lsn(1001), Lsn(1010), TIME)],
            (
                "assemble Commit message: its commit LSN 0/3E9 is not the final LSN of the transaction's"
                " Begin (LSN 0/1F5)"
            ),
        ),
        (
            [BEGIN, insert(b"1")],
            "assemble Insert message: no Relation message was received for OID 16385 (LSN 0/1F5)",
        ),
        (
            [BEGIN, insert(b"1"), ORDERS],
            "assemble Insert message: no Relation message was received for OID 16385 (LSN 0/1F5)",
        ),
        (
            [BEGIN, m.Truncate((1,), cascade=False, restart_identity=False)],
            "assemble Truncate message: no Relation message was received for OID 1 (LSN 0/1F5)",
        ),
        (
            [m.StreamStart(7, True)],
            ("assemble Stream Start message: it belongs to a streamed or prepared transaction (LSN 0/1F4)"),
        ),
        (
            [m.CommitPrepared(*PREPARED)],
            (
                "assemble Commit Prepared message: it belongs to a streamed or prepared transaction"
                " (LSN 0/1F4)"
            ),
        ),
        ([b"?"], "decode message with tag 0x3F: no such message in protocol 1 to 4 (LSN 0/1F4)"),
        (
            [BEGIN, b"I\0\0"],
            "decode Insert message: relation OID at byte 1 wants 4 bytes, 2 are left (LSN 0/1F5)",
        ),
        (
            [BEGIN, ORDERS, b"I\0\0\x40\1K\0\0"],
            "decode Insert message: tuple marker at byte 5 is 0x4B, not N (LSN 0/1F6)",
        ),
        (
            [BEGIN, ORDERS, insert(b"1", b"x"), encode(insert(b"1", b"x"))[:-1]],
            "decode Insert message: column 2 at byte 19 wants 1 byte, 0 are left (LSN 0/1F7)",
        ),
        (
            [BEGIN, ORDERS, encode(insert(b"1", b"x")) + b"!"],
            "decode Insert message: it ends at byte 20, 1 is left (LSN 0/1F6)",
        ),
        (
            [BEGIN, ORDERS, encode(m.Update(16385, full(b"1", b"x"), full(b"1", b"x")))[:20]],
            "decode Update message: tuple marker at byte 20 wants 1 byte, 0 are left (LSN 0/1F6)",
        ),
        (
            [BEGIN, ORDERS, insert(b"1", b"x"), insert(b"1")],
            'decode Insert message: it has 1 columns, table "public.orders" has 2 (LSN 0/1F7)',
        ),
        (
            [BEGIN, ORDERS, m.Insert(16385, m.FullTuple((m.Text(b"1"), m.Binary(b"x"))))],
            'decode Insert message: column "doc" is binary, which was not asked for (LSN 0/1F6)',
        ),
    ],
)
def test_what_is_out_of_place_is_one_error_that_names_message_and_lsn(messages, reason):
    frames = frames_of(*messages)
    with pytest.raises(UndecodableError) as caught:
        Assembler(describe, skip_before=Lsn(0)).assemble(frames)
    assert caught.value.message == f"could not {reason}"
    assert caught.value.kind is ErrorKind.PROTOCOL
    assert caught.value.data in [one[XLOGDATA_HEADER:] for one in frames]


ROW = encode(insert(b"1", b"x"))
HUGE = b"t\x7f\xff\xff\xff"


@pytest.mark.parametrize(
    ("broken", "reason"),
    [
        (ROW[:7] + b"\1" + ROW[8:], "it ends at byte 14, 6 are left"),
        (ROW[:7] + b"\3" + ROW[8:], "column 3 kind at byte 20 wants 1 byte, 0 are left"),
        (ROW[:8] + HUGE + ROW[13:], "column 1 at byte 13 wants 2147483647 bytes, 7 are left"),
        (ROW[:8] + b"t\xff" + ROW[10:], "column 1 length at byte 9 is -16777215"),
        (ROW[:8] + HUGE, "column 1 at byte 13 wants 2147483647 bytes, 0 are left"),
        (b"D" + ROW[1:5] + b"K\0\2un", "column 1 at byte 8 is unchanged TOAST in a key"),
        (b"U" + ROW[1:5] + b"O\0\2nnN\0", "column count at byte 11 wants 2 bytes, 1 is left"),
        (b"U" + ROW[1:5] + b"O\0\2nnX\0\2nn", "tuple marker at byte 10 is 0x58, not N"),
        (ROW[:6], "column count at byte 6 wants 2 bytes, 0 are left"),
    ],
)
@pytest.mark.parametrize("beside", [b"", b"n", b"t"], ids=["alone", "beside-null", "beside-text"])
@pytest.mark.parametrize("last", [True, False])
def test_a_broken_row_is_found_whatever_stands_beside_it(broken, reason, beside, last):
    """Lengths that point beyond the message or the batch are noticed before they are used."""
    good = {b"": [], b"n": [insert(None, None)], b"t": [insert(b"12345", b"6789")]}[beside]
    rows = [*good, broken] if last else [broken, *good]
    with pytest.raises(UndecodableError, match=reason) as caught:
        Assembler(describe, skip_before=Lsn(0)).assemble(frames_of(BEGIN, ORDERS, *rows))
    assert caught.value.data == broken


@pytest.mark.parametrize(
    ("broken", "reason"),
    [
        (encode(COMMIT)[:1] + b"\1" + encode(COMMIT)[2:], "flags at byte 1 are 0x01, not 0"),
        (encode(COMMIT)[:18] + b"\x7f" + b"\xff" * 7, "commit time at byte 18 is"),
        (encode(COMMIT)[:10] + b"\x80" + encode(COMMIT)[11:], "end LSN at byte 10 is 80000000/3F2"),
        (encode(COMMIT) + b"!", "it ends at byte 26, 1 is left"),
    ],
)
def test_a_broken_commit_ends_no_transaction(broken, reason):
    for frames in (frames_of(BEGIN, broken), frames_of(BEGIN, broken, BEGIN, COMMIT)):
        with pytest.raises(UndecodableError, match=f"could not decode Commit message: {reason}"):
            Assembler(describe, skip_before=Lsn(0), until=Lsn(1010)).assemble(frames)


@pytest.mark.parametrize(
    ("broken", "reason"),
    [
        (encode(BEGIN)[:-1], "xid at byte 17 wants 4 bytes, 3 are left"),
        (b"B\x80" + encode(BEGIN)[2:], "final LSN at byte 1 is 80000000/3E8"),
        (encode(BEGIN)[:9] + b"\x7f" + b"\xff" * 7 + encode(BEGIN)[17:], "commit time at byte 9 is"),
    ],
)
def test_a_broken_begin_begins_no_transaction(broken, reason):
    with pytest.raises(UndecodableError, match=f"could not decode Begin message: {reason}"):
        Assembler(describe, skip_before=Lsn(0)).assemble(frames_of(broken, COMMIT))


@pytest.mark.parametrize("tag", [tag for tag in m.Tag if chr(tag) not in "BCORYIUDTM"])
def test_no_message_of_a_later_protocol_is_taken(tag):
    for before in ([], [BEGIN]):
        with pytest.raises(UndecodableError):
            Assembler(describe, skip_before=Lsn(0)).assemble(frames_of(*before, bytes([tag])))


@pytest.mark.parametrize("size", [0, 1, XLOGDATA_HEADER])
def test_a_frame_without_a_message_is_an_error(size):
    with pytest.raises(UndecodableError, match=f"XLogData frame: it wants 26 bytes or more, has {size}"):
        Assembler(describe, skip_before=Lsn(0)).assemble([*frames_of(BEGIN), bytes(size)])


def test_a_frame_with_a_sign_bit_position_is_an_error():
    with pytest.raises(UndecodableError, match="start LSN at byte 1 is 80000000/1, with the sign bit set"):
        Assembler(describe, skip_before=Lsn(0)).assemble([frame(BEGIN, 2**63 + 1)])


def test_what_describe_raises_passes_through():
    def fail(relations):
        raise PgcdcError(ErrorKind.CONNECTION, f'could not look up "{relations[0].name}"')

    with pytest.raises(PgcdcError, match='could not look up "orders"'):
        Assembler(fail, skip_before=Lsn(0)).assemble(frames_of(BEGIN, ORDERS))
