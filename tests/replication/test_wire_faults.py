"""Bytes that violate the protocol, and connections that are cut or stall."""

import re
import resource
import threading
import time
from contextlib import suppress
from pathlib import Path

import pytest
from scripted_walsender import READY, copy_data, error, keepalive, message, xlogdata
from servers import wait_until_free

from pgcdc_cli.errors import ErrorKind, PgcdcError, UndecodableError
from pgcdc_cli.frames import XLOGDATA_HEADER, Frames, Received
from pgcdc_cli.lsn import Lsn
from pgcdc_cli.replication.connection import ReplicationConnection

OPTIONS = {"proto_version": "1", "publication_names": '"p"'}


@pytest.fixture(params=[False, True], ids=["socket", "libpq"])
def connected(walsender, request):
    opened = []

    def connect(**options):
        server = walsender(encrypted=request.param)
        opened.append(ReplicationConnection(server.uri, **options))
        return server, opened[-1].start("s", Lsn(0), OPTIONS.items())

    yield connect
    for connection in opened:
        connection.close()


@pytest.mark.parametrize("sent", [b"?\0\0\0\4", b"d\0\0\0\3", b"d\x80\0\0\0", b"E\xff\xff\xff\xff"])
def test_what_is_no_message_ends_the_connection(connected, sent):
    server, stream = connected()
    server.send(xlogdata(1, b"B") + sent)
    frames, failure = receive_all(stream)
    assert failure.kind is ErrorKind.CONNECTION
    assert [frame[XLOGDATA_HEADER:] for frame in frames] == [b"B"]


def test_messages_of_other_kinds_are_passed_over(connected):
    server, stream = connected()
    status = message(b"S", b"application_name\0x\0")
    server.send(status + xlogdata(1, b"B") + status + xlogdata(2, b"C") + status + keepalive(9))
    frames, _ = receive_frames(stream, 2)
    assert [frame[XLOGDATA_HEADER:] for frame in frames] == [b"B", b"C"]


@pytest.mark.parametrize("size", [1 << 20, (2 << 20) - 30, 2 << 20, 9 << 20])
def test_a_large_message_comes_whole_between_small_ones(connected, size):
    server, stream = connected()
    bodies = [b"B", b"x" * 1000, b"y" * size, b"z" * 1000, b"y" * size, b"C"]
    sending = threading.Thread(target=server.send, args=[b"".join(xlogdata(1, body) for body in bodies)])
    sending.start()
    frames, _ = receive_frames(stream, len(bodies))
    sending.join()
    assert [frame[XLOGDATA_HEADER:] for frame in frames] == bodies


def test_a_plugins_message_may_be_empty(connected):
    server, stream = connected()
    server.send(xlogdata(1, b"x") + xlogdata(2, b""))
    frames, _ = receive_frames(stream, 2)
    assert [frame[XLOGDATA_HEADER:] for frame in frames] == [b"x", b""]


def test_no_more_frames_are_taken_at_once_than_asked_for(connected):
    server, stream = connected()
    server.send((xlogdata(1, b"I") * 3 + keepalive(1)) * 20)
    reads = []
    while sum(map(len, reads)) < 60:
        reads.append(stream.receive(8, 1.0).frames)
    assert max(map(len, reads)) <= 8


def test_however_wide_rows_are_one_read_takes_a_few_megabytes(connected):
    server, stream = connected()
    sending = threading.Thread(target=server.send, args=[xlogdata(1, bytes(100_000)) * 300])
    sending.start()
    reads = []
    while sum(map(len, reads)) < 300:
        reads.append(stream.receive(8192, 1.0).frames)
    sending.join()
    assert max(frames.size for frames in reads) < 5 << 20


def receive_all(stream, seconds=30.0):
    """Receive until there is an error; return the frames and the error."""
    frames: list[bytes] = []
    with pytest.raises(PgcdcError) as caught:
        read_on(stream, frames, time.monotonic() + seconds)
    return frames, caught.value


def read_on(stream, frames, until) -> None:
    while time.monotonic() < until:
        frames += stream.receive(8192, 0.2).frames


@pytest.mark.parametrize("frame", [b"x" + bytes(30), b"w" + bytes(10), b"k\0"])
def test_a_frame_that_is_none_is_a_protocol_error_with_its_bytes(connected, frame):
    """What came before it is given first: it would come to the same end at every start."""
    server, stream = connected()
    server.send(xlogdata(1, b"B") + copy_data(frame) + xlogdata(2, b"C" * 30))
    frames, failure = receive_all(stream)
    assert [frame[XLOGDATA_HEADER:] for frame in frames] == [b"B"]
    assert isinstance(failure, UndecodableError)
    assert failure.data == frame


def test_keepalives_end_no_batch_and_the_last_one_counts(connected):
    server, stream = connected()
    server.send(xlogdata(1, b"B") + keepalive(3) + xlogdata(4, b"I") + keepalive(5) + xlogdata(6, b"C"))
    frames, last = receive_frames(stream, 3)
    assert ([frame[XLOGDATA_HEADER:] for frame in frames], last.wal_end) == ([b"B", b"I", b"C"], 5)


def test_a_reply_that_a_keepalive_asks_for_is_not_forgotten_for_a_later_one(connected):
    server, stream = connected()
    server.send(keepalive(3, reply=True) + xlogdata(4, b"B") + keepalive(5) + xlogdata(6, b"C"))
    _, last = receive_frames(stream, 2)
    assert (last.wal_end, last.reply_requested) == (5, True)


def receive_frames(stream, count):
    """Receive until there are so many frames; return them and the keepalive that counts for all of them."""
    received = stream.receive(8192, 1.0)
    while len(received.frames) < count:
        received = received.followed_by(stream.receive(8192, 1.0))
    return received.frames, received.keepalive


def test_a_message_may_come_byte_by_byte(connected):
    server, stream = connected()
    whole = xlogdata(1, b"B" * 30) + keepalive(9)
    received = Received(Frames(), None)
    for at in range(len(whole)):
        server.send(whole[at : at + 1])
        received = received.followed_by(stream.receive(10, 0.01))
    while received.keepalive is None:
        received = received.followed_by(stream.receive(10, 0.01))
    assert ([len(frame) for frame in received.frames], received.keepalive.wal_end) == ([55], 9)


def test_what_the_server_sends_behind_its_copydone_is_not_wanted(connected):
    """A walsender that was amid a transaction."""
    server, stream = connected()
    server.send(message(b"c") + xlogdata(1, b"B") + keepalive(9))
    assert stream.finish()


def test_an_end_before_an_error_is_confirmed_as_any_other(connected):
    """A run may end at a position, or by a signal, with frames that came before an error."""
    server, stream = connected()
    warning = error("55000", 'skipped loading publication "p"', "WARNING", b"N")
    server.send(xlogdata(1, b"B") + warning + xlogdata(2, b"C"))
    while stream.receive(10, 1.0).empty:
        pass
    stream.confirm(Lsn(0x200), Lsn(0x200))
    assert stream.finish()
    assert server.statuses()[-1][1:] == (0x200, 0x200)


def test_a_stream_is_finished_once_the_server_has_ended_its_command(connected, monkeypatch):
    """Before that the slot may still be in use, and a run that follows at once would find it so."""
    server, stream = connected()
    server.reading.clear()
    frames, received, ended = stream._frames, [], []
    take, wait = frames.take, frames.wait

    def end_command(timeout):
        if received[-1].closed and not ended:
            server.send(message(b"C", b"COPY 0\0") + READY)
            ended.append(True)
        return wait(timeout)

    monkeypatch.setattr(frames, "take", lambda limit: received.append(take(limit)) or received[-1])
    monkeypatch.setattr(frames, "wait", end_command)
    server.send(message(b"c"))
    assert stream.finish()
    assert ended == [True]


def test_copydone_from_the_server_closes_after_the_last_frames(connected):
    """Whatever it says behind that, and even if the connection is gone by then."""
    server, stream = connected()
    server.send(xlogdata(1, b"B") + message(b"c") + message(b"C", b"COPY 0\0"))
    server.hang_up()
    time.sleep(0.2)
    received = stream.receive(10, 1.0)
    assert [frame[XLOGDATA_HEADER:] for frame in received.frames] == [b"B"]
    assert received.closed


def test_a_server_that_ends_the_command_is_shutting_down(connected):
    server, stream = connected()
    server.send(message(b"C", b"COPY 0\0") + READY)
    failure = receive_all(stream)[1]
    assert (failure.kind, failure.message) == (
        ErrorKind.CONNECTION,
        'could not receive from slot "s": the server is shutting down',
    )


def test_the_last_words_before_the_end_of_the_connection_are_heard(connected):
    server, stream = connected()
    server.send(xlogdata(1, b"B" * 40_000) + error("57P01", "Verbindung wird abgebrochen", "FATAL"))
    server.hang_up()
    _, failure = receive_all(stream)
    assert (failure.kind, failure.message) == (
        ErrorKind.NOT_READY,
        'could not receive from slot "s": Verbindung wird abgebrochen',
    )


@pytest.mark.parametrize(
    ("sqlstate", "kind"),
    [
        ("42704", ErrorKind.PUBLICATION),
        ("0A000", ErrorKind.PUBLICATION),
        ("55000", ErrorKind.CONNECTION),
        ("58P01", ErrorKind.SLOT_INVALIDATED),
        ("42501", ErrorKind.RIGHTS),
        ("XX000", ErrorKind.SERVER_FAULT),
    ],
)
def test_an_error_while_streaming_is_known_by_its_sqlstate(connected, sqlstate, kind):
    server, stream = connected()
    server.send(error(sqlstate, "text in any language"))
    assert receive_all(stream)[1].kind is kind


@pytest.mark.parametrize("streaming", ["on", "off"])
def test_a_failure_of_the_server_is_not_said_to_be_ours(walsender, streaming):
    """Servers have faults in decoding beside DDL: they end at the same position again."""
    server = walsender()
    with ReplicationConnection(server.uri) as connection:
        stream = connection.start("s", Lsn(0), {**OPTIONS, "streaming": streaming}.items())
        server.send(error("XX000", "unexpected duplicate for tablespace 0, relfilenumber 43808"))
        _, failure = receive_all(stream)
    assert (failure.kind, "traceback" in failure.hint) == (ErrorKind.SERVER_FAULT, False)
    assert ("see its log" in failure.hint, "--streaming off" in failure.hint) == (True, streaming == "on")


@pytest.mark.parametrize(
    ("text", "kind"),
    [
        ("unrecognized pgoutput option: proto_version", ErrorKind.USAGE),
        ("unexpected duplicate for tablespace 0, relfilenumber 43808", ErrorKind.SERVER_FAULT),
    ],
)
def test_an_internal_error_at_the_start_is_about_an_option_if_it_names_one(walsender, text, kind):
    server = walsender()
    server.refusal = error("XX000", text)
    with ReplicationConnection(server.uri) as connection, pytest.raises(PgcdcError) as caught:
        connection.start("s", Lsn(0), OPTIONS.items())
    assert caught.value.kind is kind
    assert ("-o NAME=VALUE" in caught.value.hint) == (kind is ErrorKind.USAGE)


def test_what_came_before_an_error_is_given_before_it(connected):
    server, stream = connected()
    server.send(xlogdata(1, b"B") + xlogdata(2, b"C") + error("42704", 'publication "p" does not exist'))
    frames, failure = receive_all(stream)
    assert [frame[XLOGDATA_HEADER:] for frame in frames] == [b"B", b"C"]
    assert failure.kind is ErrorKind.PUBLICATION


@pytest.mark.parametrize(
    "text", ['skipped loading publication "p"', "Publikation »p« übersprungen", "发布 'p' 被跳过"]
)
def test_the_warning_of_a_skipped_publication_is_known_in_any_language(connected, text):
    server, stream = connected()
    server.send(xlogdata(1, b"B") + error("55000", text, "WARNING", b"N") + xlogdata(2, b"C") + keepalive(9))
    frames, failure = receive_all(stream)
    assert failure.kind is ErrorKind.PUBLICATION
    assert b"C" not in [frame[XLOGDATA_HEADER:] for frame in frames]


def test_no_position_behind_the_warning_of_a_skipped_publication_is_taken(connected):
    """The server has skipped changes before it; once it is confirmed they don't come again."""
    server, stream = connected()
    warning = error("55000", 'skipped loading publication "p"', "WARNING", b"N")
    server.send(xlogdata(1, b"B") + warning + xlogdata(2, b"C") + keepalive(9))
    received = []
    with suppress(PgcdcError):
        while len(received) < 10:
            received.append(stream.receive(8192, 1.0))
    assert [one.keepalive for one in received if one.keepalive] == []


def test_after_the_warning_of_a_skipped_publication_nothing_counts_even_if_the_connection_ends(
    connected,
):
    server, stream = connected()
    warning = error("55000", 'skipped loading publication "p"', "WARNING", b"N")
    server.send(xlogdata(1, b"B") + warning + xlogdata(2, b"C") + error("57P01", "terminating", "FATAL"))
    server.hang_up()
    frames, failure = receive_all(stream)
    assert failure.kind is ErrorKind.PUBLICATION
    assert b"C" not in [frame[XLOGDATA_HEADER:] for frame in frames]


@pytest.mark.parametrize(("sqlstate", "text"), [("55000", "about apples"), ("01000", 'about "p"')])
def test_other_warnings_are_logged_once_and_stop_nothing(connected, caplog, sqlstate, text):
    server, stream = connected()
    server.send(error(sqlstate, text, "WARNING", b"N") * 3 + keepalive(9))
    while stream.receive(10, 1.0).keepalive is None:
        pass
    assert [r.getMessage() for r in caplog.records if r.name == "pgcdc"] == [f"server: {text}"]


def test_a_connection_that_ends_without_a_word_is_worth_another_try(connected):
    server, stream = connected()
    server.hang_up()
    assert receive_all(stream)[1].kind is ErrorKind.CONNECTION


@pytest.mark.parametrize("encrypted", [False, True], ids=["socket", "libpq"])
def test_what_came_of_a_large_value_takes_no_memory_once_its_connection_is_closed(walsender, encrypted):
    """Nothing else refers to a lost connection, but garbage is collected only now and then."""
    part, kept = xlogdata(1, bytes(64 << 20))[:-1], []
    before = resident()
    for _ in range(4):
        server = walsender(encrypted=encrypted)
        connection = ReplicationConnection(server.uri)
        kept.append((connection, connection.start("s", Lsn(0), OPTIONS.items())))
        sending = threading.Thread(target=server.send, args=(part,))
        sending.start()
        while sending.is_alive():
            assert kept[-1][1].receive(10, 0.1).empty
        server.hang_up()
        receive_all(kept[-1][1])
        connection.close()
    assert resident() - before < 2 * len(part)


def resident() -> int:
    """The bytes of memory that this process takes now."""
    return int(Path("/proc/self/statm").read_text().split()[1]) * resource.getpagesize()


def test_a_silent_server_is_given_up(connected):
    server, stream = connected(status_interval=0.1, wal_receiver_timeout=3.0)
    _, failure = receive_all(stream)
    assert failure.kind is ErrorKind.CONNECTION
    assert re.search(r"the server has been silent for ([3-9]|\d\d) s", failure.message)
    assert len(server.wait_for(3)) >= 3


def test_a_large_value_that_comes_slowly_is_not_silence(connected):
    server, stream = connected(status_interval=0.1, wal_receiver_timeout=3.0)
    whole = xlogdata(1, bytes(150_000))
    frames = []
    for at in range(0, len(whole), 10_000):
        server.send(whole[at : at + 10_000])
        frames += stream.receive(10, 0.5).frames
        time.sleep(0.1)
    while not frames:
        frames += stream.receive(10, 0.5).frames
    assert len(frames[0]) == 150_025


def test_a_server_that_never_ends_the_stream_is_left(connected):
    server, stream = connected()
    server.reading.clear()
    server.send(keepalive(1))
    # The reader may still have taken a message that was on its way, but not CopyDone.
    assert not stream.finish(timeout=1.0)


@pytest.mark.parametrize("size", [0, 1, 30, 3000, 70_000])
def test_a_wire_cut_anywhere_loses_nothing(database18, table18, stream, proxy18, size):
    one = stream(proxy18.uri(database18.name), table18).start()
    proxy18.cut_after(size)
    database18.execute("INSERT INTO t SELECT g, repeat('x', 100) FROM generate_series(1, 2000) g")
    with pytest.raises(PgcdcError) as caught:
        one.read(commits=1)
    assert caught.value.kind is ErrorKind.CONNECTION
    one.connection.close()
    wait_until_free(database18, table18)
    again = stream(database18.uri, table18).start().read(commits=1)
    assert again.tags == "BR" + "I" * 2000 + "C"


def test_a_wire_that_stalls_is_given_up_and_one_that_resumes_in_time_is_not(
    database18, table18, stream, proxy18
):
    one = stream(proxy18.uri(database18.name), table18, status_interval=0.3, wal_receiver_timeout=4.0).start()
    proxy18.stall()
    database18.execute("INSERT INTO t VALUES (1)")
    until = time.monotonic() + 1
    while time.monotonic() < until:
        assert not one.stream.receive(10, 0.2).frames
    proxy18.resume()
    assert one.read(commits=1).tags == "BRIC"
    proxy18.stall()
    with pytest.raises(PgcdcError, match=r"silent for ([4-9]|\d\d) s") as caught:
        one.read(commits=2)
    assert caught.value.kind is ErrorKind.CONNECTION


def test_a_server_that_has_nothing_to_send_is_not_given_up(database18, table18, stream):
    """Every update asks it for a keepalive, which it would send only after half a minute otherwise."""
    one = stream(database18.uri, table18, status_interval=0.2, wal_receiver_timeout=2.0).start()
    until = time.monotonic() + 3
    while time.monotonic() < until:
        assert not one.stream.receive(10, 0.2).frames
