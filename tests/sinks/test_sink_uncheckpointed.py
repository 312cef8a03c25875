"""Output that can't be taken back."""

import fcntl
import os
import resource
import threading

import pytest
from sink_disks import FailingDisk
from sink_tools import SOURCE, START, Clock, Feed, Lines, expected, transactions

from pgcdc_cli.errors import ErrorKind, PgcdcError
from pgcdc_cli.sinks.sink import SinkSettings
from pgcdc_cli.sinks.uncheckpointed_sink import UncheckpointedSink

TXS = transactions("ab", "a", "aacb", "bc")


def started(target, disk=None, clock=None, **settings) -> UncheckpointedSink:
    sink = UncheckpointedSink(target, Lines(), SinkSettings(**settings), disk, clock)
    sink.open()
    assert sink.checkpoint is None
    sink.start(SOURCE, START, None)
    return sink


def feed() -> Feed:
    return Feed(Lines(), layout="stream")


def test_a_pipe_gets_every_slice_at_once_and_edges_are_durable():
    reading, writing = os.pipe()
    sink = started(writing)
    sink.write(feed().part(TXS[0], 0, 1))
    assert sink.durable_lsn == START
    assert os.read(reading, 1000) == expected(TXS[:1])[0]
    sink.write(feed().part(TXS[0], 1, edge=True))
    assert sink.edge.lsn == sink.durable_lsn == TXS[0].end_lsn
    sink.advance(TXS[1].end_lsn)
    assert sink.durable_lsn == TXS[1].end_lsn
    sink.close()
    os.write(writing, b"still open")
    os.close(writing)
    os.close(reading)


@pytest.mark.parametrize("opened", [False, True], ids=["by us", "by others"])
def test_what_nobody_can_read_any_more_is_not_confirmed(tmp_path, opened):
    """What others opened may never have had a name."""
    path = tmp_path / "out"
    with path.open("wb") as file:
        sink = started(file.fileno() if opened else str(path))
        path.unlink()
        sink.write(feed().whole(TXS[0]))
        if opened:
            sink.close()
        else:
            with pytest.raises(PgcdcError) as caught:
                sink.close()
            assert caught.value.kind is ErrorKind.OUTPUT
    assert sink.durable_lsn == (TXS[0].end_lsn if opened else START)


def test_a_reader_that_went_away_is_a_broken_pipe_and_confirms_nothing():
    reading, writing = os.pipe()
    sink = started(writing)
    os.close(reading)
    with pytest.raises(BrokenPipeError):
        sink.write(feed().whole(TXS[0]))
    assert sink.durable_lsn == START
    sink.close()
    assert sink.durable_lsn == START
    os.close(writing)


@pytest.fixture(params=[0, 1024], ids=["", "of a process with many descriptors"])
def pipe(request):
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (max(soft, 2048), hard))
    reading, low = os.pipe()
    writing = fcntl.fcntl(low, fcntl.F_DUPFD, request.param)
    os.close(low)
    yield reading, writing
    resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


def test_a_slow_reader_of_a_non_blocking_pipe_is_waited_for(pipe):
    reading, writing = pipe
    os.set_blocking(writing, False)
    sink = started(writing)
    txs = transactions("a" * 30_000)
    received = bytearray()

    def read() -> None:
        while chunk := os.read(reading, 4096):
            received.extend(chunk)

    reader = threading.Thread(target=read)
    reader.start()
    sink.write(feed().whole(*txs))
    sink.close()
    os.close(writing)
    reader.join()
    os.close(reading)
    assert bytes(received) == b"".join(expected(txs))


def test_a_full_device_is_exit_9():
    sink = started("/dev/full")
    with pytest.raises(PgcdcError, match='could not write "/dev/full": No space left on device') as caught:
        sink.write(feed().whole(TXS[0]))
    assert caught.value.kind is ErrorKind.OUTPUT
    assert sink.durable_lsn == START
    sink.close()
    assert sink.durable_lsn == START


def test_a_device_takes_everything():
    sink = started("/dev/null")
    sink.write(feed().whole(*TXS))
    assert sink.durable_lsn == TXS[-1].end_lsn
    sink.close()


def test_a_regular_file_is_appended_to_and_durable_when_fsynced(tmp_path):
    clock = Clock()
    (tmp_path / "out").write_bytes(b"before\n")
    sink = started(str(tmp_path / "out"), clock=clock, fsync_interval=10)
    sink.write(feed().whole(TXS[0]))
    assert sink.durable_lsn == START
    clock.now += 10
    sink.tick()
    assert sink.durable_lsn == TXS[0].end_lsn
    sink.write(feed().whole(TXS[1]))
    assert sink.durable_lsn == TXS[0].end_lsn
    sink.close()
    assert sink.durable_lsn == TXS[1].end_lsn
    assert (tmp_path / "out").read_bytes() == b"before\n" + b"".join(expected(TXS[:2]))


def test_hup_opens_the_path_anew(tmp_path):
    sink = started(str(tmp_path / "out"))
    sink.write(feed().whole(TXS[0]))
    (tmp_path / "out").rename(tmp_path / "out.1")
    sink.reopen()
    sink.tick()
    sink.write(feed().whole(TXS[1]))
    sink.close()
    assert (tmp_path / "out.1").read_bytes() == b"".join(expected(TXS[:1]))
    assert (tmp_path / "out").read_bytes() == b"".join(expected(TXS[1:2]))


def test_hup_in_the_midst_of_a_transaction_waits_for_its_end(tmp_path):
    sink, parts = started(str(tmp_path / "out")), feed()
    sink.write(parts.part(TXS[0], 0, 1))
    (tmp_path / "out").rename(tmp_path / "out.1")
    sink.reopen()
    sink.tick()
    sink.write(parts.part(TXS[0], 1, edge=True))
    sink.close()
    assert (tmp_path / "out.1").read_bytes() == b"".join(expected(TXS[:1]))
    assert (tmp_path / "out").read_bytes() == b""


def test_no_place_for_temporary_files_is_one_error(tmp_path, monkeypatch):
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path / "missing"))
    sink = started(str(tmp_path / "out"))
    with pytest.raises(PgcdcError, match="could not create a temporary folder: No such file") as caught:
        sink.new_spools()
    assert caught.value.kind is ErrorKind.OUTPUT
    sink.close()


def test_a_failed_fsync_is_not_tried_again(tmp_path):
    counting = FailingDisk()
    started(str(tmp_path / "out"), counting)
    disk = FailingDisk(len(counting.calls) + 1, "EIO")
    sink = started(str(tmp_path / "out"), disk)
    sink.write(feed().whole(TXS[0]))
    with pytest.raises(PgcdcError, match="could not fsync"):
        sink.flush()
    sink.close()
    assert disk.calls.count("fsync") == 1
    assert sink.durable_lsn == START
    counting.bury()


def test_a_path_that_cant_be_opened_is_one_error(tmp_path):
    sink = UncheckpointedSink(str(tmp_path / "missing" / "out"), Lines(), SinkSettings())
    with pytest.raises(PgcdcError, match="could not open") as caught:
        sink.open()
    assert caught.value.kind is ErrorKind.OUTPUT
    sink.close()
