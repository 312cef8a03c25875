"""Generated streams in pieces are read as if they came whole; mutated ones as the reference reads them."""

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pgoutput_connection import connection
from pgoutput_pieces import as_sent, in_pieces, rearranged
from pgoutput_reference import flat, reference
from pgoutput_reference_pieces import reference_of_pieces
from pgoutput_strategies import cuts, mutations, streams
from scale import examples

from pgcdc_cli.directory.disk import Disk, OpenFiles
from pgcdc_cli.errors import PgcdcError
from pgcdc_cli.frames import Frames
from pgcdc_cli.lsn import Lsn
from pgcdc_cli.sinks import spool_file
from pgcdc_cli.sinks.spool_file import SpoolFolder


@pytest.fixture(scope="module")
def folders(tmp_path_factory):
    """A function that makes a new folder."""
    return lambda: tmp_path_factory.mktemp("spools")


class Run:
    """One connection's slices; a spool is dropped once a checkpoint would no longer name its transaction."""

    def __init__(self, folder, *, skip_before=0, known=()):
        self.parts = []
        self.prepared = {(one.xid, one.gid): one for one in known}
        self._spools = SpoolFolder(OpenFiles(Disk(), str(folder)), "spool")
        self._spools.clear(known)
        self._spools.check(known)
        self._streams = connection(self._spools, skip_before=skip_before, known=known)

    def take(self, batches):
        """Decode batches; yield the position of each edge."""
        for batch in batches:
            for part in self._streams.slices(Frames.of(batch)):
                self.parts.append(part)
                if part.edge is not None:
                    self._checkpoint(part.edge)
                    yield part.edge.end_lsn

    def _checkpoint(self, edge):
        if edge.prepared is not None:
            kept = {(one.xid, one.gid): one for one in edge.prepared}
            for gone in self.prepared.keys() - kept.keys():
                self._spools.discard(self.prepared[gone])
            self.prepared = kept

    def found(self):
        found = flat(self.parts)
        found.in_transaction = self._streams.in_transaction
        found.prepared, found.pending = set(self.prepared), None
        return found


def assembled(batches, folder, **options):
    run = Run(folder, **options)
    for _ in run.take(batches):
        pass
    return run.found()


@given(st.data(), streams())
@examples(60)
def test_transactions_in_pieces_are_those_that_come_whole(folders, data, frames):
    frames = as_sent(frames)
    pieces = data.draw(in_pieces(frames))
    found = assembled(data.draw(cuts(pieces)), folders())
    whole = reference(frames, skip_before=0, boundaries=True)
    assert found.events == whole.events
    if whole.last_edge is not None:
        assert found.last_edge[1] >= whole.last_edge[1]
    assert not found.in_transaction


@given(st.data(), streams())
@examples(60)
def test_any_pieces_are_read_as_the_plain_reference_does(folders, data, frames):
    """From any position on, too: what ended before it is dropped."""
    pieces = data.draw(in_pieces(as_sent(frames)))
    lsns = {int.from_bytes(one[1:9]) + near for one in pieces for near in (-1, 0, 1)}
    skip_before = Lsn(data.draw(st.sampled_from(sorted({0} | {lsn for lsn in lsns if lsn >= 0}))))
    check(pieces, data.draw(cuts(pieces)), folders, skip_before=skip_before)


@given(st.data(), streams())
@examples(60)
def test_a_restart_behind_any_edge_gives_the_rest(folders, data, frames):
    """The server sends everything again that the checkpoint lacks; here even what it has."""
    frames = as_sent(frames)
    pieces, folder = data.draw(in_pieces(frames)), folders()
    before, edges = Run(folder), data.draw(st.integers(0, 6))
    ends = [end for _, end in zip(range(edges), before.take(data.draw(cuts(pieces))), strict=False)]
    known = tuple(before.prepared.values())
    after = Run(folder, skip_before=ends[-1] if ends else 0, known=known)
    for _ in after.take(data.draw(cuts(pieces))):
        pass
    durable = before.parts if ends else []
    whole = reference(frames, skip_before=0, boundaries=True)
    assert flat(durable).events + after.found().events == whole.events
    assert not list(folder.glob("spool/*"))


@given(st.data(), streams(), st.sampled_from([1, 100, 1 << 30]))
@examples(150)
def test_mutated_pieces_are_refused_or_read_as_the_plain_reference_does(folders, data, frames, chunk_bytes):
    pieces = data.draw(rearranged(data.draw(in_pieces(as_sent(frames)))))
    if pieces and data.draw(st.booleans()):
        pieces = data.draw(mutations(pieces))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(spool_file, "CHUNK_BYTES", chunk_bytes)
        check(pieces, data.draw(cuts(pieces)), folders, skip_before=-1)  # what is skipped isn't decoded


def check(pieces, batches, folders, **options):
    """The stream is an error, or what the reference reads, wherever it is divided into batches."""
    try:
        expected = reference_of_pieces(pieces, **options)
    except PgcdcError:
        for some in ([pieces], batches):
            with pytest.raises(PgcdcError):
                assembled(some, folders(), **options)
        return
    pending, expected.pending = expected.pending, None
    for some in ([pieces], batches):
        folder = folders()
        found = assembled(some, folder, **options)
        assert vars(found) == vars(expected)
        assert pending or not list(folder.glob("spool/*")), "a spool ends with its transaction"
