"""A prepared transaction's changes survive from its prepare to its end, whatever happens in between."""

import random

import numpy as np
import pytest
from sink_disks import Crash, FailingDisk, PowerDisk
from sink_tools import (
    SOURCE,
    START,
    Clock,
    Feed,
    Lines,
    MemoryOrRealReader,
    check_complete,
    killed,
    make_directory,
    started,
    transactions,
)

from pgcdc_cli.changes.edge import Edge, Prepared
from pgcdc_cli.changes.spool import SpoolChunk
from pgcdc_cli.errors import ErrorKind, PgcdcError
from pgcdc_cli.formats.interface import EncodedSlice
from pgcdc_cli.frames import PADDING
from pgcdc_cli.lsn import Lsn
from pgcdc_cli.pgoutput.message_batch import MessageBuffer
from pgcdc_cli.sinks import spool_file

TXS = transactions("ab", "a", "bc", "c", "abc", "a")
SETTINGS = {"rotate_size": 300, "rotate_interval": None, "fsync_interval": 5.0, "status_interval": 5.0}
PREPARES = {(TXS[0].end_lsn + 1): (7, "first", TXS[2]), (TXS[1].end_lsn + 1): (8, "second", None)}
"""By end LSN: xid, gid, and the transaction that commits it; None if it is rolled back at ROLLBACK."""
ROLLBACK = Lsn(TXS[3].end_lsn + 1)


@pytest.fixture(autouse=True)
def small_chunks(monkeypatch):
    monkeypatch.setattr(spool_file, "CHUNK_BYTES", 40)


def chunk(text):
    sizes = np.array([len(text)], np.int64)
    return SpoolChunk(text.encode() + PADDING, sizes, np.array([5], np.int64))


def content(gid):
    return [f"{gid} {number}" for number in range(5)]


class Server:
    """Sends what is beyond `confirmed`, as a server does: a prepared transaction's changes only once.

    There is a checkpoint after every `checkpoints` events.
    """

    def __init__(self, checkpoints):
        self.checkpoints = checkpoints
        self.confirmed = START
        self.feed = Feed(Lines())

    def run(self, sink, confirmed):
        """One run from a started sink to its end; `confirmed` is the position that the server has."""
        self.confirmed = confirmed
        spools = sink.new_spools()
        known = {one.gid: one for one in sink.edge.prepared}
        begun = sink.edge.lsn
        events = sorted([(tx.end_lsn, tx) for tx in TXS] + [(lsn, None) for lsn in (*PREPARES, ROLLBACK)])
        for number, (lsn, tx) in enumerate(events):
            if lsn <= confirmed:
                continue
            if lsn in PREPARES:
                self.prepare(sink, spools, known, lsn, begun)
            elif lsn == ROLLBACK:
                if known.pop("second", None) is not None:
                    sink.write(EncodedSlice((), Edge(lsn, prepared=tuple(known.values()))))
            elif tx is TXS[2]:
                self.commit(sink, spools, known, tx, begun)
            elif tx.commit_lsn >= begun:
                sink.write(self.feed.whole(tx))
            if number % self.checkpoints == 1:
                sink.flush()
            self.confirmed = max(self.confirmed, sink.durable_lsn)
        sink.close()
        self.confirmed = max(self.confirmed, sink.durable_lsn)

    def prepare(self, sink, spools, known, lsn, begun):
        xid, gid, _ = PREPARES[lsn]
        if gid in known or lsn < begun:
            return
        file = spools.create(xid, Lsn(lsn))
        for text in content(gid):
            file.append(chunk(text))
        known[gid] = Prepared(xid, gid, Lsn(lsn), *file.finish())
        sink.write(EncodedSlice((), Edge(Lsn(lsn), prepared=tuple(known.values()))))

    def commit(self, sink, spools, known, tx, begun):
        prepared = known.pop("first", None)
        if tx.commit_lsn < begun:
            return
        assert prepared is not None, "its changes are lost: the server sends them no more"
        buffers = map(MessageBuffer.of, spools.reopen(prepared).chunks())
        found = [buffer.message(number).decode() for buffer in buffers for number in range(len(buffer))]
        assert found == content("first")
        part = self.feed.whole(tx)
        edge = Edge(tx.end_lsn, commit_lsn=tx.commit_lsn, transactions=1, prepared=tuple(known.values()))
        sink.write(EncodedSlice(part.pieces, edge, part.tables))


def first_run(path, disk, checkpoints=2):
    sink = make_directory(path, Lines(), disk, Clock(), **SETTINGS)
    server = Server(checkpoints)
    try:
        sink.open()
        assert sink.checkpoint is None
        sink.start(SOURCE, START)
        server.run(sink, START)
    except Crash:
        pass
    return server.confirmed


def second_run(path, disk, confirmed, checkpoints=2):
    sink = make_directory(path, Lines(), disk, Clock(), **SETTINGS)
    sink.open()
    checkpoint = sink.checkpoint
    sink.start(SOURCE, START, checkpoint)
    assert sink.durable_lsn >= confirmed
    Server(checkpoints).run(sink, confirmed)
    reader = MemoryOrRealReader(disk, path)
    check_complete(reader, Lines(), TXS)
    assert disk.stat(f"{path}/_spool") is None, "spools outlived their transactions"


def test_one_run_leaves_nothing_of_it(tmp_path):
    disk = FailingDisk()
    path = str(tmp_path / "d")
    confirmed = first_run(path, disk)
    second_run(path, disk, confirmed)
    assert any("fsync" in call for call in disk.calls)


@pytest.mark.parametrize("checkpoints", [2, 5, 100])
@pytest.mark.parametrize("how", ["before", "after", "short"])
def test_a_crash_at_any_call(tmp_path, how, checkpoints):
    disk = FailingDisk()
    first_run(str(tmp_path / "counted"), disk, checkpoints)
    for at in [n for n, call in enumerate(disk.calls) if how != "short" or call == "write"]:
        path = str(tmp_path / f"d{at}")
        crashing = FailingDisk(at, how)
        confirmed = first_run(path, crashing, checkpoints)
        crashing.bury()
        second_run(path, FailingDisk(), confirmed, checkpoints)


@pytest.mark.parametrize("checkpoints", [2, 5, 100])
def test_a_power_cut_at_any_call(checkpoints):
    counting = PowerDisk()
    first_run("/data/d", counting, checkpoints)
    for at in range(counting.calls):
        disk = PowerDisk()
        disk.cut_at = at
        confirmed = first_run("/data/d", disk, checkpoints)
        disk.power_cut(random.Random(at))
        second_run("/data/d", disk, confirmed, checkpoints)


def spooled(sink, xid, gid):
    """A prepared transaction whose spool is finished."""
    file = sink.new_spools().create(xid, START)
    file.append(chunk("content"))
    return Prepared(xid, gid, START, *file.finish())


@pytest.mark.parametrize("harm", ["remove", "cut", "change"])
def test_a_damaged_spool_is_refused(tmp_path, harm):
    sink = started(tmp_path / "d", clock=Clock(), **SETTINGS)
    sink.write(EncodedSlice((), Edge(START, prepared=(spooled(sink, 7, "g"),))))
    sink.close()
    (path,) = (tmp_path / "d" / "_spool").iterdir()
    data = path.read_bytes()
    if harm == "remove":
        path.unlink()
    else:
        path.write_bytes(data[:-1] if harm == "cut" else data[:-9] + b"X" + data[-8:])
    sink = make_directory(str(tmp_path / "d"), Lines(), None, Clock(), **SETTINGS)
    with pytest.raises(PgcdcError, match=r"\.spool") as error:
        sink.open()
    assert error.value.kind is ErrorKind.CHECKPOINT


def test_a_spool_goes_with_the_first_checkpoint_that_does_not_name_it(tmp_path):
    """Otherwise those of a long run would fill the disk, or reach the limit."""
    sink = started(tmp_path / "d", clock=Clock(), **SETTINGS)
    prepared = spooled(sink, 7, "g")
    path = tmp_path / "d" / prepared.path
    for known in ((prepared,), ()):
        sink.write(EncodedSlice((), Edge(START, prepared=known)))
        assert path.exists()
        sink.flush()
        assert (path.exists(), sink.spooled) == ((True, prepared.size) if known else (False, 0))
    sink.close()


def test_spools_that_the_checkpoint_does_not_name_are_removed_once_the_source_is_known(tmp_path):
    """Beside an older copy of the checkpoint, they may be of transactions that don't come again."""
    sink = started(tmp_path / "d", clock=Clock(), **SETTINGS)
    prepared = spooled(sink, 7, "g")
    sink.write(EncodedSlice((), Edge(START, prepared=(prepared,))))
    sink.flush()
    spooled(sink, 8, "not in the checkpoint")
    killed(sink)
    again = make_directory(str(tmp_path / "d"), Lines(), None, Clock(), **SETTINGS)
    again.open()
    assert len(list((tmp_path / "d" / "_spool").iterdir())) == 2
    again.start(SOURCE, START, again.checkpoint)
    assert list((tmp_path / "d" / "_spool").iterdir()) == [tmp_path / "d" / prepared.path]
